//! Memory for weights: regions that the system backs with huge pages, if it has any.
//!
//! A token reads every weight once. With pages of 4 KiB, looking up their addresses takes as long as the reading, and the
//! machine's own prefetching stops at each of them. Most weights are smaller than a huge page, so they share regions,
//! which are given back when the last weight in them is gone.

use crate::storage::ALIGNMENT;
use memmap2::{MmapMut, MmapRaw};
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A huge page.
const PAGE: usize = 2 << 20;

/// What a region has room for, unless a weight needs one of its own.
const ROOM: usize = 32 * PAGE;

/// Weights below this are left to the allocator.
const SMALLEST: usize = 64 << 10;

/// Zeroed memory, aligned to a huge page.
pub(crate) struct Region {
    map: MmapRaw,
}

/// The region that small weights are put into, and how much of it is taken.
static OPEN: Mutex<(Weak<Region>, usize)> = Mutex::new((Weak::new(), 0));

impl Region {
    fn new(bytes: usize) -> io::Result<Self> {
        // Room to move to the next huge page; what is not touched takes no memory.
        let map = MmapMut::map_anon(bytes + PAGE)?;
        // Where the system has none, or keeps them to itself, small pages do.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Self { map: map.into() })
    }

    fn at(&self, offset: usize) -> Option<NonNull<u8>> {
        let start = self.map.as_mut_ptr();
        NonNull::new(start.wrapping_add(start.align_offset(PAGE) + offset))
    }
}

/// `bytes` zeroed bytes from a cache line on, which nothing else has had, for as long as the region is held. `None` where
/// an ordinary allocation is as good, or the system has no memory.
pub(crate) fn take(bytes: usize) -> Option<(Arc<Region>, NonNull<u8>)> {
    if bytes < SMALLEST {
        return None;
    }
    if bytes > ROOM / 2 {
        let region = Region::new(bytes.checked_next_multiple_of(PAGE)?).ok()?;
        let at = region.at(0)?;
        return Some((Arc::new(region), at));
    }
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let (region, taken) = match open.0.upgrade() {
        Some(region) if open.1 + bytes <= ROOM => (region, open.1),
        _ => (Arc::new(Region::new(ROOM).ok()?), 0),
    };
    *open = (
        Arc::downgrade(&region),
        (taken + bytes).next_multiple_of(ALIGNMENT),
    );
    let at = region.at(taken)?;
    Some((region, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_zeroed_aligned_and_nobody_elses() {
        assert!(take(SMALLEST - 1).is_none());
        let sizes = [
            SMALLEST,
            SMALLEST + 4,
            3 * PAGE,
            ROOM / 2,
            ROOM / 2,
            ROOM,
            ROOM + 4,
        ];
        for _ in 0..2 {
            let taken: Vec<_> = sizes
                .iter()
                .map(|bytes| (take(*bytes).unwrap(), *bytes))
                .collect();
            let mut ranges = Vec::new();
            for ((_, at), bytes) in &taken {
                let start = at.as_ptr() as usize;
                assert_eq!(start % ALIGNMENT, 0);
                // SAFETY: the region is held, and this test alone knows of the memory.
                let memory = unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), *bytes) };
                let ends = [0, bytes / 2, bytes - 1];
                assert_eq!(ends.map(|place| memory[place]), [0; 3]);
                for place in ends {
                    memory[place] = 1;
                }
                ranges.push(start..start + bytes);
            }
            ranges.sort_by_key(|range| range.start);
            assert!(ranges.is_sorted_by(|a, b| a.end <= b.start), "{ranges:?}");
        }
    }

    #[test]
    fn small_weights_share_a_region_and_large_ones_have_their_own() {
        let [a, b] = [SMALLEST, SMALLEST].map(|bytes| take(bytes).unwrap());
        let large = take(ROOM / 2 + 1).unwrap();
        // Another test may have filled the region between the two.
        let c = take(SMALLEST).unwrap();
        assert!(Arc::ptr_eq(&a.0, &b.0) || Arc::ptr_eq(&b.0, &c.0));
        assert!(!Arc::ptr_eq(&large.0, &a.0) && !Arc::ptr_eq(&large.0, &c.0));
        assert_eq!(large.1.as_ptr() as usize % PAGE, 0);
    }
}
