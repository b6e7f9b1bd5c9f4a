//! What operators see and do: signing keys, users, remotes, conflicts, refused rows, the history
//! of syncs, figures.

use std::collections::HashSet;

use tidewater_protocol::{RemoteId, Value};

use super::connection::{
    DatabaseConnection, Durability, ResultRow, SystemStatement, each, system_row, system_sql,
};
use super::numbers;
use crate::engine::evolution::encode_known;
use crate::error::CentreError;
use crate::records::{
    BlockingTransaction, CentreStatus, ConflictFilter, ConflictOutcome, ConflictRecord,
    IncidentKind, IncidentRecord, ProvenIdentity, RemoteRecord, Settlement, SigningKey, SyncRecord,
    UserClaims, UserImport, UserRecord,
};

type Result<T> = std::result::Result<T, CentreError>;

/// How many users one flight adds.
const IMPORT_ROWS: usize = 1_000;

/// How many syncs are recorded with one commit: all of it is sent before the database answers.
const SYNCS_AT_ONCE: usize = 16;

/// Of two that do it at once, the other waits until the first has committed.
const ONE_AFTER_ANOTHER: &str = "UPDATE tidewater.meta SET centre = centre";

async fn list<T>(
    connection: &mut impl DatabaseConnection,
    what: &'static str,
    statement: SystemStatement,
    read: impl Fn(&ResultRow) -> Result<T> + Send,
) -> Result<Vec<T>> {
    let answer = connection.run_one(what, statement).await?;
    answer.rows.iter().map(read).collect()
}

/// Runs a statement; true if it changed a row.
async fn change(
    connection: &mut impl DatabaseConnection,
    what: &'static str,
    statement: SystemStatement,
) -> Result<bool> {
    Ok(connection.run_one(what, statement).await?.changed > 0)
}

pub(super) async fn signing_keys(
    connection: &mut impl DatabaseConnection,
) -> Result<Vec<SigningKey>> {
    let keys = system_sql!(
        "SELECT id, secret, created_ms FROM tidewater.signing_key
         ORDER BY created_ms DESC, id DESC"
    );
    let key = |row: &ResultRow| {
        Ok(SigningKey {
            id: row.get(0)?,
            secret: row.get(1)?,
            created_ms: row.get(2)?,
        })
    };
    list(connection, "reading signing keys", keys, key).await
}

pub(super) async fn add_signing_key(
    connection: &mut impl DatabaseConnection,
    key: &SigningKey,
) -> Result<bool> {
    let add = system_sql!(
        "INSERT INTO tidewater.signing_key (id, secret, created_ms) VALUES (?1, ?2, ?3)
         ON CONFLICT DO NOTHING",
        key.id,
        key.secret,
        key.created_ms,
    );
    change(connection, "adding a signing key", add).await
}

pub(super) async fn retire_signing_key(
    connection: &mut impl DatabaseConnection,
    id: u32,
) -> Result<bool> {
    let retire = system_sql!(
        "DELETE FROM tidewater.signing_key WHERE id = ?1
         AND EXISTS (SELECT 1 FROM tidewater.signing_key WHERE id <> ?1)",
        id,
    );
    // Of two calls only one takes the last key but one.
    let statements = [system_sql!(ONE_AFTER_ANOTHER), retire];
    let answers = connection
        .transact("retiring a signing key", Durability::Durable, &statements)
        .await?;
    Ok(answers[1].changed > 0)
}

/// The columns of [`user`].
macro_rules! select_user {
    ($rest:literal) => {
        concat!(
            "SELECT name, password_hash, disabled, created_ms, proven_ms, proven_by, claims
             FROM tidewater.user_account ",
            $rest
        )
    };
}

fn user(row: &ResultRow) -> Result<UserRecord> {
    Ok(UserRecord {
        name: row.get(0)?,
        password_hash: row.get(1)?,
        disabled: row.get(2)?,
        created_ms: row.get(3)?,
        proven: ProvenIdentity {
            at_ms: row.get(4)?,
            by: row.get(5)?,
            claims: claims(row.get(6)?)?,
        },
    })
}

