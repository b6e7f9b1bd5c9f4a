//! Acknowledged uploads, kept for a while: a centre that was restored has forgotten them, and
//! gets them back.
//!
//! Owns `tidewater_kept`: an upload as it travelled, frame by frame, byte for byte; but for
//! changes that were refused. How much is kept, and for how long, is bounded: of large and of
//! older ones only that they were there is kept, as a row without bytes. Where such a *gap* would
//! have to be given back, nothing is, and the tables are compared instead. One that is being
//! given back stays. What a result means for a given-back upload is left to [`super::apply`],
//! putting the frames together to [`copy`], and what is in them to [`content`].

mod content;
mod copy;
pub(crate) mod former_identity;
pub(crate) mod give_back;

use content::without;
pub(crate) use content::{OwnChange, dropped_changes, images, own_changes};
use copy::CopiedUpload;
pub(crate) use copy::{UploadCopies, UploadCopy};
pub(crate) use former_identity::FormerIdentity;
pub use give_back::GivenBackUpload;
pub(crate) use give_back::{GiveBackEnd, giving};

use std::collections::HashSet;

use bytes::BytesMut;
use rusqlite::{Connection, OptionalExtension, params};
use tidewater_protocol::frame::{Frame, SYNC_CHANNEL, put_control, take_frame};
use tidewater_protocol::message::Control;
use tidewater_protocol::{RemoteId, UploadId};

use super::subscription::load_all;
use super::{CompareDue, HelloState, RemoteDatabase, SubscriptionState, compare, numbers, refused};
use crate::error::{ErrorContext, RemoteError};

/// How long an upload is kept: 14 days.
const MAX_AGE_MS: i64 = 14 * 24 * 60 * 60 * 1000;

/// So many uploads at most are known without being kept.
const MAX_GAPS: i64 = 1000;

/// How much of its acknowledged uploads a file keeps, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptLimits {
    /// An upload that is larger is not kept: bulk writes would be written twice.
    pub upload_bytes: usize,
    /// All uploads together. The oldest ones that are more go.
    pub total_bytes: usize,
}

impl Default for KeptLimits {
    /// 8 and 32 MiB.
    fn default() -> KeptLimits {
        KeptLimits {
            upload_bytes: 8 << 20,
            total_bytes: 32 << 20,
        }
    }
}

/// What a server that was restored says of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CentreState {
    /// The subscription's number in the file.
    pub subscription: i64,
    /// The last upload that the centre has, with its id, if it has forgotten later ones. By
    /// the centre's number: the file may have kept it under another one.
    pub last_upload: Option<(u64, Option<UploadId>)>,
    /// The ids that the remote had before, each with the number of the last upload under it
    /// that the centre has.
    pub formers: Vec<(RemoteId, u64)>,
    /// Whether the tables must be compared.
    pub compare_due: CompareDue,
}

impl RemoteDatabase {
    /// Whether the centre was restored although it takes the file for a copy: what it has last
    /// is an upload that the file has kept, so that the later ones are forgotten there. Numbers
    /// do not tell: they are counted anew when uploads are given back, and what was refused is
    /// not given back. Or what it has last is what is pending here, and all has been given back
    /// already. `has`: for each subscription, what the centre has. `None` if it has anything
    /// that is not known here.
    pub(crate) fn recognise(
        &self,
        subscriptions: &[SubscriptionState],
        has: &[Option<(u64, UploadId)>],
    ) -> Result<Option<Vec<CentreState>>, RemoteError> {
        let mut states = Vec::new();
        for (subscription, &has) in subscriptions.iter().zip(has) {
            let here = subscription.upload_id.map(|id| (subscription.sequence, id));
            let next = subscription.next_upload();
            let next = next.map(|id| (subscription.sequence + 1, id));
            if has == here || has.is_some() && has == next {
                continue;
            }
            let Some((mut sequence, mut upload_id)) = has else {
                return Ok(None);
            };
            // What is pending cannot be there before all is given back: a connection from before
            // the centre was restored came late, when it had been, and nobody has told us.
            if subscription.giving.is_some() && subscription.taken == Some(upload_id) {
                let last = giving(&self.connection, subscription.id, GiveBackEnd::Last);
                let Some(last) = last.doing("looking for what is given back")? else {
                    return Ok(None);
                };
                (sequence, upload_id) = (sequence.saturating_sub(1), last.upload_id);
            }
            let kept = kept_as(&self.connection, subscription.id, upload_id);
            if kept.doing("looking for a kept upload")?.is_none() {
                return Ok(None);
            }
            states.push(CentreState {
                subscription: subscription.id,
                last_upload: Some((sequence, Some(upload_id))),
                formers: Vec::new(),
                compare_due: CompareDue::Yes,
            });
        }
        Ok((!states.is_empty()).then_some(states))
    }

