//! The tables of a market, and what is published of them.

use tidewater_centre::ScriptSpec;
use tidewater_server::Config;

use crate::failure::SimulationFailure;

/// The devices at the beginning, each with its user.
pub(super) const DEVICES: [(&str, &str); 3] = [("ann", "ann"), ("ben", "ben"), ("tab", "ann")];

/// The program that judges claims.
pub(super) const OFFICE: &str = "office";

/// Everybody who signs in.
pub(super) const USERS: [&str; 3] = ["ann", "ben", OFFICE];

/// The procedure by which the handler of claims is asked.
pub(super) const JUDGED: &str = "judge";

/// What the handler of claims refuses, and the check of reports.
pub(super) const DENIED: &str = "denied";

/// What the scripts of reports write before each text. Nobody else does.
pub(super) const CHECKED: &str = "checked";

/// A table of counters, from which devices and the centre take.
#[derive(Clone, Copy, Debug)]
pub(super) struct CounterTable {
    pub(super) table: &'static str,
    pub(super) key: &'static str,
    pub(super) value: &'static str,
    /// What each row has at the beginning; `None`: devices insert the rows.
    pub(super) begins: Option<i64>,
}

/// Rows of counters have keys up to this one.
pub(super) const COUNTERS_EACH: i64 = 3;

pub(super) const STOCK: CounterTable = counter("stock", "stock_id", "quantity", Some(100));
pub(super) const SHELF: CounterTable = counter("shelf", "shelf_id", "quantity", Some(12));
pub(super) const VOUCHER: CounterTable = counter("voucher", "voucher_id", "amount", None);

/// All tables of counters.
pub(super) const COUNTERS: [CounterTable; 3] = [STOCK, SHELF, VOUCHER];

const fn counter(
    table: &'static str,
    key: &'static str,
    value: &'static str,
    begins: Option<i64>,
) -> CounterTable {
    CounterTable {
        table,
        key,
        value,
        begins,
    }
}

/// Sales are numbered by the devices, up to this number: they meet.
pub(super) const SALES: u64 = 5;

/// Lines of a sale are numbered up to this number.
pub(super) const LINES: u64 = 3;

/// The tables of a family, each with the columns that tell its rows apart. What `entry` says no
/// other row says, and `family` is what the sale says that the row was inserted under.
pub(super) const FAMILY: [(&str, &str); 3] = [
    ("sale", "sale_id"),
    ("sale_line", "sale_id, number"),
    ("line_note", "note_id"),
];

/// Each row of a table of the family, with the sale under which it is.
pub(super) const PLACED: &str = "
    SELECT 'sale', entry, family, entry FROM sale
    UNION ALL
    SELECT 'sale_line', l.entry, l.family, s.entry
    FROM sale_line AS l LEFT JOIN sale AS s USING (sale_id)
    UNION ALL
    SELECT 'line_note', n.entry, n.family, s.entry
    FROM line_note AS n LEFT JOIN sale_line AS l USING (sale_id, number)
        LEFT JOIN sale AS s ON s.sale_id = l.sale_id";

