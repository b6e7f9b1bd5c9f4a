//! Refused rows as they are kept: read, settled, and told to their remotes.
//!
//! `tidewater.refused` has every attempt that nobody has settled. What is settled goes to
//! `tidewater.settled_refusal`, a row of a remote once.

use tidewater_protocol::message::SettledRefusal;
use tidewater_protocol::{RemoteId, Value};

use super::connection::{
    DatabaseConnection, ResultRow, StatementResult, SystemStatement, each, system_row, system_sql,
};
use crate::download::ToldSettled;
use crate::error::CentreError;
use crate::records::{RefusalEnd, RefusalOutcome, RefusedFilter, RefusedRecord};

type Result<T> = std::result::Result<T, CentreError>;

/// So many settled rows are told with one download, and no more bytes of keys and names; one at
/// least.
const TOLD_AT_ONCE: usize = 1_000;
const TOLD_BYTES: usize = 200 << 10;

/// The columns of [`read`].
macro_rules! columns {
    () => {
        "r.id, r.at_ms, r.remote_id, r.user_name, r.publication, r.table_name, r.row_key,
         r.operation, r.uploaded, r.code, r.reason, r.sequence, r.pre_image, r.parent_table,
         r.parent_key"
    };
}

/// Rows of which nothing is settled, each by its last attempt.
macro_rules! select_open {
    ($rest:literal) => {
        concat!(
            "SELECT ",
            columns!(),
            ", g.attempts FROM (SELECT max(id) AS id, count(*) AS attempts FROM tidewater.refused
             GROUP BY remote_id, publication, table_name, row_key) AS g JOIN tidewater.refused AS r ON r.id = g.id ",
            $rest
        )
    };
}

/// Those that are settled.
macro_rules! select_settled {
    ($rest:literal) => {
        concat!(
            "SELECT ",
            columns!(),
            ", r.attempts, r.settled_ms, r.settled_by, r.settled_as, r.settled_row,
             r.settled_reason FROM tidewater.settled_refusal AS r ",
            $rest
        )
    };
}

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
    let select = system_sql!("SELECT sync_notes FROM tidewater.refused WHERE id = ?1", id);
    let answer = connection.run_one("reading a refused row", select).await?;
    answer
        .rows
        .first()
        .map_or(Ok(String::new()), |row| row.get(0))
}

/// Every attempt that nobody has settled, oldest first.
pub(super) async fn all(connection: &mut impl DatabaseConnection) -> Result<Vec<RefusedRecord>> {
    let select = system_sql!(concat!(
        "SELECT ",
        columns!(),
        ", 1 FROM tidewater.refused AS r ORDER BY r.id"
    ));
    let answer = connection.run_one("reading refused rows", select).await?;
    answer.rows.iter().map(read).collect()
}

