//! Capture, failure, and checks of operands.

use crate::harness::{bits, devices, live_rows, matrix, step_of, tensor, token_of, weight};
use paceline_device::abi::{LogitsRow, SamplingRow, TokenRow};
use paceline_device::{Backend, DeviceError, Epilogue, Pending, Sampling, StepLimits, StepTables};
use paceline_device_cpu::{Cpu, CpuOptions};
use std::panic::{AssertUnwindSafe, catch_unwind};

#[test]
fn a_captured_program_computes_what_direct_execution_does() {
    for (device, cpu) in devices() {
        let (vocabulary, hidden, bucket) = (50, 72, 16);
        let table = weight(&cpu, &matrix(1, vocabulary, hidden, 1.0), hidden);
        let matrix_weight = weight(&cpu, &matrix(2, 40, hidden, 1.0), hidden);
        let norm = cpu.buffer_from(&vec![1.5_f32; hidden]).unwrap();
        let tables = step_of(&cpu, &vec![TokenRow::default(); bucket]);
        let rows = &tables.tokens;
        let program = |out: &mut _| {
            let mut x = cpu.tensor(rows, hidden).unwrap();
            let mut y = cpu.tensor(rows, hidden).unwrap();
            cpu.embed(&tables, &table, 1.0, &mut x);
            cpu.rms_norm(&x, &norm, 1e-6, &mut y);
            cpu.linear(&y, &matrix_weight, Epilogue::NONE, out);
        };
        let mut captured_out = cpu.tensor(rows, 40).unwrap();
        cpu.begin_capture();
        program(&mut captured_out);
        let captured = cpu.end_capture();
        for step in [vec![3, 1, 4], vec![1, 5, 9, 2, 6, 5, 3, 5], vec![], vec![49]] {
            cpu.write(&rows.live, &[step.len() as i32]);
            let ids: Vec<TokenRow> = step.iter().copied().map(token_of).collect();
            cpu.write(&tables.token_rows, &ids);
            let mut direct_out = cpu.tensor(rows, 40).unwrap();
            program(&mut direct_out);
            cpu.launch(&captured);
            let direct = cpu.read_tensor(&direct_out).wait().unwrap();
            assert_eq!(direct.len(), step.len() * 40);
            let replayed = cpu.read_tensor(&captured_out).wait().unwrap();
            assert_eq!(bits(&direct), bits(&replayed), "{device}");
        }
    }
}

#[test]
fn captured_operations_do_not_run_until_launched() {
    let cpu = Cpu::new(CpuOptions::default());
    let rows = live_rows(&cpu, 1);
    let x = tensor(&cpu, &rows, &[2.0, 3.0], 2);
    let mut out = cpu.tensor(&rows, 2).unwrap();
    cpu.begin_capture();
    cpu.copy(&x, &mut out);
    let program = cpu.end_capture();
    assert_eq!(cpu.read_tensor(&out).wait().unwrap(), [0.0, 0.0]);
    cpu.launch(&program);
    assert_eq!(cpu.read_tensor(&out).wait().unwrap(), [2.0, 3.0]);
}

#[test]
fn a_failed_operation_is_reported_by_every_later_read() {
    for (_, cpu) in devices() {
        let rows = live_rows(&cpu, 3);
        let good = tensor(&cpu, &rows, &matrix(1, 3, 8, 1.0), 8);
        let mut out = cpu.tensor(&rows, 8).unwrap();
        let before = cpu.read_tensor(&good);
        let step = step_of(&cpu, &[0, 7, 1].map(token_of));
        cpu.embed(&step, &weight(&cpu, &matrix(1, 5, 8, 1.0), 8), 1.0, &mut out);
        cpu.copy(&good, &mut out);
        assert!(before.wait().is_ok());
        for _ in 0..2 {
            match cpu.read_tensor(&out).wait() {
                Err(DeviceError::Failed(why)) => assert!(why.contains('7'), "{why}"),
                other => panic!("not a failure: {other:?}"),
            }
        }
    }
}

