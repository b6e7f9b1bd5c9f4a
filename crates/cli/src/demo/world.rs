//! The little world of the demonstration: a service company with regions, work orders
//! and parts, and what people on both sides do to them.
//!
//! Owns tables, rows and edits, all through plain SQL, as an application would write
//! it. Syncing and telling about it is the parent's affair.

use rusqlite::{Connection, params};

/// A technician: one user, one remote, the regions that are hers.
pub(super) struct Technician {
    /// The login name.
    pub(super) login: &'static str,
    /// The regions whose orders she holds.
    pub(super) regions: &'static [&'static str],
}

/// Everybody who syncs.
pub(super) const TECHNICIANS: [Technician; 5] = [
    Technician {
        login: "anna",
        regions: &["north"],
    },
    Technician {
        login: "bela",
        regions: &["south"],
    },
    Technician {
        login: "chen",
        regions: &["east"],
    },
    Technician {
        login: "dara",
        regions: &["west"],
    },
    Technician {
        login: "eli",
        regions: &["harbour", "island"],
    },
];

/// The published tables, and of which columns a row consists.
pub(super) const TABLES: [(&str, &str); 3] = [
    ("product", "product_id, name, price"),
    (
        "work_order",
        "order_id, region, customer, status, hours, note",
    ),
    ("part_used", "order_id, line, region, product_id, quantity"),
];

/// The password of every technician: it is a demonstration.
pub(super) const PASSWORD: &str = "tidewater";

const REGIONS: [&str; 6] = ["north", "south", "east", "west", "harbour", "island"];
const ORDERS_PER_REGION: i64 = 200;

const SCHEMA: &str = "
CREATE TABLE assignment (
  login TEXT NOT NULL,
  region TEXT NOT NULL,
  PRIMARY KEY (login, region)
);
CREATE TABLE product (
  product_id INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  price DECIMAL(10,2) NOT NULL
);
CREATE TABLE work_order (
  order_id INTEGER PRIMARY KEY,
  region TEXT NOT NULL,
  customer TEXT NOT NULL,
  status TEXT NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'done', 'cancelled')),
  hours REAL,
  note TEXT
);
CREATE TABLE part_used (
  order_id INTEGER NOT NULL REFERENCES work_order (order_id) ON DELETE CASCADE,
  line INTEGER NOT NULL,
  region TEXT NOT NULL,
  product_id INTEGER NOT NULL REFERENCES product (product_id),
  quantity INTEGER NOT NULL CHECK (abs(quantity) = quantity),
  PRIMARY KEY (order_id, line)
);
";

/// The configuration for this world, served at `listen`.
pub(super) fn configuration(listen: &str, centre: &std::path::Path) -> String {
    let values = "SELECT region FROM assignment WHERE login = {s.username}";
    let partition = format!("partition = {{ columns = [\"region\"], values = \"{values}\" }}");
    // A TOML basic string: the path may hold quotes and backslashes.
    let consolidated = format!("{:?}", format!("sqlite:{}", centre.display()));
    format!(
        "# The configuration of the demonstration.\n\
         [server]\n\
         listen = [\"{listen}\"]\n\
         consolidated = {consolidated}\n\n\
         [[publication]]\n\
         name = \"service\"\n\n\
         [[publication.table]]\n\
         name = \"product\"\n\
         partition = \"everyone\"\n\
         direction = \"download\"\n\n\
         [[publication.table]]\n\
         name = \"work_order\"\n\
         {partition}\n\n\
         [[publication.table]]\n\
         name = \"part_used\"\n\
         {partition}\n\n\
         [[procedure]]\n\
         name = \"price\"\n\
         sql = \"SELECT price FROM product WHERE name = {{a.item}}\"\n\
         arguments = {{ item = \"text\" }}\n\
         returns = \"value\"\n\
         allow = \"everyone\"\n\
         read_only = true\n\n\
         [[space]]\n\
         name = \"fleet\"\n\
         publish = [\"unit.{{s.username}}.>\"]\n\
         subscribe = \"everyone\"\n"
    )
}

