//! EAGLE-3 heads give what the plain formulas give, and heads get the states they ask for.

use crate::support::{cpu, greedy, runner_with, runner_with_head, step};
use paceline_device::{Backend, DeviceError, KvShape, Sampling, Scratch};
use paceline_device_cpu::{Cpu, Instructions};
use paceline_models::{Decoder, DraftHead, DraftScope, DraftStates, Eagle3, Forward};
use paceline_testkit::{
    FIXTURES, Fixture, HEADS, HeadFixture, Program, Solo, assert_same_bits, random_draft_model,
    random_eagle3, relative_error, storyteller,
};
use paceline_types::TokenId;

/// Allowed norm of the difference over the norm.
const TOLERANCE: f64 = 2e-4;

/// The logits of tokens that the head can draft. Both must leave out the same.
fn drafted(found: &[f32], expected: &[f32], what: &str) -> (Vec<f32>, Vec<f32>) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let pairs = found.iter().zip(expected);
    let same = pairs
        .clone()
        .all(|(found, expected)| (*found == f32::NEG_INFINITY) == (*expected == f32::NEG_INFINITY));
    assert!(same, "{what}: other tokens can be drafted");
    pairs.filter(|(_, expected)| expected.is_finite()).unzip()
}

fn assert_close(found: &[f32], expected: &[f32], what: &str) {
    let (found, expected) = drafted(found, expected, what);
    let error = relative_error(&found, &expected);
    assert!(error < TOLERANCE, "{what}: relative error {error}");
}

fn run_prompt<B: Backend>(runner: &mut Solo<B>, prompt: &[TokenId], chunk: usize, samples: usize) {
    runner.prompt_with_head(prompt, chunk, samples).unwrap();
}

#[test]
fn logits_and_chains_match_the_reference() {
    for name in HEADS {
        let head = HeadFixture::read(name);
        let target = Fixture::read(&head.target);
        let backend = cpu(2, Instructions::detect());
        let mut runner = runner_with_head(&backend, &target.checkpoint(), &head.checkpoint());
        let vocabulary = runner.model().dims.vocabulary;
        for (index, prompt) in target.prompts.iter().enumerate() {
            let what = format!("{name}, prompt {index}");
            let expected = head.logits(index);
            run_prompt(&mut runner, prompt, 256, expected.len() / vocabulary);
            assert_close(&runner.logits().unwrap(), &expected, &what);

            let (chain, logits) = runner.chain(prompt, head.chains[index].len()).unwrap();
            assert_eq!(chain, head.chains[index], "{what}");
            assert_close(&logits, &head.chain_logits(index), &format!("{what}, the chain"));
        }
    }
}

#[test]
fn a_head_can_be_made_for_every_model() {
    let models = FIXTURES.map(|name| (name, Fixture::read(name).checkpoint()));
    for (name, checkpoint) in models.into_iter().chain([("storyteller", storyteller())]) {
        let few = [3, 17, 40, 41, 200];
        for (seed, tokens) in [(1, None), (2, Some(&few[..]))] {
            let backend = cpu(2, Instructions::detect());
            let head = random_eagle3(&checkpoint, tokens, seed);
            let mut runner = runner_with_head(&backend, &checkpoint, &head);
            let prompt: Vec<TokenId> = (0..40).map(|i| (i * 37 + 5) % 256).collect();
            run_prompt(&mut runner, &prompt, 256, 8);
            let whole = runner.logits().unwrap();
            let drafts = runner.sampled(8).unwrap();
            if let Some(tokens) = tokens {
                assert!(
                    drafts.iter().all(|draft| tokens.contains(draft)),
                    "{name}: {drafts:?}"
                );
            }
            // The last chunk of 13 has 39 - 3 · 13 = 13 rows.
            run_prompt(&mut runner, &prompt, 13, 8);
            let cut = runner.logits().unwrap();
            assert_same_bits(&cut, &whole, &format!("{name} in chunks, seed {seed}"));
        }
    }
}

#[test]
fn a_model_can_be_made_to_draft_for_every_model() {
    for name in FIXTURES {
        let fixture = Fixture::read(name);
        let model = random_draft_model(&fixture.checkpoint(), 3);
        let mut runner = crate::support::runner(&cpu(2, Instructions::detect()), &model);
        assert_eq!(runner.model().dims.vocabulary, 256, "{name}");
        greedy(&mut runner, &fixture.prompts[0], 4);
    }
    let model = random_draft_model(&storyteller(), 3);
    let runner = crate::support::runner(&cpu(2, Instructions::detect()), &model);
    assert_eq!(runner.model().dims.vocabulary, 4096);
}

