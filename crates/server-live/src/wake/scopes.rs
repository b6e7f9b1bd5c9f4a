//! Live remotes whose users hold other partitions than they did.
//!
//! When something was written that partition queries read, the queries are asked for each live
//! remote, and those are told whose partitions differ. That costs a query for each, so it goes on
//! in batches, with pauses between them as long as a few of them: the workers that answer are
//! mostly there for others, however often such tables are written to. Writes in between are
//! answered by the next round.

use std::sync::Arc;

use tokio::time::{Duration, Instant, sleep};

use tidewater_centre::{HoldingRequest, RemoteHolding};
use tidewater_server_jobs::lanes::WorkerLanes;

use super::{State, Status, Wakes};

/// So many remotes are asked about at once: others wait behind it.
const ASKED_AT_ONCE: usize = 16;

/// A pause is so many times as long as the batch before it took.
const PAUSES: u32 = 3;

/// How long after a batch without an answer the next one follows.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// A remote that is asked about.
struct PartitionQuestion {
    /// The number of its connection.
    number: u64,
    /// When the download began that has brought what it holds.
    since: Instant,
    holding: HoldingRequest,
}

/// Asks who holds other partitions, whenever somebody may, as long as the server runs.
pub async fn ask_scopes(wakes: Arc<Wakes>, lanes: Arc<WorkerLanes>) {
    loop {
        let asked = wakes.state().to_ask();
        if asked.is_empty() {
            wakes.scopes.notified().await;
            continue;
        }
        let at = Instant::now();
        let holdings: Vec<HoldingRequest> = asked.iter().map(|it| it.holding.clone()).collect();
        let answers = lanes
            .sessions
            .ask(holdings, |worker, asked| worker.holdings_now(asked.clone()));
        match answers.await {
            Ok(answers) => {
                wakes.state().answered(at, &asked, answers);
                sleep(at.elapsed() * PAUSES).await;
            }
            Err(fault) => {
                let detail = &fault.detail;
                tracing::debug!(%fault, detail, "who holds other partitions is not known");
                sleep(ASK_AGAIN_AFTER).await;
            }
        }
    }
}

impl State {
    /// The next remotes to ask about: those that have not synced, nor were asked about, since
    /// something was written that partition queries read. Who is told or syncs, learns it by that.
    fn to_ask(&self) -> Vec<PartitionQuestion> {
        let Some(written) = self.scopes_written else {
            return Vec::new();
        };
        let remotes = self.remotes.iter().filter(|(_, remote)| {
            let is_old = remote.since < written && remote.asked.is_none_or(|at| at < written);
            is_old && remote.post.is_some() && remote.status == Status::Quiet
        });
        let asked = remotes.filter_map(|(number, remote)| {
            let publications = remote.held.iter().map(|it| it.publication.clone());
            Some(PartitionQuestion {
                number: *number,
                since: remote.since,
                holding: HoldingRequest {
                    context: remote.context.clone()?,
                    publications: publications.collect(),
                },
            })
        });
        asked.take(ASKED_AT_ONCE).collect()
    }

    /// Tells those who hold others than they did. `at`: before they were asked about.
    fn answered(
        &mut self,
        at: Instant,
        asked: &[PartitionQuestion],
        answers: Vec<Option<Vec<RemoteHolding>>>,
    ) {
        for (asked, answer) in asked.iter().zip(answers) {
            let remote = self.remotes.get_mut(&asked.number);
            // Who was told meanwhile, or syncs, learns it by that.
            let is_same = |it: &&mut super::WatchedRemote| {
                it.since == asked.since && it.status == Status::Quiet
            };
            let Some(remote) = remote.filter(is_same) else {
                continue;
            };
            remote.asked = Some(at);
            let Some(holdings) = answer else {
                continue;
            };
            for (place, held) in remote.held.iter_mut().enumerate() {
                held.touched |= holdings.get(place) != Some(&held.holding);
            }
            if remote.held.iter().any(|it| it.touched) {
                self.queue(asked.number);
            }
        }
        self.tell();
    }
}
