//! Checkpoints of 8-bit floats give what the same numbers give that are stored in 32 bits.
//!
//! That numbers in 32 bits are computed with correctly, `golden.rs` says; and a file in eight bits has a reference of its own, which a
//! program made that shares nothing with the engine (`fixtures/make_fp8.py`).

use crate::model_files::{ModelFiles, Stored, failure};
use crate::support::{assert_greedy, cpu, greedy, prompt_logits, runner};
use half::bf16;
use paceline_device::Recorder;
use paceline_device_cpu::Instructions;
use paceline_models::WeightTypes;
use paceline_testkit::{Fixture, assert_same_bits, relative_error};
use paceline_types::DType;
use serde_json::json;
use std::sync::LazyLock;

/// Allowed norm of the difference over the norm: sums in another order.
const TOLERANCE: f64 = 2e-5;

/// What published files leave as it is.
const KEPT: [&str; 10] = [
    "embed_tokens",
    "lm_head",
    "norm",
    "conv1d",
    "in_proj_a",
    "in_proj_b",
    "in_proj_ba",
    "mtp.fc",
    "gate",
    "shared_expert_gate",
];

/// How scales lie beside a matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Blocks(&'static str),
    Rows,
    One,
}

/// A number of the format, straight from its description.
fn value(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match exponent {
        0 => mantissa * 2.0_f32.powi(-9),
        _ => (8.0 + mantissa) * 2.0_f32.powi(exponent - 10),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// All numbers of the format with their codes, ascending.
static NUMBERS: LazyLock<Vec<(f32, u8)>> = LazyLock::new(|| {
    let codes = (0..=255_u8).filter(|code| code & 0x7f != 0x7f);
    let mut numbers: Vec<_> = codes.map(|code| (value(code), code)).collect();
    numbers.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    numbers
});

/// The nearest number of the format.
fn nearest(number: f32) -> u8 {
    let above = NUMBERS.partition_point(|(value, _)| *value < number);
    let neighbours = &NUMBERS[above.saturating_sub(1)..NUMBERS.len().min(above + 1)];
    let distance = |(value, _): &&(f32, u8)| (value - number).abs();
    let found = neighbours
        .iter()
        .min_by(|a, b| distance(a).total_cmp(&distance(b)));
    found.unwrap().1
}

/// The model with products in eight bits, and the same numbers in 32.
fn pair(name: &str, form: Form) -> (ModelFiles, ModelFiles) {
    let mut eight = ModelFiles::of(&Fixture::read(name)).with_single_experts();
    let mut wide = eight.clone();
    for (name, stored) in wide
        .tensors
        .iter_mut()
        .filter(|(_, stored)| stored.shape.len() == 2)
    {
        let path = format!(".{}.", name.strip_suffix(".weight").unwrap_or(name));
        if KEPT.iter().any(|kept| path.contains(&format!(".{kept}."))) {
            continue;
        }
        let (rows, columns) = (stored.shape[0], stored.shape[1]);
        let (high, across) = match form {
            Form::Blocks(_) => (128, columns.div_ceil(128)),
            Form::Rows => (1, 1),
            Form::One => (rows, 1),
        };
        // Scales that a 16-bit number holds, and another one for each block.
        let scale = |row: usize, column: usize| {
            let index = row / high * across + if across == 1 { 0 } else { column / 128 };
            bf16::from_f32((1.0 + index as f32 / 7.0) / 2000.0).to_f32()
        };
        let mut values = stored.values();
        let mut elements = Vec::new();
        for (index, value_of) in values.iter_mut().enumerate() {
            let scale = scale(index / columns, index % columns);
            let code = nearest(*value_of / scale);
            elements.push(code);
            *value_of = value(code) * scale;
        }
        *stored = Stored::f32(&[rows, columns], &values);
        let scales: Vec<f32> = (0..rows.div_ceil(high))
            .flat_map(|row| (0..across).map(move |column| (row * high, column * 128)))
            .map(|(row, column)| scale(row, column))
            .collect();
        let (suffix, scales) = match form {
            Form::Blocks("BF16") => (
                "scale_inv",
                Stored {
                    dtype: "BF16".to_owned(),
                    shape: vec![rows.div_ceil(high), across],
                    data: scales
                        .iter()
                        .flat_map(|x| bf16::from_f32(*x).to_le_bytes())
                        .collect(),
                },
            ),
            Form::Blocks(_) => ("scale_inv", Stored::f32(&[rows.div_ceil(high), across], &scales)),
            Form::Rows => ("scale", Stored::f32(&[rows, 1], &scales)),
            Form::One => ("scale", Stored::f32(&[], &scales)),
        };
        eight.tensors.insert(format!("{name}_{suffix}"), scales);
        let stored = Stored {
            dtype: "F8_E4M3".to_owned(),
            shape: vec![rows, columns],
            data: elements,
        };
        eight.tensors.insert(name.clone(), stored);
    }
    (eight, wide)
}

#[test]
fn eight_bits_give_what_the_same_numbers_give_in_32() {
    for (name, form) in [
        ("qwen3_5", Form::Blocks("BF16")),
        ("qwen3_5", Form::Blocks("F32")),
        ("qwen3_5", Form::Rows),
        ("qwen3_5", Form::One),
        ("qwen3_next", Form::Blocks("BF16")),
        ("qwen3_5_moe", Form::Blocks("BF16")),
        ("llama", Form::Blocks("F32")),
    ] {
        let (eight, wide) = pair(name, form);
        let count = eight.tensors.len() - wide.tensors.len();
        assert!(count >= 8, "{name}: {count} matrices in eight bits");
        let fixture = Fixture::read(name);
        let [eight, wide] = [eight, wide].map(|model| {
            let mut runner = runner(&cpu(2, Instructions::detect()), &model.checkpoint());
            let mut logits = prompt_logits(&mut runner, &fixture.prompts[1], 256, 16);
            if fixture.mtp_logits().is_some() {
                logits.extend(runner.head_logits(&fixture.prompts[1]).unwrap());
            }
            logits
        });
        let error = relative_error(&eight, &wide);
        assert!(error < TOLERANCE, "{name}, {form:?}: relative error {error}");
    }
}

#[test]
fn a_file_in_eight_bits_gives_what_another_program_makes_of_it() {
    let fixture = Fixture::read("qwen3-fp8");
    let checkpoint = fixture.checkpoint();
    let backend = cpu(2, Instructions::detect());
    let model = paceline_models::load(&backend, &checkpoint, None, &|_| {}).unwrap();
    let matrices = 2 * (128 * (128 + 64 + 64 + 128) + 3 * 128 * 320);
    assert_eq!(model.stats.by_dtype[&DType::F8E4M3].0, matrices);
    let mut runner = crate::support::runner_with(&backend, model, None);
    for (index, prompt) in fixture.prompts.iter().enumerate() {
        let logits = prompt_logits(&mut runner, prompt, 256, 16);
        let error = relative_error(&logits, &fixture.logits(index));
        assert!(error < TOLERANCE, "prompt {index}: relative error {error}");
        let expected = &fixture.greedy[index];
        let tokens = greedy(&mut runner, prompt, expected.len());
        let margins = &fixture.greedy_margin[index];
        assert_greedy(&tokens, expected, margins, &format!("prompt {index}"));
    }
}

#[test]
fn what_is_missing_or_wrong_about_scales_is_named() {
    let (model, _) = pair("qwen3_5", Form::Blocks("F32"));
    let name = "model.layers.0.mlp.down_proj.weight";
    let scales = format!("{name}_scale_inv");
    let fails = |scales: Option<Stored>, expected: &str| {
        let mut model = model.clone();
        model
            .tensors
            .remove("model.layers.0.mlp.down_proj.weight_scale_inv");
        if let Some(scales) = scales {
            let name = "model.layers.0.mlp.down_proj.weight_scale_inv".to_owned();
            model.tensors.insert(name, scales);
        }
        assert_eq!(failure(&model.checkpoint()), expected);
    };
    fails(
        None,
        &format!(
            "tensor `{name}` has element type F8_E4M3: there are no scales beside it, neither `{scales}` nor `{name}_scale`"
        ),
    );
    let found = Stored::zeros("F32", 4, &[3, 5]);
    let expected = model.tensors[&scales].shape.clone();
    fails(
        Some(found),
        &format!("tensor `{scales}` has shape [3, 5], the configuration asks for {expected:?}"),
    );
    fails(
        Some(Stored::zeros("U8", 1, &expected)),
        &format!("tensor `{scales}` has element type U8: scales must be stored as F32, BF16 or F16"),
    );
    let mut infinite = model.tensors[&scales].values();
    infinite[0] = f32::INFINITY;
    fails(
        Some(Stored::f32(&expected, &infinite)),
        &format!("weight {name}: row 0 holds a value that is not finite"),
    );
}

#[test]
fn a_configuration_alone_says_which_matrices_are_in_eight_bits() {
    let fixture = Fixture::read("qwen3_5");
    let config = ModelFiles::of(&fixture)
        .with(
            "quantization_config",
            json!({
                "quant_method": "fp8",
                "weight_block_size": [128, 128],
                "modules_to_not_convert": ["lm_head", "in_proj_a", "in_proj_b", "mtp.fc"],
            }),
        )
        .config;
    let (eight, _) = pair("qwen3_5", Form::Blocks("F32"));
    let model = paceline_models::load_config_only(&Recorder::silent(), &config).unwrap();
    let expected: usize = eight
        .tensors
        .iter()
        .filter(|(name, stored)| stored.dtype == "F8_E4M3" && !name.starts_with("mtp."))
        .map(|(_, stored)| stored.data.len())
        .sum();
    assert!(expected > 0);
    assert_eq!(
        model.stats.by_dtype[&DType::F8E4M3],
        (expected as u64, expected as u64)
    );
    // Made up weights run, and say the same every time.
    let logits = || {
        let backend = cpu(2, Instructions::detect());
        let model = paceline_models::load_random(&backend, &config, None, &|_| {}).unwrap();
        let mut runner = crate::support::runner_with(&backend, model, None);
        prompt_logits(&mut runner, &fixture.prompts[1], 256, 4)
    };
    let first = logits();
    assert!(first.iter().all(|x| x.is_finite()));
    assert_eq!(first, logits());
}

#[test]
fn draft_weights_in_eight_bits_change_drafts_alone() {
    // Rounded states send a few tokens to other experts.
    for (name, limit) in [("qwen3_5", 0.1), ("qwen3_5_moe", 0.2)] {
        let fixture = Fixture::read(name);
        let backend = cpu(2, Instructions::detect());
        let [
            (logits, drafts, kept),
            (rounded_logits, rounded_drafts, rounded_kept),
        ] = [None, Some(DType::F8E4M3)].map(|drafts_as| {
            let types = WeightTypes {
                store_as: None,
                drafts_as,
            };
            let model = paceline_models::load(&backend, &fixture.checkpoint(), types, &|_| {}).unwrap();
            let kept = model.stats.kept_bytes;
            let mut runner = crate::support::runner_with(&backend, model, None);
            let logits = prompt_logits(&mut runner, &fixture.prompts[1], 256, 16);
            (logits, runner.head_logits(&fixture.prompts[1]).unwrap(), kept)
        });
        assert_same_bits(&rounded_logits, &logits, name);
        let error = relative_error(&rounded_drafts, &drafts);
        assert!((1e-3..limit).contains(&error), "{name}: relative error {error}");
        assert_ne!(rounded_kept, kept, "{name}: bytes are counted");
    }
}
