//! `paceline chat`.

mod answer;
mod command;
mod conversation;
mod input;
mod local;
mod remote;
mod screen;
mod session;
mod settings;
mod wrap;

use crate::engine::EngineOptions;
use crate::interrupt::Interrupt;
use crate::model::ModelSource;
use crate::ui::Ui;
use crate::{Ending, env};
use answer::{Answer, Part, Question};
use anyhow::Result;
use conversation::Conversation;
use input::Input;
use local::Local;
use remote::Remote;
use screen::Screen;
use session::Session;
use std::io::{self, IsTerminal};
use std::path::PathBuf;

use super::generate::Settings;

/// The model or server to talk to, and the settings.
#[derive(Debug)]
pub(crate) struct ChatConfig {
    /// Where the model is.
    pub(crate) place: Place,
    /// What it is told first.
    pub(crate) system: Option<String>,
    /// Continue texts, template or not.
    pub(crate) plain: bool,
    /// A conversation to go on with.
    pub(crate) load: Option<PathBuf>,
    /// The one message to answer, in place of what is typed.
    pub(crate) message: Option<String>,
    /// Keep what is typed for the next time.
    pub(crate) remember: bool,
    pub(crate) settings: Settings,
}

/// Where a model is.
#[derive(Debug)]
pub(crate) enum Place {
    /// In this process.
    Here {
        model: ModelSource,
        /// How the engine is set up.
        engine: Box<EngineOptions>,
    },
    /// Behind a server.
    Server {
        /// Address of the server, with or without `/v1`.
        url: String,
        /// The model's name there.
        model: Option<String>,
        /// A key to send.
        key: Option<String>,
        /// Certificates to trust.
        ca_file: Option<PathBuf>,
    },
}

/// Runs the command.
pub(crate) fn run(config: ChatConfig, ui: Ui) -> Result<Ending> {
    let interrupt = Interrupt::install()?;
    let mut conversation = match &config.load {
        Some(path) => Conversation::load(path)?,
        None => Conversation::default(),
    };
    conversation.system = config.system.or(conversation.system);
    let speaker = match config.place {
        Place::Here { model, engine } => {
            Speaker::Local(Box::new(Local::open(&model, &engine, config.plain, ui)?))
        }
        Place::Server {
            url,
            model,
            key,
            ca_file,
        } => {
            let key = key.map_or_else(env::api_key, |key| Ok(Some(key)))?;
            let client = crate::client::open(&url, key.as_deref(), ca_file.as_deref())?;
            Speaker::Remote(Box::new(Remote::open(client, model.as_deref(), config.plain)?))
        }
    };
    let terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    let interactive = terminal && config.message.is_none();
    if interactive {
        // The session looks at it from now on; where lines are piped in, Ctrl-C ends the program as usual.
        interrupt.polite();
    }
    let session = Session::new(
        speaker,
        conversation,
        config.settings,
        interrupt,
        Screen::new(interactive, ui),
    );
    let input = match config.message {
        Some(message) => Input::Given(Some(message)),
        None => Input::open(interactive, config.remember)?,
    };
    session.run(input)?;
    Ok(Ending::Done)
}

/// What answers.
enum Speaker {
    Local(Box<Local>),
    Remote(Box<Remote>),
}

impl Speaker {
    /// Answers, showing parts as they come. Ctrl-C ends the answer; what came of it counts.
    fn answer(
        &self,
        question: &Question<'_>,
        interrupt: &Interrupt,
        show: &mut dyn FnMut(Part) -> Result<()>,
    ) -> Result<Answer> {
        match self {
            Self::Local(local) => local.answer(question, interrupt, show),
            Self::Remote(remote) => remote.answer(question, interrupt, show),
        }
    }

    /// The lines that introduce it.
    fn introduction(&self) -> Vec<String> {
        match self {
            Self::Local(local) => local.introduction(),
            Self::Remote(remote) => remote.introduction(),
        }
    }

    /// Whether it continues texts instead of answering.
    fn continues(&self) -> bool {
        match self {
            Self::Local(local) => local.continues(),
            Self::Remote(remote) => remote.continues(),
        }
    }

    /// A name for files.
    fn name(&self) -> &str {
        match self {
            Self::Local(local) => local.name(),
            Self::Remote(remote) => remote.name(),
        }
    }
}
