//! The backend type: storage, the stream, and the list of operations. How each operation is checked and enqueued
//! is in [`enqueue`](crate::enqueue).

use crate::caches::CpuStateCache;
use crate::kv::CpuKvCache;
use crate::ops::experts::CpuExperts;
use crate::packed::{PackedWeights, PackedWriter};
use crate::simd::Instructions;
use crate::storage::{ALIGNMENT, CpuBuffer, CpuRing, CpuTensor, Storage, allocated};
use crate::stream::{CpuArrival, CpuRead, Op, Stream};
use crate::usable_memory::UsableMemory;
use crate::weight::CpuWeight;
use paceline_device::{
    Accept, Activation, Attention, Backend, CausalConv, ClearKv, DeltaRule, DeviceError, DeviceInfo, Element,
    ElementTypes, Epilogue, Experts, GatedNorm, GatherStates, KeepBlockEnds, KeyValueStore, KvShape,
    PoolStates, Prepare, PrepareDrafts, ProposeNgram, Publish, ResidualNorm, RingPlace, Router, Rows,
    Sampling, StateShape, StateSpace, StepRecord, StepTables, TakeDrafts, UsualLoad, WeightPart,
};
use paceline_types::DType;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// Rows of a tensor start at multiples of this many elements, a cache line.
const ROW_ALIGNMENT: usize = 16;

/// How a [`Cpu`] works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads that operations are spread over.
    pub threads: usize,
    /// What kernels are run with.
    pub instructions: Instructions,
}

impl Default for CpuOptions {
    /// All cores, and the best instructions they have.
    fn default() -> Self {
        Self {
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            instructions: Instructions::detect(),
        }
    }
}

/// The CPU as a device. Clones share one stream.
#[derive(Clone)]
pub struct Cpu {
    pub(crate) stream: Arc<Stream>,
    instructions: Instructions,
    /// What the device clock counts from.
    pub(crate) started: Instant,
    /// What keys and values are stored as.
    kv: DType,
    packed: Packed,
}

/// What files of packed weights are for.
#[derive(Clone)]
enum Packed {
    Nothing,
    /// Weights that a file has are mapped.
    Mapped(Arc<PackedWeights>),
    /// Weights are written to one.
    Written(Arc<PackedWriter>),
}

/// A captured sequence of operations.
#[derive(Clone)]
pub struct CpuProgram(Arc<[Op]>);

impl Cpu {
    /// Starts a device with its own stream and worker threads.
    pub fn new(options: CpuOptions) -> Self {
        let threads = options.threads.max(1);
        Self {
            stream: Arc::new(Stream::start(threads, options.instructions)),
            instructions: options.instructions,
            started: Instant::now(),
            kv: DType::F32,
            packed: Packed::Nothing,
        }
    }

    /// The same device, which maps weights that the file has instead of packing them. It must be that of the model that is
    /// loaded with it.
    #[must_use]
    pub fn mapping(&self, packed: Arc<PackedWeights>) -> Self {
        Self {
            packed: Packed::Mapped(packed),
            ..self.clone()
        }
    }

    /// The same device, which writes the weights that it packs to a file.
    #[must_use]
    pub fn packing_to(&self, writer: Arc<PackedWriter>) -> Self {
        Self {
            packed: Packed::Written(writer),
            ..self.clone()
        }
    }

    /// The same device with keys and values stored in this type: F32, F16 or BF16.
    #[must_use]
    pub fn with_kv(mut self, kv: DType) -> Self {
        self.kv = kv;
        self
    }

    /// Threads that operations are spread over.
    pub fn threads(&self) -> usize {
        self.stream.threads()
    }

    /// What kernels are run with.
    pub fn instructions(&self) -> Instructions {
        self.instructions
    }
}

