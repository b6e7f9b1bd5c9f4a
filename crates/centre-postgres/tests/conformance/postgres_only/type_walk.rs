//! Every type that PostgreSQL has: carried there and back with its extremes, or refused by
//! its name.

use std::collections::BTreeMap;

use tidewater_centre_conformance::fixture::Fixture;
use tidewater_centre_conformance::remote::{TestRemote, datums, result_text};
use tidewater_centre_conformance::world::{DeployedCentre, NOW_MS, everyone, publication};
use tidewater_centre_postgres::connect;
use tidewater_protocol::message::TableBegin;
use tidewater_protocol::{Datum, Op, RowsWriter, Value};

use crate::fixture::PostgresFixture;
use tidewater_centre::{CentreError, UploadChunk, UploadOutcome, UploadTable};

/// Types by their names, with values as PostgreSQL reads them.
const SAMPLES: &[(&str, &[&str])] = &[
    ("boolean", &["t", "f"]),
    ("bytea", &["\\x", "\\x00ff27"]),
    ("\"char\"", &["a", ""]),
    ("name", &["", "ééééééééééééééééééééééééééééééé!"]),
    ("bigint", &["-9223372036854775808", "9223372036854775807"]),
    ("smallint", &["-32768", "32767"]),
    ("int2vector", &["1 2", ""]),
    ("integer", &["-2147483648", "2147483647"]),
    ("regproc", &["pg_typeof"]),
    ("text", &["", " NULL\n\t'\"\\ 日本語 🦀", "\u{1}\u{7f}"]),
    ("oid", &["0", "4294967295"]),
    ("tid", &["(0,0)", "(4294967295,65535)"]),
    ("xid", &["0", "4294967295"]),
    ("cid", &["0", "4294967295"]),
    ("oidvector", &["1 4294967295", ""]),
    ("json", &["{\"a\" : [1, null]}", "\"\\u00e9\"", "1e400"]),
    ("xml", &["<a b=\"1\">ü</a>", "two<b/>"]),
    ("xid8", &["0", "18446744073709551615"]),
    ("point", &["(1.5,-2)", "(Infinity,NaN)"]),
    ("lseg", &["[(0,0),(1,1e300)]"]),
    ("path", &["((0,0),(1,1))", "[(0,0),(0.1,1)]"]),
    ("box", &["(3,4),(1,2)"]),
    ("polygon", &["((0,0),(1,0),(1,1))"]),
    ("line", &["{1,-1,0.3}"]),
    (
        "real",
        &["3.4028235e38", "-1e-45", "NaN", "Infinity", "0.1"],
    ),
    (
        "double precision",
        &[
            "1.7976931348623157e308",
            "5e-324",
            "NaN",
            "-Infinity",
            "0.1",
        ],
    ),
    ("circle", &["<(0,0),0.1>"]),
    (
        "money",
        &["-92233720368547758.08", "92233720368547758.07", "0.1"],
    ),
    ("macaddr", &["08:00:2b:01:02:03"]),
    ("inet", &["192.168.1.5/24", "::ffff:1.2.3.4", "10.0.0.1"]),
    ("cidr", &["192.168.0.0/16", "::/0"]),
    ("macaddr8", &["08:00:2b:01:02:03:04:05"]),
    ("aclitem", &["postgres=arwd/postgres"]),
    ("character", &["a", "ü", " "]),
    ("character varying", &["", "b  ", "日本語"]),
    (
        "date",
        &["4714-11-24 BC", "5874897-12-31", "infinity", "-infinity"],
    ),
    (
        "time without time zone",
        &["00:00", "24:00", "23:59:59.999999"],
    ),
    (
        "timestamp without time zone",
        &[
            "4714-11-24 00:00 BC",
            "0001-01-01 00:00 BC",
            "9999-12-31 23:59:59.999999",
            "262142-12-31 23:59:59.999999",
            "infinity",
            "-infinity",
        ],
    ),
    (
        "timestamp with time zone",
        &[
            "4714-11-24 00:00 BC",
            "262142-12-31 23:59:59.999999",
            "infinity",
        ],
    ),
    (
        "interval",
        &[
            "-178000000 years",
            "178000000 years",
            "1 mon -1 day 00:00:00.000001",
        ],
    ),
    ("time with time zone", &["00:00+15:59:59", "24:00-15:59:59"]),
    ("bit", &["0", "1"]),
    ("bit varying", &["", "1010101010101"]),
    (
        "numeric",
        &["1e131071", "-1e-16383", "NaN", "0.000", "1.50"],
    ),
    ("refcursor", &["cursor 1"]),
    ("regprocedure", &["pg_typeof(\"any\")", "0"]),
    ("regoper", &["|/", "0"]),
    ("regoperator", &["+(integer,integer)", "0"]),
    ("regclass", &["pg_class", "w"]),
    ("regcollation", &["\"C\""]),
    ("regtype", &["double precision", "mood"]),
    ("regrole", &["postgres"]),
    ("regnamespace", &["public"]),
    ("regconfig", &["english"]),
    ("regdictionary", &["simple"]),
    (
        "uuid",
        &[
            "00000000-0000-0000-0000-000000000000",
            "ffffffff-ffff-ffff-ffff-ffffffffffff",
        ],
    ),
    ("pg_lsn", &["0/0", "FFFFFFFF/FFFFFFFF"]),
    ("tsvector", &["'a':1A,2 'it''s'", ""]),
    ("tsquery", &["'a' & !( 'b':* | 'c':AB )", ""]),
    (
        "jsonb",
        &["{\"b\": 1, \"a\": [1.50, null]}", "null", "-1e300"],
    ),
    ("txid_snapshot", &["10:20:10,14,15"]),
    ("pg_snapshot", &["10:20:10,14,15"]),
    ("int4range", &["empty", "[1,10)", "(,)"]),
    ("int8range", &["[-9223372036854775808,9223372036854775807)"]),
    ("numrange", &["(1.50,NaN]", "[,0)"]),
    ("tsrange", &["[\"1999-01-01 00:00:00.5\",infinity]"]),
    ("tstzrange", &["(\"1999-01-01 00:00:00+05\",]"]),
    ("daterange", &["[2026-01-01,5874897-01-01)"]),
    ("int4multirange", &["{}", "{[1,2),[5,9)}"]),
    ("int8multirange", &["{(,5)}"]),
    ("nummultirange", &["{[1.5,2.5]}"]),
    ("tsmultirange", &["{[\"1999-01-01 00:00:00\",)}"]),
    ("tstzmultirange", &["{[\"1999-01-01 00:00:00+00\",)}"]),
    ("datemultirange", &["{[2026-01-01,2026-02-01)}"]),
    ("jsonpath", &["$.\"a\"[*]?(@ > 1)", "strict $"]),
    // Of the user.
    ("mood", &["sad", "in \"love\"", "it's"]),
    ("positive", &["1", "9223372036854775807"]),
    ("small", &["1", "99"]),
    ("moods", &["{sad,\"in \\\"love\\\"\"}", "{}", "{NULL}"]),
    ("pair", &["(1,\"a,b\"\"c\")", "(,)"]),
    ("floats", &["[0.1,1e300)", "empty"]),
    ("floats_multirange", &["{[0.1,1e300)}"]),
    ("price", &["12345678.90", "0.00"]),
];

