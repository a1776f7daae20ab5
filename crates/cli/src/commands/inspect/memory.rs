//! What an engine for the model would take.

use crate::engine::explain_start;
use crate::flags::numbers::ByteSize;
use crate::flags::{DraftTokens, InspectFlags};
use crate::model::LoadedModel;
use anyhow::Result;
use paceline::{
    Device, EngineConfig, MemoryPlan, ModelFiles, Outline, Speculation, SpeculationConfig, SpeculationMethod,
};
use paceline_device::Recorder;
use paceline_models::Decoder;
use serde::Serialize;

/// An engine that could be.
pub(super) struct Plan {
    /// The drafters.
    pub(super) speculation: Speculation,
    /// What it would take.
    pub(super) memory: MemoryPlan,
}

/// Plans the memory if the flags ask for it.
pub(super) fn plan(
    flags: &InspectFlags,
    (recorder, model): (Recorder, Decoder<Recorder>),
    (default, device): (&EngineConfig, &Device),
    inspected: &LoadedModel,
) -> Result<Option<Plan>> {
    let Some(memory) = flags.memory else {
        return Ok(None);
    };
    let info = device.info();
    let config = EngineConfig {
        available_memory: memory.map(|ByteSize(bytes)| bytes),
        max_num_seqs: flags.max_num_seqs.unwrap_or(info.usual.sequences),
        max_num_batched_tokens: info.usual.tokens,
        // Weights that are not there are as large as those that are.
        random_weights: inspected.checkpoint.raw_tensors().next().is_none(),
        max_model_len: flags.max_model_len,
        speculation: SpeculationConfig {
            method: flags.speculation.map(SpeculationMethod::from).unwrap_or_default(),
            draft_tokens: flags.draft_tokens.and_then(|DraftTokens(number)| number),
            ..default.speculation
        },
        ..default.clone()
    };
    let plan = Outline::of(recorder, model, &config).and_then(|outline| {
        let speculation = *outline.speculation();
        let files = ModelFiles::from(&inspected.checkpoint);
        let measure = |runner| device.rehearse(files, &config, (&speculation, runner));
        let memory = MemoryPlan::new(outline, &config, &info, &measure)?;
        Ok(Plan { speculation, memory })
    });
    plan.map(Some)
        .map_err(|error| explain_start(error, &inspected.source))
}

/// A plan for machines, in bytes where nothing else is said.
#[derive(Serialize)]
pub(super) struct PlanReport {
    /// The drafters, for people.
    speculation: String,
    /// Element types of keys and values, and of recurrent states.
    kv_type: &'static str,
    state_type: &'static str,
    /// Most drafts per request and step.
    draft_tokens: usize,
    budget: u64,
    weights: u64,
    kv: u64,
    states: u64,
    rings: u64,
    snapshots: u64,
    ngram_index: u64,
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

impl From<&Plan> for PlanReport {
    fn from(plan: &Plan) -> Self {
        let Plan {
            speculation,
            memory: plan,
        } = plan;
        Self {
            speculation: speculation.to_string(),
            kv_type: plan.elements.kv.name(),
            state_type: plan.elements.states.name(),
            draft_tokens: speculation.draft_tokens,
            budget: plan.budget,
            weights: plan.weights,
            kv: plan.kv,
            states: plan.states,
            rings: plan.rings,
            snapshots: plan.snapshots,
            ngram_index: plan.ngram_index,
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
