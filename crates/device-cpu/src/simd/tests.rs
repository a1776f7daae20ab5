//! All versions agree, and approximations are good.

use super::*;

struct Probe<'a>(&'a [f32; LANES], &'a [f32; LANES]);

impl Kernel for Probe<'_> {
    type Output = Vec<u32>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Vec<u32> {
        let (a, b) = (s.load(self.0), s.load(self.1));
        let results = [
            s.add(a, b),
            s.sub(a, b),
            s.mul(a, b),
            s.div(a, b),
            s.mul_add(a, b, a),
            s.max(a, b),
            s.min(a, b),
            s.round(a),
            s.exp(a),
            s.sigmoid(a),
            s.silu(b),
            s.select_less(a, b, a, s.splat(7.0)),
            s.sums([
                a,
                b,
                s.mul(a, b),
                s.add(a, b),
                s.sub(a, b),
                s.round(a),
                s.max(a, b),
                b,
            ]),
        ];
        let mut bits = vec![s.sum(a).to_bits(), s.largest(b).to_bits()];
        for result in results {
            let mut lanes = [0.0; LANES];
            s.store(result, &mut lanes);
            bits.extend(lanes.map(f32::to_bits));
        }
        bits.extend(s.to_f16(s.mul(a, b)).map(u32::from));
        bits
    }
}

#[test]
fn all_instruction_sets_agree_to_the_last_bit() {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((state >> 40) as f32 / 8_388_608.0 - 1.0) * 90.0
    };
    for _ in 0..2_000 {
        let (a, b) = (std::array::from_fn(|_| next()), std::array::from_fn(|_| next()));
        let expected = Probe(&a, &b).run(Portable);
        for instructions in Instructions::all() {
            let found = instructions.run(Probe(&a, &b));
            assert_eq!(found, expected, "{instructions:?}: {a:?} {b:?}");
        }
    }
}

struct Loads<'a>(&'a [u16; 2 * PANEL]);

impl Kernel for Loads<'_> {
    type Output = Vec<u32>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Vec<u32> {
        let halves = self.0.as_ptr();
        let mut bits = Vec::new();
        // SAFETY: every load reads 64 bytes or less, and a panel has sixteen lanes.
        unsafe {
            let [even, odd] = s.panel_load_bf16_pairs(halves);
            let (half, whole) = (s.panel_load_f16(halves), s.panel_load(halves.cast()));
            let product = s.panel_mul_add(half, s.panel_splat(0.3), even);
            for result in [even, odd, half, whole, product] {
                let mut lanes = [0.0; PANEL];
                s.panel_store(result, lanes.as_mut_ptr());
                bits.extend(lanes.map(f32::to_bits));
            }
        }
        bits
    }
}

#[test]
fn all_instruction_sets_load_the_same_numbers() {
    for start in (0..=u16::MAX).step_by(2 * PANEL) {
        // NaNs are left out: half-precision ones keep or lose their payload.
        let halves: [u16; 2 * PANEL] = std::array::from_fn(|i| (start + i as u16) & 0xfbff);
        let expected = Loads(&halves).run(Portable);
        for instructions in Instructions::all() {
            let found = instructions.run(Loads(&halves));
            assert_eq!(found, expected, "{instructions:?}: {halves:?}");
        }
    }
}

struct Exp(f32);

impl Kernel for Exp {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        s.largest(s.exp(s.splat(self.0)))
    }
}

#[test]
fn exp_is_accurate_over_its_range() {
    for step in 0..200_000 {
        let x = -87.0 + step as f32 * (175.0 / 200_000.0);
        let exact = f64::from(x).exp();
        let error = (f64::from(Instructions::detect().run(Exp(x))) - exact).abs() / exact;
        assert!(error < 3e-7, "exp({x}) is off by {error}");
    }
    assert_eq!(Instructions::detect().run(Exp(f32::NEG_INFINITY)).to_bits(), 0);
    assert_eq!(Instructions::detect().run(Exp(-88.0)).to_bits(), 0);
}
