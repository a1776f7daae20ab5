//! Compiles grammars, away from everything that others wait for, and keeps them.

use super::Wanted;
use super::cache::{Cache, Key};
use crate::error::{ApiError, ErrorKind};
use crate::model::ServedModel;
use paceline_grammar::{Grammar, GrammarError, GrammarLimits, TokenizerInfo};
use paceline_types::{Constraint, TokenId};
use sha2::{Digest, Sha256};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Most grammars that are kept.
const KEPT: usize = 128;

/// Bytes of what they are made of, all together.
const KEPT_BYTES: usize = 4 << 20;

/// Grammars that are compiled at a time; more wait.
const AT_A_TIME: usize = 2;

/// How long a request waits for the compilation of its grammar. The work is bounded too, but that is what people
/// understand.
const PATIENCE: Duration = Duration::from_secs(10);

/// The grammars of a model.
pub(crate) struct Grammars {
    model: Arc<ServedModel>,
    ends: Vec<TokenId>,
    /// Takes up to half a second for a large vocabulary.
    info: OnceLock<Result<TokenizerInfo, GrammarError>>,
    cache: Mutex<Cache<Arc<Grammar>>>,
    compiling: Arc<Semaphore>,
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
    pub(crate) fn new(model: Arc<ServedModel>, ends: &[TokenId]) -> Arc<Self> {
        let known = model
            .tokenizer
            .as_ref()
            .map_or(0, paceline_text::Tokenizer::vocab_size);
        let ends = ends.iter().copied().filter(|end| (*end as usize) < known);
        Arc::new(Self {
            ends: ends.collect(),
            model,
            info: OnceLock::new(),
            cache: Mutex::new(Cache::new(KEPT, KEPT_BYTES)),
            compiling: Arc::new(Semaphore::new(AT_A_TIME)),
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

    /// The constraint that is wanted: one that is kept, or a new one.
    pub(crate) async fn constraint(
        self: &Arc<Self>,
        wanted: Wanted,
    ) -> Result<Arc<dyn Constraint>, ApiError> {
        let (key, size) = key(&wanted);
        if let Some(grammar) = self.known(&key) {
            return Ok(grammar);
        }
        let permit = Arc::clone(&self.compiling).acquire_owned();
        let Ok(Ok(permit)) = tokio::time::timeout(PATIENCE, permit).await else {
            let message = "too many grammars wait to be compiled";
            return Err(ApiError::new(ErrorKind::Busy, message));
        };
        // Whoever was first may have compiled it meanwhile.
        if let Some(grammar) = self.known(&key) {
            return Ok(grammar);
        }
        let (this, field) = (Arc::clone(self), wanted.field.clone());
        let work = tokio::task::spawn_blocking(move || {
            // Held until the work is done, even if nobody waits for it any more.
            let _permit = permit;
            let grammar = this.compile(&wanted)?;
            this.cache().insert(key, Arc::clone(&grammar), size);
            Ok(grammar)
        });
        match tokio::time::timeout(PATIENCE, work).await {
            Ok(Ok(grammar)) => Ok(grammar?),
            Ok(Err(error)) => {
                tracing::error!("a grammar could not be compiled: {error}");
                let message = "the grammar could not be compiled";
                Err(ApiError::new(ErrorKind::Internal, message))
            }
            Err(_) => {
                let seconds = PATIENCE.as_secs();
                let message = format!("`{field}`: it was not compiled within {seconds} s; make it smaller");
                Err(ApiError::field(field, message))
            }
        }
    }

    /// A grammar that is kept.
    fn known(&self, key: &Key) -> Option<Arc<Grammar>> {
        let grammar = self.cache().get(key)?;
        self.counts.hits.fetch_add(1, Ordering::Relaxed);
        Some(grammar)
    }

    fn compile(&self, wanted: &Wanted) -> Result<Arc<Grammar>, ApiError> {
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
        let grammar = Grammar::behind(info, &wanted.lead, &wanted.spec);
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
