//! The reference models under `fixtures/` and the default model under `assets/`.

use paceline_types::TokenId;
use paceline_weights::Checkpoint;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

/// Every reference model. They all have a vocabulary of 256, so that each can draft for each.
pub const FIXTURES: [&str; 16] = [
    "bamba",
    "falcon_h1",
    "falcon_h1_norm",
    "granite_h",
    "granite_h_moe",
    "llama",
    "llama3-rope",
    "nemotron_h",
    "nemotron_h_moe",
    "qwen2",
    "qwen3",
    "qwen3-yarn",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_moe",
    "qwen3_next",
];

/// A reference model with what the reference implementation made of it.
#[derive(Clone, Debug, Deserialize)]
pub struct Fixture {
    /// Folder name.
    #[serde(skip)]
    pub name: String,
    /// The folder.
    #[serde(skip)]
    folder: PathBuf,
    /// Prompts that the reference implementation was run on.
    pub prompts: Vec<Vec<TokenId>>,
    /// Greedy continuation of each.
    pub greedy: Vec<Vec<TokenId>>,
    /// Best minus second-best logit at each step of the continuations.
    pub greedy_margin: Vec<Vec<f32>>,
}

impl Fixture {
    /// Reads a fixture's expectations.
    pub fn read(name: &str) -> Self {
        Self::read_in(&repository(), name)
    }

    /// The same in a repository that lies elsewhere.
    pub fn read_in(root: &Path, name: &str) -> Self {
        let folder = root.join("fixtures").join(name);
        Self {
            name: name.to_owned(),
            folder: folder.clone(),
            ..expectations(&folder)
        }
    }

    /// Its model.
    pub fn checkpoint(&self) -> Checkpoint {
        Checkpoint::open(&self.folder).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Its folder.
    pub fn folder(&self) -> PathBuf {
        self.folder.clone()
    }

    /// Logits of the last positions of a prompt.
    pub fn logits(&self, prompt: usize) -> Vec<f32> {
        self.golden(&format!("logits_{prompt}"))
            .unwrap_or_else(|| panic!("no logits for prompt {prompt}"))
    }

    /// Logits of the draft head over prompt 1, where the model has one.
    pub fn mtp_logits(&self) -> Option<Vec<f32>> {
        self.golden("mtp_logits")
    }

    fn golden(&self, tensor: &str) -> Option<Vec<f32>> {
        golden(&self.folder, tensor)
    }
}

/// What a fixture's folder says that must come out.
fn expectations<T: DeserializeOwned>(folder: &Path) -> T {
    let path = folder.join("golden.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Every reference draft head with files of its own.
pub const HEADS: [&str; 3] = ["eagle3", "eagle3-narrow", "eagle3-speculators"];

/// A reference draft head with what a plain computation made of it.
#[derive(Clone, Debug, Deserialize)]
pub struct HeadFixture {
    /// Folder name.
    #[serde(skip)]
    pub name: String,
    /// The folder.
    #[serde(skip)]
    folder: PathBuf,
    /// The reference model it is for.
    pub target: String,
    /// For each prompt of the model, greedy drafts: the first from the model's states, the others from the head's.
    pub chains: Vec<Vec<TokenId>>,
}

impl HeadFixture {
    /// Reads a head's expectations.
    pub fn read(name: &str) -> Self {
        Self::read_in(&repository(), name)
    }

    /// The same in a repository that lies elsewhere.
    pub fn read_in(root: &Path, name: &str) -> Self {
        let folder = root.join("fixtures").join(name);
        Self {
            name: name.to_owned(),
            folder: folder.clone(),
            ..expectations(&folder)
        }
    }

    /// The head.
    pub fn checkpoint(&self) -> Checkpoint {
        Checkpoint::open(&self.folder).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Logits rows at the end of a prompt, each from the states of a token and the token after it.
    pub fn logits(&self, prompt: usize) -> Vec<f32> {
        self.golden(&format!("logits_{prompt}"))
    }

    /// Logits along the chain of a prompt.
    pub fn chain_logits(&self, prompt: usize) -> Vec<f32> {
        self.golden(&format!("chain_logits_{prompt}"))
    }

    fn golden(&self, tensor: &str) -> Vec<f32> {
        golden(&self.folder, tensor).unwrap_or_else(|| panic!("{}: no {tensor}", self.name))
    }
}

fn golden(folder: &Path, tensor: &str) -> Option<Vec<f32>> {
    let path = folder.join("golden.safetensors");
    let file = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let header_len = u64::from_le_bytes(file[..8].try_into().expect("eight bytes")) as usize;
    let header: serde_json::Value = serde_json::from_slice(&file[8..8 + header_len]).expect("a header");
    let offsets = header.get(tensor)?.get("data_offsets").expect("offsets");
    let at = |index: usize| 8 + header_len + offsets[index].as_u64().expect("an offset") as usize;
    let bytes = file[at(0)..at(1)].chunks_exact(4);
    Some(
        bytes
            .map(|b| f32::from_le_bytes(b.try_into().expect("four bytes")))
            .collect(),
    )
}

/// What the reference implementation made of the default model for one prompt.
#[derive(Clone, Debug, Deserialize)]
pub struct DraftReference {
    /// The prompt.
    pub prompt: String,
    /// Its tokens.
    pub prompt_ids: Vec<TokenId>,
    /// Greedy continuation.
    pub greedy: Vec<TokenId>,
    /// Best minus second-best logit at each step.
    pub greedy_margin: Vec<f32>,
    /// For each position of the continuation, the chain of drafts from the true prefix.
    pub mtp_drafts: Vec<Vec<TokenId>>,
}

/// The default model.
pub fn storyteller() -> Checkpoint {
    storyteller_in(&repository())
}

/// The default model of a repository that lies elsewhere.
pub fn storyteller_in(root: &Path) -> Checkpoint {
    Checkpoint::open(&root.join("assets/storyteller")).unwrap_or_else(|e| panic!("{e}"))
}

/// What it should say.
pub fn storyteller_reference() -> Vec<DraftReference> {
    storyteller_reference_in(&repository())
}

/// What the default model of a repository that lies elsewhere should say.
pub fn storyteller_reference_in(root: &Path) -> Vec<DraftReference> {
    let path = root.join("assets/storyteller/reference.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The repository that this was built in.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
