//! Configurations that keep their promises, and such that are broken on purpose.

use std::path::Path;

use rusqlite::Connection;
use tempfile::TempDir;
use tidewater_server::Config;

use super::{Extent, Kit, KitOptions, SeedOutcome, run};

/// As in docs/refused-rows.md, with customers who have their own representatives.
const SCHEMA: &str = "
    CREATE TABLE rep (rep_id INTEGER NOT NULL PRIMARY KEY, login TEXT NOT NULL);
    CREATE TABLE customer (
        customer_id INTEGER NOT NULL PRIMARY KEY,
        rep_id INTEGER NOT NULL REFERENCES rep (rep_id),
        name TEXT NOT NULL CHECK (trim(name) <> ''),
        credit DECIMAL(9,2) NOT NULL DEFAULT 0, note TEXT);
    CREATE TABLE visit (visit_id TEXT NOT NULL PRIMARY KEY,
        customer_id INTEGER NOT NULL REFERENCES customer ON DELETE CASCADE,
        day DATE NOT NULL, done BOOLEAN NOT NULL DEFAULT 0);
    CREATE INDEX visit_customer ON visit (customer_id);
    CREATE TABLE product (product_id INTEGER NOT NULL PRIMARY KEY,
        name TEXT NOT NULL UNIQUE, stock INTEGER NOT NULL CHECK (stock < 90));
    INSERT INTO rep VALUES (1, 'nancy'), (2, 'steve');
    INSERT INTO customer VALUES (10, 1, 'Ada', 1.5, NULL), (11, 1, 'Bob', 2, 'x'),
        (20, 2, 'Cleo', 0, NULL);
    INSERT INTO visit VALUES ('a', 10, '2026-01-10', 0), ('b', 20, '2026-01-11', 1);
    INSERT INTO product VALUES (1, 'pen', 3), (2, 'ink', 4);
";

const TABLES: &str = r#"
[[publication]]
name = "main"

[[publication.table]]
name = "rep"
partition = "everyone"
direction = "download"

[[publication.table]]
name = "customer"
partition = { columns = ["rep_id"], values = "SELECT rep_id FROM rep WHERE login = {s.username}" }

[[publication.table]]
name = "visit"
partition = { follows = "customer" }

[[publication.table]]
name = "product"
partition = "everyone"
"#;

const EXTENT: Extent = Extent {
    remotes: 3,
    syncs: 5,
};

/// A folder with a centre, a configuration and scripts.
struct Desk(TempDir);

impl Desk {
    fn new(schema: &str, tables: &str) -> Desk {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let centre = Connection::open(folder.path().join("shop.db")).expect("it can be made");
        centre.execute_batch(schema).expect("valid SQL");
        let config = format!("[server]\nconsolidated = \"sqlite:shop.db\"\n{tables}");
        std::fs::write(folder.path().join("tidewater.toml"), config).expect("it can be written");
        Desk(folder)
    }

    fn script(&self, of: &str, event: &str, sql: &str) {
        let folder = self.0.path().join("scripts/default").join(of);
        std::fs::create_dir_all(&folder).expect("a folder can be made");
        std::fs::write(folder.join(format!("{event}.sql")), sql).expect("it can be written");
    }

    fn wanted(&self) -> KitOptions {
        KitOptions {
            centre: self.0.path().join("shop.db"),
            ..KitOptions::default()
        }
    }

    fn kit(&self) -> Kit {
        self.kit_of(&self.wanted())
    }

    fn kit_of(&self, wanted: &KitOptions) -> Kit {
        let path: &Path = &self.0.path().join("tidewater.toml");
        let config = Config::load(path).expect("a valid configuration");
        Kit::prepare(&config, wanted).expect("it fits the database")
    }
}

fn holds(kit: &Kit, seeds: std::ops::Range<u64>) -> super::Tally {
    let mut tally = super::Tally::default();
    for seed in seeds {
        let played = run(kit, seed, EXTENT, true);
        if let Some(failure) = played.failure {
            panic!("seed {seed}: {failure}\n{}", played.lines.join("\n"));
        }
        tally.add(&played.tally);
    }
    tally
}

/// The first of some seeds that breaks a promise; the same twice.
fn caught(kit: &Kit, promise: &str) -> SeedOutcome {
    let failing = (0..40)
        .map(|seed| run(kit, seed, EXTENT, true))
        .find(|it| it.failure.is_some());
    let first = failing.expect("a seed breaks a promise");
    let failure = first.failure.clone().unwrap_or_default();
    println!("seed {}: {failure}", first.seed);
    assert!(failure.starts_with(promise), "{failure}");
    let again = run(kit, first.seed, EXTENT, true);
    assert_eq!(again.failure, first.failure);
    assert_eq!(again.lines, first.lines);
    first
}

