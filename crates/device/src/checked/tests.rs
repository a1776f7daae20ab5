//! Every check fires, and none does where the contract is kept.

use super::Checked;
use crate::{Activation, Backend, Epilogue, FreePlaces, Pending, Recorder, RowOrder, Rows, WeightPart};
use paceline_types::DType;

type Device = Checked<Recorder>;

const PLAIN: Activation = Activation::ReluSquared;

fn device() -> (Device, Rows<Device>) {
    let device = Checked::new(Recorder::new());
    let rows = Rows::new(&device, 8).expect("nothing is allocated");
    (device, rows)
}

fn tensor(device: &Device, rows: &Rows<Device>) -> <Device as Backend>::Tensor {
    device.tensor(rows, 4).expect("nothing is allocated")
}

fn weight(device: &Device) -> <Device as Backend>::Weight {
    let part = WeightPart {
        name: "w",
        dtype: DType::F32,
        stored_rows: 4,
        columns: 4,
        data: &[],
        order: RowOrder::Stored,
    };
    device.weight(&[part], None).expect("nothing is allocated")
}

/// A tensor that has contents in the program that is being collected.
fn filled(device: &Device, rows: &Rows<Device>) -> <Device as Backend>::Tensor {
    let mut out = tensor(device, rows);
    let frequencies = device.buffer(2).expect("nothing is allocated");
    let tables = crate::StepTables::new(
        device,
        crate::StepLimits {
            tokens: 8,
            requests: 8,
            samples: 8,
            blocks_per_request: 1,
            block_size: 16,
        },
    );
    let tables = tables.expect("nothing is allocated");
    device.rope_angles(&tables, &frequencies, 1.0, &mut out);
    out
}

#[test]
fn programs_that_keep_the_contract_are_let_through() {
    let (device, rows) = device();
    let matrix = weight(&device);
    device.begin_capture();
    let x = filled(&device, &rows);
    let mut y = tensor(&device, &rows);
    device.linear(&x, &matrix, Epilogue::NONE, &mut y);
    let mut again = device.reshape(&x, &rows, 4);
    device.activate(&y, PLAIN, &mut again);
    device.copy(&again, &mut y);
    // Side by side, and read as one.
    let joined = tensor(&device, &rows);
    device.copy(&device.columns(&y, 0..1), &mut device.columns(&joined, 0..1));
    device.copy(&device.columns(&y, 1..4), &mut device.columns(&joined, 1..4));
    device.copy(&joined, &mut y);
    let program = device.end_capture();
    device.seal();
    device.launch(&program);
}

#[test]
#[should_panic(expected = "contract: a buffer is allocated after the start")]
fn memory_after_the_start() {
    let (device, _) = device();
    device.seal();
    let _ = device.buffer::<f32>(1);
}

#[test]
#[should_panic(expected = "contract: a program is captured after the start")]
fn a_capture_after_the_start() {
    let (device, _) = device();
    device.seal();
    device.begin_capture();
}

#[test]
#[should_panic(expected = "contract: rope_angles is enqueued outside a program after the start")]
fn an_operation_outside_programs_after_the_start() {
    let (device, rows) = device();
    let mut out = tensor(&device, &rows);
    let frequencies = device.buffer(2).expect("nothing is allocated");
    let limits = crate::StepLimits {
        tokens: 8,
        requests: 1,
        samples: 1,
        blocks_per_request: 1,
        block_size: 16,
    };
    let tables = crate::StepTables::new(&device, limits).expect("nothing is allocated");
    device.seal();
    device.rope_angles(&tables, &frequencies, 1.0, &mut out);
}

#[test]
#[should_panic(expected = "was captured elsewhere")]
fn the_program_of_another_device() {
    let (device, _) = device();
    let (other, _) = self::device();
    other.buffer::<f32>(1).expect("nothing is allocated");
    other.begin_capture();
    let program = other.end_capture();
    device.launch(&program);
}

