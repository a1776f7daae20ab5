//! What the thread blocks of a cluster share: their memory, their barriers, and copies that are under way.

use crate::memory::{Memory, POISON, Wrong};
use crate::names::SHARED_BASE;
use crate::settings::{Random, Timing};

/// Barriers of a thread block that have numbers.
const MEETINGS: usize = 16;
/// A barrier in shared memory has this bit, so that nothing else is taken for one.
const VALID: u64 = 1 << 63;
const COUNT: u64 = (1 << 20) - 1;
/// Bytes under way are counted from here.
const BALANCE: i64 = 1 << 20;

/// A barrier with a number: how many threads are there, and how often it has opened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Meeting {
    pub(crate) arrived: u32,
    pub(crate) opened: u32,
    /// How many threads it takes; 0 are all.
    pub(crate) threads: u32,
    pub(crate) folded: u32,
    /// What the threads that met last were made one by.
    pub(crate) result: u32,
}

/// A barrier in shared memory: eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Barrier {
    pub(crate) phase: bool,
    pub(crate) expected: u32,
    pub(crate) pending: u32,
    /// Bytes that have still to come.
    pub(crate) bytes: i64,
}

impl Barrier {
    pub(crate) fn to_bits(self) -> u64 {
        let bytes = (self.bytes + BALANCE) as u64;
        VALID
            | u64::from(self.phase) << 62
            | bytes << 40
            | u64::from(self.expected) << 20
            | u64::from(self.pending)
    }

    pub(crate) fn from_bits(bits: u64) -> Option<Self> {
        (bits & VALID != 0).then_some(Self {
            phase: bits >> 62 & 1 != 0,
            bytes: (bits >> 40 & ((1 << 22) - 1)) as i64 - BALANCE,
            expected: (bits >> 20 & COUNT) as u32,
            pending: (bits & COUNT) as u32,
        })
    }
}

/// A copy from global to shared memory that tells a barrier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BulkLoad {
    pub(crate) rank: usize,
    pub(crate) to: u32,
    pub(crate) from: u64,
    pub(crate) bytes: u32,
    pub(crate) barrier: u32,
    pub(crate) line: u32,
}

/// Shared memory that a warp's part of a product reads until it is waited for, and a hash of what it has read.
#[derive(Clone, Debug)]
pub(crate) struct Operands {
    pub(crate) warp: usize,
    /// Pieces of sixteen bytes.
    pub(crate) pieces: Vec<u32>,
    pub(crate) hash: u64,
    /// The number of its group, or `u32::MAX` while that is open.
    pub(crate) group: u32,
    pub(crate) line: u32,
}

/// Products of a warpgroup: they are done when all four warps have asked for them, so that who waits waits for the others.
#[derive(Clone, Debug, Default)]
pub(crate) struct Products {
    /// By warp, groups that were closed.
    pub(crate) closed: [u32; 4],
    pub(crate) operands: Vec<Operands>,
}

/// What the thread blocks of a cluster share.
pub(crate) struct Common {
    shared: Vec<Vec<u8>>,
    pub(crate) meetings: Vec<[Meeting; MEETINGS]>,
    /// Warps of each thread block that have not ended.
    pub(crate) live: Vec<u32>,
    /// Warps at the cluster's barrier, and how often it has opened.
    pub(crate) cluster_arrived: u32,
    pub(crate) cluster_opened: u32,
    pub(crate) loads: Vec<BulkLoad>,
    /// By thread block and warpgroup.
    pub(crate) products: Vec<Vec<Products>>,
    /// Counts what somebody may wait for.
    pub(crate) happened: u64,
    pub(crate) random: Random,
    pub(crate) timing: Timing,
    clock: u64,
}

impl Common {
    pub(crate) fn new(blocks: usize, shared: usize, random: Random, timing: Timing) -> Self {
        Self {
            shared: vec![vec![0; shared]; blocks],
            meetings: vec![[Meeting::default(); MEETINGS]; blocks],
            live: vec![0; blocks],
            cluster_arrived: 0,
            cluster_opened: 0,
            loads: Vec::new(),
            products: vec![Vec::new(); blocks],
            happened: 0,
            random,
            timing,
            clock: 0,
        }
    }

    /// Other thread blocks begin: nothing of the ones before is left.
    pub(crate) fn begin(&mut self, warps: u32) {
        for shared in &mut self.shared {
            let (words, _) = shared.as_chunks_mut();
            words.fill(POISON);
        }
        self.meetings.fill([Meeting::default(); MEETINGS]);
        self.live.fill(warps);
        (self.cluster_arrived, self.cluster_opened) = (0, 0);
        self.loads.clear();
        self.products
            .fill(vec![Products::default(); (warps as usize).div_ceil(4)]);
        self.happened += 1;
    }

    /// A clock that goes on with every look, a microsecond each.
    pub(crate) fn clock(&mut self) -> u64 {
        self.clock += 1000;
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(0, |time| time.as_nanos() as u64) + self.clock % 1000
    }

    /// Whether an operation that may go on beside the threads does so.
    pub(crate) fn is_late(&mut self) -> bool {
        match self.timing {
            Timing::Late => true,
            Timing::Early => false,
            Timing::Random => self.random.below(2) == 0,
        }
    }

