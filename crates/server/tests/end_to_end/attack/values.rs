//! Extreme values of every type, there and back.

use crate::backend::{Backend, Postgres, Sqlite};
use crate::device::Device;
use crate::scenario::Scenario;
use crate::world::World;

const PUBLICATION: &str = "
[[publication]]
name = \"main\"

[[publication.table]]
name = \"x\"
partition = \"everyone\"
";

const EVERYTHING: &str = "SELECT * FROM x ORDER BY id";

fn world<B: Backend>(schema: &str) -> World<B> {
    World::open(Scenario {
        schema: schema.to_owned(),
        publication: PUBLICATION,
        tables: &[],
        users: &["ada", "bob"],
        limits: "",
    })
}

fn assert_new_rows_fit(ada: &mut Device, bob: &mut Device, count: u64) {
    // New rows with the same values.
    let columns = ada
        .rows("SELECT name FROM pragma_table_info('x') WHERE name <> 'id'")
        .iter()
        .map(|it| format!("\"{it}\""))
        .collect::<Vec<_>>()
        .join(", ");
    ada.edit(&format!(
        "INSERT INTO x (id, {columns}) SELECT id + 1000, {columns} FROM x"
    ));
    let report = ada.sync();
    assert_eq!(
        (report.uploaded.inserts, report.conflicts, report.refused),
        (count, 0, 0),
        "{:?}",
        ada.refused()
    );
    bob.sync();
    assert_eq!(ada.rows(EVERYTHING), bob.rows(EVERYTHING));
    let half = |from: i64| {
        format!("SELECT {columns} FROM x WHERE id BETWEEN {from} AND {from} + 999 ORDER BY id")
    };
    assert_eq!(bob.rows(&half(0)), bob.rows(&half(1000)));
}

/// Every row is changed here, then there, then removed here, without a conflict. An SQLite
/// centre may hold values that are none of their column's type: those are only kept.
fn there_and_back<B: Backend>(world: &World<B>, new_rows_fit: bool) {
    let mut ada = world.synced("ada");
    let mut bob = world.synced("bob");
    let count: u64 = world.rows("SELECT count(*) FROM x")[0]
        .parse()
        .expect("a count");
    assert_eq!(ada.rows(EVERYTHING), bob.rows(EVERYTHING));
    ada.edit("UPDATE x SET s = coalesce(s, '') || '!'");
    let report = ada.sync();
    assert_eq!(
        (report.uploaded.updates, report.conflicts, report.refused),
        (count, 0, 0),
        "{:?}",
        world.server.conflicts()
    );
    bob.sync();
    assert_eq!(ada.rows(EVERYTHING), bob.rows(EVERYTHING));
    world.execute("UPDATE x SET s = 'centre'");
    ada.sync();
    assert_eq!(ada.rows("SELECT DISTINCT s FROM x"), ["centre"]);
    if new_rows_fit {
        assert_new_rows_fit(&mut ada, &mut bob, count);
    }
    let count = ada.rows("SELECT id FROM x").len() as u64;
    bob.sync();
    bob.edit("DELETE FROM x");
    let report = bob.sync();
    assert_eq!(
        (report.uploaded.deletes, report.conflicts, report.refused),
        (count, 0, 0)
    );
    ada.sync();
    assert_eq!(ada.rows(EVERYTHING), [""; 0]);
}

