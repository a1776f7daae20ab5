//! How far each request has come, for those who look.

use super::Scheduler;
use crate::request::RequestId;

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestStatus {
    /// The request.
    pub id: RequestId,
    /// Whose it is.
    pub tenant: u32,
    /// It has a slot; otherwise it waits for one.
    pub running: bool,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Of these, tokens that are cached or planned.
    pub prompt_tokens_done: usize,
    /// Tokens generated so far.
    pub generated_tokens: usize,
    /// Most tokens that it may generate.
    pub max_tokens: usize,
}

impl Scheduler {
    /// All requests, in the order of their ids. Cost: linear in their number.
    pub fn statuses(&self) -> Vec<RequestStatus> {
        let statuses = self.requests.values().map(|request| {
            let (prompt, running) = (request.prompt.len(), request.running());
            RequestStatus {
                id: request.id,
                tenant: request.tenant,
                running: running.is_some(),
                prompt_tokens: prompt,
                prompt_tokens_done: running.map_or(0, |running| running.planned.min(prompt)),
                generated_tokens: request.generated.len(),
                max_tokens: request.max_length.saturating_sub(prompt),
            }
        });
        let mut statuses: Vec<_> = statuses.collect();
        statuses.sort_unstable_by_key(|status| status.id);
        statuses
    }
}
