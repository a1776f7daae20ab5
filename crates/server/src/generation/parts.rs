//! What the text of one choice is made of: answer, reasoning and tool calls.

use paceline_text::{OutputParser, OutputPart};

/// Reads one choice while it comes, for interfaces that tell its parts apart.
#[derive(Debug)]
pub(crate) struct PartReader {
    parser: OutputParser,
    /// Calls behind the first are left out.
    one_call: bool,
    /// Calls whose arguments are whole.
    calls: usize,
}

impl PartReader {
    pub(crate) fn new(parser: OutputParser, parallel_calls: bool) -> Self {
        Self {
            parser,
            one_call: !parallel_calls,
            calls: 0,
        }
    }

    /// Takes more text and returns the parts that it completes.
    pub(crate) fn push(&mut self, text: &str) -> Vec<OutputPart> {
        let parts = self.parser.push(text);
        self.keep(parts)
    }

    /// The end of the text; called once.
    pub(crate) fn finish(&mut self) -> Vec<OutputPart> {
        let parts = self.parser.finish();
        self.keep(parts)
    }

    /// Whether there is a call that can be executed.
    pub(crate) fn called(&self) -> bool {
        self.calls > 0
    }

    fn keep(&mut self, mut parts: Vec<OutputPart>) -> Vec<OutputPart> {
        parts.retain(|part| match part {
            OutputPart::ToolCallStart { index, .. }
            | OutputPart::ToolCallArguments { index, .. }
            | OutputPart::ToolCallEnd { index, .. } => !self.one_call || *index == 0,
            OutputPart::Content(_) | OutputPart::Reasoning(_) => true,
        });
        let whole = |part: &&OutputPart| matches!(part, OutputPart::ToolCallEnd { complete: true, .. });
        self.calls += parts.iter().filter(whole).count();
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_text::{OutputParserOptions, ToolFormat};

    fn read(text: &str, parallel: bool) -> (Vec<OutputPart>, bool) {
        let options = OutputParserOptions {
            tool_format: Some(ToolFormat::Hermes),
            ..OutputParserOptions::default()
        };
        let mut reader = PartReader::new(OutputParser::new(&options), parallel);
        let mut parts = reader.push(text);
        parts.extend(reader.finish());
        (parts, reader.called())
    }

    #[test]
    fn calls_behind_the_first_are_left_out_if_there_may_be_one() {
        let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n";
        let starts = |parts: &[OutputPart]| {
            let start = |part: &&OutputPart| matches!(part, OutputPart::ToolCallStart { .. });
            parts.iter().filter(start).count()
        };
        let (parts, called) = read(&call.repeat(2), true);
        assert_eq!((starts(&parts), called), (2, true));
        let (parts, called) = read(&call.repeat(2), false);
        assert_eq!((starts(&parts), called), (1, true));
    }

    #[test]
    fn a_call_that_is_cut_off_does_not_count() {
        let (_, called) = read("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": ", true);
        assert!(!called);
    }
}
