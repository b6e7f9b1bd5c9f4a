//! What is asked of spaces by calls: to subscribe, to keep events, to read what is kept.

use std::sync::Arc;

use bytes::Bytes;

use tidewater_centre::Caller;
use tidewater_centre::events::{AppendOutcome, NewEvents, StoredEvent};
use tidewater_centre::procedure::OnceKeyState;
use tidewater_protocol::event::{EventPosition, EventsReader};
use tidewater_protocol::message::{Answer, CallFailed, ColumnHeader, Returns};
use tidewater_protocol::{ColumnType, Datum};
use tidewater_server_config::{SpaceConfig, SubjectRule};
use tidewater_server_jobs::fault::Fault;
use tidewater_spaces::{Pattern, RouteRun, check_subject};

use crate::call_outcome as outcome;
use crate::calls::Calls;
use crate::spaces::event_store::{EventRange, EventStore};
use crate::spaces::followers::{pack_stored, page};
use crate::spaces::inbox::{Peer, Space};
use crate::spaces::refusal::{Grant, Refusal, Right, User};
use crate::spaces::{Hub, SpaceMember};

/// The procedure under which events are published.
pub(crate) const PUBLISH: &str = "tidewater.publish";

/// Events that are read at once by whoever asks for them, at most and without a word.
const MOST_ROWS: u64 = 10_000;
const ROWS: u64 = 1_000;

/// Bytes of the events that are read at once.
const ROWS_BYTES: usize = 1 << 20;

/// The newest events of subjects that are read at once.
const LAST_EVENTS: u64 = 4_000;
const LAST_BYTES: u64 = 1 << 20;

/// From where on somebody wants the events of a durable space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Those that come.
    Now,
    /// All that are kept.
    Beginning,
    /// Those behind one.
    Position(EventPosition),
}

/// Where somebody's position is in a space.
struct FoundPosition {
    from: u64,
    /// It is of another history.
    is_anew: bool,
    /// So many events behind it are not kept any more.
    missed: u64,
}

/// What is asked of spaces by calls.
#[derive(Clone)]
pub struct EventRequests {
    hub: Arc<Hub>,
    calls: Arc<Calls>,
}

impl EventRequests {
    /// `calls` ask the centre who may.
    pub fn new(hub: Arc<Hub>, calls: Arc<Calls>) -> EventRequests {
        EventRequests { hub, calls }
    }

    /// The spaces.
    pub fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    /// Asks the centre about a user, where the rule of a space has it asked.
    pub async fn ask(
        &self,
        user: &User,
        caller: &Caller,
        config: &SpaceConfig,
        right: Right,
    ) -> Result<(), CallFailed> {
        let rule = right.rule(config);
        let SubjectRule::Patterns {
            allow: Some(query), ..
        } = rule
        else {
            return Ok(());
        };
        let is_given = self.calls.is_allowed(query, caller).await?;
        user.grant(Grant {
            space: config.name.clone(),
            right,
            query: query.clone(),
            is_given,
        });
        Ok(())
    }

    /// Asks about a connection that publishes, in all spaces where that has to be.
    pub(crate) async fn ask_publisher(&self, member: &SpaceMember, caller: &Caller) {
        let (hub, peer) = member.parts();
        let asking = hub.asking();
        for config in &asking {
            if let Err(error) = self.ask(&peer.user, caller, config, Right::Publish).await {
                let space = &config.name;
                tracing::warn!(%error, space, "who may publish is not known");
            }
        }
        if !asking.is_empty() {
            hub.changed();
        }
    }

