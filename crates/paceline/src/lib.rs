//! Language models as a library.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let name = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/storyteller");
//! // A folder, a GGUF file, or a model of the hub such as "org/name:Q4_K_M".
//! let model = paceline::Model::load(name)?;
//!
//! // A text goes on; a conversation is answered, as it comes; a text becomes a vector.
//! println!("{}", model.complete("Once upon a time").max_tokens(16).text()?);
//! for piece in model.chat(&[("user", "Tell me about a fox.")]).max_tokens(16).stream()? {
//!     print!("{}", piece?);
//! }
//! assert_eq!(model.embed("A fox.")?.len(), model.engine().width());
//! # Ok(())
//! # }
//! ```
//!
//! # The engine
//!
//! [`Model`] is a thin layer over [`Engine`], where tokens go in and come out.
//!
//! ```
//! use paceline::{Checkpoint, Detokenizer, Engine, EngineConfig, Event, Request, Tokenizer};
//! # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/storyteller");
//!
//! // A folder with safetensors, or a GGUF file.
//! let checkpoint = Checkpoint::open(folder.as_ref())?;
//! let tokenizer = Tokenizer::from_json_bytes(checkpoint.tokenizer_json().ok_or("no tokenizer")?)?;
//! let engine = Engine::start(&checkpoint, EngineConfig::default(), &|_| {})?;
//!
//! let mut request = Request {
//!     prompt: tokenizer.encode("Once upon a time", true)?.into(),
//!     ..Request::default()
//! };
//! request.sampling_mut().temperature = 0.0;
//! request.sampling_mut().max_tokens = 16;
//! let mut story = engine.generate(request)?;
//! let (mut detokenizer, mut text) = (Detokenizer::new(&tokenizer, true).continuing(), String::new());
//! while let Some(event) = story.next_blocking() {
//!     match event {
//!         Event::Delta { output, .. } => {
//!             for token in output.ids {
//!                 text += &detokenizer.push(token)?;
//!             }
//!         }
//!         Event::Finished { finish, .. } => assert_eq!(finish.usage.completion_tokens, 16),
//!         Event::Failed(failure) => return Err(failure.into()),
//!         Event::Prompt { .. } => {}
//!     }
//! }
//! assert!(text.starts_with(", there was a little girl"), "{text}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Everything else is a variation of this: [many requests at once](Streams), `async` ([`Generation`] is a stream),
//! [sampling options](Options) and their [defaults](SamplingDefaults), [drafts](SpeculationConfig),
//! [structured output](#structured-output), [vectors](Handle::embed).
//!
//! # Structured output
//!
//! A request may only say what its [constraint](Request::constraint) allows; `paceline_grammar` makes them of schemas, expressions and grammars.
//!
//! ```
//! use paceline::{Engine, EngineConfig, Event, Request, Tokenizer};
//! use paceline_grammar::{Grammar, GrammarLimits, GrammarSpec, TokenizerInfo};
//! use serde_json::{Value, json};
//! use std::sync::Arc;
//! # let checkpoint = paceline_testkit::storyteller();
//!
//! let tokenizer = Tokenizer::from_json_bytes(checkpoint.tokenizer_json().ok_or("no tokenizer")?)?;
//! let config = EngineConfig { constraints: true, ..EngineConfig::default() };
//! let engine = Engine::start(&checkpoint, config, &|_| {})?;
//!
//! // Once per model, and once per schema.
//! let info = TokenizerInfo::new(&tokenizer, engine.end_tokens(), GrammarLimits::default())?;
//! let schema = json!({
//!     "type": "object",
//!     "properties": { "animal": { "enum": ["fox", "owl"] }, "age": { "type": "integer", "maximum": 99 } },
//!     "required": ["animal", "age"],
//! });
//! let grammar = Grammar::new(&info, &GrammarSpec::JsonSchema(schema))?;
//!
//! let request = Request {
//!     prompt: tokenizer.encode("Tell me about an animal: ", true)?.into(),
//!     constraint: Some(Arc::new(grammar)),
//!     ..Request::default()
//! };
//! let (mut generation, mut tokens) = (engine.generate(request)?, Vec::new());
//! while let Some(event) = generation.next_blocking() {
//!     if let Event::Delta { output, .. } = event {
//!         tokens.extend(output.ids);
//!     }
//! }
//! let animal: Value = serde_json::from_str(&tokenizer.decode(&tokens, true)?)?;
//! assert!(animal["animal"] == "fox" || animal["animal"] == "owl");
//! assert!(animal["age"].is_i64());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Parts
//!
//! [`Engine::start`] builds a checkpoint's model and starts the step loop on a thread of its own.
//! [`Handle::generate`] hands it a request and returns a [`Generation`]: a stream of [`Event`]s, read by blocking or
//! by `async`. [`Handle::embed`] turns a text into a vector, in the same steps. Every queue is bounded. Dropping a generation cancels it, wherever it is.

// The example of the README is compiled with those of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

mod calls;
mod cancel_flags;
mod channel;
mod client;
mod config;
mod device;
mod drafter;
mod embedding;
mod engine;
mod error;
mod event;
pub mod faults;
mod handle;
mod histogram;
mod masks;
mod memory_plan;
mod model;
mod options;
mod outline;
mod packed;
mod request;
mod service;
mod speculation;
mod stats;
mod streams;
mod trace;
mod watch;

pub use config::EngineConfig;
pub use device::{
    CudaFound, Device, DeviceChoice, Gpu, LoadedEngine, MemoryLimit, OnDevice, OnFreshDevices, Open, Openers,
    PackedKey, PackedWeights, PackedWriter, UsableMemory, probe_cuda, return_large_allocations,
};
pub use embedding::{Embedded, Embedding, EmbeddingError, EmbeddingRequest};
pub use engine::{Engine, EngineParts, ModelFiles};
pub use error::{RequestError, StartError};
pub use event::{Event, Failure, Finish, Tokens, Usage};
pub use handle::{Canceller, Generation, Handle};
pub use histogram::Histogram;
pub use masks::MaskPool;
pub use memory_plan::{Held, MemoryPlan};
pub use model::{Ask, AskError, LoadError, Model, TextParts, TextPartsError, TextStream};
pub use options::{
    DefaultSource, NumberBound, OPTIONS, OptionKind, OptionValue, Options, RequestOption, SamplingDefaults,
};
pub use outline::Outline;
pub use paceline_device::{DeviceInfo, ElementTypes, UsualLoad};
pub use paceline_runner::ProgramReport;
pub use paceline_schedule::{
    CacheFeed, Counters, PipelineTotals, RequestStatus, Span, SpeculationReport, StepOrigins, StepRecord,
};
pub use paceline_text::{Detokenizer, TextError, Tokenizer};
pub use paceline_types::{Constraint, DType, FinishReason, Pooling, SamplingParams, TokenId, TokenLogprobs};
pub use paceline_weights::hub::HubError;
pub use paceline_weights::{Checkpoint, WeightsError};
pub use packed::pack_weights;
pub use request::{Continuations, MAX_DEADLINE, Request, RequestSpeculation};
pub use speculation::{
    DraftVocabulary, DraftWeights, DrafterShape, NeuralDrafter, Speculation, SpeculationConfig,
    SpeculationMethod,
};
pub use stats::{EngineLimits, Sizes, Stats};
pub use streams::Streams;
pub use watch::{StepViewer, WatchedStep};
