//! Remotes that are not connected, and have something to fetch.
//!
//! What a remote held when it left is kept in memory, and matched with what is touched as for those
//! that are live. A server knows only those that have synced with it since it was started, and
//! forgets them when they have not come for long: who sends something to a device that sleeps cannot
//! promise more, and devices sync now and then by themselves.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use tidewater_centre::{Caller, Interest};
use tidewater_protocol::RemoteId;

use super::wake_request::{WakeTarget, post};
use super::{HeldPublication, Wakes};
use tidewater_server_config::WakeConfig;

/// Who has not come for so long is not woken any more.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(30 * 86_400);

/// How often that is looked at.
const SWEEP_EVERY: Duration = Duration::from_secs(3_600);

/// What comes within so long goes in one request, up to so many remotes.
const BATCH: Duration = Duration::from_secs(1);
const TOGETHER: usize = 1_000;

/// The first pause after a request that came to nothing, and the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// Those that have left.
pub(crate) struct AbsentRemotes {
    remotes: HashMap<RemoteId, Absent>,
    index: HashMap<Interest, HashSet<RemoteId>>,
    queues: Vec<Queue>,
    swept: Instant,
}

/// What one `[[wake]]` has to tell.
struct Queue {
    publications: Option<Vec<String>>,
    remotes: BTreeSet<RemoteId>,
    ready: Arc<Notify>,
}

struct Absent {
    user: String,
    held: Vec<HeldPublication>,
    since: Instant,
    /// Connections of it that are there.
    present: usize,
}

impl Queue {
    fn is_for(&self, held: &HeldPublication) -> bool {
        let publications = self.publications.as_ref();
        held.touched && publications.is_none_or(|it| it.contains(&held.publication))
    }
}

impl AbsentRemotes {
    pub(crate) fn new(configs: &[WakeConfig]) -> AbsentRemotes {
        let queues = configs.iter().map(|it| Queue {
            publications: it.publications.clone(),
            remotes: BTreeSet::new(),
            ready: Arc::default(),
        });
        AbsentRemotes {
            remotes: HashMap::new(),
            index: HashMap::new(),
            queues: queues.collect(),
            swept: Instant::now(),
        }
    }

    /// Whether anybody is woken.
    pub(crate) fn is_on(&self) -> bool {
        !self.queues.is_empty()
    }

    pub(crate) fn arrived(&mut self, id: RemoteId) {
        if let Some(absent) = self.remotes.get_mut(&id) {
            absent.present += 1;
        }
    }

    /// One of its connections is gone, over which it has perhaps fetched what it holds.
    pub(crate) fn left(
        &mut self,
        id: RemoteId,
        who: &Caller,
        mut held: Vec<HeldPublication>,
        since: Instant,
    ) {
        let present = self.remotes.get(&id).map_or(0, |it| it.present);
        let present = present.saturating_sub(1);
        if held.is_empty() {
            if let Some(absent) = self.remotes.get_mut(&id) {
                absent.present = present;
            }
        } else {
            self.forget(id);
            // What it was told of while it was there, it may not have fetched.
            held.iter_mut().for_each(|it| it.touched = false);
            for interest in held.iter().flat_map(|it| it.holding.interests()) {
                self.index.entry(interest).or_default().insert(id);
            }
            let absent = Absent {
                user: who.user.clone(),
                held,
                since,
                present,
            };
            self.remotes.insert(id, absent);
        }
        self.queues.iter().for_each(|it| it.ready.notify_one());
    }

    fn forget(&mut self, id: RemoteId) {
        let Some(absent) = self.remotes.remove(&id) else {
            return;
        };
        for interest in absent.held.iter().flat_map(|it| it.holding.interests()) {
            if let Some(ids) = self.index.get_mut(&interest) {
                ids.remove(&id);
                if ids.is_empty() {
                    self.index.remove(&interest);
                }
            }
        }
        for queue in &mut self.queues {
            queue.remotes.remove(&id);
        }
    }

