//! The arithmetic of a chunk: the entries between two grid positions, its tokens, and the state behind it.

use super::{GRID, Rule};
use crate::ops::vector::load_part;
use crate::simd::{LANES, Simd};

/// The place of the decay from the base among weights: no entry of a chunk comes after its last one.
const FROM_BASE: usize = GRID - 1;

/// Rows between two looks at whether there are more.
const UNROLL: usize = 4;

/// What a token of the step has to do with the entries of its chunk before it.
#[derive(Clone, Copy, Default)]
pub(super) struct Token {
    /// The products of its key with theirs.
    key_products: [f32; GRID],
    /// The products of its query with their keys.
    query_products: [f32; GRID],
    /// The product of its query with its own key.
    own_product: f32,
    /// `e^d` times these products, and `e^d` from the base in the last place.
    key_weights: [f32; GRID],
    query_weights: [f32; GRID],
    /// What its value is multiplied by.
    pub(super) scale: f32,
}

impl Token {
    /// Multiplies key and query with the keys of the entries before it. The last of `keys` is its own.
    #[inline(always)]
    pub(super) fn relate<S: Simd, R: Rule>(&mut self, s: S, query: &[f32], keys: &[&[f32]]) {
        self.query_products = products(s, query, keys);
        self.own_product = self.query_products[keys.len() - 1];
        if R::CORRECTS {
            self.key_products = products(s, keys[keys.len() - 1], &keys[..keys.len() - 1]);
        }
    }

    /// Weighs the products by the decays since, for one head; the token is this entry of its chunk.
    #[inline(always)]
    pub(super) fn weigh<S: Simd, R: Rule>(&mut self, s: S, logs: &[f32; GRID], entry: usize) {
        let decays = decays_to(s, logs, entry);
        self.query_weights = times(s, &decays, &self.query_products);
        self.query_weights[FROM_BASE] = decays[FROM_BASE];
        if R::CORRECTS {
            self.key_weights = times(s, &decays, &self.key_products);
        }
    }
}

/// Entries of a chunk.
#[derive(Clone, Copy)]
pub(super) struct Entries {
    /// Those that earlier steps left.
    pub(super) past: usize,
    /// All of them, the step's tokens behind those.
    pub(super) count: usize,
}

/// A chunk as one head sees it.
pub(super) struct Chunk {
    pub(super) entries: Entries,
    rows: usize,
    columns: usize,
    /// The state at its base; `None` is zero.
    pub(super) state: Option<*mut f32>,
    /// Where the state behind it goes.
    pub(super) folded: Option<*mut f32>,
    /// Values of entries.
    pub(super) values: [*const f32; GRID],
    /// Logs of the decays of entries.
    pub(super) decays: [f32; GRID],
}

/// What a token brings: a key, a query, and some columns of its value.
pub(super) struct Given<'a> {
    pub(super) key: &'a [f32],
    pub(super) query: &'a [f32],
    pub(super) value: &'a [f32],
    /// How much of the value goes straight to the output of a rule that corrects nothing.
    pub(super) skip: f32,
}

impl Chunk {
    /// A chunk over states of this many rows and columns, from the zero state.
    pub(super) fn new(entries: Entries, (rows, columns): (usize, usize)) -> Self {
        Self {
            entries,
            rows,
            columns,
            state: None,
            folded: None,
            values: [std::ptr::null(); GRID],
            decays: [0.0; GRID],
        }
    }

