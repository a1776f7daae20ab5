//! Compiles grammars, away from everything that others wait for, and keeps them.

use super::Wanted;
use super::cache::{Cache, Key};
use crate::error::{ApiError, ErrorKind};
use crate::model::ServedModel;
use paceline_grammar::{CompileBudget, Grammar, GrammarError, GrammarLimits, TokenizerInfo};
use paceline_types::{Constraint, TokenId};
use sha2::{Digest, Sha256};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Most grammars that are kept.
const KEPT: usize = 128;

/// Bytes of what they are made of, all together.
const KEPT_BYTES: usize = 4 << 20;

/// Grammars that are compiled at a time; more wait. Of several keys, each has one at a time, so that none has to wait for
/// all that another one asks for.
const AT_A_TIME: usize = 2;

/// How long a request waits for its turn, and then for the compilation of its grammar.
const PATIENCE: Duration = Duration::from_secs(10);

/// The grammars of a model.
pub(crate) struct Grammars {
    model: Arc<ServedModel>,
    ends: Vec<TokenId>,
    /// Takes up to half a second for a large vocabulary.
    info: OnceLock<Result<TokenizerInfo, GrammarError>>,
    cache: Mutex<Cache<Arc<Grammar>>>,
    compiling: Arc<Semaphore>,
    /// The same for each key.
    turns: Vec<Arc<Semaphore>>,
    counts: GrammarCounts,
}

/// What happened to grammars since the start.
#[derive(Debug, Default)]
pub(crate) struct GrammarCounts {
    pub(crate) compiled: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) compile_ns: AtomicU64,
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
}

impl Grammars {
    /// For a model whose texts end with `ends`. Those that its tokenizer does not know have no part in grammars.
    /// `keys` are told apart.
    pub(crate) fn new(model: Arc<ServedModel>, ends: &[TokenId], keys: usize) -> Arc<Self> {
        let known = model
            .tokenizer
            .as_ref()
            .map_or(0, paceline_text::Tokenizer::vocab_size);
        let turns = if keys > 1 { 1 } else { AT_A_TIME };
        let ends = ends.iter().copied().filter(|end| (*end as usize) < known);
        Arc::new(Self {
            ends: ends.collect(),
            model,
            info: OnceLock::new(),
            cache: Mutex::new(Cache::new(KEPT, KEPT_BYTES)),
            compiling: Arc::new(Semaphore::new(AT_A_TIME)),
            turns: (0..keys).map(|_| Arc::new(Semaphore::new(turns))).collect(),
            counts: GrammarCounts::default(),
        })
    }

    /// Prepares the vocabulary in the background, so that the first grammar need not wait for it.
    pub(crate) fn warm(self: &Arc<Self>) {
        let this = Arc::clone(self);
        if this.model.tokenizer.is_some() {
            drop(tokio::task::spawn_blocking(move || {
                if let Some(Err(error)) = this.info() {
                    tracing::warn!("there will be no structured output: {error}");
                }
            }));
        }
    }

    pub(crate) fn counts(&self) -> &GrammarCounts {
        &self.counts
    }

    /// Grammars that are kept.
    pub(crate) fn kept(&self) -> usize {
        self.cache().len()
    }

    /// The constraint that is wanted by the holder of a key: one that is kept, or a new one. Work on it is given up when
    /// this is dropped.
    pub(crate) async fn constraint(
        self: &Arc<Self>,
        wanted: Wanted,
        holder: Option<usize>,
    ) -> Result<Arc<dyn Constraint>, ApiError> {
        let (key, size) = key(&wanted);
        if let Some(grammar) = self.known(&key) {
            return Ok(grammar);
        }
        let Ok(permits) = tokio::time::timeout(PATIENCE, self.turn(holder)).await else {
            let message = "too many grammars wait to be compiled";
            return Err(ApiError::new(ErrorKind::Busy, message));
        };
        // Another request may have compiled it meanwhile.
        if let Some(grammar) = self.known(&key) {
            return Ok(grammar);
        }
        let budget = CompileBudget::new(PATIENCE);
        let _waits = Waits(budget.clone());
        let this = Arc::clone(self);
        let work = tokio::task::spawn_blocking(move || {
            // Held until the work is over, which is soon after its request has given up.
            let _permits = permits;
            let grammar = this.compile(&wanted, &budget)?;
            this.cache().insert(key, Arc::clone(&grammar), size);
            Ok(grammar)
        });
        match work.await {
            Ok(grammar) => Ok(grammar?),
            Err(error) => {
                tracing::error!("a grammar could not be compiled: {error}");
                let message = "the grammar could not be compiled";
                Err(ApiError::new(ErrorKind::Internal, message))
            }
        }
    }

    /// The right to compile something for the holder of a key.
    async fn turn(&self, holder: Option<usize>) -> [Option<OwnedSemaphorePermit>; 2] {
        let own = holder.and_then(|key| self.turns.get(key));
        // Nobody closes them.
        let own = match own {
            Some(own) => Arc::clone(own).acquire_owned().await.ok(),
            None => None,
        };
        let one = Arc::clone(&self.compiling).acquire_owned().await.ok();
        [own, one]
    }

    /// A grammar that is kept.
    fn known(&self, key: &Key) -> Option<Arc<Grammar>> {
        let grammar = self.cache().get(key)?;
        self.counts.hits.fetch_add(1, Ordering::Relaxed);
        Some(grammar)
    }

