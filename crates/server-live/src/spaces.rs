//! Spaces: events between the connections of one server.
//!
//! Owns who is subscribed to what ([`Hub`]), who may ([`refusal`]) and what waits for each connection
//! ([`inbox`]). Who gets what is found by `tidewater-spaces`. An event is packed by whoever publishes
//! it and passed on as these bytes. Events that are kept are the centre's ([`event_store`]), and
//! [`followers`] gives them to whoever follows; those of other servers come in by [`Hub::deliver`].

pub(crate) mod counts;
pub(crate) mod event_store;
pub(crate) mod followers;
mod hub;
pub(crate) mod inbox;
mod member;
pub(crate) mod refusal;

pub use event_store::EventStore;
pub use hub::{Hub, PublishOutcome};
pub use inbox::Notice;
pub use member::SpaceMember;
pub use refusal::{Refusal, User};
