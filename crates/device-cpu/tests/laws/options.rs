//! Options of a request at every verified position: biases, penalties, minimum length, bad words, known tokens.

use crate::harness::{bits, devices, live_rows, numbers, tensor};
use paceline_device::abi::{
    LIST_WORDS, LogitsRow, Logprobs, PlanMessage, RequestRow, SamplingRow, Slot, SlotLists, TokenRow, Wide,
};
use paceline_device::{
    Backend, Pending, SampleOptions, SampledText, Sampling, SlotLimits, SlotTable, StepLimits, StepTables,
};
use paceline_device_cpu::{Cpu, CpuTensor};

const VOCABULARY: usize = 97;
const BLOCK: usize = 4;
const BLOCKS: usize = 16;

/// What a request asks for.
#[derive(Clone)]
struct Options {
    sampling: SamplingRow,
    prompt: usize,
    min_length: usize,
    repetition: f32,
    presence: f32,
    frequency: f32,
    stops: Vec<i32>,
    biases: Vec<(i32, f32)>,
    bad_words: Vec<Vec<i32>>,
}

const NONE: Options = Options {
    sampling: SamplingRow {
        temperature: 0.0,
        top_p: 1.0,
        top_k: 0,
        min_p: 0.0,
        seed: Wide { low: 77, high: 0 },
        logprobs: 3,
    },
    prompt: 5,
    min_length: 0,
    repetition: 1.0,
    presence: 0.0,
    frequency: 0.0,
    stops: Vec::new(),
    biases: Vec::new(),
    bad_words: Vec::new(),
};

impl Options {
    /// A slot behind the text of a row.
    fn state(&self, row: &Row<'_>) -> Slot {
        let mut state = Slot {
            length: row.text.len() as i32,
            max_length: 1000,
            min_length: self.min_length as i32,
            prompt_length: self.prompt as i32,
            repetition_penalty: self.repetition,
            presence_penalty: self.presence,
            frequency_penalty: self.frequency,
            newest: row.text[row.text.len() - 1],
            ..Slot::default()
        };
        state.drafts[..row.drafts.len()].copy_from_slice(&row.drafts);
        state
    }

    fn lists(&self) -> Vec<i32> {
        let ids = |tokens: &[i32]| -> Vec<u32> { tokens.iter().map(|token| *token as u32).collect() };
        let biases: Vec<(u32, f32)> = self
            .biases
            .iter()
            .map(|(token, bias)| (*token as u32, *bias))
            .collect();
        let bad_words: Vec<Vec<u32>> = self.bad_words.iter().map(|word| ids(word)).collect();
        let mut words = SlotLists::encode(&ids(&self.stops), &biases, &bad_words);
        words.resize(LIST_WORDS, 0);
        words
    }

    /// The logits after `text`, by the definition.
    fn naive(&self, logits: &[f32], text: &[i32]) -> Vec<f32> {
        let mut changed = logits.to_vec();
        for (token, logit) in changed.iter_mut().enumerate() {
            let token = token as i32;
            for (_, bias) in self.biases.iter().filter(|(biased, _)| *biased == token) {
                *logit += bias;
            }
            if text.contains(&token) {
                *logit = if *logit > 0.0 {
                    *logit / self.repetition
                } else {
                    *logit * self.repetition
                };
            }
            let count = text.iter().skip(self.prompt).filter(|known| **known == token);
            let count = count.count();
            if count > 0 {
                *logit -= count as f32 * self.frequency + self.presence;
            }
            let early = text.len() < self.min_length && self.stops.contains(&token);
            let completes = |word: &Vec<i32>| {
                let (last, before) = word.split_last().unwrap();
                *last == token && text.ends_with(before)
            };
            if early || self.bad_words.iter().any(completes) {
                // As good as impossible; tensors are filled with finite numbers.
                *logit = -1e30;
            }
        }
        changed
    }
}

