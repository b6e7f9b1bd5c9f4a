//! A change log and what it records.

use tidewater_centre::engine::change_log::ChangeLog;
use tidewater_centre::engine::sql::system_dialect::SystemDialect as _;

use crate::dialect::MysqlDialect;

/// A change log and what it records. There is none before tables are published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RecordedLog {}

impl RecordedLog {
    /// The name of a change log's table, by its number.
    pub(crate) fn table_name(id: i64) -> String {
        MysqlDialect.table(&format!("log_{id}"))
    }
}

impl ChangeLog for RecordedLog {
    fn identity(&self) -> String {
        match *self {}
    }

    fn title(&self) -> &str {
        match *self {}
    }

    fn by(&self) -> &[String] {
        match *self {}
    }

    fn join(&mut self, _: &RecordedLog) {
        match *self {}
    }
}
