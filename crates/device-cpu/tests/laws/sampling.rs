//! Sampling: greedy choice, frequencies, truncation, log-probabilities.

use crate::harness::{bits, devices, live_rows, numbers, tensor};
use paceline_device::abi::{LogitsRow, Logprobs, MAX_LOGPROBS, SamplingRow, Wide};
use paceline_device::{Backend, Pending, Sampling, StepLimits, StepTables};
use paceline_device_cpu::Cpu;

const PLAIN: SamplingRow = SamplingRow {
    temperature: 1.0,
    top_p: 1.0,
    top_k: 0,
    min_p: 0.0,
    seed: Wide {
        low: 0x9abc_def0,
        high: 0x1234_5678,
    },
    logprobs: -1,
};

/// Samples one token per parameter row, all from the rows of `logits` in turn, at positions `first..`.
fn sample(
    cpu: &Cpu,
    logits: &[Vec<f32>],
    parameters: &[SamplingRow],
    first: usize,
) -> (Vec<i32>, Vec<Logprobs>) {
    let rows = parameters.len();
    let limits = StepLimits {
        tokens: 1,
        requests: 1,
        samples: rows,
        blocks_per_request: 1,
        block_size: 16,
    };
    let step = StepTables::new(cpu, limits).unwrap();
    cpu.write(&step.samples.live, &[rows as i32]);
    let logits_rows: Vec<LogitsRow> = (first..first + rows)
        .zip(parameters)
        .map(|(position, sampling)| LogitsRow {
            position: position as i32,
            sampling: *sampling,
            ..LogitsRow::default()
        })
        .collect();
    cpu.write(&step.logits_rows, &logits_rows);
    let vocabulary = logits[0].len();
    let source = tensor(cpu, &live_rows(cpu, logits.len()), &logits.concat(), vocabulary);
    let index: Vec<i32> = (0..rows).map(|row| (row % logits.len()) as i32).collect();
    let mut all = cpu.tensor(&step.samples, vocabulary).unwrap();
    cpu.gather(&source, &cpu.buffer_from(&index).unwrap(), &mut all);
    let tokens = cpu.buffer(rows).unwrap();
    let logprobs = cpu.buffer(rows).unwrap();
    let sampling = Sampling {
        step: &step,
        options: None,
        text: paceline_device::SampledText::Step,
        tokens: &tokens,
        logprobs: &logprobs,
    };
    cpu.sample(&all, sampling);
    let logprobs = cpu.read(&logprobs, rows);
    (cpu.read(&tokens, rows).wait().unwrap(), logprobs.wait().unwrap())
}

#[test]
fn greedy_rows_take_the_first_of_the_largest() {
    for (_, cpu) in devices() {
        let mut logits = numbers((1, 0, 0), 1003, 5.0);
        logits[700] = 6.0;
        logits[131] = 6.0;
        logits[1002] = 6.0;
        let greedy = SamplingRow {
            temperature: 0.0,
            ..PLAIN
        };
        assert_eq!(sample(&cpu, &[logits], &[greedy], 5).0, [131]);
    }
}

/// Parameters of every kind.
fn mixed() -> Vec<SamplingRow> {
    let mut rows = Vec::new();
    for temperature in [0.0, 0.3, 1.0, 2.5] {
        for (top_k, top_p, min_p) in [
            (0, 1.0, 0.0),
            (5, 1.0, 0.0),
            (0, 0.8, 0.0),
            (0, 1.0, 0.1),
            (40, 0.9, 0.01),
            (100_000, 0.0, 0.0),
        ] {
            rows.push(SamplingRow {
                temperature,
                top_p,
                top_k,
                min_p,
                seed: (rows.len() as u64 % 3).into(),
                logprobs: rows.len() as i32 % 7 - 1,
            });
        }
    }
    rows
}

#[test]
fn a_row_is_sampled_alike_alone_and_in_any_batch() {
    let logits: Vec<Vec<f32>> = (0..3).map(|i| numbers((1, 0, i), 5003, 8.0)).collect();
    let parameters = mixed();
    let (_, plain) = devices().remove(0);
    let mut tokens = Vec::new();
    let mut logprobs = Vec::new();
    for (row, parameters) in parameters.iter().enumerate() {
        let own = vec![logits[row % 3].clone()];
        let (token, reported) = sample(&plain, &own, std::slice::from_ref(parameters), 100 + row);
        tokens.extend(token);
        logprobs.extend(reported);
    }
    for (device, cpu) in devices() {
        let (together, reported) = sample(&cpu, &logits, &parameters, 100);
        assert_eq!(together, tokens, "{device}");
        assert_eq!(bits(&reported), bits(&logprobs), "{device}");
    }
}

