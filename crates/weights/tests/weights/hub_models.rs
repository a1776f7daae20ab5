//! Models by the names people use, and the models of the cache, with a server that plays the hub.

use std::fs::{self, File, FileTimes};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, SystemTime};

use crate::support::hub::{COMMIT, FakeHub, sha256};
use crate::support::{assert_names, gguf, safetensors};
use paceline_weights::Checkpoint;
use paceline_weights::gguf_writer::{GgufWriter, Meta};
use paceline_weights::hub::{
    HubConfig, HubModel, Installed, ModelRef, NoProgress, Progress, installed, remove, resolve,
};

/// A repository with several quantisations, one of them in parts.
fn quantised() -> Vec<(&'static str, Vec<u8>)> {
    let part = |number: u16| {
        let mut writer = GgufWriter::new();
        writer
            .key("split.no", Meta::U16(number))
            .key("split.count", Meta::U16(2))
            .key("general.name", Meta::string(&"x".repeat(200)));
        writer.tensor(
            &format!("blk.{number}.w"),
            paceline_types::DType::F32,
            &[8],
            &[0; 32],
        );
        writer.to_bytes()
    };
    vec![
        ("README.md", b"about it".to_vec()),
        ("m-Q4_K_M.gguf", gguf().key("size", Meta::U32(4)).to_bytes()),
        ("m-Q8_0.gguf", gguf().key("size", Meta::U32(8)).to_bytes()),
        ("BF16/m-BF16-00001-of-00002.gguf", part(0)),
        ("BF16/m-BF16-00002-of-00002.gguf", part(1)),
        ("mmproj-F16.gguf", b"not wanted".to_vec()),
    ]
}

fn refusal(argument: &str, config: &HubConfig) -> String {
    resolve(argument, config, &NoProgress).unwrap_err().to_string()
}

fn names(models: &[Installed]) -> Vec<String> {
    models.iter().map(|there| there.model.to_string()).collect()
}

fn named(argument: &str) -> HubModel {
    match ModelRef::parse(argument, "https://huggingface.co").unwrap() {
        ModelRef::Hub(model) => model,
        ModelRef::Path(path) => panic!("{} exists", path.display()),
    }
}

/// Names and sizes of everything in a folder.
fn contents(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .map(|entry| entry.file_name().display().to_string())
        .collect();
    names.sort_unstable();
    names
}

#[test]
fn a_quantisation_is_found_by_every_way_to_write_it() {
    let (hub, cache) = (FakeHub::start(&quantised()), tempfile::tempdir().unwrap());
    let config = hub.config(cache.path());
    let snapshot = cache.path().join("models--org--name/snapshots").join(COMMIT);
    let own = format!(
        "{}/org/name/resolve/main/m-Q8_0.gguf?download=true",
        hub.endpoint()
    );
    for (argument, file) in [
        ("org/name", "m-Q4_K_M.gguf"),
        ("org/name:latest", "m-Q4_K_M.gguf"),
        ("org/name:q8_0", "m-Q8_0.gguf"),
        ("hf.co/org/name:Q8_0", "m-Q8_0.gguf"),
        (
            "https://huggingface.co/org/name/blob/main/m-Q8_0.gguf",
            "m-Q8_0.gguf",
        ),
        (&own, "m-Q8_0.gguf"),
    ] {
        let path = resolve(argument, &config, &NoProgress).unwrap();
        assert_eq!(path, snapshot.join(file), "{argument}");
    }
    assert_eq!(contents(&snapshot), ["m-Q4_K_M.gguf", "m-Q8_0.gguf"]);

    let parts = resolve("org/name:BF16", &config, &NoProgress).unwrap();
    assert_eq!(parts, snapshot.join("BF16/m-BF16-00001-of-00002.gguf"));
    assert_eq!(Checkpoint::open(&parts).unwrap().tensors().count(), 2);
    let offline = HubConfig {
        offline: true,
        ..config.clone()
    };
    for (argument, path) in [
        ("https://huggingface.co/org/name/tree/main/BF16", &parts),
        ("org/name", &snapshot.join("m-Q4_K_M.gguf")),
    ] {
        assert_eq!(resolve(argument, &offline, &NoProgress).unwrap(), *path);
    }
    fs::remove_file(snapshot.join("BF16/m-BF16-00002-of-00002.gguf")).unwrap();
    assert_names(&refusal("org/name:BF16", &offline), &["not completely"]);

    let message = refusal("org/name:Q2_K", &config);
    assert_names(&message, &["org/name:Q2_K", "BF16, Q4_K_M, Q8_0"]);
    hub.behaviour()
        .files
        .insert("other-Q8_0.gguf".to_owned(), b"x".to_vec());
    let message = refusal("org/name:Q8_0", &config);
    assert_names(&message, &["several", "org/name:m-Q8_0.gguf", "other-Q8_0.gguf"]);
}

