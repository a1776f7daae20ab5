//! Models of the hub by the names people use: pulled, run, listed, served and removed, from a server that plays the hub.

use crate::common::hub::{COMMIT, FakeHub};
use crate::common::served::{Served, serve};
use crate::common::{check_failure, gguf, paceline, repository, stderr, stdout, succeed};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

/// The hub and a machine that has nothing of it yet.
struct Place {
    hub: FakeHub,
    home: TempDir,
}

impl Place {
    fn new(files: &[(&str, Vec<u8>)]) -> Self {
        let (hub, home) = (FakeHub::start(files), tempfile::tempdir().unwrap());
        Self { hub, home }
    }

    /// The program with this hub and this machine.
    fn online(&self, mut command: Command) -> Command {
        command
            .env("HF_ENDPOINT", self.hub.endpoint())
            .env("HF_HOME", self.home.path())
            .env_remove("HF_HUB_OFFLINE")
            .env_remove("HF_HUB_CACHE")
            .env_remove("HF_TOKEN");
        command
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.online(paceline());
        command.args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn succeed(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        stdout(&output)
    }
}

/// A repository with the built-in model.
fn storyteller() -> Vec<(&'static str, Vec<u8>)> {
    let file = |name: &'static str| {
        (
            name,
            fs::read(repository("assets/storyteller").join(name)).unwrap(),
        )
    };
    [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    .map(file)
    .into()
}

/// A repository with a reference model in two quantisations, one of them in three parts.
fn quantised() -> Vec<(&'static str, Vec<u8>)> {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    gguf::write(&at("whole.gguf"));
    gguf::write_parts(&at("m"), 3);
    let read = |name: &str| fs::read(at(name)).unwrap();
    vec![
        ("tiny-Q4_K_M.gguf", read("whole.gguf")),
        ("tiny-F32-00001-of-00003.gguf", read("m-00001-of-00003.gguf")),
        ("tiny-F32-00002-of-00003.gguf", read("m-00002-of-00003.gguf")),
        ("tiny-F32-00003-of-00003.gguf", read("m-00003-of-00003.gguf")),
    ]
}

/// The words of each line.
fn rows(table: &str) -> Vec<Vec<&str>> {
    table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect()
}

#[test]
fn a_model_is_run_without_being_pulled_first_and_then_listed_and_removed() {
    let place = Place::new(&storyteller());
    let ask = ["--temperature", "0", "--max-tokens", "24"];
    let message = "Tell me about a fox.";
    let answer = place.run(&[&["run", "org/name", message][..], &ask].concat());
    assert!(answer.status.success(), "{}", stderr(&answer));
    let expected = succeed(&[&["generate", "--chat", "--prompt", message][..], &ask].concat());
    assert_eq!(stdout(&answer), expected);
    assert!(stderr(&answer).contains("downloading model.safetensors (20.1 MB)"));
    // Words need no quotes, and the second time nothing is downloaded.
    place.hub.seen();
    let again = [
        &["--quiet", "run", "org/name"][..],
        &ask,
        &["Tell", "me", "about", "a", "fox."],
    ]
    .concat();
    assert_eq!(place.succeed(&again), expected);
    assert_eq!(place.hub.seen().len(), 1, "the commit alone is asked for");

    let listed = place.succeed(&["list"]);
    let rows = rows(&listed);
    assert_eq!(rows[0], ["NAME", "SIZE", "TYPE", "LAST", "USED"]);
    let row = [
        "org/name",
        "20.3",
        "MB",
        "safetensors,",
        "qwen3_5_text",
        "just",
        "now",
    ];
    assert_eq!(rows[1], row, "{listed}");
    assert_eq!(rows[2][..4], ["storyteller", "-", "built", "in"]);
    let object: Value = serde_json::from_str(place.succeed(&["ls", "--json"]).trim()).unwrap();
    let files = place.hub.behaviour().files.values().map(Vec::len).sum::<usize>();
    assert_eq!(
        (&object["name"], &object["bytes"]),
        (&"org/name".into(), &files.into())
    );
    assert!(
        Path::new(object["path"].as_str().unwrap())
            .join("config.json")
            .is_file()
    );

    let removed = place.run(&["rm", "org/name"]);
    assert!(
        stderr(&removed).starts_with("removed org/name, 2"),
        "{}",
        stderr(&removed)
    );
    assert_eq!(place.succeed(&["list"]).lines().count(), 2);
    check_failure(&place.run(&["rm", "org/name"]), &["org/name is not in the cache"]);
    check_failure(&place.run(&["rm", "storyteller"]), &["built in"]);
    check_failure(
        &place.run(&["rm", "nothing"]),
        &["no model nothing here", "paceline list"],
    );
    check_failure(&place.run(&["pull", "/tmp"]), &["/tmp", "not a model of the hub"]);
}

#[test]
fn a_quantisation_is_pulled_by_its_tag_and_its_parts_are_one_model() {
    let place = Place::new(&quantised());
    let snapshot = place
        .home
        .path()
        .join("hub/models--org--name/snapshots")
        .join(COMMIT);
    let address = format!("{}/org/name/blob/main/tiny-Q4_K_M.gguf", place.hub.endpoint());
    let pulled = place.succeed(&["pull", "org/name:f32", &address]);
    let paths: Vec<&str> = pulled.lines().collect();
    assert_eq!(
        paths,
        [
            snapshot.join("tiny-F32-00001-of-00003.gguf").to_str().unwrap(),
            snapshot.join("tiny-Q4_K_M.gguf").to_str().unwrap(),
        ]
    );
    let listed = place.succeed(&["list"]);
    let names: Vec<&str> = rows(&listed).iter().map(|row| row[0]).collect();
    assert_eq!(names, ["NAME", "org/name:F32", "org/name:Q4_K_M", "storyteller"]);

    let generate = |model: &str| {
        let arguments = [
            "--temperature",
            "0",
            "--max-tokens",
            "12",
            "--ignore-eos",
            "--prompt",
            "abc",
        ];
        place.succeed(&[&["generate", "--quiet", "--model", model][..], &arguments].concat())
    };
    let whole = generate("org/name");
    assert_eq!(generate("org/name:F32"), whole);
    assert_eq!(generate("hf.co/org/name:F32"), whole);
    assert_eq!(
        generate(snapshot.join("tiny-F32-00002-of-00003.gguf").to_str().unwrap()),
        whole
    );

    place.succeed(&["rm", "org/name:F32"]);
    assert_eq!(rows(&place.succeed(&["list"])).len(), 3);
    check_failure(
        &place.run(&["pull", "org/name:Q3_K_S"]),
        &["org/name:Q3_K_S", "it has F32, Q4_K_M"],
    );
}

#[test]
fn a_served_model_has_the_name_that_clients_expect() {
    let place = Place::new(&quantised());
    let names = |server: &Served| -> Vec<String> {
        let models = server.get("/v1/models");
        let models = models["data"].as_array().unwrap();
        models
            .iter()
            .map(|model| model["id"].as_str().unwrap().to_owned())
            .collect()
    };
    let server = Served::spawn(&mut place.online(serve(&["hf.co/org/name:F32"])));
    assert_eq!(names(&server), ["org/name:F32", "hf.co/org/name:F32"]);
    let path = place.succeed(&["pull", "org/name:F32"]);
    let server = Served::start(&[path.trim()]);
    assert_eq!(names(&server), ["tiny-F32", path.trim()]);
    for model in [names(&server)[0].clone(), names(&server)[1].clone()] {
        let body = serde_json::json!({ "model": model, "prompt": "a", "max_tokens": 1 }).to_string();
        let (status, reply) = server.ask(
            "POST /v1/completions",
            "content-type: application/json\r\n",
            &body,
        );
        assert_eq!(status, 200, "{reply}");
    }
}

#[test]
fn what_cannot_be_had_is_said_with_what_helps() {
    let place = Place::new(&quantised());
    check_failure(
        &place.run(&["run", "org/other"]),
        &["org/other was not found", "HF_TOKEN"],
    );
    check_failure(
        &place.run(&["run", "llama3"]),
        &[
            "`llama3`",
            "neither an existing path",
            "org/name, such as Qwen/Qwen3-0.6B",
        ],
    );
    check_failure(
        &place.run(&["run", "org/name/tiny.gguf"]),
        &["org/name/tiny.gguf: no such file", "org/name:tiny.gguf"],
    );
    place.hub.behaviour().token = Some("hf_right".to_owned());
    check_failure(&place.run(&["pull", "org/name"]), &["401", "set HF_TOKEN"]);
    let wrong = place
        .command(&["pull", "org/name"])
        .env("HF_TOKEN", "hf_wrong")
        .output();
    check_failure(&wrong.unwrap(), &["the token in use has no access"]);
    let right = place
        .command(&["pull", "org/name"])
        .env("HF_TOKEN", "hf_right")
        .output();
    assert!(right.unwrap().status.success());
    let offline = place
        .command(&["pull", "org/name:F32"])
        .env("HF_HUB_OFFLINE", "1")
        .output();
    check_failure(&offline.unwrap(), &["org/name:F32", "HF_HUB_OFFLINE"]);
}

#[test]
fn a_pull_that_was_killed_goes_on_where_it_was() {
    let place = Place::new(&storyteller());
    let size = place.hub.behaviour().files["model.safetensors"].len();
    let cut = 5_000_000;
    place.hub.behaviour().cut = Some(("model.safetensors".to_owned(), cut));
    // The process is gone when the connection breaks for the first time.
    let mut child = place
        .command(&["pull", "org/name"])
        .stderr(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let blobs = place.home.path().join("hub/models--org--name/blobs");
    let part = || {
        let files = fs::read_dir(&blobs).into_iter().flatten().flatten();
        let mut parts = files.filter(|file| file.path().extension().is_some_and(|end| end == "incomplete"));
        parts.find_map(|part| Some(part.metadata().ok()?.len()).filter(|len| *len >= cut as u64))
    };
    while part().is_none() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    place.succeed(&["pull", "org/name"]);
    let ranges: Vec<Option<String>> = place
        .hub
        .fetches("model.safetensors")
        .into_iter()
        .map(|seen| seen.range)
        .collect();
    assert_eq!(ranges[0], None);
    assert!(
        ranges[1..]
            .iter()
            .all(|range| range.as_deref() == Some("bytes=5000000-")),
        "{ranges:?}"
    );
    let listed: Value = serde_json::from_str(place.succeed(&["list", "--json"]).trim()).unwrap();
    assert!(listed["bytes"].as_u64().unwrap() > size as u64);
}
