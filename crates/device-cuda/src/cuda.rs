//! The backend type: storage, the stream, and the list of operations. How each operation is checked and enqueued is in
//! [`ops`](crate::ops).

use crate::arena::ALIGNMENT;
use crate::caches::{CudaKvCache, CudaStateCache};
use crate::context::Context;
use crate::driver::{Gpu, check};
use crate::ops::experts::CudaExperts;
use crate::ops::inputs::Inputs;
use crate::program::CudaProgram;
use crate::read::CudaRead;
use crate::ring::{CudaArrival, CudaRing};
use crate::scratch::Scratch;
use crate::storage::{CudaBuffer, CudaTensor};
use crate::unread;
use crate::weight::{CudaWeight, Staging};
use cudarc::driver::sys;
use paceline_device::{
    Accept, Activation, Attention, Backend, CausalConv, ClearKv, DeltaRule, DeviceError, DeviceInfo, Element,
    ElementTypes, Epilogue, Experts, GatedNorm, GatherStates, KeepBlockEnds, KeyValueStore, KvShape, Mixture,
    PoolStates, Prepare, PrepareDrafts, Product, ProposeNgram, Publish, ResidualNorm, RingPlace, Router,
    Rows, SampledProduct, Sampling, StateShape, StateSpace, StepRecord, StepTables, TakeDrafts, UsualLoad,
    WeightPart,
};
use paceline_types::DType;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Rows of a tensor start at multiples of this many elements, so that they can be copied and loaded in any width.
const ROW_ALIGNMENT: usize = 32;

/// How a [`Cuda`] works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaOptions {
    /// Number of the GPU among those that the driver lists.
    pub ordinal: usize,
    /// Whether a kernel may start while the one ahead of it is ending. Off only to show that it changes nothing.
    pub dependent_launch: bool,
    /// How keys and values are stored: [`DType::BF16`] or [`DType::F32`].
    pub kv: DType,
    /// Whether products use what Hopper has for them. Off only to show that it changes nothing.
    pub wgmma: bool,
    /// Where kernels are kept that had to be compiled, for a GPU that the program has none for.
    pub kernel_cache: Option<PathBuf>,
    /// Where a table with the times of all kernels goes; steps run kernel by kernel then, and slower.
    pub kernel_times: Option<PathBuf>,
}

impl Default for CudaOptions {
    fn default() -> Self {
        Self {
            ordinal: 0,
            dependent_launch: true,
            kv: DType::BF16,
            wgmma: true,
            kernel_cache: None,
            kernel_times: None,
        }
    }
}

/// An NVIDIA GPU as a device. Clones share one stream.
#[derive(Clone)]
pub struct Cuda {
    pub(crate) context: Arc<Context>,
    pub(crate) options: CudaOptions,
    pub(crate) scratch: Arc<Scratch>,
    /// What the inputs of the last product were made from.
    pub(crate) inputs: Arc<Mutex<Inputs>>,
    /// Where stored weights pass through, from the first one on.
    pub(crate) staging: Arc<Mutex<Option<Staging>>>,
}

impl Cuda {
    /// Opens a GPU. What is missing is said in words.
    pub fn open(options: CudaOptions) -> Result<Self, DeviceError> {
        Self::open_with(options, false)
    }

    /// The same; `hasty` is a fault on purpose, see [`plants`](crate::plants).
    pub(crate) fn open_with(options: CudaOptions, hasty: bool) -> Result<Self, DeviceError> {
        let context = Arc::new(Context::open(&options, hasty)?);
        Ok(Self {
            context,
            options,
            scratch: Arc::default(),
            inputs: Arc::default(),
            staging: Arc::default(),
        })
    }

