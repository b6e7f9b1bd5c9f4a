//! What is logged and recorded of a sync that has ended.

use tokio::time::Instant;

use super::{Before, Sync};
use tidewater_server_jobs::fault::Fault;

impl Sync<'_> {
    /// Logs and records the sync; gives the bytes that the connection has taken by then.
    pub(crate) fn conclude(mut self, result: &Result<Before, Fault>) -> [u64; 2] {
        let [received, sent] = self.channel.bytes();
        let counted = [received, sent + self.channel.unsent_bytes()];
        let [received_before, sent_before] = self.bytes_before;
        self.record.bytes = [counted[0] - received_before, counted[1] - sent_before];
        let now = Instant::now();
        self.record.duration_ms =
            u64::try_from((now - self.started).as_millis()).unwrap_or(u64::MAX);
        if let Err(fault) = result {
            self.record.error = fault.code.name().to_owned();
        }
        self.log(result);
        self.tell_end();
        self.service.metrics.sync(result, &self.record);
        if self.counts {
            self.service.admission.completed(now);
            self.service.lanes.record(self.record);
        }
        counted
    }

    fn log(&self, result: &Result<Before, Fault>) {
        let record = &self.record;
        let remote = record.remote_id.map(|id| id.to_string());
        macro_rules! line {
            ($level:ident, $message:literal $(, $($field:tt)*)?) => {
                tracing::$level!(
                    remote = remote.as_deref().unwrap_or(""),
                    device = self.guest.device_name,
                    user = record.user,
                    publications = record.publications,
                    peer = self.guest.peer,
                    client = self.guest.client,
                    inserts = record.uploaded[0],
                    updates = record.uploaded[1],
                    deletes = record.uploaded[2],
                    conflicts = record.conflicts,
                    refused = record.refused,
                    upserts = record.downloaded[0],
                    removals = record.downloaded[1],
                    bytes_received = record.bytes[0],
                    bytes_sent = record.bytes[1],
                    duration_ms = record.duration_ms,
                    $($($field)*,)?
                    $message
                )
            };
        }
        match result {
            Ok(_) => line!(info, "sync"),
            Err(fault) if fault.detail.is_empty() => {
                line!(warn, "sync failed", code = record.error, error = %fault)
            }
            Err(fault) => {
                line!(error, "sync failed", code = record.error, error = %fault, detail = fault.detail)
            }
        }
    }
}
