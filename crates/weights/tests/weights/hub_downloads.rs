//! Downloads from a server that plays the hub.

use std::cell::RefCell;
use std::fs;
use std::path::Path;

use crate::support::hub::{COMMIT, FakeHub, Moved, Refused, git_hash, sha256};
use crate::support::{assert_names, gguf, safetensors};
use paceline_weights::Checkpoint;
use paceline_weights::hub::{HubConfig, NoProgress, Progress, resolve};
use serde_json::json;

const CONFIG: &[u8] = br#"{"model_type": "llama"}"#;

fn single_model() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("config.json", CONFIG.to_vec()),
        ("tokenizer.json", b"{}".to_vec()),
        ("generation_config.json", br#"{"top_k": 5}"#.to_vec()),
        ("model.safetensors", safetensors(&[("a", &[100, 100])])),
        ("README.md", b"not wanted".to_vec()),
        ("pytorch_model.bin", b"not wanted".to_vec()),
        ("original/consolidated.safetensors", b"not wanted".to_vec()),
    ]
}

fn sharded_model() -> Vec<(&'static str, Vec<u8>)> {
    let map = json!({"weight_map": {"a": "s-1.safetensors", "b": "s-2.safetensors"}});
    vec![
        ("config.json", CONFIG.to_vec()),
        ("model.safetensors.index.json", map.to_string().into_bytes()),
        ("s-1.safetensors", safetensors(&[("a", &[3])])),
        ("s-2.safetensors", safetensors(&[("b", &[5])])),
        ("consolidated.safetensors", b"not wanted".to_vec()),
    ]
}

fn refusal(argument: &str, config: &HubConfig) -> String {
    resolve(argument, config, &NoProgress)
        .expect_err("the model must not resolve")
        .to_string()
}

fn listed(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder").flatten();
    let mut names: Vec<_> = entries
        .map(|entry| entry.file_name().display().to_string())
        .collect();
    names.sort_unstable();
    names
}

/// What was heard about one file.
#[derive(Clone, Debug, Default)]
struct Heard {
    total: Option<u64>,
    bytes: u64,
    done: bool,
}

/// Writes down what it hears.
#[derive(Default)]
struct Recorder(RefCell<Vec<Heard>>);

impl Recorder {
    fn last(&self, change: impl FnOnce(&mut Heard)) {
        self.0
            .borrow_mut()
            .last_mut()
            .map(change)
            .expect("a file was started");
    }
}

impl Progress for Recorder {
    fn start(&self, _file: &str, total: Option<u64>) {
        self.0.borrow_mut().push(Heard {
            total,
            ..Heard::default()
        });
    }

    fn advance(&self, bytes: u64) {
        self.last(|heard| heard.bytes += bytes);
    }

    fn finish(&self) {
        self.last(|heard| heard.done = true);
    }

    fn wait(&self, file: &str) {
        panic!("nothing else downloads {file}");
    }
}

#[test]
fn a_model_is_downloaded_into_the_standard_layout_and_opens() {
    let (hub, cache) = (FakeHub::start(&single_model()), tempfile::tempdir().unwrap());
    let progress = Recorder::default();
    let path = resolve("org/name", &hub.config(cache.path()), &progress).unwrap();

    let repo = cache.path().join("models--org--name");
    assert_eq!(path, repo.join("snapshots").join(COMMIT));
    let wanted = [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    ];
    assert_eq!(listed(&path), wanted);
    assert_eq!(fs::read_to_string(repo.join("refs/main")).unwrap(), COMMIT);
    let link = fs::read_link(path.join("config.json")).unwrap();
    assert_eq!(link, Path::new("../../blobs").join(git_hash(CONFIG)));
    assert!(
        listed(&repo.join("blobs"))
            .iter()
            .all(|name| !name.contains("incomplete"))
    );

    assert_eq!(
        Checkpoint::open(&path).unwrap().tensor("a").unwrap().shape,
        [100, 100]
    );
    let heard = progress.0.borrow();
    assert_eq!(heard.len(), wanted.len());
    assert!(
        heard
            .iter()
            .all(|file| file.total == Some(file.bytes) && file.done),
        "{heard:?}"
    );
}

