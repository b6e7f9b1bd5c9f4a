//! What explaining and previewing read.

use tidewater_centre::SyncContext;
use tidewater_centre::engine::inspect::{
    ChangeLogEntry, ConfigurationSide, DatabaseInspection, KeyedRow, RowsDiffer,
};
use tidewater_centre::error::CentreError;

use crate::MysqlCentre;
use crate::connection::MysqlConnection;
use crate::publication::MysqlTables;

impl DatabaseInspection for MysqlCentre {
    async fn entries(
        _: &mut MysqlConnection,
        _: &KeyedRow<'_, MysqlTables>,
        _: usize,
        _: i64,
    ) -> Result<Vec<ChangeLogEntry>, CentreError> {
        todo!("inspection: what a change log has of a key")
    }

    async fn difference(
        _: &mut MysqlConnection,
        _: &SyncContext,
        _: [Option<ConfigurationSide<'_, MysqlTables>>; 2],
        _: usize,
    ) -> Result<Option<RowsDiffer>, CentreError> {
        todo!("inspection: how two sets of rows differ")
    }
}