/// What is kept of a user; nothing of one that is not there any more.
pub(in crate::engine) async fn claims_of(
    connection: &mut impl DatabaseConnection,
    user: &str,
) -> Result<UserClaims> {
    let select = system_sql!(
        "SELECT claims FROM tidewater.user_account WHERE name = ?1",
        user
    );
    let answer = connection
        .run_one("reading what is kept of a user", select)
        .await?;
    let found = answer.rows.first().map(|row| claims(row.get(0)?));
    Ok(found.transpose()?.unwrap_or_default())
}

fn claims(text: String) -> Result<UserClaims> {
    UserClaims::from_json(&text).ok_or_else(|| CentreError::Internal {
        message: format!("the claims of a user are no JSON object of texts: {text:?}"),
    })
}

pub(super) async fn users(connection: &mut impl DatabaseConnection) -> Result<Vec<UserRecord>> {
    let users = system_sql!(select_user!("ORDER BY name"));
    list(connection, "reading users", users, user).await
}

/// Finds a user, for [`DatabaseConnection::gather`]; [`found_user`] reads the answer.
pub(super) fn find_user(name: &str) -> SystemStatement {
    let select =
        "SELECT v.n, name, password_hash, disabled, created_ms, proven_ms, proven_by, claims
                  FROM {rows TEXT} JOIN tidewater.user_account ON name = v.c1";
    each(select, vec![system_row![name]])
}

pub(super) fn found_user(rows: &[ResultRow]) -> Result<Option<UserRecord>> {
    rows.first().map(user).transpose()
}

fn insert_user(user: &UserRecord) -> SystemStatement {
    system_sql!(
        "INSERT INTO tidewater.user_account (name, password_hash, disabled, created_ms,
         proven_ms, proven_by, claims)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO NOTHING",
        user.name,
        user.password_hash,
        user.disabled,
        user.created_ms,
        user.proven.at_ms,
        user.proven.by,
        user.proven.claims.to_json(),
    )
}

/// See [`crate::Worker::prove_user`].
pub(super) async fn prove_user(
    connection: &mut impl DatabaseConnection,
    user: &str,
    proven: &ProvenIdentity,
    creates: bool,
) -> Result<bool> {
    let update = system_sql!(
        "UPDATE tidewater.user_account SET proven_ms = ?2, proven_by = ?3, claims = ?4
         WHERE name = ?1",
        user,
        proven.at_ms,
        proven.by,
        proven.claims.to_json(),
    );
    let what = "noting who a user is";
    if change(connection, what, update.clone()).await? {
        return Ok(true);
    }
    if !creates {
        return Ok(false);
    }
    let user = UserRecord {
        name: user.to_owned(),
        created_ms: proven.at_ms,
        proven: proven.clone(),
        ..UserRecord::default()
    };
    // Another of the user's devices may have signed in first, just now.
    Ok(add_user(connection, &user).await? || change(connection, what, update).await?)
}

fn update_password(name: &str, hash: &str) -> SystemStatement {
    let sql = "UPDATE tidewater.user_account SET password_hash = ?2 WHERE name = ?1";
    system_sql!(sql, name, hash)
}

pub(super) async fn add_user(
    connection: &mut impl DatabaseConnection,
    user: &UserRecord,
) -> Result<bool> {
    change(connection, "adding a user", insert_user(user)).await
}

pub(super) async fn set_password(
    connection: &mut impl DatabaseConnection,
    name: &str,
    hash: &str,
) -> Result<bool> {
    let update = update_password(name, hash);
    change(connection, "setting a password", update).await
}

