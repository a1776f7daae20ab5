//! Arithmetic and conversions, lane by lane.

use super::{Snippet, words};

/// Runs `body`, which leaves a word in `%r0`, on words at random, and compares it with the host's.
fn each(body: &str, expected: impl Fn(u32, u32, u32) -> u32) {
    let inputs = words(4 * 256, 3);
    let snippet = Snippet::new(256, &format!("{body}\nst.global.u32 [%at], %r0;"));
    let found = snippet.run(&inputs).unwrap();
    for (thread, words) in inputs.as_chunks::<4>().0.iter().enumerate() {
        let [a, b, c, _] = *words;
        let (found, expected) = (found[2 * thread], expected(a, b, c));
        assert_eq!(
            found, expected,
            "{body} of {a:#x}, {b:#x}, {c:#x}: {found:#x}, not {expected:#x}"
        );
    }
}

/// The same of floating numbers: what is no number is as good as any other such.
fn each_float(body: &str, expected: impl Fn(f32, f32, f32) -> f32) {
    let moves = "mov.b32 %f1, %a; mov.b32 %f2, %b; mov.b32 %f3, %c;";
    let body = format!("{moves} {body} mov.b32 %r0, %f0;");
    each(&body, |a, b, c| {
        let result = expected(f32::from_bits(a), f32::from_bits(b), f32::from_bits(c));
        if result.is_nan() {
            0x7fff_ffff
        } else {
            result.to_bits()
        }
    });
}

#[test]
fn whole_numbers_are_as_on_the_host() {
    each("add.s32 %r0, %a, %b;", |a, b, _| a.wrapping_add(b));
    each("sub.s32 %r0, %a, %b;", |a, b, _| a.wrapping_sub(b));
    each("mul.lo.s32 %r0, %a, %b;", |a, b, _| a.wrapping_mul(b));
    each("mad.lo.s32 %r0, %a, %b, %c;", |a, b, c| {
        a.wrapping_mul(b).wrapping_add(c)
    });
    each("mul.hi.u32 %r0, %a, %b;", |a, b, _| {
        ((u64::from(a) * u64::from(b)) >> 32) as u32
    });
    each("mul.hi.s32 %r0, %a, %b;", |a, b, _| {
        ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32
    });
    each("or.b32 %r1, %b, 1; div.u32 %r0, %a, %r1;", |a, b, _| a / (b | 1));
    each("or.b32 %r1, %b, 1; rem.s32 %r0, %a, %r1;", |a, b, _| {
        (a as i32).wrapping_rem((b | 1) as i32) as u32
    });
    each("min.s32 %r0, %a, %b;", |a, b, _| (a as i32).min(b as i32) as u32);
    each("max.u32 %r0, %a, %b;", |a, b, _| a.max(b));
    each("shl.b32 %r0, %a, %b;", |a, b, _| a.checked_shl(b).unwrap_or(0));
    each("shr.u32 %r0, %a, %b;", |a, b, _| a.checked_shr(b).unwrap_or(0));
    each("shr.s32 %r0, %a, %b;", |a, b, _| ((a as i32) >> b.min(31)) as u32);
    each("popc.b32 %r0, %a;", |a, _, _| a.count_ones());
    each("clz.b32 %r0, %a;", |a, _, _| a.leading_zeros());
    each("brev.b32 %r0, %a;", |a, _, _| a.reverse_bits());
    each("bfind.shiftamt.u32 %r0, %a;", |a, _, _| {
        if a == 0 { u32::MAX } else { a.leading_zeros() }
    });
    each("prmt.b32 %r0, %a, %b, 30212;", |a, b, _| {
        let bytes = [a.to_le_bytes(), b.to_le_bytes()].concat();
        u32::from_le_bytes([bytes[4], bytes[0], bytes[6], bytes[7]])
    });
    each("lop3.b32 %r0, %a, %b, %c, 0xe8;", |a, b, c| a & b | a & c | b & c);
    each("shf.l.wrap.b32 %r0, %a, %b, 7;", |a, b, _| b << 7 | a >> 25);
    each("bfi.b32 %r0, %a, %b, 5, 9;", |a, b, _| {
        b & !(511 << 5) | (a & 511) << 5
    });
    each("bfe.s32 %r0, %a, 3, 6;", |a, _, _| {
        ((a << 23) as i32 >> 26) as u32
    });
    each(
        "setp.lt.s32 %p1, %a, %b; selp.b32 %r0, %a, %c, %p1;",
        |a, b, c| if (a as i32) < (b as i32) { a } else { c },
    );
}

