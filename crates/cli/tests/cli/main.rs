//! The `tidewater` program from end to end: the real binary, real servers on free
//! loopback ports, real databases.

mod accidents;
mod administration;
mod centre;
mod conflicts;
mod exit_codes;
mod first_steps;
mod init;
mod json;
mod kill;
mod program;
mod refused;
mod serving;
mod shop;
mod strangers;
mod tls;
