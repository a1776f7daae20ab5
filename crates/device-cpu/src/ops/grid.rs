//! Linear recurrences on the grid of [`STATE_GRID`] positions.
//!
//! A token is evaluated from the state at the grid position at or before it and from the entries since; see
//! [`paceline_device::DeltaRule`] for the formulas. Columns of a state never meet, so a lane is a column, and a sum over rows
//! or over entries is one chain in ascending order. A chunk (what lies between two grid positions) is walked token by
//! token, whether a step brings one of its tokens or all, and is folded into the next state when it is complete. So
//! results depend on positions alone, and a state is written once per chunk.

mod chunk;

use super::{RequestTokens, Step, pieces};
use crate::caches::CpuStateCache;
use crate::pool::Pool;
use crate::simd::{Kernel, LANES, Simd};
use crate::storage::{In, Out};
use chunk::{Chunk, Entries, Given, Token};
use paceline_device::HeadMap;
use paceline_types::STATE_GRID as GRID;
use std::ops::Range;

/// Most heads of a piece. Heads of one group share keys, queries and their products.
const TEAM: usize = 4;

/// What distinguishes one recurrence from another.
pub(crate) trait Rule: Copy + Sync {
    /// Whether a value is corrected by what the state and the entries hold for its key.
    const CORRECTS: bool;

    /// The key as it enters the recurrence.
    fn key<S: Simd>(s: S, key: &[f32], out: &mut [f32]);
    /// The query as it reads the state.
    fn query<S: Simd>(s: S, query: &[f32], out: &mut [f32]);
    /// The log of a token's decay, and what its value is multiplied by.
    fn factors(&self, row: usize, head: usize) -> (f32, f32);
    /// How much of a value goes straight to the output of a rule that corrects nothing.
    fn skip(&self, head: usize) -> f32;
}

/// Views of [`recur`].
#[derive(Clone, Copy)]
pub(crate) struct Recurrence<'a, R> {
    pub(crate) rule: R,
    /// `[T, groups · rows]`.
    pub(crate) keys: In<'a>,
    /// `[T, groups · rows]`.
    pub(crate) queries: In<'a>,
    /// `[T, heads · columns]`.
    pub(crate) values: In<'a>,
    /// Which group a head reads.
    pub(crate) head_map: HeadMap,
    pub(crate) cache: &'a CpuStateCache,
    pub(crate) out: Out<'a>,
    pub(crate) step: Step<'a>,
}

/// Advances the states of all requests by their tokens.
pub(crate) fn recur<R: Rule>(pool: &Pool, args: &Recurrence<'_, R>) {
    let shape = args.cache.shape();
    let (requests, groups) = (args.step.recurrent_requests(args.out.rows, shape), shape.groups);
    let members = shape.heads / groups.max(1);
    let teams = members.div_ceil(TEAM);
    // States are read once, whatever the number of their tokens.
    let total_ns = (requests.len() + args.out.rows) * shape.matrix_elements() / 8;
    pieces(pool, requests.len() * groups * teams, total_ns, |piece| {
        let (request, piece) = (piece / (groups * teams), piece % (groups * teams));
        let first = piece % teams * TEAM;
        pool.instructions().run(Piece {
            args,
            tokens: &requests[request],
            group: piece / teams,
            members: first..members.min(first + TEAM),
        });
    });
    // All teams of a group read its keys, so they are stored when all are done.
    let total_ns = requests.len() * groups * shape.rows / 2;
    pieces(pool, requests.len(), total_ns, |request| {
        pool.instructions().run(StoreKeys {
            args,
            tokens: &requests[request],
        });
    });
}

/// The keys of a request's tokens become entries.
struct StoreKeys<'a, R> {
    args: &'a Recurrence<'a, R>,
    tokens: &'a RequestTokens,
}

