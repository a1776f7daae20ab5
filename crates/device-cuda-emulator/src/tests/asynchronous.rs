//! Copies beside the threads, barriers in shared memory, and products of matrices.

use super::{Snippet, words};
use crate::exec::Trouble;
use crate::settings::Timing;

const STORE: &str = "st.global.u32 [%at], %r0;";
const TIMINGS: [Timing; 3] = [Timing::Late, Timing::Early, Timing::Random];

#[test]
fn copies_are_there_when_they_were_waited_for_and_not_before() {
    let inputs = words(4 * 32, 8);
    let copy = |wait: &str| {
        let body = format!(
            "
            mov.u32 %r5, shared; shl.b32 %r1, %t, 4; add.s32 %r1, %r1, %r5;
            cp.async.cg.shared.global [%r1], [%d0], 16; cp.async.commit_group;
            add.s32 %r2, %r1, 512; cp.async.ca.shared.global [%r2], [%d0], 4; cp.async.commit_group;
            {wait}
            ld.shared.u32 %r0, [%r1]; ld.shared.u32 %r3, [%r2]; st.global.u32 [%at+4], %r3;"
        );
        Snippet::new(32, &format!("{body}{STORE}"))
    };
    for timing in TIMINGS {
        for seed in 0..4 {
            let found = copy("cp.async.wait_group 0;")
                .seeded(seed, timing)
                .run(&inputs)
                .unwrap();
            (0..32)
                .for_each(|lane| assert_eq!([found[2 * lane], found[2 * lane + 1]], [inputs[4 * lane]; 2]));
        }
    }
    // The first group alone, or none.
    let found = copy("cp.async.wait_group 1;")
        .seeded(0, Timing::Late)
        .run(&inputs)
        .unwrap();
    (0..32)
        .for_each(|lane| assert!(found[2 * lane] == inputs[4 * lane] && found[2 * lane + 1] == 0x7fff_7fff));
    let found = copy("").seeded(0, Timing::Late).run(&inputs).unwrap();
    (0..32).for_each(|lane| assert_eq!(found[2 * lane], 0x7fff_7fff));
}

#[test]
fn barriers_open_when_threads_and_bytes_are_there() {
    // One thread asks for bytes; another warp's threads copy by themselves and tell the same barrier.
    let body = |wait: &str| {
        format!("
        mov.u32 %r5, shared; add.s32 %r6, %r5, 2048; setp.ne.s32 %p1, %t, 0; @%p1 bra started;
        mbarrier.init.shared::cta.b64 [%r6], 33;
        started: bar.sync 0; shl.b32 %r1, %t, 4; add.s32 %r1, %r1, %r5; setp.ge.u32 %p2, %t, 32; @%p2 bra alone; @%p1 bra together;
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r6], 512;
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r5], [%in], 512, [%r6]; bra together;
        alone: cp.async.cg.shared.global [%r1], [%d0], 16; cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r6];
        together: {wait}
        ld.shared.u32 %r0, [%r1];{STORE}")
    };
    let wait = "{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%r6], 0; @done bra over; bra again; over: }";
    let inputs = words(4 * 64, 4);
    for timing in TIMINGS {
        for seed in 0..8 {
            let found = Snippet::new(64, &body(wait))
                .seeded(seed, timing)
                .run(&inputs)
                .unwrap();
            (0..64).for_each(|lane| assert_eq!(found[2 * lane], inputs[4 * lane], "{timing:?}, seed {seed}"));
        }
    }
    let found = Snippet::new(64, &body("")).seeded(0, Timing::Late).run(&inputs);
    let early = found.map_or(true, |found| {
        (0..64).any(|lane| found[2 * lane] != inputs[4 * lane])
    });
    assert!(early, "nobody has waited");
    let waits_for_more = body(wait).replace("_, [%r6], 512", "_, [%r6], 528");
    let (trouble, text) = Snippet::new(64, &waits_for_more).fault_of(&inputs);
    assert!(
        trouble == Trouble::Stuck && text.contains("mbarrier.try_wait"),
        "{text}"
    );
    let (trouble, text) = Snippet::new(
        64,
        "mov.u32 %r5, shared; mbarrier.arrive.shared::cta.b64 _, [%r5];",
    )
    .fault();
    assert!(
        trouble == Trouble::Rule && text.contains("there is no barrier"),
        "{text}"
    );
}

