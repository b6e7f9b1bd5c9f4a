//! Orders of two devices that meet under one number, and sums that several devices, copies of a file
//! and an operator change.

use std::ops::ControlFlow;
use std::path::Path;

use tempfile::TempDir;
use tidewater_centre::ScriptSpec;
use tidewater_client::{AdoptionRule, SyncDirection};
use tidewater_protocol::message::Control;
use tidewater_testing::proxy::{Accident, Place, Way};

use crate::backend::Backend;
use crate::compare::assert_converged;
use crate::device::Device;
use crate::live::live;
use crate::scenario::{Column, Scenario, Table};
use crate::world::{World, until};

const TABLES: &[Table] = &[
    Table {
        name: "orders",
        columns: &[Column::Plain("id"), Column::Plain("customer")],
        scope: "1 = 1",
        parents: &[],
    },
    Table {
        name: "line",
        columns: &[
            Column::Plain("order_id"),
            Column::Plain("product"),
            Column::Plain("n"),
        ],
        scope: "1 = 1",
        parents: &[],
    },
    Table {
        name: "product",
        columns: &[Column::Plain("id"), Column::Plain("stock")],
        scope: "1 = 1",
        parents: &[],
    },
];

/// `upload` and the like for the publication, `identity` and the like for the orders.
pub(crate) fn orders(publication: &str, of_orders: &str) -> Scenario {
    let sums = "conflict = { resolve = [\"additive(stock)\"] }";
    resolving(publication, of_orders, sums)
}

fn resolving(publication: &str, of_orders: &str, of_products: &str) -> Scenario {
    let schema = "
        CREATE TABLE orders (id INTEGER NOT NULL PRIMARY KEY, customer TEXT NOT NULL);
        CREATE TABLE line (order_id INTEGER NOT NULL REFERENCES orders, product TEXT NOT NULL,
            n INTEGER NOT NULL, PRIMARY KEY (order_id, product));
        CREATE INDEX line_order ON line (order_id);
        CREATE TABLE product (id INTEGER NOT NULL PRIMARY KEY, stock INTEGER NOT NULL);
        INSERT INTO product VALUES (1, 10);";
    let publication = format!(
        r#"
[[publication]]
name = "main"
{publication}

[[publication.table]]
name = "orders"
partition = "everyone"
{of_orders}

[[publication.table]]
name = "line"
partition = {{ follows = "orders" }}

[[publication.table]]
name = "product"
partition = "everyone"
{of_products}
"#
    );
    Scenario {
        schema: schema.to_owned(),
        publication: publication.leak(),
        tables: TABLES,
        users: &["ada", "bob"],
        limits: "",
    }
}

pub(crate) const LINES: &str = "SELECT order_id || ' ' || customer || ' ' || product FROM line
    JOIN orders ON orders.id = order_id ORDER BY order_id, product";

fn copy_files(from: &Path, to: &Path) {
    for end in ["", "-wal", "-shm"] {
        let file = |path: &Path| format!("{}{end}", path.display());
        if Path::new(&file(from)).exists() {
            std::fs::copy(file(from), file(to)).expect("it can be copied");
        }
    }
}

/// A copy of a device as it is now.
fn copy_of(device: &Device, folder: &TempDir) -> Device {
    let path = folder.path().join("copy.db");
    copy_files(&device.path, &path);
    Device::at(&path, device)
}

/// The order of ada's has met bob's; she sees her own, and nothing of his under it.
fn assert_apart<B: Backend>(world: &World<B>, ada: &mut Device, refused: &[&str]) {
    let listed = ada.refused();
    let keys: Vec<String> = listed
        .iter()
        .map(|it| format!("{} {}", it.table, it.key))
        .collect();
    assert_eq!(keys, refused);
    assert_eq!(ada.rows(LINES), ["10 Sven bananas"]);
    assert_eq!(world.rows(LINES), ["10 Nora apples"]);
}

