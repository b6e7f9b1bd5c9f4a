//! The server over real loopback sockets: a scripted client built from the protocol
//! crate on one side, a consolidated database in memory on the other. What databases
//! do with rows is tested by `tidewater-centre-conformance`. In `pair`
//! the network and the time are simulated, and the other side is a real remote.

mod calls;
mod centre;
mod channels;
mod client;
mod desk;
mod events;
mod hostile;
mod http;
mod keys;
mod lifecycle;
mod limits;
mod pair;
mod program;
mod proxied;
mod restored;
mod shut_out;
mod sign_in;
mod sync;
mod world;