#[test]
fn copies_to_memory_are_read_and_written_when_they_were_waited_for() {
    let body = |between: &str| {
        format!("
        mov.u32 %r5, shared; shl.b32 %r1, %t, 3; add.s32 %r1, %r1, %r5; st.shared.u32 [%r1], %t; st.shared.u32 [%r1+4], %t; bar.sync 0;
        setp.ne.s32 %p1, %t, 0; @%p1 ret; fence.proxy.async.shared::cta;
        cp.async.bulk.global.shared::cta.bulk_group [%out], [%r5], 256; cp.async.bulk.commit_group; {between}
        mov.u32 %r0, 99; st.shared.u32 [%r5+8], %r0; ld.global.u32 %r2, [%out+16]; st.shared.u32 [%r5], %r2; cp.async.bulk.wait_group 0;")
    };
    for timing in TIMINGS {
        let found = Snippet::new(32, &body("cp.async.bulk.wait_group.read 0;"))
            .seeded(0, timing)
            .run(&[])
            .unwrap();
        (0..32).for_each(|lane| assert_eq!(found[2 * lane], lane as u32));
    }
    let found = Snippet::new(32, &body(""))
        .seeded(0, Timing::Late)
        .run(&[])
        .unwrap();
    assert_eq!(found[2], 99, "what was written too early");
    let unread = body("ret;");
    let (trouble, text) = Snippet::new(32, &unread).fault();
    assert!(
        trouble == Trouble::Rule && text.contains("ended before"),
        "{text}"
    );
}

/// Numbers that bf16 and TF32 hold, so that sums of products are exact.
fn small(index: usize) -> f32 {
    ((index * 7 + index / 5) % 13) as f32 - 6.0
}

#[test]
fn products_of_warps_are_sums_of_products() {
    // Each lane makes its parts of A = small(16 row + depth) and B = small(3 + 8 depth + column) and gives out its sums.
    for (deep, name) in [
        (16, "m16n8k16.row.col.f32.bf16.bf16.f32"),
        (8, "m16n8k8.row.col.f32.tf32.tf32.f32"),
    ] {
        let a = |row: usize, depth: usize| small(16 * row + depth);
        let b = |depth: usize, column: usize| small(3 + 8 * depth + column);
        let mut inputs = vec![0_u32; 4 * 96];
        let pair = |low: f32, high: f32| (high.to_bits() >> 16) << 16 | low.to_bits() >> 16;
        for lane in 0..32 {
            let (group, own) = (lane / 4, lane % 4);
            for index in 0..4 {
                let row = group + index % 2 * 8;
                inputs[4 * lane + index] = if deep == 16 {
                    let depth = 2 * own + index / 2 * 8;
                    pair(a(row, depth), a(row, depth + 1))
                } else {
                    a(row, own + index / 2 * 4).to_bits()
                };
            }
            for index in 0..2 {
                inputs[128 + 4 * lane + index] = if deep == 16 {
                    let depth = 2 * own + index * 8;
                    pair(b(depth, group), b(depth + 1, group))
                } else {
                    b(own + index * 4, group).to_bits()
                };
            }
        }
        let body = format!("
            setp.ge.u32 %p1, %t, 32; @%p1 ret; ld.global.v4.u32 {{%r10, %r11, %r12, %r13}}, [%d0]; ld.global.v2.u32 {{%r14, %r15}}, [%d0+512];
            mov.f32 %f0, 0f3F800000; mov.f32 %f1, 0f3F800000; mov.f32 %f2, 0f3F800000; mov.f32 %f3, 0f3F800000;
            mma.sync.aligned.{name} {{%f0, %f1, %f2, %f3}}, {{%r10, %r11, %r12, %r13}}, {{%r14, %r15}}, {{%f0, %f1, %f2, %f3}};
            mul.wide.u32 %d5, %t, 16; add.s64 %d5, %out, %d5; st.global.v4.f32 [%d5], {{%f0, %f1, %f2, %f3}};");
        let found = Snippet::new(96, &body).run(&inputs).unwrap();
        for lane in 0..32 {
            for index in 0..4 {
                let (row, column) = (lane / 4 + index / 2 * 8, lane % 4 * 2 + index % 2);
                let sum: f32 = (0..deep).map(|depth| a(row, depth) * b(depth, column)).sum();
                assert_eq!(
                    f32::from_bits(found[4 * lane + index]),
                    sum + 1.0,
                    "{name}, row {row}, column {column}"
                );
            }
        }
    }
}

#[test]
fn products_of_warpgroups_read_the_swizzle_and_must_be_waited_for() {
    // Rows of 64 numbers of bf16, of which the product takes the first sixteen, in the swizzle of 128 bytes; A has 64 rows, B 8.
    let body = |behind: &str| {
        format!("
        mov.u32 %r5, shared; mul.lo.u32 %r6, %t, 64; mov.u32 %r7, 0;
        fill: setp.ge.u32 %p1, %r7, 64; @%p1 bra filled;
        add.s32 %r8, %r6, %r7; rem.u32 %r9, %r8, 13; sub.s32 %r9, %r9, 6; cvt.rn.f32.s32 %f9, %r9; {{ cvt.rn.bf16.f32 %h1, %f9;}}
        shl.b32 %r10, %r8, 1; shr.u32 %r11, %r10, 3; and.b32 %r11, %r11, 112; xor.b32 %r10, %r10, %r11; add.s32 %r10, %r10, %r5;
        st.shared.u16 [%r10], %h1; add.s32 %r7, %r7, 1; bra fill;
        filled: fence.proxy.async.shared::cta; bar.sync 0;
        cvt.u64.u32 %d5, %r5; shr.u64 %d5, %d5, 4; or.b64 %d5, %d5, 4611686293305360384; add.s64 %d6, %d5, 512;
        setp.ne.s32 %p2, %t, %t; mov.f32 %f0, 0f3F800000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;
        wgmma.fence.sync.aligned;
        wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{%f0, %f1, %f2, %f3}}, %d5, %d6, %p2, 1, 1, 0, 0;
        wgmma.commit_group.sync.aligned; {behind} wgmma.wait_group.sync.aligned 0;
        mov.b32 %r0, %f0; mov.b32 %r1, %f3; st.global.u32 [%at+4], %r1;{STORE}")
    };
    let number = |row: usize, depth: usize| ((64 * row + depth) % 13) as f32 - 6.0;
    let sum = |row: usize, column: usize| {
        (0..16)
            .map(|depth| number(row, depth) * number(64 + column, depth))
            .sum::<f32>()
    };
    for seed in 0..3 {
        let found = Snippet::new(128, &body(""))
            .seeded(seed, Timing::Late)
            .run(&[])
            .unwrap();
        for thread in 0..128 {
            let (row, column) = (thread / 32 * 16 + thread % 32 / 4, thread % 4 * 2);
            assert_eq!(
                f32::from_bits(found[2 * thread]),
                sum(row, column),
                "thread {thread}"
            );
            assert_eq!(
                f32::from_bits(found[2 * thread + 1]),
                sum(row + 8, column + 1),
                "thread {thread}"
            );
        }
    }
    let (trouble, text) = Snippet::new(128, &body("st.shared.u32 [%r5+8192], %r5;")).fault();
    assert!(
        trouble == Trouble::Rule && text.contains("written again before"),
        "{text}"
    );
}
