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
            "barrier_wait(shared_address(&m.state_filled[chain]), stage.place.parity);\n        tile.load",
            "tile.load",
        ),
        // Rows of a state are elsewhere than where they are looked for.
        in_mix(
            "bulk_load(shared_address(m.state[pair])",
            "bulk_load(shared_address(m.state[pair ^ 1])",
        ),
        // What later steps need, but for the first entry.
        in_mix(
            "int e = first_left(p.row, span) + (WARPS",
            "int e = 1 + first_left(p.row, span) + (WARPS",
        ),
        // A fold that is not stored.
        in_mix(
            "if (base + CHUNK == row.state_end) keep(a.states.matrices, row.slot);",
            "",
        ),
        // A wait for room that is missing.
        in_mix(
            "barrier_wait(shared_address(&m.state_free[chain]), parity ^ 1);",
            "",
        ),
        // Weights are used before all warps have them.
        in_mix(
            "b.at, b.live);\n            workers_meet();\n            freed",
            "b.at, b.live);\n            freed",
        ),
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
