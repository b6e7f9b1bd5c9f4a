//! The engine's statements on the server's own tables, a file for each group of tables.
//!
//! Each file has the statements, and functions that give them their parameters. What is asked for
//! together ([`super::super::connection::DatabaseConnection::gather`]) yields the row's number first.

/// Defines statements, and lists them for the tests that spell all of them.
macro_rules! statements {
    ($($(#[$attribute:meta])* $name:ident = $sql:expr;)*) => {
        $($(#[$attribute])* const $name: SystemSql = $sql;)*

        /// Every statement of this file.
        pub(super) const ALL: &[(&str, SystemSql)] = &[$((stringify!($name), $name)),*];
    };
}

pub(in crate::engine) mod conflicts;
pub(in crate::engine) mod deployment_steps;
pub(in crate::engine) mod events;
pub(in crate::engine) mod figures;
pub(in crate::engine) mod given_back;
pub(in crate::engine) mod incidents;
pub(in crate::engine) mod marks;
pub(in crate::engine) mod meta;
pub(in crate::engine) mod number_blocks;
pub(in crate::engine) mod once_keys;
pub(in crate::engine) mod publications;
pub(in crate::engine) mod refusals;
pub(in crate::engine) mod remotes;
pub(in crate::engine) mod row_writers;
pub(in crate::engine) mod rules;
pub(in crate::engine) mod scope_pieces;
pub(in crate::engine) mod settled_refusals;
pub(in crate::engine) mod signing_keys;
pub(in crate::engine) mod subscriptions;
pub(in crate::engine) mod sync_history;
pub(in crate::engine) mod users;

use super::statement_shape::SystemSql;

/// Every statement by its file. Whoever adds a file and forgets it here has a constant that is never
/// used.
pub const ALL: &[(&str, &[(&str, SystemSql)])] = &[
    ("conflicts", conflicts::ALL),
    ("deployment_steps", deployment_steps::ALL),
    ("events", events::ALL),
    ("figures", figures::ALL),
    ("given_back", given_back::ALL),
    ("incidents", incidents::ALL),
    ("marks", marks::ALL),
    ("meta", meta::ALL),
    ("number_blocks", number_blocks::ALL),
    ("once_keys", once_keys::ALL),
    ("publications", publications::ALL),
    ("refusals", refusals::ALL),
    ("remotes", remotes::ALL),
    ("row_writers", row_writers::ALL),
    ("rules", rules::ALL),
    ("scope_pieces", scope_pieces::ALL),
    ("settled_refusals", settled_refusals::ALL),
    ("signing_keys", signing_keys::ALL),
    ("subscriptions", subscriptions::ALL),
    ("sync_history", sync_history::ALL),
    ("users", users::ALL),
];