fn an_order_that_met_another_waits_with_its_lines_and_goes_up_under_a_new_key<B: Backend>() {
    for publication in ["", "on_reject = \"abort\"", "upload = \"transactional\""] {
        for resolve in ["server_wins", "client_wins"] {
            let of_orders = format!("conflict = {{ resolve = \"{resolve}\" }}");
            let world = World::<B>::open(orders(publication, &of_orders));
            let (mut ada, mut bob) = (world.synced("ada"), world.synced("bob"));
            bob.edit(
                "INSERT INTO orders VALUES (10, 'Nora'); INSERT INTO line VALUES (10, 'apples', 1)",
            );
            bob.sync();
            ada.edit(
                "BEGIN; INSERT INTO orders VALUES (10, 'Sven');
                 INSERT INTO line VALUES (10, 'bananas', 2);
                 INSERT INTO tidewater_transaction DEFAULT VALUES; COMMIT",
            );
            let report = ada.try_sync().expect("it syncs");
            assert_eq!(
                (report.refused, report.conflicts),
                (2, 0),
                "{publication} {resolve}"
            );
            let both = ["orders [10]", "line [10,\"bananas\"]"];
            assert_apart(&world, &mut ada, &both);
            // She goes on with it, and what she adds stays with it.
            ada.edit(
                "INSERT INTO line VALUES (10, 'cherries', 3);
                 INSERT INTO tidewater_transaction DEFAULT VALUES",
            );
            let report = ada.try_sync().expect("it syncs");
            assert!(report.refused > 0, "{publication} {resolve}");
            assert_eq!(world.rows(LINES), ["10 Nora apples"]);
            ada.sync_only(SyncDirection::DownloadOnly);
            let id = ada
                .refused()
                .iter()
                .find(|it| it.table == "orders")
                .map(|it| it.id);
            let id = id.expect("the order is refused");
            let error = ada
                .remote
                .renumber_refused(id, None)
                .expect_err("it has no numbers");
            assert!(error.to_string().contains("neither numbers"), "{error}");
            let key = ada
                .remote
                .renumber_refused(id, Some("11"))
                .expect("it gets a key");
            assert_eq!(key, "[11]");
            for _ in 0..3 {
                ada.try_sync().expect("it syncs");
            }
            bob.sync();
            assert_eq!(ada.refused().len(), 0, "{publication} {resolve}");
            let all = ["10 Nora apples", "11 Sven bananas", "11 Sven cherries"];
            assert_eq!(world.rows(LINES), all, "{publication} {resolve}");
            assert_eq!(world.server.refused().len(), 0, "{publication} {resolve}");
            assert_converged(&world, &[&ada, &bob]);
            // Under the first number, lines are the other order's now.
            ada.edit("INSERT INTO line VALUES (10, 'dates', 1)");
            assert_eq!(ada.sync().refused, 0);
            assert_converged(&world, &[&ada]);
        }
    }
}

/// Each line of the order meets one of the other's.
fn lines_that_all_meet_others_stay_with_their_order<B: Backend>() {
    const AMOUNTS: &str = "SELECT order_id || ' ' || customer || ' ' || product || ' ' || n
        FROM line JOIN orders ON orders.id = order_id ORDER BY order_id";
    let world = World::<B>::open(orders("", ""));
    let (mut ada, mut bob) = (world.synced("ada"), world.synced("bob"));
    bob.edit("INSERT INTO orders VALUES (10, 'Nora'); INSERT INTO line VALUES (10, 'apples', 1)");
    bob.sync();
    ada.edit("INSERT INTO orders VALUES (10, 'Sven'); INSERT INTO line VALUES (10, 'apples', 2)");
    let report = ada.try_sync().expect("it syncs");
    assert_eq!((report.refused, report.conflicts), (2, 0));
    ada.try_sync().expect("it syncs");
    assert_eq!(ada.rows(AMOUNTS), ["10 Sven apples 2"]);
    let order = ada
        .refused()
        .iter()
        .find(|it| it.table == "orders")
        .map(|it| it.id);
    let order = order.expect("the order is refused");
    let key = ada.remote.renumber_refused(order, Some("11"));
    assert_eq!(key.expect("it gets a key"), "[11]");
    for _ in 0..3 {
        ada.try_sync().expect("it syncs");
    }
    bob.sync();
    let both = ["10 Nora apples 1", "11 Sven apples 2"];
    assert_eq!(world.rows(AMOUNTS), both);
    assert_converged(&world, &[&ada, &bob]);
}