/// See [`crate::Worker::replace_password`].
pub(super) async fn replace_password(
    connection: &mut impl DatabaseConnection,
    user: &str,
    before: &str,
    hash: &str,
) -> Result<bool> {
    let sql = "UPDATE tidewater.user_account SET password_hash = ?3
               WHERE name = ?1 AND password_hash = ?2";
    change(
        connection,
        "replacing a password",
        system_sql!(sql, user, before, hash),
    )
    .await
}

pub(super) async fn set_disabled(
    connection: &mut impl DatabaseConnection,
    name: &str,
    disabled: bool,
) -> Result<bool> {
    let sql = "UPDATE tidewater.user_account SET disabled = ?2 WHERE name = ?1";
    let update = system_sql!(sql, name, disabled);
    change(connection, "disabling a user", update).await
}

/// See [`crate::Centre::import_users`].
pub(super) async fn import_users(
    connection: &mut impl DatabaseConnection,
    users: &[UserRecord],
    update: bool,
) -> Result<UserImport> {
    connection.begin().await?;
    let mut import = UserImport::default();
    for users in users.chunks(IMPORT_ROWS) {
        let inserts: Vec<SystemStatement> = users.iter().map(insert_user).collect();
        let answers = connection.flight("adding users", &inserts).await?;
        let answers = users.iter().zip(&answers);
        let taken: Vec<&UserRecord> = answers
            .filter(|(_, answer)| answer.changed == 0)
            .map(|(user, _)| user)
            .collect();
        import.added += (users.len() - taken.len()) as u64;
        if update {
            let updates = taken.iter();
            let updates: Vec<SystemStatement> = updates
                .map(|user| update_password(&user.name, &user.password_hash))
                .collect();
            connection.flight("setting passwords", &updates).await?;
            import.updated += updates.len() as u64;
        } else {
            import.taken.extend(taken.iter().map(|it| it.name.clone()));
        }
    }
    if import.taken.is_empty() {
        connection.commit().await?;
        return Ok(import);
    }
    connection.rollback().await?;
    Ok(UserImport {
        taken: import.taken,
        ..UserImport::default()
    })
}

pub(super) async fn remove_user(
    connection: &mut impl DatabaseConnection,
    name: &str,
) -> Result<bool> {
    let statements = [
        system_sql!("DELETE FROM tidewater.user_account WHERE name = ?1", name),
        system_sql!(
            "INSERT INTO tidewater.removed_remote
             SELECT id FROM tidewater.remote WHERE user_name = ?1 ON CONFLICT DO NOTHING",
            name
        ),
        system_sql!(
            "DELETE FROM tidewater.subscription WHERE remote_id IN
             (SELECT id FROM tidewater.remote WHERE user_name = ?1)",
            name
        ),
        system_sql!("DELETE FROM tidewater.remote WHERE user_name = ?1", name),
    ];
    let answers = connection
        .transact("removing a user", Durability::Durable, &statements)
        .await?;
    Ok(answers[0].changed > 0)
}

/// Forgets a remote that never was anybody's.
pub(super) async fn forget_remote(
    connection: &mut impl DatabaseConnection,
    id: RemoteId,
) -> Result<bool> {
    let statements = [
        system_sql!(
            "INSERT INTO tidewater.removed_remote
             SELECT id FROM tidewater.remote WHERE id = ?1 ON CONFLICT DO NOTHING",
            id
        ),
        system_sql!(
            "DELETE FROM tidewater.subscription WHERE remote_id = ?1",
            id
        ),
        system_sql!("DELETE FROM tidewater.remote WHERE id = ?1", id),
    ];
    let answers = connection
        .transact("forgetting a remote", Durability::Durable, &statements)
        .await?;
    Ok(answers[2].changed > 0)
}

/// The columns of [`remote`].
macro_rules! select_remote {
    ($rest:literal) => {
        concat!(
            "SELECT id, user_name, revoked, credential_hash, previous_credential_hash,
             rotated_ms, created_ms, last_sync_ms, unverified, device_name
             FROM tidewater.remote ",
            $rest
        )
    };
}

