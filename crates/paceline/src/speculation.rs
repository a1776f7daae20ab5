//! Drafters: those that were asked for, and those that the model and its companions have.

use crate::StartError;
use paceline_device::{Backend, KvShape, NgramIndex, StateShape};
use paceline_models::{Decoder, DraftHead};
use paceline_runner::RowsRead;
use paceline_types::{DraftBudget, MAX_DRAFTS};
use std::fmt;

/// How drafts are to be made. They change how fast a text comes, and never the text.
///
/// ```
/// use paceline::{Engine, EngineConfig, Event, Request, SpeculationConfig, SpeculationMethod};
/// # let checkpoint = paceline_testkit::storyteller();
///
/// let run = |method| {
///     let speculation = SpeculationConfig { method, draft_tokens: Some(3), ..SpeculationConfig::default() };
///     let config = EngineConfig { speculation, ..EngineConfig::default() };
///     let engine = Engine::start(&checkpoint, config, &|_| {})?;
///     let mut request = Request { prompt: [443, 441, 261, 393].into(), ..Request::default() };
///     request.sampling_mut().seed = 7;
///     request.sampling_mut().max_tokens = 48;
///     let (mut generation, mut tokens, mut drafted) = (engine.generate(request)?, Vec::new(), 0);
///     while let Some(event) = generation.next_blocking() {
///         match event {
///             Event::Delta { output, .. } => tokens.extend(output.ids),
///             Event::Finished { finish, .. } => drafted = finish.usage.speculation.drafted,
///             _ => {}
///         }
///     }
///     Ok::<_, Box<dyn std::error::Error>>((tokens, drafted))
/// };
/// let (plain, none) = run(SpeculationMethod::Off)?;
/// let (drafted, some) = run(SpeculationMethod::Mtp)?;
/// assert_eq!(plain, drafted);
/// assert!(none == 0 && some > 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpeculationConfig {
    /// The drafters.
    pub method: SpeculationMethod,
    /// Most drafts per request and step; `None` leaves it to the engine.
    pub draft_tokens: Option<usize>,
    /// Choose the number of drafts per request and step from what they cost and how they fare. Without it there are
    /// always as many as allowed.
    pub depth_control: bool,
    /// Shortest end of a text that is looked up in the text.
    pub ngram_min: usize,
    /// Longest n-gram that is looked up.
    pub ngram_max: usize,
    /// What a neural drafter reads of its output matrix.
    pub draft_vocabulary: DraftVocabulary,
    /// How the weights of a checkpoint's own draft head are kept.
    pub draft_weights: DraftWeights,
}

/// How the weights of a checkpoint's own draft head are kept. Drafts are checked, so text is the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DraftWeights {
    /// As they are stored; the output matrix is the model's.
    #[default]
    AsStored,
    /// As 8-bit floats, a scale per 128 inputs and output, and with a copy of the output matrix of its own: half the bytes of a
    /// draft, and a byte per element of the output matrix in memory.
    Fp8,
}

impl Default for SpeculationConfig {
    fn default() -> Self {
        Self {
            method: SpeculationMethod::Auto,
            draft_tokens: None,
            depth_control: true,
            ngram_min: 2,
            ngram_max: 5,
            draft_vocabulary: DraftVocabulary::Auto,
            draft_weights: DraftWeights::AsStored,
        }
    }
}

/// The tokens that a neural drafter chooses among, and with them the rows of its output matrix that it reads. Vocabularies
/// have their frequent tokens first, so a part names most of what comes, in a fraction of the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DraftVocabulary {
    /// A third of a large vocabulary in steps whose texts have few tokens outside it, and else all.
    #[default]
    Auto,
    /// All.
    Whole,
    /// This many, the first.
    First(usize),
}

/// The smallest vocabulary of which a part is chosen where nothing is said: with fewer rows an output matrix is a small part of
/// a draft forward.
const LARGE_VOCABULARY: usize = 1 << 16;
/// The part of it, and what it is a multiple of.
const USUAL_PART: usize = 3;
const WHOLE_TILES: usize = 1024;

impl DraftVocabulary {
    /// What a drafter reads of an output matrix of `rows` rows, for a model with a vocabulary of so many tokens. A matrix
    /// that has fewer to begin with (EAGLE-3 heads with a `d2t`) has been cut by those that made it.
    pub(crate) fn rows_read(self, rows: usize, vocabulary: usize) -> RowsRead {
        match self {
            Self::First(first) if first < rows => RowsRead::Part(first),
            Self::Auto if rows == vocabulary && vocabulary >= LARGE_VOCABULARY => {
                let part = vocabulary.div_ceil(USUAL_PART).next_multiple_of(WHOLE_TILES);
                RowsRead::PartWhereItFits(part)
            }
            _ => RowsRead::Whole,
        }
    }
}