impl Backend for Cpu {
    type Buffer<T: Element> = CpuBuffer<T>;
    type Tensor = CpuTensor;
    type Weight = CpuWeight;
    type Experts = CpuExperts;
    type KvCache = CpuKvCache;
    type StateCache = CpuStateCache;
    type Program = CpuProgram;
    type Read<T: Element> = CpuRead<T>;
    type Ring = CpuRing;
    type Arrival = CpuArrival;

    fn info(&self) -> DeviceInfo {
        let memory = UsableMemory::look();
        let (threads, kernels) = (self.threads(), self.instructions.name());
        let plural = if threads == 1 { "" } else { "s" };
        DeviceInfo {
            name: "cpu".to_owned(),
            description: format!("{threads} thread{plural}, {kernels}"),
            kernels: kernels.to_owned(),
            elements: ElementTypes {
                kv: self.kv,
                ..ElementTypes::F32
            },
            alignment: ALIGNMENT as u64,
            total_memory: memory.total,
            free_memory: memory.bytes(),
            shares_host_memory: true,
            power_of_two_blocks: false,
            quantises: true,
            usual: UsualLoad::SMALL,
        }
    }

    /// Of all CPU devices of this process: they share its memory.
    fn allocated(&self) -> u64 {
        allocated()
    }

    fn epoch(&self) -> Instant {
        self.started
    }

    /// Reads whose [`Pending::wait`](paceline_device::Pending::wait) was called.
    fn host_waits(&self) -> u64 {
        self.stream.waits()
    }

    fn buffer<T: Element>(&self, len: usize) -> Result<CpuBuffer<T>, DeviceError> {
        Ok(CpuBuffer {
            storage: Storage::zeroed(len, "a buffer")?,
        })
    }

    fn tensor(&self, rows: &Rows<Self>, columns: usize) -> Result<CpuTensor, DeviceError> {
        let stride = columns.next_multiple_of(ROW_ALIGNMENT);
        let len = rows.bucket.checked_mul(stride).ok_or(DeviceError::OutOfMemory {
            what: "a tensor".to_owned(),
            bytes: u64::MAX,
        })?;
        Ok(CpuTensor {
            storage: Storage::zeroed(len, "a tensor")?,
            stride,
            first: 0,
            columns,
            bucket: rows.bucket,
            live: rows.live.clone(),
        })
    }

    fn reshape(&self, tensor: &CpuTensor, rows: &Rows<Self>, columns: usize) -> CpuTensor {
        assert!(
            columns <= tensor.columns && rows.bucket * tensor.stride <= tensor.storage.len(),
            "reshape: [{}, {columns}] does not fit [{}, {}]",
            rows.bucket,
            tensor.bucket,
            tensor.columns
        );
        CpuTensor {
            columns,
            bucket: rows.bucket,
            live: rows.live.clone(),
            ..tensor.clone()
        }
    }

    fn columns(&self, tensor: &CpuTensor, range: Range<usize>) -> CpuTensor {
        assert!(
            range.start <= range.end && range.end <= tensor.columns,
            "columns: {range:?} of {}",
            tensor.columns
        );
        CpuTensor {
            first: tensor.first + range.start,
            columns: range.len(),
            ..tensor.clone()
        }
    }