    /// Subscribes; gives where the subscription begins in a durable space.
    pub async fn subscribe(
        &self,
        member: &SpaceMember,
        caller: &Caller,
        space: &str,
        pattern: &str,
        after: Option<After>,
    ) -> Result<Option<EventPosition>, CallFailed> {
        let (hub, peer) = member.parts();
        let space = hub.space(space)?;
        self.ask(&peer.user, caller, &space.config, Right::Subscribe)
            .await?;
        if space.config.durable.is_none() {
            if after.is_some() {
                return Err(CallFailed::argument(
                    "after",
                    format_args!("is for durable spaces, and {:?} is none", space.config.name),
                ));
            }
            hub.subscribe(peer, &space.config.name, pattern)?;
            if let Some(outside) = hub.outside() {
                outside.want(&space.config.name).await;
            }
            return Ok(None);
        }
        let pattern = Pattern::to_subscribe(&space.config.name, pattern).map_err(Refusal::from)?;
        peer.user.check_subscribe(&space.config, &pattern)?;
        hub.check_count(peer)?;
        let after = after.unwrap_or(After::Now);
        let position = follow(hub, peer, &space, pattern, after).await;
        position.map(Some).map_err(outcome::of_fault)
    }

    /// Publishes packed events of one space. Those of a durable one are kept, and the position of the
    /// last of them is given.
    pub async fn publish(
        &self,
        user: &User,
        caller: &Caller,
        space: &str,
        packed: &Bytes,
        key: Option<[u8; 16]>,
    ) -> Result<Option<EventPosition>, CallFailed> {
        let hub = &self.hub;
        let config = hub.config(space)?;
        if !user.has_asked(&config, Right::Publish) {
            self.ask(user, caller, &config, Right::Publish).await?;
        }
        let events = unpack(hub, user, &config, packed)?;
        if events.is_empty() {
            return Ok(None);
        }
        let count = events.len() as u64;
        if config.durable.is_none() {
            // Noted before: should the server die now, they are not published, and never twice.
            if let Some(key) = key {
                match self.calls.begin_once(&caller.user, key, PUBLISH).await? {
                    OnceKeyState::New => {}
                    OnceKeyState::Unfinished { .. } => return Ok(None),
                    OnceKeyState::Done(_) | OnceKeyState::KeyTaken => {
                        return Err(outcome::key_taken());
                    }
                }
            }
            hub.counts.published(count);
            hub.publish_whole(packed).map_err(malformed)?;
            return Ok(None);
        }
        hub.counts.published(count);
        let new = NewEvents {
            space: config.name.clone(),
            user: caller.user.clone(),
            once: key,
            events,
        };
        let store = hub.kept.store()?;
        let kept = hub.kept.clone();
        let stored = Box::new(move |new: &NewEvents, first, check| kept.stored(new, first, check));
        match store.append(new, stored).await.map_err(outcome::of_fault)? {
            AppendOutcome::At { first, check } => {
                if let Some(outside) = hub.outside() {
                    outside.kept();
                }
                Ok(Some(EventPosition {
                    id: first + count - 1,
                    check: u64::from_le_bytes(check),
                }))
            }
            AppendOutcome::KeyTaken => Err(outcome::key_taken()),
        }
    }

