//! The flags that choose drafters and the number of drafts.

use super::numbers::{self, parsed};
use super::vllm::SpeculativeConfig;
use crate::model::ModelSource;
use clap::{Args, ValueEnum};
use paceline::{DraftVocabulary, DraftWeights, SpeculationConfig, SpeculationMethod};
use std::str::FromStr;

const HEADING: &str = "Speculation (changes how fast a text comes, never which)";

/// What users call the methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MethodFlag {
    /// N-grams, and behind them the best there is: --draft-model, else the model's own head.
    Auto,
    /// One token per step.
    Off,
    /// What followed the last time the text ended like this; costs next to nothing.
    Ngram,
    /// The multi-token-prediction head of the model.
    Mtp,
    /// An EAGLE-3 head, given as --draft-model.
    Eagle3,
    /// A small model with the same vocabulary, given as --draft-model.
    Draft,
    /// N-grams, and the neural drafter where they find nothing or little.
    Chain,
}

impl From<MethodFlag> for SpeculationMethod {
    fn from(flag: MethodFlag) -> Self {
        match flag {
            MethodFlag::Auto => Self::Auto,
            MethodFlag::Off => Self::Off,
            MethodFlag::Ngram => Self::Ngram,
            MethodFlag::Mtp => Self::Mtp,
            MethodFlag::Eagle3 => Self::Eagle3,
            MethodFlag::Draft => Self::Draft,
            MethodFlag::Chain => Self::Chain,
        }
    }
}

/// A number of drafts as typed: `auto` or a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DraftTokens(pub(crate) Option<usize>);

impl FromStr for DraftTokens {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self(None));
        }
        let number = text
            .parse()
            .map_err(|_| format!("`{text}` is neither a number nor auto"))?;
        numbers::draft_tokens(number).map(|number| Self(Some(number)))
    }
}

/// How the weights of a checkpoint's draft head are kept, as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DraftWeightsFlag {
    AsStored,
    Fp8,
}

impl From<DraftWeightsFlag> for DraftWeights {
    fn from(flag: DraftWeightsFlag) -> Self {
        match flag {
            DraftWeightsFlag::AsStored => Self::AsStored,
            DraftWeightsFlag::Fp8 => Self::Fp8,
        }
    }
}

/// The tokens that a neural drafter chooses among, as typed: `auto`, `off` or a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DraftVocab(DraftVocabulary);

impl FromStr for DraftVocab {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let vocabulary = match text {
            "auto" => DraftVocabulary::Auto,
            "off" => DraftVocabulary::Whole,
            number => {
                let number = number
                    .parse()
                    .map_err(|_| format!("`{text}` is neither a number, nor off, nor auto"))?;
                DraftVocabulary::First(numbers::at_least_one(number)?)
            }
        };
        Ok(Self(vocabulary))
    }
}

// A plain comment: a doc comment would replace the description of the command that takes these in.

// Drafters and the number of drafts.
#[derive(Debug, Default, Args)]
pub(crate) struct SpeculationFlags {
    /// Drafter: what guesses tokens ahead. A step checks the guesses along with the next token, so each that is right saves
    /// a step [default: auto].
    #[arg(long, value_name = "METHOD", help_heading = HEADING, hide_possible_values = false)]
    speculation: Option<MethodFlag>,
    /// Most guesses per request and step, 0 to 15; auto leaves it to the engine [default: auto].
    #[arg(long, value_name = "K|auto", help_heading = HEADING)]
    draft_tokens: Option<DraftTokens>,
    /// Folder, GGUF file or hub id of a small model with the same vocabulary or of an EAGLE-3 head, to guess with.
    #[arg(long, value_name = "MODEL", help_heading = HEADING)]
    draft_model: Option<String>,
    /// Let a neural drafter choose among the N tokens of lowest id, and read only their rows of its output matrix; off: among
    /// all. auto: a third of vocabularies of 65,536 tokens and more, while texts have few others [default: auto].
    #[arg(long, value_name = "N|off|auto", help_heading = HEADING)]
    draft_vocab: Option<DraftVocab>,
    /// How the weights of a checkpoint's own draft head (MTP) are kept: fp8 rounds them to 8-bit floats while they are loaded, with a
    /// copy of the output matrix to draft with. Half the bytes of a draft; texts are the same [default: as-stored].
    #[arg(long, value_name = "TYPE", help_heading = HEADING, hide_possible_values = false)]
    draft_weights: Option<DraftWeightsFlag>,
    /// Fewest tokens at the end of a text to look for in it, 1 to 8 [default: 2].
    #[arg(long, value_name = "N", value_parser = parsed(numbers::ngram_length), help_heading = HEADING)]
    ngram_min: Option<usize>,
    /// Most tokens, looked for first, 1 to 8 [default: 5].
    #[arg(long, value_name = "N", value_parser = parsed(numbers::ngram_length), help_heading = HEADING)]
    ngram_max: Option<usize>,
    /// Always guess as many as allowed. By default the number is chosen per request and step from what guesses
    /// were measured to cost and how many were right.
    #[arg(long, help_heading = HEADING)]
    no_depth_control: bool,
    /// The same as vLLM writes it, such as {"method": "ngram", "num_speculative_tokens": 5}; in place of the above.
    #[arg(
        long,
        value_name = "JSON",
        help_heading = HEADING,
        conflicts_with_all = ["speculation", "draft_tokens", "draft_model", "ngram_min", "ngram_max"]
    )]
    speculative_config: Option<SpeculativeConfig>,
}

