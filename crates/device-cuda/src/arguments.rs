//! Arguments of kernels: declared once, here and in C.
//!
//! A kernel takes one struct by value. [`arguments!`] declares it for Rust and writes the same declaration for C++ to
//! `kernels/args/`, so that the two cannot differ; the test `the_headers_are_current` keeps the files.

#[cfg(test)]
use std::fmt::Write;
use std::marker::PhantomData;

/// The address of elements on the device, as a kernel sees it.
#[repr(transparent)]
pub(crate) struct Ptr<T>(u64, PhantomData<fn() -> T>);

impl<T> Clone for Ptr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Ptr<T> {}

impl<T> Ptr<T> {
    /// No elements.
    pub(crate) const NULL: Self = Self(0, PhantomData);

    /// Elements at a device address.
    pub(crate) const fn new(address: u64) -> Self {
        Self(address, PhantomData)
    }

    /// Whether there are none.
    pub(crate) const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// Whether the address is a multiple of this many bytes.
    pub(crate) const fn is_aligned(self, bytes: u64) -> bool {
        self.0.is_multiple_of(bytes)
    }
}

/// A type that an argument can have.
#[cfg(test)]
pub(crate) trait CType {
    /// Its name in C.
    fn name() -> String;
}

macro_rules! c_types {
    ($($type:ty => $name:expr,)*) => { $(#[cfg(test)] impl CType for $type { fn name() -> String { $name.to_owned() } })* };
}

c_types! {
    f32 => "float",
    i32 => "int32_t",
    u32 => "uint32_t",
    u64 => "uint64_t",
    u8 => "uint8_t",
    half::bf16 => "bf16",
    paceline_device::abi::Slot => "Slot",
    paceline_device::abi::Wide => "Wide",
    paceline_device::abi::TokenRow => "TokenRow",
    paceline_device::abi::RequestRow => "RequestRow",
    paceline_device::abi::LogitsRow => "LogitsRow",
    paceline_device::abi::RecordHeader => "RecordHeader",
    paceline_device::abi::RecordRow => "RecordRow",
    paceline_device::abi::Logprobs => "Logprobs",
}

#[cfg(test)]
impl<T: CType> CType for Ptr<T> {
    fn name() -> String {
        format!("{}*", T::name())
    }
}

/// What an argument, or a part of one, is for a kernel: bytes. Those between fields, which Rust does not know, are left as they are.
pub(crate) trait Plain {
    /// Writes it to the begin of `to`.
    fn write(&self, to: &mut [u8]);
}

macro_rules! plain {
    ($($type:ty),*) => { $(impl Plain for $type {
        fn write(&self, to: &mut [u8]) {
            let bytes = self.to_ne_bytes();
            to[..bytes.len()].copy_from_slice(&bytes);
        }
    })* };
}

plain!(f32, i32, u32, u64);

impl<T> Plain for Ptr<T> {
    fn write(&self, to: &mut [u8]) {
        self.0.write(to);
    }
}

/// A struct that was declared with [`arguments!`].
///
/// # Safety
/// It is `repr(C)`, and C++ has the same declaration.
pub(crate) unsafe trait Arguments: Copy + Plain {}

/// The declaration of a struct with these fields.
#[cfg(test)]
pub(crate) fn declare(name: &str, size: usize, fields: &[(&str, String)]) -> String {
    let mut text = format!("\nstruct {name} {{\n");
    for (field, c_type) in fields {
        let _ = writeln!(text, "    {c_type} {field};");
    }
    let _ = writeln!(text, "}};\nstatic_assert(sizeof({name}) == {size});");
    text
}

/// Declares structs that are arguments of kernels, or parts of such structs, and the header that declares them in C.
macro_rules! arguments {
    ($header:literal; $($(#[$meta:meta])* struct $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* })*) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            #[allow(clippy::struct_field_names, reason = "kernels know them by these names")]
            pub(crate) struct $name { $($(#[$field_meta])* pub(crate) $field: $type,)* }

            // SAFETY: `repr(C)`, and the header below is what the test of the headers writes.
            unsafe impl $crate::arguments::Arguments for $name {}

            impl $crate::arguments::Plain for $name {
                fn write(&self, to: &mut [u8]) {
                    $($crate::arguments::Plain::write(&self.$field, &mut to[std::mem::offset_of!($name, $field)..]);)*
                }
            }

            #[cfg(test)]
            impl $crate::arguments::CType for $name {
                fn name() -> String { stringify!($name).to_owned() }
            }
        )*

        /// The header that declares the structs above for kernels.
        #[cfg(test)]
        pub(crate) fn header() -> (&'static str, String) {
            #[allow(unused_mut, reason = "a header may declare nothing")]
            let mut text = String::new();
            $({
                let fields = [$((stringify!($field), <$type as $crate::arguments::CType>::name()),)*];
                text.push_str(&$crate::arguments::declare(stringify!($name), size_of::<$name>(), &fields));
            })*
            ($header, text)
        }
    };
}
pub(crate) use arguments;

#[cfg(test)]
mod tests {
    use super::{Plain, Ptr};
    use std::path::Path;

    arguments! { "none.h";
        struct Inner {
            small: u32,
            large: u64,
        }
        struct Outer {
            first: f32,
            inner: Inner,
            address: Ptr<f32>,
            last: i32,
        }
    }

    #[test]
    fn fields_are_written_where_c_has_them_and_nothing_between() {
        let outer = Outer {
            first: 1.5,
            inner: Inner {
                small: 7,
                large: u64::MAX - 1,
            },
            address: Ptr::new(0x1234_5678_9abc),
            last: -2,
        };
        let mut bytes = [0xee; 48];
        outer.write(&mut bytes);
        let mut expected = [0xee; 48];
        expected[..4].copy_from_slice(&1.5_f32.to_ne_bytes());
        expected[8..12].copy_from_slice(&7_u32.to_ne_bytes());
        expected[16..24].copy_from_slice(&(u64::MAX - 1).to_ne_bytes());
        expected[24..32].copy_from_slice(&0x1234_5678_9abc_u64.to_ne_bytes());
        expected[32..36].copy_from_slice(&(-2_i32).to_ne_bytes());
        assert_eq!((bytes, size_of::<Outer>()), (expected, 40));
        let (name, declarations) = header();
        assert!(name == "none.h" && declarations.contains("    Inner inner;\n    float* address;\n"));
    }

    /// Every header, as the declarations say now.
    fn headers() -> Vec<(&'static str, String)> {
        vec![crate::views::header()]
            .into_iter()
            .chain(crate::ops::headers())
            .collect()
    }

    #[test]
    fn the_headers_are_current() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/args");
        for (name, declarations) in headers() {
            let views = if name == "views.h" {
                ""
            } else {
                "#include \"args/views.h\"\n"
            };
            let text = format!(
                "// Arguments of kernels. Made from the declarations in src by the test `the_headers_are_current`; do not edit.\n\
                 #pragma once\n#include \"paceline.cuh\"\n{views}{declarations}"
            );
            let path = folder.join(name);
            if std::env::var_os("PACELINE_BLESS").is_some() {
                std::fs::write(&path, &text).expect("the header can be written");
            }
            let found = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(
                found == text,
                "{name} is not current: run this test with PACELINE_BLESS=1"
            );
        }
    }
}
