//! Causal attention over blocks, with an online softmax.
//!
//! Positions are cut into sections of [`SECTION`], counted from position 0 whatever the block size, and sections into
//! tiles of [`TILE`]. Per tile a row (one query head of one token) computes its scores, raises its running maximum,
//! rescales what it has and adds the tile's values in order of position. Every section starts anew, and sections are
//! merged in order. So a row's arithmetic depends on its position alone: it does not matter which rows share a
//! piece, nor whether the sections of a row are computed by one piece or by several.
//!
//! A piece is a few consecutive tokens of one request and the query heads of one key-value head: a tile's keys and
//! values are loaded once for several of its rows. Where there are too few pieces for the threads, as when one long
//! context is decoded, each section is a piece of its own.

mod tile;
mod work;

use super::vector::{load_part, store_part};
use super::{Step, pieces};
use crate::kv::CpuKvCache;
use crate::pool::Pool;
use crate::simd::{Kernel, LANES, PANEL, Simd};
use crate::storage::{In, Out};
use std::cell::RefCell;
use std::ops::Range;
use tile::{Tile, Wide};
use work::Work;

/// Positions of a tile.
pub(super) const TILE: usize = 32;

/// Positions of a section, whole tiles.
const SECTION: usize = 512;

/// Rows of a piece: their running outputs fit the first-level cache beside a tile.
const ROWS: usize = 32;

/// Views of [`attention`].
#[derive(Clone, Copy)]
pub(crate) struct Attend<'a> {
    pub(crate) q: In<'a>,
    pub(crate) gate: Option<In<'a>>,
    pub(crate) cache: &'a CpuKvCache,
    pub(crate) scale: f32,
    pub(crate) out: Out<'a>,
    pub(crate) step: Step<'a>,
}

/// Room for what sections leave: running outputs, and maxima with sums.
#[derive(Default)]
struct Scratch {
    outputs: Vec<f32>,
    running: Vec<Running>,
}

thread_local! {
    /// Of the thread that runs a piece with all of its sections.
    static OWN: RefCell<Scratch> = RefCell::default();
    /// Of the stream's thread, for sections that are pieces of their own.
    static SHARED: RefCell<Scratch> = RefCell::default();
    /// Of the thread that runs a section.
    static WIDE: RefCell<Wide> = RefCell::default();
}

/// Attention of every live token over its request's blocks.
pub(crate) fn attention(pool: &Pool, args: &Attend<'_>) {
    let work = Work::new(args);
    let positions: usize = args.step.tokens[..args.q.rows]
        .iter()
        .map(|token| token.position as usize + 1)
        .sum();
    let total_ns = positions.saturating_mul(args.q.columns) / 16;
    if work.is_split(pool.threads()) {
        let mut scratch = SHARED.take();
        by_section(pool, &work, total_ns, &mut scratch);
        SHARED.set(scratch);
    } else {
        pieces(pool, work.pieces(), total_ns, |index| {
            let mut scratch = OWN.take();
            whole(pool, &work.piece(index), &mut scratch);
            OWN.set(scratch);
        });
    }
}

/// All sections of a piece, and its rows.
fn whole(pool: &Pool, piece: &Piece<'_>, scratch: &mut Scratch) {
    let rows = piece.rows();
    let left = scratch.places(piece.sections() * rows, piece.width());
    for section in 0..piece.sections() {
        pool.instructions().run(Section {
            piece,
            number: section,
            left: left.from(section * rows),
        });
    }
    pool.instructions().run(Merge { piece, left, rows });
}

/// Every section as a piece, then the rows of all.
fn by_section(pool: &Pool, work: &Work<'_>, total_ns: usize, scratch: &mut Scratch) {
    let width = work.piece(0).width();
    let per_piece = work.sections * work.rows;
    let left = scratch.places(work.pieces() * per_piece, width);
    pieces(pool, work.pieces() * work.sections, total_ns, |index| {
        let (index, section) = (index % work.pieces(), index / work.pieces());
        let piece = &work.piece(index);
        if section < piece.sections() {
            pool.instructions().run(Section {
                piece,
                number: section,
                left: left.from(index * per_piece + section * work.rows),
            });
        }
    });
    let merge_ns = work.pieces() * per_piece * width / 8;
    pieces(pool, work.pieces(), merge_ns, |index| {
        pool.instructions().run(Merge {
            piece: &work.piece(index),
            left: left.from(index * per_piece),
            rows: work.rows,
        });
    });
}