impl<R: Rule> Kernel for StoreKeys<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (args, tokens) = (self.args, self.tokens);
        let shape = args.cache.shape();
        for group in 0..shape.groups {
            let ring = args.cache.keys(tokens.slot, group);
            for position in tokens.open() {
                let key = &args.keys.row(tokens.row(position))[group * shape.rows..][..shape.rows];
                // SAFETY: a slot belongs to one request, and nothing else uses its keys now.
                R::key(s, key, unsafe { ring.get_mut(position) });
            }
        }
    }
}

/// Some heads of one group of one request.
struct Piece<'a, R> {
    args: &'a Recurrence<'a, R>,
    tokens: &'a RequestTokens,
    group: usize,
    /// Which heads of the group.
    members: Range<usize>,
}

/// Buffers of a piece.
struct Buffers {
    /// Keys and queries of the step's tokens in a chunk.
    keys: Vec<f32>,
    queries: Vec<f32>,
    /// Values of their entries.
    values: Vec<f32>,
    /// What they have to do with the entries before them.
    tokens: Vec<Token>,
    /// Per row of the state, the keys of a complete chunk.
    fold_keys: Vec<[f32; GRID]>,
    /// Per head, the state behind the one that is kept.
    beyond: Vec<f32>,
}

impl<R: Rule> Kernel for Piece<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let shape = self.args.cache.shape();
        self.restore();
        let most = self.tokens.positions.len().min(GRID);
        let mut buffers = Buffers {
            keys: vec![0.0; most * shape.rows],
            queries: vec![0.0; most * shape.rows],
            values: vec![0.0; most * shape.columns],
            tokens: vec![Token::default(); most],
            fold_keys: Vec::new(),
            beyond: Vec::new(),
        };
        for base in (self.tokens.state.start..self.tokens.positions.end).step_by(GRID) {
            let run = self.run_in(base);
            self.prepare(s, run.clone(), &mut buffers);
            let entries = self.entries(s, (base, run), &mut buffers);
            for place in 0..self.members.len() {
                self.head(s, (base, entries), place, &mut buffers);
            }
        }
    }
}

