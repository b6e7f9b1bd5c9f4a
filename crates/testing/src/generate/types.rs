//! Types of columns: how each dialect declares them, and values with their extremes.
//!
//! Owns the choice of values and how a centre spells them. Values themselves are always in
//! the form in which a remote stores them, so one value can be written to any database and
//! compared with what any gives back.

use tidewater_protocol::Value;

use super::Dialect;
use super::random::Random;

/// The type of a column, for any dialect. What a dialect lacks is text there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of types say what they are")]
pub enum Type {
    SmallInt,
    Integer,
    BigInt,
    /// Precision and scale.
    Decimal(u8, u8),
    /// A decimal that keeps the digits it is given.
    AnyDecimal,
    Double,
    Single,
    Boolean,
    Text,
    Varchar(u8),
    Char(u8),
    Bytes,
    Date,
    Time,
    Timestamp,
    TimestampTz,
    Uuid,
    Json,
    Jsonb,
    Enum,
    IntegerArray,
    TextArray,
    Range,
    /// A domain over integers with a CHECK.
    Domain,
    Interval,
    Inet,
}

use Type::*;

/// Types that keys may be made of.
pub(super) const KEYS: &[Type] = &[
    Integer,
    Integer,
    BigInt,
    SmallInt,
    Text,
    Varchar(12),
    Char(6),
    Bytes,
    Decimal(12, 2),
    Decimal(30, 6),
    Date,
    Timestamp,
    TimestampTz,
    Time,
    Uuid,
    Enum,
    Domain,
];

/// Types that partitions may be made of.
pub(super) const PARTITIONS: &[Type] = &[
    Integer,
    Integer,
    Text,
    Uuid,
    Date,
    Decimal(12, 2),
    Boolean,
    Bytes,
    Varchar(12),
    Enum,
    Timestamp,
];

/// All types.
pub const ALL: &[Type] = &[
    SmallInt,
    Integer,
    BigInt,
    Decimal(12, 2),
    Decimal(30, 6),
    Decimal(9, 0),
    AnyDecimal,
    Double,
    Single,
    Boolean,
    Text,
    Varchar(12),
    Char(6),
    Bytes,
    Date,
    Time,
    Timestamp,
    TimestampTz,
    Uuid,
    Json,
    Jsonb,
    Enum,
    IntegerArray,
    TextArray,
    Range,
    Domain,
    Interval,
    Inet,
];

/// What must be there before tables use [`Enum`] and [`Domain`] on PostgreSQL.
pub(super) const POSTGRES_TYPES: &str =
    "CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy', 'in \"love\"');
CREATE DOMAIN positive AS bigint CHECK (VALUE > 0);
";

const TEXTS: &[&str] = &[
    "a",
    "A",
    "",
    " ",
    "b ",
    "ä",
    "a\u{308}",
    "Zoë's",
    "\"quoted\"",
    "line\nbreak\ttab\r",
    "日本語",
    "🦀",
    "NULL",
    "0",
    "1.0",
    "back\\slash",
    "{s.username}",
    "'); --",
    "\u{feff}bom",
    "%s$1?",
];

impl Type {
    /// The type's name in a CREATE TABLE.
    pub fn declared(self, dialect: Dialect) -> String {
        let postgres = dialect == Dialect::Postgres;
        match self {
            SmallInt => "SMALLINT".into(),
            Integer => "INTEGER".into(),
            BigInt => "BIGINT".into(),
            // Beyond 15 digits SQLite keeps decimals only as text.
            Decimal(precision, scale) if precision > 15 && !postgres => {
                format!("DECIMAL_TEXT({precision},{scale})")
            }
            Decimal(precision, scale) => format!("NUMERIC({precision},{scale})"),
            AnyDecimal if postgres => "NUMERIC".into(),
            AnyDecimal => "DECIMAL_TEXT".into(),
            Double => "DOUBLE PRECISION".into(),
            Single => "REAL".into(),
            Boolean => "BOOLEAN".into(),
            Text => "TEXT".into(),
            Varchar(length) => format!("VARCHAR({length})"),
            Char(length) => format!("CHAR({length})"),
            Bytes if postgres => "BYTEA".into(),
            Bytes => "BLOB".into(),
            Date => "DATE".into(),
            Time => "TIME".into(),
            Timestamp => "TIMESTAMP".into(),
            TimestampTz => "TIMESTAMPTZ".into(),
            Uuid => "UUID".into(),
            Json => "JSON".into(),
            Jsonb => "JSONB".into(),
            _ if !postgres => "TEXT".into(),
            Enum => "mood".into(),
            IntegerArray => "integer[]".into(),
            TextArray => "text[]".into(),
            Range => "int4range".into(),
            Domain => "positive".into(),
            Interval => "interval".into(),
            Inet => "inet".into(),
        }
    }

