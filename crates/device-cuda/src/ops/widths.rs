//! Kernels of products by rows and kind of weight, and the ring that each has in shared memory. `kernels/stream.cu`, `wide.cu` and
//! `plain.cu` name the same stages.

use super::product::{StreamArgs, WideArgs};
use crate::arguments::Arguments;
use crate::launch::{Grid, Kernel};
use crate::weight::{Kind, TILE};
use paceline_device::SCALE_BLOCK;

/// How high a strip of inputs is at most.
pub(super) const MOST_HEIGHT: usize = 128;

/// Kernels for up to this many rows of tokens.
pub(super) struct Width<A: 'static> {
    pub(super) rows: usize,
    /// bf16, f16, and 8-bit floats.
    kernels: [Kernel<A>; 3],
    tiled: Ring,
    scaled: Ring,
}

/// What a thread block of a kernel has.
#[derive(Clone, Copy)]
struct Ring {
    /// Rows: fewer than the width where registers are short, and thread blocks for the others.
    rows: usize,
    threads: u32,
    stages: usize,
    /// Bytes kept beside the ring, per row.
    beside: usize,
}

impl Ring {
    const fn new((rows, threads, stages): (usize, u32, usize), beside: usize) -> Self {
        Self {
            rows,
            threads,
            stages,
            beside,
        }
    }

    /// Bytes of shared memory: stages with a block of the weight and its inputs, aligned to a kilobyte, and what is beside.
    fn shared(self, kind: Kind) -> usize {
        let weights = match kind {
            Kind::F8 => TILE * (SCALE_BLOCK + 4),
            kind => TILE * kind.block() * 2,
        };
        let stage = weights.next_multiple_of(1024) + self.rows * kind.block() * 2;
        1024 + self.stages * stage + self.rows * self.beside
    }
}

impl<A: Arguments> Width<A> {
    /// How high the strips of its inputs are: the same for all kernels of many rows, so that whoever makes inputs need not
    /// know which one comes.
    pub(super) fn height(&self) -> usize {
        self.rows.min(MOST_HEIGHT)
    }

    pub(super) fn kernel(&self, kind: Kind) -> &Kernel<A> {
        match kind {
            Kind::F8 => &self.kernels[2],
            kind => &self.kernels[usize::from(kind == Kind::F16)],
        }
    }

    fn ring(&self, kind: Kind) -> Ring {
        match kind {
            Kind::F8 => self.scaled,
            _ => self.tiled,
        }
    }

    /// Strips of rows that are for different thread blocks.
    pub(super) fn strips(&self, kind: Kind) -> u32 {
        (self.rows / self.ring(kind).rows) as u32
    }

    /// So many thread blocks of a kind's kernel.
    pub(super) fn grid(&self, kind: Kind, blocks: [u32; 3]) -> Grid {
        let ring = self.ring(kind);
        Grid::of(blocks, ring.threads).shared(ring.shared(kind) as u32)
    }
}

/// Of a file: rows, then threads and stages, and bytes beside the ring per row, if any; for 8-bit floats rows of a thread
/// block, threads, stages; then what these keep beside the ring, per row.
macro_rules! widths {
    ($file:literal, $name:literal, $($rows:literal: $threads:literal, $stages:literal $(+ $staged:ident)?; $own:literal: $scaled_threads:literal, $scaled_stages:literal;)* beside $beside:expr) => {
        [$(Width {
            rows: $rows,
            kernels: [
                Kernel::new($file, concat!($name, "_bf16_", $rows)),
                Kernel::new($file, concat!($name, "_f16_", $rows)),
                Kernel::new($file, concat!($name, "_f8_", $own)),
            ],
            tiled: Ring::new(($rows, $threads, $stages), 0 $(+ $staged)?),
            scaled: Ring::new(($own, $scaled_threads, $scaled_stages), $beside),
        },)*]
    };
}

/// Bytes of a row of results on their way out, as `kernels/staged.cuh` has it.
const STAGED_ROW: usize = TILE * 4 + 16;
/// Those of a rounded row of results of gate and up, as `kernels/whole.cuh` has it.
const STAGED_ROUNDED: usize = TILE;

