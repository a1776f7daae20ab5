//! Matrices of 8-bit floats: which ones a configuration says there are, and where a checkpoint has their scales.

use crate::{Config, ModelError};
use paceline_device::{BlockScales, SCALE_BLOCK};
use paceline_types::DType;
use paceline_weights::{Checkpoint, TensorView};
use serde_json::Value;

/// The modules whose matrices are stored as 8-bit floats, by a configuration: those of products, but for some.
#[derive(Clone, Debug)]
pub(crate) struct EightBitModules {
    kept: Vec<String>,
}

impl EightBitModules {
    /// By `quantization_config`; `None` where that is absent or about something else.
    pub(crate) fn of(config: &Value) -> Result<Option<Self>, ModelError> {
        let field = "quantization_config";
        let Some(quantised) = Config::new(config).get_any(field) else {
            return Ok(None);
        };
        if quantised.get("quant_method").and_then(Value::as_str) != Some("fp8") {
            return Ok(None);
        }
        let size = quantised.get("weight_block_size").filter(|size| !size.is_null());
        let block = Value::from([SCALE_BLOCK, SCALE_BLOCK].map(|n| n as u64).to_vec());
        if let Some(size) = size.filter(|size| **size != block) {
            let why = format!("a `weight_block_size` of {size} is not supported: it must be {block}");
            return Err(ModelError::config(field, why));
        }
        let lists = ["modules_to_not_convert", "ignored_layers"];
        let kept = lists.iter().filter_map(|list| quantised.get(list)?.as_array());
        let kept = kept.flatten().filter_map(Value::as_str);
        // Multimodal files put the text model one level down.
        let kept = kept.map(|name| name.replace("language_model.", ""));
        Ok(Some(Self { kept: kept.collect() }))
    }

    /// Whether the matrix of this name is stored in eight bits.
    pub(crate) fn has(&self, name: &str) -> bool {
        let path = format!(".{}.", name.strip_suffix(".weight").unwrap_or(name));
        !self.kept.iter().any(|kept| path.contains(&format!(".{kept}.")))
    }
}

/// The scales beside a matrix: per block of 128 by 128, per row, or one for all of it.
pub(crate) fn scales_of<'a>(
    checkpoint: &'a Checkpoint,
    view: &TensorView<'_>,
) -> Result<BlockScales<'a>, ModelError> {
    let names = ["scale_inv", "scale"].map(|suffix| format!("{}_{suffix}", view.name));
    let Some(raw) = names.iter().find_map(|name| checkpoint.raw_tensor(name)) else {
        let [blocks, other] = names;
        return Err(ModelError::DType {
            name: view.name.to_owned(),
            dtype: view.dtype.to_string(),
            why: format!("there are no scales beside it, neither `{blocks}` nor `{other}`"),
        });
    };
    let scales = checkpoint.tensor(raw.name);
    let float = |scales: &TensorView<'_>| matches!(scales.dtype, DType::F32 | DType::BF16 | DType::F16);
    let Some(scales) = scales.filter(float) else {
        return Err(ModelError::DType {
            name: raw.name.to_owned(),
            dtype: raw.dtype.to_owned(),
            why: "scales must be stored as F32, BF16 or F16".to_owned(),
        });
    };
    let (rows, columns) = shared_by(view.shape, scales.shape).ok_or_else(|| ModelError::Shape {
        name: raw.name.to_owned(),
        expected: blocks_of(view.shape),
        found: raw.shape.to_vec(),
    })?;
    Ok(BlockScales {
        data: scales.data,
        dtype: scales.dtype,
        rows,
        columns,
    })
}

/// The shape of scales per block.
fn blocks_of(shape: &[usize]) -> Vec<usize> {
    let (stacks, matrix) = shape.split_at(shape.len().saturating_sub(2));
    let blocks = matrix.iter().map(|n| n.div_ceil(SCALE_BLOCK));
    stacks.iter().copied().chain(blocks).collect()
}

/// Rows of a matrix or of a stack of them that share scales, and how many scales those have.
fn shared_by(shape: &[usize], scales: &[usize]) -> Option<(usize, usize)> {
    let rows: usize = shape[..shape.len().saturating_sub(1)].iter().product();
    let whole = shape.len() == 2 || shape.iter().rev().nth(1)?.is_multiple_of(SCALE_BLOCK);
    if scales == blocks_of(shape) && whole {
        return Some((SCALE_BLOCK, *scales.last()?));
    }
    match scales.iter().product::<usize>() {
        1 => Some((rows.max(1), 1)),
        all if all == rows && matches!(scales, [_] | [_, 1]) => Some((1, 1)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn scales_are_per_block_per_row_or_one_for_all() {
        for (shape, scales, expected) in [
            (&[300, 200][..], &[3, 2][..], Some((128, 2))),
            (&[128, 128], &[1, 1], Some((128, 1))),
            (&[300, 200], &[300, 1], Some((1, 1))),
            (&[300, 200], &[300], Some((1, 1))),
            (&[300, 200], &[1], Some((300, 1))),
            (&[300, 200], &[], Some((300, 1))),
            (&[4, 256, 200], &[4, 2, 2], Some((128, 2))),
            (&[4, 200, 200], &[4, 2, 2], None),
            (&[300, 200], &[2, 3], None),
            (&[300, 200], &[1, 200], None),
        ] {
            assert_eq!(shared_by(shape, scales), expected, "{scales:?} of {shape:?}");
        }
    }

    #[test]
    fn modules_are_kept_by_their_whole_names_or_whole_parts_of_them() {
        let config = json!({"quantization_config": {
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
            "modules_to_not_convert": ["lm_head", "model.language_model.layers.1.linear_attn.in_proj_a", "mtp.fc"],
        }});
        let modules = EightBitModules::of(&config).unwrap().unwrap();
        for (name, expected) in [
            ("lm_head.weight", false),
            ("model.layers.1.linear_attn.in_proj_a.weight", false),
            ("model.layers.11.linear_attn.in_proj_a.weight", true),
            ("mtp.fc.weight", false),
            ("mtp.fc2.weight", true),
            ("model.layers.0.mlp.up_proj.weight", true),
        ] {
            assert_eq!(modules.has(name), expected, "{name}");
        }
        assert!(EightBitModules::of(&json!({})).unwrap().is_none());
        let other = json!({"quantization_config": {"quant_method": "gptq"}});
        assert!(EightBitModules::of(&other).unwrap().is_none());
    }

    #[test]
    fn blocks_of_another_size_are_refused() {
        let config = json!({"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 128]}});
        assert_eq!(
            EightBitModules::of(&config).unwrap_err().to_string(),
            "config field `quantization_config`: a `weight_block_size` of [64,128] is not supported: it must be [128,128]"
        );
    }
}
