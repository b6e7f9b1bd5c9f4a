//! Calls of procedures, the same for every database.
//!
//! - [`order`]: what is done for a call, and in which order;
//! - [`step`]: the statements of a call, and their parameters;
//! - [`answer`]: collecting and packing the rows of a statement;
//! - [`check`]: whether the statements of a procedure yield what it returns;
//! - [`driver`]: what only the database can do.
//!
//! [`super::procedure`] reads what an operator wrote.

pub mod answer;
pub(super) mod check;
pub mod driver;
pub mod order;
pub mod step;
