//! A model as most programs want it: text in, text out.

mod ask;
mod parts;

pub use ask::{Ask, AskError, TextStream};
pub use parts::{TextParts, TextPartsError};

use crate::{EmbeddingRequest, Engine, EngineConfig, Handle, Pooling, SamplingDefaults, StartError};
use paceline_text::{ChatInput, ChatTemplate, TextError, Tokenizer};
use paceline_types::TokenId;
use paceline_weights::hub::{self, HubConfig, HubError, NoProgress};
use paceline_weights::{Checkpoint, WeightsError};
use serde_json::{Value, json};

/// Why a model cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// There is no such file, and no such model on the hub.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// Its files cannot be read.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// Its tokenizer, template or sampling defaults cannot be used.
    #[error(transparent)]
    Text(#[from] TextPartsError),
    /// Its chat template cannot be used.
    #[error("{model}: {cause}")]
    Template {
        /// The model.
        model: String,
        /// What is wrong with it.
        cause: TextError,
    },
    /// It comes without a tokenizer; [`Engine`] works on token ids.
    #[error("{0}: the model has no tokenizer; `paceline::Engine` works on token ids")]
    NoTokenizer(String),
    /// The engine does not start.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// A model that runs: text in, text out, with all that the engine has (drafts, prefix cache, batches) behind it.
///
/// It may be asked by many threads at once; their requests run as one batch, and each gets what it would get alone.
///
/// ```no_run
/// let model = paceline::Model::load("model.gguf")?;
/// println!("{}", model.complete("Once upon a time").max_tokens(64).text()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Model {
    engine: Handle,
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    defaults: SamplingDefaults,
}

impl Model {
    /// Loads a model and starts it on the best device there is: a folder in Hugging Face layout, a GGUF file, or a model of
    /// the hub (`org/name`, `org/name:Q4_K_M`), which is downloaded unless it is here.
    pub fn load(name: &str) -> Result<Self, LoadError> {
        Self::load_with(name, EngineConfig::default())
    }

    /// The same with an engine of this configuration.
    pub fn load_with(name: &str, config: EngineConfig) -> Result<Self, LoadError> {
        let path = hub::resolve(name, &HubConfig::from_env(), &NoProgress)?;
        Self::start(&Checkpoint::open(&path)?, config)
    }

    /// Starts a model whose files are open.
    ///
    /// ```
    /// use paceline::{EngineConfig, Model};
    /// # let checkpoint = paceline_testkit::storyteller();
    ///
    /// let model = Model::start(&checkpoint, EngineConfig::default())?;
    /// let story = model.complete("Once upon a time").temperature(0.0).max_tokens(8).text()?;
    /// assert_eq!(story, ", there was a little girl named Tilly");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn start(checkpoint: &Checkpoint, config: EngineConfig) -> Result<Self, LoadError> {
        let parts = TextParts::of(checkpoint)?;
        let model = || checkpoint.source().to_owned();
        let template = parts.template().map_err(|cause| LoadError::Template {
            model: model(),
            cause,
        })?;
        let tokenizer = parts.tokenizer.ok_or_else(|| LoadError::NoTokenizer(model()))?;
        Ok(Self {
            engine: Engine::start(checkpoint, config, &|_| {})?,
            tokenizer,
            template,
            defaults: SamplingDefaults::for_people(&parts.sampling),
        })
    }

    /// A text to go on with. Nothing runs before the answer is asked for.
    ///
    /// ```
    /// # let model = paceline::Model::start(&paceline_testkit::storyteller(), paceline::EngineConfig::default())?;
    /// // As it comes.
    /// for piece in model.complete("The little dog").max_tokens(16).stop(".").stream()? {
    ///     print!("{}", piece?);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn complete(&self, prompt: &str) -> Ask<'_> {
        let tokens = self.tokenizer.encode(prompt, true).map_err(AskError::Text);
        Ask::new(self, tokens, true)
    }

    /// A conversation to answer: messages as (role, text), the role being `system`, `user` or `assistant`.
    ///
    /// ```
    /// # let model = paceline::Model::start(&paceline_testkit::storyteller(), paceline::EngineConfig::default())?;
    /// let mut talk = vec![("user", "Tell me about a fox.".to_owned())];
    /// let answer = model.chat(&talk).max_tokens(16).text()?;
    /// talk.push(("assistant", answer));
    /// talk.push(("user", "And then?".to_owned()));
    /// assert!(!model.chat(&talk).max_tokens(16).text()?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn chat(&self, messages: &[(impl AsRef<str>, impl AsRef<str>)]) -> Ask<'_> {
        let message = |(role, text): &(_, _)| -> Value {
            let (role, text): (&str, &str) = (AsRef::as_ref(role), AsRef::as_ref(text));
            json!({ "role": role, "content": text })
        };
        let tokens = self.conversation(messages.iter().map(message).collect());
        Ask::new(self, tokens, false)
    }

    fn conversation(&self, messages: Vec<Value>) -> Result<Vec<TokenId>, AskError> {
        let template = self.template.as_ref().ok_or(AskError::NoTemplate)?;
        let input = ChatInput {
            messages,
            add_generation_prompt: true,
            ..ChatInput::default()
        };
        // The template writes the special tokens itself.
        Ok(self.tokenizer.encode(&template.render(&input)?, false)?)
    }

    /// The vector of a text: the mean of the model's final states of its tokens, of length 1.
    ///
    /// ```
    /// # let model = paceline::Model::start(&paceline_testkit::storyteller(), paceline::EngineConfig::default())?;
    /// let [dog, puppy, sea] = ["The dog ran.", "The puppy ran.", "Waves on the sea"].map(|text| model.embed(text).unwrap());
    /// let alike = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    /// assert!(alike(&dog, &puppy) > alike(&dog, &sea));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn embed(&self, text: &str) -> Result<Vec<f32>, AskError> {
        let tokens = self.tokenizer.encode(text, true)?;
        let request = EmbeddingRequest::new(tokens, Pooling::Mean);
        let mut values = self.engine.embed(request)?.wait()?.values;
        let length = values.iter().map(|value| value * value).sum::<f32>().sqrt();
        if length > 0.0 {
            for value in &mut values {
                *value /= length;
            }
        }
        Ok(values)
    }

    /// The engine behind it, for what a text cannot say: constraints, several continuations, log-probabilities, `async`.
    pub fn engine(&self) -> &Handle {
        &self.engine
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }
}
