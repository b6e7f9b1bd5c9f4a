//! What all connections share: spaces, who is there, who is subscribed to what.
//!
//! One lock guards it all. A publisher takes it once for each subject that it has not published
//! to since subscriptions changed; what it found it remembers ([`Routes`]).

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};

use tidewater_centre::SpaceRetention;
use tidewater_protocol::event::{EventError, EventRef, EventsReader};
use tidewater_spaces::subject::MAX_SUBJECT_BYTES;
use tidewater_spaces::{
    Pattern, Receivers, RouteRun, RouteRuns, Router, SubjectCache, check_subject,
};

use super::counts::EventCounts;
use super::event_store::EventStore;
use super::followers::DurableSpaces;
use super::inbox::{Peer, PushOutcome, Space, WaitingBytes};
use super::refusal::{Refusal, User};

use crate::nats_client::NatsClient;
use tidewater_server_config::{SpaceConfig, SubjectRule};

/// Subscriptions of one connection.
const MAX_SUBSCRIPTIONS: usize = 1_000;

/// Subjects whose receivers one publisher remembers.
const REMEMBERED_SUBJECTS: usize = 512;

/// A shorter slice is copied once for all its receivers: it would keep the whole buffer in
/// memory that it was read into.
const COPIED_BELOW_BYTES: usize = 32 << 10;

/// The number of the server itself among publishers.
const SERVER: u64 = 0;

/// The spaces of a server, and who is there.
pub struct Hub {
    inside: Mutex<Inside>,
    /// Another one whenever a route may be another one.
    version: AtomicU64,
    /// Another one after each configuration.
    generation: AtomicU64,
    pub(crate) waiting: Arc<WaitingBytes>,
    /// The size of the largest event that is taken.
    pub(crate) event_bytes: usize,
    /// For what comes from elsewhere.
    own: Mutex<Routes>,
    /// What is kept in the centre.
    pub(crate) kept: Arc<DurableSpaces>,
    pub(crate) counts: Arc<EventCounts>,
    /// Other servers.
    outside: Option<NatsClient>,
}

struct Inside {
    spaces: HashMap<String, Arc<Space>>,
    router: Router<Arc<Peer>>,
    peers: HashMap<u64, Arc<Peer>>,
    last_number: u64,
}

/// Where an event goes.
#[derive(Clone)]
enum Route {
    To(Arc<Space>, Receivers<Arc<Peer>>),
    Nowhere(Arc<Refusal>),
}

impl PartialEq for Route {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Route::To(space, receivers), Route::To(other, others)) => {
                Arc::ptr_eq(space, other) && receivers == others
            }
            (Route::Nowhere(refusal), Route::Nowhere(other)) => Arc::ptr_eq(refusal, other),
            _ => false,
        }
    }
}

/// What one publisher remembers of where its events go.
pub(crate) struct Routes {
    version: u64,
    known: SubjectCache<Route>,
    /// Those to be woken at the end of a chunk.
    woken: Vec<Arc<Peer>>,
}

impl Default for Routes {
    fn default() -> Self {
        Routes {
            version: 0,
            known: SubjectCache::new(REMEMBERED_SUBJECTS),
            woken: Vec::new(),
        }
    }
}

/// What came of a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishOutcome {
    /// Events that were passed on, to however many.
    pub events: u64,
    /// Events that were not; the connection gets a [`super::Notice`] of it.
    pub refused: u64,
    /// The bytes of both. A beginning of an event may follow.
    pub consumed: usize,
    /// A receiver has more waiting than it should: a publisher that waits for nothing else lets
    /// others go first.
    pub is_crowded: bool,
}

impl Hub {
    /// The space, as it is configured.
    ///
    /// # Errors
    /// There is no such space.
    pub(crate) fn config(&self, space: &str) -> Result<SpaceConfig, Refusal> {
        self.space(space).map(|it| it.config.clone())
    }

