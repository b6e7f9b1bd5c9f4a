//! What opening a session needs to know, and what it changes.

use std::collections::HashMap;

use tidewater_protocol::RemoteId;

use super::connection::{
    DatabaseConnection, ResultRow, StatementResult, SystemStatement, each, system_row, system_sql,
};
use super::records::{find_remote, find_user, found_remote, found_user};
use crate::engine::change_tracking::ChangeTracking;
use crate::error::CentreError;
use crate::records::{
    FormerRecord, HistoryCheck, RemoteRecord, SessionRequest, SessionState, ShutOutReason,
    SubscriptionRecord, SubscriptionRequest,
};
use crate::watermark::Watermark;

type Result<T> = std::result::Result<T, CentreError>;

/// See [`crate::Worker::session_states`]: one flight.
pub(super) async fn states<T: ChangeTracking>(
    connection: &mut impl DatabaseConnection,
    asked: &[SessionRequest],
) -> Result<Vec<SessionState>> {
    let mut statements = Vec::new();
    let mut counts = Vec::with_capacity(asked.len());
    for session in asked {
        let before = statements.len();
        statements.push(find_user(&session.user));
        if let Some(id) = session.remote_id {
            statements.push(find_remote(id));
            statements.push(was_removed(id));
        }
        for subscription in &session.subscriptions {
            let publication = &subscription.publication;
            statements.extend(session.remote_id.map(|id| last_upload(id, publication)));
            for &former in &subscription.formers {
                statements.push(was_removed(former));
                statements.push(last_upload_of(&session.user, former, publication));
            }
            statements.extend(ask_history::<T>(subscription));
        }
        counts.push(statements.len() - before);
    }
    statements.push(system_sql!("SELECT centre, deployment FROM tidewater.meta"));
    let answers = connection.gather("opening sessions", statements).await?;
    let mut answers = answers.into_iter();
    let of_sessions: Vec<Vec<StatementResult>> = counts
        .into_iter()
        .map(|count| answers.by_ref().take(count).collect())
        .collect();
    let (centre, deployment) = centre(&answers.next().unwrap_or_default())?;
    let mut states = Vec::with_capacity(asked.len());
    for (session, answers) in asked.iter().zip(of_sessions) {
        let mut state = state::<T>(session, answers)?;
        (state.centre, state.deployment) = (centre.clone(), deployment);
        states.push(state);
    }
    Ok(states)
}

/// The state of one session, from the answers to what was asked for it.
fn state<T: ChangeTracking>(
    session: &SessionRequest,
    answers: Vec<StatementResult>,
) -> Result<SessionState> {
    let mut answers = answers.into_iter();
    let mut next = || answers.next().unwrap_or_default();
    let mut state = SessionState {
        user: found_user(&next().rows)?,
        ..SessionState::default()
    };
    if session.remote_id.is_some() {
        state.remote = found_remote(&next().rows)?;
        let was_removed = !next().rows.is_empty();
        state.removed = state.remote.is_none() && was_removed;
    }
    for subscription in &session.subscriptions {
        let last = match session.remote_id {
            Some(_) => found_subscription(&next())?,
            None => None,
        };
        state.subscriptions.push(last);
        let mut formers = Vec::with_capacity(subscription.formers.len());
        for _ in &subscription.formers {
            formers.push(FormerRecord {
                removed: !next().rows.is_empty(),
                last: found_subscription(&next())?,
            });
        }
        state.formers.push(formers);
        let asked = ask_history::<T>(subscription).len();
        let history: Vec<StatementResult> = (0..asked).map(|_| next()).collect();
        let presented = subscription.watermark.is_some();
        let history = presented.then(|| judge_history::<T>(&history));
        state.histories.push(history.transpose()?);
    }
    Ok(state)
}

/// What tells whether the watermark of a subscription belongs to the database's history.
fn ask_history<T: ChangeTracking>(subscription: &SubscriptionRequest) -> Vec<SystemStatement> {
    let watermark = subscription.watermark.as_deref().and_then(Watermark::read);
    let Some(watermark) = watermark else {
        return Vec::new();
    };
    // A query of its own for each: a database that planned this when there were no marks would go on
    // reading all of them.
    let mark = "SELECT v.n FROM {rows BLOB}
                WHERE (SELECT id FROM tidewater.mark WHERE id = v.c1) IS NOT NULL";
    let mut asked = vec![each(mark, vec![system_row![watermark.mark]])];
    asked.extend(T::ask_pruned(&watermark.position));
    asked
}

fn judge_history<T: ChangeTracking>(answers: &[StatementResult]) -> Result<HistoryCheck> {
    Ok(match answers.split_first() {
        Some((_, logs)) if T::is_pruned(logs)? => HistoryCheck::Pruned,
        Some((mark, _)) if !mark.rows.is_empty() => HistoryCheck::Known,
        _ => HistoryCheck::Unknown,
    })
}

/// The centre's name, and the number of the last deployment.
fn centre(answer: &StatementResult) -> Result<(String, i64)> {
    let row = answer.rows.first();
    let row = row.ok_or_else(|| CentreError::NotDeployed {
        message: "the server's table meta is empty".into(),
    })?;
    Ok((row.get(0)?, row.get(1)?))
}

