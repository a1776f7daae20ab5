//! The flags of `serve`. Those that mean what a flag of vLLM means have its name.

use super::LogLevel;
use super::engine::{EngineFlags, ModelFlags};
use super::limits::LimitFlags;
use super::numbers::{self, parsed};
use super::sampling::{self, OfCommand, OptionFlags, Serve};
use super::speculation::SpeculationFlags;
use super::unused::UnusedFlags;
use crate::commands::serve::{GenerationConfig, LogFormat, ParserChoice, ServeConfig};
use crate::model::ModelSource;
use clap::Args;
use paceline::Options;
use paceline_kv_events::KvEventsConfig;
use paceline_text::{ReasoningFormat, ToolFormat};
use paceline_types::Pooling;
use std::net::IpAddr;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  paceline serve
  paceline serve org/name --port 8080 --served-model-name chat
  paceline serve model.gguf --host 0.0.0.0 --api-key-file keys.txt --max-concurrent-requests 64
  paceline serve --speculative-config '{\"method\": \"ngram\", \"num_speculative_tokens\": 4}'

  curl http://127.0.0.1:8000/v1/completions -H 'content-type: application/json' \\
       -d '{\"prompt\": \"Once upon a time\", \"max_tokens\": 32}'

SIGTERM, SIGHUP and Ctrl-C let running requests finish (see --drain-timeout); a second one ends the server at once.
API keys are also read from $PACELINE_API_KEY and $VLLM_API_KEY. With keys, all paths need one but /health, /ping,
/ready, /version, /metrics and the page itself, which asks for one; without, every client that can connect may use all of them.
Flags of vLLM and llama.cpp that are not listed here work too, or say why not: docs/flags.md. --config FILE reads flags from YAML.";

/// Serve a model over HTTP, to clients of OpenAI's interface.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeFlags {
    /// The model, in place of --model.
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    model_argument: Option<String>,
    #[command(flatten)]
    model: ModelFlags,
    /// Names by which requests may call the model, the first one in replies [default: the model's name, and the model as given].
    #[arg(long, value_name = "NAME", num_args = 1.., help_heading = "Model")]
    served_model_name: Vec<String>,
    /// File with a chat template, or the template itself, in place of the model's.
    #[arg(long, value_name = "FILE|TEMPLATE", help_heading = "Model")]
    chat_template: Option<String>,
    /// How the model writes tool calls: hermes, qwen3_coder, llama3_json..., or generic, as JSON that the system
    /// prompt describes; none leaves them in the text [default: auto, what the chat template says, or else generic].
    #[arg(long, value_name = "FORMAT", value_parser = tool_format, help_heading = "Model")]
    tool_call_parser: Option<ParserChoice<ToolFormat>>,
    /// How the model marks its reasoning: qwen3, deepseek_r1; none leaves it in the text
    /// [default: auto, what the chat template says].
    #[arg(long, value_name = "FORMAT", value_parser = reasoning_format, help_heading = "Model")]
    reasoning_parser: Option<ParserChoice<ReasoningFormat>>,
    /// How a text becomes a vector at /v1/embeddings, where a request does not say: mean, of the states of all its
    /// tokens, or last, the state of the last one [default: mean, which suits a model that generates].
    #[arg(long, value_name = "POOLING", value_parser = pooling, help_heading = "Model")]
    pooling: Option<Pooling>,
    /// Whose sampling requests get that do not say how to sample: auto, the model's or else OpenAI's; vllm, OpenAI's
    /// whatever the model says; paceline, that of `chat` for a model that does not say.
    #[arg(long, value_name = "SOURCE", default_value = "auto", help_heading = Serve::HEADING)]
    generation_config: GenerationConfig,
    /// The flags below as a JSON object, such as {"temperature": 0.5}; a flag itself comes first.
    #[arg(long, value_name = "JSON", value_parser = sampling::object, help_heading = Serve::HEADING)]
    override_generation_config: Option<Options>,
    #[command(flatten)]
    sampling: OptionFlags<Serve>,

    #[command(flatten)]
    network: NetworkFlags,
    #[command(flatten)]
    limits: LimitFlags,

    /// Steps in flight, 1 to 4: with more than 1 the host prepares a step while another runs.
    #[arg(long, value_name = "N", default_value = "2", value_parser = parsed(numbers::pipeline_depth), help_heading = "Engine")]
    pipeline_depth: usize,
    /// Requests that may wait for a slot; more get 429 [default: 1024].
    #[arg(long, value_name = "N", value_parser = parsed(numbers::at_least_one), help_heading = "Engine")]
    max_waiting: Option<usize>,
    #[command(flatten)]
    engine: EngineFlags,
    /// Tell routers what the prefix cache holds, as vLLM does: a JSON object such as {"enable_kv_cache_events": true,
    /// "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558", "topic": ""} [default: tell nobody].
    #[arg(long, value_name = "JSON", value_parser = kv_events, help_heading = "Engine")]
    kv_events_config: Option<KvEvents>,
    #[command(flatten)]
    unused: UnusedFlags,
}

