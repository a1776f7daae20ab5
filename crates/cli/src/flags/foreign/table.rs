//! What each flag of others is here. `docs/flags.md` has the same for people.

/// A flag of others by its names.
pub(super) struct Foreign {
    pub(super) names: &'static [&'static str],
    pub(super) takes: Takes,
    pub(super) meaning: Meaning,
}

/// What comes behind a flag.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    Nothing,
    Value,
    /// `on`, `off` and the like, or nothing.
    Switch,
}

/// What a flag means here.
#[derive(Clone, Copy)]
pub(super) enum Meaning {
    /// A flag of ours with the same value; the values in the list are its default.
    Ours(&'static str, &'static [&'static str]),
    /// These words of ours.
    Instead(&'static [&'static str]),
    /// Nothing, for this reason.
    Nothing(&'static str),
    /// Nothing for these values, for the first reason; others cannot be, and the second says what to do.
    Only(&'static [&'static str], &'static str, &'static str),
    /// It cannot be: what to do instead.
    Refused(&'static str),
}

use Meaning::{Instead, Nothing, Only, Ours, Refused};

pub(super) const ONE_DEVICE: &str = "a model is on one device as a whole; --device chooses it";
pub(super) const REPLICAS: &str =
    "a model runs on one device here; for more, run a server per device behind a router (docs/scale.md)";
const CONTINUATIONS: &str = "-n is the number of continuations of `paceline generate`; the tokens of llama.cpp are \
                             --max-tokens VALUE, or max_tokens in requests";
const SAMPLERS: &str =
    "this way of sampling is not there; temperature, top-k, top-p, min-p and penalties are";
pub(super) const ADAPTERS: &str = "adapters are not supported; merge them into the weights first";
pub(super) const BY_REQUEST: &str = "requests say it: response_format, structured_outputs or tools";
pub(super) const AS_STORED: &str = "the model's own configuration counts; change it in config.json";
pub(super) const TEXT_ONLY: &str = "models read and write text alone here";

pub(super) const fn switch(names: &'static [&'static str], meaning: Meaning) -> Foreign {
    Foreign {
        names,
        takes: Takes::Nothing,
        meaning,
    }
}

pub(super) const fn valued(names: &'static [&'static str], meaning: Meaning) -> Foreign {
    Foreign {
        names,
        takes: Takes::Value,
        meaning,
    }
}

pub(super) const fn maybe(names: &'static [&'static str], meaning: Meaning) -> Foreign {
    Foreign {
        names,
        takes: Takes::Switch,
        meaning,
    }
}

