//! What is done for calls, and in which order.
//!
//! Each call is a transaction of its own. Those that only read are given to the driver together; the
//! others are run one after the other, and again where a deadlock or the like undid them.
//! A call with a key notes the key first in its own transaction, and what came of it last: so it has
//! taken effect if and only if that is known.

use super::driver::{CallDriver, CallFailure, CallResult};
use crate::engine::connection::Durability;
use crate::engine::once::{self, KeyUse};
use crate::error::CentreError;
use crate::procedure::{CallOutcome, ProcedureCall};

type Result<T> = std::result::Result<T, CentreError>;

/// How often a call is begun that others undo.
const ATTEMPTS: u32 = 8;

/// What is being done with keys.
const KEEPING: &str = "keeping what became of a call";

/// See [`crate::Worker::call`].
///
/// # Errors
/// The database is away.
pub async fn run_calls(
    driver: &mut impl CallDriver,
    calls: &[ProcedureCall],
    now_ms: i64,
) -> Result<Vec<CallOutcome>> {
    let mut outcomes = Vec::with_capacity(calls.len());
    let kinds =
        calls.chunk_by(|one, other| one.procedure.is_read_only() && other.procedure.is_read_only());
    for some in kinds {
        match some[0].procedure.is_read_only() {
            true => outcomes.extend(read_all(driver, some).await?),
            false => outcomes.push(write(driver, &some[0], now_ms).await?),
        }
    }
    Ok(outcomes)
}

/// What a call came to, and whether it may succeed when it is run again.
///
/// # Errors
/// The failure is no matter of this call.
fn outcome(result: CallResult) -> Result<(CallOutcome, bool)> {
    match result {
        Ok(outcome) | Err(CallFailure::Final(outcome)) => Ok((outcome, false)),
        Err(CallFailure::Retry(outcome)) => Ok((outcome, true)),
        Err(CallFailure::Centre(error)) => Err(error),
    }
}

async fn read_all(
    driver: &mut impl CallDriver,
    calls: &[ProcedureCall],
) -> Result<Vec<CallOutcome>> {
    let mut outcomes: Vec<CallOutcome> = calls.iter().map(|_| CallOutcome::Interrupted).collect();
    let mut left: Vec<usize> = (0..calls.len()).collect();
    for _ in 0..ATTEMPTS {
        left.retain(|&it| !calls[it].cancel.is_set() || outcomes[it] != CallOutcome::Interrupted);
        if left.is_empty() {
            break;
        }
        let some: Vec<&ProcedureCall> = left.iter().map(|&it| &calls[it]).collect();
        let results = driver.read_calls(&some).await?;
        let mut again = Vec::new();
        for (place, result) in left.into_iter().zip(results) {
            let (outcome, may_succeed) = outcome(result)?;
            outcomes[place] = outcome;
            // Otherwise its caller has seen rows of it.
            if may_succeed && !calls[place].has_begun_to_answer() {
                again.push(place);
            }
        }
        left = again;
    }
    Ok(outcomes)
}

async fn write(
    driver: &mut impl CallDriver,
    call: &ProcedureCall,
    now_ms: i64,
) -> Result<CallOutcome> {
    let mut last = CallOutcome::Interrupted;
    for _ in 0..ATTEMPTS {
        if call.cancel.is_set() {
            return Ok(CallOutcome::Interrupted);
        }
        match outcome(write_once(driver, call, now_ms).await)? {
            (outcome, false) => return Ok(outcome),
            (outcome, true) => last = outcome,
        }
    }
    Ok(last)
}