    /// Takes what the centre has for what it has: later uploads are given back, tables are
    /// compared. Never takes back that a compare is due. `said` is what the server has judged.
    ///
    /// # Errors
    /// SQLite failed, or the file is not as it was said to be.
    pub fn accept_centre_state(
        &mut self,
        said: HelloState<'_>,
        states: &[CentreState],
        new_upload_id: &mut dyn FnMut() -> UploadId,
    ) -> Result<(), RemoteError> {
        let doing = "noting what the centre has forgotten";
        let transaction = self.write(doing)?;
        said.still_holds(&transaction)?;
        // It may hand out again what it handed out before.
        numbers::forget(&transaction).doing(doing)?;
        let accept = |state: &CentreState| -> rusqlite::Result<()> {
            transaction.execute(
                "UPDATE tidewater_subscription SET compare_due = max(compare_due, ?2) \
                 WHERE id = ?1",
                params![state.subscription, state.compare_due.stored()],
            )?;
            for &(remote_id, sequence) in &state.formers {
                give_back_of_former(&transaction, state.subscription, remote_id, sequence)?;
            }
            let Some((sequence, upload_id)) = state.last_upload else {
                return Ok(());
            };
            let sequence = i64::try_from(sequence).unwrap_or(i64::MAX);
            transaction.execute(
                "UPDATE tidewater_subscription SET sequence = ?2, upload_id = ?3 WHERE id = ?1",
                params![state.subscription, sequence, upload_id.map(|id| id.0)],
            )?;
            let sequence = give_back_after(&transaction, state.subscription, sequence, upload_id)?;
            // It has forgotten what it refused, too: that goes up again, or is told to it.
            transaction.execute(
                "UPDATE tidewater_refused SET again = 1 WHERE publication = (SELECT publication \
                 FROM tidewater_subscription WHERE id = ?1) AND sequence > ?2",
                params![state.subscription, sequence],
            )?;
            Ok(())
        };
        for state in states {
            accept(state).doing(doing)?;
        }
        refused::rejoin_taken(&transaction, new_upload_id)?;
        settle(&transaction)?;
        transaction.commit().doing(doing)
    }

    /// The frames of an upload that is being given back.
    pub(crate) fn kept_frames(&self, giving: GivenBackUpload) -> Result<BytesMut, RemoteError> {
        frames(&self.connection, giving)
    }
}

fn put(out: &mut BytesMut, control: Control) -> Result<(), RemoteError> {
    put_control(out, SYNC_CHANNEL, control).map_err(|error| RemoteError::Usage {
        what: format!("an upload cannot be kept: {error}"),
        hint: "report it: this is a defect".into(),
    })
}

fn frames(connection: &Connection, giving: GivenBackUpload) -> Result<BytesMut, RemoteError> {
    let bytes: Vec<u8> = connection
        .prepare_cached("SELECT bytes FROM tidewater_kept WHERE id = ?1")
        .and_then(|mut statement| statement.query_row([giving.id], |row| row.get(0)))
        .doing("reading a kept upload")?;
    Ok(BytesMut::from(&bytes[..]))
}

