//! What runs in the next step, and the loop that keeps steps in flight. Pure host code on plain data: no device
//! types, no IO, no waiting but for the oldest step's output.
//!
//! [`Scheduler`] turns requests into [`StepPlan`](paceline_types::StepPlan)s and step outputs into
//! [`RequestOutput`]s. [`Pipeline`] runs it against a [`StepRunner`] with up to four steps in flight.

mod clock;
mod config;
mod constraint;
mod costs;
mod counters;
mod depth;
mod pipeline;
mod policy;
mod prefill_throttle;
mod record;
mod report;
mod request;
mod scheduler;
mod times;

pub use clock::{Clock, RealClock};
pub use config::{InvalidConfig, RecurrentConfig, SchedulerConfig};
pub use constraint::{MaskJob, MaskResult, MaskWorkers};
pub use costs::{Gain, StepCosts};
pub use counters::{Counters, SourceCounters};
pub use depth::DepthControl;
pub use paceline_cache::CacheFeed;
pub use pipeline::{Pipeline, RunnerFault, StepRunner, Stepped};
pub use policy::{Choice, DraftPolicy, FixedDrafts, RequestView, RowDrafts, Stage};
pub use record::{HostWaits, PipelineTotals, Span, StepRecord};
pub use report::{SpeculationReport, StepOrigins};
pub use request::{CheckedRequest, GroupId, QueueFull, RequestId, RequestOutput};
pub use scheduler::{RequestStatus, Scheduler};
pub use times::StepTimes;