    /// Something was touched after the downloads that began before `at`; `None`: anything may have
    /// been.
    pub(crate) fn touched(&mut self, touched: Option<&BTreeSet<Interest>>, at: Instant) {
        let ids: HashSet<RemoteId> = match touched {
            None => self.remotes.keys().copied().collect(),
            Some(touched) => {
                let of = touched.iter().filter_map(|it| self.index.get(it));
                of.flatten().copied().collect()
            }
        };
        ids.into_iter().for_each(|id| self.touch(id, touched, at));
    }

    /// The same for one.
    pub(crate) fn touch(
        &mut self,
        id: RemoteId,
        touched: Option<&BTreeSet<Interest>>,
        at: Instant,
    ) {
        let Some(absent) = self.remotes.get_mut(&id).filter(|it| it.since < at) else {
            return;
        };
        let mut is_news = false;
        for held in absent.held.iter_mut().filter(|it| !it.touched) {
            let is = |touched: &BTreeSet<Interest>| {
                let interests = held.holding.interests();
                interests.iter().any(|it| touched.contains(it))
            };
            held.touched = touched.is_none_or(is);
            is_news |= held.touched;
        }
        if is_news {
            for queue in &mut self.queues {
                if absent.held.iter().any(|it| queue.is_for(it)) && queue.remotes.insert(id) {
                    queue.ready.notify_one();
                }
            }
        }
    }

    pub(crate) fn sweep(&mut self, now: Instant) {
        if now - self.swept < SWEEP_EVERY {
            return;
        }
        self.swept = now;
        let old = self.remotes.iter();
        let old = old.filter(|(_, it)| it.present == 0 && now - it.since > FORGOTTEN_AFTER);
        let old: Vec<RemoteId> = old.map(|(id, _)| *id).collect();
        old.into_iter().for_each(|id| self.forget(id));
    }

    /// Those of a queue that are not connected, and since when they hold what they do.
    fn due(&self, number: usize) -> Vec<(RemoteId, Instant)> {
        let due = self.queues[number].remotes.iter().filter_map(|id| {
            let absent = self.remotes.get(id).filter(|it| it.present == 0)?;
            Some((*id, absent.since))
        });
        due.take(TOGETHER).collect()
    }

    fn body(&self, number: usize, due: &[(RemoteId, Instant)]) -> String {
        let remotes = due.iter().filter_map(|(id, _)| {
            let absent = self.remotes.get(id)?;
            let touched = absent.held.iter();
            let touched = touched.filter(|it| self.queues[number].is_for(it));
            let touched: Vec<&str> = touched.map(|it| it.publication.as_str()).collect();
            Some(json!({
                "remote_id": id.to_string(),
                "user": absent.user,
                "publications": touched,
            }))
        });
        json!({ "remotes": remotes.collect::<Vec<_>>() }).to_string()
    }

    /// They were told; who has come and gone meanwhile may have something new.
    fn told(&mut self, number: usize, due: &[(RemoteId, Instant)]) {
        for (id, since) in due {
            if self.remotes.get(id).is_some_and(|it| it.since == *since) {
                self.queues[number].remotes.remove(id);
            }
        }
    }
}

/// Tells an address of the operator's who is to be woken, as long as the server runs.
pub async fn tell(wakes: Arc<Wakes>, number: usize, target: WakeTarget) {
    let ready = wakes.state().away.queues[number].ready.clone();
    let mut pause = FIRST_PAUSE;
    loop {
        let (due, body) = {
            let away = &wakes.state().away;
            let due = away.due(number);
            let body = away.body(number, &due);
            (due, body)
        };
        if due.is_empty() {
            ready.notified().await;
            // Others follow it.
            sleep(BATCH).await;
            continue;
        }
        match post(&target, &body).await {
            Ok(()) => {
                pause = FIRST_PAUSE;
                wakes.state().away.told(number, &due);
            }
            Err(error) => {
                if pause == FIRST_PAUSE {
                    let url = target.url();
                    tracing::warn!(%error, url, "nobody can be woken: it is tried again");
                }
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}
