use super::*;
use proptest::prelude::*;
use tidewater_protocol::{Column, ColumnType, Datum, RowsWriter, Table};

fn schema() -> PublicationSchema {
    let column = |name: &str, column_type| Column {
        name: name.into(),
        column_type,
        nullable: true,
        default: None,
    };
    PublicationSchema {
        name: "p".into(),
        tables: vec![Table {
            name: "t".into(),
            columns: vec![
                column("id", ColumnType::Integer),
                column("note", ColumnType::Text),
            ],
            key: vec![0],
            partition: vec![],
            unique: vec![],
            foreign_keys: vec![],
            direction: Default::default(),
            checks: Vec::new(),
            identity: None,
        }],
        transactional: false,
    }
}

const UPLOAD: UploadId = UploadId([7; 16]);

struct World {
    schema: PublicationSchema,
    limits: ServerLimits,
    budget: MemoryBudget,
}

impl World {
    fn new() -> World {
        World {
            schema: schema(),
            limits: ServerLimits::default(),
            budget: MemoryBudget::new(1 << 20),
        }
    }

    fn receiver(&self, state: UploadState) -> Receiver<'_> {
        let expected = ExpectedUpload {
            schema: &self.schema,
            state,
            sequence: 4,
            upload_id: Some(UPLOAD),
        };
        Receiver::new(
            &self.limits,
            &self.budget.of_session(),
            vec![expected],
            Vec::new(),
        )
    }

    fn header(&self) -> TableBegin {
        TableBegin::for_table(&self.schema.tables[0])
    }
}

fn begin() -> UploadBegin {
    UploadBegin {
        subscription: 0,
        sequence: 4,
        upload_id: UPLOAD.to_vec(),
        rows: 1_000,
        bytes: 1_000,
        given_back: false,
        copied: false,
        given_up: Vec::new(),
        ..UploadBegin::default()
    }
}

fn inserts(world: &World, notes: &[String]) -> Vec<u8> {
    let shape = world.schema.tables[0].shape();
    let mut writer = RowsWriter::new(&shape);
    for (id, note) in notes.iter().enumerate() {
        writer.row(Op::Insert, &[Datum::Integer(id as i64), Datum::Text(note)]);
    }
    writer.take()
}

fn end(inserts: u64, rows: &[u8]) -> UploadEnd {
    UploadEnd {
        inserts,
        checksum: crc32fast::hash(rows),
        ..UploadEnd::default()
    }
}

fn code<T>(result: Result<T, Fault>) -> Code {
    match result {
        Ok(_) => panic!("nothing was wrong"),
        Err(fault) => fault.code,
    }
}

proptest! {
    #[test]
    fn rows_arrive_whole_however_they_are_cut(
        lengths in proptest::collection::vec(0usize..30_000, 1..20),
        cut in 1usize..70_000,
    ) {
        let world = World::new();
        let notes: Vec<String> = lengths.iter().map(|&length| "x".repeat(length)).collect();
        let rows = inserts(&world, &notes);
        let mut receiver = world.receiver(UploadState::InSequence);
        receiver.upload_begin(begin()).unwrap();
        receiver.table_begin(world.header()).unwrap();
        for piece in rows.chunks(cut) {
            receiver.rows(piece).unwrap();
        }
        receiver.upload_end(end(notes.len() as u64, &rows)).unwrap();
        let received = receiver.finish().unwrap();
        prop_assert_eq!(received.rows, notes.len() as u64);
        prop_assert_eq!(received.bytes, rows.len() as u64);
        let tables = &received.uploads[0].tables;
        prop_assert_eq!(tables.len(), 1);
        let shape = world.schema.tables[0].shape();
        let mut joined = Vec::new();
        for chunk in &tables[0].chunks {
            let bytes = chunk.packed().unwrap();
            let mut reader = RowsReader::new(&shape, &bytes);
            while reader.next(&mut UnpackedRow::default()).unwrap() {}
            joined.extend_from_slice(&bytes);
        }
        prop_assert_eq!(joined, rows);
    }

    #[test]
    fn random_rows_are_refused_or_taken_but_never_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        cut in 1usize..50,
    ) {
        let world = World::new();
        let mut receiver = world.receiver(UploadState::InSequence);
        receiver.upload_begin(begin()).unwrap();
        receiver.table_begin(world.header()).unwrap();
        for piece in bytes.chunks(cut) {
            if receiver.rows(piece).is_err() {
                return Ok(());
            }
        }
        let _ = receiver.upload_end(end(0, &bytes));
    }
}

