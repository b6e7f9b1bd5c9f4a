//! Deletes that were given back before their rows; see [`crate::awaited`].

use std::borrow::Cow;

use tidewater_protocol::Op;

use super::admit::Admitted;
use super::incoming::Incoming;
use super::outcomes::Outcomes;
use super::{One, Progress};
use crate::awaited::{AwaitedDelete, written_keys};
use crate::columns::{Announced, ColumnMap};
use crate::error::CentreError;
use crate::orphans::Orphans;
use crate::postgres::connection::{Connection, refused};

const KEEP: &str = "
INSERT INTO tidewater.awaited_delete (table_name, key, begin, packed, at_ms)
VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (table_name, key) DO UPDATE SET begin = excluded.begin, packed = excluded.packed,
  at_ms = excluded.at_ms";

const FIND: &str = "
SELECT key, begin, packed FROM tidewater.awaited_delete
WHERE table_name = $1 AND key = ANY ($2::bytea[]) FOR UPDATE";

const DROP: &str = "DELETE FROM tidewater.awaited_delete WHERE table_name = $1 AND key = $2";

impl One<'_> {
    /// Keeps the deletes that came before their rows, and applies those that have waited for
    /// rows which this upload has brought back. Whether any were.
    pub(super) async fn settle_awaited(
        &self,
        connection: &mut Connection,
        incoming: &[Incoming<'_>],
        admitted: &Admitted,
        absent: Vec<AwaitedDelete>,
    ) -> Result<bool, CentreError> {
        let error = |error| refused("deletes that wait for their rows")(error);
        let keep = connection.prepare(KEEP, &[]).await?;
        for AwaitedDelete {
            table,
            key,
            begin,
            packed,
        } in absent
        {
            let now_ms = self.upload.now_ms;
            connection
                .client()
                .execute(&keep, &[&table, &key, &begin, &packed, &now_ms])
                .await
                .map_err(error)?;
        }
        let find = connection.prepare(FIND, &[]).await?;
        let mut settled = false;
        for written in incoming {
            let table = &written.upload().begin.table;
            let keys = written_keys(written.upload(), &written.map.shape, &written.key_types())?;
            let found = connection.client().query(&find, &[table, &keys]).await;
            for row in found.map_err(error)? {
                let delete = AwaitedDelete {
                    table: table.clone(),
                    key: row.get(0),
                    begin: row.get(1),
                    packed: row.get(2),
                };
                settled |= self.settle(connection, admitted, &delete).await?;
            }
        }
        Ok(settled)
    }

    /// Applies a delete. Unless its row is what it was, it waits on.
    async fn settle(
        &self,
        connection: &mut Connection,
        admitted: &Admitted,
        delete: &AwaitedDelete,
    ) -> Result<bool, CentreError> {
        let upload = delete.upload()?;
        let Announced::Published(index, map) =
            ColumnMap::find(&self.publication.schema, &upload.begin)?
        else {
            return Ok(false);
        };
        let mut row = Incoming::new(self.publication, Cow::Owned(upload), index, map)?;
        admitted.tell(&mut row);
        // What becomes of it is nobody's to hear who syncs now.
        let orphans = Orphans::default();
        let mut progress = Progress::new(Outcomes::new(self.publication, &orphans));
        let rows = std::slice::from_ref(&row);
        self.one_operation(connection, rows, 0, Op::Delete, admitted, &mut progress)
            .await?;
        let is_done =
            progress.outcomes.deletes() == 1 && progress.outcomes.take_absent().is_empty();
        if is_done {
            let drop = connection.prepare(DROP, &[]).await?;
            let client = connection.client();
            let dropped = client.execute(&drop, &[&delete.table, &delete.key]).await;
            dropped.map_err(refused("a delete that had waited for its row"))?;
        }
        Ok(is_done)
    }
}
