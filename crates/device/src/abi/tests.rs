//! Round trips of messages with random contents, and the header for kernels.

use super::*;
use std::io::Write;
use std::process::{Command, Stdio};

/// Numbers that look random and are the same every time.
struct Bits(u64);

impl Bits {
    fn next(&mut self) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    fn below(&mut self, limit: u32) -> u32 {
        self.next() % limit
    }

    /// A struct of any words. Floats among them may be NaN, so the results are compared by their words.
    fn any<T: bytemuck::Pod>(&mut self) -> T {
        let words: Vec<u32> = (0..size_of::<T>() / 4).map(|_| self.next()).collect();
        *bytemuck::from_bytes(bytemuck::cast_slice(&words))
    }

    fn list<T>(&mut self, most: u32, mut one: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.below(most + 1)).map(|_| one(self)).collect()
    }
}

fn words_of<T: bytemuck::Pod>(values: &[T]) -> &[i32] {
    bytemuck::cast_slice(values)
}

struct Planned {
    row: PlanRow,
    tokens: Vec<i32>,
    masks: Vec<Vec<u32>>,
}

const MASK_WORDS: usize = 3;

fn any_row(bits: &mut Bits) -> Planned {
    let tokens = bits.list(9, |bits| bits.next() as i32);
    Planned {
        row: PlanRow {
            count: tokens.len() as i32,
            ..bits.any()
        },
        tokens,
        masks: bits.list(3, |bits| bits.list(MASK_WORDS as u32 + 1, Bits::next)),
    }
}

#[test]
fn a_plan_is_read_as_it_was_written() {
    let mut bits = Bits(1);
    let mut message = PlanMessage::new(MASK_WORDS);
    for round in 0..300 {
        let step = u64::from(bits.next()) << 20 | u64::from(bits.next());
        let admissions = bits.list(3, |bits| {
            (
                bits.next(),
                bits.any::<Slot>(),
                bits.list(20, |bits| bits.next() as i32),
            )
        });
        let updates = bits.list(7, Bits::any::<BlockUpdate>);
        let rows = bits.list(6, any_row);
        message.clear();
        for (slot, state, lists) in &admissions {
            message.admit(*slot, *state, lists);
        }
        for update in &updates {
            message.update_block(*update);
        }
        for row in &rows {
            message.push(
                row.row,
                row.tokens.iter().copied(),
                row.masks.iter().map(Vec::as_slice),
            );
        }
        let mut words = message.encode(step).to_vec();
        let exact = words.len();
        for cut in 0..exact {
            assert!(
                Plan::parse(&words[..cut]).is_none(),
                "round {round}: {cut} of {exact}"
            );
        }
        // What stands behind a plan is not part of it.
        words.extend(bits.list(5, |bits| bits.next() as i32));
        let plan = Plan::parse(&words).expect("it is all there");
        assert_eq!(plan.words(), exact);
        assert_eq!(u64::from(plan.header.step), step);
        assert_eq!(plan.admissions.len(), admissions.len());
        for (read, (slot, state, lists)) in plan.admissions.iter().zip(&admissions) {
            assert_eq!(read.slot, *slot);
            assert_eq!(words_of(&[read.state]), words_of(&[*state]));
            assert_eq!(plan.lists_of(read), lists);
        }
        assert_eq!(plan.block_updates, updates);
        assert_eq!(plan.rows.len(), rows.len());
        for (read, row) in plan.rows.iter().zip(&rows) {
            check_row(&plan, read, row);
        }
    }
}

fn check_row(plan: &Plan<'_>, read: &PlanRow, row: &Planned) {
    let places = (read.first_token, read.first_mask);
    let expected = PlanRow {
        first_token: places.0,
        first_mask: places.1,
        ..row.row
    };
    assert_eq!(*read, expected);
    assert_eq!(plan.tokens_of(read), row.tokens);
    for (place, mask) in row.masks.iter().enumerate() {
        let read = match read.mask(place) {
            0 => {
                assert!(!read.is(PlanRow::MASKED));
                continue;
            }
            mask => plan.mask(mask as usize - 1),
        };
        let own = mask.iter().map(|word| *word as i32);
        let padded: Vec<i32> = own.chain([0; MASK_WORDS]).take(MASK_WORDS).collect();
        assert_eq!(read, padded);
    }
}