/// Runs a call in a transaction of its own; under its key, if it has one.
async fn write_once(driver: &mut impl CallDriver, call: &ProcedureCall, now_ms: i64) -> CallResult {
    driver.begin_call(call).await?;
    let Some(key) = call.once else {
        return run_and_commit(driver, call, None).await;
    };
    let (user, used) = (&call.caller.user, KeyUse::Call(call.procedure.name()));
    let note = once::note(user, key, used, now_ms);
    let noted = driver.run_one(KEEPING, note).await;
    if !noted.as_ref().is_ok_and(|it| it.changed > 0) {
        driver.undo_call(call).await?;
        noted.map_err(failure(call))?;
        let kept = kept_outcome(driver, call, key).await?;
        // If the row was there and is not any more, it was pruned in between.
        return kept.ok_or(CallFailure::Retry(CallOutcome::KeyTaken));
    }
    let failed = match run_and_commit(driver, call, Some(key)).await {
        Ok(CallOutcome::Answer(answer)) => return Ok(CallOutcome::Answer(answer)),
        Ok(outcome) | Err(CallFailure::Final(outcome)) => outcome,
        failure => return failure,
    };
    let Some(bytes) = failed.encode() else {
        return Ok(failed);
    };
    // That it has failed is kept, unless somebody else was faster with the same call: then that counts.
    let keep = [once::note_done(user, key, used, bytes, now_ms)];
    let kept = driver.transact(KEEPING, Durability::Durable, &keep).await;
    // Nothing was done: whoever calls again finds out again.
    match kept.map_err(failure(call))?.first() {
        Some(kept) if kept.changed > 0 => Ok(failed),
        _ => Ok(kept_outcome(driver, call, key).await?.unwrap_or(failed)),
    }
}

/// Runs a call in the transaction that is open, and commits it if it has an answer, which is noted
/// under its key. Everything else is undone.
async fn run_and_commit(
    driver: &mut impl CallDriver,
    call: &ProcedureCall,
    key: Option<[u8; 16]>,
) -> CallResult {
    let result = async {
        let outcome = driver.run_call(call).await?;
        if !matches!(outcome, CallOutcome::Answer(_)) {
            return Ok(outcome);
        }
        if let Some(key) = key {
            let (user, used) = (&call.caller.user, KeyUse::Call(call.procedure.name()));
            let finish = once::finish(user, key, used, outcome.encode().unwrap_or_default());
            let finished = driver.run_one(KEEPING, finish).await;
            finished.map_err(failure(call))?;
        }
        driver.commit_call(call).await?;
        Ok(outcome)
    };
    let result = result.await;
    if !matches!(
        result,
        Ok(CallOutcome::Answer(_)) | Err(CallFailure::Centre(_))
    ) {
        driver.undo_call(call).await?;
    }
    result
}

/// What is kept under the key of a call; `None` if the key is free.
async fn kept_outcome(
    driver: &mut impl CallDriver,
    call: &ProcedureCall,
    key: [u8; 16],
) -> std::result::Result<Option<CallOutcome>, CallFailure> {
    let used = KeyUse::Call(call.procedure.name());
    let kept = once::kept(driver, &call.caller.user, key, used).await;
    let Some(kept) = kept.map_err(failure(call))? else {
        return Ok(None);
    };
    if !kept.is_same {
        return Ok(Some(CallOutcome::KeyTaken));
    }
    match kept.outcome.as_deref().and_then(CallOutcome::decode) {
        Some(outcome) => Ok(Some(outcome)),
        None => Err(CallFailure::Centre(CentreError::Internal {
            message: "what became of a call is not as it was kept".into(),
        })),
    }
}

/// What it means for a call that a statement on the server's own tables fails.
fn failure(call: &ProcedureCall) -> impl Fn(CentreError) -> CallFailure {
    |error| match error {
        CentreError::Locked { message } => CallFailure::Final(CallOutcome::Busy { message }),
        // query_canceled: if not by this call, then by what was meant for another one.
        CentreError::StatementFailed {
            sqlstate: Some(state),
            ..
        } if state == "57014" => match call.cancel.is_set() {
            true => CallFailure::Final(CallOutcome::Interrupted),
            false => CallFailure::Retry(CallOutcome::Interrupted),
        },
        CentreError::StatementFailed {
            message,
            retry: true,
            ..
        } => CallFailure::Retry(CallOutcome::Busy { message }),
        other => CallFailure::Centre(other),
    }
}
