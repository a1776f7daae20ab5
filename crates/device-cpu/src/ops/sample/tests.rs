//! The shortcuts of sampling against sampling without any.

use super::*;

fn logits(len: usize, scale: f32, seed: u32) -> Vec<f32> {
    (0..len)
        .map(|i| {
            let bits = philox4x32([i as u32, 0, 0, 0], [seed, 1])[0];
            // Few distinct values, so that ties occur.
            ((bits >> 20) as f32 / 2048.0 - 1.0) * scale + 0.0
        })
        .collect()
}

fn row(logits: &[f32], temperature: f32, min_p: f32, position: i32) -> Row<'_> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    Row {
        logits,
        max,
        first: first_of(logits, max),
        temperature,
        floor: min_p.ln(),
        noise: Noise::new(99, position),
    }
}

/// The argmax without any shortcut.
fn plain_argmax(row: &Row<'_>, ids: impl Iterator<Item = u32>) -> u32 {
    let mut best = row.opening();
    for id in ids {
        let scaled = row.scaled(row.logits[id as usize]);
        if scaled >= row.floor {
            best.consider(scaled + gumbel(uniform(row.noise.bits(id))), id);
        }
    }
    best.id
}

#[test]
fn the_shortcuts_never_miss_the_winner() {
    for (seed, scale) in [0.0, 1.0, 5.0, 40.0].into_iter().enumerate() {
        let logits = logits(3001, scale, seed as u32);
        for position in 0..60 {
            for (temperature, min_p) in [(1.0, 0.0), (0.1, 0.0), (3.0, 0.0), (1.0, 0.05)] {
                let row = row(&logits, temperature, min_p, position);
                let expected = plain_argmax(&row, 0..3001);
                assert_eq!(
                    Instructions::detect().run(DrawAll(&row, Boundary::NONE)),
                    expected
                );
                assert_eq!(
                    Instructions::Portable.run(DrawAll(&row, Boundary::NONE)),
                    expected
                );
            }
        }
    }
}

#[test]
fn survivors_are_those_of_a_full_sort() {
    for (seed, scale) in [0.0, 1.0, 5.0, 40.0].into_iter().enumerate() {
        let logits = logits(3001, scale, seed as u32);
        for (top_k, top_p, min_p) in [
            (Some(1), None, 0.0),
            (Some(50), None, 0.0),
            (Some(2900), None, 0.0),
            (None, Some(0.3), 0.0),
            (None, Some(0.95), 0.0),
            (None, Some(0.9999), 0.02),
            (Some(700), Some(0.5), 0.0),
            (Some(70), Some(0.99), 0.5),
            (None, Some(0.0), 0.0),
        ] {
            let row = row(&logits, 1.3, min_p, 0);
            let actual = if let Some(top_k) = top_k {
                let list = candidates::survivors(Instructions::detect(), &row, top_k, top_p);
                let mut ids: Vec<u32> = list.iter().map(|candidate| candidate.id).collect();
                ids.sort_unstable();
                assert_eq!(row.draw_from(&list), plain_argmax(&row, ids.iter().copied()));
                ids
            } else {
                let last = candidates::boundary(Instructions::detect(), &row, top_p.unwrap());
                let ids: Vec<u32> = (0..3001).filter(|id| takes_part(&row, last, *id)).collect();
                let drawn = Instructions::detect().run(DrawAll(&row, last));
                assert_eq!(drawn, plain_argmax(&row, ids.iter().copied()));
                ids
            };
            let expected = sorted_survivors(&row, top_k, top_p);
            // The mass is summed in another order, so the boundary may move by one equal or tiny step.
            let difference = actual.iter().filter(|id| !expected.contains(id)).count()
                + expected.iter().filter(|id| !actual.contains(id)).count();
            assert!(
                difference <= 1,
                "{top_k:?} {top_p:?} {min_p} {scale}: {difference}"
            );
        }
    }
}

fn takes_part(row: &Row<'_>, last: Boundary, id: u32) -> bool {
    let logit = row.logits[id as usize];
    let within = logit > last.logit || (logit >= last.logit && id <= last.id);
    within && row.scaled(logit) >= row.floor
}

fn sorted_survivors(row: &Row<'_>, top_k: Option<usize>, top_p: Option<f32>) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..row.logits.len() as u32).collect();
    ids.sort_by(|a, b| {
        let (x, y) = (row.logits[*a as usize], row.logits[*b as usize]);
        y.total_cmp(&x).then(a.cmp(b))
    });
    ids.retain(|id| row.scaled(row.logits[*id as usize]) >= row.floor);
    ids.truncate(top_k.unwrap_or(usize::MAX));
    let mass = |id: &u32| f64::from(row.scaled(row.logits[*id as usize])).exp();
    let total: f64 = ids.iter().map(mass).sum();
    let mut sum = 0.0;
    let target = f64::from(top_p.unwrap_or(2.0)) * total;
    let kept = ids.iter().position(|id| {
        sum += mass(id);
        sum >= target
    });
    ids.truncate(kept.map_or(ids.len(), |kept| kept + 1));
    ids.sort_unstable();
    ids
}

#[test]
fn noise_is_finite_at_both_ends() {
    for bits in [0, 1, u32::MAX / 2, u32::MAX - 1, u32::MAX] {
        let w = uniform(bits);
        assert!(w > 0.0 && w < 1.0, "{bits}");
        assert!(gumbel(w).is_finite(), "{bits}");
    }
    assert!(uniform(0) >= SMALLEST);
}
