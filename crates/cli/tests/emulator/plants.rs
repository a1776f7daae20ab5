//! Faults in kernels, which the judge has to find.

use super::common::{stderr, stdout};
use super::gpu::{Edit, Emulator, is_long};

/// What the judge says of a kernel that was changed, which must be a miss.
fn is_found(edit: &Edit, only: &str, case: &str) {
    let Some(emulator) = Emulator::edited(edit) else {
        return;
    };
    let output = emulator.selftest(only).args(["--case", case]).output().unwrap();
    let (text, what) = (stdout(&output), (edit.name, edit.from));
    assert_eq!(
        output.status.code(),
        Some(1),
        "{what:?} was not found\n{text}{}",
        stderr(&output)
    );
    assert!(text.contains("MISS "), "{what:?}\n{text}{}", stderr(&output));
}

fn in_mix(from: &'static str, to: &'static str) -> Edit {
    Edit {
        name: "mix.cu",
        from,
        to,
        kernels: "mix",
    }
}

/// Each is a line of a kernel, wrong or left out.
fn recurrent() -> [Edit; 6] {
    [
        // A wait for copies that is missing.
        in_mix(
            "wait_for(m.state_filled[chain], b.parity);\n        tile.load(tile_at(m, chain * STATE_TILE_ROWS), C);",
            "tile.load(tile_at(m, chain * STATE_TILE_ROWS), C);",
        ),
        // Another swizzle where keys are written than where they are read.
        in_mix(
            "copy_async(&m.keys[own][e][c ^ e % 4 * 8]",
            "copy_async(&m.keys[own][e][c ^ e % 8 / 2 * 8]",
        ),
        // What later steps need, but for the first entry.
        in_mix("if (e < b.left) return;", "if (e <= b.left) return;"),
        // A fold that is not stored.
        in_mix("if (b.stored) keep(s.matrices, b.slot);", ""),
        // A wait for room that is missing.
        in_mix("wait_for(m.sums_free, parity ^ 1);", ""),
        // A barrier that nobody is told of.
        in_mix("done_with(m.weighed[turn.stage]);", ""),
    ]
}

#[test]
fn faults_in_recurrent_layers_are_found() {
    let edits = recurrent();
    let most = if is_long() { edits.len() } else { 3 };
    edits[..most]
        .iter()
        .for_each(|edit| is_found(edit, "mix_delta", "up to 15 "));
}

#[test]
fn faults_in_products_are_found() {
    if !is_long() {
        return;
    }
    let ring = Edit {
        name: "stream.cu",
        from: "        barrier_wait(ring.empty + stage * 8, parity);\n        ring.weights(a, unit, stage);",
        to: "        ring.weights(a, unit, stage);",
        kernels: "stream",
    };
    is_found(&ring, "linear bf16", "");
}