    /// A token's entry and its output, for `N` vectors of columns from `column` on with `width` lanes in use.
    ///
    /// # Safety
    /// The state is a matrix, the values of all entries up to this one have its columns, and this one's can be written.
    #[inline(always)]
    pub(super) unsafe fn token<S: Simd, R: Rule, const N: usize>(
        &self,
        s: S,
        (entry, token): (usize, &Token),
        (column, width): (usize, usize),
        given: &Given<'_>,
        out: &mut [f32],
    ) {
        assert!(given.value.len() == out.len() && out.len() == (N - 1) * LANES + width);
        let (scale, skip) = (s.splat(token.scale), s.splat(given.skip));
        let decay = token.query_weights[FROM_BASE];
        let seen = if R::CORRECTS {
            // SAFETY: forwarded.
            unsafe {
                self.read::<S, N>(
                    s,
                    given.key,
                    (decay, &token.key_weights[..entry]),
                    (column, width),
                )
            }
        } else {
            [s.splat(0.0); N]
        };
        let place = self.values[entry].cast_mut();
        for (n, seen) in seen.iter().enumerate() {
            // SAFETY: within the token's value and its entry's, of as many columns.
            unsafe {
                let value = load(s, given.value.as_ptr().add(n * LANES), width);
                let entered = if R::CORRECTS { s.sub(value, *seen) } else { value };
                store(s, s.mul(scale, entered), place.add(column + n * LANES), width);
            }
        }
        let weights = &token.query_weights[..entry];
        // SAFETY: forwarded.
        let read = unsafe { self.read::<S, N>(s, given.query, (decay, weights), (column, width)) };
        let product = s.splat(token.own_product);
        for (n, read) in read.iter().enumerate() {
            // SAFETY: within the token's value, its entry's and its output, of as many columns.
            unsafe {
                let entered = load(s, place.add(column + n * LANES), width);
                let mut output = s.mul_add(product, entered, *read);
                if !R::CORRECTS {
                    let value = load(s, given.value.as_ptr().add(n * LANES), width);
                    output = s.mul_add(skip, value, output);
                }
                store(s, output, out.as_mut_ptr().add(n * LANES), width);
            }
        }
    }

    /// What the state, decayed, and the entries before a token hold for its key or its query. The state is read for one of
    /// them at a time: registers then hold sums of twice the columns, and products take their other operand from memory.
    ///
    /// # Safety
    /// As [`token`](Self::token).
    #[inline(always)]
    unsafe fn read<S: Simd, const N: usize>(
        &self,
        s: S,
        x: &[f32],
        (decay, weights): (f32, &[f32]),
        (column, width): (usize, usize),
    ) -> [S::F; N] {
        let mut sums = [s.splat(0.0); N];
        if let Some(state) = self.state {
            assert!(x.len() == self.rows);
            let (runs, rest) = x.as_chunks::<UNROLL>();
            let mut row = 0;
            for x in runs {
                for x in x {
                    // SAFETY: within the state.
                    unsafe { add_row(s, *x, state.add(row * self.columns + column), width, &mut sums) };
                    row += 1;
                }
            }
            for x in rest {
                // SAFETY: within the state.
                unsafe { add_row(s, *x, state.add(row * self.columns + column), width, &mut sums) };
                row += 1;
            }
        }
        let decay = s.splat(decay);
        for sum in &mut sums {
            *sum = s.mul(*sum, decay);
        }
        for (weight, value) in weights.iter().zip(&self.values) {
            // SAFETY: within the entry's value.
            unsafe { add_row(s, *weight, value.add(column), width, &mut sums) };
        }
        sums
    }

    /// The state behind a complete chunk, for `N` vectors of columns from `column` on with `width` lanes in use.
    /// `keys` has the entries' keys row by row of the state.
    ///
    /// # Safety
    /// As [`token`](Self::token), for all entries; where the state goes is a matrix, too.
    #[inline(always)]
    pub(super) unsafe fn fold<S: Simd, const N: usize>(
        &self,
        s: S,
        keys: &[[f32; GRID]],
        (column, width): (usize, usize),
    ) {
        let Some(to) = self.folded else { return };
        assert!(self.entries.count == GRID && keys.len() == self.rows);
        let weights = decays_to(s, &self.decays, GRID - 1);
        let mut values = [[s.splat(0.0); N]; GRID];
        for (entry, values) in values.iter_mut().enumerate() {
            let last = entry == GRID - 1;
            let weight = s.splat(if last { 1.0 } else { weights[entry] });
            for (n, value) in values.iter_mut().enumerate() {
                // SAFETY: within the entry's value.
                let entered = unsafe { load(s, self.values[entry].add(column + n * LANES), width) };
                *value = s.mul(weight, entered);
            }
        }
        let decay = s.splat(weights[FROM_BASE]);
        for (row, keys) in keys.iter().enumerate() {
            let place = row * self.columns + column;
            let mut sums = [s.splat(0.0); N];
            if let Some(state) = self.state {
                for (n, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: within the state.
                    *sum = s.mul(unsafe { load(s, state.add(place + n * LANES), width) }, decay);
                }
            }
            let (keys, _) = keys.as_chunks::<UNROLL>();
            let (values, _) = values.as_chunks::<UNROLL>();
            for (keys, values) in keys.iter().zip(values) {
                for (key, values) in keys.iter().zip(values) {
                    let key = s.splat(*key);
                    for n in 0..N {
                        sums[n] = s.mul_add(key, values[n], sums[n]);
                    }
                }
            }
            for (n, sum) in sums.iter().enumerate() {
                // SAFETY: within the state.
                unsafe { store(s, *sum, to.add(place + n * LANES), width) };
            }
        }
    }
}

