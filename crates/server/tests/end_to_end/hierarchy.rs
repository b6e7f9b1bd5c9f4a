//! Branches: a file that is the centre of its devices and a remote of headquarters.

use tempfile::TempDir;
use tidewater_server::Config;

use crate::backend::Backend;
use crate::device::Device;
use crate::scenario::Scenario;
use crate::world::{LiveServer, World};

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

on_both_adapters! {
    a_row_goes_up_and_comes_down_through_a_branch,
}
