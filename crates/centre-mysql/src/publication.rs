//! The tables of publications, and the SQL that serves them.

use tidewater_centre::engine::flight::ValueTypes;
use tidewater_centre::engine::publication;
use tidewater_centre::engine::sql::condition_arguments::ConditionArguments;
use tidewater_centre::engine::sql::served_table::{self, TableAdapter};
use tidewater_centre::engine::window::WindowBound;
use tidewater_centre::error::CentreError;
use tidewater_protocol::{ColumnType, Datum};

use crate::catalog::MysqlColumn;
use crate::quote::quote;
use crate::recorded_log::RecordedLog;
use crate::values::{MysqlKind, NativeRows};

/// A publication as it is served.
pub(crate) type Publication = publication::Publication<MysqlTables>;

/// A table of a [`Publication`].
pub(crate) type ServedTable = served_table::ServedTable<MysqlTables>;

/// What the database has of its own in the tables that it serves.
#[derive(Debug)]
pub(crate) struct MysqlTables;

/// What only the database knows of a table.
#[derive(Debug)]
pub(crate) struct TableDetails;

impl ValueTypes for MysqlTables {
    type Kind = MysqlKind;
    type Rows = NativeRows;
}

impl TableAdapter for MysqlTables {
    type Column = MysqlColumn;
    type Log = RecordedLog;
    type Details = TableDetails;

    const SPELLS_PARTITIONS: bool = false;

    fn log_table(id: i64) -> String {
        quote(&RecordedLog::table_name(id))
    }

    fn is_in_partitions<'a>(
        _: &served_table::TableRule<MysqlTables>,
        _: &[Vec<Datum<'a>>],
        _: &mut ConditionArguments<'a, MysqlKind>,
    ) -> Result<String, CentreError> {
        todo!("downloads: the condition that a row is of a partition")
    }

    fn is_in_window(
        _: &served_table::TableRule<MysqlTables>,
        _: &WindowBound,
        _: ColumnType,
        _: &mut ConditionArguments<'_, MysqlKind>,
    ) -> String {
        todo!("downloads: the condition that a row is in a window")
    }
}