    fn compile(&self, wanted: &Wanted, budget: &CompileBudget) -> Result<Arc<Grammar>, ApiError> {
        let field = &wanted.field;
        let refused = |error: &GrammarError| ApiError::field(field, format!("`{field}`: {error}"));
        let info = match self.info() {
            Some(Ok(info)) => info,
            Some(Err(error)) => return Err(refused(error)),
            None => {
                let message = format!("`{field}`: the model has no tokenizer, so its text has no form");
                return Err(ApiError::field(field, message));
            }
        };
        let counts = &self.counts;
        counts.misses.fetch_add(1, Ordering::Relaxed);
        let begun = Instant::now();
        let grammar = Grammar::behind(info, &wanted.lead, &wanted.spec, budget);
        let spent = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        counts.compile_ns.fetch_add(spent, Ordering::Relaxed);
        let outcome = if grammar.is_ok() {
            &counts.compiled
        } else {
            &counts.refused
        };
        outcome.fetch_add(1, Ordering::Relaxed);
        grammar.map(Arc::new).map_err(|error| refused(&error))
    }

    /// The vocabulary; waits for it if it is being prepared. `None` for models without a tokenizer.
    fn info(&self) -> Option<&Result<TokenizerInfo, GrammarError>> {
        let tokenizer = self.model.tokenizer.as_ref()?;
        let make = || TokenizerInfo::new(tokenizer, &self.ends, GrammarLimits::default());
        Some(self.info.get_or_init(make))
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, Cache<Arc<Grammar>>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that waits for its grammar. When it is gone, so is the reason to go on.
struct Waits(CompileBudget);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// What a grammar is made of, as a key, and how large that is. The order of a schema's properties counts: it is the
/// order in the text.
fn key(wanted: &Wanted) -> (Key, usize) {
    let text = format!("{:?} {:?}", wanted.lead, wanted.spec);
    (Sha256::digest(&text).into(), text.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_grammar::{GrammarSpec, Lead};
    use serde_json::Value;

    fn wanted(schema: &str, lead: Lead) -> Wanted {
        let schema: Value = serde_json::from_str(schema).unwrap();
        Wanted {
            field: "here".to_owned(),
            spec: GrammarSpec::JsonSchema(schema),
            lead,
        }
    }

    fn grammars(keys: usize) -> Arc<Grammars> {
        let checkpoint = paceline_testkit::storyteller();
        let tokenizer = paceline_text::Tokenizer::from_json_bytes(checkpoint.tokenizer_json().unwrap());
        let model = ServedModel {
            names: vec!["m".to_owned()],
            source: String::new(),
            details: crate::model::ModelDetails::default(),
            tokenizer: Some(tokenizer.unwrap()),
            template: None,
            defaults: paceline::SamplingDefaults::default(),
            page_defaults: paceline::SamplingDefaults::default(),
            max_model_len: 64,
            tool_format: None,
            reasoning_format: None,
            created: 0,
        };
        Grammars::new(Arc::new(model), &[], keys)
    }

    /// One that takes a good part of a second, another one for every number.
    fn slow(number: usize) -> Wanted {
        let names: Vec<_> = (0..5900 + number).map(|name| format!("\"p{name}\"")).collect();
        let properties: Vec<_> = names
            .iter()
            .map(|name| format!("{name}: {{\"type\": \"null\"}}"))
            .collect();
        let schema = format!(
            "{{\"properties\": {{{}}}, \"required\": [{}]}}",
            properties.join(", "),
            names.join(", ")
        );
        wanted(&schema, Lead::None)
    }

    /// Asks for a grammar, and waits until it is being compiled.
    async fn begun(grammars: &Arc<Grammars>, number: usize) -> tokio::task::JoinHandle<()> {
        let before = grammars.compiling.available_permits();
        let this = Arc::clone(grammars);
        let task = tokio::spawn(async move { drop(this.constraint(slow(number), Some(0)).await) });
        while grammars.compiling.available_permits() == before {
            tokio::task::yield_now().await;
        }
        task
    }

    #[tokio::test]
    async fn a_compilation_ends_with_the_request_that_waits_for_it() {
        let grammars = grammars(1);
        for number in 0..AT_A_TIME {
            begun(&grammars, number).await.abort();
        }
        let all = grammars.compiling.acquire_many(AT_A_TIME as u32).await.unwrap();
        let counts = grammars.counts();
        assert_eq!((counts.compiled.load(Ordering::Relaxed), grammars.kept()), (0, 0));
        drop(all);
        let small = wanted(r#"{"enum": ["red", "blue"]}"#, Lead::None);
        assert!(grammars.constraint(small, Some(0)).await.is_ok());
    }

    #[tokio::test]
    async fn what_one_key_asks_for_leaves_a_turn_to_another() {
        let grammars = grammars(2);
        let _first = begun(&grammars, 0).await;
        let waiting: Vec<_> = (1..4)
            .map(|number| {
                let this = Arc::clone(&grammars);
                tokio::spawn(async move { drop(this.constraint(slow(number), Some(0)).await) })
            })
            .collect();
        let small = wanted(r#"{"enum": ["red", "blue"]}"#, Lead::None);
        assert!(grammars.constraint(small, Some(1)).await.is_ok());
        assert_eq!(grammars.counts().compiled.load(Ordering::Relaxed), 1);
        for task in waiting {
            task.abort();
        }
    }

    #[test]
    fn keys_tell_apart_what_gives_other_texts() {
        let [first, second] = [
            r#"{"properties": {"a": {}, "b": {}}}"#,
            r#"{"properties": {"b": {}, "a": {}}}"#,
        ];
        let until = || Lead::Until("x".to_owned());
        assert_eq!(key(&wanted(first, Lead::None)), key(&wanted(first, Lead::None)));
        assert_ne!(key(&wanted(first, Lead::None)), key(&wanted(second, Lead::None)));
        assert_ne!(key(&wanted(first, Lead::None)), key(&wanted(first, until())));
    }
}
