//! Names of GGUF files that are parts of one model: `name-00001-of-00003.gguf`.

use crate::folder::has_extension;

/// Digits of a number in such a name.
const DIGITS: usize = 5;

/// A name that is one of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SplitName<'a> {
    /// What all of them begin with.
    pub(crate) stem: &'a str,
    /// `.gguf`, as it is written.
    extension: &'a str,
    /// From 1 on.
    pub(crate) number: u32,
    pub(crate) count: u32,
}

impl<'a> SplitName<'a> {
    /// Reads a name or a path; nothing if it is not one of several.
    pub(crate) fn parse(name: &'a str) -> Option<Self> {
        if !has_extension(name, "gguf") {
            return None;
        }
        let (rest, extension) = name.split_at(name.len() - ".gguf".len());
        let (rest, count) = number_at_end(rest, "-of-")?;
        let (stem, number) = number_at_end(rest, "-")?;
        let split = Self {
            stem,
            extension,
            number,
            count,
        };
        (count > 1 && (1..=count).contains(&number)).then_some(split)
    }

    /// The names of all parts, in their order.
    pub(crate) fn parts(self) -> impl Iterator<Item = String> {
        (1..=self.count).map(move |number| {
            let Self {
                stem,
                extension,
                count,
                ..
            } = self;
            format!("{stem}-{number:05}-of-{count:05}{extension}")
        })
    }
}

/// What comes before the mark and the number at the end.
fn number_at_end<'a>(text: &'a str, mark: &str) -> Option<(&'a str, u32)> {
    let (rest, digits) = text.split_at_checked(text.len().checked_sub(DIGITS)?)?;
    let number = digits
        .bytes()
        .all(|byte| byte.is_ascii_digit())
        .then_some(digits)?;
    Some((rest.strip_suffix(mark)?, number.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_parts_are_read_and_made() {
        let split = SplitName::parse("a/m-Q4-00002-of-00003.gguf").unwrap();
        assert_eq!((split.stem, split.number, split.count), ("a/m-Q4", 2, 3));
        let parts: Vec<_> = split.parts().collect();
        assert_eq!(
            parts,
            [
                "a/m-Q4-00001-of-00003.gguf",
                "a/m-Q4-00002-of-00003.gguf",
                "a/m-Q4-00003-of-00003.gguf"
            ]
        );
        for other in [
            "m.gguf",
            "m-00001-of-00001.gguf",
            "m-00004-of-00003.gguf",
            "m-00000-of-00003.gguf",
            "m-1-of-3.gguf",
            "m-00001-of-00003.bin",
            "é-of-00003.gguf",
            "00003.gguf",
        ] {
            assert_eq!(SplitName::parse(other), None, "{other}");
        }
    }
}