/// Asks for states and does nothing with them.
struct Listener(Vec<usize>);

impl<B: Backend> DraftHead<B> for Listener {
    fn taps(&self) -> &[usize] {
        &self.0
    }

    fn width(&self) -> usize {
        1
    }

    fn widest_row(&self) -> usize {
        1
    }

    fn first(
        &self,
        _: &Decoder<B>,
        _: &mut Forward<'_, B>,
        _: &B::Tensor,
    ) -> Result<DraftStates<B>, DeviceError> {
        unreachable!("only states are asked for")
    }

    fn again(
        &self,
        _: &Decoder<B>,
        _: &mut Forward<'_, B>,
        _: &B::Tensor,
    ) -> Result<DraftStates<B>, DeviceError> {
        unreachable!("only states are asked for")
    }

    fn logits(&self, _: &Decoder<B>, _: &Forward<'_, B>, _: &B::Tensor) -> Result<Scratch<B>, DeviceError> {
        unreachable!("only states are asked for")
    }

    fn rows(&self, _: &Decoder<B>) -> usize {
        unreachable!("only states are asked for")
    }

    fn set_part(&mut self, _: &B, _: &Decoder<B>, _: usize) -> Result<(), DeviceError> {
        unreachable!("only states are asked for")
    }

    fn sample(
        &self,
        _: &Decoder<B>,
        _: &Forward<'_, B>,
        _: DraftScope,
        _: &B::Tensor,
        _: Sampling<'_, B>,
    ) -> Result<(), DeviceError> {
        unreachable!("only states are asked for")
    }

    fn kv_shapes(&self, _: usize, _: usize) -> Vec<KvShape> {
        Vec::new()
    }
}

/// States at the inputs of some layers for a model of which only the first layers are left, and its logits.
fn states(backend: &Cpu, fixture: &Fixture, layers: Option<usize>, taps: &[usize]) -> (Vec<f32>, Vec<f32>) {
    let mut model = paceline_models::load(backend, &fixture.checkpoint(), None, &|_| {}).unwrap();
    if let Some(layers) = layers {
        let blocks = model.blocks.len() / model.dims.layers;
        model.blocks.truncate(layers * blocks);
        model.dims.layers = layers;
    }
    let mut runner = runner_with(backend, model, Some(Box::new(Listener(taps.to_vec()))));
    step(&mut runner, Program::Model, &fixture.prompts[0], 0, 2);
    (runner.states().unwrap(), runner.logits().unwrap())
}

#[test]
fn the_state_at_a_layer_is_what_the_layers_before_it_leave() {
    for name in FIXTURES {
        let fixture = Fixture::read(name);
        let backend = cpu(2, Instructions::detect());
        let model = paceline_models::load(&backend, &fixture.checkpoint(), None, &|_| {}).unwrap();
        let (layers, hidden) = (model.dims.layers, model.dims.hidden);
        assert_eq!(model.blocks.len() % layers, 0, "{name}: blocks of a layer");
        let (plain, logits) = states(&backend, &fixture, None, &[]);
        // Out of order and twice: columns are where they were asked for.
        let mut taps: Vec<usize> = (0..=layers).rev().collect();
        taps.push(1);
        let (all, same_logits) = states(&backend, &fixture, None, &taps);
        assert_same_bits(&same_logits, &logits, &format!("{name}: logits"));
        assert_eq!(plain.len() * taps.len(), all.len(), "{name}");
        for (index, layer) in taps.iter().enumerate().filter(|(_, layer)| **layer > 0) {
            let rows = all.chunks_exact(taps.len() * hidden);
            let found: Vec<f32> = rows
                .flat_map(|row| &row[index * hidden..][..hidden])
                .copied()
                .collect();
            let (expected, _) = states(&backend, &fixture, Some(*layer), &[*layer]);
            assert_same_bits(&found, &expected, &format!("{name}, layer {layer}"));
        }
    }
}

#[test]
fn a_head_takes_as_many_blocks_as_it_has_layers() {
    let backend = cpu(1, Instructions::detect());
    let target = Fixture::read("qwen3").checkpoint();
    let model = paceline_models::load(&backend, &target, None, &|_| {}).unwrap();
    let blocks = |name: &str| {
        let checkpoint = HeadFixture::read(name).checkpoint();
        let head = Eagle3::load(&backend, &checkpoint, &model, None, &|_| {}).unwrap();
        head.kv_shapes(7, 16)
    };
    let shape = KvShape {
        blocks: 7,
        block_size: 16,
        heads: 2,
        head_dim: 16,
    };
    assert_eq!(blocks("eagle3"), [shape]);
    assert_eq!(blocks("eagle3-speculators"), [shape, shape]);
}
