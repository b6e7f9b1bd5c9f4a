//! Triggers and constraints of the centre that do not leave uploaded rows as they came.

use tidewater_centre::records::IncidentKind;

use crate::backend::{Backend, Postgres, Sqlite};
use crate::compare::assert_converged;
use crate::scenario::{Column, Scenario, Table, shop};
use crate::world::World;

const UPPER_POSTGRES: &str = "
CREATE FUNCTION fix() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN NEW.product_id := NEW.product_id + 1000; RETURN NEW; END $$;
CREATE TRIGGER fix BEFORE INSERT ON product FOR EACH ROW WHEN (NEW.product_id < 1000) EXECUTE FUNCTION fix();";

const UPPER_SQLITE: &str = "
CREATE TRIGGER fix AFTER INSERT ON product WHEN NEW.product_id < 1000 BEGIN
  UPDATE product SET product_id = product_id + 1000 WHERE product_id = NEW.product_id; END;";

fn with(sql: &str) -> Scenario {
    let mut scenario = shop();
    scenario.schema += sql;
    scenario
}

fn keys_that_the_centre_changes<B: Backend>(sql: &str, many: i64) {
    let world = World::<B>::open(with(sql));
    let mut ada = world.synced("ada");
    let mut bob = world.synced("bob");
    // One of them meets a row that is there already.
    world.execute("INSERT INTO product VALUES (2500, 'theirs', 0)");
    ada.edit("INSERT INTO product VALUES (2500, 'mine', 0)");
    ada.edit(&format!(
        "WITH RECURSIVE n(i) AS (SELECT 100 UNION ALL SELECT i + 1 FROM n WHERE i < {})
         INSERT INTO product SELECT i, 'p' || i, i FROM n",
        99 + many
    ));
    ada.sync();
    let many = many.to_string();
    assert_eq!(world.rows("SELECT count(*) FROM product WHERE name LIKE 'p1%' OR name LIKE 'p2%' OR name LIKE 'p3%'"), [many.as_str()]);
    ada.sync();
    bob.sync();
    assert_converged(&world, &[&bob]);
    assert_converged(&world, &[&ada]);
}

#[test]
fn rows_whose_keys_a_trigger_of_postgres_changes_are_there_once() {
    keys_that_the_centre_changes::<Postgres>(UPPER_POSTGRES, 5);
}

#[test]
fn many_rows_whose_keys_a_trigger_of_postgres_changes_are_there_once() {
    keys_that_the_centre_changes::<Postgres>(UPPER_POSTGRES, 150);
}

#[test]
fn rows_whose_keys_a_trigger_of_sqlite_changes_are_there_once() {
    keys_that_the_centre_changes::<Sqlite>(UPPER_SQLITE, 5);
}

const MOVING_POSTGRES: &str = "
CREATE FUNCTION moving() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN NEW.region := 2; NEW.email := 'of the trigger ' || NEW.customer_id; RETURN NEW; END $$;
CREATE TRIGGER moving BEFORE INSERT OR UPDATE ON customer FOR EACH ROW
  WHEN (NEW.name = 'moving') EXECUTE FUNCTION moving();";

const MOVING_SQLITE: &str = "
CREATE TRIGGER moving_new AFTER INSERT ON customer WHEN NEW.name = 'moving' BEGIN
  UPDATE customer SET region = 2, email = 'of the trigger ' || customer_id
  WHERE customer_id = NEW.customer_id; END;
CREATE TRIGGER moving_old AFTER UPDATE OF name ON customer WHEN NEW.name = 'moving' BEGIN
  UPDATE customer SET region = 2, email = 'of the trigger ' || customer_id
  WHERE customer_id = NEW.customer_id; END;";

/// What may be uploaded is what the client wrote, in its scope; where the centre puts the row is
/// the centre's own affair (I5). Who uploaded it is not left with it, nor told what it became.
fn rows_that_the_centre_moves_away<B: Backend>(sql: &str) {
    let world = World::<B>::open(with(sql));
    let (mut bob, mut cleo) = (world.synced("bob"), world.synced("cleo"));
    cleo.network.record();
    cleo.edit(
        "INSERT INTO customer VALUES (60, 3, 'moving', NULL, '0.00'), (61, 3, 'stays', NULL, '0.00');
         UPDATE customer SET name = 'moving' WHERE customer_id = 3",
    );
    let report = cleo.sync();
    assert_eq!((report.refused, report.conflicts), (0, 0), "{report:?}");
    let regions = "SELECT customer_id, region FROM customer ORDER BY 1";
    assert_eq!(world.rows(regions), ["1|1", "2|2", "3|2", "60|2", "61|3"]);
    assert_eq!(cleo.rows(regions), ["61|3"]);
    for journey in cleo.network.journeys() {
        let received = journey.down.concat();
        let secret = b"of the trigger";
        assert!(!received.windows(secret.len()).any(|it| it == secret));
    }
    bob.sync();
    assert_converged(&world, &[&bob, &cleo]);
    assert_eq!(cleo.pending(), 0);
    // One that stays in the scope comes back as the centre has made it.
    bob.edit("UPDATE customer SET name = 'moving' WHERE customer_id = 2");
    bob.sync();
    assert_converged(&world, &[&bob, &cleo]);
}

#[test]
fn i5_a_row_that_a_trigger_of_postgres_moves_to_another_partition_leaves_its_uploader() {
    rows_that_the_centre_moves_away::<Postgres>(MOVING_POSTGRES);
}

