//! Golden byte vectors: what `docs/protocol.md` specifies, pinned to the byte.
//!
//! `vectors.txt` holds one vector a line, `name hex`. Vectors are only ever
//! added: run with `TIDEWATER_ADD_VECTORS=1` to append those that are missing.

mod controls;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use bytes::BytesMut;
use prost::Message as _;
use sha2::{Digest, Sha256};
use tidewater_protocol::compare;
use tidewater_protocol::decimal::Decimal;
use tidewater_protocol::event::{self, EventPosition, EventsReader};
use tidewater_protocol::frame::{self, Frame};
use tidewater_protocol::message::*;
use tidewater_protocol::pack::{self, RowsWriter};
use tidewater_protocol::*;

use self::controls::{controls, controls_at_odds};

/// The first so many lines of the vectors as they were committed, and their SHA-256: to
/// change one is to change the protocol. Whoever adds vectors adds a line here.
const COMMITTED: [(usize, &str); 16] = [
    (
        64,
        "196e976d322cd0360e17379abd1dc5ab5a05014a2b154567403de568b64040b1",
    ),
    (
        66,
        "8b8f96d66f0e710274adcd2f54575b9ff57449828b632db42106b0f8f0d92830",
    ),
    (
        70,
        "089b4ab06323f30ec4455f9459fdaebe8fdd43e7ea250d48f71552b3a99a0977",
    ),
    (
        73,
        "acf71ac1db9785e9863a5774910f491720ff5205f7b8db2b96830143d19840b4",
    ),
    (
        74,
        "2d0ef965f7ef180327088d1d7fcb90ede7ab2d58c3c44dcf6275fd2fd31f00ce",
    ),
    (
        77,
        "b832e026611eca6ae7791a4e8ec82f1cd050126274531173565db221083d35e0",
    ),
    (
        78,
        "8356e32e4f6b0d23e20a443a97fb9fba601bf85fdc02e83831e58233f3f2fc56",
    ),
    (
        80,
        "ee49d128c88e5d72ad86fd567430c840740457ed97ce6cef21a778d48c1de961",
    ),
    (
        82,
        "c4a779db62405d09740fa184a2f8cbd746367033541963d17d813c979d98b94c",
    ),
    (
        83,
        "6a03f62984fce612376078437d00abf8b7972f8240c8e2d5ee805a433bb1a136",
    ),
    (
        85,
        "6acf99475880589b3cb53f763a9ab250de97a564e13b73f135279b4b108a0b8a",
    ),
    (
        86,
        "3287089ff2e3be21d987358fb71f0b156e8621b5aa8b6b96b0a4eeba69cb02be",
    ),
    (
        89,
        "86d61bbd57b9bef537f92799452286e8938ccea55009e3be7fa62d2eba95e902",
    ),
    (
        92,
        "c9b154b4b3932d435c5e25c8517c2ec1338376a47f181d3785f8aac439ddaa73",
    ),
    (
        93,
        "d0fcb76c89f859ef66c880340bbbf8ebcedbe5a49c4ce4290ad6c46978a17159",
    ),
    (
        94,
        "a6a7da3306ae9d95fdf7acb14d16babd87c73071c21ad53e6853397539c9ef33",
    ),
];

/// Version 1.0, in which the vectors are.
const VERSION: u32 = 1 << 16;

fn publication() -> PublicationSchema {
    let types = [
        ("id", ColumnType::Integer),
        ("amount", ColumnType::Decimal { scale: Some(2) }),
        ("ratio", ColumnType::Real),
        ("done", ColumnType::Boolean),
        ("name", ColumnType::Text),
        ("photo", ColumnType::Bytes),
        ("born", ColumnType::Date),
        ("opens", ColumnType::Time),
        ("seen", ColumnType::Timestamp),
        ("sent", ColumnType::TimestampTz),
        ("uuid", ColumnType::Uuid),
        ("extra", ColumnType::Json),
        ("mood", ColumnType::Opaque),
    ];
    let columns = types
        .into_iter()
        .enumerate()
        .map(|(index, (name, column_type))| Column {
            name: name.into(),
            column_type,
            nullable: index > 0,
            default: (name == "done").then(|| "0".into()),
        });
    PublicationSchema {
        name: "sales".into(),
        tables: vec![Table {
            name: "everything".into(),
            columns: columns.collect(),
            key: vec![0, 10],
            partition: vec![4],
            unique: vec![vec![4]],
            foreign_keys: vec![ForeignKey {
                columns: vec![0],
                parent: "parent".into(),
                parent_columns: vec!["id".into()],
                on_delete: ForeignKeyAction::Cascade,
                on_update: ForeignKeyAction::SetNull,
            }],
            direction: Direction::Both,
            checks: Vec::new(),
            identity: None,
        }],
        transactional: false,
    }
}

