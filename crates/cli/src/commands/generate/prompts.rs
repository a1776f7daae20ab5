//! Where prompts come from, and how they become tokens.

pub(crate) mod lines;

use super::Settings;
use crate::engine::Demand;
use crate::model::LoadedModel;
use crate::seed;
use anyhow::{Context, Result, bail};
use paceline::Request;
use paceline_text::{ChatInput, ChatTemplate, DecodeOptions};
use paceline_types::TokenId;
use serde_json::json;
use std::io::Read;
use std::path::{Path, PathBuf};

/// As the user gave them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PromptSource {
    /// `--prompt`.
    Text(String),
    /// One list of tokens.
    Ids(Vec<TokenId>),
    /// JSON lines; `-` is stdin.
    File(PathBuf),
    /// What is piped in.
    Stdin,
}

/// What a prompt says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Text(String),
    Ids(Vec<TokenId>),
}

/// One prompt with its own settings.
#[derive(Clone, Debug)]
pub(crate) struct Prompt {
    pub(super) content: Content,
    pub(super) settings: Settings,
    /// File and line, where it has them.
    pub(super) place: Option<String>,
}

/// A prompt ready to run.
pub(crate) struct Job {
    pub(crate) index: usize,
    /// For the engine.
    pub(crate) request: Request,
    /// How its tokens become text.
    pub(crate) decoding: DecodeOptions,
    /// The prompt as text.
    pub(crate) text: String,
    /// Whether the continuation is printed behind it.
    pub(crate) echo: bool,
    /// Whether it is a message, written as the model's template does.
    pub(crate) chat: bool,
    /// File and line, for messages.
    pub(crate) place: Option<String>,
    /// What to show as its title.
    pub(crate) preview: String,
}

impl Job {
    /// Continuations of the prompt.
    pub(crate) fn n(&self) -> usize {
        self.request.n.unwrap_or(1)
    }

    /// A continuation, behind the prompt if that is wanted.
    pub(crate) fn spelled(&self, continuation: &str) -> String {
        let prompt = if self.echo { self.text.as_str() } else { "" };
        format!("{prompt}{continuation}")
    }

    /// A failure of this job, with its place if it has one.
    pub(crate) fn failure(&self, error: anyhow::Error) -> anyhow::Error {
        match &self.place {
            Some(place) => error.context(place.clone()),
            None => error,
        }
    }

    /// Checks that the prompt leaves room for a token in sequences of `limit` tokens.
    pub(crate) fn check_length(&self, limit: usize) -> Result<()> {
        let tokens = self.request.prompt.len();
        if tokens == 0 {
            bail!("the prompt has no tokens; give at least one");
        }
        if tokens >= limit {
            bail!(
                "the prompt has {tokens} tokens; the context holds {limit}, one of which must be left to generate"
            );
        }
        Ok(())
    }
}

/// What these jobs ask of an engine.
pub(crate) fn demand(jobs: &[Job]) -> Demand {
    let length = |job: &Job| {
        let Request { prompt, sampling, .. } = &job.request;
        prompt.len().saturating_add(sampling.max_tokens)
    };
    Demand {
        sequences: jobs.iter().map(Job::n).sum(),
        choices: jobs.iter().map(Job::n).max().unwrap_or(1),
        longest: jobs.iter().map(length).max().unwrap_or(1),
    }
}

impl PromptSource {
    /// Reads the prompts; nothing of the model is needed, so mistakes show at once.
    pub(crate) fn read(&self) -> Result<Vec<Prompt>> {
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
            Self::Stdin => Ok(one(Content::Text(piped()?))),
        }
    }
}

/// The text that is piped in, without the end of its last line.
fn piped() -> Result<String> {
    let mut text = String::new();
    std::io::stdin()
        .lock()
        .read_to_string(&mut text)
        .context("stdin")?;
    if text.trim().is_empty() {
        crate::flags::refuse_usage("stdin is empty; pipe a prompt in, or give one with --prompt");
    }
    let line = text.strip_suffix('\n').unwrap_or(&text);
    Ok(line.strip_suffix('\r').unwrap_or(line).to_owned())
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

/// Applies the chat template and the tokenizer, and settles the sampling parameters: a line's own, else the
/// `settings`, else the model's.
pub(crate) fn prepare(
    prompts: Vec<Prompt>,
    model: &LoadedModel,
    settings: &Settings,
    system: Option<&str>,
) -> Result<Vec<Job>> {
    let mut preparer = Preparer {
        model,
        settings,
        system,
        template: None,
        // Short enough to be typed again.
        random_seed: seed::random(),
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
    settings: &'a Settings,
    system: Option<&'a str>,
    /// Compiled when first needed.
    template: Option<ChatTemplate>,
    random_seed: u64,
}

impl Preparer<'_> {
    fn prepare(&mut self, index: usize, prompt: Prompt) -> Result<Job> {
        let settings = prompt.settings.or(self.settings);
        let is_text = matches!(prompt.content, Content::Text(_));
        let chat = settings.chat.unwrap_or(false) && is_text;
        let preview = match &prompt.content {
            Content::Text(text) => text.clone(),
            Content::Ids(ids) => format!("{} token ids", ids.len()),
        };
        let (text, tokens) = self.encode(prompt.content, chat)?;
        let mut neutral = Request {
            prompt: tokens.into(),
            ..Request::default()
        };
        neutral.sampling_mut().seed = self.random_seed.wrapping_add(index as u64);
        // An answer is a text of its own, anything else goes on where the prompt ended.
        let (request, decoding) = settings.request(self.model, neutral, !chat)?;
        let echo = settings.echo.unwrap_or(false);
        Ok(Job {
            index,
            request,
            decoding,
            text,
            echo,
            chat,
            place: prompt.place,
            preview,
        })
    }

    /// A prompt as text and as tokens.
    fn encode(&mut self, content: Content, chat: bool) -> Result<(String, Vec<TokenId>)> {
        match content {
            Content::Ids(ids) => {
                let text = match &self.model.tokenizer {
                    Some(tokenizer) => tokenizer.decode(&ids, false).unwrap_or_default(),
                    // Continued by further ids.
                    None => ids
                        .iter()
                        .flat_map(|id| [id.to_string(), " ".to_owned()])
                        .collect(),
                };
                Ok((text, ids))
            }
            Content::Text(text) => {
                let text = if chat { self.render(&text)? } else { text };
                let tokenizer = self.model.require_tokenizer("a text prompt")?;
                // A template writes the special tokens itself.
                let tokens = tokenizer.encode(&text, !chat)?;
                Ok((text, tokens))
            }
        }
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
        let system = self.system.iter();
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