/// Some rows: query heads of one key-value head, for consecutive tokens of one request.
struct Piece<'a> {
    args: &'a Attend<'a>,
    tokens: Range<usize>,
    kv_head: usize,
    heads: Range<usize>,
}

/// One section of a piece, which leaves its results for [`Merge`].
struct Section<'a> {
    piece: &'a Piece<'a>,
    number: usize,
    left: Places,
}

/// The results of a piece, from what its sections have left, `rows` places each.
struct Merge<'a> {
    piece: &'a Piece<'a>,
    left: Places,
    rows: usize,
}

/// Running softmax of one row.
#[derive(Clone, Copy)]
struct Running {
    max: f32,
    sum: f32,
}

impl Running {
    const NONE: Self = Self {
        max: f32::NEG_INFINITY,
        sum: 0.0,
    };
}

/// Places for the results of rows, one after the other, `width` numbers each.
#[derive(Clone, Copy)]
struct Places {
    outputs: *mut f32,
    running: *mut Running,
    width: usize,
}

// SAFETY: pieces write disjoint places, and others read them only in a later job.
unsafe impl Send for Places {}
// SAFETY: as above.
unsafe impl Sync for Places {}

impl Scratch {
    fn places(&mut self, rows: usize, width: usize) -> Places {
        self.outputs.resize(self.outputs.len().max(rows * width), 0.0);
        self.running.resize(self.running.len().max(rows), Running::NONE);
        Places {
            outputs: self.outputs.as_mut_ptr(),
            running: self.running.as_mut_ptr(),
            width,
        }
    }
}

impl Places {
    /// The places from number `first` on.
    fn from(self, first: usize) -> Self {
        Self {
            outputs: self.outputs.wrapping_add(first * self.width),
            running: self.running.wrapping_add(first),
            width: self.width,
        }
    }
}

/// What the tiles of a section need to know of its rows.
struct Rows<'a> {
    queries: [&'a [f32]; ROWS],
    /// Positions that each sees.
    seen: [usize; ROWS],
    running: [Running; ROWS],
    count: usize,
}

impl Kernel for Section<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { piece, number, left } = self;
        let step = piece.args.step;
        let blocks = step.blocks(step.tokens[piece.tokens.start].request as usize);
        let mut rows = piece.queries();
        // SAFETY: this section's places have room for the rows of the piece, which alone uses them.
        let (outputs, running) = unsafe {
            (
                std::slice::from_raw_parts_mut(left.outputs, rows.count * left.width),
                std::slice::from_raw_parts_mut(left.running, rows.count),
            )
        };
        outputs.fill(0.0);
        let mut wide = WIDE.take();
        wide.fit(piece.args.cache.shape().head_dim);
        let end = piece.end().min((number + 1) * SECTION);
        let cache = piece.args.cache;
        let at = (blocks, piece.kv_head);
        let in_place = cache.is_in_place();
        let mut ahead = None;
        for start in (number * SECTION..end).step_by(TILE) {
            let here = start..end.min(start + TILE);
            let next = here.end..end.min(here.end + TILE);
            let tile = match ahead.take() {
                Some(tile) => tile,
                // SAFETY: blocks are only read by this operation, and a tile is gone before the next one is copied.
                None => unsafe { Tile::find(s, cache, at, here, &mut wide) },
            };
            if in_place && !next.is_empty() {
                // SAFETY: as above; nothing is copied.
                ahead = Some(unsafe { Tile::find(s, cache, at, next, &mut wide) });
            } else {
                Tile::ask_for(s, cache, at, next);
            }
            // SAFETY: the tile is there, and so is a place for every row.
            unsafe { piece.add_tile(s, (&tile, ahead.as_ref()), start, (&mut rows, left)) };
        }
        WIDE.set(wide);
        running.copy_from_slice(&rows.running[..rows.count]);
    }
}

