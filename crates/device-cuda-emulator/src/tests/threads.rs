//! Lanes that part and meet, warps and blocks that wait for each other, and what never ends.

use super::{Snippet, words};
use crate::exec::Trouble;
use crate::settings::Timing;

const STORE: &str = "st.global.u32 [%at], %r0;";

#[test]
fn lanes_part_and_meet_again() {
    // As often as the thread's number says, and a shuffle behind it, for which all lanes have to be back.
    let body = "
        mov.u32 %r0, 0; mov.u32 %r1, 0;
        again: setp.ge.u32 %p1, %r1, %t; @%p1 bra done;
        add.s32 %r0, %r0, %r1; add.s32 %r1, %r1, 1; bra again;
        done: shfl.sync.bfly.b32 %r2|%p2, %r0, 1, 31, -1; mov.u32 %r0, %r2;";
    let found = Snippet::new(64, &format!("{body}{STORE}")).run(&[]).unwrap();
    for thread in 0..64 {
        let other = thread as u32 ^ 1;
        assert_eq!(
            found[2 * thread],
            other * other.wrapping_sub(1) / 2 * u32::from(other > 0)
        );
    }
    // Of three ways, one ends at once.
    let body = "
        setp.lt.u32 %p1, %t, 5; @%p1 bra few; setp.gt.u32 %p2, %t, 20; @%p2 ret;
        mov.u32 %r0, 1; bra both; few: mov.u32 %r0, 2; both: activemask.b32 %r1; vote.sync.ballot.b32 %r1, %p1, -1;
        shl.b32 %r1, %r1, 8; or.b32 %r0, %r0, %r1;";
    let found = Snippet::new(32, &format!("{body}{STORE}")).run(&[]).unwrap();
    for thread in 0..32_usize {
        let expected = if thread > 20 {
            0
        } else {
            0x1f00 | if thread < 5 { 2 } else { 1 }
        };
        assert_eq!(found[2 * thread], expected, "thread {thread}");
    }
}

#[test]
fn lanes_exchange_values() {
    let inputs = words(4 * 32, 5);
    let value = |lane: usize| inputs[4 * lane];
    for (body, expected) in [
        (
            "shfl.sync.up.b32 %r1|%p1, %a, 3, 0, -1; selp.b32 %r0, %r1, 7, %p1;",
            &(|lane: usize| if lane < 3 { 7 } else { value(lane - 3) }) as &dyn Fn(usize) -> u32,
        ),
        (
            "shfl.sync.down.b32 %r1|%p1, %a, 2, 31, -1; selp.b32 %r0, %r1, 7, %p1;",
            &|lane| if lane > 29 { 7 } else { value(lane + 2) },
        ),
        ("shfl.sync.idx.b32 %r0|%p1, %a, 9, 31, -1;", &|_| value(9)),
        ("shfl.sync.bfly.b32 %r0|%p1, %a, 4, 31, -1;", &|lane| {
            value(lane ^ 4)
        }),
        ("redux.sync.max.u32 %r0, %a, -1;", &|_| {
            (0..32).map(value).max().unwrap()
        }),
        ("redux.sync.min.s32 %r0, %a, -1;", &|_| {
            (0..32).map(|lane| value(lane) as i32).min().unwrap() as u32
        }),
        ("match.any.sync.b32 %r0, %a, -1;", &|lane| {
            (0..32)
                .filter(|other| value(*other) == value(lane))
                .fold(0, |mask, other| mask | 1 << other)
        }),
        (
            "setp.gt.u32 %p1, %a, 99; vote.sync.all.pred %p2, %p1, -1; selp.u32 %r0, 1, 0, %p2;",
            &|_| u32::from((0..32).all(|lane| value(lane) > 99)),
        ),
    ] {
        let found = Snippet::new(32, &format!("{body}{STORE}")).run(&inputs).unwrap();
        (0..32).for_each(|lane| assert_eq!(found[2 * lane], expected(lane), "{body}, lane {lane}"));
    }
}

/// Each thread leaves its number for another one, in other warps too.
fn exchange(barrier: &str) -> Snippet {
    let body = format!(
        "
        mov.u32 %r5, shared; shl.b32 %r1, %t, 2; add.s32 %r1, %r1, %r5; st.shared.u32 [%r1], %t;
        {barrier}
        sub.s32 %r2, 255, %t; shl.b32 %r2, %r2, 2; add.s32 %r2, %r2, %r5; ld.shared.u32 %r0, [%r2];"
    );
    Snippet::new(256, &format!("{body}{STORE}"))
}

#[test]
fn a_missing_barrier_shows() {
    let right = |found: &[u32]| (0..256).all(|thread| found[2 * thread] == 255 - thread as u32);
    for seed in 0..8 {
        let found = exchange("bar.sync 0;")
            .seeded(seed, Timing::Late)
            .run(&[])
            .unwrap();
        assert!(right(&found), "seed {seed}");
        let found = exchange("").seeded(seed, Timing::Late).run(&[]).unwrap();
        assert!(!right(&found), "seed {seed}");
    }
}

#[test]
fn barriers_by_number_take_as_many_threads_as_they_say() {
    // The upper half announces, the lower one waits for it.
    let body = "
        mov.u32 %r5, shared; shl.b32 %r1, %t, 2; add.s32 %r1, %r1, %r5; setp.ge.u32 %p1, %t, 64; @!%p1 bra low;
        st.shared.u32 [%r1], %t; bar.arrive 3, 128; ret;
        low: bar.sync 3, 128; ld.shared.u32 %r0, [%r1+256];";
    for seed in 0..4 {
        let found = Snippet::new(128, &format!("{body}{STORE}"))
            .seeded(seed, Timing::Late)
            .run(&[])
            .unwrap();
        (0..64).for_each(|thread| assert_eq!(found[2 * thread], thread as u32 + 64));
    }
    let counted = "setp.lt.u32 %p1, %t, 100; bar.red.popc.u32 %r0, 0, %p1;";
    let found = Snippet::new(128, &format!("{counted}{STORE}")).run(&[]).unwrap();
    assert!((0..128).all(|thread| found[2 * thread] == 100));
}

