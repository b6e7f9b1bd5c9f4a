//! What operators see and do: signing keys, users, remotes, conflicts, refused rows, the history
//! of syncs, figures.

use std::collections::HashSet;

use tidewater_protocol::RemoteId;

use super::connection::{
    DatabaseConnection, Durability, ResultRow, SystemStatement, TransactionMode,
};
use super::numbers;
use super::sql::system::remotes::SyncNote;
use super::sql::system::{
    conflicts, figures, incidents, meta, remotes, signing_keys, subscriptions, sync_history, users,
};
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
    let key = |row: &ResultRow| {
        Ok(SigningKey {
            id: row.get(0)?,
            secret: row.get(1)?,
            created_ms: row.get(2)?,
        })
    };
    list(
        connection,
        "reading signing keys",
        signing_keys::list(),
        key,
    )
    .await
}

pub(super) async fn add_signing_key(
    connection: &mut impl DatabaseConnection,
    key: &SigningKey,
) -> Result<bool> {
    let add = signing_keys::insert(key);
    change(connection, "adding a signing key", add).await
}

pub(super) async fn retire_signing_key(
    connection: &mut impl DatabaseConnection,
    id: u32,
) -> Result<bool> {
    // Of two calls only one takes the last key but one.
    let statements = [meta::lock(), signing_keys::delete_unless_last(id)];
    let answers = connection
        .transact("retiring a signing key", Durability::Durable, &statements)
        .await?;
    Ok(answers[1].changed > 0)
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
    let answer = connection
        .run_one("reading what is kept of a user", users::read_claims(user))
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
    list(connection, "reading users", users::list(), user).await
}

/// Reads the answer to [`users::find`].
pub(super) fn found_user(rows: &[ResultRow]) -> Result<Option<UserRecord>> {
    rows.first().map(user).transpose()
}

