//! A publication that changes while remotes have changes pending.

use tidewater_server::Config;

use crate::backend::{Backend, Postgres};
use crate::device::Device;
use crate::scenario::{Column, Scenario, Table};
use crate::world::{LiveServer, World};

const ITEM: &str = "
[[publication]]
name = \"main\"

[[publication.table]]
name = \"item\"
partition = \"everyone\"

[[publication.table]]
name = \"kind\"
partition = \"everyone\"
";

const ONLY_KIND: &str = "
[[publication]]
name = \"main\"

[[publication.table]]
name = \"kind\"
partition = \"everyone\"
";

const FEWER_COLUMNS: &str = "
[[publication]]
name = \"main\"

[[publication.table]]
name = \"item\"
partition = \"everyone\"
columns = [\"id\", \"note\"]

[[publication.table]]
name = \"kind\"
partition = \"everyone\"
";

fn world<B: Backend>() -> World<B> {
    World::open(Scenario {
        schema: "CREATE TABLE kind (id INTEGER NOT NULL PRIMARY KEY, note TEXT);
                 CREATE TABLE item (id INTEGER NOT NULL PRIMARY KEY, note TEXT, amount INTEGER);
                 INSERT INTO kind VALUES (1, 'k');
                 INSERT INTO item VALUES (1, 'a', 10), (2, 'b', 20), (3, 'c', 30);"
            .into(),
        publication: ITEM,
        tables: &[Table {
            name: "item",
            columns: &[
                Column::Plain("id"),
                Column::Plain("note"),
                Column::Plain("amount"),
            ],
            scope: "1 = 1",
            parents: &[],
        }],
        users: &["ada", "bob"],
        limits: "",
    })
}

/// Another process deploys, the old server still runs, and then a new one begins.
fn redeploy<B: Backend>(
    world: &mut World<B>,
    devices: &mut [&mut Device],
    publication: &'static str,
) -> LiveServer {
    deploy_elsewhere(world, publication);
    for device in &mut *devices {
        // It may work or not; it must not harm.
        let _ = device.try_sync();
    }
    let server = world.another_server();
    for device in devices {
        device.network.redirect(server.address);
    }
    server
}

/// Another process deploys; the server goes on.
fn deploy_elsewhere<B: Backend>(world: &mut World<B>, publication: &'static str) {
    world.publication = publication.to_owned();
    let text = format!(
        "[server]\nlisten = [\"tcp://127.0.0.1:0\"]\nconsolidated = {:?}\n{publication}",
        world.backend.url()
    );
    let config = Config::parse(&text).expect("the configuration is right");
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    runtime.block_on(async {
        let centre = tidewater_server::databases::connect(&config.server.consolidated)
            .await
            .expect("it is there");
        centre
            .deploy_refusing_pending(&config.publications, 0)
            .await
            .expect("it can be deployed");
    });
}

fn edit(ada: &mut Device) {
    ada.edit(
        "INSERT INTO item (id, note, amount) VALUES (9, 'new', 90);
         UPDATE item SET note = 'mine' WHERE id = 1; DELETE FROM item WHERE id = 2;
         UPDATE kind SET note = 'mine' WHERE id = 1",
    );
}

/// Ada has changes pending, and a column has come to a table.
fn column_added<B: Backend>() -> (World<B>, Device, Device) {
    let world = world::<B>();
    let mut ada = world.synced("ada");
    let bob = world.synced("bob");
    edit(&mut ada);
    world.execute(
        "ALTER TABLE item ADD COLUMN extra TEXT DEFAULT 'x'; UPDATE item SET extra = 'e' || id",
    );
    (world, ada, bob)
}

fn pending_changes_survive_a_column_that_is_added<B: Backend>() {
    let (mut world, mut ada, mut bob) = column_added::<B>();
    let _server = redeploy(&mut world, &mut [&mut ada, &mut bob], ITEM);
    ada.sync();
    ada.sync();
    bob.sync();
    let rows = "SELECT id, note, amount, extra FROM item ORDER BY id";
    assert_eq!(
        world.rows(rows),
        ["1|mine|10|e1", "3|c|30|e3", "9|new|90|x"]
    );
    assert_eq!(ada.rows(rows), world.rows(rows));
    assert_eq!(bob.rows(rows), world.rows(rows));
    assert_eq!(ada.pending(), 0);
}

fn a_column_that_is_added_comes_with_its_deployment_and_not_before<B: Backend>() {
    let (mut world, mut ada, mut bob) = column_added::<B>();
    let rows = "SELECT id, note, amount FROM item ORDER BY id";
    for _ in 0..2 {
        ada.sync();
        bob.sync();
        assert_eq!(world.rows(rows), ["1|mine|10", "3|c|30", "9|new|90"]);
        assert_eq!(ada.rows(rows), world.rows(rows));
        assert_eq!(bob.rows(rows), world.rows(rows));
        // A change of the schema has it look once more.
        world.execute("CREATE TABLE IF NOT EXISTS unrelated (a INTEGER PRIMARY KEY)");
        ada.edit("UPDATE item SET note = 'mine' WHERE id = 1");
    }
    deploy_elsewhere(&mut world, ITEM);
    ada.edit("UPDATE item SET amount = 11 WHERE id = 1");
    let rows = "SELECT id, note, amount, extra FROM item ORDER BY id";
    for device in [&mut ada, &mut bob] {
        device.sync();
        assert_eq!(
            device.rows(rows),
            ["1|mine|11|e1", "3|c|30|e3", "9|new|90|x"]
        );
    }
}

/// The same server goes on with each of them, at the next sync.
fn a_running_server_goes_on_with_what_is_deployed<B: Backend>() {
    let mut world = world::<B>();
    let mut ada = world.synced("ada");
    edit(&mut ada);
    deploy_elsewhere(&mut world, FEWER_COLUMNS);
    ada.sync();
    assert_eq!(world.rows("SELECT amount FROM item WHERE id = 1"), ["10"]);
    let columns = "SELECT count(*) FROM pragma_table_info('item')";
    assert_eq!(ada.rows(columns), ["2"]);
    let refused = ada.refused().len();
    ada.edit("UPDATE item SET note = 'again' WHERE id = 1; UPDATE kind SET note = 'again'");
    deploy_elsewhere(&mut world, ONLY_KIND);
    ada.sync();
    assert_eq!(world.rows("SELECT note FROM kind"), ["again"]);
    assert_eq!(ada.refused().len(), refused + 1);
    deploy_elsewhere(&mut world, ITEM);
    ada.sync();
    let rows = "SELECT id, note, amount FROM item ORDER BY id";
    assert_eq!(ada.rows(rows), world.rows(rows));
}

fn pending_changes_survive_a_column_that_is_removed<B: Backend>() {
    let mut world = world::<B>();
    let mut ada = world.synced("ada");
    edit(&mut ada);
    ada.edit("UPDATE item SET amount = 31 WHERE id = 3");
    let _server = redeploy(&mut world, &mut [&mut ada], FEWER_COLUMNS);
    ada.sync();
    ada.sync();
    let rows = "SELECT id, note FROM item ORDER BY id";
    assert_eq!(world.rows(rows), ["1|mine", "3|c", "9|new"]);
    assert_eq!(ada.rows(rows), world.rows(rows));
    assert_eq!(ada.pending(), 0);
}

fn pending_changes_survive_another_key<B: Backend>() {
    let mut world = world::<B>();
    let mut ada = world.synced("ada");
    edit(&mut ada);
    // SQLite makes a new table for another key.
    world.execute("DROP TABLE item; CREATE TABLE item (id INTEGER NOT NULL, note TEXT NOT NULL, amount INTEGER, PRIMARY KEY (id, note)); INSERT INTO item VALUES (1, 'a', 10)");
    // The old server takes what it still can.
    let _server = redeploy(&mut world, &mut [], ITEM);
    ada.network.redirect(_server.address);
    ada.sync();
    ada.sync();
    assert_eq!(world.rows("SELECT note FROM kind"), ["mine"]);
    let refused = ada.refused();
    let mut kept: Vec<_> = refused
        .iter()
        .map(|it| (it.key.as_str(), it.values.is_some()))
        .collect();
    kept.sort_unstable();
    assert_eq!(kept, [("[1]", true), ("[2]", true), ("[9]", true)]);
    let rows = "SELECT id, note, amount FROM item ORDER BY id";
    assert_eq!(ada.rows(rows), world.rows(rows));
}

fn pending_changes_of_a_table_that_leaves_block_nothing<B: Backend>() {
    let mut world = world::<B>();
    let mut ada = world.synced("ada");
    edit(&mut ada);
    let _server = redeploy(&mut world, &mut [&mut ada], ONLY_KIND);
    ada.sync();
    ada.sync();
    assert_eq!(world.rows("SELECT note FROM kind"), ["mine"]);
    let refused = ada.refused();
    let mut kept: Vec<_> = refused.iter().map(|it| it.key.as_str()).collect();
    kept.sort_unstable();
    // The old server may have taken them, without a download: then they are in the centre.
    if world.rows("SELECT id, note FROM item ORDER BY id") == ["1|mine", "3|c", "9|new"] {
        assert_eq!(kept, [""; 0]);
    } else {
        assert_eq!(kept, ["[1]", "[2]", "[9]"]);
    }
    // And back again.
    let _server = redeploy(&mut world, &mut [&mut ada], ITEM);
    ada.sync();
    assert_eq!(ada.rows("SELECT count(*) FROM item"), ["3"]);
}

#[test]
fn pending_changes_survive_a_column_that_gets_another_type() {
    let mut world = world::<Postgres>();
    let mut ada = world.synced("ada");
    edit(&mut ada);
    world.execute("ALTER TABLE item ALTER amount TYPE text");
    let _server = redeploy(&mut world, &mut [&mut ada], ITEM);
    ada.sync();
    ada.sync();
    let rows = "SELECT id, note, amount FROM item ORDER BY id";
    assert_eq!(world.rows(rows), ["1|mine|10", "3|c|30", "9|new|90"]);
    assert_eq!(ada.rows(rows), world.rows(rows));
    assert_eq!(ada.refused(), []);
    assert_eq!(world.rows("SELECT note FROM kind"), ["mine"]);
    assert_eq!(ada.pending(), 0);
}

on_both_adapters!(
    a_column_that_is_added_comes_with_its_deployment_and_not_before,
    a_running_server_goes_on_with_what_is_deployed,
    pending_changes_survive_another_key,
    pending_changes_survive_a_column_that_is_added,
    pending_changes_survive_a_column_that_is_removed,
    pending_changes_of_a_table_that_leaves_block_nothing,
);
