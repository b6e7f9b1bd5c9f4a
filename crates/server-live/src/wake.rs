//! Who is told to sync when something was committed.
//!
//! What is committed is followed in the centre's change logs, whoever has committed it, as long as
//! somebody is *live*: connected, and waiting to be told. What was touched is matched with what
//! live remotes hold, and each is told once, until it has synced. Not all at once: so many are told
//! as have not come back yet, and whenever one has synced, the next is told. So a crowd comes at the
//! pace at which it is served.

mod away;
mod scopes;
mod wake_request;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use tidewater_centre::{Caller, Centre, Interest, RemoteHolding, SyncContext};
use tidewater_protocol::RemoteId;
use tidewater_protocol::message::{Argument, ArgumentValue, Call};

use self::away::AbsentRemotes;
pub use self::away::tell;
pub use self::scopes::ask_scopes;
pub use self::wake_request::WakeTarget;
use crate::outgoing_calls::OutgoingCalls;
use tidewater_server_config::WakeConfig;
use tidewater_server_jobs::signal::Signal;

/// How often it is looked for commits.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The same, as long as nobody is live.
const LOOK_SELDOM: Duration = Duration::from_secs(1);

/// How long after a look that failed the next one follows.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// So many remotes are told that have not synced since.
const TOLD: usize = 64;

/// Whoever has not come by then is not waited for: its place is another one's.
const COMES_WITHIN: Duration = Duration::from_secs(10);

/// What was touched is remembered for so long: longer than most syncs take.
const REMEMBERED: Duration = Duration::from_secs(60);

/// And so much of it.
const REMEMBERED_LOOKS: usize = 1_200;

/// How long a sync waits for a look that it asked for.
const LOOK_PATIENCE: Duration = Duration::from_millis(200);

/// The live remotes of a server.
pub struct Wakes {
    state: Mutex<State>,
    /// Somebody is live, or asks for a look.
    ask: Notify,
    /// Looks that were asked for, and up to which one they are done.
    asked: AtomicU64,
    looked: Signal<u64>,
    /// Somebody may hold other partitions.
    scopes: Notify,
}

struct State {
    /// By the number of their connections.
    remotes: BTreeMap<u64, WatchedRemote>,
    live: usize,
    index: HashMap<Interest, Vec<u64>>,
    queue: VecDeque<u64>,
    told: usize,
    /// When looks had returned, and what they had found.
    recent: VecDeque<(Instant, Arc<BTreeSet<Interest>>)>,
    /// What was touched before is not remembered.
    forgotten: Option<Instant>,
    /// When the last look had returned that found something written which partition queries read.
    scopes_written: Option<Instant>,
    /// Those that are not connected.
    away: AbsentRemotes,
}

/// A connected remote that has synced.
struct WatchedRemote {
    /// Where it is told, if it is live.
    post: Option<Arc<OutgoingCalls>>,
    held: Vec<HeldPublication>,
    /// When the download began that has brought what it holds.
    since: Instant,
    /// For whom that download was read.
    context: Option<Arc<SyncContext>>,
    /// When it was asked what it holds by then, if it was after that.
    asked: Option<Instant>,
    status: Status,
    /// It is one of those who were told and have not synced yet.
    placed: bool,
}

