//! Refused rows as they are kept: read, settled, and told to their remotes.
//!
//! `tidewater.refused` has every attempt that nobody has settled. What is settled goes to
//! `tidewater.settled_refusal`, a row of a remote once.

use tidewater_protocol::RemoteId;
use tidewater_protocol::message::SettledRefusal;

use super::connection::{DatabaseConnection, ResultRow, StatementResult, SystemStatement};
use super::sql::system::{refusals as refused, settled_refusals};
use crate::download::ToldSettled;
use crate::error::CentreError;
use crate::records::{RefusalEnd, RefusalOutcome, RefusedFilter, RefusedRecord};

type Result<T> = std::result::Result<T, CentreError>;

/// So many settled rows are told with one download, and no more bytes of keys and names; one at
/// least.
const TOLD_AT_ONCE: usize = 1_000;
const TOLD_BYTES: usize = 200 << 10;

fn read(row: &ResultRow) -> Result<RefusedRecord> {
    let parent: (Option<String>, Option<String>) = (row.get(13)?, row.get(14)?);
    Ok(RefusedRecord {
        id: row.get(0)?,
        at_ms: row.get(1)?,
        remote_id: row.get(2)?,
        user: row.get(3)?,
        publication: row.get(4)?,
        table: row.get(5)?,
        key: row.get(6)?,
        operation: row.get(7)?,
        row: row.get(8)?,
        code: row.get(9)?,
        reason: row.get(10)?,
        sequence: row.get(11)?,
        pre_image: row.get(12)?,
        parent: parent.0.zip(parent.1),
        attempts: row.get(15)?,
        settled: None,
    })
}

fn read_settled(row: &ResultRow) -> Result<RefusedRecord> {
    let outcome: String = row.get(18)?;
    let settled = RefusalEnd {
        at_ms: row.get(16)?,
        by: row.get(17)?,
        outcome: RefusalOutcome::from_name(&outcome).ok_or_else(|| CentreError::Internal {
            message: format!("a refused row was settled as {outcome:?}, which is unknown"),
        })?,
        row: row.get(19)?,
        reason: row.get(20)?,
    };
    Ok(RefusedRecord {
        settled: Some(settled),
        ..read(row)?
    })
}

/// What the scripts of the sync of a refused row went by.
pub(super) async fn sync_notes(
    connection: &mut impl DatabaseConnection,
    id: i64,
) -> Result<String> {
    let select = refused::read_notes(id);
    let answer = connection.run_one("reading a refused row", select).await?;
    answer
        .rows
        .first()
        .map_or(Ok(String::new()), |row| row.get(0))
}

/// Every attempt that nobody has settled, oldest first.
pub(super) async fn all(connection: &mut impl DatabaseConnection) -> Result<Vec<RefusedRecord>> {
    let select = refused::list();
    let answer = connection.run_one("reading refused rows", select).await?;
    answer.rows.iter().map(read).collect()
}

/// See [`crate::Centre::find_refused`].
pub(super) async fn find(
    connection: &mut impl DatabaseConnection,
    filter: &RefusedFilter,
) -> Result<Vec<RefusedRecord>> {
    let what = "reading refused rows";
    let open = refused::find(filter);
    let answer = connection.run_one(what, open).await?;
    let mut found: Vec<RefusedRecord> = answer.rows.iter().map(read).collect::<Result<_>>()?;
    if !filter.open {
        let settled = settled_refusals::find(filter);
        let answer = connection.run_one(what, settled).await?;
        for row in &answer.rows {
            found.push(read_settled(row)?);
        }
        found.sort_by_key(|it| std::cmp::Reverse(it.id));
        found.truncate(usize::try_from(filter.limit).unwrap_or(usize::MAX));
    }
    Ok(found)
}

/// What was refused of a row, each remote's once, by its last attempt; newest first.
pub(super) async fn of_row(
    connection: &mut impl DatabaseConnection,
    table: &str,
    key: &str,
) -> Result<Vec<RefusedRecord>> {
    let what = "reading refused rows";
    let open = refused::list_of_row(table, key);
    let settled = settled_refusals::list_of_row(table, key);
    let answer = connection.run_one(what, open).await?;
    let mut found: Vec<RefusedRecord> = answer.rows.iter().map(read).collect::<Result<_>>()?;
    let answer = connection.run_one(what, settled).await?;
    for row in &answer.rows {
        found.push(read_settled(row)?);
    }
    found.sort_by_key(|it| std::cmp::Reverse(it.id));
    Ok(found)
}

/// See [`crate::Centre::refused_row`].
pub(in crate::engine) async fn row(
    connection: &mut impl DatabaseConnection,
    id: i64,
) -> Result<Option<RefusedRecord>> {
    let what = "reading a refused row";
    let answer = connection.run_one(what, refused::read(id)).await?;
    if let Some(row) = answer.rows.first() {
        return read(row).map(Some);
    }
    let answer = connection.run_one(what, settled_refusals::read(id)).await?;
    answer.rows.first().map(read_settled).transpose()
}

/// The attempts at a row of a remote that nobody has settled.
pub(in crate::engine) fn attempts(record: &RefusedRecord) -> SystemStatement {
    refused::list_attempts(
        record.remote_id,
        &record.publication,
        &record.table,
        &record.key,
    )
}

/// Moves rows, each given by its attempts, to those that are settled.
pub(in crate::engine) fn move_to_settled(rows: &[(Vec<i64>, RefusalEnd)]) -> [SystemStatement; 2] {
    let attempts = rows.iter().flat_map(|(attempts, _)| attempts);
    [settled_refusals::insert(rows), refused::delete(attempts)]
}

/// Asks what operators have settled of a remote's refused rows: of its uploads from this one on,
/// behind this record.
pub(in crate::engine) fn ask_settled(
    remote_id: RemoteId,
    publication: &str,
    from: u64,
    after: u64,
) -> SystemStatement {
    let limit = TOLD_AT_ONCE as u64 + 1;
    settled_refusals::list_of_operators(remote_id, publication, (from, after), limit)
}

/// Reads the answer.
pub(in crate::engine) fn settled(answer: &StatementResult) -> Result<ToldSettled> {
    let (mut told, mut bytes, mut last) = (Vec::new(), 0, 0);
    for row in &answer.rows {
        let settled = SettledRefusal {
            table: row.get(1)?,
            key: row.get(2)?,
            sequence: row.get(3)?,
            at_ms: row.get(4)?,
            by: row.get(5)?,
            outcome: row.get(6)?,
        };
        let size = settled.table.len() + settled.key.len() + settled.by.len() + 40;
        if told.len() == TOLD_AT_ONCE || bytes + size > TOLD_BYTES && !told.is_empty() {
            return Ok(ToldSettled {
                rows: told,
                after: last,
            });
        }
        last = row.get(0)?;
        bytes += size;
        if size <= TOLD_BYTES {
            told.push(settled);
        }
    }
    Ok(ToldSettled {
        rows: told,
        after: 0,
    })
}