/// Adds `x` times `N` vectors from `row` on, the last with `width` elements.
///
/// # Safety
/// As many readable elements.
#[inline(always)]
unsafe fn add_row<S: Simd, const N: usize>(
    s: S,
    x: f32,
    row: *const f32,
    width: usize,
    sums: &mut [S::F; N],
) {
    let x = s.splat(x);
    for (n, sum) in sums.iter_mut().enumerate() {
        // SAFETY: forwarded.
        let old = unsafe { load(s, row.add(n * LANES), width) };
        *sum = s.mul_add(old, x, *sum);
    }
}

/// The products of `x` with up to [`GRID`] keys, the rest of any value.
#[inline(always)]
fn products<S: Simd>(s: S, x: &[f32], keys: &[&[f32]]) -> [f32; GRID] {
    let mut out = [0.0; GRID];
    let (halves, _) = out.as_chunks_mut::<LANES>();
    for (keys, out) in keys.chunks(LANES).zip(halves) {
        // Those that are missing are computed from the last one, and nobody looks at them.
        let keys: [&[f32]; LANES] = std::array::from_fn(|lane| keys[lane.min(keys.len() - 1)]);
        assert!(keys.iter().all(|key| key.len() == x.len()));
        let mut sums = [s.splat(0.0); LANES];
        let full = x.len() / LANES * LANES;
        for at in (0..full).step_by(LANES) {
            // SAFETY: eight elements from `at` on in each, as asserted.
            unsafe {
                let x = s.load_ptr(x.as_ptr().add(at));
                for lane in 0..LANES {
                    sums[lane] = s.mul_add(x, s.load_ptr(keys[lane].as_ptr().add(at)), sums[lane]);
                }
            }
        }
        if full < x.len() {
            let x = load_part(s, &x[full..]);
            for lane in 0..LANES {
                sums[lane] = s.mul_add(x, load_part(s, &keys[lane][full..]), sums[lane]);
            }
        }
        s.store(s.sums(sums), out);
    }
    out
}

/// `e^d` from each entry before `entry` to it, and from the base in the last place, where `d` adds the logs of decays
/// from `entry` downwards.
#[inline(always)]
fn decays_to<S: Simd>(s: S, logs: &[f32; GRID], entry: usize) -> [f32; GRID] {
    let mut decays = [0.0; GRID];
    let mut sum = logs[entry];
    for before in (0..entry).rev() {
        decays[before] = sum;
        sum += logs[before];
    }
    decays[FROM_BASE] = sum;
    let (halves, _) = decays.as_chunks_mut::<LANES>();
    for half in halves {
        s.store(s.exp(s.load(half)), half);
    }
    decays
}

/// Element by element.
#[inline(always)]
fn times<S: Simd>(s: S, a: &[f32; GRID], b: &[f32; GRID]) -> [f32; GRID] {
    let mut out = [0.0; GRID];
    let ((a, _), (b, _)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let (halves, _) = out.as_chunks_mut::<LANES>();
    for ((a, b), out) in a.iter().zip(b).zip(halves) {
        s.store(s.mul(s.load(a), s.load(b)), out);
    }
    out
}

/// # Safety
/// `width` readable elements, at most eight.
#[inline(always)]
unsafe fn load<S: Simd>(s: S, from: *const f32, width: usize) -> S::F {
    // SAFETY: forwarded. The width is a constant where it matters.
    unsafe {
        if width == LANES {
            s.load_ptr(from)
        } else {
            load_part(s, std::slice::from_raw_parts(from, width))
        }
    }
}

/// # Safety
/// `width` writable elements, at most eight.
#[inline(always)]
unsafe fn store<S: Simd>(s: S, value: S::F, to: *mut f32, width: usize) {
    // SAFETY: forwarded.
    unsafe {
        if width == LANES {
            s.store_ptr(value, to);
        } else {
            let mut lanes = [0.0; LANES];
            s.store(value, &mut lanes);
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), to, width);
        }
    }
}