/// See [`crate::Worker::prove_user`].
pub(super) async fn prove_user(
    connection: &mut impl DatabaseConnection,
    user: &str,
    proven: &ProvenIdentity,
    creates: bool,
) -> Result<bool> {
    let update = users::prove(user, proven);
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

pub(super) async fn add_user(
    connection: &mut impl DatabaseConnection,
    user: &UserRecord,
) -> Result<bool> {
    change(connection, "adding a user", users::insert(user)).await
}

pub(super) async fn set_password(
    connection: &mut impl DatabaseConnection,
    name: &str,
    hash: &str,
) -> Result<bool> {
    let update = users::set_password(name, hash);
    change(connection, "setting a password", update).await
}

/// See [`crate::Worker::replace_password`].
pub(super) async fn replace_password(
    connection: &mut impl DatabaseConnection,
    user: &str,
    before: &str,
    hash: &str,
) -> Result<bool> {
    let replace = users::replace_password(user, before, hash);
    change(connection, "replacing a password", replace).await
}

pub(super) async fn set_disabled(
    connection: &mut impl DatabaseConnection,
    name: &str,
    disabled: bool,
) -> Result<bool> {
    let update = users::set_disabled(name, disabled);
    change(connection, "disabling a user", update).await
}

/// See [`crate::Centre::import_users`].
pub(super) async fn import_users(
    connection: &mut impl DatabaseConnection,
    records: &[UserRecord],
    update: bool,
) -> Result<UserImport> {
    connection.begin(TransactionMode::WRITING).await?;
    let mut import = UserImport::default();
    for records in records.chunks(IMPORT_ROWS) {
        let inserts: Vec<SystemStatement> = records.iter().map(users::insert).collect();
        let answers = connection.flight("adding users", &inserts).await?;
        let answers = records.iter().zip(&answers);
        let taken: Vec<&UserRecord> = answers
            .filter(|(_, answer)| answer.changed == 0)
            .map(|(user, _)| user)
            .collect();
        import.added += (records.len() - taken.len()) as u64;
        if update {
            let updates = taken.iter();
            let updates: Vec<SystemStatement> = updates
                .map(|user| users::set_password(&user.name, &user.password_hash))
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
        users::delete(name),
        remotes::note_removed_of_user(name),
        subscriptions::delete_of_user(name),
        remotes::delete_of_user(name),
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
        remotes::note_removed(id),
        subscriptions::delete_of_remote(id),
        remotes::delete(id),
    ];
    let answers = connection
        .transact("forgetting a remote", Durability::Durable, &statements)
        .await?;
    Ok(answers[2].changed > 0)
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
    list(connection, "reading remotes", remotes::list(), remote).await
}

/// Reads the answer to [`remotes::find`].
pub(super) fn found_remote(rows: &[ResultRow]) -> Result<Option<RemoteRecord>> {
    rows.first().map(remote).transpose()
}

/// Keeps a remote out, or lets it in again.
pub(super) async fn set_revoked(
    connection: &mut impl DatabaseConnection,
    id: RemoteId,
    revoked: bool,
) -> Result<bool> {
    let revoke = remotes::set_revoked(id, revoked);
    change(connection, "revoking a remote", revoke).await
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
    let conflicts = conflicts::list();
    list(connection, "reading conflicts", conflicts, read_conflict).await
}

pub(super) async fn find_conflicts(
    connection: &mut impl DatabaseConnection,
    filter: &ConflictFilter,
) -> Result<Vec<ConflictRecord>> {
    let conflicts = conflicts::find(filter);
    list(connection, "reading conflicts", conflicts, read_conflict).await
}

pub(in crate::engine) async fn conflict(
    connection: &mut impl DatabaseConnection,
    id: i64,
) -> Result<Option<ConflictRecord>> {
    let read = conflicts::read(id);
    let found = list(connection, "reading a conflict", read, read_conflict).await?;
    Ok(found.into_iter().next())
}

/// What the scripts of the sync of a conflict went by.
pub(in crate::engine) async fn conflict_notes(
    connection: &mut impl DatabaseConnection,
    id: i64,
) -> Result<String> {
    let notes = conflicts::read_notes(id);
    let answer = connection.run_one("reading a conflict", notes).await?;
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
    let conflicts = conflicts::list_of_row(table, key);
    list(connection, "reading conflicts", conflicts, read_conflict).await
}

/// When the last sync of a remote in the history ended that did not fail; 0 if there is none.
pub(super) async fn last_sync(
    connection: &mut impl DatabaseConnection,
    id: RemoteId,
) -> Result<i64> {
    let last = sync_history::read_last_end(id);
    let answer = connection.run_one("reading the last sync", last).await?;
    let ended: Option<i64> = answer.rows.first().map_or(Ok(None), |row| row.get(0))?;
    Ok(ended.unwrap_or(0))
}

/// Syncs of the history that have changed rows in the centre and were under way between two times,
/// newest first.
pub(super) async fn uploads_between(
    connection: &mut impl DatabaseConnection,
    times_ms: (i64, i64),
    limit: u64,
) -> Result<Vec<SyncRecord>> {
    let uploads = sync_history::list_uploads(times_ms, limit);
    list(connection, "reading the history", uploads, sync).await
}

/// When the remote synced that has not for the longest time, of those that may.
pub(super) async fn oldest_sync_ms(
    connection: &mut impl DatabaseConnection,
) -> Result<Option<i64>> {
    let oldest = remotes::read_oldest_sync();
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
        figures::count(),
        sync_history::list_last(),
        incidents::count(),
        incidents::list_last(),
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
        let found = records.iter().flat_map(|record| &record.incidents);
        let mut statements: Vec<SystemStatement> = found.map(incidents::insert).collect();
        statements.push(sync_history::insert(records));
        // Of two syncs of one remote a statement for all may take either: the later ones go alone.
        let mut noted = HashSet::new();
        let mut rounds: Vec<Vec<SyncNote>> = vec![Vec::new()];
        for record in records {
            let Some(id) = record.remote_id else { continue };
            if !noted.insert(id) {
                rounds.push(Vec::new());
                noted.clear();
                noted.insert(id);
            }
            if let Some(round) = rounds.last_mut() {
                round.push(synced(id, record));
            }
        }
        statements.extend(rounds.iter().map(|round| remotes::note_syncs(round)));
        // Nobody waits for the disk for the sake of the history.
        let soon = Durability::Soon;
        connection
            .transact("recording syncs", soon, &statements)
            .await?;
    }
    Ok(())
}

/// Records an incident.
pub fn insert_incident(incident: &IncidentRecord) -> SystemStatement {
    incidents::insert(incident)
}

/// What a sync means to its remote.
fn synced(id: RemoteId, record: &SyncRecord) -> SyncNote {
    let duration = i64::try_from(record.duration_ms).unwrap_or(i64::MAX);
    // A sync that failed is in the history, but it was none.
    let ended = match record.error.is_empty() {
        true => record.started_ms.saturating_add(duration),
        false => 0,
    };
    SyncNote {
        id,
        ended_ms: ended,
        schemas: encode_known(&record.schemas),
        verified: record.verified,
    }
}