/// Requests with every option alone, with all, and with none.
fn requests() -> Vec<Options> {
    let biases: Vec<(i32, f32)> = (0..30).map(|i| (i * 3, (i - 15) as f32 * 0.2)).collect();
    let mut bad_words: Vec<Vec<i32>> = (0..97).map(|i| vec![i, i * 31 % 97]).collect();
    bad_words.extend((0..40).map(|i| vec![i, (i * 7 + 3) % 97, i * 5 % 97]));
    bad_words.extend([vec![11], vec![12], vec![-1], vec![200]]);
    let all = Options {
        min_length: 20,
        repetition: 1.3,
        presence: 0.4,
        frequency: 0.25,
        stops: (0..97).step_by(2).collect(),
        biases: biases.clone(),
        bad_words: bad_words.clone(),
        ..NONE
    };
    let warm = SamplingRow {
        temperature: 0.8,
        top_p: 0.9,
        top_k: 40,
        min_p: 0.01,
        ..NONE.sampling
    };
    vec![
        all.clone(),
        Options {
            sampling: warm,
            ..all.clone()
        },
        Options {
            sampling: SamplingRow {
                temperature: 1.5,
                logprobs: -1,
                ..NONE.sampling
            },
            repetition: 0.8,
            presence: -0.5,
            ..all
        },
        Options {
            repetition: 1.7,
            ..NONE
        },
        Options { biases, ..NONE },
        Options { bad_words, ..NONE },
        Options {
            presence: 1.5,
            frequency: 0.7,
            ..NONE
        },
        Options {
            min_length: 15,
            stops: (0..90).collect(),
            ..NONE
        },
        NONE,
    ]
}

/// The text of a request: some of it in the history, the rest the tokens of this step, then drafts.
struct Row<'a> {
    request: usize,
    text: &'a [i32],
    start: usize,
    drafts: Vec<i32>,
}

/// The logits that follow position `position - 1`.
fn logits(request: usize, position: usize) -> Vec<f32> {
    numbers((1, request, position), VOCABULARY, 3.0)
}