#[test]
fn other_sizes_are_as_on_the_host() {
    each(
        "mul.wide.s32 %d5, %a, %b; cvt.u64.u32 %d6, %c; add.s64 %d5, %d5, %d6; shr.u64 %d5, %d5, 13; cvt.u32.u64 %r0, %d5;",
        |a, b, c| {
            let product = i64::from(a as i32) * i64::from(b as i32);
            ((product as u64).wrapping_add(u64::from(c)) >> 13) as u32
        },
    );
    each("mov.b64 %d5, {%a, %b}; mov.b64 {%r1, %r0}, %d5;", |_, b, _| b);
    each(
        "cvt.u16.u32 %h1, %a; shr.u16 %h1, %h1, 4; cvt.u32.u16 %r0, %h1;",
        |a, _, _| u32::from(a as u16 >> 4),
    );
    each("cvt.u16.u32 %h1, %a; mul.wide.u16 %r0, %h1, 4;", |a, _, _| {
        u32::from(a as u16) * 4
    });
    each(
        "cvt.u16.u32 %h1, %a; setp.lt.s16 %p1, %h1, 5; selp.u32 %r0, 1, 0, %p1;",
        |a, _, _| u32::from((a as i16) < 5),
    );
    each(
        "cvt.s64.s32 %d5, %a; cvt.s64.s32 %d6, %b; max.s64 %d5, %d5, %d6; cvt.u32.u64 %r0, %d5;",
        |a, b, _| (a as i32).max(b as i32) as u32,
    );
    each(
        "setp.ne.s32 %p1, %a, 0; setp.gt.u32 %p2, %b, %c; xor.pred %p3, %p1, %p2; not.pred %p3, %p3; selp.u32 %r0, 7, 9, %p3;",
        |a, b, c| {
            if (a != 0) == (b > c) { 7 } else { 9 }
        },
    );
    each(
        "@!%p1 mov.u32 %r0, 5; setp.eq.s32 %p1, %a, %b; @%p1 mov.u32 %r0, %a; @!%p1 mov.u32 %r0, %c;",
        |a, b, c| {
            if a == b { a } else { c }
        },
    );
}

#[test]
fn floating_numbers_are_as_on_the_host() {
    each_float("add.rn.f32 %f0, %f1, %f2;", |a, b, _| a + b);
    each_float("sub.rn.f32 %f0, %f1, %f2;", |a, b, _| a - b);
    each_float("mul.rn.f32 %f0, %f1, %f2;", |a, b, _| a * b);
    each_float("div.rn.f32 %f0, %f1, %f2;", |a, b, _| a / b);
    each_float("fma.rn.f32 %f0, %f1, %f2, %f3;", f32::mul_add);
    each_float("sqrt.rn.f32 %f0, %f1;", |a, _, _| a.sqrt());
    each_float(
        "neg.f32 %f4, %f1; abs.f32 %f4, %f4; mul.rn.f32 %f0, %f4, 0f3F800000;",
        |a, _, _| a.abs(),
    );
    // -0 is below 0, which the host leaves open.
    each_float("max.f32 %f0, %f1, %f2;", |a, b, _| {
        if a == 0.0 && b == 0.0 { a + b } else { a.max(b) }
    });
    each_float("min.f32 %f0, %f1, %f2;", |a, b, _| {
        if a == 0.0 && b == 0.0 { -(-a - b) } else { a.min(b) }
    });
    each_float("cvt.sat.f32.f32 %f0, %f1;", |a, _, _| {
        if a > 0.0 { a.min(1.0) } else { 0.0 }
    });
    each("cvt.rn.f32.s32 %f0, %a; mov.b32 %r0, %f0;", |a, _, _| {
        (a as i32 as f32).to_bits()
    });
    each("mov.b32 %f1, %a; cvt.rzi.s32.f32 %r0, %f1;", |a, _, _| {
        f32::from_bits(a) as i32 as u32
    });
    each("mov.b32 %f1, %a; cvt.rni.u32.f32 %r0, %f1;", |a, _, _| {
        f32::from_bits(a).round_ties_even() as u32
    });
    for (name, test) in [
        ("lt", (|a, b| a < b) as fn(f32, f32) -> bool),
        ("geu", |a, b| a >= b || a.is_nan() || b.is_nan()),
        ("neu", |a, b| a != b),
        ("ne", |a, b| a != b && !a.is_nan() && !b.is_nan()),
        ("nan", |a, b| a.is_nan() || b.is_nan()),
    ] {
        let body = format!(
            "mov.b32 %f1, %a; mov.b32 %f2, %b; setp.{name}.f32 %p1, %f1, %f2; selp.u32 %r0, 1, 0, %p1;"
        );
        each(&body, |a, b, _| {
            u32::from(test(f32::from_bits(a), f32::from_bits(b)))
        });
    }
}

