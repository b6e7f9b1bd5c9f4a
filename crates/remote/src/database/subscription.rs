//! A subscription's row, as it is stored and as the session knows it.

use std::sync::Arc;

use rusqlite::Connection;
use rusqlite::types::ValueRef;
use tidewater_protocol::message::{SubscriptionParameter, VerifiedTables};
use tidewater_protocol::{PublicationSchema, UploadId};

use super::kept_uploads::former_identity::{FormerIdentity, formers};
use super::kept_uploads::give_back::{GiveBackEnd, GivenBackUpload, giving};
use super::numbers;
use super::parameter;
use crate::error::{ErrorContext, RemoteError};

/// Whether the tables of a subscription must be compared with the centre.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum CompareDue {
    /// They are equal as far as is known.
    #[default]
    No,
    /// They are, as far as is known, and the server wants to be sure of it.
    Verify,
    /// They must be; the checkpoint may still be good.
    Yes,
    /// They must be: the centre does not know the history of the checkpoint.
    UnknownHistory,
}

impl CompareDue {
    /// As it stands in `tidewater_subscription`.
    pub(crate) fn stored(self) -> i64 {
        match self {
            CompareDue::No => 0,
            CompareDue::Verify => 1,
            CompareDue::Yes => 2,
            CompareDue::UnknownHistory => 3,
        }
    }

    fn from_stored(stored: i64) -> CompareDue {
        match stored {
            0 => CompareDue::No,
            1 => CompareDue::Verify,
            2 => CompareDue::Yes,
            _ => CompareDue::UnknownHistory,
        }
    }
}

/// A subscription as it stood when a sync began.
#[derive(Clone, Debug)]
pub struct SubscriptionState {
    /// Its number in the file.
    pub id: i64,
    /// The publication.
    pub publication: String,
    /// The last acknowledged upload; 0 if none.
    pub sequence: u64,
    /// Its id.
    pub upload_id: Option<UploadId>,
    /// The id of the upload that was taken and waits for its acknowledgement. Its sequence
    /// number is `sequence + 1`.
    pub taken: Option<UploadId>,
    /// What the last download left for safekeeping; empty if none.
    pub checkpoint: Vec<u8>,
    /// The schema; `None` before the first download.
    pub schema: Option<Arc<PublicationSchema>>,
    /// The hash of the schema; empty if none.
    pub schema_hash: Vec<u8>,
    /// Whether a compare is due.
    pub compare_due: CompareDue,
    /// The first of the kept uploads that the centre has forgotten, and is given again before
    /// anything that is pending.
    pub giving: Option<GivenBackUpload>,
    /// The ids that the remote had before, under which it has uploaded what it still keeps.
    pub(crate) formers: Vec<FormerIdentity>,
    /// When the newest kept upload of the file was acknowledged, or given back, in milliseconds
    /// since 1970.
    pub(crate) last_kept_ms: Option<i64>,
    /// When it last synced, in milliseconds since 1970.
    pub(crate) last_sync_ms: Option<i64>,
    /// Whether the file has refused changes, of whatever subscription.
    pub(crate) any_refused: bool,
    /// The lowest number of an upload of which something is still refused; 0 if nothing is.
    pub refused_from: u64,
    /// Where the centre goes on to tell what operators have settled.
    pub settled_after: u64,
    /// What the centre last said of its deployment; 0 if nothing yet.
    pub(crate) deployment: i64,
    /// Whether refused changes are pending again, or the centre is to be told what was given up.
    pub(crate) any_unsettled: bool,
    /// Whether the file has stale rows, of whatever subscription.
    pub(crate) any_stale: bool,
    /// How many numbers are left for the rows of its tables, where there are any.
    pub(crate) numbers: Vec<(String, u64)>,
    /// What the server is to hear of the last compare that it had asked for.
    pub(crate) verified: Option<VerifiedTables>,
    /// The hash of the image whose the checkpoint is; empty if it is the remote's own.
    pub(crate) image: Vec<u8>,
    /// What the remote has set.
    pub parameters: Vec<SubscriptionParameter>,
    /// Whether the sync under way compares the tables: what it brings settles the compare.
    pub compares: bool,
    /// The generation that changes are recorded under now.
    pub(crate) generation: i64,
    /// The generation of the taken upload.
    pub(crate) taken_generation: Option<i64>,
    /// Whether transactions wait behind the taken one, each to go up in a session of its own.
    pub(crate) more: bool,
    /// The file's data version when this connection took the upload. As long as it stays the
    /// same, nothing was changed after the taking.
    pub(crate) taken_under: Option<i64>,
    /// The last generation whose changes another copy of the file may have sent, too.
    pub(crate) copied_until: i64,
    /// Whether the server has no such publication any more.
    pub is_dropped: bool,
}

impl SubscriptionState {
    /// The upload that goes next, under the number `sequence + 1`: one that is given back, else
    /// what was taken.
    pub fn next_upload(&self) -> Option<UploadId> {
        self.giving.map(|giving| giving.upload_id).or(self.taken)
    }

    /// Whether another copy of the file may have sent what was taken, too.
    pub(crate) fn may_be_sent_twice(&self) -> bool {
        self.taken_generation
            .is_some_and(|it| it <= self.copied_until)
    }