/// Probabilities after truncation, by sorting in f64.
fn naive(logits: &[f32], row: &SamplingRow) -> Vec<f64> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
    let max = f64::from(logits[order[0]]);
    let mass = |id: usize| ((f64::from(logits[id]) - max) / f64::from(row.temperature)).exp();
    order.retain(|id| mass(*id) >= f64::from(row.min_p));
    if row.top_k > 0 {
        order.truncate(row.top_k as usize);
    }
    let total: f64 = order.iter().map(|id| mass(*id)).sum();
    let mut sum = 0.0;
    let mut kept = 0;
    while kept < order.len() && (kept == 0 || sum < f64::from(row.top_p) * total) {
        sum += mass(order[kept]);
        kept += 1;
    }
    let mut probabilities = vec![0.0; logits.len()];
    for id in &order[..kept] {
        probabilities[*id] = mass(*id) / sum;
    }
    probabilities
}

#[test]
fn frequencies_match_the_truncated_distribution() {
    const DRAWS: usize = 40_000;
    let (_, cpu) = devices().remove(2);
    let logits = numbers((1, 0, 0), 61, 3.0);
    for row in [
        PLAIN,
        SamplingRow {
            temperature: 0.6,
            ..PLAIN
        },
        SamplingRow { top_k: 9, ..PLAIN },
        SamplingRow { top_p: 0.7, ..PLAIN },
        SamplingRow { min_p: 0.15, ..PLAIN },
        SamplingRow {
            temperature: 1.7,
            top_k: 20,
            top_p: 0.8,
            min_p: 0.05,
            ..PLAIN
        },
    ] {
        let expected = naive(&logits, &row);
        let (tokens, _) = sample(&cpu, std::slice::from_ref(&logits), &vec![row; DRAWS], 0);
        let mut counts = vec![0.0; logits.len()];
        for token in tokens {
            counts[token as usize] += 1.0;
        }
        let (mut chi, mut cells) = (0.0, 0.0);
        for (count, probability) in counts.iter().zip(&expected) {
            if *probability == 0.0 {
                assert!(*count == 0.0, "a token that was cut off was drawn: {row:?}");
            } else {
                let mean = probability * DRAWS as f64;
                chi += (count - mean).powi(2) / mean;
                cells += 1.0;
            }
        }
        // Mean and spread of chi-square: four standard deviations would be a one in ten thousand accident,
        // and the noise is fixed.
        let freedom: f64 = cells - 1.0;
        let limit = freedom + 4.0 * (2.0 * freedom).sqrt();
        assert!(chi < limit, "chi-square {chi} of {freedom} for {row:?}");
    }
}

#[test]
fn seeds_and_positions_give_different_noise_and_the_same_ones_the_same() {
    let (_, cpu) = devices().remove(1);
    let logits = vec![vec![0.0; 1000]];
    let rows = vec![PLAIN; 50];
    let other = vec![
        SamplingRow {
            seed: 7.into(),
            ..PLAIN
        };
        50
    ];
    let first = sample(&cpu, &logits, &rows, 0).0;
    assert_eq!(first, sample(&cpu, &logits, &rows, 0).0);
    assert_eq!(first[10..], sample(&cpu, &logits, &rows, 10).0[..40]);
    let different = sample(&cpu, &logits, &other, 0).0;
    assert!(first.iter().zip(&different).filter(|(a, b)| a == b).count() < 5);
}

#[test]
fn log_probabilities_are_those_of_the_raw_logits() {
    for (_, cpu) in devices() {
        let mut logits = numbers((1, 0, 0), 2001, 6.0);
        logits[1500] = 7.0;
        logits[44] = 7.0;
        let row = SamplingRow {
            temperature: 0.2,
            logprobs: MAX_LOGPROBS as i32,
            ..PLAIN
        };
        let (tokens, logprobs) = sample(&cpu, std::slice::from_ref(&logits), &[row], 3);
        let Logprobs { chosen, top } = logprobs[0];
        let total: f64 = logits.iter().map(|x| f64::from(*x).exp()).sum::<f64>().ln();
        let expect = |id: usize| f64::from(logits[id]) - total;
        assert!((f64::from(chosen) - expect(tokens[0] as usize)).abs() < 1e-5);
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
        for (alternative, id) in top.iter().zip(order) {
            assert_eq!(alternative.token as usize, id);
            assert!((f64::from(alternative.logprob) - expect(id)).abs() < 1e-5);
        }
    }
}

#[test]
fn rows_that_do_not_ask_get_no_log_probabilities() {
    let (_, cpu) = devices().remove(1);
    let (_, logprobs) = sample(&cpu, &[numbers((1, 0, 0), 50, 1.0)], &[PLAIN], 0);
    assert!(bits(&logprobs).iter().all(|word| *word == 0));
}