/// What `--kv-events-config` says; it may say that there are to be none.
type KvEvents = Option<KvEventsConfig>;

// Plain comments: a doc comment would replace the description of the command.

// Address, keys and certificates.
#[derive(Debug, Args)]
struct NetworkFlags {
    /// Address to listen on; 0.0.0.0 is all of them.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", value_parser = address, help_heading = "Network")]
    host: IpAddr,
    /// Port to listen on; 0 takes a free one.
    #[arg(long, value_name = "PORT", default_value_t = 8000, help_heading = "Network")]
    port: u16,
    /// Key that requests must carry; may be given several times [default: none is needed].
    #[arg(long, value_name = "KEY", help_heading = "Network")]
    api_key: Vec<String>,
    /// File with keys, one per line; empty lines and those that start with # are left out.
    #[arg(long, value_name = "FILE", help_heading = "Network")]
    api_key_file: Option<PathBuf>,
    /// Origins whose web pages may use the server, or * for all; also as a JSON list [default: none].
    #[arg(long, value_name = "ORIGIN", help_heading = "Network")]
    allowed_origins: Vec<String>,
    /// Do not show the page at /.
    #[arg(long, help_heading = "Network")]
    no_page: bool,
    /// File with certificates: connections are encrypted.
    #[arg(long, value_name = "FILE", requires = "ssl_keyfile", help_heading = "Network")]
    ssl_certfile: Option<PathBuf>,
    /// File with the key of the certificate.
    #[arg(
        long,
        value_name = "FILE",
        requires = "ssl_certfile",
        help_heading = "Network"
    )]
    ssl_keyfile: Option<PathBuf>,
    /// Collector to send spans of requests to, as OTLP over HTTP, such as http://127.0.0.1:4318
    /// [default: what the OTEL_* variables say, or none].
    #[arg(long, value_name = "URL", help_heading = "Messages")]
    otlp_traces_endpoint: Option<String>,
    /// How log lines look.
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "text",
        help_heading = "Messages"
    )]
    log_format: LogFormat,
}

impl ServeFlags {
    /// The flags about drafts.
    pub(super) fn speculation(&self) -> &SpeculationFlags {
        &self.engine.speculation
    }

    /// What the flags mean.
    pub(crate) fn into_config(self, log: Option<LogLevel>) -> ServeConfig {
        let given = self.model.name(self.model_argument);
        let mut engine = self.engine.options(&self.model);
        engine.config.pipeline_depth = self.pipeline_depth;
        if let Some(waiting) = self.max_waiting {
            engine.config.max_waiting = waiting;
        }
        let model = ModelSource::new(given);
        let names = match self.served_model_name {
            names if names.is_empty() => model.names(),
            names => names,
        };
        let network = self.network;
        let mut server = self.limits.config();
        server.api_keys = network.api_key;
        server.page = !network.no_page;
        server.pooling = self.pooling.unwrap_or(server.pooling);
        server.allowed_origins = network
            .allowed_origins
            .iter()
            .flat_map(|text| origins(text))
            .collect();
        ServeConfig {
            model,
            names,
            chat_template: self.chat_template,
            tool_format: self.tool_call_parser.unwrap_or(ParserChoice::Auto),
            reasoning_format: self.reasoning_parser.unwrap_or(ParserChoice::Auto),
            generation_config: self.generation_config,
            sampling: self
                .sampling
                .0
                .or(&self.override_generation_config.unwrap_or_default()),
            address: (network.host, network.port).into(),
            api_key_file: network.api_key_file,
            tls: network.ssl_certfile.zip(network.ssl_keyfile),
            traces_endpoint: network.otlp_traces_endpoint,
            log,
            log_format: network.log_format,
            server,
            engine,
            kv_events: self.kv_events_config.flatten(),
            unused: self.unused.list(),
        }
    }
}

fn address(text: &str) -> Result<IpAddr, String> {
    if text == "localhost" {
        return Ok(IpAddr::from([127, 0, 0, 1]));
    }
    text.parse()
        .map_err(|_| format!("`{text}` is not an address such as 127.0.0.1, 0.0.0.0 or ::1"))
}

fn kv_events(text: &str) -> Result<KvEvents, String> {
    KvEventsConfig::from_json(text).map_err(|error| error.to_string())
}

