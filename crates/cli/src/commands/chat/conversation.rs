//! What has been said.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// The role of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Role {
    User,
    Assistant,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Message {
    pub(super) role: Role,
    pub(super) content: String,
}

/// A conversation: what the model was told first, and the messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Conversation {
    pub(super) system: Option<String>,
    pub(super) messages: Vec<Message>,
}

/// The file of `/save`: messages as OpenAI's interface has them, so that others can read it.
#[derive(Serialize, Deserialize)]
struct Saved {
    #[serde(default)]
    model: Option<String>,
    messages: Vec<SavedMessage>,
}

#[derive(Serialize, Deserialize)]
struct SavedMessage {
    role: String,
    content: String,
}

impl Conversation {
    pub(super) fn push(&mut self, role: Role, content: String) {
        self.messages.push(Message { role, content });
    }

    /// The newest message, if it is the user's and waits for an answer.
    pub(super) fn is_open(&self) -> bool {
        self.messages
            .last()
            .is_some_and(|message| message.role == Role::User)
    }

    /// Takes the newest answer back. False if there is none.
    pub(super) fn take_answer(&mut self) -> bool {
        let found = self
            .messages
            .last()
            .is_some_and(|message| message.role == Role::Assistant);
        if found {
            self.messages.pop();
        }
        found
    }

    /// Takes the newest question back, and its answer. False if there is none.
    pub(super) fn undo(&mut self) -> bool {
        let question = self
            .messages
            .iter()
            .rposition(|message| message.role == Role::User);
        self.messages.truncate(question.unwrap_or(self.messages.len()));
        question.is_some()
    }

    /// How many messages at the start make up the oldest exchange; 0 if it is the only one.
    pub(super) fn oldest_exchange(&self, from: usize) -> usize {
        let later = self.messages.iter().skip(from + 1);
        let next = later.clone().position(|message| message.role == Role::User);
        next.map_or(0, |next| next + 1)
    }

    /// Messages for a template or a server, but the first `without`.
    pub(super) fn to_json(&self, without: usize) -> Vec<Value> {
        let system = self
            .system
            .iter()
            .map(|text| json!({ "role": "system", "content": text }));
        let messages = self.messages.iter().skip(without);
        system
            .chain(messages.map(|message| json!({ "role": message.role, "content": message.content })))
            .collect()
    }

    /// One text to continue: what the user adds begins a new line.
    pub(super) fn to_text(&self, without: usize) -> String {
        let mut text = String::new();
        if let Some(system) = &self.system {
            text.push_str(system);
        }
        for message in self.messages.iter().skip(without) {
            let starts_line = message.role == Role::User && !message.content.is_empty();
            if starts_line && !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            text.push_str(&message.content);
        }
        text
    }

    /// Writes it to a file.
    pub(super) fn save(&self, path: &Path, model: &str) -> Result<()> {
        let system = self.system.iter().map(|text| ("system", text));
        let messages = self.messages.iter().map(|message| {
            let role = match message.role {
                Role::User => "user",
                Role::Assistant => "assistant",
            };
            (role, &message.content)
        });
        let saved = Saved {
            model: Some(model.to_owned()),
            messages: system
                .chain(messages)
                .map(|(role, content)| SavedMessage {
                    role: role.to_owned(),
                    content: content.clone(),
                })
                .collect(),
        };
        let text = serde_json::to_string_pretty(&saved)?;
        fs::write(path, text + "\n").with_context(|| path.display().to_string())
    }

    /// Reads one from a file.
    pub(super) fn load(path: &Path) -> Result<Self> {
        let name = || path.display().to_string();
        let text = fs::read_to_string(path).with_context(name)?;
        Self::parse(&text).with_context(name)
    }

    fn parse(text: &str) -> Result<Self> {
        let saved: Saved = serde_json::from_str(text).context("not a conversation that /save wrote")?;
        let mut conversation = Self::default();
        for (index, message) in saved.messages.into_iter().enumerate() {
            match message.role.as_str() {
                "system" if index == 0 => conversation.system = Some(message.content),
                "user" => conversation.push(Role::User, message.content),
                "assistant" => conversation.push(Role::Assistant, message.content),
                other => bail!("message {}: the role `{other}` has no place there", index + 1),
            }
        }
        Ok(conversation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn talk(contents: &[&str]) -> Conversation {
        let mut conversation = Conversation::default();
        for (index, content) in contents.iter().enumerate() {
            let role = if index % 2 == 0 {
                Role::User
            } else {
                Role::Assistant
            };
            conversation.push(role, (*content).to_owned());
        }
        conversation
    }

    #[test]
    fn the_newest_can_be_taken_back() {
        let mut conversation = talk(&["a", "b", "c", "d"]);
        assert!(conversation.take_answer() && conversation.is_open());
        assert!(!conversation.take_answer());
        assert!(conversation.undo());
        assert_eq!(conversation, talk(&["a", "b"]));
        assert!(conversation.undo() && !conversation.undo());
    }

    #[test]
    fn exchanges_go_one_by_one_and_the_last_stays() {
        let conversation = talk(&["a", "b", "c", "d", "e"]);
        assert_eq!(conversation.oldest_exchange(0), 2);
        assert_eq!(conversation.oldest_exchange(2), 2);
        assert_eq!(conversation.oldest_exchange(4), 0);
        assert_eq!(
            conversation.to_json(4),
            [json!({ "role": "user", "content": "e" })]
        );
    }

    #[test]
    fn a_text_grows_by_lines_of_the_user_and_by_what_came() {
        let mut conversation = talk(&["Once", " upon a time", "", ", long ago", "Then"]);
        assert_eq!(conversation.to_text(0), "Once upon a time, long ago\nThen");
        conversation.system = Some("A story.".to_owned());
        assert_eq!(conversation.to_text(2), "A story., long ago\nThen");
    }

    #[test]
    fn what_is_saved_can_be_loaded() {
        let mut conversation = talk(&["a \"quoted\"", "b\nc"]);
        conversation.system = Some("s".to_owned());
        let folder = std::env::temp_dir().join(format!("paceline-chat-{}", std::process::id()));
        conversation.save(&folder, "m").unwrap();
        let loaded = Conversation::load(&folder).unwrap();
        fs::remove_file(&folder).unwrap();
        assert_eq!(loaded, conversation);
    }

    #[test]
    fn files_that_are_no_conversations_are_refused() {
        for (text, part) in [
            ("[]", "/save"),
            ("{}", "/save"),
            (r#"{"messages": [{"role": "tool", "content": "x"}]}"#, "`tool`"),
            (
                r#"{"messages": [{"role": "user", "content": "x"}, {"role": "system", "content": "x"}]}"#,
                "message 2",
            ),
        ] {
            let error = format!("{:#}", Conversation::parse(text).unwrap_err());
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
