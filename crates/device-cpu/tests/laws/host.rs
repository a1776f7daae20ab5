//! The host's end of the rings: plans go the way that an engine's go.

use paceline_device::abi::{PlanMessage, RecordHeader};
use paceline_device::{
    Backend, FreePlaces, Pending, Prepare, RingPlace, SlotTable, StepRecord, StepRings, StepTables,
};
use paceline_device_cpu::{Cpu, CpuBuffer};

/// How much there is room for.
#[derive(Clone, Copy)]
pub(crate) struct Room {
    /// Steps in flight.
    pub(crate) depth: usize,
    pub(crate) plan_words: usize,
    pub(crate) record_words: usize,
    /// Plan rows.
    pub(crate) rows: usize,
}

/// Rings, what the device copies of them, and the number of the next step.
pub(crate) struct Host {
    cpu: Cpu,
    pub(crate) rings: StepRings<Cpu>,
    pub(crate) places: FreePlaces,
    pub(crate) plan: CpuBuffer<i32>,
    pub(crate) record: StepRecord<Cpu>,
    /// Steps that have a place.
    pub(crate) steps: u64,
}

impl Host {
    pub(crate) fn new(cpu: &Cpu, room: Room) -> Self {
        let words = (room.plan_words, room.record_words);
        Self {
            rings: StepRings::new(cpu, room.depth, words).unwrap(),
            places: FreePlaces::new(room.depth),
            plan: cpu.buffer(room.plan_words).unwrap(),
            record: StepRecord::new(cpu, room.rows).unwrap(),
            steps: 0,
            cpu: cpu.clone(),
        }
    }

    /// For steps that leave no record in the ring.
    pub(crate) fn without_records(cpu: &Cpu, rows: usize, plan_words: usize) -> Self {
        let room = Room {
            depth: 2,
            plan_words,
            record_words: RecordHeader::WORDS,
            rows,
        };
        Self::new(cpu, room)
    }

    /// The place of the next step.
    pub(crate) fn next_place(&mut self) -> RingPlace {
        self.steps += 1;
        self.places.take().expect("a place that no step in flight has")
    }

    /// Writes a plan as that of the step that has the place.
    pub(crate) fn post(&self, place: &RingPlace, message: &mut PlanMessage) {
        self.cpu
            .post(&self.rings.plans, place, message.encode(self.steps));
    }

    pub(crate) fn enqueue_prepare(&self, slots: &SlotTable<Cpu>, step: &StepTables<Cpu>) {
        self.cpu.prepare(Prepare {
            rings: &self.rings,
            plan: &self.plan,
            slots,
            step,
            record: &self.record,
        });
    }

    /// Prepares a step with this plan, which must be one that the device takes.
    pub(crate) fn prepare(
        &mut self,
        message: &mut PlanMessage,
        slots: &SlotTable<Cpu>,
        step: &StepTables<Cpu>,
    ) {
        let place = self.next_place();
        self.post(&place, message);
        self.enqueue_prepare(slots, step);
        let header = self.cpu.read(&self.record.header, 1).wait().unwrap()[0];
        assert_eq!(
            (u64::from(header.step), header.error),
            (self.steps, 0),
            "{header:?}"
        );
        // The device has a copy of the plan now.
        self.places.put_back(place);
    }
}
