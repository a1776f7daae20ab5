//! Rings in memory that host and device see.

use crate::arguments::Ptr;
use crate::context::Context;
use crate::driver::check;
use crate::read::Pinned;
use cudarc::driver::sys::CUresult;
use paceline_device::abi::RecordHeader;
use paceline_device::{DeviceError, Pending};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Looks at a place before the stream is asked whether it still runs: about ten microseconds.
const LOOKS: u32 = 256;

/// Places of equal size. The last word of each is its mark: the number of the step that wrote it, written last.
#[derive(Clone)]
pub struct CudaRing(Arc<Ring>);

struct Ring {
    context: Arc<Context>,
    memory: Pinned,
    words: usize,
    stride: usize,
    /// Per place, the mark of the record that was waited for last.
    seen: Vec<AtomicU32>,
}

impl CudaRing {
    pub(crate) fn new(context: &Arc<Context>, places: usize, words: usize) -> Result<Self, DeviceError> {
        let stride = (words + 1).next_multiple_of(32);
        Ok(Self(Arc::new(Ring {
            context: Arc::clone(context),
            memory: Pinned::new(context, places * stride * 4, "a ring")?,
            words,
            stride,
            seen: (0..places).map(|_| AtomicU32::new(0)).collect(),
        })))
    }

    /// Words of a place that hold a message.
    pub(crate) fn words(&self) -> usize {
        self.0.words
    }

    /// Words from one place to the next.
    pub(crate) fn stride(&self) -> usize {
        self.0.stride
    }

    pub(crate) fn ptr(&self) -> Ptr<i32> {
        Ptr::new(self.0.memory.address)
    }

    /// Writes a message to the front of a place.
    pub(crate) fn write(&self, place: usize, message: &[i32]) {
        assert!(
            message.len() <= self.0.words,
            "a message of {} words",
            message.len()
        );
        // SAFETY: whoever holds a place has it for itself; the device reads it in programs launched later.
        unsafe { std::ptr::copy_nonoverlapping(message.as_ptr(), self.0.place(place), message.len()) };
    }
}

impl Ring {
    fn place(&self, place: usize) -> *mut i32 {
        assert!(
            place < self.seen.len(),
            "place {place} of a ring of {}",
            self.seen.len()
        );
        #[allow(clippy::cast_ptr_alignment, reason = "pinned memory starts at a page")]
        let words = self.memory.host.cast::<i32>();
        // SAFETY: within the memory, as checked.
        unsafe { words.add(place * self.stride) }
    }

    fn mark(&self, place: usize) -> &AtomicU32 {
        // SAFETY: the last word of the place; the device writes it whole, and the host reads it as an atomic.
        unsafe { AtomicU32::from_ptr(self.place(place).add(self.stride - 1).cast()) }
    }

    /// Waits until the mark is another than the one seen last, or the stream has failed.
    fn wait(&self, place: usize) -> Result<u32, DeviceError> {
        let (mark, seen) = (self.mark(place), self.seen[place].load(Ordering::Relaxed));
        loop {
            for _ in 0..LOOKS {
                let now = mark.load(Ordering::Acquire);
                if now != seen {
                    return Ok(now);
                }
                std::hint::spin_loop();
            }
            if let Some(failure) = self.context.failure() {
                return Err(failure);
            }
            match self.context.query() {
                CUresult::CUDA_ERROR_NOT_READY => std::thread::yield_now(),
                CUresult::CUDA_SUCCESS if mark.load(Ordering::Acquire) == seen => {
                    return Err(DeviceError::Failed("a step ended without a record".to_owned()));
                }
                CUresult::CUDA_SUCCESS => {}
                failed => {
                    let result = check(failed, "a step");
                    self.context.remember(result.clone());
                    result?;
                }
            }
        }
    }
}

/// A record in flight.
pub struct CudaArrival {
    ring: CudaRing,
    place: usize,
    waited: bool,
}

impl CudaArrival {
    /// The record that the program launched last leaves in a place.
    pub(crate) fn new(ring: &CudaRing, place: usize) -> Self {
        Self {
            ring: ring.clone(),
            place,
            waited: false,
        }
    }
}

