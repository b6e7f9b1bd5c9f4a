//! What comes of downloads, kept so that a sync that breaks need not begin anew.
//!
//! A part is a file of its own: who it is of, since when, and the messages of the download as they came, each
//! in its frame. Where a later sync goes on follows another `DownloadBegin`. Up to the last
//! `DownloadMark` whose checksum agrees it can be relied on, whatever became of the process, of the
//! line or of the machine; what is behind that is cut off.

use bytes::BytesMut;
use sha2::{Digest, Sha256};

use tidewater_protocol::RemoteId;
use tidewater_protocol::frame::{Frame, take_frame};
use tidewater_protocol::message::{Control, DownloadBegin, PartialDownload};

use super::error::SyncError;
use super::kept_frames::{BROKEN_SPOOL, keep_control, keep_rows};
use crate::spool::{DownloadStore, KeptSpool};

/// A part begins with this, the id of the remote, the hash of the publication's schema, and that of the
/// checkpoint since which it tells what is new.
const MAGIC: &[u8; 8] = b"TIDEPRT2";
const HEADER_BYTES: usize = 8 + 16 + 32 + 32;

/// How much is read at once.
const READ_BYTES: usize = 256 << 10;

/// More is not kept: should it break, it begins anew.
const KEPT_AT_MOST: u64 = 16 << 30;

/// Of one subscription.
pub(super) struct DownloadPart {
    pub(super) spool: Box<dyn KeptSpool>,
    /// What is there of an earlier sync, and its length.
    presented: Option<(PartialDownload, u64)>,
    schema_hash: [u8; 32],
    /// The hash of the checkpoint that the file has.
    since: [u8; 32],
    /// Its length.
    bytes: u64,
    /// Its length up to the last mark: should the sync end now, so much stays.
    marked: u64,
}

/// Of the subscriptions of a sync, in their order.
#[derive(Default)]
pub(super) struct DownloadParts {
    remote_id: Option<RemoteId>,
    parts: Vec<Option<DownloadPart>>,
    /// The one whose download is coming.
    coming: Option<usize>,
}

impl DownloadParts {
    /// Of these subscriptions, with the checkpoints that they present; of others nothing is kept.
    pub(super) fn open<'p>(
        keep: &mut dyn DownloadStore,
        remote_id: Option<RemoteId>,
        subscriptions: impl Iterator<Item = Option<(&'p str, Vec<u8>)>>,
    ) -> DownloadParts {
        let parts = subscriptions.map(|subscription| {
            let (publication, checkpoint) = subscription?;
            let since = Sha256::digest(checkpoint).into();
            // Where nothing can be kept, a sync goes on without.
            let mut spool = keep.open(publication).ok()??;
            let presented = remote_id.and_then(|it| look(&mut *spool, it, since).ok()?);
            if presented.is_none() {
                spool.cut(0).ok()?;
            }
            let marked = presented.as_ref().map_or(0, |it| it.1);
            Some(DownloadPart {
                spool,
                presented,
                schema_hash: [0; 32],
                since,
                bytes: marked,
                marked,
            })
        });
        DownloadParts {
            remote_id,
            parts: parts.collect(),
            coming: None,
        }
    }

    /// What the Hello says of a subscription.
    pub(super) fn presented(&self, index: usize) -> Option<PartialDownload> {
        let part = self.parts.get(index)?.as_ref()?;
        part.presented.as_ref().map(|it| it.0.clone())
    }

    /// Bytes that are there of earlier syncs.
    pub(super) fn kept_bytes(&self) -> u64 {
        let parts = self.parts.iter().flatten();
        parts
            .filter_map(|it| it.presented.as_ref())
            .map(|it| it.1)
            .sum()
    }

    /// Under whose id, and in which schema, a download comes.
    pub(super) fn agree(
        &mut self,
        remote_id: Option<RemoteId>,
        index: usize,
        schema_hash: [u8; 32],
    ) {
        self.remote_id = remote_id;
        if let Some(Some(part)) = self.parts.get_mut(index) {
            part.schema_hash = schema_hash;
        }
    }