/// Types that PostgreSQL writes and never reads.
const REFUSED: &[&str] = &[
    "gtsvector",
    "pg_node_tree",
    "pg_ndistinct",
    "pg_dependencies",
    "pg_mcv_list",
    "pg_brin_bloom_summary",
    "pg_brin_minmax_multi_summary",
    "gtsvector[]",
];

const TYPES_DDL: &str = "
    CREATE TYPE mood AS ENUM ('sad', 'in \"love\"', 'it''s');
    CREATE DOMAIN positive AS bigint CHECK (VALUE > 0);
    CREATE DOMAIN small AS positive CHECK (VALUE < 100);
    CREATE DOMAIN moods AS mood[];
    CREATE DOMAIN price AS numeric(10,2);
    CREATE TYPE pair AS (n integer, t text);
    CREATE TYPE floats AS RANGE (subtype = float8);";

/// All types that a column can have: not those of the rows of tables and views, and no
/// pseudo-types. Then whether it is an array, and of what.
const ALL_TYPES: &str = "
    SELECT pg_catalog.format_type(t.oid, NULL),
      CASE WHEN t.typcategory = 'A' THEN pg_catalog.format_type(t.typelem, NULL) END
    FROM pg_type t
    LEFT JOIN pg_class c ON c.oid = t.typrelid LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
    LEFT JOIN pg_class ec ON ec.oid = e.typrelid
    WHERE t.typtype <> 'p' AND t.typnamespace IN ('pg_catalog'::regnamespace, 'public'::regnamespace)
      AND coalesce(c.relkind, 'c') = 'c' AND coalesce(ec.relkind, 'c') = 'c' AND coalesce(e.typtype, 'b') <> 'p'
    ORDER BY t.oid";

