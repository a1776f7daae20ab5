//! What callers ask of the engine, and the checks it passes before anything runs.

use crate::options::OPTIONS;
use crate::speculation::{Speculation, SpeculationMethod};
use crate::{EmbeddingRequest, RequestError};
use paceline_runner::list_words;
use paceline_schedule::{CheckedRequest, Clock, GroupId, RealClock, RequestId};
use paceline_types::{Constraint, DraftBudget, SamplingParams, TokenId};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The longest deadline: a week.
pub const MAX_DEADLINE: Duration = Duration::from_hours(7 * 24);

/// Most continuations of one prompt, however many slots there are.
pub(crate) const MAX_CHOICES: usize = 128;

/// Continuations of one prompt.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Tokens to continue. They are shared from here on, down to the scheduler.
    pub prompt: Arc<[TokenId]>,
    /// Tokens of the continuation that exist already: what comes goes on behind them, as though the request had been here
    /// from its beginning. Noise, penalties, lengths, constraint and usage count from the end of the prompt. For one
    /// continuation only.
    pub generated: Arc<[TokenId]>,
    /// How tokens are chosen; shared in the same way.
    pub sampling: Arc<SamplingParams>,
    /// Continuations; the first uses the seed as given, the others seeds derived from it.
    pub n: Option<usize>,
    /// Lower comes first; 0 if not given.
    pub priority: i32,
    /// Give up after this long, finished or not; at most [`MAX_DEADLINE`].
    pub deadline: Option<Duration>,
    /// Drafts for this request; by default what the engine does.
    pub speculation: RequestSpeculation,
    /// What each continuation must follow, if anything, such as a grammar; see the [crate](crate#structured-output).
    pub constraint: Option<Arc<dyn Constraint>>,
    /// Whose it is: waiting is shared fairly between tenants. 0 if there is only one.
    pub tenant: u32,
    /// Only requests with the same salt share cached prefixes.
    pub salt: u64,
    /// Dropped as soon as the request has ended in the engine, read or not: such as a place within the caller's limits.
    pub held: Option<Arc<dyn Any + Send + Sync>>,
}

/// What a request says of drafts. They change how fast it is, never what it gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestSpeculation {
    /// Only by these means of those that the engine has.
    pub method: SpeculationMethod,
    /// Most drafts per step.
    pub max_tokens: Option<usize>,
}

impl Request {
    /// Continuations asked for.
    pub(crate) fn count(&self) -> usize {
        self.n.unwrap_or(1)
    }

    /// The sampling parameters, to be filled in.
    pub fn sampling_mut(&mut self) -> &mut SamplingParams {
        Arc::make_mut(&mut self.sampling)
    }
}

/// Parameters of continuation `choice`: those of the first are the request's own.
fn params_of(sampling: &Arc<SamplingParams>, choice: usize) -> Arc<SamplingParams> {
    if choice == 0 {
        return Arc::clone(sampling);
    }
    Arc::new(SamplingParams {
        seed: seed_of(sampling.seed, choice),
        prompt_logprobs: None,
        ..SamplingParams::clone(sampling)
    })
}

