//! Branches: a file that is the centre of its devices and a remote of headquarters.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tidewater_client::{Code, RowSelection};
use tidewater_server::Config;
use tidewater_testing::proxy::{Accident, Place, Way};

use crate::backend::{Backend, Postgres, Sqlite, execute_sqlite, open_sqlite, save_sqlite};
use crate::device::Device;
use crate::live::{Live, live_with};
use crate::scenario::Scenario;
use crate::world::{LiveServer, World, until};

/// Headquarters: branches hold the visits and customers of their regions, and all products.
fn headquarters() -> Scenario {
    let schema = "
        CREATE TABLE territory (login TEXT NOT NULL, region INTEGER NOT NULL,
            PRIMARY KEY (login, region));
        CREATE TABLE customer (
            customer_id INTEGER NOT NULL PRIMARY KEY,
            region INTEGER NOT NULL,
            name TEXT NOT NULL CHECK (trim(name) <> ''));
        CREATE TABLE visit (
            visit_id INTEGER NOT NULL PRIMARY KEY,
            region INTEGER NOT NULL,
            customer_id INTEGER NOT NULL REFERENCES customer (customer_id),
            seller TEXT NOT NULL,
            amount NUMERIC(12,2) NOT NULL,
            planned TIMESTAMP,
            done BOOLEAN NOT NULL,
            note TEXT NOT NULL CHECK (trim(note) <> ''));
        CREATE TABLE product (
            product_id INTEGER NOT NULL PRIMARY KEY,
            name TEXT NOT NULL CHECK (trim(name) <> ''),
            stock INTEGER NOT NULL);
        INSERT INTO territory VALUES ('north', 1), ('south', 2), ('south', 3);
        INSERT INTO customer VALUES (1, 1, 'one'), (2, 2, 'two'), (3, 3, 'three');
        INSERT INTO visit VALUES
            (1, 1, 1, 'ann', 1.5, NULL, TRUE, 'a'), (2, 1, 1, 'ben', 20, NULL, FALSE, 'b'),
            (3, 2, 2, 'cyd', 0.25, NULL, FALSE, 'c'), (4, 3, 3, 'dan', 4, NULL, TRUE, 'd');
        INSERT INTO product VALUES (1, 'pen', 10), (2, 'ink', 20);";
    Scenario {
        schema: schema.into(),
        publication: r#"
[[publication]]
name = "main"

[[publication.table]]
name = "customer"
partition = { columns = ["region"], values = "SELECT region FROM territory WHERE login = {s.username}" }

[[publication.table]]
name = "visit"
partition = { columns = ["region"], values = "SELECT region FROM territory WHERE login = {s.username}" }

[[publication.table]]
name = "product"
partition = "everyone"
"#,
        tables: &[],
        users: &["north", "south"],
        limits: "",
    }
}

/// A branch: sellers hold their own visits, and all that the branch has of the rest.
const OF_BRANCH: &str = r#"
[[publication]]
name = "main"

[[publication.table]]
name = "customer"
partition = "everyone"

[[publication.table]]
name = "visit"
partition = { columns = ["seller"], values = "SELECT {s.username}" }

[[publication.table]]
name = "product"
partition = "everyone"
"#;

/// A branch's file, its server, and its line to headquarters.
struct Branch {
    // The server goes first: it holds the file open.
    server: LiveServer,
    line: Device,
    folder: TempDir,
}

impl Branch {
    /// Fetches what it holds, and serves it.
    fn open<B: Backend>(world: &World<B>, name: &str, sellers: &[&str]) -> Branch {
        Branch::below(world.synced(name), OF_BRANCH, sellers)
    }

    /// In the file of this remote.
    fn below(line: Device, publication: &str, users: &[&str]) -> Branch {
        Branch {
            server: LiveServer::deploy(&config(&line, publication), users),
            line,
            folder: tempfile::tempdir().expect("a temporary folder"),
        }
    }

    /// One of its devices, which has synced.
    fn synced(&self, user: &str) -> Device {
        let mut device = Device::new(self.folder.path(), user, self.server.address);
        device.sync();
        device
    }

