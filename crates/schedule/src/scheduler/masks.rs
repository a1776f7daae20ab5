//! Masks of constrained requests: which requests need them, and what becomes of the results.

use super::Scheduler;
use super::saves::Ending;
use crate::constraint::{MaskJob, MaskResult};
use crate::request::{RequestId, RequestOutput};
use paceline_types::{DraftSource, FinishReason, TokenId};

impl Scheduler {
    /// A constrained request has come into a slot: its first masks are wanted, unless it has been there before.
    pub(super) fn ask_first_masks(&mut self, id: RequestId) {
        let request = self.request_mut(id);
        let constrained = request.constraint.as_mut();
        if let Some(constrained) = constrained.filter(|constrained| constrained.is_new()) {
            // Its matcher has seen none of what was generated elsewhere.
            constrained.ask(request.asked.generated.to_vec(), (Vec::new(), None));
            self.masks_due.push_back(id);
        }
    }

    /// A constrained request has grown: masks behind it are wanted.
    pub(super) fn ask_masks(
        &mut self,
        id: RequestId,
        grown: Vec<TokenId>,
        made: (Vec<TokenId>, Option<DraftSource>),
    ) {
        if let Some(constrained) = &mut self.request_mut(id).constraint {
            constrained.ask(grown, made);
            self.masks_due.push_back(id);
        }
    }

    /// The next job for a mask worker.
    pub fn next_mask_job(&mut self) -> Option<MaskJob> {
        while let Some(id) = self.masks_due.pop_front() {
            let most = self.resources.config.drafts;
            let Some(request) = self.requests.get_mut(&id) else {
                continue;
            };
            let most = request.speculation.most().min(most);
            let constrained = request.constraint.as_mut();
            let job =
                constrained.and_then(|constrained| constrained.job(id, most, &request.asked.stop_tokens));
            if let Some(job) = job {
                self.masks_away += 1;
                return Some(job);
            }
        }
        None
    }

    /// Takes a job back that could not be started. It is the next again.
    pub fn return_mask_job(&mut self, job: MaskJob) {
        self.masks_away -= 1;
        let id = job.id();
        if let Some(request) = self.requests.get_mut(&id)
            && let Some(constrained) = &mut request.constraint
        {
            constrained.put_back(job);
            self.masks_due.push_front(id);
        }
    }

    /// Takes what came of a job. The text may be complete, or impossible to go on with; then the request ends.
    pub fn take_masks(&mut self, result: MaskResult) {
        self.masks_away -= 1;
        let id = result.id();
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        let Some(constrained) = &mut request.constraint else {
            return;
        };
        let (finish, detail) = match constrained.take(result) {
            Ok(Some(())) => return,
            Ok(None) => (FinishReason::Stop, None),
            Err(error) => (FinishReason::Constraint, Some(error.0)),
        };
        let ending = self.request(id).ending(finish);
        self.outbox.push(RequestOutput { detail, ..ending });
        // No plan row of it is in flight: one is planned only when its masks are there.
        self.remove(id, Ending::InFlight);
    }

    /// Whether masks are being computed.
    pub fn awaits_masks(&self) -> bool {
        self.masks_away > 0
    }
}
