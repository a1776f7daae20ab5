//! A model's description, for people and for machines.

use super::memory::PlanReport;
use crate::format::{self, Facts};
use crate::model::LoadedModel;
use paceline::DeviceInfo;
use paceline_models::Summary;
use paceline_text::Tokenizer;
use paceline_types::TokenId;
use paceline_weights::Format;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Everything `inspect` knows; `--json` prints it as it is.
#[derive(Serialize)]
pub(super) struct ModelReport {
    source: String,
    format: &'static str,
    architecture: &'static str,
    parameters: Parameters,
    layers: Layers,
    hidden_size: usize,
    vocabulary_size: usize,
    context_length: usize,
    tied_embeddings: bool,
    eos_token_ids: Vec<TokenId>,
    experts: Option<Experts>,
    tensor_types: Vec<TensorType>,
    weights_bytes: u64,
    /// Bytes of all tensors in the files, those this engine has no use for included.
    file_bytes: Option<u64>,
    device: Device,
    memory: Memory,
    /// Of an engine, where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_plan: Option<PlanReport>,
    draft_head: bool,
    tokenizer: Option<TokenizerReport>,
    chat_template: Option<TemplateReport>,
    /// By option: what people get where they do not say, and where that comes from.
    sampling: Map<String, Value>,
    #[serde(skip)]
    defaults: String,
}

#[derive(Serialize)]
struct Parameters {
    model: u64,
    draft_head: u64,
}

#[derive(Serialize)]
struct Layers {
    total: usize,
    attention: usize,
    delta_net: usize,
    mamba2: usize,
    mlp: usize,
    moe: usize,
}

#[derive(Serialize)]
struct Experts {
    total: usize,
    per_token: usize,
}

#[derive(Serialize)]
struct TensorType {
    dtype: String,
    /// Unknown without files.
    tensors: Option<u64>,
    bytes: u64,
}

/// The device whose memory is meant.
#[derive(Serialize)]
struct Device {
    name: String,
    description: String,
}

impl From<&DeviceInfo> for Device {
    fn from(device: &DeviceInfo) -> Self {
        Self {
            name: device.name.clone(),
            description: device.description.clone(),
        }
    }
}

#[derive(Serialize)]
struct Memory {
    kv_type: &'static str,
    window_type: &'static str,
    state_type: &'static str,
    kv_bytes_per_token: u64,
    draft_kv_bytes_per_token: u64,
    state_bytes_per_request: u64,
}

#[derive(Serialize)]
struct TokenizerReport {
    kind: String,
    vocabulary_size: usize,
    bos: Option<NamedToken>,
    eos: Option<NamedToken>,
}

#[derive(Serialize)]
struct NamedToken {
    id: TokenId,
    text: Option<String>,
}

#[derive(Serialize)]
struct TemplateReport {
    mentions_tools: bool,
    /// Why it cannot be used.
    error: Option<String>,
}

impl ModelReport {
    pub(super) fn new(
        model: &LoadedModel,
        summary: &Summary,
        device: &DeviceInfo,
        memory_plan: Option<PlanReport>,
    ) -> Self {
        let Summary {
            dims,
            layers,
            stats,
            memory,
            ..
        } = summary;
        let types = stored_types(model);
        Self {
            source: model.source.clone(),
            format: match (model.checkpoint.format(), types.is_empty()) {
                (Format::Gguf, _) => "gguf",
                (Format::HuggingFace, false) => "safetensors",
                (Format::HuggingFace, true) => "config only",
            },
            architecture: dims.architecture,
            parameters: Parameters {
                model: stats.parameters,
                draft_head: stats.draft_parameters,
            },
            layers: Layers {
                total: dims.layers,
                attention: layers.attention,
                delta_net: layers.delta_net,
                mamba2: layers.mamba2,
                mlp: layers.mlp,
                moe: layers.moe,
            },
            hidden_size: dims.hidden,
            vocabulary_size: dims.vocabulary,
            context_length: dims.max_positions,
            tied_embeddings: dims.tied,
            eos_token_ids: dims.eos.clone(),
            experts: summary
                .experts
                .map(|(total, per_token)| Experts { total, per_token }),
            weights_bytes: stats.bytes(),
            file_bytes: (!types.is_empty()).then(|| types.iter().map(|kind| kind.bytes).sum()),
            tensor_types: if types.is_empty() {
                assumed_types(summary)
            } else {
                types
            },
            device: device.into(),
            memory: Memory {
                kv_type: memory.elements.kv.name(),
                window_type: memory.elements.activations.name(),
                state_type: memory.elements.states.name(),
                kv_bytes_per_token: memory.kv_per_token,
                draft_kv_bytes_per_token: memory.draft_kv_per_token,
                state_bytes_per_request: memory.state_per_request,
            },
            memory_plan,
            draft_head: summary.draft_head,
            tokenizer: model
                .tokenizer
                .as_ref()
                .map(|tokenizer| TokenizerReport::new(model, tokenizer)),
            chat_template: template_report(model),
            sampling: model.defaults().to_json(),
            defaults: model.defaults().to_string(),
        }
    }

