//! Records as the host reads them; the layout is [`paceline_device::abi::Record`].

use paceline_device::abi::{DraftsMade, Logprobs, Record, RecordHeader, RecordRow, Slot};
use paceline_schedule::RunnerFault;
use paceline_types::{DraftSource, RowEnd, RowOutput, SlotId, StepOutput, TokenId, TokenLogprobs};

/// What the host remembers of a plan row until its record arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowNote {
    /// Its slot.
    pub(crate) slot: SlotId,
    /// Alternatives to report per chosen token.
    pub(crate) logprobs: Option<usize>,
    /// Alternatives to report per known token, and how many of those the plan row has.
    pub(crate) prompt_logprobs: Option<(usize, usize)>,
    /// The plan row is the last of a text that becomes a vector.
    pub(crate) embeds: bool,
    /// The drafts behind the plan row are in the record: the host has to look at them.
    pub(crate) shows_drafts: bool,
}

/// Turns the record of step `step` into values. `number` is what the device has counted it as.
pub(crate) fn decode(
    (step, number): (u64, u64),
    words: &[i32],
    notes: &[RowNote],
) -> Result<StepOutput, RunnerFault> {
    let record = Record::parse(words).ok_or_else(|| RunnerFault("a record ends early".to_owned()))?;
    check(&record, number, notes.len())?;
    let RecordHeader {
        begin,
        drafting,
        end,
        draft_forwards,
        ..
    } = *record.header;
    let (mut drafts, mut embeddings) = (record.drafts.iter(), record.embeddings());
    let mut rows = Vec::with_capacity(notes.len());
    for (row, note) in record.rows.iter().zip(notes) {
        let made = note.shows_drafts.then(|| drafts.next()).flatten();
        let embedding = note.embeds.then(|| embeddings.next()).flatten();
        rows.push(RowOutput {
            made: made.map(decode_drafts).unwrap_or_default(),
            embedding: embedding.unwrap_or_default().to_vec(),
            ..decode_row(row, record.logprobs, note)
        });
    }
    Ok(StepOutput {
        step,
        rows,
        device_ns: (begin.into(), end.into()),
        draft_ns: u64::from(end).saturating_sub(drafting.into()),
        draft_passes: draft_forwards as usize,
    })
}

/// The record is that of the step, and the device has nothing to complain of.
fn check(record: &Record<'_>, number: u64, rows: usize) -> Result<(), RunnerFault> {
    let found = u64::from(record.header.step);
    let fault = match record.header.error {
        0 if found != number => format!("step {number} found the record of step {found}"),
        0 if record.rows.len() != rows => {
            format!(
                "the record of step {number} has {} rows of {rows}",
                record.rows.len()
            )
        }
        0 => return Ok(()),
        RecordHeader::WRONG_STEP => {
            format!("the device found the plan of another step in that of step {found}")
        }
        RecordHeader::BAD_PLAN => format!("the plan of step {found} does not fit its program"),
        RecordHeader::BAD_TOKEN => format!("step {found} met a token id outside the vocabulary"),
        RecordHeader::BAD_BLOCK => format!("step {found} met a block that does not exist"),
        RecordHeader::BAD_SLOT => format!("step {found} met a slot or a snapshot that does not exist"),
        RecordHeader::NOT_FINITE => format!("the logits of step {found} are not finite numbers"),
        other => format!("step {found} ended with error {other}"),
    };
    Err(RunnerFault(fault))
}

#[inline]
fn decode_row(row: &RecordRow, logprobs: &[Logprobs], note: &RowNote) -> RowOutput {
    let count = row.count as usize;
    let mut next = row.first_logprobs as usize;
    let mut take = |rows: usize, alternatives: usize| {
        let read = logprobs[next..next + rows]
            .iter()
            .map(|position| decode_logprobs(position, alternatives))
            .collect();
        next += rows;
        read
    };
    let prompt_logprobs = note
        .prompt_logprobs
        .map(|(count, rows)| take(rows, count))
        .unwrap_or_default();
    let logprobs = note
        .logprobs
        .map(|alternatives| take(count, alternatives))
        .unwrap_or_default();
    RowOutput {
        tokens: row.tokens[..count]
            .iter()
            .map(|token| *token as TokenId)
            .collect(),
        end: match row.ended {
            RecordRow::STOPPED => Some(RowEnd::StopToken),
            RecordRow::FULL => Some(RowEnd::Length),
            _ => None,
        },
        snapshot_written: row.snapshot != 0,
        drafted: row.drafted.max(0) as usize,
        source: source_of(row.source),
        logprobs,
        prompt_logprobs,
        ..RowOutput::default()
    }
}

fn source_of(word: i32) -> Option<DraftSource> {
    match word {
        Slot::FROM_NGRAM => Some(DraftSource::Ngram),
        Slot::FROM_NEURAL => Some(DraftSource::Neural),
        Slot::FROM_GRAMMAR => Some(DraftSource::Grammar),
        _ => None,
    }
}

