//! Windows of drafts through scheduler, pipeline and device: whatever is drafted, tokens and log-probabilities are
//! those of a run without drafts, to the last bit. Every model × every window × every way to be right and wrong.

use paceline_schedule::Counters;
use paceline_selftest::mixes::{Asked, CpuBench as Bench, Drafter, Script, Setup};
use paceline_types::{SamplingParams, TokenId};

/// Every reference model with recurrent layers, two without, and the default model.
const MODELS: [&str; 13] = [
    "bamba",
    "falcon_h1",
    "falcon_h1_norm",
    "granite_h",
    "granite_h_moe",
    "nemotron_h",
    "nemotron_h_moe",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_next",
    "llama",
    "qwen3",
    "storyteller",
];
const WINDOWS: [usize; 8] = [0, 1, 2, 3, 5, 7, 8, 15];
/// Block sizes, which decide with the grid of states where a prompt can start from a cache.
const BLOCKS: [usize; 6] = [1, 4, 8, 16, 24, 32];

fn requests() -> Vec<Asked> {
    let shared: Vec<TokenId> = (0..40).map(|i| (i * 37 + 11) % 200).collect();
    let prompts = [
        shared[..1].to_vec(),
        [&shared[..32], &[5, 6, 7]].concat(),
        shared[3..20].to_vec(),
        [&shared[..32], &[9; 9]].concat(),
    ];
    let arrivals = [0, 0, 1, 5];
    let rows = prompts.into_iter().zip(arrivals).enumerate();
    rows.map(|(seed, (prompt, arrives))| {
        let odd = seed % 2 == 1;
        let params = SamplingParams {
            temperature: if odd { 0.9 } else { 0.0 },
            top_k: if odd { 40 } else { 0 },
            frequency_penalty: if seed == 3 { 0.4 } else { 0.0 },
            stop_tokens: if seed == 2 { vec![17, 70, 120] } else { Vec::new() },
            seed: seed as u64,
            max_tokens: 21 + 3 * seed,
            logprobs: Some(2),
            ..SamplingParams::default()
        };
        Asked {
            arrives,
            // The last to come pushes others out if there is no room.
            priority: -i32::from(seed == 3),
            ..Asked::new(prompt, params)
        }
    })
    .collect()
}

/// Sums over the cases of a model: what must have happened somewhere for the test to mean anything.
#[derive(Default)]
struct Seen {
    preemptions: u64,
    hits: u64,
    restored: u64,
    accepted: u64,
    rejected: u64,
}

impl Seen {
    fn add(&mut self, script: Script, counters: &Counters) {
        if script == Script::Wrong {
            assert_eq!(counters.drafts_accepted, 0);
        }
        self.preemptions += counters.preemptions;
        self.hits += counters.prefix_hits;
        self.restored += counters.snapshots_used;
        self.accepted += counters.drafts_accepted;
        self.rejected += counters.drafts_verified - counters.drafts_accepted;
    }
}

fn prove(bench: &Bench, model: &'static str, shift: usize) {
    let requests = requests();
    let mut seen = Seen::default();
    for (offset, drafts) in WINDOWS.into_iter().enumerate() {
        let scripts = if drafts == 0 {
            &[Script::Right][..]
        } else {
            &Script::ALL
        };
        for script in scripts.iter().copied() {
            // The plain loop with room for all, and every depth in turn without.
            let deep = 1 + (shift + offset) % 4;
            // Preempted requests come back from a cache for some and from nothing for others.
            let cached = matches!(script, Script::Right | Script::Random);
            for (depth, caching, spare_blocks) in [(1, true, None), (deep, cached, Some(2))] {
                let setup = Setup {
                    drafter: Drafter::Scripted(script),
                    drafts,
                    depth,
                    batch: 3,
                    budget: 64,
                    block_size: BLOCKS[(shift + offset) % BLOCKS.len()],
                    caching,
                    spare_blocks,
                    snapshots: 6,
                    ..Setup::plain(model)
                };
                let outcome = bench.run(&setup, &requests);
                for (index, (request, found)) in requests.iter().zip(&outcome.given).enumerate() {
                    let difference = found.differs_from(&bench.alone(model, request));
                    assert_eq!(difference, None, "{setup:?}, request {index}");
                }
                seen.add(script, &outcome.counters);
            }
        }
    }
    assert!(seen.preemptions > 0, "{model}");
    assert!(seen.hits > 0, "{model}");
    assert!(seen.accepted > 0 && seen.rejected > 0, "{model}");
    let recurrent = !matches!(model, "llama" | "qwen3");
    assert_eq!(seen.restored > 0, recurrent, "{model}");
}

#[test]
fn whatever_is_drafted_the_text_is_that_of_plain_decoding() {
    let bench = Bench::default();
    for (index, model) in MODELS.into_iter().enumerate() {
        prove(&bench, model, index);
    }
}
