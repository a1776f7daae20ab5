//! Instructions of every kernel that takes time, counted one by one, against figures that are kept: a kernel that takes more
//! than it did fails the test. Times depend on the machine and on what else it does; these depend on the code, and a little on
//! how a build is cut.
//!
//! With the processor's trap flag set, a signal follows each instruction of this thread. That needs no counters, which virtual
//! machines rarely have, and no leave to trace, and it counts any instruction set. `PACELINE_TEST_KEEP=1` keeps what was
//! counted as the new figures, `larger` where those before are not larger: once with `CARGO_INCREMENTAL=0` and once without.

mod operations;

use super::{linear, sample};
use crate::pool::Pool;
use crate::simd::Instructions;
use libc::{SIGTRAP, c_int, c_void, siginfo_t, ucontext_t};
use paceline_types::DType;
use std::arch::asm;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Token rows: a decode, a verify window, a batch.
pub(super) const ROWS: [usize; 3] = [1, 4, 8];
/// The same where there are tiles, which more rows are for: two that are not full, and several.
const TILE_ROWS: [usize; 3] = [12, 24, 96];
/// What a figure may rise by. How a build is cut into units moves figures by a few in a hundred, at most 15 where only some are
/// compiled again; those that are kept are the larger of such a build's and of one that compiles all at once.
const TOLERANCE: f64 = 1.1;
/// Per line a family of instructions, a kernel, and what it takes for each of [`ROWS`], or [`TILE_ROWS`]: a product, which is named by its
/// element type, instructions per weight and token row; `inputs`, per input that becomes an integer; `draw`, per token of the
/// vocabulary and row; all else, per token.
const KEPT: &str = include_str!("counts.txt");

/// What a kernel takes.
pub(super) type Figure = [f64; ROWS.len()];

/// Figures by family and kernel.
type Figures = BTreeMap<(String, String), Figure>;

static COUNT: AtomicU64 = AtomicU64::new(0);
/// Of them, those that ask for a cache line.
static ASKED: AtomicU64 = AtomicU64::new(0);
/// Held by the thread that counts.
static COUNTING: Mutex<()> = Mutex::new(());

extern "C" fn count(_signal: c_int, _info: *mut siginfo_t, context: *mut c_void) {
    COUNT.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the system gives the handler the context of what it stopped.
    let next =
        unsafe { (*context.cast::<ucontext_t>()).uc_mcontext.gregs[libc::REG_RIP as usize] } as *const u8;
    // SAFETY: it is the next instruction to be run; no byte behind it is read.
    if unsafe { asks_for_a_line(next) } {
        ASKED.fetch_add(1, Ordering::Relaxed);
    }
}

/// Whether an instruction is one of those that ask for a cache line: `0F 18`, with or without the prefix of upper registers.
///
/// # Safety
/// There is an instruction.
unsafe fn asks_for_a_line(at: *const u8) -> bool {
    // SAFETY: a prefix and the first byte of two have a byte behind them, and the others are not read on from.
    unsafe {
        let at = if at.read() & 0xf0 == 0x40 { at.add(1) } else { at };
        at.read() == 0x0f && at.add(1).read() == 0x18
    }
}

/// Instructions between two changes of the trap flag, one of them counted.
fn stepped(work: impl FnOnce()) -> u64 {
    let _alone = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    COUNT.store(0, Ordering::Relaxed);
    ASKED.store(0, Ordering::Relaxed);
    // SAFETY: changes the trap flag alone; the signal that follows has a handler, and the stack is as it was.
    unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
    work();
    // SAFETY: as above.
    unsafe { asm!("pushfq", "and qword ptr [rsp], -0x101", "popfq") };
    COUNT.load(Ordering::Relaxed)
}

/// What two changes of the flag with nothing in between count, if instructions are counted here at all.
fn overhead() -> Option<u64> {
    let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = count;
    // SAFETY: zeroes are an action without flags and masks; the handler looks at code and adds to atomic numbers.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(SIGTRAP, &raw const action, std::ptr::null_mut());
    }
    let nothing = stepped(|| ());
    // SAFETY: these do nothing.
    let ten = stepped(|| unsafe { asm!(".rept 10", "nop", ".endr") });
    (ten == nothing + 10).then_some(nothing)
}

/// Whether a family has a kernel of its own for a type: floats leave VNNI to quantised types, and those all else.
fn has_own(instructions: Instructions, dtype: DType) -> bool {
    match instructions {
        Instructions::Portable => false,
        Instructions::Avx2(simd) => dtype.is_quantised() || !simd.vnni(),
        Instructions::Avx512(simd) => dtype.is_quantised() == simd.vnni(),
    }
}

/// Counts what a pool of this thread alone takes.
pub(super) struct Counter {
    pub(super) pool: Pool,
    /// Rows to count products for.
    pub(super) rows: [usize; ROWS.len()],
    overhead: u64,
}

impl Counter {
    /// Instructions of something that has run before: what is set up by the first time is not counted.
    pub(super) fn count(&self, mut work: impl FnMut()) -> f64 {
        work();
        (stepped(work) - self.overhead) as f64
    }
}

/// How often something asks for a cache line.
fn asked(work: impl FnOnce()) -> u64 {
    stepped(work);
    ASKED.load(Ordering::Relaxed)
}

