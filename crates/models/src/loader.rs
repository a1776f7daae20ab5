//! From stored tensors to device weights: shapes are checked, conventions of the file format undone.

use crate::ModelError;
use crate::eight_bits::{EightBitModules, scales_of};
use crate::gguf::GgufNames;
pub(crate) use crate::part::Part;
use crate::part::Role;
use paceline_device::{Backend, RowOrder, WeightData, WeightPart, random_element};
use paceline_types::DType;
use paceline_weights::{Checkpoint, TensorView};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Where tensors come from.
enum Source<'a> {
    /// Files, with the names and conventions of their format.
    Stored {
        checkpoint: &'a Checkpoint,
        names: Option<GgufNames>,
    },
    /// Nowhere: only shapes matter, elements are taken to be of these types.
    ConfigOnly(AssumedTypes),
    /// Nowhere: elements of these types are made up.
    Random(AssumedTypes),
}

/// The types of tensors that are in no file.
#[derive(Clone, Debug)]
pub(crate) struct AssumedTypes {
    /// Of all but those in eight bits.
    pub(crate) plain: DType,
    pub(crate) eight_bits: Option<EightBitModules>,
}

/// What was loaded.
#[derive(Clone, Debug, Default)]
pub struct LoadStats {
    /// Elements of all tensors, without the draft head's.
    pub parameters: u64,
    /// Elements of the draft head's tensors.
    pub draft_parameters: u64,
    /// Elements and bytes by element type, as stored.
    pub by_dtype: BTreeMap<DType, (u64, u64)>,
    /// Bytes of all tensors in the types that they are kept in.
    pub kept_bytes: u64,
    /// Elements that were quantised.
    pub quantised: u64,
}

impl LoadStats {
    /// Bytes of all tensors as stored.
    pub fn bytes(&self) -> u64 {
        self.by_dtype.values().map(|(_, bytes)| bytes).sum()
    }
}

/// What weights are converted to while they are loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WeightTypes {
    /// All matrices to a floating-point type, or floating-point ones of products to a quantised type.
    pub store_as: Option<DType>,
    /// Matrices that only draft, and a copy of the output matrix to draft with: text does not depend on them.
    pub drafts_as: Option<DType>,
}

impl From<Option<DType>> for WeightTypes {
    fn from(store_as: Option<DType>) -> Self {
        Self {
            store_as,
            drafts_as: None,
        }
    }
}

/// Loads tensors by their Hugging Face names onto a device.
pub struct Loader<'a, B: Backend> {
    backend: &'a B,
    source: Source<'a>,
    types: WeightTypes,
    stats: RefCell<LoadStats>,
    progress: &'a dyn Fn(u64),
}

impl<'a, B: Backend> Loader<'a, B> {
    /// Tensors of a checkpoint. `progress` is told the bytes of each tensor as it is loaded.
    pub(crate) fn stored(
        backend: &'a B,
        checkpoint: &'a Checkpoint,
        names: Option<GgufNames>,
        types: WeightTypes,
        progress: &'a dyn Fn(u64),
    ) -> Self {
        let source = Source::Stored { checkpoint, names };
        Self {
            backend,
            source,
            types,
            stats: RefCell::default(),
            progress,
        }
    }

    /// Shapes alone.
    pub(crate) fn config_only(backend: &'a B, assumed: AssumedTypes) -> Self {
        let source = Source::ConfigOnly(assumed);
        Self {
            backend,
            source,
            types: WeightTypes::default(),
            stats: RefCell::default(),
            progress: &|_| {},
        }
    }

    /// Elements that are made up, of these types; the same for every run.
    pub(crate) fn random(
        backend: &'a B,
        assumed: AssumedTypes,
        types: WeightTypes,
        progress: &'a dyn Fn(u64),
    ) -> Self {
        Self {
            source: Source::Random(assumed.clone()),
            types,
            progress,
            ..Self::config_only(backend, assumed)
        }
    }

    /// What was loaded so far.
    pub fn stats(&self) -> LoadStats {
        self.stats.borrow().clone()
    }

    /// The device.
    pub fn backend(&self) -> &B {
        self.backend
    }

    /// Whether a tensor is there, of whatever type. From a configuration alone, `assumed`.
    pub fn has(&self, name: &str, assumed: bool) -> bool {
        match &self.source {
            Source::Stored { checkpoint, .. } => checkpoint.raw_tensor(&self.stored_name(name)).is_some(),
            Source::ConfigOnly(_) | Source::Random(_) => assumed,
        }
    }

