//! GGUF files of every architecture give what the reference implementation gives.

use crate::model_files::ModelFiles;
use crate::support::{assert_greedy, cpu, greedy, prompt_logits, runner, runner_with, step};
use crate::to_gguf::{EXACT, Options, to_gguf};
use paceline_device::Recorder;
use paceline_device_cpu::Instructions;
use paceline_testkit::Program;
use paceline_testkit::{Fixture, assert_same_bits, relative_error};
use paceline_types::DType;
use paceline_weights::{Checkpoint, Format};

/// Allowed norm of the difference over the norm.
const TOLERANCE: f64 = 2e-4;

/// Writes a fixture as a GGUF file and opens that.
fn converted(fixture: &Fixture, options: Options) -> Checkpoint {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let model = ModelFiles::of(fixture).with_single_experts();
    to_gguf(&model, options).write(&path).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap_or_else(|e| panic!("{}: {e}", fixture.name));
    assert_eq!(checkpoint.format(), Format::Gguf);
    checkpoint
}

/// Draft logits over prompt 1.
fn draft_logits(fixture: &Fixture, checkpoint: &Checkpoint) -> Vec<f32> {
    let mut runner = runner(&cpu(2, Instructions::detect()), checkpoint);
    let prompt = &fixture.prompts[1];
    let followers = &prompt[1..];
    step(&mut runner, Program::Model, &prompt[..followers.len()], 0, 0);
    step(&mut runner, Program::Draft, followers, 0, followers.len());
    runner.logits().unwrap()
}

/// Logits of prompt `index`.
fn logits(fixture: &Fixture, checkpoint: &Checkpoint, index: usize) -> Vec<f32> {
    let mut runner = runner(&cpu(2, Instructions::detect()), checkpoint);
    prompt_logits(&mut runner, &fixture.prompts[index], 256, 16)
}

fn assert_matches_reference(name: &str, options: Options) {
    let fixture = Fixture::read(name);
    let checkpoint = converted(&fixture, options);
    let mut runner = runner(&cpu(2, Instructions::detect()), &checkpoint);
    for (index, prompt) in fixture.prompts.iter().enumerate() {
        let what = format!("{name}, prompt {index}");
        let logits = prompt_logits(&mut runner, prompt, 256, 16);
        let error = relative_error(&logits, &fixture.logits(index));
        assert!(error < TOLERANCE, "{what}: relative error {error}");
        let expected = &fixture.greedy[index];
        let tokens = greedy(&mut runner, prompt, expected.len());
        assert_greedy(&tokens, expected, &fixture.greedy_margin[index], &what);
    }
    let expected = fixture.mtp_logits();
    assert_eq!(runner.model().mtp.is_some(), expected.is_some(), "{name}");
    if let Some(expected) = expected {
        let drafts = draft_logits(&fixture, &checkpoint);
        let error = relative_error(&drafts, &expected[..drafts.len()]);
        assert!(error < TOLERANCE, "{name}, draft head: relative error {error}");
    }
}

#[test]
fn llama_files_match_the_reference() {
    assert_matches_reference("llama", EXACT);
}

#[test]
fn rope_factors_stored_as_a_tensor_match_the_reference() {
    assert_matches_reference("llama3-rope", EXACT);
}

#[test]
fn qwen2_and_qwen3_files_match_the_reference() {
    for name in ["qwen2", "qwen3", "qwen3-yarn", "qwen3_moe"] {
        assert_matches_reference(name, EXACT);
    }
}

#[test]
fn hybrid_files_match_the_reference() {
    for name in ["qwen3_next", "qwen3_5", "qwen3_5_moe"] {
        assert_matches_reference(name, EXACT);
    }
}

#[test]
fn files_with_the_older_interleaved_projection_match_the_reference() {
    let options = Options {
        legacy_input: true,
        ..EXACT
    };
    assert_matches_reference("qwen3_next", options);
}

#[test]
fn files_with_fused_experts_and_a_list_of_layers_match_the_reference() {
    let options = Options {
        fused_experts: true,
        layer_list: true,
        ..EXACT
    };
    assert_matches_reference("qwen3_5_moe", options);
}