#[test]
fn extreme_values_of_postgres_travel_there_and_back() {
    let world = world::<Postgres>(
        "CREATE TYPE mood AS ENUM ('sad', 'ha''ppy');
         CREATE TABLE x (id int PRIMARY KEY, s text, n numeric, n2 numeric(30,6), n3 numeric(5,0), d date, ts timestamp,
           tz timestamptz, t time, f float8, f4 real, b bytea, j json, jb jsonb, u uuid, i8 int8,
           i2 int2, bo boolean, iv interval, arr text[], ch char(5), vc varchar(3), ip inet, mo mood,
           bits bit(3), r int4range, p point, o oid, ttz timetz, xid8 xid8, nam name, ts3 timestamp(3));
         INSERT INTO x (id, n, d, ts, tz, f, f4) VALUES
           (1, 'NaN', 'infinity', 'infinity', 'infinity', 'NaN', 'NaN'),
           (2, '-0', '-infinity', '-infinity', '-infinity', 'Infinity', '-Infinity'),
           (3, '1e1000', '4713-01-01 BC', '4713-01-01 00:00:00 BC', '4713-01-02 00:00:00+00 BC', '-0', '-0'),
           (4, '-1e-1000', '5874897-12-31', '290000-12-31 23:59:59.999999', '290000-12-31 23:59:59+00', 5e-324, 1e-45),
           (5, '0.10', '0001-01-01', '0001-01-01 00:00:00', '0001-01-01 00:00:00+00', 1.7976931348623157e308, 3.4028235e38),
           (6, '100.000', '0001-12-31 BC', '0001-12-31 23:59:59 BC', '0001-12-31 23:59:59+00 BC', 0.1, 0.1),
           (7, '12345678901234567890.123456789012345678901234567890', '9999-12-31', '10000-01-01', '10000-01-01', 1e22, 16777217);
         INSERT INTO x (id, n2, n3, t, b, j, jb, u, i8, i2, bo, iv, arr, ch, vc, ip, mo, bits, r, p, o, ttz, xid8, nam, ts3, s) VALUES
           (10, 'NaN', 'NaN', '24:00', '', '\"\\u0000\"', 'null', '00000000-0000-0000-0000-000000000000', 9223372036854775807, 32767, true, '178000000 years', '{}', '', '', '::1/128', 'sad', B'101', '[1,5)', '(1e300,-0)', 4294967295, '24:00-15:59', '18446744073709551615', '', '1999-12-31 23:59:59.9999', ''),
           (11, 999999999999999999999999.999999, -99999, '00:00', '\\x00ff00', ' {\"a\":1, \"a\":2} ', '{\"a\":1e400, \"b\":[]}', 'ffffffff-ffff-ffff-ffff-ffffffffffff', -9223372036854775808, -32768, false, '-1 mon 3 days 00:00:00.000001', '{NULL,\"NULL\",\"a,b\",\"\\\"\"}', 'ab', 'äöü', '10.0.0.0/8', 'ha''ppy', B'000', 'empty', '(NaN,0)', 0, '00:00+00', '0', 'ab', '2000-01-01', E'\\x01\\x7f\\U0001F600'),
           (12, -0.000001, 0, '23:59:59.999999', decode(repeat('ab', 100000), 'hex'), '1e400', '\"x\"', NULL, 0, 0, NULL, '0', '{{a,b},{c,d}}', '     ', 'a  ', NULL, NULL, NULL, '(,)', NULL, NULL, NULL, NULL, NULL, NULL, repeat('x', 10000000));",
    );
    there_and_back(&world, true);
}

/// Remotes count microseconds since 1970 in 64 bits, PostgreSQL since 2000.
#[test]
fn a_moment_beyond_the_calendar_of_remotes_keeps_no_other_row_from_them() {
    let world = world::<Postgres>(
        "CREATE TABLE x (id int PRIMARY KEY, s text, ts timestamp, tz timestamptz);
         INSERT INTO x VALUES (1, 'far', '294276-12-31 23:59:59.999999', '294276-12-31 23:59:59+00'),
           (2, 'near', '293000-01-01', '292000-01-01');",
    );
    let mut ada = world.synced("ada");
    assert_eq!(ada.rows("SELECT s FROM x ORDER BY id"), ["far", "near"]);
    ada.edit("DELETE FROM x WHERE id = 1; UPDATE x SET s = 'mine' WHERE id = 2");
    ada.sync();
    ada.sync();
    ada.discard_refused();
    ada.sync();
    assert_eq!(
        ada.rows("SELECT s FROM x ORDER BY id"),
        world.rows("SELECT s FROM x ORDER BY id")
    );
}