    /// The same for people.
    pub(super) fn facts(&self) -> Facts {
        let mut facts = Facts::default();
        facts.add("model", &self.source);
        facts.add("architecture", format!("{} ({})", self.architecture, self.format));
        let Parameters { model, draft_head } = self.parameters;
        facts.add(
            "parameters",
            match draft_head {
                0 => exact_count(model),
                _ => format!(
                    "{} + {} draft head",
                    exact_count(model),
                    format::count(draft_head)
                ),
            },
        );
        facts.add("layers", self.layer_line());
        if let Some(Experts { total, per_token }) = self.experts {
            facts.add("experts", format!("{total}, {per_token} per token"));
        }
        facts.add("hidden size", format::grouped(self.hidden_size as u64));
        let tied = if self.tied_embeddings {
            ", embeddings tied"
        } else {
            ""
        };
        let vocabulary = format::grouped(self.vocabulary_size as u64);
        facts.add("vocabulary", format!("{vocabulary} tokens{tied}"));
        let context = format::grouped(self.context_length as u64);
        facts.add("context", format!("{context} tokens"));
        facts.add("weights", self.weights_line());
        facts.add_all("tensor types", self.tensor_types.iter().map(TensorType::line));
        let Device { name, description } = &self.device;
        facts.add("device", format!("{name}: {description}"));
        let Memory {
            kv_type,
            window_type,
            state_type,
            kv_bytes_per_token,
            draft_kv_bytes_per_token,
            state_bytes_per_request,
        } = self.memory;
        let draft = match draft_kv_bytes_per_token {
            0 => String::new(),
            bytes => format!(" + {} B draft head", format::grouped(bytes)),
        };
        let kv = format::grouped(kv_bytes_per_token);
        facts.add("KV per token", format!("{kv} B{draft}, {kv_type}"));
        let state = match state_bytes_per_request {
            0 => "none".to_owned(),
            bytes => format!(
                "{}, {state_type} states and {window_type} windows",
                exact_bytes(bytes)
            ),
        };
        facts.add("state per request", state);
        facts.add("draft head", if self.draft_head { "yes" } else { "no" });
        let tokenizer = self.tokenizer.as_ref().map(TokenizerReport::line);
        facts.add("tokenizer", tokenizer.unwrap_or_else(|| "none".to_owned()));
        let template = self.chat_template.as_ref().map(TemplateReport::line);
        facts.add("chat template", template.unwrap_or_else(|| "none".to_owned()));
        facts.add("sampling", &self.defaults);
        facts
    }

    fn layer_line(&self) -> String {
        let Layers {
            total,
            attention,
            delta_net,
            mamba2,
            mlp,
            moe,
        } = self.layers;
        let kinds = [
            (attention, "attention"),
            (delta_net, "Gated DeltaNet"),
            (mamba2, "Mamba2"),
            (mlp, "MLP"),
            (moe, "mixture of experts"),
        ];
        let kinds = kinds.iter().filter(|(count, _)| *count > 0);
        let kinds: Vec<_> = kinds.map(|(count, name)| format!("{count} {name}")).collect();
        format!("{total}: {}", kinds.join(", "))
    }

    fn weights_line(&self) -> String {
        let used = exact_bytes(self.weights_bytes);
        match self.file_bytes {
            Some(all) if all > self.weights_bytes => {
                let unused = format::bytes(all - self.weights_bytes);
                format!("{used}, and {unused} in the files that text needs not")
            }
            _ => used,
        }
    }
}

impl TensorType {
    fn line(&self) -> String {
        let tensors = self
            .tensors
            .map(|count| format!("{count} tensor{}, ", if count == 1 { "" } else { "s" }));
        format!(
            "{:4}  {}{}",
            self.dtype,
            tensors.unwrap_or_default(),
            exact_bytes(self.bytes)
        )
    }
}

