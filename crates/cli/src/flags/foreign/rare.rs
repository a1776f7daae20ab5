//! Flags of others that few people type, in the same form as those of `table.rs`; `docs/flags.md` has them too.

use super::table::Meaning::{Nothing, Only, Ours, Refused};
use super::table::{
    ADAPTERS, AS_STORED, BY_REQUEST, Foreign, ONE_DEVICE, REPLICAS, TEXT_ONLY, maybe, switch, valued,
};

const CAPTURED: &str = "steps are captured at the start, for every shape";
const CACHE_STAYS: &str =
    "keys and values stay on the model's device; --kv-events-config tells routers what is cached";
const DRAFT_DEVICE: &str = "drafts are made on the model's device";
const EXPERTS: &str = "there is one way to compute experts on a device";
const HAND_BACK: &str = "--hand-back-after MINUTES gives the memory of an idle engine back";
const LOGGED: &str = "--log says what is logged, --log-format how";
const NO_SCALES: &str = "keys and values have no scales";
const ONE_PROCESS: &str = "there is one process";
const SCHEDULED: &str = "steps are always scheduled ahead; see --pipeline-depth";
const THREADS: &str = "the system places threads; taskset and numactl bind them";

/// The model and its files.
pub(super) const MODEL: &[Foreign] = &[
    valued(&["-mu", "--model-url"], Ours("--model", &[])),
    switch(
        &["--offline"],
        Refused("set HF_HUB_OFFLINE=1 to use models downloaded before"),
    ),
    valued(
        &["--model-impl"],
        Only(
            &["auto", "vllm"],
            "each architecture is there once",
            "each architecture is there once; leave it out",
        ),
    ),
    valued(
        &["--convert"],
        Only(
            &["auto", "none", "embed"],
            "every model generates and embeds",
            "a model generates and embeds here, and nothing else",
        ),
    ),
    valued(
        &["--config-format"],
        Only(
            &["auto", "hf"],
            "config.json or the GGUF file says what a model is",
            "config.json or the GGUF file says what a model is; leave it out",
        ),
    ),
    valued(&["--code-revision"], Nothing("code of models is never run")),
    valued(
        &["--tokenizer-revision"],
        Refused("--revision is the tokenizer's too"),
    ),
    valued(
        &[
            "--rope-scale",
            "--yarn-ext-factor",
            "--yarn-attn-factor",
            "--yarn-beta-slow",
            "--yarn-beta-fast",
            "--attention",
            "-gan",
            "--grp-attn-n",
            "-gaw",
            "--grp-attn-w",
            "--hf-config-path",
        ],
        Refused(AS_STORED),
    ),
    switch(&["--disable-sliding-window"], Refused(AS_STORED)),
    switch(
        &[
            "--lora-init-without-apply",
            "--enable-lora-bias",
            "--fully-sharded-loras",
        ],
        Refused(ADAPTERS),
    ),
    valued(&["--lora-dtype", "--max-cpu-loras"], Refused(ADAPTERS)),
    valued(
        &["--control-vector", "--control-vector-scaled"],
        Refused("control vectors are not supported; a system prompt is what there is to steer with"),
    ),
    valued(
        &[
            "--media-path",
            "--allowed-local-media-path",
            "--mm-processor-kwargs",
            "--mmproj-url",
        ],
        Refused(TEXT_ONLY),
    ),
    valued(&["--mm-processor-cache-gb"], Nothing(TEXT_ONLY)),
    switch(
        &[
            "--no-mmproj",
            "--mmproj-auto",
            "--disable-mm-preprocessor-cache",
            "--skip-mm-profiling",
            "--language-model-only",
        ],
        Nothing(TEXT_ONLY),
    ),
    valued(
        &["--ignore-patterns"],
        Nothing("only the files that are needed are downloaded"),
    ),
    valued(
        &["--model-loader-extra-config", "--max-parallel-loading-workers"],
        Nothing("weights are read and packed on --threads"),
    ),
    switch(
        &["--use-tqdm-on-load", "--no-use-tqdm-on-load"],
        Nothing("a bar is shown on a terminal, unless --quiet is given"),
    ),
    switch(
        &["-nr", "--no-repack", "--repack"],
        Nothing("weights are packed as the device needs them"),
    ),
    switch(
        &["-dio", "--direct-io", "-ndio", "--no-direct-io"],
        Nothing("weights are read once and stay in memory"),
    ),
];

