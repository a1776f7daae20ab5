//! Where prompts come from, and how they become tokens.

mod lines;

use super::{GenerateConfig, Settings};
use crate::model::LoadedModel;
use anyhow::{Context, Result, bail};
use paceline_text::{ChatInput, ChatTemplate};
use paceline_types::{SamplingParams, TokenId};
use serde_json::json;
use std::hash::{BuildHasher, RandomState};
use std::io::Read;
use std::path::{Path, PathBuf};

/// As the user gave them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PromptSource {
    /// One text.
    Text(String),
    /// One list of tokens.
    Ids(Vec<TokenId>),
    /// JSON lines; `-` is stdin.
    File(PathBuf),
}

/// What a prompt says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Text(String),
    Ids(Vec<TokenId>),
}

/// One prompt with its own settings.
#[derive(Clone, Debug)]
pub(super) struct Prompt {
    pub(super) content: Content,
    pub(super) settings: Settings,
    /// File and line, where it has them.
    pub(super) place: Option<String>,
}

/// A prompt ready to run.
pub(super) struct Job {
    pub(super) index: usize,
    pub(super) tokens: Vec<TokenId>,
    pub(super) params: SamplingParams,
    pub(super) stop: Vec<String>,
    pub(super) chat: bool,
    /// File and line, for messages.
    pub(super) place: Option<String>,
    /// What to show as its title.
    pub(super) preview: String,
}

impl PromptSource {
    /// Reads the prompts; nothing of the model is needed, so mistakes show at once.
    pub(super) fn read(&self) -> Result<Vec<Prompt>> {
        let one = |content| {
            vec![Prompt {
                content,
                settings: Settings::default(),
                place: None,
            }]
        };
        match self {
            Self::Text(text) => Ok(one(Content::Text(text.clone()))),
            Self::Ids(ids) => Ok(one(Content::Ids(ids.clone()))),
            Self::File(path) => read_file(path),
        }
    }
}

fn read_file(path: &Path) -> Result<Vec<Prompt>> {
    let (name, text) = if path == Path::new("-") {
        let mut text = String::new();
        let read = std::io::stdin().lock().read_to_string(&mut text);
        ("stdin".to_owned(), read.map(|_| text))
    } else {
        (path.display().to_string(), std::fs::read_to_string(path))
    };
    let text = text.with_context(|| name.clone())?;
    let mut prompts = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let place = format!("{name}, line {}", number + 1);
        let (content, settings) = lines::parse(line).with_context(|| place.clone())?;
        prompts.push(Prompt {
            content,
            settings,
            place: Some(place),
        });
    }
    if prompts.is_empty() {
        bail!("{name}: no prompts; a line looks like {{\"prompt\": \"Once upon a time\"}}");
    }
    Ok(prompts)
}

/// Applies the chat template and the tokenizer, and settles the sampling parameters.
pub(super) fn prepare(
    prompts: Vec<Prompt>,
    config: &GenerateConfig,
    model: &LoadedModel,
) -> Result<Vec<Job>> {
    let mut preparer = Preparer {
        model,
        config,
        template: None,
        // Short enough to be typed again.
        random_seed: RandomState::new().hash_one(0) & 0xffff_ffff,
    };
    let mut jobs = Vec::with_capacity(prompts.len());
    for (index, prompt) in prompts.into_iter().enumerate() {
        let place = prompt.place.clone();
        let job = preparer.prepare(index, prompt);
        jobs.push(match place {
            Some(place) => job.context(place)?,
            None => job?,
        });
    }
    Ok(jobs)
}

struct Preparer<'a> {
    model: &'a LoadedModel,
    config: &'a GenerateConfig,
    /// Compiled when first needed.
    template: Option<ChatTemplate>,
    random_seed: u64,
}

impl Preparer<'_> {
    fn prepare(&mut self, index: usize, prompt: Prompt) -> Result<Job> {
        let settings = prompt.settings.or(&self.config.settings);
        let stop = settings.stop.clone().unwrap_or_default();
        if !stop.is_empty() {
            self.model.require_tokenizer("stop strings")?;
        }
        let is_text = matches!(prompt.content, Content::Text(_));
        let chat = settings.chat.unwrap_or(false) && is_text;
        let preview = match &prompt.content {
            Content::Text(text) => text.clone(),
            Content::Ids(ids) => format!("{} token ids", ids.len()),
        };
        let tokens = match prompt.content {
            Content::Ids(ids) => ids,
            Content::Text(text) if chat => {
                let text = self.render(&text)?;
                self.model
                    .require_tokenizer("a text prompt")?
                    .encode(&text, false)?
            }
            Content::Text(text) => self
                .model
                .require_tokenizer("a text prompt")?
                .encode(&text, true)?,
        };
        let seed = self.random_seed.wrapping_add(index as u64);
        Ok(Job {
            index,
            tokens,
            params: settings.params(self.model.defaults, seed),
            stop,
            chat,
            place: prompt.place,
            preview,
        })
    }

    /// The text of a conversation with this message.
    fn render(&mut self, message: &str) -> Result<String> {
        if self.template.is_none() {
            self.template = self.model.template()?;
        }
        let template = self.template.as_ref().with_context(|| {
            format!(
                "{}: the model has no chat template; leave out --chat to continue the text as it is",
                self.model.source
            )
        })?;
        let system = self.config.system.iter();
        let system = system.map(|text| json!({ "role": "system", "content": text }));
        let user = json!({ "role": "user", "content": message });
        let input = ChatInput {
            messages: system.chain([user]).collect(),
            add_generation_prompt: true,
            ..ChatInput::default()
        };
        template.render(&input).context("chat template")
    }
}
