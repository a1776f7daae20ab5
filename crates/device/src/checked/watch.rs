//! What a [`Checked`](super::Checked) backend remembers, and what it objects to.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// The state of all handles.
#[derive(Default)]
pub(super) struct Watch {
    next: u64,
    /// The start is over.
    sealed: bool,
    /// Operations are being collected.
    capturing: bool,
    /// Programs that may be launched.
    programs: HashSet<u64>,
    /// Per storage: the tensor that was written there last.
    owners: HashMap<u64, u64>,
    /// Per tensor: what was written in the program that is being collected.
    written: HashMap<u64, Vec<Written>>,
    /// Places that a step in flight has, in both of its rings.
    in_flight: HashSet<usize>,
    /// Programs launched so far, and how many there may be before the device is lost.
    launches: u64,
    last_launch: Option<u64>,
}

/// Some columns of a tensor, over the rows of a row space.
struct Written {
    columns: Range<usize>,
    rows: u64,
}

/// What the watch knows a tensor by.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// Which memory it lies in.
    pub(super) storage: u64,
    /// Which tensor it is: the same memory, handed out again, is another.
    pub(super) tensor: u64,
    /// Its row space.
    pub(super) rows: u64,
    pub(super) columns: Range<usize>,
}

/// Whether two ranges have anything in common.
fn meet(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Place {
    /// Whether they have any memory in common.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.storage == other.storage && (self.tensor != other.tensor || meet(&self.columns, &other.columns))
    }

    /// Whether the other one is part of this one.
    pub(super) fn holds(&self, part: &Self) -> bool {
        (self.tensor, self.rows) == (part.tensor, part.rows)
            && self.columns.start <= part.columns.start
            && part.columns.end <= self.columns.end
    }
}

impl Watch {
    /// A name for something new.
    pub(super) fn name(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Memory is asked for.
    pub(super) fn allocate(&mut self, what: &str) -> u64 {
        assert!(!self.sealed, "contract: {what} is allocated after the start");
        self.name()
    }

    /// Nothing is allocated, captured or run outside a program from now on.
    pub(super) fn seal(&mut self) {
        assert!(!self.capturing, "contract: the start ends inside a capture");
        self.sealed = true;
    }

    pub(super) fn begin_capture(&mut self) {
        assert!(!self.capturing, "contract: a capture inside a capture");
        assert!(!self.sealed, "contract: a program is captured after the start");
        self.capturing = true;
        // What scratch holds from other programs is nothing to this one.
        self.written.clear();
        self.owners.clear();
    }

    /// The name of the program.
    pub(super) fn end_capture(&mut self) -> u64 {
        assert!(
            self.capturing,
            "contract: the end of a capture that was not begun"
        );
        self.capturing = false;
        let program = self.name();
        self.programs.insert(program);
        program
    }

    pub(super) fn launch(&mut self, program: u64) {
        assert!(!self.capturing, "contract: a launch inside a capture");
        assert!(
            self.programs.contains(&program),
            "contract: program {program} was captured elsewhere"
        );
        self.launches += 1;
    }

    /// The device is lost behind this many launches.
    pub(super) fn lose_after(&mut self, launches: u64) {
        self.last_launch = Some(launches);
    }

    pub(super) fn is_lost(&self) -> bool {
        self.last_launch.is_some_and(|last| self.launches > last)
    }

    /// An operation is enqueued.
    pub(super) fn operation(&self, name: &str) {
        assert!(
            self.capturing || !self.sealed,
            "contract: {name} is enqueued outside a program after the start"
        );
    }

    /// An operation reads a tensor.
    pub(super) fn read(&self, name: &str, what: &str, place: &Place) {
        let owner = self.owners.get(&place.storage);
        assert!(
            owner.is_none_or(|owner| *owner == place.tensor),
            "contract: {name} reads {what}, whose memory another tensor was written to"
        );
        let written = self.written.get(&place.tensor).map_or(&[][..], Vec::as_slice);
        let mut columns = place.columns.clone();
        while !columns.is_empty() {
            let covers = |one: &&Written| one.rows == place.rows && one.columns.contains(&columns.start);
            let found = written.iter().filter(covers).map(|one| one.columns.end).max();
            let end = found.unwrap_or_else(|| {
                panic!(
                    "contract: {name} reads columns {columns:?} of {what}, in which no operation of this program left anything"
                )
            });
            columns.start = end.min(columns.end);
        }
    }

    /// An operation writes a tensor.
    pub(super) fn write(&mut self, place: &Place) {
        self.owners.insert(place.storage, place.tensor);
        let written = self.written.entry(place.tensor).or_default();
        // What stood there over other rows is gone.
        written.retain(|one| one.rows == place.rows || !meet(&one.columns, &place.columns));
        written.push(Written {
            columns: place.columns.clone(),
            rows: place.rows,
        });
    }

    /// What an operation wrote there it wrote for itself.
    pub(super) fn forget(&mut self, place: &Place) {
        let written = self.written.entry(place.tensor).or_default();
        written.retain(|one| !meet(&one.columns, &place.columns));
    }

    /// The host writes a place of a ring.
    pub(super) fn post(&mut self, place: usize, (words, room): (usize, usize)) {
        assert!(
            words <= room,
            "contract: {words} words are posted to a place of {room}"
        );
        assert!(
            self.in_flight.insert(place),
            "contract: place {place} of a ring is written while a step in flight has it"
        );
    }

    /// The step that had a place has ended, and its record was read.
    pub(super) fn arrived(&mut self, place: usize) {
        self.in_flight.remove(&place);
    }
}
