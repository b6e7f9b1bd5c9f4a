//! Applies lists of uploads: one transaction, one commit, each upload in a savepoint.
//!
//! SQLite is in the same process, so rows go one by one through prepared statements;
//! what one row does is in [`super::row`].

use std::collections::HashMap;

use prost::Message;
use rusqlite::{Connection, OptionalExtension, params};

use tidewater_protocol::{Code, UploadId};

use super::deploy::Served;
use super::row::{Refusal, RowPlace, Stop};
use super::scope::{self, Holder, Presented};
use super::upload::{Effects, UploadRun};
use super::{failure, given_back, row_error};
use crate::error::CentreError;
use crate::scope::Scope;
use crate::upload::{GainedPartitions, SyncUpload, UploadOutcome, UploadResult, decode_result};

/// How often a list is tried when other writers are in the way.
const ATTEMPTS: u32 = 10;

/// How many rows of a list may each end the transaction before the list is given up.
const MAX_ENDINGS: usize = 1000;

/// Applies a list of uploads.
pub(super) fn apply(
    connection: &mut Connection,
    served: &Served,
    uploads: &[SyncUpload],
) -> Result<Vec<UploadOutcome>, CentreError> {
    // Rows that were found to end the transaction (RAISE(ROLLBACK), ON CONFLICT
    // ROLLBACK): refused without being tried when the list is run again.
    let mut endings: HashMap<RowPlace, Refusal> = HashMap::new();
    let mut attempts = 0;
    loop {
        match run(connection, served, uploads, &endings) {
            Ok(outcomes) => return Ok(outcomes),
            Err(Stop::Ended { place, refusal }) if endings.len() < MAX_ENDINGS => {
                endings.insert(place, refusal);
            }
            Err(Stop::Ended { refusal, .. }) => {
                return Err(CentreError::Refused {
                    what: "an upload whose rows end the transaction one after the other".into(),
                    message: refusal.reason,
                    sqlstate: None,
                    retry: false,
                });
            }
            Err(Stop::Centre(error)) if error.is_retryable() && attempts < ATTEMPTS => {
                attempts += 1;
            }
            Err(Stop::Centre(error)) => return Err(error),
        }
    }
}

fn run(
    connection: &Connection,
    served: &Served,
    uploads: &[SyncUpload],
    endings: &HashMap<RowPlace, Refusal>,
) -> Result<Vec<UploadOutcome>, Stop> {
    connection
        .execute_batch("BEGIN IMMEDIATE")
        .map_err(failure("beginning to apply uploads"))?;
    let result = run_list(connection, served, uploads, endings).and_then(|outcomes| {
        connection
            .execute_batch("COMMIT")
            .map_err(failure("committing uploads"))?;
        Ok(outcomes)
    });
    if !connection.is_autocommit() {
        connection
            .execute_batch("ROLLBACK")
            .map_err(failure("rolling back uploads"))?;
    }
    result
}

