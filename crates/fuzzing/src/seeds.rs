//! What fuzzing begins with: for each target some bytes that get deep.
//!
//! The committed corpora hold these and what fuzzers have found since. They are made
//! here so that they can be made again when a format grows.

use bytes::BytesMut;

use tidewater_protocol::compare::pack_key;
use tidewater_protocol::decimal::Decimal;
use tidewater_protocol::event::{EventPosition, put_event};
use tidewater_protocol::frame::{HEADER_BYTES, PREFACE};
use tidewater_protocol::{ColumnType, Datum, Op, RowShape, RowsWriter, ValueRef};

use crate::house::House;
use crate::mend::{Mender, one_flight, upload_id};

/// A seed: the name of its file, and its bytes.
pub type Seed = (String, Vec<u8>);

/// The remotes that sessions begin with, see [`House::work_on`].
const FILES: [&str; House::FILES] = ["changed", "blank", "compares", "forgotten"];

/// One type of each, as [`crate::rows`] and [`crate::ranges`] read a table off their
/// input: the number of columns, their types, the key.
const TYPES: [(u8, ColumnType); 10] = [
    (0, ColumnType::Integer),
    (1, ColumnType::Decimal { scale: None }),
    (2, ColumnType::Real),
    (3, ColumnType::Boolean),
    (4, ColumnType::Text),
    (5, ColumnType::Bytes),
    (6, ColumnType::Date),
    (7, ColumnType::Time),
    (8, ColumnType::Timestamp),
    (10, ColumnType::Uuid),
];

fn shape() -> RowShape {
    RowShape {
        columns: TYPES.iter().map(|(_, column)| *column).collect(),
        key: vec![0, 4],
    }
}

/// The same table, as bytes.
fn shape_bytes() -> Vec<u8> {
    let mut bytes = vec![TYPES.len() as u8 - 1];
    bytes.extend(TYPES.iter().map(|(number, _)| number));
    bytes.extend([0, 1, 4]);
    bytes
}

fn row(integer: i64, text: &str) -> Vec<Datum<'_>> {
    vec![
        Datum::Integer(integer),
        Datum::Decimal(Decimal::Exact {
            unscaled: -150,
            scale: 2,
        }),
        Datum::Real(0.25),
        Datum::Boolean(true),
        Datum::Text(text),
        Datum::Bytes(&[0, 255]),
        Datum::Date(20_000),
        Datum::Time(86_400_000_000),
        Datum::Timestamp(-1),
        Datum::Uuid([7; 16]),
    ]
}

/// The seeds of a target.
///
/// # Panics
/// There is no such target.
pub fn of(target: &str) -> Vec<Seed> {
    match target {
        "frames" => frames(),
        "blocks" => blocks(),
        "messages" => messages(),
        "calls" => calls(),
        "events" => events(),
        "rows" => rows(),
        "values" => values(),
        "ranges" => ranges(),
        "signed" => signed(),
        "bearer" => bearer(),
        "proxied" => proxied(),
        "relay" => relay(),
        "handlers" => handlers(),
        "config" => config(),
        "scripts" => scripts(),
        "server_session" => server_session(),
        "remote_session" => remote_session(),
        _ => panic!("there is no target {target}"),
    }
}

/// The golden vectors of the protocol: all messages, schemas and rows in frames.
fn golden() -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    let vectors = include_str!("../../protocol/tests/golden/vectors.txt");
    let lines = vectors.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| {
        let (name, hex) = line.split_once(' ')?;
        Some((name, from_hex(hex)?))
    })
}

/// Everything that is a frame, alone, and one after the other behind a preface.
fn frames() -> Vec<Seed> {
    let frames = golden().filter(|(name, _)| name.starts_with("control-") || *name == "rows-frame");
    let frames: Vec<(&str, Vec<u8>)> = frames.collect();
    let mut all = [&[41], &PREFACE[..]].concat();
    for (_, frame) in &frames {
        all.extend_from_slice(frame);
    }
    let alone = frames.into_iter();
    let alone = alone.map(|(name, frame)| (name.to_owned(), [vec![2], frame].concat()));
    let mut seeds: Vec<Seed> = alone.collect();
    seeds.push(("all".into(), all));
    seeds
}

