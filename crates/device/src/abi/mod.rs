//! What host and device tell each other, and what they both know of a request: every layout once.
//!
//! All of it is 32-bit words, so that a message is an array of words wherever it lies: in the memory of the host, of a
//! device, or in a mapped ring between the two. A struct made by `words!` is its own layout: the host and the CPU device
//! use it as it stands, and [`c_header`] writes the same declarations for kernels in C++.
//!
//! | part | declared in | written by | read by |
//! |---|---|---|---|
//! | [`Slot`] | `slot.rs` | `prepare`, `accept`, the drafters | every operation that asks about a request |
//! | [`Plan`] | `plan.rs` | the host ([`PlanMessage`]) | `prepare`, which copies it to the device |
//! | [`TokenRow`], [`RequestRow`], [`LogitsRow`] | `tables.rs` | `prepare`, `prepare_drafts` | the layers, the sampler |
//! | [`Record`] | `record.rs` | `accept`, `publish` | the host |

/// Declares a struct of words together with its constants: the struct itself, its name and fields for [`c_header`], and
/// the right to lie in a device's buffer.
macro_rules! words {
    (
        $(#[$meta:meta])*
        pub struct $name:ident { $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)* }
        $($(#[$constant_meta:meta])* const $constant:ident = $value:expr;)*
    ) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
        pub struct $name { $($(#[$field_meta])* pub $field: $type,)* }

        impl $name {
            /// Words that it takes.
            pub const WORDS: usize = size_of::<Self>() / 4;
            $($(#[$constant_meta])* pub const $constant: i32 = $value;)*
        }

        impl $crate::Element for $name {
            const NAME: &'static str = stringify!($name);
        }

        impl $crate::abi::header::Declared for $name {
            const FIELDS: &'static [$crate::abi::header::Field] =
                &[$($crate::abi::header::Field::new::<$type>(stringify!($field)),)*];
            const CONSTANTS: &'static [(&'static str, i32)] = &[$((stringify!($constant), $value),)*];
        }

        impl $crate::abi::header::CType for $name {
            const NAME: &'static str = stringify!($name);
            const COUNT: Option<usize> = None;
        }
    };
}

mod header;
mod plan;
mod record;
mod slot;
mod tables;
#[cfg(test)]
mod tests;

pub use header::c_header;
pub use plan::{AdmissionWords, BlockUpdate, Plan, PlanHeader, PlanLimits, PlanMessage, PlanRow};
pub use record::{
    Alternative, DraftsMade, Logprobs, MAX_LOGPROBS, Record, RecordHeader, RecordLimits, RecordRow,
};
pub use slot::{LIST_WORDS, Slot, SlotLists};
pub use tables::{LogitsRow, RequestRow, SamplingRow, TokenRow};

words! {
    /// A 64-bit number, low word first.
    pub struct Wide {
        /// The low 32 bits.
        pub low: u32,
        /// The high 32 bits.
        pub high: u32,
    }
}

impl From<u64> for Wide {
    fn from(value: u64) -> Self {
        Self {
            low: value as u32,
            high: (value >> 32) as u32,
        }
    }
}

impl From<Wide> for u64 {
    fn from(value: Wide) -> Self {
        Self::from(value.low) | (Self::from(value.high) << 32)
    }
}

/// Takes `count` values of a type off the front of an array of words; `None` if there are fewer.
fn take<'a, T: bytemuck::Pod>(words: &mut &'a [i32], count: u32) -> Option<&'a [T]> {
    let length = (count as usize).checked_mul(size_of::<T>() / 4)?;
    let (section, rest) = words.split_at_checked(length)?;
    *words = rest;
    Some(bytemuck::cast_slice(section))
}
