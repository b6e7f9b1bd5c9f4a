//! What goes on live on a server's connections beside syncs: calls, events, and who is told to sync.

pub mod built_in;
pub mod call_address;
pub mod call_channel;
pub mod call_outcome;
pub mod calls;
pub mod event_channel;
pub mod event_requests;
pub mod nats_bridge;
pub mod nats_client;
pub mod outgoing_calls;
pub mod socket_loop;
pub mod spaces;
pub mod wake;