/// The golden blocks, and something to pack.
fn blocks() -> Vec<Seed> {
    let vectors = include_str!("../../carrier/tests/vectors.txt").lines();
    let vectors = vectors.filter_map(|line| {
        let mut parts = line.split(' ');
        let (name, wire) = (parts.next()?, from_hex(parts.next()?)?);
        (!name.starts_with("preface")).then(|| (name.to_owned(), [&[2, 3], &wire[..]].concat()))
    });
    let mut seeds: Vec<Seed> = vectors.collect();
    seeds.push((
        "text".into(),
        [&[6, 1], &b"a row, ".repeat(900)[..]].concat(),
    ));
    seeds
}

fn from_hex(hex: &str) -> Option<Vec<u8>> {
    let bytes = (0..hex.len()).step_by(2);
    bytes
        .map(|at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok())
        .collect()
}

/// Every message without its frame, and schemas.
fn messages() -> Vec<Seed> {
    let seeds = golden().filter_map(|(name, bytes)| {
        let payload = match name {
            "schema" => [&[1], &bytes[..]].concat(),
            _ if name.starts_with("control-") => [&[0], &bytes[HEADER_BYTES..]].concat(),
            _ => return None,
        };
        Some((name.to_owned(), payload))
    });
    seeds.collect()
}

/// The payloads of golden calls, and arguments as applications write them.
fn calls() -> Vec<Seed> {
    let frames = golden().filter(|(name, _)| name.starts_with("call-"));
    let payloads = frames.filter_map(|(name, frame)| {
        let flags = *frame.get(MESSAGE_FLAGS)?;
        let payload = frame.get(MESSAGE_FLAGS + 1..)?;
        Some((name.to_owned(), [&[flags], payload].concat()))
    });
    let mut seeds: Vec<Seed> = payloads.collect();
    let text = r#"{"item": 7, "at": "2026-11-26", "price": 1.25, "big": 18446744073709551615,
                   "none": null, "yes": true, "list": [1, {"a": "b"}], "bytes": "AP8="}"#;
    seeds.push(("json".into(), [&[0], text.as_bytes()].concat()));
    seeds
}

/// Where the flags of a message frame are; its payload is behind them.
const MESSAGE_FLAGS: usize = HEADER_BYTES + 12;

fn events() -> Vec<Seed> {
    let mut stream = BytesMut::from(&[0, 9][..]);
    for (subject, position, payload) in [
        ("fleet/unit.7", None, &b"moves"[..]),
        ("fleet/unit.7", Some(EventPosition { id: 8, check: 9 }), b""),
        ("desk/all", None, &[0, 255]),
    ] {
        put_event(&mut stream, subject, position, payload).expect("it is short");
    }
    let subjects = "\x01fleet/unit.7.position\nfleet/unit.*.position\nfleet/unit.>\nfleet/>\n\
                    fleet/*\ndesk/unit.7\nfleet/unit.7\nfleet/unit..7\nfleet/>.a\n";
    vec![
        ("stream".into(), stream.to_vec()),
        ("subjects".into(), subjects.into()),
    ]
}