    /// A device like this GPU that owns no memory and runs nothing, but counts what it is asked for, and lists what a program
    /// would run ([`CudaProgram::kernels`]). Needs no driver.
    pub fn rehearse(gpu: Gpu, options: CudaOptions) -> Result<Self, DeviceError> {
        let cuda = Self {
            context: Arc::new(Context::rehearse(gpu)?),
            options,
            scratch: Arc::default(),
            inputs: Arc::default(),
            staging: Arc::default(),
        };
        // What weights pass through stays.
        cuda.context.take(Staging::DEVICE_BYTES, "staging of weights")?;
        Ok(cuda)
    }

    /// The same device with keys and values stored in this type.
    #[must_use]
    pub fn with_kv(mut self, kv: DType) -> Self {
        self.options.kv = kv;
        self
    }

    /// Multiprocessors of the GPU.
    pub(crate) fn multiprocessors(&self) -> u32 {
        self.context.gpu.multiprocessors
    }
}

impl Backend for Cuda {
    type Buffer<T: Element> = CudaBuffer<T>;
    type Tensor = CudaTensor;
    type Weight = CudaWeight;
    type Experts = CudaExperts;
    type KvCache = CudaKvCache;
    type StateCache = CudaStateCache;
    type Program = CudaProgram;
    type Read<T: Element> = CudaRead<T>;
    type Ring = CudaRing;
    type Arrival = CudaArrival;

    fn info(&self) -> DeviceInfo {
        let gpu = &self.context.gpu;
        let memory = self.context.memory();
        let (major, minor) = gpu.capability;
        DeviceInfo {
            name: format!("cuda:{}", gpu.ordinal),
            description: format!("{}, compute capability {major}.{minor}", gpu.name),
            kernels: self.context.modules.name.clone(),
            elements: ElementTypes {
                activations: DType::F32,
                kv: self.options.kv,
                states: DType::F32,
            },
            alignment: ALIGNMENT,
            total_memory: memory.map(|(_, total)| total),
            free_memory: memory.map(|(free, _)| free),
            shares_host_memory: false,
            power_of_two_blocks: true,
            quantises: false,
            usual: UsualLoad::LARGE,
        }
    }

    fn allocated(&self) -> u64 {
        self.context.allocated()
    }

    fn rehearsal(&self) -> Option<Self> {
        Self::rehearse(self.context.gpu.clone(), self.options.clone()).ok()
    }

    fn epoch(&self) -> Instant {
        self.context.started
    }

    fn host_waits(&self) -> u64 {
        self.context.waits.load(Ordering::Relaxed)
    }

    fn buffer<T: Element>(&self, len: usize) -> Result<CudaBuffer<T>, DeviceError> {
        let address = self.context.zeroed((len * size_of::<T>()) as u64, "a buffer")?;
        Ok(CudaBuffer::new(&self.context, address, len))
    }

    fn tensor(&self, rows: &Rows<Self>, columns: usize) -> Result<CudaTensor, DeviceError> {
        let stride = columns.next_multiple_of(ROW_ALIGNMENT);
        let len = rows.bucket.checked_mul(stride).ok_or(DeviceError::OutOfMemory {
            what: "a tensor".to_owned(),
            bytes: u64::MAX,
        })?;
        Ok(CudaTensor {
            storage: self.buffer(len)?,
            stride,
            first: 0,
            columns,
            bucket: rows.bucket,
            live: rows.live.clone(),
        })
    }

    fn reshape(&self, tensor: &CudaTensor, rows: &Rows<Self>, columns: usize) -> CudaTensor {
        assert!(
            columns <= tensor.columns && rows.bucket * tensor.stride <= tensor.storage.len(),
            "reshape: [{}, {columns}] does not fit [{}, {}]",
            rows.bucket,
            tensor.bucket,
            tensor.columns
        );
        CudaTensor {
            columns,
            bucket: rows.bucket,
            live: rows.live.clone(),
            ..tensor.clone()
        }
    }

