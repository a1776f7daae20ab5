//! Stored rows on their way to the device.
//!
//! The host does no more than copy them, with several threads, from wherever they are mapped to pinned memory. From there
//! they go to the device as they are, and a kernel makes rows of a weight of them. Two places of staging take turns, so
//! that the host copies one while the other is under way.

use super::{CudaWeight, Kind, bad};
use crate::arguments::{Ptr, arguments};
use crate::context::{Context, lock};
use crate::cuda::Cuda;
use crate::driver::check;
use crate::launch::{Grid, Kernel, Launch};
use crate::read::Pinned;
use cudarc::driver::sys;
use half::{bf16, f16};
use paceline_device::{DeviceError, RowOrder, SCALE_BLOCK, WeightData, WeightPart, random_width};
use paceline_types::DType;
use std::ops::Range;
use std::sync::Arc;
use std::thread;

arguments! { "weight.h";
    /// Stored rows that become rows of a weight.
    struct PackArgs {
        stored: Ptr<u8>,
        data: Ptr<u8>,
        /// The lowest row with a value that is not finite.
        not_finite: Ptr<u32>,
        stored_type: u32,
        stored_bytes: u32,
        kind: u32,
        pitch: u32,
        first_row: u32,
        rows: u32,
        columns: u32,
        /// Rows of gate and of up, which take turns; 0 where they do not.
        gated: u32,
    }

    /// Rows of a weight that are made up.
    struct RandomArgs {
        data: Ptr<u8>,
        /// The numbers of the rows; null if they are 0, 1 and so on.
        picked: Ptr<u32>,
        seed: u64,
        width: f32,
        stored_type: u32,
        kind: u32,
        pitch: u32,
        first_row: u32,
        rows: u32,
        columns: u32,
        /// Rows of gate and of up, which take turns; 0 where they do not.
        gated: u32,
    }
}

const PACK_ROWS: Kernel<PackArgs> = Kernel::new("weight", "pack_rows");
const RANDOM_ROWS: Kernel<RandomArgs> = Kernel::new("weight", "random_rows");
/// The same for weights of 8-bit floats, a warp per row and block.
const PACK_SCALED: Kernel<PackArgs> = Kernel::new("weight_f8", "pack_scaled");
const RANDOM_SCALED: Kernel<RandomArgs> = Kernel::new("weight_f8", "random_scaled");

/// Bytes of a place of staging.
const PLACE: usize = 32 << 20;
/// Bytes below which one thread copies.
const SERIAL: usize = 1 << 20;
/// Threads beyond this many wait for memory.
const THREADS: usize = 8;
/// What the device's word says as long as all values are finite.
const ALL_FINITE: u32 = u32::MAX;

/// Two places where stored rows pass through, and the word in which a kernel reports what is not finite.
pub(crate) struct Staging {
    context: Arc<Context>,
    pinned: Pinned,
    device: u64,
    /// Per place, that its rows have reached the device.
    copied: [sys::CUevent; 2],
    next: usize,
    word: u64,
}

// SAFETY: handles of the driver may be used from any thread.
unsafe impl Send for Staging {}

impl Staging {
    /// Device memory of it.
    pub(crate) const DEVICE_BYTES: u64 = 2 * PLACE as u64;

    fn new(context: &Arc<Context>) -> Result<Self, DeviceError> {
        let mut staging = Self {
            context: Arc::clone(context),
            pinned: Pinned::new(context, 2 * PLACE + 4, "staging of weights")?,
            device: context.take(Self::DEVICE_BYTES, "staging of weights")?,
            copied: [std::ptr::null_mut(); 2],
            next: 0,
            word: context.take(4, "staging of weights")?,
        };
        for event in &mut staging.copied {
            let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
            // SAFETY: a plain call with a place to write to.
            check(unsafe { sys::cuEventCreate(event, flags) }, "cuEventCreate")?;
        }
        Ok(staging)
    }