fn remote(row: &ResultRow) -> Result<RemoteRecord> {
    Ok(RemoteRecord {
        id: row.get(0)?,
        user: row.get(1)?,
        revoked: row.get(2)?,
        credential_hash: row.get(3)?,
        previous_credential_hash: row.get(4)?,
        rotated_ms: row.get(5)?,
        created_ms: row.get(6)?,
        last_sync_ms: row.get(7)?,
        unverified: row.get(8)?,
        device_name: row.get(9)?,
    })
}

pub(super) async fn remotes(connection: &mut impl DatabaseConnection) -> Result<Vec<RemoteRecord>> {
    let remotes = system_sql!(select_remote!("ORDER BY user_name, created_ms, id"));
    list(connection, "reading remotes", remotes, remote).await
}

/// Finds a remote, for [`DatabaseConnection::gather`]; [`found_remote`] reads the answer.
pub(super) fn find_remote(id: RemoteId) -> SystemStatement {
    let select = "SELECT v.n, id, user_name, revoked, credential_hash, previous_credential_hash,
                  rotated_ms, created_ms, last_sync_ms, unverified, device_name
                  FROM {rows BLOB} JOIN tidewater.remote ON id = v.c1";
    each(select, vec![system_row![id]])
}

pub(super) fn found_remote(rows: &[ResultRow]) -> Result<Option<RemoteRecord>> {
    rows.first().map(remote).transpose()
}

/// Keeps a remote out, or lets it in again.
pub(super) async fn set_revoked(
    connection: &mut impl DatabaseConnection,
    id: RemoteId,
    revoked: bool,
) -> Result<bool> {
    let sql = "UPDATE tidewater.remote SET revoked = ?2 WHERE id = ?1";
    change(
        connection,
        "revoking a remote",
        system_sql!(sql, id, revoked),
    )
    .await
}

/// The columns of [`read_conflict`].
macro_rules! select_conflict {
    ($rest:literal) => {
        concat!(
            "SELECT at_ms, remote_id, user_name, publication, table_name, row_key, operation,
             pre_image, uploaded, winner, replaced, outcome, id, settled_ms, settled_by, settled_as
             FROM tidewater.conflict ",
            $rest
        )
    };
}

fn read_conflict(row: &ResultRow) -> Result<ConflictRecord> {
    let settled_ms: Option<i64> = row.get(13)?;
    let settled = settled_ms.map(|at_ms| -> Result<Settlement> {
        Ok(Settlement {
            at_ms,
            by: row.get(14)?,
            version: row.get(15)?,
        })
    });
    Ok(ConflictRecord {
        id: row.get(12)?,
        settled: settled.transpose()?,
        at_ms: row.get(0)?,
        remote_id: row.get(1)?,
        user: row.get(2)?,
        publication: row.get(3)?,
        table: row.get(4)?,
        key: row.get(5)?,
        operation: row.get(6)?,
        pre_image: row.get(7)?,
        uploaded: row.get(8)?,
        winner: row.get(9)?,
        replaced: row.get(10)?,
        outcome: {
            let name: String = row.get(11)?;
            ConflictOutcome::from_name(&name).ok_or_else(|| CentreError::Internal {
                message: format!("a conflict has come to {name:?}, which is unknown"),
            })?
        },
    })
}

pub(super) async fn conflicts(
    connection: &mut impl DatabaseConnection,
) -> Result<Vec<ConflictRecord>> {
    let conflicts = system_sql!(select_conflict!("ORDER BY id"));
    list(connection, "reading conflicts", conflicts, read_conflict).await
}

