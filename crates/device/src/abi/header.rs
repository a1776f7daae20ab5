//! The layouts as declarations for kernels.

use super::{
    AdmissionWords, Alternative, BlockUpdate, DraftsMade, LIST_WORDS, LogitsRow, Logprobs, MAX_LOGPROBS,
    PlanHeader, PlanRow, RecordHeader, RecordRow, RequestRow, SamplingRow, Slot, TokenRow, Wide,
};
use paceline_types::{MAX_DRAFTS, STATE_GRID};
use std::fmt::Write;

/// A type that a field can have.
pub(crate) trait CType {
    /// Its name in C.
    const NAME: &'static str;
    /// Elements, of an array.
    const COUNT: Option<usize>;
}

impl CType for i32 {
    const NAME: &'static str = "int32_t";
    const COUNT: Option<usize> = None;
}

impl CType for u32 {
    const NAME: &'static str = "uint32_t";
    const COUNT: Option<usize> = None;
}

impl CType for f32 {
    const NAME: &'static str = "float";
    const COUNT: Option<usize> = None;
}

impl<T: CType, const N: usize> CType for [T; N] {
    const NAME: &'static str = T::NAME;
    const COUNT: Option<usize> = Some(N);
}

/// A field of a struct of words.
pub(crate) struct Field {
    name: &'static str,
    c_type: &'static str,
    count: Option<usize>,
}

impl Field {
    pub(super) const fn new<T: CType>(name: &'static str) -> Self {
        Self {
            name,
            c_type: T::NAME,
            count: T::COUNT,
        }
    }
}

/// A struct of words, as it was declared.
pub(crate) trait Declared: crate::Element {
    /// Its fields, in order.
    const FIELDS: &'static [Field];
    /// Its constants.
    const CONSTANTS: &'static [(&'static str, i32)];
}

/// All layouts as a header for kernels: the same names, the same order, and a check of every size.
pub fn c_header() -> String {
    let mut text = String::from(
        "// What host and device tell each other. Made from the declarations in crates/device/src/abi by its test\n\
         // `the_header_is_current`; do not edit.\n\
         #pragma once\n\
         #include <stdint.h>\n\n\
         namespace paceline {\n\n",
    );
    for (name, value) in [
        ("MAX_DRAFTS", MAX_DRAFTS),
        ("STATE_GRID", STATE_GRID),
        ("MAX_LOGPROBS", MAX_LOGPROBS),
        ("LIST_WORDS", LIST_WORDS),
    ] {
        let _ = writeln!(text, "constexpr int {name} = {value};");
    }
    declare::<Wide>(&mut text);
    declare::<SamplingRow>(&mut text);
    declare::<Slot>(&mut text);
    declare::<PlanHeader>(&mut text);
    declare::<AdmissionWords>(&mut text);
    declare::<BlockUpdate>(&mut text);
    declare::<PlanRow>(&mut text);
    declare::<TokenRow>(&mut text);
    declare::<RequestRow>(&mut text);
    declare::<LogitsRow>(&mut text);
    declare::<RecordHeader>(&mut text);
    declare::<RecordRow>(&mut text);
    declare::<Alternative>(&mut text);
    declare::<Logprobs>(&mut text);
    declare::<DraftsMade>(&mut text);
    text.push_str("\n}  // namespace paceline\n");
    text
}

fn declare<T: Declared>(text: &mut String) {
    let name = T::NAME;
    let _ = writeln!(text, "\nstruct {name} {{");
    for Field { name, c_type, count } in T::FIELDS {
        let _ = match count {
            Some(count) => writeln!(text, "    {c_type} {name}[{count}];"),
            None => writeln!(text, "    {c_type} {name};"),
        };
    }
    for (constant, value) in T::CONSTANTS {
        let _ = writeln!(text, "    static constexpr int32_t {constant} = {value};");
    }
    let _ = writeln!(text, "}};\nstatic_assert(sizeof({name}) == {});", size_of::<T>());
}
