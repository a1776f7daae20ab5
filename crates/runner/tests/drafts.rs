//! What neural drafters make depends on the request's own text, also where they did not see all of it and where its blocks
//! and snapshots held something else before. The output would be right all the same: only drafts would be worse.

use paceline_device_cpu::{Cpu, CpuOptions};
use paceline_models::{Decoder, Eagle3};
use paceline_runner::{DeviceRunner, HeadProposer, ModelProposer, Proposer, RowsRead, RunnerConfig};
use paceline_schedule::StepRunner;
use paceline_testkit::{Fixture, Program, Solo, random_eagle3, storyteller, storyteller_reference};
use paceline_types::{
    Admission, BlockId, DraftBudget, PlanRow, RowConstraint, RowOutput, STATE_GRID, SamplingParams, SlotId,
    SnapshotId, SnapshotPlan, StepPlan, TokenId, TokenMask, Work,
};
use paceline_weights::Checkpoint;
use std::sync::Arc;

const BLOCK: usize = 8;

const CONFIG: RunnerConfig = RunnerConfig {
    slots: 2,
    tokens: 64,
    samples: 16,
    blocks: 8,
    blocks_per_slot: 8,
    block_size: BLOCK,
    snapshots: 2,
    drafts: 3,
    masks: 8,
    depth: 2,
};

struct Bench {
    runner: DeviceRunner<Cpu>,
    vocabulary: usize,
    steps: u64,
}

/// A piece of a prompt, in blocks 0, 1, ...
struct Piece<'a> {
    slot: u32,
    tokens: &'a [TokenId],
    from: usize,
    to: usize,
    /// Whether the drafter sees it.
    seen: bool,
    save: Option<SnapshotId>,
    restore: Option<SnapshotId>,
}

impl Bench {
    fn new(
        checkpoint: &Checkpoint,
        proposer: impl FnOnce(&Cpu, &mut Decoder<Cpu>) -> Box<dyn Proposer<Cpu>>,
    ) -> Self {
        let cpu = Cpu::new(CpuOptions {
            threads: 1,
            ..CpuOptions::default()
        });
        let mut model = load(&cpu, checkpoint);
        let vocabulary = model.dims.vocabulary;
        let proposer = proposer(&cpu, &mut model);
        let runner = DeviceRunner::new(cpu, model, CONFIG).expect("it fits the memory");
        let runner = runner.with_proposer(proposer);
        Self {
            runner,
            vocabulary,
            steps: 0,
        }
    }

    /// Runs a piece of a prompt; behind the last one, what was drafted.
    fn run(&mut self, piece: &Piece<'_>) -> Vec<TokenId> {
        let last = piece.to == piece.tokens.len();
        let first = piece.from == 0 || piece.restore.is_some();
        let admission = Admission {
            slot: SlotId(piece.slot),
            generation: 1,
            params: Arc::new(SamplingParams {
                temperature: 0.0,
                ..SamplingParams::default()
            }),
            prompt_tokens: piece.tokens.len(),
            cached_tokens: piece.from,
            max_length: 60,
            min_length: 0,
            stop_tokens: Vec::new(),
            restore: piece.restore,
        };
        // All tokens are allowed.
        let everything = TokenMask::new(vec![u32::MAX; self.vocabulary.div_ceil(32)]);
        let row = PlanRow {
            slot: SlotId(piece.slot),
            generation: 1,
            work: Work::Prefill {
                start: piece.from,
                tokens: piece.tokens[piece.from..piece.to].to_vec(),
                last,
                following: piece.tokens.get(piece.to).copied(),
                prompt_logprobs: false,
            },
            new_blocks: if first {
                (0..8).map(|block| (block, BlockId(block))).collect()
            } else {
                Vec::new()
            },
            snapshot: piece.save.map(|id| SnapshotPlan {
                position: piece.to,
                id,
            }),
            propose: DraftBudget {
                ngram: 0,
                neural: if piece.seen { CONFIG.drafts } else { 0 },
            },
            show_drafts: last && piece.seen,
            constraint: last.then(|| RowConstraint {
                drafts: Vec::new(),
                source: None,
                masks: [everything].into(),
            }),
        };
        self.step(if first { vec![admission] } else { Vec::new() }, row)
            .made
            .0
    }

    fn step(&mut self, admissions: Vec<Admission>, row: PlanRow) -> RowOutput {
        self.steps += 1;
        let plan = StepPlan {
            step: self.steps,
            admissions,
            rows: vec![row],
        };
        let flight = self.runner.submit(&plan).expect("it runs");
        let output = self.runner.collect(flight).expect("it ran");
        output.rows[0].clone()
    }

