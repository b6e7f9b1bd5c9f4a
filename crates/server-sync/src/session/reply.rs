//! What a sync answers: results and downloads, sent as they come out of the spool.

use std::time::Duration;

use bytes::Bytes;
use tidewater_connection::ChannelInput;
use tokio::time::{Instant, sleep_until};

use tidewater_centre::UploadResult;
use tidewater_protocol::message::{
    Control, DownloadBegin, DownloadEnd, DownloadMark, ResultBegin, ResultEnd, SyncWaiting,
};

use super::{OpenedSync, Sync};
use tidewater_server_jobs::fair_queue::Ticket;
use tidewater_server_jobs::fault::Fault;
use tidewater_server_jobs::metrics::Phase;
use tidewater_server_jobs::spool::{SpoolItem, SpoolReader};
use tidewater_server_live::socket_loop::ConnectionChannel;

/// Keeps an eye on the remote while the server works for it.
pub(crate) struct Watch<'a> {
    channel: ConnectionChannel<'a>,
    every: Duration,
    next: Instant,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(channel: ConnectionChannel<'a>, every: Duration) -> Watch<'a> {
        Watch {
            channel,
            every,
            next: Instant::now() + every,
        }
    }

    /// Ends only when the remote gives up, goes away, or says something that it
    /// must not say now. Safe to drop.
    pub(crate) async fn interrupted(&self) -> Fault {
        match self.channel.incoming_without_flush().await {
            Ok(ChannelInput::Control(Control::Cancel(_))) => Fault::cancelled(),
            Ok(ChannelInput::Control(Control::Failure(_))) => Fault::gone(),
            Err(fault) => fault,
            Ok(_) => Fault::unexpected("a message after the request for the download"),
        }
    }

    /// Time to let the remote know that the server is alive. Safe to drop.
    pub(crate) async fn tick(&self) {
        sleep_until(self.next).await;
    }

    /// Tells it how many syncs are before its own.
    pub(crate) fn waiting(&mut self, ahead: u64) -> Result<(), Fault> {
        self.tell(SyncWaiting {
            ahead,
            handler: false,
        })
    }

    /// Tells it that a handler has been asked.
    pub(crate) fn waiting_for_handler(&mut self) -> Result<(), Fault> {
        self.tell(SyncWaiting {
            ahead: 0,
            handler: true,
        })
    }

    fn tell(&mut self, waiting: SyncWaiting) -> Result<(), Fault> {
        self.next = Instant::now() + self.every;
        self.channel.send(Control::Waiting(waiting))?;
        self.channel.flush();
        Ok(())
    }
}

/// Sends the results of uploads, in the order of the subscriptions.
pub(crate) async fn send_results(
    sync: &Sync<'_>,
    opened: &OpenedSync,
    mut results: Vec<(usize, UploadResult)>,
    upload_only: bool,
) -> Result<(), Fault> {
    results.sort_by_key(|(index, _)| *index);
    for (index, result) in results {
        let subscription = &opened.subscriptions[index];
        // A download takes away what was lost of gained partitions; its checkpoint names the
        // others. Where none follows, nobody would know of them at the next one.
        let is_told_later = !result.gained.is_empty() || !result.asked.is_empty();
        let compare = upload_only && is_told_later
            || result.is_of_another_scope(subscription.own_checkpoint());
        sync.channel.send(Control::ResultBegin(ResultBegin {
            subscription: index as u32,
            sequence: subscription.sequence,
            upload_id: subscription.upload_id().to_vec(),
        }))?;
        let mut checksum = crc32fast::Hasher::new();
        for table in result.tables {
            sync.channel.send(Control::TableBegin(table.begin))?;
            checksum.update(&table.rows);
            send_rows(sync, table.rows.into()).await?;
        }
        sync.channel.send(Control::ResultEnd(ResultEnd {
            inserts: result.inserts,
            updates: result.updates,
            deletes: result.deletes,
            conflicts: result.conflicts,
            refused: result.refused,
            checksum: checksum.finalize(),
            compare,
        }))?;
    }
    Ok(())
}

