//! A remote against a centre in memory that forgets: restored to any earlier state, to one
//! from before it knew the remote, or copied, with lost connections at any byte.
//!
//! What was acknowledged and forgotten comes back exactly once, and when everybody has come to
//! rest both sides hold the same rows.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tidewater_protocol::compare::Ranges;
use tidewater_protocol::frame::Frame;
use tidewater_protocol::message::{
    Control, DownloadEnd, HelloSubscription, KeyInterval, KeyRange, PROTOCOL_VERSION, ResultEnd,
    SignedIn, TableBegin, UploadBegin, UploadState, Welcome, WelcomeSubscription,
};
use tidewater_protocol::{Datum, Op, RowsReader, RowsWriter, UnpackedRow};

use crate::database::CompareDue;
use crate::scripted::{
    Remote, Reply, SentMessages, answer, download_begin, items, options, result_begin, schema,
};
use crate::session::{ProofKind, SessionOptions, SessionOutcome};

/// The centre's name.
const NAME: &str = "model";

/// What a centre keeps; a copy of it is a backup.
#[derive(Clone, Default)]
struct Centre {
    rows: BTreeMap<i64, String>,
    /// The keys that changed, oldest first. A checkpoint is a position in it.
    log: Vec<i64>,
    /// The marks that were given out with checkpoints.
    marks: BTreeSet<u64>,
    /// The id of the remote that it knows, and its last upload.
    remote: Option<u8>,
    /// The ids that were removed.
    removed: BTreeSet<u8>,
    upload: Option<UploadBegin>,
    result: Vec<u8>,
    /// Every value that an upload brought, and what became of it.
    applied: BTreeSet<String>,
    lost: BTreeSet<String>,
}

/// What a remote sent, put together.
#[derive(Default)]
struct Request {
    remote_id: Vec<u8>,
    centre: String,
    hello: Option<HelloSubscription>,
    upload: Option<UploadBegin>,
    uploaded: Vec<u8>,
    asked: Vec<u8>,
    ranges: Vec<KeyRange>,
    upload_only: bool,
    complete: bool,
}

impl Request {
    fn read(sent: &SentMessages) -> Request {
        let mut request = Request::default();
        let mut asking = false;
        for frame in &sent.frames {
            let control = match frame {
                Frame::Rows { bytes, .. } if asking => {
                    request.asked.extend_from_slice(bytes);
                    continue;
                }
                Frame::Rows { bytes, .. } => {
                    request.uploaded.extend_from_slice(bytes);
                    continue;
                }
                Frame::Control { control, .. } => control.as_ref().unwrap(),
                Frame::Message { .. } => panic!("a sync has no messages"),
            };
            match control {
                Control::SignIn(sign_in) => {
                    request.remote_id = sign_in.remote_id.clone();
                    request.centre = sign_in.centre.clone();
                }
                Control::Hello(hello) => {
                    request.hello = Some(hello.subscriptions[0].clone());
                }
                Control::UploadBegin(begin) => request.upload = Some(begin.clone()),
                Control::UploadEnd(end) => {
                    assert_eq!(end.checksum, crc32fast::hash(&request.uploaded));
                }
                Control::RequestBegin(_) => asking = true,
                Control::CompareTable(table) => {
                    assert_eq!(
                        table.table,
                        Some(Box::new(TableBegin::for_table(&schema().tables[0])))
                    );
                    request.ranges.extend(table.ranges.clone());
                }
                Control::DownloadRequest(download) => {
                    request.upload_only = download.upload_only;
                    request.complete = true;
                }
                _ => {}
            }
        }
        request
    }
}

/// What does not go back when the centre is restored: it makes numbers that are new.
#[derive(Default)]
struct Numbers {
    last_mark: u64,
    last_remote: u8,
}

impl Centre {
    fn change(&mut self, id: i64, name: Option<String>) {
        match name {
            Some(name) => self.rows.insert(id, name),
            None => self.rows.remove(&id),
        };
        self.log.push(id);
    }

