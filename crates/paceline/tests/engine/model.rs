//! Text in, text out: what `Model` says is what the engine says, from folders and GGUF files, and the examples run.

#[expect(dead_code, reason = "its main is not run here")]
#[path = "../../examples/conversation.rs"]
mod conversation;
#[expect(dead_code, reason = "its main is not run here")]
#[path = "../../examples/similar.rs"]
mod similar;
#[expect(dead_code, reason = "its main is not run here")]
#[path = "../../examples/story.rs"]
mod story;

use paceline::{AskError, Engine, EngineConfig, Event, FinishReason, LoadError, Model, Request};

const STORYTELLER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/storyteller");

#[test]
fn a_text_is_that_of_the_engine_whole_or_in_pieces() {
    let model = Model::load(STORYTELLER).unwrap();
    let ask = || {
        model
            .complete("Once upon a time")
            .temperature(0.7)
            .seed(3)
            .max_tokens(60)
    };
    let whole = ask().text().unwrap();
    let pieces: Vec<String> = ask().stream().unwrap().map(Result::unwrap).collect();
    assert!(pieces.len() > 1, "{pieces:?}");
    assert_eq!(pieces.concat(), whole);

    let mut request = Request {
        prompt: model.tokenizer().encode("Once upon a time", true).unwrap().into(),
        ..Request::default()
    };
    // What the model's files say, as `paceline inspect` shows it, and what was asked for.
    request.sampling_mut().top_p = 0.95;
    request.sampling_mut().temperature = 0.7;
    request.sampling_mut().seed = 3;
    request.sampling_mut().max_tokens = 60;
    let engine = Engine::start(&paceline_testkit::storyteller(), EngineConfig::default(), &|_| {}).unwrap();
    let (mut generation, mut ids) = (engine.generate(request).unwrap(), Vec::new());
    while let Some(event) = generation.next_blocking() {
        if let Event::Delta { output, .. } = event {
            ids.extend(output.ids);
        }
    }
    assert_eq!(
        model.tokenizer().decode(&ids, true).unwrap().trim_start(),
        whole.trim_start()
    );
}

#[test]
fn a_stop_string_ends_an_answer_before_it_and_frees_the_engine() {
    let model = Model::load(STORYTELLER).unwrap();
    let ask = || {
        model
            .complete("Once upon a time")
            .temperature(0.0)
            .max_tokens(200)
    };
    let text = ask().text().unwrap();
    let (before, _) = text.split_once('.').unwrap();
    let mut story = ask().stop(".").stop("never said").stream().unwrap();
    assert_eq!(story.by_ref().map(Result::unwrap).collect::<String>(), before);
    let (reason, usage) = story.end().unwrap();
    assert_eq!(reason, FinishReason::Stop);
    assert!(usage.completion_tokens < 100, "{usage:?}");
    assert_eq!(model.engine().stats().running, 0);
    // One that is dropped is over too.
    drop(ask().stream().unwrap());
    let short = ask().max_tokens(5).text().unwrap();
    assert!(!short.is_empty() && text.starts_with(&short), "{short}");
}

#[test]
fn what_cannot_be_is_an_error_that_says_why() {
    let model = Model::load(STORYTELLER).unwrap();
    let error = |result: Result<String, AskError>| result.unwrap_err().to_string();
    assert!(error(model.complete("Hi").temperature(-1.0).text()).contains("`temperature` is -1"));
    let long = "word ".repeat(5000);
    assert!(error(model.complete(&long).text()).contains("maximum context length"));
    assert!(
        model
            .embed(&long)
            .unwrap_err()
            .to_string()
            .contains("maximum context length")
    );
    let missing = Model::load("./no-such-model.gguf").err().unwrap();
    assert!(matches!(missing, LoadError::Hub(_)), "{missing}");
    assert!(missing.to_string().contains("no-such-model.gguf"), "{missing}");
    // A model of token ids alone.
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/llama");
    let bare = Model::load(fixture).err().unwrap();
    assert!(matches!(bare, LoadError::NoTokenizer(_)), "{bare}");
    assert!(bare.to_string().contains("paceline::Engine"), "{bare}");
}

#[test]
fn the_examples_run() {
    let mut told = Vec::new();
    story::tell(STORYTELLER, "Once upon a time", &mut told).unwrap();
    let told = String::from_utf8(told).unwrap();
    assert!(
        told.starts_with("Once upon a time, ") && told.contains(" tokens in "),
        "{told}"
    );

    let lines = "Tell me about a fox.\nAnd then?\n";
    let mut said = Vec::new();
    conversation::talk(STORYTELLER, lines.as_bytes(), &mut said).unwrap();
    let first = Model::load(STORYTELLER).unwrap();
    let talk = [("user", "Tell me about a fox.")];
    let expected = first.chat(&talk).max_tokens(60).temperature(0.0).text().unwrap();
    let said = String::from_utf8(said).unwrap();
    assert!(
        said.starts_with(&expected) && said.len() > expected.len() + 20,
        "{said}"
    );

    let others = ["The car is blue.", "The dog ran in the park.", "One plus one"];
    let ranked = similar::ranked(STORYTELLER, "The puppy ran in the park.", &others).unwrap();
    assert_eq!(ranked[0].1, "The dog ran in the park.", "{ranked:?}");
    assert!(
        ranked
            .iter()
            .all(|(likeness, _)| (-1.0..=1.001).contains(likeness)),
        "{ranked:?}"
    );
}