    /// A step behind the prompt of slot 0: its tokens, and what was drafted behind them.
    fn decode(&mut self) -> (Vec<TokenId>, Vec<TokenId>) {
        let row = PlanRow {
            slot: SlotId(0),
            generation: 1,
            work: Work::Verify {
                drafts: CONFIG.drafts,
            },
            new_blocks: Vec::new(),
            snapshot: None,
            propose: DraftBudget {
                ngram: 0,
                neural: CONFIG.drafts,
            },
            show_drafts: true,
            constraint: None,
        };
        let output = self.step(Vec::new(), row);
        (output.tokens, output.made.0)
    }

    /// Drafts behind a prompt.
    fn drafts(&mut self, tokens: &[TokenId]) -> Vec<TokenId> {
        self.run(&Piece {
            slot: 0,
            tokens,
            from: 0,
            to: tokens.len(),
            seen: true,
            save: None,
            restore: None,
        })
    }

    /// Drafts behind a prompt of which the drafter did not see the first block.
    fn half_seen(&mut self, tokens: &[TokenId]) -> Vec<TokenId> {
        let piece = |from, to, seen| Piece {
            slot: 0,
            tokens,
            from,
            to,
            seen,
            save: None,
            restore: None,
        };
        self.run(&piece(0, BLOCK, false));
        self.run(&piece(BLOCK, tokens.len(), true))
    }

    /// A request that leaves its traces in all blocks.
    fn traces(&mut self, tokens: &[TokenId]) {
        let tokens: Vec<TokenId> = tokens
            .iter()
            .cycle()
            .skip(3)
            .step_by(5)
            .take(50)
            .copied()
            .collect();
        let to = tokens.len();
        self.run(&Piece {
            slot: 1,
            tokens: &tokens,
            from: 0,
            to,
            seen: true,
            save: None,
            restore: None,
        });
    }
}

fn load(cpu: &Cpu, checkpoint: &Checkpoint) -> Decoder<Cpu> {
    paceline_models::load(cpu, checkpoint, None, &|_| {}).expect("it loads")
}

fn own_head(cpu: &Cpu, model: &mut Decoder<Cpu>) -> Box<dyn Proposer<Cpu>> {
    let head = Box::new(model.mtp.take().expect("it has a head"));
    Box::new(HeadProposer::new((cpu, model), head, &CONFIG).expect("it fits the memory"))
}

/// The model's own head, which reads the first `rows` rows of the output matrix.
fn cut_head(rows: RowsRead) -> impl FnOnce(&Cpu, &mut Decoder<Cpu>) -> Box<dyn Proposer<Cpu>> {
    move |cpu, model| {
        let head = Box::new(model.mtp.take().expect("it has a head"));
        let proposer = HeadProposer::new((cpu, model), head, &CONFIG).expect("it fits the memory");
        let proposer = proposer.reading((cpu, model), rows);
        Box::new(proposer.expect("it fits the memory"))
    }
}

fn same_model(checkpoint: &Checkpoint) -> impl FnOnce(&Cpu, &mut Decoder<Cpu>) -> Box<dyn Proposer<Cpu>> {
    |cpu, _| Box::new(ModelProposer::new(cpu, load(cpu, checkpoint), &CONFIG).expect("it fits the memory"))
}

fn prompts() -> Vec<Vec<TokenId>> {
    let prompts = storyteller_reference().into_iter().map(|case| {
        let text = case.prompt_ids.iter().chain(&case.greedy);
        text.take(3 * BLOCK - 2).copied().collect()
    });
    prompts.collect()
}

/// There is no prefix hit here: the blocks are the request's own, and held another text before.
#[test]
fn drafts_do_not_depend_on_what_blocks_held_before() {
    let checkpoint = storyteller();
    let mut used = Bench::new(&checkpoint, own_head);
    for prompt in prompts() {
        used.traces(&prompt);
        let expected = Bench::new(&checkpoint, own_head).half_seen(&prompt);
        assert_eq!(expected.len(), CONFIG.drafts);
        assert_eq!(used.half_seen(&prompt), expected, "{prompt:?}");
    }
    let llama = Fixture::read("llama").checkpoint();
    let mut used = Bench::new(&llama, same_model(&llama));
    for seed in 1..6 {
        let prompt: Vec<TokenId> = (0..3 * BLOCK as u32 - 2)
            .map(|at| (at * at + seed * 31) % 90)
            .collect();
        used.traces(&prompt);
        let expected = Bench::new(&llama, same_model(&llama)).half_seen(&prompt);
        assert_eq!(expected.len(), CONFIG.drafts);
        assert_eq!(used.half_seen(&prompt), expected, "{prompt:?}");
    }
}