#[test]
fn changes_of_all_threads_add_up() {
    let body = "mov.u32 %r5, shared; setp.eq.s32 %p1, %t, 0; @%p1 st.shared.u32 [%r5], %t; bar.sync 0;
        atom.shared.add.u32 %r0, [%r5], %t; atom.global.add.u32 %r2, [%out+4], 1; red.global.max.u32 [%out+12], %t;";
    let mut snippet = Snippet::new(64, &format!("{body}{STORE}"));
    snippet.shape.blocks = [3, 2, 1];
    let found = snippet.run(&[]).unwrap();
    assert_eq!((found[1], found[3]), (64 * 6, 63));
}

#[test]
fn blocks_wait_for_each_other() {
    // Each block waits until all have come, so that they have to be there at a time.
    let body = "atom.global.add.u32 %r1, [%out+4], 1; again: ld.volatile.global.u32 %r0, [%out+4]; setp.lt.u32 %p1, %r0, 4; @%p1 bra again; mov.u64 %at, %out;";
    let mut snippet = Snippet::new(1, &format!("{body}{STORE}"));
    snippet.shape.blocks = [4, 1, 1];
    snippet.settings.limit = 1 << 28;
    assert_eq!(snippet.run(&[]).unwrap()[0], 4);
    // In a cluster, one block writes to the memory of the next.
    let body = "
        mov.u32 %r5, shared; mov.u32 %r6, %cluster_ctarank; xor.b32 %r7, %r6, 1; mapa.shared::cluster.u32 %r8, %r5, %r7;
        st.shared::cluster.u32 [%r8], %r6; barrier.cluster.arrive.release; barrier.cluster.wait.acquire;
        ld.shared.u32 %r0, [%r5]; mul.wide.u32 %d5, %r6, 8; add.s64 %at, %out, %d5;";
    let mut snippet = Snippet::new(1, &format!("{body}{STORE}"));
    (snippet.shape.blocks, snippet.shape.cluster) = ([2, 1, 1], 2);
    let found = snippet.run(&[]).unwrap();
    assert_eq!((found[0], found[2]), (1, 0));
}

#[test]
fn what_never_ends_is_named() {
    let (trouble, text) = Snippet::new(
        64,
        "setp.lt.u32 %p1, %t, 32; @%p1 bra skip; bar.sync 2, 64; skip:",
    )
    .fault();
    assert_eq!(trouble, Trouble::Stuck);
    for part in [
        "kernel snippet",
        "nothing can go on",
        "warp 1 of block 0",
        "bar.sync 2, 64",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let (trouble, text) = Snippet::new(32, "again: bra again;").fault();
    assert!(trouble == Trouble::Stuck && text.contains("no end"), "{text}");
    let (trouble, text) = Snippet::new(32, "setp.lt.u32 %p1, %t, 9; @%p1 bra skip; redux.sync.add.s32 %r1, %t, -1; skip: redux.sync.add.s32 %r2, %t, -1;").fault();
    assert!(
        trouble == Trouble::Stuck && text.contains("redux.sync.add.s32 %r1"),
        "{text}"
    );
}

#[test]
fn accesses_outside_of_memory_are_found() {
    for (body, trouble, part) in [
        (
            "ld.global.u32 %r0, [%out+512];",
            Trouble::Address,
            "a load of 4 bytes",
        ),
        (
            "mov.u64 %d5, 0; st.global.u32 [%d5], %t;",
            Trouble::Address,
            "a store of 4 bytes at 0x0",
        ),
        (
            "add.s64 %d5, %out, 2; st.global.u32 [%d5], %t;",
            Trouble::Misaligned,
            "not at a multiple",
        ),
        (
            "ld.global.v4.f32 {%f0, %f1, %f2, %f3}, [%out+8];",
            Trouble::Misaligned,
            "16 bytes",
        ),
        (
            "mov.u32 %r1, shared; ld.shared.u32 %r0, [%r1+32768];",
            Trouble::Address,
            "a load",
        ),
        (
            "mov.u32 %r1, 0; ld.shared.u32 %r0, [%r1];",
            Trouble::Address,
            "a load",
        ),
        (
            "mov.u32 %r1, shared; mapa.shared::cluster.u32 %r1, %r1, 1; ld.shared::cluster.u32 %r0, [%r1];",
            Trouble::Address,
            "a load",
        ),
        ("trap;", Trouble::Trap, "gave up"),
    ] {
        let (found, text) = Snippet::new(64, body).fault();
        assert_eq!(found, trouble, "{text}");
        let line = body.split("; ").last().unwrap();
        assert!(
            text.contains(part) && text.contains("thread block [0, 0, 0], line "),
            "{line}: {text}"
        );
    }
}

#[test]
fn memory_that_nobody_wrote_is_no_number() {
    let body =
        "mov.u32 %r1, shared; ld.shared.f32 %f0, [%r1+64]; add.rn.f32 %f0, %f0, %f0; mov.b32 %r0, %f0;";
    let found = Snippet::new(32, &format!("{body}{STORE}")).run(&[]).unwrap();
    assert!(f32::from_bits(found[0]).is_nan());
}