    /// As it is now.
    fn backup(&self) -> PathBuf {
        let copy = self.folder.path().join("backup");
        save_sqlite(&self.line.path, &copy);
        copy
    }

    /// Puts a backup in the place of its file; its devices find it where it was.
    fn restore(self, backup: &Path, devices: &[&Device]) -> Branch {
        self.restore_below(backup, devices, OF_BRANCH)
    }

    fn restore_below(mut self, backup: &Path, devices: &[&Device], publication: &str) -> Branch {
        drop(self.server);
        let path = self.line.path.clone();
        self.line.reopen(|| {
            for end in ["", "-wal", "-shm"] {
                let mut file = path.clone().into_os_string();
                file.push(end);
                let _ = std::fs::remove_file(file);
            }
            std::fs::copy(backup, &path).expect("the backup is there");
        });
        let server = LiveServer::deploy(&config(&self.line, publication), &[]);
        for device in devices {
            device.network.redirect(server.address);
        }
        Branch { server, ..self }
    }

    /// What an application at the branch does.
    fn execute(&self, sql: &str) {
        execute_sqlite(&open_sqlite(&self.line.path), sql);
    }
}

/// Until nothing waits any more and everybody has heard of everything.
fn settle(branches: &mut [&mut Branch], devices: &mut [&mut Device]) {
    for _ in 0..3 {
        devices.iter_mut().for_each(|it| drop(it.sync()));
        branches.iter_mut().for_each(|it| drop(it.line.sync()));
    }
    devices.iter_mut().for_each(|it| drop(it.sync()));
    for branch in branches {
        assert_eq!(branch.line.pending(), 0);
    }
}

/// All have the products that headquarters has, and their part of the visits.
#[track_caller]
fn assert_nested<B: Backend>(world: &World<B>, branch: (&Branch, &str), devices: &[&Device]) {
    let (branch, regions) = branch;
    let visits = |condition: &str| {
        format!("SELECT visit_id, region, seller, note FROM visit WHERE {condition} ORDER BY 1")
    };
    let products = world.rows(PRODUCTS);
    assert_eq!(branch.line.rows(PRODUCTS), products);
    let of_regions = format!("region IN ({regions})");
    assert_eq!(branch.line.rows(VISITS), world.rows(&visits(&of_regions)));
    for device in devices {
        assert_eq!(device.rows(PRODUCTS), products, "{}", device.user);
        let own = format!("{of_regions} AND seller = '{}'", device.user);
        assert_eq!(device.rows(VISITS), world.rows(&visits(&own)));
    }
}

fn config(line: &Device, publication: &str) -> Config {
    let text = format!(
        "[server]\nlisten = [\"tcp://127.0.0.1:0\"]\nconsolidated = \"sqlite:{}\"\n{publication}",
        line.path.display()
    );
    Config::parse(&text).expect("the configuration is right")
}

const PRODUCTS: &str = "SELECT product_id, name, stock FROM product ORDER BY product_id";
const VISITS: &str = "SELECT visit_id, region, seller, note FROM visit ORDER BY visit_id";

