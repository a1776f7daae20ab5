//! What a case is made of.

use paceline_types::{SamplingParams, TokenId};
use proptest::prelude::*;

/// Models with recurrent layers of every kind, two dense ones, and the default model.
pub(crate) const MODELS: [&str; 10] = [
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_next",
    "granite_h",
    "nemotron_h",
    "falcon_h1",
    "bamba",
    "llama",
    "qwen3",
    "storyteller",
];

/// One way to run some requests.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) model: &'static str,
    pub(crate) depth: usize,
    pub(crate) batch: usize,
    pub(crate) budget: usize,
    pub(crate) block_size: usize,
    pub(crate) threads: usize,
    pub(crate) caching: bool,
    /// Pages beyond what the longest request needs, or plenty.
    pub(crate) spare_blocks: Option<usize>,
    pub(crate) snapshots: usize,
    pub(crate) requests: Vec<CaseRequest>,
}

/// One request of a case.
#[derive(Clone, Debug)]
pub(crate) struct CaseRequest {
    pub(crate) prompt: Vec<TokenId>,
    pub(crate) params: SamplingParams,
    pub(crate) priority: i32,
    /// Turn of the loop it arrives at.
    pub(crate) arrives: usize,
    /// Turns after its arrival that it is cancelled at.
    pub(crate) cancelled: Option<usize>,
    /// A sibling with the same prompt and another seed.
    pub(crate) sibling: bool,
}

pub(crate) fn any_case() -> impl Strategy<Value = Case> {
    let shape = (
        prop::sample::select(MODELS.as_slice()),
        1..=4_usize,
        prop::sample::select(vec![1_usize, 3, 16]),
        prop::sample::select(vec![8_usize, 64, 512]),
        prop::sample::select(vec![8_usize, 16, 32]),
        1..=2_usize,
        any::<bool>(),
        prop_oneof![Just(None), (0..12_usize).prop_map(Some)],
        0..12_usize,
    );
    let requests = prop::collection::vec(any_request(), 1..7);
    (shape, requests, prop::collection::vec(0..250_u32, 0..120)).prop_map(|(shape, requests, shared)| {
        let (model, depth, batch, budget, block_size, threads, caching, spare_blocks, snapshots) = shape;
        let requests = requests
            .into_iter()
            .map(|draft| draft.finish(&shared, block_size))
            .collect();
        Case {
            model,
            depth,
            batch,
            budget,
            block_size,
            threads,
            caching,
            spare_blocks,
            snapshots,
            requests,
        }
    })
}

/// A request before its prompt is put together.
#[derive(Clone, Debug)]
struct Draft {
    own: Vec<TokenId>,
    shares: bool,
    exact: Option<i8>,
    params: SamplingParams,
    rest: (i32, usize, Option<usize>, bool),
}

impl Draft {
    /// Prompts share a beginning, or have a length just around the block size.
    fn finish(self, shared: &[TokenId], block_size: usize) -> CaseRequest {
        let mut prompt = if self.shares { shared.to_vec() } else { Vec::new() };
        prompt.extend(&self.own);
        if let Some(offset) = self.exact {
            let length = (block_size as i64 + i64::from(offset)).max(1) as usize;
            prompt.resize(length, 7);
        }
        let (priority, arrives, cancelled, sibling) = self.rest;
        CaseRequest {
            prompt,
            params: self.params,
            priority,
            arrives,
            cancelled,
            sibling,
        }
    }
}

fn any_request() -> impl Strategy<Value = Draft> {
    let own = prop_oneof![
        3 => prop::collection::vec(0..250_u32, 1..40),
        1 => prop::collection::vec(0..250_u32, 1..2),
        1 => prop::collection::vec(0..250_u32, 100..180),
    ];
    let exact = prop_oneof![4 => Just(None), 1 => (-1..=1_i8).prop_map(Some)];
    let cancelled = prop_oneof![5 => Just(None), 1 => (0..12_usize).prop_map(Some)];
    let rest = (-1..=1_i32, 0..20_usize, cancelled, prop::bool::weighted(0.15));
    (own, any::<bool>(), exact, any_params(), rest).prop_map(|(own, shares, exact, params, rest)| Draft {
        own,
        shares,
        exact,
        params,
        rest,
    })
}

fn any_params() -> impl Strategy<Value = SamplingParams> {
    let truncation = (
        prop_oneof![Just(0.0_f32), 0.2..1.8_f32],
        prop_oneof![Just(1.0_f32), 0.3..1.0_f32],
        prop_oneof![Just(0_u32), 1..60_u32],
        prop_oneof![Just(0.0_f32), 0.0..0.3_f32],
    );
    let penalties = prop_oneof![
        2 => Just((1.0_f32, 0.0_f32, 0.0_f32)),
        1 => (0.7..1.5_f32, -1.0..1.0_f32, -1.0..1.0_f32),
    ];
    let lists = (
        prop::collection::vec((0..250_u32, -5.0..5.0_f32), 0..3),
        prop::collection::vec(prop::collection::vec(0..250_u32, 1..3), 0..3),
        prop::collection::vec(0..250_u32, 0..3),
    );
    let amounts = (
        1..28_usize,
        0..6_usize,
        prop_oneof![Just(None), (0..4_usize).prop_map(Some)],
    );
    (truncation, penalties, lists, amounts, any::<u64>()).prop_map(
        |(truncation, penalties, (logit_bias, bad_words, stop_tokens), (max_tokens, min, logprobs), seed)| {
            let (temperature, top_p, top_k, min_p) = truncation;
            let (repetition_penalty, presence_penalty, frequency_penalty) = penalties;
            SamplingParams {
                temperature,
                top_p,
                top_k,
                min_p,
                repetition_penalty,
                presence_penalty,
                frequency_penalty,
                logit_bias,
                bad_words,
                stop_tokens,
                seed,
                max_tokens,
                min_tokens: min.min(max_tokens),
                logprobs,
                ..SamplingParams::default()
            }
        },
    )
}