    /// Whether nothing that a sync relies on has changed since `self` was read.
    pub(crate) fn still_is(&self, now: &SubscriptionState) -> bool {
        self.id == now.id
            && self.publication == now.publication
            && self.sequence == now.sequence
            && self.upload_id == now.upload_id
            // Whoever gave back what the centre forgot left all else as it had been.
            && self.last_kept_ms == now.last_kept_ms
            && self.taken == now.taken
            && self.giving == now.giving
            && self.taken_generation == now.taken_generation
            && self.checkpoint == now.checkpoint
            && self.schema_hash == now.schema_hash
    }
}

pub(crate) fn load_all(connection: &Connection) -> Result<Vec<SubscriptionState>, RemoteError> {
    let doing = "reading the subscriptions";
    let mut statement = connection
        .prepare_cached(
            "SELECT id, publication, sequence, upload_id, taken_upload_id, checkpoint, schema, \
             schema_hash, generation, taken_generation, compare_due, \
             (SELECT at FROM tidewater_kept ORDER BY id DESC LIMIT 1), last_sync_at, \
             EXISTS (SELECT 1 FROM tidewater_kept WHERE subscription = s.id AND giving = 1), \
             EXISTS (SELECT 1 FROM tidewater_kept \
             WHERE subscription = s.id AND remote_id IS NOT NULL), \
             EXISTS (SELECT 1 FROM tidewater_identity_block), \
             EXISTS (SELECT 1 FROM tidewater_parameter), \
             EXISTS (SELECT 1 FROM tidewater_refused), \
             EXISTS (SELECT 1 FROM tidewater_stale), deployment, settled_after, \
             (SELECT min(sequence) FROM tidewater_refused \
             WHERE publication = s.publication AND sequence > 0), \
             EXISTS (SELECT 1 FROM tidewater_settled \
             WHERE publication = s.publication AND generation IS NOT NULL), verified, image, copied_until, \
             is_dropped \
             FROM tidewater_subscription AS s ORDER BY id",
        )
        .doing(doing)?;
    let mut rows = statement.query([]).doing(doing)?;
    let mut subscriptions = Vec::new();
    while let Some(row) = rows.next().doing(doing)? {
        let (mut subscription, has) = read(row).doing(doing)?;
        let id = subscription.id;
        if has.giving {
            subscription.giving = giving(connection, id, GiveBackEnd::First).doing(doing)?;
        }
        if has.formers {
            subscription.formers = formers(connection, id).doing(doing)?;
        }
        if has.numbers {
            subscription.numbers = numbers::left(connection, id).doing(doing)?;
        }
        if has.parameters {
            subscription.parameters =
                parameter::read(connection, &subscription.publication).doing(doing)?;
        }
        if let Some(schema) = row.get_ref(6).and_then(as_blob).doing(doing)? {
            subscription.schema = Some(Arc::new(PublicationSchema::decode(schema)?));
        }
        subscriptions.push(subscription);
    }
    Ok(subscriptions)
}

/// Those that sync: the server has no publication of the others any more. If it has none of all of
/// them, all are asked for.
pub(crate) fn leave_out_dropped(subscriptions: &mut Vec<SubscriptionState>) {
    if subscriptions.iter().any(|it| !it.is_dropped) {
        subscriptions.retain(|it| !it.is_dropped);
    }
}

/// What most files have nothing of, and is only then read.
struct FilledTables {
    giving: bool,
    formers: bool,
    numbers: bool,
    parameters: bool,
}

fn as_blob(value: ValueRef<'_>) -> rusqlite::Result<Option<&[u8]>> {
    Ok(value.as_blob_or_null()?)
}

fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<(SubscriptionState, FilledTables)> {
    let id = |column| -> rusqlite::Result<Option<UploadId>> {
        Ok(as_blob(row.get_ref(column)?)?.and_then(UploadId::from_slice))
    };
    let has = FilledTables {
        giving: row.get(13)?,
        formers: row.get(14)?,
        numbers: row.get(15)?,
        parameters: row.get(16)?,
    };
    let subscription = SubscriptionState {
        id: row.get(0)?,
        publication: row.get(1)?,
        sequence: row.get::<_, i64>(2)?.unsigned_abs(),
        upload_id: id(3)?,
        taken: id(4)?,
        checkpoint: row.get::<_, Option<Vec<u8>>>(5)?.unwrap_or_default(),
        schema: None,
        schema_hash: row.get::<_, Option<Vec<u8>>>(7)?.unwrap_or_default(),
        generation: row.get(8)?,
        taken_generation: row.get(9)?,
        taken_under: None,
        more: false,
        numbers: Vec::new(),
        compare_due: CompareDue::from_stored(row.get(10)?),
        giving: None,
        formers: Vec::new(),
        parameters: Vec::new(),
        last_kept_ms: row.get(11)?,
        last_sync_ms: row.get(12)?,
        any_refused: row.get(17)?,
        any_stale: row.get(18)?,
        deployment: row.get(19)?,
        settled_after: row.get::<_, i64>(20)?.unsigned_abs(),
        refused_from: row.get::<_, Option<i64>>(21)?.unwrap_or(0).unsigned_abs(),
        any_unsettled: row.get(22)?,
        // What cannot be read is not told.
        verified: as_blob(row.get_ref(23)?)?.and_then(VerifiedTables::from_bytes),
        image: row.get::<_, Option<Vec<u8>>>(24)?.unwrap_or_default(),
        copied_until: row.get(25)?,
        is_dropped: row.get(26)?,
        compares: false,
    };
    Ok((subscription, has))
}
