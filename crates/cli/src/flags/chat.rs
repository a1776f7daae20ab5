//! The flags of `chat`.

use super::engine::{EngineFlags, ModelFlags};
use super::numbers::{self, parsed};
use super::sampling::{Chat, OptionFlags};
use super::speculation::SpeculationFlags;
use crate::commands::chat::{ChatConfig, Place};
use crate::commands::generate::Settings;
use crate::model::{EMBEDDED, ModelSource};
use clap::Args;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  paceline chat
  paceline chat org/name --system \"Answer briefly.\" --temperature 0.7
  paceline chat --base-url http://127.0.0.1:8000
  echo \"Tell me about a fox.\" | paceline chat --quiet > story.txt

At the prompt: /help lists the commands. A line that ends in \\ goes on in the next one; //text is
a message that starts with a slash. Ctrl-C stops an answer and keeps what came of it, Ctrl-D leaves.
If stdin is no terminal, every line is a message or a command, and stdout gets answers and
what commands show.";

/// What only an engine of our own can be told.
const ENGINE: [&str; 20] = [
    "dtype",
    "quantize",
    "device",
    "threads",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "block_size",
    "num_blocks",
    "kv_cache_memory",
    "memory_utilization",
    "no_prefix_caching",
    "pipeline_depth",
    "speculation",
    "draft_tokens",
    "draft_model",
    "ngram_min",
    "ngram_max",
    "no_depth_control",
    "speculative_config",
];

const RUN: &str = "\
Examples:
  paceline run
  paceline run org/name
  paceline run org/name:Q4_K_M \"Why is the sky blue?\"
  paceline run hf.co/org/name --temperature 0.7

What is said at the prompt is what `paceline chat` understands; /help lists it. `paceline list` shows
the models that are there, `paceline rm` removes them.";

/// Talk to a model in the terminal.
///
/// With a model of this machine, or with --base-url through any server that has OpenAI's interface. Models without
/// a chat template continue the text instead.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ChatFlags {
    /// The model, in place of --model; with --base-url its name there [default: the first that the server lists].
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    model_argument: Option<String>,
    #[command(flatten)]
    talk: TalkFlags,
}

/// Get a model if it is not there yet, and talk to it.
///
/// With a text behind the model, that is answered, and nothing more.
#[derive(Debug, Args)]
#[command(after_help = RUN)]
pub(crate) struct RunFlags {
    /// The model, unless --model names it; with --base-url its name there [default: the first that the server lists].
    #[arg(value_name = "MODEL")]
    model_argument: Option<String>,
    #[command(flatten)]
    talk: TalkFlags,
    /// A message to answer in place of a conversation.
    #[arg(value_name = "MESSAGE")]
    message: Vec<String>,
}

// Plain comments: a doc comment would replace the description of the commands.

// A conversation, its model and its engine.
#[derive(Debug, Args)]
struct TalkFlags {
    #[command(flatten)]
    model: ModelFlags,

    /// Talk through the server at this address, with or without /v1.
    #[arg(long, value_name = "URL", conflicts_with_all = ENGINE, help_heading = "Server")]
    base_url: Option<String>,
    /// Key to send to it [default: $PACELINE_API_KEY].
    #[arg(long, value_name = "KEY", requires = "base_url", help_heading = "Server")]
    api_key: Option<String>,
    /// Certificates to trust there, in place of the usual authorities (PEM).
    #[arg(long, value_name = "FILE", requires = "base_url", help_heading = "Server")]
    ca_file: Option<PathBuf>,

    /// What the model is told before the conversation.
    #[arg(long, value_name = "TEXT", help_heading = "Conversation")]
    system: Option<String>,
    /// Continue the text without a chat template.
    #[arg(long, help_heading = "Conversation")]
    plain: bool,
    /// Start with a conversation that /save wrote.
    #[arg(long, value_name = "FILE", help_heading = "Conversation")]
    load: Option<PathBuf>,
    /// Do not remember what was typed for the next time.
    #[arg(long, help_heading = "Conversation")]
    no_history: bool,

    #[command(flatten)]
    options: OptionFlags<Chat>,

    /// Steps in flight, 1 to 4: with more than 1 the host prepares a step while another runs.
    #[arg(long, value_name = "N", default_value = "2", value_parser = parsed(numbers::pipeline_depth), help_heading = "Engine")]
    pipeline_depth: usize,
    #[command(flatten)]
    engine: EngineFlags,
}

impl ChatFlags {
    /// The flags about drafts.
    pub(super) fn speculation(&self) -> &SpeculationFlags {
        &self.talk.engine.speculation
    }

    /// What the flags mean.
    pub(crate) fn into_config(self) -> ChatConfig {
        self.talk.into_config(self.model_argument)
    }
}

impl RunFlags {
    /// The flags about drafts.
    pub(super) fn speculation(&self) -> &SpeculationFlags {
        &self.talk.engine.speculation
    }

    /// What the flags mean.
    pub(crate) fn into_config(mut self) -> ChatConfig {
        // With --model, every word is the message's.
        if self.talk.model.is_named() {
            self.message.splice(..0, self.model_argument.take());
        }
        let message = self.message.join(" ");
        ChatConfig {
            message: Some(message).filter(|message| !message.trim().is_empty()),
            ..self.talk.into_config(self.model_argument)
        }
    }

    /// What is wrong if a text stands where the model should.
    pub(super) fn misplaced_text(&self) -> Option<String> {
        let text = self
            .model_argument
            .as_ref()
            .filter(|_| !self.talk.model.is_named())?;
        let is_text = text.trim().contains(char::is_whitespace) && !Path::new(text).exists();
        is_text.then(|| {
            format!(
                "`{text}` is no model: name one before the text, as in `paceline run {EMBEDDED} \"{text}\"`"
            )
        })
    }
}

impl TalkFlags {
    fn into_config(self, model_argument: Option<String>) -> ChatConfig {
        let mut engine = self.engine.options(&self.model);
        engine.config.pipeline_depth = self.pipeline_depth;
        let model = self.model.name(model_argument);
        let place = match self.base_url {
            Some(url) => Place::Server {
                url,
                model,
                key: self.api_key,
                ca_file: self.ca_file,
            },
            None => Place::Here {
                model: ModelSource::new(model),
                engine: Box::new(engine),
            },
        };
        ChatConfig {
            place,
            system: self.system,
            plain: self.plain,
            load: self.load,
            message: None,
            remember: !self.no_history,
            settings: Settings {
                options: self.options.0,
                ..Settings::default()
            },
        }
    }
}
