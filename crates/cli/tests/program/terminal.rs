//! What a person sees on a terminal.

use crate::common::hub::FakeHub;
use crate::common::scripted::{Answer, Scripted, Step};
use crate::common::terminal::{CTRL_BACKSLASH, CTRL_C, CTRL_D, screen, terminal, type_into, type_program};
use crate::common::{paceline, repository, run, run_with_input, stderr, stdout, succeed};
use std::fs;

const GENERATE: [&str; 5] = ["generate", "--temperature", "0", "--max-tokens", "24"];

#[test]
fn a_prompt_is_dim_before_its_continuation() {
    let home = tempfile::tempdir().unwrap();
    let prompt = ["--prompt", "Once upon a time"];
    let continued = succeed(&[&GENERATE[..], &prompt].concat());
    let written = terminal(home.path(), &[&GENERATE[..], &prompt].concat(), &[]);
    let line = continued.lines().next().unwrap();
    let expected = format!("\u{1b}[2mOnce upon a time\u{1b}[0m{line}");
    assert!(written.starts_with(&expected), "{written:?}");
    let plain = terminal(
        home.path(),
        &[&["NO_COLOR=1"], &GENERATE[..], &prompt].concat(),
        &[],
    );
    assert!(plain.starts_with(&format!("Once upon a time{line}")), "{plain:?}");
    // What the template makes of a message is not for people.
    let chat = terminal(home.path(), &[&GENERATE[..], &prompt, &["--chat"]].concat(), &[]);
    assert!(!chat.contains("\u{1b}[2m") && !chat.contains("<|"), "{chat:?}");
}

#[test]
fn what_is_piped_in_is_the_prompt() {
    let expected = succeed(&[&GENERATE[..], &["--prompt", "Once upon\na time"]].concat());
    for more in [&["-p", "-"][..], &["--prompt", "-"], &[]] {
        for input in [
            "Once upon\na time",
            "Once upon\na time\n",
            "Once upon\na time\r\n",
        ] {
            let output = run_with_input(&[&GENERATE[..], more].concat(), input);
            assert_eq!(
                stdout(&output),
                expected,
                "{more:?} {input:?}: {}",
                stderr(&output)
            );
        }
    }
    let nothing = run_with_input(&[&GENERATE[..], &["-p", "-"]].concat(), "\n");
    assert_eq!(nothing.status.code(), Some(2));
    assert!(
        stderr(&nothing).contains("stdin is empty"),
        "{}",
        stderr(&nothing)
    );
    // On a terminal nothing is waited for.
    let home = tempfile::tempdir().unwrap();
    let (written, code, _) = type_into(home.path(), 80, &GENERATE, &[]);
    assert_eq!(code, Some(2));
    assert!(
        written.contains("no prompt") && written.contains("pipe one in"),
        "{written}"
    );
}

#[test]
fn an_answer_wraps_at_words_and_its_figures_fit_the_line() {
    let home = tempfile::tempdir().unwrap();
    let answer = "There was an extraordinarily long-winded grasshopper who lived in a meadow, \
                  and everybody liked it.";
    let server = Scripted::start(move |_, _| {
        // Pieces that end within words, as tokens do.
        let letters: Vec<char> = answer.chars().collect();
        let pieces = letters.chunks(3).map(|piece| {
            let piece: String = piece.iter().collect();
            Step::Text(Box::leak(piece.into_boxed_str()))
        });
        let end = Step::End { tokens: Some(34) };
        Answer::Stream(pieces.chain([end]).collect())
    });
    let arguments = ["chat", "--base-url", &server.url, "--no-history"];
    let steps = [
        ("Ctrl-D", ""),
        ("> ", "Tell me.\r"),
        ("34 tokens", ""),
        ("> ", CTRL_D),
    ];
    for columns in [30, 44, 120] {
        let (written, code, _) = type_into(home.path(), columns, &arguments, &steps);
        assert_eq!(code, Some(0), "{written}");
        let rows = screen(&written, columns);
        let start = rows.iter().position(|row| row.starts_with("There was")).unwrap();
        let end = rows.iter().position(|row| row.starts_with("[34 tokens")).unwrap();
        assert_eq!(rows[start..end].join(" "), answer, "{rows:#?}");
        assert!(rows[end].ends_with(']'), "{rows:#?}");
        let wrapped = end - start;
        assert_eq!(
            wrapped,
            if columns == 120 { 1 } else { wrapped.max(2) },
            "{rows:#?}"
        );
        // Nothing at all is broken within a word: introduction and commands included.
        assert!(
            rows.iter().all(|row| row.chars().count() < columns.into()),
            "{rows:#?}"
        );
    }
}