#[test]
fn a_repository_without_a_model_says_so() {
    let (hub, cache) = (
        FakeHub::start(&[("README.md", b"x".to_vec()), ("config.json", b"{}".to_vec())]),
        tempfile::tempdir().unwrap(),
    );
    let message = refusal("org/name", &hub.config(cache.path()));
    assert_names(&message, &["org/name", "neither", ".safetensors", "GGUF"]);
    assert_eq!(contents(cache.path()), Vec::<String>::new());
}

/// Tells when it has to wait.
struct Waiting(mpsc::Sender<String>);

impl Progress for Waiting {
    fn start(&self, _file: &str, _total: Option<u64>) {}
    fn advance(&self, _bytes: u64) {}
    fn finish(&self) {}
    fn wait(&self, file: &str) {
        self.0.send(file.to_owned()).unwrap();
    }
}

#[test]
fn one_of_several_that_want_a_model_downloads_it_and_the_others_wait() {
    let (hub, cache) = (FakeHub::start(&quantised()), tempfile::tempdir().unwrap());
    let config = hub.config(cache.path());
    let locks = cache.path().join(".locks/models--org--name");
    fs::create_dir_all(&locks).unwrap();
    let etag = sha256(&hub.behaviour().files["m-Q8_0.gguf"]);
    let lock = File::create(locks.join(format!("{etag}.lock"))).unwrap();
    lock.lock().unwrap();
    let (sender, waits) = mpsc::channel();
    thread::scope(|scope| {
        let runs: Vec<_> = (0..4)
            .map(|_| {
                let (config, sender) = (&config, sender.clone());
                scope.spawn(move || resolve("org/name:Q8_0", config, &Waiting(sender)))
            })
            .collect();
        for _ in 0..4 {
            assert_eq!(waits.recv().unwrap(), "m-Q8_0.gguf");
        }
        let busy = remove(&named("org/name"), cache.path()).unwrap_err();
        assert_names(&busy.to_string(), &["org/name", "being downloaded"]);
        drop(lock);
        let expected = hub.behaviour().files["m-Q8_0.gguf"].clone();
        for run in runs {
            assert_eq!(fs::read(run.join().unwrap().unwrap()).unwrap(), expected);
        }
    });
    assert_eq!(hub.fetches("m-Q8_0.gguf").len(), 1);
}