#[test]
#[should_panic(expected = "contract: copy reads columns 0..4 of x, whose rows nobody wrote in this program")]
fn scratch_that_nobody_wrote() {
    let (device, rows) = device();
    device.begin_capture();
    let x = tensor(&device, &rows);
    device.copy(&x, &mut tensor(&device, &rows));
}

#[test]
#[should_panic(expected = "contract: copy reads columns 0..4 of x, whose rows nobody wrote in this program")]
fn scratch_of_the_program_before() {
    let (device, rows) = device();
    device.begin_capture();
    let x = filled(&device, &rows);
    let mut y = tensor(&device, &rows);
    device.copy(&x, &mut y);
    device.end_capture();
    device.begin_capture();
    device.copy(&x, &mut y);
}

#[test]
#[should_panic(expected = "contract: copy reads columns 3..4 of x")]
fn columns_that_nobody_wrote() {
    let (device, rows) = device();
    device.begin_capture();
    let (x, y) = (filled(&device, &rows), tensor(&device, &rows));
    device.copy(&device.columns(&x, 0..3), &mut device.columns(&y, 0..3));
    device.copy(&y, &mut tensor(&device, &rows));
}

#[test]
#[should_panic(expected = "contract: copy reads columns 0..4 of x")]
fn the_rows_of_another_space() {
    let (device, rows) = device();
    let others = Rows::new(&device, 8).expect("nothing is allocated");
    device.begin_capture();
    let x = filled(&device, &rows);
    let mut seen_otherwise = x.clone();
    seen_otherwise.place.rows = others.live.name;
    device.copy(&seen_otherwise, &mut tensor(&device, &others));
}

#[test]
#[should_panic(expected = "contract: copy reads x, whose memory another tensor was written to")]
fn memory_that_was_handed_out_again() {
    let (device, rows) = device();
    device.begin_capture();
    let (x, y) = (filled(&device, &rows), filled(&device, &rows));
    let mut again = device.reshape(&x, &rows, 4);
    device.copy(&y, &mut again);
    device.copy(&x, &mut tensor(&device, &rows));
}

#[test]
#[should_panic(expected = "contract: gather for 8 rows, with index of 7")]
fn a_buffer_that_is_too_short() {
    let (device, rows) = device();
    device.begin_capture();
    let x = filled(&device, &rows);
    let index = device.buffer(7).expect("nothing is allocated");
    device.gather(&x, &index, &mut tensor(&device, &rows));
}

#[test]
#[should_panic(expected = "contract: 9 rows of 4 columns in memory for (8, 4)")]
fn a_tensor_that_is_larger_than_its_memory() {
    let (device, rows) = device();
    let x = tensor(&device, &rows);
    device.reshape(&x, &rows.with_bucket(9), 4);
}

#[test]
fn places_are_free_again_when_their_record_was_read() {
    let (device, _) = device();
    let ring = device.ring(1, 4).expect("nothing is allocated");
    let place = FreePlaces::new(1).take().expect("there is one");
    for _ in 0..3 {
        device.post(&ring, &place, &[1, 2, 3, 4]);
        let record = device.arrival(&ring, &place).wait();
        assert!(record.is_ok());
    }
}

#[test]
#[should_panic(expected = "contract: place 0 of a ring is written while a step in flight has it")]
fn a_place_that_a_step_in_flight_has() {
    let (device, _) = device();
    let ring = device.ring(1, 4).expect("nothing is allocated");
    let place = FreePlaces::new(1).take().expect("there is one");
    device.post(&ring, &place, &[1]);
    let _in_flight = device.arrival(&ring, &place);
    device.post(&ring, &place, &[2]);
}

#[test]
#[should_panic(expected = "contract: 5 words are posted to a place of 4")]
fn a_plan_that_is_longer_than_its_place() {
    let (device, _) = device();
    let ring = device.ring(1, 4).expect("nothing is allocated");
    let place = FreePlaces::new(1).take().expect("there is one");
    device.post(&ring, &place, &[0; 5]);
}
