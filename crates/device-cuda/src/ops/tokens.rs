//! Operations that move rows: embeddings, gathers, copies, angles.

use crate::arguments::arguments;
use crate::cuda::Cuda;
use crate::storage::{CudaBuffer, CudaTensor};
use crate::weight::CudaWeight;
use paceline_device::StepTables;

arguments! { "tokens.h"; }

impl Cuda {
    pub(crate) fn enqueue_embed(
        &self,
        _step: &StepTables<Self>,
        _table: &CudaWeight,
        _scale: f32,
        _out: &CudaTensor,
    ) {
        self.missing("embed");
    }

    pub(crate) fn enqueue_gather(&self, _x: &CudaTensor, _index: &CudaBuffer<i32>, _out: &CudaTensor) {
        self.missing("gather");
    }

    pub(crate) fn enqueue_gather_sampled(
        &self,
        _x: &CudaTensor,
        _step: &StepTables<Self>,
        _out: &CudaTensor,
    ) {
        self.missing("gather_sampled");
    }

    pub(crate) fn enqueue_copy(&self, _x: &CudaTensor, _out: &CudaTensor) {
        self.missing("copy");
    }

    pub(crate) fn enqueue_rope_angles(
        &self,
        _step: &StepTables<Self>,
        _frequencies: &CudaBuffer<f32>,
        _factor: f32,
        _out: &CudaTensor,
    ) {
        self.missing("rope_angles");
    }
}