/// See [`crate::Centre::find_refused`].
pub(super) async fn find(
    connection: &mut impl DatabaseConnection,
    filter: &RefusedFilter,
) -> Result<Vec<RefusedRecord>> {
    // What is not asked for is empty: no table, user or code is.
    let table = filter.table.as_deref().unwrap_or_default();
    let user = filter.user.as_deref().unwrap_or_default();
    let cause = filter.cause.as_deref().unwrap_or_default();
    let open = system_sql!(
        select_open!(
            "WHERE (?1 = '' OR r.table_name = ?1) AND (?2 = '' OR r.user_name = ?2)
             AND (?3 = '' OR r.code = ?3) ORDER BY r.id DESC LIMIT ?4"
        ),
        table,
        user,
        cause,
        filter.limit,
    );
    let settled = system_sql!(
        select_settled!(
            "WHERE (?1 = '' OR r.table_name = ?1) AND (?2 = '' OR r.user_name = ?2)
             AND (?3 = '' OR r.code = ?3) ORDER BY r.id DESC LIMIT ?4"
        ),
        table,
        user,
        cause,
        filter.limit,
    );
    let what = "reading refused rows";
    let answer = connection.run_one(what, open).await?;
    let mut found: Vec<RefusedRecord> = answer.rows.iter().map(read).collect::<Result<_>>()?;
    if !filter.open {
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
    let open = system_sql!(
        select_open!("WHERE r.table_name = ?1 AND r.row_key = ?2"),
        table,
        key
    );
    let settled = system_sql!(
        select_settled!("WHERE r.table_name = ?1 AND r.row_key = ?2"),
        table,
        key
    );
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
    let open = system_sql!(
        concat!(
            "SELECT ",
            columns!(),
            ", (SELECT count(*) FROM tidewater.refused AS b WHERE b.remote_id = r.remote_id
             AND b.publication = r.publication AND b.table_name = r.table_name
             AND b.row_key = r.row_key)
             FROM tidewater.refused AS a JOIN tidewater.refused AS r
             ON a.remote_id = r.remote_id AND a.publication = r.publication
             AND a.table_name = r.table_name AND a.row_key = r.row_key
             WHERE a.id = ?1 ORDER BY r.id DESC LIMIT 1"
        ),
        id
    );
    let answer = connection.run_one(what, open).await?;
    if let Some(row) = answer.rows.first() {
        return read(row).map(Some);
    }
    let settled = system_sql!(select_settled!("WHERE r.id = ?1"), id);
    let answer = connection.run_one(what, settled).await?;
    answer.rows.first().map(read_settled).transpose()
}

/// The attempts at a row of a remote that nobody has settled.
pub(in crate::engine) fn attempts(record: &RefusedRecord) -> SystemStatement {
    system_sql!(
        "SELECT id FROM tidewater.refused WHERE remote_id = ?1 AND publication = ?2
         AND table_name = ?3 AND row_key = ?4",
        record.remote_id,
        record.publication,
        record.table,
        record.key,
    )
}

/// Moves rows, each given by its attempts, to those that are settled.
pub(in crate::engine) fn move_to_settled(rows: &[(Vec<i64>, RefusalEnd)]) -> [SystemStatement; 2] {
    let ends = rows.iter().filter_map(|(attempts, end)| {
        let last = *attempts.iter().max()?;
        Some(system_row![
            last,
            attempts.len() as u64,
            end.at_ms,
            end.by,
            end.outcome.name(),
            end.row,
            end.reason,
        ])
    });
    let attempts = rows.iter().flat_map(|(attempts, _)| attempts);
    let attempts: Vec<Vec<Value>> = attempts.map(|id| system_row![*id]).collect();
    [
        each(
            concat!(
                "INSERT INTO tidewater.settled_refusal (id, at_ms, remote_id, user_name,
                 publication, table_name, row_key, operation, uploaded, code, reason, sequence,
                 pre_image, parent_table, parent_key, attempts, settled_ms, settled_by,
                 settled_as, settled_row, settled_reason) SELECT ",
                columns!(),
                ", v.c2, v.c3, v.c4, v.c5, v.c6, v.c7
                 FROM {rows INTEGER INTEGER INTEGER TEXT TEXT TEXT TEXT}
                 JOIN tidewater.refused AS r ON r.id = v.c1"
            ),
            ends.collect(),
        ),
        each(
            "DELETE FROM tidewater.refused WHERE id IN (SELECT v.c1 FROM {rows INTEGER})",
            attempts,
        ),
    ]
}

/// Asks what operators have settled of a remote's refused rows: of its uploads from this one on,
/// behind this record.
pub(in crate::engine) fn ask_settled(
    remote_id: RemoteId,
    publication: &str,
    from: u64,
    after: u64,
) -> SystemStatement {
    system_sql!(
        "SELECT id, table_name, row_key, sequence, settled_ms, settled_by, settled_as
         FROM tidewater.settled_refusal WHERE remote_id = ?1 AND publication = ?2
         AND sequence >= ?3 AND id > ?4 AND settled_as IN ('replayed', 'edited', 'discarded')
         ORDER BY id LIMIT ?5",
        remote_id,
        publication,
        from,
        after,
        TOLD_AT_ONCE as u64 + 1,
    )
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