#[test]
fn extreme_values_of_sqlite_travel_there_and_back() {
    let values = "NULL, 0, -1, 9223372036854775807, -9223372036854775808, 1.5, -0.0, 1e300, -1e300, 9e999, -9e999, 5e-324, 9007199254740993, '', ' ', 'a', '1', '01', '1.0', '1e3', 'NaN', 'Infinity', x'', x'00', x'ff', 'a' || char(0) || 'b', '2026-02-30', '2026-02-28', '2026-02-28 12:00', '2026-02-28T12:00:00Z', 'true', '{}', '{', '0F8FAD5B-D9CB-469F-A165-70867728950E', '-0', '+1', '0x10', '1.50', '00.1'";
    let mut schema = "CREATE TABLE x (id INTEGER NOT NULL PRIMARY KEY, s TEXT, i INTEGER, r REAL, n NUMERIC, n2 NUMERIC(10,2), t TEXT, b BLOB, d DATE, ts TIMESTAMP, bo BOOLEAN, u UUID, j JSON, vc VARCHAR(3), n3 DECIMAL(5,0), dt TIMESTAMPTZ, ti TIME);".to_owned();
    for (id, value) in values.split(", ").enumerate() {
        schema += &format!(
            "INSERT INTO x VALUES ({}, NULL{});",
            id + 1,
            format!(", {value}").repeat(15)
        );
    }
    let world = world::<Sqlite>(&schema);
    there_and_back(&world, false);
}

/// Whatever an application writes is taken or refused, row by row, and nothing is stuck.
fn odd_values_of_an_application_are_taken_or_refused<B: Backend>(types: &[&str]) {
    let columns: Vec<String> = types
        .iter()
        .enumerate()
        .map(|(at, it)| format!("c{at} {it}"))
        .collect();
    let world = world::<B>(&format!(
        "CREATE TABLE x (id INTEGER NOT NULL PRIMARY KEY, s TEXT, {})",
        columns.join(", ")
    ));
    let mut ada = world.synced("ada");
    let mut bob = world.synced("bob");
    let values = [
        "NULL",
        "0",
        "-1",
        "9223372036854775807",
        "-9223372036854775808",
        "1.5",
        "-0.0",
        "1e300",
        "9e999",
        "-9e999",
        "5e-324",
        "''",
        "' '",
        "'a'",
        "'1'",
        "'01'",
        "'1.0'",
        "'1e3'",
        "'NaN'",
        "'Infinity'",
        "x''",
        "x'00ff'",
        "'a' || char(0) || 'b'",
        "'2026-02-30'",
        "'2026-02-28'",
        "'2026-02-28 12:00'",
        "'2026-02-28T12:00:00Z'",
        "'2026-02-28T12:00:00.000000+99:99'",
        "'true'",
        "'{}'",
        "'{'",
        "'\"\\u0000\"'",
        "'0F8FAD5B-D9CB-469F-A165-70867728950E'",
        "'-0'",
        "'+1'",
        "'00.1'",
        "'1e131072'",
        "'1e-16384'",
        "'1e99999999999'",
        "'infinity'",
        "'-infinity'",
        "'999999-01-01'",
        "'+999999-01-01'",
        "'-4713-01-01'",
        "'24:00:00.000000'",
        "'25:00'",
        "printf('%.*c', 70000, '1')",
        "'0.' || printf('%.*c', 20000, '1')",
        "'😀'",
        "'1 day'",
        "'{1,2}'",
    ];
    let mut id = 0;
    for column in 0..types.len() {
        for value in values {
            id += 1;
            // A text that is too long is told at once.
            ada.try_edit(&format!(
                "INSERT INTO x (id, s, c{column}) VALUES ({id}, 's', {value})"
            ));
        }
    }
    let written: u64 = ada.value("SELECT count(*) FROM x").parse().unwrap();
    assert!(written > id * 9 / 10);
    let report = ada.sync();
    assert_eq!(report.conflicts, 0);
    assert_eq!(report.uploaded.inserts + report.refused, written);
    let again = ada.sync();
    assert_eq!((again.uploaded.inserts, again.refused), (0, 0));
    bob.sync();
    let taken =
        "SELECT * FROM x WHERE id NOT IN (SELECT key_id FROM tidewater_change_x) ORDER BY id";
    let (mine, theirs) = (ada.rows(taken), bob.rows(EVERYTHING));
    for (mine, theirs) in mine.iter().zip(&theirs) {
        assert!(
            mine == theirs,
            "{} {}",
            mine.chars().take(200).collect::<String>(),
            theirs.chars().take(200).collect::<String>()
        );
    }
    assert_eq!(mine.len(), theirs.len());
    // Rows that were taken can be changed by both.
    bob.edit("UPDATE x SET s = 'bobs'");
    let report = bob.sync();
    assert_eq!(
        (report.conflicts, report.refused),
        (0, 0),
        "{:?}",
        world.server.conflicts().first()
    );
    ada.sync();
    // Refused rows may become better.
    ada.edit("UPDATE x SET s = 'again' WHERE id IN (SELECT key_id FROM tidewater_change_x)");
    ada.sync();
    ada.discard_refused();
    ada.sync();
    assert_eq!(ada.rows(EVERYTHING), bob.rows(EVERYTHING));
}