    fn last_upload(&self) -> (u64, Vec<u8>) {
        match &self.upload {
            Some(upload) => (upload.sequence, upload.upload_id.clone()),
            None => (0, Vec::new()),
        }
    }

    /// The position that a checkpoint stands for; `None` if its history is not known.
    fn position(&self, checkpoint: &[u8]) -> Option<usize> {
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
        let (mark, position) = checkpoint.split_at_checked(8)?;
        (self.marks.contains(&number(mark))).then(|| number(position) as usize)
    }

    /// As whom the remote is let in, what the Welcome says, and whether the sync goes on after it.
    fn admit(
        &mut self,
        request: &Request,
        hello: &HelloSubscription,
        numbers: &mut Numbers,
    ) -> (u8, Welcome, bool) {
        let knows_mark = self.position(&hello.checkpoint).is_some();
        let mut answer = WelcomeSubscription::default();
        if hello.schema_hash.is_empty() {
            answer.schema = schema().encode();
        }
        let known = self
            .remote
            .filter(|id| request.remote_id == [*id; 16] || request.remote_id.is_empty());
        let known = known.or_else(|| {
            let own = request.remote_id.first().copied();
            self.remote = own.filter(|id| request.centre == NAME && !self.removed.contains(id));
            (self.upload, self.result) = (None, Vec::new());
            self.remote
        });
        let (sequence, upload_id) = self.last_upload();
        let in_sequence = (hello.sequence, &hello.upload_id) == (sequence, &upload_id);
        let retry = (hello.sequence + 1, &hello.pending_upload_id) == (sequence, &upload_id);
        answer.compare =
            !knows_mark && !hello.checkpoint.is_empty() && !hello.compares && known.is_some();
        let state = match known {
            None => {
                numbers.last_remote += 1;
                self.remote = Some(numbers.last_remote);
                match request.remote_id.is_empty() {
                    true => UploadState::InSequence,
                    false => UploadState::NewIdentity,
                }
            }
            Some(_) if in_sequence => UploadState::InSequence,
            Some(_) if retry => UploadState::AlreadyApplied,
            Some(_) => {
                (answer.sequence, answer.upload_id) = (sequence, upload_id);
                match hello.sequence > sequence {
                    true => UploadState::CentreRestored,
                    // The numbers of another restoration: it has to know better.
                    false => UploadState::NewIdentity,
                }
            }
        };
        answer.upload_state = state as i32;
        let ends = answer.compare
            || matches!(
                state,
                UploadState::NewIdentity | UploadState::CentreRestored
            );
        let becomes = known.is_some() && state == UploadState::NewIdentity;
        let welcome = Welcome {
            subscriptions: vec![answer],
            remote_id: vec![u8::MAX; if becomes { 16 } else { 0 }],
            credential: b"credential".to_vec(),
        };
        (self.remote.unwrap(), welcome, !ends)
    }

    /// Serves what has arrived of a sync.
    fn serve(&mut self, sent: &SentMessages, numbers: &mut Numbers) -> Reply {
        let request = Request::read(sent);
        let Some(hello) = &request.hello else {
            return Reply::default();
        };
        let (id, welcome, goes_on) = self.admit(&request, hello, numbers);
        let retry = welcome.subscriptions[0].upload_state() == UploadState::AlreadyApplied;
        let signed_in = Control::SignedIn(Box::new(SignedIn {
            protocol_version: PROTOCOL_VERSION,
            remote_id: vec![id; 16],
            token: b"token".to_vec(),
            credential: b"credential".to_vec(),
            server: "test".into(),
            centre: NAME.into(),
            user: String::new(),
            above: Vec::new(),
            message_bytes: 0,
        }));
        let reply = Reply::default().connection(signed_in);
        let reply = reply.control(Control::Welcome(welcome));
        if !goes_on {
            return reply.end();
        }
        if !request.complete {
            return reply;
        }
        let reply = match &request.upload {
            Some(upload) if !retry => {
                assert_eq!(upload.sequence, self.last_upload().0 + 1);
                assert!(!hello.compares, "a compare has no uploads");
                self.apply(&request.uploaded);
                self.upload = Some(upload.clone());
                self.tell_result(reply)
            }
            _ if retry => self.tell_result(reply),
            _ => reply,
        };
        if request.upload_only {
            return reply.end();
        }
        numbers.last_mark += 1;
        self.marks.insert(numbers.last_mark);
        self.tell_download(reply, hello, &request, numbers.last_mark)
    }

