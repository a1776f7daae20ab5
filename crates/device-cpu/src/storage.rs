//! Memory of the CPU device and the views operations have of it.
//!
//! Handles are shared freely; the memory behind them is touched only by the stream thread and, within one
//! operation, by its workers. That is what makes the unsynchronised cells here sound: the stream runs one
//! operation at a time, and inside an operation workers write disjoint parts.

use crate::regions::{self, Region};
use paceline_device::{DeviceError, Element};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Rows start at cache lines, which also satisfies every vector width.
pub(crate) const ALIGNMENT: usize = 64;

/// Bytes of all storage of this process, what alignment adds left out.
static ALLOCATED: AtomicU64 = AtomicU64::new(0);

/// Bytes of all storage of this process.
pub(crate) fn allocated() -> u64 {
    ALLOCATED.load(Ordering::Relaxed)
}

fn bytes<T>(len: usize) -> u64 {
    (len * size_of::<T>()) as u64
}

/// A fixed, zeroed, aligned array without synchronisation.
pub(crate) struct Storage<T> {
    owner: Owner,
    ptr: NonNull<T>,
    len: usize,
}

/// What the memory belongs to.
enum Owner {
    /// The allocator handed this out; the array starts at the first cache line in it.
    Allocator(NonNull<u8>),
    /// Other weights may be in it too.
    Region(#[expect(dead_code, reason = "holding it is what it is for")] Arc<Region>),
}

// SAFETY: see the module header; accesses go through unsafe functions whose callers keep to it.
unsafe impl<T: Element> Send for Storage<T> {}
// SAFETY: as above.
unsafe impl<T: Element> Sync for Storage<T> {}

impl<T: Element> Storage<T> {
    /// Zeroed memory for `len` elements. The system hands out zero pages lazily, so untouched parts cost nothing.
    pub(crate) fn zeroed(len: usize, what: &str) -> Result<Arc<Self>, DeviceError> {
        let out_of_memory = || DeviceError::OutOfMemory {
            what: what.to_owned(),
            bytes: (len as u64).saturating_mul(size_of::<T>() as u64),
        };
        let layout = Self::layout(len).ok_or_else(out_of_memory)?;
        // SAFETY: the layout has a non-zero size.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(out_of_memory)?;
        ALLOCATED.fetch_add(bytes::<T>(len), Ordering::Relaxed);
        // SAFETY: the layout has room for moving to the next cache line.
        let ptr = unsafe { base.add(base.align_offset(ALIGNMENT)) }.cast();
        Ok(Arc::new(Self {
            owner: Owner::Allocator(base),
            ptr,
            len,
        }))
    }

    /// The same for what is written once and read often.
    pub(crate) fn of_weight(len: usize, what: &str) -> Result<Arc<Self>, DeviceError> {
        let Some((region, at)) = regions::take(len * size_of::<T>()) else {
            return Self::zeroed(len, what);
        };
        ALLOCATED.fetch_add(bytes::<T>(len), Ordering::Relaxed);
        Ok(Arc::new(Self {
            owner: Owner::Region(region),
            ptr: at.cast(),
            len,
        }))
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn as_ptr(&self) -> *mut T {
        self.ptr.as_ptr()
    }

    /// The contents.
    ///
    /// # Safety
    /// Only on the stream, in an operation that does not write this part at the same time.
    pub(crate) unsafe fn slice(&self, range: Range<usize>) -> &[T] {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "{range:?} of {}",
            self.len
        );
        // SAFETY: in bounds; the caller excludes concurrent writes.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr().add(range.start), range.len()) }
    }

    /// The contents, for writing.
    ///
    /// # Safety
    /// Only on the stream, in an operation no other part of which touches this range at the same time.
    #[expect(
        clippy::mut_from_ref,
        reason = "exclusive by the stream's order, not by borrow"
    )]
    pub(crate) unsafe fn slice_mut(&self, range: Range<usize>) -> &mut [T] {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "{range:?} of {}",
            self.len
        );
        // SAFETY: in bounds; the caller guarantees exclusivity.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr().add(range.start), range.len()) }
    }
}