#[test]
fn counts_and_checksums_must_agree() {
    let world = World::new();
    let rows = inserts(&world, &["a".into(), "b".into()]);
    let sent = |end: UploadEnd, sent: &[u8]| {
        let mut receiver = world.receiver(UploadState::InSequence);
        receiver.upload_begin(begin())?;
        receiver.table_begin(world.header())?;
        receiver.rows(sent)?;
        receiver.upload_end(end)
    };
    sent(end(2, &rows), &rows).unwrap();
    assert_eq!(code(sent(end(3, &rows), &rows)), Code::ChecksumMismatch);
    assert_eq!(code(sent(end(2, b"x"), &rows)), Code::ChecksumMismatch);
    let cut = &rows[..rows.len() - 1];
    assert_eq!(code(sent(end(2, cut), cut)), Code::MalformedMessage);
}

#[test]
fn everything_has_its_turn() {
    let world = World::new();
    let receiver = || world.receiver(UploadState::InSequence);
    assert_eq!(code(receiver().rows(b"x")), Code::UnexpectedMessage);
    assert_eq!(
        code(receiver().table_begin(world.header())),
        Code::UnexpectedMessage
    );
    assert_eq!(
        code(receiver().upload_end(UploadEnd::default())),
        Code::UnexpectedMessage
    );
    let mut open = receiver();
    open.upload_begin(begin()).unwrap();
    assert_eq!(
        code(open.request_begin(RequestBegin::default())),
        Code::UnexpectedMessage
    );
    assert_eq!(code(open.finish()), Code::UnexpectedMessage);
    let mut twice = receiver();
    twice.upload_begin(begin()).unwrap();
    twice.upload_end(UploadEnd::default()).unwrap();
    assert_eq!(code(twice.upload_begin(begin())), Code::UnexpectedMessage);
    for other in [
        UploadBegin {
            subscription: 1,
            ..begin()
        },
        UploadBegin {
            sequence: 5,
            ..begin()
        },
        UploadBegin {
            upload_id: vec![1; 16],
            ..begin()
        },
    ] {
        assert_eq!(
            code(receiver().upload_begin(other)),
            Code::UnexpectedMessage
        );
    }
}

#[test]
fn downloads_operations_cannot_be_uploaded() {
    let world = World::new();
    let shape = world.schema.tables[0].shape();
    let mut writer = RowsWriter::new(&shape);
    writer.row(Op::Upsert, &[Datum::Integer(1), Datum::Null]);
    let mut receiver = world.receiver(UploadState::InSequence);
    receiver.upload_begin(begin()).unwrap();
    receiver.table_begin(world.header()).unwrap();
    assert_eq!(code(receiver.rows(&writer.take())), Code::UnexpectedMessage);
}

#[test]
fn limits_are_limits() {
    let mut world = World::new();
    world.limits.upload_rows = 3;
    world.limits.upload_bytes = 1_000_000;
    world.limits.row_bytes = 10_000;
    let sent = |notes: &[String]| {
        let rows = inserts(&world, notes);
        let mut receiver = world.receiver(UploadState::InSequence);
        receiver.upload_begin(UploadBegin { rows: 3, ..begin() })?;
        receiver.table_begin(world.header())?;
        rows.chunks(5_000)
            .try_for_each(|piece| receiver.rows(piece))
    };
    sent(&["a".into(), "b".into()]).unwrap();
    let many = vec!["a".to_owned(); 4];
    assert_eq!(code(sent(&many)), Code::LimitExceeded);
    assert_eq!(code(sent(&["a".repeat(30_000)])), Code::LimitExceeded);
    assert_eq!(code(sent(&["a".repeat(2_000_000)])), Code::LimitExceeded);
    let mut receiver = world.receiver(UploadState::InSequence);
    assert_eq!(code(receiver.upload_begin(begin())), Code::LimitExceeded);
}

#[test]
fn a_row_longer_than_all_memory_is_taken_unless_another_session_is_beyond_it() {
    let mut world = World::new();
    world.budget = MemoryBudget::new(300_000);
    let rows = inserts(&world, &["x".repeat(600_000)]);
    let taken = || {
        let mut receiver = world.receiver(UploadState::InSequence);
        receiver.upload_begin(begin())?;
        receiver.table_begin(world.header())?;
        let mut pieces = rows.chunks(64 << 10);
        pieces.try_for_each(|piece| receiver.rows(piece))?;
        receiver.upload_end(end(1, &rows))
    };
    let mut other = world.budget.of_session().empty();
    assert!(other.grow_anyway(400_000));
    assert_eq!(code(taken()), Code::Busy);
    drop(other);
    taken().unwrap();
    assert_eq!(world.budget.gauge().reserved_bytes(), 0);
}