/// What others have sold is not what the next change was made from.
fn a_script_adds_each_difference_once_where_an_answer_is_lost<B: Backend>() {
    let script = ScriptSpec::at(
        "scripts",
        ["default", "product", "upload_update"],
        "UPDATE product SET stock = stock + {r.stock} - {o.stock} WHERE id = {r.id}",
    );
    let world = World::<B>::open_changed(B::new(), resolving("", "", ""), |config| {
        config.publications[0].scripts = vec![script];
    });
    let (mut ada, mut bob) = (world.synced("ada"), world.synced("bob"));
    bob.edit("UPDATE product SET stock = stock - 2");
    bob.sync();
    ada.edit("UPDATE product SET stock = stock - 1");
    let place = Place::message(Way::Down, |it| matches!(it, Control::ResultEnd(_)));
    ada.network.plan(place, Accident::CutInside);
    ada.try_sync().expect_err("it is cut");
    assert!(ada.network.finish_plan());
    assert_eq!(world.rows(STOCK), ["7"]);
    ada.edit("UPDATE product SET stock = stock - 1");
    for _ in 0..2 {
        ada.sync();
    }
    bob.sync();
    assert_eq!(world.rows(STOCK), ["6"]);
    assert_converged(&world, &[&ada, &bob]);
}

/// A phone that is restored from a backup numbers on from there.
fn a_restored_file_that_numbers_on_keeps_its_orders_apart<B: Backend>() {
    let world = World::<B>::open(orders("", "identity = { column = \"id\" }"));
    let mut ada = world.synced("ada");
    let folder = TempDir::new().expect("a temporary folder");
    let backup = folder.path().join("backup.db");
    ada.reopen(|| {});
    copy_files(&ada.path, &backup);
    let take = |device: &Device, customer: &str, product: &str| {
        device.edit(&format!(
            "BEGIN; INSERT INTO orders (customer) VALUES ('{customer}');
             INSERT INTO line SELECT max(id), '{product}', 1 FROM orders; COMMIT"
        ));
    };
    take(&ada, "Nora", "apples");
    let report = ada.sync();
    assert!(!report.starts_over);
    let path = ada.path.clone();
    ada.reopen(|| {
        for end in ["-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{end}", path.display()));
        }
        copy_files(&backup, &path);
    });
    take(&ada, "Sven", "bananas");
    let report = ada.try_sync().expect("it syncs");
    assert!(report.starts_over, "it says that it was restored");
    assert_eq!(report.refused, 2);
    let lines = "SELECT customer || ' ' || product FROM line JOIN orders ON id = order_id";
    assert_eq!(world.rows(lines), ["Nora apples"]);
    assert_eq!(ada.rows(lines), ["Sven bananas"]);
    // It has numbers of its own by now.
    take(&ada, "Olga", "cherries");
    ada.try_sync().expect("it syncs");
    assert_eq!(ada.refused().len(), 2, "and nothing of the new order");
    let id = ada.refused()[0].id;
    ada.remote
        .renumber_refused(id, None)
        .expect("there are numbers");
    for _ in 0..2 {
        ada.sync();
    }
    let by_customer = format!("{lines} ORDER BY customer");
    let all = ["Nora apples", "Olga cherries", "Sven bananas"];
    assert_eq!(world.rows(&by_customer), all);
    assert_converged(&world, &[&ada]);
}

/// A copy goes on under an order that was refused before it was made: its lines stay with it, also
/// those of an upload whose acknowledgement was lost.
fn a_copy_keeps_what_it_adds_to_a_refused_order_apart<B: Backend>() {
    for publication in ["", "upload = \"transactional\""] {
        for is_under_way in [false, true] {
            let world = World::<B>::open(orders(publication, ""));
            let (mut ada, mut bob) = (world.synced("ada"), world.synced("bob"));
            let take = |device: &Device, customer: &str, product: &str| {
                device.edit(&format!(
                    "BEGIN; INSERT INTO orders VALUES (10, '{customer}');
                     INSERT INTO line VALUES (10, '{product}', 1);
                     INSERT INTO tidewater_transaction DEFAULT VALUES; COMMIT"
                ));
            };
            take(&bob, "Nora", "apples");
            bob.sync();
            take(&ada, "Sven", "bananas");
            assert_eq!(ada.try_sync().expect("it syncs").refused, 2);
            let add = |device: &Device, product: &str| {
                device.edit(&format!(
                    "INSERT INTO line VALUES (10, '{product}', 1);
                     INSERT INTO tidewater_transaction DEFAULT VALUES"
                ));
            };
            if is_under_way {
                add(&ada, "cherries");
                let place = Place::message(Way::Down, |it| matches!(it, Control::ResultEnd(_)));
                ada.network.plan(place, Accident::CutInside);
                ada.try_sync().expect_err("it is cut");
                assert!(ada.network.finish_plan());
            }
            let folder = TempDir::new().expect("a temporary folder");
            let mut copy = copy_of(&ada, &folder);
            ada.edit("UPDATE product SET stock = 9");
            ada.try_sync().expect("it syncs");
            add(&copy, "dates");
            for _ in 0..2 {
                copy.try_sync().expect("it syncs");
            }
            assert_eq!(
                world.rows(LINES),
                ["10 Nora apples"],
                "{publication} {is_under_way}"
            );
            let waits = 3 + usize::from(is_under_way);
            assert_eq!(copy.refused().len(), waits, "{publication} {is_under_way}");
        }
    }
}

