//! Spaces: events between the connections of one server.
//!
//! Owns who is subscribed to what ([`Hub`]), who may ([`refusal`]), what waits for each
//! connection ([`inbox`]), the channel of events ([`serve`]) and what is asked by calls
//! ([`requests`]). Who gets what is found by `tidewater-spaces`. An event is packed by whoever
//! publishes it and passed on as these bytes. Events that are kept are the centre's ([`store`]), and
//! [`kept`] gives them to whoever follows; those of other servers come in by [`Hub::deliver`].

mod hub;
mod inbox;
mod kept;
mod member;
mod refusal;
pub(crate) mod requests;
mod serve;
pub(crate) mod store;

#[cfg(test)]
mod tests;

pub(crate) use hub::Hub;
pub(crate) use inbox::Notice;
pub(crate) use member::Member;
pub(crate) use refusal::{Refusal, User};
pub(crate) use serve::{run, tell};