    /// A download begins; says how many bytes of it are there. `also`: see [`Self::control`].
    ///
    /// # Errors
    /// The server goes on with what nobody has presented, or the storage failed.
    pub(super) fn begin(&mut self, begin: &DownloadBegin, also: bool) -> Result<u64, SyncError> {
        let index = begin.subscription as usize;
        let remote_id = self.remote_id;
        let Some(slot) = self.parts.get_mut(index) else {
            return Ok(0);
        };
        let presented = slot.as_mut().and_then(|it| it.presented.take());
        if begin.resumed && presented.is_none() {
            return Err(SyncError::unexpected(
                "the rest of a download that was not asked for",
            ));
        }
        let (Some(part), Some(remote_id)) = (slot.as_mut(), remote_id) else {
            return Ok(0);
        };
        if begin.checkpoint.is_empty() {
            part.marked = 0;
            *slot = None;
            return Ok(0);
        }
        let there = presented.filter(|_| begin.resumed).map(|it| it.1);
        let begun = part.begin(begin, there, remote_id);
        self.coming = Some(index);
        self.kept(begun, !also)?;
        Ok(there.unwrap_or(0))
    }

    /// Whether a message is kept here. `also`: it is applied at once, too, and not kept for that.
    pub(super) fn keep_control(
        &mut self,
        control: &Control,
        also: bool,
    ) -> Result<bool, SyncError> {
        if let Control::DownloadEnd(_) = control {
            self.coming = None;
            return Ok(false);
        }
        let Some(part) = self.coming() else {
            return Ok(false);
        };
        let kept = keep_control(&mut *part.spool, control.clone()).map(|length| {
            part.bytes += length;
            if let Control::DownloadMark(_) = control {
                part.marked = part.bytes;
            }
        });
        self.kept(kept, !also)?;
        Ok(true)
    }

    /// The same of rows.
    pub(super) fn keep_rows(&mut self, rows: &[u8], also: bool) -> Result<bool, SyncError> {
        let Some(part) = self.coming() else {
            return Ok(false);
        };
        let kept = match also && part.bytes > KEPT_AT_MOST {
            true => Err(SyncError::Spool(std::io::ErrorKind::FileTooLarge.into())),
            false => keep_rows(&mut *part.spool, rows).map(|length| part.bytes += length),
        };
        self.kept(kept, !also)?;
        Ok(true)
    }

    /// The part of a subscription, if its download is there and not in the spool.
    pub(super) fn part(&mut self, index: usize) -> Option<&mut DownloadPart> {
        self.parts.get_mut(index)?.as_mut()
    }

    /// They are applied, or of no use.
    pub(super) fn remove(&mut self) {
        let parts = std::mem::take(&mut self.parts);
        parts.into_iter().flatten().for_each(|mut it| it.marked = 0);
    }

    fn coming(&mut self) -> Option<&mut DownloadPart> {
        self.parts.get_mut(self.coming?)?.as_mut()
    }

    /// What is needed to apply must be kept. What is not is given up.
    fn kept(&mut self, kept: Result<(), SyncError>, is_needed: bool) -> Result<(), SyncError> {
        match kept {
            Err(_) if !is_needed => {
                let coming = self.coming.take().and_then(|it| self.parts.get_mut(it));
                if let Some(mut part) = coming.and_then(Option::take) {
                    part.marked = 0;
                }
                Ok(())
            }
            kept => kept,
        }
    }
}

impl DownloadPart {
    /// Goes to its first message.
    pub(super) fn rewind(&mut self) -> Result<(), SyncError> {
        self.spool.rewind().map_err(SyncError::Spool)?;
        let mut header = [0; HEADER_BYTES];
        match fill(&mut *self.spool, &mut header).map_err(SyncError::Spool)? {
            true => Ok(()),
            false => Err(BROKEN_SPOOL),
        }
    }