/// A recurrent draft model that has missed tokens has a state of another text. Whoever restores a snapshot that was saved
/// meanwhile has missed them too.
#[test]
fn a_state_saved_behind_missed_tokens_restores_as_missed() {
    let checkpoint = Fixture::read("qwen3_5").checkpoint();
    let tokens: Vec<TokenId> = (0..36).map(|at| (at * 7 + 3) % 90).collect();
    let saved = Some(SnapshotId(1));
    let at = 2 * BLOCK;
    assert!(at.is_multiple_of(STATE_GRID));
    for seen in [true, false] {
        let mut bench = Bench::new(&checkpoint, same_model(&checkpoint));
        bench.run(&Piece {
            slot: 0,
            tokens: &tokens,
            from: 0,
            to: at,
            seen,
            save: saved,
            restore: None,
        });
        let to = tokens.len();
        let restored = Piece {
            slot: 1,
            tokens: &tokens,
            from: at,
            to,
            seen: true,
            save: None,
            restore: saved,
        };
        let expected = if seen { CONFIG.drafts } else { 0 };
        assert_eq!(bench.run(&restored).len(), expected, "seen: {seen}");
    }
}

/// The most likely of the tokens that drafts are chosen among, the first of equals.
fn best(logits: &[f32], allowed: impl Fn(usize) -> bool) -> TokenId {
    let tokens = logits.iter().enumerate().filter(|(token, _)| allowed(*token));
    let largest = tokens.fold((0, f32::NEG_INFINITY), |best, (token, logit)| {
        if *logit > best.1 { (token, *logit) } else { best }
    });
    largest.0 as TokenId
}

/// A chain of drafts behind a text from all logits of the head, each the best that is allowed.
fn chain(solo: &mut Solo<Cpu>, text: &[TokenId], allowed: impl Fn(usize) -> bool) -> Vec<TokenId> {
    solo.prompt_with_head(text, text.len() - 2, 1).expect("it runs");
    let mut chain = vec![best(&solo.logits().expect("it ran"), &allowed)];
    while chain.len() < CONFIG.drafts {
        let (last, position) = (chain[chain.len() - 1], text.len() - 2 + chain.len());
        solo.step(Program::DraftAgain, &[last], position, 1)
            .expect("it runs");
        chain.push(best(&solo.logits().expect("it ran"), &allowed));
    }
    chain
}

fn solo(checkpoint: &Checkpoint) -> Solo<Cpu> {
    let cpu = Cpu::new(CpuOptions::default());
    let model = load(&cpu, checkpoint);
    Solo::new(&cpu, model, None).expect("it fits the memory")
}

/// The text that drafts are behind: a prompt and the token that the model chooses.
fn with_next(checkpoint: &Checkpoint, prompt: &[TokenId]) -> Vec<TokenId> {
    let next = solo(checkpoint).greedy(prompt, 1).expect("it runs");
    [prompt, &next].concat()
}

#[test]
fn drafts_of_a_part_are_the_best_of_its_tokens() {
    let checkpoint = storyteller();
    let (mut outside, mut bound) = (0, 0);
    for part in [1, 15, 16, 333, 1000, 4095] {
        let mut bench = Bench::new(&checkpoint, cut_head(RowsRead::Part(part)));
        for prompt in prompts() {
            let text = with_next(&checkpoint, &prompt);
            let expected = chain(&mut solo(&checkpoint), &text, |token| token < part);
            let drafts = bench.drafts(&prompt);
            assert_eq!(drafts, expected, "{part} tokens behind {prompt:?}");
            bound += usize::from(expected != chain(&mut solo(&checkpoint), &text, |_| true));
            outside += text.iter().filter(|token| **token as usize >= part).count();
        }
    }
    assert!(
        outside > 0 && bound > 0,
        "parts that leave nothing out prove nothing"
    );
}

/// Whether the part is read follows from the text alone: without prompts in the step, and with few tokens outside.
#[test]
fn a_part_is_read_where_the_text_has_few_other_tokens() {
    let checkpoint = storyteller();
    let tokens = &prompts()[0];
    let highest = *tokens.iter().max().expect("a prompt") as usize;
    for (part, fits) in [(highest + 1, true), (tokens.len(), false)] {
        let mut bench = Bench::new(&checkpoint, cut_head(RowsRead::PartWhereItFits(part)));
        // The step of the prompt itself reads all.
        let text = with_next(&checkpoint, tokens);
        let whole = chain(&mut solo(&checkpoint), &text, |_| true);
        assert_eq!(bench.drafts(tokens), whole);
        let (given, drafts) = bench.decode();
        let longer = [text.as_slice(), &given].concat();
        let allowed = |token: usize| !fits || token < part;
        assert_eq!(drafts, chain(&mut solo(&checkpoint), &longer, allowed), "{part}");
    }
}

