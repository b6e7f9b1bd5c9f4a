//! A remote against a server in memory, with edits on both sides at any moment and a
//! network that loses the connection in either direction, at any byte.
//!
//! Whatever happens, nothing is applied twice, and when everybody has come to rest both
//! sides hold the same rows.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tidewater_protocol::frame::Frame;
use tidewater_protocol::message::{
    Control, DownloadEnd, HelloSubscription, ResultEnd, UploadBegin, UploadState,
};
use tidewater_protocol::{Datum, Op, RowsReader, RowsWriter, UnpackedRow};

use crate::scripted::{
    Remote, Reply, SentMessages, answer, download_begin, items, options, result_begin, schema,
};
use crate::session::SessionOutcome;

/// What the server keeps.
#[derive(Default)]
struct Centre {
    rows: BTreeMap<i64, String>,
    /// The keys that changed, oldest first. A checkpoint is a position in it.
    log: Vec<i64>,
    upload: Option<UploadBegin>,
    /// The stored result of the last upload.
    result: Vec<u8>,
    /// Every value that an upload brought. Each is written by one edit only.
    applied: BTreeSet<String>,
}

/// What a remote sent, put together.
#[derive(Default)]
struct Request {
    hello: Option<HelloSubscription>,
    upload: Option<UploadBegin>,
    uploaded: Vec<u8>,
    asked: Vec<u8>,
    complete: bool,
}

impl Request {
    fn read(sent: &SentMessages) -> Request {
        let mut request = Request::default();
        let mut asking = false;
        for frame in &sent.frames {
            match frame {
                Frame::Rows { bytes, .. } if asking => request.asked.extend_from_slice(bytes),
                Frame::Rows { bytes, .. } => request.uploaded.extend_from_slice(bytes),
                Frame::Message { .. } => panic!("a sync has no messages"),
                Frame::Control { control, .. } => match control.as_ref().unwrap() {
                    Control::Hello(hello) => request.hello = Some(hello.subscriptions[0].clone()),
                    Control::UploadBegin(begin) => request.upload = Some(begin.clone()),
                    Control::UploadEnd(end) => {
                        assert_eq!(end.checksum, crc32fast::hash(&request.uploaded));
                    }
                    Control::RequestBegin(_) => asking = true,
                    Control::DownloadRequest(_) => request.complete = true,
                    _ => {}
                },
            }
        }
        request
    }
}

impl Centre {
    fn change(&mut self, id: i64, name: Option<String>) {
        match name {
            Some(name) => self.rows.insert(id, name),
            None => self.rows.remove(&id),
        };
        self.log.push(id);
    }

    /// Serves what has arrived of a sync.
    fn serve(&mut self, sent: &SentMessages) -> Reply {
        let request = Request::read(sent);
        let Some(hello) = &request.hello else {
            return Reply::default();
        };
        let (sequence, upload_id) = match &self.upload {
            Some(upload) => (upload.sequence, upload.upload_id.clone()),
            None => (0, Vec::new()),
        };
        let state = if (hello.sequence, &hello.upload_id) == (sequence, &upload_id) {
            UploadState::InSequence
        } else {
            let retry = (hello.sequence + 1, &hello.pending_upload_id);
            assert_eq!(
                retry,
                (sequence, &upload_id),
                "the remote looks like a copy"
            );
            UploadState::AlreadyApplied
        };
        let new_schema = hello.schema_hash.is_empty().then(schema);
        let reply = Reply::default().welcome(state, new_schema.as_ref());
        if !request.complete {
            return reply;
        }
        let reply = match (&request.upload, state) {
            (Some(upload), UploadState::InSequence) => {
                assert_eq!(upload.sequence, sequence + 1);
                self.apply(&request.uploaded);
                self.upload = Some(upload.clone());
                self.tell_result(reply)
            }
            (_, UploadState::AlreadyApplied) => self.tell_result(reply),
            _ => reply,
        };
        self.tell_download(reply, &hello.checkpoint, &request.asked)
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

    fn tell_download(&self, reply: Reply, checkpoint: &[u8], asked: &[u8]) -> Reply {
        let since = match checkpoint {
            [] => None,
            bytes => Some(u64::from_le_bytes(bytes.try_into().unwrap()) as usize),
        };
        let mut keys: BTreeSet<i64> = self.log[since.unwrap_or(0)..].iter().copied().collect();
        if since.is_none() {
            keys = self.rows.keys().copied().collect();
        }
        each(asked, |row| {
            keys.insert(integer(&row.key[0]));
        });
        let mut rows = Vec::new();
        let (mut upserts, mut removals) = (0, 0);
        for key in keys {
            match self.rows.get(&key) {
                Some(name) => {
                    upserts += 1;
                    rows.extend(items(Op::Upsert, &[(key, name)]));
                }
                None => {
                    removals += 1;
                    rows.extend(items(Op::Remove, &[(key, "")]));
                }
            }
        }
        reply
            .control(download_begin(0))
            .table(since.is_none())
            .rows(&rows)
            .control(Control::DownloadEnd(DownloadEnd {
                checkpoint: (self.log.len() as u64).to_le_bytes().to_vec(),
                upserts,
                removals,
                checksum: crc32fast::hash(&rows),
            }))
            .end()
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
            if current == old {
                if let Some(new) = &new {
                    assert!(self.applied.insert(new.clone()), "{new} was applied twice");
                }
                self.change(id, new);
            } else if current != new {
                let key = Datum::Integer(id);
                match &current {
                    Some(name) => result.row(Op::ConflictRow, &[key, Datum::Text(name)]),
                    None => result.key(Op::ConflictGone, &[key]),
                }
            }
        }
        self.result = result.take();
    }
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

#[derive(Clone, Copy, Debug)]
enum Edit {
    Write(i64),
    Delete(i64),
}

/// One sync, and what happens during it.
#[derive(Clone, Debug)]
struct Step {
    local: Vec<Edit>,
    central: Vec<Edit>,
    /// Between taking and reading.
    early: Vec<Edit>,
    /// While the answer is on its way.
    late: Vec<Edit>,
    /// Where the connection is lost, in per mille of what each side sends.
    lost_up: Option<usize>,
    lost_down: Option<usize>,
}

struct World {
    remote: Remote,
    centre: Centre,
    edits: u64,
}

impl World {
    fn local(&mut self, edits: &[Edit]) {
        for edit in edits {
            self.edits += 1;
            self.remote.run(&match edit {
                Edit::Write(id) => format!(
                    "INSERT INTO item VALUES ({id}, 'l{}') \
                     ON CONFLICT (id) DO UPDATE SET name = excluded.name",
                    self.edits
                ),
                Edit::Delete(id) => format!("DELETE FROM item WHERE id = {id}"),
            });
        }
    }