impl<T> Storage<T> {
    /// Gives the memory back to the system, whole pages of it, until it is written again; what it holds is not defined
    /// from then on. Where the system has no way to do that, nothing happens.
    ///
    /// # Safety
    /// Only on the stream, in an operation that does nothing else with it.
    pub(crate) unsafe fn hand_back(&self) {
        #[cfg(target_os = "linux")]
        // SAFETY: the pages lie within this array, which any numbers suit; nobody looks at them meanwhile.
        unsafe {
            let page = usize::try_from(libc::sysconf(libc::_SC_PAGESIZE)).unwrap_or(usize::MAX);
            let first = self.ptr.as_ptr().cast::<u8>();
            let skipped = first.align_offset(page);
            let bytes = (self.len * size_of::<T>()).saturating_sub(skipped) / page * page;
            if bytes > 0 {
                // Where the system refuses, the memory stays.
                libc::madvise(first.add(skipped).cast(), bytes, libc::MADV_DONTNEED);
            }
        }
    }

    /// Asks for little alignment and room to move: an allocator that is asked for cache lines clears the memory
    /// itself instead of taking lazily zeroed pages.
    fn layout(len: usize) -> Option<Layout> {
        let bytes = len.checked_mul(size_of::<T>())?.checked_add(ALIGNMENT)?;
        Layout::from_size_align(bytes, align_of::<T>()).ok()
    }
}

impl<T> Drop for Storage<T> {
    fn drop(&mut self) {
        ALLOCATED.fetch_sub(bytes::<T>(self.len), Ordering::Relaxed);
        if let Owner::Allocator(base) = self.owner {
            let layout = Self::layout(self.len).expect("it was valid at allocation");
            // SAFETY: allocated with this layout.
            unsafe { dealloc(base.as_ptr(), layout) };
        }
    }
}

/// A one-dimensional array on the CPU device.
pub struct CpuBuffer<T: Element> {
    pub(crate) storage: Arc<Storage<T>>,
}

impl<T: Element> Clone for CpuBuffer<T> {
    fn clone(&self) -> Self {
        Self {
            storage: Arc::clone(&self.storage),
        }
    }
}

impl<T: Element> CpuBuffer<T> {
    /// All of it, for reading.
    ///
    /// # Safety
    /// As [`Storage::slice`].
    pub(crate) unsafe fn read(&self) -> &[T] {
        // SAFETY: forwarded.
        unsafe { self.storage.slice(0..self.storage.len()) }
    }
}

/// Memory that the host and the stream share, in places. Who may touch a place follows from the step that has it.
#[derive(Clone)]
pub struct CpuRing {
    storage: Arc<Storage<i32>>,
    words: usize,
}

impl CpuRing {
    pub(crate) fn new(places: usize, words: usize) -> Result<Self, DeviceError> {
        let storage = Storage::zeroed(places * words, "ring")?;
        Ok(Self { storage, words })
    }

    /// A place, for reading.
    ///
    /// # Safety
    /// Nothing writes the place meanwhile.
    pub(crate) unsafe fn read(&self, place: usize) -> &[i32] {
        // SAFETY: forwarded.
        unsafe { self.storage.slice(place * self.words..(place + 1) * self.words) }
    }

    /// A place, for writing.
    ///
    /// # Safety
    /// Nothing else touches the place meanwhile.
    #[expect(
        clippy::mut_from_ref,
        reason = "exclusive by the step that has the place, not by borrow"
    )]
    pub(crate) unsafe fn write(&self, place: usize) -> &mut [i32] {
        // SAFETY: forwarded.
        unsafe {
            self.storage
                .slice_mut(place * self.words..(place + 1) * self.words)
        }
    }
}

/// An activation matrix on the CPU device: some columns of a row-major array.
#[derive(Clone)]
pub struct CpuTensor {
    pub(crate) storage: Arc<Storage<f32>>,
    /// Elements from one row to the next.
    pub(crate) stride: usize,
    /// First column of the view.
    pub(crate) first: usize,
    /// Columns of the view.
    pub(crate) columns: usize,
    /// Rows the program is shaped for.
    pub(crate) bucket: usize,
    /// Rows that carry data.
    pub(crate) live: CpuBuffer<i32>,
}

impl CpuTensor {
    /// Rows that carry data now.
    ///
    /// # Safety
    /// Only on the stream.
    pub(crate) unsafe fn live_rows(&self) -> usize {
        // SAFETY: forwarded; counters are written by copies on the stream.
        let live = unsafe { self.live.read() }[0];
        usize::try_from(live).unwrap_or(0).min(self.bucket)
    }