    /// Brings what `copy` writes to the device, and returns where it is until the place's next turn.
    fn stage(&mut self, bytes: usize, copy: impl FnOnce(&mut [u8])) -> Result<u64, DeviceError> {
        let place = self.next;
        self.next = 1 - place;
        // SAFETY: an event that was never recorded counts as reached; else it is behind the last copy from this place.
        let waited = unsafe { sys::cuEventSynchronize(self.copied[place]) };
        check(waited, "cuEventSynchronize")?;
        // SAFETY: within the pinned memory, which nothing else uses: the device is done with this place.
        let to = unsafe { std::slice::from_raw_parts_mut(self.pinned.host.add(place * PLACE), bytes) };
        copy(to);
        let device = self.device + (place * PLACE) as u64;
        // SAFETY: both ends hold this many bytes, and the host's end stays as it is until the event.
        unsafe {
            let stream = self.context.stream;
            let copied = sys::cuMemcpyHtoDAsync_v2(device, to.as_ptr().cast(), bytes, stream);
            check(copied, "cuMemcpyHtoDAsync")?;
            check(sys::cuEventRecord(self.copied[place], stream), "cuEventRecord")?;
        }
        Ok(device)
    }

    /// Nothing is known to be not finite.
    fn reset_word(&self) -> Result<(), DeviceError> {
        // SAFETY: one word.
        let set = unsafe { sys::cuMemsetD32Async(self.word, ALL_FINITE, 1, self.context.stream) };
        check(set, "cuMemsetD32Async")
    }

    /// What the kernels so far have found.
    fn read_word(&self) -> Result<u32, DeviceError> {
        // SAFETY: the word behind both places.
        let to = unsafe { self.pinned.host.add(2 * PLACE) };
        // SAFETY: one word at either end.
        let copied = unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), self.word, 4, self.context.stream) };
        check(copied, "cuMemcpyDtoHAsync")?;
        self.context.synchronise()?;
        // SAFETY: four bytes, and the copy has ended.
        Ok(u32::from_ne_bytes(unsafe { to.cast::<[u8; 4]>().read() }))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        self.context.bind();
        for event in self.copied {
            if !event.is_null() {
                // SAFETY: made once, goes once.
                let _ = unsafe { sys::cuEventDestroy_v2(event) };
            }
        }
    }
}

/// Some of the rows that a part contributes.
pub(super) struct StoredRows<'a> {
    pub(super) part: &'a WeightPart<'a>,
    pub(super) row_bytes: usize,
    pub(super) rows: Range<usize>,
}

impl StoredRows<'_> {
    pub(super) fn bytes(&self) -> usize {
        self.rows.len() * self.row_bytes
    }

    /// Copies the rows, one behind the other.
    pub(super) fn copy(&self, to: &mut [u8]) {
        let threads = if to.len() < SERIAL {
            1
        } else {
            thread::available_parallelism().map_or(1, |n| n.get().min(THREADS))
        };
        let share = self.rows.len().div_ceil(threads).max(1);
        let copy = |index: usize, to: &mut [u8]| {
            let first = self.rows.start + index * share;
            for (row, to) in to.chunks_exact_mut(self.row_bytes).enumerate() {
                copy_row(self.part, first + row, to);
            }
        };
        thread::scope(|scope| {
            let mut shares = to.chunks_mut(share * self.row_bytes).enumerate();
            let own = shares.next();
            for (index, to) in shares {
                scope.spawn(move || copy(index, to));
            }
            if let Some((index, to)) = own {
                copy(index, to);
            }
        });
    }
}

/// Bytes of a block of 8-bit floats on its way: the scale, then the elements.
const SCALED_BYTES: usize = 4 + SCALE_BLOCK;

