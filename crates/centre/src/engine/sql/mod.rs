//! The SQL of the engine's statements, and what a database has to say about their spelling.
//!
//! [`tables`] has the server's own tables as data, [`system`] the statements on them, by the table.
//! Both are neutral: a [`system_dialect::SystemDialect`] spells them for its database.
//! Running them is the business of [`super::connection`], and reading their results that of whoever
//! runs them. The SQL of the application's tables is the adapter's.

pub mod column;
pub mod lexing;
pub mod published_table;
pub mod route;
pub mod sql_dialect;
pub mod statement_shape;
pub mod system;
pub mod system_dialect;

pub mod system_table;
pub mod tables;

#[cfg(test)]
mod tests;
