//! The server's records: users, remotes, conflicts, refused rows, history; pruning.

use std::time::Duration;

use prost::Message;
use rusqlite::types::FromSql;
use rusqlite::{
    Connection, ErrorCode, OptionalExtension, Params, Row, TransactionBehavior, params,
};

use tidewater_protocol::RemoteId;

use super::watermark::{Positions, insert_mark};
use super::{failure, quote, state};
use crate::error::CentreError;
use crate::evolution::encode_known;
use crate::records::{
    CentreStatus, ConflictRecord, GIVEN_BACK_KEPT_MS, IncidentKind, IncidentRecord, Pruned,
    RefusedRecord, RemoteRecord, Retention, ShutOut, SigningKey, SyncRecord, UserImport,
    UserRecord,
};

/// How many rows one transaction of pruning removes; writers wait that long.
const PRUNE_ROWS: i64 = 20_000;

fn list<T>(
    connection: &Connection,
    sql: &str,
    parameters: impl Params,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Vec<T>, CentreError> {
    let reading = failure("reading the server's records");
    let mut statement = connection.prepare_cached(sql).map_err(reading)?;
    let rows = statement.query_map(parameters, read).map_err(reading)?;
    rows.collect::<rusqlite::Result<_>>().map_err(reading)
}

fn one<T: FromSql>(connection: &Connection, sql: &str) -> Result<T, CentreError> {
    connection
        .query_row(sql, [], |row| row.get(0))
        .map_err(failure("reading the server's records"))
}

/// Runs a statement; true if it changed a row.
fn change(
    connection: &Connection,
    what: &'static str,
    sql: &str,
    parameters: impl Params,
) -> Result<bool, CentreError> {
    let changed = connection
        .prepare_cached(sql)
        .and_then(|mut statement| statement.execute(parameters));
    changed.map(|rows| rows > 0).map_err(failure(what))
}

pub(super) fn signing_keys(connection: &Connection) -> Result<Vec<SigningKey>, CentreError> {
    let sql = "SELECT id, secret, created_ms FROM tidewater_signing_key
               ORDER BY created_ms DESC, id DESC";
    list(connection, sql, [], |row| {
        Ok(SigningKey {
            id: row.get(0)?,
            secret: row.get(1)?,
            created_ms: row.get(2)?,
        })
    })
}

pub(super) fn add_signing_key(
    connection: &Connection,
    key: &SigningKey,
) -> Result<bool, CentreError> {
    let sql = "INSERT INTO tidewater_signing_key VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING";
    let parameters = params![key.id, key.secret, key.created_ms];
    change(connection, "adding a signing key", sql, parameters)
}

pub(super) fn retire_signing_key(connection: &Connection, id: u32) -> Result<bool, CentreError> {
    let sql = "DELETE FROM tidewater_signing_key WHERE id = ?1
               AND EXISTS (SELECT 1 FROM tidewater_signing_key WHERE id <> ?1)";
    change(connection, "retiring a signing key", sql, [id])
}

fn read_user(row: &Row<'_>) -> rusqlite::Result<UserRecord> {
    Ok(UserRecord {
        name: row.get(0)?,
        password_hash: row.get(1)?,
        disabled: row.get(2)?,
        created_ms: row.get(3)?,
    })
}

pub(super) fn users(connection: &Connection) -> Result<Vec<UserRecord>, CentreError> {
    let sql = "SELECT name, password_hash, disabled, created_ms FROM tidewater_user_account
               ORDER BY name";
    list(connection, sql, [], read_user)
}

pub(super) fn user(connection: &Connection, name: &str) -> Result<Option<UserRecord>, CentreError> {
    connection
        .prepare_cached(
            "SELECT name, password_hash, disabled, created_ms FROM tidewater_user_account
             WHERE name = ?1",
        )
        .and_then(|mut statement| statement.query_row([name], read_user).optional())
        .map_err(failure("reading a user"))
}

pub(super) fn add_user(connection: &Connection, user: &UserRecord) -> Result<bool, CentreError> {
    let sql = "INSERT INTO tidewater_user_account VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING";
    let parameters = params![
        user.name,
        user.password_hash,
        user.disabled,
        user.created_ms
    ];
    change(connection, "adding a user", sql, parameters)
}

/// See [`crate::Centre::import_users`].
pub(super) fn import_users(
    connection: &mut Connection,
    users: &[UserRecord],
    update: bool,
) -> Result<UserImport, CentreError> {
    let adding = failure("adding users");
    let transaction = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(adding)?;
    let mut import = UserImport::default();
    for user in users {
        if add_user(&transaction, user)? {
            import.added += 1;
        } else if update {
            set_password(&transaction, &user.name, &user.password_hash)?;
            import.updated += 1;
        } else {
            import.taken.push(user.name.clone());
        }
    }
    if import.taken.is_empty() {
        transaction.commit().map_err(adding)?;
        return Ok(import);
    }
    transaction.rollback().map_err(adding)?;
    Ok(UserImport {
        taken: import.taken,
        ..UserImport::default()
    })
}

/// See [`crate::Worker::shut_out`].
pub(super) fn shut_out(
    connection: &Connection,
    remotes: &[RemoteId],
) -> Result<Vec<(RemoteId, ShutOut)>, CentreError> {
    let looking = failure("looking for remotes that are shut out");
    let sql = "SELECT r.revoked, u.disabled FROM tidewater_remote r
               LEFT JOIN tidewater_user_account u ON u.name = r.user_name WHERE r.id = ?1";
    let mut statement = connection.prepare_cached(sql).map_err(looking)?;
    let mut shut_out = Vec::new();
    for &id in remotes {
        let standing: Option<(bool, Option<bool>)> = statement
            .query_row([id.0], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()
            .map_err(looking)?;
        let reason = match standing {
            Some((false, Some(false))) => continue,
            Some((true, _)) => ShutOut::RemoteRevoked,
            Some((false, Some(true))) => ShutOut::UserDisabled,
            Some((false, None)) | None => ShutOut::Removed,
        };
        shut_out.push((id, reason));
    }
    Ok(shut_out)
}

pub(super) fn set_password(
    connection: &Connection,
    name: &str,
    hash: &str,
) -> Result<bool, CentreError> {
    let sql = "UPDATE tidewater_user_account SET password_hash = ?2 WHERE name = ?1";
    change(connection, "setting a password", sql, [name, hash])
}

pub(super) fn set_disabled(
    connection: &Connection,
    name: &str,
    disabled: bool,
) -> Result<bool, CentreError> {
    let sql = "UPDATE tidewater_user_account SET disabled = ?2 WHERE name = ?1";
    change(connection, "disabling a user", sql, params![name, disabled])
}

pub(super) fn remove_user(connection: &mut Connection, name: &str) -> Result<bool, CentreError> {
    let what = "removing a user";
    let transaction = connection.transaction().map_err(failure(what))?;
    let sql = "DELETE FROM tidewater_user_account WHERE name = ?1";
    let removed = change(&transaction, what, sql, [name])?;
    for sql in [
        "INSERT INTO tidewater_removed_remote
             SELECT id FROM tidewater_remote WHERE user_name = ?1 ON CONFLICT DO NOTHING",
        "DELETE FROM tidewater_subscription WHERE remote_id IN
             (SELECT id FROM tidewater_remote WHERE user_name = ?1)",
        "DELETE FROM tidewater_remote WHERE user_name = ?1",
    ] {
        change(&transaction, what, sql, [name])?;
    }
    transaction.commit().map_err(failure(what))?;
    Ok(removed)
}

fn remote_id(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<RemoteId>> {
    let id: Option<Vec<u8>> = row.get(column)?;
    Ok(id.and_then(|id| RemoteId::from_slice(&id)))
}

fn read_remote(row: &Row<'_>) -> rusqlite::Result<RemoteRecord> {
    Ok(RemoteRecord {
        id: RemoteId(row.get(0)?),
        user: row.get(1)?,
        revoked: row.get(2)?,
        credential_hash: row.get(3)?,
        previous_credential_hash: row.get(4)?,
        rotated_ms: row.get(5)?,
        created_ms: row.get(6)?,
        last_sync_ms: row.get(7)?,
    })
}

const REMOTE: &str = "SELECT id, user_name, revoked, credential_hash, previous_credential_hash,
    rotated_ms, created_ms, last_sync_ms FROM tidewater_remote";

pub(super) fn remotes(connection: &Connection) -> Result<Vec<RemoteRecord>, CentreError> {
    let sql = format!("{REMOTE} ORDER BY user_name, created_ms, id");
    list(connection, &sql, [], read_remote)
}

pub(super) fn remote(
    connection: &Connection,
    id: RemoteId,
) -> Result<Option<RemoteRecord>, CentreError> {
    connection
        .prepare_cached(&format!("{REMOTE} WHERE id = ?1"))
        .and_then(|mut statement| statement.query_row([id.0], read_remote).optional())
        .map_err(failure("reading a remote"))
}

/// Keeps a remote out, or lets it in again.
pub(super) fn set_revoked(
    connection: &Connection,
    id: RemoteId,
    revoked: bool,
) -> Result<bool, CentreError> {
    let sql = "UPDATE tidewater_remote SET revoked = ?2 WHERE id = ?1";
    change(connection, "revoking a remote", sql, params![id.0, revoked])
}

pub(super) fn conflicts(connection: &Connection) -> Result<Vec<ConflictRecord>, CentreError> {
    // A negative limit is none.
    select_conflicts(connection, "ASC", -1)
}

/// The newest ones, newest first.
pub(super) fn newest_conflicts(
    connection: &Connection,
    limit: u64,
) -> Result<Vec<ConflictRecord>, CentreError> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    select_conflicts(connection, "DESC", limit)
}

fn select_conflicts(
    connection: &Connection,
    order: &str,
    limit: i64,
) -> Result<Vec<ConflictRecord>, CentreError> {
    let sql = format!(
        "SELECT at_ms, remote_id, user_name, publication, table_name, key, operation,
         pre_image, uploaded, winner FROM tidewater_conflict ORDER BY id {order} LIMIT ?1"
    );
    list(connection, &sql, [limit], |row| {
        Ok(ConflictRecord {
            at_ms: row.get(0)?,
            remote_id: RemoteId(row.get(1)?),
            user: row.get(2)?,
            publication: row.get(3)?,
            table: row.get(4)?,
            key: row.get(5)?,
            operation: row.get(6)?,
            pre_image: row.get(7)?,
            uploaded: row.get(8)?,
            winner: row.get(9)?,
        })
    })
}

pub(super) fn refused(connection: &Connection) -> Result<Vec<RefusedRecord>, CentreError> {
    let sql = "SELECT at_ms, remote_id, user_name, publication, table_name, key, operation,
               row, code, reason FROM tidewater_refused ORDER BY id";
    list(connection, sql, [], |row| {
        Ok(RefusedRecord {
            at_ms: row.get(0)?,
            remote_id: RemoteId(row.get(1)?),
            user: row.get(2)?,
            publication: row.get(3)?,
            table: row.get(4)?,
            key: row.get(5)?,
            operation: row.get(6)?,
            row: row.get(7)?,
            code: row.get(8)?,
            reason: row.get(9)?,
        })
    })
}

pub(super) fn status(connection: &Connection) -> Result<CentreStatus, CentreError> {
    state::check_complete(connection)?;
    let count = |sql: &str| one::<i64>(connection, sql).map(|count| count as u64);
    let sql = "SELECT id, table_name FROM tidewater_change_log ORDER BY table_name, id";
    let logs = list(connection, sql, [], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?))
    })?;
    let mut entries = Vec::with_capacity(logs.len());
    for (id, table) in logs {
        let log = quote(&state::log_table(id));
        entries.push((table, count(&format!("SELECT count(*) FROM {log}"))?));
    }
    Ok(CentreStatus {
        users: [
            count("SELECT count(*) FROM tidewater_user_account")?,
            count("SELECT count(*) FROM tidewater_user_account WHERE disabled")?,
        ],
        remotes: [
            count("SELECT count(*) FROM tidewater_remote")?,
            count("SELECT count(*) FROM tidewater_remote WHERE revoked")?,
        ],
        conflicts: count("SELECT count(*) FROM tidewater_conflict")?,
        refused: count(
            "SELECT count(*) FROM (SELECT DISTINCT remote_id, publication, table_name, key
             FROM tidewater_refused)",
        )?,
        logs: entries,
        syncs: last_syncs(connection)?,
        incident_counts: incident_counts(connection)?,
        incidents: last_incidents(connection)?,
    })
}

