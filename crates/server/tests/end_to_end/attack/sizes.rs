//! Values that are longer, and tables that are wider, than can be synced.

use tidewater_protocol::Code;

use crate::backend::{Backend, Postgres, Sqlite};
use crate::scenario::Scenario;
use crate::world::World;

const EVERYTHING: &str = "SELECT id, length(s) FROM x ORDER BY id";

/// One byte more than a synced value may have, as SQLite writes it.
const LONG_SQLITE: &str = "printf('%.*c', 67108865, 'x')";
/// The same for PostgreSQL.
const LONG_POSTGRES: &str = "repeat('x', 67108865)";

fn world<B: Backend>(columns: &str) -> World<B> {
    World::open(Scenario {
        schema: format!("CREATE TABLE x (id INTEGER NOT NULL PRIMARY KEY, {columns})"),
        publication: "
            [[publication]]
            name = \"main\"
            [[publication.table]]
            name = \"x\"
            partition = \"everyone\"
        ",
        tables: &[],
        users: &["ada", "bob"],
        limits: "",
    })
}

/// It held up everything that the remote did from then on, for ever: the upload that it was in
/// could not be sent, and what is in an upload does not change.
fn a_value_that_is_too_long_to_be_sent_is_refused_and_holds_nothing_up<B: Backend>() {
    let world = world::<B>("s TEXT");
    let mut ada = world.synced("ada");
    ada.edit("INSERT INTO x VALUES (1, 'short')");
    ada.sync();
    ada.edit(&format!(
        "INSERT INTO x VALUES (2, {LONG_SQLITE}), (3, 'short'); UPDATE x SET s = {LONG_SQLITE} WHERE id = 1"
    ));
    let report = ada.sync();
    assert_eq!((report.uploaded.inserts, report.refused), (1, 2));
    let refused = ada.refused();
    let told: Vec<_> = refused
        .iter()
        .map(|it| (&*it.key, &*it.operation))
        .collect();
    assert_eq!(told, [("[1]", "update"), ("[2]", "insert")]);
    assert!(
        refused[0].reason.contains("at most 64.0 MiB"),
        "{refused:?}"
    );
    assert_eq!(world.rows(EVERYTHING), ["1|5", "3|5"]);
    assert_eq!(ada.pending(), 0);
    // Nothing else is held up, and the user's values are where they were.
    ada.edit("INSERT INTO x VALUES (4, 'more')");
    assert_eq!(ada.sync().refused, 0);
    assert_eq!(world.rows(EVERYTHING), ["1|5", "3|5", "4|4"]);
    assert_eq!(
        ada.rows(EVERYTHING),
        ["1|67108865", "2|67108865", "3|5", "4|4"]
    );
    // Made shorter, they go up; given up, they are as the centre has them.
    ada.edit("UPDATE x SET s = 'shorter' WHERE id = 2");
    assert_eq!(ada.sync().refused, 0);
    assert_eq!(ada.discard_refused(), 1);
    ada.sync();
    assert_eq!(world.rows(EVERYTHING), ["1|5", "2|7", "3|5", "4|4"]);
    assert_eq!(ada.rows(EVERYTHING), world.rows(EVERYTHING));
}

/// The remote said that the server was defective, and the server that all was well.
fn a_row_of_the_centre_that_is_too_long_is_named<B: Backend>(long: &str) {
    let world = world::<B>("s TEXT");
    let mut ada = world.synced("ada");
    world.execute(&format!("INSERT INTO x VALUES (1, 'short'), (2, {long})"));
    let error = ada.try_sync().expect_err("it cannot be sent");
    assert_eq!(error.code(), Code::LimitExceeded, "{error}");
    let message = error.to_string();
    assert!(
        message.contains("the row [2] of the table \"x\""),
        "{message}"
    );
    assert!(message.contains("column \"s\""), "{message}");
    assert_eq!(ada.rows(EVERYTHING), [""; 0]);
    world.execute("UPDATE x SET s = 'shorter' WHERE id = 2");
    ada.sync();
    assert_eq!(ada.rows(EVERYTHING), ["1|5", "2|7"]);
    // A change of it is a conflict, or refused: what is told of that can be read for ever after.
    world.execute(&format!("UPDATE x SET s = {long} WHERE id = 1"));
    ada.edit("UPDATE x SET s = 'mine' WHERE id = 1");
    let error = ada.try_sync().expect_err("it cannot be sent");
    assert_eq!(error.code(), Code::LimitExceeded, "{error}");
    world.execute("UPDATE x SET s = 'back' WHERE id = 1");
    let report = ada.sync();
    assert_eq!(report.conflicts + report.refused, 1);
    ada.discard_refused();
    ada.sync();
    assert_eq!(ada.rows(EVERYTHING), ["1|4", "2|7"]);
}

#[test]
fn a_row_of_an_sqlite_centre_that_is_too_long_is_named() {
    a_row_of_the_centre_that_is_too_long_is_named::<Sqlite>(LONG_SQLITE);
}

#[test]
fn a_row_of_a_postgres_centre_that_is_too_long_is_named() {
    a_row_of_the_centre_that_is_too_long_is_named::<Postgres>(LONG_POSTGRES);
}

/// The widest table that deploying takes: with more columns nothing could be uploaded.
fn a_table_of_990_columns_is_synced_both_ways<B: Backend>() {
    let columns: Vec<String> = (1..990).map(|it| format!("c{it} TEXT")).collect();
    let world = world::<B>(&columns.join(", "));
    let (mut ada, mut bob) = (world.synced("ada"), world.synced("bob"));
    world.execute("INSERT INTO x (id, c7) VALUES (1, 'one'), (2, 'two')");
    ada.sync();
    ada.edit("UPDATE x SET c989 = 'new' WHERE id = 1; DELETE FROM x WHERE id = 2; INSERT INTO x (id, c1) VALUES (3, 'three')");
    assert_eq!(ada.sync().refused, 0);
    bob.sync();
    let some = "SELECT id, c1, c7, c989 FROM x ORDER BY id";
    assert_eq!(bob.rows(some), ["1|NULL|one|new", "3|three|NULL|NULL"]);
    assert_eq!(world.rows(some), bob.rows(some));
}

on_both_adapters!(
    a_value_that_is_too_long_to_be_sent_is_refused_and_holds_nothing_up,
    a_table_of_990_columns_is_synced_both_ways,
);