    fn tell_result(&self, reply: Reply) -> Reply {
        let upload = self.upload.as_ref().unwrap();
        let end = ResultEnd {
            checksum: crc32fast::hash(&self.result),
            ..ResultEnd::default()
        };
        let reply = reply.control(result_begin(upload));
        let reply = match self.result.is_empty() {
            true => reply,
            false => reply.table(false).rows(&self.result),
        };
        reply.control(Control::ResultEnd(end))
    }

    fn tell_download(
        &self,
        reply: Reply,
        hello: &HelloSubscription,
        request: &Request,
        mark: u64,
    ) -> Reply {
        let since = self.position(&hello.checkpoint);
        let mut keys: BTreeSet<i64> = match since {
            Some(since) => self.log[since..].iter().copied().collect(),
            None => BTreeSet::new(),
        };
        each(&request.asked, |row| {
            keys.insert(integer(&row.key[0]));
        });
        let whole = since.is_none() && !hello.compares;
        if whole {
            keys = self.rows.keys().copied().collect();
        }
        let mut all = self.packed(keys.iter().copied());
        let mut reply = reply
            .control(download_begin(0))
            .table(whole)
            .rows(&all.bytes);
        let ranges = match hello.compares {
            true => self.differing(&request.ranges),
            false => Vec::new(),
        };
        if !ranges.is_empty() {
            let shape = schema().tables[0].shape();
            let within = tidewater_protocol::compare::Intervals::new(&shape, &ranges).unwrap();
            let keys = self.rows.keys().copied();
            let keys: Vec<i64> = keys
                .filter(|&id| within.contains(&[Datum::Integer(id)]))
                .collect();
            let more = self.packed(keys.into_iter());
            let begin = TableBegin {
                replace: true,
                ranges,
                ..TableBegin::for_table(&schema().tables[0])
            };
            reply = reply.control(Control::TableBegin(begin)).rows(&more.bytes);
            all.bytes.extend(more.bytes);
            all.upserts += more.upserts;
            all.removals += more.removals;
        }
        let mut checkpoint = mark.to_le_bytes().to_vec();
        checkpoint.extend((self.log.len() as u64).to_le_bytes());
        reply
            .control(Control::DownloadEnd(DownloadEnd {
                checkpoint,
                upserts: all.upserts,
                removals: all.removals,
                checksum: crc32fast::hash(&all.bytes),
            }))
            .end()
    }

    fn differing(&self, theirs: &[KeyRange]) -> Vec<KeyInterval> {
        let shape = schema().tables[0].shape();
        let mut own = Ranges::like(&shape, theirs).unwrap();
        for (id, name) in &self.rows {
            let key = Datum::Integer(*id);
            own.add(&[key], &[key, Datum::Text(name)]);
        }
        own.differing(theirs)
    }

    fn packed(&self, keys: impl Iterator<Item = i64>) -> PackedUpload {
        let mut packed = PackedUpload::default();
        for key in keys {
            match self.rows.get(&key) {
                Some(name) => {
                    packed.upserts += 1;
                    packed.bytes.extend(items(Op::Upsert, &[(key, name)]));
                }
                None => {
                    packed.removals += 1;
                    packed.bytes.extend(items(Op::Remove, &[(key, "")]));
                }
            }
        }
        packed
    }