/// Creates the tables and fills them.
pub(super) fn create(centre: &mut Connection) -> rusqlite::Result<()> {
    let transaction = centre.transaction()?;
    transaction.execute_batch(SCHEMA)?;
    for technician in &TECHNICIANS {
        for region in technician.regions {
            let sql = "INSERT INTO assignment VALUES (?, ?)";
            transaction.execute(sql, [technician.login, region])?;
        }
    }
    for (product_id, name, price) in [
        (1, "Filter", 12.5),
        (2, "Gasket", 1.99),
        (3, "Pump", 249.0),
        (4, "Valve", 38.75),
    ] {
        let sql = "INSERT INTO product VALUES (?, ?, ?)";
        transaction.execute(sql, params![product_id, name, price])?;
    }
    let mut order = transaction
        .prepare("INSERT INTO work_order (order_id, region, customer) VALUES (?, ?, ?)")?;
    let mut part = transaction.prepare("INSERT INTO part_used VALUES (?, 1, ?, ?, ?)")?;
    for (index, region) in (1i64..).zip(REGIONS) {
        for number in 1..=ORDERS_PER_REGION {
            let order_id = index * 10_000 + number;
            order.execute(params![
                order_id,
                region,
                format!("Customer {number} of {region}")
            ])?;
            part.execute(params![order_id, region, number % 4 + 1, number % 3 + 1])?;
        }
    }
    drop((order, part));
    transaction.commit()
}

/// A day's work on the device of a technician, offline. `own` is her first region;
/// new orders get ids from `first_id` upward.
pub(super) fn work_offline(
    remote: &mut Connection,
    own: &str,
    first_id: i64,
) -> rusqlite::Result<()> {
    remote.pragma_update(None, "foreign_keys", true)?;
    let transaction = remote.transaction()?;
    for order_id in first_id..first_id + 3 {
        let sql = "INSERT INTO work_order (order_id, region, customer, hours, note) \
                   VALUES (?, ?, 'Walk-in', 0.5, 'from the device')";
        transaction.execute(sql, params![order_id, own])?;
        let sql = "INSERT INTO part_used VALUES (?, 1, ?, 2, 1)";
        transaction.execute(sql, params![order_id, own])?;
    }
    let sql = "UPDATE work_order SET status = 'done', hours = 1.25 \
               WHERE region = ? AND order_id % 10 = 3";
    transaction.execute(sql, [own])?;
    // The parts of a deleted order go with it, on the device as in the centre.
    let sql = "DELETE FROM work_order WHERE region = ? AND order_id % 100 = 77";
    transaction.execute(sql, [own])?;
    transaction.commit()
}

/// What the office does meanwhile, in the centre.
pub(super) fn work_in_the_office(centre: &mut Connection) -> rusqlite::Result<()> {
    centre.pragma_update(None, "foreign_keys", true)?;
    let transaction = centre.transaction()?;
    transaction.execute_batch(
        "UPDATE product SET price = 2.49 WHERE product_id = 2;
         INSERT INTO product VALUES (5, 'Sensor', 75);
         INSERT INTO work_order (order_id, region, customer, note)
           VALUES (90001, 'north', 'Mill', 'urgent'), (90002, 'island', 'Lighthouse', NULL);
         DELETE FROM work_order WHERE order_id IN (20010, 30010);
         -- An order and its parts move from north to south.
         UPDATE work_order SET region = 'south' WHERE order_id = 10005;
         UPDATE part_used SET region = 'south' WHERE order_id = 10005;",
    )?;
    transaction.commit()
}

/// The office writes a note for whoever has the harbour.
pub(super) fn note_the_gate(centre: &Connection) -> rusqlite::Result<()> {
    let sql = "UPDATE work_order SET note = 'the gate is open' WHERE order_id = 50001";
    centre.execute(sql, []).map(drop)
}

/// The same order is edited by the office and by the technician who holds it.
pub(super) const CONTESTED_ORDER: i64 = 10_050;

/// One side of the conflict.
pub(super) fn edit_contested(database: &Connection, note: &str) -> rusqlite::Result<()> {
    let sql = "UPDATE work_order SET note = ? WHERE order_id = ?";
    database
        .execute(sql, params![note, CONTESTED_ORDER])
        .map(drop)
}

/// A quantity that the centre's CHECK refuses; the device has no such rule.
pub(super) fn use_impossible_part(remote: &Connection) -> rusqlite::Result<()> {
    let sql = "INSERT INTO part_used VALUES (40001, 9, 'west', 1, -5)";
    remote.execute(sql, []).map(drop)
}
