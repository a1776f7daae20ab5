//! Claims about files of packed weights.

use super::*;
use crate::weight::tests::{Stored, stored};
use crate::{Cpu, CpuOptions};
use paceline_device::Backend;

const KEY: PackedKey = [7; 32];

/// A stack of two types, some rows of a matrix, a conversion and a quantisation.
fn matrices() -> Vec<(Vec<Stored>, Option<DType>)> {
    vec![
        (
            vec![stored(DType::Q4K, 20, 512, 1), stored(DType::BF16, 7, 512, 2)],
            None,
        ),
        (vec![stored(DType::F32, 33, 45, 3)], Some(DType::BF16)),
        (vec![stored(DType::F32, 33, 64, 4)], Some(DType::Q4_1)),
    ]
}

fn parts(matrices: &[Stored]) -> Vec<WeightPart<'_>> {
    matrices.iter().map(part).collect()
}

/// A whole matrix, or some rows of one with 33.
fn part(matrix: &Stored) -> WeightPart<'_> {
    let mut part = matrix.part("layer.w");
    if matrix.rows == 33 {
        part.order = RowOrder::Picked(vec![3, 0, 32, 3]);
    }
    part
}

fn load(cpu: &Cpu) -> Vec<CpuWeight> {
    let weight = |(of, store_as): &(Vec<Stored>, _)| cpu.weight(&parts(of), *store_as).unwrap();
    matrices().iter().map(weight).collect()
}

/// A folder with a file of packed weights.
fn written() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new folder/model.pack");
    let writer = Arc::new(PackedWriter::create(&path, &KEY).unwrap());
    assert!(!path.exists());
    load(&Cpu::new(CpuOptions::default()).packing_to(Arc::clone(&writer)));
    let bytes = writer.finish().unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), bytes);
    (folder, path)
}

fn refusal(path: &Path, key: &PackedKey) -> String {
    PackedWeights::open(path, key).map_or_else(|error| error.to_string(), |_| "mapped".to_owned())
}

#[test]
fn mapped_weights_have_the_panels_of_packed_ones() {
    let (_folder, path) = written();
    let plain = load(&Cpu::new(CpuOptions::default()));
    let packed = Arc::new(PackedWeights::open(&path, &KEY).unwrap());
    let mapped = load(&Cpu::new(CpuOptions::default()).mapping(Arc::clone(&packed)));
    assert_eq!(packed.path(), path);
    assert_eq!(
        packed.bytes(),
        plain.iter().map(|weight| weight.bytes() as u64).sum::<u64>()
    );
    for (plain, mapped) in plain.iter().zip(&mapped) {
        assert!(mapped.is_mapped() && !plain.is_mapped());
        assert_eq!(
            (plain.outputs(), plain.inputs()),
            (mapped.outputs(), mapped.inputs())
        );
        let panels = |weight: &CpuWeight| weight.panel_bytes().map(<[u8]>::to_vec).collect::<Vec<_>>();
        assert!(panels(plain) == panels(mapped));
    }
}

#[test]
fn what_the_file_does_not_have_is_packed() {
    let (_folder, path) = written();
    let cpu = Cpu::new(CpuOptions::default()).mapping(Arc::new(PackedWeights::open(&path, &KEY).unwrap()));
    let matrix = stored(DType::F32, 33, 45, 3);
    let weight = |part: WeightPart<'_>, store_as| cpu.weight(&[part], store_as).unwrap().is_mapped();
    assert!(weight(part(&matrix), Some(DType::BF16)));
    assert!(!weight(part(&matrix), Some(DType::F32)));
    assert!(!weight(part(&matrix), None));
    let mut other = part(&matrix);
    other.order = RowOrder::Picked(vec![3, 0, 32, 4]);
    assert!(!weight(other, Some(DType::BF16)));
    assert!(!weight(matrix.part("layer.v"), Some(DType::BF16)));
}

#[test]
fn files_that_are_stale_cut_off_or_damaged_are_refused() {
    let (folder, path) = written();
    assert_eq!(refusal(&path, &KEY), "mapped");
    assert_eq!(
        refusal(&path, &[8; 32]),
        "it was made of other files, or in another type"
    );
    let whole = fs::read(&path).unwrap();
    let other = folder.path().join("other");
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        fs::write(&other, bytes).unwrap();
        refusal(&other, &KEY)
    };
    for length in [0, 1, 63] {
        assert_eq!(
            with(&|bytes| bytes.truncate(length)),
            "it is no file of packed weights"
        );
    }
    for length in [64, 1000, whole.len() - 1] {
        assert_eq!(with(&|bytes| bytes.truncate(length)), "it is cut off");
    }
    assert_eq!(with(&|bytes| bytes.push(0)), "it is cut off");
    assert_eq!(
        with(&|bytes| bytes[8] += 1),
        "another version of Paceline has written it"
    );
    // Every byte of the index's place and of the first entry but for its digest, and a bit here and there of the panels.
    let index = number(&whole, 24).unwrap() as usize;
    let panels = (64..index).step_by(997);
    for at in (24..32).chain(index + 32..index + 56).chain(panels) {
        let damaged = with(&|bytes| bytes[at] ^= 0x10);
        assert_eq!(damaged, "it is damaged", "byte {at}");
    }
    // A weight under another digest is not found, and packed.
    with(&|bytes| bytes[index] ^= 0x10);
    let packed = PackedWeights::open(&other, &KEY).unwrap();
    let weights = load(&Cpu::new(CpuOptions::default()).mapping(Arc::new(packed)));
    let mapped: Vec<bool> = weights.iter().map(CpuWeight::is_mapped).collect();
    assert_eq!(mapped, [false, true, true]);
    assert!(refusal(&folder.path().join("missing"), &KEY).contains("No such file"));
}

#[test]
fn a_file_that_is_not_finished_leaves_nothing_and_keeps_what_was_there() {
    let (_folder, path) = written();
    let before = fs::read(&path).unwrap();
    let writer = Arc::new(PackedWriter::create(&path, &[9; 32]).unwrap());
    load(&Cpu::new(CpuOptions::default()).packing_to(Arc::clone(&writer)));
    drop(writer);
    assert!(fs::read(&path).unwrap() == before);
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
}

#[test]
fn the_number_of_the_layouts_stands_for_these_panels() {
    // If this fails, panels have changed: raise `LAYOUT`, then write down the new digest.
    let mut digest = Sha256::new();
    for dtype in DType::ALL {
        let weight = stored(dtype, 19, 512, 1).pack(None);
        weight.panel_bytes().for_each(|panels| digest.update(panels));
    }
    let digest: [u8; 32] = digest.finalize().into();
    let first = u64::from_be_bytes(digest[..8].try_into().unwrap());
    assert_eq!(
        (LAYOUT, format!("{first:016x}").as_str()),
        (3, "6cfe9a24b236c51b")
    );
}