/// The next frame of a kept upload; `None` at its end.
pub(crate) fn next_frame(frames: &mut BytesMut) -> Result<Option<Frame>, RemoteError> {
    match take_frame(frames) {
        Ok(frame) => Ok(frame),
        Err(error) => Err(RemoteError::BadRows {
            table: "tidewater_kept".into(),
            what: error.to_string(),
        }),
    }
}

/// Has everything given back that was uploaded after the last upload that the centre has. The
/// number of that upload in the file, as far as it is known.
fn give_back_after(
    connection: &Connection,
    subscription: i64,
    sequence: i64,
    upload_id: Option<UploadId>,
) -> rusqlite::Result<i64> {
    let kept = match upload_id {
        Some(upload_id) => kept_as(connection, subscription, upload_id)?,
        None => None,
    };
    if let Some((number, id)) = kept {
        // Not by their numbers: those that wait have their old ones, and those that were given
        // back before them may have higher ones.
        connection.execute(
            "UPDATE tidewater_kept SET giving = id > ?2 \
             WHERE subscription = ?1 AND remote_id IS NULL",
            params![subscription, id],
        )?;
        return Ok(number.min(sequence));
    }
    // Under this number the file may know another upload than the centre: then a copy of it goes
    // on under its id, and its own upload is missing, too. The next Hello says which it is, and is
    // told to take another id.
    if upload_id.is_some() {
        connection.execute(
            "UPDATE tidewater_subscription SET upload_id = coalesce((SELECT upload_id \
             FROM tidewater_kept WHERE subscription = ?1 AND sequence = ?2 \
             AND remote_id IS NULL), upload_id) WHERE id = ?1",
            params![subscription, sequence],
        )?;
    }
    connection.execute(
        "UPDATE tidewater_kept SET giving = 1 WHERE subscription = ?1 AND remote_id IS NULL \
         AND (sequence > ?2 OR sequence = ?2 AND ?3 IS NOT NULL)",
        params![subscription, sequence, upload_id.map(|id| id.0)],
    )?;
    Ok(sequence)
}

/// Has what was uploaded under a former id given back, but for what the centre has: everything
/// up to this number.
fn give_back_of_former(
    connection: &Connection,
    subscription: i64,
    remote_id: RemoteId,
    sequence: u64,
) -> rusqlite::Result<()> {
    let sequence = i64::try_from(sequence).unwrap_or(i64::MAX);
    connection
        .execute(
            "UPDATE tidewater_kept SET giving = 1 \
             WHERE subscription = ?1 AND remote_id = ?2 AND sequence > ?3",
            params![subscription, remote_id.0, sequence],
        )
        .map(drop)
}