#[test]
fn rows_go_to_a_file_while_another_session_fills_the_memory() {
    let mut world = World::new();
    world.budget = MemoryBudget::new(100_000);
    let mut other = world.budget.of_session().empty();
    assert!(other.grow_anyway(400_000));
    let notes: Vec<String> = (0..300).map(|_| "x".repeat(1_000)).collect();
    let rows = inserts(&world, &notes);
    let mut receiver = world.receiver(UploadState::InSequence);
    receiver.upload_begin(begin()).unwrap();
    receiver.table_begin(world.header()).unwrap();
    for piece in rows.chunks(10_000) {
        receiver.rows(piece).unwrap();
    }
    receiver.upload_end(end(300, &rows)).unwrap();
    let received = receiver.finish().unwrap();
    let chunks = received.uploads[0].tables[0].chunks.iter();
    let packed: Vec<u8> = chunks.flat_map(|it| it.packed().unwrap()).collect();
    assert_eq!(packed, rows);
}

#[test]
fn keys_are_asked_for_although_the_rows_of_the_same_sync_fill_the_memory() {
    let mut world = World::new();
    let rows = inserts(&world, &["x".repeat(1_000)]);
    let marks = std::mem::size_of::<RowMark>();
    world.budget = MemoryBudget::new((rows.len() + marks) as u64);
    let mut receiver = world.receiver(UploadState::InSequence);
    receiver.upload_begin(begin()).unwrap();
    receiver.table_begin(world.header()).unwrap();
    receiver.rows(&rows).unwrap();
    receiver.upload_end(end(1, &rows)).unwrap();
    assert_eq!(world.budget.free(), 0);
    let shape = world.schema.tables[0].shape();
    let mut writer = RowsWriter::new(&shape);
    writer.key(Op::Request, &[Datum::Integer(5)]);
    receiver.request_begin(RequestBegin::default()).unwrap();
    receiver.table_begin(world.header()).unwrap();
    receiver.rows(&writer.take()).unwrap();
    assert_eq!(receiver.finish().unwrap().requests[0].len(), 1);
    assert_eq!(world.budget.gauge().reserved_bytes(), 0);
}

#[test]
fn an_upload_that_the_server_has_is_counted_and_dropped() {
    let world = World::new();
    let rows = inserts(&world, &["a".into()]);
    let mut receiver = world.receiver(UploadState::AlreadyApplied);
    receiver.upload_begin(begin()).unwrap();
    receiver.table_begin(world.header()).unwrap();
    receiver.rows(&rows).unwrap();
    receiver.upload_end(end(1, &rows)).unwrap();
    let received = receiver.finish().unwrap();
    assert!(received.uploads.is_empty());
    assert_eq!(received.reservation.bytes(), 0);
}

#[test]
fn an_abandoned_upload_leaves_nothing_even_inside_a_row() {
    let world = World::new();
    let rows = inserts(&world, &["abc".into()]);
    let mut receiver = world.receiver(UploadState::InSequence);
    receiver.upload_begin(begin()).unwrap();
    receiver.table_begin(world.header()).unwrap();
    receiver.rows(&rows[..3]).unwrap();
    let abandoned = UploadEnd {
        abandoned: true,
        ..UploadEnd::default()
    };
    receiver.upload_end(abandoned).unwrap();
    assert!(receiver.finish().unwrap().uploads.is_empty());
}

#[test]
fn keys_are_asked_for_again_by_table() {
    let world = World::new();
    let shape = world.schema.tables[0].shape();
    let mut writer = RowsWriter::new(&shape);
    writer.key(Op::Request, &[Datum::Integer(5)]);
    writer.key(Op::Request, &[Datum::Integer(6)]);
    let rows = writer.take();
    let mut receiver = world.receiver(UploadState::InSequence);
    receiver.request_begin(RequestBegin::default()).unwrap();
    receiver.table_begin(world.header()).unwrap();
    receiver.rows(&rows[..1]).unwrap();
    receiver.rows(&rows[1..]).unwrap();
    let mut unknown = world.header();
    unknown.table = "gone".into();
    receiver.table_begin(unknown).unwrap();
    receiver.rows(b"whatever").unwrap();
    let received = receiver.finish().unwrap();
    assert_eq!(received.requests[0].len(), 1);
    assert_eq!(received.requests[0][0].rows, rows);
}