/// Devices, threads, drafts, caches and steps.
pub(super) const ENGINE: &[Foreign] = &[
    valued(&["-dev"], Ours("--device", &[])),
    switch(
        &["-nkvo", "--no-kv-offload"],
        Refused("keys and values are on the model's device; --device chooses it"),
    ),
    switch(
        &[
            "-kvo",
            "--kv-offload",
            "--op-offload",
            "--no-op-offload",
            "--no-host",
        ],
        Nothing(ONE_DEVICE),
    ),
    valued(
        &["-fit", "--fit", "-fitt", "--fit-target", "-fitc", "--fit-ctx"],
        Nothing("caches are as large as --memory-utilization lets them be"),
    ),
    valued(
        &[
            "-C",
            "--cpu-mask",
            "-Cr",
            "--cpu-range",
            "--cpu-strict",
            "--prio",
            "--poll",
        ],
        Nothing(THREADS),
    ),
    valued(
        &["-devd", "--device-draft"],
        Refused("drafts are made on the model's device, which --device chooses"),
    ),
    valued(
        &["-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft"],
        Nothing(DRAFT_DEVICE),
    ),
    valued(
        &["-cd", "--ctx-size-draft"],
        Nothing("drafters have the model's context"),
    ),
    valued(
        &["-td", "--threads-draft"],
        Nothing("drafts are made on the same --threads"),
    ),
    valued(&["--speculative-model"], Ours("--draft-model", &[])),
    valued(&["--num-speculative-tokens"], Ours("--draft-tokens", &[])),
    valued(&["--spec-type"], Refused("--speculation says who drafts")),
    switch(
        &["--enable-expert-parallel", "--enable-eplb"],
        Nothing("there is one device"),
    ),
    valued(&["--all2all-backend", "--moe-backend"], Nothing(EXPERTS)),
    valued(
        &[
            "--nnodes",
            "--data-parallel-size-local",
            "-dcp",
            "--decode-context-parallel-size",
        ],
        Only(&["1"], "1 is what there is", REPLICAS),
    ),
    valued(
        &[
            "--node-rank",
            "--master-addr",
            "--master-port",
            "--data-parallel-rank",
        ],
        Refused(REPLICAS),
    ),
    switch(&["--headless"], Refused(REPLICAS)),
    valued(&["--data-parallel-backend"], Nothing(ONE_PROCESS)),
    switch(
        &[
            "--worker-use-ray",
            "--engine-use-ray",
            "--ray-workers-use-nsight",
            "--disable-frontend-multiprocessing",
            "--disable-async-output-proc",
        ],
        Nothing(ONE_PROCESS),
    ),
    valued(
        &[
            "--worker-cls",
            "--worker-extension-cls",
            "--scheduler-cls",
            "--io-processor-plugin",
        ],
        Refused("there is no Python in it; leave it out"),
    ),
    valued(
        &[
            "--cuda-graph-sizes",
            "--cudagraph-capture-sizes",
            "--max-cudagraph-capture-size",
            "--max-context-len-to-capture",
            "--optimization-level",
            "--attention-config",
        ],
        Nothing(CAPTURED),
    ),
    switch(
        &["--disable-cascade-attn"],
        Nothing("attention is always computed block by block"),
    ),
    valued(
        &["--num-scheduler-steps", "--num-lookahead-slots"],
        Nothing(SCHEDULED),
    ),
    valued(
        &["--max-long-partial-prefills"],
        Nothing("--max-step-ms bounds what prompts take of a step"),
    ),
    valued(&["--quantization-param-path"], Nothing(NO_SCALES)),
    switch(&["--calculate-kv-scales"], Nothing(NO_SCALES)),
    valued(
        &["--mamba-cache-dtype", "--mamba-ssm-cache-dtype"],
        Only(
            &["auto"],
            "states have the type that their layers compute in",
            "states have the type that their layers compute in; leave it out",
        ),
    ),
    valued(
        &["--preemption-mode"],
        Nothing("what loses its place is computed again"),
    ),
    switch(
        &[
            "-kvu",
            "--kv-unified",
            "-no-kvu",
            "--no-kv-unified",
            "--use-v2-block-manager",
        ],
        Nothing("requests share one pool of blocks"),
    ),
    valued(
        &["-cram", "--cache-ram"],
        Nothing("cached prefixes are in the blocks that no request needs"),
    ),
    valued(
        &["-dt", "--defrag-thold"],
        Nothing("any free block will do, wherever it is"),
    ),
    valued(
        &["--ctx-checkpoints", "--swa-checkpoints"],
        Nothing("states are saved and found by themselves"),
    ),
    switch(
        &[
            "--swa-full",
            "--disable-hybrid-kv-cache-manager",
            "--no-disable-hybrid-kv-cache-manager",
        ],
        Nothing("caches are made for the layers that the model has"),
    ),
    valued(
        &["-sps", "--slot-prompt-similarity", "--prefix-caching-hash-algo"],
        Nothing("beginnings of prompts are kept and found by themselves"),
    ),
    valued(
        &[
            "--kv-transfer-config",
            "--ec-transfer-config",
            "--kv-offloading-size",
            "--kv-offloading-backend",
        ],
        Refused(CACHE_STAYS),
    ),
    switch(&["--enable-sleep-mode"], Refused(HAND_BACK)),
    valued(&["--sleep-idle-seconds"], Refused(HAND_BACK)),
    switch(
        &["-bs", "--backend-sampling"],
        Nothing("tokens are always sampled on the device"),
    ),
    valued(&["--keep"], Nothing("a text ends at the model's context")),
    switch(
        &["--perf", "--no-perf"],
        Nothing("`paceline generate --stats` tells times, and /metrics those of a server"),
    ),
];

