//! What triggers and foreign keys of the application change beside a row, whoever wrote it.

use super::PostgresWorld;
use crate::fixture::PostgresFixture;
use tidewater_centre::{OnUnseenChildren, TableSpec};
use tidewater_centre_conformance::fixture::Fixture;
use tidewater_centre_conformance::remote::{TestRemote, delete, insert, update};
use tidewater_centre_conformance::world::{
    DeployedCentre, NOW_MS, everyone, partitioned, publication,
};
use tidewater_centre_postgres::connect;

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
    let tables = TABLES.map(|name| TableSpec {
        on_unseen_children: OnUnseenChildren::Cascade,
        ..everyone(name)
    });
    DeployedCentre::new(EFFECTS_DDL, tables.to_vec()).await
}

async fn assert_equal(world: &PostgresWorld, remote: &TestRemote) {
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
    let mut anna = TestRemote::synced(&world, "anna").await;
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

/// Interleaving 10: what the centre did beside the rows of an upload reaches who uploaded them.
#[tokio::test]
async fn what_an_upload_sets_off_reaches_its_uploader_and_the_others() {
    let world = orders().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut berta = TestRemote::synced(&world, "berta").await;
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
    let mut fresh = TestRemote::synced(&world, "anna").await;
    assert_equal(&world, &fresh).await;
    assert_eq!(fresh.download().await.rows(), [] as [&str; 0]);
}

/// A trigger does not let a row have its new key: then it is refused, and nothing is told that is
/// not so.
#[tokio::test]
async fn a_row_that_a_trigger_keeps_from_its_new_key_is_refused() {
    for change in ["NEW.id := OLD.id", "NEW.id := 99"] {
        let ddl = format!(
            "CREATE TABLE par (id integer PRIMARY KEY, u text UNIQUE, region text NOT NULL);
             CREATE TABLE ch (id integer PRIMARY KEY, u text REFERENCES par (u) ON DELETE CASCADE);
             CREATE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS
               $$BEGIN {change}; RETURN NEW; END$$;
             CREATE TRIGGER change BEFORE UPDATE ON par FOR EACH ROW EXECUTE FUNCTION change();
             INSERT INTO par VALUES (1, 'a', 'north'); INSERT INTO ch VALUES (1, 'a')"
        );
        let mine = "SELECT 'north' WHERE {s.username} <> ''";
        let par = partitioned("par", &["region"], mine);
        let world = PostgresWorld::new(&ddl, vec![par, everyone("ch")]).await;
        let mut anna = TestRemote::synced(&world, "anna").await;
        let result = anna
            .upload(&[update("par", "1|a|north", "2|a|north")])
            .await;
        let counts = "0 inserted, 0 updated, 0 deleted, 0 conflicts, 1 refused";
        assert_eq!(result[0], counts, "{change}: {result:?}");
        let rows = "SELECT par.id, region, ch.id FROM par JOIN ch USING (u)";
        assert_eq!(world.fixture.query(rows).await, ["1|north|1"], "{change}");
    }
}

/// Foreign keys act with the rights of the table's owner: nobody else needs any on the children.
#[tokio::test]
async fn children_that_our_role_may_not_read_are_left_to_the_database() {
    let fixture = PostgresFixture::new().await;
    let role = format!("clerk_{}", fixture.url().rsplit('_').next().unwrap());
    fixture
        .execute(&format!(
            "CREATE ROLE {role} LOGIN; CREATE SCHEMA crm;
             DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO {role}', current_database()); END $$;
             CREATE TABLE par (id integer PRIMARY KEY, u text UNIQUE);
             GRANT SELECT, INSERT, UPDATE, DELETE, TRIGGER ON par TO {role};
             CREATE TABLE crm.note (u text REFERENCES par (u) ON DELETE CASCADE ON UPDATE CASCADE);
             INSERT INTO par VALUES (1, 'a'), (2, 'b'); INSERT INTO crm.note VALUES ('a'), ('b')"
        ))
        .await;
    let url = fixture.url().replace("postgres@", &format!("{role}@"));
    let centre = connect(&url).await.unwrap();
    let specs = [publication("sales", vec![everyone("par")])];
    centre.deploy(&specs, false, NOW_MS).await.unwrap();
    let schemas = centre.load(&specs).await.unwrap();
    let mut anna =
        TestRemote::with_worker(schemas[0].clone(), centre.worker().await.unwrap(), "anna");
    anna.download().await;
    let result = anna
        .upload(&[delete("par", "1|a"), update("par", "2|b", "2|c")])
        .await;
    let counts = "0 inserted, 1 updated, 1 deleted, 0 conflicts, 0 refused";
    assert_eq!(result[0], counts, "{result:?}");
    assert_eq!(fixture.query("SELECT * FROM crm.note").await, ["c"]);
}
