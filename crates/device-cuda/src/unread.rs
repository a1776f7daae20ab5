//! Results that nobody reads are not written.
//!
//! A kernel that leaves its result rounded, where the next product looks for its inputs, leaves it as f32 too, since it cannot know
//! who else will ask for it. A captured program knows: if the next kernel that names the tensor writes all of it anew, the first
//! result is left out, and the kernel writes the rounded one alone.

use crate::launch::Launch;
use crate::storage::CudaTensor;

/// A tensor that a kernel writes without reading it, in all rows that carry data.
#[derive(Clone, Copy)]
pub(crate) struct Written {
    /// Where its address is among the kernel's arguments, in bytes.
    at: usize,
    /// The addresses of its storage: other tensors may be parts of it too.
    storage: (u64, u64),
    /// First element, row length, columns, rows, and the number of those that carry data.
    place: (u64, usize, usize, usize, u64),
    /// Whether the kernel ahead of this one writes the same tensor, and this one only what that left.
    beside: bool,
    /// Whether the kernel takes a null address for a result that nobody wants.
    spare: bool,
}

impl Written {
    /// The tensor whose matrix is `at` bytes behind the begin of the arguments.
    pub(crate) fn new(tensor: &CudaTensor, at: usize) -> Self {
        let (storage, bytes) = (&tensor.storage, tensor.storage.len() as u64 * 4);
        let first = storage.address() + tensor.first as u64 * 4;
        Self {
            at,
            storage: (storage.address(), storage.address() + bytes),
            place: (
                first,
                tensor.stride,
                tensor.columns,
                tensor.bucket,
                tensor.live.address(),
            ),
            beside: false,
            spare: false,
        }
    }

    /// The same for a kernel that leaves the result elsewhere too, if it does, and can do without this one.
    pub(crate) fn spare_if(self, elsewhere: bool) -> Self {
        Self {
            spare: elsewhere,
            ..self
        }
    }

    /// The same for a kernel that writes what the one ahead of it, which writes the same tensor, has left.
    pub(crate) fn beside(self) -> Self {
        Self { beside: true, ..self }
    }

    /// Whether an address is in the storage.
    fn holds(&self, address: u64) -> bool {
        (self.storage.0..self.storage.1).contains(&address)
    }
}

/// Takes results that nobody reads out of a program.
pub(crate) fn leave_out(program: &mut [Launch]) {
    for index in 0..program.len() {
        let Some(written) = program[index].written.filter(|written| written.spare) else {
            continue;
        };
        if !writes_alone(&program[index], &written) {
            continue;
        }
        // A kernel that writes the rest of the tensor reads nothing of it.
        let rest = |launch: &&Launch| {
            launch
                .written
                .is_some_and(|other| other.beside && other.place == written.place)
        };
        let mut behind = program[index + 1..].iter().skip_while(rest);
        let next = behind.find(|launch| launch.words().any(|word| written.holds(word)));
        if next.is_some_and(|next| writes_alone(next, &written)) {
            program[index].clear_word(written.at);
        }
    }
}

/// Whether a kernel writes the same elements, and has no other address in their storage.
fn writes_alone(launch: &Launch, tensor: &Written) -> bool {
    let same = launch.written.is_some_and(|own| own.place == tensor.place);
    same && launch.words().filter(|word| tensor.holds(*word)).count() == 1
}
