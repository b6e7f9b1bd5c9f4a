//! Spaces without input or output, for both sides: who gets which event, and what waits for whom.
//!
//! Owns [subjects and patterns](subject), the [`Router`] from a subject to its receivers, the
//! [chunks of whole events](pieces), the
//! [cutting of a chunk](runs) of packed events into slices for them, the [`ReceiverQueue`] where slices
//! wait for a slow receiver, and the [last value](last_value) of each subject. How events are
//! packed is the protocol's; who may publish and subscribe, connections and durable events are
//! left to the callers.

pub mod cache;
pub mod last_value;
pub mod outlet;
pub mod pieces;
pub mod router;
pub mod runs;
pub mod subject;
pub mod template;

pub use cache::SubjectCache;
pub use last_value::LastValues;
pub use outlet::{QueueFull, ReceiverQueue, WhenFull};
pub use pieces::EventPieces;
pub use router::{Receivers, Router};
pub use runs::{RouteRun, RouteRuns};
pub use subject::{Pattern, SubjectError, check_space, check_subject};
pub use template::PatternTemplate;