fn full_row() -> Vec<Datum<'static>> {
    vec![
        Datum::Integer(-300),
        Datum::Decimal(Decimal::Exact {
            unscaled: 12_345_678_912,
            scale: 2,
        }),
        Datum::Real(0.1),
        Datum::Boolean(true),
        Datum::Text("Zoë"),
        Datum::Bytes(&[0, 255]),
        Datum::Date(20_000),
        Datum::Time(86_399_999_999),
        Datum::Timestamp(-1),
        Datum::TimestampTz(1_700_000_000_000_000),
        Datum::Uuid(*b"0123456789abcdef"),
        Datum::Text("{\"a\": 1}"),
        Datum::Text("glad"),
    ]
}

fn extreme_row() -> Vec<Datum<'static>> {
    vec![
        Datum::Integer(i64::MIN),
        Datum::Decimal(Decimal::Text("NaN")),
        Datum::Real(f64::NEG_INFINITY),
        Datum::Boolean(false),
        Datum::Text(""),
        Datum::Bytes(&[]),
        Datum::Date(i64::MAX),
        Datum::Time(86_400_000_000),
        Datum::Timestamp(i64::MIN),
        Datum::TimestampTz(i64::MAX),
        Datum::Uuid([0; 16]),
        Datum::Null,
        Datum::Null,
    ]
}

fn rows(write: impl FnOnce(&mut RowsWriter<'_>)) -> Vec<u8> {
    let shape = publication().tables[0].shape();
    let mut writer = RowsWriter::new(&shape);
    write(&mut writer);
    writer.take()
}

fn key() -> Vec<Datum<'static>> {
    vec![full_row()[0], full_row()[10]]
}

fn later_key() -> Vec<Datum<'static>> {
    vec![Datum::Integer(7), full_row()[10]]
}