#[test]
fn files_that_keep_the_order_of_sums_change_no_bit() {
    for name in ["llama", "qwen2", "qwen3", "qwen3-yarn", "qwen3_moe", "qwen3_next"] {
        let fixture = Fixture::read(name);
        let (plain, checkpoint) = (fixture.checkpoint(), converted(&fixture, EXACT));
        let expected = logits(&fixture, &plain, 1);
        assert_same_bits(&logits(&fixture, &checkpoint, 1), &expected, name);
    }
    let fixture = Fixture::read("qwen3_next");
    let expected = draft_logits(&fixture, &fixture.checkpoint());
    let drafts = draft_logits(&fixture, &converted(&fixture, EXACT));
    assert_same_bits(&drafts, &expected, "draft head");
}

#[test]
fn stored_weights_compute_as_their_values_do_in_full_precision() {
    let fixture = Fixture::read("llama");
    let exact = logits(&fixture, &fixture.checkpoint(), 2);
    for (matrices, loss) in [(DType::F16, 2e-3), (DType::Q8_0, 5e-2)] {
        let options = |widened| Options {
            matrices,
            widened,
            ..EXACT
        };
        let packed = logits(&fixture, &converted(&fixture, options(false)), 2);
        let wide = logits(&fixture, &converted(&fixture, options(true)), 2);
        if matrices.is_quantised() {
            // Products with quantised weights round their inputs to 16 bits of the largest of 32, about 3e-5 of a typical
            // one, layer by layer. What exactly they compute, the device's tests say to the bit.
            let error = relative_error(&packed, &wide);
            assert!(error < 2e-4, "{matrices}: {error} beside its values");
        } else {
            assert_same_bits(&packed, &wide, matrices.name());
        }
        let error = relative_error(&packed, &exact);
        assert!(error > 0.0 && error < loss, "{matrices}: relative error {error}");
    }
}

/// Logits of the last positions of prompt 1, and the tokens that follow.
fn continuation(fixture: &Fixture, checkpoint: &Checkpoint, store_as: Option<DType>) -> (Vec<f32>, Vec<u32>) {
    let backend = cpu(2, Instructions::detect());
    let model = paceline_models::load(&backend, checkpoint, store_as, &|_| {}).unwrap();
    let mut runner = runner_with(&backend, model, None);
    let logits = prompt_logits(&mut runner, &fixture.prompts[1], 256, 16);
    (logits, greedy(&mut runner, &fixture.prompts[1], 12))
}

#[test]
fn weights_quantised_while_loading_give_the_bits_of_a_file_with_these_blocks() {
    let options = Options {
        matrices: DType::Q8_0,
        ..EXACT
    };
    for name in ["llama", "qwen2", "qwen3", "qwen3_moe", "qwen3_next"] {
        let fixture = Fixture::read(name);
        let stored = continuation(&fixture, &converted(&fixture, options), None);
        let quantised = continuation(&fixture, &fixture.checkpoint(), Some(DType::Q8_0));
        assert_same_bits(&quantised.0, &stored.0, name);
        assert_eq!(quantised.1, stored.1, "{name}");
        let plain = continuation(&fixture, &fixture.checkpoint(), None);
        assert!(quantised.0 != plain.0, "{name}: nothing was quantised");
    }
}

#[test]
fn four_bits_are_for_products_and_eight_for_tokens() {
    let fixture = Fixture::read("qwen3_moe");
    let checkpoint = fixture.checkpoint();
    let stats = |store_as| {
        let model = paceline_models::load(&Recorder::silent(), &checkpoint, store_as, &|_| {});
        model.unwrap().stats
    };
    let (plain, four) = (stats(None), stats(Some(DType::Q4_1)));
    assert_eq!((plain.kept_bytes, plain.quantised), (plain.bytes(), 0));
    assert_eq!(
        (four.by_dtype, four.parameters),
        (plain.by_dtype, plain.parameters)
    );
    let (mut tokens, mut products, mut others) = (0, 0, 0);
    for tensor in checkpoint.tensors() {
        let (elements, bytes) = (tensor.shape.iter().product::<usize>(), tensor.data.len());
        match tensor.name {
            "model.embed_tokens.weight" | "lm_head.weight" => tokens += elements,
            name if tensor.shape.len() < 2 || name.ends_with("mlp.gate.weight") => others += bytes,
            _ => products += elements,
        }
    }
    assert!(tokens > 0 && products > 0 && others > 0);
    assert_eq!(four.quantised, (tokens + products) as u64);
    assert_eq!(
        four.kept_bytes,
        (tokens / 32 * 34 + products / 32 * 20 + others) as u64
    );
}