    /// The names and conventions of a GGUF file, `None` for Hugging Face files.
    pub(crate) fn gguf(&self) -> Option<&GgufNames> {
        match &self.source {
            Source::Stored { names, .. } => names.as_ref(),
            Source::ConfigOnly(_) | Source::Random(_) => None,
        }
    }

    /// Parts stacked along the outputs into one device weight.
    pub fn weight(&self, parts: &[Part]) -> Result<B::Weight, ModelError> {
        let (parts, store_as) = self.device_parts(parts)?;
        Ok(self.backend.weight(&parts, store_as)?)
    }

    /// Gate and up of a gated feed-forward layer, see [`Backend::gated_weight`].
    pub fn gated_weight(&self, parts: &[Part]) -> Result<B::Weight, ModelError> {
        let (parts, store_as) = self.device_parts(parts)?;
        Ok(self.backend.gated_weight(&parts, store_as)?)
    }

    /// Parts as the device takes them, and the type that it keeps them in if it is not theirs.
    fn device_parts<'p>(
        &'p self,
        parts: &'p [Part],
    ) -> Result<(Vec<WeightPart<'p>>, Option<DType>), ModelError> {
        let mut device_parts = Vec::with_capacity(parts.len());
        for part in parts {
            let columns = part.stored[part.stored.len() - 1];
            let stored_rows = part.stored[..part.stored.len() - 1].iter().product();
            let (name, dtype, data) = match self.find(&part.name, &part.stored)? {
                Some(view) => (view.name, view.dtype, self.stored_data(&view)?),
                None => (
                    part.name.as_str(),
                    self.assumed_type(part),
                    self.made_up(&part.name),
                ),
            };
            device_parts.push(WeightPart {
                name,
                dtype,
                stored_rows,
                columns,
                data,
                order: part.order.clone(),
            });
        }
        let store_as = self.kept_as(parts, &device_parts);
        for (part, of) in parts.iter().zip(&device_parts) {
            self.count(&part.name, (of.dtype, store_as), of.rows() * of.columns);
        }
        Ok((device_parts, store_as))
    }

    /// The type that parts are converted to. Quantised are those that do not decide, are not quantised yet and have
    /// whole blocks.
    fn kept_as(&self, parts: &[Part], stored: &[WeightPart<'_>]) -> Option<DType> {
        let drafts = parts
            .first()
            .is_some_and(|part| part.name.starts_with(DRAFTS) && part.role == Role::Product);
        if let Some(dtype) = self.types.drafts_as.filter(|_| drafts) {
            return stored.iter().all(|part| is_wide(part.dtype)).then_some(dtype);
        }
        let asked = self.types.store_as?;
        if !asked.is_quantised() {
            return Some(asked);
        }
        let kept = match parts.first()?.role {
            Role::Product => asked,
            Role::Vocabulary => DType::Q8_0,
            Role::Router => return None,
        };
        let fits = |part: &WeightPart<'_>| {
            !part.dtype.is_quantised() && part.columns.is_multiple_of(kept.block_len())
        };
        stored.iter().all(fits).then_some(kept)
    }

    /// A matrix of the model once more, in the type of draft weights; `None` where those are as they are stored, or it is
    /// no wider.
    pub fn draft_copy(&self, part: &Part) -> Result<Option<B::Weight>, ModelError> {
        let Some(dtype) = self.types.drafts_as else {
            return Ok(None);
        };
        let (name, stored, data) = match self.find(&part.name, &part.stored)? {
            Some(view) => (view.name, view.dtype, WeightData::Stored(view.data)),
            None => (
                part.name.as_str(),
                self.assumed_type(part),
                self.made_up(&part.name),
            ),
        };
        if !is_wide(stored) {
            return Ok(None);
        }
        let copy = WeightPart {
            name,
            dtype: stored,
            stored_rows: part.stored[0],
            columns: part.stored[1],
            data,
            order: RowOrder::Stored,
        };
        let bytes = dtype.bytes_for(copy.rows() * copy.columns).unwrap_or(0) as u64;
        self.stats.borrow_mut().kept_bytes += bytes;
        Ok(Some(self.backend.weight(&[copy], Some(dtype))?))
    }

    /// One whole matrix of embeddings.
    pub fn embedding(&self, name: &str, rows: usize, columns: usize) -> Result<B::Weight, ModelError> {
        self.weight(&[Part::whole(name, rows, columns).of_vocabulary()])
    }

    /// The elements of a small floating-point tensor. From a configuration alone, zeros, or numbers around one.
    pub fn vector(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let elements = shape.iter().product();
        let Some(view) = self.find(name, shape)? else {
            self.count(name, (self.plain_type(), None), elements);
            return Ok(self.made_up_vector(name, elements));
        };
        self.count(name, (view.dtype, None), elements);
        finite(view.name, decode(&view)?)
    }

    /// The elements of a small tensor of integers. From a configuration alone, zeros.
    pub fn integers(&self, name: &str, len: usize) -> Result<Vec<i64>, ModelError> {
        let Source::Stored { checkpoint, .. } = &self.source else {
            return Ok(vec![0; len]);
        };
        let name = self.stored_name(name);
        let Some(raw) = checkpoint.raw_tensor(&name) else {
            return Err(ModelError::MissingTensor {
                name,
                expected: vec![len],
            });
        };
        if raw.shape != [len] {
            let found = raw.shape.to_vec();
            return Err(ModelError::Shape {
                name,
                expected: vec![len],
                found,
            });
        }
        (self.progress)(raw.data.len() as u64);
        match raw.dtype {
            "I64" => Ok(raw
                .data
                .as_chunks()
                .0
                .iter()
                .copied()
                .map(i64::from_le_bytes)
                .collect()),
            "I32" => {
                let words = raw.data.as_chunks().0.iter().copied().map(i32::from_le_bytes);
                Ok(words.map(i64::from).collect())
            }
            other => Err(ModelError::DType {
                name,
                dtype: other.to_owned(),
                why: "it must be stored as I64 or I32".to_owned(),
            }),
        }
    }

    /// A small tensor on the device.
    pub fn buffer(&self, name: &str, shape: &[usize]) -> Result<B::Buffer<f32>, ModelError> {
        self.upload(&self.vector(name, shape)?)
    }

    /// Values on the device.
    pub fn upload(&self, values: &[f32]) -> Result<B::Buffer<f32>, ModelError> {
        Ok(self.backend.buffer_from(values)?)
    }

    /// The negative decay rates that a file stores as `A_log` (GGUF: ready made).
    pub fn decay(&self, name: &str, heads: usize) -> Result<B::Buffer<f32>, ModelError> {
        let mut values = self.vector(name, &[heads])?;
        if self.gguf().is_none() {
            for value in &mut values {
                *value = -value.exp();
            }
        }
        self.upload(&finite(&self.stored_name(name), values)?)
    }

    fn stored_name(&self, name: &str) -> String {
        self.gguf()
            .map_or_else(|| name.to_owned(), |names| names.stored_name(name))
    }

    /// The tensor, its shape checked up to dimensions of size one; `None` without files.
    fn find(&self, name: &str, expected: &[usize]) -> Result<Option<TensorView<'a>>, ModelError> {
        let Source::Stored { checkpoint, .. } = &self.source else {
            return Ok(None);
        };
        let stored = self.stored_name(name);
        let Some(view) = checkpoint.tensor(&stored) else {
            if let Some(raw) = checkpoint.raw_tensor(&stored) {
                let why = "this type is not supported".to_owned();
                return Err(ModelError::DType {
                    name: stored,
                    dtype: raw.dtype.to_owned(),
                    why,
                });
            }
            return Err(ModelError::MissingTensor {
                name: stored,
                expected: expected.to_vec(),
            });
        };
        let squeeze = |shape: &[usize]| shape.iter().copied().filter(|n| *n != 1).collect::<Vec<_>>();
        if squeeze(view.shape) != squeeze(expected) {
            let (expected, found) = (expected.to_vec(), view.shape.to_vec());
            return Err(ModelError::Shape {
                name: stored,
                expected,
                found,
            });
        }
        Ok(Some(view))
    }

    /// The type that a part is stored in.
    pub fn stored_type(&self, part: &Part) -> Result<DType, ModelError> {
        Ok(match self.find(&part.name, &part.stored)? {
            Some(view) => view.dtype,
            None => self.assumed_type(part),
        })
    }

    /// Whether a part is stored as 8-bit floats.
    pub fn is_eight_bits(&self, part: &Part) -> Result<bool, ModelError> {
        Ok(self.stored_type(part)? == DType::F8E4M3)
    }

    /// The elements of a matrix, with their scales if they have some.
    fn stored_data(&self, view: &TensorView<'a>) -> Result<WeightData<'a>, ModelError> {
        match &self.source {
            Source::Stored { checkpoint, .. } if view.dtype == DType::F8E4M3 => {
                Ok(WeightData::Scaled(view.data, scales_of(checkpoint, view)?))
            }
            _ => Ok(WeightData::Stored(view.data)),
        }
    }

    /// The type of a matrix that is in no file.
    fn assumed_type(&self, part: &Part) -> DType {
        let (Source::ConfigOnly(types) | Source::Random(types)) = &self.source else {
            return DType::F32;
        };
        let eight_bits = types.eight_bits.as_ref();
        let eight_bits = eight_bits.filter(|modules| part.role == Role::Product && modules.has(&part.name));
        eight_bits.map_or(types.plain, |_| DType::F8E4M3)
    }

    /// The type of other tensors that are in no file.
    fn plain_type(&self) -> DType {
        match &self.source {
            Source::ConfigOnly(types) | Source::Random(types) => types.plain,
            Source::Stored { .. } => DType::F32,
        }
    }

    /// The elements of a matrix that is in no file.
    fn made_up(&self, name: &str) -> WeightData<'static> {
        match self.source {
            Source::Random(_) => WeightData::Random(seed(name)),
            Source::Stored { .. } | Source::ConfigOnly(_) => WeightData::Stored(&[]),
        }
    }

    /// The elements of a vector that is in no file. Norms multiply by them, decays are exponentials of them: numbers
    /// around one do no harm anywhere.
    fn made_up_vector(&self, name: &str, elements: usize) -> Vec<f32> {
        match self.source {
            Source::Random(_) => {
                let element = |index| 1.0 + random_element(seed(name), 12, (0, index)) / 2.0;
                (0..elements).map(element).collect()
            }
            Source::Stored { .. } | Source::ConfigOnly(_) => vec![0.0; elements],
        }
    }

    /// Counts elements of a tensor in the type that they are stored in and in the one that they are converted to.
    fn count(&self, name: &str, (dtype, kept): (DType, Option<DType>), elements: usize) {
        let bytes_as = |dtype: DType| dtype.bytes_for(elements).unwrap_or(0) as u64;
        let bytes = bytes_as(dtype);
        let mut stats = self.stats.borrow_mut();
        let parameters = if name.starts_with(DRAFTS) {
            &mut stats.draft_parameters
        } else {
            &mut stats.parameters
        };
        *parameters = parameters.saturating_add(elements as u64);
        stats.kept_bytes = stats.kept_bytes.saturating_add(bytes_as(kept.unwrap_or(dtype)));
        if kept.is_some_and(DType::is_quantised) {
            stats.quantised = stats.quantised.saturating_add(elements as u64);
        }
        let entry = stats.by_dtype.entry(dtype).or_default();
        entry.0 = entry.0.saturating_add(elements as u64);
        entry.1 = entry.1.saturating_add(bytes);
        (self.progress)(bytes);
    }
}