/// Rows of the centre refer to each other, and one of them is below a row that was refused: both come
/// when the user has given up his own.
fn rows_that_refer_to_each_other_do_not_wait_for_each_other<B: Backend>() {
    const NODES: &[Table] = &[Table {
        name: "node",
        columns: &[Column::Plain("id"), Column::Plain("parent")],
        scope: "1 = 1",
        parents: &[],
    }];
    let world = World::<B>::open(Scenario {
        schema: "CREATE TABLE node (id INTEGER NOT NULL PRIMARY KEY,
                     parent INTEGER REFERENCES node (id));
                 CREATE INDEX node_parent ON node (parent);"
            .to_owned(),
        publication: "[[publication]]\nname = \"main\"\n
                      [[publication.table]]\nname = \"node\"\npartition = \"everyone\"\n",
        tables: NODES,
        users: &["ada", "bob"],
        limits: "",
    });
    let (mut ada, mut bob) = (world.synced("ada"), world.synced("bob"));
    bob.edit(
        "INSERT INTO node VALUES (10, NULL), (12, 10); UPDATE node SET parent = 12 WHERE id = 10",
    );
    bob.sync();
    ada.edit("INSERT INTO node VALUES (10, NULL), (11, 10)");
    assert_eq!(ada.try_sync().expect("it syncs").refused, 2);
    ada.sync();
    let nodes = "SELECT id || ' ' || coalesce(parent, '') FROM node ORDER BY id";
    assert_eq!(ada.rows(nodes), ["10 ", "11 10"]);
    ada.discard_refused();
    for _ in 0..3 {
        ada.sync();
    }
    assert_eq!(ada.rows(nodes), ["10 12", "12 10"]);
    assert_converged(&world, &[&ada, &bob]);
}

/// A row that lost under its key goes up beside the other one.
fn an_insert_that_lost_goes_up_under_a_new_key<B: Backend>() {
    let world = World::<B>::open(resolving("", "", ""));
    let (mut ada, mut bob) = (world.synced("ada"), world.synced("bob"));
    bob.edit("INSERT INTO product VALUES (5, 1)");
    bob.sync();
    ada.edit("INSERT INTO product VALUES (5, 2)");
    assert_eq!(ada.sync().conflicts, 1);
    let conflict = ada.remote.conflicts().expect("they can be read")[0].id;
    let key = ada.remote.renumber_conflict(conflict, Some("6"));
    assert_eq!(key.expect("it gets a key"), "[6]");
    ada.sync();
    bob.sync();
    let all = ["1 10", "5 1", "6 2"];
    assert_eq!(
        bob.rows("SELECT id || ' ' || stock FROM product ORDER BY id"),
        all
    );
    assert!(ada.remote.conflicts().expect("they can be read").is_empty());
    assert_converged(&world, &[&ada, &bob]);
}

const STOCK: &str = "SELECT stock FROM product WHERE id = 1";

fn a_sum_of_a_copied_file_is_never_counted_twice<B: Backend>() {
    for copy_first in [false, true] {
        let world = World::<B>::open(orders("", ""));
        let mut ada = world.synced("ada");
        ada.edit("UPDATE product SET stock = stock - 3");
        let folder = TempDir::new().expect("a temporary folder");
        let mut copy = copy_of(&ada, &folder);
        let mut both = [&mut ada, &mut copy];
        if copy_first {
            both.reverse();
        }
        let [first, second] = both;
        first.sync();
        second.edit("UPDATE product SET stock = stock - 4");
        let report = second.try_sync().expect("it syncs");
        assert!(report.starts_over);
        assert_eq!(report.conflicts, 1);
        assert_eq!(world.rows(STOCK), ["7"], "nothing of it twice");
        let conflicts = world.server.conflicts();
        assert!(conflicts[0].is_open(), "the operator sees both");
        // From now on it is a remote like any other.
        for device in [&mut *first, &mut *second] {
            device.edit("UPDATE product SET stock = stock - 1");
        }
        second.sync();
        first.sync();
        second.sync();
        assert_eq!(world.rows(STOCK), ["5"]);
        assert_converged(&world, &[&ada, &copy]);
    }
}

