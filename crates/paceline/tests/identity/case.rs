//! What a case is made of.

use crate::support::scripted::Script;
use crate::support::whimsy::Whimsy;
use crate::support::{Asked, Drafter, Setup};
use paceline_types::{SamplingParams, TokenId};
use proptest::prelude::*;

/// Models with recurrent layers of every kind, two dense ones, and the default model.
const MODELS: [&str; 10] = [
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

const DRAFTERS: [Drafter; 11] = [
    Drafter::Off,
    Drafter::Ngram,
    Drafter::Mtp,
    Drafter::Eagle3,
    Drafter::Itself,
    Drafter::Other,
    Drafter::Chain,
    Drafter::Scripted(Script::Right),
    Drafter::Scripted(Script::Wrong),
    Drafter::Scripted(Script::Random),
    Drafter::Scripted(Script::Alternating),
];

/// Some requests and a way to run them.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) setup: Setup,
    pub(crate) requests: Vec<Asked>,
}

pub(crate) fn any_case() -> impl Strategy<Value = Case> {
    let requests = prop::collection::vec(any_request(), 1..7);
    (any_setup(), requests, prop::collection::vec(0..250_u32, 0..120)).prop_map(|(setup, drafts, shared)| {
        let block_size = setup.block_size;
        let requests = drafts.into_iter().enumerate();
        Case {
            setup,
            requests: requests
                .map(|(index, draft)| draft.finish(index, &shared, block_size))
                .collect(),
        }
    })
}

fn any_setup() -> impl Strategy<Value = Setup> {
    let speculation = (
        prop::sample::select(MODELS.as_slice()),
        prop::sample::select(DRAFTERS.as_slice()),
        prop::sample::select(vec![1_usize, 2, 3, 5, 7, 8, 15]),
        any::<bool>(),
    );
    let shape = (
        1..=4_usize,
        prop::sample::select(vec![1_usize, 3, 16]),
        prop::sample::select(vec![8_usize, 64, 512]),
        prop::sample::select(vec![1_usize, 4, 8, 16, 24, 32]),
        1..=2_usize,
    );
    let caches = (
        any::<bool>(),
        prop_oneof![Just(None), (0..12_usize).prop_map(Some)],
        0..12_usize,
    );
    (speculation, shape, caches).prop_map(|(speculation, shape, caches)| {
        let (model, drafter, drafts, depth_control) = speculation;
        let (depth, batch, budget, block_size, threads) = shape;
        let (caching, spare_blocks, snapshots) = caches;
        Setup {
            model,
            drafter,
            drafts: if drafter == Drafter::Off { 0 } else { drafts },
            depth_control,
            depth,
            batch,
            budget,
            block_size,
            threads,
            caching,
            spare_blocks,
            snapshots,
        }
    })
}

/// A request before its prompt is put together.
#[derive(Clone, Debug)]
struct Draft {
    own: Vec<TokenId>,
    /// Say it again, so that there is something to look up.
    repeats: bool,
    shares: bool,
    exact: Option<i8>,
    params: SamplingParams,
    rest: (i32, usize, Option<usize>, bool, bool),
    confined: bool,
}

impl Draft {
    /// Prompts share a beginning, repeat themselves, or have a length just around the block size.
    fn finish(self, index: usize, shared: &[TokenId], block_size: usize) -> Asked {
        let mut prompt = if self.shares { shared.to_vec() } else { Vec::new() };
        prompt.extend(&self.own);
        if self.repeats {
            prompt.extend(&self.own);
        }
        if let Some(offset) = self.exact {
            let length = (block_size as i64 + i64::from(offset)).max(1) as usize;
            prompt.resize(length, 7);
        }
        let (priority, arrives, cancelled, sibling, undrafted) = self.rest;
        Asked {
            prompt,
            params: self.params,
            priority,
            arrives,
            cancelled,
            group: sibling.then_some(index as u64),
            constraint: self.confined.then(|| Whimsy::named(index as u64)),
            undrafted,
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
    let rare = || prop::bool::weighted(0.15);
    let rest = (-1..=1_i32, 0..20_usize, cancelled, rare(), rare());
    let texts = (own, any::<bool>(), any::<bool>(), prop::bool::weighted(0.25));
    (texts, exact, any_params(), rest).prop_map(|((own, repeats, shares, confined), exact, params, rest)| {
        Draft {
            own,
            repeats,
            shares,
            exact,
            params,
            rest,
            confined,
        }
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
        1..40_usize,
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