fn was_removed(id: RemoteId) -> SystemStatement {
    let select = "SELECT v.n FROM {rows BLOB} JOIN tidewater.removed_remote ON id = v.c1";
    each(select, vec![system_row![id]])
}

fn last_upload(id: RemoteId, publication: &str) -> SystemStatement {
    each(
        "SELECT v.n, sequence, upload_id FROM {rows BLOB TEXT}
         JOIN tidewater.subscription ON remote_id = v.c1 AND publication = v.c2",
        vec![system_row![id, publication]],
    )
}

/// The same if the remote is of this user.
fn last_upload_of(user: &str, id: RemoteId, publication: &str) -> SystemStatement {
    each(
        "SELECT v.n, sequence, upload_id FROM {rows BLOB TEXT TEXT}
         JOIN tidewater.subscription ON remote_id = v.c1 AND publication = v.c2
         JOIN tidewater.remote ON id = v.c1 AND user_name = v.c3",
        vec![system_row![id, publication, user]],
    )
}

fn found_subscription(answer: &StatementResult) -> Result<Option<SubscriptionRecord>> {
    let read = |row: &ResultRow| {
        Ok(SubscriptionRecord {
            sequence: row.get(0)?,
            upload_id: row.get(1)?,
        })
    };
    answer.rows.first().map(read).transpose()
}

/// See [`crate::Worker::shut_out`].
pub(super) async fn shut_out(
    connection: &mut impl DatabaseConnection,
    remotes: &[RemoteId],
) -> Result<Vec<(RemoteId, ShutOutReason)>> {
    let standing = each(
        "SELECT r.id, r.revoked, u.disabled FROM {rows BLOB}
         JOIN tidewater.remote r ON r.id = v.c1
         LEFT JOIN tidewater.user_account u ON u.name = r.user_name",
        remotes.iter().map(|id| system_row![id]).collect(),
    );
    let what = "looking for remotes that are shut out";
    let answer = connection.run_one(what, standing).await?;
    let mut found: HashMap<RemoteId, Option<ShutOutReason>> = HashMap::new();
    for row in &answer.rows {
        let reason = match (row.get(1)?, row.get(2)?) {
            (false, Some(false)) => None,
            (true, _) => Some(ShutOutReason::RemoteRevoked),
            (false, Some(true)) => Some(ShutOutReason::UserDisabled),
            (false, None) => Some(ShutOutReason::Removed),
        };
        found.insert(row.get(0)?, reason);
    }
    let shut_out = remotes.iter().filter_map(|id| {
        let reason = found
            .get(id)
            .copied()
            .unwrap_or(Some(ShutOutReason::Removed));
        Some((*id, reason?))
    });
    Ok(shut_out.collect())
}

/// Registers a remote, or a new credential of a known one.
pub(super) async fn save_remote(
    connection: &mut impl DatabaseConnection,
    remote: &RemoteRecord,
) -> Result<()> {
    let save = system_sql!(
        "INSERT INTO tidewater.remote (id, user_name, revoked, credential_hash,
         previous_credential_hash, rotated_ms, created_ms, last_sync_ms, device_name)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
         ON CONFLICT (id) DO UPDATE SET credential_hash = excluded.credential_hash,
         previous_credential_hash = excluded.previous_credential_hash,
         rotated_ms = excluded.rotated_ms",
        remote.id,
        remote.user,
        remote.revoked,
        remote.credential_hash,
        remote.previous_credential_hash,
        remote.rotated_ms,
        remote.created_ms,
        remote.last_sync_ms,
        remote.device_name,
    );
    connection.run_one("saving a remote", save).await?;
    Ok(())
}

/// See [`crate::centre::Worker::name_device`].
pub(super) async fn name_device(
    connection: &mut impl DatabaseConnection,
    id: RemoteId,
    name: &str,
) -> Result<()> {
    let sql = "UPDATE tidewater.remote SET device_name = ?2 WHERE id = ?1";
    let rename = system_sql!(sql, id, name);
    connection.run_one("naming a device", rename).await?;
    Ok(())
}

/// See [`crate::centre::Worker::forget_previous_credential`].
pub(super) async fn forget_previous_credential(
    connection: &mut impl DatabaseConnection,
    id: RemoteId,
    previous: Vec<u8>,
) -> Result<()> {
    let sql = "UPDATE tidewater.remote SET previous_credential_hash = ?2
               WHERE id = ?1 AND previous_credential_hash = ?3";
    let forget = system_sql!(sql, id, Vec::new(), previous);
    connection
        .run_one("forgetting a credential", forget)
        .await?;
    Ok(())
}

/// The result of the last upload of a subscription, as it is stored.
pub(super) async fn stored_result(
    connection: &mut impl DatabaseConnection,
    remote_id: RemoteId,
    publication: &str,
) -> Result<Option<Vec<u8>>> {
    let select = system_sql!(
        "SELECT result FROM tidewater.subscription WHERE remote_id = ?1 AND publication = ?2",
        remote_id,
        publication,
    );
    let answer = connection
        .run_one("reading a stored result", select)
        .await?;
    match answer.rows.first() {
        Some(row) => row.get(0),
        None => Ok(None),
    }
}
