//! The record on its way to the host.

use paceline_device::abi::{DraftsMade, LogitsRow, Logprobs, Plan, PlanRow, RecordHeader, RecordRow, Slot};

/// Views of [`publish`].
pub(crate) struct Publication<'a> {
    pub(crate) plan: Plan<'a>,
    pub(crate) slots: &'a [Slot],
    pub(crate) header: RecordHeader,
    pub(crate) rows: &'a [RecordRow],
    /// The live ones.
    pub(crate) logits: &'a [LogitsRow],
    pub(crate) logprobs: &'a [Logprobs],
    /// Vectors that the step has completed, packed.
    pub(crate) embeddings: &'a [f32],
    pub(crate) embedding_width: usize,
    /// The step's place in the ring.
    pub(crate) out: &'a mut [i32],
}

/// Writes the record; see [`paceline_device::Publish`].
pub(crate) fn publish(publication: Publication<'_>) {
    let Publication {
        plan, header, out, ..
    } = publication;
    let asks = |row: &&LogitsRow| row.sampling.logprobs >= 0;
    let shows = |row: &&PlanRow| row.is(PlanRow::SHOW_DRAFTS);
    let embeddings = plan.rows.iter().filter(|row| row.embeds()).count();
    let header = RecordHeader {
        rows: plan.rows.len() as u32,
        logprobs: publication.logits.iter().filter(asks).count() as u32,
        drafts: plan.rows.iter().filter(shows).count() as u32,
        embeddings: embeddings as u32,
        embedding_width: publication.embedding_width as u32,
        ..header
    };
    let mut writer = Writer(out);
    writer.put(&[header]);
    writer.put(&publication.rows[..plan.rows.len()]);
    for (row, logprobs) in publication.logits.iter().zip(publication.logprobs) {
        if asks(&row) {
            writer.put(std::slice::from_ref(logprobs));
        }
    }
    for row in plan.rows.iter().filter(shows) {
        let slot = &publication.slots[row.slot as usize];
        writer.put(&[DraftsMade {
            count: slot.draft_count,
            source: slot.source,
            tokens: slot.drafts,
        }]);
    }
    writer.put(&publication.embeddings[..embeddings * publication.embedding_width]);
}

/// Writes one section after the other.
struct Writer<'a>(&'a mut [i32]);

impl Writer<'_> {
    fn put<T: bytemuck::Pod>(&mut self, values: &[T]) {
        let words: &[i32] = bytemuck::cast_slice(values);
        let (front, rest) = std::mem::take(&mut self.0).split_at_mut(words.len());
        front.copy_from_slice(words);
        self.0 = rest;
    }
}