impl Pending<Vec<i32>> for CudaArrival {
    fn wait(mut self) -> Result<Vec<i32>, DeviceError> {
        self.waited = true;
        let ring = &*self.ring.0;
        ring.context.count_wait();
        let mark = ring.wait(self.place)?;
        ring.seen[self.place].store(mark, Ordering::Relaxed);
        // SAFETY: the step has written its mark, which it does last, and its place is not handed to another before this
        // record is read.
        let words = unsafe { std::slice::from_raw_parts(ring.place(self.place), ring.words) };
        let header: &RecordHeader = bytemuck::from_bytes(bytemuck::cast_slice(&words[..RecordHeader::WORDS]));
        Ok(words[..header.words().min(ring.words)].to_vec())
    }
}

impl Drop for CudaArrival {
    /// A record that nobody wants must not be taken for the next one in its place.
    fn drop(&mut self) {
        if !self.waited {
            let ring = &*self.ring.0;
            if ring.context.synchronise().is_ok() {
                ring.seen[self.place].store(ring.mark(self.place).load(Ordering::Acquire), Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Gpu;

    const WORDS: usize = RecordHeader::WORDS + 5;

    fn ring(places: usize) -> CudaRing {
        let gpu = Gpu::imagined();
        let context = Context::rehearse(gpu).unwrap();
        CudaRing::new(&Arc::new(context), places, WORDS).unwrap()
    }

    /// What the device does at the end of a step: the record, then the mark.
    fn publish(ring: &CudaRing, place: usize, step: u32) {
        let header = RecordHeader {
            step: u64::from(step).into(),
            ..RecordHeader::default()
        };
        let words: &[i32] = bytemuck::cast_slice(std::slice::from_ref(&header));
        ring.write(place, words);
        ring.0.mark(place).store(step << 1 | 1, Ordering::Release);
    }

    fn step_of(words: &[i32]) -> u64 {
        let header: &RecordHeader = bytemuck::from_bytes(bytemuck::cast_slice(&words[..RecordHeader::WORDS]));
        header.step.into()
    }

    #[test]
    fn messages_stay_in_their_places_and_off_the_marks() {
        let ring = ring(3);
        assert!(ring.stride() > WORDS && ring.stride().is_multiple_of(32));
        for place in 0..3 {
            ring.write(place, &[place as i32 + 1; WORDS]);
        }
        for place in 0..3 {
            // SAFETY: a place has this many words.
            let words = unsafe { std::slice::from_raw_parts(ring.0.place(place), ring.stride()) };
            assert!(words[..WORDS].iter().all(|word| *word == place as i32 + 1));
            assert!(words[WORDS..].iter().all(|word| *word == 0));
        }
    }

    #[test]
    fn each_wait_takes_the_record_of_its_own_step() {
        let ring = ring(2);
        for step in 1..9_u32 {
            let place = (step as usize - 1) % 2;
            let arrival = CudaArrival::new(&ring, place);
            let device = ring.clone();
            let publisher = std::thread::spawn(move || publish(&device, place, step));
            publisher.join().unwrap();
            let words = arrival.wait().unwrap();
            assert_eq!(
                (step_of(&words), words.len()),
                (u64::from(step), RecordHeader::WORDS)
            );
        }
        assert_eq!(ring.0.context.waits.load(Ordering::Relaxed), 8);
    }

    #[test]
    fn a_record_that_nobody_wanted_is_not_taken_for_the_next() {
        let ring = ring(1);
        let dropped = CudaArrival::new(&ring, 0);
        publish(&ring, 0, 1);
        drop(dropped);
        let next = CudaArrival::new(&ring, 0);
        let error = next.wait().unwrap_err().to_string();
        assert!(error.contains("without a record"), "{error}");
        let next = CudaArrival::new(&ring, 0);
        publish(&ring, 0, 2);
        assert_eq!(step_of(&next.wait().unwrap()), 2);
    }

    #[test]
    fn a_device_that_has_failed_tells_whoever_waits() {
        let ring = ring(1);
        let arrival = CudaArrival::new(&ring, 0);
        let lost = DeviceError::Failed("cuGraphLaunch: it fell off the bus".to_owned());
        ring.0.context.remember(Err(lost));
        ring.0
            .context
            .remember(Err(DeviceError::Failed("and then this".to_owned())));
        let error = arrival.wait().unwrap_err().to_string();
        assert!(error.contains("fell off the bus"), "{error}");
    }
}
