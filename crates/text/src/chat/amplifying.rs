//! Operations whose result can be far larger than their operands: the result is weighed before it is made.

use minijinja::value::{Kwargs, Rest, StringInput, Value, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State, filters, tests};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::budget::{self, refused};

/// Digits of the longest number in a format, so that a field is at most 999 characters wide.
const MAX_FORMAT_DIGITS: usize = 3;

/// Puts filters that weigh their results in the place of the engine's, and takes out those that no chat template uses.
pub(super) fn register(environment: &mut Environment<'_>) {
    environment.add_filter("replace", replace);
    environment.add_filter("join", join);
    environment.add_filter("indent", indent);
    environment.add_filter("format", format);
    environment.add_filter("sum", sum);
    environment.add_test(
        "in",
        |state: &mut State<'_, '_>, value: &Value, container: &Value| {
            budget::deep(state, container)?;
            tests::is_in(state, value, container)
        },
    );
    for name in ["batch", "chain", "pprint", "slice", "zip"] {
        environment.remove_filter(name);
    }
    environment.remove_global("debug");
}

/// The `*` of numbers, and of a text or list that is repeated.
pub(super) fn product(state: &mut State<'_, '_>, left: &Value, right: &Value) -> Result<Value, Error> {
    let repeatable = |value: &Value| {
        matches!(
            value.kind(),
            ValueKind::String | ValueKind::Seq | ValueKind::Iterable
        )
    };
    let (repeated, times) = match (repeatable(left), repeatable(right)) {
        (true, _) => (left, right),
        (false, true) => (right, left),
        (false, false) => return multiply(left, right),
    };
    let Some(times) = times.as_i64() else {
        return Err(refused(format!(
            "cannot repeat a {} {} times",
            repeated.kind(),
            times.kind()
        )));
    };
    let times = usize::try_from(times).unwrap_or(0);
    let before = budget::left(state);
    budget::flat(state, repeated)?;
    let once = before - budget::left(state);
    budget::spend(state, once.saturating_mul(times as u64))?;
    if let Some(text) = repeated.as_str() {
        return Ok(text.repeat(times).into());
    }
    let items: Vec<Value> = repeated.try_iter()?.collect();
    let items: Vec<Value> = (0..times).flat_map(|_| items.iter().cloned()).collect();
    Ok(items.into())
}

fn multiply(left: &Value, right: &Value) -> Result<Value, Error> {
    let impossible = || {
        let reason = format!("cannot multiply a {} by a {}", left.kind(), right.kind());
        Error::new(ErrorKind::InvalidOperation, reason)
    };
    let float = |value: &Value| f64::try_from(value.clone()).map_err(|_| impossible());
    if let (Some(left), Some(right)) = (left.as_i64(), right.as_i64()) {
        let exact = left.checked_mul(right);
        return exact
            .map(Value::from)
            .ok_or_else(|| refused("the product of two numbers is too large".to_owned()));
    }
    Ok(Value::from(float(left)? * float(right)?))
}

fn replace(
    state: &mut State<'_, '_>,
    value: StringInput<'_>,
    from: StringInput<'_>,
    to: StringInput<'_>,
) -> Result<Value, Error> {
    weigh_replaced(state, value.as_str(), from.as_str(), to.as_str())?;
    filters::replace(state, value, from, to)
}

fn weigh_replaced(state: &mut State<'_, '_>, text: &str, from: &str, to: &str) -> Result<(), Error> {
    budget::spend(state, text.len() as u64)?;
    budget::spend(state, text.matches(from).count() as u64 * to.len() as u64)
}

fn join(
    state: &mut State<'_, '_>,
    value: &Value,
    joiner: Option<StringInput<'_>>,
    attribute: Option<&str>,
    options: Kwargs,
) -> Result<Value, Error> {
    let named = options.peek::<Option<StringInput<'_>>>("d")?;
    let bytes = joiner
        .as_ref()
        .or(named.as_ref())
        .map_or(0, |joiner| joiner.as_str().len());
    weigh_joined(state, value, bytes)?;
    filters::join(state, value, joiner, attribute, options)
}

fn weigh_joined(state: &mut State<'_, '_>, items: &Value, joiner: usize) -> Result<(), Error> {
    budget::deep(state, items)?;
    for _ in items.try_iter()? {
        budget::spend(state, joiner as u64)?;
    }
    Ok(())
}

fn indent(
    state: &mut State<'_, '_>,
    value: StringInput<'_>,
    args: Rest<ValueOrKwargs>,
) -> Result<Value, Error> {
    type Args = (Option<usize>, Option<bool>, Option<bool>, Kwargs);
    let args = args.into_values();
    let (width, first, blank, options): Args = from_args(&args)?;
    let columns = width.or(options.peek("width")?).unwrap_or(4) as u64;
    let lines = 1 + value.as_str().matches('\n').count() as u64;
    budget::spend(state, columns.saturating_mul(lines))?;
    filters::indent(value, width, first, blank, options)
}

fn format(state: &mut State<'_, '_>, value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let args = args.into_values();
    weigh_format(state, value.as_str().unwrap_or_default(), &args)?;
    let args = args.into_iter().map(ValueOrKwargs::from);
    filters::format(state, value, Rest(args.collect()))
}

/// Formats may not ask for wide fields, nor take a width from their arguments.
fn weigh_format(state: &mut State<'_, '_>, format: &str, args: &[Value]) -> Result<(), Error> {
    let wide = format
        .split(|c: char| !c.is_ascii_digit())
        .any(|digits| digits.len() > MAX_FORMAT_DIGITS);
    let nested = format
        .split('{')
        .any(|field| !field.is_empty() && !field.contains('}'));
    let nested = nested && format.contains("{:");
    if wide || nested || format.contains('*') {
        return Err(refused("the format has a field of any width".to_owned()));
    }
    let fields = 1 + format.matches(['%', '{']).count() as u64;
    args.iter().try_for_each(|arg| budget::rounds(state, arg, fields))
}

fn sum(
    state: &mut State<'_, '_>,
    values: Value,
    attribute: Option<&str>,
    start: Option<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let named = options.peek::<Option<Value>>("start")?;
    let start_is_number = start.as_ref().or(named.as_ref()).is_none_or(Value::is_number);
    if !start_is_number {
        return Err(refused("only numbers can be summed".to_owned()));
    }
    filters::sum(state, values, attribute, start, options)
}

/// The methods of Python's values.
pub(super) fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    match (value.as_str(), method, args) {
        (Some(text), "replace", [from, to, ..]) => {
            let (from, to) = (from.as_str().unwrap_or_default(), to.as_str().unwrap_or_default());
            weigh_replaced(state, text, from, to)?;
        }
        (Some(text), "join", [items]) => weigh_joined(state, items, text.len())?,
        (Some(text), "format", args) => weigh_format(state, text, args)?,
        _ => {}
    }
    unknown_method_callback(state, value, method, args)
}