#[test]
fn the_models_of_a_cache_are_listed_with_size_kind_and_last_use() {
    let mut files = quantised();
    files.extend([
        ("config.json", br#"{"model_type": "llama"}"#.to_vec()),
        ("model.safetensors", safetensors(&[("a", &[10, 10])])),
    ]);
    let (hub, cache) = (FakeHub::start(&files), tempfile::tempdir().unwrap());
    let config = hub.config(cache.path());
    assert_eq!(installed(&cache.path().join("none")).unwrap(), []);
    let get = |argument: &str| resolve(argument, &config, &NoProgress).unwrap();
    for argument in ["org/name", "org/name:Q8_0", "org/name:BF16"] {
        get(argument);
    }
    fs::create_dir_all(cache.path().join("models--org--half/blobs")).unwrap();
    fs::write(cache.path().join("models--org--half/blobs/x.incomplete"), [0; 9]).unwrap();
    let there = installed(cache.path()).unwrap();
    assert_eq!(
        names(&there),
        ["org/half", "org/name", "org/name:BF16", "org/name:Q8_0"]
    );
    let kinds: Vec<_> = there.iter().map(|model| model.kind.as_str()).collect();
    assert_eq!(
        kinds,
        ["incomplete", "safetensors, llama", "gguf, BF16", "gguf, Q8_0"]
    );
    let size = |names: &[&str]| -> u64 {
        let files = &hub.behaviour().files;
        names.iter().map(|name| files[*name].len() as u64).sum()
    };
    let sizes: Vec<_> = there.iter().map(|model| model.bytes).collect();
    let parts = [
        "BF16/m-BF16-00001-of-00002.gguf",
        "BF16/m-BF16-00002-of-00002.gguf",
    ];
    assert_eq!(
        sizes,
        [
            9,
            size(&["config.json", "model.safetensors"]),
            size(&parts),
            size(&["m-Q8_0.gguf"])
        ]
    );

    // What was opened last was used last, whatever the file system keeps of it.
    let long_ago = SystemTime::now() - Duration::from_secs(1_000_000);
    for model in &there[1..] {
        let file = if model.path.is_dir() {
            model.path.join("model.safetensors")
        } else {
            model.path.clone()
        };
        let times = FileTimes::new().set_accessed(long_ago);
        File::open(file).unwrap().set_times(times).unwrap();
    }
    get("org/name:Q8_0");
    let used: Vec<_> = installed(cache.path())
        .unwrap()
        .iter()
        .map(|model| model.used.map(|used| used > long_ago + Duration::from_secs(1)))
        .collect();
    assert_eq!(used, [None, Some(false), Some(false), Some(true)]);
}

#[test]
fn a_model_is_removed_alone_or_with_its_repository() {
    let (hub, cache) = (FakeHub::start(&quantised()), tempfile::tempdir().unwrap());
    let config = hub.config(cache.path());
    let repo = cache.path().join("models--org--name");
    for argument in ["org/name", "org/name:Q8_0", "org/name:BF16"] {
        resolve(argument, &config, &NoProgress).unwrap();
    }
    assert_eq!(contents(&repo.join("blobs")).len(), 4);
    for other in ["org/name:Q2_K", "org/other", "org/name@v2:Q8_0"] {
        let message = remove(&named(other), cache.path()).unwrap_err().to_string();
        assert_names(&message, &[other, "not in the cache"]);
    }
    assert_eq!(contents(&repo.join("blobs")).len(), 4);

    let gone = remove(&named("org/name:bf16"), cache.path()).unwrap();
    assert_eq!(names(&gone), ["org/name:BF16"]);
    let left = installed(cache.path()).unwrap();
    assert_eq!(names(&left), ["org/name:Q4_K_M", "org/name:Q8_0"]);
    let q4 = sha256(&hub.behaviour().files["m-Q4_K_M.gguf"]);
    let q8 = sha256(&hub.behaviour().files["m-Q8_0.gguf"]);
    let mut blobs = [q4, q8.clone()];
    blobs.sort_unstable();
    assert_eq!(contents(&repo.join("blobs")), blobs);

    remove(&named("org/name:m-Q4_K_M.gguf"), cache.path()).unwrap();
    assert_eq!(contents(&repo.join("blobs")), [q8]);
    assert_eq!(
        names(&remove(&named("org/name"), cache.path()).unwrap()),
        ["org/name:Q8_0"]
    );
    assert!(!repo.exists());
    assert_eq!(installed(cache.path()).unwrap(), []);
}
