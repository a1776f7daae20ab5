//! `--config FILE`: flags in a file of YAML (or JSON, which is YAML too), as vLLM has them. What is on the command line comes
//! first.

use serde_yaml_ng::{Mapping, Value};
use std::fs;

const FLAG: &str = "--config";

/// The arguments with those of the file that `--config` names, the command's name first.
pub(super) fn expanded(given: &[String]) -> Result<Vec<String>, String> {
    let attached = |argument: &String| argument.strip_prefix("--config=").map(str::to_owned);
    let end = given
        .iter()
        .position(|argument| argument == "--")
        .unwrap_or(given.len());
    let Some(at) = given[..end]
        .iter()
        .position(|argument| argument == FLAG || attached(argument).is_some())
    else {
        return Ok(given.to_vec());
    };
    let (file, behind) = match attached(&given[at]) {
        Some(file) => (file, at + 1),
        None => (given.get(at + 1).ok_or("--config needs a file")?.clone(), at + 2),
    };
    let mut arguments = given[..at].to_vec();
    arguments.extend_from_slice(&given[behind..]);
    let typed = arguments.clone();
    let told = |flag: &str| {
        let mut words = typed.iter().map(|word| word.split('=').next().unwrap_or(word));
        words.any(|word| word == flag)
    };
    let text = fs::read_to_string(&file).map_err(|error| format!("--config {file}: {error}"))?;
    let flags = flags_of(&text).map_err(|problem| format!("--config {file}: {problem}"))?;
    let fresh = flags.into_iter().filter(|(flag, _)| !told(flag));
    // Before what was typed: a `--` there ends the flags.
    arguments.splice(
        0..0,
        fresh.flat_map(|(flag, values)| [vec![flag], values].concat()),
    );
    Ok(arguments)
}

/// The flags of a file, each with its values.
fn flags_of(text: &str) -> Result<Vec<(String, Vec<String>)>, String> {
    let flags: Option<Mapping> = serde_yaml_ng::from_str(text).map_err(|error| error.to_string())?;
    let mut found = Vec::new();
    for (key, value) in flags.unwrap_or_default() {
        let Some(key) = key.as_str() else {
            return Err(format!("{key:?} is not the name of a flag"));
        };
        let flag = format!("--{}", key.trim_start_matches("--").replace('_', "-"));
        if flag == FLAG {
            return Err("a file cannot name another one".to_owned());
        }
        match &value {
            // Where a flag is off, or nothing is said.
            Value::Bool(false) | Value::Null => {}
            Value::Bool(true) => found.push((flag, Vec::new())),
            Value::Sequence(values) => {
                for value in values {
                    found.push((flag.clone(), vec![word(value)?]));
                }
            }
            value => found.push((flag, vec![word(value)?])),
        }
    }
    Ok(found)
}

/// A value as it would be typed.
fn word(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        Value::Bool(on) => Ok(on.to_string()),
        other => serde_json::to_string(other).map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn a_file_has_the_flags_that_are_not_typed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("serve.yaml");
        let yaml = "model: org/name\nport: 8001\nmax_model_len: 4k\nenforce-eager: true\nno_page: false\n\
                    served-model-name: [a, b]\nspeculative-config: {method: ngram, num_speculative_tokens: 3}\n";
        fs::write(&file, yaml).unwrap();
        let line = |text: &str| words(&text.replace("FILE", file.to_str().unwrap()));
        let expected = "--model org/name --max-model-len 4k --enforce-eager --served-model-name a \
                        --served-model-name b --speculative-config \
                        {\"method\":\"ngram\",\"num_speculative_tokens\":3} --port 9000";
        assert_eq!(
            expanded(&line("--config FILE --port 9000")).unwrap(),
            words(expected)
        );
        assert_eq!(
            expanded(&line("--port=9000 --config=FILE")).unwrap()[11..],
            ["--port=9000"]
        );
        assert_eq!(
            expanded(&line("-- --config FILE")).unwrap(),
            line("-- --config FILE")
        );
        fs::write(&file, "- a list").unwrap();
        assert!(
            expanded(&line("--config FILE"))
                .unwrap_err()
                .contains("serve.yaml")
        );
        fs::write(&file, "").unwrap();
        assert_eq!(expanded(&line("--config FILE x")).unwrap(), ["x"]);
    }
}
