//! The tables of a hierarchy, and what is published of them at either level.

use tidewater_server::Config;

use crate::failure::SimulationFailure;

/// The branch, as headquarters knows it.
pub(super) const BRANCH: &str = "north";

/// Who has devices at the branch, and the number of his counter.
pub(super) const SELLERS: [(&str, i64); 3] = [("ann", 1), ("ben", 2), ("cyd", 3)];

/// What headquarters refuses, and the branch does not.
pub(super) const DENIED: &str = "denied";

/// The tables, at headquarters. Items are inserted by devices and headquarters, and belong to one
/// device each, which alone edits them; counters to one each, which counts; prices are everybody's, and
/// into tills everybody puts something, devices, the branch and headquarters alike.
const TABLES: &str = "
    CREATE TABLE territory (login TEXT NOT NULL, region INTEGER NOT NULL,
        PRIMARY KEY (login, region));
    CREATE TABLE item (
        item_id INTEGER NOT NULL PRIMARY KEY,
        region INTEGER NOT NULL,
        owner TEXT NOT NULL,
        note TEXT NOT NULL);
    CREATE TABLE counter (
        counter_id INTEGER NOT NULL PRIMARY KEY,
        region INTEGER NOT NULL,
        count INTEGER NOT NULL);
    CREATE TABLE price (
        price_id INTEGER NOT NULL PRIMARY KEY,
        note TEXT NOT NULL);
    CREATE TABLE till (
        till_id INTEGER NOT NULL PRIMARY KEY,
        amount INTEGER NOT NULL);
    INSERT INTO till VALUES (1, 0), (2, 0);
    INSERT INTO territory VALUES ('north', 1);
    INSERT INTO item VALUES (1, 1, 'ann', 'a'), (2, 1, 'ben', 'b'), (3, 2, 'eve', 'c');
    INSERT INTO counter VALUES (1, 1, 0), (2, 1, 0), (3, 1, 0), (4, 2, 7);
    INSERT INTO price VALUES (1, 'one'), (2, 'two'), (3, 'three');";

/// What is written down of either level: all that happens to items and counters there, in the
/// branch's file also what comes from above.
pub(super) const AUDIT: &str = "
    CREATE TABLE audit (at INTEGER PRIMARY KEY AUTOINCREMENT, \"table\" TEXT NOT NULL,
        key INTEGER NOT NULL, text NOT NULL);
    CREATE TRIGGER audit_item_insert AFTER INSERT ON item BEGIN
        INSERT INTO audit (\"table\", key, text) VALUES ('item', NEW.item_id, NEW.note); END;
    CREATE TRIGGER audit_item_update AFTER UPDATE ON item BEGIN
        INSERT INTO audit (\"table\", key, text) VALUES ('item', NEW.item_id, NEW.note); END;
    CREATE TRIGGER audit_counter_update AFTER UPDATE ON counter BEGIN
        INSERT INTO audit (\"table\", key, text) VALUES ('counter', NEW.counter_id, NEW.count); END;";

/// Headquarters at the beginning.
pub(super) fn headquarters_schema() -> String {
    format!(
        "{TABLES}{AUDIT}
         CREATE TRIGGER deny_item BEFORE INSERT ON item WHEN NEW.note LIKE '{DENIED}%' BEGIN
             SELECT RAISE(ABORT, 'denied'); END;"
    )
}

const SERVER: &str = "[server]\nlisten = [\"tcp://127.0.0.1:7439\"]\n\
     consolidated = \"sqlite:simulated\"\n[server.limits]\nsession_workers = 1\n\
     upload_workers = 2\ndownload_workers = 2\nshutdown_timeout = \"1s\"\n\
     [[publication]]\nname = \"main\"\n";

/// What is published of tills, at either level.
const TILL: &str = "[[publication.table]]\nname = \"till\"\npartition = \"everyone\"\n\
     conflict = { resolve = \"additive(amount)\" }\n";

/// What headquarters serves.
pub(super) fn headquarters() -> Result<Config, SimulationFailure> {
    let mine = "partition = { columns = [\"region\"], values = \"SELECT region FROM territory \
                WHERE login = {s.username}\" }";
    Ok(Config::parse(&format!(
        "{SERVER}[[publication.table]]\nname = \"item\"\n{mine}\n\
         [[publication.table]]\nname = \"counter\"\n{mine}\n\
         [[publication.table]]\nname = \"price\"\npartition = \"everyone\"\n{TILL}"
    ))?)
}

/// What the branch serves.
pub(super) fn branch() -> Result<Config, SimulationFailure> {
    Ok(Config::parse(&format!(
        "{SERVER}[[publication.table]]\nname = \"item\"\n\
         partition = {{ columns = [\"owner\"], values = \"SELECT {{s.username}}\" }}\n\
         [[publication.table]]\nname = \"counter\"\npartition = \"everyone\"\n\
         [[publication.table]]\nname = \"price\"\npartition = \"everyone\"\n{TILL}"
    ))?)
}
