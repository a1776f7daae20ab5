//! What `bench speculation` generates.

use super::super::load::{Random, Subject};
use crate::flags::{BenchSpeculationFlags, Workload};
use anyhow::{Context, Result, bail};
use paceline::Request;
use paceline_text::ChatInput;
use paceline_types::{SamplingParams, TokenId};
use serde_json::{Value, json};

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
    workload: Workload,
    flags: &BenchSpeculationFlags,
    subject: &Subject,
) -> Result<Prompts> {
    let output = flags.output_len;
    let count = flags.requests;
    let requests = match workload {
        Workload::Stories => {
            let beginning = |text: String| Ok(greedy(encode(subject, &text, true)?, output));
            stories(count).map(beginning).collect::<Result<_>>()?
        }
        Workload::Again => {
            let first = |question: String| {
                let tokens = chat(subject, &[("user", &question)])?;
                Ok((question, greedy(tokens, output)))
            };
            let first = questions(count).map(first).collect::<Result<_>>()?;
            return Ok(Prompts::FirstTurns(first));
        }
        Workload::Random => random(count, output, subject.outline.dims.vocabulary),
        Workload::File => of_file(flags, subject)?,
    };
    check_lengths(&requests, subject)?;
    Ok(Prompts::Known(requests))
}

/// The request that asks for the story of a first turn again.
pub(super) fn again(
    (question, first): &(String, Request),
    story: &[TokenId],
    subject: &Subject,
) -> Result<Request> {
    let tokenizer = subject.model.require_tokenizer("a chat")?;
    let story = tokenizer.decode(story, true)?;
    let turns = [
        ("user", question.as_str()),
        ("assistant", &story),
        ("user", AGAIN),
    ];
    let request = greedy(chat(subject, &turns)?, first.sampling.max_tokens);
    check_lengths(std::slice::from_ref(&request), subject)?;
    Ok(request)
}

const AGAIN: &str = "Tell me the story again.";

/// Whom stories are about.
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
        request.sampling.temperature = 1.0;
        request.sampling.seed = seed;
        request
    };
    (0..count as u64).map(&mut request).collect()
}

/// The field `prompt` of the file's lines; what else is there is somebody else's.
fn of_file(flags: &BenchSpeculationFlags, subject: &Subject) -> Result<Vec<Request>> {
    let path = flags
        .prompts
        .as_ref()
        .context("--workload file needs --prompts FILE")?;
    let name = path.display();
    let text = std::fs::read_to_string(path).with_context(|| name.to_string())?;
    let mut requests = Vec::new();
    let lines = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty());
    for (number, line) in lines.take(flags.requests) {
        let place = || format!("{name}, line {}", number + 1);
        let value: Value = serde_json::from_str(line).with_context(place)?;
        let prompt = value["prompt"]
            .as_str()
            .context("field `prompt` is missing or not a string");
        let tokens = prompt.and_then(|prompt| encode(subject, prompt, true));
        requests.push(greedy(tokens.with_context(place)?, flags.output_len));
    }
    if requests.is_empty() {
        bail!("{name}: no prompts; a line looks like {{\"prompt\": \"Once upon a time\"}}");
    }
    Ok(requests)
}

/// Greedy, and of one length, so that runs are comparable.
fn greedy(prompt: Vec<TokenId>, output: usize) -> Request {
    Request {
        prompt,
        sampling: SamplingParams {
            temperature: 0.0,
            max_tokens: output,
            ..SamplingParams::default()
        },
        ..Request::default()
    }
}

fn encode(subject: &Subject, text: &str, special: bool) -> Result<Vec<TokenId>> {
    let tokenizer = subject.model.require_tokenizer("a text prompt")?;
    Ok(tokenizer.encode(text, special)?)
}

fn chat(subject: &Subject, turns: &[(&str, &str)]) -> Result<Vec<TokenId>> {
    let model = &subject.model;
    let template = model.template()?;
    let template = template.with_context(|| {
        format!(
            "{}: the model has no chat template, which --workload again needs",
            model.source
        )
    })?;
    let message = |(role, content): &(&str, &str)| json!({ "role": role, "content": content });
    let input = ChatInput {
        messages: turns.iter().map(message).collect(),
        add_generation_prompt: true,
        ..ChatInput::default()
    };
    let text = template.render(&input).context("chat template")?;
    encode(subject, &text, false)
}

fn check_lengths(requests: &[Request], subject: &Subject) -> Result<()> {
    let limit = subject.options.config.max_model_len;
    let limit = limit.unwrap_or(subject.outline.dims.max_positions);
    let length = |request: &Request| request.prompt.len() + request.sampling.max_tokens;
    match requests.iter().map(length).max() {
        Some(longest) if longest > limit => {
            bail!("a prompt and --output-len are {longest} tokens together; the context holds {limit}")
        }
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
