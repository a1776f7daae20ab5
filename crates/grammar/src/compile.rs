//! From a specification to a parser, with errors that say where.

use crate::budget::CompileBudget;
use crate::error::GrammarError;
use crate::lark::{Writer, prepared};
use crate::spec::{Call, GrammarSpec, Lead, Part};
use crate::tokenizer::{TokenizerInfo, clipped, first_line};
use llguidance::TokenParser;
use llguidance::api::{GrammarInit, TopLevelGrammar};
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::SimpleVob;
use serde_json::Value;
use std::panic::AssertUnwindSafe;
use std::thread;

/// Compilation recurses along references from schema to schema, as far as the number of values allows. The memory is
/// only taken as far as it is used.
const STACK: usize = 256 << 20;

/// A grammar that is ready, and the special tokens that it never allows.
pub(crate) struct Compiled {
    pub(crate) parser: TokenParser,
    pub(crate) forbidden: SimpleVob,
}

/// Compiles on a thread with a deep stack of its own.
pub(crate) fn compile(
    info: &TokenizerInfo,
    spec: &GrammarSpec,
    lead: &Lead,
    budget: &CompileBudget,
) -> Result<Compiled, GrammarError> {
    check(info, spec, lead)?;
    budget.check()?;
    let invalid = |reason: String| GrammarError::Invalid {
        place: spec.place().to_owned(),
        reason,
    };
    thread::scope(|scope| {
        let builder = thread::Builder::new()
            .name("paceline-grammar".to_owned())
            .stack_size(STACK);
        let running = builder
            .spawn_scoped(scope, || compile_here(info, spec, lead, budget))
            .map_err(|error| invalid(format!("no thread to compile it: {error}")))?;
        running
            .join()
            .unwrap_or_else(|_| Err(invalid("it breaks the compiler".to_owned())))
    })
}

fn compile_here(
    info: &TokenizerInfo,
    spec: &GrammarSpec,
    lead: &Lead,
    budget: &CompileBudget,
) -> Result<Compiled, GrammarError> {
    let mut forbidden = info.special().clone();
    let grammar = match (spec, lead) {
        (GrammarSpec::JsonSchema(schema), Lead::None) => {
            TopLevelGrammar::from_json_schema(prepared(info, schema))
        }
        (GrammarSpec::Lark(grammar), Lead::None) => TopLevelGrammar::from_lark(grammar.clone()),
        _ => {
            let mut writer = Writer::new(info);
            let grammar = writer.write(spec, lead);
            writer
                .special
                .iter()
                .for_each(|token| forbidden.disallow_token(*token));
            TopLevelGrammar::from_lark(grammar)
        }
    };
    let mut parser = match parser(info, grammar, budget) {
        Ok(parser) => parser,
        Err(error) => {
            budget.check()?;
            let message = match spec {
                GrammarSpec::Lark(_) => clipped(&error),
                _ => first_line(&error),
            };
            return Err(blame(info, spec, &message, budget));
        }
    };
    parser.start_without_prompt();
    Ok(Compiled { parser, forbidden })
}

/// The parser of a grammar, in steps with a look at the budget between them.
fn parser(
    info: &TokenizerInfo,
    grammar: TopLevelGrammar,
    budget: &CompileBudget,
) -> Result<TokenParser, String> {
    let factory = info.factory();
    let text = |error: &dyn std::fmt::Display| error.to_string();
    budget.check().map_err(|error| text(&error))?;
    let rules = catch_unwind(AssertUnwindSafe(|| {
        let init = GrammarInit::Serialized(grammar);
        init.to_internal(Some(factory.tok_env().clone()), factory.limits().clone())
    }));
    let (rules, lexemes) = rules.map_err(|error| text(&error))?;
    budget.check().map_err(|error| text(&error))?;
    let parser = factory.create_parser_from_init_default(GrammarInit::Internal(rules, lexemes));
    parser.map_err(|error| text(&error))
}

