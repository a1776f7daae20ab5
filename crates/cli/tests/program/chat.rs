//! `paceline chat`: piped sessions, servers, and a terminal.

use crate::common::scripted::{Answer, Scripted, Step};
use crate::common::served::Served;
use crate::common::terminal::{CTRL_C, CTRL_D, talk};
use crate::common::{
    Copy, check_failure, expect_failure, expect_usage_error, paceline, run_with_input, stderr, stdout,
    succeed,
};
use serde_json::{Value, json};
use std::fs;

/// Greedy, so that texts are the same every time.
const GREEDY: [&str; 6] = ["chat", "--threads", "1", "--temperature", "0", "--max-tokens=40"];

/// What a session with these lines prints.
fn session(arguments: &[&str], lines: &[&str]) -> String {
    let output = run_with_input(&[&GREEDY[..], arguments].concat(), &(lines.join("\n") + "\n"));
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

#[test]
fn a_message_is_answered_as_generate_answers_it() {
    let prompt = ["--chat", "--prompt", "Tell me about a fox."];
    let expected = succeed(
        &[
            &["generate", "--temperature", "0", "--max-tokens", "40"],
            &prompt[..],
        ]
        .concat(),
    );
    let output = run_with_input(&GREEDY, "Tell me about a fox.\n");
    assert_eq!(stdout(&output), expected);
    let notes = stderr(&output);
    assert!(notes.contains("40 tokens") && notes.contains("tok/s"), "{notes}");
    assert!(notes.contains("stopped at the token limit"), "{notes}");
    assert!(
        !notes.contains('\x1b') && !expected.contains('\x1b'),
        "colours in a pipe"
    );
    // Quiet leaves the answer and nothing else; a line that ends without a newline is a line.
    let output = run_with_input(&[&GREEDY[..], &["--quiet"]].concat(), "Tell me about a fox.");
    assert_eq!((stdout(&output), stderr(&output)), (expected, String::new()));
}

#[test]
fn the_words_of_run_are_a_model_and_a_text_or_with_a_flag_for_the_model_a_text() {
    let greedy = &GREEDY[1..];
    let text = "Tell me about a fox.";
    let expected = succeed(&[&["run", "storyteller", text][..], greedy].concat());
    for words in [
        &["run", "--model", "storyteller", text][..],
        &["run", "-hf", "storyteller", "Tell", "me", "about", "a", "fox."],
    ] {
        assert_eq!(succeed(&[words, greedy].concat()), expected, "{words:?}");
    }
    let named = format!("`paceline run storyteller \"{text}\"`");
    expect_usage_error(&["run", text], &["is no model", &named]);
}

#[test]
fn the_readme_shows_what_chat_says() {
    let readme = fs::read_to_string(crate::common::repository("README.md")).unwrap();
    let (_, shown) = readme
        .split_once("| paceline chat --temperature 0 --quiet\n")
        .unwrap();
    let shown = shown.split("```").next().unwrap();
    let lines = "/set max_tokens 20\nTell me about a fox.\n";
    assert_eq!(
        stdout(&run_with_input(&["chat", "--temperature", "0", "--quiet"], lines)),
        shown
    );
}

#[test]
fn a_conversation_is_remembered_taken_back_and_forgotten() {
    let fox = session(&[], &["Tell me about a fox."]);
    let both = session(
        &[],
        &["Tell me about a fox.", "Tell me about a dragon and a ship."],
    );
    let second = both.strip_prefix(&fox).unwrap();
    assert_ne!(second, session(&[], &["Tell me about a dragon and a ship."]));
    // What was forgotten or taken back is as if it had never been said; asking again says the same.
    let lines = [
        "Tell me about a fox.",
        "/clear",
        "Tell me about a dragon and a ship.",
        "/undo",
        "Tell me about a fox.",
        "Tell me about a dragon and a ship.",
        "/retry",
    ];
    let alone = session(&[], &["Tell me about a dragon and a ship."]);
    assert_eq!(
        session(&[], &lines),
        [&fox, &alone, &fox, second, second].concat()
    );
}

#[test]
fn the_second_message_finds_the_first_in_the_cache() {
    let output = run_with_input(
        &GREEDY,
        "Tell me about a fox.\nTell me about a dragon and a ship.\n/stats\n",
    );
    let notes = stderr(&output);
    let cached = |line: &str| {
        let rest = line.split("prompt: ").nth(1).unwrap();
        rest.split(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let lines: Vec<&str> = notes.lines().filter(|line| line.contains("cached")).collect();
    assert_eq!((lines.len(), cached(lines[0])), (2, 0), "{notes}");
    assert!(cached(lines[1]) >= 16, "{notes}");
    let told = stdout(&output);
    assert!(
        told.lines().last().unwrap().starts_with("2 answers: 80 tokens"),
        "{told}"
    );
}

#[test]
fn sampling_and_the_system_message_can_be_changed() {
    let short = session(&[], &["/set max_tokens 3", "Tell me about a fox."]);
    assert!(session(&[], &["Tell me about a fox."]).starts_with(short.trim_end()));
    assert_eq!(
        session(&[], &["/set max_tokens 3", "/set max-tokens 40", "Hello"]),
        session(&[], &["Hello"])
    );
    let told = session(&["--system", "Be kind."], &["Hello"]);
    assert_eq!(session(&[], &["/system Be kind.", "Hello"]), told);
    assert_eq!(
        session(&["--system", "Be kind."], &["/system -", "Hello"]),
        session(&[], &["Hello"])
    );
    let shown = session(&["--system", "Be kind."], &["/system", "/set"]);
    assert_eq!(shown, "Be kind.\nmax_tokens = 40\ntemperature = 0.0\n");
    // Other seeds give other answers, the same seed the same.
    let warm = ["--temperature", "1", "--seed", "5"];
    let warm = |lines: &[&str]| {
        let arguments = [
            &["chat", "--quiet", "--threads", "1", "--max-tokens", "16"][..],
            &warm,
        ]
        .concat();
        stdout(&run_with_input(&arguments, &(lines.join("\n") + "\n")))
    };
    let (one, two) = (warm(&["Hello"]), warm(&["Hello", "/retry"]));
    assert_eq!(
        two.strip_prefix(&one).map(|retried| retried == one),
        Some(false),
        "{two}"
    );
}

#[test]
fn a_conversation_is_saved_and_gone_on_with() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("talk.json");
    let file = file.to_str().unwrap();
    let fox = session(&[], &["Tell me about a fox.", &format!("/save {file}")]);
    let saved: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    assert_eq!(
        saved["messages"][0],
        json!({ "role": "user", "content": "Tell me about a fox." })
    );
    assert_eq!(saved["messages"][1]["role"], "assistant");
    let both = session(
        &[],
        &["Tell me about a fox.", "Tell me about a dragon and a ship."],
    );
    let second = both.strip_prefix(&fox).unwrap();
    assert_eq!(
        session(&["--load", file], &["Tell me about a dragon and a ship."]),
        second
    );
    assert_eq!(
        session(
            &[],
            &[&format!("/load {file}"), "Tell me about a dragon and a ship."]
        ),
        second
    );
    let shown = session(&["--load", file], &["/show"]);
    assert!(shown.starts_with("you: Tell me about a fox.\nmodel: "), "{shown}");
}

#[test]
fn lines_can_go_on_and_start_with_a_slash() {
    let output = session(
        &[],
        &[
            "one\\",
            "two\\",
            "three",
            "/undo",
            "//four",
            "/multiline",
            "five",
            "six",
            "",
            "/show",
        ],
    );
    let shown = output.rsplit("you: /four").next().unwrap();
    assert!(output.contains("you: /four\n"), "{output}");
    assert!(shown.contains("you: five\nsix\nmodel: "), "{output}");
    assert!(!output.contains("you: one"), "{output}");
}

#[test]
fn a_conversation_that_is_too_long_loses_its_start_with_a_notice() {
    let arguments = ["--max-model-len", "96"];
    let lines = [
        "Tell me about a fox and a hen.",
        "And a dog?",
        "And a cat?",
        "And a cow?",
        "And a pig?",
    ];
    let output = run_with_input(&[&GREEDY[..], &arguments].concat(), &(lines.join("\n") + "\n"));
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("the context is full: the first 2 messages are left out"),
        "{}",
        stderr(&output)
    );
    let long = "fox ".repeat(200);
    let output = run_with_input(&[&GREEDY[..], &arguments].concat(), &long);
    check_failure(&output, &["the message has", "the context holds 96"]);
}

#[test]
fn a_model_without_a_template_continues_the_text() {
    let copy = Copy::of("assets/storyteller");
    copy.edit_json("tokenizer_config.json", |config| {
        config.as_object_mut().unwrap().remove("chat_template");
    });
    let generated = succeed(&[
        "generate",
        "--model",
        copy.path(),
        "--temperature",
        "0",
        "--max-tokens",
        "40",
        "--prompt",
        "Once upon a time",
    ]);
    let (model, start) = (copy.path(), "Once upon a time");
    let shown = session(&[model], &["/model", start]);
    let (introduction, text) = shown.split_once("no chat template").unwrap();
    assert!(introduction.contains("parameters"), "{shown}");
    assert_eq!(text.split_once('\n').unwrap().1.trim(), generated.trim());
    // An empty line is "go on": two halves are the whole.
    let whole = session(&["--plain"], &["/set max_tokens 80", start]);
    let halves = session(&["--plain"], &[start, "", "/show"]);
    let letters = |text: &str| text.split_whitespace().collect::<String>();
    let halves = letters(&halves);
    let story = letters(start) + &letters(&whole);
    assert!(halves.ends_with(&story), "{halves}");
}

#[test]
fn a_server_says_what_the_engine_says() {
    let server = Served::start(&["--max-model-len", "512"]);
    let lines = [
        "Tell me about a fox.",
        "Tell me about a dragon and a ship.",
        "/retry",
        "/set stop fox",
        "Tell me about a fox.",
    ];
    let here = session(&["--max-model-len", "512"], &lines);
    let remote = |more: &[&str], lines: &[&str]| {
        let arguments = [
            "chat",
            "--base-url",
            &server.url,
            "--temperature",
            "0",
            "--max-tokens",
            "40",
        ];
        let output = run_with_input(&[&arguments[..], more].concat(), &(lines.join("\n") + "\n"));
        assert!(output.status.success(), "{}", stderr(&output));
        (stdout(&output), stderr(&output))
    };
    let (there, notes) = remote(&[], &lines);
    assert_eq!(there, here);
    assert!(notes.contains("40 tokens"), "{notes}");
    assert_eq!(
        remote(&["--plain"], &["Once upon"]).0.trim(),
        session(&["--plain"], &["Once upon"]).trim()
    );
    let arguments = ["chat", "--base-url", &server.url];
    let output = run_with_input(&[&arguments[..], &["unknown-model"]].concat(), "Hello\n");
    check_failure(&output, &["404", "unknown-model"]);
}

#[test]
fn reasoning_of_a_server_stays_out_of_a_pipe() {
    let server = Scripted::start(|_, body| {
        assert_eq!(body["messages"][0], json!({ "role": "user", "content": "Hello" }));
        Answer::Stream(vec![
            Step::Event(json!({ "choices": [{ "delta": { "reasoning_content": "Hm." } }] })),
            Step::Text("\n\nHi"),
            Step::Text(" there."),
            Step::End { tokens: Some(4) },
        ])
    });
    let output = run_with_input(&["chat", "--base-url", &server.url], "Hello\n");
    assert_eq!(stdout(&output), "Hi there.\n");
    assert!(stderr(&output).contains("4 tokens"), "{}", stderr(&output));
}

#[test]
fn reasoning_of_the_engine_stays_out_of_a_pipe() {
    let copy = Copy::of("assets/storyteller");
    copy.edit_json("tokenizer_config.json", |config| {
        let template = config["chat_template"].as_str().unwrap();
        // The turn begins inside the reasoning, and this model never ends it.
        let thinking = template.replace("<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n");
        assert_ne!(thinking, template);
        config["chat_template"] = json!(thinking + "{# </think> #}");
    });
    let output = run_with_input(&[&GREEDY[..], &[copy.path()]].concat(), "Hello\n");
    assert_eq!(stdout(&output), "\n", "{}", stderr(&output));
    assert!(stderr(&output).contains("40 tokens"), "{}", stderr(&output));
}

#[test]
fn an_answer_that_breaks_off_is_a_failure() {
    let server = Scripted::start(|_, _| Answer::Stream(vec![Step::Text("Hi")]));
    let output = run_with_input(&["chat", "--base-url", &server.url], "Hello\n");
    assert_eq!(stdout(&output), "Hi\n");
    check_failure(&output, &["broke off"]);
}

#[test]
fn a_script_ends_with_its_first_failure() {
    for (line, part) in [
        ("/frobnicate", "/help"),
        ("/undo", "nothing to take back"),
        ("/retry", "nothing to answer"),
        ("/set temperature -1", "at least 0"),
        ("/load /nonexistent/talk.json", "talk.json"),
    ] {
        let output = run_with_input(&GREEDY, &format!("{line}\nHello\n"));
        check_failure(&output, &[part]);
        assert_eq!(stdout(&output), "", "{line}");
    }
    expect_failure(
        &["chat", "--base-url", "http://127.0.0.1:9"],
        &["cannot connect", "paceline serve"],
    );
    expect_usage_error(
        &["chat", "--base-url", "http://a", "--threads", "2"],
        &["--threads"],
    );
    expect_usage_error(&["chat", "--api-key", "x"], &["--base-url"]);
}

#[test]
fn a_terminal_has_an_editor_a_memory_and_a_way_out() {
    let home = tempfile::tempdir().unwrap();
    let arguments = [
        "chat",
        "--threads",
        "1",
        "--temperature",
        "0",
        "--max-tokens",
        "8",
    ];
    let steps = [
        ("> ", "never sent"),
        ("never sent", CTRL_C),
        ("> ", "Hello\r"),
        ("tok/s", "/frobnicate\r"),
        ("is no command", ""),
        ("> ", CTRL_D),
    ];
    let screen = talk(home.path(), &arguments, &steps);
    assert!(screen.contains("tells children's stories"), "{screen}");
    assert!(screen.contains("\u{1b}[2m["), "figures are not dim: {screen}");
    let history = fs::read_to_string(home.path().join(".local/state/paceline/chat_history")).unwrap();
    assert!(
        history.contains("Hello") && !history.contains("never sent"),
        "{history}"
    );
    // The next session has it a key away.
    let again = [("> ", "\u{1b}[A\u{1b}[A\r"), ("tok/s", ""), ("> ", CTRL_D)];
    let screen = talk(home.path(), &arguments, &again);
    assert!(screen.contains("Hello"), "{screen}");
}

#[test]
fn an_answer_is_stopped_and_what_came_is_kept() {
    let home = tempfile::tempdir().unwrap();
    let server = Scripted::start(|number, body| {
        if number == 0 {
            return Answer::Stream(vec![Step::Text("Half an answer"), Step::Hang]);
        }
        assert_eq!(
            body["messages"][1],
            json!({ "role": "assistant", "content": "Half an answer" })
        );
        Answer::Stream(vec![Step::Text("A whole one"), Step::End { tokens: Some(3) }])
    });
    let arguments = ["chat", "--base-url", &server.url, "--no-history"];
    let steps = [
        ("> ", "One\r"),
        ("Half an answer", CTRL_C),
        ("stopped by you", ""),
        ("> ", "Two\r"),
        ("A whole one", ""),
        ("3 tokens", ""),
        ("> ", CTRL_D),
    ];
    talk(home.path(), &arguments, &steps);
    assert!(!home.path().join(".local").exists());
}

#[test]
fn the_engine_stops_as_well() {
    let home = tempfile::tempdir().unwrap();
    let arguments = ["chat", "--threads", "1", "--temperature", "0", "--ignore-eos"];
    let steps = [
        ("> ", "Hello\r"),
        ("Once", CTRL_C),
        ("stopped by you", ""),
        ("> ", "/show\r"),
        ("model: Once", ""),
        ("> ", CTRL_D),
    ];
    talk(home.path(), &arguments, &steps);
}

#[test]
fn colours_can_be_refused() {
    let output = paceline()
        .args(["chat", "--help"])
        .env("NO_COLOR", "1")
        .output()
        .unwrap();
    assert!(!stdout(&output).contains('\x1b'));
    let home = tempfile::tempdir().unwrap();
    let arguments = [
        "NO_COLOR=1",
        "chat",
        "--threads",
        "1",
        "--max-tokens",
        "4",
        "--no-history",
    ];
    let steps = [("> ", "Hello\r"), ("tokens", ""), ("> ", CTRL_D)];
    let screen = talk(home.path(), &arguments, &steps);
    assert!(!screen.contains("\u{1b}[2m"), "{screen}");
}