pub(super) async fn find_conflicts(
    connection: &mut impl DatabaseConnection,
    filter: &ConflictFilter,
) -> Result<Vec<ConflictRecord>> {
    // What is not asked for is empty: no table, user or outcome is.
    let conflicts = system_sql!(
        select_conflict!(
            "WHERE (?1 = '' OR table_name = ?1) AND (?2 = '' OR user_name = ?2)
             AND (?3 = '' OR outcome = ?3)
             AND (?4 = '' OR (outcome = ?4 AND settled_ms IS NULL))
             ORDER BY id DESC LIMIT ?5"
        ),
        filter.table.as_deref().unwrap_or_default(),
        filter.user.as_deref().unwrap_or_default(),
        filter.outcome.map_or("", ConflictOutcome::name),
        match filter.open {
            true => ConflictOutcome::Parked.name(),
            false => "",
        },
        filter.limit,
    );
    list(connection, "reading conflicts", conflicts, read_conflict).await
}

pub(in crate::engine) async fn conflict(
    connection: &mut impl DatabaseConnection,
    id: i64,
) -> Result<Option<ConflictRecord>> {
    let conflicts = system_sql!(select_conflict!("WHERE id = ?1"), id);
    let found = list(connection, "reading a conflict", conflicts, read_conflict).await?;
    Ok(found.into_iter().next())
}

/// What the scripts of the sync of a conflict went by.
pub(in crate::engine) async fn conflict_notes(
    connection: &mut impl DatabaseConnection,
    id: i64,
) -> Result<String> {
    let select = system_sql!(
        "SELECT sync_notes FROM tidewater.conflict WHERE id = ?1",
        id
    );
    let answer = connection.run_one("reading a conflict", select).await?;
    answer
        .rows
        .first()
        .map_or(Ok(String::new()), |row| row.get(0))
}

/// The conflicts about a row, newest first.
pub(super) async fn conflicts_of_row(
    connection: &mut impl DatabaseConnection,
    table: &str,
    key: &str,
) -> Result<Vec<ConflictRecord>> {
    let conflicts = system_sql!(
        select_conflict!("WHERE table_name = ?1 AND row_key = ?2 ORDER BY id DESC"),
        table,
        key
    );
    list(connection, "reading conflicts", conflicts, read_conflict).await
}

/// When the last sync of a remote in the history ended that did not fail; 0 if there is none.
pub(super) async fn last_sync(
    connection: &mut impl DatabaseConnection,
    id: RemoteId,
) -> Result<i64> {
    let last = system_sql!(
        "SELECT max(started_ms + duration_ms) FROM tidewater.sync_history
         WHERE remote_id = ?1 AND error = ''",
        id
    );
    let answer = connection.run_one("reading the last sync", last).await?;
    let ended: Option<i64> = answer.rows.first().map_or(Ok(None), |row| row.get(0))?;
    Ok(ended.unwrap_or(0))
}

/// Syncs of the history that have changed rows in the centre and were under way between two times,
/// newest first.
pub(super) async fn uploads_between(
    connection: &mut impl DatabaseConnection,
    (after_ms, before_ms): (i64, i64),
    limit: u64,
) -> Result<Vec<SyncRecord>> {
    let uploads = system_sql!(
        "SELECT remote_id, user_name, publications, started_ms, duration_ms, inserts, updates,
         deletes, upserts, removals, conflicts, refused, bytes_received, bytes_sent, error
         FROM tidewater.sync_history WHERE inserts + updates + deletes > 0
         AND started_ms <= ?2 AND started_ms + duration_ms >= ?1
         ORDER BY started_ms DESC, id DESC LIMIT ?3",
        after_ms,
        before_ms,
        limit
    );
    list(connection, "reading the history", uploads, sync).await
}

/// When the remote synced that has not for the longest time, of those that may.
pub(super) async fn oldest_sync_ms(
    connection: &mut impl DatabaseConnection,
) -> Result<Option<i64>> {
    let oldest = system_sql!(
        "SELECT min(last_sync_ms) FROM tidewater.remote WHERE last_sync_ms > 0 AND NOT revoked"
    );
    let answer = connection.run_one("reading the figures", oldest).await?;
    answer.rows.first().map_or(Ok(None), |row| row.get(0))
}

