//! Where unsafe code may be, and that it says why it is sound.

use super::rust::RustFile;
use super::{Finding, Tree};

/// What a justification starts with.
const MARK: &str = "SAFETY:";

/// Unsafe code outside the device crates, and unsafe code without a justification.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.rust().iter().flat_map(check_file).collect()
}

fn check_file(file: &RustFile) -> Vec<Finding> {
    let mut found = Vec::new();
    for index in (0..file.len()).filter(|index| file.word(*index) == "unsafe") {
        let line = file.line(index);
        if !is_device_crate(&file.path) {
            let message = "unsafe code belongs in the device crates; wrap it there in a safe function";
            found.push(Finding::new(&file.path, line, message));
        } else if matches!(file.word(index + 1), "{" | "impl") && !is_justified(file, index) {
            let message = "put a comment `// SAFETY: ...` above it that says why this is sound";
            found.push(Finding::new(&file.path, line, message));
        }
    }
    found
}

/// `crates/device` and the backends, `crates/device-*`.
fn is_device_crate(path: &str) -> bool {
    path.starts_with("crates/device/") || path.starts_with("crates/device-")
}

/// Whether a justification stands within the statement, before the unsafe code, or right above the statement.
fn is_justified(file: &RustFile, index: usize) -> bool {
    let mut first = index;
    while first > 0 && !matches!(file.word(first - 1), ";" | "{" | "}") {
        first -= 1;
    }
    let start = file.offset(first);
    if file.text[start..file.offset(index)].contains(MARK) {
        return true;
    }
    let above = file.text[..start].lines().rev();
    // The last of these lines is the one the statement starts on, up to where it starts.
    let own = usize::from(!file.text[..start].ends_with('\n'));
    above
        .skip(own)
        .map(str::trim_start)
        .take_while(|line| line.starts_with("//"))
        .any(|line| line.contains(MARK))
}

#[cfg(test)]
mod tests {
    use super::super::tests::lines;
    use super::*;

    fn found(text: &str) -> Vec<usize> {
        lines(&check(&Tree::of(&[("crates/device-cpu/src/a.rs", text)])))
    }

    #[test]
    fn unsafe_code_outside_the_device_crates_is_found() {
        let text = "//! A.\nfn f() {\n    // SAFETY: said.\n    unsafe { g() }\n}\n";
        for path in [
            "crates/models/src/a.rs",
            "crates/runner/tests/a.rs",
            "xtask/src/a.rs",
        ] {
            assert_eq!(lines(&check(&Tree::of(&[(path, text)]))), [4], "{path}");
        }
        for path in ["crates/device/src/a.rs", "crates/device-cuda/src/a.rs"] {
            assert!(check(&Tree::of(&[(path, text)])).is_empty(), "{path}");
        }
    }

    #[test]
    fn the_word_in_comments_strings_and_names_is_no_code() {
        let text = "// unsafe\nfn f() { g(\"unsafe\", unsafe_code) }\n";
        assert!(check(&Tree::of(&[("crates/text/src/a.rs", text)])).is_empty());
    }

    #[test]
    fn blocks_and_impls_need_a_justification() {
        assert_eq!(found("fn f() {\n    unsafe { g() }\n}\n"), [2]);
        assert_eq!(found("unsafe impl Send for A {}\n"), [1]);
        assert_eq!(found("// It is fine.\nunsafe impl Send for A {}\n"), [2]);
    }

    #[test]
    fn a_justification_may_stand_above_the_statement_or_in_it() {
        let justified = [
            "// SAFETY: said,\n// at length.\nunsafe impl Send for A {}\n",
            "// SAFETY: said.\n#[cfg(unix)]\nunsafe impl Send for A {}\n",
            "fn f() {\n    // SAFETY: said.\n    let x = g(|y| unsafe {\n        h(y)\n    });\n}\n",
            "fn f() {\n    // SAFETY: said.\n    let x = g(\n        1,\n        unsafe { h() },\n    );\n}\n",
            "fn f() {\n    g(\n        1,\n        // SAFETY: said.\n        unsafe { h() },\n    );\n}\n",
        ];
        for text in justified {
            assert!(found(text).is_empty(), "{text}");
        }
    }

    #[test]
    fn a_justification_covers_one_statement() {
        let text = "fn f() {\n    // SAFETY: said.\n    unsafe { g() };\n    unsafe { g() };\n}\n";
        assert_eq!(found(text), [4]);
    }

    #[test]
    fn unsafe_functions_state_conditions_not_reasons() {
        assert!(found("unsafe fn f() {}\nunsafe trait A {}\n").is_empty());
    }
}
