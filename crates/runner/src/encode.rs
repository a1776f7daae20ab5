//! Plans as the device reads them; the layout is [`paceline_device::plan`].

use paceline_device::{LIST_INTS, SamplingRow, plan, slot};
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
    let mut words = vec![stop_tokens.len() as i32];
    words.extend(stop_tokens.iter().map(|token| *token as i32));
    words.push(params.logit_bias.len() as i32);
    for (token, bias) in &params.logit_bias {
        words.extend([*token as i32, bias.to_bits() as i32]);
    }
    words.push(params.bad_words.len() as i32);
    for word in &params.bad_words {
        words.push(word.len() as i32);
        words.extend(word.iter().map(|token| *token as i32));
    }
    if words.len() > LIST_INTS {
        return Err(ListsTooLong {
            words: words.len(),
            limit: LIST_INTS,
        });
    }
    Ok(words)
}

/// Writes a plan into `words`, replacing what was there.
pub(crate) fn encode(step: &StepPlan, words: &mut Vec<i32>) -> Result<(), ListsTooLong> {
    words.clear();
    words.resize(plan::HEADER, 0);
    words[plan::ADMISSIONS] = step.admissions.len() as i32;
    for admission in &step.admissions {
        encode_admission(admission, words)?;
    }
    for row in &step.rows {
        for (index, block) in &row.new_blocks {
            words.extend([row.slot.0 as i32, *index as i32, block.0 as i32]);
            words[plan::BLOCKS] += 1;
        }
    }
    words[plan::ROWS] = step.rows.len() as i32;
    for row in &step.rows {
        words.extend(encode_row(row));
    }
    for row in &step.rows {
        let tokens = match (&row.work, &row.constraint) {
            (Work::Prefill { tokens, .. } | Work::Embed { tokens, .. }, _) => tokens.as_slice(),
            (Work::Verify { .. }, Some(constraint)) => constraint.drafts.as_slice(),
            (Work::Verify { .. }, None) => &[],
        };
        words.extend(tokens.iter().map(|token| *token as i32));
        words[plan::TOKENS] += tokens.len() as i32;
    }
    Ok(())
}

fn encode_admission(admission: &Admission, words: &mut Vec<i32>) -> Result<(), ListsTooLong> {
    let params = &admission.params;
    let lists = list_words(params, &admission.stop_tokens)?;
    let mut state = [0; slot::INTS];
    state[slot::GENERATION] = admission.generation as i32;
    state[slot::MAX_LENGTH] = admission.max_length as i32;
    state[slot::MIN_LENGTH] = admission.min_length as i32;
    state[slot::PROMPT_LENGTH] = admission.prompt_tokens as i32;
    state[slot::RESTORE] = admission.restore.map_or(-1, |snapshot| snapshot.0 as i32);
    state[slot::SAMPLING..slot::REPETITION_PENALTY].copy_from_slice(&sampling_row(params).encode());
    state[slot::REPETITION_PENALTY] = params.repetition_penalty.to_bits() as i32;
    state[slot::PRESENCE_PENALTY] = params.presence_penalty.to_bits() as i32;
    state[slot::FREQUENCY_PENALTY] = params.frequency_penalty.to_bits() as i32;
    words.extend([admission.slot.0 as i32, lists.len() as i32]);
    words.extend(state);
    words.extend(lists);
    Ok(())
}

fn encode_row(row: &PlanRow) -> [i32; plan::ROW] {
    let mut words = [0; plan::ROW];
    words[plan::ROW_SLOT] = row.slot.0 as i32;
    words[plan::ROW_GENERATION] = row.generation as i32;
    words[plan::ROW_FOLLOWING] = -1;
    match &row.work {
        Work::Prefill {
            start,
            tokens,
            last,
            following,
            prompt_logprobs,
        } => {
            words[plan::ROW_KIND] = plan::PREFILL;
            words[plan::ROW_START] = *start as i32;
            words[plan::ROW_COUNT] = tokens.len() as i32;
            words[plan::ROW_FOLLOWING] = following.map_or(-1, |token| token as i32);
            let last = if *last { plan::SAMPLE_LAST } else { 0 };
            words[plan::ROW_FLAGS] = last | if *prompt_logprobs { plan::SAMPLE_ALL } else { 0 };
        }
        Work::Verify { drafts } => {
            words[plan::ROW_KIND] = plan::VERIFY;
            words[plan::ROW_COUNT] = *drafts as i32;
        }
        Work::Embed {
            start,
            tokens,
            last,
            pooling,
        } => {
            words[plan::ROW_KIND] = plan::PREFILL;
            words[plan::ROW_START] = *start as i32;
            words[plan::ROW_COUNT] = tokens.len() as i32;
            words[plan::ROW_FLAGS] = match (pooling, last) {
                (Pooling::Mean, true) => plan::POOL_SUM | plan::POOL_MEAN,
                (Pooling::Mean, false) => plan::POOL_SUM,
                (Pooling::Last, true) => plan::POOL_LAST,
                (Pooling::Last, false) => 0,
            };
        }
    }
    if let Some(constraint) = &row.constraint {
        let given = match row.work {
            Work::Prefill { .. } | Work::Embed { .. } => 0,
            Work::Verify { drafts } => {
                assert!(
                    drafts == constraint.drafts.len(),
                    "{drafts} drafts planned, {} given",
                    constraint.drafts.len()
                );
                plan::GIVEN
            }
        };
        words[plan::ROW_FLAGS] |= plan::MASKED | given;
        words[plan::ROW_SOURCE] = constraint.source.map_or(0, source_word);
    }
    words[plan::ROW_SNAPSHOT_AT] = row.snapshot.map_or(-1, |snapshot| snapshot.position as i32);
    words[plan::ROW_SNAPSHOT] = row.snapshot.map_or(-1, |snapshot| snapshot.id.0 as i32);
    words[plan::ROW_NGRAM] = row.propose.ngram as i32;
    words[plan::ROW_NEURAL] = row.propose.neural as i32;
    words
}

/// Where drafts came from, as the device writes it.
fn source_word(source: DraftSource) -> i32 {
    match source {
        DraftSource::Ngram => slot::FROM_NGRAM,
        DraftSource::Neural => slot::FROM_NEURAL,
        DraftSource::Grammar => slot::FROM_GRAMMAR,
    }
}

/// Masks as the device reads them, each `words` long: what they do not reach is not allowed.
pub(crate) fn mask_words<'a>(masks: impl Iterator<Item = &'a TokenMask>, words: usize) -> Vec<i32> {
    let padded = |mask: &'a TokenMask| {
        let own = mask.words().iter().map(|word| *word as i32);
        own.chain(std::iter::repeat(0)).take(words)
    };
    masks.flat_map(padded).collect()
}

fn sampling_row(params: &SamplingParams) -> SamplingRow {
    let alternatives = params.logprobs.max(params.prompt_logprobs);
    SamplingRow {
        temperature: params.temperature,
        top_p: params.top_p,
        top_k: params.top_k,
        min_p: params.min_p,
        seed: params.seed,
        logprobs: alternatives.map_or(-1, |count| count as i32),
    }
}