    /// A view for reading.
    ///
    /// # Safety
    /// Only on the stream, in an operation that does not write these columns at the same time.
    pub(crate) unsafe fn read(&self) -> In<'_> {
        // SAFETY: forwarded.
        let rows = unsafe { self.live_rows() };
        self.check(rows);
        In {
            // SAFETY: `first` lies within the storage.
            ptr: unsafe { self.storage.as_ptr().add(self.first) },
            stride: self.stride,
            columns: self.columns,
            rows,
            life: PhantomData,
        }
    }

    /// A view for writing.
    ///
    /// # Safety
    /// Only on the stream, in an operation that reads or writes these columns through this view alone.
    pub(crate) unsafe fn write(&self) -> Out<'_> {
        // SAFETY: forwarded.
        let rows = unsafe { self.live_rows() };
        self.check(rows);
        Out {
            // SAFETY: `first` lies within the storage.
            ptr: unsafe { self.storage.as_ptr().add(self.first) },
            stride: self.stride,
            columns: self.columns,
            rows,
            life: PhantomData,
        }
    }

    fn check(&self, rows: usize) {
        assert!(
            self.first + self.columns <= self.stride,
            "columns outside the row"
        );
        assert!(
            rows * self.stride <= self.storage.len(),
            "rows outside the storage"
        );
    }
}

/// Live rows of a tensor, for reading. May be shared between the workers of an operation.
#[derive(Clone, Copy)]
pub(crate) struct In<'a> {
    ptr: *const f32,
    stride: usize,
    pub(crate) columns: usize,
    pub(crate) rows: usize,
    life: PhantomData<&'a [f32]>,
}

// SAFETY: plain reads of memory that nobody writes during the operation.
unsafe impl Send for In<'_> {}
// SAFETY: as above.
unsafe impl Sync for In<'_> {}

impl<'a> In<'a> {
    /// The rows of a plain array.
    pub(crate) fn over(data: &'a [f32], columns: usize) -> Self {
        Self {
            ptr: data.as_ptr(),
            stride: columns,
            columns,
            rows: data.len().checked_div(columns).unwrap_or(0),
            life: PhantomData,
        }
    }

    /// One row.
    pub(crate) fn row(&self, row: usize) -> &'a [f32] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        // SAFETY: checked against the storage when the view was made.
        unsafe { std::slice::from_raw_parts(self.ptr.add(row * self.stride), self.columns) }
    }
}

/// Live rows of a tensor, for writing. Workers of an operation share it and write disjoint parts.
#[derive(Clone, Copy)]
pub(crate) struct Out<'a> {
    ptr: *mut f32,
    stride: usize,
    pub(crate) columns: usize,
    pub(crate) rows: usize,
    life: PhantomData<&'a mut [f32]>,
}

// SAFETY: the unsafe accessors below require disjoint use.
unsafe impl Send for Out<'_> {}
// SAFETY: as above.
unsafe impl Sync for Out<'_> {}

impl<'a> Out<'a> {
    /// The rows of a plain array.
    pub(crate) fn over(data: &'a mut [f32], columns: usize) -> Self {
        Self {
            ptr: data.as_mut_ptr(),
            stride: columns,
            columns,
            rows: data.len().checked_div(columns).unwrap_or(0),
            life: PhantomData,
        }
    }

    /// One row.
    ///
    /// # Safety
    /// No two slices in use at the same time overlap.
    pub(crate) unsafe fn row(&self, row: usize) -> &'a mut [f32] {
        // SAFETY: forwarded.
        unsafe { self.part(row, 0..self.columns) }
    }

    /// Some columns of one row.
    ///
    /// # Safety
    /// No two slices in use at the same time overlap.
    pub(crate) unsafe fn part(&self, row: usize, columns: Range<usize>) -> &'a mut [f32] {
        assert!(row < self.rows && columns.start <= columns.end && columns.end <= self.columns);
        // SAFETY: in bounds as checked here and when the view was made; exclusivity is the caller's.
        unsafe {
            std::slice::from_raw_parts_mut(self.ptr.add(row * self.stride + columns.start), columns.len())
        }
    }
}