/// Sizes and shapes that no compiler should meet.
fn check(info: &TokenizerInfo, spec: &GrammarSpec, lead: &Lead) -> Result<(), GrammarError> {
    let limits = info.limits();
    let place = spec.place();
    let empty = |what: &str| {
        Err(GrammarError::Invalid {
            place: place.to_owned(),
            reason: format!("there is no {what}"),
        })
    };
    if let Lead::Until(end) | Lead::Block(_, end) = lead
        && end.is_empty()
    {
        return empty("text that it comes after");
    }
    match spec {
        GrammarSpec::JsonObject => Ok(()),
        // As it is, and as it is compiled: joining schemas adds to them.
        GrammarSpec::JsonSchema(schema) => {
            limits.check_schema(schema)?;
            limits.check_schema(&prepared(info, schema))
        }
        GrammarSpec::Regex(text) if text.is_empty() => empty("expression"),
        GrammarSpec::Regex(text) => limits.check_text(place, text),
        GrammarSpec::Lark(text) => limits.check_rules(place, text),
        GrammarSpec::Choice(texts) if texts.is_empty() => empty("text to choose"),
        GrammarSpec::Choice(texts) if texts.iter().any(String::is_empty) => empty("empty choice"),
        GrammarSpec::Choice(texts) => limits.check_text(place, &texts.concat()),
        GrammarSpec::Either(specs) if specs.is_empty() => empty("grammar to choose"),
        GrammarSpec::Either(specs) => specs.iter().try_for_each(|spec| check(info, spec, &Lead::None)),
        GrammarSpec::Calls { calls, .. } | GrammarSpec::TextOrCalls { calls, .. } => {
            if calls.is_empty() {
                return empty("tool to call");
            }
            let schemas: Vec<_> = calls.iter().flat_map(schemas).collect();
            limits.check_schema(&schemas.iter().copied().cloned().collect())?;
            limits.check_schema(&schemas.iter().map(|schema| prepared(info, schema)).collect())
        }
    }
}

fn schemas(call: &Call) -> Vec<&Value> {
    fn of(parts: &[Part]) -> Vec<&Value> {
        let schemas = parts.iter().map(|part| match part {
            Part::Json(schema) => vec![schema],
            Part::Optional(parts) => of(parts),
            _ => Vec::new(),
        });
        schemas.flatten().collect()
    }
    of(&call.0)
}

/// The error of a grammar that cannot be compiled, at the innermost place that cannot be compiled by itself.
fn blame(info: &TokenizerInfo, spec: &GrammarSpec, message: &str, budget: &CompileBudget) -> GrammarError {
    let (mut place, mut reason) = (spec.place().to_owned(), message.to_owned());
    let alone = |spec: &GrammarSpec| compile_here(info, spec, &Lead::None, budget).err();
    match spec {
        GrammarSpec::Either(specs) => {
            if let Some(error) = specs.iter().find_map(alone) {
                return error;
            }
        }
        GrammarSpec::Calls { calls, .. } | GrammarSpec::TextOrCalls { calls, .. } if calls.len() > 1 => {
            let one = |call: &Call| GrammarSpec::Calls {
                calls: vec![call.clone()],
                separator: None,
            };
            if let Some(number) = calls.iter().position(|call| alone(&one(call)).is_some()) {
                place = format!("call of tool {number}");
            }
        }
        _ => {}
    }
    if let GrammarSpec::JsonSchema(schema) = spec {
        let mut attempts = 24;
        let mut path = String::new();
        let mut within = schema;
        while let Some((name, inner, found)) = failing_part(info, (schema, within), &mut attempts, budget) {
            path.push_str(&name);
            (within, reason) = (inner, found);
        }
        if !path.is_empty() {
            place = format!("schema at {path}");
        }
    }
    GrammarError::Invalid { place, reason }
}

/// A part of a schema that fails by itself: its path, itself and the error. Each attempt takes one of those left.
fn failing_part<'a>(
    info: &TokenizerInfo,
    (whole, within): (&'a Value, &'a Value),
    attempts: &mut usize,
    budget: &CompileBudget,
) -> Option<(String, &'a Value, String)> {
    for (path, part) in subschemas(within) {
        *attempts = attempts.checked_sub(1)?;
        budget.check().ok()?;
        let mut alone = part.clone();
        if let Some(members) = alone.as_object_mut() {
            for name in ["$defs", "definitions"] {
                if let Some(definitions) = whole.get(name) {
                    members.insert(name.to_owned(), definitions.clone());
                }
            }
        }
        let grammar = TopLevelGrammar::from_json_schema(alone);
        if let Err(error) = parser(info, grammar, budget) {
            return Some((path, part, first_line(&error)));
        }
    }
    None
}

/// The schemas directly inside a schema, with their paths in it.
fn subschemas(schema: &Value) -> Vec<(String, &Value)> {
    let mut found = Vec::new();
    for keyword in ["properties", "patternProperties", "$defs", "definitions"] {
        for (name, part) in schema[keyword].as_object().into_iter().flatten() {
            let name = name.replace('~', "~0").replace('/', "~1");
            found.push((format!("/{keyword}/{name}"), part));
        }
    }
    for keyword in ["items", "additionalProperties", "not"] {
        if schema[keyword].is_object() {
            found.push((format!("/{keyword}"), &schema[keyword]));
        }
    }
    for keyword in ["prefixItems", "anyOf", "oneOf", "allOf"] {
        for (index, part) in schema[keyword].as_array().into_iter().flatten().enumerate() {
            found.push((format!("/{keyword}/{index}"), part));
        }
    }
    found
}