/// What is chosen after the last token of each row and after each of its drafts, and what is reported.
fn sample(cpu: &Cpu, requests: &[Options], rows: &[Row<'_>]) -> Vec<Vec<(i32, Logprobs)>> {
    let slots = slot_table(cpu, requests, rows);
    let step = Tables::new(requests, rows).on(cpu);
    let data: Vec<f32> = rows
        .iter()
        .flat_map(|row| (0..=row.drafts.len()).flat_map(|i| logits(row.request, row.text.len() + i)))
        .collect();
    let data = tensor(cpu, &step.samples, &data, VOCABULARY);
    let mut results = run(cpu, (&slots, &step), SampledText::Step, &data).into_iter();
    rows.iter()
        .map(|row| results.by_ref().take(row.drafts.len() + 1).collect())
        .collect()
}

/// What is chosen after the first `place` drafts of each row when they are the slot's drafts so far. Nothing of the
/// text is in the step's tables.
fn sample_draft(cpu: &Cpu, requests: &[Options], rows: &[Row<'_>], place: usize) -> Vec<(i32, Logprobs)> {
    let alone: Vec<Row<'_>> = rows
        .iter()
        .map(|row| Row {
            start: row.text.len() - 1,
            drafts: row.drafts.clone(),
            ..*row
        })
        .collect();
    let slots = slot_table(cpu, requests, &alone);
    let last: Vec<Row<'_>> = alone
        .iter()
        .map(|row| Row {
            drafts: Vec::new(),
            ..*row
        })
        .collect();
    let mut tables = Tables::new(requests, &last);
    for (row, logits) in rows.iter().zip(&mut tables.logits) {
        logits.position = (row.text.len() + place) as i32;
    }
    for token in &mut tables.tokens {
        (token.id, token.position) = (40, 2);
    }
    let step = tables.on(cpu);
    let data: Vec<f32> = rows
        .iter()
        .flat_map(|row| logits(row.request, row.text.len() + place))
        .collect();
    let data = tensor(cpu, &step.samples, &data, VOCABULARY);
    run(cpu, (&slots, &step), SampledText::Drafts, &data)
}

/// The choices from these logits and what is reported.
fn run(
    cpu: &Cpu,
    (slots, step): (&SlotTable<Cpu>, &StepTables<Cpu>),
    text: SampledText,
    logits: &CpuTensor,
) -> Vec<(i32, Logprobs)> {
    let samples = step.limits.samples;
    let tokens = cpu.buffer(samples).unwrap();
    let logprobs = cpu.buffer(samples).unwrap();
    let plan = cpu.buffer_from(PlanMessage::default().encode(1)).unwrap();
    let sampling = Sampling {
        step,
        options: Some(SampleOptions { slots, plan: &plan }),
        text,
        tokens: &tokens,
        logprobs: &logprobs,
    };
    cpu.sample(logits, sampling);
    let tokens = cpu.read(&tokens, samples).wait().unwrap();
    let reported = cpu.read(&logprobs, samples).wait().unwrap();
    tokens.into_iter().zip(reported).collect()
}

/// Slots in reverse order, blocks scattered, nothing useful where this step's tokens go.
fn slot_table(cpu: &Cpu, requests: &[Options], rows: &[Row<'_>]) -> SlotTable<Cpu> {
    let count = requests.len();
    let limits = SlotLimits {
        slots: count,
        blocks_per_slot: BLOCKS,
        blocks: count * BLOCKS,
        block_size: BLOCK,
        snapshots: 0,
    };
    let mut state = vec![Slot::default(); count];
    let mut lists = vec![0; count * LIST_WORDS];
    let mut block_table = vec![0; count * BLOCKS];
    let mut history = vec![3; count * BLOCKS * BLOCK];
    for row in rows {
        let index = count - 1 - row.request;
        let options = &requests[row.request];
        state[index] = options.state(row);
        lists[index * LIST_WORDS..][..LIST_WORDS].copy_from_slice(&options.lists());
        for block in 0..BLOCKS {
            block_table[index * BLOCKS + block] = ((BLOCKS - 1 - block) * count + index) as i32;
        }
        for (position, token) in row.text[..row.start].iter().enumerate() {
            let block = block_table[index * BLOCKS + position / BLOCK] as usize;
            history[block * BLOCK + position % BLOCK] = *token;
        }
    }
    let slots = SlotTable::new(cpu, limits).unwrap();
    cpu.write(&slots.state, &state);
    cpu.write(&slots.lists, &lists);
    cpu.write(&slots.block_table, &block_table);
    cpu.write(&slots.history, &history);
    slots
}

/// A step as its operations read it.
struct Tables {
    tokens: Vec<TokenRow>,
    requests: Vec<RequestRow>,
    logits: Vec<LogitsRow>,
    slots: usize,
}

impl Tables {
    fn new(requests: &[Options], rows: &[Row<'_>]) -> Self {
        let mut tables = Self {
            tokens: Vec::new(),
            requests: Vec::new(),
            logits: Vec::new(),
            slots: requests.len(),
        };
        for row in rows {
            tables.push(row, requests[row.request].sampling);
        }
        tables
    }

    fn push(&mut self, row: &Row<'_>, sampling: SamplingRow) {
        let request = self.requests.len() as i32;
        let tokens = row.text[row.start..].iter().chain(&row.drafts);
        self.requests.push(RequestRow {
            first_token: self.tokens.len() as i32,
            token_count: tokens.clone().count() as i32,
            slot: (self.slots - 1 - row.request) as i32,
            ..RequestRow::default()
        });
        self.tokens
            .extend(tokens.enumerate().map(|(offset, id)| TokenRow {
                id: *id,
                position: (row.start + offset) as i32,
                request,
            }));
        for offset in 0..=row.drafts.len() {
            self.logits.push(LogitsRow {
                position: (row.text.len() + offset) as i32,
                request,
                sampling,
                ..LogitsRow::default()
            });
        }
    }

    fn on(&self, cpu: &Cpu) -> StepTables<Cpu> {
        let limits = StepLimits {
            tokens: self.tokens.len(),
            requests: self.slots,
            samples: self.logits.len(),
            blocks_per_request: BLOCKS,
            block_size: BLOCK,
        };
        let step = StepTables::new(cpu, limits).unwrap();
        cpu.write(&step.tokens.live, &[self.tokens.len() as i32]);
        cpu.write(&step.requests.live, &[self.requests.len() as i32]);
        cpu.write(&step.samples.live, &[self.logits.len() as i32]);
        cpu.write(&step.token_rows, &self.tokens);
        cpu.write(&step.request_rows, &self.requests);
        cpu.write(&step.logits_rows, &self.logits);
        step
    }
}

/// What is chosen from these logits without any options.
fn choose(cpu: &Cpu, logits: &[f32], sampling: SamplingRow, position: usize) -> (i32, Logprobs) {
    choose_or_report(cpu, logits, sampling, (position, 0))
}

fn choose_or_report(
    cpu: &Cpu,
    logits: &[f32],
    sampling: SamplingRow,
    (position, known): (usize, i32),
) -> (i32, Logprobs) {
    let mut tables = Tables::new(
        &[Options { sampling, ..NONE }],
        &[Row {
            request: 0,
            text: &[1],
            start: 0,
            drafts: Vec::new(),
        }],
    );
    tables.logits[0].position = position as i32;
    tables.logits[0].known = known;
    let step = tables.on(cpu);
    let tokens = cpu.buffer(1).unwrap();
    let logprobs = cpu.buffer(1).unwrap();
    let sampling = Sampling {
        step: &step,
        options: None,
        text: SampledText::Step,
        tokens: &tokens,
        logprobs: &logprobs,
    };
    cpu.sample(&tensor(cpu, &live_rows(cpu, 1), logits, logits.len()), sampling);
    let reported = cpu.read(&logprobs, 1).wait().unwrap()[0];
    (cpu.read(&tokens, 1).wait().unwrap()[0], reported)
}

/// The texts of all requests by plain decoding, each choice compared with the definition, and what is reported
/// with each.
fn decode(cpu: &Cpu, requests: &[Options], length: usize) -> Vec<(Vec<i32>, Vec<Logprobs>)> {
    let texts = requests.iter().enumerate().map(|(request, options)| {
        let mut text: Vec<i32> = (0..options.prompt as i32).map(|i| i * 19 % 97).collect();
        let mut reports = vec![Logprobs::default(); text.len()];
        while text.len() < length {
            let row = Row {
                request,
                text: &text,
                start: text.len() - 1,
                drafts: Vec::new(),
            };
            let (token, report) = sample(cpu, requests, &[row]).remove(0).remove(0);
            let raw = logits(request, text.len());
            let (expected, _) = choose(cpu, &options.naive(&raw, &text), options.sampling, text.len());
            assert_eq!(token, expected, "request {request}, position {}", text.len());
            // What is reported is about the raw logits.
            let known = (text.len(), token + 1);
            let plain = choose_or_report(cpu, &raw, options.sampling, known).1;
            assert_eq!(bits(&[report]), bits(&[plain]));
            text.push(token);
            reports.push(report);
        }
        (text, reports)
    });
    texts.collect()
}

#[test]
fn windows_and_batches_choose_what_plain_decoding_chooses() {
    const LENGTH: usize = 48;
    let requests = requests();
    let texts = decode(&devices().remove(0).1, &requests, LENGTH);
    let (unchanged, _) = &texts[requests.len() - 1];
    for (text, _) in &texts[..requests.len() - 1] {
        assert!(text != unchanged, "the options change something");
    }
    for (device, cpu) in devices() {
        for (k, held) in [(0, 0), (1, 0), (1, 1), (3, 2), (5, 5), (8, 3), (15, 15)] {
            for end in [6, 9, 17, 27] {
                let row = |(request, (text, _)): (usize, &'_ (Vec<i32>, _))| {
                    let mut drafts = text[end..end + k].to_vec();
                    drafts[held..]
                        .iter_mut()
                        .for_each(|draft| *draft = (*draft + 1) % 97);
                    (request, drafts)
                };
                let drafts: Vec<(usize, Vec<i32>)> = texts.iter().enumerate().map(row).collect();
                // Some rows carry several certain tokens, as after a prefill.
                let rows: Vec<Row<'_>> = drafts
                    .iter()
                    .map(|(request, drafts)| Row {
                        request: *request,
                        text: &texts[*request].0[..end],
                        start: end - 1 - request % 3,
                        drafts: drafts.clone(),
                    })
                    .collect();
                for (row, chosen) in rows.iter().zip(sample(&cpu, &requests, &rows)) {
                    for (offset, (token, report)) in chosen.iter().enumerate().take(held + 1) {
                        let (text, reports) = &texts[row.request];
                        let what = format!("{device}, {held} of {k}: request {}", row.request);
                        assert_eq!(*token, text[end + offset], "{what}, position {}", end + offset);
                        assert_eq!(bits(&[*report]), bits(&[reports[end + offset]]), "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn drafts_are_chosen_as_the_same_positions_are_when_verified() {
    const DRAFTS: usize = 15;
    let requests = requests();
    for (seed, (device, cpu)) in devices().iter().enumerate() {
        for length in [1, 2, 5, 6, 17, 32, 33, 47] {
            // Few tokens, so that they repeat and end bad words.
            let text = |request: usize| -> Vec<i32> {
                let random = numbers((seed as u64, request, length), length + DRAFTS, 1.0);
                random
                    .iter()
                    .map(|x| ((x + 1.0) * 15.0) as i32 * 31 % 97)
                    .collect()
            };
            let texts: Vec<Vec<i32>> = (0..requests.len()).map(text).collect();
            let rows: Vec<Row<'_>> = texts
                .iter()
                .enumerate()
                .map(|(request, text)| Row {
                    request,
                    text: &text[..length],
                    start: (length - 1).saturating_sub(request % 3),
                    drafts: text[length..].to_vec(),
                })
                .collect();
            let verified = sample(cpu, &requests, &rows);
            for place in 0..=DRAFTS {
                let drafted = sample_draft(cpu, &requests, &rows, place);
                for (request, (verified, drafted)) in verified.iter().zip(&drafted).enumerate() {
                    let what = format!("{device}, seed {seed}, request {request}, {length}+{place}");
                    assert_eq!(verified[place].0, drafted.0, "{what}");
                    assert_eq!(bits(&[verified[place].1]), bits(&[drafted.1]), "{what}");
                }
            }
        }
    }
}

/// Drafts from the first rows of an output matrix. Texts and options name tokens that have no logit there, and rows of all
/// tokens before and behind, on the same threads, notice nothing of it.
#[test]
fn the_first_logits_are_chosen_from_as_if_the_others_were_impossible() {
    let mut requests = requests();
    // Whoever has said a token likes to say it again.
    requests.push(Options {
        frequency: -0.5,
        ..NONE
    });
    for (device, cpu) in devices() {
        for (first, length) in [(1, 9), (16, 12), (29, 30), (96, 47)] {
            let texts = (0..requests.len() as i32).map(|request| -> Vec<i32> {
                let token = |at: i32| (at * (7 + request) + request) % VOCABULARY as i32;
                (0..length).map(token).collect()
            });
            let texts: Vec<Vec<i32>> = texts.collect();
            let rows: Vec<Row<'_>> = texts
                .iter()
                .enumerate()
                .map(|(request, text)| Row {
                    request,
                    text,
                    start: text.len() - 1,
                    drafts: Vec::new(),
                })
                .collect();
            let slots = slot_table(&cpu, &requests, &rows);
            let step = Tables::new(&requests, &rows).on(&cpu);
            let first_logits = |tokens: usize| {
                let of_row = |request| logits(request, length as usize).into_iter().take(tokens);
                let all: Vec<f32> = (0..requests.len()).flat_map(of_row).collect();
                tensor(&cpu, &step.samples, &all, tokens)
            };
            let choose = |logits: &CpuTensor| -> Vec<i32> {
                let chosen = run(&cpu, (&slots, &step), SampledText::Drafts, logits);
                chosen.into_iter().map(|(token, _)| token).collect()
            };
            let (whole, part) = (first_logits(VOCABULARY), first_logits(first));
            let mut others_impossible = cpu.tensor(&step.samples, VOCABULARY).unwrap();
            let columns: Vec<i32> = (0..first as i32).collect();
            cpu.spread(&part, &cpu.buffer_from(&columns).unwrap(), &mut others_impossible);
            let (before, expected) = (choose(&whole), choose(&others_impossible));
            let what = format!("{device}, {first} of {VOCABULARY}");
            // Often, so that what each left behind would add up.
            for _ in 0..60 {
                assert_eq!(choose(&part), expected, "{what}");
            }
            assert_eq!(choose(&whole), before, "{what}, behind it");
        }
    }
}

#[test]
fn a_row_with_nothing_left_takes_the_most_likely_token() {
    for temperature in [0.0, 1.0] {
        let options = Options {
            bad_words: (0..97).map(|token| vec![token]).collect(),
            sampling: SamplingRow {
                temperature,
                ..NONE.sampling
            },
            ..NONE
        };
        let row = Row {
            request: 0,
            text: &[1, 2, 3],
            start: 2,
            drafts: Vec::new(),
        };
        let (_, cpu) = devices().remove(1);
        let (token, _) = sample(&cpu, &[options], &[row]).remove(0).remove(0);
        let raw = logits(0, 3);
        let best = raw.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert_eq!(raw[token as usize].to_bits(), best.to_bits());
    }
}

#[test]
fn known_tokens_are_reported_and_not_chosen() {
    for (_, cpu) in devices() {
        let raw = logits(0, 9);
        let total: f64 = raw.iter().map(|x| f64::from(*x).exp()).sum::<f64>().ln();
        let (_, chosen) = choose(&cpu, &raw, NONE.sampling, 9);
        for token in [0, 40, 96] {
            let (result, report) = choose_or_report(&cpu, &raw, NONE.sampling, (9, token + 1));
            assert_eq!(result, token);
            let logprob = f64::from(report.chosen);
            assert!((logprob - (f64::from(raw[token as usize]) - total)).abs() < 1e-5);
            assert_eq!(
                bits(&report.top),
                bits(&chosen.top),
                "the alternatives are those of any choice"
            );
        }
    }
}
