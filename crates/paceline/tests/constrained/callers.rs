//! Constraints as callers of the engine see them.

use crate::grammars::{ENDS, assert_valid, info, named, prompt, text, tokenizer};
use paceline::{Engine, EngineConfig, Event, Finish, Generation, Handle, Request};
use paceline_grammar::{Grammar, GrammarLimits, GrammarSpec, TokenizerInfo};
use paceline_testkit::{held, random_schema, storyteller};
use paceline_types::{
    Constraint, ConstraintError, FinishReason, Matcher, SamplingParams, TokenId, TokenMask,
};
use std::sync::Arc;
use std::time::Duration;

fn start(change: fn(&mut EngineConfig)) -> Handle {
    let mut config = EngineConfig {
        threads: 1,
        max_model_len: Some(1024),
        available_memory: Some(4 << 30),
        ..EngineConfig::default()
    };
    change(&mut config);
    Engine::start(&storyteller(), config, &|_| {}).expect("the default model starts")
}

fn request(constraint: Arc<dyn Constraint>, seed: u64) -> Request {
    Request {
        prompt: prompt("Once upon a time").into(),
        sampling: SamplingParams {
            temperature: 0.8,
            seed,
            max_tokens: 100,
            ..SamplingParams::default()
        }
        .into(),
        constraint: Some(constraint),
        ..Request::default()
    }
}

/// The tokens and the end of the only choice.
fn one(mut generation: Generation) -> (Vec<TokenId>, Finish) {
    let mut tokens = Vec::new();
    loop {
        match generation.next_blocking() {
            Some(Event::Delta { output, .. }) => tokens.extend(output.ids),
            Some(Event::Finished { finish, .. }) => return (tokens, finish),
            other => panic!("unexpected: {other:?}"),
        }
    }
}

/// The tokens and the end of every choice.
fn all(mut generation: Generation) -> Vec<(Vec<TokenId>, FinishReason)> {
    let (mut texts, mut ends) = (vec![Vec::new(); 8], Vec::new());
    while let Some(event) = generation.next_blocking() {
        match event {
            Event::Delta { choice, output } => texts[choice].extend(output.ids),
            Event::Finished { choice, finish } => ends.push((choice, finish.reason)),
            other => panic!("unexpected: {other:?}"),
        }
    }
    ends.sort_by_key(|(choice, _)| *choice);
    ends.into_iter()
        .map(|(choice, reason)| (texts[choice].clone(), reason))
        .collect()
}

#[test]
fn every_choice_follows_the_grammar_by_itself() {
    let handle = start(|_| {});
    let schema = random_schema(3);
    let (_, constraint) = named(&GrammarSpec::JsonSchema(schema.clone()));
    let ask = |n| Request {
        n: Some(n),
        ..request(Arc::clone(&constraint), 7)
    };
    let choices = all(handle.generate(ask(4)).expect("room"));
    assert_eq!(choices.len(), 4);
    for (tokens, reason) in &choices {
        if *reason == FinishReason::Stop {
            assert_valid(&schema, &text(tokens));
        }
    }
    assert_eq!(all(handle.generate(ask(1)).expect("room"))[0], choices[0]);
}

#[test]
fn cancelled_and_late_requests_end_and_others_go_on() {
    let handle = start(|config| config.max_num_seqs = 3);
    let (_, constraint) = named(&GrammarSpec::Regex("[a-z ]{900}".to_owned()));
    let (_, short) = named(&GrammarSpec::Choice(vec!["the end".to_owned()]));
    let (gate, late) = held(0, tokenizer().vocab_size());
    let endless: Vec<_> = (0..4)
        .map(|seed| {
            let constraint = if seed == 3 { &late } else { &constraint };
            let mut request = request(Arc::clone(constraint), seed);
            request.sampling_mut().max_tokens = 900;
            request.deadline = (seed == 3).then_some(Duration::from_millis(150));
            handle.generate(request).expect("room")
        })
        .collect();
    let waiting = handle.generate(request(short, 1)).expect("room");
    for generation in &endless[..3] {
        generation.cancel();
    }
    for (index, generation) in endless.into_iter().enumerate() {
        let reason = all(generation)[0].1;
        let wanted = if index == 3 {
            FinishReason::Deadline
        } else {
            FinishReason::Cancelled
        };
        assert_eq!(reason, wanted, "request {index}");
    }
    // It has a thread for masks to itself.
    drop(gate);
    let (tokens, reason) = all(waiting).remove(0);
    assert_eq!((text(&tokens).as_str(), reason), ("the end", FinishReason::Stop));
    assert_eq!(handle.stats().running, 0);
}