/// Bytes of a row on its way to the device: as it is stored, with scales in front of the blocks that they belong to.
fn staged_bytes(part: &WeightPart<'_>) -> usize {
    match part.dtype {
        DType::F8E4M3 => part.columns.div_ceil(SCALE_BLOCK) * SCALED_BYTES,
        dtype => dtype.bytes_for(part.columns).unwrap_or_default(),
    }
}

/// Copies the row that a part contributes as its `row`-th.
fn copy_row(part: &WeightPart<'_>, row: usize, to: &mut [u8]) {
    let (index, stored) = stored_row(part, row);
    if part.dtype != DType::F8E4M3 {
        to.copy_from_slice(stored);
        return;
    }
    let blocks = stored.chunks(SCALE_BLOCK).zip(to.chunks_exact_mut(SCALED_BYTES));
    for (block, (elements, to)) in blocks.enumerate() {
        to[..4].copy_from_slice(&part.scale(index, block).to_le_bytes());
        to[4..][..elements.len()].copy_from_slice(elements);
    }
}

/// The number in storage and the bytes of the row that a part contributes as its `row`-th.
fn stored_row<'a>(part: &WeightPart<'a>, row: usize) -> (usize, &'a [u8]) {
    let row_bytes = part.dtype.bytes_for(part.columns).unwrap_or_default();
    let index = match &part.order {
        RowOrder::Stored => row,
        RowOrder::Picked(picked) => picked[row] as usize,
    };
    match part.data {
        WeightData::Stored(data) | WeightData::Scaled(data, _) => {
            (index, &data[index * row_bytes..(index + 1) * row_bytes])
        }
        WeightData::Random(_) => (index, &[]),
    }
}