#[test]
fn a_record_is_read_as_it_was_written() {
    let mut bits = Bits(2);
    for _ in 0..300 {
        let rows = bits.list(5, Bits::any::<RecordRow>);
        let logprobs = bits.list(4, Bits::any::<Logprobs>);
        let drafts = bits.list(3, Bits::any::<DraftsMade>);
        let width = 1 + bits.below(5);
        let vectors = bits.list(3, |bits| vec![bits.next() as f32; width as usize]);
        let header = RecordHeader {
            rows: rows.len() as u32,
            logprobs: logprobs.len() as u32,
            drafts: drafts.len() as u32,
            embeddings: vectors.len() as u32,
            embedding_width: width,
            ..bits.any()
        };
        let mut words = words_of(&[header]).to_vec();
        words.extend(words_of(&rows));
        words.extend(words_of(&logprobs));
        words.extend(words_of(&drafts));
        for vector in &vectors {
            words.extend(words_of(vector));
        }
        assert_eq!(header.words(), words.len());
        for cut in 0..words.len() {
            assert!(Record::parse(&words[..cut]).is_none());
        }
        words.push(7);
        let record = Record::parse(&words).expect("it is all there");
        assert_eq!(*record.header, header);
        assert_eq!(record.rows, rows);
        assert_eq!(words_of(record.logprobs), words_of(&logprobs));
        assert_eq!(record.drafts, drafts);
        assert!(record.embeddings().eq(vectors.iter().map(Vec::as_slice)));
    }
}

#[test]
fn counts_that_no_memory_can_hold_are_no_plan() {
    let header = PlanHeader {
        masks: u32::MAX,
        mask_words: u32::MAX,
        ..PlanHeader::default()
    };
    assert!(Plan::parse(words_of(&[header])).is_none());
    let header = PlanHeader {
        rows: u32::MAX,
        ..PlanHeader::default()
    };
    assert!(Plan::parse(words_of(&[header])).is_none());
}

#[test]
fn lists_are_read_as_they_were_written() {
    let mut bits = Bits(3);
    for _ in 0..200 {
        let stops = bits.list(6, Bits::next);
        let biases = bits.list(6, |bits| (bits.next(), bits.next() as f32));
        let words = bits.list(6, |bits| bits.list(5, Bits::next));
        let mut lists = vec![0; 2 * LIST_WORDS];
        let encoded = SlotLists::encode(&stops, &biases, &words);
        lists[LIST_WORDS..][..encoded.len()].copy_from_slice(&encoded);
        let read = SlotLists::of(&lists, 1);
        let token = |token: &u32| *token as i32;
        assert!(read.stop_tokens().iter().copied().eq(stops.iter().map(token)));
        assert!(
            read.biases()
                .eq(biases.iter().map(|(id, bias)| (*id as i32, *bias)))
        );
        let expected: Vec<Vec<i32>> = words
            .iter()
            .map(|word| word.iter().map(token).collect())
            .collect();
        assert!(read.bad_words().eq(expected.iter().map(Vec::as_slice)));
        // The slot before has none.
        let empty = SlotLists::of(&lists, 0);
        assert!(empty.stop_tokens().is_empty() && empty.biases().next().is_none());
        assert!(empty.bad_words().next().is_none());
    }
}

/// `PACELINE_BLESS=1` writes it anew.
#[test]
fn the_header_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/abi.h");
    let text = c_header();
    if std::env::var_os("PACELINE_BLESS").is_some() {
        std::fs::write(path, &text).expect("the crate can be written");
    }
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        kept == text,
        "{path} is not what the declarations say; PACELINE_BLESS=1 makes it anew"
    );
}

/// The header checks its own sizes, so a compiler that accepts it lays everything out as Rust does.
#[test]
fn a_compiler_accepts_the_header() {
    let mut compiler = Command::new("c++")
        .args([
            "-std=c++17",
            "-fsyntax-only",
            "-Wno-pragma-once-outside-header",
            "-x",
            "c++",
            "-",
        ])
        .stdin(Stdio::piped())
        .spawn()
        .expect("there is a C++ compiler");
    let mut source = compiler.stdin.take().expect("it is piped");
    source.write_all(c_header().as_bytes()).expect("it reads");
    drop(source);
    assert!(compiler.wait().expect("it ends").success());
}
