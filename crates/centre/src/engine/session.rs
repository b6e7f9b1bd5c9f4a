//! What opening a session needs to know, and what it changes.

use std::collections::HashMap;

use tidewater_protocol::RemoteId;

use super::connection::{DatabaseConnection, ResultRow, StatementResult, SystemStatement};
use super::records::{found_remote, found_user};
use super::sql::system::{marks, meta, remotes, subscriptions, users};
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
        statements.push(users::find(&session.user));
        if let Some(id) = session.remote_id {
            statements.push(remotes::find(id));
            statements.push(remotes::find_removed(id));
        }
        for subscription in &session.subscriptions {
            let publication = &subscription.publication;
            let of_remote = session.remote_id;
            statements.extend(of_remote.map(|id| subscriptions::find_upload(id, publication)));
            for &former in &subscription.formers {
                statements.push(remotes::find_removed(former));
                let of_user = &session.user;
                let upload = subscriptions::find_upload_of_user(of_user, former, publication);
                statements.push(upload);
            }
            statements.extend(ask_history::<T>(subscription));
        }
        counts.push(statements.len() - before);
    }
    statements.push(meta::read_centre());
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
        state
            .histories
            .push(presented.then(|| judge_history(&history)));
    }
    Ok(state)
}

/// What tells whether the watermark of a subscription belongs to the database's history.
fn ask_history<T: ChangeTracking>(subscription: &SubscriptionRequest) -> Vec<SystemStatement> {
    let watermark = subscription.watermark.as_deref().and_then(Watermark::read);
    let Some(watermark) = watermark else {
        return Vec::new();
    };
    let mut asked = vec![marks::find(&watermark.mark)];
    asked.extend(T::ask_pruned(&watermark.position));
    asked
}

fn judge_history(answers: &[StatementResult]) -> HistoryCheck {
    let is_pruned = |logs: &[StatementResult]| logs.iter().any(|it| !it.rows.is_empty());
    match answers.split_first() {
        Some((_, logs)) if is_pruned(logs) => HistoryCheck::Pruned,
        Some((mark, _)) if !mark.rows.is_empty() => HistoryCheck::Known,
        _ => HistoryCheck::Unknown,
    }
}

/// The centre's name, and the number of the last deployment.
fn centre(answer: &StatementResult) -> Result<(String, i64)> {
    let row = answer.rows.first();
    let row = row.ok_or_else(|| CentreError::NotDeployed {
        message: "the server's table meta is empty".into(),
    })?;
    Ok((row.get(0)?, row.get(1)?))
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
    ids: &[RemoteId],
) -> Result<Vec<(RemoteId, ShutOutReason)>> {
    let standing = remotes::find_standing(ids);
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
    let shut_out = ids.iter().filter_map(|id| {
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
    let save = remotes::save(remote);
    connection.run_one("saving a remote", save).await?;
    Ok(())
}

/// See [`crate::centre::Worker::name_device`].
pub(super) async fn name_device(
    connection: &mut impl DatabaseConnection,
    id: RemoteId,
    name: &str,
) -> Result<()> {
    let rename = remotes::name_device(id, name);
    connection.run_one("naming a device", rename).await?;
    Ok(())
}

/// See [`crate::centre::Worker::forget_previous_credential`].
pub(super) async fn forget_previous_credential(
    connection: &mut impl DatabaseConnection,
    id: RemoteId,
    previous: Vec<u8>,
) -> Result<()> {
    let forget = remotes::forget_previous_credential(id, &previous);
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
    let select = subscriptions::read_result(remote_id, publication);
    let answer = connection
        .run_one("reading a stored result", select)
        .await?;
    match answer.rows.first() {
        Some(row) => row.get(0),
        None => Ok(None),
    }
}
