//! Plans as the device reads them; the layout is [`paceline_device::abi::Plan`].

use paceline_device::abi::{self, BlockUpdate, LIST_WORDS, PlanMessage, SamplingRow, Slot, SlotLists};
use paceline_types::{
    Admission, DraftSource, PlanRow, Pooling, SamplingParams, StepPlan, TokenId, TokenMask, Work,
};

/// A request whose stop tokens, biases and bad words do not fit a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "stop tokens, logit biases and bad words take {words} words together; a request has room for {limit}"
)]
pub struct ListsTooLong {
    /// What they take.
    pub words: usize,
    /// What there is.
    pub limit: usize,
}

/// The lists of a slot: stop tokens, biases, bad words.
pub fn list_words(params: &SamplingParams, stop_tokens: &[TokenId]) -> Result<Vec<i32>, ListsTooLong> {
    let words = SlotLists::encode(stop_tokens, &params.logit_bias, &params.bad_words);
    if words.len() > LIST_WORDS {
        return Err(ListsTooLong {
            words: words.len(),
            limit: LIST_WORDS,
        });
    }
    Ok(words)
}

/// Writes a plan into `message`, replacing what was there.
pub(crate) fn encode(step: &StepPlan, message: &mut PlanMessage) -> Result<(), ListsTooLong> {
    message.clear();
    for admission in &step.admissions {
        let lists = list_words(&admission.params, &admission.stop_tokens)?;
        message.admit(admission.slot.0, slot_of(admission), &lists);
    }
    for row in &step.rows {
        for (index, block) in &row.new_blocks {
            message.update_block(BlockUpdate {
                slot: row.slot.0,
                index: *index,
                block: block.0,
            });
        }
        let tokens = match (&row.work, &row.constraint) {
            (Work::Prefill { tokens, .. } | Work::Embed { tokens, .. }, _) => tokens.as_slice(),
            (Work::Verify { .. }, Some(constraint)) => constraint.drafts.as_slice(),
            (Work::Verify { .. }, None) => &[],
        };
        let masks = row.constraint.iter().flat_map(|constraint| {
            // Behind the known text, and behind each draft; more may have been made.
            constraint.masks.iter().take(constraint.drafts.len() + 1)
        });
        message.push(
            encode_row(row),
            tokens.iter().map(|token| *token as i32),
            masks.map(TokenMask::words),
        );
    }
    Ok(())
}

/// A slot as its owner finds it.
fn slot_of(admission: &Admission) -> Slot {
    let params = &admission.params;
    Slot {
        generation: admission.generation,
        max_length: admission.max_length as i32,
        min_length: admission.min_length as i32,
        prompt_length: admission.prompt_tokens as i32,
        restore: admission.restore.map_or(-1, |snapshot| snapshot.0 as i32),
        sampling: sampling_row(params),
        repetition_penalty: params.repetition_penalty,
        presence_penalty: params.presence_penalty,
        frequency_penalty: params.frequency_penalty,
        ..Slot::default()
    }
}

fn encode_row(row: &PlanRow) -> abi::PlanRow {
    let mut out = abi::PlanRow {
        slot: row.slot.0,
        generation: row.generation,
        following: -1,
        snapshot_at: row.snapshot.map_or(-1, |snapshot| snapshot.position as i32),
        snapshot: row.snapshot.map_or(-1, |snapshot| snapshot.id.0 as i32),
        ngram: row.propose.ngram as i32,
        neural: row.propose.neural as i32,
        ..abi::PlanRow::default()
    };
    let flag = |set: bool, flag: i32| if set { flag } else { 0 };
    match &row.work {
        Work::Prefill {
            start,
            tokens,
            last,
            following,
            prompt_logprobs,
        } => {
            out.kind = abi::PlanRow::PREFILL;
            (out.start, out.count) = (*start as i32, tokens.len() as i32);
            out.following = following.map_or(-1, |token| token as i32);
            out.flags =
                flag(*last, abi::PlanRow::SAMPLE_LAST) | flag(*prompt_logprobs, abi::PlanRow::SAMPLE_ALL);
        }
        Work::Verify { drafts } => {
            out.kind = abi::PlanRow::VERIFY;
            out.count = *drafts as i32;
        }
        Work::Embed {
            start,
            tokens,
            last,
            pooling,
        } => {
            out.kind = abi::PlanRow::PREFILL;
            (out.start, out.count) = (*start as i32, tokens.len() as i32);
            out.flags = match pooling {
                Pooling::Mean => abi::PlanRow::POOL_SUM | flag(*last, abi::PlanRow::POOL_MEAN),
                Pooling::Last => flag(*last, abi::PlanRow::POOL_LAST),
            };
        }
    }
    out.flags |= flag(row.show_drafts, abi::PlanRow::SHOW_DRAFTS);
    if let Some(constraint) = &row.constraint {
        let verifies = out.kind == abi::PlanRow::VERIFY;
        let (drafts, masks) = (constraint.drafts.len(), constraint.masks.len());
        assert!(
            !verifies || out.count as usize == drafts,
            "{} drafts planned, {drafts} given",
            out.count
        );
        assert!(drafts < masks, "{drafts} drafts and {masks} masks");
        out.flags |= abi::PlanRow::MASKED | flag(verifies, abi::PlanRow::GIVEN);
        out.source = constraint.source.map_or(0, source_word);
    }
    out
}

/// Where drafts came from, as the device writes it.
fn source_word(source: DraftSource) -> i32 {
    match source {
        DraftSource::Ngram => Slot::FROM_NGRAM,
        DraftSource::Neural => Slot::FROM_NEURAL,
        DraftSource::Grammar => Slot::FROM_GRAMMAR,
    }
}

fn sampling_row(params: &SamplingParams) -> SamplingRow {
    let alternatives = params.logprobs.max(params.prompt_logprobs);
    SamplingRow {
        temperature: params.temperature,
        top_p: params.top_p,
        top_k: params.top_k,
        min_p: params.min_p,
        seed: params.seed.into(),
        logprobs: alternatives.map_or(-1, |count| count as i32),
    }
}
