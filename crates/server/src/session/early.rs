//! Handing a large upload to a worker before all of it has arrived: when that is worth it,
//! and what comes of it. The rows themselves are [`super::upload`]'s affair, and nothing
//! takes effect before that has found the upload complete and undamaged.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use tidewater_consolidated::{Arrival, UploadOutcome, arriving};
use tidewater_protocol::frame::INITIAL_CREDIT_BYTES;

use super::reply::Watch;
use super::sign_in::answered;
use super::upload::{ReceivedUpload, Receiver};
use super::{Opened, Sync};
use crate::auth::guests::Standing;
use crate::fault::Fault;
use crate::worker::{ArrivingTask, SessionTask, Ticket, UploadTask};

/// So much is there before anybody asks how fast the rest will come.
const FIRST_BYTES: u64 = 2 << 20;
/// A database that takes rows as fast as any does: a slower one waits less for the network.
const APPLIED_BYTES_PER_SECOND: f64 = 64.0 * 1024.0 * 1024.0;
/// What a worker may have to wait for an upload that keeps its pace.
const SLACK: Duration = Duration::from_millis(100);

/// How fast an upload arrives.
#[derive(Default)]
pub(super) struct Pace {
    /// When what a remote may send unasked was there, and how much that was: it says
    /// nothing about the network, because it may have waited for us.
    first: Option<(Instant, u64)>,
}

impl Pace {
    /// Whether a worker that begins now will hardly have to wait for rows: the rest is here
    /// about when everything before it is applied.
    fn is_fast(&mut self, now: Instant, arrived: u64, announced: u64, least: u64) -> bool {
        if arrived < least.min(INITIAL_CREDIT_BYTES) {
            return false;
        }
        let (since, before) = *self.first.get_or_insert((now, arrived));
        if arrived < least.min(FIRST_BYTES) {
            return false;
        }
        let (elapsed, came) = ((now - since).as_secs_f64(), (arrived - before) as f64);
        let missing = announced.saturating_sub(arrived) as f64;
        let applied = announced as f64 / APPLIED_BYTES_PER_SECOND + SLACK.as_secs_f64();
        elapsed * missing <= applied * came
    }
}

/// An upload that a worker has while it arrives.
pub(super) struct Early {
    answer: oneshot::Receiver<Option<UploadOutcome>>,
    ticket: Ticket,
}

impl Sync<'_> {
    /// Hands the upload that arrives to a worker, if that is worth it now.
    pub(super) fn hand_over(
        &self,
        opened: &Opened,
        receiver: &mut Receiver<'_>,
        pace: &mut Pace,
    ) -> Option<Early> {
        let lane = &self.server.workers.uploads;
        if !self.server.workers.apply_arriving {
            return None;
        }
        let under_way = receiver.goes_alone()?;
        let least = self.server.limits.early_upload_bytes;
        if under_way.announced_bytes < least
            || !pace.is_fast(
                Instant::now(),
                under_way.arrived_bytes,
                under_way.announced_bytes,
                least,
            )
            || !lane.is_idle()
        {
            return None;
        }
        let mut head = opened.job(ReceivedUpload {
            subscription: under_way.subscription,
            given_back: false,
            unknown_history: false,
            tables: Vec::new(),
        });
        head.now_ms = self.server.environment.clock.now_ms();
        let (arrival, upload) = arriving(head);
        let reservation = receiver.hand_over(arrival);
        let (reply, answer) = oneshot::channel();
        let ticket = lane.submit(UploadTask::Arriving(ArrivingTask {
            upload,
            reservation,
            reply,
        }));
        Some(Early { answer, ticket })
    }

    /// Tells the worker that has the upload that it is complete, unless the remote was shut
    /// out meanwhile, and waits for what comes of it. `None`: nothing of it is applied.
    pub(super) async fn conclude_early(
        &self,
        opened: &Opened,
        standing: Standing,
        arrival: Arrival,
        early: Early,
    ) -> Result<Option<UploadOutcome>, Fault> {
        if !standing.is_certain() {
            let (reply, answer) = oneshot::channel();
            let remotes = vec![opened.remote_id];
            let sessions = &self.server.workers.sessions;
            sessions.submit(SessionTask::ShutOut { remotes, reply });
            if let Some((_, reason)) = answered(answer).await?.first() {
                return Err(Fault::shut_out(*reason));
            }
        }
        arrival.complete();
        let mut watch = Watch::new(self.link, self.server.limits.waiting);
        let mut answer = early.answer;
        loop {
            tokio::select! {
                biased;
                // A worker that dropped it has failed, and so has its transaction.
                outcome = &mut answer => return Ok(outcome.unwrap_or(None)),
                fault = watch.interrupted() => return Err(fault),
                () = watch.tick() => {
                    watch.waiting(self.server.workers.uploads.ahead(early.ticket))?;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// When an upload of 64 MiB is handed over that comes at this rate, in MiB.
    fn handed_over_at(mib_per_second: f64) -> Option<u64> {
        let start = Instant::now();
        let mut pace = Pace::default();
        (1..=64).find(|&mib| {
            let now = start + Duration::from_secs_f64(mib as f64 / mib_per_second);
            pace.is_fast(now, mib * MIB, 64 * MIB, 8 * MIB)
        })
    }

    #[test]
    fn the_slower_an_upload_arrives_the_later_it_is_handed_over() {
        assert_eq!(handed_over_at(1_000.0), Some(2));
        assert_eq!(handed_over_at(64.0), Some(2));
        // The rest of 11 MiB takes as long as a database takes for all 64.
        assert_eq!(handed_over_at(10.0), Some(53));
        assert_eq!(handed_over_at(0.1), Some(64));
    }

    #[test]
    fn what_came_before_the_clock_ran_does_not_count() {
        let start = Instant::now();
        let mut pace = Pace::default();
        assert!(!pace.is_fast(start, MIB, 64 * MIB, 8 * MIB));
        let later = start + Duration::from_secs(1);
        assert!(!pace.is_fast(later, 2 * MIB, 64 * MIB, 8 * MIB));
    }

    #[test]
    fn a_small_upload_that_may_go_early_goes_at_once() {
        let mut pace = Pace::default();
        assert!(pace.is_fast(Instant::now(), 10, 100, 1));
    }
}