#[test]
fn a_configuration_without_scripts_keeps_its_promises() {
    let desk = Desk::new(SCHEMA, TABLES);
    let before = std::fs::read(desk.0.path().join("shop.db")).expect("it can be read");
    let kit = desk.kit();
    assert_eq!(kit.known.users.len(), 2, "{:?}", kit.known.users);
    let tally = holds(&kit, 0..30);
    assert!(tally.changes_of_remotes > 100, "{tally:?}");
    assert!(tally.changes_of_centre > 20, "{tally:?}");
    assert!(tally.conflicts > 0, "{tally:?}");
    let reasons: Vec<&String> = tally.refused.keys().collect();
    let refused = |what: &str| reasons.iter().any(|it| it.contains(what));
    assert!(refused("product"), "{reasons:?}");
    assert!(tally.faults.len() > 12, "{:?}", tally.faults);
    let after = std::fs::read(desk.0.path().join("shop.db")).expect("it can be read");
    assert!(before == after, "the original is only read");
    let files = std::fs::read_dir(desk.0.path()).expect("it can be listed");
    assert_eq!(files.count(), 2, "nothing stands beside it");
}

#[test]
fn an_empty_copy_is_filled_by_those_who_edit_it() {
    let desk = Desk::new(SCHEMA, TABLES);
    let kit = desk.kit_of(&KitOptions {
        is_empty: true,
        users: vec!["nancy".into()],
        ..desk.wanted()
    });
    let tally = holds(&kit, 0..10);
    assert!(tally.changes_of_centre > 5, "{tally:?}");
}

#[test]
fn scripts_that_keep_their_promises_are_let_be() {
    let desk = Desk::new(
        "CREATE TABLE customer (id INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL,
           changed_by TEXT, last_modified TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f')));
         CREATE TABLE gone (id INTEGER NOT NULL PRIMARY KEY, at TEXT NOT NULL);
         CREATE TRIGGER customer_changed AFTER UPDATE ON customer BEGIN
           UPDATE customer SET last_modified = strftime('%Y-%m-%d %H:%M:%f') WHERE id = NEW.id; END;
         CREATE TRIGGER customer_moved AFTER INSERT ON customer BEGIN
           UPDATE customer SET last_modified = strftime('%Y-%m-%d %H:%M:%f') WHERE id = NEW.id;
           DELETE FROM gone WHERE id = NEW.id; END;
         CREATE TRIGGER customer_gone AFTER DELETE ON customer BEGIN
           INSERT OR REPLACE INTO gone VALUES (OLD.id, strftime('%Y-%m-%d %H:%M:%f')); END;
         CREATE TABLE visit_log (line TEXT NOT NULL);
         INSERT INTO customer (id, name) VALUES (1, 'Nora'), (2, 'Ole');",
        "[[publication]]\nname = \"main\"\n[[publication.table]]\nname = \"customer\"\n\
         columns = [\"id\", \"name\", \"changed_by\"]\npartition = \"everyone\"\n\
         tracking = \"off\"\nread_only = [\"changed_by\"]\n",
    );
    desk.script(
        "customer",
        "upload_update",
        "UPDATE customer SET name = {r.name}, changed_by = {s.username} WHERE id = {r.id};",
    );
    desk.script(
        "customer",
        "upload_insert",
        "INSERT INTO customer (id, name, changed_by)
         SELECT id, name, {s.username} FROM {rows} AS r;",
    );
    desk.script(
        "connection",
        "end_upload",
        "INSERT INTO visit_log (line) VALUES ({s.username} || ' has uploaded');",
    );
    desk.script(
        "customer",
        "download_cursor",
        "SELECT id, name, changed_by FROM customer WHERE last_modified >= {s.last_download};",
    );
    desk.script(
        "customer",
        "download_delete_cursor",
        "SELECT id FROM gone WHERE at >= {s.last_download};",
    );
    let tally = holds(&desk.kit(), 0..20);
    assert!(tally.changes_of_remotes > 50, "{tally:?}");
}

#[test]
fn a_script_that_writes_nothing_is_caught() {
    let desk = Desk::new(SCHEMA, TABLES);
    desk.script("product", "upload_insert", "SELECT {r.product_id};");
    let played = caught(&desk.kit(), "I2: ");
    let failure = played.failure.unwrap_or_default();
    assert!(failure.contains("product"), "{failure}");
    assert!(failure.contains("is nowhere"), "{failure}");
}

#[test]
fn an_update_that_changes_no_row_is_caught() {
    let desk = Desk::new(SCHEMA, TABLES);
    desk.script(
        "product",
        "upload_update",
        "UPDATE product SET name = {r.name}, stock = {r.stock} WHERE product_id = -{r.product_id};",
    );
    let played = caught(&desk.kit(), "I2: ");
    let failure = played.failure.unwrap_or_default();
    assert!(
        failure.contains("nobody else has changed the row"),
        "{failure}"
    );
}

#[test]
fn a_script_that_applies_twice_is_caught() {
    let desk = Desk::new(SCHEMA, TABLES);
    let once = "UPDATE product SET name = {r.name}, stock = stock + {r.stock} - {o.stock} \
                WHERE product_id = {r.product_id};";
    desk.script("product", "upload_update", &format!("{once}\n{once}"));
    let played = caught(&desk.kit(), "I1: ");
    let failure = played.failure.unwrap_or_default();
    assert!(failure.contains("stock is"), "{failure}");
}