fn run_list(
    connection: &Connection,
    served: &Served,
    uploads: &[SyncUpload],
    endings: &HashMap<RowPlace, Refusal>,
) -> Result<Vec<UploadOutcome>, Stop> {
    let savepoint = |sql: &str| {
        let result = connection.execute_batch(sql);
        result.map_err(failure("an upload's savepoint"))
    };
    let mut outcomes = Vec::with_capacity(uploads.len());
    for (index, upload) in uploads.iter().enumerate() {
        savepoint("SAVEPOINT tidewater_upload")?;
        let outcome = match one(connection, served, upload, index, endings) {
            Ok(outcome) => outcome,
            // The fault of this upload alone.
            Err(Stop::Centre(
                error @ (CentreError::Peer { .. }
                | CentreError::Internal { .. }
                | CentreError::Configuration { .. }),
            )) => {
                savepoint("ROLLBACK TO tidewater_upload")?;
                UploadOutcome::Failed { error }
            }
            Err(stop) => return Err(stop),
        };
        savepoint("RELEASE tidewater_upload")?;
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

/// What the centre knew of a subscription before an upload.
struct Subscription {
    scope_serial: u64,
    previous_serial: u64,
    graced_serial: u64,
}

fn one(
    connection: &Connection,
    served: &Served,
    upload: &SyncUpload,
    index: usize,
    endings: &HashMap<RowPlace, Refusal>,
) -> Result<UploadOutcome, Stop> {
    let publication = served.publication(&upload.publication)?;
    let subscription = match claim(connection, upload)? {
        Claim::Taken(subscription) => subscription,
        Claim::AlreadyApplied(result) => return Ok(UploadOutcome::AlreadyApplied { result }),
        Claim::OutOfSequence => return Ok(UploadOutcome::OutOfSequence),
    };
    let nothing;
    let upload = match upload.given_back && !given_back::note(connection, upload)? {
        true => {
            nothing = SyncUpload {
                tables: Vec::new(),
                ..upload.clone()
            };
            &nothing
        }
        false => upload,
    };
    let holder = Holder {
        user: &upload.user,
        remote_id: upload.remote_id,
    };
    let mut scope = scope::current(connection, publication, &holder)?;
    let gained = gained(&scope, publication, upload);
    if add_last_signed(&mut scope, publication, upload, &subscription) {
        connection
            .prepare_cached(
                "UPDATE tidewater_subscription SET graced_serial = ?3
                 WHERE remote_id = ?1 AND publication = ?2",
            )
            .and_then(|mut statement| {
                let serial = upload.checkpoint.as_ref().map(|held| held.serial as i64);
                statement.execute(params![upload.remote_id.0, upload.publication, serial])
            })
            .map_err(failure("noting the use of a scope"))?;
    }
    let run = UploadRun::new(connection, publication, &scope, upload, index, endings)?;
    let mut effects = run.run()?;
    effects.result.gained = gained;
    effects.result.held = upload.checkpoint.as_ref().map(|held| held.serial);
    record(connection, upload, &effects)?;
    Ok(UploadOutcome::Applied {
        result: effects.result,
        own: effects.own,
    })
}

enum Claim {
    Taken(Subscription),
    AlreadyApplied(UploadResult),
    OutOfSequence,
}

/// Takes the upload's number, or tells why it cannot be taken.
fn claim(connection: &Connection, upload: &SyncUpload) -> Result<Claim, CentreError> {
    let claiming = failure("claiming an upload's number");
    let subscription = params![upload.remote_id.0, upload.publication];
    connection
        .prepare_cached(
            "INSERT INTO tidewater_subscription (remote_id, publication) VALUES (?1, ?2)
             ON CONFLICT DO NOTHING",
        )
        .and_then(|mut statement| statement.execute(subscription))
        .map_err(claiming)?;
    let Some(before) = upload.sequence.checked_sub(1) else {
        return Ok(Claim::OutOfSequence);
    };
    let taken = connection
        .prepare_cached(
            // Who presents the newest scope has it: the one before is spent.
            "UPDATE tidewater_subscription SET sequence = ?3 + 1, upload_id = ?4, result = NULL,
                 graced_serial = CASE WHEN scope_serial = ?5
                     THEN max(graced_serial, previous_serial) ELSE graced_serial END
             WHERE remote_id = ?1 AND publication = ?2 AND sequence = ?3
             RETURNING scope_serial, previous_serial, graced_serial",
        )
        .and_then(|mut statement| {
            let parameters = params![
                upload.remote_id.0,
                upload.publication,
                before as i64,
                upload.upload_id.0,
                upload.checkpoint.as_ref().map(|held| held.serial as i64)
            ];
            let taken = statement.query_row(parameters, |row| {
                Ok(Subscription {
                    scope_serial: row.get::<_, i64>(0)? as u64,
                    previous_serial: row.get::<_, i64>(1)? as u64,
                    graced_serial: row.get::<_, i64>(2)? as u64,
                })
            });
            taken.optional()
        })
        .map_err(claiming)?;
    if let Some(subscription) = taken {
        return Ok(Claim::Taken(subscription));
    }
    let (sequence, id, result) = connection
        .prepare_cached(
            "SELECT sequence, upload_id, result FROM tidewater_subscription
             WHERE remote_id = ?1 AND publication = ?2",
        )
        .and_then(|mut statement| {
            statement.query_row(params![upload.remote_id.0, upload.publication], |row| {
                let id: Option<Vec<u8>> = row.get(1)?;
                let result: Option<Vec<u8>> = row.get(2)?;
                Ok((row.get::<_, i64>(0)?, id, result))
            })
        })
        .map_err(claiming)?;
    let id = id.and_then(|id| UploadId::from_slice(&id));
    if sequence as u64 != upload.sequence || id != Some(upload.upload_id) {
        return Ok(Claim::OutOfSequence);
    }
    decode_result(result.as_deref().unwrap_or_default()).map(Claim::AlreadyApplied)
}

/// What came into the scope since the checkpoint that the remote presents.
fn gained(
    scope: &Scope,
    publication: &super::compile::Publication,
    upload: &SyncUpload,
) -> Vec<GainedPartitions> {
    let Some(held) = upload.checkpoint.as_ref().and_then(Presented::of) else {
        return Vec::new();
    };
    let tables = publication.tables.iter().enumerate();
    let gained = tables.filter_map(|(index, table)| {
        let new = scope.tables[index].difference(held.partitions(table)?);
        Some(GainedPartitions {
            table: publication.schema.tables[index].name.clone(),
            partitions: new.cloned().collect(),
        })
    });
    gained.filter(|it| !it.partitions.is_empty()).collect()
}

/// Adds the partitions of the last scope handed out, so that changes which were made
/// while a remote held them are not lost with them: once. True if it was needed.
fn add_last_signed(
    scope: &mut Scope,
    publication: &super::compile::Publication,
    upload: &SyncUpload,
    subscription: &Subscription,
) -> bool {
    let Some(checkpoint) = &upload.checkpoint else {
        return false;
    };
    let serial = checkpoint.serial;
    let is_last = serial == subscription.scope_serial || serial == subscription.previous_serial;
    let Some(held) = Presented::of(checkpoint) else {
        return false;
    };
    if serial == 0 || !is_last || serial <= subscription.graced_serial {
        return false;
    }
    let mut needed = false;
    for (table, partitions) in publication.tables.iter().zip(&mut scope.tables) {
        for lost in held.partitions(table).into_iter().flatten() {
            needed |= partitions.insert(lost.clone());
        }
    }
    needed
}

/// Keeps the result with the subscription, and what lost or was refused for people.
fn record(
    connection: &Connection,
    upload: &SyncUpload,
    effects: &Effects,
) -> Result<(), CentreError> {
    let recording = failure("recording an upload's result");
    connection
        .prepare_cached(
            "UPDATE tidewater_subscription SET result = ?3
             WHERE remote_id = ?1 AND publication = ?2",
        )
        .and_then(|mut statement| {
            let result = effects.result.encode_to_vec();
            statement.execute(params![upload.remote_id.0, upload.publication, result])
        })
        .map_err(recording)?;
    for conflict in &effects.conflicts {
        connection
            .prepare_cached(
                "INSERT INTO tidewater_conflict (at_ms, remote_id, user_name, publication,
                     table_name, row_key, operation, pre_image, uploaded, winner)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
            )
            .and_then(|mut statement| {
                statement.execute(params![
                    upload.now_ms,
                    upload.remote_id.0,
                    upload.user,
                    upload.publication,
                    conflict.table,
                    conflict.key,
                    conflict.operation,
                    conflict.pre_image,
                    conflict.uploaded,
                    conflict.winner,
                ])
            })
            .map_err(recording)?;
    }
    for refused in &effects.refused {
        connection
            .prepare_cached(
                "INSERT INTO tidewater_refused (at_ms, remote_id, user_name, publication,
                     table_name, row_key, operation, uploaded, code, reason)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
            )
            .and_then(|mut statement| {
                statement.execute(params![
                    upload.now_ms,
                    upload.remote_id.0,
                    upload.user,
                    upload.publication,
                    refused.table,
                    refused.key,
                    refused.operation,
                    refused.row,
                    refused.refusal.code.name(),
                    refused.refusal.reason,
                ])
            })
            .map_err(recording)?;
    }
    Ok(())
}

/// What a failed statement means for its row; `None` if it is not the row's fault.
pub(super) fn refusal(error: &rusqlite::Error, table: &str, deleting: bool) -> Option<Refusal> {
    let (code, reason) = row_error::classify(error, table, deleting)?;
    debug_assert!((700..800).contains(&Code::number(code)));
    Some(Refusal { code, reason })
}