/// Ways to draft.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpeculationMethod {
    /// The text itself, and behind it the best that there is: a given drafter, else the model's own head.
    #[default]
    Auto,
    /// None.
    Off,
    /// The text itself.
    Ngram,
    /// The multi-token-prediction head of the checkpoint.
    Mtp,
    /// An EAGLE-3 head from a checkpoint of its own.
    Eagle3,
    /// A smaller model with the same vocabulary.
    Draft,
    /// The text itself, and a neural drafter where it has no match or a short one.
    Chain,
}

impl SpeculationMethod {
    /// All of them with the names that users give them.
    pub const ALL: [(Self, &'static str); 7] = [
        (Self::Auto, "auto"),
        (Self::Off, "off"),
        (Self::Ngram, "ngram"),
        (Self::Mtp, "mtp"),
        (Self::Eagle3, "eagle3"),
        (Self::Draft, "draft"),
        (Self::Chain, "chain"),
    ];

    /// Name in flags, logs and metrics.
    pub fn name(self) -> &'static str {
        let found = Self::ALL.iter().find(|(method, _)| *method == self);
        found.map_or("", |(_, name)| name)
    }
}

/// Drafts per request and step where the configuration has no number. Deeper windows are rarely accepted to their end, and each
/// place costs the ring of a hybrid model memory.
const USUAL_DRAFTS: usize = 7;

/// A neural drafter by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeuralDrafter {
    /// The model's own head.
    Mtp,
    /// An EAGLE-3 head.
    Eagle3,
    /// A smaller model.
    Draft,
}

impl NeuralDrafter {
    /// The method that it serves.
    pub fn method(self) -> SpeculationMethod {
        match self {
            Self::Mtp => SpeculationMethod::Mtp,
            Self::Eagle3 => SpeculationMethod::Eagle3,
            Self::Draft => SpeculationMethod::Draft,
        }
    }

    /// Name in flags, logs and metrics.
    pub fn name(self) -> &'static str {
        self.method().name()
    }
}

/// How an engine drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speculation {
    /// Lengths of ends that are looked up in the text, if it is.
    pub ngram: Option<(usize, usize)>,
    /// The neural drafter.
    pub neural: Option<NeuralDrafter>,
    /// Most drafts per request and step.
    pub draft_tokens: usize,
    /// See [`SpeculationConfig::depth_control`].
    pub depth_control: bool,
    /// See [`SpeculationConfig::draft_vocabulary`].
    pub draft_vocabulary: DraftVocabulary,
}

impl Speculation {
    /// Plain decoding.
    pub const OFF: Self = Self {
        ngram: None,
        neural: None,
        draft_tokens: 0,
        depth_control: false,
        draft_vocabulary: DraftVocabulary::Whole,
    };

    /// Most drafts from each source.
    pub fn most(&self) -> DraftBudget {
        DraftBudget {
            ngram: self.ngram.map_or(0, |_| self.draft_tokens),
            neural: self.neural.map_or(0, |_| self.draft_tokens),
        }
    }

    /// The methods that requests can choose from.
    pub fn methods(&self) -> Vec<SpeculationMethod> {
        let neural = self.neural.map(NeuralDrafter::method);
        let ngram = self.ngram.map(|_| SpeculationMethod::Ngram);
        let chain = ngram.and(neural).map(|_| SpeculationMethod::Chain);
        let always = [SpeculationMethod::Auto, SpeculationMethod::Off];
        always
            .into_iter()
            .chain(ngram)
            .chain(neural)
            .chain(chain)
            .collect()
    }