fn pooling(text: &str) -> Result<Pooling, String> {
    match text {
        "mean" => Ok(Pooling::Mean),
        "last" => Ok(Pooling::Last),
        _ => Err("it must be mean or last".to_owned()),
    }
}

fn tool_format(text: &str) -> Result<ParserChoice<ToolFormat>, String> {
    choice(text, |name| {
        ToolFormat::from_name(name).map_err(|error| error.to_string())
    })
}

fn reasoning_format(text: &str) -> Result<ParserChoice<ReasoningFormat>, String> {
    choice(text, |name| {
        ReasoningFormat::from_name(name).map_err(|error| error.to_string())
    })
}

fn choice<T>(text: &str, named: impl Fn(&str) -> Result<T, String>) -> Result<ParserChoice<T>, String> {
    match text {
        "auto" => Ok(ParserChoice::Auto),
        "none" => Ok(ParserChoice::None),
        name => named(name).map(ParserChoice::Given),
    }
}

/// One origin as it is, or the entries of a JSON list.
fn origins(text: &str) -> Vec<String> {
    serde_json::from_str(text).unwrap_or_else(|_| vec![text.to_owned()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: ServeFlags,
    }

    fn parse(arguments: &[&str]) -> Result<ServeConfig, String> {
        let line = Line::try_parse_from(["paceline"].iter().chain(arguments));
        line.map(|line| line.flags.into_config(None))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_command_line_of_vllm_is_understood() {
        let config = parse(&[
            "org/name",
            "--served-model-name",
            "a",
            "b",
            "--api-key",
            "k",
            "--max-model-len",
            "100",
            "--max-num-seqs",
            "4",
            "--max-num-batched-tokens",
            "64",
            "--no-enable-prefix-caching",
            "--dtype",
            "float32",
            "--seed",
            "1",
            "--override-generation-config",
            r#"{"temperature": 0.5, "top_k": 5}"#,
            "--temp",
            "0.25",
            "--tool-call-parser",
            "hermes",
            "--reasoning-parser",
            "qwen3",
            "--gpu-memory-utilization",
            "0.5",
            "--trust-remote-code",
            "--enforce-eager",
            "--tensor-parallel-size",
            "1",
            "--swap-space",
            "4",
            "--allowed-origins",
            r#"["https://a", "https://b"]"#,
            "--speculative-config",
            r#"{"method": "ngram", "num_speculative_tokens": 3}"#,
            "--kv-events-config",
            r#"{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557"}"#,
        ]);
        let config = config.unwrap();
        assert_eq!(config.model, ModelSource::Named("org/name".to_owned()));
        assert_eq!(config.names, ["a", "b"]);
        assert_eq!(config.server.allowed_origins, ["https://a", "https://b"]);
        assert!(!config.engine.config.prefix_caching);
        assert_eq!(
            serde_json::Value::Object(config.sampling.to_json()),
            serde_json::json!({ "temperature": 0.25, "top_k": 5, "seed": 1 })
        );
        assert_eq!(config.engine.config.memory_utilization, Some(0.5));
        assert_eq!(config.unused.len(), 4);
        assert_eq!(config.kv_events.map(|events| events.endpoint.port()), Some(5557));
        let same = parse(&["--model", "org/name"]).unwrap();
        assert_eq!(
            (same.model, same.names),
            (config.model, vec!["org/name".to_owned()])
        );
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        for (arguments, part) in [
            (&["--tensor-parallel-size", "2"][..], "must be 1"),
            (&["--tool-call-parser", "magic"], "magic"),
            (&["--generation-config", "folder"], "folder"),
            (
                &["--override-generation-config", r#"{"max_tokens": 9}"#],
                "max_tokens",
            ),
            (&["--override-generation-config", r#"{"top_p": 9}"#], "top_p"),
            (&["--top-p", "9"], "at most 1"),
            (&["--pooling", "max"], "mean or last"),
            (&["--kv-events-config", r#"{"publisher": "kafka"}"#], "kafka"),
            (&["--key-min-priority", "KEY"], "KEY=-1"),
            (&["--prefix-cache-scope", "none"], "key or all"),
            (&["--drain-timeout=-1"], "seconds"),
            (&["--write-timeout", "0"], "more than 0"),
            (&["--body-timeout", "0"], "more than 0"),
            (&["--host", "nowhere"], "nowhere"),
            (&["--ssl-certfile", "x"], "ssl-keyfile"),
            (&["a", "--model", "b"], "model"),
        ] {
            let error = parse(arguments).err().unwrap_or_default();
            assert!(error.contains(part), "{arguments:?}: {error}");
        }
    }
}