fn incident_counts(connection: &Connection) -> Result<Vec<(IncidentKind, u64)>, CentreError> {
    let sql = "SELECT kind, count(*) FROM tidewater_incident GROUP BY kind ORDER BY kind";
    let counts = list(connection, sql, [], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)? as u64))
    })?;
    let counts = counts.into_iter();
    Ok(counts
        .filter_map(|(kind, count)| Some((IncidentKind::from_name(&kind)?, count)))
        .collect())
}

fn last_incidents(connection: &Connection) -> Result<Vec<IncidentRecord>, CentreError> {
    let sql = "SELECT at_ms, kind, remote_id, user_name, publication, detail
               FROM tidewater_incident ORDER BY id DESC LIMIT 20";
    let incidents = list(connection, sql, [], |row| {
        let kind: String = row.get(1)?;
        let Some(kind) = IncidentKind::from_name(&kind) else {
            return Ok(None);
        };
        Ok(Some(IncidentRecord {
            at_ms: row.get(0)?,
            kind,
            remote_id: remote_id(row, 2)?,
            user: row.get(3)?,
            publication: row.get(4)?,
            detail: row.get(5)?,
        }))
    })?;
    Ok(incidents.into_iter().flatten().collect())
}

fn last_syncs(connection: &Connection) -> Result<Vec<SyncRecord>, CentreError> {
    let sql = "SELECT remote_id, user_name, publications, started_ms, duration_ms, inserts,
               updates, deletes, upserts, removals, conflicts, refused, bytes_received,
               bytes_sent, error FROM tidewater_sync_history
               ORDER BY started_ms DESC, id DESC LIMIT 20";
    list(connection, sql, [], |row| {
        let count = |column| row.get::<_, i64>(column).map(|count| count as u64);
        Ok(SyncRecord {
            remote_id: remote_id(row, 0)?,
            user: row.get(1)?,
            publications: row.get(2)?,
            started_ms: row.get(3)?,
            duration_ms: count(4)?,
            uploaded: [count(5)?, count(6)?, count(7)?],
            downloaded: [count(8)?, count(9)?],
            conflicts: count(10)?,
            refused: count(11)?,
            bytes: [count(12)?, count(13)?],
            error: row.get(14)?,
            schemas: Vec::new(),
            incidents: Vec::new(),
        })
    })
}

