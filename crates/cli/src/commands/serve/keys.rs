//! The API keys of a server: from its flags, its file and the environment, each one such that a request can carry it.

use crate::env;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;

/// All of them. None: the server is open to everybody.
pub(super) fn gather(flags: &[String], file: Option<&Path>) -> Result<Vec<String>> {
    let mut keys = Vec::new();
    for key in flags {
        keys.push(usable("--api-key", key)?);
    }
    if let Some(path) = file {
        let place = format!("--api-key-file {}", path.display());
        let text = fs::read_to_string(path).with_context(|| place.clone())?;
        let lines = of_file(&text, &place)?;
        ensure!(!lines.is_empty(), "{place}: there is no key in it");
        keys.extend(lines);
    }
    for (name, key) in env::server_keys()? {
        keys.push(usable(name, &key)?);
    }
    Ok(keys)
}

/// The keys of a file: one per line. Empty lines and those that start with `#` are for people.
fn of_file(text: &str, place: &str) -> Result<Vec<String>> {
    let lines = text.lines().map(str::trim);
    let keys = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    keys.map(|key| usable(place, key)).collect()
}

/// A key as requests send it. Space around it gets lost on the way, so it is no part of it.
fn usable(place: &str, key: &str) -> Result<String> {
    let key = key.trim();
    ensure!(
        !key.is_empty(),
        "{place} is empty: a key must have at least one character; leave it out to serve without keys"
    );
    ensure!(
        !key.chars().any(char::is_control),
        "{place}: a key with a control character in it, such as a line break, can never be sent"
    );
    Ok(key.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_keys_and_lines_for_people() {
        let text = "# of the team\n\n  alpha \r\n#beta\ngam#ma\n\t# more\n";
        assert_eq!(of_file(text, "file").unwrap(), ["alpha", "gam#ma"]);
    }

    #[test]
    fn a_key_is_what_a_request_can_carry() {
        assert_eq!(usable("--api-key", " alpha\n").unwrap(), "alpha");
        for (key, part) in [("", "empty"), (" \t", "empty"), ("a\nb", "line break")] {
            let error = usable("--api-key", key).err().unwrap().to_string();
            assert!(error.starts_with("--api-key") && error.contains(part), "{error}");
        }
    }
}
