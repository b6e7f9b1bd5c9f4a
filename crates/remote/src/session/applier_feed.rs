//! From messages to the applier: while they arrive, or out of the spool.
//!
//! Owns the count of rows against what the server announced, and how messages are kept in the
//! spool: as frames. Leaves the order of messages and their checksums to [`super::incoming_messages`]:
//! what comes here passed it.

use bytes::BytesMut;
use tidewater_protocol::frame::{Frame, HEADER_BYTES, MAX_PAYLOAD_BYTES, take_frame};
use tidewater_protocol::message::Control;

use super::download_parts::DownloadParts;
use super::error::SyncError;
use super::kept_frames::BROKEN_SPOOL;
use super::progress::{SyncPhase, SyncProgress};
use crate::database::Applier;
use crate::spool::Spool;

/// How much of the spool one step applies.
const STEP_BYTES: usize = 256 << 10;

/// Feeds an applier.
#[derive(Debug, Default)]
pub(super) struct ApplierFeed {
    /// Rows since the result or download began, or was gone on with.
    rows: u64,
    /// The subscription of whose download it reads the part, see [`super::download_parts`].
    part: Option<usize>,
    /// What was read and is not applied yet.
    buffer: BytesMut,
    /// The same of the spool, while it reads a part.
    waiting: BytesMut,
}

impl ApplierFeed {
    /// Applies a piece of rows.
    pub(super) fn apply_rows(
        &mut self,
        applier: &mut Applier,
        bytes: &[u8],
        progress: &mut SyncProgress,
    ) -> Result<(), SyncError> {
        let rows = applier.rows(bytes)?;
        self.rows += rows;
        progress.rows += rows;
        Ok(())
    }

    /// Applies a message.
    pub(super) fn apply_control(
        &mut self,
        applier: &mut Applier,
        control: &Control,
        phase: SyncPhase,
        progress: &mut SyncProgress,
    ) -> Result<(), SyncError> {
        match control {
            Control::ResultBegin(begin) => {
                self.rows = 0;
                applier.result_begin(begin.subscription as usize)?;
            }
            Control::ResultEnd(end) => {
                if end.compare {
                    applier.make_compare_due()?;
                }
                applier.result_end()?;
            }
            Control::DownloadBegin(begin) => {
                self.rows = 0;
                applier.take_refused_terms(begin)?;
                applier.download_begin(begin.subscription as usize, begin.scope_changed)?;
                if begin.verify {
                    applier.make_verify_due()?;
                }
            }
            Control::TableBegin(begin) => {
                progress.enter_table(phase, &begin.table, begin.expected_rows);
                applier.table_begin(begin)?;
            }
            Control::DownloadEnd(end) => {
                let announced = end.upserts.checked_add(end.removals);
                if announced != Some(self.rows) {
                    return Err(SyncError::checksum(format!(
                        "it announced {} rows and {} removals, but {} came",
                        end.upserts, end.removals, self.rows
                    )));
                }
                applier.download_end(&end.checkpoint)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Applies the next step of the spool, and of the parts of downloads where they belong; false
    /// at its end.
    pub(super) fn step(
        &mut self,
        spool: &mut dyn Spool,
        parts: &mut DownloadParts,
        applier: &mut Applier,
        progress: &mut SyncProgress,
    ) -> Result<bool, SyncError> {
        if let Some(index) = self.part {
            let part = parts.part(index).ok_or(BROKEN_SPOOL)?;
            if !self.read(&mut *part.spool, applier, progress)? {
                self.part = None;
                std::mem::swap(&mut self.buffer, &mut self.waiting);
            }
            return Ok(true);
        }
        let more = self.read(spool, applier, progress)?;
        if let Some(index) = self.part.filter(|_| more) {
            match parts.part(index) {
                None => self.part = None,
                Some(part) => {
                    part.rewind()?;
                    std::mem::swap(&mut self.buffer, &mut self.waiting);
                }
            }
        }
        Ok(more)
    }

    /// Applies what a spool has next; false at its end. Stops where a part belongs.
    fn read(
        &mut self,
        spool: &mut dyn Spool,
        applier: &mut Applier,
        progress: &mut SyncProgress,
    ) -> Result<bool, SyncError> {
        let mut applied = 0;
        while applied < STEP_BYTES {
            let before = self.buffer.len();
            while let Some(frame) = take_frame(&mut self.buffer)? {
                match frame {
                    Frame::Rows { bytes, .. } => self.apply_rows(applier, &bytes, progress)?,
                    Frame::Message { .. } => return Err(BROKEN_SPOOL),
                    Frame::Control { control, .. } => {
                        let control = control.ok_or(BROKEN_SPOOL)?;
                        if let (Control::DownloadBegin(_), Some(_)) = (&control, self.part) {
                            // What counts is what the last sync brought.
                            self.rows = 0;
                            applier.download_goes_on()?;
                            continue;
                        }
                        self.apply_control(applier, &control, SyncPhase::Applying, progress)?;
                        if let Control::DownloadBegin(begin) = &control {
                            self.part = Some(begin.subscription as usize);
                            return Ok(true);
                        }
                    }
                }
            }
            applied += before - self.buffer.len();
            debug_assert!(self.buffer.len() < HEADER_BYTES + MAX_PAYLOAD_BYTES);
            let at = self.buffer.len();
            self.buffer.resize(at + STEP_BYTES, 0);
            let count = spool
                .read(&mut self.buffer[at..])
                .map_err(SyncError::Spool)?;
            self.buffer.truncate(at + count);
            if count == 0 {
                return match self.buffer.is_empty() {
                    true => Ok(false),
                    false => Err(BROKEN_SPOOL),
                };
            }
        }
        Ok(true)
    }
}