/// The number of an upload that is kept, and went up under the remote's id; and its number in
/// the file.
fn kept_as(
    connection: &Connection,
    subscription: i64,
    upload_id: UploadId,
) -> rusqlite::Result<Option<(i64, i64)>> {
    connection
        .prepare_cached(
            "SELECT sequence, id FROM tidewater_kept WHERE subscription = ?1 \
             AND upload_id = ?2 AND remote_id IS NULL ORDER BY id DESC LIMIT 1",
        )?
        .query_row(params![subscription, upload_id.0], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .optional()
}

/// An upload that an apply acknowledges, to be kept at its end.
#[derive(Debug)]
pub(crate) enum UploadToKeep {
    /// One that went up for the first time: as it travelled, or that it was too large.
    New {
        subscription: i64,
        sequence: i64,
        upload_id: UploadId,
        upload: CopiedUpload,
    },
    /// One that was given back: it stays, under its new number.
    Again {
        giving: GivenBackUpload,
        sequence: i64,
        /// What is left of it, if something was refused.
        bytes: Option<Vec<u8>>,
    },
}

/// A table and a packed key of it.
pub(crate) type TableAndKey = (String, Vec<u8>);

/// Refused changes.
pub(crate) type RefusedKeys = HashSet<TableAndKey>;

impl UploadToKeep {
    /// What is to be kept of the upload that the subscription's result is about. `index` is the
    /// subscription's number in the sync.
    pub(crate) fn for_result(
        database: &RemoteDatabase,
        index: usize,
        subscription: &SubscriptionState,
        copies: &mut UploadCopies,
    ) -> Result<Option<UploadToKeep>, RemoteError> {
        let sequence = i64::try_from(subscription.sequence + 1).unwrap_or(i64::MAX);
        if let Some(giving) = subscription.giving {
            return Ok(Some(UploadToKeep::Again {
                giving,
                sequence,
                bytes: None,
            }));
        }
        let Some(upload_id) = subscription.taken else {
            return Ok(None);
        };
        Ok(Some(UploadToKeep::New {
            subscription: subscription.id,
            sequence,
            upload_id,
            upload: copies.take(index, subscription, database)?,
        }))
    }

    /// Leaves out what was refused: the centre never had it, and its row may have left the
    /// user's partitions.
    pub(crate) fn leave_out(
        &mut self,
        connection: &Connection,
        refused: &RefusedKeys,
    ) -> Result<(), RemoteError> {
        match self {
            _ if refused.is_empty() => {}
            UploadToKeep::New { upload, .. } => {
                if let CopiedUpload::Whole(bytes) = upload {
                    let left = without(bytes, refused)?;
                    *upload = match left.is_empty() {
                        true => CopiedUpload::Nothing,
                        false => CopiedUpload::Whole(left),
                    };
                }
            }
            UploadToKeep::Again { giving, bytes, .. } => {
                *bytes = Some(without(&frames(connection, *giving)?, refused)?);
            }
        }
        Ok(())
    }

    fn write(&self, connection: &Connection, now_ms: i64) -> rusqlite::Result<()> {
        let written = match self {
            UploadToKeep::New {
                subscription,
                sequence,
                upload_id,
                upload,
            } => {
                let bytes: &[u8] = match upload {
                    CopiedUpload::Nothing => return Ok(()),
                    CopiedUpload::Whole(bytes) => bytes,
                    CopiedUpload::TooLarge => &[],
                };
                connection
                    .prepare_cached(
                        "INSERT INTO tidewater_kept (subscription, sequence, upload_id, at, \
                         bytes, total_bytes) VALUES (?1, ?2, ?3, ?4, ?5, \
                         length(?5) + coalesce((SELECT total_bytes \
                         FROM tidewater_kept ORDER BY id DESC LIMIT 1), 0))",
                    )?
                    .execute(params![subscription, sequence, upload_id.0, now_ms, bytes])
            }
            UploadToKeep::Again {
                giving,
                bytes: Some(bytes),
                ..
            } if bytes.is_empty() => {
                connection.execute("DELETE FROM tidewater_kept WHERE id = ?1", [giving.id])
            }
            UploadToKeep::Again {
                giving,
                sequence,
                bytes,
            } => connection.execute(
                "UPDATE tidewater_kept SET giving = 0, remote_id = NULL, centre = NULL, sequence = ?2, \
                 at = max(?3, at + 1), bytes = coalesce(?4, bytes) WHERE id = ?1",
                params![giving.id, sequence, now_ms, bytes],
            ),
        };
        written.map(drop)
    }
}

/// Keeps what an apply acknowledged, and makes room for it: what is too old goes, and of the
/// oldest ones that are too many bytes only a gap stays.
pub(crate) fn keep(
    connection: &Connection,
    acknowledged: &[UploadToKeep],
    limits: KeptLimits,
    now_ms: i64,
) -> Result<(), RemoteError> {
    let doing = "keeping an upload";
    if acknowledged.is_empty() {
        return Ok(());
    }
    for upload in acknowledged {
        upload.write(connection, now_ms).doing(doing)?;
    }
    let too_old = now_ms.saturating_sub(MAX_AGE_MS);
    let limit = i64::try_from(limits.total_bytes).unwrap_or(i64::MAX);
    let mut first = oldest(connection, "TRUE").doing(doing)?;
    while let Some((id, at, _)) = first
        && at < too_old
    {
        connection
            .execute("DELETE FROM tidewater_kept WHERE id = ?1", [id])
            .doing(doing)?;
        first = oldest(connection, "TRUE").doing(doing)?;
    }
    let is_gap = |keep: &UploadToKeep| match keep {
        UploadToKeep::New { upload, .. } => matches!(upload, CopiedUpload::TooLarge),
        UploadToKeep::Again { .. } => false,
    };
    let mut new_gaps = acknowledged.iter().any(is_gap);
    // What is older than the oldest that has bytes has none.
    if first.is_some_and(|(_, _, bytes)| bytes > limit) {
        while let Some((id, _, bytes)) = oldest(connection, "bytes <> x''").doing(doing)?
            && bytes > limit
        {
            connection
                .execute("UPDATE tidewater_kept SET bytes = x'' WHERE id = ?1", [id])
                .doing(doing)?;
            new_gaps = true;
        }
    }
    if !new_gaps {
        return Ok(());
    }
    // The newest gap says as much as all; the others are only for knowing uploads by their ids.
    connection
        .prepare_cached(
            "DELETE FROM tidewater_kept WHERE giving = 0 AND bytes = x'' AND id <= (SELECT id \
             FROM tidewater_kept WHERE bytes = x'' ORDER BY id DESC LIMIT 1 OFFSET ?1)",
        )
        .and_then(|mut statement| statement.execute([MAX_GAPS]))
        .map(drop)
        .doing(doing)
}

/// The oldest kept upload of a kind that is not being given back: its number in the file, when it
/// was acknowledged, and the bytes that are kept from it on, its own among them.
fn oldest(connection: &Connection, kind: &str) -> rusqlite::Result<Option<(i64, i64, i64)>> {
    connection
        .prepare_cached(&format!(
            "SELECT id, at, (SELECT total_bytes FROM tidewater_kept ORDER BY id DESC LIMIT 1) \
             - total_bytes + length(bytes) FROM tidewater_kept WHERE giving = 0 AND {kind} \
             ORDER BY id LIMIT 1"
        ))?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()
}

/// Where a gap is among what is to be given back, nothing is: what comes after it may need it. The
/// tables are compared instead, and what differs in them may be the user's.
pub(crate) fn settle(connection: &Connection) -> Result<(), RemoteError> {
    let doing = "looking for what cannot be given back";
    for subscription in load_all(connection)? {
        let settle = || -> rusqlite::Result<()> {
            let gap = "SELECT 1 FROM tidewater_kept WHERE subscription = ?1 AND giving = 1 \
                       AND bytes = x''";
            if connection.prepare_cached(gap)?.exists([subscription.id])? {
                connection.execute(
                    "DELETE FROM tidewater_kept WHERE subscription = ?1 AND giving = 1",
                    [subscription.id],
                )?;
                compare::note_forgotten(connection, &subscription)?;
            }
            Ok(())
        };
        settle().doing(doing)?;
    }
    Ok(())
}

/// The remote has another id than the one under which uploads were kept, from this centre or from
/// another one. They are remembered with the former id, where it is known; but for those that were
/// being given back, if the centre is the same: they still are. `before`: the former id and its centre's name.
pub(crate) fn adopt(
    connection: &Connection,
    before: (Option<RemoteId>, &str),
    centre: &str,
) -> rusqlite::Result<()> {
    let (former, former_centre) = before;
    if former_centre.is_empty() {
        // Nobody could tell whether another centre wants them.
        connection.execute("DELETE FROM tidewater_kept", [])?;
    } else {
        if former_centre != centre {
            // The rows here are going to be the other centre's.
            connection.execute("DELETE FROM tidewater_kept WHERE bytes = x''", [])?;
        }
        connection.execute(
            "UPDATE tidewater_kept SET giving = 0, centre = coalesce(centre, ?2), \
             remote_id = coalesce(remote_id, ?1) \
             WHERE giving = 0 AND remote_id IS NULL OR giving = 1 AND ?2 <> ?3",
            params![former.map(|id| id.0), former_centre, centre],
        )?;
    }
    Ok(())
}
