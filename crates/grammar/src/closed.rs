//! Objects that have no members but those that a schema declares.
//!
//! A schema that says nothing of further members allows any. A small model then goes on inventing them, and nobody
//! reads them; so where a schema declares members, there are no others, unless it says otherwise
//! (`additionalProperties`, `patternProperties`, `unevaluatedProperties`). An object of which nothing is declared
//! stays free.
//!
//! Schemas that hold for the same value (`allOf`, `anyOf`, `oneOf`, `$ref` and what stands beside them) are closed
//! together: each may have the members of the others.

use serde_json::{Map, Value, json};

/// Members by name, in order; the values say nothing.
type Names = Map<String, Value>;

/// Keywords by which a schema itself says what further members there may be.
const EXPLICIT: [&str; 3] = [
    "additionalProperties",
    "patternProperties",
    "unevaluatedProperties",
];

/// Schemas that are looked at for names of members, over all. Groups beyond that stay as they are.
const MOST_LOOKS: usize = 200_000;

/// The schema with its objects closed. At most `most` names are added: a schema that needs more is larger than any
/// that is compiled.
pub(crate) fn closed(schema: &Value, most: usize) -> Value {
    let mut closer = Closer {
        root: schema,
        room: most,
        looks: MOST_LOOKS,
        opened: Vec::new(),
    };
    let mut closed = closer.schema(schema, &Around::Nothing);
    // Opening one definition may ask for others.
    let mut done = 0;
    while let Some((keyword, name)) = closer.opened.get(done).cloned() {
        let definition = closer.schema(&schema[keyword][&name], &Around::Closed);
        closed[keyword][opened(&name)] = definition;
        done += 1;
    }
    closed
}

/// What holds for the value beside a schema.
enum Around {
    /// Nothing: the schema is all there is.
    Nothing,
    /// Schemas with these members, which do not close the object themselves.
    Names(Names),
    /// A schema that says which members there are in all.
    Closed,
}

/// What schemas for one value say about its members.
#[derive(Default)]
struct Members {
    names: Names,
    /// They declare members.
    declared: bool,
    /// They leave it open which others there are, or it is not known.
    open: bool,
}

struct Closer<'a> {
    root: &'a Value,
    /// Names that may yet be added.
    room: usize,
    /// Schemas that may yet be looked at for names.
    looks: usize,
    /// Definitions of which there is a second version for values that others close, by keyword and name.
    opened: Vec<(&'static str, String)>,
}

/// The name of a definition's second version.
fn opened(name: &str) -> String {
    format!("{name}__opened")
}

impl<'a> Closer<'a> {
    fn schema(&mut self, schema: &'a Value, around: &Around) -> Value {
        let Some(members) = schema.as_object() else {
            return schema.clone();
        };
        let branches = ["anyOf", "oneOf"]
            .iter()
            .any(|keyword| members.contains_key(*keyword));
        let own = own(members);
        let parts: Vec<_> = parts(members)
            .into_iter()
            .map(|part| self.members(part))
            .collect();
        let declaring = parts.iter().filter(|part| part.declared).count();
        let open = own.open || parts.iter().any(|part| part.open);
        // Nothing to join: whatever is in it is closed by itself.
        let alone = matches!(around, Around::Nothing)
            && !own.declared
            && !own.open
            && (!open || parts.len() == 1 && !branches)
            && (declaring == 0 || declaring == 1 && !branches);
        let mut written = if alone {
            self.inside(members, &Around::Nothing, &Around::Nothing)
        } else if open || matches!(around, Around::Closed) {
            self.inside(members, &Around::Closed, &Around::Closed)
        } else {
            let mut names = own.names;
            for part in parts {
                names.extend(part.names);
            }
            if let Around::Names(others) = around {
                names.extend(others.clone());
            }
            let each = Around::Names(names.clone());
            let mut written = self.inside(members, &Around::Closed, &each);
            if !branches {
                self.close(&mut written, &names);
            }
            written
        };
        // Either value of it is what the object is by now.
        if written
            .get("unevaluatedProperties")
            .is_some_and(Value::is_boolean)
        {
            written.remove("unevaluatedProperties");
        }
        Value::Object(written)
    }

    /// Says that there are these members and no others.
    fn close(&mut self, schema: &mut Map<String, Value>, names: &Names) {
        let declared = schema.entry("properties").or_insert_with(|| json!({}));
        if let Some(declared) = declared.as_object_mut() {
            for name in names.keys() {
                if self.room > 0 && !declared.contains_key(name) {
                    self.room -= 1;
                    declared.insert(name.clone(), true.into());
                }
            }
        }
        schema.insert("additionalProperties".to_owned(), false.into());
    }

