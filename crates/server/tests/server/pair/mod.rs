//! Two sessions against each other in simulated time: the real server on a network in
//! memory, the real session of a remote over a real file, one thread, a clock that jumps
//! to the next deadline. Whatever is cut, late or silent: every change takes effect
//! exactly once, and the remote and the centre agree in the end.
//!
//! Leaves sockets and the blocking driver to the end-to-end tests, and what real
//! databases make of rows to their conformance suite.

mod answers;
mod cuts;
mod device;
mod seeds;
mod simulation;
mod wire;
