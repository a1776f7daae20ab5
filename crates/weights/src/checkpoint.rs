//! A model as one thing, whatever files it is made of.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use ::safetensors::tensor::Dtype as SafetensorsDtype;
use paceline_types::DType;
use serde_json::Value;

use crate::bytes::Bytes;
use crate::error::WeightsError;
use crate::folder::{self, has_extension};
use crate::gguf::{self, GgufMetadata};
use crate::json::{self, MAX_CONFIG, MAX_TOKENIZER};
use crate::safetensors;
use crate::split::SplitName;

/// How a model is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A folder with `config.json` and safetensors files, or the same embedded in the binary.
    HuggingFace,
    /// A GGUF file, or several that are parts of one.
    Gguf,
}

/// A tensor of a type the engine computes with.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    /// Its name in the checkpoint.
    pub name: &'a str,
    /// Its element type.
    pub dtype: DType,
    /// Its shape, outermost dimension first, so `[out, in]` for a linear layer in both formats.
    pub shape: &'a [usize],
    /// Its elements, little-endian and row by row, at no particular alignment.
    pub data: &'a [u8],
}

/// A tensor of any type, such as the integer tables of some draft models.
#[derive(Clone, Copy, Debug)]
pub struct RawTensor<'a> {
    /// Its name in the checkpoint.
    pub name: &'a str,
    /// The name of its element type in the file, such as `I64` or `F8_E4M3`.
    pub dtype: &'a str,
    /// Its shape, outermost dimension first.
    pub shape: &'a [usize],
    /// Its elements, little-endian and row by row, at no particular alignment.
    pub data: &'a [u8],
}

/// The files of a model in Hugging Face layout given as bytes, for a model embedded in the binary.
#[derive(Clone, Debug)]
pub struct ModelParts {
    /// What to call the model in messages.
    pub name: String,
    /// `config.json`.
    pub config_json: Bytes,
    /// `model.safetensors`.
    pub safetensors: Bytes,
    /// `tokenizer.json`.
    pub tokenizer_json: Option<Bytes>,
    /// `tokenizer_config.json`.
    pub tokenizer_config: Option<Bytes>,
    /// `generation_config.json`.
    pub generation_config: Option<Bytes>,
    /// `chat_template.jinja`.
    pub chat_template: Option<String>,
}

/// A model's tensors and the files that describe it.
///
/// Opening maps the weights and checks their headers; tensor data is only touched when it is used. The files must
/// not change while the checkpoint is alive (see [`HostMap`](paceline_device::HostMap)).
#[derive(Debug)]
pub struct Checkpoint {
    source: String,
    format: Format,
    files: Vec<WeightFile>,
    entries: Vec<Entry>,
    index: HashMap<String, usize>,
    side: SideFiles,
    gguf: Option<GgufMetadata>,
}

#[derive(Debug)]
struct WeightFile {
    path: PathBuf,
    bytes: Bytes,
}

#[derive(Debug)]
struct Entry {
    name: String,
    dtype: StoredType,
    shape: Vec<usize>,
    file: usize,
    range: Range<usize>,
}

#[derive(Debug)]
enum StoredType {
    Supported(DType),
    Other(String),
}

impl StoredType {
    fn name(&self) -> &str {
        match self {
            Self::Supported(dtype) => dtype.name(),
            Self::Other(name) => name,
        }
    }
}

impl From<SafetensorsDtype> for StoredType {
    fn from(dtype: SafetensorsDtype) -> Self {
        match dtype {
            SafetensorsDtype::F32 => Self::Supported(DType::F32),
            SafetensorsDtype::F16 => Self::Supported(DType::F16),
            SafetensorsDtype::BF16 => Self::Supported(DType::BF16),
            SafetensorsDtype::F8_E4M3 => Self::Supported(DType::F8E4M3),
            other => Self::Other(other.to_string()),
        }
    }
}

