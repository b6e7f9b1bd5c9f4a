//! The SQL of the engine's statements, and what a database has to say about their spelling.
//!
//! [`tables`] has the server's own tables as data, [`system`] the statements on them, by the table.
//! Both are neutral: a [`system_dialect::SystemDialect`] spells them for its database.
//! Running them is the business of [`super::connection`], and reading their results that of whoever
//! runs them.
//!
//! Of the application's tables [`served_table`] has what statements need: columns as their database
//! spells them ([`column`]), joins along routes ([`rule_route`]). What else databases do in their own
//! way, a [`sql_dialect::SqlDialect`] says. [`row_statements`] has the statements that write uploaded
//! rows; those of downloads are the adapter's.

pub mod activity_sql;
pub mod column;
pub mod condition_arguments;
pub mod lexing;
pub mod reading;
pub mod role_sql;
pub mod row_statements;
pub mod rule_route;
pub mod served_table;
pub mod set_relation;
pub mod sql_dialect;
pub mod statement_shape;
pub mod system;
pub mod system_dialect;
pub mod system_table;
pub mod tables;

#[cfg(test)]
mod tests;