/// Packs something.
type Write<'a> = &'a dyn Fn(&mut RowsWriter<'_>);

/// Packed rows of every operation.
fn rows() -> Vec<Seed> {
    let shape = shape();
    let (first, mut second) = (row(1, "a"), row(-300, "Zoë"));
    second[1] = Datum::Decimal(Decimal::Text("NaN"));
    second[2] = Datum::Real(f64::NEG_INFINITY);
    second[6] = Datum::Null;
    let mut loose = row(7, "x");
    loose[3] = Datum::Loose(ValueRef::Integer(7));
    loose[6] = Datum::Loose(ValueRef::Text("yesterday"));
    let key = [first[0], first[4]];
    let writing: [(&str, Write<'_>); 7] = [
        ("insert", &|w| w.row(Op::Insert, &first)),
        ("update", &|w| w.update(&first, &second)),
        ("delete", &|w| w.delete(&second)),
        ("loose", &|w| w.update(&loose, &second)),
        ("request", &|w| w.key(Op::Request, &key)),
        ("refused", &|w| {
            w.refused(&key, Op::Delete, 704, "not yours")
        }),
        ("many", &|w| {
            w.row(Op::Upsert, &second);
            w.key(Op::Remove, &key);
            w.row(Op::ConflictRow, &first);
            w.row(Op::Made, &first);
            w.row(Op::Merged, &first);
            w.key(Op::ConflictGone, &key);
        }),
    ];
    let seeds = writing.into_iter().map(|(name, write)| {
        let mut writer = RowsWriter::new(&shape);
        write(&mut writer);
        let mut bytes = shape_bytes();
        bytes.push(9);
        bytes.extend(writer.take());
        (name.to_owned(), bytes)
    });
    seeds.collect()
}

/// Keys of a table.
fn ranges() -> Vec<Seed> {
    let columns = shape().key_columns();
    let keys = [(1, "a"), (1, "b"), (-7, ""), (i64::MAX, "Zoë"), (1, "a")];
    let mut two = shape_bytes();
    for (integer, text) in keys {
        let mut key = Vec::new();
        pack_key(
            &mut key,
            &columns,
            &[Datum::Integer(integer), Datum::Text(text)],
        );
        two.push(key.len() as u8);
        two.extend(key);
    }
    // One column of decimals, whose order is the hardest.
    let mut decimals = vec![0, 1, 0, 0, 0];
    let column = ColumnType::Decimal { scale: None };
    for text in [
        "1.5",
        "-0.25",
        "NaN",
        "-Infinity",
        "1.50",
        "99999999999999999999999999999999999999999.5",
    ] {
        let (datum, _) = column.datum(ValueRef::Text(text));
        let mut key = Vec::new();
        pack_key(&mut key, &[column], &[datum]);
        decimals.push(key.len() as u8);
        decimals.extend(key);
    }
    vec![("two".into(), two), ("decimals".into(), decimals)]
}

/// Values of every type, in their own spelling and in others.
fn values() -> Vec<Seed> {
    let texts: [(u8, &[&str]); 9] = [
        (
            1,
            &["1.50", "-0", "1e5", "+007.", "NaN", "-infinity", "1E-40"],
        ),
        (2, &["NaN", "1.5"]),
        (3, &["true", "F"]),
        (4, &["", "Zoë"]),
        (6, &["2026-02-28", "0044-03-15 BC", "-infinity", "20260228"]),
        (7, &["24:00:00", "7:05", "23:59:59.9999999", "04:05 PM"]),
        (8, &["2026-02-28 7:05:06.5", "infinity", "2026-02-28T07:05"]),
        (9, &["2026-02-28T07:05:06.5+01:30", "1999-12-31 23:59:60Z"]),
        (
            10,
            &[
                "0f8fad5b-d9cb-469f-a165-70867728950e",
                "{0F8FAD5BD9CB469FA16570867728950E}",
            ],
        ),
    ];
    let mut seeds = Vec::new();
    for (number, texts) in texts {
        for (index, text) in texts.iter().enumerate() {
            let bytes = [&[number, 3], text.as_bytes()].concat();
            seeds.push((format!("text-{number}-{index}"), bytes));
        }
    }
    let scaled = [&[13, 2, 3], "12.3".as_bytes()].concat();
    seeds.push(("scaled".into(), scaled));
    for (class, bytes) in [
        (0, i64::MIN.to_le_bytes()),
        (1, (-0.0f64).to_le_bytes()),
        (2, [1; 8]),
    ] {
        for number in [0, 1, 2, 3, 5] {
            let bytes = [&[number, class], &bytes[..]].concat();
            seeds.push((format!("stored-{number}-{class}"), bytes));
        }
    }
    seeds
}

/// Forged and genuine tokens, identities and checkpoints.
fn signed() -> Vec<Seed> {
    let genuine = (0..3).map(|choice| (format!("genuine-{choice}"), vec![choice, 0, 0]));
    let changed = (0..3).map(|choice| (format!("changed-{choice}"), vec![choice, 40, 1]));
    let mut checkpoint = vec![3, 0, 0, 1, 0, 0, 0, 7];
    checkpoint.extend([8, 3, 18, 2, 1, 2, 26, 3, 10, 1, 5]);
    let mut seeds: Vec<Seed> = genuine.chain(changed).collect();
    seeds.push(("foreign".into(), checkpoint.clone()));
    seeds.push(("content".into(), [&[3, 0, 0], &checkpoint[8..]].concat()));
    seeds
}

/// Tokens of identity providers and keys, genuine, changed and others.
fn bearer() -> Vec<Seed> {
    let choices = [0, 2].into_iter();
    let genuine = choices
        .clone()
        .map(|it| (format!("genuine-{it}"), vec![it, 0, 0]));
    let changed = choices.map(|it| (format!("changed-{it}"), vec![it, 9, 1]));
    let mut seeds: Vec<Seed> = genuine.chain(changed).collect();
    let keys = r#"{"keys":[{"kty":"RSA","kid":"a","use":"sig","alg":"RS256","n":"AQAB","e":"AQAB"},
                   {"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"},
                   {"kty":"oct","k":"AQAB"}, 7]}"#;
    for (name, choice, text) in [
        ("unsigned", 1, "eyJhbGciOiJub25lIn0.e30."),
        ("short", 1, "e30.e30.AA"),
        ("keys", 3, keys),
    ] {
        seeds.push((name.into(), [&[choice, 0, 0], text.as_bytes()].concat()));
    }
    seeds
}