fn a_row_goes_up_and_comes_down_through_a_branch<B: Backend>() {
    let world = World::<B>::open(headquarters());
    let mut north = Branch::open(&world, "north", &["ann", "ben"]);
    let (mut ann, mut ben) = (north.synced("ann"), north.synced("ben"));
    assert_eq!(ann.rows(VISITS), ["1|1|ann|a"]);
    assert_eq!(ben.rows(VISITS), ["2|1|ben|b"]);
    assert_eq!(ann.rows("SELECT amount, done FROM visit"), ["1.50|1"]);

    ann.edit("INSERT INTO product VALUES (3, 'cap', 30)");
    ann.edit("UPDATE visit SET note = 'done', amount = '2.00' WHERE visit_id = 1");
    ann.sync();
    assert_eq!(north.line.pending(), 2);
    ben.sync();
    assert_eq!(ben.rows(PRODUCTS), ["1|pen|10", "2|ink|20", "3|cap|30"]);
    north.line.sync();
    assert_eq!(world.rows(PRODUCTS), ["1|pen|10", "2|ink|20", "3|cap|30"]);
    assert_eq!(world.rows(VISITS)[0], "1|1|ann|done");
    let amounts = format!(
        "SELECT {} FROM visit WHERE visit_id = 1",
        B::decimal("amount", 2)
    );
    assert_eq!(world.rows(&amounts), ["2.00"]);

    world.execute("UPDATE product SET stock = 31 WHERE product_id = 3");
    world.execute("UPDATE visit SET seller = 'ann' WHERE visit_id = 2");
    world.execute("DELETE FROM product WHERE product_id = 2");
    assert_eq!(north.line.sync().conflicts, 0);
    assert_eq!(north.line.pending(), 0);
    for device in [&mut ann, &mut ben] {
        device.sync();
        assert_eq!(device.rows(PRODUCTS), ["1|pen|10", "3|cap|31"]);
    }
    assert_eq!(ann.rows(VISITS), ["1|1|ann|done", "2|1|ann|b"]);
    assert_eq!(ben.rows(VISITS), [""; 0]);
}

fn conflicts_are_decided_at_each_level_and_everybody_ends_equal<B: Backend>() {
    let world = World::<B>::open(headquarters());
    let mut north = Branch::open(&world, "north", &["ann", "ben"]);
    let mut south = Branch::open(&world, "south", &["cyd"]);
    let (mut ann, mut ben) = (north.synced("ann"), north.synced("ben"));
    let mut cyd = south.synced("cyd");

    // Between devices of a branch: headquarters hears of the outcome.
    ann.edit("UPDATE product SET name = 'of ann' WHERE product_id = 1");
    ben.edit("UPDATE product SET name = 'of ben' WHERE product_id = 1");
    ann.sync();
    assert_eq!(ben.sync().conflicts, 1);
    assert_eq!(ben.rows(PRODUCTS)[0], "1|of ann|10");
    assert_eq!(north.server.conflicts().len(), 1);
    assert_eq!(north.line.sync().conflicts, 0);
    assert_eq!(world.rows(PRODUCTS)[0], "1|of ann|10");

    // Between branches: the one that came second gets the other's row, and so do its devices.
    cyd.edit("UPDATE product SET name = 'of cyd' WHERE product_id = 1");
    cyd.sync();
    assert_eq!(south.server.conflicts().len(), 0);
    assert_eq!(south.line.sync().conflicts, 1);
    assert_eq!(world.server.conflicts().len(), 1);
    cyd.sync();
    assert_eq!(cyd.rows(PRODUCTS)[0], "1|of ann|10");

    // Between headquarters and a branch, and an update against a delete.
    world.execute("UPDATE product SET name = 'of all' WHERE product_id = 1");
    world.execute("DELETE FROM product WHERE product_id = 2");
    ann.edit("UPDATE product SET stock = 7 WHERE product_id IN (1, 2)");
    ann.sync();
    north.line.sync();
    settle(
        &mut [&mut north, &mut south],
        &mut [&mut ann, &mut ben, &mut cyd],
    );
    assert_nested(&world, (&north, "1"), &[&ann, &ben]);
    assert_nested(&world, (&south, "2, 3"), &[&cyd]);
}