/// Whose slot it was before, and what that text was like, says nothing about the next.
#[test]
fn a_text_is_judged_by_its_own_tokens_and_not_by_those_of_its_slot_before() {
    let checkpoint = storyteller();
    // A text whose drafts the part changes: others prove nothing.
    let bound = prompts().into_iter().find(|tokens| {
        let mut sorted = tokens.clone();
        sorted.sort_unstable();
        let part = sorted[sorted.len() - 2] as usize + 1;
        let outside: Vec<TokenId> = (0..tokens.len()).map(|at| (part + at) as TokenId).collect();
        let decode = |before: &[Vec<TokenId>]| {
            let mut bench = Bench::new(&checkpoint, cut_head(RowsRead::PartWhereItFits(part)));
            for other in before {
                bench.drafts(other);
            }
            bench.drafts(tokens);
            bench.decode()
        };
        let (given, drafts) = decode(&[]);
        let longer = [with_next(&checkpoint, tokens), given.clone()].concat();
        if drafts == chain(&mut solo(&checkpoint), &longer, |_| true) {
            return false;
        }
        assert_eq!(decode(&[outside]), (given, drafts), "{tokens:?}");
        true
    });
    assert!(bound.is_some());
}

/// A text that goes on with other tokens than its prompt has is drafted for with all of them from then on.
#[test]
fn a_text_is_judged_by_what_it_goes_on_with() {
    let checkpoint = storyteller();
    let turned = prompts().into_iter().any(|tokens| {
        let prompt = &tokens[..8];
        let part = prompt.iter().fold(0, |most, token| most.max(*token as usize)) + 1;
        let mut bench = Bench::new(&checkpoint, cut_head(RowsRead::PartWhereItFits(part)));
        bench.drafts(prompt);
        let mut text = with_next(&checkpoint, prompt);
        let mut read = [false; 2];
        for _ in 0..12 {
            let outside = text.iter().filter(|token| **token as usize >= part).count();
            let (few, many) = (10 * outside < text.len(), 10 * outside > text.len());
            let (given, drafts) = bench.decode();
            text.extend(given);
            let of_part = chain(&mut solo(&checkpoint), &text, |token| token < part);
            let of_all = chain(&mut solo(&checkpoint), &text, |_| true);
            if (few || many) && of_part != of_all {
                assert_eq!(
                    drafts,
                    if few { of_part } else { of_all },
                    "{part} tokens behind {text:?}"
                );
                read[usize::from(many)] = true;
            }
        }
        read == [true; 2]
    });
    assert!(turned, "no text went on with other tokens");
}

/// The rows of a head that has tokens of its own are cut like others; what they stand for stays.
#[test]
fn drafts_of_a_head_with_its_own_tokens_are_among_those_of_the_rows_read() {
    let checkpoint = Fixture::read("llama").checkpoint();
    let tokens: Vec<TokenId> = (0..100).map(|row| row * 2 + 5).collect();
    let files = random_eagle3(&checkpoint, Some(&tokens), 11);
    let head = |cpu: &Cpu, model: &Decoder<Cpu>| {
        let head = Eagle3::load(cpu, &files, model, None, &|_| {}).expect("the head fits");
        Box::new(head)
    };
    let prompt: Vec<TokenId> = (0..22).map(|at| (at * 7 + 3) % 90).collect();
    for part in [1, 20, 50] {
        let proposer = |cpu: &Cpu, model: &mut Decoder<Cpu>| -> Box<dyn Proposer<Cpu>> {
            let proposer = HeadProposer::new((cpu, model), head(cpu, model), &CONFIG);
            let proposer = proposer.expect("it fits the memory");
            let proposer = proposer.reading((cpu, model), RowsRead::Part(part));
            Box::new(proposer.expect("it fits the memory"))
        };
        let drafts = Bench::new(&checkpoint, proposer).drafts(&prompt);
        let cpu = Cpu::new(CpuOptions::default());
        let model = load(&cpu, &checkpoint);
        let other = head(&cpu, &model);
        let mut solo = Solo::new(&cpu, model, Some(other)).expect("it fits the memory");
        let text = with_next(&checkpoint, &prompt);
        let kept = &tokens[..part];
        let expected = chain(&mut solo, &text, |token| kept.contains(&(token as TokenId)));
        assert_eq!(drafts, expected, "{part} rows");
    }
}