/// A model or head that drafts for another model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DraftModel {
    /// Where it comes from.
    pub(crate) source: ModelSource,
    /// It is the only drafter, whatever kind it turns out to be.
    pub(crate) alone: bool,
}

/// What the flags say of drafts.
#[derive(Clone, Debug)]
pub(crate) struct SpeculationOptions {
    /// For the engine.
    pub(crate) config: SpeculationConfig,
    /// The model or head that drafts.
    pub(crate) draft_model: Option<DraftModel>,
    /// What the user should know of how it was read.
    pub(crate) warnings: Vec<String>,
}

impl SpeculationFlags {
    /// What is wrong with the flags taken together.
    pub(super) fn conflict(&self) -> Option<String> {
        let method = self.speculation.map(SpeculationMethod::from)?;
        let name = method.name();
        let reads_text = matches!(
            method,
            SpeculationMethod::Auto | SpeculationMethod::Ngram | SpeculationMethod::Chain
        );
        let own = matches!(
            method,
            SpeculationMethod::Off | SpeculationMethod::Ngram | SpeculationMethod::Mtp
        );
        let unused = |flag: &str| Some(format!("--{flag} has no use with --speculation {name}"));
        let drafts_itself = matches!(method, SpeculationMethod::Off | SpeculationMethod::Ngram);
        if drafts_itself && self.draft_vocab.is_some() {
            return unused("draft-vocab");
        }
        if drafts_itself && self.draft_weights.is_some() {
            return unused("draft-weights");
        }
        if own && self.draft_model.is_some() {
            return unused("draft-model");
        }
        if !reads_text && self.ngram_min.is_some() {
            return unused("ngram-min");
        }
        if !reads_text && self.ngram_max.is_some() {
            return unused("ngram-max");
        }
        None
    }

    /// What the flags mean.
    pub(super) fn options(&self) -> SpeculationOptions {
        let config = self.speculative_config.clone().unwrap_or(SpeculativeConfig {
            method: self.speculation.map(SpeculationMethod::from),
            draft_tokens: self.draft_tokens.and_then(|DraftTokens(number)| number),
            ngram_min: self.ngram_min,
            ngram_max: self.ngram_max,
            model: self.draft_model.clone(),
            warnings: Vec::new(),
        });
        let from_json = self.speculative_config.is_some();
        let (ngram_min, ngram_max) = ngram_lengths(config.ngram_min, config.ngram_max);
        SpeculationOptions {
            config: SpeculationConfig {
                method: config.method.unwrap_or_default(),
                draft_tokens: config.draft_tokens,
                depth_control: !self.no_depth_control,
                ngram_min,
                ngram_max,
                draft_vocabulary: self.draft_vocab.map(|DraftVocab(it)| it).unwrap_or_default(),
                draft_weights: self.draft_weights.map(DraftWeights::from).unwrap_or_default(),
            },
            draft_model: config.model.map(|name| DraftModel {
                source: ModelSource::new(Some(name)),
                // In vLLM a model without a method drafts alone.
                alone: from_json && config.method.is_none(),
            }),
            warnings: config.warnings,
        }
    }
}