    fn begin(
        &mut self,
        begin: &DownloadBegin,
        goes_on_at: Option<u64>,
        remote_id: RemoteId,
    ) -> Result<(), SyncError> {
        self.bytes = goes_on_at.unwrap_or(0);
        self.marked = self.bytes;
        self.spool.cut(self.bytes).map_err(SyncError::Spool)?;
        if goes_on_at.is_none() {
            let header = [&MAGIC[..], &remote_id.0, &self.schema_hash, &self.since].concat();
            self.spool.append(&header).map_err(SyncError::Spool)?;
            self.bytes = header.len() as u64;
        }
        self.bytes += keep_control(&mut *self.spool, Control::DownloadBegin(begin.clone()))?;
        Ok(())
    }
}

/// What is behind the last mark is of no use, and would look as if the download had got on.
impl Drop for DownloadPart {
    fn drop(&mut self) {
        let is_kept = (1..=KEPT_AT_MOST).contains(&self.marked);
        let marked = self.marked;
        let kept = is_kept.then(|| self.spool.cut(marked).and_then(|()| self.spool.keep()));
        if !matches!(kept, Some(Ok(()))) {
            self.spool.remove();
        }
    }
}

/// Finds out what is in a part, up to where; `None` if it is of no use.
fn look(
    spool: &mut dyn KeptSpool,
    remote_id: RemoteId,
    since: [u8; 32],
) -> std::io::Result<Option<(PartialDownload, u64)>> {
    spool.rewind()?;
    let mut header = [0; HEADER_BYTES];
    if !fill(spool, &mut header)? {
        return Ok(None);
    }
    let (magic, rest) = header.split_at(MAGIC.len());
    let (id, hashes) = rest.split_at(remote_id.0.len());
    let (schema_hash, begun_since) = hashes.split_at(32);
    // What it goes on from is gone, if another download was applied meanwhile.
    if magic != MAGIC || id != remote_id.0 || begun_since != since {
        return Ok(None);
    }
    let mut part = PartialDownload {
        schema_hash: schema_hash.to_vec(),
        ..PartialDownload::default()
    };
    let mut reliable = 0;
    let mut at = HEADER_BYTES as u64;
    let mut checksum = crc32fast::Hasher::new();
    let mut buffer = BytesMut::new();
    loop {
        let end = buffer.len();
        buffer.resize(end + READ_BYTES, 0);
        let count = spool.read(&mut buffer[end..])?;
        buffer.truncate(end + count);
        let mut before = buffer.len();
        let mut is_over = count == 0;
        while let Some(frame) = take_frame(&mut buffer).transpose() {
            at += (before - buffer.len()) as u64;
            before = buffer.len();
            let control = match frame {
                Ok(Frame::Control { control, .. }) => control,
                Ok(Frame::Rows { bytes, .. }) => {
                    checksum.update(&bytes);
                    continue;
                }
                _ => None,
            };
            match control {
                Some(Control::DownloadBegin(begin)) => {
                    checksum.reset();
                    if !begin.resumed {
                        part.checkpoint = begin.checkpoint;
                    }
                }
                Some(Control::DownloadMark(mark))
                    if mark.checksum == checksum.clone().finalize() =>
                {
                    part.mark = mark.mark;
                    reliable = at;
                }
                Some(Control::TableBegin(_)) => {}
                // Whatever this is, it is not what was written.
                _ => {
                    is_over = true;
                    break;
                }
            }
        }
        if is_over {
            let is_useful = !part.mark.is_empty() && !part.checkpoint.is_empty();
            return Ok(is_useful.then_some((part, reliable)));
        }
    }
}

/// Whether there are so many bytes.
fn fill(spool: &mut dyn KeptSpool, bytes: &mut [u8]) -> std::io::Result<bool> {
    let mut at = 0;
    while at < bytes.len() {
        match spool.read(&mut bytes[at..])? {
            0 => return Ok(false),
            count => at += count,
        }
    }
    Ok(true)
}