    fn weight(&self, parts: &[WeightPart<'_>], store_as: Option<DType>) -> Result<CpuWeight, DeviceError> {
        if let Packed::Mapped(packed) = &self.packed
            && let Some(weight) = CpuWeight::mapped(parts, store_as, packed)
        {
            return Ok(weight);
        }
        let weight = CpuWeight::pack(parts, store_as, self.threads())?;
        if let Packed::Written(writer) = &self.packed {
            writer.add((parts, store_as), &weight)?;
        }
        Ok(weight)
    }

    fn first_outputs(&self, weight: &CpuWeight, outputs: usize) -> CpuWeight {
        weight.first_outputs(outputs)
    }

    fn experts(&self, gate_up: Vec<CpuWeight>, down: Vec<CpuWeight>) -> Result<CpuExperts, DeviceError> {
        CpuExperts::new(gate_up, down)
    }

    fn kv_cache(&self, shape: KvShape) -> Result<CpuKvCache, DeviceError> {
        CpuKvCache::new(shape, self.kv)
    }

    fn state_cache(&self, shape: StateShape) -> Result<CpuStateCache, DeviceError> {
        CpuStateCache::new(shape)
    }

    fn hand_back(&self, kv: &[CpuKvCache], states: &[CpuStateCache]) {
        let (kv, states) = (kv.to_vec(), states.to_vec());
        self.stream.enqueue_once(move |_| {
            // SAFETY: on the stream, and nothing else runs.
            unsafe {
                for cache in &kv {
                    cache.hand_back();
                }
                for cache in &states {
                    cache.hand_back();
                }
            }
        });
    }

    fn ring(&self, places: usize, words: usize) -> Result<CpuRing, DeviceError> {
        CpuRing::new(places, words)
    }

    fn post(&self, ring: &CpuRing, place: &RingPlace, words: &[i32]) {
        // SAFETY: whoever holds a place has it for itself, and the stream reads it only in programs launched later.
        unsafe { ring.write(place.index())[..words.len()].copy_from_slice(words) };
    }

    fn arrival(&self, ring: &CpuRing, place: &RingPlace) -> CpuArrival {
        CpuArrival::enqueue(&self.stream, ring, place.index())
    }

    fn write_at<T: Element>(&self, buffer: &CpuBuffer<T>, offset: usize, data: &[T]) {
        assert!(
            offset <= buffer.storage.len() && data.len() <= buffer.storage.len() - offset,
            "write: {} elements at {offset} into a buffer of {}",
            data.len(),
            buffer.storage.len()
        );
        let (storage, data) = (Arc::clone(&buffer.storage), data.to_vec());
        self.stream.enqueue_once(move |_| {
            // SAFETY: on the stream, and nothing else runs.
            unsafe { storage.slice_mut(offset..offset + data.len()) }.copy_from_slice(&data);
        });
    }

    fn read<T: Element>(&self, buffer: &CpuBuffer<T>, len: usize) -> CpuRead<T> {
        assert!(
            len <= buffer.storage.len(),
            "read: {len} elements of a buffer of {}",
            buffer.storage.len()
        );
        let storage = Arc::clone(&buffer.storage);
        // SAFETY: on the stream, and nothing else runs.
        CpuRead::enqueue(&self.stream, move || unsafe { storage.slice(0..len) }.to_vec())
    }

    fn read_tensor(&self, tensor: &CpuTensor) -> CpuRead<f32> {
        let tensor = tensor.clone();
        CpuRead::enqueue(&self.stream, move || {
            // SAFETY: on the stream, and nothing else runs.
            let view = unsafe { tensor.read() };
            let mut data = Vec::with_capacity(view.rows * view.columns);
            for row in 0..view.rows {
                data.extend_from_slice(view.row(row));
            }
            data
        })
    }

    fn begin_capture(&self) {
        self.stream.begin_capture();
    }

    fn end_capture(&self) -> CpuProgram {
        CpuProgram(self.stream.end_capture())
    }

    fn launch(&self, program: &CpuProgram) {
        self.stream.launch(Arc::clone(&program.0));
    }

    fn embed(&self, step: &StepTables<Self>, table: &CpuWeight, scale: f32, out: &mut CpuTensor) {
        self.enqueue_embed(step, table, scale, out);
    }

    fn linear(&self, x: &CpuTensor, w: &CpuWeight, epilogue: Epilogue<'_, Self>, out: &mut CpuTensor) {
        self.enqueue_linear(x, w, &epilogue, out);
    }

    fn rms_norm(&self, x: &CpuTensor, weight: &CpuBuffer<f32>, eps: f32, out: &mut CpuTensor) {
        self.enqueue_rms_norm(x, weight, eps, out);
    }

    fn add_rms_norm(&self, delta: &CpuTensor, norm: ResidualNorm<'_, Self>) {
        self.enqueue_add_rms_norm(delta, &norm);
    }

    fn add(&self, acc: &mut CpuTensor, x: &CpuTensor, scale: f32, gate: Option<&CpuTensor>) {
        self.enqueue_add(acc, x, scale, gate);
    }

    fn activate(&self, x: &CpuTensor, activation: Activation, out: &mut CpuTensor) {
        self.enqueue_activate(x, activation, out);
    }

    fn rope_angles(
        &self,
        step: &StepTables<Self>,
        frequencies: &CpuBuffer<f32>,
        factor: f32,
        out: &mut CpuTensor,
    ) {
        self.enqueue_rope_angles(step, frequencies, factor, out);
    }

    fn store_kv(&self, args: KeyValueStore<'_, Self>) {
        self.enqueue_store_kv(&args);
    }

    fn attention(&self, args: Attention<'_, Self>) {
        self.enqueue_attention(&args);
    }

    fn causal_conv(&self, args: CausalConv<'_, Self>) {
        self.enqueue_causal_conv(&args);
    }

    fn delta_rule(&self, args: DeltaRule<'_, Self>) {
        self.enqueue_delta_rule(&args);
    }

    fn state_space(&self, args: StateSpace<'_, Self>) {
        self.enqueue_state_space(&args);
    }

    fn gated_norm(&self, args: GatedNorm<'_, Self>) {
        self.enqueue_gated_norm(&args);
    }

    fn route(&self, args: Router<'_, Self>) {
        self.enqueue_route(&args);
    }

    fn run_experts(&self, args: Experts<'_, Self>) {
        self.enqueue_experts(&args);
    }

    fn gather(&self, x: &CpuTensor, index: &CpuBuffer<i32>, out: &mut CpuTensor) {
        self.enqueue_gather(x, index, out);
    }

    fn gather_sampled(&self, x: &CpuTensor, step: &StepTables<Self>, out: &mut CpuTensor) {
        self.enqueue_gather_sampled(x, step, out);
    }

    fn copy(&self, x: &CpuTensor, out: &mut CpuTensor) {
        self.enqueue_copy(x, out);
    }

    fn sample(&self, logits: &CpuTensor, sampling: Sampling<'_, Self>) {
        self.enqueue_sample(logits, &sampling);
    }

    fn prepare(&self, args: Prepare<'_, Self>) {
        self.enqueue_prepare(&args);
    }

    fn accept(&self, args: Accept<'_, Self>) {
        self.enqueue_accept(&args);
    }

    fn propose_ngram(&self, args: ProposeNgram<'_, Self>) {
        self.enqueue_propose_ngram(&args);
    }

    fn prepare_drafts(&self, args: PrepareDrafts<'_, Self>) {
        self.enqueue_prepare_drafts(&args);
    }

    fn pool_states(&self, args: PoolStates<'_, Self>) {
        self.enqueue_pool_states(&args);
    }

    fn keep_block_ends(&self, args: KeepBlockEnds<'_, Self>) {
        self.enqueue_keep_block_ends(&args);
    }

    fn gather_states(&self, args: GatherStates<'_, Self>) {
        self.enqueue_gather_states(&args);
    }

    fn take_drafts(&self, args: TakeDrafts<'_, Self>) {
        self.enqueue_take_drafts(&args);
    }

    fn clear_kv(&self, args: ClearKv<'_, Self>) {
        self.enqueue_clear_kv(&args);
    }

    fn spread(&self, x: &CpuTensor, columns: &CpuBuffer<i32>, out: &mut CpuTensor) {
        self.enqueue_spread(x, columns, out);
    }

    fn mark_drafting(&self, record: &StepRecord<Self>) {
        self.enqueue_mark_drafting(record);
    }

    fn publish(&self, args: Publish<'_, Self>) {
        self.enqueue_publish(&args);
    }
}
