//! What opening a session needs to know, and what it changes.

use std::collections::HashMap;
use std::sync::LazyLock;

use tidewater_protocol::RemoteId;

use super::connection::{Answer, Connection, Own, Parameter, Row, own};
use super::database::Tracking;
use super::records::{find_remote, find_user, found_remote, found_user};
use super::watermark::Watermark;
use crate::error::CentreError;
use crate::records::{
    AskedSubscription, FormerRecord, History, RemoteRecord, SessionState, ShutOut,
    SubscriptionRecord,
};

type Result<T> = std::result::Result<T, CentreError>;

/// See [`crate::Worker::session_state`]: one flight.
pub(super) async fn state<T: Tracking>(
    connection: &mut impl Connection,
    user: &str,
    remote_id: Option<RemoteId>,
    asked: &[AskedSubscription],
) -> Result<SessionState> {
    let mut statements = vec![
        find_user(user),
        own!("SELECT centre, deployment FROM tidewater.meta"),
    ];
    if let Some(id) = remote_id {
        statements.push(find_remote(id));
        statements.push(was_removed(id));
    }
    let mut history_lengths = Vec::with_capacity(asked.len());
    for subscription in asked {
        statements.extend(remote_id.map(|id| last_upload(id, &subscription.publication)));
        for &former in &subscription.formers {
            statements.push(was_removed(former));
            statements.push(last_upload_of(user, former, &subscription.publication));
        }
        let watermark = subscription.watermark.as_deref().and_then(Watermark::read);
        let history = watermark
            .map(|it| ask_history::<T>(&it))
            .unwrap_or_default();
        history_lengths.push(history.len());
        statements.extend(history);
    }
    let answers = connection.flight("opening a session", &statements).await?;
    let mut answers = answers.into_iter();
    let mut next = || answers.next().unwrap_or_default();
    let mut state = SessionState {
        user: found_user(&next().rows)?,
        ..SessionState::default()
    };
    (state.centre, state.deployment) = centre(&next())?;
    if remote_id.is_some() {
        state.remote = found_remote(&next().rows)?;
        let was_removed = !next().rows.is_empty();
        state.removed = state.remote.is_none() && was_removed;
    }
    for (subscription, length) in asked.iter().zip(history_lengths) {
        let last = match remote_id {
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
        let history: Vec<Answer> = (0..length).map(|_| next()).collect();
        let presented = subscription.watermark.is_some();
        let history = presented.then(|| judge_history::<T>(&history));
        state.histories.push(history.transpose()?);
    }
    Ok(state)
}

/// What tells whether a watermark belongs to the database's history.
fn ask_history<T: Tracking>(watermark: &Watermark) -> Vec<Own> {
    let mark = own!("SELECT 1 FROM tidewater.mark WHERE id = ?1", watermark.mark);
    let mut asked = vec![mark];
    asked.extend(T::ask_pruned(&watermark.position));
    asked
}

fn judge_history<T: Tracking>(answers: &[Answer]) -> Result<History> {
    Ok(match answers.split_first() {
        Some((_, logs)) if T::is_pruned(logs)? => History::Pruned,
        Some((mark, _)) if !mark.rows.is_empty() => History::Known,
        _ => History::Unknown,
    })
}

/// The centre's name, and the number of the last deployment.
fn centre(answer: &Answer) -> Result<(String, i64)> {
    let row = answer.rows.first();
    let row = row.ok_or_else(|| CentreError::NotDeployed {
        message: "the server's table meta is empty".into(),
    })?;
    Ok((row.get(0)?, row.get(1)?))
}

fn was_removed(id: RemoteId) -> Own {
    own!("SELECT 1 FROM tidewater.removed_remote WHERE id = ?1", id)
}

fn last_upload(id: RemoteId, publication: &str) -> Own {
    own!(
        "SELECT sequence, upload_id FROM tidewater.subscription
         WHERE remote_id = ?1 AND publication = ?2",
        id,
        publication,
    )
}

/// The same if the remote is of this user.
fn last_upload_of(user: &str, id: RemoteId, publication: &str) -> Own {
    own!(
        "SELECT sequence, upload_id FROM tidewater.subscription
         WHERE remote_id = ?1 AND publication = ?2
         AND EXISTS (SELECT 1 FROM tidewater.remote WHERE id = ?1 AND user_name = ?3)",
        id,
        publication,
        user,
    )
}

fn found_subscription(answer: &Answer) -> Result<Option<SubscriptionRecord>> {
    let read = |row: &Row| {
        Ok(SubscriptionRecord {
            sequence: row.get(0)?,
            upload_id: row.get(1)?,
        })
    };
    answer.rows.first().map(read).transpose()
}

/// So many remotes one statement looks for: a server asks for all that are connected every second.
const IDS_AT_ONCE: usize = 64;

/// How those of [`IDS_AT_ONCE`] remotes stand that there are.
static STANDING: LazyLock<String> = LazyLock::new(|| {
    let ids: Vec<String> = (1..=IDS_AT_ONCE).map(|at| format!("?{at}")).collect();
    format!(
        "SELECT r.id, r.revoked, u.disabled FROM tidewater.remote r
         LEFT JOIN tidewater.user_account u ON u.name = r.user_name WHERE r.id IN ({})",
        ids.join(", ")
    )
});

/// See [`crate::Worker::shut_out`].
pub(super) async fn shut_out(
    connection: &mut impl Connection,
    remotes: &[RemoteId],
) -> Result<Vec<(RemoteId, ShutOut)>> {
    let standing = |ids: &[RemoteId]| {
        // The last one fills the places that are left.
        let ids = ids.iter().chain(ids.last().into_iter().cycle());
        Own {
            sql: &STANDING,
            parameters: ids.take(IDS_AT_ONCE).map(Parameter::value).collect(),
            rows: Vec::new(),
        }
    };
    let statements: Vec<Own> = remotes.chunks(IDS_AT_ONCE).map(standing).collect();
    let what = "looking for remotes that are shut out";
    let answers = connection.flight(what, &statements).await?;
    let mut found: HashMap<RemoteId, Option<ShutOut>> = HashMap::new();
    for row in answers.iter().flat_map(|answer| &answer.rows) {
        let reason = match (row.get(1)?, row.get(2)?) {
            (false, Some(false)) => None,
            (true, _) => Some(ShutOut::RemoteRevoked),
            (false, Some(true)) => Some(ShutOut::UserDisabled),
            (false, None) => Some(ShutOut::Removed),
        };
        found.insert(row.get(0)?, reason);
    }
    let shut_out = remotes.iter().filter_map(|id| {
        let reason = found.get(id).copied().unwrap_or(Some(ShutOut::Removed));
        Some((*id, reason?))
    });
    Ok(shut_out.collect())
}

/// Registers a remote, or a new credential of a known one.
pub(super) async fn save_remote(
    connection: &mut impl Connection,
    remote: &RemoteRecord,
) -> Result<()> {
    let save = own!(
        "INSERT INTO tidewater.remote (id, user_name, revoked, credential_hash,
         previous_credential_hash, rotated_ms, created_ms, last_sync_ms)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
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
    );
    connection.run_one("saving a remote", save).await?;
    Ok(())
}

/// See [`crate::centre::Worker::forget_previous_credential`].
pub(super) async fn forget_previous_credential(
    connection: &mut impl Connection,
    id: RemoteId,
    previous: Vec<u8>,
) -> Result<()> {
    let sql = "UPDATE tidewater.remote SET previous_credential_hash = ?2
               WHERE id = ?1 AND previous_credential_hash = ?3";
    let forget = own!(sql, id, Vec::new(), previous);
    connection
        .run_one("forgetting a credential", forget)
        .await?;
    Ok(())
}

/// The result of the last upload of a subscription, as it is stored.
pub(super) async fn stored_result(
    connection: &mut impl Connection,
    remote_id: RemoteId,
    publication: &str,
) -> Result<Option<Vec<u8>>> {
    let select = own!(
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
