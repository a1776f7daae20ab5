//! What a rendering may spend.
//!
//! A step of the template engine can cost any amount: it doubles a string, sorts a list, compares two trees. So every
//! operand is weighed before the engine sees it, and its weight is taken from a budget. The budget counts bytes and
//! values rather than time, so the same template on the same conversation gives the same answer everywhere, and since
//! whatever is made out of operands is at most a small multiple of their weight, it bounds memory as well as time.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

/// Bytes that one rendering may touch. Templates touch a conversation some ten times.
const MAX_WORK: u64 = 256 << 20;

/// What looking at one value costs, beside the bytes of its text.
const VALUE: u64 = 32;

/// Deepest nesting of lists and mappings. Deeper ones would overflow the stack when they are dropped.
const MAX_DEPTH: usize = 100;

/// Work that is left to the rendering that a [`State`] belongs to.
struct Budget(u64);

/// Takes `work` from the budget.
pub(super) fn spend(state: &mut State<'_, '_>, work: u64) -> Result<(), Error> {
    let budget = state.get_or_insert_extension(Budget(MAX_WORK));
    let enough = budget.0 >= work;
    budget.0 = budget.0.saturating_sub(work);
    if enough {
        Ok(())
    } else {
        Err(refused(format!(
            "it handles more than {MAX_WORK} bytes of values"
        )))
    }
}

/// Work that is left.
pub(super) fn left(state: &mut State<'_, '_>) -> u64 {
    state.get_or_insert_extension(Budget(MAX_WORK)).0
}

/// Weighs a value for an operation that looks at no items: only the characters of a text are counted one by one.
pub(super) fn sized(state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    spend(state, VALUE + text_len(value).unwrap_or(0))
}

/// Weighs a value for an operation that looks at it, and at its items, but not inside these.
pub(super) fn flat(state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    if let Some(bytes) = text_len(value) {
        return spend(state, VALUE + bytes);
    }
    match (value.kind(), value.len()) {
        (ValueKind::Seq | ValueKind::Map | ValueKind::Iterable, Some(items)) => {
            spend(state, VALUE.saturating_mul(1 + items as u64))
        }
        (ValueKind::Iterable, None) => {
            for _ in value.try_iter()? {
                spend(state, VALUE)?;
            }
            Ok(())
        }
        _ => spend(state, VALUE),
    }
}

/// Weighs a value for an operation that may look at everything in it.
pub(super) fn deep(state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    walk(state, value, 0, Walk::Whole)
}

/// Weighs a value as [`deep`] does, for an operation that looks at it `rounds` times.
pub(super) fn rounds(state: &mut State<'_, '_>, value: &Value, rounds: u64) -> Result<(), Error> {
    let before = left(state);
    deep(state, value)?;
    let once = before - left(state);
    spend(state, once.saturating_mul(rounds.saturating_sub(1)))
}

/// Weighs a value for an operation that compares every item in it with every other one.
pub(super) fn pairs(state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    let before = left(state);
    deep(state, value)?;
    let once = before - left(state);
    spend(state, once.saturating_mul(once / VALUE))
}

/// Weighs a value that becomes part of another one: it is shared and not copied, so the bytes of its texts do not count.
pub(super) fn part(state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    walk(state, value, 1, Walk::Structure)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Walk {
    Whole,
    Structure,
}

fn walk(state: &mut State<'_, '_>, value: &Value, depth: usize, walk_as: Walk) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(refused(format!("values are nested more than {MAX_DEPTH} deep")));
    }
    if walk_as == Walk::Structure && is_namespace(value) {
        // It could become a part of itself, and would then never be freed.
        return Err(refused("a namespace cannot be part of another value".to_owned()));
    }
    let text = text_len(value).filter(|_| walk_as == Walk::Whole).unwrap_or(0);
    spend(state, VALUE + text)?;
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            for item in value.try_iter()? {
                walk(state, &item, depth + 1, walk_as)?;
            }
        }
        ValueKind::Map => {
            for key in value.try_iter()? {
                walk(state, &key, depth + 1, walk_as)?;
                walk(state, &value.get_item(&key)?, depth + 1, walk_as)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// The engine's type for namespaces is not public.
fn is_namespace(value: &Value) -> bool {
    let object = value.as_object();
    object.is_some_and(|object| object.type_name().ends_with("::Namespace"))
}

fn text_len(value: &Value) -> Option<u64> {
    let bytes = value.as_str().map(str::len).or(value.as_bytes().map(<[u8]>::len));
    bytes.map(|bytes| bytes as u64)
}

pub(super) fn refused(reason: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}
