//! Packs the kernels' sources, so that a new file needs no second entry.

#[allow(
    dead_code,
    unreachable_pub,
    reason = "a module of the crate, of which this needs a part"
)]
#[path = "src/bundle.rs"]
mod bundle;

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=kernels");
    println!("cargo::rerun-if-changed=../device/abi.h");
    println!("cargo::rerun-if-changed=src/bundle.rs");
    let root = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let root = Path::new(&root);
    let read = |path: &Path| std::fs::read(path).expect("a source can be read");
    let mut files = vec![("abi.h".to_owned(), read(&root.join("../device/abi.h")))];
    for (folder, prefix) in [("kernels", ""), ("kernels/args", "args/")] {
        for entry in std::fs::read_dir(root.join(folder)).expect("the folder is part of the crate") {
            let path = entry.expect("an entry can be read").path();
            let ending = path.extension().and_then(|ending| ending.to_str());
            if matches!(ending, Some("cu" | "cuh" | "h")) {
                let name = path
                    .file_name()
                    .and_then(|name| name.to_str())
                    .expect("names are ASCII");
                files.push((format!("{prefix}{name}"), read(&path)));
            }
        }
    }
    files.sort();
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    let bundle = bundle::write(&files).expect("memory can be written");
    std::fs::write(Path::new(&out).join("sources.zst"), bundle).expect("the build folder can be written");
}
