//! Long conversations: what was said first is left out until the rest fits.

use super::of_input;
use crate::conversation::{Conversation, Reading};
use crate::error::{ApiError, CONTEXT_LENGTH_EXCEEDED};
use crate::preparation::Preparing;
use paceline_types::TokenId;
use serde_json::Value;

/// The tokens of the conversation without as many of its first messages as it takes to leave room for an answer.
/// What the system says stays, and so does the last message.
pub(super) fn prepare(
    conversation: &Conversation,
    model: &Preparing<'_>,
) -> Result<(Vec<TokenId>, Reading), ApiError> {
    let without = |count: usize| {
        let mut shorter = conversation.clone();
        shorter.messages = rest(&conversation.messages, count);
        shorter.prepare(model).map_err(of_input)
    };
    let too_long = |prepared: &Result<(Vec<TokenId>, Reading), ApiError>| match prepared {
        Ok((tokens, _)) => tokens.len() >= model.max_model_len,
        Err(error) => error.code == Some(CONTEXT_LENGTH_EXCEEDED),
    };
    let whole = without(0);
    if !too_long(&whole) {
        return whole;
    }
    let said = conversation.messages.iter().filter(|message| !is_system(message));
    // More messages are more tokens: the first count that fits is found by halving.
    let (mut low, mut high) = (1, said.count().saturating_sub(1));
    let mut found = None;
    while low <= high {
        let middle = low.midpoint(high);
        let prepared = without(middle);
        if too_long(&prepared) {
            low = middle + 1;
        } else {
            found = Some(prepared?);
            high = middle - 1;
        }
    }
    // What does not fit even so is refused by its length.
    found.map_or(whole, Ok)
}

fn is_system(message: &Value) -> bool {
    message["role"] == "system"
}

/// The messages without the first `count` that are not the system's, and without results of calls that are gone.
fn rest(messages: &[Value], count: usize) -> Vec<Value> {
    let mut skipped = 0;
    let mut orphans = count > 0;
    let mut kept = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        let last = index + 1 == messages.len();
        if is_system(message) {
            kept.push(message.clone());
            continue;
        }
        orphans &= skipped < count || message["role"] == "tool";
        if orphans && !last {
            skipped += 1;
        } else {
            kept.push(message.clone());
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_system_and_the_last_message_stay() {
        let message = |role: &str, text: &str| json!({ "role": role, "content": text });
        let messages = [
            message("system", "s"),
            message("user", "1"),
            message("assistant", "2"),
            message("tool", "3"),
            message("user", "4"),
            message("user", "5"),
        ];
        let texts = |count| -> String {
            let rest = rest(&messages, count);
            rest.iter()
                .map(|message| message["content"].as_str().unwrap())
                .collect()
        };
        assert_eq!(texts(0), "s12345");
        assert_eq!(texts(1), "s2345");
        assert_eq!(texts(2), "s45");
        assert_eq!(texts(4), "s5");
        assert_eq!(texts(9), "s5");
    }
}