#[test]
fn a_second_run_asks_for_the_commit_and_fetches_nothing() {
    let (hub, cache) = (FakeHub::start(&single_model()), tempfile::tempdir().unwrap());
    let config = hub.config(cache.path());
    let first = resolve("org/name", &config, &NoProgress).unwrap();
    hub.seen();
    assert_eq!(resolve("org/name", &config, &NoProgress).unwrap(), first);
    let paths: Vec<_> = hub.seen().into_iter().map(|seen| seen.path).collect();
    assert_eq!(paths, ["/api/models/org/name/revision/main"]);

    assert_eq!(
        resolve(&format!("org/name@{COMMIT}"), &config, &NoProgress).unwrap(),
        first
    );
    assert_eq!(hub.seen().len(), 0, "a commit in the cache needs no request");
}

#[test]
fn a_connection_cut_mid_file_is_resumed_within_the_run() {
    let (hub, cache) = (FakeHub::start(&single_model()), tempfile::tempdir().unwrap());
    hub.behaviour().cut = Some(("model.safetensors".to_owned(), 12_345));
    let path = resolve("org/name", &hub.config(cache.path()), &NoProgress).unwrap();
    let ranges: Vec<_> = hub
        .fetches("model.safetensors")
        .into_iter()
        .map(|seen| seen.range)
        .collect();
    assert_eq!(ranges, [None, Some("bytes=12345-".to_owned())]);
    assert_eq!(
        fs::read(path.join("model.safetensors")).unwrap(),
        hub.behaviour().files["model.safetensors"]
    );
}

#[test]
fn a_download_that_broke_off_is_resumed_by_the_next_run() {
    let (hub, cache) = (FakeHub::start(&single_model()), tempfile::tempdir().unwrap());
    let config = HubConfig {
        retries: 0,
        ..hub.config(cache.path())
    };
    hub.behaviour().cut = Some(("model.safetensors".to_owned(), 777));
    let message = refusal("org/name", &config);
    assert_names(
        &message,
        &[
            "model.safetensors of org/name",
            "777 of 40",
            "run again",
            &config.endpoint,
        ],
    );
    hub.seen();
    let progress = Recorder::default();
    let path = resolve("org/name", &config, &progress).unwrap();
    let fetches = hub.fetches("model.safetensors");
    assert_eq!(fetches[0].range.as_deref(), Some("bytes=777-"));
    assert_eq!(
        fs::read(path.join("model.safetensors")).unwrap(),
        hub.behaviour().files["model.safetensors"]
    );
    let heard = progress.0.borrow()[0].clone();
    assert!(
        heard.total == Some(heard.bytes) && heard.done,
        "the part that was there counts"
    );
}

#[test]
fn a_server_that_ignores_ranges_makes_the_file_start_over() {
    let (hub, cache) = (FakeHub::start(&single_model()), tempfile::tempdir().unwrap());
    hub.behaviour().cut = Some(("model.safetensors".to_owned(), 5_000));
    hub.behaviour().ignore_ranges = true;
    let path = resolve("org/name", &hub.config(cache.path()), &NoProgress).unwrap();
    assert_eq!(
        fs::read(path.join("model.safetensors")).unwrap(),
        hub.behaviour().files["model.safetensors"]
    );
    assert_eq!(
        hub.fetches("model.safetensors").len(),
        2,
        "the whole file of the second answer is used"
    );
}

#[test]
fn a_partial_file_that_is_already_whole_or_too_long_is_handled() {
    let (hub, cache) = (FakeHub::start(&single_model()), tempfile::tempdir().unwrap());
    let blobs = cache.path().join("models--org--name/blobs");
    fs::create_dir_all(&blobs).unwrap();
    let whole = hub.behaviour().files["model.safetensors"].clone();
    fs::write(blobs.join(format!("{}.incomplete", sha256(&whole))), &whole).unwrap();
    fs::write(
        blobs.join(format!("{}.incomplete", git_hash(CONFIG))),
        [CONFIG, b"more"].concat(),
    )
    .unwrap();
    let path = resolve("org/name", &hub.config(cache.path()), &NoProgress).unwrap();
    assert_eq!(hub.fetches("model.safetensors").len(), 0);
    assert_eq!(fs::read(path.join("model.safetensors")).unwrap(), whole);
    assert_eq!(fs::read(path.join("config.json")).unwrap(), CONFIG);
}

