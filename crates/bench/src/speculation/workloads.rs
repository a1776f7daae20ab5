//! What `bench speculation` generates.

use super::code::{FUNCTIONS, RENAMES, Rename};
use super::{SpeculationBench, Workload};
use crate::error::BenchError;
use crate::load::Random;
use crate::subject::Subject;
use paceline::Request;
use paceline_types::{SamplingParams, TokenId};
use serde_json::Value;
use std::path::Path;

/// Requests by workload. The second turn of a chat is known once the first has been generated.
pub(super) enum Prompts {
    /// Ready.
    Known(Vec<Request>),
    /// First turns: each is a question, and the tokens of a chat that begins with it.
    FirstTurns(Vec<(String, Request)>),
}

impl Prompts {
    /// Tokens of the longest sequence that can come of it.
    pub(super) fn longest(&self) -> usize {
        let length = |request: &Request| request.prompt.len() + request.sampling.max_tokens;
        match self {
            Self::Known(requests) => requests.iter().map(length).max(),
            // A story, the question for it and the request to tell it again, and all of it again: decoded and encoded
            // anew, the story may have become a little longer.
            Self::FirstTurns(first) => first.iter().map(|(_, request)| 2 * length(request) + 64).max(),
        }
        .unwrap_or(2)
    }
}

/// The requests of a workload.
pub(super) fn prompts(
    workload: &Workload,
    config: &SpeculationBench,
    subject: &dyn Subject,
) -> Result<Prompts, BenchError> {
    let output = config.output_len;
    let count = config.requests;
    let requests = match workload {
        Workload::Stories => {
            let beginning = |text: String| Ok(greedy(subject.encode(&text)?, output));
            stories(count).map(beginning).collect::<Result<_, BenchError>>()?
        }
        Workload::Again => {
            let first = |question: String| {
                let tokens = subject.encode_chat(&[("user", &question)])?;
                Ok((question, greedy(tokens, output)))
            };
            let first = questions(count).map(first).collect::<Result<_, BenchError>>()?;
            return Ok(Prompts::FirstTurns(first));
        }
        Workload::Random => random(count, output, subject.vocabulary()),
        Workload::Code => {
            let function = |text: &str| Ok(greedy(subject.encode(text)?, output));
            let functions = FUNCTIONS.into_iter().cycle().take(count);
            functions.map(function).collect::<Result<_, BenchError>>()?
        }
        Workload::Rename => {
            let program = |question: String| {
                let tokens = subject.encode_chat(&[("user", &question)])?;
                Ok(greedy(tokens, output))
            };
            let questions = RENAMES.iter().map(Rename::question).cycle().take(count);
            questions.map(program).collect::<Result<_, BenchError>>()?
        }
        Workload::File(path) => of_file(path, config, subject)?,
    };
    check_lengths(&requests, subject)?;
    Ok(Prompts::Known(requests))
}

/// The request that asks for the story of a first turn again.
pub(super) fn again(
    (question, first): &(String, Request),
    story: &[TokenId],
    subject: &dyn Subject,
) -> Result<Request, BenchError> {
    let story = subject.decode(story)?;
    let turns = [
        ("user", question.as_str()),
        ("assistant", &story),
        ("user", AGAIN),
    ];
    let request = greedy(subject.encode_chat(&turns)?, first.sampling.max_tokens);
    check_lengths(std::slice::from_ref(&request), subject)?;
    Ok(request)
}

const AGAIN: &str = "Tell me the story again.";

/// Heroes of stories.
const HEROES: [&str; 32] = [
    "a little fox",
    "a brave mouse",
    "a lonely robot",
    "a girl named Lily",
    "a boy named Tom",
    "an old bear",
    "a tiny dragon",
    "a white rabbit",
    "a sleepy owl",
    "a kind farmer",
    "a lost puppy",
    "a curious cat",
    "a small boat",
    "a red balloon",
    "a young knight",
    "a princess",
    "a green frog",
    "a baby bird",
    "a shy turtle",
    "a happy duck",
    "a clever monkey",
    "a gentle giant",
    "a hungry wolf",
    "a little star",
    "a snowman",
    "a blue whale",
    "a busy bee",
    "a toy train",
    "a magic tree",
    "a boy and his dog",
    "a girl and her kite",
    "a grandmother",
];

fn stories(count: usize) -> impl Iterator<Item = String> {
    const OPENINGS: [&str; 4] = [
        "Once upon a time, there was {} who",
        "One rainy day, {} found a shiny key.",
        "In a small village there lived {}.",
        "One morning, {} went for a walk in the forest.",
    ];
    heroes(count)
        .enumerate()
        .map(|(index, hero)| OPENINGS[index % OPENINGS.len()].replace("{}", hero))
}

fn questions(count: usize) -> impl Iterator<Item = String> {
    heroes(count).map(|hero| format!("Tell me a story about {hero}."))
}

fn heroes(count: usize) -> impl Iterator<Item = &'static str> {
    HEROES.into_iter().cycle().take(count)
}

/// Random tokens, continued at random. Drafters share the noise of the sampling, so a high temperature makes them agree
/// again, and greedy texts fall into loops: at 1 and from random tokens drafts are accepted least of all while there
/// still are some.
fn random(count: usize, output: usize, vocabulary: usize) -> Vec<Request> {
    const PROMPT: usize = 32;
    let mut random = Random(0);
    let mut request = |seed| {
        let mut request = random.request(PROMPT, output, vocabulary);
        request.sampling_mut().temperature = 1.0;
        request.sampling_mut().seed = seed;
        request
    };
    (0..count as u64).map(&mut request).collect()
}

/// The field `prompt` of the file's lines; other fields are ignored.
fn of_file(
    path: &Path,
    config: &SpeculationBench,
    subject: &dyn Subject,
) -> Result<Vec<Request>, BenchError> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| BenchError::input(&name, &error))?;
    let mut requests = Vec::new();
    let lines = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty());
    for (number, line) in lines.take(config.requests) {
        let refuse =
            |problem: String| BenchError::input(&format_args!("{name}, line {}", number + 1), &problem);
        let value: Value = serde_json::from_str(line).map_err(|error| refuse(error.to_string()))?;
        let prompt = value["prompt"].as_str();
        let prompt = prompt.ok_or_else(|| refuse("field `prompt` is missing or not a string".to_owned()))?;
        let tokens = subject
            .encode(prompt)
            .map_err(|error| refuse(error.to_string()))?;
        requests.push(greedy(tokens, config.output_len));
    }
    if requests.is_empty() {
        let problem = r#"no prompts; a line looks like {"prompt": "Once upon a time"}"#;
        return Err(BenchError::input(&name, &problem));
    }
    Ok(requests)
}

/// Greedy, and of one length, so that runs are comparable.
fn greedy(prompt: Vec<TokenId>, output: usize) -> Request {
    Request {
        prompt: prompt.into(),
        sampling: SamplingParams {
            temperature: 0.0,
            max_tokens: output,
            ..SamplingParams::default()
        }
        .into(),
        ..Request::default()
    }
}

fn check_lengths(requests: &[Request], subject: &dyn Subject) -> Result<(), BenchError> {
    let limit = subject.context();
    let length = |request: &Request| request.prompt.len() + request.sampling.max_tokens;
    match requests.iter().map(length).max() {
        Some(longest) if longest > limit => Err(BenchError::TooLong { longest, limit }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_stories_are_the_same() {
        let mut all: Vec<String> = stories(32).chain(questions(32)).collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 64);
        assert!(all.iter().all(|text| !text.contains('{')));
    }
}
