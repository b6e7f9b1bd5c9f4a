//! What foreign keys do to rows of the same upload.

use crate::fixture::Fixture;
use crate::remote::{TestRemote, delete};
use crate::world::{DeployedCentre, everyone};

const STAFF: &str = "CREATE TABLE emp (id INTEGER NOT NULL PRIMARY KEY,
       boss INTEGER REFERENCES emp ON DELETE SET NULL, name VARCHAR(9));
     CREATE TABLE badge (id INTEGER NOT NULL PRIMARY KEY,
       emp INTEGER NOT NULL REFERENCES emp);
     INSERT INTO emp VALUES (1, NULL, 'ada'), (2, 1, 'bob'), (3, 2, 'cleo'), (4, 1, 'dora'),
       (5, 1, 'emil');
     INSERT INTO badge VALUES (1, 5)";

/// The first delete does something to the others' rows: nobody else has won.
pub async fn rows_that_refer_to_each_other_are_deleted_together<F: Fixture>() {
    let world = DeployedCentre::<F>::new(STAFF, ["emp", "badge"].map(everyone).to_vec()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    // Somebody else has changed one of them.
    world
        .execute("UPDATE emp SET name = 'other' WHERE id = 4")
        .await;
    let result = anna
        .upload(&[
            delete("emp", "1|NULL|ada"),
            delete("emp", "2|1|bob"),
            delete("emp", "3|2|cleo"),
            delete("emp", "4|1|dora"),
            // It has a badge.
            delete("emp", "5|1|emil"),
        ])
        .await;
    // The one whom somebody else has changed keeps his boss.
    let counts = "0 inserted, 0 updated, 2 deleted, 2 conflicts, 1 refused";
    assert_eq!(result[0], counts, "{result:?}");
    let left = world.fixture.query("SELECT * FROM emp ORDER BY 1").await;
    assert_eq!(left, ["1|NULL|ada", "4|1|other", "5|1|emil"]);
}

/// More than go into one statement.
pub async fn many_rows_that_refer_to_one_are_deleted_with_it<F: Fixture>() {
    const COUNT: i32 = 2_500;
    let rows: Vec<String> = (2..=COUNT).map(|id| format!("({id}, 1, 'x')")).collect();
    let ddl = format!(
        "CREATE TABLE emp (id INTEGER NOT NULL PRIMARY KEY,
           boss INTEGER REFERENCES emp ON DELETE SET NULL, name VARCHAR(9));
         INSERT INTO emp VALUES (1, NULL, 'x'); INSERT INTO emp VALUES {}",
        rows.join(", ")
    );
    let world = DeployedCentre::<F>::new(&ddl, vec![everyone("emp")]).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut changes = vec![delete("emp", "1|NULL|x")];
    changes.extend((2..=COUNT).map(|id| delete("emp", &format!("{id}|1|x"))));
    let result = anna.upload(&changes).await;
    let counts = format!("0 inserted, 0 updated, {COUNT} deleted, 0 conflicts, 0 refused");
    assert_eq!(result, [counts]);
}