    /// A value, in the form of a remote: one of a few, so that rows meet; now and then an
    /// extreme.
    pub fn sample(self, dialect: Dialect, random: &mut Random) -> Value {
        let small = random.below(8) as i64;
        let extreme = random.once_in(4);
        let text = |choices: &[&str], random: &mut Random| {
            Value::Text((*random.one_of(choices)).to_owned())
        };
        match self {
            SmallInt if extreme => {
                Value::Integer(*random.one_of(&[i16::MIN.into(), i16::MAX.into(), -1]))
            }
            Integer if extreme => {
                Value::Integer(*random.one_of(&[i32::MIN.into(), i32::MAX.into(), -1]))
            }
            BigInt if extreme => Value::Integer(*random.one_of(&[i64::MIN, i64::MAX, -1])),
            Domain if dialect == Dialect::Sqlite => Value::Text(small.to_string()),
            Domain => Value::Integer(if extreme { i64::MAX } else { small + 1 }),
            SmallInt | Integer | BigInt => Value::Integer(small),
            Decimal(precision, scale) => Value::Text(decimal(precision, scale, dialect, random)),
            AnyDecimal => text(
                &[
                    "0",
                    "1.5",
                    "1.50",
                    "-7.25",
                    "123456789012345678901234567890.5",
                    "0.0000000001",
                ],
                random,
            ),
            Double => real(
                &[
                    0.0,
                    1.5,
                    -2.25,
                    0.1,
                    f64::MAX,
                    f64::MIN_POSITIVE,
                    5e-324,
                    1e22,
                ],
                random,
            ),
            Single => real(
                &[0.0, 1.5, -2.25, 0.1, 3.402_823_5e38, 1.175_494_4e-38],
                random,
            ),
            Boolean => Value::Integer(small & 1),
            Text => text(TEXTS, random),
            // The blanks behind a CHAR are no part of its value.
            Varchar(length) | Char(length) => {
                let long = "x".repeat(length.into());
                let mut choices = vec!["a", "A", "ä", "'", "\"", "\\", "🦀", long.as_str()];
                if self == Varchar(length) {
                    choices.extend(["", " ", "b "]);
                }
                text(&choices, random)
            }
            Bytes => Value::Blob(
                random
                    .one_of(&[&b""[..], b"\0", b"\xff\xfe", b"abc", b"'", b"\0\0\0\x01"])
                    .to_vec(),
            ),
            Uuid if extreme => text(
                &[
                    "00000000-0000-0000-0000-000000000000",
                    "ffffffff-ffff-ffff-ffff-ffffffffffff",
                ],
                random,
            ),
            Uuid => Value::Text(format!("0f8fad5b-d9cb-469f-a165-7086772895{small:02}")),
            Json => text(
                &[
                    "{\"a\" : 1}",
                    "[]",
                    "null",
                    "true",
                    "\"x\"",
                    "{\"b\":1,\"a\":[1, 2.50]}",
                    "12",
                    "1.50",
                ],
                random,
            ),
            Jsonb => text(
                &[
                    "{\"a\": 1}",
                    "[]",
                    "null",
                    "true",
                    "\"x\"",
                    "{\"a\": [1, 2.50], \"b\": 1}",
                ],
                random,
            ),
            Enum => text(&["sad", "ok", "happy", "in \"love\""], random),
            IntegerArray => text(&["{}", "{1}", "{1,NULL,3}", "{{1,2},{3,4}}"], random),
            TextArray => text(&["{}", "{a}", "{\"a b\",NULL}", "{\"\\\"\",\"\"}"], random),
            Range => text(&["empty", "[1,5)", "[2,)", "(,)"], random),
            Interval => text(&["PT0S", "P1D", "P-1Y-2M", "P3DT4H5M6.789S"], random),
            Inet => text(&["127.0.0.1/32", "10.0.0.0/8", "::1/128"], random),
            Date | Time | Timestamp | TimestampTz => self.moment(dialect, small, extreme, random),
        }
    }

    fn moment(self, dialect: Dialect, small: i64, extreme: bool, random: &mut Random) -> Value {
        let zone = if self == TimestampTz { "Z" } else { "" };
        // SQLite's own dates end with the year 9999.
        let wide = extreme && dialect == Dialect::Postgres;
        let text = match self {
            Time if extreme => {
                (*random.one_of(&["00:00:00.000000", "24:00:00.000000", "23:59:59.999999"]))
                    .to_owned()
            }
            Time => format!("0{small}:30:00.500000"),
            Date if wide => (*random.one_of(&[
                "infinity",
                "-infinity",
                "-004712-01-01",
                "+5874897-12-31",
                "+000000-02-29",
            ]))
            .to_owned(),
            Date if extreme => {
                (*random.one_of(&["0001-01-01", "9999-12-31", "2024-02-29"])).to_owned()
            }
            Date => format!("2026-01-0{}", small + 1),
            _ if wide => {
                let moment = *random.one_of(&[
                    "infinity",
                    "-infinity",
                    "-004712-01-01T00:00:00.000000",
                    "+290000-12-31T23:59:59.999999",
                ]);
                let zone = if moment.ends_with('y') { "" } else { zone };
                format!("{moment}{zone}")
            }
            _ if extreme => {
                let moment =
                    *random.one_of(&["0001-01-01T00:00:00.000000", "9999-12-31T23:59:59.999999"]);
                format!("{moment}{zone}")
            }
            _ => format!("2026-01-0{}T12:00:00.00000{small}{zone}", small + 1),
        };
        Value::Text(text)
    }
}

fn decimal(precision: u8, scale: u8, dialect: Dialect, random: &mut Random) -> String {
    let whole = usize::from(precision - scale);
    let digits = usize::from(scale);
    let number = match random.below(8) {
        0 => format!("{}.{}", "9".repeat(whole), "9".repeat(digits)),
        1 => format!("-{}.{}", "9".repeat(whole), "9".repeat(digits)),
        2 if dialect == Dialect::Postgres => return "NaN".into(),
        // The smallest there is.
        3 if digits > 0 => format!("0.{}1", "0".repeat(digits - 1)),
        other => format!("{other}.{}", "0".repeat(digits)),
    };
    number.trim_end_matches('.').to_owned()
}

fn real(choices: &[f64], random: &mut Random) -> Value {
    match random.below(10) {
        0 => Value::Real(f64::INFINITY),
        1 => Value::Real(f64::NEG_INFINITY),
        2 => Value::Text("NaN".into()),
        _ => Value::Real(*random.one_of(choices)),
    }
}