#[test]
fn nothing_that_is_said_is_cut_within_a_word() {
    let home = tempfile::tempdir().unwrap();
    let server = Scripted::start(|_, _| Answer::Stream(Vec::new()));
    let chat = ["chat", "--base-url", &server.url, "--no-history"];
    let talk = [
        ("Ctrl-D", ""),
        ("> ", "/help\r"),
        ("came of it.", ""),
        ("> ", "/set heat 1\r"),
        ("ignore_eos", ""),
        ("> ", CTRL_D),
    ];
    let generate = ["generate", "--max-tokens", "2", "--prompt", "Once", "--stats"];
    let said = |arguments: &[&str], steps: &[(&str, &str)], expected| {
        for columns in [40, 72, 100] {
            let (written, code, _) = type_into(home.path(), columns, arguments, steps);
            assert_eq!(code, Some(expected), "{arguments:?}: {written}");
            for row in screen(&written, columns) {
                // A word may be longer than any line.
                let fits = row.chars().count() < columns.into() || !row.trim().contains(' ');
                assert!(fits, "{arguments:?} at {columns}: {row}\n{written}");
            }
        }
    };
    said(&chat, &talk, 0);
    said(&["doctor"], &[], 0);
    said(&["inspect", "storyteller", "--memory"], &[], 0);
    said(&generate, &[], 0);
    said(&["run", "a-model-that-nobody-has"], &[], 1);
    said(&["serve", "-tp", "2"], &[], 2);
}

