//! Parts on their way out.

use super::OutputPart;

/// Collects parts; neighbours of a kind become one, and empty ones none.
#[derive(Debug, Default)]
pub(super) struct Parts {
    list: Vec<OutputPart>,
}

impl Parts {
    pub(super) fn into_list(self) -> Vec<OutputPart> {
        self.list
    }

    pub(super) fn content(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        if let Some(OutputPart::Content(last)) = self.list.last_mut() {
            last.push_str(text);
        } else {
            self.list.push(OutputPart::Content(text.to_owned()));
        }
    }

    pub(super) fn reasoning(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        if let Some(OutputPart::Reasoning(last)) = self.list.last_mut() {
            last.push_str(text);
        } else {
            self.list.push(OutputPart::Reasoning(text.to_owned()));
        }
    }

    fn arguments(&mut self, index: usize, text: &str) {
        if text.is_empty() {
            return;
        }
        // Arguments of another call are never next to these: a start is between them.
        if let Some(OutputPart::ToolCallArguments { delta, .. }) = self.list.last_mut() {
            delta.push_str(text);
        } else {
            let delta = text.to_owned();
            self.list.push(OutputPart::ToolCallArguments { index, delta });
        }
    }
}

/// Writes content and calls, numbers the calls and drops white space that only separates them.
#[derive(Debug, Default)]
pub(super) struct Emitter {
    /// Calls that have ended.
    calls: usize,
    /// What came since the beginning or the last call: separators, so far.
    separators: String,
    /// Content came since then.
    in_content: bool,
}

impl Emitter {
    pub(super) fn calls(&self) -> usize {
        self.calls
    }

    /// Text that is part of no call.
    pub(super) fn text(&mut self, text: &str, parts: &mut Parts) {
        if !self.in_content {
            let space = text.len() - text.trim_start().len();
            self.separator(&text[..space]);
            if space == text.len() {
                return;
            }
            self.in_content = true;
            parts.content(&std::mem::take(&mut self.separators));
            parts.content(&text[space..]);
            return;
        }
        parts.content(text);
    }

    /// Text that is dropped if a call or the end follows, and content otherwise. Valid before content only.
    pub(super) fn separator(&mut self, text: &str) {
        self.separators.push_str(text);
    }

    /// Drops the separators so far.
    pub(super) fn drop_separators(&mut self) {
        self.separators.clear();
    }

    pub(super) fn start(&mut self, name: &str, parts: &mut Parts) {
        self.drop_separators();
        parts.list.push(OutputPart::ToolCallStart {
            index: self.calls,
            name: name.to_owned(),
        });
    }

    pub(super) fn arguments(&mut self, delta: &str, parts: &mut Parts) {
        parts.arguments(self.calls, delta);
    }

    pub(super) fn end(&mut self, complete: bool, parts: &mut Parts) {
        let index = self.calls;
        parts.list.push(OutputPart::ToolCallEnd { index, complete });
        self.calls += 1;
        self.in_content = false;
    }

    /// A call whose arguments are known as a whole.
    pub(super) fn call(&mut self, name: &str, arguments: &str, parts: &mut Parts) {
        self.start(name, parts);
        self.arguments(arguments, parts);
        self.end(true, parts);
    }

    /// Ends the text. White space is all there is if there were no calls, so it is the answer.
    pub(super) fn finish(&mut self, parts: &mut Parts) {
        let separators = std::mem::take(&mut self.separators);
        if self.calls == 0 {
            parts.content(&separators);
        }
    }
}
