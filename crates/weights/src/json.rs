//! Reading the small text files beside the weights, with a limit on each.

use std::io::Read;
use std::path::Path;

use paceline_device::open_regular;
use serde_json::Value;

use crate::error::WeightsError;

/// Most bytes accepted for `config.json` and the other small files.
pub(crate) const MAX_CONFIG: u64 = 16 << 20;
/// Most bytes accepted for `model.safetensors.index.json`.
pub(crate) const MAX_INDEX: u64 = 64 << 20;
/// Most bytes accepted for `tokenizer.json`.
pub(crate) const MAX_TOKENIZER: u64 = 256 << 20;

/// Reads the whole file, or `None` when there is none.
pub(crate) fn read_bounded(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, WeightsError> {
    let file = match open_regular(path) {
        Ok(file) => file,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(WeightsError::io(path, cause)),
    };
    let bytes = file
        .metadata()
        .map_err(|cause| WeightsError::io(path, cause))?
        .len();
    let too_large = |bytes| WeightsError::TooLarge {
        file: path.display().to_string(),
        bytes,
        limit,
    };
    if bytes > limit {
        return Err(too_large(bytes));
    }
    let mut data = Vec::with_capacity(bytes as usize);
    // The file may grow meanwhile, so the read is bounded by itself.
    file.take(limit + 1)
        .read_to_end(&mut data)
        .map_err(|cause| WeightsError::io(path, cause))?;
    if data.len() as u64 > limit {
        return Err(too_large(data.len() as u64));
    }
    Ok(Some(data))
}

/// Reads a JSON file, or `None` when there is none.
pub(crate) fn read_json(path: &Path, limit: u64) -> Result<Option<Value>, WeightsError> {
    let Some(data) = read_bounded(path, limit)? else {
        return Ok(None);
    };
    parse(&data, &path.display().to_string(), limit).map(Some)
}

/// Parses the contents of a JSON file called `file` in messages.
///
/// Configurations written by older Python tools contain bare `Infinity` and `NaN`, which are not JSON; these come
/// out in the form that newer ones write, `{"__float__": "Infinity"}`.
pub(crate) fn parse(data: &[u8], file: &str, limit: u64) -> Result<Value, WeightsError> {
    if data.len() as u64 > limit {
        return Err(WeightsError::TooLarge {
            file: file.to_owned(),
            bytes: data.len() as u64,
            limit,
        });
    }
    serde_json::from_slice(data)
        .or_else(|cause| match quote_special_floats(data) {
            Some(rewritten) => serde_json::from_slice(&rewritten),
            None => Err(cause),
        })
        .map_err(|cause| WeightsError::Json {
            file: file.to_owned(),
            cause,
        })
}

/// Checks that the contents of a text file called `file` in messages are UTF-8.
pub(crate) fn text(data: Vec<u8>, file: &str) -> Result<String, WeightsError> {
    String::from_utf8(data).map_err(|cause| WeightsError::NotUtf8 {
        file: file.to_owned(),
        at: cause.utf8_error().valid_up_to(),
    })
}

/// Replaces the bare words that Python writes for special floats, or `None` when there are none.
fn quote_special_floats(data: &[u8]) -> Option<Vec<u8>> {
    const WORDS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];
    let mut out = Vec::with_capacity(data.len());
    let (mut at, mut in_string, mut replaced) = (0, false, false);
    while let Some(&byte) = data.get(at) {
        let word = WORDS
            .iter()
            .find(|word| !in_string && data[at..].starts_with(word.as_bytes()));
        if let Some(word) = word {
            out.extend_from_slice(format!("{{\"__float__\": \"{word}\"}}").as_bytes());
            at += word.len();
            replaced = true;
            continue;
        }
        if in_string && byte == b'\\' {
            let pair = &data[at..data.len().min(at + 2)];
            out.extend_from_slice(pair);
            at += pair.len();
            continue;
        }
        in_string ^= byte == b'"';
        out.push(byte);
        at += 1;
    }
    replaced.then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_special_floats_become_the_tagged_form() {
        let text = br#"{"limit": [0.0, Infinity], "low": -Infinity, "name": "NaN \" Infinity"}"#;
        let value = parse(text, "config.json", MAX_CONFIG).unwrap();
        assert_eq!(value["limit"][1], serde_json::json!({"__float__": "Infinity"}));
        assert_eq!(value["low"], serde_json::json!({"__float__": "-Infinity"}));
        assert_eq!(value["name"], "NaN \" Infinity");
    }

    #[test]
    fn broken_json_is_reported_with_its_file_and_place() {
        let message = parse(b"{\"a\": ", "model/config.json", MAX_CONFIG)
            .unwrap_err()
            .to_string();
        assert!(
            message.starts_with("model/config.json: not valid JSON"),
            "{message}"
        );
        assert!(message.contains("line 1"), "{message}");
    }

    #[test]
    fn a_file_beyond_its_limit_is_refused_with_both_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        std::fs::write(&path, vec![b' '; 100]).unwrap();
        let message = read_json(&path, 99).unwrap_err().to_string();
        assert!(
            message.contains("config.json: 100 bytes, but at most 99 are accepted"),
            "{message}"
        );
    }

    /// Opening a pipe waits for a writer, and there is none.
    #[test]
    fn pipes_devices_and_sockets_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("config.json");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for path in [pipe.as_path(), socket.as_path(), Path::new("/dev/zero")] {
            let message = read_json(path, MAX_CONFIG).unwrap_err().to_string();
            assert!(message.contains("not a regular file"), "{message}");
        }
    }

    #[test]
    fn deep_nesting_is_an_error_and_not_a_stack_overflow() {
        assert!(parse(&vec![b'['; 1 << 20], "config.json", MAX_CONFIG).is_err());
    }
}
