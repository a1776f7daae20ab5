//! A text that goes on, as it comes.
//!
//! ```text
//! cargo run --release -p paceline --example story -- [MODEL [BEGINNING]]
//! ```

use paceline::Model;
use std::env;
use std::error::Error;
use std::io::{self, Write};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let name = arguments.next().unwrap_or("assets/storyteller".to_owned());
    let beginning = arguments.next().unwrap_or("Once upon a time".to_owned());
    tell(&name, &beginning, &mut io::stdout())
}

/// Tells the story, and what it took.
pub(crate) fn tell(name: &str, beginning: &str, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let model = Model::load(name)?;
    write!(out, "{beginning}")?;
    let mut story = model.complete(beginning).max_tokens(100).seed(7).stream()?;
    for piece in story.by_ref() {
        write!(out, "{}", piece?)?;
        out.flush()?;
    }
    if let Some((_, usage)) = story.end() {
        let drafts = usage.speculation;
        writeln!(
            out,
            "\n{} tokens in {} steps",
            usage.completion_tokens, drafts.steps
        )?;
    }
    Ok(())
}