/// The flags of others that people type; `rare.rs` has the rest.
pub(super) const FLAGS: &[Foreign] = &[
    // The model.
    valued(&["-hf", "-hfr", "--hf-repo"], Ours("--model", &[])),
    valued(&["-hff", "--hf-file"], Refused("it goes with -hf")),
    valued(
        &["-hft", "--hf-token"],
        Refused("set HF_TOKEN, which is not seen in lists of processes"),
    ),
    valued(
        &["--download-dir"],
        Refused("set HF_HUB_CACHE to the folder, or HF_HOME to the one above it"),
    ),
    valued(
        &["--tokenizer"],
        Refused("the model's own is used; put another beside its weights, as tokenizer.json"),
    ),
    valued(&["--tokenizer-mode"], Nothing("there is one tokenizer")),
    valued(
        &["--quantization"],
        Only(
            &["gguf", "none"],
            "weights are used as their file stores them",
            "--quantize q8 or q4 quantises while loading, and GGUF files come quantised, such as org/name:Q4_K_M",
        ),
    ),
    valued(
        &["--task", "--runner"],
        Only(
            &["auto", "generate", "embed", "embedding", "pooling"],
            "every model generates and embeds",
            "a model generates and embeds here, and nothing else",
        ),
    ),
    switch(&["--trust-remote-code"], Nothing("code of models is never run")),
    valued(
        &[
            "--hf-overrides",
            "--rope-scaling",
            "--rope-theta",
            "--rope-freq-base",
            "--rope-freq-scale",
            "--yarn-orig-ctx",
            "--override-kv",
        ],
        Refused(AS_STORED),
    ),
    switch(&["--enable-lora"], Refused(ADAPTERS)),
    valued(
        &[
            "--lora",
            "--lora-scaled",
            "--lora-modules",
            "--max-loras",
            "--max-lora-rank",
        ],
        Refused(ADAPTERS),
    ),
    valued(&["-mm", "--mmproj", "--limit-mm-per-prompt"], Refused(TEXT_ONLY)),
    valued(&["-a", "--alias"], Ours("--served-model-name", &[])),
    valued(&["-md", "--model-draft"], Ours("--draft-model", &[])),
    valued(
        &["--draft", "--draft-n", "--draft-max"],
        Ours("--draft-tokens", &[]),
    ),
    valued(
        &["--draft-min", "--draft-n-min", "--draft-p-min"],
        Nothing("how many drafts are made is decided by what they cost and how they fare"),
    ),
    // The device and its memory.
    valued(&["-ngl", "--gpu-layers", "--n-gpu-layers"], Nothing(ONE_DEVICE)),
    valued(
        &[
            "-sm",
            "--split-mode",
            "-ts",
            "--tensor-split",
            "-mg",
            "--main-gpu",
            "-ot",
            "--override-tensor",
            "-ncmoe",
            "--n-cpu-moe",
        ],
        Refused(ONE_DEVICE),
    ),
    switch(&["-cmoe", "--cpu-moe"], Refused(ONE_DEVICE)),
    valued(
        &[
            "-tp",
            "--tensor-parallel-size",
            "-pp",
            "--pipeline-parallel-size",
            "-dp",
            "--data-parallel-size",
        ],
        Only(&["1"], "1 is what there is", REPLICAS),
    ),
    valued(&["--cpu-offload-gb"], Only(&["0"], "it is 0 always", ONE_DEVICE)),
    valued(&["-ctk", "--cache-type-k"], Ours("--kv-cache-dtype", &[])),
    valued(
        &["-ctv", "--cache-type-v"],
        Nothing("values have the type of keys, which --kv-cache-dtype says"),
    ),
    valued(&["--num-gpu-blocks-override"], Ours("--num-blocks", &[])),
    valued(
        &["--swap-space"],
        Nothing("what loses its place is computed again"),
    ),
    switch(
        &["--mlock", "--no-mmap", "--mmap"],
        Nothing("weights are read once and stay in memory"),
    ),
    valued(
        &["--numa"],
        Nothing("the system places threads; numactl binds them"),
    ),
    valued(
        &["-tb", "--threads-batch"],
        Nothing("prompts are computed on the same --threads"),
    ),
    valued(
        &["--distributed-executor-backend"],
        Nothing("there is one process"),
    ),
    switch(&["--disable-custom-all-reduce"], Nothing("there is one device")),
    switch(&["--list-devices"], Refused("`paceline doctor` lists them")),
    // Batches, prompts and caches.
    valued(
        &["-c", "--ctx-size"],
        Ours("--max-model-len", &["0", "-1", "auto"]),
    ),
    valued(&["-b", "--batch-size"], Ours("--max-num-batched-tokens", &[])),
    valued(
        &["-ub", "--ubatch-size"],
        Nothing("--max-num-batched-tokens bounds a step"),
    ),
    valued(&["-np", "--parallel"], Ours("--max-num-seqs", &["-1"])),
    switch(
        &["-cb", "--cont-batching"],
        Nothing("requests come and go with every step"),
    ),
    maybe(
        &["-fa", "--flash-attn"],
        Nothing("attention is always computed block by block"),
    ),
    switch(
        &["--enforce-eager"],
        Nothing("capturing a step's program costs no correctness here"),
    ),
    valued(
        &[
            "--compilation-config",
            "--max-seq-len-to-capture",
            "--attention-backend",
        ],
        Nothing("steps are captured at the start, for every shape"),
    ),
    switch(
        &["-O0", "-O1", "-O2", "-O3"],
        Nothing("steps are captured at the start, for every shape"),
    ),
    switch(
        &["--enable-chunked-prefill"],
        Nothing("prompts are always cut into chunks"),
    ),
    switch(
        &["--no-enable-chunked-prefill"],
        Refused("prompts are always cut into chunks; --max-num-batched-tokens says how long they are"),
    ),
    valued(
        &["--max-num-partial-prefills", "--long-prefill-token-threshold"],
        Nothing("--max-step-ms bounds what prompts take of a step"),
    ),
    switch(
        &["--async-scheduling"],
        Nothing("steps are always scheduled ahead; see --pipeline-depth"),
    ),
    valued(
        &["--scheduling-policy"],
        Nothing("priorities count, and then who came first"),
    ),
    switch(
        &["--enable-prefix-caching", "--cache-prompt"],
        Nothing("it is on unless --no-prefix-caching is given"),
    ),
    switch(&["--no-cache-prompt"], Instead(&["--no-prefix-caching"])),
    valued(
        &["--cache-reuse"],
        Nothing("beginnings of prompts are kept and found by themselves"),
    ),
    switch(
        &["--no-context-shift"],
        Nothing("a text ends at the model's context"),
    ),
    switch(
        &["--context-shift"],
        Refused("a text ends at the model's context; nothing of it is forgotten"),
    ),
    switch(
        &["--no-warmup", "--warmup"],
        Nothing("the start takes no longer with it"),
    ),
    // Text, sampling and what requests say.
    switch(
        &["--jinja"],
        Nothing("chat templates are always rendered as Jinja"),
    ),
    switch(
        &["--no-jinja"],
        Refused("chat templates are always rendered as Jinja"),
    ),
    valued(&["--chat-template-file"], Ours("--chat-template", &[])),
    valued(
        &["--chat-template-content-format"],
        Nothing("texts and lists of parts are both understood"),
    ),
    switch(
        &["--enable-auto-tool-choice"],
        Nothing("tools are on offer wherever the model can call them"),
    ),
    switch(
        &["--enable-reasoning"],
        Nothing("it is on where the model marks its reasoning"),
    ),
    valued(
        &["--reasoning-format"],
        Nothing("--reasoning-parser says how reasoning is marked"),
    ),
    valued(
        &["--reasoning-budget"],
        Refused("requests say it, as far as the chat template can: chat_template_kwargs"),
    ),
    valued(
        &["--guided-decoding-backend", "--structured-outputs-config"],
        Nothing("there is one engine for grammars"),
    ),
    valued(
        &["--grammar", "--grammar-file", "-j", "--json-schema"],
        Refused(BY_REQUEST),
    ),
    valued(
        &["--max-logprobs"],
        Nothing("requests may ask for up to 20 per token, whatever it says"),
    ),
    valued(&["-n"], Refused(CONTINUATIONS)),
    valued(&["--predict", "--n-predict"], Ours("--max-tokens", &["-1", "-2"])),
    valued(&["-r", "--reverse-prompt"], Ours("--stop", &[])),
    valued(&["-sys", "--system-prompt"], Ours("--system", &[])),
    switch(
        &["-e", "--escape", "--no-escape"],
        Nothing("prompts are taken as they are; $'...' of the shell has escapes"),
    ),
    valued(
        &["-f", "--file"],
        Refused("pipe the file in: paceline generate < FILE"),
    ),
    switch(
        &[
            "-i",
            "--interactive",
            "-cnv",
            "--conversation",
            "-no-cnv",
            "--no-conversation",
        ],
        Refused("`paceline chat` talks, and `paceline generate` continues a text"),
    ),
    valued(
        &[
            "--mirostat",
            "--mirostat-lr",
            "--mirostat-ent",
            "--typical",
            "--top-nsigma",
            "--top-n-sigma",
            "--xtc-probability",
            "--xtc-threshold",
            "--dry-multiplier",
            "--dry-base",
            "--dry-allowed-length",
            "--dry-penalty-last-n",
            "--dynatemp-range",
            "--repeat-last-n",
            "--samplers",
            "--sampling-seq",
        ],
        Refused(SAMPLERS),
    ),
    // The server.
    switch(&["--no-webui"], Instead(&["--no-page"])),
    switch(
        &["--webui"],
        Nothing("the page is at / unless --no-page is given"),
    ),
    switch(
        &[
            "--slots",
            "--props",
            "--metrics",
            "--embedding",
            "--embeddings",
            "--rerank",
            "--reranking",
        ],
        Nothing("it is always there"),
    ),
    valued(&["-to", "--timeout"], Ours("--request-timeout", &[])),
    valued(
        &["--threads-http", "--api-server-count"],
        Nothing("connections share a few threads"),
    ),
    valued(
        &["--root-path", "--api-prefix"],
        Refused("let the proxy take the prefix off"),
    ),
    valued(&["--slot-save-path"], Refused("caches are not written to files")),
    valued(&["--uvicorn-log-level"], Nothing("--log says what is logged")),
    valued(&["--max-log-len"], Nothing("prompts are not logged")),
    switch(
        &["--disable-log-requests", "--disable-uvicorn-access-log"],
        Nothing("--log warn leaves out the lines of requests"),
    ),
    switch(
        &["--enable-log-requests"],
        Nothing("requests are logged, without their texts"),
    ),
    switch(&["--disable-log-stats"], Nothing("numbers are not logged")),
    switch(
        &["--disable-fastapi-docs"],
        Nothing("/openapi.json needs a key where there are keys"),
    ),
    switch(
        &["--enable-request-id-headers"],
        Nothing("replies always carry x-request-id"),
    ),
    switch(&["--log-disable"], Instead(&["--log", "off"])),
    switch(&["-v", "--verbose"], Instead(&["--log", "debug"])),
];