/// What the names of tensors begin with that only draft.
const DRAFTS: &str = "mtp.";

/// Whether elements are floats of more than eight bits.
fn is_wide(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::BF16 | DType::F16)
}

/// A number for a name, the same on every machine (FNV-1a).
fn seed(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    })
}

fn finite(name: &str, values: Vec<f32>) -> Result<Vec<f32>, ModelError> {
    match values.iter().position(|value| !value.is_finite()) {
        Some(index) => Err(ModelError::NotFinite {
            name: name.to_owned(),
            index,
        }),
        None => Ok(values),
    }
}

/// Small tensors are always stored in a plain floating-point type.
fn decode(view: &TensorView<'_>) -> Result<Vec<f32>, ModelError> {
    let bytes = view.data;
    let pairs = || bytes.chunks_exact(2).map(|b| [b[0], b[1]]);
    match view.dtype {
        DType::F32 => Ok(bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect()),
        DType::BF16 => Ok(pairs().map(|b| half::bf16::from_le_bytes(b).to_f32()).collect()),
        DType::F16 => Ok(pairs().map(|b| half::f16::from_le_bytes(b).to_f32()).collect()),
        other => Err(ModelError::DType {
            name: view.name.to_owned(),
            dtype: other.to_string(),
            why: "a vector must be stored as F32, F16 or BF16".to_owned(),
        }),
    }
}