#[test]
fn without_an_end_token_a_text_ends_with_its_grammar() {
    let handle = start(|_| {});
    let info = TokenizerInfo::new(tokenizer(), &[], GrammarLimits::default()).expect("a vocabulary");
    let spec = GrammarSpec::Regex("[0-9]{3}-[a-z]{4}".to_owned());
    let grammar = Grammar::new(&info, &spec).expect("a grammar");
    let (tokens, reason) = all(handle.generate(request(Arc::new(grammar), 5)).expect("room")).remove(0);
    assert_eq!((text(&tokens).len(), reason), (8, FinishReason::Stop));
    // The same with end tokens that are ignored.
    let grammar = Grammar::new(crate::grammars::info(), &spec).expect("a grammar");
    let mut request = request(Arc::new(grammar), 5);
    request.sampling_mut().ignore_eos = true;
    let (tokens, reason) = all(handle.generate(request).expect("room")).remove(0);
    assert_eq!(reason, FinishReason::Stop);
    assert!(text(&tokens).len() == 8, "{:?}", text(&tokens));
}

/// Allows a few tokens, then nothing, or breaks.
#[derive(Debug)]
struct Treacherous {
    after: usize,
    panics: bool,
}

struct Step(usize, bool);

impl Constraint for Treacherous {
    fn matcher(&self) -> Box<dyn Matcher> {
        Box::new(Step(self.after, self.panics))
    }
}

impl Matcher for Step {
    fn commit(&mut self, tokens: &[TokenId]) -> Result<(), ConstraintError> {
        self.0 = self.0.saturating_sub(tokens.len());
        Ok(())
    }

    fn forced(&mut self, _: usize) -> Result<Vec<TokenId>, ConstraintError> {
        Ok(Vec::new())
    }

    fn masks(&mut self, _: &[TokenId]) -> Result<Vec<TokenMask>, ConstraintError> {
        assert!(self.0 > 0 || !self.1, "it breaks");
        match self.0 {
            0 => Err(ConstraintError("a dead end".to_owned())),
            _ => Ok(vec![TokenMask::of(&[40, 41, 42], 4096)]),
        }
    }

    fn is_finished(&self) -> bool {
        false
    }
}

#[test]
fn dead_ends_and_broken_constraints_end_their_request_alone() {
    let handle = start(|_| {});
    let (_, short) = named(&GrammarSpec::Choice(vec!["the end".to_owned()]));
    for (after, panics) in [(5, false), (0, false), (3, true)] {
        let bad = handle
            .generate(request(Arc::new(Treacherous { after, panics }), 2))
            .expect("room");
        let good = handle.generate(request(Arc::clone(&short), 2)).expect("room");
        let (tokens, finish) = one(bad);
        assert_eq!((tokens.len(), finish.reason), (after, FinishReason::Constraint));
        let detail = if panics {
            "the constraint broke"
        } else {
            "a dead end"
        };
        assert_eq!(finish.detail.as_deref(), Some(detail));
        assert!(tokens.iter().all(|token| (40..43).contains(token)), "{tokens:?}");
        assert_eq!(text(&all(good)[0].0), "the end");
    }
    assert_eq!(handle.fault(), None);
}

#[test]
fn an_engine_without_constraints_says_so() {
    let handle = start(|config| config.constraints = false);
    let (_, short) = named(&GrammarSpec::Choice(vec!["the end".to_owned()]));
    let error = handle
        .generate(request(short, 2))
        .err()
        .expect("a refusal")
        .to_string();
    assert!(error.contains("constraint"), "{error}");
    assert!(info().ends() == ENDS);
}
