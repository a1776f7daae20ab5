//! What the tests of parsers share.

use paceline_text::OutputPart::{self, Content, Reasoning, ToolCallArguments};

/// Parts with neighbours of a kind joined: where a text was cut makes no difference to them.
pub(crate) fn joined(parts: Vec<OutputPart>) -> Vec<OutputPart> {
    let mut joined: Vec<OutputPart> = Vec::new();
    for part in parts {
        match (joined.last_mut(), part) {
            (Some(Content(last)), Content(text)) | (Some(Reasoning(last)), Reasoning(text)) => {
                last.push_str(&text);
            }
            (Some(ToolCallArguments { delta: last, .. }), ToolCallArguments { delta, .. }) => {
                last.push_str(&delta);
            }
            (_, part) => joined.push(part),
        }
    }
    joined
}