const WIDE_CACHE: &str = "keys and values are kept in 32 or 16 bits; --kv-cache-dtype float16 or bfloat16 takes half of float32's memory";

/// Types of caches elsewhere that have fewer than 16 bits.
fn is_narrow(value: &str) -> bool {
    ["fp8", "int8", "nvfp4", "turboquant", "q", "iq"]
        .iter()
        .any(|start| value.starts_with(start))
}

/// A flag, which of its values, and what they mean.
type Rule = (&'static str, fn(&str) -> bool, Meaning);

/// Values that mean something else than the rest, of flags of others, and of ours that others have too.
pub(super) const VALUES: &[Rule] = &[
    (
        "--dtype",
        |value| matches!(value, "half" | "float16" | "fp16" | "f16"),
        Refused(
            "weights in f16 are used as they are with --dtype auto, and sums are f32; --dtype bf16 converts",
        ),
    ),
    ("--kv-cache-dtype", is_narrow, Refused(WIDE_CACHE)),
    ("-ctk", is_narrow, Refused(WIDE_CACHE)),
    (
        "--load-format",
        |value| matches!(value, "safetensors" | "gguf"),
        Nothing("the files say so themselves"),
    ),
    (
        "--load-format",
        |value| !matches!(value, "auto" | "dummy" | ""),
        Refused("weights are read from safetensors and GGUF files"),
    ),
    (
        "--speculative-model",
        |value| value == "[ngram]",
        Instead(&["--speculation", "ngram"]),
    ),
    ("-ngl", |value| value == "0", Instead(&["--device", "cpu"])),
    (
        "--max-model-len",
        |value| matches!(value, "-1" | "auto"),
        Instead(&[]),
    ),
    (
        "-t",
        |value| value.parse().is_ok_and(|value: f32| value > 2.0),
        Refused(
            "-t is the temperature here; the threads of llama.cpp are --threads VALUE, and a temperature above 2 is --temperature VALUE",
        ),
    ),
    (
        "-n",
        |value| value.parse().is_ok_and(|value: i64| !(0..=16).contains(&value)),
        Refused(CONTINUATIONS),
    ),
];