/// The centre at the beginning.
pub(super) const SCHEMA: &str = "
    CREATE TABLE stock (
        stock_id INTEGER NOT NULL PRIMARY KEY,
        quantity INTEGER NOT NULL,
        label TEXT NOT NULL);
    CREATE TABLE shelf (
        shelf_id INTEGER NOT NULL PRIMARY KEY,
        quantity INTEGER NOT NULL CHECK (quantity >= 0));
    CREATE TABLE voucher (
        voucher_id INTEGER NOT NULL PRIMARY KEY,
        amount INTEGER NOT NULL);
    CREATE TABLE sale (
        sale_id INTEGER NOT NULL PRIMARY KEY,
        entry TEXT NOT NULL,
        family TEXT NOT NULL);
    CREATE TABLE sale_line (
        sale_id INTEGER NOT NULL REFERENCES sale,
        number INTEGER NOT NULL,
        entry TEXT NOT NULL,
        family TEXT NOT NULL,
        PRIMARY KEY (sale_id, number));
    CREATE TABLE line_note (
        note_id INTEGER NOT NULL PRIMARY KEY,
        sale_id INTEGER NOT NULL,
        number INTEGER NOT NULL,
        entry TEXT NOT NULL,
        family TEXT NOT NULL,
        FOREIGN KEY (sale_id, number) REFERENCES sale_line);
    CREATE INDEX line_note_line ON line_note (sale_id, number);
    CREATE TABLE ticket (
        ticket_id INTEGER PRIMARY KEY AUTOINCREMENT,
        entry TEXT NOT NULL);
    CREATE TABLE report (
        report_id INTEGER NOT NULL PRIMARY KEY,
        text TEXT NOT NULL CHECK (text NOT LIKE '%denied%'));
    CREATE TABLE claim (
        claim_id INTEGER NOT NULL PRIMARY KEY,
        text TEXT NOT NULL);
    INSERT INTO stock VALUES (1, 100, 'a'), (2, 100, 'b'), (3, 100, 'c');
    INSERT INTO shelf VALUES (1, 12), (2, 12), (3, 12);
    INSERT INTO report VALUES (1, 'checked a'), (2, 'checked b');
    INSERT INTO claim VALUES (1, 'a'), (2, 'b');";

/// What the servers serve.
pub(super) fn config() -> Result<Config, SimulationFailure> {
    let table = |name: &str, partition: &str, rest: &str| {
        format!("[[publication.table]]\nname = \"{name}\"\npartition = {partition}\n{rest}\n")
    };
    let everyone = "\"everyone\"";
    let published = [
        table(
            "stock",
            everyone,
            "conflict = { detect = \"column\", resolve = \"additive(quantity)\" }",
        ),
        table(
            "shelf",
            everyone,
            "conflict = { resolve = \"additive(quantity)\" }",
        ),
        table(
            "voucher",
            everyone,
            "conflict = { resolve = \"additive(amount)\" }",
        ),
        table("sale", everyone, ""),
        table("sale_line", "{ follows = \"sale\" }", ""),
        table("line_note", "{ follows = \"sale_line\" }", ""),
        table(
            "ticket",
            everyone,
            "identity = { column = \"ticket_id\", block = 40, refill_below = 20 }",
        ),
        table("report", everyone, ""),
        table(
            "claim",
            everyone,
            &format!(
                "handler = {{ url = \"call:{JUDGED}\", timeout = \"4s\", breaker_pause = \"3s\" }}"
            ),
        ),
    ];
    let text = format!(
        "[server]\nlisten = [\"tcp://127.0.0.1:7439\"]\nconsolidated = \"sqlite:simulated\"\n\
         [server.limits]\nsession_workers = 1\nupload_workers = 2\ndownload_workers = 2\n\
         shutdown_timeout = \"1s\"\n\
         [[publication]]\nname = \"main\"\n{}\
         [[procedure]]\nname = \"{JUDGED}\"\nprovided_by = \"{OFFICE}\"\n\
         arguments = {{ request = \"json\" }}\nallow = \"SELECT 1 WHERE 1 = 0\"\n\
         idempotent = true\n",
        published.concat()
    );
    let mut config = Config::parse(&text)?;
    config.publications[0].scripts = scripts();
    Ok(config)
}

/// Those of reports.
fn scripts() -> Vec<ScriptSpec> {
    let events = [
        (
            "upload_insert",
            "INSERT INTO report (report_id, text) VALUES ({r.report_id}, 'checked ' || {r.text})",
        ),
        (
            "upload_fetch",
            "SELECT report_id, text FROM report WHERE report_id = {o.report_id}",
        ),
        (
            "upload_update",
            "UPDATE report SET text = 'checked ' || {r.text} WHERE report_id = {r.report_id}",
        ),
    ];
    let scripts =
        events.map(|(event, sql)| ScriptSpec::at("scripts", ["default", "report", event], sql));
    scripts.into()
}
