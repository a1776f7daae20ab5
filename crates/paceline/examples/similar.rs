//! Texts in the order of their likeness to the first one, by the angle between their vectors.
//!
//! ```text
//! cargo run --release -p paceline --example similar -- MODEL TEXT TEXT...
//! ```

use paceline::Model;
use std::env;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [name, text, others @ ..] = arguments.as_slice() else {
        return Err("a model and some texts are needed".into());
    };
    for (likeness, other) in ranked(name, text, others)? {
        println!("{likeness:.3} {other}");
    }
    Ok(())
}

/// The others with their likeness to a text, the most alike first.
pub(crate) fn ranked<'a>(
    name: &str,
    text: &str,
    others: &'a [impl AsRef<str>],
) -> Result<Vec<(f32, &'a str)>, Box<dyn Error>> {
    let model = Model::load(name)?;
    let vector = model.embed(text)?;
    let mut found = Vec::new();
    for other in others {
        let other = other.as_ref();
        let products = model.embed(other)?.into_iter().zip(&vector).map(|(a, b)| a * b);
        found.push((products.sum(), other));
    }
    found.sort_by(|a, b| f32::total_cmp(&b.0, &a.0));
    Ok(found)
}