/// What requests say, and the server.
pub(super) const SERVER: &[Foreign] = &[
    switch(&["--ignore-eos"], Refused("requests say it: ignore_eos")),
    valued(&["-l", "--logit-bias"], Refused("requests say it: logit_bias")),
    valued(&["-jf", "--json-schema-file", "--tools"], Refused(BY_REQUEST)),
    valued(
        &["--chat-template-kwargs", "--default-chat-template-kwargs"],
        Refused("requests say it: chat_template_kwargs"),
    ),
    switch(
        &["--prefill-assistant", "--no-prefill-assistant"],
        Refused("requests say it: continue_final_message"),
    ),
    switch(
        &["-sp", "--special"],
        Refused("requests say it: skip_special_tokens"),
    ),
    switch(
        &["--return-tokens-as-token-ids"],
        Refused("requests say it: return_tokens_as_token_ids"),
    ),
    switch(
        &["--enable-force-include-usage"],
        Refused("requests say it: stream_options"),
    ),
    valued(
        &["--logits-processors"],
        Refused("requests say it: logit_bias, bad_words or structured_outputs"),
    ),
    valued(
        &["--pooler-config", "--override-pooler-config"],
        Refused("--pooling says how vectors are made"),
    ),
    valued(
        &["--response-role"],
        Only(
            &["assistant"],
            "answers have it",
            "answers have the role of the assistant",
        ),
    ),
    valued(
        &["--stream-interval"],
        Only(
            &["1"],
            "tokens are sent as they come",
            "tokens are sent as they come; leave it out",
        ),
    ),
    valued(
        &["--logprobs-mode"],
        Only(
            &["raw_logprobs"],
            "log-probabilities are those before temperature and truncation",
            "log-probabilities are those before temperature and truncation; leave it out",
        ),
    ),
    switch(
        &["--exclude-tools-when-tool-choice-none"],
        Nothing("tools are left out where tool_choice is none"),
    ),
    switch(
        &["--trust-request-chat-template"],
        Nothing("requests may bring a chat_template"),
    ),
    switch(
        &["--enable-prompt-tokens-details"],
        Nothing("usage always has them"),
    ),
    switch(
        &[
            "--enable-tokenizer-info-endpoint",
            "--enable-server-load-tracking",
        ],
        Nothing("it is always there"),
    ),
    switch(
        &["--no-slots"],
        Refused("/slots is always there, and needs a key where there are keys; see --api-key"),
    ),
    switch(
        &["--skip-tokenizer-init", "--enable-prompt-embeds", "--tokens-only"],
        Refused("prompts are texts or tokens, as each request says; leave it out"),
    ),
    switch(
        &["--spm-infill"],
        Refused("write the tokens around the gap into the prompt of /v1/completions"),
    ),
    valued(
        &["--tool-parser-plugin", "--reasoning-parser-plugin"],
        Refused("--tool-call-parser and --reasoning-parser name those that there are"),
    ),
    valued(&["--tool-server"], Refused("clients run tools; leave it out")),
    valued(
        &["--models-dir", "--models-preset", "--models-max"],
        Refused("a server has one model; run a server per model behind a router (docs/scale.md)"),
    ),
    valued(&["--ssl-key-file"], Ours("--ssl-keyfile", &[])),
    valued(&["--ssl-cert-file"], Ours("--ssl-certfile", &[])),
    valued(
        &["--path"],
        Refused("the page is in the program; let a proxy serve other files"),
    ),
    valued(
        &["--uds"],
        Refused("--host and --port say where it listens; let a proxy listen on a socket"),
    ),
    valued(&["--middleware"], Refused("put a proxy in front of it")),
    valued(
        &["--allowed-methods", "--allowed-headers"],
        Nothing("pages of --allowed-origins may use every method and header that there is"),
    ),
    switch(
        &["--allow-credentials"],
        Nothing("keys are sent in a header, and there are no cookies"),
    ),
    valued(&["-asc"], Nothing("connections share a few threads")),
    valued(&["-lv", "--verbosity", "--log-verbosity"], Nothing(LOGGED)),
    maybe(&["--log-colors"], Nothing(LOGGED)),
    switch(&["--log-prefix", "--log-timestamps"], Nothing(LOGGED)),
    valued(&["--log-config-file"], Refused(LOGGED)),
    valued(
        &["--log-file"],
        Refused("the log goes to standard error: 2> VALUE keeps it"),
    ),
    valued(&["--disable-access-log-for-endpoints"], Nothing(LOGGED)),
    switch(
        &["--no-enable-log-requests"],
        Nothing("--log warn leaves out the lines of requests"),
    ),
    switch(
        &["--enable-log-outputs"],
        Refused("texts are never logged; leave it out"),
    ),
    switch(&["--aggregate-engine-logging"], Nothing("numbers are not logged")),
    valued(
        &["--show-hidden-metrics-for-version"],
        Nothing("no metric is hidden"),
    ),
    valued(
        &["--collect-detailed-traces"],
        Nothing("spans always have their parts; see --otlp-traces-endpoint"),
    ),
    valued(
        &["--additional-config"],
        Refused("nothing here reads it; leave it out"),
    ),
];
