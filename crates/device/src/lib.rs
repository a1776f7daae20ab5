//! What a model needs of a device, and nothing else.
//!
//! [`Backend`] is the contract: storage owned by the device, a stream that executes operations in the order
//! they were enqueued, and some twenty fused operations. Models are written once against it. The crate also
//! holds [`Recorder`], a backend that owns no memory and writes down what it was asked to do: it shows that a
//! step's program depends on its shape alone, and it lets a model be measured from its configuration.

pub mod abi;
mod args;
mod backend;
mod checked;
mod drafts;
mod e4m3;
mod error;
mod host_map;
mod info;
mod pooling;
mod recorder;
mod rings;
mod slots;
mod step;
mod weights;
mod workspace;

pub use args::{
    Activation, Attention, CausalConv, DeltaRule, Epilogue, Experts, GateOrder, GatedNorm, HeadMap,
    HeadNorms, KeyValueStore, Mixture, MoeRouting, Product, ResidualNorm, RouteScores, Router, SampleOptions,
    SampledProduct, SampledText, Sampling, StateSpace,
};
pub use backend::{Backend, Element, Pending};
pub use checked::{
    Checked, CheckedArrival, CheckedBuffer, CheckedProgram, CheckedRing, CheckedTensor, CheckedWeight,
};
pub use drafts::{
    ClearKv, DraftForward, GatherStates, KeepBlockEnds, NgramIndex, PrepareDrafts, ProposeNgram, TakeDrafts,
};
pub use e4m3::{E4M3_MAX, e4m3_nearest, e4m3_value};
pub use error::DeviceError;
pub use host_map::{HostMap, open_regular};
pub use info::{DeviceInfo, ElementTypes, UsualLoad};
pub use pooling::{PoolStates, PoolTable};
pub use recorder::{Recorder, RecorderBuffer, RecorderCache, RecorderTensor, RecorderWeight};
pub use rings::{FreePlaces, RingPlace, StepRings};
pub use slots::{Accept, Prepare, Publish, SlotLimits, SlotTable, StepRecord};
pub use step::{KvShape, Rows, StateShape, StepLimits, StepTables};
pub use weights::{
    BlockScales, RowOrder, SCALE_BLOCK, WeightData, WeightPart, random_element, random_scale, random_width,
};
pub use workspace::{Scratch, Workspace};