/// First bytes of devices, and registrations of servers.
fn relay() -> Vec<Seed> {
    // TLS 1.2, one cipher, no extension but the ones that a name and signatures need.
    let name = b"sync.example.com";
    let list = [&[0, 0, name.len() as u8][..], name].concat();
    let sni = [
        &[0, 0, 0, list.len() as u8 + 2, 0, list.len() as u8][..],
        &list,
    ]
    .concat();
    let signatures = [0, 13, 0, 4, 0, 2, 4, 3];
    let protocols = [&[0, 16, 0, 11, 0, 9, 8][..], b"http/1.1"].concat();
    let hello = |extensions: &[u8]| {
        let length = (extensions.len() as u16).to_be_bytes();
        let head = [&[3, 3][..], &[7; 32], &[0, 0, 2, 0xc0, 0x2b, 1, 0], &length].concat();
        let body = [&head, extensions].concat();
        let size = (body.len() as u16).to_be_bytes();
        let record = (body.len() as u16 + 4).to_be_bytes();
        [&[5, 0x16, 3, 1][..], &record, &[1, 0], &size, &body].concat()
    };
    let text = |rest: &str| format!("\nTIDEWATER-LINE {rest}").into_bytes();
    let seeds = [
        ("name", hello(&[&sni[..], &signatures].concat())),
        ("web", hello(&[&sni[..], &signatures, &protocols].concat())),
        ("nameless", hello(&signatures)),
        ("bare", hello(&[])),
        ("http", b"\x01GET / HTTP/1.1".to_vec()),
        ("preface", b"\x02TIDE\0\0\0\0".to_vec()),
        (
            "token",
            text("1 sync.example.com 0123456789abcdef abcdefgh"),
        ),
        ("certificate", text("1 a 0000000000000000 -")),
        ("later", text("2 a b c d")),
    ];
    seeds.map(|(name, bytes)| (name.into(), bytes)).into()
}