    /// Reads what is kept of a pattern: rows of events, and one without a subject that says how far was
    /// read. Before the others, such a one says that it was begun anew.
    pub async fn events(
        &self,
        user: &User,
        caller: &Caller,
        (space, pattern): (&str, &str),
        after: After,
        limit: Option<u64>,
    ) -> Result<Answer, CallFailed> {
        let hub = &self.hub;
        let config = hub.config(space)?;
        if config.durable.is_none() {
            return Err(CallFailed::argument(
                "space",
                format_args!("is {space:?}, whose events are not kept"),
            ));
        }
        if !user.has_asked(&config, Right::Subscribe) {
            self.ask(user, caller, &config, Right::Subscribe).await?;
        }
        let pattern = Pattern::in_space(&config.name, pattern).map_err(Refusal::from)?;
        user.check_subscribe(&config, &pattern)?;
        let limit = limit.unwrap_or(ROWS).clamp(1, MOST_ROWS) as usize;
        let read = read(hub, &config.name, &pattern, after, limit).await;
        let kept = read.map_err(outcome::of_fault)?;
        let columns = vec![
            ColumnHeader::new("id", ColumnType::Integer),
            ColumnHeader::new("check", ColumnType::Bytes),
            ColumnHeader::new("subject", ColumnType::Text),
            ColumnHeader::new("payload", ColumnType::Bytes),
            ColumnHeader::new("user", ColumnType::Text),
            ColumnHeader::new("at_ms", ColumnType::Integer),
        ];
        let mut rows: Vec<[Datum<'_>; 6]> = Vec::with_capacity(kept.events.len() + 2);
        let no_check = [0; 8];
        if kept.is_anew {
            rows.push(mark(0, &no_check));
        }
        rows.extend(kept.events.iter().map(|it| {
            [
                number(it.id),
                Datum::Bytes(&it.check),
                Datum::Text(&it.subject),
                Datum::Bytes(&it.payload),
                Datum::Text(&it.user),
                Datum::Integer(it.at_ms),
            ]
        }));
        rows.push(mark(kept.reached.0, &kept.reached.1));
        let rows: Vec<&[Datum<'_>]> = rows.iter().map(|it| &it[..]).collect();
        Ok(Answer::new(Returns::Rows, columns, &rows))
    }
}

async fn follow(
    hub: &Arc<Hub>,
    peer: &Arc<Peer>,
    space: &Arc<Space>,
    pattern: Pattern,
    after: After,
) -> Result<EventPosition, Fault> {
    let name = &space.config.name;
    let store = hub.kept.store()?;
    let end = store.end(name).await?;
    let found = find(store, name, after, end).await?;
    if found.is_anew {
        peer.begin_anew(name);
    }
    if found.missed > 0 {
        peer.miss(&hub.waiting, name, found.missed);
    }
    if space.config.last_value && after == After::Now {
        let last = last_values(store, space, &pattern, end).await?;
        if !last.is_empty() {
            let run = RouteRun {
                bytes: pack_stored(name, last.iter()),
                events: last.len() as u32,
                route: (),
            };
            hub.counts.delivered(run.events, 1);
            peer.push_kept(&hub.waiting, space, &run, true);
            peer.wake();
        }
    }
    let position = match store.check(name, found.from).await? {
        Some(check) => u64::from_le_bytes(check),
        // The event is not kept any more, or there never was one.
        None => 0,
    };
    hub.kept.follow(peer, space, (pattern, found.from), end);
    Ok(EventPosition {
        id: found.from,
        check: position,
    })
}

async fn find(
    store: &EventStore,
    space: &str,
    after: After,
    end: u64,
) -> Result<FoundPosition, Fault> {
    let at = |from: u64| FoundPosition {
        from,
        is_anew: false,
        missed: 0,
    };
    let anew = FoundPosition {
        is_anew: true,
        ..at(0)
    };
    let position = match after {
        After::Now => return Ok(at(end)),
        After::Beginning => return Ok(at(0)),
        After::Position(EventPosition { id: 0, .. }) => return Ok(at(0)),
        After::Position(position) if position.id > end => return Ok(anew),
        After::Position(position) => position,
    };
    let check = store.check(space, position.id).await?;
    Ok(match check.map(u64::from_le_bytes) {
        Some(check) if check == position.check || position.check == 0 => at(position.id),
        Some(_) => anew,
        None => {
            let first = store.after(EventRange {
                limit: 1,
                ..page(space, position.id)
            });
            let first = first.await?;
            let next = first.first().map_or(end + 1, |it| it.id);
            FoundPosition {
                missed: next - position.id - 1,
                ..at(position.id)
            }
        }
    })
}

/// The newest event of each subject of a pattern up to a number, in their order: as much as fits
/// into half a queue, of which the newest.
async fn last_values(
    store: &EventStore,
    space: &Space,
    pattern: &Pattern,
    end: u64,
) -> Result<Vec<StoredEvent>, Fault> {
    let mut found = std::collections::BTreeMap::new();
    let (mut bytes, mut subject) = (0, String::new());
    loop {
        let range = EventRange {
            space: space.config.name.clone(),
            after: 0,
            limit: LAST_EVENTS,
            max_bytes: LAST_BYTES,
        };
        let page = store.last(range, subject).await?;
        let Some(last) = page.last() else {
            return Ok(found.into_values().collect());
        };
        subject = last.subject.clone();
        for event in page {
            let whole = format!("{}/{}", space.config.name, event.subject);
            if event.id <= end && pattern.matches(&whole) {
                bytes += event.payload.len() + whole.len();
                found.insert(event.id, event);
            }
        }
        while bytes > space.config.queue_bytes / 2
            && let Some((_, oldest)) = found.pop_first()
        {
            bytes -= oldest.payload.len() + space.config.name.len() + 1 + oldest.subject.len();
        }
    }
}

/// Subject without its space and payload of each event, all of which the user may publish.
fn unpack(
    hub: &Hub,
    user: &User,
    config: &SpaceConfig,
    packed: &Bytes,
) -> Result<Vec<(String, Bytes)>, CallFailed> {
    let mut events = Vec::new();
    let mut reader = EventsReader::new(packed, hub.event_bytes);
    // The subject that was looked at last, and what is behind its space.
    let mut known = ("", "");
    while let Some(event) = reader.next_event().map_err(malformed)? {
        if !std::ptr::eq(known.0, event.subject) {
            let (name, rest) = check_subject(event.subject).map_err(Refusal::from)?;
            if name != config.name {
                return Err(CallFailed::argument(
                    "events",
                    format_args!("has one of the space {name:?}"),
                ));
            }
            user.check_publish(config, event.subject)?;
            known = (event.subject, rest);
        }
        if event.position.is_some() {
            return Err(Refusal::Positioned(event.subject.to_owned()).into());
        }
        events.push((known.1.to_owned(), packed.slice_ref(event.payload)));
    }
    match reader.rest() {
        0 => Ok(events),
        _ => Err(CallFailed::argument("events", "ends within an event")),
    }
}

fn malformed(error: tidewater_protocol::event::EventError) -> CallFailed {
    CallFailed {
        argument: "events".into(),
        ..CallFailed::new(error.code(), error.to_string(), "pack whole events")
    }
}

fn number(id: u64) -> Datum<'static> {
    Datum::Integer(i64::try_from(id).unwrap_or(i64::MAX))
}

/// A row that says how far was read.
fn mark(id: u64, check: &[u8; 8]) -> [Datum<'_>; 6] {
    let mut row = [Datum::Null; 6];
    (row[0], row[1]) = (number(id), Datum::Bytes(check));
    row
}

/// What was read of a space.
struct KeptEvents {
    events: Vec<StoredEvent>,
    is_anew: bool,
    reached: (u64, [u8; 8]),
}

async fn read(
    hub: &Hub,
    space: &str,
    pattern: &Pattern,
    after: After,
    limit: usize,
) -> Result<KeptEvents, Fault> {
    let store = hub.kept.store()?;
    let end = store.end(space).await?;
    let found = find(store, space, after, end).await?;
    let check = match store.check(space, found.from).await? {
        Some(check) => check,
        None => match after {
            After::Position(it) if it.id == found.from => it.check.to_le_bytes(),
            _ => [0; 8],
        },
    };
    let mut kept = KeptEvents {
        events: Vec::new(),
        is_anew: found.is_anew,
        reached: (found.from, check),
    };
    let mut bytes = 0;
    while kept.reached.0 < end && kept.events.len() < limit && bytes < ROWS_BYTES {
        let page = store.after(page(space, kept.reached.0)).await?;
        if page.is_empty() {
            break;
        }
        for event in page {
            if kept.events.len() >= limit || bytes >= ROWS_BYTES {
                break;
            }
            kept.reached = (event.id, event.check);
            if pattern.matches(&format!("{space}/{}", event.subject)) {
                bytes += event.payload.len() + event.subject.len();
                kept.events.push(event);
            }
        }
    }
    Ok(kept)
}