/// Sends rows; meanwhile the remote may give up.
async fn send_rows(sync: &Sync<'_>, rows: Bytes) -> Result<(), Fault> {
    let watch = Watch::new(sync.channel, sync.service.limits.waiting);
    tokio::select! {
        biased;
        result = sync.channel.send_rows(rows, sync.service.limits.idle) => result,
        fault = watch.interrupted() => Err(fault),
    }
}

/// Sends results and downloads as a worker produces them.
pub(crate) async fn send_all(
    sync: &mut Sync<'_>,
    opened: &OpenedSync,
    results: Vec<(usize, UploadResult)>,
    upload_only: bool,
    mut spool: SpoolReader,
    ticket: Ticket,
) -> Result<(), Fault> {
    let mut watch = Watch::new(sync.channel, sync.service.limits.waiting);
    let mut checksum = crc32fast::Hasher::new();
    // `Waiting` may only come before the results, and stored results are the first
    // thing to come out of the spool.
    let mut results = Some(results);
    let mut sending = None;
    // Goes out with whatever follows it.
    let mut begun: Option<DownloadBegin> = None;
    loop {
        let item = spool
            .try_next()
            .map_err(|error| Fault::internal(format!("a spool cannot be read: {error}")))?;
        let Some(item) = item else {
            tokio::select! {
                biased;
                () = spool.ready() => {}
                fault = watch.interrupted() => return Err(fault),
                () = watch.tick(), if results.is_some() => {
                    watch.waiting(sync.service.lanes.downloads.ahead(ticket))?;
                }
            }
            continue;
        };
        sending.get_or_insert_with(|| sync.service.metrics.timer(Phase::Send));
        if let SpoolItem::Stored(index, result) = item {
            results.get_or_insert_default().push((index, result));
            continue;
        }
        if let (false, Some(results)) = (is_failure(&item), results.take()) {
            Box::pin(send_results(sync, opened, results, upload_only)).await?;
        }
        if !matches!(item, SpoolItem::Settled(_))
            && let Some(begin) = begun.take()
        {
            sync.channel.send(Control::DownloadBegin(begin))?;
        }
        match item {
            SpoolItem::Stored(..) => {}
            SpoolItem::Begin(index, start) => {
                let start = *start;
                checksum = crc32fast::Hasher::new();
                let name = opened.subscriptions.get(index);
                let name = name.map_or("", |it| &it.published.schema.name);
                begun = Some(DownloadBegin {
                    subscription: index as u32,
                    scope_changed: start.scope_changed,
                    settled: Vec::new(),
                    settled_after: 0,
                    deployment: opened.served.number(),
                    keeps_refused: opened.served.keeps_refused(name),
                    verify: opened.wants_verified(index),
                    checkpoint: opened.signed(index, start.checkpoint),
                    resumed: start.resumed,
                    uncompared: start.uncompared,
                });
            }
            SpoolItem::Settled(told) => {
                if let Some(begin) = &mut begun {
                    begin.settled = told.rows;
                    begin.settled_after = told.after;
                }
            }
            SpoolItem::Table(begin) => sync.channel.send(Control::TableBegin(begin))?,
            SpoolItem::Rows(rows) => {
                checksum.update(&rows);
                Box::pin(send_rows(sync, rows)).await?;
            }
            SpoolItem::Mark(mark, rows) => {
                sync.channel.send(Control::DownloadMark(DownloadMark {
                    mark,
                    rows,
                    checksum: checksum.clone().finalize(),
                }))?
            }
            SpoolItem::Holds(index, holding) => {
                if let Some(subscription) = opened.subscriptions.get(index) {
                    let name = subscription.published.schema.name.clone();
                    sync.held.push((name, holding));
                }
            }
            SpoolItem::End(index, outcome) => {
                sync.record.downloaded[0] += outcome.upserts;
                sync.record.downloaded[1] += outcome.removals;
                sync.channel.send(Control::DownloadEnd(DownloadEnd {
                    checkpoint: opened.signed(index, outcome.checkpoint),
                    upserts: outcome.upserts,
                    removals: outcome.removals,
                    checksum: checksum.clone().finalize(),
                }))?;
            }
            SpoolItem::Finished(result) => return Ok(result?),
        }
    }
}

fn is_failure(item: &SpoolItem) -> bool {
    matches!(item, SpoolItem::Finished(Err(_)))
}
