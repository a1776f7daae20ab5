//! A question to a model and its answer as text.

use super::Model;
use crate::{
    EmbeddingError, Event, Failure, FinishReason, Generation, Request, RequestError, SamplingParams, Usage,
};
use paceline_text::{DecodeOptions, TextDecoder, TextError};
use paceline_types::TokenId;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The text cannot be made tokens of, or the chat template refuses the conversation.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A conversation with a model that has no chat template; [`Model::complete`] goes on with texts.
    #[error("the model has no chat template; `complete` goes on with a text")]
    NoTemplate,
    /// The request cannot be served.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] Failure),
    /// There is no vector.
    #[error(transparent)]
    Embedding(#[from] EmbeddingError),
}

/// A question that has not been asked yet. Where nothing is said of sampling, the model's own defaults count, or else
/// those of `paceline chat`; an answer goes on to its end, or to that of the context.
#[must_use = "nothing runs before `text` or `stream`"]
pub struct Ask<'a> {
    model: &'a Model,
    prompt: Result<Vec<TokenId>, AskError>,
    request: Request,
    stop: Vec<String>,
    continues: bool,
}

impl<'a> Ask<'a> {
    pub(super) fn new(model: &'a Model, prompt: Result<Vec<TokenId>, AskError>, continues: bool) -> Self {
        let mut request = Request::default();
        request.sampling_mut().max_tokens = model.engine.max_model_len();
        model.defaults.options().apply(&mut request);
        Self {
            model,
            prompt,
            request,
            stop: Vec::new(),
            continues,
        }
    }

    /// At most this many tokens.
    pub fn max_tokens(self, tokens: usize) -> Self {
        self.sampling(|sampling| sampling.max_tokens = tokens)
    }

    /// 0 takes the likeliest token every time; 1 samples as the model would.
    pub fn temperature(self, temperature: f32) -> Self {
        self.sampling(|sampling| sampling.temperature = temperature)
    }

    /// The same seed gives the same text.
    pub fn seed(self, seed: u64) -> Self {
        self.sampling(|sampling| sampling.seed = seed)
    }

    /// The answer ends before this text; may be said several times.
    pub fn stop(mut self, text: &str) -> Self {
        self.stop.push(text.to_owned());
        self
    }

    /// Everything else that can be said of sampling.
    pub fn sampling(mut self, change: impl FnOnce(&mut SamplingParams)) -> Self {
        change(self.request.sampling_mut());
        self
    }

    /// Asks, and waits for the whole answer.
    pub fn text(self) -> Result<String, AskError> {
        self.stream()?.collect()
    }

    /// Asks, and gives the answer as it comes. Dropping it ends the request.
    pub fn stream(self) -> Result<TextStream, AskError> {
        let Self {
            model,
            prompt,
            mut request,
            stop,
            continues,
        } = self;
        request.prompt = prompt?.into();
        let options = DecodeOptions {
            stop: stop.into(),
            continues,
            ..DecodeOptions::default()
        };
        Ok(TextStream {
            generation: model.engine.generate(request)?,
            decoder: TextDecoder::new(Some(&model.tokenizer), options),
            end: None,
            over: false,
        })
    }
}

/// An answer as it comes, in pieces that are whole characters.
pub struct TextStream {
    generation: Generation,
    decoder: TextDecoder,
    end: Option<(FinishReason, Usage)>,
    over: bool,
}

impl TextStream {
    /// Why the answer ended, and what it took: tokens, times, what drafts did for it. `None` before its end.
    ///
    /// ```
    /// use paceline::FinishReason;
    /// # let model = paceline::Model::start(&paceline_testkit::storyteller(), paceline::EngineConfig::default())?;
    ///
    /// let mut story = model.complete("Once upon a time").max_tokens(16).stream()?;
    /// let text = story.by_ref().collect::<Result<String, _>>()?;
    /// let (reason, usage) = story.end().ok_or("it has ended")?;
    /// assert_eq!((reason, usage.completion_tokens), (FinishReason::Length, 16));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn end(&self) -> Option<(FinishReason, Usage)> {
        self.end
    }

    /// What is held back goes out, once.
    fn rest(&mut self) -> Option<Result<String, AskError>> {
        self.over = true;
        let piece = self.decoder.finish().text;
        (!piece.is_empty()).then_some(Ok(piece))
    }
}

impl Iterator for TextStream {
    type Item = Result<String, AskError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.over {
            let Some(event) = self.generation.next_blocking() else {
                return self.rest();
            };
            match event {
                Event::Delta { output, .. } if self.decoder.stopped().is_none() => {
                    let piece = self.decoder.push_all(output.ids, output.logprobs).text;
                    if self.decoder.stopped().is_some() {
                        // What it took is told with its end, which comes now.
                        self.generation.stop_choice(0);
                    }
                    if !piece.is_empty() {
                        return Some(Ok(piece));
                    }
                }
                Event::Delta { .. } | Event::Prompt { .. } => {}
                Event::Finished { finish, .. } => self.end = Some((finish.reason, finish.usage)),
                Event::Failed(failure) => {
                    self.over = true;
                    return Some(Err(failure.into()));
                }
            }
        }
        None
    }
}