impl<R: Rule> Piece<'_, R> {
    /// The head at a place of the team.
    fn head_at(&self, place: usize) -> usize {
        let shape = self.args.cache.shape();
        let member = self.members.start + place;
        match self.args.head_map {
            HeadMap::Grouped => self.group * (shape.heads / shape.groups) + member,
            HeadMap::Tiled => member * shape.groups + self.group,
        }
    }

    /// Takes the states from the snapshot that the request starts from.
    fn restore(&self) {
        let Some(snapshot) = self.tokens.restore else {
            return;
        };
        for place in 0..self.members.len() {
            let head = self.head_at(place);
            // SAFETY: a slot belongs to one request, and this head of it to this piece.
            let (matrix, saved) = unsafe {
                (
                    self.args.cache.matrix(self.tokens.slot, head),
                    self.args.cache.saved_matrix(snapshot, head),
                )
            };
            matrix.copy_from_slice(saved);
        }
    }

    /// The positions of the chunk from `base` on that this step runs.
    fn run_in(&self, base: usize) -> Range<usize> {
        let positions = &self.tokens.positions;
        let end = positions.end.min(base + GRID);
        positions.start.clamp(base, end)..end
    }

    /// Whether the state behind the chunk from `base` on is needed: to be kept, or by tokens of this step.
    fn folds(&self, base: usize) -> bool {
        let next = base + GRID;
        next <= self.tokens.state.end || next < self.tokens.positions.end
    }

    /// Fills in keys and queries of the step's tokens in a chunk.
    #[inline(always)]
    fn prepare<S: Simd>(&self, s: S, run: Range<usize>, buffers: &mut Buffers) {
        let (args, rows) = (self.args, self.args.cache.shape().rows);
        let columns = self.group * rows..(self.group + 1) * rows;
        let keys = buffers.keys.chunks_exact_mut(rows);
        let both = keys.zip(buffers.queries.chunks_exact_mut(rows));
        for (position, (key, query)) in run.zip(both) {
            let row = self.tokens.row(position);
            R::key(s, &args.keys.row(row)[columns.clone()], key);
            R::query(s, &args.queries.row(row)[columns.clone()], query);
        }
    }

    /// The keys of the chunk from `base` on, as tokens and folds of all heads need them.
    #[inline(always)]
    fn entries<S: Simd>(&self, s: S, (base, run): (usize, Range<usize>), buffers: &mut Buffers) -> Entries {
        let rows = self.args.cache.shape().rows;
        let entries = Entries {
            past: run.start - base,
            count: run.end - base,
        };
        let ring = self.args.cache.keys(self.tokens.slot, self.group);
        let mut keys: [&[f32]; GRID] = [&[]; GRID];
        for (entry, key) in keys[..entries.past].iter_mut().enumerate() {
            // SAFETY: keys are stored when all pieces are done.
            *key = unsafe { ring.get(base + entry) };
        }
        let fresh = &mut keys[entries.past..entries.count];
        for (key, own) in fresh.iter_mut().zip(buffers.keys.chunks_exact(rows)) {
            *key = own;
        }
        let queries = buffers.queries.chunks_exact(rows).zip(&mut buffers.tokens);
        for (entry, (query, token)) in (entries.past..entries.count).zip(queries) {
            token.relate::<S, R>(s, query, &keys[..=entry]);
        }
        if self.folds(base) {
            buffers.fold_keys.resize(rows, [0.0; GRID]);
            for (entry, key) in keys.iter().enumerate() {
                for (row, key) in buffers.fold_keys.iter_mut().zip(*key) {
                    row[entry] = *key;
                }
            }
        }
        entries
    }

    /// Runs the tokens of a chunk through one head, folds the chunk if that is needed, and leaves entries.
    #[inline(always)]
    fn head<S: Simd>(&self, s: S, (base, entries): (usize, Entries), place: usize, buffers: &mut Buffers) {
        let (cache, tokens, head) = (self.args.cache, self.tokens, self.head_at(place));
        let shape = cache.shape();
        let next = base + GRID;
        // SAFETY: a slot belongs to one request, and this head of it to this piece.
        let kept = unsafe { cache.matrix(tokens.slot, head) };
        let size = kept.len();
        if self.folds(base) && next > tokens.state.end {
            buffers.beyond.resize(self.members.len() * size, 0.0);
        }
        let (own, end) = (kept.as_mut_ptr(), tokens.state.end);
        let at = |position: usize, beyond: &mut [f32]| {
            if position <= end {
                own
            } else {
                beyond[place * size..].as_mut_ptr()
            }
        };
        let mut chunk = Chunk::new(entries, (shape.rows, shape.columns));
        if base > 0 {
            chunk.state = Some(at(base, &mut buffers.beyond));
        }
        if self.folds(base) {
            chunk.folded = Some(at(next, &mut buffers.beyond));
        }
        self.weigh(s, (base, head), &mut chunk, buffers);
        let mut column = 0;
        while column < shape.columns {
            // SAFETY: the columns are inside the state, and the state is where it was said to be: that which is kept,
            // or the one beyond, which the chunk before has filled.
            column += unsafe {
                match (shape.columns - column) / LANES {
                    8.. => self.block::<S, 8>(s, &chunk, (base, head, column), buffers),
                    4.. => self.block::<S, 4>(s, &chunk, (base, head, column), buffers),
                    _ => self.block::<S, 1>(s, &chunk, (base, head, column), buffers),
                }
            };
        }
        if let Some((position, snapshot)) = tokens.snapshot
            && position == next
        {
            // SAFETY: a snapshot is written for one request, and this head of it by this piece.
            unsafe { cache.saved_matrix_mut(snapshot, head) }.copy_from_slice(kept);
        }
        self.leave_entries(&chunk, base, head);
    }

    /// Gathers values and decays of a chunk's entries, and weighs them for each token and for the fold. Values of
    /// the step's tokens, yet to be computed, have their places in the buffers.
    #[inline(always)]
    fn weigh<S: Simd>(&self, s: S, (base, head): (usize, usize), chunk: &mut Chunk, buffers: &mut Buffers) {
        let (cache, tokens) = (self.args.cache, self.tokens);
        let (ring, decays) = (cache.values(tokens.slot, head), cache.decays(tokens.slot, head));
        let Entries { past, count } = chunk.entries;
        for entry in 0..past {
            // SAFETY: this head of the slot belongs to this piece, which has not written these entries.
            unsafe {
                chunk.values[entry] = ring.get(base + entry).as_ptr();
                chunk.decays[entry] = decays.get(base + entry)[0];
            }
        }
        let values = buffers.values.chunks_exact_mut(cache.shape().columns);
        for (entry, (value, token)) in (past..count).zip(values.zip(&mut buffers.tokens)) {
            chunk.values[entry] = value.as_mut_ptr();
            (chunk.decays[entry], token.scale) = self.args.rule.factors(tokens.row(base + entry), head);
            token.weigh::<S, R>(s, &chunk.decays, entry);
        }
    }

    /// Runs the tokens of a chunk through `N` vectors of columns, or a part of one, and folds; returns the number of
    /// columns.
    ///
    /// # Safety
    /// As [`Chunk::token`].
    #[inline(always)]
    unsafe fn block<S: Simd, const N: usize>(
        &self,
        s: S,
        chunk: &Chunk,
        (base, head, column): (usize, usize, usize),
        buffers: &Buffers,
    ) -> usize {
        let shape = self.args.cache.shape();
        // A constant where it matters.
        let width = if N == 1 {
            LANES.min(shape.columns - column)
        } else {
            LANES
        };
        let used = (N - 1) * LANES + width;
        let first = head * shape.columns + column;
        let fresh = chunk.entries.past..chunk.entries.count;
        let keys = buffers.keys.chunks_exact(shape.rows);
        let both = keys.zip(buffers.queries.chunks_exact(shape.rows));
        for ((entry, token), (key, query)) in fresh.zip(&buffers.tokens).zip(both) {
            let row = self.tokens.row(base + entry);
            let value = &self.args.values.row(row)[first..first + used];
            // SAFETY: the columns of this head belong to this piece.
            let out = unsafe { self.args.out.part(row, first..first + used) };
            let given = Given {
                key,
                query,
                value,
                skip: self.args.rule.skip(head),
            };
            // SAFETY: forwarded; the entry is one of this step.
            unsafe { chunk.token::<S, R, N>(s, (entry, token), (column, width), &given, out) };
        }
        if chunk.folded.is_some() {
            let keys = &buffers.fold_keys;
            // SAFETY: forwarded.
            unsafe {
                chunk.fold::<S, N>(s, keys, (column, width));
            }
        }
        used
    }

    /// Leaves values and decays of the tokens that no stored state contains.
    #[inline(always)]
    fn leave_entries(&self, chunk: &Chunk, base: usize, head: usize) {
        let (cache, tokens) = (self.args.cache, self.tokens);
        let (ring, decays) = (cache.values(tokens.slot, head), cache.decays(tokens.slot, head));
        for position in tokens.open().start.max(base)..base + chunk.entries.count {
            let entry = position - base;
            // SAFETY: this head of the slot belongs to this piece, and what the entries of the step replace is read by
            // no later chunk. The value is that of a token of this step, in the piece's buffer.
            unsafe {
                let value = std::slice::from_raw_parts(chunk.values[entry], cache.shape().columns);
                ring.get_mut(position).copy_from_slice(value);
                decays.get_mut(position)[0] = chunk.decays[entry];
            }
        }
    }
}