#[test]
fn a_script_that_inserts_a_second_row_is_caught() {
    let desk = Desk::new(SCHEMA, TABLES);
    desk.script(
        "customer",
        "upload_insert",
        "INSERT INTO customer VALUES ({r.customer_id}, {r.rep_id}, {r.name}, {r.credit}, {r.note});
         INSERT INTO customer VALUES ({r.customer_id} + 100000, {r.rep_id}, {r.name}, 0, NULL);",
    );
    let played = caught(&desk.kit(), "I1: ");
    let failure = played.failure.unwrap_or_default();
    assert!(failure.contains("twice"), "{failure}");
}

#[test]
fn a_download_that_skips_rows_is_caught() {
    let desk = Desk::new(
        "CREATE TABLE customer (id INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL,
           last_modified TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP);
         INSERT INTO customer (id, name) VALUES (1, 'Nora'), (2, 'Ole');",
        "[[publication]]\nname = \"main\"\n[[publication.table]]\nname = \"customer\"\n\
         columns = [\"id\", \"name\"]\npartition = \"everyone\"\ntracking = \"off\"\n",
    );
    // Nobody sets the time when a row is changed.
    desk.script(
        "customer",
        "download_cursor",
        "SELECT id, name FROM customer WHERE last_modified >= {s.last_download};",
    );
    let played = caught(&desk.kit(), "I3: ");
    let failure = played.failure.unwrap_or_default();
    assert!(failure.contains("a device that begins anew"), "{failure}");
}

#[test]
fn what_a_trigger_makes_of_a_row_is_the_centres_own() {
    let schema = format!(
        "{SCHEMA} ALTER TABLE product ADD changed_at TIMESTAMP;
         CREATE TRIGGER product_stamped AFTER UPDATE OF name, stock, changed_at ON product BEGIN
           UPDATE product SET changed_at = CURRENT_TIMESTAMP WHERE product_id = NEW.product_id; END;"
    );
    let desk = Desk::new(&schema, TABLES);
    let kit = desk.kit();
    let told = |it: &String| it.contains("product.changed_at is written by a trigger");
    assert!(kit.remarks().iter().any(told), "{:?}", kit.remarks());
    holds(&kit, 0..10);
}

#[test]
fn a_delete_that_is_only_a_mark_is_let_be() {
    let desk = Desk::new(
        "CREATE TABLE customer (id INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL,
           deleted INTEGER NOT NULL DEFAULT 0 CHECK (deleted IN (0, 1)),
           last_modified TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f')));
         CREATE TABLE gone (id INTEGER NOT NULL PRIMARY KEY, at TEXT NOT NULL);
         CREATE TRIGGER customer_changed AFTER UPDATE ON customer BEGIN
           UPDATE customer SET last_modified = strftime('%Y-%m-%d %H:%M:%f') WHERE id = NEW.id; END;
         CREATE TRIGGER customer_new AFTER INSERT ON customer BEGIN
           UPDATE customer SET last_modified = strftime('%Y-%m-%d %H:%M:%f') WHERE id = NEW.id; END;
         CREATE TRIGGER customer_gone AFTER DELETE ON customer BEGIN
           INSERT OR REPLACE INTO gone VALUES (OLD.id, strftime('%Y-%m-%d %H:%M:%f')); END;
         INSERT INTO customer (id, name) VALUES (1, 'Nora'), (2, 'Ole'), (3, 'Pia'), (4, 'Rune');",
        "[[publication]]\nname = \"main\"\n[[publication.table]]\nname = \"customer\"\n\
         columns = [\"id\", \"name\"]\npartition = \"everyone\"\ntracking = \"off\"\n",
    );
    let mark = "UPDATE customer SET deleted = 1 WHERE id = {r.id};";
    desk.script("customer", "upload_delete", mark);
    let cursor = "SELECT id, name FROM customer
         WHERE last_modified >= {s.last_download} AND NOT deleted;";
    desk.script("customer", "download_cursor", cursor);
    let deleted = "SELECT id FROM customer WHERE last_modified >= {s.last_download} AND deleted
         UNION SELECT id FROM gone WHERE at >= {s.last_download};";
    desk.script("customer", "download_delete_cursor", deleted);
    holds(&desk.kit(), 0..15);
}

#[test]
fn a_table_whose_rows_go_elsewhere_is_passed_over_when_that_is_said() {
    let schema = format!("{SCHEMA} CREATE TABLE staged (name TEXT NOT NULL, stock INTEGER);");
    let tables = TABLES.replace(
        "name = \"product\"\n",
        "name = \"product\"\ndirection = \"upload\"\n",
    );
    let desk = Desk::new(&schema, &tables);
    let elsewhere = "INSERT INTO staged VALUES ({r.name}, {r.stock});";
    desk.script("product", "upload_insert", elsewhere);
    caught(&desk.kit(), "I2: ");
    let kit = desk.kit_of(&KitOptions {
        made_by_centre: vec!["product".into()],
        ..desk.wanted()
    });
    holds(&kit, 0..10);
}