    /// The first to arrive wins; the loser is told the winner.
    fn apply(&mut self, uploaded: &[u8]) {
        let mut changes = Vec::new();
        each(uploaded, |row| {
            let value = |values: &[Datum<'_>]| values.get(1).map(ToString::to_string);
            changes.push((integer(&row.key[0]), value(&row.old), value(&row.new)));
        });
        let shape = schema().tables[0].shape();
        let mut result = RowsWriter::new(&shape);
        for (id, old, new) in changes {
            let current = self.rows.get(&id).cloned();
            if current == old || current == new {
                if let Some(new) = &new {
                    assert!(self.applied.insert(new.clone()), "{new} was applied twice");
                }
                if current != new {
                    self.change(id, new);
                }
                continue;
            }
            self.lost.extend(new);
            let key = Datum::Integer(id);
            match &current {
                Some(name) => result.row(Op::ConflictRow, &[key, Datum::Text(name)]),
                None => result.key(Op::ConflictGone, &[key]),
            }
        }
        self.result = result.take();
    }
}

#[derive(Default)]
struct PackedUpload {
    bytes: Vec<u8>,
    upserts: u64,
    removals: u64,
}

fn each(packed: &[u8], mut visit: impl FnMut(&UnpackedRow<'_>)) {
    let shape = schema().tables[0].shape();
    let mut reader = RowsReader::new(&shape, packed);
    let mut row = UnpackedRow::default();
    while reader.next(&mut row).unwrap() {
        visit(&row);
    }
}

fn integer(datum: &Datum<'_>) -> i64 {
    match datum {
        Datum::Integer(integer) => *integer,
        other => panic!("{other:?} is no key"),
    }
}

struct World {
    remote: Remote,
    centre: Centre,
    numbers: Numbers,
    backups: Vec<Centre>,
    edits: u64,
    /// What every session of the last sync sent, message by message.
    sessions: Vec<Vec<&'static str>>,
    /// Bytes that the last sync sent and received.
    traffic: usize,
    /// Conflicts that the last sync told, in all of its sessions.
    conflicts: u64,
}

impl World {
    /// Both hold the rows 1 to 3.
    fn new() -> World {
        let mut world = World {
            remote: Remote::new(),
            centre: Centre::default(),
            numbers: Numbers::default(),
            backups: vec![Centre::default()],
            edits: 0,
            sessions: Vec::new(),
            traffic: 0,
            conflicts: 0,
        };
        for id in 1..=3 {
            world.central(id, true);
        }
        world.settle();
        world
    }

    fn local(&mut self, id: i64, writes: bool) {
        self.edits += 1;
        self.remote.run(&match writes {
            true => format!(
                "INSERT INTO item VALUES ({id}, 'l{}') \
                 ON CONFLICT (id) DO UPDATE SET name = excluded.name",
                self.edits
            ),
            false => format!("DELETE FROM item WHERE id = {id}"),
        });
    }

    fn central(&mut self, id: i64, writes: bool) {
        self.edits += 1;
        let name = writes.then(|| format!("c{}", self.edits));
        self.centre.change(id, name);
    }

    fn back_up(&mut self) {
        self.backups.push(self.centre.clone());
    }

    /// The centre is as it was at a backup.
    fn restore(&mut self, backup: usize) {
        self.centre = self.backups[backup % self.backups.len()].clone();
    }

    /// One sync: sessions until it is done, or until the network fails. `lost`: which session
    /// loses its connection where, in per mille of what goes up and comes down.
    fn sync(&mut self, lost: Option<(usize, usize, usize)>) -> SessionOutcome {
        self.sessions.clear();
        self.traffic = 0;
        self.conflicts = 0;
        let mut first_proof = ProofKind::Token;
        for number in 0..40 {
            let options = SessionOptions {
                first_proof,
                ..options()
            };
            let mut connection = self.remote.session(options);
            let mut flight = Vec::new();
            while let Some(bytes) = connection.poll_transmit() {
                flight.extend_from_slice(&bytes);
            }
            let cut = |length: usize, per_mille: Option<usize>| {
                per_mille.map_or(length, |per_mille| length * per_mille.min(1000) / 1000)
            };
            let here = lost.filter(|(session, ..)| *session == number);
            let mut sent = SentMessages::default();
            sent.push(&flight[..cut(flight.len(), here.map(|(_, up, _)| up))]);
            self.sessions.push(sent.names());
            let reply = self.centre.serve(&sent, &mut self.numbers).0;
            self.traffic += flight.len() + reply.len();
            answer(
                &mut connection,
                &reply[..cut(reply.len(), here.map(|(_, _, down)| down))],
            );
            let outcome = connection.end_sync().unwrap().1;
            if let SessionOutcome::More(report) | SessionOutcome::Done(report) = &outcome {
                self.conflicts += report.conflicts;
            }
            match outcome {
                SessionOutcome::Again(proof) => first_proof = proof,
                SessionOutcome::More(_) => first_proof = ProofKind::Token,
                other => return other,
            }
        }
        panic!("the sync does not end: {:?}", self.sessions);
    }

    /// Syncs until nothing is left to do.
    fn settle(&mut self) {
        for _ in 0..4 {
            let outcome = self.sync(None);
            assert!(matches!(outcome, SessionOutcome::Done(_)), "{outcome:?}");
        }
        let centre: Vec<(i64, String)> = self.centre.rows.clone().into_iter().collect();
        assert_eq!(self.remote.items(), centre);
        let state = &self.remote.open().subscriptions().unwrap()[0];
        assert_eq!((state.taken, state.giving), (None, None));
        assert_eq!(state.compare_due, CompareDue::No);
    }
}

#[test]
fn what_a_restored_centre_forgot_is_given_back_in_order_and_the_tables_are_compared() {
    let mut world = World::new();
    world.back_up();
    world.local(1, true);
    world.sync(None);
    world.local(1, true);
    world.local(7, true);
    world.sync(None);
    let before = world.centre.rows.clone();
    world.restore(1);
    assert_ne!(world.centre.rows, before);
    world.sync(None);
    assert_eq!(world.centre.rows, before);
    let gives = [
        "SignIn",
        "Hello",
        "UploadBegin",
        "TableBegin",
        "UploadEnd",
        "DownloadRequest",
    ];
    let compares = ["SignIn", "Hello", "CompareTable", "DownloadRequest"];
    assert_eq!(world.sessions[0], ["SignIn", "Hello", "DownloadRequest"]);
    assert_eq!(world.sessions[1..3], [gives, gives]);
    assert_eq!(world.sessions[3..], [compares]);
    world.settle();
}

#[test]
fn a_centre_that_lacks_the_last_upload_is_given_that_alone() {
    let mut world = World::new();
    for _ in 0..2 {
        world.local(0, true);
        world.sync(None);
    }
    world.back_up();
    world.local(0, false);
    world.sync(None);
    world.restore(1);
    world.sync(None);
    let uploads = world.sessions.iter();
    let uploads = uploads.filter(|names| names.contains(&"UploadBegin"));
    assert_eq!(uploads.count(), 1);
    assert!(!world.centre.rows.contains_key(&0));
    world.settle();
}

#[test]
fn what_is_pending_goes_up_after_what_is_given_back_and_before_the_compare() {
    let mut world = World::new();
    world.back_up();
    world.local(1, true);
    world.sync(None);
    world.restore(1);
    world.local(1, true);
    world.local(8, true);
    world.sync(None);
    let uploads = world
        .sessions
        .iter()
        .map(|names| names.contains(&"UploadBegin"));
    // The first is ignored: the centre is found to be restored.
    assert_eq!(uploads.collect::<Vec<_>>(), [true, true, true, false]);
    assert_eq!(world.centre.rows[&1], "l5");
    assert_eq!(world.centre.rows[&8], "l6");
    world.settle();
}

#[test]
fn a_centre_from_before_it_knew_the_remote_is_given_everything_back() {
    let mut world = World::new();
    world.local(1, true);
    world.local(9, true);
    world.sync(None);
    world.restore(0);
    for id in 2..=3 {
        world.central(id, true);
    }
    world.settle();
    assert_eq!(world.centre.rows[&9], "l5");
    assert!(!world.centre.rows.contains_key(&1), "its pre-image is gone");
    assert!(world.centre.lost.contains("l4"));
}

#[test]
fn a_removed_remote_gives_nothing_back() {
    let mut world = World::new();
    world.local(9, true);
    world.sync(None);
    world.central(9, false);
    // The operator removes it; the history is the same.
    let removed = world.centre.remote.take();
    world.centre.removed.extend(removed);
    world.centre.upload = None;
    world.settle();
    assert!(!world.centre.rows.contains_key(&9));
    let applied = world.centre.applied.iter().filter(|it| *it == "l4");
    assert_eq!(applied.count(), 1);
}

#[test]
fn a_given_back_change_that_lost_is_a_conflict_and_the_centres_row_counts() {
    let mut world = World::new();
    world.back_up();
    world.local(1, true);
    world.sync(None);
    world.restore(1);
    world.central(1, true);
    world.sync(None);
    assert_eq!(world.conflicts, 1);
    assert!(world.centre.lost.contains("l4"));
    assert_eq!(world.remote.items()[0], (1, "c5".to_owned()));
    world.settle();
}

#[test]
fn a_large_table_that_is_equal_costs_little_and_one_row_costs_one_range() {
    let mut world = World::new();
    for id in 10..100_010 {
        world.centre.change(id, Some(format!("row number {id}")));
    }
    world.settle();
    world.back_up();
    world.sync(None);
    world.restore(1);
    world.sync(None);
    assert!(world.traffic < 64 << 10, "{}", world.traffic);
    let equal = world.traffic;
    world.restore(1);
    world.central(50_000, true);
    world.sync(None);
    assert!(world.traffic < equal + (16 << 10), "{}", world.traffic);
    assert_eq!(world.remote.items().len(), world.centre.rows.len());
    world.settle();
}

#[test]
fn a_centre_restored_again_to_before_it_knew_the_remote_is_shown_the_proof() {
    let mut world = World::new();
    world.back_up();
    world.local(9, true);
    world.sync(None);
    world.restore(1);
    // It says that it was restored; then the connection is lost.
    world.sync(Some((1, 0, 0)));
    world.restore(0);
    world.settle();
    assert_eq!(world.centre.rows[&9], "l4");
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Local(i64, bool),
    Central(i64, bool),
    BackUp,
    Restore(usize),
    Sync(Option<(usize, usize, usize)>),
}

fn event() -> impl Strategy<Value = Event> {
    let lost = (0..5usize, 0..1400usize, 0..1000usize);
    prop_oneof![
        4 => (0..6i64, 0..4u8).prop_map(|(id, kind)| Event::Local(id, kind > 0)),
        2 => (0..6i64, 0..4u8).prop_map(|(id, kind)| Event::Central(id, kind > 0)),
        2 => Just(Event::BackUp),
        2 => (0..8usize).prop_map(Event::Restore),
        3 => Just(Event::Sync(None)),
        3 => lost.prop_map(|lost| Event::Sync(Some(lost))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn restores_and_lost_connections_anywhere_end_equal_and_nothing_acknowledged_is_lost(
        events in proptest::collection::vec(event(), 1..20),
    ) {
        let mut world = World::new();
        let mut arrived = BTreeSet::new();
        for event in events {
            match event {
                Event::Local(id, writes) => world.local(id, writes),
                Event::Central(id, writes) => world.central(id, writes),
                Event::BackUp => world.back_up(),
                Event::Restore(backup) => world.restore(backup),
                Event::Sync(lost) => {
                    let outcome = world.sync(lost);
                    prop_assert!(
                        lost.is_some() || matches!(outcome, SessionOutcome::Done(_)),
                        "{:?}", outcome
                    );
                }
            }
            arrived.extend(world.centre.applied.iter().cloned());
            arrived.extend(world.centre.lost.iter().cloned());
        }
        world.settle();
        for value in arrived {
            prop_assert!(
                world.centre.applied.contains(&value) || world.centre.lost.contains(&value),
                "{} was acknowledged and forgotten", value
            );
        }
    }
}