/// The text files beside the weights.
#[derive(Debug, Default)]
struct SideFiles {
    config: Option<Value>,
    generation_config: Option<Value>,
    tokenizer_json: Option<Bytes>,
    tokenizer_config: Option<Value>,
    chat_template: Option<String>,
}

impl SideFiles {
    fn read(folder: &Path) -> Result<Self, WeightsError> {
        let config_path = folder.join("config.json");
        let template_path = folder.join("chat_template.jinja");
        let template = json::read_bounded(&template_path, MAX_CONFIG)?;
        let chat_template = template.map(|data| json::text(data, &template_path.display().to_string()));
        Ok(Self {
            config: json::read_json(&config_path, MAX_CONFIG)?,
            generation_config: json::read_json(&folder.join("generation_config.json"), MAX_CONFIG)?,
            tokenizer_json: json::read_bounded(&folder.join("tokenizer.json"), MAX_TOKENIZER)?
                .map(Bytes::from),
            tokenizer_config: json::read_json(&folder.join("tokenizer_config.json"), MAX_CONFIG)?,
            chat_template: chat_template.transpose()?,
        })
    }

    /// Reads the files of a folder that must have a configuration.
    fn read_required(folder: &Path) -> Result<Self, WeightsError> {
        let side = Self::read(folder)?;
        if side.config.is_none() {
            let hint = folder::hint(&folder::file_names(folder)?);
            return Err(WeightsError::NoConfig {
                path: folder.to_owned(),
                hint,
            });
        }
        Ok(side)
    }
}

