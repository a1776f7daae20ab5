//! The host's side of constraints: where each continuation stands, and the work that finds out what may follow.
//!
//! A plan row of a constrained request is planned when its masks are known, so the device never waits for them. They
//! are computed by [`MaskJob`]s, on threads that are not this crate's business, while the device runs other plan
//! rows.

use crate::policy::RowDrafts;
use crate::request::RequestId;
use paceline_types::{Constraint, ConstraintError, DraftSource, Matcher, RowConstraint, TokenId, TokenMask};
use std::fmt;
use std::sync::Arc;

/// Work for a worker: what may follow a text that has grown.
pub struct MaskJob {
    id: RequestId,
    constraint: Arc<dyn Constraint>,
    /// Follows the text; made by the first job of a request.
    matcher: Option<Box<dyn Matcher>>,
    /// What the text has grown by.
    grown: Vec<TokenId>,
    /// The device's drafts behind it.
    drafts: (Vec<TokenId>, Option<DraftSource>),
    /// Most drafts.
    most: usize,
    /// Drafts stop before these.
    stop_tokens: Vec<TokenId>,
}

/// What came of a [`MaskJob`].
pub struct MaskResult {
    id: RequestId,
    matcher: Option<Box<dyn Matcher>>,
    outcome: Result<Option<Window>, ConstraintError>,
}

impl MaskJob {
    /// The request that the masks are for.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Does the work.
    pub fn run(mut self) -> MaskResult {
        let mut matcher = match self.matcher.take() {
            Some(matcher) => matcher,
            None => self.constraint.matcher(),
        };
        let outcome = self.window(matcher.as_mut());
        MaskResult {
            id: self.id,
            matcher: Some(matcher),
            outcome,
        }
    }

    /// What is left to say if the work could not be done.
    pub fn failure(&self) -> impl FnOnce(String) -> MaskResult + use<> {
        let id = self.id;
        move |reason| MaskResult {
            id,
            matcher: None,
            outcome: Err(ConstraintError(reason)),
        }
    }

    fn window(&mut self, matcher: &mut dyn Matcher) -> Result<Option<Window>, ConstraintError> {
        matcher.commit(&self.grown)?;
        if matcher.is_finished() {
            return Ok(None);
        }
        let forced = matcher.forced(self.most)?;
        let (mut drafts, mut source) = std::mem::take(&mut self.drafts);
        let mut lesson = None;
        // The device's drafts are as good as forced ones where they begin with them, and may go on.
        if !forced.is_empty() && !drafts.starts_with(&forced) {
            let right = drafts
                .iter()
                .zip(&forced)
                .take_while(|(made, must)| made == must)
                .count();
            lesson = source.map(|source| RowDrafts {
                planned: right + 1,
                drafted: (right + 1).min(drafts.len()),
                accepted: right,
                source: Some(source),
            });
            (drafts, source) = (forced, Some(DraftSource::Grammar));
        }
        let stop = drafts.iter().position(|draft| self.stop_tokens.contains(draft));
        drafts.truncate(stop.unwrap_or(self.most).min(self.most));
        let masks = matcher.masks(&drafts)?;
        let refused = source.filter(|_| masks.len() <= drafts.len());
        drafts.truncate(masks.len() - 1);
        Ok(Some(Window {
            source: source.filter(|_| !drafts.is_empty()),
            drafts,
            masks: masks.into(),
            refused,
            lesson,
        }))
    }
}

impl MaskResult {
    /// The request that the masks are for.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Why the text cannot go on, if it cannot.
    pub fn error(&self) -> Option<&ConstraintError> {
        self.outcome.as_ref().err()
    }
}

/// Where masks are computed.
pub trait MaskWorkers: Send {
    /// Takes a job, or gives it back if there are too many: it is offered again.
    fn start(&mut self, job: MaskJob) -> Option<MaskJob>;

    /// A job that is done, if there is one.
    fn done(&mut self) -> Option<MaskResult>;

    /// Waits until a job is done, for a short while at most.
    fn wait(&mut self);
}

/// What the next plan row of a request can verify, and what it is confined to.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    drafts: Vec<TokenId>,
    source: Option<DraftSource>,
    masks: Arc<[TokenMask]>,
    /// Whose drafts went on with one that may not come.
    refused: Option<DraftSource>,
    /// How the device's drafts fared that forced ones took the place of.
    lesson: Option<RowDrafts>,
}