#[test]
fn damaged_contents_are_refused_and_not_kept() {
    let (hub, cache) = (FakeHub::start(&single_model()), tempfile::tempdir().unwrap());
    let config = hub.config(cache.path());
    hub.behaviour().damage = Some("model.safetensors".to_owned());
    let expected = sha256(&hub.behaviour().files["model.safetensors"]);
    assert_names(
        &refusal("org/name", &config),
        &["model.safetensors of org/name", "damaged", &expected],
    );
    hub.behaviour().damage = None;
    assert!(Checkpoint::open(&resolve("org/name", &config, &NoProgress).unwrap()).is_ok());
}

#[test]
fn a_busy_server_is_asked_again() {
    let (hub, cache) = (FakeHub::start(&single_model()), tempfile::tempdir().unwrap());
    hub.behaviour().busy = 3;
    assert!(resolve("org/name", &hub.config(cache.path()), &NoProgress).is_ok());
    hub.behaviour().busy = 100;
    let other = tempfile::tempdir().unwrap();
    assert_names(
        &refusal("org/name", &hub.config(other.path())),
        &["model.safetensors of org/name", "HTTP 503"],
    );
}

#[test]
fn a_hub_that_limits_requests_is_asked_again_and_then_the_message_says_what_helps() {
    let (hub, cache) = (FakeHub::start(&single_model()), tempfile::tempdir().unwrap());
    let config = hub.config(cache.path());
    hub.behaviour().limited = 3;
    let path = resolve("org/name", &config, &NoProgress).unwrap();
    hub.behaviour().limited = 100;
    assert_eq!(
        resolve("org/name", &config, &NoProgress).unwrap(),
        path,
        "the cache serves"
    );
    let other = tempfile::tempdir().unwrap();
    let message = refusal("org/name", &hub.config(other.path()));
    assert_names(&message, &["org/name", "429", "wait", "set HF_TOKEN"]);
    let with_token = HubConfig {
        token: Some("hf_x".to_owned()),
        ..hub.config(other.path())
    };
    assert!(!refusal("org/name", &with_token).contains("HF_TOKEN"));
}

#[test]
fn a_hub_that_says_for_how_long_it_wants_rest_is_left_alone_for_so_long_or_not_waited_for() {
    for (limit, seconds) in [("Retry-After: 200", 200), ("RateLimit: \"api\";r=0;t=240", 240)] {
        let (hub, cache) = (FakeHub::start(&single_model()), tempfile::tempdir().unwrap());
        let limited = |limit| {
            let mut behaviour = hub.behaviour();
            (behaviour.limited, behaviour.limit) = (1, Some(limit));
        };
        limited(limit);
        let message = refusal("org/name", &hub.config(cache.path()));
        assert_names(&message, &[&format!("wait {seconds} seconds")]);
        assert_eq!(hub.seen().len(), 1, "it was asked again: {message}");
        limited("Retry-After: 0");
        assert!(resolve("org/name", &hub.config(cache.path()), &NoProgress).is_ok());
    }
}

#[test]
fn the_token_goes_to_the_hub_and_not_to_its_storage() {
    let (hub, cache) = (FakeHub::start(&single_model()), tempfile::tempdir().unwrap());
    hub.behaviour().token = Some("hf_secret".to_owned());
    let config = HubConfig {
        token: Some("hf_secret".to_owned()),
        ..hub.config(cache.path())
    };
    resolve("org/name", &config, &NoProgress).unwrap();
    for seen in hub.seen() {
        let expected = seen.host.starts_with("127.0.0.1").then_some("Bearer hf_secret");
        assert_eq!(seen.authorization.as_deref(), expected, "{seen:?}");
        // Sizes and hashes are those of files that nobody compressed on the way.
        let as_it_is = seen.path.starts_with("/api/models/") || seen.encoding.as_deref() == Some("identity");
        assert!(as_it_is, "{seen:?}");
    }
}

#[test]
fn a_renamed_model_is_followed_with_the_token() {
    for moved in [Moved::Path, Moved::Address] {
        let (hub, cache) = (FakeHub::start(&single_model()), tempfile::tempdir().unwrap());
        hub.behaviour().token = Some("hf_secret".to_owned());
        hub.behaviour().moved = moved;
        let config = HubConfig {
            token: Some("hf_secret".to_owned()),
            ..hub.config(cache.path())
        };
        let path = resolve("org/old", &config, &NoProgress).unwrap();
        assert!(path.starts_with(cache.path().join("models--org--old")));
        assert!(Checkpoint::open(&path).is_ok());
    }
}