fn what_headquarters_refuses_stays_at_the_branch_until_it_is_settled<B: Backend>() {
    let world = World::<B>::open(headquarters());
    let mut north = Branch::open(&world, "north", &["ann"]);
    let mut ann = north.synced("ann");
    // Only headquarters knows that a name is more than blanks.
    ann.edit("UPDATE product SET name = ' ' WHERE product_id = 1");
    ann.edit("INSERT INTO product VALUES (9, ' ', 0)");
    assert_eq!(ann.sync().refused, 0);
    assert_eq!(north.line.sync().refused, 2);
    assert_eq!(world.server.refused().len(), 2);
    assert_eq!(north.line.refused().len(), 2);
    assert_eq!(world.rows(PRODUCTS), ["1|pen|10", "2|ink|20"]);
    // Somebody at the branch mends one, and gives the other up.
    let refused = north.line.refused();
    let new = refused.iter().find(|it| it.key == "[9]").expect("it is");
    north
        .line
        .remote
        .edit_refused(new.id, r#"{"name": "cap"}"#)
        .expect("it can be edited");
    north
        .line
        .remote
        .discard_refused(RowSelection::All)
        .expect("it can be discarded");
    settle(&mut [&mut north], &mut [&mut ann]);
    assert_eq!(world.rows(PRODUCTS), ["1|pen|10", "2|ink|20", "9|cap|0"]);
    assert_nested(&world, (&north, "1"), &[&ann]);
    assert_eq!(north.line.refused().len(), 0);
}

fn a_row_that_moves_to_another_branch_leaves_the_one_and_its_devices<B: Backend>() {
    let world = World::<B>::open(headquarters());
    let mut north = Branch::open(&world, "north", &["ann", "ben"]);
    let mut south = Branch::open(&world, "south", &["cyd"]);
    let (mut ann, mut ben) = (north.synced("ann"), north.synced("ben"));
    let mut cyd = south.synced("cyd");
    world.execute("UPDATE visit SET region = 2, seller = 'cyd' WHERE visit_id = 1");
    world.execute("INSERT INTO territory VALUES ('north', 3)");
    world.execute("UPDATE visit SET seller = 'ben' WHERE visit_id = 4");
    north.line.sync();
    south.line.sync();
    for device in [&mut ann, &mut ben, &mut cyd] {
        device.sync();
    }
    assert_nested(&world, (&north, "1, 3"), &[&ann, &ben]);
    assert_nested(&world, (&south, "2, 3"), &[&cyd]);
    assert_eq!(ann.rows(VISITS), [""; 0]);
    assert_eq!(cyd.rows(VISITS), ["1|2|cyd|a", "3|2|cyd|c"]);

    // A change that waits at the branch when its row goes is refused, and never lost.
    ben.edit("UPDATE visit SET note = 'waits' WHERE visit_id = 2");
    ben.sync();
    world.execute("UPDATE visit SET region = 2 WHERE visit_id = 2");
    let report = north.line.sync();
    assert_eq!(
        (report.refused, report.conflicts, report.uploaded.updates),
        (1, 0, 0),
        "{report:?}"
    );
    settle(
        &mut [&mut north, &mut south],
        &mut [&mut ann, &mut ben, &mut cyd],
    );
    assert_nested(&world, (&north, "1, 3"), &[&ann, &ben]);
    assert_eq!(ben.rows("SELECT 1 FROM visit WHERE visit_id = 2"), [""; 0]);

    // A device cannot write what its branch does not hold, whatever it says.
    cyd.edit("INSERT INTO visit VALUES (50, 1, 3, 'cyd', '1.00', NULL, 0, 'not mine')");
    cyd.sync();
    assert_eq!(south.line.sync().refused, 1);
    assert_eq!(
        world.rows("SELECT 1 FROM visit WHERE visit_id = 50"),
        [""; 0]
    );
}

fn headquarters_may_be_away_for_long<B: Backend>() {
    let world = World::<B>::open(headquarters());
    let mut north = Branch::open(&world, "north", &["ann", "ben"]);
    let (mut ann, mut ben) = (north.synced("ann"), north.synced("ben"));
    for day in 0..20 {
        let own = 100 + day;
        ann.edit(&format!(
            "INSERT INTO product VALUES ({own}, 'of day {day}', {day})"
        ));
        ben.edit(&format!(
            "UPDATE visit SET note = 'day {day}' WHERE visit_id = 2"
        ));
        north
            .line
            .network
            .plan(Place::frame(Way::Up, 0), Accident::CutAfter);
        assert!(north.line.try_sync().is_err());
        assert!(north.line.network.finish_plan());
        ann.sync();
        ben.sync();
        ann.sync();
        assert_eq!(ann.rows(PRODUCTS), ben.rows(PRODUCTS));
        let theirs = 200 + day;
        world.execute(&format!(
            "INSERT INTO product VALUES ({theirs}, 'theirs {day}', 0)"
        ));
        world.execute("UPDATE visit SET amount = amount + 1 WHERE visit_id = 1");
    }
    assert_eq!(north.line.pending(), 21);
    let report = north.line.sync();
    assert_eq!((report.conflicts, report.refused), (0, 0));
    settle(&mut [&mut north], &mut [&mut ann, &mut ben]);
    assert_nested(&world, (&north, "1"), &[&ann, &ben]);
    assert_eq!(
        ann.rows("SELECT amount FROM visit WHERE visit_id = 1"),
        ["21.50"]
    );
    let verified = north
        .line
        .remote
        .verify(false, &mut |_| ControlFlow::Continue(()));
    assert!(verified.expect("it can be compared").is_equal);
    let verified = ann.remote.verify(false, &mut |_| ControlFlow::Continue(()));
    assert!(verified.expect("it can be compared").is_equal);
}

/// Connections break after any frame, between device and branch and between branch and
/// headquarters.
fn i1_cuts_at_both_levels_apply_every_change_once<B: Backend>() {
    let mut scenario = headquarters();
    scenario.schema += &B::audit(&[("product", "product_id", "name")]);
    let world = World::<B>::open(scenario);
    let mut north = Branch::open(&world, "north", &["ann"]);
    let mut ann = north.synced("ann");
    for (way, base) in [(Way::Up, 1_000), (Way::Down, 2_000)] {
        for frame in 0.. {
            let (own, theirs) = (base + frame, base + 5_000 + frame);
            ann.edit(&format!(
                "INSERT INTO product VALUES ({own}, 'own {own}', 0);
                 UPDATE product SET name = 'name {own}' WHERE product_id = 1;"
            ));
            world.execute(&format!(
                "INSERT INTO product VALUES ({theirs}, 'theirs {theirs}', 0)"
            ));
            let mut was_cut = false;
            for device in [&mut ann, &mut north.line] {
                device
                    .network
                    .plan(Place::frame(way, frame), Accident::CutAfter);
                let outcome = device.try_sync();
                let is_cut = device.network.finish_plan();
                assert!(is_cut || outcome.is_ok(), "{outcome:?}");
                if is_cut {
                    device.sync();
                }
                was_cut |= is_cut;
            }
            ann.sync();
            assert_nested(&world, (&north, "1"), &[&ann]);
            let done = format!("SELECT line FROM audit WHERE line LIKE '% {own}' ORDER BY line");
            let once = [
                format!("product|insert|{own}|own {own}"),
                format!("product|update|1|name {own}"),
            ];
            assert_eq!(world.rows(&done), once, "{way:?} {frame}");
            if !was_cut {
                assert!(frame > 5, "a sync has more than {frame} frames");
                break;
            }
        }
    }
}

fn i1_a_branch_that_is_restored_gets_back_what_it_forgot_from_both_sides<B: Backend>() {
    let mut scenario = headquarters();
    scenario.schema += &B::audit(&[("product", "product_id", "name")]);
    let world = World::<B>::open(scenario);
    let mut north = Branch::open(&world, "north", &["ann", "ben"]);
    let (mut ann, mut ben) = (north.synced("ann"), north.synced("ben"));
    ann.edit("INSERT INTO product VALUES (10, 'before', 0)");
    ann.sync();
    north.line.sync();
    ben.sync();
    let backup = north.backup();

    // What headquarters has heard of, and what only devices have.
    ann.edit("INSERT INTO product VALUES (11, 'went up', 0)");
    ann.edit("UPDATE visit SET note = 'went up' WHERE visit_id = 1");
    ann.sync();
    north.line.sync();
    world.execute("INSERT INTO product VALUES (20, 'came down', 0)");
    north.line.sync();
    ben.edit("INSERT INTO product VALUES (12, 'only here', 0)");
    ben.edit("UPDATE visit SET note = 'only here' WHERE visit_id = 2");
    ben.edit("DELETE FROM product WHERE product_id = 2");
    for device in [&mut ben, &mut ann] {
        device.sync();
    }
    assert_eq!(ann.rows(PRODUCTS), ben.rows(PRODUCTS));
    ann.edit("INSERT INTO product VALUES (13, 'waits', 0)");

    for device_first in [true, false] {
        north = north.restore(&backup, &[&ann, &ben]);
        assert_eq!(
            north.line.rows(PRODUCTS),
            ["1|pen|10", "2|ink|20", "10|before|0"]
        );
        match device_first {
            true => drop(ben.sync()),
            false => drop(north.line.sync()),
        }
        settle(&mut [&mut north], &mut [&mut ann, &mut ben]);
        assert_nested(&world, (&north, "1"), &[&ann, &ben]);
        let expected = [
            "1|pen|10",
            "10|before|0",
            "11|went up|0",
            "12|only here|0",
            "13|waits|0",
            "20|came down|0",
        ];
        assert_eq!(world.rows(PRODUCTS), expected);
        assert_eq!(
            world.rows(VISITS)[..2],
            ["1|1|ann|went up", "2|1|ben|only here"]
        );
        let twice =
            "SELECT line FROM audit WHERE line LIKE '%|insert|%' GROUP BY line HAVING count(*) > 1";
        assert_eq!(world.rows(twice), [""; 0]);
    }
}

/// Headquarters, a region, a branch, a device.
fn four_levels_and_none_is_its_own_headquarters<B: Backend>() {
    let world = World::<B>::open(headquarters());
    let publication = OF_BRANCH.replace(
        r#"partition = { columns = ["seller"], values = "SELECT {s.username}" }"#,
        r#"partition = "everyone""#,
    );
    let mut region = Branch::below(world.synced("north"), &publication, &["branch", "north"]);
    let line = region.synced("branch");
    let mut branch = Branch::below(line, OF_BRANCH, &["ann", "north"]);
    let mut ann = branch.synced("ann");
    assert_eq!(ann.rows(VISITS), ["1|1|ann|a"]);
    ann.edit("UPDATE visit SET note = 'from below' WHERE visit_id = 1");
    ann.sync();
    branch.line.sync();
    region.line.sync();
    assert_eq!(world.rows(VISITS)[0], "1|1|ann|from below");
    world.execute("UPDATE product SET stock = 99 WHERE product_id = 1");
    region.line.sync();
    branch.line.sync();
    ann.sync();
    assert_eq!(ann.rows(PRODUCTS)[0], "1|pen|99");
    assert_eq!(ann.rows("SELECT amount, done FROM visit"), ["1.50|1"]);

    // Each server knows what is above it; the region takes its own branch for headquarters.
    for of in [&mut region, &mut branch] {
        of.line.sync();
        let above = of.line.remote.database().and_then(|it| it.above());
        of.server.set_above(above.expect("it can be read"));
    }
    let above = |device: &mut Device| {
        device.sync();
        let above = device.remote.database().and_then(|it| it.above());
        above.expect("it can be read").len()
    };
    assert_eq!(above(&mut branch.line), 2);
    let mut of_branch = branch.synced("ann");
    assert_eq!(above(&mut of_branch), 3);
    let below = &branch.server;
    let pending = "UPDATE product SET stock = 1 WHERE product_id = 2";
    region.execute(pending);
    region.line.network.redirect(below.address);
    let error = region.line.try_sync().expect_err("it is below");
    assert_eq!(error.code(), Code::OwnDescendant, "{error}");
    assert!(error.to_string().contains("below this branch"), "{error}");
    assert!(error.hint().contains("[upstream]"), "{}", error.hint());
    region.line.network.redirect(region.server.address);
    let error = region.line.try_sync().expect_err("it is itself");
    assert_eq!(error.code(), Code::OwnDescendant, "{error}");
    assert!(error.to_string().contains("branch's own"), "{error}");
    // Nothing was lost by it.
    region.line.network.redirect(world.server.address);
    settle(&mut [&mut branch, &mut region], &mut [&mut ann]);
    assert_eq!(world.rows(PRODUCTS)[1], "2|ink|1");
    branch.line.sync();
    ann.sync();
    assert_eq!(ann.rows(PRODUCTS), world.rows(PRODUCTS));
}

/// Both stay connected, and nobody has to do anything.
fn changes_run_through_a_branch_that_is_live<B: Backend>() {
    let world = World::<B>::open(headquarters());
    let north = Branch::open(&world, "north", &["ann"]);
    let ann = north.synced("ann");
    let lives = [live_with(&north.line, |_| {}), live_with(&ann, |_| {})];
    world.execute("UPDATE product SET stock = 77 WHERE product_id = 1");
    until(|| ann.rows(PRODUCTS)[0] == "1|pen|77");
    ann.edit("UPDATE product SET stock = 78 WHERE product_id = 1");
    until(|| world.rows(PRODUCTS)[0] == "1|pen|78");
    world.execute("DELETE FROM product WHERE product_id = 2");
    until(|| ann.rows(PRODUCTS).len() == 1);
    lives.into_iter().for_each(Live::end);
}

fn numbers_come_from_headquarters_to_devices(schema: &str, is_sqlite: bool) {
    let scenario = Scenario {
        schema: schema.into(),
        publication: "
[[publication]]
name = \"main\"
[[publication.table]]
name = \"invoice\"
partition = \"everyone\"
identity = { column = \"invoice_id\", block = 100, refill_below = 50 }
",
        tables: &[],
        users: &["north", "south"],
        limits: "",
    };
    match is_sqlite {
        true => numbers::<Sqlite>(scenario),
        false => numbers::<Postgres>(scenario),
    }
}

fn numbers<B: Backend>(scenario: Scenario) {
    let world = World::<B>::open(scenario);
    let of_branch = "
[[publication]]
name = \"main\"
[[publication.table]]
name = \"invoice\"
partition = \"everyone\"
identity = { column = \"invoice_id\", block = 20, refill_below = 10 }
";
    let mut north = Branch::below(world.synced("north"), of_branch, &["ann", "ben"]);
    let mut south = Branch::below(world.synced("south"), of_branch, &["cyd"]);
    let mut devices = [
        north.synced("ann"),
        north.synced("ben"),
        south.synced("cyd"),
    ];
    let count = "SELECT count(*), count(DISTINCT invoice_id) FROM invoice";
    for round in 1..=15 {
        for device in &mut devices {
            for _ in 0..8 {
                device.edit("INSERT INTO invoice (total) VALUES (1)");
            }
            let report = device.sync();
            assert_eq!((report.refused, report.conflicts), (0, 0));
        }
        // The branch's own applications number rows, too.
        north.execute("INSERT INTO invoice (total) VALUES (2)");
        world.execute("INSERT INTO invoice (total) VALUES (3)");
        for branch in [&mut north, &mut south] {
            let report = branch.line.sync();
            assert_eq!((report.refused, report.conflicts), (0, 0));
        }
        let all = round * (3 * 8 + 2);
        assert_eq!(world.rows(count), [format!("{all}|{all}")]);
    }
    let [ann, ben, cyd] = &mut devices;
    settle(&mut [&mut north, &mut south], &mut [ann, ben, cyd]);
    for device in &devices {
        assert_eq!(device.rows(count), world.rows(count));
    }
}

/// A sum is one at every level: devices of two branches change it alike, and headquarters does.
fn sums_of_branches_and_headquarters_add_up<B: Backend>() {
    let sums = "conflict = { resolve = [\"additive(stock)\"] }\n";
    let mut scenario = headquarters();
    scenario.publication = format!("{}{sums}", scenario.publication).leak();
    let world = World::<B>::open(scenario);
    let of_branch = format!("{OF_BRANCH}{sums}");
    let mut north = Branch::below(world.synced("north"), &of_branch, &["ann", "ben"]);
    let mut south = Branch::below(world.synced("south"), &of_branch, &["cyd"]);
    let mut devices = [
        north.synced("ann"),
        north.synced("ben"),
        south.synced("cyd"),
    ];
    let sold = "UPDATE product SET stock = stock - 2 WHERE product_id = 1";
    for device in &devices {
        device.edit(sold);
    }
    world.execute(sold);
    for _ in 0..2 {
        for device in &mut devices {
            device.sync();
        }
        for branch in [&mut north, &mut south] {
            branch.line.sync();
        }
    }
    for device in &mut devices {
        device.sync();
    }
    let stock = "SELECT stock FROM product WHERE product_id = 1";
    assert_eq!(world.rows(stock), ["2"]);
    for device in devices.iter().chain([&north.line, &south.line]) {
        assert_eq!(device.rows(stock), ["2"], "{}", device.user);
    }
}

/// A device gives a sum back to its restored branch that headquarters has had from there already.
fn i1_a_sum_that_headquarters_has_is_not_added_again_by_a_restored_branch<B: Backend>() {
    let sums = "conflict = { resolve = \"additive(stock)\" }";
    let of_branch = format!("{OF_BRANCH}{sums}");
    let stock = "SELECT stock FROM product WHERE product_id = 1";
    for device_first in [true, false] {
        let mut scenario = headquarters();
        scenario.publication = format!("{}{sums}", scenario.publication).leak();
        let world = World::<B>::open(scenario);
        let mut north = Branch::below(world.synced("north"), &of_branch, &["ann"]);
        let mut ann = north.synced("ann");
        let backup = north.backup();
        let sell = |ann: &Device| {
            ann.edit("UPDATE product SET stock = stock - 2 WHERE product_id = 1");
        };
        sell(&ann);
        ann.sync();
        north.line.sync();
        assert_eq!(world.rows(stock), ["8"]);

        north = north.restore_below(&backup, &[&ann], &of_branch);
        assert_eq!(north.line.rows(stock), ["10"]);
        match device_first {
            true => drop(ann.sync()),
            false => drop(north.line.sync()),
        }
        settle(&mut [&mut north], &mut [&mut ann]);
        assert_eq!(world.rows(stock), ["8"], "device first: {device_first}");
        assert_nested(&world, (&north, "1"), &[&ann]);
        // Nobody can tell but the operator, who finds it.
        let conflicts = world.server.conflicts().len() + north.server.conflicts().len();
        assert_eq!(conflicts, 1);
        // What is sold afterwards counts, whatever others sell meanwhile.
        world.execute("UPDATE product SET stock = stock - 1 WHERE product_id = 1");
        sell(&ann);
        settle(&mut [&mut north], &mut [&mut ann]);
        assert_eq!(world.rows(stock), ["5"], "device first: {device_first}");
        assert_nested(&world, (&north, "1"), &[&ann]);
    }
}

#[test]
fn numbers_are_headquarters_with_sqlite() {
    let schema =
        "CREATE TABLE invoice (invoice_id INTEGER PRIMARY KEY AUTOINCREMENT, total INTEGER);";
    numbers_come_from_headquarters_to_devices(schema, true);
}

#[test]
fn numbers_are_headquarters_with_postgresql() {
    let schema =
        "CREATE TABLE invoice (invoice_id INTEGER GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
        total INTEGER);";
    numbers_come_from_headquarters_to_devices(schema, false);
}

on_both_adapters! {
    a_row_goes_up_and_comes_down_through_a_branch,
    conflicts_are_decided_at_each_level_and_everybody_ends_equal,
    what_headquarters_refuses_stays_at_the_branch_until_it_is_settled,
    a_row_that_moves_to_another_branch_leaves_the_one_and_its_devices,
    headquarters_may_be_away_for_long,
    i1_cuts_at_both_levels_apply_every_change_once,
    i1_a_branch_that_is_restored_gets_back_what_it_forgot_from_both_sides,
    four_levels_and_none_is_its_own_headquarters,
    changes_run_through_a_branch_that_is_live,
    sums_of_branches_and_headquarters_add_up,
    i1_a_sum_that_headquarters_has_is_not_added_again_by_a_restored_branch,
}