/// A key as the bounds of ranges carry it.
fn range_key(key: &[Datum<'_>]) -> Vec<u8> {
    let mut packed = Vec::new();
    let shape = publication().tables[0].shape();
    compare::pack_key(&mut packed, &shape.key_columns(), key);
    packed
}

/// Name, subject, position and payload.
type GoldenEvent = (
    &'static str,
    &'static str,
    Option<EventPosition>,
    &'static [u8],
);

fn events() -> [GoldenEvent; 2] {
    let position = EventPosition {
        id: 0x0123_4567_89ab_cdef,
        check: 42,
    };
    [
        ("event", "fleet/unit.7.position", None, b"52.5,13.4"),
        ("event-durable", "orders/new", Some(position), &[0, 255]),
    ]
}

/// Messages of the channel of calls, with every field of each.
fn calls() -> Vec<(&'static str, CallKind, Vec<u8>)> {
    let given = [
        ("nothing", None),
        ("flag", Some(ArgumentValue::Boolean(true))),
        ("count", Some(ArgumentValue::Integer(-7))),
        ("ratio", Some(ArgumentValue::Real(1.5))),
        ("name", Some(ArgumentValue::Text("Zoë".into()))),
        ("photo", Some(ArgumentValue::Bytes(vec![0, 255].into()))),
        ("list", Some(ArgumentValue::Json("[1]".into()))),
    ];
    let call = Call {
        procedure: "price".into(),
        arguments: given.map(|(name, it)| Argument::new(name, it)).into(),
        to: "user:ada".into(),
        key: vec![7; 16].into(),
        user: "bob".into(),
        remote_id: vec![9; 16].into(),
    };
    let columns = vec![
        ColumnHeader::new("id", ColumnType::Integer),
        ColumnHeader::new("price", ColumnType::Decimal { scale: Some(2) }),
    ];
    let price = Datum::Decimal(Decimal::Exact {
        unscaled: 120,
        scale: 2,
    });
    let answer = Answer::new(Returns::Row, columns, &[&[Datum::Integer(7), price]]);
    let failed = CallFailed {
        own_code: "P0001".into(),
        retry_after_ms: 500,
        ..CallFailed::argument("item", "is no integer")
    };
    vec![
        ("call", CallKind::Call, call.encode_to_vec()),
        ("answer", CallKind::Answer, answer.encode_to_vec()),
        ("failed", CallKind::Failed, failed.encode_to_vec()),
        ("cancel", CallKind::Cancel, Vec::new()),
    ]
}

/// Every vector as this version of the library writes it.
fn vectors() -> BTreeMap<String, Vec<u8>> {
    let mut vectors = BTreeMap::new();
    vectors.insert("preface".into(), frame::PREFACE.to_vec());
    vectors.insert("schema".into(), publication().encode());
    let transactional = PublicationSchema {
        transactional: true,
        ..publication()
    };
    vectors.insert("schema-transactional".into(), transactional.encode());
    for (name, kind, payload) in calls() {
        let message = frame::Message {
            id: 3,
            deadline_ms: 5_000,
            flags: kind as u8,
            payload: payload.into(),
        };
        let mut wire = BytesMut::new();
        frame::put_message(&mut wire, frame::CALL_CHANNEL, &message).unwrap();
        vectors.insert(format!("call-{name}"), wire.to_vec());
    }
    vectors.insert("schema-hash".into(), publication().hash().to_vec());
    for (name, control) in controls().into_iter().chain(controls_at_odds()) {
        let mut wire = BytesMut::new();
        frame::put_control(&mut wire, frame::SYNC_CHANNEL, control).unwrap();
        vectors.insert(format!("control-{name}"), wire.to_vec());
    }
    let mut wire = BytesMut::new();
    frame::put_rows(&mut wire, frame::SYNC_CHANNEL, &[1, 2, 3]);
    vectors.insert("rows-frame".into(), wire.to_vec());
    let mut wire = BytesMut::new();
    let message = frame::Message {
        id: 7,
        deadline_ms: 250,
        flags: 1,
        payload: b"price"[..].into(),
    };
    frame::put_message(&mut wire, 2, &message).unwrap();
    vectors.insert("message-frame".into(), wire.to_vec());
    for (name, subject, position, payload) in events() {
        let mut packed = BytesMut::new();
        event::put_event(&mut packed, subject, position, payload).unwrap();
        vectors.insert(name.into(), packed.to_vec());
    }

    let (full, extreme) = (full_row(), extreme_row());
    let mut loose = full_row();
    loose[0] = Datum::Loose(ValueRef::Text("no number"));
    loose[2] = Datum::Loose(ValueRef::Blob(&[1]));
    let mut packed = |name: &str, bytes| vectors.insert(format!("row-{name}"), bytes);
    packed("insert", rows(|writer| writer.row(Op::Insert, &full)));
    packed(
        "insert-extremes",
        rows(|writer| writer.row(Op::Insert, &extreme)),
    );
    packed(
        "insert-loose",
        rows(|writer| writer.row(Op::Insert, &loose)),
    );
    packed("update", rows(|writer| writer.update(&full, &extreme)));
    packed(
        "update-of-nothing",
        rows(|writer| writer.update(&full, &full)),
    );
    packed("delete", rows(|writer| writer.delete(&full)));
    packed("request", rows(|writer| writer.key(Op::Request, &key())));
    packed("upsert", rows(|writer| writer.row(Op::Upsert, &full)));
    packed("remove", rows(|writer| writer.key(Op::Remove, &key())));
    packed(
        "refused",
        rows(|writer| {
            writer.refused(
                &key(),
                Op::Update,
                Code::RowCheck.number(),
                "amount must be positive",
            );
        }),
    );
    packed(
        "conflict-row",
        rows(|writer| writer.row(Op::ConflictRow, &full)),
    );
    packed("made", rows(|writer| writer.row(Op::Made, &full)));
    packed("merged", rows(|writer| writer.row(Op::Merged, &full)));
    packed(
        "conflict-gone",
        rows(|writer| writer.key(Op::ConflictGone, &key())),
    );
    let mut values = Vec::new();
    pack::pack_values(&mut values, &publication().tables[0].shape().columns, &full);
    vectors.insert("values".into(), values);

    let mut loose_key = key();
    loose_key[1] = Datum::Loose(ValueRef::Blob(&[1, 2]));
    vectors.insert("range-key".into(), range_key(&key()));
    vectors.insert("range-key-loose".into(), range_key(&loose_key));
    for (name, row) in [("full", &full), ("extremes", &extreme), ("loose", &loose)] {
        let checksum = compare::row_checksum(&rows(|writer| writer.row(Op::Upsert, row)));
        vectors.insert(
            format!("checksum-of-row-{name}"),
            checksum.to_le_bytes().to_vec(),
        );
    }
    vectors
}

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/vectors.txt")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn golden() -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(path()).unwrap_or_default();
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, hex) = line.split_once(' ').expect("a line is `name hex`");
            (name.to_owned(), hex.to_owned())
        })
        .collect()
}

