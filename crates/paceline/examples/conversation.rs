//! A conversation: every line of the input is answered, and what was said before counts.
//!
//! ```text
//! echo "Tell me about a fox." | cargo run --release -p paceline --example conversation -- [MODEL]
//! ```

use paceline::Model;
use std::env;
use std::error::Error;
use std::io::{self, BufRead, Write};

fn main() -> Result<(), Box<dyn Error>> {
    let name = env::args().nth(1).unwrap_or("assets/storyteller".to_owned());
    talk(&name, io::stdin().lock(), &mut io::stdout())
}

/// Answers line by line.
pub(crate) fn talk(name: &str, lines: impl BufRead, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let model = Model::load(name)?;
    let mut said: Vec<(&str, String)> = Vec::new();
    for line in lines.lines() {
        said.push(("user", line?));
        let answer = model.chat(&said).max_tokens(60).temperature(0.0).text()?;
        writeln!(out, "{answer}")?;
        said.push(("assistant", answer));
    }
    Ok(())
}