/// The figures of the status but for the change logs, which are the adapter's.
pub(super) async fn status(
    connection: &mut impl DatabaseConnection,
    logs: Vec<(String, u64)>,
    blockers: Vec<BlockingTransaction>,
) -> Result<CentreStatus> {
    let [numbers, blocks] = numbers::ask();
    let statements = [
        numbers,
        blocks,
        system_sql!(
            "SELECT (SELECT count(*) FROM tidewater.user_account),
             (SELECT count(*) FROM tidewater.user_account WHERE disabled),
             (SELECT count(*) FROM tidewater.remote),
             (SELECT count(*) FROM tidewater.remote WHERE revoked),
             (SELECT count(*) FROM tidewater.conflict),
             (SELECT count(*) FROM (SELECT DISTINCT remote_id, publication, table_name, row_key
                FROM tidewater.refused) AS refused),
             (SELECT count(*) FROM tidewater.conflict
                WHERE outcome = 'parked' AND settled_ms IS NULL)"
        ),
        system_sql!(
            "SELECT remote_id, user_name, publications, started_ms, duration_ms, inserts, updates,
             deletes, upserts, removals, conflicts, refused, bytes_received, bytes_sent, error
             FROM tidewater.sync_history ORDER BY started_ms DESC, id DESC LIMIT 20"
        ),
        system_sql!("SELECT kind, count(*) FROM tidewater.incident GROUP BY kind ORDER BY kind"),
        system_sql!(
            "SELECT at_ms, kind, remote_id, user_name, publication, detail
             FROM tidewater.incident ORDER BY id DESC LIMIT 20"
        ),
    ];
    let answers = connection.flight("reading the status", &statements).await?;
    let [numbers, blocks, counts, syncs, kinds, incidents] = &answers[..] else {
        return Err(CentreError::Internal {
            message: "statements without an answer".into(),
        });
    };
    let (numbers, blocks) = numbers::told(numbers, blocks)?;
    let count = |at| counts.rows[0].get::<u64>(at);
    let mut incident_counts = Vec::new();
    for row in &kinds.rows {
        if let Some(kind) = IncidentKind::from_name(&row.get::<String>(0)?) {
            incident_counts.push((kind, row.get(1)?));
        }
    }
    let incidents = incidents
        .rows
        .iter()
        .filter_map(|row| incident(row).transpose());
    Ok(CentreStatus {
        users: [count(0)?, count(1)?],
        remotes: [count(2)?, count(3)?],
        conflicts: count(4)?,
        refused: count(5)?,
        open_conflicts: count(6)?,
        logs,
        syncs: syncs.rows.iter().map(sync).collect::<Result<_>>()?,
        incident_counts,
        incidents: incidents.collect::<Result<_>>()?,
        numbers,
        blocks,
        blockers,
        keyless_rows: Vec::new(),
    })
}

/// `None` for a kind that a newer version knows.
fn incident(row: &ResultRow) -> Result<Option<IncidentRecord>> {
    let Some(kind) = IncidentKind::from_name(&row.get::<String>(1)?) else {
        return Ok(None);
    };
    Ok(Some(IncidentRecord {
        at_ms: row.get(0)?,
        kind,
        remote_id: row.get(2)?,
        user: row.get(3)?,
        publication: row.get(4)?,
        detail: row.get(5)?,
    }))
}

fn sync(row: &ResultRow) -> Result<SyncRecord> {
    Ok(SyncRecord {
        remote_id: row.get(0)?,
        user: row.get(1)?,
        publications: row.get(2)?,
        started_ms: row.get(3)?,
        duration_ms: row.get(4)?,
        uploaded: [row.get(5)?, row.get(6)?, row.get(7)?],
        downloaded: [row.get(8)?, row.get(9)?],
        conflicts: row.get(10)?,
        refused: row.get(11)?,
        bytes: [row.get(12)?, row.get(13)?],
        error: row.get(14)?,
        schemas: Vec::new(),
        verified: false,
        incidents: Vec::new(),
    })
}

