//! A grid: its clusters, and the warps of a cluster in an order that a seed chooses.

use crate::cluster::Common;
use crate::exec::{Count, Ended, Problem, Setting, Trouble, Turn, advance, land, write_all};
use crate::kernel::Kernel;
use crate::memory::Memory;
use crate::names::SHARED_BASE;
use crate::settings::{Random, Settings};
use crate::warp::{LANES, Place, Warp};

/// Instructions that a warp runs before others have their turn, at most.
const TURN: u64 = 4000;
/// Instructions after which other clusters have their turn: some wait for others.
const SHIFT: u64 = 4_000_000;
/// Clusters that are there at a time, for each multiprocessor.
const TOGETHER: usize = 2;

/// How a kernel is launched.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) blocks: [u32; 3],
    pub(crate) threads: u32,
    /// Thread blocks of a cluster, along the first dimension.
    pub(crate) cluster: u32,
    /// Bytes of shared memory behind the kernel's own.
    pub(crate) shared: usize,
}

/// Thread blocks that run together.
struct Cluster {
    /// Its first thread block.
    first: u64,
    warps: Vec<Warp>,
    common: Common,
}

/// What went wrong in a launch.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) trouble: Trouble,
    pub(crate) text: String,
}

/// Runs a grid to its end.
pub(crate) fn run(
    kernel: &Kernel,
    shape: &Shape,
    parameters: &[u8],
    memory: &Memory,
    settings: &Settings,
    seed: u64,
) -> Result<Count, Fault> {
    let setting = Setting {
        kernel,
        parameters,
        memory,
    };
    let clusters = shape
        .blocks
        .iter()
        .map(|blocks| u64::from(*blocks))
        .product::<u64>()
        / u64::from(shape.cluster);
    let mut random = Random::new(seed);
    let (mut next, mut count) = (0, Count::default());
    let mut running: Vec<Cluster> = Vec::new();
    let mut spare: Vec<Cluster> = Vec::new();
    let most = (settings.multiprocessors as usize * TOGETHER).max(1);
    let mut turn = 0;
    loop {
        if next < clusters && running.len() < most && turn >= running.len() {
            let mut cluster = spare
                .pop()
                .unwrap_or_else(|| Cluster::new(kernel, shape, settings, random.next()));
            cluster.begin(kernel, shape, next * u64::from(shape.cluster));
            next += 1;
            running.push(cluster);
        }
        if running.is_empty() {
            return Ok(count);
        }
        turn = if turn < running.len() { turn } else { 0 };
        let over = running[turn]
            .run(&setting, &mut count)
            .map_err(|(why, line, block)| {
                let at = place_of(shape, block);
                let text = format!(
                    "kernel {}, thread block {at:?}, line {line}: {}\n    {}",
                    kernel.name,
                    kernel.line(line),
                    why.text
                );
                Fault {
                    trouble: why.trouble,
                    text,
                }
            })?;
        if over {
            spare.push(running.swap_remove(turn));
        } else {
            turn += 1;
        }
        if count.instructions > settings.limit {
            let text = format!(
                "kernel {}: {} instructions, and no end",
                kernel.name, count.instructions
            );
            return Err(Fault {
                trouble: Trouble::Stuck,
                text,
            });
        }
    }
}

fn place_of(shape: &Shape, block: u64) -> [u32; 3] {
    let [x, y, _] = shape.blocks.map(u64::from);
    [(block % x) as u32, (block / x % y) as u32, (block / x / y) as u32]
}

impl Cluster {
    fn new(kernel: &Kernel, shape: &Shape, settings: &Settings, seed: u64) -> Self {
        let warps = shape.threads.div_ceil(LANES as u32) * shape.cluster;
        let bytes = (kernel.shared_end + shape.shared).max(SHARED_BASE as usize);
        Self {
            first: 0,
            warps: (0..warps).map(|_| Warp::new(kernel)).collect(),
            common: Common::new(shape.cluster as usize, bytes, Random::new(seed), settings.timing),
        }
    }

    fn begin(&mut self, kernel: &Kernel, shape: &Shape, first: u64) {
        let of_block = self.warps.len() / shape.cluster as usize;
        self.first = first;
        self.common.begin(of_block as u32);
        for (index, warp) in self.warps.iter_mut().enumerate() {
            let rank = index / of_block;
            let place = Place {
                block: place_of(shape, first + rank as u64),
                blocks: shape.blocks,
                threads: shape.threads,
                cluster: shape.cluster,
                rank,
                warp: index % of_block,
            };
            warp.begin(kernel, &place);
        }
    }

