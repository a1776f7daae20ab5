//! Which GGUF file of a repository is meant by a quantisation, or by nothing.

use crate::folder::has_extension;
use crate::split::SplitName;

/// What is taken where a repository has several quantisations and none is named: what users of other programs get first,
/// then what comes close to it.
const PREFERRED: [&str; 14] = [
    "Q4_K_M", "Q4_K_S", "Q4_0", "Q4_1", "Q5_K_M", "Q5_K_S", "Q5_0", "Q5_1", "Q6_K", "Q8_0", "BF16", "F16",
    "FP16", "F32",
];

/// Why no file could be chosen.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoChoice {
    /// There is none.
    Missing,
    /// There are several, and nothing tells which one is meant.
    Several(Vec<String>),
}

/// The models among `files`, each by its one file or by its first part.
pub(super) fn models(files: &[String]) -> impl Iterator<Item = &str> {
    let models = files.iter().map(String::as_str).filter(|file| {
        let name = file.rsplit('/').next().unwrap_or(file).to_lowercase();
        // What comes along with models: projectors of images, and what they were quantised by.
        has_extension(file, "gguf") && !name.starts_with("mmproj") && !name.contains("imatrix")
    });
    models.filter(|file| SplitName::parse(file).is_none_or(|split| split.number == 1))
}

/// All files of the model that `file` is, or is a part of.
pub(super) fn parts(file: &str) -> Vec<String> {
    SplitName::parse(file).map_or_else(|| vec![file.to_owned()], |split| split.parts().collect())
}

/// The quantisation in a file's name, as people write it: `Q4_K_M`.
pub(super) fn label(file: &str) -> String {
    let label = stem(file).rsplit(['-', '.', '/']).next();
    label.unwrap_or_default().to_uppercase()
}

/// The file that `tag` means; without a tag, the preferred one.
pub(super) fn choose<'a>(files: &'a [String], tag: Option<&str>) -> Result<&'a str, NoChoice> {
    let tag = tag.filter(|tag| !tag.eq_ignore_ascii_case("latest"));
    if let Some(tag) = tag {
        return one(models(files).filter(|file| is_of(file, tag)).collect());
    }
    for tag in PREFERRED {
        match one(models(files).filter(|file| is_of(file, tag)).collect()) {
            Err(NoChoice::Missing) => {}
            chosen => return chosen,
        }
    }
    one(models(files).collect())
}

/// Of several, the one in the outermost folder, if that leaves one.
fn one(mut found: Vec<&str>) -> Result<&str, NoChoice> {
    let depth = |file: &&str| file.matches('/').count();
    let least = found.iter().map(depth).min();
    found.retain(|file| Some(depth(file)) == least);
    if found.len() > 1 {
        // Publishers that quantise in a way of their own mark it so, beside the usual way.
        let usual: Vec<&str> = found
            .iter()
            .copied()
            .filter(|file| !file.to_uppercase().contains("UD-"))
            .collect();
        found = if usual.is_empty() { found } else { usual };
    }
    match found.as_slice() {
        [] => Err(NoChoice::Missing),
        [file] => Ok(file),
        several => Err(NoChoice::Several(
            several.iter().map(|file| (*file).to_owned()).collect(),
        )),
    }
}

/// Whether the file's name ends in the tag, or its folder is called so.
fn is_of(file: &str, tag: &str) -> bool {
    let (stem, tag) = (stem(file).to_lowercase(), tag.to_lowercase());
    // Within the name of a quantisation there are underscores too: K_M is no quantisation, and neither is 0.
    let whole = tag.starts_with(|first: char| first.is_alphabetic())
        && tag.contains(|any: char| any.is_ascii_digit());
    let at_end = stem.strip_suffix(&tag).is_some_and(|rest| {
        rest.is_empty() || rest.ends_with(['-', '.', '/']) || (whole && rest.ends_with('_'))
    });
    let mut folders = stem.rsplit('/').skip(1);
    at_end || folders.any(|folder| folder == tag)
}

/// The name without its ending and without the number of a part.
fn stem(file: &str) -> &str {
    match SplitName::parse(file) {
        Some(split) => split.stem,
        None => file.rsplit_once('.').map_or(file, |(stem, _)| stem),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_tag_means_the_file_whose_name_ends_in_it() {
        let files = files(&[
            "README.md",
            "Qwen3-0.6B-IQ4_XS.gguf",
            "Qwen3-0.6B-Q4_K_M.gguf",
            "Qwen3-0.6B-Q8_0.gguf",
            "Qwen3-0.6B-UD-Q4_K_XL.gguf",
            "Qwen3-0.6B-UD-Q8_0.gguf",
            "big/Qwen3-0.6B-F16-00001-of-00002.gguf",
            "big/Qwen3-0.6B-F16-00002-of-00002.gguf",
            "BF16/model.gguf",
            "mmproj-F32.gguf",
        ]);
        for (tag, expected) in [
            ("Q4_K_M", "Qwen3-0.6B-Q4_K_M.gguf"),
            ("q8_0", "Qwen3-0.6B-Q8_0.gguf"),
            ("Q4_K_XL", "Qwen3-0.6B-UD-Q4_K_XL.gguf"),
            ("UD-Q8_0", "Qwen3-0.6B-UD-Q8_0.gguf"),
            ("f16", "big/Qwen3-0.6B-F16-00001-of-00002.gguf"),
            ("bf16", "BF16/model.gguf"),
            ("latest", "Qwen3-0.6B-Q4_K_M.gguf"),
        ] {
            assert_eq!(choose(&files, Some(tag)), Ok(expected), "{tag}");
        }
        assert_eq!(choose(&files, None), Ok("Qwen3-0.6B-Q4_K_M.gguf"));
        for tag in ["Q4", "K_M", "F32", "Q2_K", "0", ""] {
            assert_eq!(choose(&files, Some(tag)), Err(NoChoice::Missing), "{tag}");
        }
        assert_eq!(
            parts("big/Qwen3-0.6B-F16-00001-of-00002.gguf"),
            [
                "big/Qwen3-0.6B-F16-00001-of-00002.gguf",
                "big/Qwen3-0.6B-F16-00002-of-00002.gguf"
            ]
        );
        assert_eq!(label("big/Qwen3-0.6B-F16-00001-of-00002.gguf"), "F16");
    }

    #[test]
    fn without_a_tag_the_only_file_or_the_usual_quantisation_is_meant() {
        assert_eq!(choose(&files(&["model.gguf"]), None), Ok("model.gguf"));
        assert_eq!(
            choose(&files(&["m_q5_0.gguf", "m_q8_0.gguf"]), None),
            Ok("m_q5_0.gguf")
        );
        assert_eq!(
            choose(&files(&["m.IQ2_M.gguf", "m.Q8_0.gguf", "m.F16.gguf"]), None),
            Ok("m.Q8_0.gguf")
        );
        let two = ["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"];
        assert_eq!(choose(&files(&two), None), Err(NoChoice::Several(files(&two))));
        assert_eq!(choose(&files(&["x.txt"]), None), Err(NoChoice::Missing));
    }
}