fn counted(overhead: u64) -> Figures {
    let mut figures = Figures::new();
    for instructions in Instructions::all() {
        let pool = Pool::new(1, instructions);
        let rows = if instructions.has_tiles() { TILE_ROWS } else { ROWS };
        let counter = Counter { pool, rows, overhead };
        let mut add = |of: &str, figure: Figure| {
            figures.insert((instructions.name().to_owned(), of.to_owned()), figure);
        };
        for dtype in DType::ALL
            .into_iter()
            .filter(|dtype| has_own(instructions, *dtype))
        {
            add(dtype.name(), linear::counts::product(&counter, dtype));
        }
        if has_own(instructions, DType::Q8_0) {
            add("inputs", linear::counts::integers(&counter));
        }
        if has_own(instructions, DType::F32) {
            operations::all(&counter, &mut add);
            add("draw", sample::counts::draw(&counter));
        }
    }
    figures
}

fn parsed(text: &str) -> Figures {
    let line = |line: &str| {
        let mut words = line.split(' ');
        let mut word = || words.next().expect("five words");
        let name = (word().to_owned(), word().to_owned());
        (name, ROWS.map(|_| word().parse().expect("a number")))
    };
    text.lines().map(line).collect()
}

fn written(figures: &Figures) -> String {
    let mut text = String::new();
    for ((family, dtype), figures) in figures {
        let figures = figures.map(|figure| format!("{figure:.4}")).join(" ");
        writeln!(text, "{family} {dtype} {figures}").expect("a text grows");
    }
    text
}

/// Figures that have risen, or that nothing is known of in a family that was counted before.
fn risen(counted: &Figures, kept: &Figures) -> String {
    let rises = |(name, now): &(&(String, String), &Figure)| match kept.get(*name) {
        Some(before) => now
            .iter()
            .zip(before)
            .any(|(now, before)| *now > TOLERANCE * before),
        None => kept.keys().any(|(family, _)| *family == name.0),
    };
    let line = |(name, now): (&(String, String), &Figure)| {
        let (family, dtype) = name;
        let before = kept.get(name);
        format!("{family} {dtype}: {now:.4?} for {ROWS:?} rows, kept {before:.4?}\n")
    };
    counted.iter().filter(rises).map(line).collect()
}

#[test]
fn no_kernel_takes_more_instructions_than_it_did() {
    let Some(overhead) = overhead() else {
        return eprintln!("SKIPPED: this machine does not stop after every instruction, so none are counted");
    };
    let (counted, kept) = (counted(overhead), parsed(KEPT));
    for ((family, dtype), _) in kept.iter().filter(|(name, _)| !counted.contains_key(name)) {
        eprintln!("not compared, since this machine lacks it: {family} {dtype}");
    }
    println!("{}", written(&counted));
    if let Ok(how) = std::env::var("PACELINE_TEST_KEEP") {
        let mut all = kept;
        for (name, now) in counted {
            let before = all.get(&name).filter(|_| how == "larger").copied().unwrap_or(now);
            let larger = std::array::from_fn(|i| now[i].max(before[i]));
            all.insert(name, larger);
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/ops/counts.txt");
        return std::fs::write(path, written(&all)).expect("the figures can be kept");
    }
    let risen = risen(&counted, &kept);
    assert!(
        risen.is_empty(),
        "instructions have risen (PACELINE_TEST_KEEP=1 keeps them):\n{risen}"
    );
}

/// Results are the same without it, and only memory would tell.
#[test]
fn attention_asks_for_every_line_of_the_tiles_that_come() {
    if overhead().is_none() {
        return eprintln!("SKIPPED: this machine does not stop after every instruction, so none are counted");
    }
    let families = Instructions::all().into_iter();
    for instructions in families.filter(|family| *family != Instructions::Portable) {
        let pool = Pool::new(1, instructions);
        let asked = |kv: DType| operations::asked_by_attention(&pool, 99, kv);
        // Behind the first tile of a hundred positions stand three, of 32 dimensions: with every line of a tile that is read goes one of
        // the next, two for each dimension of its keys and two for each of its values, there or not.
        assert_eq!(
            asked(DType::F32),
            3 * (2 * 32 + 2 * 32),
            "{}",
            instructions.name()
        );
        // What is widened is asked for as it lies: four blocks of sixteen and a part of four, a line for each dimension of the keys of a
        // part, else as many as there are bytes.
        let whole = 2 * 4 * 16 * 32;
        let part = 4 * 32;
        assert_eq!(
            asked(DType::BF16),
            (whole + part) * 2 / 64 + 32,
            "{}",
            instructions.name()
        );
    }
}

/// As many lines of something else would be as many, and no help.
#[test]
fn what_attention_asks_for_are_the_keys_and_values_that_come() {
    let [asked, first, later] = operations::lines_of_attention(99);
    assert!(later.is_subset(&asked), "{:x?}", later.difference(&asked));
    assert!(first.is_disjoint(&asked), "what is being read already");
}

#[test]
fn a_rise_of_an_eighth_is_found_and_what_a_machine_lacks_is_not_asked_for() {
    let kept = parsed("AVX2 F32 0.5 0.4 0.3\nAVX-512 F32 0.3 0.2 0.1\n");
    assert_eq!(parsed(&written(&kept)), kept);
    let found = |counted: &str| risen(&parsed(counted), &kept);
    assert_eq!(found("AVX2 F32 0.5 0.4 0.3\n"), "");
    assert_eq!(found("AVX2 F32 0.505 0.4 0.1\n"), "");
    assert_eq!(
        found("AVX2 F32 0.5 0.45 0.3\nAVX-512 F32 0.3 0.2 0.1\n"),
        "AVX2 F32: [0.5000, 0.4500, 0.3000] for [1, 4, 8] rows, kept Some([0.5000, 0.4000, 0.3000])\n"
    );
    assert!(found("AVX2 Q8_0 0.5 0.4 0.3\n").contains("kept None"));
    assert_eq!(found("AVX-VNNI Q8_0 0.5 0.4 0.3\n"), "");
}