#[test]
fn the_message_of_a_worker_reaches_the_reader() {
    // Large enough to be spread over the pool; the row that fails may be anyone's.
    for (_, cpu) in devices() {
        let rows = live_rows(&cpu, 400);
        let x = tensor(&cpu, &rows, &matrix(1, 400, 1000, 1.0), 1000);
        let mut out = cpu.tensor(&rows, 1000).unwrap();
        let mut index: Vec<i32> = (0..400).collect();
        index[399] = 4000;
        cpu.gather(&x, &cpu.buffer_from(&index).unwrap(), &mut out);
        match cpu.read_tensor(&out).wait() {
            Err(DeviceError::Failed(why)) => assert!(why.contains("gather: row 399"), "{why}"),
            other => panic!("not a failure: {:?}", other.map(|values| values.len())),
        }
    }
}

#[test]
fn mismatched_operands_are_refused_with_their_shapes() {
    let cpu = Cpu::new(CpuOptions::default());
    let rows = live_rows(&cpu, 2);
    let x = cpu.tensor(&rows, 8).unwrap();
    let refusal = |run: &dyn Fn()| {
        let panic = catch_unwind(AssertUnwindSafe(run)).expect_err("must be refused");
        panic.downcast_ref::<String>().cloned().unwrap_or_default()
    };
    let why = refusal(&|| cpu.copy(&x, &mut cpu.tensor(&rows, 9).unwrap()));
    assert_eq!(why, "copy: [2, 8] and [2, 9] differ in columns");
    let why = refusal(&|| cpu.copy(&cpu.columns(&x, 0..5), &mut cpu.columns(&x, 3..8)));
    assert_eq!(why, "copy: the output [2, 5] overlaps an operand [2, 5]");
    let why = refusal(&|| {
        let norm = cpu.buffer(7).unwrap();
        cpu.rms_norm(&x, &norm, 0.0, &mut cpu.tensor(&rows, 8).unwrap());
    });
    assert_eq!(why, "rms_norm: weight has 7 elements, not 8");
    // Columns side by side are fine.
    cpu.copy(&cpu.columns(&x, 0..4), &mut cpu.columns(&x, 4..8));
    assert!(cpu.read_tensor(&x).wait().is_ok());
}

#[test]
fn logits_that_are_not_numbers_fail_the_step() {
    let cpu = Cpu::new(CpuOptions::default());
    let limits = StepLimits {
        tokens: 2,
        requests: 1,
        samples: 2,
        blocks_per_request: 1,
        block_size: 16,
    };
    let step = StepTables::new(&cpu, limits).unwrap();
    cpu.write(&step.samples.live, &[2]);
    // Infinity minus infinity in the second row.
    let table = weight(&cpu, &[1.0, 2.0, 1.0, 3e38], 2);
    cpu.write(&step.token_rows, &[0, 1].map(token_of));
    let mut logits = cpu.tensor(&step.samples, 2).unwrap();
    let mut other = cpu.tensor(&step.samples, 2).unwrap();
    cpu.embed(&step, &table, 10.0, &mut logits);
    cpu.embed(&step, &table, 10.0, &mut other);
    cpu.add(&mut logits, &other, -1.0, None);
    let row = LogitsRow {
        sampling: SamplingRow {
            top_p: 1.0,
            logprobs: -1,
            ..SamplingRow::default()
        },
        ..LogitsRow::default()
    };
    cpu.write(&step.logits_rows, &[row, row]);
    let tokens = cpu.buffer(2).unwrap();
    let sampling = Sampling {
        step: &step,
        options: None,
        text: paceline_device::SampledText::Step,
        tokens: &tokens,
        logprobs: &cpu.buffer(2).unwrap(),
    };
    cpu.sample(&logits, sampling);
    let why = cpu.read(&tokens, 2).wait().unwrap_err().to_string();
    assert!(why.contains("row 1"), "{why}");
}
