//! Archives of releases are made, checked, unpacked and installed; what the systemd unit and the image start, starts.

use crate::common::served::Served;
use crate::common::{paceline, repository, stderr, stdout};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", stderr(&output));
    output
}

/// Makes an archive of the program under test and gives its name.
fn archive(out: &Path) -> String {
    let made = succeed(
        Command::new(repository("packaging/release"))
            .arg("--binary")
            .arg(paceline().get_program())
            .arg("--out")
            .arg(out)
            .args(["--level", "1"]),
    );
    // It has found out that nothing is needed but what every system has.
    let readelf = Command::new("readelf").arg("--version").output().is_ok();
    assert_eq!(
        stderr(&made).contains("release: needs GLIBC "),
        readelf,
        "{}",
        stderr(&made)
    );
    let path = stdout(&made);
    let name = Path::new(path.trim()).file_name().unwrap();
    name.to_str().unwrap().to_owned()
}

#[test]
fn an_archive_is_checked_unpacked_and_installed() {
    let (out, prefix) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let name = archive(out.path());
    let version = env!("CARGO_PKG_VERSION");
    let folder = name.strip_suffix(".tar.gz").unwrap();
    assert_eq!(
        folder,
        format!("paceline-{version}-{}-linux", std::env::consts::ARCH)
    );
    let checksum = format!("{name}.sha256");
    let at = |command: &str| {
        let mut command = Command::new(command);
        command.current_dir(out.path());
        command
    };
    succeed(at("sha256sum").args(["--check", &checksum]));
    succeed(at("tar").args(["-xf", &name]));
    let installed = succeed(
        at(&format!("./{folder}/install"))
            .arg("--prefix")
            .arg(prefix.path()),
    );
    assert!(
        stdout(&installed).starts_with(&format!("paceline {version}\n")),
        "{}",
        stdout(&installed)
    );
    // By itself, away from the archive.
    fs::remove_dir_all(out.path().join(folder)).unwrap();
    let story = succeed(Command::new(prefix.path().join("bin/paceline")).args([
        "generate",
        "--quiet",
        "--temperature",
        "0",
        "--max-tokens",
        "8",
        "--prompt",
        "Once upon a time",
    ]));
    assert_eq!(stdout(&story), ", there was a little girl named Tilly\n");
    let read = |file: &str| fs::read_to_string(prefix.path().join(file)).unwrap();
    for (file, part) in [
        ("share/man/man1/paceline.1", "paceline\\-serve(1)"),
        ("share/man/man1/paceline-run.1", "Q4_K_M"),
        ("share/bash-completion/completions/paceline", "--max-tokens"),
        ("share/zsh/site-functions/_paceline", "#compdef paceline"),
        (
            "share/fish/vendor_completions.d/paceline.fish",
            "complete -c paceline",
        ),
    ] {
        assert!(read(file).contains(part), "{part} is not in {file}");
    }
    // A byte that is lost is found.
    let mut bytes = fs::read(out.path().join(&name)).unwrap();
    bytes[100] ^= 1;
    fs::write(out.path().join(&name), bytes).unwrap();
    let damaged = at("sha256sum").args(["--check", &checksum]).output().unwrap();
    assert!(!damaged.status.success());
}

/// Without `PACELINE_TEST_LONG`, one archive is enough for the suite.
#[test]
fn the_same_program_gives_the_same_archive() {
    if std::env::var_os("PACELINE_TEST_LONG").is_none() {
        return;
    }
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (first, second) = (archive(one.path()), archive(two.path()));
    let read = |folder: &Path, name: &str| fs::read(folder.join(name)).unwrap();
    assert!(read(one.path(), &first) == read(two.path(), &second));
}

/// A program that needs a library of somewhere else is not put into an archive.
#[test]
fn an_archive_of_a_program_that_needs_more_than_the_system_is_refused() {
    let found = Command::new("sh")
        .args(["-c", "command -v curl"])
        .output()
        .unwrap();
    let curl = stdout(&found).trim().to_owned();
    let out = tempfile::tempdir().unwrap();
    let refused = Command::new(repository("packaging/release"))
        .args(["--binary", &curl, "--out"])
        .arg(out.path())
        .output()
        .unwrap();
    if Command::new("readelf").arg("--version").output().is_ok() {
        assert_eq!(refused.status.code(), Some(1));
        assert!(stderr(&refused).contains("libcurl.so"), "{}", stderr(&refused));
        assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0);
    }
}

/// The words of the line that starts with `start`.
fn words(file: &str, start: &str) -> Vec<String> {
    let text = fs::read_to_string(repository(file)).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(start)).unwrap();
    line.split_whitespace().map(str::to_owned).collect()
}

/// Starts what a package starts, on a port that is free.
fn starts(arguments: &[&str]) {
    let mut command = paceline();
    command
        .args(arguments)
        .args(["--port", "0", "--threads", "1", "--max-model-len", "256"])
        .stderr(std::process::Stdio::null());
    let mut server = Served::spawn(&mut command);
    server.address = server.address.replace("0.0.0.0", "127.0.0.1");
    assert_eq!(server.get("/v1/models")["data"][0]["id"], "storyteller");
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn the_unit_starts_and_ends_a_server() {
    let words = words("packaging/paceline.service", "ExecStart=");
    assert_eq!(words, ["/usr/local/bin/paceline", "serve", "$PACELINE_ARGS"]);
    starts(&["serve"]);
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        eprintln!("there is no systemd-analyze: the unit is not verified");
        return;
    }
    // It wants the program where the unit says it is, which is no concern of a test.
    let folder = tempfile::tempdir().unwrap();
    let unit = fs::read_to_string(repository("packaging/paceline.service")).unwrap();
    let program = paceline().get_program().to_str().unwrap().to_owned();
    let unit = unit.replace("/usr/local/bin/paceline", &program);
    let path = folder.path().join("paceline.service");
    fs::write(&path, unit).unwrap();
    let verified = Command::new("systemd-analyze")
        .arg("verify")
        .arg(&path)
        .output()
        .unwrap();
    let about: Vec<String> = stderr(&verified)
        .lines()
        .filter(|line| line.contains("paceline.service"))
        .map(str::to_owned)
        .collect();
    assert!(about.is_empty(), "{about:?}");
}

#[test]
fn the_image_is_made_of_what_is_here_and_starts_a_server() {
    let text = fs::read_to_string(repository("Dockerfile")).unwrap();
    let toolchain = fs::read_to_string(repository("rust-toolchain.toml")).unwrap();
    let channel = toolchain
        .lines()
        .find_map(|line| line.strip_prefix("channel = "))
        .unwrap();
    let channel = channel.trim_matches('"');
    assert!(
        text.contains(&format!("RUSTUP_TOOLCHAIN={channel}\n")),
        "{channel}"
    );
    let minor = channel.rsplit_once('.').unwrap().0;
    assert!(text.contains(&format!("FROM rust:{minor}-bookworm")), "{minor}");
    let list =
        |start: &str| -> Vec<String> { serde_json::from_str(&words("Dockerfile", start).join(" ")).unwrap() };
    assert_eq!(list("ENTRYPOINT "), ["paceline"]);
    let command = list("CMD ");
    starts(&command.iter().map(String::as_str).collect::<Vec<_>>());
    // The user that runs it is not root, which Kubernetes believes of a number alone.
    let (before, last) = text.rsplit_once("\nUSER ").unwrap();
    let user: u32 = last.lines().next().unwrap().parse().unwrap();
    assert!(
        user > 0 && before.contains(&format!("useradd --uid {user} ")),
        "{user}"
    );
}