/// The acknowledgement of a taken upload is lost, and the file is copied: both know the upload.
fn a_sum_that_was_taken_before_the_copy_counts_once<B: Backend>() {
    let world = World::<B>::open(orders("", ""));
    let mut ada = world.synced("ada");
    ada.edit("UPDATE product SET stock = stock - 3");
    let place = Place::message(Way::Down, |it| matches!(it, Control::ResultEnd(_)));
    ada.network.plan(place, Accident::CutInside);
    ada.try_sync().expect_err("it is cut");
    assert!(ada.network.finish_plan());
    let folder = TempDir::new().expect("a temporary folder");
    let mut copy = copy_of(&ada, &folder);
    copy.edit("UPDATE product SET stock = stock - 4");
    ada.sync();
    copy.try_sync().expect("it syncs");
    ada.sync();
    assert_eq!(world.rows(STOCK), ["3"]);
    assert_converged(&world, &[&ada, &copy]);
}

/// What an application's table has otherwise becomes a difference to the centre's row of then.
fn a_sum_of_an_adopted_table_is_a_difference<B: Backend>() {
    let world = World::<B>::open(orders("", ""));
    let mut bob = world.synced("bob");
    let mut ada = world.device("ada");
    ada.edit(
        "CREATE TABLE product (id INTEGER NOT NULL PRIMARY KEY, stock INTEGER NOT NULL);
         INSERT INTO product VALUES (1, 7)",
    );
    ada.remote.set_adopt(Some(AdoptionRule::Mine));
    ada.sync_only(SyncDirection::DownloadOnly);
    bob.edit("UPDATE product SET stock = stock - 2");
    bob.sync();
    ada.sync();
    assert_eq!(world.rows(STOCK), ["5"]);
    assert_converged(&world, &[&ada]);
}

/// What was written while a tool had taken the triggers along is a difference, too.
fn a_repaired_sum_is_a_difference<B: Backend>() {
    let world = World::<B>::open(orders("", ""));
    let (mut ada, mut bob) = (world.synced("ada"), world.synced("bob"));
    ada.edit(
        "CREATE TABLE made_anew AS SELECT * FROM product; DROP TABLE product;
         CREATE TABLE product (id INTEGER NOT NULL PRIMARY KEY, stock INTEGER NOT NULL);
         INSERT INTO product SELECT * FROM made_anew; DROP TABLE made_anew;
         UPDATE product SET stock = stock - 3",
    );
    let repaired = ada.remote.verify(true, &mut |_| ControlFlow::Continue(()));
    repaired.expect("it is repaired");
    bob.edit("UPDATE product SET stock = stock - 2");
    bob.sync();
    ada.sync();
    assert_eq!(world.rows(STOCK), ["5"]);
    assert_converged(&world, &[&ada]);
}

fn live_devices_that_count_together_lose_nothing<B: Backend>() {
    let world = World::<B>::open(orders("", ""));
    let devices = [
        world.synced("ada"),
        world.synced("bob"),
        world.synced("ada"),
    ];
    let lives: Vec<_> = devices.iter().map(live).collect();
    for _ in 0..20 {
        for device in &devices {
            device.edit("UPDATE product SET stock = stock + 1");
        }
    }
    until(|| world.rows(STOCK) == ["70"]);
    until(|| devices.iter().all(|it| it.rows(STOCK) == ["70"]));
    for live in lives {
        live.end();
    }
    let all: Vec<&Device> = devices.iter().collect();
    assert_converged(&world, &all);
}

on_both_adapters!(
    an_order_that_met_another_waits_with_its_lines_and_goes_up_under_a_new_key,
    lines_that_all_meet_others_stay_with_their_order,
    a_script_adds_each_difference_once_where_an_answer_is_lost,
    a_restored_file_that_numbers_on_keeps_its_orders_apart,
    a_copy_keeps_what_it_adds_to_a_refused_order_apart,
    rows_that_refer_to_each_other_do_not_wait_for_each_other,
    an_insert_that_lost_goes_up_under_a_new_key,
    a_sum_of_a_copied_file_is_never_counted_twice,
    a_sum_that_was_taken_before_the_copy_counts_once,
    a_sum_of_an_adopted_table_is_a_difference,
    a_repaired_sum_is_a_difference,
    live_devices_that_count_together_lose_nothing,
);