    fn columns(&self, tensor: &CudaTensor, range: Range<usize>) -> CudaTensor {
        assert!(
            range.start <= range.end && range.end <= tensor.columns,
            "columns: {range:?} of {}",
            tensor.columns
        );
        CudaTensor {
            first: tensor.first + range.start,
            columns: range.len(),
            ..tensor.clone()
        }
    }

    fn weight(&self, parts: &[WeightPart<'_>], store_as: Option<DType>) -> Result<CudaWeight, DeviceError> {
        CudaWeight::pack(self, parts, store_as, false)
    }

    fn gated_weight(
        &self,
        parts: &[WeightPart<'_>],
        store_as: Option<DType>,
    ) -> Result<CudaWeight, DeviceError> {
        CudaWeight::pack(self, parts, store_as, true)
    }

    fn first_outputs(&self, weight: &CudaWeight, outputs: usize) -> CudaWeight {
        weight.first_outputs(self, outputs)
    }

    fn experts(&self, gate_up: Vec<CudaWeight>, down: Vec<CudaWeight>) -> Result<CudaExperts, DeviceError> {
        CudaExperts::new(self, &gate_up, &down)
    }

    fn kv_cache(&self, shape: KvShape) -> Result<CudaKvCache, DeviceError> {
        CudaKvCache::new(self, shape)
    }

    fn state_cache(&self, shape: StateShape) -> Result<CudaStateCache, DeviceError> {
        CudaStateCache::new(self, shape)
    }

    fn ring(&self, places: usize, words: usize) -> Result<CudaRing, DeviceError> {
        CudaRing::new(&self.context, places, words)
    }

    fn post(&self, ring: &CudaRing, place: &RingPlace, words: &[i32]) {
        ring.write(place.index(), words);
    }

    fn arrival(&self, ring: &CudaRing, place: &RingPlace) -> CudaArrival {
        CudaArrival::new(ring, place.index())
    }

    fn write_at<T: Element>(&self, buffer: &CudaBuffer<T>, offset: usize, data: &[T]) {
        self.keep_inputs(None);
        assert!(
            offset <= buffer.len() && data.len() <= buffer.len() - offset,
            "write: {} elements at {offset} into a buffer of {}",
            data.len(),
            buffer.len()
        );
        if self.context.rehearsal || self.context.failure().is_some() {
            return;
        }
        self.context.bind();
        let at = buffer.address() + (offset * size_of::<T>()) as u64;
        // SAFETY: the range lies within the buffer. The driver takes the data over before the call returns.
        let result = unsafe {
            sys::cuMemcpyHtoDAsync_v2(at, data.as_ptr().cast(), size_of_val(data), self.context.stream)
        };
        self.context.remember(check(result, "cuMemcpyHtoDAsync"));
    }

    fn read<T: Element>(&self, buffer: &CudaBuffer<T>, len: usize) -> CudaRead<T> {
        assert!(
            len <= buffer.len(),
            "read: {len} elements of a buffer of {}",
            buffer.len()
        );
        CudaRead::elements(&self.context, buffer.address(), len)
    }

    fn read_tensor(&self, tensor: &CudaTensor) -> CudaRead<f32> {
        let address = tensor.storage.address() + tensor.first as u64 * 4;
        let shape = (tensor.bucket, tensor.columns, tensor.stride);
        CudaRead::rows(&self.context, (address, tensor.live.address()), shape)
    }

    fn begin_capture(&self) {
        self.keep_inputs(None);
        self.context.begin_capture();
    }

    fn end_capture(&self) -> CudaProgram {
        self.keep_inputs(None);
        let mut program = self.context.end_capture();
        unread::leave_out(&mut program);
        CudaProgram::new(&self.context, program)
    }

    fn launch(&self, program: &CudaProgram) {
        self.keep_inputs(None);
        program.launch();
    }

    fn embed(&self, step: &StepTables<Self>, table: &CudaWeight, scale: f32, out: &mut CudaTensor) {
        self.enqueue_embed(step, table, scale, out);
    }

    fn linear(&self, x: &CudaTensor, w: &CudaWeight, epilogue: Epilogue<'_, Self>, out: &mut CudaTensor) {
        self.enqueue_linear(x, w, &epilogue, out);
    }

    fn linear_activate(&self, product: Product<'_, Self>, activation: Activation, out: &mut CudaTensor) {
        self.enqueue_linear_activate(&product, activation, out);
    }

    fn linear_add_norm(&self, product: Product<'_, Self>, norm: ResidualNorm<'_, Self>) {
        self.enqueue_linear_add_norm(&product, &norm);
    }

    fn rms_norm(&self, x: &CudaTensor, weight: &CudaBuffer<f32>, eps: f32, out: &mut CudaTensor) {
        self.enqueue_rms_norm(x, weight, eps, out);
    }

    fn add_rms_norm(&self, delta: &CudaTensor, norm: ResidualNorm<'_, Self>) {
        self.enqueue_add_rms_norm(delta, &norm);
    }

    fn add(&self, acc: &mut CudaTensor, x: &CudaTensor, scale: f32, gate: Option<&CudaTensor>) {
        self.enqueue_add(acc, x, scale, gate);
    }

    fn activate(&self, x: &CudaTensor, activation: Activation, out: &mut CudaTensor) {
        self.enqueue_activate(x, activation, out);
    }

    fn rope_angles(
        &self,
        step: &StepTables<Self>,
        frequencies: &CudaBuffer<f32>,
        factor: f32,
        out: &mut CudaTensor,
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

    fn linear_mix_delta(
        &self,
        product: Product<'_, Self>,
        conv: CausalConv<'_, Self>,
        rule: DeltaRule<'_, Self>,
        norm: GatedNorm<'_, Self>,
    ) {
        self.enqueue_linear_mix_delta(&product, &conv, &rule, &norm);
    }

    fn mix_delta(&self, conv: CausalConv<'_, Self>, rule: DeltaRule<'_, Self>, norm: GatedNorm<'_, Self>) {
        self.enqueue_mix_delta(&conv, &rule, &norm);
    }

    fn mix_state_space(
        &self,
        conv: CausalConv<'_, Self>,
        recurrence: StateSpace<'_, Self>,
        norm: GatedNorm<'_, Self>,
    ) {
        self.enqueue_mix_state_space(&conv, &recurrence, &norm);
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

    fn mix_experts(&self, mixture: Mixture<'_, Self>, norm: ResidualNorm<'_, Self>) {
        self.enqueue_mix_experts(&mixture, &norm);
    }

    fn gather(&self, x: &CudaTensor, index: &CudaBuffer<i32>, out: &mut CudaTensor) {
        self.enqueue_gather(x, index, out);
    }

    fn gather_sampled(&self, x: &CudaTensor, step: &StepTables<Self>, out: &mut CudaTensor) {
        self.enqueue_gather_sampled(x, step, out);
    }

    fn copy(&self, x: &CudaTensor, out: &mut CudaTensor) {
        self.enqueue_copy(x, out);
    }

    fn sample(&self, logits: &CudaTensor, args: Sampling<'_, Self>) {
        self.enqueue_sample(logits, &args);
    }

    fn sample_states(
        &self,
        states: &CudaTensor,
        product: SampledProduct<'_, Self>,
        sampling: Sampling<'_, Self>,
    ) {
        self.enqueue_gather_sampled(states, sampling.step, product.states);
        self.enqueue_sample_states(&product, &sampling);
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

    fn spread(&self, x: &CudaTensor, columns: &CudaBuffer<i32>, out: &mut CudaTensor) {
        self.enqueue_spread(x, columns, out);
    }

    fn mark_drafting(&self, record: &StepRecord<Self>) {
        self.enqueue_mark_drafting(record);
    }

    fn publish(&self, args: Publish<'_, Self>) {
        self.enqueue_publish(&args);
    }
}