static STREAM: [Width<StreamArgs>; 6] = widths!("stream", "stream",
    8: 320, 9; 8: 320, 8;
    16: 320, 8; 16: 320, 7;
    32: 320, 8; 32: 320, 6;
    64: 320, 6; 64: 320, 4;
    128: 320, 6; 128: 384, 4;
    256: 320, 4; 128: 384, 4;
    beside 0
);
static WIDE: [Width<WideArgs>; 4] = widths!("wide", "wide",
    8: 384, 10; 8: 384, 8;
    16: 384, 10; 16: 384, 8;
    32: 384, 8; 32: 384, 7;
    128: 384, 4 + STAGED_ROW; 128: 384, 3;
    beside TILE * 4
);
static PIECES: [Width<StreamArgs>; 4] = widths!("plain", "pieces",
    8: 256, 4; 8: 256, 4;
    16: 256, 4; 16: 256, 4;
    32: 256, 4; 32: 256, 3;
    64: 256, 4; 64: 256, 2;
    beside 0
);
static WHOLE: [Width<WideArgs>; 1] = widths!("wide", "wide",
    256: 384, 4 + STAGED_ROUNDED; 128: 384, 3;
    beside TILE * 4
);
static TOTALS: [Width<WideArgs>; 4] = widths!("plain", "totals",
    8: 256, 4; 8: 256, 4;
    16: 256, 4; 16: 256, 4;
    32: 256, 4; 32: 256, 3;
    64: 256, 4; 64: 256, 2;
    beside 0
);

/// Kernels of few rows, which leave partial sums, on a GPU with wgmma or without.
pub(super) fn few(wgmma: bool) -> &'static [Width<StreamArgs>] {
    if wgmma { &STREAM } else { &PIECES }
}

/// Kernels of many rows, which leave results.
pub(super) fn many(wgmma: bool) -> &'static [Width<WideArgs>; 4] {
    if wgmma { &WIDE } else { &TOTALS }
}

/// The one of most rows.
pub(super) fn most(many: &'static [Width<WideArgs>; 4]) -> &'static Width<WideArgs> {
    &many[3]
}

/// Kernels of many rows for tiles whose sums are not cut, of weights of 16 bits.
pub(super) fn many_whole(wgmma: bool) -> &'static [Width<WideArgs>] {
    if wgmma { &WHOLE } else { &[] }
}

/// How high the strips of a product's inputs are, whatever the weight.
pub(super) fn input_height(rows: usize, wgmma: bool) -> usize {
    match PIECES.iter().find(|width| rows <= width.rows) {
        Some(width) => width.rows,
        None if wgmma => MOST_HEIGHT,
        None => most(&TOTALS).rows,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;
    use std::path::Path;

    /// Calls `see` with the name, the ring and the kind of every kernel.
    fn each<A: Arguments>(widths: &[Width<A>], see: &mut impl FnMut(&str, Ring, Kind)) {
        for width in widths {
            for kind in [Kind::Bf16, Kind::F16, Kind::F8] {
                see(width.kernel(kind).entry, width.ring(kind), kind);
            }
        }
    }

    fn each_kernel(mut see: impl FnMut(&str, Ring, Kind)) {
        for wgmma in [true, false] {
            each(few(wgmma), &mut see);
            each(many(wgmma), &mut see);
            each(many_whole(wgmma), &mut see);
        }
    }

    /// A smaller ring would show as nothing but time. `PACELINE_BLESS=1` writes the table anew.
    #[test]
    fn rings_are_those_of_the_table() {
        let mut found = String::new();
        each_kernel(|name, ring, kind| {
            let line = format!(
                "{name}: {} threads, {} stages, {} bytes\n",
                ring.threads,
                ring.stages,
                ring.shared(kind)
            );
            if !found.contains(&line) {
                found += &line;
            }
        });
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/rings.txt");
        if std::env::var_os("PACELINE_BLESS").is_some() {
            std::fs::write(&path, &found).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap();
        assert_eq!(found, expected, "PACELINE_BLESS=1 makes kernels/rings.txt anew");
    }

    /// A kernel with more stages than it has memory for would write past it.
    #[test]
    fn kernels_have_the_stages_that_they_have_memory_for() {
        let sources = concat!(
            include_str!("../../kernels/stream.cu"),
            include_str!("../../kernels/wide.cu"),
            include_str!("../../kernels/plain.cu")
        );
        let mut calls: Vec<&str> = sources
            .lines()
            .filter(|line| line.starts_with("TILED(") || line.starts_with("SCALED("))
            .collect();
        each_kernel(|name, ring, kind| {
            let mut call = String::from(if kind == Kind::F8 { "SCALED(" } else { "TILED(" });
            let group = name.split('_').next().unwrap().to_uppercase();
            write!(call, "{group}, {}, {}, {})", ring.rows, ring.stages, ring.threads).unwrap();
            assert!(sources.contains(&call), "no {call} for {name}");
            calls.retain(|left| *left != call);
        });
        assert_eq!(
            calls, [""; 0],
            "kernels that nothing launches, or with another ring"
        );
    }
}