/// The columns of the test's table: type, and what values it gets.
async fn columns(fixture: &PostgresFixture) -> Vec<(String, Vec<String>)> {
    let samples: BTreeMap<&str, &[&str]> = SAMPLES.iter().copied().collect();
    let mut columns = Vec::new();
    for row in fixture.query(ALL_TYPES).await {
        let (name, element) = row.split_once('|').unwrap();
        if REFUSED.contains(&name) {
            continue;
        }
        let literal = |value: &&str| format!("'{}'", value.replace('\'', "''"));
        let of = |name: &str| samples.get(name).map(|it| it.iter().map(literal));
        let values = match (of(name), of(element)) {
            (Some(own), _) => own.map(|value| format!("{value}::{name}")).collect(),
            (None, Some(elements)) => {
                let elements: Vec<_> = elements.collect();
                let array = elements.join(", ");
                vec![
                    format!("ARRAY[NULL, {array}]::{element}[]"),
                    format!("ARRAY[[{0}], [{0}]]::{element}[]", elements[0]),
                    format!("'{{}}'::{name}"),
                ]
            }
            (None, None) => panic!("neither samples nor a refusal for the type {name}"),
        };
        columns.push((name.to_owned(), values));
    }
    columns
}

fn packed(remote: &TestRemote, rows: &[Vec<Value>]) -> Vec<UploadTable> {
    let table = &remote.schema.tables[0];
    let shape = table.shape();
    let mut writer = RowsWriter::new(&shape);
    for row in rows {
        writer.row(Op::Insert, &datums(table, row));
    }
    vec![UploadTable {
        begin: TableBegin::for_table(table),
        chunks: vec![UploadChunk::from_packed(&shape, writer.take()).unwrap()],
    }]
}