impl Window {
    pub(crate) fn drafts(&self) -> usize {
        self.drafts.len()
    }

    /// Whether there is no choice about the drafts, so that they are worth verifying whatever anybody has learned.
    pub(crate) fn is_forced(&self) -> bool {
        self.source == Some(DraftSource::Grammar)
    }

    /// What the drafts of the plan row say about their source. A draft that the grammar refused would have been rejected.
    pub(crate) fn teach(&self, drafts: RowDrafts) -> RowDrafts {
        if self.is_forced() {
            return self.lesson.unwrap_or(RowDrafts {
                planned: 0,
                drafted: 0,
                accepted: 0,
                source: None,
            });
        }
        let all_right = drafts.planned == self.drafts.len() && drafts.accepted == drafts.planned;
        match self.refused {
            Some(source) if all_right => RowDrafts {
                planned: drafts.planned + 1,
                drafted: drafts.drafted + 1,
                source: Some(source),
                ..drafts
            },
            _ => drafts,
        }
    }

    /// The part of the window with the first `drafts` draft tokens.
    pub(crate) fn row(&self, drafts: usize) -> RowConstraint {
        RowConstraint {
            drafts: self.drafts[..drafts].to_vec(),
            source: self.source.filter(|_| drafts > 0),
            masks: Arc::clone(&self.masks),
        }
    }
}

/// A request's constraint and where its text stands in it.
pub(crate) struct Constrained {
    constraint: Arc<dyn Constraint>,
    matcher: Option<Box<dyn Matcher>>,
    stage: Stage,
}

enum Stage {
    /// Masks have not been asked for yet.
    New,
    /// A job is to be started, or running.
    Asked {
        grown: Vec<TokenId>,
        drafts: (Vec<TokenId>, Option<DraftSource>),
    },
    /// Masks for the text as it is. They stay until it grows: a plan row that is dropped is planned again with them.
    Ready(Window),
}

impl Constrained {
    pub(crate) fn new(constraint: Arc<dyn Constraint>) -> Self {
        Self {
            constraint,
            matcher: None,
            stage: Stage::New,
        }
    }

    pub(crate) fn is_new(&self) -> bool {
        matches!(self.stage, Stage::New)
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.ready().is_some()
    }

    pub(crate) fn ready(&self) -> Option<&Window> {
        match &self.stage {
            Stage::Ready(window) => Some(window),
            Stage::New | Stage::Asked { .. } => None,
        }
    }

    /// The text has grown by these tokens (at its beginning, by what was generated elsewhere), and the device has made these drafts behind them.
    pub(crate) fn ask(&mut self, grown: Vec<TokenId>, drafts: (Vec<TokenId>, Option<DraftSource>)) {
        assert!(
            !matches!(self.stage, Stage::Asked { .. }),
            "a constrained text has grown without masks"
        );
        self.stage = Stage::Asked { grown, drafts };
    }

    /// The job that was asked for.
    pub(crate) fn job(&mut self, id: RequestId, most: usize, stop_tokens: &[TokenId]) -> Option<MaskJob> {
        let Stage::Asked { grown, drafts } = &mut self.stage else {
            return None;
        };
        Some(MaskJob {
            id,
            constraint: Arc::clone(&self.constraint),
            matcher: self.matcher.take(),
            grown: std::mem::take(grown),
            drafts: std::mem::take(drafts),
            most,
            stop_tokens: stop_tokens.to_vec(),
        })
    }

    /// Takes back a job that was not run.
    pub(crate) fn put_back(&mut self, job: MaskJob) {
        self.matcher = job.matcher;
        self.stage = Stage::Asked {
            grown: job.grown,
            drafts: job.drafts,
        };
    }

    /// Takes what came of the job. Returns how the text ends, if it does.
    pub(crate) fn take(&mut self, result: MaskResult) -> Result<Option<()>, ConstraintError> {
        self.matcher = result.matcher;
        let Some(window) = result.outcome? else {
            return Ok(None);
        };
        self.stage = Stage::Ready(window);
        Ok(Some(()))
    }
}

impl fmt::Debug for Constrained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match &self.stage {
            Stage::New => "new",
            Stage::Asked { .. } => "asked",
            Stage::Ready(_) => "ready",
        };
        f.debug_struct("Constrained")
            .field("constraint", &self.constraint)
            .field("stage", &stage)
            .finish_non_exhaustive()
    }
}