/// The seed of a continuation. Choice 0 keeps the seed, so `n` = 1 and the first of many are the same text.
fn seed_of(seed: u64, choice: usize) -> u64 {
    seed.wrapping_add((choice as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// The continuations of a request that has passed every check, each as the scheduler takes it; they share the prompt.
/// [`Handle::check`](crate::Handle::check) alone makes them.
#[derive(Debug)]
pub struct Continuations {
    pub(crate) requests: Vec<CheckedRequest>,
    pub(crate) held: Option<Arc<dyn Any + Send + Sync>>,
}

/// What requests are checked against, and what those that pass are given.
#[derive(Debug)]
pub(crate) struct Bounds {
    pub(crate) vocabulary: usize,
    /// Elements of a state.
    pub(crate) width: usize,
    pub(crate) max_model_len: usize,
    pub(crate) max_choices: usize,
    pub(crate) eos: Vec<TokenId>,
    pub(crate) speculation: Speculation,
    /// Whether requests may have constraints.
    pub(crate) constraints: bool,
    /// Of deadlines.
    pub(crate) clock: RealClock,
    /// The id of the next request.
    pub(crate) next_id: AtomicU64,
}

impl Bounds {
    /// Tokens that end the text.
    pub(crate) fn stop_tokens(&self, params: &SamplingParams) -> Vec<TokenId> {
        let own = if params.ignore_eos { &[][..] } else { &self.eos };
        let mut tokens: Vec<TokenId> = own.iter().chain(&params.stop_tokens).copied().collect();
        tokens.sort_unstable();
        tokens.dedup();
        tokens
    }

    /// Checks everything that can be wrong with a request; each error names the field, its value and its bound.
    pub(crate) fn check(&self, mut request: Request) -> Result<Continuations, RequestError> {
        self.check_fields(&request)?;
        let stop_tokens = self.stop_tokens(&request.sampling);
        list_words(&request.sampling, &stop_tokens)?;
        // No text is longer than the context: a longer minimum means as long as it can be.
        if request.sampling.min_tokens > self.max_model_len {
            request.sampling_mut().min_tokens = self.max_model_len;
        }
        let length = request.prompt.len().saturating_add(request.sampling.max_tokens);
        let max_length = length.min(self.max_model_len);
        self.check_generated(&request, max_length - request.prompt.len())?;
        let speculation = self.drafts(&request.speculation)?;
        let choices = request.count();
        let first_id = self.take_ids(choices);
        let first = CheckedRequest {
            id: RequestId(first_id),
            prompt: request.prompt,
            generated: request.generated,
            params: request.sampling,
            stop_tokens: stop_tokens.into(),
            priority: request.priority,
            tenant: request.tenant,
            deadline: self.deadline(request.deadline),
            salt: request.salt,
            max_length,
            group: (choices > 1).then_some(GroupId(first_id)),
            speculation,
            constraint: request.constraint,
            pooling: None,
        };
        let continuation = |choice| CheckedRequest {
            id: RequestId(first_id + choice as u64),
            params: params_of(&first.params, choice),
            ..first.clone()
        };
        Ok(Continuations {
            requests: (0..choices).map(continuation).collect(),
            held: request.held,
        })
    }

    /// The same for a text that becomes a vector.
    pub(crate) fn check_embedding(&self, request: EmbeddingRequest) -> Result<CheckedRequest, RequestError> {
        self.check_prompt("input", &request.prompt, false)?;
        check_deadline(request.deadline)?;
        Ok(CheckedRequest {
            id: RequestId(self.take_ids(1)),
            max_length: request.prompt.len(),
            prompt: request.prompt,
            generated: Arc::default(),
            params: Arc::default(),
            stop_tokens: Arc::default(),
            priority: request.priority,
            tenant: request.tenant,
            deadline: self.deadline(request.deadline),
            salt: request.salt,
            group: None,
            speculation: DraftBudget::NONE,
            constraint: None,
            pooling: Some(request.pooling),
        })
    }

    /// Ids for `count` requests: the first of them.
    fn take_ids(&self, count: usize) -> u64 {
        self.next_id.fetch_add(count as u64, Ordering::Relaxed)
    }

    /// When a request that may take this long is dropped. Within bounds, which are far from where the sum ends.
    fn deadline(&self, wait: Option<Duration>) -> Option<u64> {
        wait.map(|wait| self.clock.now_ns() + wait.as_nanos() as u64)
    }

    fn check_fields(&self, request: &Request) -> Result<(), RequestError> {
        let params = &request.sampling;
        self.check_prompt("prompt", &request.prompt, true)?;
        check_deadline(request.deadline)?;
        for option in OPTIONS {
            option.check(request)?;
        }
        let (least, most) = (params.min_tokens, params.max_tokens);
        ensure("min_tokens", least <= most, &least, || {
            format!("at most max_tokens, {most}")
        })?;
        let biases = params.logit_bias.iter().all(|(_, bias)| bias.is_finite());
        ensure("logit_bias", biases, &"not finite", || {
            "finite numbers".to_owned()
        })?;
        let n = request.count();
        ensure("n", n >= 1 && n <= self.max_choices, &n, || {
            format!("within 1..={}", self.max_choices)
        })?;
        let bias_tokens = params.logit_bias.iter().map(|(token, _)| *token);
        self.check_tokens("logit_bias", bias_tokens)?;
        self.check_tokens("stop_token_ids", params.stop_tokens.iter().copied())?;
        self.check_tokens("bad_words", params.bad_words.iter().flatten().copied())?;
        let empty = params.bad_words.iter().any(Vec::is_empty);
        ensure("bad_words", !empty, &"[]", || {
            "sequences of at least one token".to_owned()
        })?;
        let possible = self.constraints || request.constraint.is_none();
        ensure("constraint", possible, &"given", || {
            "left out: the engine was started without constraints".to_owned()
        })
    }

    /// What exists already of a continuation leaves room for more of it, and belongs to the only one.
    fn check_generated(&self, request: &Request, room: usize) -> Result<(), RequestError> {
        const FIELD: &str = "generated";
        let (tokens, n) = (request.generated.len(), request.count());
        ensure(FIELD, tokens < room, &format!("{tokens} tokens long"), || {
            format!("shorter than the continuation may become, {room} tokens")
        })?;
        ensure("n", tokens == 0 || n == 1, &n, || {
            "1 where a continuation goes on".to_owned()
        })?;
        self.check_tokens(FIELD, request.generated.iter().copied())
    }

    /// Most drafts that a request may have from each source.
    pub(crate) fn drafts(&self, asked: &RequestSpeculation) -> Result<DraftBudget, RequestError> {
        let engine = &self.speculation;
        let most = engine.draft_tokens;
        let tokens = asked.max_tokens.unwrap_or(most);
        ensure("speculation.max_tokens", tokens <= most, &tokens, || {
            format!("at most {most}, what the engine was started with")
        })?;
        let (ngram, neural) = match asked.method {
            SpeculationMethod::Off => (false, false),
            SpeculationMethod::Auto => (engine.ngram.is_some(), engine.neural.is_some()),
            method => {
                let available = engine.methods();
                ensure(
                    "speculation.method",
                    available.contains(&method),
                    &method.name(),
                    || {
                        let names: Vec<_> = available.iter().map(|method| method.name()).collect();
                        format!("one that the engine was started with: {}", names.join(", "))
                    },
                )?;
                let (chain, text) = (
                    method == SpeculationMethod::Chain,
                    method == SpeculationMethod::Ngram,
                );
                (chain || text, !text)
            }
        };
        let count = |on: bool| if on { tokens } else { 0 };
        Ok(DraftBudget {
            ngram: count(ngram),
            neural: count(neural),
        })
    }

    fn check_prompt(
        &self,
        field: &'static str,
        prompt: &[TokenId],
        generates: bool,
    ) -> Result<(), RequestError> {
        let tokens = prompt.len();
        ensure(field, tokens > 0, &"0 tokens long", || {
            "at least one token long".to_owned()
        })?;
        if tokens + usize::from(generates) > self.max_model_len {
            return Err(RequestError::PromptTooLong {
                field: field.to_owned(),
                tokens,
                limit: self.max_model_len,
                generates,
            });
        }
        self.check_tokens(field, prompt.iter().copied())
    }

    fn check_tokens(
        &self,
        field: &'static str,
        mut tokens: impl Iterator<Item = TokenId>,
    ) -> Result<(), RequestError> {
        match tokens.find(|token| *token as usize >= self.vocabulary) {
            Some(token) => {
                let last = self.vocabulary - 1;
                ensure(field, false, &format!("with token {token}"), || {
                    format!("made of tokens up to {last}, where the vocabulary ends")
                })
            }
            None => Ok(()),
        }
    }
}

fn check_deadline(deadline: Option<Duration>) -> Result<(), RequestError> {
    let wait = deadline.unwrap_or(MAX_DEADLINE);
    ensure("deadline", wait <= MAX_DEADLINE, &format!("{wait:?}"), || {
        format!("at most {MAX_DEADLINE:?}, a week")
    })
}

fn ensure(
    field: &'static str,
    holds: bool,
    value: &dyn std::fmt::Display,
    bound: impl FnOnce() -> String,
) -> Result<(), RequestError> {
    if holds {
        return Ok(());
    }
    Err(RequestError::Parameter {
        field,
        value: value.to_string(),
        bound: bound(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NeuralDrafter;

    fn bounds() -> Bounds {
        Bounds {
            vocabulary: 100,
            width: 8,
            max_model_len: 32,
            max_choices: 4,
            eos: vec![2, 0],
            speculation: Speculation {
                ngram: Some((2, 4)),
                neural: Some(NeuralDrafter::Mtp),
                draft_tokens: 5,
                depth_control: true,
                draft_vocabulary: crate::DraftVocabulary::Whole,
            },
            constraints: true,
            clock: RealClock::start(),
            next_id: AtomicU64::new(0),
        }
    }

    fn with(change: impl FnOnce(&mut Request)) -> Request {
        let mut request = Request {
            prompt: [1, 2, 3].into(),
            ..Request::default()
        };
        change(&mut request);
        request
    }

    #[test]
    fn what_cannot_be_served_is_refused_by_name() {
        let cases: [(&str, Request); 20] = [
            (
                "deadline",
                with(|r| r.deadline = Some(Duration::from_millis(u64::MAX))),
            ),
            ("prompt", with(|r| r.prompt = [].into())),
            ("prompt", with(|r| r.prompt = vec![1; 32].into())),
            ("prompt", with(|r| r.prompt = [1, 100].into())),
            ("n", with(|r| r.n = Some(0))),
            ("n", with(|r| r.n = Some(5))),
            ("temperature", with(|r| r.sampling_mut().temperature = -0.1)),
            (
                "temperature",
                with(|r| r.sampling_mut().temperature = f32::INFINITY),
            ),
            ("top_p", with(|r| r.sampling_mut().top_p = 0.0)),
            ("min_p", with(|r| r.sampling_mut().min_p = 1.1)),
            ("max_tokens", with(|r| r.sampling_mut().max_tokens = 0)),
            ("min_tokens", with(|r| r.sampling_mut().min_tokens = 1000)),
            (
                "repetition_penalty",
                with(|r| r.sampling_mut().repetition_penalty = 0.0),
            ),
            (
                "presence_penalty",
                with(|r| r.sampling_mut().presence_penalty = 3.0),
            ),
            (
                "stop_token_ids",
                with(|r| r.sampling_mut().stop_tokens = vec![100]),
            ),
            (
                "logit_bias",
                with(|r| r.sampling_mut().logit_bias = vec![(3, f32::NAN)]),
            ),
            ("bad_words", with(|r| r.sampling_mut().bad_words = vec![vec![]])),
            ("logprobs", with(|r| r.sampling_mut().logprobs = Some(21))),
            (
                "speculation.max_tokens",
                with(|r| r.speculation.max_tokens = Some(6)),
            ),
            (
                "speculation.method",
                with(|r| r.speculation.method = SpeculationMethod::Eagle3),
            ),
        ];
        for (field, request) in cases {
            let message = bounds().check(request).expect_err(field).to_string();
            assert!(message.contains(&format!("`{field}`")), "{message}");
        }
        let too_many = with(|r| r.sampling_mut().logit_bias = vec![(1, 0.5); 600]);
        assert!(matches!(bounds().check(too_many), Err(RequestError::Lists(_))));
        let endless = with(|r| {
            r.sampling_mut().max_tokens = usize::MAX;
            r.sampling_mut().min_tokens = usize::MAX;
        });
        let checked = bounds().check(endless).unwrap();
        let [request] = checked.requests.as_slice() else {
            panic!("one continuation: {checked:?}");
        };
        assert_eq!((request.max_length, request.params.min_tokens), (32, 32));
    }

    #[test]
    fn a_request_says_which_drafts_it_takes() {
        use SpeculationMethod as M;
        for (method, max_tokens, ngram, neural) in [
            (M::Auto, None, 5, 5),
            (M::Chain, Some(2), 2, 2),
            (M::Ngram, None, 5, 0),
            (M::Mtp, Some(3), 0, 3),
            (M::Off, None, 0, 0),
            (M::Auto, Some(0), 0, 0),
        ] {
            let asked = RequestSpeculation { method, max_tokens };
            assert_eq!(
                bounds().drafts(&asked),
                Ok(DraftBudget { ngram, neural }),
                "{asked:?}"
            );
        }
    }

    #[test]
    fn continuations_share_the_callers_prompt_and_the_first_its_parameters() {
        let bounds = bounds();
        let request = with(|r| {
            r.n = Some(3);
            r.sampling_mut().seed = 7;
            r.deadline = Some(Duration::from_secs(1));
        });
        let (prompt, sampling) = (Arc::clone(&request.prompt), Arc::clone(&request.sampling));
        let requests = bounds.check(request).unwrap().requests;
        for one in &requests {
            assert!(Arc::ptr_eq(&one.prompt, &prompt), "{one:?}");
            assert!(Arc::ptr_eq(&one.stop_tokens, &requests[0].stop_tokens), "{one:?}");
            assert_eq!(
                (one.group, one.deadline),
                (requests[0].group, requests[0].deadline)
            );
        }
        assert!(Arc::ptr_eq(&requests[0].params, &sampling));
        assert_ne!(requests[1].params.seed, requests[2].params.seed);
        assert!(requests[0].group.is_some() && requests[0].deadline.is_some());
        let more = bounds.check(with(|_| {})).unwrap().requests;
        let ids: Vec<u64> = requests.iter().chain(&more).map(|one| one.id.0).collect();
        assert_eq!((ids, more[0].group), (vec![0, 1, 2, 3], None));
    }

    #[test]
    fn stop_tokens_are_the_models_own_unless_ignored() {
        let mut params = SamplingParams {
            stop_tokens: vec![9, 2],
            ..SamplingParams::default()
        };
        assert_eq!(bounds().stop_tokens(&params), vec![0, 2, 9]);
        params.ignore_eos = true;
        assert_eq!(bounds().stop_tokens(&params), vec![2, 9]);
    }
}