/// Adds syncs to the history, and notes on their remotes that they synced.
pub(super) async fn record_syncs(
    connection: &mut impl DatabaseConnection,
    records: &[SyncRecord],
) -> Result<()> {
    for records in records.chunks(SYNCS_AT_ONCE) {
        let incidents = records.iter().flat_map(|record| &record.incidents);
        let mut statements: Vec<SystemStatement> = incidents.map(insert_incident).collect();
        statements.push(insert_syncs(records));
        // Of two syncs of one remote a statement for all may take either: the later ones go alone.
        let mut remotes = HashSet::new();
        let mut rounds: Vec<Vec<Vec<Value>>> = vec![Vec::new()];
        for record in records {
            let Some(id) = record.remote_id else { continue };
            if !remotes.insert(id) {
                rounds.push(Vec::new());
                remotes.clear();
                remotes.insert(id);
            }
            if let Some(round) = rounds.last_mut() {
                round.push(synced(id, record));
            }
        }
        statements.extend(rounds.into_iter().map(update_remotes));
        // Nobody waits for the disk for the sake of the history.
        let soon = Durability::Soon;
        connection
            .transact("recording syncs", soon, &statements)
            .await?;
    }
    Ok(())
}

fn insert_syncs(records: &[SyncRecord]) -> SystemStatement {
    each(
        "INSERT INTO tidewater.sync_history (remote_id, user_name, publications, started_ms,
         duration_ms, inserts, updates, deletes, upserts, removals, conflicts, refused,
         bytes_received, bytes_sent, error)
         SELECT c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15 FROM {rows BLOB TEXT \
         TEXT INTEGER INTEGER INTEGER INTEGER INTEGER INTEGER INTEGER INTEGER INTEGER INTEGER \
         INTEGER TEXT}",
        records.iter().map(as_history).collect(),
    )
}

fn as_history(record: &SyncRecord) -> Vec<Value> {
    let [inserts, updates, deletes] = record.uploaded;
    let [upserts, removals] = record.downloaded;
    let [received, sent] = record.bytes;
    system_row![
        record.remote_id,
        record.user,
        record.publications,
        record.started_ms,
        record.duration_ms,
        inserts,
        updates,
        deletes,
        upserts,
        removals,
        record.conflicts,
        record.refused,
        received,
        sent,
        record.error,
    ]
}

/// Records an incident.
pub fn insert_incident(incident: &IncidentRecord) -> SystemStatement {
    system_sql!(
        "INSERT INTO tidewater.incident (at_ms, kind, remote_id, user_name, publication, detail)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        incident.at_ms,
        incident.kind.name(),
        incident.remote_id,
        incident.user,
        incident.publication,
        incident.detail,
    )
}

/// A row of [`update_remotes`].
fn synced(id: RemoteId, record: &SyncRecord) -> Vec<Value> {
    let duration = i64::try_from(record.duration_ms).unwrap_or(i64::MAX);
    // A sync that failed is in the history, but it was none.
    let ended = match record.error.is_empty() {
        true => record.started_ms.saturating_add(duration),
        false => 0,
    };
    system_row![id, ended, encode_known(&record.schemas), record.verified]
}

/// Notes that each of some remotes synced.
fn update_remotes(synced: Vec<Vec<Value>>) -> SystemStatement {
    each(
        "UPDATE tidewater.remote SET
         last_sync_ms = CASE WHEN last_sync_ms < v.c2 THEN v.c2 ELSE last_sync_ms END,
         schemas = CASE v.c3 WHEN '' THEN schemas ELSE v.c3 END,
         unverified = CASE WHEN v.c2 = 0 THEN unverified WHEN v.c4 = 1 THEN 0
                      ELSE unverified + 1 END
         FROM {rows BLOB INTEGER TEXT INTEGER} WHERE id = v.c1",
        synced,
    )
}