#[test]
fn i5_a_row_that_a_trigger_of_sqlite_moves_to_another_partition_leaves_its_uploader() {
    rows_that_the_centre_moves_away::<Sqlite>(MOVING_SQLITE);
}

#[test]
fn tracking_that_is_switched_off_in_postgres_is_noticed_while_serving() {
    let world = World::<Postgres>::open(shop());
    let mut ada = world.synced("ada");
    world.execute(
        "ALTER TABLE product DISABLE TRIGGER USER;
         INSERT INTO product VALUES (70, 'unseen', 1); DELETE FROM product WHERE product_id = 1",
    );
    let told = world.server.incidents(1);
    assert_eq!(told, [(IncidentKind::TrackingLost, String::new())]);
    ada.sync();
    assert_converged(&world, &[&ada]);
}

#[test]
fn rows_that_a_trigger_of_postgres_swallows_stay_with_the_user() {
    let world = World::<Postgres>::open(with(
        "CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
         CREATE TRIGGER swallow BEFORE INSERT ON product FOR EACH ROW WHEN (NEW.stock = 13) EXECUTE FUNCTION swallow();
         CREATE TRIGGER swallow_update BEFORE UPDATE ON product FOR EACH ROW WHEN (NEW.stock = 13) EXECUTE FUNCTION swallow();
         CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
         CREATE TRIGGER keep BEFORE DELETE ON product FOR EACH ROW WHEN (OLD.product_id = 2) EXECUTE FUNCTION keep();",
    ));
    let mut ada = world.synced("ada");
    ada.edit("INSERT INTO product VALUES (60, 'a', 13), (61, 'b', 14)");
    ada.edit("UPDATE product SET stock = 13 WHERE product_id = 1");
    ada.edit("DELETE FROM product WHERE product_id = 2");
    ada.sync();
    ada.sync();
    assert_eq!(ada.refused().len(), 1);
    ada.discard_refused();
    ada.sync();
    assert_converged(&world, &[&ada]);
}

#[test]
fn deferrable_unique_constraints_of_postgres_take_uploads() {
    let world = World::<Postgres>::open(with(
        "ALTER TABLE product DROP CONSTRAINT product_pkey;
         ALTER TABLE product ADD PRIMARY KEY (product_id) DEFERRABLE INITIALLY DEFERRED;
         ALTER TABLE customer ADD UNIQUE (region, name) DEFERRABLE;",
    ));
    let mut ada = world.synced("ada");
    let mut bob = world.synced("bob");
    ada.edit("INSERT INTO product VALUES (60, 'a', 13), (61, 'b', 14)");
    bob.edit("INSERT INTO product VALUES (60, 'bobs', 13), (62, 'b', 14)");
    ada.edit(
        "INSERT INTO customer VALUES (80, 1, 'one', NULL, '0.00'), (81, 1, 'eleven', NULL, '0.00')",
    );
    let report = ada.sync();
    assert_eq!((report.refused, report.conflicts), (1, 0), "{report:?}");
    let report = bob.sync();
    assert_eq!((report.refused, report.conflicts), (0, 1), "{report:?}");
    ada.discard_refused();
    ada.sync();
    assert_converged(&world, &[&ada, &bob]);
}

#[test]
fn a_key_that_the_centre_takes_for_another_spelling_of_its_own_ends_equal() {
    let world = World::<Sqlite>::open(Scenario {
        schema: "CREATE TABLE product (product_id TEXT COLLATE NOCASE NOT NULL PRIMARY KEY, name TEXT, stock INTEGER);
                 INSERT INTO product VALUES ('a', 'x', 1), ('c', 'x', 1)".into(),
        publication: "[[publication]]\nname = \"main\"\n[[publication.table]]\nname = \"product\"\npartition = \"everyone\"\n",
        tables: &[Table { name: "product", columns: &[Column::Plain("product_id"), Column::Plain("name"), Column::Plain("stock")], scope: "1 = 1", parents: &[] }],
        users: &["ada", "bob"],
        limits: "",
    });
    let mut ada = world.synced("ada");
    let mut bob = world.synced("bob");
    ada.edit(
        "INSERT INTO product VALUES ('A', 'mine', 2), ('b', 'l', 2), ('B', 'u', 3), ('d', 'd', 1)",
    );
    bob.edit("UPDATE product SET product_id = 'C' WHERE product_id = 'c'");
    ada.sync();
    bob.sync();
    ada.sync();
    bob.sync();
    ada.discard_refused();
    bob.discard_refused();
    ada.sync();
    bob.sync();
    assert_converged(&world, &[&ada]);
    assert_converged(&world, &[&bob]);
}

#[test]
fn text_in_the_centre_that_is_no_utf8_stops_nobody() {
    let world = World::<Sqlite>::open(with(""));
    let mut ada = world.synced("ada");
    world.execute("INSERT INTO product VALUES (90, CAST(x'61ff62' AS TEXT), 1), (91, 'fine', 1), (92, x'00', 'text'), (93, 'a' || char(0) || 'b', 1.5), (94, 'x', 1e400), (95, 'y', 9223372036854775807)");
    ada.sync();
    assert_eq!(
        ada.value("SELECT name FROM product WHERE product_id = 91"),
        "fine"
    );
    ada.edit("UPDATE product SET stock = 5");
    ada.sync();
    ada.sync();
    // Here a blob, there text of the same bytes.
    let rows = "SELECT product_id, hex(name), stock FROM product ORDER BY 1";
    assert_eq!(ada.rows(rows), world.rows(rows));
}