    /// What is asked for, as far as it can be had.
    pub fn resolve(
        config: &SpeculationConfig,
        has_mtp: bool,
        given: Option<NeuralDrafter>,
    ) -> Result<Self, StartError> {
        config.check()?;
        let draft_tokens = config.draft_tokens.unwrap_or(USUAL_DRAFTS);
        if config.method == SpeculationMethod::Off || draft_tokens == 0 {
            return Ok(Self::OFF);
        }
        let own = has_mtp.then_some(NeuralDrafter::Mtp);
        let lacking = |what: &str| {
            Err(StartError::Option {
                option: "speculation",
                value: config.method.name().to_owned(),
                bound: format!("a method that can be had: {what}"),
            })
        };
        let neural = match (config.method, given) {
            (SpeculationMethod::Off | SpeculationMethod::Ngram, _) => None,
            (SpeculationMethod::Auto, _) => given.or(own),
            (SpeculationMethod::Mtp, _) if has_mtp => own,
            (SpeculationMethod::Mtp, _) => return lacking("the model has no MTP head"),
            (SpeculationMethod::Eagle3, Some(NeuralDrafter::Eagle3))
            | (SpeculationMethod::Draft, Some(NeuralDrafter::Draft)) => given,
            (SpeculationMethod::Eagle3, _) => return lacking("no EAGLE-3 head was given as the draft model"),
            (SpeculationMethod::Draft, Some(_)) => {
                return lacking("the draft model that was given is an EAGLE-3 head");
            }
            (SpeculationMethod::Draft, None) => return lacking("no draft model was given"),
            (SpeculationMethod::Chain, _) => match given.or(own) {
                None => return lacking("the model has no MTP head and no draft model was given"),
                some => some,
            },
        };
        if config.draft_weights == DraftWeights::Fp8 && neural != Some(NeuralDrafter::Mtp) {
            return Err(StartError::Option {
                option: "draft-weights",
                value: "fp8".to_owned(),
                bound: "as-stored where no MTP head of the model drafts".to_owned(),
            });
        }
        let reads_text = matches!(
            config.method,
            SpeculationMethod::Auto | SpeculationMethod::Ngram | SpeculationMethod::Chain
        );
        Ok(Self {
            ngram: reads_text.then_some((config.ngram_min, config.ngram_max)),
            neural,
            draft_tokens,
            depth_control: config.depth_control,
            draft_vocabulary: config.draft_vocabulary,
        })
    }
}

impl SpeculationConfig {
    fn check(&self) -> Result<(), StartError> {
        let wrong = |option, value: usize, bound: String| {
            Err(StartError::Option {
                option,
                value: value.to_string(),
                bound,
            })
        };
        let longest = NgramIndex::<paceline_device::Recorder>::LONGEST;
        if let Some(drafts) = self.draft_tokens.filter(|drafts| *drafts > MAX_DRAFTS) {
            return wrong("draft-tokens", drafts, format!("within 0..={MAX_DRAFTS}"));
        }
        if self.draft_vocabulary == DraftVocabulary::First(0) {
            return wrong("draft-vocab", 0, "at least 1".to_owned());
        }
        if !(1..=longest).contains(&self.ngram_max) {
            return wrong("ngram-max", self.ngram_max, format!("within 1..={longest}"));
        }
        if !(1..=self.ngram_max).contains(&self.ngram_min) {
            let bound = format!("within 1..={}, the longest", self.ngram_max);
            return wrong("ngram-min", self.ngram_min, bound);
        }
        Ok(())
    }
}

impl fmt::Display for Speculation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let drafters = match (self.ngram, self.neural) {
            (None, None) => return f.write_str("off"),
            (Some((min, max)), None) => format!("n-gram ({min} to {max} tokens)"),
            (None, Some(neural)) => neural.name().to_owned(),
            (Some((min, max)), Some(neural)) => {
                format!("n-gram ({min} to {max} tokens), then {}", neural.name())
            }
        };
        let most = self.draft_tokens;
        if self.depth_control {
            write!(f, "{drafters}; up to {most} drafts, as many as pay")?;
        } else {
            write!(f, "{drafters}; always up to {most} drafts")?;
        }
        match (self.neural, self.draft_vocabulary) {
            (Some(_), DraftVocabulary::First(first)) => write!(f, ", among the first {first} tokens"),
            _ => Ok(()),
        }
    }
}

/// What a neural drafter adds to blocks, states and scratch.
#[derive(Clone, Debug, Default)]
pub struct DrafterShape {
    /// Bytes of its own weights.
    pub weights: u64,
    /// Shape of what its attention layers keep per block.
    pub kv: Vec<KvShape>,
    /// States of its recurrent layers, per request.
    pub states: Vec<StateShape>,
    /// Columns of its widest tensor.
    pub widest_row: usize,
    /// Elements kept per block beside keys and values: what a head starts from at the block's last token.
    pub block_end: usize,
}

impl DrafterShape {
    /// Of a head, whose weights are part of the model's or come in a checkpoint of `weights` bytes.
    pub fn of_head<B: Backend>(
        model: &Decoder<B>,
        head: &dyn DraftHead<B>,
        (block_size, weights): (usize, u64),
    ) -> Self {
        Self {
            block_end: head.input_width(model),
            weights,
            kv: head.kv_shapes(1, block_size),
            states: Vec::new(),
            widest_row: head.widest_row(),
        }
    }

    /// Of the head that is part of the model, if it drafts.
    pub fn of_own<B: Backend>(model: &Decoder<B>, speculation: &Speculation, block_size: usize) -> Self {
        match (speculation.neural, model.draft_head()) {
            (Some(NeuralDrafter::Mtp), Some(head)) => Self::of_head(model, head, (block_size, 0)),
            _ => Self::default(),
        }
    }