impl TokenizerReport {
    fn new(model: &LoadedModel, tokenizer: &Tokenizer) -> Self {
        let named = |id: TokenId| NamedToken {
            id,
            text: tokenizer.id_to_token(id),
        };
        Self {
            kind: tokenizer_kind(model),
            vocabulary_size: tokenizer.vocab_size(),
            bos: tokenizer.bos_id().map(named),
            eos: tokenizer.eos_id().map(named),
        }
    }

    fn line(&self) -> String {
        let token = |token: &Option<NamedToken>| match token {
            Some(NamedToken { id, text }) => format!("{} ({id})", text.as_deref().unwrap_or("?")),
            None => "none".to_owned(),
        };
        let size = format::grouped(self.vocabulary_size as u64);
        let (bos, eos) = (token(&self.bos), token(&self.eos));
        format!("{}, {size} tokens, begin {bos}, end {eos}", self.kind)
    }
}

impl TemplateReport {
    fn line(&self) -> String {
        match (&self.error, self.mentions_tools) {
            (Some(error), _) => format!("yes, but {error}"),
            (None, true) => "yes, with tools".to_owned(),
            (None, false) => "yes, without tools".to_owned(),
        }
    }
}

fn exact_bytes(bytes: u64) -> String {
    format!("{} ({} B)", format::bytes(bytes), format::grouped(bytes))
}

fn exact_count(count: u64) -> String {
    format!("{} ({})", format::count(count), format::grouped(count))
}

/// Tensors and bytes in the files by element type, the largest share first.
fn stored_types(model: &LoadedModel) -> Vec<TensorType> {
    let mut types = BTreeMap::<&str, (u64, u64)>::new();
    for tensor in model.checkpoint.raw_tensors() {
        let (count, bytes) = types.entry(tensor.dtype).or_default();
        *count += 1;
        *bytes += tensor.data.len() as u64;
    }
    let entry = |(dtype, (tensors, bytes)): (&str, _)| TensorType {
        dtype: dtype.to_owned(),
        tensors: Some(tensors),
        bytes,
    };
    let mut types: Vec<_> = types.into_iter().map(entry).collect();
    types.sort_by_key(|kind| std::cmp::Reverse(kind.bytes));
    types
}

/// Without files: the type the configuration states.
fn assumed_types(summary: &Summary) -> Vec<TensorType> {
    let types = summary.stats.by_dtype.iter();
    let entry = |(dtype, (_, bytes)): (&paceline_types::DType, &(u64, u64))| TensorType {
        dtype: dtype.to_string(),
        tensors: None,
        bytes: *bytes,
    };
    types.map(entry).collect()
}

/// The algorithm, as the files name it.
fn tokenizer_kind(model: &LoadedModel) -> String {
    if let Some(metadata) = model.checkpoint.gguf() {
        let text = |key| metadata.get_str(key).ok().flatten();
        return match (text("tokenizer.ggml.model"), text("tokenizer.ggml.pre")) {
            (Some("llama"), _) => "SentencePiece BPE".to_owned(),
            (_, Some(pre)) => format!("byte-level BPE ({pre})"),
            _ => "byte-level BPE".to_owned(),
        };
    }
    let file = model.checkpoint.tokenizer_json();
    match file.and_then(|bytes| serde_json::from_slice::<TokenizerFile>(bytes).ok()) {
        Some(TokenizerFile { model, .. }) if model.byte_fallback => "SentencePiece BPE".to_owned(),
        Some(TokenizerFile { model, decoder }) => {
            let kind = model.kind.unwrap_or_else(|| "BPE".to_owned());
            match decoder.and_then(|decoder| decoder.kind).as_deref() {
                Some("ByteLevel") => format!("byte-level {kind}"),
                _ => kind,
            }
        }
        None => "unknown".to_owned(),
    }
}

/// The parts of a `tokenizer.json` that tell its kind.
#[derive(Deserialize)]
struct TokenizerFile {
    model: TokenizerPart,
    decoder: Option<TokenizerPart>,
}

#[derive(Deserialize)]
struct TokenizerPart {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    byte_fallback: bool,
}

fn template_report(model: &LoadedModel) -> Option<TemplateReport> {
    let mut sources = model.template_sources().peekable();
    sources.peek()?;
    Some(TemplateReport {
        mentions_tools: sources.any(|source| source.contains("tools")),
        error: model.template().err().map(|error| format!("{error:#}")),
    })
}