#[tokio::test]
async fn every_type_of_the_catalog_travels_there_and_back_with_its_extremes() {
    let fixture = PostgresFixture::new().await;
    fixture.execute(TYPES_DDL).await;
    fixture.execute("CREATE TABLE w ()").await;
    let columns = columns(&fixture).await;
    assert!(columns.len() > 120, "{}", columns.len());
    fixture.execute("DROP TABLE w").await;
    let declared = columns.iter().enumerate();
    let declared = declared.map(|(at, (name, _))| format!("c{at} {name}"));
    let create = format!(
        "{TYPES_DDL} CREATE TABLE w (id integer PRIMARY KEY, {});",
        declared.collect::<Vec<_>>().join(", ")
    );
    let longest = columns.iter().map(|(_, values)| values.len()).max();
    // The first row is all NULL.
    let mut ddl = create + "INSERT INTO w (id) VALUES (0);";
    for row in 0..longest.unwrap() {
        let values = columns.iter().map(|(_, values)| {
            let value = values.get(row);
            value.map_or("NULL", |value| value.as_str())
        });
        let values = values.collect::<Vec<_>>().join(", ");
        ddl.push_str(&format!("INSERT INTO w VALUES ({}, {values});", row + 1));
    }
    let world: DeployedCentre<PostgresFixture> =
        DeployedCentre::new(&ddl, vec![everyone("w")]).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut rows = anna.values("w");
    assert_eq!(rows.len(), longest.unwrap() + 1);
    // The same values as rows of the remote's own.
    for row in &mut rows {
        let Value::Integer(id) = &mut row[0] else {
            panic!("{row:?}")
        };
        *id += 100;
    }
    let mut upload = anna.next_upload(&[]);
    upload.tables = packed(&anna, &rows);
    let outcome = anna.apply(upload).await;
    let UploadOutcome::Applied { result, own } = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(
        result.refused + result.conflicts,
        0,
        "{:?}",
        result_text(&anna.schema, &result)
    );
    anna.own = Some(own);
    for (at, (name, _)) in columns.iter().enumerate() {
        let differ = format!(
            "SELECT a.c{at}::text, b.c{at}::text FROM w a JOIN w b ON b.id = a.id + 100
             WHERE a.c{at}::text COLLATE \"C\" IS DISTINCT FROM b.c{at}::text"
        );
        let differ = world.fixture.query(&differ).await;
        assert_eq!(differ, [] as [&str; 0], "{name}");
    }
    // What is read back is what was sent, and so can be told to be unchanged.
    let again = TestRemote::synced(&world, "berta").await;
    let table = &again.schema.tables[0];
    let of = |remote: &TestRemote| {
        let values = remote.values("w");
        let rows = values
            .iter()
            .filter(|row| matches!(row[0], Value::Integer(id) if id >= 100));
        let rows = rows.map(|row| datums(table, row).iter().map(Datum::to_string).collect());
        rows.collect::<Vec<Vec<String>>>()
    };
    anna.download().await;
    let sent = rows.iter();
    let sent: Vec<Vec<String>> = sent
        .map(|row| datums(table, row).iter().map(Datum::to_string).collect())
        .collect();
    assert_eq!(of(&again), sent);
    let deletes = rows.iter().map(|row| datums(table, row));
    let shape = table.shape();
    let mut writer = RowsWriter::new(&shape);
    deletes.for_each(|old| writer.delete(&old));
    let mut upload = anna.next_upload(&[]);
    upload.tables = vec![UploadTable {
        begin: TableBegin::for_table(table),
        chunks: vec![UploadChunk::from_packed(&shape, writer.take()).unwrap()],
    }];
    let outcome = anna.apply(upload).await;
    let UploadOutcome::Applied { result, .. } = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(
        (result.deletes, result.conflicts),
        (rows.len() as u64, 0),
        "{:?}",
        result_text(&anna.schema, &result)
    );
}

#[tokio::test]
async fn types_that_nobody_can_write_are_refused_by_their_name() {
    let fixture = PostgresFixture::new().await;
    let there = fixture.query(ALL_TYPES).await;
    let there: Vec<&str> = there
        .iter()
        .map(|it| it.split('|').next().unwrap())
        .collect();
    let centre = connect(&fixture.url()).await.unwrap();
    let mut refused = 0;
    for name in REFUSED.iter().filter(|name| there.contains(name)) {
        fixture
            .execute(&format!(
                "CREATE TABLE w (id integer PRIMARY KEY, v {name})"
            ))
            .await;
        let mut specs = [publication("p", vec![everyone("w")])];
        let error = centre.deploy(&specs, false, NOW_MS).await.unwrap_err();
        assert!(
            matches!(error, CentreError::Configuration { .. }),
            "{error}"
        );
        let told = format!("{error} / {}", error.hint());
        assert!(
            told.contains(name) && told.contains("\"v\"") && told.contains("`columns`"),
            "{told}"
        );
        // The way out that it names.
        specs[0].tables[0].columns = Some(vec!["id".into()]);
        centre.deploy(&specs, true, NOW_MS).await.unwrap();
        fixture.execute("DROP TABLE w").await;
        refused += 1;
    }
    assert!(refused >= 5, "{refused}");
}

/// PostgreSQL before 16 lets one byte stand alone that is no character in any encoding.
#[tokio::test]
async fn a_byte_that_is_no_character_keeps_no_other_row_from_remotes() {
    let world = super::table(
        "CREATE TABLE w (id integer PRIMARY KEY, v \"char\", vs \"char\"[]);
         INSERT INTO w VALUES (1, 'ä', '{ä,b}'), (2, 'b', '{}')",
        "w",
    )
    .await;
    let anna = TestRemote::synced(&world, "anna").await;
    assert_eq!(anna.rows("w")[1], "2|b|{}");
}