#[test]
fn the_bytes_are_those_of_the_golden_vectors() {
    let mut golden = golden();
    if std::env::var_os("TIDEWATER_ADD_VECTORS").is_some() {
        let mut text = std::fs::read_to_string(path()).unwrap_or_default();
        for (name, bytes) in vectors() {
            if !golden.contains_key(&name) {
                let _ = writeln!(text, "{name} {}", hex(&bytes));
            }
        }
        std::fs::write(path(), text).unwrap();
        golden = self::golden();
    }
    for (name, bytes) in vectors() {
        let expected = golden.remove(&name);
        assert_eq!(Some(hex(&bytes)), expected, "vector {name}");
    }
    assert!(
        golden.is_empty(),
        "vectors that nothing checks: {:?}",
        golden.keys()
    );
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex digits"))
        .collect()
}

#[test]
fn committed_vectors_are_what_they_were() {
    let text = include_str!("vectors.txt");
    for (count, expected) in COMMITTED {
        let lines: Vec<&str> = text.lines().take(count).collect();
        let hash = Sha256::digest(lines.join("\n") + "\n");
        let hash = hash.iter().fold(String::new(), |mut hex, byte| {
            write!(hex, "{byte:02x}").expect("a string takes anything");
            hex
        });
        assert_eq!(hash, expected, "the first {count} lines");
    }
    let (last, _) = COMMITTED[COMMITTED.len() - 1];
    assert_eq!(
        text.lines().count(),
        last,
        "new vectors are not in COMMITTED"
    );
}

#[test]
fn golden_control_frames_are_understood() {
    let golden = golden();
    for (name, control) in controls().into_iter().chain(controls_at_odds()) {
        let bytes = unhex(&golden[&format!("control-{name}")]);
        let mut wire = BytesMut::from(&bytes[..]);
        let frame = frame::take_frame(&mut wire).unwrap().unwrap();
        assert_eq!(
            frame,
            Frame::Control {
                channel: 1,
                control: Some(control)
            },
            "{name}"
        );
        assert!(wire.is_empty());
    }
}

#[test]
fn golden_events_are_understood() {
    let golden = golden();
    for (name, subject, position, payload) in events() {
        let bytes = unhex(&golden[name]);
        let mut reader = EventsReader::new(&bytes, event::EVENT_BYTES);
        let event = reader.next_event().unwrap().unwrap();
        assert_eq!(
            (event.subject, event.position, event.payload),
            (subject, position, payload),
            "{name}"
        );
        assert_eq!(reader.rest(), 0, "{name}");
    }
}

#[test]
fn golden_rows_are_understood() {
    let golden = golden();
    let shape = publication().tables[0].shape();
    let mut seen = 0;
    for (name, hex) in golden.iter().filter(|(name, _)| name.starts_with("row-")) {
        let bytes = unhex(hex);
        let mut reader = RowsReader::new(&shape, &bytes);
        let mut row = UnpackedRow::default();
        assert!(reader.next(&mut row).unwrap(), "{name}");
        assert_eq!(reader.consumed(), bytes.len(), "{name}");
        match name.as_str() {
            "row-insert" | "row-upsert" | "row-conflict-row" | "row-made" => {
                assert_eq!(row.new, full_row())
            }
            "row-update" => assert_eq!((row.old, row.new), (full_row(), extreme_row())),
            "row-delete" => assert_eq!(row.old, full_row()),
            "row-request" | "row-remove" | "row-conflict-gone" | "row-refused" => {
                assert_eq!(row.key, key());
            }
            _ => {}
        }
        seen += 1;
    }
    assert!(seen >= 12);
    let schema = PublicationSchema::decode(&unhex(&golden["schema"])).unwrap();
    assert_eq!(schema, publication());
}
