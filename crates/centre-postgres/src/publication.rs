//! The tables of publications, and what PostgreSQL knows of them.

use super::catalog::PostgresCatalog;
use super::table_statement::ArrayRows;
use super::triggers::LogSpec;
use super::values::PostgresType;
use crate::column::PgColumn;
use tidewater_centre::engine::compile::CompiledTable;
use tidewater_centre::engine::publication;
use tidewater_centre::engine::sql::served_table::{self, TableAdapter};
use tidewater_centre::engine::upload::upload_driver::SideEffects;

/// A publication, ready to be served.
pub(super) type Publication = publication::Publication<PostgresTables>;

/// A table of a publication.
pub(crate) type ServedTable = served_table::ServedTable<PostgresTables>;

/// A rule by which rows of a table are held.
pub(super) type TableRule = served_table::TableRule<PostgresTables>;

/// What PostgreSQL has of its own in the tables that it serves.
#[derive(Debug)]
pub(crate) struct PostgresTables;

/// What only PostgreSQL knows of a table.
#[derive(Debug)]
pub(crate) struct TableDetails {
    pub(super) oid: u32,
    pub(super) effects: SideEffects,
    /// What [`super::FINGERPRINTS`] said when it was loaded.
    pub(super) fingerprint: String,
    /// The planner's guess of the number of rows.
    pub(super) row_estimate: u64,
}

impl TableAdapter for PostgresTables {
    type Kind = PostgresType;
    type Rows = ArrayRows;
    type Column = PgColumn;
    type Log = LogSpec;
    type Details = TableDetails;

    fn log_table(id: i64) -> String {
        LogSpec::log_table(id)
    }
}

/// Makes a table of what is compiled.
pub(super) fn served_table(
    published: &CompiledTable<'_>,
    catalog: &PostgresCatalog,
) -> ServedTable {
    let live = &catalog.tables[published.table];
    let log = |rule: usize| {
        let tracking = published.spec.tracking;
        LogSpec::new(live, &published.rules[rule], catalog, tracking)
    };
    let details = TableDetails {
        oid: live.oid,
        effects: SideEffects {
            // Whether a partition has a trigger of its own is not asked in every upload.
            always: live.members.is_some()
                || live.user_triggers
                || live.columns.iter().any(|column| column.generated),
            on_delete: published.acts_on_delete,
            on_update: published.acts_on_update,
        },
        fingerprint: String::new(),
        row_estimate: live.row_estimate,
    };
    ServedTable::new(published, catalog, log, details)
}

/// The key's columns, under the names that they have in another relation, as
/// results in binary form.
pub(super) fn key_outputs(table: &ServedTable, prefix: &str, names: &[String]) -> String {
    let outputs = table.key_columns().zip(names);
    let outputs = outputs.map(|(column, name)| match column.kind {
        PostgresType::Other => format!("{prefix}{name}::text"),
        _ => format!("{prefix}{name}"),
    });
    outputs.collect::<Vec<_>>().join(", ")
}