impl Kernel for Merge<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let head_dim = self.piece.args.cache.shape().head_dim;
        for row in 0..self.piece.rows() {
            let mut total = Running::NONE;
            for section in 0..self.piece.sections() {
                let place = self.left.from(section * self.rows + row);
                // SAFETY: written by an earlier job, or by this piece; only read here.
                let (running, added) = unsafe {
                    (
                        *place.running,
                        std::slice::from_raw_parts(place.outputs, head_dim),
                    )
                };
                if section == 0 {
                    self.piece.output(row).copy_from_slice(added);
                    total = running;
                } else if running.sum > 0.0 {
                    self.piece.merge(s, row, &mut total, (running, added));
                }
            }
            self.piece.finish(s, row, total.sum);
        }
    }
}

impl<'a> Piece<'a> {
    fn rows(&self) -> usize {
        self.tokens.len() * self.heads.len()
    }

    /// Numbers of a row's running output: whole panels.
    fn width(&self) -> usize {
        self.args.cache.shape().head_dim.next_multiple_of(PANEL)
    }

    /// Positions of the piece's longest context.
    fn end(&self) -> usize {
        self.args.step.tokens[self.tokens.end - 1].position as usize + 1
    }

    fn sections(&self) -> usize {
        self.end().div_ceil(SECTION)
    }

    /// Columns of a row's head within its token's row.
    fn columns(&self, row: usize) -> Range<usize> {
        let head_dim = self.args.cache.shape().head_dim;
        let head = self.heads.start + row % self.heads.len();
        head * head_dim..(head + 1) * head_dim
    }

    fn token(&self, row: usize) -> usize {
        self.tokens.start + row / self.heads.len()
    }

    #[expect(clippy::mut_from_ref, reason = "exclusive because pieces are disjoint")]
    fn output(&self, row: usize) -> &mut [f32] {
        // SAFETY: these heads of these tokens belong to this piece, which uses one row at a time.
        unsafe { self.args.out.part(self.token(row), self.columns(row)) }
    }

