//! Tools in conversations whose template knows nothing of them: as text.

use super::ChatInput;
use crate::parse::ToolFormat;
use serde_json::{Map, Value, json};

const RESULT: (&str, &str) = ("<tool_response>\n", "\n</tool_response>");

impl ChatInput {
    /// Writes calls and their results into the contents of messages: calls as [`ToolFormat::Generic`] has them, results
    /// as words of the user. No two messages of the user's follow each other because of that.
    pub fn spell_out_calls(&mut self) {
        let mut written: Vec<Value> = Vec::with_capacity(self.messages.len());
        // The last message is made of results.
        let mut results = false;
        for message in std::mem::take(&mut self.messages) {
            let role = message["role"].as_str().unwrap_or_default();
            let is_result = matches!(role, "tool" | "function" | "ipython");
            let joins = results && (is_result || role == "user");
            let message = match role {
                _ if is_result => {
                    let content = format!("{}{}{}", RESULT.0, text(&message), RESULT.1);
                    json!({ "role": "user", "content": content })
                }
                "assistant" => with_calls(message),
                _ => message,
            };
            match written.last_mut() {
                Some(last) if joins => last["content"] = joined(&[text(last), text(&message)]).into(),
                _ => written.push(message),
            }
            results = is_result;
        }
        self.messages = written;
    }

    /// Puts a text before the conversation: into its system message, or else into the first one of the user's.
    pub fn begin_with(&mut self, told: &str, as_system: bool) {
        let role = if as_system { "system" } else { "user" };
        let place = self.messages.iter_mut().find(|message| message["role"] == role);
        match place {
            Some(message) if as_system => message["content"] = joined(&[text(message), told]).into(),
            Some(message) => message["content"] = joined(&[told, text(message)]).into(),
            None => self.messages.insert(0, json!({ "role": role, "content": told })),
        }
    }
}

/// What a model has to know about tools to call one as [`ToolFormat::Generic`] has it.
pub fn describe_tools(tools: &[Value]) -> String {
    let frame = ToolFormat::Generic.wrap("NAME");
    let call = format!("{}{{ARGUMENTS}}{}", frame.prefix, frame.suffix);
    let functions = tools.iter().map(|tool| {
        let function = tool.get("function").unwrap_or(tool);
        let shown = ["name", "description", "parameters"].into_iter();
        let shown = shown.filter_map(|key| Some((key.to_owned(), function.get(key)?.clone())));
        Value::Object(shown.collect::<Map<_, _>>()).to_string()
    });
    let functions: Vec<_> = functions.collect();
    format!(
        "You can call tools. To call one, write nothing but\n{call}\nand wait for its result. The tools, with schemas \
         of their arguments:\n{}",
        functions.join("\n")
    )
}

/// A message of the assistant's with its calls as text.
fn with_calls(mut message: Value) -> Value {
    let calls = message
        .as_object_mut()
        .and_then(|members| members.remove("tool_calls"));
    let Some(Value::Array(calls)) = calls else {
        return message;
    };
    let mut parts = vec![text(&message).to_owned()];
    for call in &calls {
        let function = call.get("function").unwrap_or(call);
        let frame = ToolFormat::Generic.wrap(function["name"].as_str().unwrap_or_default());
        let arguments = match &function["arguments"] {
            Value::String(text) => text.clone(),
            Value::Null => "{}".to_owned(),
            arguments => arguments.to_string(),
        };
        parts.push(format!("{}{arguments}{}", frame.prefix, frame.suffix));
    }
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    message["content"] = joined(&parts).into();
    message
}

fn text(message: &Value) -> &str {
    message["content"].as_str().unwrap_or_default()
}

fn joined(texts: &[&str]) -> String {
    let texts: Vec<&str> = texts.iter().copied().filter(|text| !text.is_empty()).collect();
    texts.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation() -> ChatInput {
        let call = |name: &str, arguments: Value| json!({ "id": "1", "type": "function", "function": { "name": name, "arguments": arguments } });
        ChatInput {
            messages: vec![
                json!({ "role": "user", "content": "Weather?" }),
                json!({ "role": "assistant", "content": "", "tool_calls":
                    [call("a", json!("{\"x\": 1}")), call("b", json!({ "y": 2 }))] }),
                json!({ "role": "tool", "tool_call_id": "1", "content": "sun" }),
                json!({ "role": "tool", "tool_call_id": "2", "content": "rain" }),
                json!({ "role": "user", "content": "And?" }),
                json!({ "role": "assistant", "content": "Both." }),
            ],
            ..ChatInput::default()
        }
    }

    #[test]
    fn calls_and_results_become_text() {
        let mut input = conversation();
        input.spell_out_calls();
        let roles: Vec<_> = input
            .messages
            .iter()
            .map(|message| message["role"].clone())
            .collect();
        assert_eq!(roles, ["user", "assistant", "user", "assistant"]);
        assert_eq!(
            input.messages[1],
            json!({ "role": "assistant", "content": "<tool_call>\n{\"name\": \"a\", \"arguments\": {\"x\": 1}}\n</tool_call>\n\
                <tool_call>\n{\"name\": \"b\", \"arguments\": {\"y\":2}}\n</tool_call>" })
        );
        let results = "<tool_response>\nsun\n</tool_response>\n<tool_response>\nrain\n</tool_response>\nAnd?";
        assert_eq!(input.messages[2], json!({ "role": "user", "content": results }));
    }

    #[test]
    fn a_text_goes_before_the_conversation() {
        let first = |as_system: bool, system: bool| {
            let mut input = conversation();
            if system {
                input
                    .messages
                    .insert(0, json!({ "role": "system", "content": "Be kind." }));
            }
            input.begin_with("TOLD", as_system);
            input.messages[0].clone()
        };
        assert_eq!(first(true, false), json!({ "role": "system", "content": "TOLD" }));
        assert_eq!(first(true, true)["content"], "Be kind.\nTOLD");
        assert_eq!(
            first(false, false),
            json!({ "role": "user", "content": "TOLD\nWeather?" })
        );
    }

    #[test]
    fn descriptions_have_what_a_model_needs_to_know() {
        let tool =
            json!({ "type": "function", "function": { "name": "f", "strict": true, "parameters": {} } });
        let told = describe_tools(&[tool]);
        assert!(told.ends_with("\n{\"name\":\"f\",\"parameters\":{}}"), "{told}");
        assert!(told.contains("<tool_call>\n{\"name\": \"NAME\", \"arguments\": {ARGUMENTS}}\n</tool_call>"));
    }
}