    /// Runs for a while; true if all is over. An error comes with its line and thread block.
    fn run(&mut self, setting: &Setting<'_>, count: &mut Count) -> Result<bool, (Problem, u32, u64)> {
        let end = count.instructions + SHIFT;
        let mut ready: Vec<usize> = Vec::new();
        while count.instructions < end {
            ready.clear();
            let happened = self.common.happened;
            ready.extend((0..self.warps.len()).filter(|index| {
                let warp = &self.warps[*index];
                !warp.is_over() && warp.stalled_at != Some(happened)
            }));
            if ready.is_empty() {
                if self.warps.iter().all(Warp::is_over) {
                    return self.finish(setting).map(|()| true);
                }
                self.wake(setting)?;
                continue;
            }
            let choice = ready[self.common.random.below(ready.len() as u64) as usize];
            let budget = 1 + self.common.random.below(TURN);
            let first = self.first;
            let warp = &mut self.warps[choice];
            let block = first + warp.rank as u64;
            let before = self.common.happened;
            let mut turn = Turn {
                setting,
                warp,
                common: &mut self.common,
                count: Count::default(),
            };
            let ended = turn.take(budget).map_err(|(why, line)| (why, line, block));
            count.instructions += turn.count.instructions;
            count.lanes += turn.count.lanes;
            // What it did itself may be what some of its lanes wait for.
            let quiet = before == self.common.happened;
            self.warps[choice].stalled_at = (ended? == Ended::Stalled && quiet).then_some(before);
            if self.common.timing == crate::settings::Timing::Random && self.common.random.below(8) == 0 {
                self.advance(setting)?;
            }
        }
        Ok(false)
    }

    /// When no warp can go on, a copy is done that somebody may wait for.
    fn wake(&mut self, setting: &Setting<'_>) -> Result<(), (Problem, u32, u64)> {
        if self.advance(setting)? {
            return Ok(());
        }
        let warps = self.warps.iter().filter(|warp| !warp.is_over());
        let waiting: Vec<String> = warps
            .flat_map(|warp| warp.groups.iter().map(move |group| (warp, group)))
            .map(|(warp, group)| {
                let line = setting.kernel.code[group.at as usize].line;
                let (block, index, text) = (warp.rank, warp.index, setting.kernel.line(line));
                format!(
                    "    warp {index} of block {block} of the cluster, lanes {:#x}, line {line}: {text}",
                    group.mask
                )
            })
            .collect();
        let text = format!("nothing can go on any more:\n{}", waiting.join("\n"));
        Err((Problem::new(Trouble::Stuck, text), 0, self.first))
    }

    /// Does a copy that is under way, any of them; false if there is none.
    fn advance(&mut self, setting: &Setting<'_>) -> Result<bool, (Problem, u32, u64)> {
        let loads = self.common.loads.len();
        let asking: Vec<usize> = (0..self.warps.len())
            .filter(|index| !self.warps[*index].requests.is_empty())
            .collect();
        let choices = loads + asking.len();
        if choices == 0 {
            return Ok(false);
        }
        let choice = self.common.random.below(choices as u64) as usize;
        if choice < loads {
            let load = self.common.loads.swap_remove(choice);
            let block = self.first + load.rank as u64;
            land(&mut self.common, setting.memory, load).map_err(|why| (why, load.line, block))?;
            return Ok(true);
        }
        let warp = &mut self.warps[asking[choice - loads]];
        let block = self.first + warp.rank as u64;
        advance(warp, &mut self.common, setting.memory).map_err(|(why, line)| (why, line, block))
    }

    /// Nothing may be left under way that would write to shared memory; what goes to global memory arrives.
    fn finish(&mut self, setting: &Setting<'_>) -> Result<(), (Problem, u32, u64)> {
        let first = self.first;
        for warp in &mut self.warps {
            let block = first + warp.rank as u64;
            write_all(warp, setting.memory).map_err(|(why, line)| (why, line, block))?;
        }
        if let Some(load) = self.common.loads.first() {
            let text = "the thread block ended before a copy to its shared memory had come";
            return Err((Problem::new(Trouble::Rule, text), load.line, first));
        }
        Ok(())
    }
}