struct HeldPublication {
    publication: String,
    holding: RemoteHolding,
    /// In order; only of live ones.
    interests: Vec<Interest>,
    /// Something of it was touched since it was told.
    touched: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Status {
    Quiet,
    Queued,
    Told(Instant),
    Syncing,
}

impl Wakes {
    /// Those that are not connected are told of by these.
    pub fn new(configs: &[WakeConfig]) -> Wakes {
        let state = State {
            remotes: BTreeMap::new(),
            live: 0,
            index: HashMap::new(),
            queue: VecDeque::new(),
            told: 0,
            recent: VecDeque::new(),
            forgotten: None,
            scopes_written: None,
            away: AbsentRemotes::new(configs),
        };
        Wakes {
            state: Mutex::new(state),
            ask: Notify::new(),
            asked: AtomicU64::new(0),
            looked: Signal::new(0),
            scopes: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A remote is live from now on.
    pub fn enter(&self, number: u64, post: &Arc<OutgoingCalls>) {
        let mut state = self.state();
        let remote = state
            .remotes
            .entry(number)
            .or_insert_with(WatchedRemote::new);
        if remote.post.replace(post.clone()).is_none() {
            state.live += 1;
            state.watch(number);
            // What was touched between its download and now, nobody tells it otherwise.
            state.tell();
        }
        drop(state);
        self.ask.notify_one();
    }

    /// Somebody has connected.
    pub fn arrive(&self, who: &Caller) {
        if let Some(id) = who.remote_id {
            self.state().away.arrived(id);
        }
    }

    /// A connection is gone.
    pub fn leave(&self, number: u64, who: &Caller) {
        let mut state = self.state();
        state.unwatch(number);
        let remote = state.remotes.remove(&number);
        if let Some(remote) = &remote {
            state.live -= usize::from(remote.post.is_some());
            state.told -= usize::from(remote.placed);
        }
        state.tell();
        if let Some(id) = who.remote_id.filter(|_| state.away.is_on()) {
            let (held, since) =
                remote.map_or((Vec::new(), Instant::now()), |it| (it.held, it.since));
            state.left(id, who, held, since);
        }
    }

    /// A remote syncs.
    pub fn syncing(&self, number: u64) {
        let mut state = self.state();
        if let Some(remote) = state.remotes.get_mut(&number) {
            // If it has a place, that stays taken until the sync is done.
            remote.status = Status::Syncing;
            remote.held.iter_mut().for_each(|it| it.touched = false);
        }
    }

    /// A remote has synced, or has failed to. `held`: what it holds now, by publication, as of a
    /// download that began after `since` and was read for `context`.
    pub fn synced(
        &self,
        number: u64,
        held: Vec<(String, RemoteHolding)>,
        since: Instant,
        context: Option<Arc<SyncContext>>,
    ) {
        let mut state = self.state();
        let is_new = !state.remotes.contains_key(&number);
        if is_new && held.is_empty() {
            return;
        }
        let remote = state
            .remotes
            .entry(number)
            .or_insert_with(WatchedRemote::new);
        remote.status = Status::Quiet;
        let left = std::mem::take(&mut remote.placed);
        let is_live = remote.post.is_some();
        if !held.is_empty() {
            state.unwatch(number);
            let held = held
                .into_iter()
                .map(|(publication, holding)| HeldPublication {
                    publication,
                    holding,
                    interests: Vec::new(),
                    touched: false,
                });
            if let Some(remote) = state.remotes.get_mut(&number) {
                remote.held = held.collect();
                remote.since = since;
                remote.context = context;
                remote.asked = None;
            }
            if is_live {
                state.watch(number);
            }
        }
        state.told -= usize::from(left);
        state.tell();
        drop(state);
        self.scopes.notify_one();
    }

    /// Whether what a remote uploads is looked at before its download, so that it is not told of it.
    pub fn awaits_look(&self, number: u64) -> bool {
        self.is_live(number) || self.state().away.is_on()
    }

    /// Whether a remote is live.
    pub fn is_live(&self, number: u64) -> bool {
        let state = self.state();
        state
            .remotes
            .get(&number)
            .is_some_and(|it| it.post.is_some())
    }

    /// How many remotes are live, and how many wait to be told.
    pub fn figures(&self) -> (usize, usize) {
        let state = self.state();
        (state.live, state.queue.len())
    }

    /// Something was committed just now by another server.
    pub fn poke(&self) {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.ask.notify_one();
    }

    /// Something was committed just now by this server: look, and wait for that a little.
    pub async fn look(&self) {
        let mine = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        self.ask.notify_one();
        // What was not looked for is found by the next look.
        let _ = timeout(LOOK_PATIENCE, self.looked.wait_for(|done| done >= mine)).await;
    }

    /// The same, without waiting.
    pub fn look_soon(&self) {
        if self.state().live > 0 {
            self.ask.notify_one();
        }
    }

    /// Follows what is committed, as long as somebody is live.
    pub async fn follow(&self, centre: Arc<dyn Centre>) {
        let mut position = None;
        let mut complained = false;
        loop {
            if !self.state().is_followed() {
                position = None;
                self.looked.set(u64::MAX);
                self.ask.notified().await;
                continue;
            }
            let asked = self.asked.load(Ordering::SeqCst);
            let is_first = position.is_none();
            match centre.follow(position.take()).await {
                Ok(followed) => {
                    let at = Instant::now();
                    position = Some(followed.position);
                    complained = false;
                    let mut state = self.state();
                    if is_first {
                        // What was committed before nobody has looked for.
                        state.forgotten = Some(at);
                        state.recent.clear();
                        state.check_all();
                        state.away.touched(None, at);
                    }
                    if !followed.touched.is_empty() {
                        state.touched(Arc::new(followed.touched), at);
                    }
                    if followed.scopes {
                        state.scopes_written = Some(at);
                        self.scopes.notify_one();
                    }
                    state.expire(at);
                }
                Err(error) => {
                    if !std::mem::replace(&mut complained, true) {
                        tracing::warn!(
                            %error,
                            "what is committed is not known: live remotes are told when it is again"
                        );
                    }
                    self.looked.set(asked);
                    sleep(LOOK_AGAIN_AFTER).await;
                    continue;
                }
            }
            self.looked.set(asked);
            let every = match self.state().live {
                0 => LOOK_SELDOM,
                _ => LOOK_EVERY,
            };
            // Whoever asks need not wait for the next round.
            let _ = timeout(every, self.ask.notified()).await;
        }
    }
}

impl WatchedRemote {
    fn new() -> WatchedRemote {
        WatchedRemote {
            post: None,
            held: Vec::new(),
            since: Instant::now(),
            context: None,
            asked: None,
            status: Status::Quiet,
            placed: false,
        }
    }
}

impl State {
    fn is_followed(&self) -> bool {
        self.live > 0 || self.away.is_on()
    }

    /// A connection of a remote is gone; what was touched since the download that brought what it
    /// holds concerns it.
    fn left(&mut self, id: RemoteId, who: &Caller, held: Vec<HeldPublication>, since: Instant) {
        let State {
            away,
            recent,
            forgotten,
            ..
        } = self;
        away.left(id, who, held, since);
        if let Some(at) = forgotten {
            away.touch(id, None, *at);
        }
        for (at, touched) in recent {
            away.touch(id, Some(touched), *at);
        }
    }

    /// Enters what a live remote holds, and tells it what it may have missed.
    fn watch(&mut self, number: u64) {
        let Some(remote) = self.remotes.get_mut(&number) else {
            return;
        };
        for held in &mut remote.held {
            held.interests = held.holding.interests();
            held.interests.sort_unstable();
            for interest in &held.interests {
                self.index.entry(*interest).or_default().push(number);
            }
        }
        self.check(number);
    }

    fn unwatch(&mut self, number: u64) {
        let Some(remote) = self.remotes.get_mut(&number) else {
            return;
        };
        for interest in remote.held.iter_mut().flat_map(|it| it.interests.drain(..)) {
            if let Some(numbers) = self.index.get_mut(&interest) {
                numbers.retain(|it| *it != number);
                if numbers.is_empty() {
                    self.index.remove(&interest);
                }
            }
        }
    }

    /// Whether something that a remote holds may have been touched after its last download began.
    fn check(&mut self, number: u64) {
        let Some(remote) = self.remotes.get_mut(&number) else {
            return;
        };
        let unknown = self.forgotten.is_some_and(|at| at > remote.since);
        for held in &mut remote.held {
            let recent = self.recent.iter().rev();
            let mut recent = recent.take_while(|(at, _)| *at > remote.since);
            held.touched |= unknown
                || recent.any(|(_, touched)| held.interests.iter().any(|it| touched.contains(it)));
        }
        if remote.held.iter().any(|it| it.touched) {
            self.queue(number);
        }
    }

    fn check_all(&mut self) {
        let live = self.remotes.iter().filter(|(_, it)| it.post.is_some());
        let live: Vec<u64> = live.map(|(number, _)| *number).collect();
        live.into_iter().for_each(|number| self.check(number));
        self.tell();
    }

    fn touched(&mut self, touched: Arc<BTreeSet<Interest>>, at: Instant) {
        let mut numbers = BTreeSet::new();
        for interest in touched.iter() {
            for number in self.index.get(interest).into_iter().flatten() {
                let Some(remote) = self.remotes.get_mut(number) else {
                    continue;
                };
                for held in &mut remote.held {
                    held.touched |= held.interests.binary_search(interest).is_ok();
                }
                numbers.insert(*number);
            }
        }
        numbers.into_iter().for_each(|number| self.queue(number));
        self.away.touched(Some(&touched), at);
        self.recent.push_back((at, touched));
        self.tell();
    }

    fn queue(&mut self, number: u64) {
        if let Some(remote) = self.remotes.get_mut(&number)
            && remote.post.is_some()
            && remote.status == Status::Quiet
        {
            remote.status = Status::Queued;
            self.queue.push_back(number);
        }
    }

    /// Tells as many as there are places.
    fn tell(&mut self) {
        while self.told < TOLD
            && let Some(number) = self.queue.pop_front()
        {
            let Some(remote) = self.remotes.get_mut(&number) else {
                continue;
            };
            let (Some(post), Status::Queued) = (&remote.post, remote.status) else {
                continue;
            };
            let touched = remote.held.iter_mut();
            let touched =
                touched.filter_map(|it| std::mem::take(&mut it.touched).then_some(&it.publication));
            let touched: Vec<&str> = touched.map(String::as_str).collect();
            let publications = serde_json::json!(touched).to_string();
            post.tell(&Call {
                procedure: "tidewater.changed".into(),
                arguments: vec![Argument::new(
                    "publications",
                    ArgumentValue::Json(publications),
                )],
                ..Call::default()
            });
            remote.status = Status::Told(Instant::now());
            remote.placed = true;
            self.told += 1;
        }
    }

    /// Forgets what is old: what was touched, and who was told and did not come.
    fn expire(&mut self, now: Instant) {
        while let Some((at, _)) = self.recent.front()
            && (now - *at > REMEMBERED || self.recent.len() > REMEMBERED_LOOKS)
        {
            self.forgotten = Some(*at);
            self.recent.pop_front();
        }
        self.away.sweep(now);
        if self.told == 0 {
            return;
        }
        let mut late = 0;
        for remote in self.remotes.values_mut() {
            if let Status::Told(at) = remote.status
                && now - at > COMES_WITHIN
            {
                remote.status = Status::Quiet;
                late += usize::from(std::mem::take(&mut remote.placed));
            }
        }
        self.told -= late;
        if late > 0 {
            self.tell();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn post() -> Arc<OutgoingCalls> {
        let who = Caller {
            user: "ada".into(),
            remote_id: None,
        };
        OutgoingCalls::new(
            Arc::new(who),
            &tidewater_server_jobs::memory::MemoryBudget::new(0),
            1 << 20,
        )
    }

    /// Remotes that hold nothing are told by hand.
    fn crowd(count: u64) -> (Wakes, Vec<Arc<OutgoingCalls>>) {
        let wakes = Wakes::new(&[]);
        let posts: Vec<_> = (0..count).map(|_| post()).collect();
        for (number, post) in posts.iter().enumerate() {
            wakes.enter(number as u64, post);
        }
        (wakes, posts)
    }

    fn told(posts: &[Arc<OutgoingCalls>]) -> usize {
        posts.iter().filter(|it| it.next().is_some()).count()
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_comes_at_the_pace_at_which_it_is_served() {
        let (wakes, posts) = crowd(TOLD as u64 + 2);
        let all = 0..posts.len() as u64;
        let queue_all = || {
            let mut state = wakes.state();
            all.clone().for_each(|number| state.queue(number));
            state.tell();
        };
        queue_all();
        assert_eq!(told(&posts), TOLD, "the others wait");
        queue_all();
        assert_eq!(told(&posts), 0, "a burst tells each once");
        wakes.syncing(0);
        assert_eq!(told(&posts), 0);
        wakes.synced(0, Vec::new(), Instant::now(), None);
        assert_eq!(told(&posts), 1, "one has synced, the next is told");
        tokio::time::advance(COMES_WITHIN * 2).await;
        wakes.state().expire(Instant::now());
        assert_eq!(told(&posts), 1, "who does not come is not waited for");
        all.clone()
            .for_each(|number| wakes.leave(number, posts[0].who()));
        assert_eq!(wakes.figures(), (0, 0));
        assert_eq!(wakes.state().told, 0);
        assert!(wakes.state().index.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_becomes_live_is_told_at_once_what_was_touched_since_its_download() {
        let wakes = Wakes::new(&[]);
        let (ada, bob) = (post(), post());
        wakes.enter(0, &ada);
        let began = Instant::now();
        let held = || vec![("main".to_owned(), RemoteHolding::default())];
        wakes.synced(1, held(), began, None);
        tokio::time::advance(Duration::from_millis(50)).await;
        // What is not remembered may have touched it.
        wakes.state().forgotten = Some(Instant::now());
        wakes.enter(1, &bob);
        assert!(bob.next().is_some());
        assert!(ada.next().is_none());
    }
}
