//! Disks for SQLite, in memory, that fail as real ones do.
//!
//! [`SimulatedMachine`] is a disk with the processes that use it; SQLite reaches it by paths that a
//! [`Process`] gives ([`registry`]), through a virtual file system that is registered as the
//! default one ([`ffi`]). [`file`] knows what was synced, [`locks`] who holds what, [`open`]
//! puts them together. No crate fits: sqlite-plugin, which is maintained, takes its bindings
//! from libclang at every build.

mod disk;
mod ffi;
mod file;
mod locks;
mod machine;
mod open;
mod registry;

pub(crate) use disk::{DiskAccident, DiskOperation};
pub(crate) use machine::{Process, SimulatedMachine, identity, process_at, start_beside};
pub(crate) use registry::set_clock;

#[cfg(test)]
mod tests;
