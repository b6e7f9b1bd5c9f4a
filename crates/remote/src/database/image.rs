//! Images: files from which new remotes begin, each with an identity of its own.
//!
//! Owns what of a remote's file is the remote's and not the image's, and how a file becomes a
//! remote's again. Which image is genuine is for the server to say, at the first sync.

use std::path::Path;

use rusqlite::{Connection, OpenFlags, params};
use tidewater_protocol::RemoteId;

use super::subscription::load_all;
use super::{CompareDue, RemoteDatabase, configure};
use crate::error::{ErrorContext, RemoteError};

/// Of whose rows an image is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageContent {
    /// The remote that it was.
    pub remote_id: RemoteId,
    /// The name of its centre.
    pub centre: String,
    /// The publication.
    pub publication: String,
    /// The hash of the publication's schema.
    pub schema_hash: Vec<u8>,
    /// The remote's checkpoint: the rows are as of that.
    pub checkpoint: Vec<u8>,
}

/// What a file begins from, as its manifest says.
#[derive(Clone, Copy, Debug)]
pub struct ImageStart<'a> {
    /// The SHA-256 of the image.
    pub sha256: &'a [u8; 32],
    /// The publication that it holds.
    pub publication: &'a str,
    /// The hash of the publication's schema.
    pub schema_hash: &'a [u8; 32],
    /// The checkpoint that was signed for it.
    pub checkpoint: &'a [u8],
}

/// What is a remote's own: who it is, what it has sent and heard, and its numbers.
const STRIP: &str = "
UPDATE tidewater_state SET remote_id = NULL, server = '', user = '', credential = NULL, token = NULL,
  ca = NULL, pin = NULL, checked_schema_version = -1, plain_schema_version = -1, outbox_covered = 0,
  above = '[]', device_name = '';
UPDATE tidewater_subscription SET checkpoint = NULL, image = NULL, last_sync_at = NULL,
  deployment = 0, settled_after = 0, verified = NULL;
DELETE FROM tidewater_identity_block;
DELETE FROM tidewater_settled;
DELETE FROM tidewater_conflicts;
DELETE FROM tidewater_kept;
DELETE FROM tidewater_parameter;
DELETE FROM tidewater_unsubscribed;
DELETE FROM tidewater_outbox;
DELETE FROM tidewater_inbox;
DELETE FROM tidewater_interest;
DELETE FROM sqlite_sequence WHERE name GLOB 'tidewater_*';
";

impl RemoteDatabase {
    /// Writes a copy of the file that is nobody's, for others to begin from. There must not be a
    /// file of this name.
    ///
    /// # Errors
    /// The remote has not synced, or has something that the centre does not; or SQLite failed.
    pub fn write_image(&self, to: &Path) -> Result<ImageContent, RemoteError> {
        let doing = "writing an image";
        let name = to.to_string_lossy();
        self.connection
            .execute("VACUUM INTO ?1", [&*name])
            .doing(doing)?;
        let connection = Connection::open_with_flags(
            to,
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
        )
        .doing(doing)?;
        configure(&connection).doing(doing)?;
        // Nothing of what is deleted may be left in the pages.
        connection
            .execute_batch("PRAGMA journal_mode = DELETE; PRAGMA secure_delete = ON")
            .doing(doing)?;
        let copy = RemoteDatabase {
            connection,
            path: to.to_owned(),
            compares_next: false,
            refused_at: None,
            goes_on: false,
            kept_limits: self.kept_limits,
            has_wal: false,
        };
        let content = copy.image_content()?;
        let strip = format!("BEGIN IMMEDIATE; {STRIP} COMMIT;");
        copy.connection.execute_batch(&strip).doing(doing)?;
        Ok(content)
    }

    /// What the file holds, if that is just what its centre has.
    fn image_content(&self) -> Result<ImageContent, RemoteError> {
        let no_image = |what: &str| RemoteError::NoImage {
            path: self.path.clone(),
            what: what.into(),
        };
        let account = self.account()?;
        let remote_id = account.remote_id;
        let remote_id = remote_id.ok_or_else(|| no_image("it has never been synced"))?;
        let mut subscriptions = load_all(&self.connection)?.into_iter();
        let (Some(subscription), None) = (subscriptions.next(), subscriptions.next()) else {
            return Err(no_image("it does not hold just one publication"));
        };
        if subscription.checkpoint.is_empty() || !subscription.image.is_empty() {
            return Err(no_image("it has not synced since it was begun"));
        }
        if subscription.sequence > 0
            || subscription.taken.is_some()
            || subscription.giving.is_some()
        {
            return Err(no_image(
                "it has uploaded: an image is made of a remote that only reads",
            ));
        }
        let is_equal = subscription.compare_due <= CompareDue::Verify && !subscription.any_stale;
        if !is_equal || subscription.any_refused || self.has_something_to_upload()? {
            return Err(no_image("it holds something else than its centre"));
        }
        Ok(ImageContent {
            remote_id,
            centre: account.centre,
            publication: subscription.publication,
            schema_hash: subscription.schema_hash,
            checkpoint: subscription.checkpoint,
        })
    }

    /// Makes a remote of an image: what it was begun from, its first sync presents.
    ///
    /// # Errors
    /// The file is no image, or not the one that is described; or SQLite failed.
    pub fn begin_from_image(&mut self, start: ImageStart<'_>) -> Result<(), RemoteError> {
        let path = self.path.clone();
        let no_image = |what: &str| RemoteError::NoImage {
            path: path.clone(),
            what: what.into(),
        };
        if self.account()?.remote_id.is_some() {
            return Err(no_image("it is a remote's already"));
        }
        let doing = "beginning from an image";
        let transaction = self.write(doing)?;
        let mut subscriptions = load_all(&transaction)?.into_iter();
        let (Some(subscription), None) = (subscriptions.next(), subscriptions.next()) else {
            return Err(no_image("it does not hold just one publication"));
        };
        let is_described = subscription.publication == start.publication
            && subscription.schema_hash == start.schema_hash;
        if !is_described || subscription.schema.is_none() || subscription.sequence > 0 {
            return Err(no_image(
                "it holds something else than its description says",
            ));
        }
        transaction
            .execute(
                "UPDATE tidewater_subscription SET checkpoint = ?2, image = ?3 WHERE id = ?1",
                params![subscription.id, start.checkpoint, start.sha256],
            )
            .doing(doing)?;
        // A file that was forged may be made so that nothing was changed: then it would present what
        // the forger wrote there.
        let [now] = &load_all(&transaction)?[..] else {
            return Err(no_image("it does not hold just one publication"));
        };
        if now.image != start.sha256 || now.checkpoint != start.checkpoint {
            return Err(no_image("it cannot be begun from"));
        }
        transaction.commit().doing(doing)
    }

    /// Goes by what the file holds, and not by the image that it began from, if that still counts:
    /// the next download compares it with the centre.
    ///
    /// # Errors
    /// SQLite failed.
    pub fn leave_image(&mut self) -> Result<(), RemoteError> {
        let leave = "UPDATE tidewater_subscription SET image = NULL, \
                     compare_due = max(compare_due, ?1) WHERE image IS NOT NULL";
        let left = self.connection.execute(leave, [CompareDue::Yes.stored()]);
        left.map(drop).doing("leaving an image")
    }
}