    fn central(&mut self, edits: &[Edit]) {
        for edit in edits {
            self.edits += 1;
            match edit {
                Edit::Write(id) => self.centre.change(*id, Some(format!("c{}", self.edits))),
                Edit::Delete(id) => self.centre.change(*id, None),
            }
        }
    }

    fn sync(&mut self, step: &Step) -> SessionOutcome {
        let mut connection = self.remote.session(options());
        self.local(&step.early);
        let mut flight = Vec::new();
        while let Some(bytes) = connection.poll_transmit() {
            flight.extend_from_slice(&bytes);
        }
        let cut = |length: usize, lost: Option<usize>| {
            lost.map_or(length, |per_mille| length * per_mille / 1000)
        };
        let mut sent = SentMessages::default();
        sent.push(&flight[..cut(flight.len(), step.lost_up)]);
        let reply = self.centre.serve(&sent).0;
        self.local(&step.late);
        answer(&mut connection, &reply[..cut(reply.len(), step.lost_down)]);
        connection.end_sync().unwrap().1
    }
}

const QUIET: Step = Step {
    local: Vec::new(),
    central: Vec::new(),
    early: Vec::new(),
    late: Vec::new(),
    lost_up: None,
    lost_down: None,
};

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let edit = (0..6i64, 0..3u8).prop_map(|(id, kind)| match kind {
        0 => Edit::Delete(id),
        _ => Edit::Write(id),
    });
    proptest::collection::vec(edit, 0..3)
}

fn step() -> impl Strategy<Value = Step> {
    let lost = || proptest::option::of(0..1000usize);
    (edits(), edits(), edits(), edits(), lost(), lost()).prop_map(
        |(local, central, early, late, lost_up, lost_down)| Step {
            local,
            central,
            early,
            late,
            // Mostly one direction at a time: the other then has its say.
            lost_up: lost_up.filter(|per_mille| per_mille % 3 == 0),
            lost_down,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn edits_and_lost_connections_anywhere_end_in_equal_rows_applied_once(
        steps in proptest::collection::vec(step(), 1..12),
    ) {
        let mut world = World {
            remote: Remote::new(),
            centre: Centre::default(),
            edits: 0,
        };
        world.central(&[Edit::Write(1), Edit::Write(2), Edit::Write(3)]);
        let first = world.sync(&QUIET);
        prop_assert!(matches!(first, SessionOutcome::Done(_)), "{first:?}");
        for step in &steps {
            world.local(&step.local);
            world.central(&step.central);
            let lost = step.lost_up.is_some() || step.lost_down.is_some();
            let outcome = world.sync(step);
            prop_assert!(lost || matches!(outcome, SessionOutcome::Done(_)), "{outcome:?}");
        }
        // What broke off, what was changed meanwhile, what had to be asked for again.
        for _ in 0..4 {
            let outcome = world.sync(&QUIET);
            prop_assert!(matches!(outcome, SessionOutcome::Done(_)), "{outcome:?}");
        }
        let centre: Vec<(i64, String)> = world.centre.rows.into_iter().collect();
        prop_assert_eq!(world.remote.items(), centre);
        let state = world.remote.open().subscriptions().unwrap();
        prop_assert_eq!(state[0].taken, None);
    }
}
