//! How many drafts a row verifies.

use crate::request::RequestId;

/// What a policy may know of a request.
#[derive(Clone, Copy, Debug)]
pub struct RequestView {
    /// Which.
    pub id: RequestId,
    /// Tokens known to the host.
    pub known: usize,
    /// Most tokens there can be once all planned steps are done.
    pub upper_bound: usize,
    /// Requests that run now.
    pub running: usize,
    /// Most drafts that fit; more are cut.
    pub most: usize,
}

/// Chooses the number of drafts per row, and learns how they fared.
pub trait DraftPolicy: Send {
    /// Drafts for the request's next row; cut to what fits. Called once per decode row; must be quick.
    fn drafts_for(&self, request: &RequestView) -> usize;

    /// A row of the request verified `drafted` drafts and accepted some.
    fn observe(&mut self, _id: RequestId, _drafted: usize, _accepted: usize) {}

    /// The request has ended.
    fn forget(&mut self, _id: RequestId) {}
}

/// The same number for everyone.
#[derive(Clone, Copy, Debug)]
pub struct FixedDrafts(pub usize);

impl DraftPolicy for FixedDrafts {
    fn drafts_for(&self, _request: &RequestView) -> usize {
        self.0
    }
}
