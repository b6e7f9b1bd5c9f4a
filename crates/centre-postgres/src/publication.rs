//! The tables of publications, and what PostgreSQL knows of them.

use tidewater_protocol::{ColumnType, Datum};

use super::array_rows::ArrayRows;
use super::catalog::PostgresCatalog;
use super::partition_condition;
use super::triggers::LogSpec;
use super::values::PostgresType;
use crate::column::PgColumn;
use tidewater_centre::engine::compile::CompiledTable;
use tidewater_centre::engine::flight::ValueTypes;
use tidewater_centre::engine::publication;
use tidewater_centre::engine::sql::condition_arguments::ConditionArguments;
use tidewater_centre::engine::sql::served_table::{self, TableAdapter};
use tidewater_centre::engine::upload::upload_driver::SideEffects;
use tidewater_centre::engine::window::WindowBound;
use tidewater_centre::error::CentreError;

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
}

impl ValueTypes for PostgresTables {
    type Kind = PostgresType;
    type Rows = ArrayRows;
}

impl TableAdapter for PostgresTables {
    type Column = PgColumn;
    type Log = LogSpec;
    type Details = TableDetails;

    const SPELLS_PARTITIONS: bool = true;

    fn log_table(id: i64) -> String {
        LogSpec::log_table(id)
    }

    fn is_in_partitions<'a>(
        rule: &TableRule,
        partitions: &[Vec<Datum<'a>>],
        _: &mut ConditionArguments<'a, PostgresType>,
    ) -> Result<String, CentreError> {
        Ok(partition_condition::is_in_partitions(
            &rule.alias,
            &rule.columns,
            partitions,
        ))
    }

    fn is_in_window(
        rule: &TableRule,
        bound: &WindowBound,
        column_type: ColumnType,
        _: &mut ConditionArguments<'_, PostgresType>,
    ) -> String {
        partition_condition::is_in_window(&rule.windows[bound.window], bound, column_type)
    }

    /// How much a table weighs with its long values, in all of its leaves. That is what the files have,
    /// so statistics that are missing or old do not matter. Values may be compressed there.
    fn weight_sql(table: &ServedTable) -> Option<String> {
        let oid = table.details.oid;
        Some(format!(
            "SELECT 8 * (pg_catalog.pg_table_size({oid}::oid)
               + coalesce(sum(pg_catalog.pg_table_size(t.relid)), 0))::int8
             FROM pg_catalog.pg_partition_tree({oid}::oid::regclass) t WHERE t.relid <> {oid}::oid"
        ))
    }

    /// Policies may look at the user for whom the server reads.
    fn policies_sql(table: &ServedTable) -> Option<String> {
        let oid = table.details.oid;
        Some(format!(
            "SELECT relrowsecurity FROM pg_catalog.pg_class WHERE oid = {oid}::oid"
        ))
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
    };
    ServedTable::new(published, catalog, log, details)
}