impl Checkpoint {
    /// Opens the model at `path`: a folder in Hugging Face layout, or a GGUF file, with the other parts if it is one of several.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let kind = std::fs::metadata(path).map_err(|cause| WeightsError::io(path, cause))?;
        if kind.is_dir() {
            return Self::open_folder(path);
        }
        let name = path.to_string_lossy();
        if has_extension(&name, "safetensors") {
            return Err(WeightsError::LoneSafetensors {
                path: path.to_owned(),
            });
        }
        let bytes = Bytes::map(path).map_err(|cause| WeightsError::io(path, cause))?;
        if !has_extension(&name, "gguf") && !bytes.starts_with(&gguf::MAGIC) {
            return Err(WeightsError::UnknownFile {
                path: path.to_owned(),
            });
        }
        match SplitName::parse(&name) {
            Some(split) if gguf::parse(&bytes, &name)?.part().is_some() => Self::open_parts(split),
            _ => Self::from_gguf(&name, bytes),
        }
    }

    /// Opens a GGUF model from the contents of its one file, called `name` in messages.
    pub fn from_gguf(name: &str, bytes: Bytes) -> Result<Self, WeightsError> {
        let mut checkpoint = Self::empty(name.to_owned(), Format::Gguf, SideFiles::default());
        let file = gguf::parse(&bytes, name)?;
        if let Some(part) = file.part() {
            return Err(gguf::refusal(name, gguf::GgufError::Split { parts: part.count }));
        }
        checkpoint.gguf = Some(checkpoint.add_gguf(name, bytes, file)?);
        Ok(checkpoint)
    }

    /// Opens a GGUF model of several files, whose first one describes it.
    fn open_parts(split: SplitName<'_>) -> Result<Self, WeightsError> {
        let first = split.parts().next().unwrap_or_default();
        let mut checkpoint = Self::empty(first, Format::Gguf, SideFiles::default());
        let mut expected = None;
        for (name, number) in split.parts().zip(1..) {
            let path = Path::new(&name);
            let bytes = Bytes::map(path).map_err(|cause| WeightsError::io(path, cause))?;
            let file = gguf::parse(&bytes, &name)?;
            gguf::check_part(file.part(), number, split.count)
                .map_err(|cause| gguf::refusal(&name, cause))?;
            expected = expected.or(file.part().and_then(|part| part.tensors));
            let metadata = checkpoint.add_gguf(&name, bytes, file)?;
            checkpoint.gguf.get_or_insert(metadata);
        }
        let found = checkpoint.entries.len() as u64;
        match expected.filter(|expected| *expected != found) {
            None => Ok(checkpoint),
            Some(expected) => Err(gguf::refusal(
                &checkpoint.source,
                gguf::GgufError::MissingTensors {
                    parts: split.count,
                    found,
                    expected,
                },
            )),
        }
    }

    /// Takes in the tensors of a file and gives back its metadata.
    fn add_gguf(
        &mut self,
        name: &str,
        bytes: Bytes,
        contents: gguf::GgufFile,
    ) -> Result<GgufMetadata, WeightsError> {
        let file = self.files.len();
        self.files.push(WeightFile {
            path: name.into(),
            bytes,
        });
        for gguf::Entry {
            name,
            dtype,
            shape,
            range,
        } in contents.tensors
        {
            self.add(Entry {
                name,
                dtype: StoredType::Supported(dtype),
                shape,
                file,
                range,
            })?;
        }
        Ok(contents.metadata)
    }

    /// Opens a model from the contents of its files.
    pub fn from_parts(parts: ModelParts) -> Result<Self, WeightsError> {
        let name = &parts.name;
        let parse = |bytes: &Bytes, file| json::parse(bytes, &format!("{name}/{file}"), MAX_CONFIG);
        let optional =
            |bytes: &Option<Bytes>, file| bytes.as_ref().map(|bytes| parse(bytes, file)).transpose();
        let side = SideFiles {
            config: Some(parse(&parts.config_json, "config.json")?),
            generation_config: optional(&parts.generation_config, "generation_config.json")?,
            tokenizer_config: optional(&parts.tokenizer_config, "tokenizer_config.json")?,
            tokenizer_json: parts.tokenizer_json,
            chat_template: parts.chat_template,
        };
        let weights = WeightFile {
            path: Path::new(name).join(folder::SINGLE),
            bytes: parts.safetensors,
        };
        let mut checkpoint = Self::empty(parts.name, Format::HuggingFace, side);
        checkpoint.add_safetensors(weights)?;
        Ok(checkpoint)
    }

    /// Opens only the configuration and the other text files of a folder, or a lone `config.json`.
    pub fn config_only(path: &Path) -> Result<Self, WeightsError> {
        let kind = std::fs::metadata(path).map_err(|cause| WeightsError::io(path, cause))?;
        let side = if kind.is_dir() {
            SideFiles::read_required(path)?
        } else {
            SideFiles {
                config: json::read_json(path, MAX_CONFIG)?,
                ..SideFiles::default()
            }
        };
        Ok(Self::empty(path.display().to_string(), Format::HuggingFace, side))
    }

    fn open_folder(path: &Path) -> Result<Self, WeightsError> {
        let side = SideFiles::read_required(path)?;
        let folder::WeightFiles { shards, index } = folder::weight_files(path)?;
        let mut checkpoint = Self::empty(path.display().to_string(), Format::HuggingFace, side);
        for shard in shards {
            let bytes = Bytes::map(&shard).map_err(|cause| WeightsError::io(&shard, cause))?;
            checkpoint.add_safetensors(WeightFile { path: shard, bytes })?;
        }
        if let Some(index) = index {
            index.check(|tensor| checkpoint.entry(tensor).map(|entry| checkpoint.file_path(entry)))?;
        }
        Ok(checkpoint)
    }

    fn empty(source: String, format: Format, side: SideFiles) -> Self {
        let (files, entries, index) = (Vec::new(), Vec::new(), HashMap::new());
        Self {
            source,
            format,
            files,
            entries,
            index,
            side,
            gguf: None,
        }
    }

    fn add_safetensors(&mut self, weights: WeightFile) -> Result<(), WeightsError> {
        let entries = safetensors::parse(&weights.bytes).map_err(|cause| WeightsError::Safetensors {
            file: weights.path.display().to_string(),
            cause: cause.into(),
        })?;
        let file = self.files.len();
        self.files.push(weights);
        for safetensors::Entry {
            name,
            dtype,
            shape,
            range,
        } in entries
        {
            self.add(Entry {
                name,
                dtype: dtype.into(),
                shape,
                file,
                range,
            })?;
        }
        Ok(())
    }

    fn add(&mut self, entry: Entry) -> Result<(), WeightsError> {
        if let Some(first) = self.entry(&entry.name) {
            return Err(WeightsError::DuplicateTensor {
                first: self.file_path(first).display().to_string(),
                second: self.file_path(&entry).display().to_string(),
                tensor: entry.name,
            });
        }
        self.index.insert(entry.name.clone(), self.entries.len());
        self.entries.push(entry);
        Ok(())
    }

    fn entry(&self, name: &str) -> Option<&Entry> {
        self.index.get(name).map(|&at| &self.entries[at])
    }

    fn file_path(&self, entry: &Entry) -> &Path {
        &self.files[entry.file].path
    }

    fn view<'a>(&'a self, entry: &'a Entry) -> Option<TensorView<'a>> {
        let StoredType::Supported(dtype) = entry.dtype else {
            return None;
        };
        Some(TensorView {
            name: &entry.name,
            dtype,
            shape: &entry.shape,
            data: self.data(entry),
        })
    }

    fn raw_view<'a>(&'a self, entry: &'a Entry) -> RawTensor<'a> {
        RawTensor {
            name: &entry.name,
            dtype: entry.dtype.name(),
            shape: &entry.shape,
            data: self.data(entry),
        }
    }

    fn data(&self, entry: &Entry) -> &[u8] {
        &self.files[entry.file].bytes[entry.range.clone()]
    }

    /// The tensor called `name`, if there is one and its type is supported.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        self.entry(name).and_then(|entry| self.view(entry))
    }

    /// The tensor called `name`; the error says whether it is missing or its type is not supported.
    pub fn require(&self, name: &str) -> Result<TensorView<'_>, WeightsError> {
        let (file, tensor) = (self.source.clone(), name.to_owned());
        match self.entry(name) {
            None => Err(WeightsError::MissingTensor { file, tensor }),
            Some(entry) => self.view(entry).ok_or_else(|| WeightsError::UnsupportedDType {
                file: self.file_path(entry).display().to_string(),
                tensor,
                dtype: entry.dtype.name().to_owned(),
            }),
        }
    }

    /// The tensor called `name`, whatever its type.
    pub fn raw_tensor(&self, name: &str) -> Option<RawTensor<'_>> {
        self.entry(name).map(|entry| self.raw_view(entry))
    }

    /// The tensors of supported types, in the order of the files.
    pub fn tensors(&self) -> impl Iterator<Item = TensorView<'_>> {
        self.entries.iter().filter_map(|entry| self.view(entry))
    }

    /// All tensors, in the order of the files.
    pub fn raw_tensors(&self) -> impl Iterator<Item = RawTensor<'_>> {
        self.entries.iter().map(|entry| self.raw_view(entry))
    }

    /// How the model is stored.
    pub fn format(&self) -> Format {
        self.format
    }

    /// `config.json`, of a model in Hugging Face layout.
    pub fn config(&self) -> Option<&Value> {
        self.side.config.as_ref()
    }

    /// The metadata, of a GGUF model.
    pub fn gguf(&self) -> Option<&GgufMetadata> {
        self.gguf.as_ref()
    }

    /// `generation_config.json`.
    pub fn generation_config(&self) -> Option<&Value> {
        self.side.generation_config.as_ref()
    }

    /// The contents of `tokenizer.json`.
    pub fn tokenizer_json(&self) -> Option<&[u8]> {
        self.side.tokenizer_json.as_deref()
    }

    /// `tokenizer_config.json`.
    pub fn tokenizer_config(&self) -> Option<&Value> {
        self.side.tokenizer_config.as_ref()
    }

    /// The contents of `chat_template.jinja`.
    pub fn chat_template_file(&self) -> Option<&str> {
        self.side.chat_template.as_deref()
    }

    /// The path or name of the model, for messages.
    pub fn source(&self) -> &str {
        &self.source
    }
}
