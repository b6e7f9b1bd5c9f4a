//! What remotes do without the centre: numbers for keys, defaults, rules.

use crate::backend::{Backend, Postgres, Sqlite, save_sqlite};
use crate::compare::assert_converged;
use crate::device::Device;
use crate::scenario::{Column, Scenario, Table};
use crate::world::World;

const PUBLICATION: &str = r#"
[[publication]]
name = "main"

[[publication.table]]
name = "invoice"
partition = "everyone"
identity = { column = "invoice_id", block = 5, refill_below = 3 }

[[publication.table]]
name = "line"
partition = "everyone"

[[publication.table]]
name = "film"
partition = "everyone"
filled_by_centre = ["fulltext"]
"#;

const TABLES: &[Table] = &[
    Table {
        name: "invoice",
        columns: &[Column::Plain("invoice_id"), Column::Plain("total")],
        scope: "1 = 1",
        parents: &[],
    },
    Table {
        name: "line",
        columns: &[
            Column::Plain("line_id"),
            Column::Plain("invoice_id"),
            Column::Plain("made"),
        ],
        scope: "1 = 1",
        parents: &[],
    },
    Table {
        name: "film",
        columns: &[
            Column::Plain("film_id"),
            Column::Plain("title"),
            Column::Plain("rating"),
            Column::Plain("fulltext"),
        ],
        scope: "1 = 1",
        parents: &[],
    },
];

const POSTGRES: &str = "
CREATE TABLE invoice (invoice_id SERIAL PRIMARY KEY, total INTEGER CHECK (total >= 0));
CREATE TABLE line (line_id UUID PRIMARY KEY DEFAULT gen_random_uuid(),
  invoice_id INTEGER REFERENCES invoice, made DATE NOT NULL DEFAULT CURRENT_DATE);
CREATE TYPE rating AS ENUM ('G', 'PG');
CREATE TABLE film (film_id INTEGER PRIMARY KEY, title VARCHAR(15) NOT NULL, rating rating,
  fulltext TEXT NOT NULL);
CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN NEW.fulltext := lower(NEW.title); RETURN NEW; END $$;
CREATE TRIGGER fill BEFORE INSERT OR UPDATE ON film FOR EACH ROW EXECUTE FUNCTION fill();";

const SQLITE: &str = "
CREATE TABLE invoice (invoice_id INTEGER PRIMARY KEY AUTOINCREMENT,
  total INTEGER CONSTRAINT invoice_total_check CHECK (total >= 0));
CREATE TABLE line (line_id UUID PRIMARY KEY DEFAULT (lower(hex(randomblob(4)) || '-' ||
    hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2) || '-a' ||
    substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6)))),
  invoice_id INTEGER REFERENCES invoice, made DATE NOT NULL DEFAULT CURRENT_DATE);
CREATE TABLE film (film_id INTEGER PRIMARY KEY, title VARCHAR(15) NOT NULL,
  rating TEXT CHECK (rating IN ('G', 'PG')), fulltext TEXT NOT NULL DEFAULT '');
CREATE TRIGGER fill AFTER INSERT ON film BEGIN
  UPDATE film SET fulltext = lower(title) WHERE film_id = NEW.film_id; END;";

fn world<B: Backend>(schema: &str) -> World<B> {
    World::open(Scenario {
        schema: schema.into(),
        publication: PUBLICATION,
        tables: TABLES,
        users: &["ada", "bob"],
        limits: "",
    })
}

#[track_caller]
fn sync_cleanly(device: &mut Device) {
    let report = device.sync();
    let lost = (report.refused, report.conflicts);
    assert_eq!(lost, (0, 0), "{report:?}");
}

fn ids(device: &Device) -> Vec<String> {
    device.rows("SELECT invoice_id FROM invoice ORDER BY 1")
}