#[test]
fn a_model_that_went_to_another_host_is_followed_without_the_token() {
    let (hub, cache) = (FakeHub::start(&single_model()), tempfile::tempdir().unwrap());
    hub.behaviour().moved = Moved::Host;
    let config = HubConfig {
        token: Some("hf_secret".to_owned()),
        ..hub.config(cache.path())
    };
    let path = resolve("org/old", &config, &NoProgress).unwrap();
    assert!(Checkpoint::open(&path).is_ok());
    for seen in hub.seen() {
        assert_eq!(
            seen.authorization.is_some(),
            seen.host.starts_with("127.0.0.1"),
            "{seen:?}"
        );
    }
}

#[test]
fn an_answer_about_another_commit_is_refused() {
    const OTHER: &str = "ffffffffffffffffffffffffffffffffffffffff";
    let (hub, cache) = (FakeHub::start(&single_model()), tempfile::tempdir().unwrap());
    hub.behaviour().commit = Some(OTHER);
    assert_names(
        &refusal("org/name", &hub.config(cache.path())),
        &["config.json of org/name", OTHER, COMMIT],
    );
}

/// What the user reads when the hub refuses so, with a token or without one. A gated model's list of files is open to
/// everyone.
fn told(
    hub: &FakeHub,
    token: Option<&str>,
    (status, code, message): (&'static str, &'static str, &'static str),
) -> String {
    let refused = Some(Refused {
        status,
        code,
        message,
    });
    let files = code == "GatedRepo";
    {
        let mut behaviour = hub.behaviour();
        behaviour.refuse_files = refused.filter(|_| files);
        behaviour.refuse_list = refused.filter(|_| !files);
    }
    let cache = tempfile::tempdir().expect("a folder");
    let config = HubConfig {
        token: token.map(str::to_owned),
        ..hub.config(cache.path())
    };
    refusal("org/name", &config)
}

#[test]
fn each_refusal_of_the_hub_says_what_it_means_and_what_helps() {
    let hub = FakeHub::start(&single_model());
    let terms = format!("accept its terms at {}/org/name", hub.endpoint());
    let (token, gated) = (Some("hf_secret"), "Access to model org/name is restricted");
    let invalid = "Invalid credentials in Authorization header";
    let disabled = "Access to this resource is disabled.";
    for (token, refused, parts) in [
        (
            None,
            ("401 Unauthorized", "GatedRepo", gated),
            [&*terms, "set HF_TOKEN"],
        ),
        (
            token,
            ("403 Forbidden", "GatedRepo", gated),
            [&*terms, "account of the token in use"],
        ),
        (
            None,
            ("401 Unauthorized", "RepoNotFound", ""),
            ["org/name was not found", "set HF_TOKEN"],
        ),
        (
            token,
            ("404 Not Found", "RepoNotFound", ""),
            ["org/name was not found", "the token in use"],
        ),
        (
            token,
            ("401 Unauthorized", "", invalid),
            ["is not valid", "public models need none"],
        ),
        (
            None,
            ("403 Forbidden", "", disabled),
            ["the hub has disabled it", "403"],
        ),
        (
            None,
            ("410 Gone", "", "It is no more"),
            ["HTTP 410", ": It is no more"],
        ),
    ] {
        let message = told(&hub, token, refused);
        assert_names(&message, &parts);
        assert!(!message.contains("hf_secret"), "{message}");
    }
}

#[test]
fn refused_access_says_to_set_the_token() {
    let (hub, cache) = (FakeHub::start(&single_model()), tempfile::tempdir().unwrap());
    hub.behaviour().token = Some("hf_secret".to_owned());
    let config = hub.config(cache.path());
    assert_names(
        &refusal("org/name", &config),
        &["org/name", "401", "set HF_TOKEN", &config.endpoint],
    );
    let wrong = HubConfig {
        token: Some("hf_wrong".to_owned()),
        ..config
    };
    let message = refusal("org/name", &wrong);
    assert_names(&message, &["the token in use has no access"]);
    assert!(!message.contains("hf_wrong"));
}

#[test]
fn a_model_or_revision_that_does_not_exist_is_named_with_the_hub() {
    let (hub, cache) = (FakeHub::start(&single_model()), tempfile::tempdir().unwrap());
    let config = hub.config(cache.path());
    assert_names(
        &refusal("org/other", &config),
        &["org/other was not found", &config.endpoint],
    );
    assert_names(
        &refusal("org/name@v9", &config),
        &["org/name@v9 was not found", "no such branch, tag or commit"],
    );
    assert_names(
        &refusal("not-a-model", &config),
        &["`not-a-model` is neither an existing path"],
    );
}

#[test]
fn without_a_network_the_cache_serves_and_else_the_message_says_what_to_do() {
    let (hub, cache) = (FakeHub::start(&single_model()), tempfile::tempdir().unwrap());
    let path = resolve("org/name", &hub.config(cache.path()), &NoProgress).unwrap();
    // Nothing listens on the port of a socket that was closed again.
    let closed = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let config = HubConfig {
        endpoint: format!("http://{closed}"),
        ..hub.config(cache.path())
    };
    assert_eq!(resolve("org/name", &config, &NoProgress).unwrap(), path);
    assert_names(
        &refusal("org/other", &config),
        &["org/other", &config.endpoint, "HF_HUB_OFFLINE", "local path"],
    );
}

#[test]
fn offline_mode_uses_a_complete_cache_and_sends_nothing() {
    let (hub, cache) = (FakeHub::start(&sharded_model()), tempfile::tempdir().unwrap());
    let offline = HubConfig {
        offline: true,
        ..hub.config(cache.path())
    };
    let folder = cache.path().display().to_string();
    assert_names(
        &refusal("org/name", &offline),
        &["org/name", "HF_HUB_OFFLINE", &folder],
    );
    assert_eq!(hub.seen().len(), 0);

    let path = resolve("org/name", &hub.config(cache.path()), &NoProgress).unwrap();
    hub.seen();
    assert_eq!(resolve("org/name", &offline, &NoProgress).unwrap(), path);
    fs::remove_file(path.join("s-2.safetensors")).unwrap();
    assert_names(&refusal("org/name", &offline), &["org/name", "not completely"]);
    assert_eq!(hub.seen().len(), 0);
}

#[test]
fn a_sharded_model_is_downloaded_by_its_index() {
    let (hub, cache) = (FakeHub::start(&sharded_model()), tempfile::tempdir().unwrap());
    let path = resolve("org/name", &hub.config(cache.path()), &NoProgress).unwrap();
    assert_eq!(Checkpoint::open(&path).unwrap().tensors().count(), 2);
    assert!(!path.join("consolidated.safetensors").exists());
}

#[test]
fn an_index_cannot_lead_out_of_the_cache() {
    let map = json!({"weight_map": {"a": "../../../evil.safetensors"}})
        .to_string()
        .into_bytes();
    let files = [
        ("config.json", CONFIG.to_vec()),
        ("model.safetensors.index.json", map),
    ];
    let (hub, cache) = (FakeHub::start(&files), tempfile::tempdir().unwrap());
    assert_names(
        &refusal("org/name", &hub.config(cache.path())),
        &["tensor a", "../../../evil.safetensors"],
    );
}

#[test]
fn an_entity_tag_cannot_lead_out_of_the_cache() {
    let (hub, cache) = (FakeHub::start(&single_model()), tempfile::tempdir().unwrap());
    hub.behaviour().etag = Some("../../../evil".to_owned());
    let message = refusal("org/name", &hub.config(cache.path()));
    assert_names(&message, &["config.json of org/name", "entity tag"]);
}

#[test]
fn one_gguf_file_of_a_repository_is_downloaded_alone() {
    let files = [
        ("small.Q8_0.gguf", gguf().to_bytes()),
        ("big/large.gguf", vec![0; 10]),
        ("a.txt", vec![]),
    ];
    let (hub, cache) = (FakeHub::start(&files), tempfile::tempdir().unwrap());
    let config = hub.config(cache.path());
    let path = resolve("org/name:small.Q8_0.gguf", &config, &NoProgress).unwrap();
    assert_eq!(Checkpoint::open(&path).unwrap().tensors().count(), 3);
    assert_eq!(listed(path.parent().unwrap()), ["small.Q8_0.gguf"]);
    let nested = resolve("org/name:big/large.gguf", &config, &NoProgress).unwrap();
    assert_eq!(fs::read(nested).unwrap(), [0; 10]);

    let offline = HubConfig {
        offline: true,
        ..config.clone()
    };
    assert_eq!(
        resolve("org/name:small.Q8_0.gguf", &offline, &NoProgress).unwrap(),
        path
    );
    let message = refusal("org/name:other.gguf", &config);
    assert_names(
        &message,
        &[
            "org/name",
            "no file other.gguf",
            "small.Q8_0.gguf",
            "big/large.gguf",
        ],
    );
}