    fn queries(&self) -> Rows<'a> {
        let mut rows = Rows {
            queries: [&[]; ROWS],
            seen: [0; ROWS],
            running: [Running::NONE; ROWS],
            count: self.rows(),
        };
        for row in 0..rows.count {
            let token = self.token(row);
            rows.queries[row] = &self.args.q.row(token)[self.columns(row)];
            rows.seen[row] = self.args.step.tokens[token].position as usize + 1;
        }
        rows
    }

    /// Adds a tile, whose first position is `start`, to all rows that see it. Rows that see as much of it as their
    /// neighbours share its loads.
    ///
    /// # Safety
    /// The tile is still there and has the positions that rows see of it; there is a place for every row.
    #[inline(always)]
    unsafe fn add_tile<S: Simd>(
        &self,
        s: S,
        (tile, mut ahead): (&Tile, Option<&Tile>),
        start: usize,
        (rows, left): (&mut Rows<'_>, Places),
    ) {
        let most = if S::PANEL_REGISTERS >= 32 { 4 } else { 2 };
        let mut row = 0;
        while row < rows.count {
            let seen = rows.seen[row].saturating_sub(start).min(TILE);
            let mut alike = 1;
            while alike < most
                && row + alike < rows.count
                && rows.seen[row + alike].saturating_sub(start).min(TILE) == seen
            {
                alike += 1;
            }
            if seen > 0 {
                let (place, to) = ((row, alike, seen), (&mut *rows, left));
                // SAFETY: forwarded.
                unsafe {
                    match ahead.take() {
                        Some(next) => self.add_to_alike::<S, true>(s, (tile, next), place, to),
                        None => self.add_to_alike::<S, false>(s, (tile, tile), place, to),
                    }
                }
            }
            row += alike;
        }
    }

    /// Adds the first `seen` positions of a tile to `alike` rows from number `first` on.
    ///
    /// # Safety
    /// As [`add_tile`](Self::add_tile).
    #[inline(always)]
    unsafe fn add_to_alike<S: Simd, const ASK: bool>(
        &self,
        s: S,
        tiles: (&Tile, &Tile),
        (first, alike, seen): (usize, usize, usize),
        to: (&mut Rows<'_>, Places),
    ) {
        // SAFETY: forwarded.
        unsafe {
            match alike {
                4 => self.add_to_rows::<S, 4, ASK>(s, tiles, (first, seen), to),
                3 => self.add_to_rows::<S, 3, ASK>(s, tiles, (first, seen), to),
                2 => self.add_to_rows::<S, 2, ASK>(s, tiles, (first, seen), to),
                _ => self.add_to_rows::<S, 1, ASK>(s, tiles, (first, seen), to),
            }
        }
    }

    /// Adds the first `seen` positions of a tile to `R` rows.
    ///
    /// # Safety
    /// As [`add_tile`](Self::add_tile).
    #[inline(always)]
    unsafe fn add_to_rows<S: Simd, const R: usize, const ASK: bool>(
        &self,
        s: S,
        (tile, next): (&Tile, &Tile),
        (first, seen): (usize, usize),
        (rows, left): (&mut Rows<'_>, Places),
    ) {
        let mut queries = [std::ptr::null(); R];
        for r in 0..R {
            queries[r] = rows.queries[first + r].as_ptr();
        }
        // SAFETY: forwarded; a query has as many numbers as a key.
        let mut weights = unsafe { tile.scores::<S, R, ASK>(s, (queries, rows.queries[first].len()), next) };
        let mut rescale = [0.0; R];
        let mut outputs = [std::ptr::null_mut(); R];
        for r in 0..R {
            weights[r][seen..].fill(f32::NEG_INFINITY);
            rescale[r] = self.softmax(s, &mut weights[r], &mut rows.running[first + r]);
            outputs[r] = left.from(first + r).outputs;
        }
        // SAFETY: forwarded; a place and a value have these panels.
        unsafe {
            let mut at = 0;
            if S::PANEL_REGISTERS >= 32 {
                while at + 4 * PANEL <= left.width {
                    tile.accumulate::<S, R, 4, ASK>(s, (&weights, seen), rescale, (outputs, at), next);
                    at += 4 * PANEL;
                }
            }
            while at + 2 * PANEL <= left.width {
                tile.accumulate::<S, R, 2, ASK>(s, (&weights, seen), rescale, (outputs, at), next);
                at += 2 * PANEL;
            }
            if at < left.width {
                tile.accumulate::<S, R, 1, ASK>(s, (&weights, seen), rescale, (outputs, at), next);
            }
        }
    }

    /// Turns scores into weights and returns what the running output is to be multiplied with.
    #[inline(always)]
    fn softmax<S: Simd>(&self, s: S, weights: &mut [f32; TILE], running: &mut Running) -> f32 {
        let scale = s.splat(self.args.scale);
        let mut best = s.splat(running.max);
        let (lanes, _) = weights.as_chunks_mut::<LANES>();
        for lane in lanes.iter_mut() {
            let score = s.mul(s.load(lane), scale);
            s.store(score, lane);
            best = s.max(score, best);
        }
        let max = s.largest(best);
        let rescale = s.largest(s.exp(s.splat(running.max - max)));
        let mut sum = s.splat(0.0);
        for lane in lanes.iter_mut() {
            let weight = s.exp(s.sub(s.load(lane), s.splat(max)));
            s.store(weight, lane);
            sum = s.add(sum, weight);
        }
        running.sum = running.sum.mul_add(rescale, s.sum(sum));
        running.max = max;
        rescale
    }

    /// Adds what a later section has left to a row's output.
    #[inline(always)]
    fn merge<S: Simd>(&self, s: S, row: usize, total: &mut Running, (running, added): (Running, &[f32])) {
        let max = if running.max > total.max {
            running.max
        } else {
            total.max
        };
        let (old, new) = (s.exp(s.splat(total.max - max)), s.exp(s.splat(running.max - max)));
        for (out, added) in self.output(row).chunks_mut(LANES).zip(added.chunks(LANES)) {
            let scaled = s.mul(load_part(s, out), old);
            store_part(s, s.mul_add(load_part(s, added), new, scaled), out);
        }
        let (old, new) = (s.largest(old), s.largest(new));
        *total = Running {
            max,
            sum: total.sum.mul_add(old, running.sum * new),
        };
    }

    /// Divides by the sum of weights and applies the gate.
    #[inline(always)]
    fn finish<S: Simd>(&self, s: S, row: usize, sum: f32) {
        let gate = self
            .args
            .gate
            .map(|gate| &gate.row(self.token(row))[self.columns(row)]);
        let factor = s.splat(1.0 / sum);
        for (chunk, out) in self.output(row).chunks_mut(LANES).enumerate() {
            let mut value = s.mul(load_part(s, out), factor);
            if let Some(gate) = gate {
                value = s.mul(value, s.sigmoid(load_part(s, &gate[chunk * LANES..])));
            }
            store_part(s, value, out);
        }
    }
}