    /// The bytes at an address that a thread of block `rank` uses: its own, or those of the block that the address names.
    fn range(&self, rank: usize, at: u32, bytes: u64) -> Result<(usize, std::ops::Range<usize>), Wrong> {
        let block = match at >> 24 {
            0 => rank,
            named => named as usize - 1,
        };
        let first = (at & 0x00ff_ffff) as usize;
        let end = first + bytes as usize;
        let room = self.shared.get(block).map_or(0, Vec::len);
        if first < SHARED_BASE as usize || end > room {
            return Err(Wrong::Outside);
        }
        Ok((block, first..end))
    }

    pub(crate) fn bytes(&self, rank: usize, at: u32, bytes: u64) -> Result<&[u8], Wrong> {
        let (block, range) = self.range(rank, at, bytes)?;
        Ok(&self.shared[block][range])
    }

    pub(crate) fn bytes_mut(&mut self, rank: usize, at: u32, bytes: u64) -> Result<&mut [u8], Wrong> {
        let (block, range) = self.range(rank, at, bytes)?;
        Ok(&mut self.shared[block][range])
    }

    /// Reads up to sixteen bytes.
    #[inline(always)]
    pub(crate) fn load(&self, rank: usize, at: u32, bytes: u64) -> Result<u128, Wrong> {
        if u64::from(at) & (bytes - 1) != 0 {
            return Err(Wrong::Crooked);
        }
        let found = self.bytes(rank, at, bytes)?;
        Ok(match found {
            [a] => u128::from(*a),
            [a, b] => u128::from(u16::from_le_bytes([*a, *b])),
            [a, b, c, d] => u128::from(u32::from_le_bytes([*a, *b, *c, *d])),
            _ => {
                let mut all = [0; 16];
                all[..found.len()].copy_from_slice(found);
                u128::from_le_bytes(all)
            }
        })
    }

    /// Writes up to sixteen bytes.
    #[inline(always)]
    pub(crate) fn store(&mut self, rank: usize, at: u32, bytes: u64, value: u128) -> Result<(), Wrong> {
        if u64::from(at) & (bytes - 1) != 0 {
            return Err(Wrong::Crooked);
        }
        let to = self.bytes_mut(rank, at, bytes)?;
        let all = value.to_le_bytes();
        match to.len() {
            4 => to.copy_from_slice(&all[..4]),
            16 => to.copy_from_slice(&all),
            length => to.copy_from_slice(&all[..length]),
        }
        Ok(())
    }

    /// Makes bytes in shared memory useless, while a copy to there is under way.
    pub(crate) fn spoil(&mut self, rank: usize, at: u32, bytes: u32) -> Result<(), Wrong> {
        let to = self.bytes_mut(rank, at, u64::from(bytes))?;
        let (words, _) = to.as_chunks_mut();
        words.fill(POISON);
        Ok(())
    }

    /// Copies from global memory.
    pub(crate) fn copy(
        &mut self,
        memory: &Memory,
        rank: usize,
        to: u32,
        from: u64,
        bytes: u32,
    ) -> Result<(), Wrong> {
        let to = self.bytes_mut(rank, to, u64::from(bytes))?;
        memory.read(from, to)
    }

    /// Changes a barrier in shared memory, and opens it if nothing is missing any more. `None`: there is no barrier.
    pub(crate) fn update(
        &mut self,
        rank: usize,
        at: u32,
        change: impl FnOnce(&mut Barrier) -> bool,
    ) -> Result<Option<()>, Wrong> {
        let bits = self.load(rank, at, 8)? as u64;
        let Some(mut barrier) = Barrier::from_bits(bits) else {
            return Ok(None);
        };
        if !change(&mut barrier) {
            return Ok(None);
        }
        if barrier.pending == 0 && barrier.bytes == 0 {
            barrier.phase = !barrier.phase;
            barrier.pending = barrier.expected;
            self.happened += 1;
        }
        self.store(rank, at, 8, u128::from(barrier.to_bits()))?;
        Ok(Some(()))
    }

    /// A copy has come.
    pub(crate) fn land(&mut self, memory: &Memory, load: BulkLoad) -> Result<Option<()>, Wrong> {
        self.copy(memory, load.rank, load.to, load.from, load.bytes)?;
        self.update(load.rank, load.barrier, |barrier| {
            barrier.bytes -= i64::from(load.bytes);
            true
        })
    }

    /// Threads of a block have come to a barrier with a number; how often it has opened, with this time.
    pub(crate) fn meet(&mut self, rank: usize, number: usize) {
        let live = self.live[rank] * 32;
        let meeting = &mut self.meetings[rank][number];
        let expected = if meeting.threads == 0 {
            live
        } else {
            meeting.threads
        };
        if meeting.arrived > 0 && meeting.arrived >= expected {
            meeting.arrived = 0;
            meeting.opened = meeting.opened.wrapping_add(1);
            (meeting.result, meeting.folded) = (meeting.folded, 0);
            self.happened += 1;
        }
    }

    /// A warp has arrived at the cluster's barrier, or ended.
    pub(crate) fn meet_cluster(&mut self) {
        let live: u32 = self.live.iter().sum();
        if self.cluster_arrived > 0 && self.cluster_arrived >= live {
            self.cluster_arrived = 0;
            self.cluster_opened = self.cluster_opened.wrapping_add(1);
            self.happened += 1;
        }
    }

    /// A warp of a thread block has ended.
    pub(crate) fn left(&mut self, rank: usize) {
        self.live[rank] -= 1;
        for number in 0..MEETINGS {
            self.meet(rank, number);
        }
        self.meet_cluster();
        self.happened += 1;
    }
}
