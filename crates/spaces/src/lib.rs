//! Spaces without input or output, for both sides: who gets which event, and what waits for whom.
//!
//! Owns [subjects and patterns](subject), the [`Router`] from a subject to its receivers, the
//! [chunks of whole events](event_pieces), the
//! [cutting of a chunk](route_runs) of packed events into slices for them, the [`ReceiverQueue`] where slices
//! wait for a slow receiver, and the [last value](last_values) of each subject. How events are
//! packed is the protocol's; who may publish and subscribe, connections and durable events are
//! left to the callers.

pub mod cache;
pub mod event_pieces;
pub mod last_values;
pub mod pattern_template;
pub mod receiver_queue;
pub mod route_runs;
pub mod router;
pub mod subject;

pub use cache::SubjectCache;
pub use event_pieces::EventPieces;
pub use last_values::LastValues;
pub use pattern_template::PatternTemplate;
pub use receiver_queue::{QueueFull, ReceiverQueue, WhenFull};
pub use route_runs::{RouteRun, RouteRuns};
pub use router::{Receivers, Router};
pub use subject::{Pattern, SubjectError, check_space, check_subject};