#[test]
fn what_is_refused_is_told_in_one_sentence() {
    for (arguments, sentence) in [
        (
            &["serve", "-tp", "2"][..],
            "-tp 2 cannot be used: a model runs on one device here",
        ),
        (
            &["serve", "--kv-cache-dtype", "fp8"],
            "--kv-cache-dtype fp8 cannot be used: keys and values are kept in 32 or 16 bits",
        ),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let said = stderr(&output);
        assert!(said.starts_with(&format!("error: {sentence}")), "{said}");
        assert!(!said.contains("Usage:") && said.lines().count() == 3, "{said}");
    }
    let output = run(&["generate", "--revision", "v2", "--prompt", "Once"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("storyteller is built in"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn ctrl_c_leaves_no_mark_and_the_terminal_as_it_was() {
    let home = tempfile::tempdir().unwrap();
    let model = ["--threads", "1", "--temperature", "0", "--ignore-eos"];
    let chat = [&["chat", "--no-history"][..], &model].concat();
    let steps = [
        ("Ctrl-D", ""),
        ("> ", "Hello\r"),
        ("Once", CTRL_C),
        ("stopped by you", ""),
        ("> ", CTRL_D),
    ];
    let (written, code, echo) = type_into(home.path(), 80, &chat, &steps);
    assert_eq!((code, echo), (Some(0), true), "{written}");
    assert!(!written.contains("^C"), "{written}");

    let generate = [
        &["generate", "--prompt", "Once", "--max-tokens", "100000"][..],
        &model,
    ]
    .concat();
    let (written, code, echo) = type_into(home.path(), 80, &generate, &[("upon", CTRL_C)]);
    assert_eq!((code, echo), (Some(130), true), "{written}");
    assert!(
        !written.contains("^C") && written.contains("cancelled]"),
        "{written}"
    );

    let latency = [
        "bench",
        "latency",
        "--threads",
        "1",
        "--batch-size",
        "1,64",
        "--output-len",
        "400",
    ];
    let (written, code, echo) = type_into(home.path(), 80, &latency, &[("batch 1,", CTRL_C)]);
    assert_eq!((code, echo), (Some(130), true), "{written}");
    assert!(!written.contains("^C"), "{written}");
}

#[test]
fn ctrl_backslash_ends_an_answer_and_leaves_the_terminal_as_it_was() {
    let home = tempfile::tempdir().unwrap();
    let model = ["--threads", "1", "--temperature", "0", "--ignore-eos"];
    let chat = [&["chat", "--no-history"][..], &model].concat();
    let asked = [("Ctrl-D", ""), ("> ", "Hello\r"), ("Once", CTRL_BACKSLASH)];
    let generate = ["generate", "--prompt", "Once", "--max-tokens", "100000"];
    let generate = [&generate[..], &model].concat();
    for (command, steps) in [(chat, &asked[..]), (generate, &[("upon", CTRL_BACKSLASH)])] {
        let (written, code, echo) = type_into(home.path(), 80, &command, steps);
        assert_eq!((code, echo), (Some(131), true), "{written}");
        assert!(!written.contains("^\\"), "{written}");
    }
}

#[test]
fn a_server_leaves_no_mark_and_the_terminal_as_it_was() {
    let home = tempfile::tempdir().unwrap();
    let serve = ["serve", "--port", "0", "--threads", "1"];
    // Ctrl-C, a second one behind it, and Ctrl-\.
    for (typed, codes) in [
        (CTRL_C, &[0][..]),
        ("\u{3}\u{3}", &[0, 130]),
        (CTRL_BACKSLASH, &[131]),
    ] {
        // What is typed before does not show either.
        let steps = [("listening on", ""), ("\"max_tokens\"", "unseen"), ("}'", typed)];
        let (written, code, echo) = type_into(home.path(), 80, &serve, &steps);
        assert!(
            code.is_some_and(|code| codes.contains(&code)),
            "{code:?}: {written}"
        );
        assert!(echo, "{written}");
        for mark in ["^C", "^\\", "unseen"] {
            assert!(!written.contains(mark), "{mark}: {written}");
        }
    }
}

#[test]
fn a_server_that_was_sent_to_the_background_ends_there() {
    let home = tempfile::tempdir().unwrap();
    let program = paceline();
    let serve = format!(
        "{} serve --port 0 --threads 1\n",
        program.get_program().to_str().unwrap()
    );
    let steps = [
        ("$ ", serve.as_str()),
        ("}'", "\u{1a}"),
        ("Stopped", "bg\n"),
        ("$ ", "kill %1; wait %1; echo \"ended $?\"\n"),
        ("ended 0", "exit\n"),
    ];
    let shell = ["PS1=$ ", "--norc", "--noprofile", "--noediting", "-i"];
    let (written, code, echo) = type_program("bash", home.path(), 80, &shell, &steps);
    assert_eq!((code, echo), (Some(0), true), "{written}");
}

#[test]
fn the_program_by_itself_says_what_fits_a_small_terminal() {
    let home = tempfile::tempdir().unwrap();
    let (written, code, _) = type_into(home.path(), 80, &[], &[]);
    assert_eq!(code, Some(2), "{written}");
    let rows = screen(&written, 80);
    // The shell's next line is below.
    assert!(rows.len() < 24, "{rows:#?}");
    let said = rows.join("\n");
    for part in ["  run ", "  serve ", "  man ", "paceline --help"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn a_flag_that_nobody_has_gets_a_sentence_and_no_guess() {
    for (line, flag, help) in [
        ("--bogus", "--bogus", "paceline --help"),
        ("serve --prot 80", "--prot", "paceline serve --help"),
        ("serve --bogus=3", "--bogus", "paceline serve --help"),
        (
            "--quiet run model --temprature 1",
            "--temprature",
            "paceline run --help",
        ),
        ("chat --sistem x", "--sistem", "paceline chat --help"),
        ("generate --prompt x -Z", "-Z", "paceline generate --help"),
        ("ls --jsn", "--jsn", "paceline list --help"),
        ("rm --force org/name", "--force", "paceline rm --help"),
        ("pull --x org/name", "--x", "paceline pull --help"),
        ("doctor --verbose", "--verbose", "paceline doctor --help"),
        (
            "bench latency --thread 1",
            "--thread",
            "paceline bench latency --help",
        ),
    ] {
        let output = run(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(2), "{line}");
        let said = stderr(&output);
        let sentence = format!("error: {flag} is unknown: `{help}` lists");
        assert!(said.starts_with(&sentence), "{line}: {said}");
        assert!(said.contains("docs/flags.md"), "{line}: {said}");
        for guess in ["tip:", "similar", "as a value", "Usage:"] {
            assert!(!said.contains(guess), "{line}: {said}");
        }
    }
}

#[test]
fn what_generate_says_in_the_end_fits_the_line() {
    let home = tempfile::tempdir().unwrap();
    let arguments = [&GENERATE[..], &["--prompt", "Once upon a time"]].concat();
    let mut lengths = Vec::new();
    for columns in [40, 60, 160] {
        let (written, _, _) = type_into(home.path(), columns, &arguments, &[]);
        let rows = screen(&written, columns);
        let line = rows.last().unwrap();
        assert!(line.starts_with('[') && line.ends_with(']'), "{rows:#?}");
        assert!(line.contains("24 generated tokens"), "{rows:#?}");
        lengths.push(line.len());
    }
    assert!(lengths.is_sorted() && lengths[0] < lengths[2], "{lengths:?}");
}

#[test]
fn a_download_has_a_bar_as_wide_as_the_terminal() {
    let home = tempfile::tempdir().unwrap();
    let model = repository("assets/storyteller");
    let files = ["config.json", "model.safetensors", "tokenizer.json"];
    let files = files.map(|name| (name, fs::read(model.join(name)).unwrap()));
    let hub = FakeHub::start(&files);
    let endpoint = format!("HF_ENDPOINT={}", hub.endpoint());
    let cache = format!("HF_HOME={}", home.path().display());
    let arguments = [&endpoint, &cache, "HF_HUB_OFFLINE=0", "pull", "org/name"];
    let (written, code, _) = type_into(home.path(), 72, &arguments, &[]);
    assert_eq!(code, Some(0), "{written}");
    let rows = screen(&written, 72);
    // Those of files that have come are gone; the last one stays.
    let bar = rows[0].as_str();
    assert!(bar.starts_with("model.safetensors [="), "{rows:#?}");
    assert!(
        bar.contains("] 20.08 MB/20.08 MB ") && bar.len() == 72,
        "{rows:#?}"
    );
    assert!(rows[1].starts_with('/'), "{rows:#?}");
}
