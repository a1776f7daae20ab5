//! Lists the kernels' sources, so that a new file needs no second entry.

use std::fmt::Write;
use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=kernels");
    println!("cargo::rerun-if-changed=../device/abi.h");
    let root = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let root = Path::new(&root);
    let mut files = vec![("abi.h".to_owned(), root.join("../device/abi.h"))];
    for (folder, prefix) in [("kernels", ""), ("kernels/args", "args/")] {
        for entry in std::fs::read_dir(root.join(folder)).expect("the folder is part of the crate") {
            let path = entry.expect("an entry can be read").path();
            let ending = path.extension().and_then(|ending| ending.to_str());
            if matches!(ending, Some("cu" | "cuh" | "h")) {
                let name = path
                    .file_name()
                    .and_then(|name| name.to_str())
                    .expect("names are ASCII");
                files.push((format!("{prefix}{name}"), path));
            }
        }
    }
    files.sort();
    let mut list = String::from("&[\n");
    for (name, path) in files {
        let path = path.to_str().expect("the path of the sources is text");
        writeln!(list, "({name:?}, include_str!({path:?})),").expect("memory can be written");
    }
    list.push(']');
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    std::fs::write(Path::new(&out).join("sources.rs"), list).expect("the build folder can be written");
}
