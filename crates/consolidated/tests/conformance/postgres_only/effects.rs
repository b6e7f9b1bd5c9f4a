//! What triggers and foreign keys of the application change beside a row, whoever wrote it.

use super::PostgresWorld;
use crate::fixture::Fixture;
use crate::remote::{Remote, delete, insert, update};
use crate::world::{World, everyone};

/// Orders whose triggers write two other tables: before, after, and at the commit.
const EFFECTS_DDL: &str = "
    CREATE TABLE stock (id integer PRIMARY KEY, left_over integer NOT NULL);
    CREATE TABLE total (id integer PRIMARY KEY, lines integer NOT NULL);
    CREATE TABLE parent (id integer PRIMARY KEY, name text);
    CREATE TABLE line (id integer PRIMARY KEY, stock_id integer NOT NULL REFERENCES stock,
      amount integer NOT NULL, parent_id integer REFERENCES parent ON DELETE SET NULL ON UPDATE CASCADE);
    CREATE TABLE kept (id integer PRIMARY KEY, parent_id integer DEFAULT 1
      REFERENCES parent ON DELETE SET DEFAULT);
    INSERT INTO stock VALUES (1, 100), (2, 100);
    INSERT INTO total VALUES (0, 0);
    INSERT INTO parent VALUES (1, 'one'), (2, 'two'), (3, 'three');
    INSERT INTO kept VALUES (1, 2), (2, 3);
    CREATE FUNCTION take() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
      UPDATE stock SET left_over = left_over - NEW.amount WHERE id = NEW.stock_id;
      NEW.amount := abs(NEW.amount); RETURN NEW; END $$;
    CREATE TRIGGER take BEFORE INSERT ON line FOR EACH ROW EXECUTE FUNCTION take();
    CREATE FUNCTION give_back() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
      UPDATE stock SET left_over = left_over + OLD.amount WHERE id = OLD.stock_id; RETURN NULL; END $$;
    CREATE TRIGGER give_back AFTER DELETE ON line FOR EACH ROW EXECUTE FUNCTION give_back();
    CREATE FUNCTION count_lines() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
      UPDATE total SET lines = (SELECT count(*) FROM line); RETURN NULL; END $$;
    CREATE CONSTRAINT TRIGGER count_lines AFTER INSERT OR DELETE ON line
      DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION count_lines();";

const TABLES: [&str; 5] = ["stock", "total", "parent", "line", "kept"];

async fn orders() -> PostgresWorld {
    World::new(EFFECTS_DDL, TABLES.map(everyone).to_vec()).await
}

async fn assert_equal(world: &PostgresWorld, remote: &Remote) {
    for table in TABLES {
        let sql = format!("SELECT * FROM {table} t");
        let mut rows = world.fixture.query(&sql).await;
        rows.sort();
        assert_eq!(remote.rows(table), rows, "{table}");
    }
}

#[tokio::test]
async fn what_triggers_of_the_application_write_reaches_everybody() {
    let world = orders().await;
    let mut anna = Remote::synced(&world, "anna").await;
    for sql in [
        "INSERT INTO line VALUES (1, 1, -3, 1), (2, 2, 5, 2)",
        "DELETE FROM line WHERE id = 2; INSERT INTO line VALUES (3, 1, 1, 2)",
        "BEGIN; SET CONSTRAINTS ALL IMMEDIATE; INSERT INTO line VALUES (4, 1, 1, NULL); COMMIT",
        "UPDATE parent SET id = 20 WHERE id = 1",
        "INSERT INTO parent VALUES (1, 'again'); DELETE FROM parent WHERE id IN (2, 3)",
    ] {
        world.execute(sql).await;
        anna.download().await;
        assert_equal(&world, &anna).await;
    }
}

/// CASES 10: what the centre did beside the rows of an upload reaches who uploaded them.
#[tokio::test]
async fn what_an_upload_sets_off_reaches_its_uploader_and_the_others() {
    let world = orders().await;
    let mut anna = Remote::synced(&world, "anna").await;
    let mut berta = Remote::synced(&world, "berta").await;
    let uploads = [
        vec![insert("line", "1|1|-3|1"), insert("line", "2|2|5|2")],
        vec![
            delete("line", "2|2|5|2"),
            update("parent", "3|three", "3|drei"),
        ],
        // The row goes out and comes back as it was: only its effects are news.
        vec![insert("line", "5|2|7|NULL")],
        vec![delete("parent", "2|two")],
        (100..400)
            .map(|id| insert("line", &format!("{id}|1|1|1")))
            .collect(),
    ];
    for changes in uploads {
        let result = anna.upload(&changes).await;
        assert!(
            result[0].ends_with("0 conflicts, 0 refused"),
            "{changes:?}: {result:?}"
        );
        anna.download().await;
        berta.download().await;
        assert_equal(&world, &berta).await;
        // A remote keeps what it uploaded, unless something else came of it.
        for table in ["stock", "total", "kept"] {
            assert_eq!(anna.rows(table), berta.rows(table));
        }
    }
    let mut fresh = Remote::synced(&world, "anna").await;
    assert_equal(&world, &fresh).await;
    assert_eq!(fresh.download().await.rows(), [] as [&str; 0]);
}