/// Shortest and longest n-gram; one that is not given stays on its side of the other.
fn ngram_lengths(min: Option<usize>, max: Option<usize>) -> (usize, usize) {
    let default = SpeculationConfig::default();
    match (min, max) {
        (Some(min), Some(max)) => (min, max),
        (Some(min), None) => (min, default.ngram_max.max(min)),
        (None, Some(max)) => (default.ngram_min.min(max), max),
        (None, None) => (default.ngram_min, default.ngram_max),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: SpeculationFlags,
    }

    fn parse(arguments: &[&str]) -> SpeculationFlags {
        let arguments = ["paceline"].iter().chain(arguments);
        Line::try_parse_from(arguments).unwrap().flags
    }

    #[test]
    fn without_flags_the_engine_decides() {
        let options = parse(&[]).options();
        assert_eq!(options.config, SpeculationConfig::default());
        assert_eq!(options.draft_model, None);
    }

    #[test]
    fn every_flag_has_its_place() {
        let flags = parse(&[
            "--speculation=chain",
            "--draft-tokens=4",
            "--draft-model=org/small",
            "--ngram-min=3",
            "--ngram-max=6",
            "--draft-vocab=32768",
            "--draft-weights=fp8",
            "--no-depth-control",
        ]);
        assert_eq!(flags.conflict(), None);
        let options = flags.options();
        let expected = SpeculationConfig {
            method: SpeculationMethod::Chain,
            draft_tokens: Some(4),
            depth_control: false,
            ngram_min: 3,
            ngram_max: 6,
            draft_vocabulary: DraftVocabulary::First(32_768),
            draft_weights: DraftWeights::Fp8,
        };
        assert_eq!(options.config, expected);
        let drafter = DraftModel {
            source: ModelSource::Named("org/small".to_owned()),
            alone: false,
        };
        assert_eq!(options.draft_model, Some(drafter));
        assert_eq!(
            parse(&["--draft-tokens=auto"]).options().config.draft_tokens,
            None
        );
    }

    #[test]
    fn a_part_of_the_vocabulary_is_a_number_off_or_auto() {
        for (text, expected) in [
            ("auto", DraftVocabulary::Auto),
            ("off", DraftVocabulary::Whole),
            ("1", DraftVocabulary::First(1)),
        ] {
            assert_eq!(text.parse(), Ok(DraftVocab(expected)));
        }
        for text in ["0", "-1", "half", ""] {
            assert!(text.parse::<DraftVocab>().is_err(), "{text}");
        }
        // vLLM has no such key, so the flag stands beside its object.
        let flags = parse(&[r#"--speculative-config={"method": "mtp"}"#, "--draft-vocab=off"]);
        assert_eq!(flags.options().config.draft_vocabulary, DraftVocabulary::Whole);
    }

    #[test]
    fn every_method_of_the_engine_can_be_typed() {
        for (method, name) in SpeculationMethod::ALL {
            let flags = parse(&["--speculation", name]);
            assert_eq!(flags.options().config.method, method);
        }
    }

    #[test]
    fn a_length_that_is_not_given_follows_the_other() {
        for (min, max, expected) in [
            (None, None, (2, 5)),
            (None, Some(1), (1, 1)),
            (Some(7), None, (7, 7)),
            (Some(1), None, (1, 5)),
            (Some(3), Some(4), (3, 4)),
        ] {
            assert_eq!(ngram_lengths(min, max), expected);
        }
    }

    #[test]
    fn flags_without_a_use_are_refused() {
        for (arguments, part) in [
            (
                &["--speculation=mtp", "--draft-model=x"][..],
                "--draft-model has no use",
            ),
            (
                &["--speculation=off", "--draft-model=x"],
                "--draft-model has no use",
            ),
            (
                &["--speculation=draft", "--ngram-min=2"],
                "--ngram-min has no use",
            ),
            (&["--speculation=mtp", "--ngram-max=2"], "--ngram-max has no use"),
            (
                &["--speculation=ngram", "--draft-vocab=9"],
                "--draft-vocab has no use",
            ),
        ] {
            let conflict = parse(arguments).conflict();
            assert!(conflict.is_some_and(|why| why.contains(part)), "{arguments:?}");
        }
        assert_eq!(parse(&["--speculation=ngram", "--ngram-max=2"]).conflict(), None);
        assert_eq!(parse(&["--draft-model=x"]).conflict(), None);
    }

    #[test]
    fn in_vllms_words_a_model_alone_drafts_alone() {
        let alone = |arguments: &[&str]| parse(arguments).options().draft_model.map(|model| model.alone);
        let json = r#"{"model": "org/small"}"#;
        assert_eq!(alone(&["--speculative-config", json]), Some(true));
        assert_eq!(alone(&["--draft-model", "org/small"]), Some(false));
        let both = Line::try_parse_from(["paceline", "--speculative-config={}", "--ngram-max=3"]);
        assert!(both.is_err());
    }
}
