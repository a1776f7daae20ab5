//! Records as the host reads them; the layout is [`paceline_device::record`].

use paceline_device::{SAMPLE_FLOATS, record, slot};
use paceline_types::{DraftSource, RowEnd, RowOutput, StepOutput, TokenId, TokenLogprobs};

/// What the host remembers of a plan row until its record arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowNote {
    /// Alternatives to report per chosen token.
    pub(crate) logprobs: Option<usize>,
    /// Alternatives to report per known token, and how many of those the plan row has.
    pub(crate) prompt_logprobs: Option<(usize, usize)>,
    /// The plan row is the last of a text that becomes a vector.
    pub(crate) embeds: bool,
    /// The slot whose drafts behind the plan row are read back: the host has to look at them.
    pub(crate) shows_drafts: Option<usize>,
}

/// Turns a record, and the log-probabilities of the step if any plan row wanted them, into values.
pub(crate) fn decode(step: u64, words: &[i32], floats: Option<&[f32]>, notes: &[RowNote]) -> StepOutput {
    let clock = |at: usize| u64::from(words[at] as u32) | (u64::from(words[at + 1] as u32) << 32);
    let rows = words[record::HEADER..].chunks_exact(record::ROW);
    StepOutput {
        step,
        rows: rows
            .zip(notes)
            .map(|(row, note)| decode_row(row, floats.unwrap_or(&[]), *note))
            .collect(),
        device_ns: (clock(record::BEGIN), clock(record::END)),
        draft_ns: clock(record::END).saturating_sub(clock(record::DRAFTING)),
        draft_passes: words[record::PASSES] as usize,
    }
}

fn decode_row(row: &[i32], floats: &[f32], note: RowNote) -> RowOutput {
    let count = row[record::COUNT] as usize;
    let tokens = row[record::TOKENS..][..count]
        .iter()
        .map(|token| *token as TokenId)
        .collect();
    let mut sample = row[record::FIRST_SAMPLE] as usize;
    let mut take = |rows: usize, alternatives: usize| {
        let read = (sample..sample + rows)
            .map(|row| decode_sample(floats, row, alternatives))
            .collect();
        sample += rows;
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
        tokens,
        end: match row[record::ENDED] {
            record::STOPPED => Some(RowEnd::StopToken),
            record::FULL => Some(RowEnd::Length),
            _ => None,
        },
        snapshot_written: row[record::SNAPSHOT] != 0,
        drafted: row[record::DRAFTED].max(0) as usize,
        source: source_of(row[record::SOURCE]),
        made: (Vec::new(), None),
        logprobs,
        prompt_logprobs,
        embedding: Vec::new(),
    }
}

fn source_of(word: i32) -> Option<DraftSource> {
    match word {
        slot::FROM_NGRAM => Some(DraftSource::Ngram),
        slot::FROM_NEURAL => Some(DraftSource::Neural),
        slot::FROM_GRAMMAR => Some(DraftSource::Grammar),
        _ => None,
    }
}

/// The drafts that the slots hold behind the step, for the plan rows that tell the host of them.
pub(crate) fn decode_drafts(output: &mut StepOutput, slots: &[i32], notes: &[RowNote]) {
    for (row, note) in output.rows.iter_mut().zip(notes) {
        let Some(index) = note.shows_drafts else { continue };
        let state = &slots[index * slot::INTS..][..slot::INTS];
        let count = state[slot::DRAFT_COUNT].max(0) as usize;
        let drafts = state[slot::DRAFTS..].iter().take(count);
        row.made = (
            drafts.map(|token| *token as TokenId).collect(),
            source_of(state[slot::SOURCE]),
        );
    }
}

/// The vectors that the step has completed, one after the other.
pub(crate) fn decode_embeddings(output: &mut StepOutput, floats: &[f32], notes: &[RowNote], width: usize) {
    let rows = output.rows.iter_mut().zip(notes).filter(|(_, note)| note.embeds);
    for ((row, _), vector) in rows.zip(floats.chunks_exact(width)) {
        row.embedding = vector.to_vec();
    }
}

/// One logits row of the sampler's floats with its first `alternatives`.
fn decode_sample(floats: &[f32], row: usize, alternatives: usize) -> TokenLogprobs {
    let floats = &floats[row * SAMPLE_FLOATS..(row + 1) * SAMPLE_FLOATS];
    let pairs = floats[1..=2 * alternatives].chunks_exact(2);
    TokenLogprobs {
        chosen: floats[0],
        top: pairs.map(|pair| (pair[0].to_bits(), pair[1])).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step of three plan rows with 2, 0 and 1 chosen tokens behind a prompt's 3 known ones, in a buffer with room
    /// for more: what is read from another place is another value, and not out of bounds.
    #[test]
    fn each_row_has_the_log_probabilities_of_its_own_logits() {
        let floats: Vec<f32> = (0..10 * SAMPLE_FLOATS)
            .map(|at| (at / SAMPLE_FLOATS * 100 + at % SAMPLE_FLOATS) as f32)
            .collect();
        let rows = [(2, 0), (0, 2), (1, 2)];
        let mut words = vec![0; record::HEADER];
        for (count, first_sample) in rows {
            let mut row = vec![0; record::ROW];
            row[record::COUNT] = count;
            row[record::FIRST_SAMPLE] = first_sample;
            words.extend(row);
        }
        let note = |logprobs, prompt_logprobs| RowNote {
            logprobs,
            prompt_logprobs,
            embeds: false,
            shows_drafts: None,
        };
        let notes = [note(Some(1), None), note(None, None), note(Some(2), Some((0, 3)))];
        let output = decode(1, &words, Some(&floats), &notes);
        let chosen = |read: &[TokenLogprobs]| read.iter().map(|token| token.chosen).collect::<Vec<_>>();
        assert_eq!(chosen(&output.rows[0].logprobs), [0.0, 100.0]);
        assert_eq!(output.rows[0].logprobs[1].top, [(101f32.to_bits(), 102.0)]);
        assert!(output.rows[1].logprobs.is_empty());
        assert_eq!(chosen(&output.rows[2].prompt_logprobs), [200.0, 300.0, 400.0]);
        assert_eq!(chosen(&output.rows[2].logprobs), [500.0]);
        let second = (503f32.to_bits(), 504.0);
        assert_eq!(
            output.rows[2].logprobs[0].top,
            [(501f32.to_bits(), 502.0), second]
        );
    }
}