fn numbers_made_offline<B: Backend>(schema: &str) {
    let world = world::<B>(schema);
    let mut ada = world.synced("ada");
    let mut bob = world.synced("bob");
    // However the application leaves the key open, and whatever else it does in one transaction.
    ada.edit("INSERT INTO invoice (total) VALUES (1); INSERT INTO invoice VALUES (NULL, 2)");
    ada.edit(
        "BEGIN; INSERT OR REPLACE INTO invoice (total) VALUES (3);
         UPDATE invoice SET total = 4 WHERE rowid = last_insert_rowid();
         INSERT INTO line (invoice_id) SELECT invoice_id FROM invoice WHERE total = 4; COMMIT",
    );
    bob.edit("INSERT INTO invoice (total) VALUES (5), (6), (7), (8), (9)");
    let told = bob.remote_refuses("INSERT INTO invoice (total) VALUES (10)");
    assert!(
        told.contains("invoice") && told.contains("no numbers left"),
        "{told}"
    );
    assert_eq!(bob.rows("SELECT count(*) FROM invoice"), ["5"]);
    let told = bob.remote_refuses("UPDATE invoice SET invoice_id = NULL WHERE total = 5");
    assert!(told.contains("NOT NULL"), "{told}");
    assert_eq!((ada.pending(), bob.pending()), (4, 5));
    world.execute("INSERT INTO invoice (total) VALUES (100)");
    for turn in [true, false, true] {
        sync_cleanly(if turn { &mut ada } else { &mut bob });
    }
    assert_eq!(world.rows("SELECT count(*) FROM invoice"), ["9"]);
    assert_converged(&world, &[&ada, &bob]);
    // What was used up was filled up again; an own choice is skipped, and a deleted one not given
    // again.
    let next = bob.value("SELECT min(next) FROM tidewater_identity_block WHERE next <= last");
    bob.edit(&format!(
        "INSERT INTO invoice VALUES ({next}, 11); INSERT INTO invoice (total) VALUES (12)"
    ));
    bob.edit("DELETE FROM invoice WHERE total = 12");
    bob.edit("INSERT INTO invoice (total) VALUES (13)");
    let numbers = bob.rows("SELECT invoice_id FROM invoice WHERE total IN (11, 13) ORDER BY 1");
    let next: i64 = next.parse().unwrap();
    assert_eq!(numbers, [next.to_string(), (next + 2).to_string()]);
    bob.sync();
    ada.sync();
    assert_converged(&world, &[&ada, &bob]);
    // So are numbers that somebody has chosen in the centre.
    let next = bob.value("SELECT min(next) FROM tidewater_identity_block WHERE next <= last");
    let next: i64 = next.parse().unwrap();
    world.execute(&format!(
        "INSERT INTO invoice (invoice_id, total) VALUES ({next}, 14), ({next} + 1, 15)"
    ));
    bob.sync();
    bob.edit("INSERT INTO invoice (total) VALUES (16)");
    let number = bob.value("SELECT invoice_id FROM invoice WHERE total = 16");
    assert_eq!(number, (next + 2).to_string());
    sync_cleanly(&mut bob);
    ada.sync();
    assert_converged(&world, &[&ada, &bob]);
}

#[test]
fn rows_made_offline_have_numbers_that_nobody_else_has_in_postgres() {
    numbers_made_offline::<Postgres>(POSTGRES);
}

#[test]
fn rows_made_offline_have_numbers_that_nobody_else_has_in_sqlite() {
    numbers_made_offline::<Sqlite>(SQLITE);
}

fn a_copy<B: Backend>(schema: &str) {
    let world = world::<B>(schema);
    let mut ada = world.synced("ada");
    let path = ada.path.with_file_name("copy.db");
    save_sqlite(&ada.path, &path);
    let mut copy = Device::at(&path, &ada);
    ada.edit("INSERT INTO invoice (total) VALUES (1)");
    ada.sync();
    copy.sync();
    copy.edit("INSERT INTO invoice (total) VALUES (2), (3), (4), (5)");
    assert_eq!(ids(&copy).len(), 5);
    ada.edit("INSERT INTO invoice (total) VALUES (6), (7), (8), (9)");
    for turn in [true, false, true] {
        sync_cleanly(if turn { &mut copy } else { &mut ada });
    }
    assert_eq!(world.rows("SELECT count(*) FROM invoice"), ["9"]);
    assert_eq!(ids(&copy), ids(&ada));
}

#[test]
fn a_copied_file_uses_none_of_its_originals_numbers() {
    a_copy::<Sqlite>(SQLITE);
    a_copy::<Postgres>(POSTGRES);
}

fn defaults_and_rules<B: Backend>(schema: &str) {
    let world = world::<B>(schema);
    let mut ada = world.synced("ada");
    let mut bob = world.synced("bob");
    ada.edit("INSERT INTO line DEFAULT VALUES; INSERT INTO line (line_id) VALUES ('00000000-0000-4000-8000-000000000000')");
    assert_eq!(ada.pending(), 2);
    assert_eq!(
        ada.rows("SELECT count(*) FROM line WHERE made = date('now') AND length(line_id) = 36"),
        ["2"]
    );
    ada.edit("INSERT INTO film (film_id, title, rating) VALUES (1, 'Alien', 'PG')");
    for (sql, told) in [
        (
            "INSERT INTO invoice (total) VALUES (-1)",
            "invoice.total: invoice_total_check",
        ),
        (
            "INSERT INTO film (film_id, title, rating) VALUES (2, 'x', 'XX')",
            "film.rating: ",
        ),
        (
            "INSERT INTO film (film_id, rating) VALUES (2, 'G')",
            "film.title",
        ),
    ] {
        let error = ada.remote_refuses(sql);
        assert!(error.contains(told), "{sql}: {error}");
    }
    for turn in [true, false, true] {
        sync_cleanly(if turn { &mut ada } else { &mut bob });
    }
    // What the centre has filled comes back.
    assert_eq!(ada.rows("SELECT fulltext FROM film"), ["alien"]);
    assert_converged(&world, &[&ada, &bob]);
}

#[test]
fn defaults_and_rules_of_postgres_hold_on_remotes() {
    defaults_and_rules::<Postgres>(POSTGRES);
    let world = world::<Postgres>(POSTGRES);
    let ada = world.synced("ada");
    let long = "INSERT INTO film (film_id, title) VALUES (3, 'sixteen letters!')";
    let error = ada.remote_refuses(long);
    assert!(
        error.contains("film.title: at most 15 characters"),
        "{error}"
    );
}

