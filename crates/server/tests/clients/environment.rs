//! What scripts need, installed once into the target folder. Tests of the binary use it too.

#![allow(dead_code, reason = "each crate's tests use their own part of this")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The folder with the scripts and what they need.
pub(crate) const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../server/tests/clients");

/// The interpreter of an environment with everything in `requirements.txt`. It is made once, whoever asks first.
pub(crate) fn python() -> PathBuf {
    let wanted = script("requirements.txt");
    let folder = installed("clients-python", &wanted, |folder| {
        let made = Command::new("python3")
            .args(["-m", "venv", "--clear"])
            .arg(folder)
            .output();
        let made = made.unwrap_or_else(|error| panic!("the tests of clients need python3: {error}"));
        expect_success("python3 -m venv", &made);
        let mut install = Command::new(folder.join("bin/python"));
        install.args(["-m", "pip", "install", "--disable-pip-version-check", "--quiet"]);
        install.arg("-r").arg(format!("{SCRIPTS}/requirements.txt"));
        expect_success(
            "pip install (the tests of clients need a package index that can be reached)",
            &install.output().unwrap(),
        );
    });
    folder.join("bin/python")
}

/// A script for Node in a folder with everything in `package-lock.json`, which is the only place where it finds it.
pub(crate) fn node_script(name: &str) -> PathBuf {
    let files = ["package.json", "package-lock.json"];
    let scripts = ["common.mjs", name];
    let folder = installed("clients-node", &files.map(script).concat(), |folder| {
        fs::create_dir_all(folder).unwrap();
        for file in files {
            fs::write(folder.join(file), script(file)).unwrap();
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
    for file in scripts {
        fs::write(folder.join(file), script(file)).unwrap();
    }
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