#[test]
fn odd_values_are_taken_or_refused_by_postgres() {
    odd_values_of_an_application_are_taken_or_refused::<Postgres>(&[
        "integer",
        "bigint",
        "smallint",
        "numeric",
        "numeric(10,2)",
        "numeric(30,6)",
        "real",
        "double precision",
        "boolean",
        "text",
        "varchar(3)",
        "char(3)",
        "bytea",
        "date",
        "time",
        "timestamp",
        "timestamptz",
        "uuid",
        "json",
        "jsonb",
        "interval",
        "integer[]",
        "timestamp(0)",
    ]);
}

#[test]
fn odd_values_are_taken_or_refused_by_sqlite() {
    odd_values_of_an_application_are_taken_or_refused::<Sqlite>(&[
        "INTEGER",
        "REAL",
        "NUMERIC(10,2)",
        "TEXT",
        "BLOB",
        "DATE",
        "TIMESTAMP",
        "TIME",
        "BOOLEAN",
        "UUID",
        "VARCHAR(3)",
    ]);
}

/// A decimal without a scale keeps its digits, so an update of 1.5 to 1.50 is one.
fn a_decimal_that_is_only_written_differently_is_an_update<B: Backend>(decimal: &str) {
    let world = world::<B>(&format!(
        "CREATE TABLE x (id INTEGER NOT NULL PRIMARY KEY, s TEXT, n {decimal});
         INSERT INTO x VALUES (1, 'one', '1.5'), (2, 'two', '1.5')"
    ));
    let (mut ada, mut bob) = (world.synced("ada"), world.synced("bob"));
    ada.edit("UPDATE x SET n = '1.50'; UPDATE x SET s = 'changed too' WHERE id = 2");
    ada.sync();
    bob.sync();
    for device in [&ada, &bob] {
        assert_eq!(device.rows("SELECT n FROM x"), ["1.50", "1.50"]);
    }
    // The row that wins a conflict comes as the centre has it.
    world.execute("UPDATE x SET n = '2.50'");
    ada.edit("UPDATE x SET n = '2.5'");
    ada.sync();
    assert_eq!(ada.rows("SELECT n FROM x"), ["2.50", "2.50"]);
    assert_eq!(world.rows("SELECT n FROM x"), ["2.50", "2.50"]);
}

#[test]
fn a_decimal_that_is_only_written_differently_is_an_update_on_sqlite() {
    a_decimal_that_is_only_written_differently_is_an_update::<Sqlite>("DECIMAL_TEXT");
}

#[test]
fn a_decimal_that_is_only_written_differently_is_an_update_on_postgres() {
    a_decimal_that_is_only_written_differently_is_an_update::<Postgres>("NUMERIC");
}
