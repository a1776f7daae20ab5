//! What an engine for the model would take.

use crate::engine::explain_start;
use crate::flags::InspectFlags;
use crate::flags::numbers::ByteSize;
use anyhow::Result;
use paceline::{EngineConfig, MemoryPlan};
use paceline_device::Backend;
use paceline_models::Decoder;
use serde::Serialize;

/// Plans the memory if the flags ask for it.
pub(super) fn plan<B: Backend>(
    flags: &InspectFlags,
    model: &Decoder<B>,
    source: &str,
) -> Result<Option<MemoryPlan>> {
    let Some(memory) = flags.memory else {
        return Ok(None);
    };
    let default = EngineConfig::default();
    let config = EngineConfig {
        available_memory: memory.map(|ByteSize(bytes)| bytes),
        max_num_seqs: flags.max_num_seqs.unwrap_or(default.max_num_seqs),
        max_model_len: flags.max_model_len,
        max_drafts: flags.draft_tokens.unwrap_or(default.max_drafts),
        ..default
    };
    let plan = MemoryPlan::new(model, &config);
    plan.map(Some).map_err(|error| explain_start(error, source))
}

/// A plan for machines, in bytes where nothing else is said.
#[derive(Serialize)]
pub(super) struct PlanReport {
    budget: u64,
    weights: u64,
    kv: u64,
    states: u64,
    rings: u64,
    snapshots: u64,
    scratch: u64,
    total: u64,
    state_per_request: u64,
    ring_per_request: u64,
    blocks: usize,
    /// Tokens.
    block_size: usize,
    snapshot_count: usize,
    max_num_seqs: usize,
    /// Tokens.
    max_model_len: usize,
    full_length_requests: usize,
}

impl From<MemoryPlan> for PlanReport {
    fn from(plan: MemoryPlan) -> Self {
        Self {
            budget: plan.budget,
            weights: plan.weights,
            kv: plan.kv,
            states: plan.states,
            rings: plan.rings,
            snapshots: plan.snapshots,
            scratch: plan.scratch,
            total: plan.total(),
            state_per_request: plan.state_per_request,
            ring_per_request: plan.ring_per_request,
            blocks: plan.blocks,
            block_size: plan.block_size,
            snapshot_count: plan.snapshot_count,
            max_num_seqs: plan.slots,
            max_model_len: plan.max_model_len,
            full_length_requests: plan.full_length_requests(),
        }
    }
}
