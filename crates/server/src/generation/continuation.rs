//! A generation that moves: what it takes to go on with it on another server, and going on with one.

use super::{Completion, Finish, GeneratedToken, GenerationTask};
use crate::error::ApiError;
use crate::fields::{Field, Fields, Unknown};
use crate::preparation::Preparing;
use paceline_text::TextDecoder;
use paceline_types::{FinishReason, TokenId};
use serde::Serialize;
use serde_json::value::RawValue;

const FIELD: &str = "continuation";

/// The field `continuation` of requests and replies. With the request as it was first asked, the rest of its text is what
/// it would have been without moving.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Continuation {
    seed: u64,
    /// Tokens that have been given out, with all of their text.
    token_ids: Vec<TokenId>,
}

/// A text that has been given out elsewhere.
#[derive(Clone, Debug, Default)]
pub(crate) struct Resumed {
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) text: String,
    /// What the reply tells of moving, where the client wants to know.
    pub(crate) told: Option<Told>,
}

/// What a reply tells of moving.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    so_far: Continuation,
    begun: bool,
}

impl Field for Continuation {
    fn read(place: &str, json: &RawValue, unknown: &mut Unknown) -> Result<Self, ApiError> {
        let mut fields = Fields::inside(place, json)?;
        let asked = Self {
            seed: fields.require("seed")?,
            token_ids: fields.require("token_ids")?,
        };
        fields.leave(unknown);
        Ok(asked)
    }
}

impl Told {
    /// These tokens are given out. What is told of it: at the beginning of a reply, so that a client can go on whose server
    /// is gone without a word, and at its end if it goes on elsewhere.
    pub(crate) fn add(&mut self, tokens: &[GeneratedToken], finish: Option<&Finish>) -> Option<Continuation> {
        self.so_far.token_ids.extend(tokens.iter().map(|token| token.id));
        let begins = !std::mem::replace(&mut self.begun, true);
        (begins || finish.is_some_and(has_moved)).then(|| self.so_far.clone())
    }

    /// The same for a whole reply.
    pub(crate) fn whole(mut self, completion: &Completion) -> Option<Continuation> {
        self.add(&completion.whole.tokens, completion.finish.as_ref())
    }
}

/// Whether the text goes on elsewhere: what is held back of it is not given out here.
pub(crate) fn has_moved(finish: &Finish) -> bool {
    finish.reason == FinishReason::Moved
}

impl GenerationTask {
    /// Takes the fields of tasks that move, once the prompts are there and it is clear how tokens become text.
    pub(crate) fn take_continuation(
        &mut self,
        model: &Preparing<'_>,
        fields: &mut Fields<'_>,
    ) -> Result<Resumed, ApiError> {
        self.movable = fields.flag("return_continuation")?;
        let asked = fields.take::<Continuation>(FIELD)?;
        let name = if asked.is_some() {
            FIELD
        } else {
            "return_continuation"
        };
        if (asked.is_some() || self.movable) && self.choices() != 1 {
            let message = format!("`{name}` is given for {} choices; one can move", self.choices());
            return Err(ApiError::field(name, message));
        }
        let mut resumed = match asked {
            Some(asked) => self.resume(model, asked)?,
            None => Resumed::default(),
        };
        resumed.told = self.movable.then(|| Told {
            so_far: Continuation {
                seed: self.request.sampling.seed,
                token_ids: resumed.tokens.clone(),
            },
            begun: false,
        });
        Ok(resumed)
    }

    /// Goes on with a text. What was told of the prompt is not told again.
    fn resume(&mut self, model: &Preparing<'_>, asked: Continuation) -> Result<Resumed, ApiError> {
        let tokens = asked.token_ids;
        self.request.generated = tokens.as_slice().into();
        let sampling = self.request.sampling_mut();
        sampling.seed = asked.seed;
        if !tokens.is_empty() {
            sampling.prompt_logprobs = None;
        }
        let mut decoder = TextDecoder::new(model.tokenizer.as_ref(), self.decoding.clone());
        let text = decoder.resume(&tokens).ok_or_else(|| {
            let field = format!("{FIELD}.token_ids");
            let message = format!("`{field}` ends with a stop string: there is nothing to go on with");
            ApiError::field(field, message)
        })?;
        self.resumed = Some(decoder);
        Ok(Resumed {
            tokens,
            text,
            told: None,
        })
    }
}
