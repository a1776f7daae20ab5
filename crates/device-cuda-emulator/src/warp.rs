//! A warp: its registers, where its lanes are, and what it has asked for and not waited for.

use crate::kernel::{Kernel, Rows, Special};
use crate::memory::Window;

pub(crate) const LANES: usize = 32;
/// A register of all lanes.
pub(crate) type Row<T> = [T; LANES];

/// The lanes that a mask names.
#[inline(always)]
pub(crate) fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    let mut left = mask;
    std::iter::from_fn(move || {
        let lane = left.trailing_zeros() as usize;
        left &= left.wrapping_sub(1);
        (lane < LANES).then_some(lane)
    })
}

/// What a group of lanes has to see changed before it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// It has not begun to wait.
    No,
    /// It has arrived at a barrier, which was open that often before.
    Arrived(u32),
}

/// Lanes that are at the same instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) at: u32,
    pub(crate) mask: u32,
    pub(crate) waiting: Waiting,
    /// It cannot go on before something happens.
    pub(crate) stalled: bool,
}

/// Copies of sixteen bytes or four, as one instruction has asked for them.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all of them are copies")]
pub(crate) enum Request {
    Copy {
        mask: u32,
        to: Row<u32>,
        from: Row<u64>,
        bytes: u32,
        /// By lane, the number of its group, or `u32::MAX` while that is open.
        group: Row<u32>,
        line: u32,
    },
    /// A barrier is told when all copies before are done.
    Arrive { mask: u32, barrier: Row<u32> },
}

/// A copy from shared to global memory.
#[derive(Clone, Debug)]
pub(crate) struct BulkStore {
    pub(crate) lane: usize,
    pub(crate) to: u64,
    pub(crate) from: u32,
    pub(crate) bytes: u32,
    /// What was read, once it was.
    pub(crate) data: Option<Vec<u8>>,
    pub(crate) group: u32,
    pub(crate) line: u32,
}

/// A warp of a thread block.
pub(crate) struct Warp {
    /// Thread block in its cluster, and warp in its thread block.
    pub(crate) rank: usize,
    pub(crate) index: usize,
    /// Lanes that there are.
    pub(crate) all: u32,
    pub(crate) exited: u32,
    pub(crate) groups: Vec<Group>,
    pub(crate) predicates: Vec<u32>,
    pub(crate) words: Vec<Row<u32>>,
    pub(crate) doubles: Vec<Row<u64>>,
    /// Bytes of a lane, then of the next.
    pub(crate) local: Vec<u8>,
    pub(crate) window: Window,
    pub(crate) requests: Vec<Request>,
    /// By lane, groups of copies that were closed.
    pub(crate) closed: Row<u32>,
    pub(crate) stores: Vec<BulkStore>,
    pub(crate) stores_closed: Row<u32>,
    /// How often the cluster's barrier had opened when this warp arrived.
    pub(crate) cluster_seen: u32,
    /// What had happened in the cluster when it last could not go on.
    pub(crate) stalled_at: Option<u64>,
}

impl Warp {
    /// With constants in their rows.
    pub(crate) fn new(kernel: &Kernel) -> Self {
        let Rows {
            predicates,
            words,
            doubles,
            word_constants,
            specials,
            double_constants,
        } = &kernel.rows;
        let mut warp = Self {
            rank: 0,
            index: 0,
            all: 0,
            exited: 0,
            groups: Vec::new(),
            predicates: [vec![0; *predicates], vec![0, u32::MAX]].concat(),
            words: vec![[0; LANES]; words + word_constants.len() + specials.len()],
            doubles: vec![[0; LANES]; doubles + double_constants.len()],
            local: vec![0xff; kernel.local * LANES],
            window: Window::default(),
            requests: Vec::new(),
            closed: [0; LANES],
            stores: Vec::new(),
            stores_closed: [0; LANES],
            cluster_seen: 0,
            stalled_at: None,
        };
        for (row, value) in warp.words[*words..].iter_mut().zip(word_constants) {
            *row = [*value; LANES];
        }
        for (row, value) in warp.doubles[*doubles..].iter_mut().zip(double_constants) {
            *row = [*value; LANES];
        }
        warp
    }

    /// At the first instruction of a thread block. What registers held stays: nobody may look at it.
    pub(crate) fn begin(&mut self, kernel: &Kernel, place: &Place) {
        (self.rank, self.index) = (place.rank, place.warp);
        let threads = place.threads - place.warp as u32 * 32;
        self.all = if threads >= 32 {
            u32::MAX
        } else {
            (1 << threads) - 1
        };
        self.exited = !self.all;
        self.groups.clear();
        self.groups.push(Group {
            at: 0,
            mask: self.all,
            waiting: Waiting::No,
            stalled: false,
        });
        self.requests.clear();
        self.stores.clear();
        self.stalled_at = None;
        self.local.fill(0xff);
        let first = kernel.rows.words + kernel.rows.word_constants.len();
        for (row, special) in self.words[first..].iter_mut().zip(&kernel.rows.specials) {
            for (lane, value) in row.iter_mut().enumerate() {
                *value = match special {
                    Special::Thread(0) => place.warp as u32 * 32 + lane as u32,
                    Special::Thread(_) => 0,
                    Special::Threads(0) => place.threads,
                    Special::Threads(_) => 1,
                    Special::Block(axis) => place.block[usize::from(*axis)],
                    Special::Blocks(axis) => place.blocks[usize::from(*axis)],
                    Special::Lane => lane as u32,
                    Special::Warp => place.warp as u32,
                    Special::RankInCluster => place.rank as u32,
                    Special::BlocksOfCluster => place.cluster,
                };
            }
        }
    }

    /// Whether all of its lanes have ended.
    pub(crate) fn is_over(&self) -> bool {
        self.exited == u32::MAX
    }
}

/// Where a warp is in its grid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) block: [u32; 3],
    pub(crate) blocks: [u32; 3],
    /// Of a thread block.
    pub(crate) threads: u32,
    /// Thread blocks of a cluster.
    pub(crate) cluster: u32,
    pub(crate) rank: usize,
    pub(crate) warp: usize,
}