fn decode_drafts(made: &DraftsMade) -> (Vec<TokenId>, Option<DraftSource>) {
    let drafts = made.tokens.iter().take(made.count.max(0) as usize);
    (
        drafts.map(|token| *token as TokenId).collect(),
        source_of(made.source),
    )
}

/// One position with its first `alternatives`.
fn decode_logprobs(position: &Logprobs, alternatives: usize) -> TokenLogprobs {
    let top = position.top.iter().take(alternatives);
    TokenLogprobs {
        chosen: position.chosen,
        top: top.map(|one| (one.token as TokenId, one.logprob)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_device::abi::Alternative;

    fn note(logprobs: Option<usize>, prompt_logprobs: Option<(usize, usize)>) -> RowNote {
        RowNote {
            slot: SlotId(0),
            logprobs,
            prompt_logprobs,
            embeds: false,
            shows_drafts: false,
        }
    }

    fn record(header: RecordHeader, rows: &[RecordRow], logprobs: &[Logprobs]) -> Vec<i32> {
        let header = RecordHeader {
            step: 9.into(),
            rows: rows.len() as u32,
            logprobs: logprobs.len() as u32,
            ..header
        };
        let mut words = bytemuck::cast_slice(&[header]).to_vec();
        words.extend_from_slice(bytemuck::cast_slice(rows));
        words.extend_from_slice(bytemuck::cast_slice(logprobs));
        words
    }

    /// A step of three plan rows with 2, 0 and 1 chosen tokens, the last behind a prompt's 3 known ones, and room for
    /// more: what is read from another place is another value, and not out of bounds.
    #[test]
    fn each_row_has_the_log_probabilities_of_its_own_logits() {
        let logprobs: Vec<Logprobs> = (0..10)
            .map(|at| Logprobs {
                chosen: at as f32 * 100.0,
                top: std::array::from_fn(|place| Alternative {
                    token: at * 100 + place as i32,
                    logprob: (at * 100 + place as i32) as f32 + 0.5,
                }),
            })
            .collect();
        let rows = [(2, 0), (0, 2), (1, 2)].map(|(count, first_logprobs)| RecordRow {
            count,
            first_logprobs,
            ..RecordRow::default()
        });
        let words = record(RecordHeader::default(), &rows, &logprobs);
        let notes = [note(Some(1), None), note(None, None), note(Some(2), Some((0, 3)))];
        let output = decode((1, 9), &words, &notes).unwrap();
        let chosen = |read: &[TokenLogprobs]| read.iter().map(|token| token.chosen).collect::<Vec<_>>();
        assert_eq!(chosen(&output.rows[0].logprobs), [0.0, 100.0]);
        assert_eq!(output.rows[0].logprobs[1].top, [(100, 100.5)]);
        assert!(output.rows[1].logprobs.is_empty());
        assert_eq!(chosen(&output.rows[2].prompt_logprobs), [200.0, 300.0, 400.0]);
        assert_eq!(chosen(&output.rows[2].logprobs), [500.0]);
        assert_eq!(output.rows[2].logprobs[0].top, [(500, 500.5), (501, 501.5)]);
    }

    #[test]
    fn errors_of_the_device_and_records_of_other_steps_are_faults() {
        let header = |error| RecordHeader {
            error,
            ..RecordHeader::default()
        };
        let row = [RecordRow::default()];
        let notes = [note(None, None)];
        let fault = |words: &[i32], number, notes: &[RowNote]| {
            decode((1, number), words, notes).expect_err("it is a fault").0
        };
        assert!(decode((1, 9), &record(header(0), &row, &[]), &notes).is_ok());
        assert!(fault(&record(header(0), &row, &[]), 8, &notes).contains("record of step 9"));
        assert!(fault(&record(header(0), &row, &[]), 9, &[]).contains("1 rows of 0"));
        let wrong = record(header(RecordHeader::WRONG_STEP), &row, &[]);
        assert!(fault(&wrong, 9, &notes).contains("plan of another step"));
        let bad = record(header(RecordHeader::BAD_PLAN), &row, &[]);
        assert!(fault(&bad, 9, &notes).contains("does not fit"));
        assert!(fault(&bad[..4], 9, &notes).contains("ends early"));
        for (error, text) in [
            (
                RecordHeader::BAD_TOKEN,
                "step 9 met a token id outside the vocabulary",
            ),
            (RecordHeader::BAD_BLOCK, "step 9 met a block"),
            (RecordHeader::BAD_SLOT, "step 9 met a slot or a snapshot"),
            (RecordHeader::NOT_FINITE, "the logits of step 9 are not finite"),
            (77, "step 9 ended with error 77"),
        ] {
            let found = fault(&record(header(error), &row, &[]), 9, &notes);
            assert!(found.contains(text), "{error}: {found}");
        }
    }
}