    /// Of a model.
    pub fn of_model<B: Backend>(model: &Decoder<B>, block_size: usize) -> Self {
        Self {
            weights: model.stats.kept_bytes,
            kv: model.kv_shapes(1, block_size),
            states: model.state_shapes(1),
            widest_row: model.widest_row(),
            block_end: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(
        method: SpeculationMethod,
        has_mtp: bool,
        given: Option<NeuralDrafter>,
    ) -> Result<Speculation, String> {
        let config = SpeculationConfig {
            method,
            ..SpeculationConfig::default()
        };
        Speculation::resolve(&config, has_mtp, given).map_err(|error| error.to_string())
    }

    #[test]
    fn auto_takes_the_best_there_is() {
        use NeuralDrafter::{Draft, Eagle3, Mtp};
        for (has_mtp, given, neural) in [
            (false, None, None),
            (true, None, Some(Mtp)),
            (true, Some(Eagle3), Some(Eagle3)),
            (false, Some(Draft), Some(Draft)),
        ] {
            let found = resolve(SpeculationMethod::Auto, has_mtp, given).unwrap();
            assert_eq!((found.ngram, found.neural), (Some((2, 5)), neural));
        }
    }

    #[test]
    fn what_cannot_be_had_is_refused_with_the_reason() {
        use SpeculationMethod as M;
        for (method, given, reason) in [
            (M::Mtp, None, "no MTP head"),
            (M::Eagle3, None, "no EAGLE-3 head"),
            (M::Eagle3, Some(NeuralDrafter::Draft), "no EAGLE-3 head"),
            (M::Draft, None, "no draft model"),
            (M::Draft, Some(NeuralDrafter::Eagle3), "is an EAGLE-3 head"),
            (M::Chain, None, "no MTP head and no draft model"),
        ] {
            let message = resolve(method, false, given).unwrap_err();
            assert!(
                message.contains(reason) && message.contains("speculation"),
                "{message}"
            );
        }
        assert_eq!(resolve(M::Off, true, None), Ok(Speculation::OFF));
    }

    #[test]
    fn bounds_are_named() {
        let message = |change: fn(&mut SpeculationConfig)| {
            let mut config = SpeculationConfig::default();
            change(&mut config);
            Speculation::resolve(&config, true, None).unwrap_err().to_string()
        };
        assert!(message(|c| c.draft_tokens = Some(16)).contains("draft-tokens"));
        assert!(message(|c| c.ngram_max = 9).contains("ngram-max"));
        assert!(message(|c| c.ngram_min = 6).contains("ngram-min"));
        assert!(message(|c| c.ngram_min = 0).contains("ngram-min"));
        assert!(message(|c| c.draft_vocabulary = DraftVocabulary::First(0)).contains("draft-vocab"));
    }

    #[test]
    fn draft_weights_are_those_of_the_models_own_head() {
        let config = SpeculationConfig {
            draft_weights: DraftWeights::Fp8,
            ..SpeculationConfig::default()
        };
        let resolve =
            |has_mtp, given| Speculation::resolve(&config, has_mtp, given).map_err(|e| e.to_string());
        assert!(resolve(true, None).is_ok());
        for (has_mtp, given) in [(false, None), (true, Some(NeuralDrafter::Eagle3))] {
            let message = resolve(has_mtp, given).unwrap_err();
            assert!(
                message.contains("draft-weights") && message.contains("MTP"),
                "{message}"
            );
        }
    }

    #[test]
    fn a_part_is_read_where_that_is_less() {
        use DraftVocabulary::{Auto, First, Whole};
        for (asked, rows, vocabulary, read) in [
            (Whole, 248_320, 248_320, RowsRead::Whole),
            (Auto, 248_320, 248_320, RowsRead::PartWhereItFits(82_944)),
            (Auto, 65_536, 65_536, RowsRead::PartWhereItFits(22_528)),
            (Auto, 49_152, 49_152, RowsRead::Whole),
            // What an EAGLE-3 head has is a part already.
            (Auto, 32_000, 151_936, RowsRead::Whole),
            (First(8_000), 32_000, 151_936, RowsRead::Part(8_000)),
            (First(32_768), 32_000, 151_936, RowsRead::Whole),
            (First(100), 4096, 4096, RowsRead::Part(100)),
            (First(4096), 4096, 4096, RowsRead::Whole),
        ] {
            assert_eq!(asked.rows_read(rows, vocabulary), read, "{asked:?} of {rows}");
        }
    }
}
