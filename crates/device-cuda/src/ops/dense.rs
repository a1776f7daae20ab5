//! Operations on rows: products, norms, activations, routing.

use crate::arguments::arguments;
use crate::cuda::Cuda;
use crate::storage::{CudaBuffer, CudaTensor};
use crate::weight::CudaWeight;
use paceline_device::{Activation, Epilogue, GatedNorm, ResidualNorm, Router};

arguments! { "dense.h"; }

impl Cuda {
    pub(crate) fn enqueue_linear(
        &self,
        _x: &CudaTensor,
        _w: &CudaWeight,
        _epilogue: &Epilogue<'_, Self>,
        _out: &CudaTensor,
    ) {
        self.missing("linear");
    }

    pub(crate) fn enqueue_rms_norm(
        &self,
        _x: &CudaTensor,
        _weight: &CudaBuffer<f32>,
        _eps: f32,
        _out: &CudaTensor,
    ) {
        self.missing("rms_norm");
    }

    pub(crate) fn enqueue_add_rms_norm(&self, _delta: &CudaTensor, _norm: &ResidualNorm<'_, Self>) {
        self.missing("add_rms_norm");
    }

    pub(crate) fn enqueue_add(
        &self,
        _acc: &CudaTensor,
        _x: &CudaTensor,
        _scale: f32,
        _gate: Option<&CudaTensor>,
    ) {
        self.missing("add");
    }

    pub(crate) fn enqueue_activate(&self, _x: &CudaTensor, _activation: Activation, _out: &CudaTensor) {
        self.missing("activate");
    }

    pub(crate) fn enqueue_gated_norm(&self, _args: &GatedNorm<'_, Self>) {
        self.missing("gated_norm");
    }

    pub(crate) fn enqueue_route(&self, _args: &Router<'_, Self>) {
        self.missing("route");
    }
}