/// Adds syncs to the history, and notes on their remotes that they synced.
pub(super) fn record_syncs(
    connection: &mut Connection,
    records: &[SyncRecord],
) -> Result<(), CentreError> {
    let what = "recording syncs";
    let transaction = connection.transaction().map_err(failure(what))?;
    for record in records {
        record_sync(&transaction, record)?;
    }
    transaction.commit().map_err(failure(what))
}

fn record_sync(transaction: &Connection, record: &SyncRecord) -> Result<(), CentreError> {
    let what = "recording a sync";
    let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let [inserts, updates, deletes] = record.uploaded.map(number);
    let [upserts, removals] = record.downloaded.map(number);
    let [received, sent] = record.bytes.map(number);
    let id = record.remote_id.map(|id| id.0);
    let sql = "INSERT INTO tidewater_sync_history (remote_id, user_name, publications, started_ms,
                   duration_ms, inserts, updates, deletes, upserts, removals, conflicts, refused,
                   bytes_received, bytes_sent, error)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)";
    let parameters = params![
        id,
        record.user,
        record.publications,
        record.started_ms,
        number(record.duration_ms),
        inserts,
        updates,
        deletes,
        upserts,
        removals,
        number(record.conflicts),
        number(record.refused),
        received,
        sent,
        record.error,
    ];
    change(transaction, what, sql, parameters)?;
    for incident in &record.incidents {
        let sql = "INSERT INTO tidewater_incident (at_ms, kind, remote_id, user_name, publication,
                       detail) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        let parameters = params![
            incident.at_ms,
            incident.kind.name(),
            incident.remote_id.map_or(Vec::new(), |id| id.0.to_vec()),
            incident.user,
            incident.publication,
            incident.detail,
        ];
        change(transaction, "recording an incident", sql, parameters)?;
    }
    if !record.schemas.is_empty() {
        let sql = "UPDATE tidewater_remote SET schemas = ?2 WHERE id = ?1 AND schemas <> ?2";
        let schemas = encode_known(&record.schemas);
        let written = transaction.prepare_cached(sql);
        written
            .and_then(|mut statement| statement.execute(params![id, schemas]))
            .map_err(failure(what))?;
    }
    if record.error.is_empty() {
        let sql = "UPDATE tidewater_remote SET last_sync_ms = max(last_sync_ms, ?2) WHERE id = ?1";
        change(transaction, what, sql, params![id, record.started_ms])?;
    }
    Ok(())
}