    /// A schema's members with the schemas in them closed: `all` is around those that hold together with it, `each`
    /// around those of which one does.
    fn inside(&mut self, members: &'a Map<String, Value>, all: &Around, each: &Around) -> Map<String, Value> {
        let mut written = Map::new();
        for (keyword, value) in members {
            let value = match keyword.as_str() {
                "properties" | "patternProperties" | "$defs" | "definitions" => self.named(value),
                "items" | "prefixItems" | "additionalItems" | "additionalProperties" => {
                    self.list(value, &Around::Nothing)
                }
                "allOf" => self.list(value, all),
                "anyOf" | "oneOf" => self.list(value, each),
                "$ref" if matches!(all, Around::Closed) => self.reference(value),
                _ => value.clone(),
            };
            written.insert(keyword.clone(), value);
        }
        written
    }

    fn named(&mut self, schemas: &'a Value) -> Value {
        let Some(schemas) = schemas.as_object() else {
            return schemas.clone();
        };
        let closed =
            |(name, schema): (&String, &'a Value)| (name.clone(), self.schema(schema, &Around::Nothing));
        Value::Object(schemas.iter().map(closed).collect())
    }

    fn list(&mut self, schemas: &'a Value, around: &Around) -> Value {
        match schemas {
            Value::Array(schemas) => schemas.iter().map(|schema| self.schema(schema, around)).collect(),
            schema => self.schema(schema, around),
        }
    }

    /// A reference to a definition that something else closes.
    fn reference(&mut self, reference: &Value) -> Value {
        let Some((keyword, name)) = self.definition(reference) else {
            return reference.clone();
        };
        let second = format!("#/{keyword}/{}", opened(&name));
        let entry = (keyword, name);
        if !self.opened.contains(&entry) {
            self.opened.push(entry);
        }
        second.into()
    }

    /// The definition that a reference names: those of the whole schema, by a plain name.
    fn definition(&self, reference: &Value) -> Option<(&'static str, String)> {
        let reference = reference.as_str()?;
        let found = ["$defs", "definitions"].into_iter().find_map(|keyword| {
            let name = reference
                .strip_prefix("#/")?
                .strip_prefix(keyword)?
                .strip_prefix('/')?;
            Some((keyword, name))
        });
        let (keyword, name) = found.filter(|(_, name)| !name.contains(['/', '~', '%']))?;
        let there = self.root[keyword].get(name).is_some() && self.root[keyword].get(opened(name)).is_none();
        there.then(|| (keyword, name.to_owned()))
    }

    /// The members that a schema, or the definition of a reference, declares, whichever of its branches holds.
    fn members(&mut self, schema: &'a Value) -> Members {
        let mut found = Members::default();
        let mut seen = Vec::new();
        let mut open = vec![schema];
        while let Some(mut schema) = open.pop() {
            if self.looks == 0 {
                found.open = true;
                break;
            }
            self.looks -= 1;
            if schema.is_string() {
                let Some(definition) = self.definition(schema) else {
                    found.open = true;
                    continue;
                };
                if seen.contains(&definition) {
                    continue;
                }
                schema = &self.root[definition.0][&definition.1];
                seen.push(definition);
            }
            let Some(members) = schema.as_object() else {
                continue;
            };
            let own = own(members);
            found.names.extend(own.names);
            found.declared |= own.declared;
            found.open |= own.open;
            let branches = ["anyOf", "oneOf"]
                .iter()
                .filter_map(|keyword| members.get(*keyword)?.as_array());
            let inside: Vec<_> = parts(members).into_iter().chain(branches.flatten()).collect();
            open.extend(inside.into_iter().rev());
        }
        found
    }
}

/// What a schema says by itself.
fn own(schema: &Map<String, Value>) -> Members {
    let mut found = Members {
        open: EXPLICIT.iter().any(|keyword| {
            schema
                .get(*keyword)
                .is_some_and(|said| *keyword != EXPLICIT[2] || *said != false)
        }),
        ..Members::default()
    };
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        found.declared = true;
        found
            .names
            .extend(properties.keys().map(|name| (name.clone(), true.into())));
    }
    let required = schema.get("required").and_then(Value::as_array);
    for name in required.into_iter().flatten().filter_map(Value::as_str) {
        found.names.insert(name.to_owned(), true.into());
    }
    found
}

/// The schemas that hold together with a schema: those in `allOf`, and a reference as its text.
fn parts(schema: &Map<String, Value>) -> Vec<&Value> {
    let all = schema.get("allOf").and_then(Value::as_array);
    let reference = schema.get("$ref").filter(|reference| reference.is_string());
    all.into_iter().flatten().chain(reference).collect()
}
