//! Spaces: events between the connections of one server.
//!
//! Owns who is subscribed to what ([`Hub`]), who may ([`refusal`]), what waits for each
//! connection ([`inbox`]) and the channel of events ([`serve`]). Who gets what is found by
//! `tidewater-spaces`. An event is packed by whoever publishes it and passed on as these bytes.
//! Events that are kept are the centre's; those of other servers come in by [`Hub::deliver`].

mod hub;
mod inbox;
mod member;
mod pieces;
mod refusal;
mod serve;

#[cfg(test)]
mod tests;

pub(crate) use hub::Hub;
pub(crate) use member::Member;
pub(crate) use refusal::Refusal;
pub(crate) use serve::{run, tell};