/// Drops what is older than its retention time. Gives way to other writers: what it
/// does not get done now, the next call does.
pub(super) fn prune(
    connection: &mut Connection,
    retention: Retention,
    now_ms: i64,
    mark: [u8; 16],
) -> Result<Pruned, CentreError> {
    let mut pruned = Pruned::default();
    if state::version(connection)? == 0 {
        return Ok(pruned);
    }
    connection
        .busy_timeout(Duration::ZERO)
        .map_err(failure("pruning"))?;
    let conflicts_before = now_ms.saturating_sub(retention.conflicts_ms);
    let history_before = now_ms.saturating_sub(retention.history_ms);
    let history = format!("started_ms < {history_before}");
    let incidents = format!("at_ms < {history_before}");
    let conflicts = format!("at_ms < {conflicts_before}");
    let given_back_before = now_ms.saturating_sub(GIVEN_BACK_KEPT_MS);
    let given_back = format!("at_ms < {given_back_before}");
    let done = prune_table(
        connection,
        "tidewater_sync_history",
        &history,
        &mut pruned.history,
    )? && prune_table(
        connection,
        "tidewater_incident",
        &incidents,
        &mut pruned.history,
    )? && prune_table(
        connection,
        "tidewater_conflict",
        &conflicts,
        &mut pruned.conflicts,
    )? && prune_table(
        connection,
        "tidewater_refused",
        &conflicts,
        &mut pruned.conflicts,
    )? && prune_table(connection, "tidewater_given_back", &given_back, &mut 0)?
        && prune_table(connection, "tidewater_needless_change", &given_back, &mut 0)?;
    if !done {
        return Ok(pruned);
    }
    let logs_before = now_ms.saturating_sub(retention.log_ms);
    let superseded = format!(
        "EXISTS (SELECT 1 FROM tidewater_signing_key newer
           WHERE newer.id > tidewater_signing_key.id AND newer.created_ms < {logs_before})"
    );
    if !prune_table(connection, "tidewater_signing_key", &superseded, &mut 0)? {
        return Ok(pruned);
    }
    match prune_logs(
        connection,
        logs_before,
        now_ms,
        mark,
        &mut pruned.log_entries,
    ) {
        Err(error) if !error.is_retryable() => Err(error),
        _ => Ok(pruned),
    }
}