#[test]
fn sums_are_rounded_in_the_direction_that_is_asked_for() {
    // Small whole numbers over powers of two: exact in f64, so that its neighbours tell which way it went.
    let inputs: Vec<u32> = words(4 * 256, 9)
        .iter()
        .map(|word| (f32::from(*word as i16) * 1.000_013).to_bits())
        .collect();
    for (body, down) in [
        ("fma.rm.f32 %f0, %f1, %f2, %f3;", true),
        ("add.rz.f32 %f0, %f1, %f2;", false),
    ] {
        let moves = "mov.b32 %f1, %a; mov.b32 %f2, %b; mov.b32 %f3, %c;";
        let snippet = Snippet::new(256, &format!("{moves} {body} st.global.f32 [%at], %f0;"));
        let found = snippet.run(&inputs).unwrap();
        for (thread, words) in inputs.as_chunks::<4>().0.iter().enumerate() {
            let [a, b, c, _] = words.map(|word| f64::from(f32::from_bits(word)));
            let exact = if down { a * b + c } else { a + b };
            let result = f32::from_bits(found[2 * thread]);
            let (low, high) = if down || exact > 0.0 {
                (result, result.next_up())
            } else {
                (result.next_down(), result)
            };
            let inside = if down || exact > 0.0 {
                f64::from(low) <= exact && exact < f64::from(high)
            } else {
                f64::from(low) < exact && exact <= f64::from(high)
            };
            assert!(
                inside || exact == f64::from(result),
                "{body} of {a}, {b}, {c}: {result}, not {exact}"
            );
        }
    }
}

#[test]
fn approximations_are_as_good_as_they_are_documented() {
    let inputs: Vec<u32> = (0..1024)
        .map(|index| (f32::from(index as i16 - 512) * 0.173).to_bits())
        .collect();
    for (body, exact) in [
        (
            "ex2.approx.ftz.f32 %f0, %f1;",
            (|x: f64| x.exp2()) as fn(f64) -> f64,
        ),
        ("rcp.approx.ftz.f32 %f0, %f1;", |x| 1.0 / x),
        ("abs.f32 %f1, %f1; rsqrt.approx.f32 %f0, %f1;", |x| {
            1.0 / x.abs().sqrt()
        }),
        ("abs.f32 %f1, %f1; lg2.approx.f32 %f0, %f1;", |x| x.abs().log2()),
    ] {
        let snippet = Snippet::new(256, &format!("mov.b32 %f1, %a; {body} st.global.f32 [%at], %f0;"));
        let found = snippet.run(&inputs).unwrap();
        for (thread, words) in inputs.as_chunks::<4>().0.iter().enumerate() {
            let (x, found) = (
                f64::from(f32::from_bits(words[0])),
                f64::from(f32::from_bits(found[2 * thread])),
            );
            let exact = exact(x);
            assert!(
                (found - exact).abs() <= 2e-7 * exact.abs() + 1e-37 || found == exact,
                "{body} of {x}: {found}, not {exact}"
            );
        }
    }
}

#[test]
fn sixteen_bits_are_rounded_once() {
    let bf16 = |x: f32| half::bf16::from_f32(x);
    let pair = |high: u32, low: u32| high << 16 | low;
    let bits = |x: f32| {
        if x.is_nan() {
            0x7fff
        } else {
            u32::from(bf16(x).to_bits())
        }
    };
    let halves = |x: f32| {
        if x.is_nan() {
            0x7fff
        } else {
            u32::from(half::f16::from_f32(x).to_bits())
        }
    };
    let floats = |a: u32, b: u32| (f32::from_bits(a), f32::from_bits(b));
    each(
        "mov.b32 %f1, %a; mov.b32 %f2, %b; { cvt.rn.bf16x2.f32 %r0, %f1, %f2;}",
        |a, b, _| {
            let (a, b) = floats(a, b);
            pair(bits(a), bits(b))
        },
    );
    each(
        "mov.b32 %f1, %a; mov.b32 %f2, %b; { cvt.rn.f16x2.f32 %r0, %f1, %f2; }",
        |a, b, _| {
            let (a, b) = floats(a, b);
            pair(halves(a), halves(b))
        },
    );
    each(
        "cvt.u16.u32 %h1, %a; { cvt.f32.f16 %f1, %h1;} add.rn.f32 %f1, %f1, 0f00000000; mov.b32 %r0, %f1;",
        |a, _, _| {
            let x = half::f16::from_bits(a as u16).to_f32() + 0.0;
            if x.is_nan() { 0x7fff_ffff } else { x.to_bits() }
        },
    );
    each("fma.rn.bf16x2 %r0, %a, %b, %c;", |a, b, c| {
        let number = |x: u32, up: u32| f64::from(half::bf16::from_bits((x >> up) as u16).to_f32());
        let one = |up| {
            let exact = number(a, up).mul_add(number(b, up), number(c, up));
            // Products of bf16 have sixteen bits and sums hardly more, so that f64 holds them.
            if exact.is_nan() {
                0x7fff
            } else {
                u32::from(half::bf16::from_f64(exact).to_bits())
            }
        };
        pair(one(16), one(0))
    });
}