/// PROXY headers of both versions, and what is none.
fn proxied() -> Vec<Seed> {
    let binary = |head: &[u8], body: &[u8]| {
        let length = (body.len() as u16).to_be_bytes();
        [b"\r\n\r\n\0\r\nQUIT\n", head, &length, body].concat()
    };
    let seeds = [
        ("local", binary(&[0x20, 0], &[])),
        ("v4", binary(&[0x21, 0x11], &[7; 12])),
        ("v6-more", binary(&[0x21, 0x21], &[7; 48])),
        ("unix", binary(&[0x21, 0x31], &[0; 216])),
        ("short", binary(&[0x21, 0x21], &[7; 12])),
        ("long", binary(&[0x21, 0x11], &[7; 4_090])),
        (
            "line",
            b"PROXY TCP4 192.0.2.7 10.0.0.1 49152 7439\r\nTIDE".to_vec(),
        ),
        ("line-v6", b"PROXY TCP6 2001:db8::7 ::1 1 2\r\n".to_vec()),
        ("line-unknown", b"PROXY UNKNOWN a b\r\n".to_vec()),
        ("other", b"\x16\x03\x01\x02".to_vec()),
    ];
    seeds.map(|(name, bytes)| (name.into(), bytes)).into()
}

/// Answers of handlers, right and wrong.
fn handlers() -> Vec<Seed> {
    let texts = [
        (
            "verdicts",
            0,
            r#"{"rows":[{"idempotency_key":"r/u/0-7","verdict":"change","new":{"a":1}},{"idempotency_key":"r/u/0-8","verdict":"handled"}]}"#,
        ),
        (
            "lines",
            1,
            "{\"idempotency_key\":\"r/u/0-7\",\"verdict\":\"apply\"}\n{\"idempotency_key\":\"r/u/0-8\",\"verdict\":\"refuse\",\"reason\":\"no\"}\n",
        ),
        (
            "page",
            0,
            r#"{"rows":[{"id":1,"a":"x"},{"id":2}],"removed":[{"id":3}],"cursor":{"at":7},"more":true}"#,
        ),
        ("reset", 0, r#"{"reset":true}"#),
        (
            "half",
            0,
            r#"{"rows":[{"idempotency_key":"r/u/0-7","verdict":"apply"}]}"#,
        ),
    ];
    let types = [0, 4, 5];
    let seeds = texts.into_iter().flat_map(|(name, kind, text)| {
        types.map(|it| {
            (
                format!("{name}-{it}"),
                [&[kind, it], text.as_bytes()].concat(),
            )
        })
    });
    seeds.collect()
}

/// Configurations, right and wrong.
fn config() -> Vec<Seed> {
    let texts = [
        (
            "small",
            "[server]\nlisten = [\"tcp://127.0.0.1:7439\"]\nconsolidated = \"sqlite:centre.db\"\n\
             [[publication]]\nname = \"notes\"\n\
             [[publication.table]]\nname = \"note\"\npartition = \"everyone\"\n",
        ),
        (
            "everything",
            "[server]\nlisten = [\"tls://0.0.0.0:7439\", \"tcp://[::1]:1\"]\n\
             consolidated = \"postgresql://u:${SET}@localhost/d\"\ninsecure = false\n\
             [server.tls]\ncertificate = \"c.pem\"\nkey = \"k.pem\"\n\
             [server.limits]\nconnections = 10\nmemory = \"256MiB\"\nidle_timeout = \"60s\"\n\
             upload_rows = 1_000\nsync_timeout = \"1h\"\n\
             [retention]\nlog = \"60d\"\nhistory = \"14d\"\nconflicts = \"180d\"\ninterval = \"1h\"\n\
             [log]\nformat = \"json\"\nlevel = \"info\"\n\
             [[publication]]\nname = \"sales\"\n\
             [[publication.table]]\nname = \"invoice\"\nschema = \"s\"\n\
             columns = [\"id\", \"region\"]\ndirection = \"download\"\ntracking = \"row\"\n\
             partition = { columns = [\"region\"], values = \"SELECT region FROM a WHERE \
             login = {s.username}\" }\n",
        ),
        (
            "sign-in",
            "[server]\nconsolidated = \"sqlite:centre.db\"\n\
             [sign_in]\npasswords = \"ldap\"\ncreate_users = true\nreauthenticate_after = \"30d\"\n\
             [[sign_in.oidc]]\nissuer = \"https://a.b/c\"\naudience = [\"t\"]\n\
             algorithms = [\"RS256\"]\nclaims = { a = \"b.c\" }\n\
             [sign_in.ldap]\nurl = \"ldap://d\"\nstarttls = true\nbase_dn = \"dc=x\"\n\
             filter = \"(uid={user})\"\nclaims = [\"ou\"]\n\
             [sign_in.certificates]\nauthority = \"a.pem\"\nuser_from = \"email\"\n",
        ),
        ("unknown", "[server]\nlisen = []\n"),
        ("variable", "[server]\nconsolidated = \"${UNSET}\"\n"),
        ("no-toml", "[server\n"),
    ];
    named(&texts)
}

/// Scripts, right and wrong.
fn scripts() -> Vec<Seed> {
    named(&[
        (
            "named",
            "SELECT region FROM a WHERE login = {s.username} AND {ml s.remote_id} = 'x'",
        ),
        (
            "quotes",
            "SELECT 'it''s {', \"{\", `{`, E'\\'{' -- {s.username}\n, {s.publication}",
        ),
        (
            "comments",
            "/* {s.x} ' */ SELECT $q$ {s.x} ' $q$, $1, $$ $$, {s.username}{s.username}",
        ),
        (
            "claims",
            "SELECT {s.claims.region}, {ml s.claims.unit} -- {s.claims.}\n WHERE {s.claims.a.b} = 1",
        ),
        ("quoted", "SELECT '{s.username}'"),
        ("open", "SELECT {s.username"),
    ])
}

/// What the remotes say in their syncs, with signs in place of what only one run knows.
fn server_session() -> Vec<Seed> {
    let mut house = House::start();
    let mender = Mender::new(&mut house);
    let mut seeds = Vec::new();
    for (file, name) in FILES.iter().enumerate() {
        for (index, passed) in house.record(file).iter().enumerate() {
            let said = mender.conceal_up(one_flight(&passed.up[PREFACE.len()..]));
            // With an end, and without.
            for flags in [0, 4] {
                let bytes = [&[flags, 255], &said[..]].concat();
                seeds.push((format!("{name}-{index}-{flags}"), bytes));
            }
        }
    }
    seeds.push(("silence".into(), vec![4, 0]));
    seeds.push((
        "stranger".into(),
        b"\x03\xffGET / HTTP/1.1\r\n\r\n".to_vec(),
    ));
    seeds
}

/// What the server says to them.
fn remote_session() -> Vec<Seed> {
    let mut house = House::start();
    let mender = Mender::new(&mut house);
    let mut seeds = Vec::new();
    for (file, name) in FILES.iter().enumerate() {
        for (index, passed) in house.record(file).iter().enumerate() {
            let upload_id = upload_id(&passed.up[PREFACE.len()..]);
            let said = mender.conceal_down(&passed.down, &upload_id);
            for begin in 0..5 {
                let flags = file as u8 | begin << 2;
                let bytes = [&[flags, 255], &said[..]].concat();
                seeds.push((format!("{name}-{index}-{begin}"), bytes));
            }
        }
    }
    seeds
}

fn named(texts: &[(&str, &str)]) -> Vec<Seed> {
    let seeds = texts.iter();
    let seeds = seeds.map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec()));
    seeds.collect()
}