/// Removes rows in pieces, adding to the count. False when another writer is at work.
fn prune_table(
    connection: &Connection,
    table: &str,
    condition: &str,
    count: &mut u64,
) -> Result<bool, CentreError> {
    let table = quote(table);
    let sql = format!(
        "DELETE FROM {table} WHERE rowid IN
             (SELECT rowid FROM {table} WHERE {condition} LIMIT {PRUNE_ROWS})"
    );
    loop {
        match connection.execute(&sql, []) {
            Ok(0) => return Ok(true),
            Ok(rows) => *count += rows as u64,
            Err(rusqlite::Error::SqliteFailure(failure, _))
                if failure.code == ErrorCode::DatabaseBusy =>
            {
                return Ok(false);
            }
            Err(error) => return Err(failure("pruning")(error)),
        }
    }
}

/// Drops entries of change logs, and the marks that are of no more use.
///
/// Entries have no time of their own: a mark says how far each log was when it was
/// made, so everything up to the newest mark that is too old is too old as well. A
/// remote that has been idle keeps its mark as long as no log has passed it.
fn prune_logs(
    connection: &mut Connection,
    before: i64,
    now_ms: i64,
    mark: [u8; 16],
    count: &mut u64,
) -> Result<(), CentreError> {
    let pruning = failure("pruning the change logs");
    let newest: Option<i64> = one(connection, "SELECT max(stamp) FROM tidewater_mark")?;
    let mut stamp = 0;
    for log in state::logs(connection)? {
        stamp += state::log_position(connection, log)?;
    }
    if newest != Some(stamp) {
        insert_mark(connection, mark, now_ms)?;
    }
    let expired: Option<(i64, Vec<u8>)> = connection
        .query_row(
            "SELECT stamp, positions FROM tidewater_mark WHERE created_ms < ?1
             ORDER BY stamp DESC LIMIT 1",
            [before],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .optional()
        .map_err(pruning)?;
    let Some((stamp, positions)) = expired else {
        return Ok(());
    };
    let positions = Positions::decode(positions.as_slice()).map_err(|_| CentreError::Internal {
        message: "the positions of a mark cannot be read".into(),
    })?;
    let logs = state::logs(connection)?;
    for position in positions
        .logs
        .iter()
        .filter(|each| logs.contains(&each.log))
    {
        // The newest entry stays: its number must not be given out again.
        let last = state::log_position(connection, position.log)?;
        let floor = position.position.min(last - 1);
        let table = state::log_table(position.log);
        // The floor first: who comes in between is sent everything.
        change(
            connection,
            "pruning the change logs",
            "UPDATE tidewater_change_log SET floor = ?2 WHERE id = ?1 AND floor < ?2",
            params![position.log, floor],
        )?;
        if !prune_table(connection, &table, &format!("id <= {floor}"), count)? {
            return Ok(());
        }
    }
    change(
        connection,
        "pruning the change logs",
        "DELETE FROM tidewater_mark WHERE created_ms < ?1 AND stamp < ?2",
        params![before, stamp],
    )?;
    Ok(())
}