#[test]
fn defaults_and_rules_of_sqlite_hold_on_remotes() {
    defaults_and_rules::<Sqlite>(SQLITE);
}

/// Tables whose keys are texts with limits, and one that refers to them.
const TEXT_KEYS: &str = "
CREATE TABLE country (code CHAR(2) NOT NULL PRIMARY KEY);
CREATE TABLE city (name VARCHAR(5) NOT NULL PRIMARY KEY,
  country CHAR(2) NOT NULL REFERENCES country);";

fn world_of_text_keys<B: Backend>() -> World<B> {
    World::open(Scenario {
        schema: TEXT_KEYS.into(),
        publication: "
[[publication]]
name = \"main\"

[[publication.table]]
name = \"country\"
partition = \"everyone\"

[[publication.table]]
name = \"city\"
partition = \"everyone\"
",
        tables: &[
            Table {
                name: "country",
                columns: &[Column::Plain("code")],
                scope: "1 = 1",
                parents: &[],
            },
            Table {
                name: "city",
                columns: &[Column::Plain("name"), Column::Plain("country")],
                scope: "1 = 1",
                parents: &[],
            },
        ],
        users: &["ada", "bob"],
        limits: "",
    })
}

/// Blanks count in a varchar, as far as its limit goes; none do in a char.
#[test]
fn a_text_key_that_postgres_spells_otherwise_is_refused_where_it_is_typed() {
    let world = world_of_text_keys::<Postgres>();
    let (mut ada, mut bob) = (world.synced("ada"), world.synced("bob"));
    ada.edit("INSERT INTO country VALUES ('DE'), ('FR')");
    for (sql, told) in [
        (
            "INSERT INTO country VALUES ('D ')",
            "country.code: at most 2 characters, no blanks at the end",
        ),
        (
            "UPDATE country SET code = 'F ' WHERE code = 'FR'",
            "no blanks at the end",
        ),
        (
            "INSERT INTO country VALUES ('DEU')",
            "country.code: at most 2 characters",
        ),
        (
            "INSERT INTO city VALUES ('Paris ', 'FR')",
            "city.name: at most 5 characters",
        ),
    ] {
        let error = ada.remote_refuses(sql);
        assert!(error.contains(told), "{sql}: {error}");
    }
    ada.edit("INSERT INTO city VALUES ('Rom', 'DE'), ('Rom  ', 'DE'), ('Zürič', 'FR')");
    for device in [&mut ada, &mut bob] {
        sync_cleanly(device);
    }
    assert_eq!(
        world.rows("SELECT name || '.' FROM city ORDER BY name COLLATE \"C\""),
        ["Rom.", "Rom  .", "Zürič."]
    );
    assert_converged(&world, &[&ada, &bob]);
}

/// SQLite keeps every text as it is.
#[test]
fn a_text_key_that_sqlite_keeps_is_taken() {
    let world = world_of_text_keys::<Sqlite>();
    let (mut ada, mut bob) = (world.synced("ada"), world.synced("bob"));
    ada.edit("INSERT INTO country VALUES ('DEU'), ('D ')");
    ada.edit("INSERT INTO city VALUES ('Paris ', 'D ')");
    for device in [&mut ada, &mut bob] {
        sync_cleanly(device);
    }
    assert_converged(&world, &[&ada, &bob]);
}

const KEYS: &str = include_str!("../../../../docs/keys.md");

/// What stands in the blocks of a language, in a document.
fn blocks(document: &'static str, language: &str) -> Vec<&'static str> {
    let begin = format!("```{language}\n");
    let parts = document.split(&*begin).skip(1);
    parts.map(|it| it.split("```").next().unwrap()).collect()
}

#[test]
fn the_examples_of_the_page_on_keys_work() {
    let publication = format!(
        "[[publication]]\nname = \"main\"\n{}",
        blocks(KEYS, "toml").concat()
    );
    let world = World::<Postgres>::open(Scenario {
        schema: POSTGRES.into(),
        publication: publication.leak(),
        tables: TABLES,
        users: &["ada"],
        limits: "",
    });
    let mut ada = world.synced("ada");
    let sql = blocks(KEYS, "sql")[0];
    let (insert, select) = sql.trim().split_once('\n').unwrap();
    ada.edit(insert);
    assert_eq!(
        ada.value("SELECT sum(last - next + 1) FROM tidewater_identity_block"),
        "999"
    );
    let number = ada.value(select);
    ada.edit("INSERT INTO film (film_id, title) VALUES (1, 'Alien')");
    ada.sync();
    assert_eq!(
        world.rows("SELECT invoice_id, total FROM invoice"),
        [format!("{number}|12")]
    );
    assert_eq!(ada.value("SELECT fulltext FROM film"), "alien");
    let told = ada.remote_refuses("INSERT INTO invoice (total) VALUES (-1)");
    assert_eq!(told, blocks(KEYS, "text")[0].trim());
}
