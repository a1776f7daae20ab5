//! What a reply must look like beyond what the model would write by itself: from what requests ask for to grammars,
//! and from these to constraints of the engine.

mod cache;
mod calls;
mod form;
mod grammars;

pub(crate) use calls::{Forced, Offer, allow};
pub(crate) use form::{Form, grammar, json_schema, only};
pub(crate) use grammars::Grammars;

use crate::error::ApiError;
use paceline_grammar::{GrammarSpec, Lead};

/// A grammar that a reply must follow.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Wanted {
    /// The field that asks for it.
    pub(crate) field: String,
    pub(crate) spec: GrammarSpec,
    /// What may come first.
    pub(crate) lead: Lead,
}

impl From<Form> for Wanted {
    /// For a text that has nothing before it and in which tools cannot be called.
    fn from(form: Form) -> Self {
        Self {
            field: form.field,
            spec: form.spec,
            lead: Lead::None,
        }
    }
}

/// The grammar for a form of the text and calls that must be made, if either is asked for. Calls may stand in for a
/// form that leaves it open, because nothing can be both.
pub(crate) fn wanted(
    form: Option<Form>,
    (forced, field): (&Forced, &str),
    offer: &Offer<'_>,
) -> Result<Option<Wanted>, ApiError> {
    let calls = forced.spec(field, offer)?;
    let (field, spec) = match (form, calls) {
        (None, None) => match offer.guided(forced)? {
            Some(spec) => ("tools".to_owned(), spec),
            None => return Ok(None),
        },
        (Some(form), None) => {
            let instead = form.calls_instead.then(|| offer.instead()).transpose()?.flatten();
            let spec = match instead {
                Some(calls) => GrammarSpec::Either(vec![form.spec, calls]),
                None => form.spec,
            };
            (form.field, spec)
        }
        (Some(form), Some(_)) if !form.calls_instead => return Err(form::two(&form.field, field)),
        (_, Some(calls)) => (field.to_owned(), calls),
    };
    Ok(Some(Wanted {
        field,
        spec,
        lead: Lead::None,
    }))
}