    /// Events up to `event_bytes` are taken, and `most_waiting` bytes of them may wait for all
    /// connections together before each has to do with little. Durable events are in the `store`, and
    /// other servers `outside`.
    pub fn new(
        spaces: Vec<SpaceConfig>,
        event_bytes: usize,
        most_waiting: usize,
        store: Option<EventStore>,
        outside: Option<NatsClient>,
    ) -> Arc<Hub> {
        let waiting = Arc::new(WaitingBytes::new(most_waiting));
        let counts = Arc::<EventCounts>::default();
        let spaces = spaces.into_iter().map(Space::new);
        let spaces = spaces.map(|it| (it.config.name.clone(), Arc::new(it)));
        Arc::new(Hub {
            inside: Mutex::new(Inside {
                spaces: spaces.collect(),
                router: Router::default(),
                peers: HashMap::new(),
                last_number: SERVER,
            }),
            version: AtomicU64::new(1),
            generation: AtomicU64::new(1),
            kept: DurableSpaces::new(store, waiting.clone(), counts.clone()),
            waiting,
            event_bytes,
            own: Mutex::default(),
            counts,
            outside,
        })
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// What publishers remember is outdated. Called under the lock.
    pub(crate) fn changed(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    /// A connection comes in.
    pub(crate) fn enter(&self, user: &str) -> Arc<Peer> {
        let mut inside = self.inside();
        inside.last_number += 1;
        let peer = Peer::new(inside.last_number, User::new(user));
        let peer = Arc::new(peer);
        inside.peers.insert(peer.number, Arc::clone(&peer));
        peer
    }

    pub(crate) fn leave(&self, peer: &Arc<Peer>) {
        let mut inside = self.inside();
        inside.peers.remove(&peer.number);
        if inside.router.subscriptions(peer) > 0 {
            inside.router.remove_all(peer);
            self.changed();
        }
        drop(inside);
        self.kept.leave(peer);
        peer.close(&self.waiting);
    }

    /// The way to other servers, if there are any.
    pub fn outside(&self) -> Option<&NatsClient> {
        self.outside.as_ref()
    }

    /// Another server has kept something.
    pub fn poke(&self) {
        self.kept.poke();
    }

    /// Tells other servers that something was uploaded.
    pub fn tell_changed(&self) {
        if let Some(outside) = self.outside() {
            outside.changed();
        }
    }

    /// Spaces that are not durable and in which somebody here is subscribed.
    pub fn subscribed(&self) -> HashSet<String> {
        let inside = self.inside();
        let peers = inside.peers.values();
        let patterns = peers.flat_map(|peer| inside.router.patterns(peer));
        patterns.map(|it| it.space().to_owned()).collect()
    }

    /// Spaces that are not durable and whose newest events are kept here.
    pub fn remembering(&self) -> Vec<String> {
        let inside = self.inside();
        let spaces = inside.spaces.values().filter(|it| it.last.is_some());
        spaces.map(|it| it.config.name.clone()).collect()
    }

    /// Looks for durable events of other servers. Never ends.
    pub async fn watch(&self) {
        self.kept.watch().await;
    }

    /// The space of this name.
    pub(crate) fn space(&self, name: &str) -> Result<Arc<Space>, Refusal> {
        self.inside().space(name)
    }

    /// How long durable spaces are kept.
    pub fn retentions(&self) -> Vec<SpaceRetention> {
        let inside = self.inside();
        let spaces = inside.spaces.values().map(|it| &it.config);
        let kept = spaces.filter_map(|it| {
            Some(SpaceRetention {
                space: it.name.clone(),
                kept_ms: i64::try_from(it.durable?.as_millis()).unwrap_or(i64::MAX),
                keeps_last: it.last_value,
            })
        });
        kept.collect()
    }

    /// # Errors
    /// A connection has as many subscriptions as it may.
    pub(crate) fn check_count(&self, peer: &Arc<Peer>) -> Result<(), Refusal> {
        let plain = self.inside().router.subscriptions(peer);
        match plain + self.kept.subscriptions(peer.number) < MAX_SUBSCRIPTIONS {
            true => Ok(()),
            false => Err(Refusal::TooManySubscriptions(MAX_SUBSCRIPTIONS)),
        }
    }

    /// Adds a subscription, and hands over the newest events where the space keeps them.
    pub(crate) fn subscribe(
        &self,
        peer: &Arc<Peer>,
        space: &str,
        pattern: &str,
    ) -> Result<(), Refusal> {
        let mut inside = self.inside();
        let space = inside.space(space)?;
        let pattern = Pattern::to_subscribe(&space.config.name, pattern)?;
        peer.user.check_subscribe(&space.config, &pattern)?;
        if inside.router.subscriptions(peer) >= MAX_SUBSCRIPTIONS {
            return Err(Refusal::TooManySubscriptions(MAX_SUBSCRIPTIONS));
        }
        let before: Vec<Pattern> = inside.router.patterns(peer).cloned().collect();
        // A publisher first keeps an event as the newest, and then looks whether subscriptions have
        // changed: it finds the new one, or its event is found here. As none is kept meanwhile, all
        // that it passes on comes behind those that are found.
        let last = space.last();
        if inside.router.subscribe(&pattern, Arc::clone(peer)) {
            self.changed();
        }
        drop(inside);
        let Some(last) = last else {
            return Ok(());
        };
        let mut packed = BytesMut::new();
        let mut events = 0;
        for (subject, event) in last.matching(&pattern) {
            // What it gets anyway has come, or waits behind older ones of its subject.
            if !before.iter().any(|it| it.matches(subject)) {
                packed.extend_from_slice(event);
                events += 1;
            }
        }
        if events > 0 {
            let run = RouteRun {
                bytes: packed.freeze(),
                route: (),
                events,
            };
            if peer.push(&self.waiting, &space, SERVER, &run).wakes {
                peer.wake();
            }
        }
        Ok(())
    }

    /// Takes a subscription away; whether there was one.
    pub(crate) fn unsubscribe(
        &self,
        peer: &Arc<Peer>,
        space: &str,
        pattern: &str,
    ) -> Result<bool, Refusal> {
        let pattern = Pattern::in_space(space, pattern)?;
        let mut inside = self.inside();
        let was_there = inside.router.unsubscribe(&pattern, peer);
        if was_there {
            self.changed();
        }
        drop(inside);
        Ok(was_there | self.kept.unfollow(peer, &pattern))
    }

    /// Takes another configuration. Subscriptions that it does not let be are ended.
    pub fn configure(&self, spaces: Vec<SpaceConfig>) {
        let mut inside = self.inside();
        let mut before = std::mem::take(&mut inside.spaces);
        for config in spaces {
            let known = before.remove(&config.name);
            let same = known.filter(|it| it.config == config);
            let space = same.unwrap_or_else(|| Arc::new(Space::new(config)));
            inside.spaces.insert(space.config.name.clone(), space);
        }
        let Inside {
            spaces,
            router,
            peers,
            ..
        } = &mut *inside;
        for peer in peers.values() {
            let may = |pattern: &&Pattern| {
                let space = spaces.get(pattern.space());
                // A durable one goes another way.
                let space = space.filter(|it| it.config.durable.is_none());
                space.is_some_and(|it| peer.user.check_subscribe(&it.config, pattern).is_ok())
            };
            let ended = router.patterns(peer).filter(|it| !may(it));
            for pattern in ended.cloned().collect::<Vec<_>>() {
                router.unsubscribe(&pattern, peer);
                peer.unsubscribed(pattern);
            }
        }
        self.changed();
        self.kept.configure(spaces);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Events published, put before receivers, and missed, so far.
    pub fn figures(&self) -> [u64; 3] {
        let [published, delivered] = self.counts.figures();
        [published, delivered, self.waiting.missed()]
    }

    /// Another one after each configuration.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The spaces about which the centre has to be asked who may publish.
    pub(crate) fn asking(&self) -> Vec<SpaceConfig> {
        let inside = self.inside();
        let spaces = inside.spaces.values().map(|it| &it.config);
        let asks =
            |it: &&SpaceConfig| matches!(&it.publish, SubjectRule::Patterns { allow: Some(_), .. });
        spaces.filter(asks).cloned().collect()
    }

    /// Bytes of events that wait for all connections together.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting.bytes()
    }

    /// Passes on what comes from elsewhere, from another server or the centre. Nobody is asked
    /// whether it may be.
    ///
    /// # Errors
    /// What is there cannot be an event; those before it were passed on.
    pub fn deliver(&self, chunk: &Bytes) -> Result<PublishOutcome, EventError> {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        self.publish(None, &mut own, chunk)
    }

    /// Passes on what somebody who may has published without a connection of his own.
    ///
    /// # Errors
    /// As above.
    pub(crate) fn publish_whole(&self, chunk: &Bytes) -> Result<(), EventError> {
        self.deliver(chunk)?;
        self.tell_outside(chunk);
        Ok(())
    }

    fn tell_outside(&self, packed: &Bytes) {
        if let Some(outside) = self.outside() {
            outside.publish(packed);
        }
    }

    /// Passes the whole events of a chunk on.
    pub(crate) fn publish(
        &self,
        publisher: Option<&Arc<Peer>>,
        routes: &mut Routes,
        chunk: &Bytes,
    ) -> Result<PublishOutcome, EventError> {
        let mut publishing = ChunkPublisher {
            hub: self,
            publisher,
            woken: std::mem::take(&mut routes.woken),
            routes,
            published: PublishOutcome::default(),
            kept: 0,
        };
        let passed_on = loop {
            match publishing.round(chunk) {
                Ok(Round::Done) => break Ok(()),
                Ok(Round::Again) => {}
                Err(error) => break Err(error),
            }
        };
        let ChunkPublisher {
            mut woken,
            published,
            ..
        } = publishing;
        for peer in woken.drain(..) {
            peer.wake();
        }
        routes.woken = woken;
        passed_on.map(|()| published)
    }

    fn find(
        &self,
        publisher: Option<&Arc<Peer>>,
        known: &mut SubjectCache<Route>,
        event: &EventRef<'_>,
    ) -> Route {
        let subject = event.subject;
        if event.position.is_some() && publisher.is_some() {
            let refusal = Refusal::Positioned(shown(subject));
            return Route::Nowhere(Arc::new(refusal));
        }
        if let Some(route) = known.find(subject) {
            return route;
        }
        let route = match self.inside().route(publisher, subject) {
            Ok((space, receivers)) => Route::To(space, receivers),
            Err(refusal) => Route::Nowhere(Arc::new(refusal)),
        };
        if subject.len() <= MAX_SUBJECT_BYTES {
            known.insert(subject, route.clone());
        }
        route
    }
}

impl Inside {
    fn space(&self, name: &str) -> Result<Arc<Space>, Refusal> {
        let space = self.spaces.get(name).cloned();
        space.ok_or_else(|| Refusal::NoSuchSpace(shown(name)))
    }

    fn route(
        &mut self,
        publisher: Option<&Arc<Peer>>,
        subject: &str,
    ) -> Result<(Arc<Space>, Receivers<Arc<Peer>>), Refusal> {
        let (name, _) = check_subject(subject)?;
        let space = self.space(name)?;
        if let Some(publisher) = publisher {
            publisher.user.check_publish(&space.config, subject)?;
            if space.config.durable.is_some() {
                return Err(Refusal::Durable(name.to_owned()));
            }
        }
        Ok((space, self.router.matches(subject)))
    }
}

/// As much of a name as an error repeats.
fn shown(name: &str) -> String {
    name.chars().take(MAX_SUBJECT_BYTES).collect()
}

/// A chunk on its way.
struct ChunkPublisher<'a> {
    hub: &'a Hub,
    publisher: Option<&'a Arc<Peer>>,
    routes: &'a mut Routes,
    published: PublishOutcome,
    woken: Vec<Arc<Peer>>,
    /// Up to here events were kept as the newest of their subjects.
    kept: usize,
}

/// How a round over a chunk ends.
enum Round {
    Done,
    /// Somebody subscribed while events were kept, and has to get them.
    Again,
}

impl ChunkPublisher<'_> {
    /// Passes on what was not.
    fn round(&mut self, chunk: &Bytes) -> Result<Round, EventError> {
        let ChunkPublisher {
            hub,
            publisher,
            routes,
            published,
            woken,
            kept,
        } = self;
        let publisher = *publisher;
        let version = hub.version();
        if routes.version != version {
            routes.known.clear();
            routes.version = version;
        }
        let start = published.consumed;
        let chunk = chunk.slice(start..);
        let known = &mut routes.known;
        let mut runs = RouteRuns::new(&chunk, hub.event_bytes, |event| {
            hub.find(publisher, known, event)
        });
        while let Some(run) = runs.next_run()? {
            let end = start + runs.consumed();
            match &run.route {
                Route::Nowhere(refusal) => {
                    let events = u64::from(run.events);
                    published.refused += events;
                    if let Some(publisher) = publisher {
                        publisher.refuse(events, refusal);
                    }
                }
                Route::To(space, receivers) => {
                    if *kept < end
                        && let Some(mut last) = space.last()
                    {
                        let mut events = EventsReader::new(&run.bytes, hub.event_bytes);
                        while let Some(event) = events.next_event()? {
                            last.insert(event.subject, event.packed);
                        }
                        drop(last);
                        *kept = end;
                        if hub.version() != version {
                            return Ok(Round::Again);
                        }
                    }
                    let number = publisher.map_or(SERVER, |it| it.number);
                    let others = || receivers.iter().filter(|it| it.number != number);
                    let mut slice = RouteRun {
                        bytes: run.bytes.clone(),
                        route: (),
                        events: run.events,
                    };
                    if slice.bytes.len() < COPIED_BELOW_BYTES && others().next().is_some() {
                        slice.bytes = Bytes::copy_from_slice(&slice.bytes);
                    }
                    hub.counts.delivered(run.events, others().count());
                    for peer in others() {
                        let pushed: PushOutcome = peer.push(&hub.waiting, space, number, &slice);
                        published.is_crowded |= pushed.is_crowded;
                        if pushed.wakes {
                            woken.push(Arc::clone(peer));
                        }
                    }
                    if publisher.is_some() {
                        hub.tell_outside(&slice.bytes);
                    }
                    published.events += u64::from(run.events);
                }
            }
            published.consumed = end;
        }
        Ok(Round::Done)
    }
}
