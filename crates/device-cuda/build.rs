//! Lists the kernels' sources, so that a new file needs no second entry.

use std::fmt::Write;
use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=kernels");
    println!("cargo::rerun-if-changed=../device/abi.h");
    let root = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let mut files: Vec<(String, String)> = vec![("abi.h".to_owned(), format!("{root}/../device/abi.h"))];
    for folder in ["kernels", "kernels/args"] {
        for entry in
            std::fs::read_dir(Path::new(&root).join(folder)).expect("the folder is part of the crate")
        {
            let path = entry.expect("an entry can be read").path();
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .expect("names are ASCII")
                .to_owned();
            let source = matches!(
                path.extension().and_then(|e| e.to_str()),
                Some("cu" | "cuh" | "h")
            );
            if source {
                let name = if folder == "kernels" {
                    name
                } else {
                    format!("args/{name}")
                };
                files.push((name, path.display().to_string()));
            }
        }
    }
    files.sort();
    let mut list = String::from("&[\n");
    for (name, path) in files {
        writeln!(list, "    ({name:?}, include_str!({path:?})),").expect("a string takes text");
    }
    list.push(']');
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    std::fs::write(Path::new(&out).join("sources.rs"), list).expect("the build folder can be written");
}