/// Fills a weight with its parts, which are known to fit it.
pub(super) fn load(cuda: &Cuda, weight: &CudaWeight, parts: &[WeightPart<'_>]) -> Result<(), DeviceError> {
    if cuda.context.rehearsal {
        return Ok(());
    }
    let mut held = lock(&cuda.staging);
    let staging = match &mut *held {
        Some(staging) => staging,
        none => none.insert(Staging::new(&cuda.context)?),
    };
    cuda.context.bind();
    staging.reset_word()?;
    let mut first_row = 0;
    for part in parts {
        match part.data {
            WeightData::Stored(_) | WeightData::Scaled(..) => {
                load_part(cuda, weight, staging, part, first_row)?;
            }
            WeightData::Random(seed) => make_up_part(cuda, weight, staging, (part, seed), first_row)?,
        }
        first_row += part.rows();
    }
    match staging.read_word()? {
        ALL_FINITE => Ok(()),
        row => Err(complaint(weight, parts, row as usize)),
    }
}

fn load_part(
    cuda: &Cuda,
    weight: &CudaWeight,
    staging: &mut Staging,
    part: &WeightPart<'_>,
    first_row: usize,
) -> Result<(), DeviceError> {
    let row_bytes = staged_bytes(part);
    let at_a_time = PLACE / row_bytes.max(1);
    if at_a_time == 0 {
        return Err(bad(
            part.name,
            format!("a row has {row_bytes} bytes, more than {PLACE}"),
        ));
    }
    for start in (0..part.rows()).step_by(at_a_time) {
        let rows = StoredRows {
            part,
            row_bytes,
            rows: start..part.rows().min(start + at_a_time),
        };
        let stored = staging.stage(rows.bytes(), |to| rows.copy(to))?;
        let count = rows.rows.len();
        let arguments = PackArgs {
            stored: Ptr::new(stored),
            data: Ptr::new(weight.address()),
            not_finite: Ptr::new(staging.word),
            stored_type: number_of(part.dtype),
            stored_bytes: row_bytes as u32,
            kind: weight.kind() as u32,
            pitch: weight.pitch() as u32,
            first_row: (first_row + start) as u32,
            rows: count as u32,
            columns: part.columns as u32,
            gated: weight.gated() as u32,
        };
        let (kernel, grid) = packing(weight, (&PACK_ROWS, &PACK_SCALED), count);
        Launch::new(&cuda.context, kernel, grid, &arguments)?.issue(cuda.context.stream, false)?;
    }
    Ok(())
}

/// Makes up the rows of a part.
fn make_up_part(
    cuda: &Cuda,
    weight: &CudaWeight,
    staging: &mut Staging,
    (part, seed): (&WeightPart<'_>, u64),
    first_row: usize,
) -> Result<(), DeviceError> {
    for start in (0..part.rows()).step_by(PLACE / 4) {
        let end = part.rows().min(start + PLACE / 4);
        let picked = match &part.order {
            RowOrder::Stored => Ptr::NULL,
            RowOrder::Picked(rows) => {
                let rows: &[u8] = bytemuck::cast_slice(&rows[start..end]);
                Ptr::new(staging.stage(rows.len(), |to| to.copy_from_slice(rows))?)
            }
        };
        let arguments = RandomArgs {
            data: Ptr::new(weight.address()),
            picked,
            seed,
            width: random_width(part.columns),
            stored_type: number_of(part.dtype),
            kind: weight.kind() as u32,
            pitch: weight.pitch() as u32,
            first_row: (first_row + start) as u32,
            rows: (end - start) as u32,
            columns: part.columns as u32,
            gated: weight.gated() as u32,
        };
        let (kernel, grid) = packing(weight, (&RANDOM_ROWS, &RANDOM_SCALED), end - start);
        Launch::new(&cuda.context, kernel, grid, &arguments)?.issue(cuda.context.stream, false)?;
    }
    Ok(())
}

/// Of two kernels the one that makes rows of a weight, and its grid: a thread per eight elements, or a warp per block.
fn packing<'k, A>(
    weight: &CudaWeight,
    (plain, scaled): (&'k Kernel<A>, &'k Kernel<A>),
    rows: usize,
) -> (&'k Kernel<A>, Grid) {
    let (kernel, threads) = match weight.kind() {
        Kind::F8 => (scaled, rows * weight.pitch() * 32),
        _ => (plain, rows * weight.inputs().div_ceil(8)),
    };
    (kernel, Grid::new(threads.div_ceil(256).min(4096) as u32, 256))
}

/// The number that kernels know a stored type by.
fn number_of(dtype: DType) -> u32 {
    DType::ALL
        .iter()
        .position(|known| *known == dtype)
        .unwrap_or_default() as u32
}

/// What is wrong with a row of a weight, by its part.
fn complaint(weight: &CudaWeight, parts: &[WeightPart<'_>], mut row: usize) -> DeviceError {
    for part in parts {
        if row >= part.rows() {
            row -= part.rows();
            continue;
        }
        let (index, stored) = stored_row(part, row);
        let largest = largest(part.dtype, stored);
        let why = if largest.is_finite() {
            format!(
                "row {index} holds {largest:e}, too large for {}",
                weight.kind().dtype()
            )
        } else {
            format!("row {index} holds a value that is not finite")
        };
        return bad(part.name, why);
    }
    bad("of the device", format!("has no row {row}"))
}

/// The largest magnitude of a stored row. Quantised values are finite and small unless their scales are not.
fn largest(dtype: DType, row: &[u8]) -> f32 {
    let pairs = row.chunks_exact(2).map(|b| [b[0], b[1]]);
    let values: Vec<f32> = match dtype {
        DType::F32 => row
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect(),
        DType::F16 => pairs.map(|b| f16::from_le_bytes(b).to_f32()).collect(),
        DType::BF16 => pairs.map(|b| bf16::from_le_bytes(b).to_f32()).collect(),
        _ => return f32::INFINITY,
    };
    // A NaN is larger than everything by its bits.
    let bits = values.iter().map(|value| value.to_bits() & 0x7fff_ffff).max();
    f32::from_bits(bits.unwrap_or_default())
}
