//! The schema of the centre in every simulation, and the configuration that publishes it.

use tidewater_centre::ScriptSpec;

use crate::besides::Besides;
use crate::calendar::RECENT_DAYS;
use crate::tables::{ASKED, DENIED, EDITED, HoldingRule};

/// What the programs of the office provide: the first one for the staff only, and it may be done
/// again by another one if one of them dies.
pub(crate) const REPEATED: &str = "repeat";
pub(crate) const FETCHED: &str = "fetch";

const SCHEMA: &str = "
    CREATE TABLE assignment (
        login TEXT NOT NULL,
        region INTEGER NOT NULL,
        PRIMARY KEY (login, region));
    CREATE TABLE customer (
        customer_id INTEGER NOT NULL PRIMARY KEY,
        region INTEGER NOT NULL,
        code TEXT UNIQUE,
        name TEXT NOT NULL CHECK (name NOT LIKE 'refused%'));
    CREATE TABLE invoice (
        invoice_id INTEGER NOT NULL PRIMARY KEY,
        region INTEGER NOT NULL,
        customer_id INTEGER NOT NULL REFERENCES customer (customer_id) ON DELETE CASCADE,
        note TEXT NOT NULL CHECK (note NOT LIKE 'refused%'),
        stamp INTEGER NOT NULL DEFAULT 0);
    CREATE INDEX invoice_customer ON invoice (customer_id);
    CREATE TABLE product (
        product_id INTEGER NOT NULL PRIMARY KEY,
        code TEXT UNIQUE,
        name TEXT NOT NULL CHECK (name NOT LIKE 'refused%'));
    CREATE TABLE site (
        site_id UUID NOT NULL PRIMARY KEY,
        region INTEGER NOT NULL,
        code TEXT UNIQUE,
        name TEXT NOT NULL CHECK (name NOT LIKE 'refused%'));
    CREATE TABLE visit (
        visit_id DECIMAL_TEXT(12, 2) NOT NULL PRIMARY KEY,
        customer_id INTEGER NOT NULL REFERENCES customer (customer_id)
            ON UPDATE CASCADE ON DELETE CASCADE,
        note TEXT NOT NULL CHECK (note NOT LIKE 'refused%'));
    CREATE INDEX visit_customer ON visit (customer_id);
    CREATE TABLE measure (
        measure_id INTEGER NOT NULL PRIMARY KEY,
        visit_id DECIMAL_TEXT(12, 2) NOT NULL REFERENCES visit (visit_id)
            ON UPDATE CASCADE ON DELETE CASCADE,
        note TEXT NOT NULL CHECK (note NOT LIKE 'refused%'));
    CREATE INDEX measure_visit ON measure (visit_id);
    CREATE TABLE reading (
        reading_id INTEGER NOT NULL PRIMARY KEY,
        day DATE NOT NULL,
        note TEXT NOT NULL CHECK (note NOT LIKE 'refused%'));
    CREATE INDEX reading_day ON reading (day);
    CREATE TABLE stock (
        stock_id INTEGER NOT NULL PRIMARY KEY,
        region INTEGER NOT NULL,
        note TEXT NOT NULL CHECK (note NOT LIKE 'refused%'));
    CREATE INDEX stock_region ON stock (region);
    CREATE TABLE staff (login TEXT NOT NULL PRIMARY KEY);
    CREATE TABLE called (
        at INTEGER PRIMARY KEY,
        procedure TEXT NOT NULL,
        token TEXT NOT NULL CHECK (token NOT LIKE 'refused%'),
        login TEXT NOT NULL,
        audited INTEGER NOT NULL);
    CREATE INDEX called_token ON called (token);
    CREATE TABLE liking (login TEXT NOT NULL, code TEXT NOT NULL, PRIMARY KEY (login, code));
    CREATE TABLE account (
        account_id INTEGER NOT NULL PRIMARY KEY,
        balance INTEGER NOT NULL);
    INSERT INTO staff VALUES ('ada'), ('office');
    INSERT INTO assignment VALUES ('ada', 1), ('ada', 2), ('bob', 2), ('bob', 3), ('cleo', 3),
        ('everybody', 1), ('everybody', 2), ('everybody', 3), ('everybody', 4);
    INSERT INTO customer VALUES (1, 1, 'C', 'one'), (2, 2, NULL, 'two'),
        (3, 3, 'T', 'three');
    INSERT INTO invoice VALUES (1, 1, 1, 'a', 0), (2, 2, 2, 'b', 0), (3, 3, 3, 'c', 0),
        (4, 2, 3, 'd', 0);
    INSERT INTO product VALUES (1, 'P', 'pen'), (2, 'I', 'ink'), (3, NULL, 'cap');
    INSERT INTO site VALUES ('00000001-0000-4000-8000-00000000abcd', 1, 'S', 'yard'),
        ('00000002-0000-4000-8000-00000000abcd', 2, NULL, 'shed');
    INSERT INTO visit VALUES ('1.00', 1, 'e'), ('2.00', 2, 'f'), ('3.00', 2, 'g');
    INSERT INTO measure VALUES (1, '1.00', 'h'), (2, '2.00', 'i'), (3, '2.00', 'j');
    INSERT INTO reading VALUES (1, '2023-11-10', 'k'), (2, '2023-11-13', 'l'),
        (3, '2023-11-14', 'm');
    INSERT INTO stock VALUES (1, 1, 'n'), (2, 2, 'o'), (3, 3, 'p'), (4, 2, 'q');
    INSERT INTO liking VALUES ('ada', 'B'), ('cleo', 'A'), ('everybody', 'A'), ('everybody', 'B');
    INSERT INTO account VALUES (1, 400), (2, 300), (3, 0);
    CREATE TABLE reserve (
        account_id INTEGER NOT NULL PRIMARY KEY,
        balance INTEGER NOT NULL);
    INSERT INTO reserve VALUES (1, 100), (2, 0), (3, 200);
    CREATE TABLE script_journal (at INTEGER PRIMARY KEY AUTOINCREMENT, event TEXT NOT NULL,
        text TEXT);
    CREATE TABLE audit (at INTEGER PRIMARY KEY AUTOINCREMENT, \"table\" TEXT, operation TEXT,
        key, text TEXT, region INTEGER);";

/// The same tables, but that references are looked at when a transaction ends.
pub(crate) fn schema(deferred: bool) -> String {
    let at_the_end = "ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED";
    match deferred {
        true => SCHEMA.replace("ON DELETE CASCADE", at_the_end),
        false => SCHEMA.to_owned(),
    }
}

/// Triggers of the centre: they write down everything that happens to its rows, refuse some,
/// and stamp some, so that they are not what was uploaded any more.
pub(crate) fn triggers() -> String {
    let mut sql = String::new();
    for table in EDITED {
        let (name, key, text) = (table.name, table.key(), table.text);
        // Whose code somebody likes may be of any region.
        let region = |row: &str| match (table.columns.contains(&"region"), table.held) {
            (true, HoldingRule::MineOrLiked) => {
                format!("iif({row}.code IN (SELECT code FROM liking), NULL, {row}.region)")
            }
            (true, _) => format!("{row}.region"),
            (false, _) => "NULL".into(),
        };
        // A stamp is no change of somebody's.
        let update = format!("update OF {text}");
        for (operation, event, row) in [
            ("insert", "insert", "NEW"),
            ("update", &update, "NEW"),
            ("delete", "delete", "OLD"),
        ] {
            sql += &format!(
                "CREATE TRIGGER audit_{name}_{operation} AFTER {event} ON {name} BEGIN
                     INSERT INTO audit (\"table\", operation, key, text, region)
                     VALUES ('{name}', '{operation}', {row}.{key}, {row}.{text}, {});
                 END;",
                region(row)
            );
        }
        for operation in ["insert", "update"] {
            sql += &format!(
                "CREATE TRIGGER deny_{name}_{operation} BEFORE {operation} ON {name}
                 WHEN NEW.{text} LIKE '{DENIED}%' BEGIN SELECT RAISE(ABORT, 'denied'); END;"
            );
        }
    }
    for (name, event) in [("insert", "insert"), ("update", "update OF note")] {
        sql += &format!(
            "CREATE TRIGGER stamp_invoice_{name} AFTER {event} ON invoice BEGIN
                 UPDATE invoice SET stamp = stamp + 1 WHERE invoice_id = NEW.invoice_id;
             END;"
        );
    }
    sql
}

/// What is wrong with a version of the scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carelessness {
    /// Each statement stands there twice that writes down what was done.
    Twice,
    /// There is none for updates, which are written without it.
    Generated,
    /// What the centre has is not looked at.
    Blind,
    /// The end of an upload is not written down.
    Open,
}

impl Carelessness {
    pub(crate) const ALL: [Carelessness; 4] = [
        Carelessness::Twice,
        Carelessness::Generated,
        Carelessness::Blind,
        Carelessness::Open,
    ];

    /// The version that has it.
    pub(crate) fn version(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

/// The scripts by which products are uploaded: they do what is done without them, and write down
/// that they have. Nobody asks for the careless versions.
pub(crate) fn scripts() -> Vec<ScriptSpec> {
    let careless = Carelessness::ALL.into_iter().map(Some);
    [None]
        .into_iter()
        .chain(careless)
        .flat_map(version)
        .collect()
}

fn version(careless: Option<Carelessness>) -> Vec<ScriptSpec> {
    let note = |event: &str, text: &str| {
        let note = format!(
            "INSERT INTO script_journal (event, text) SELECT '{event}', {text} WHERE {text} IS NOT NULL;"
        );
        match careless {
            Some(Carelessness::Twice) => note.repeat(2),
            _ => note,
        }
    };
    let changed = "nullif({r.name}, {o.name})";
    let events = [
        ("connection", "begin_upload", note("begin", "{s.remote_id}")),
        ("connection", "end_upload", note("end", "{s.remote_id}")),
        (
            "product",
            "upload_insert",
            note("write", "{r.name}")
                + "INSERT INTO product (product_id, code, name)
                   VALUES ({r.product_id}, {r.code}, {r.name})",
        ),
        (
            "product",
            "upload_fetch",
            "SELECT * FROM product WHERE product_id = {o.product_id}".into(),
        ),
        (
            "product",
            "upload_update",
            note("write", changed)
                + "UPDATE product SET product_id = {r.product_id}, code = {r.code}, name = {r.name}
                   WHERE product_id = {o.product_id}",
        ),
        (
            "product",
            "upload_delete",
            "DELETE FROM product WHERE product_id = {o.product_id} AND code IS {o.code}
               AND name = {o.name}"
                .into(),
        ),
    ];
    let left_out = match careless {
        Some(Carelessness::Generated) => &["upload_update", "upload_fetch"][..],
        Some(Carelessness::Blind) => &["upload_fetch"],
        Some(Carelessness::Open) => &["end_upload"],
        Some(Carelessness::Twice) | None => &[],
    };
    let version = careless.map_or_else(|| "default".into(), Carelessness::version);
    let events = events
        .into_iter()
        .filter(|(_, event, _)| !left_out.contains(event));
    let scripts =
        events.map(|(of, event, sql)| ScriptSpec::at("scripts", [&version, of, event], sql));
    scripts.collect()
}

/// What can be called and published. A call leaves a trace that tells how far the audit was.
const LIVE: &str = r#"
[[procedure]]
name = "note"
sql = """INSERT INTO called (procedure, token, login, audited)
         SELECT 'note', {a.token}, {s.username}, coalesce(max(at), 0) FROM audit RETURNING at"""
arguments = { token = "text" }
returns = "value"
allow = "everyone"

[[procedure]]
name = "confide"
sql = """INSERT INTO called (procedure, token, login, audited)
         SELECT 'confide', {a.token}, {s.username}, coalesce(max(at), 0) FROM audit"""
arguments = { token = "text" }
returns = "nothing"
allow = "SELECT 1 FROM staff WHERE login = {s.username}"

[[procedure]]
name = "fetch"
provided_by = "office"
arguments = { token = "text" }
allow = "everyone"

[[procedure]]
name = "repeat"
provided_by = "office"
arguments = { token = "text" }
allow = "SELECT 1 FROM staff WHERE login = {s.username}"
idempotent = true

[[space]]
name = "field"
publish = ["unit.{s.username}.>", "all.>"]
subscribe = ["unit.{s.username}.>", "all.>"]
durable = "3650d"

[[space]]
name = "desk"
publish = "everyone"
subscribe = { patterns = [">"], allow = "SELECT 1 FROM staff WHERE login = {s.username}" }
durable = "3650d"

[[space]]
name = "plain"
publish = ["unit.{s.username}.>", "all.>"]
subscribe = ["unit.{s.username}.>", "all.>"]
"#;

/// The configuration of a server, with what can be called and published.
pub(crate) fn live_config(limits: &str, besides: Besides) -> String {
    config(limits, besides) + LIVE + &besides.procedures()
}

/// The configuration of a server; `limits` are lines of `[server.limits]`.
pub(crate) fn config(limits: &str, besides: Besides) -> String {
    let mine = "partition = { columns = [\"region\"], values = \"SELECT region FROM assignment \
                WHERE login = {s.username}\" }";
    let liked = "{ columns = [\"code\"], values = \"SELECT code FROM liking \
                 WHERE login = {s.username}\" }";
    let mine_or_liked = format!(
        "partition = [{}, {liked}]",
        mine.trim_start_matches("partition = ")
    );
    let asked = format!("{{u.{ASKED}}}");
    let uploads = match besides.is_transactional {
        true => "upload = \"transactional\"",
        false => "",
    };
    format!(
        "[server]\nlisten = [\"tcp://127.0.0.1:7439\"]\nconsolidated = \"sqlite:simulated\"\n\
         [server.limits]\nsession_workers = 1\nupload_workers = 2\ndownload_workers = 2\n{limits}\n\
         [[publication]]\nname = \"main\"\n{uploads}\n\
         [[publication.parameter]]\nname = \"{ASKED}\"\nallowed = \
         \"SELECT region FROM assignment WHERE login = {{s.username}}\"\n\
         [[publication.table]]\nname = \"customer\"\n{mine}\n\
         [[publication.table]]\nname = \"invoice\"\n{mine}\n\
         [[publication.table]]\nname = \"product\"\npartition = \"everyone\"\n\
         [[publication.table]]\nname = \"site\"\n{mine_or_liked}\n\
         [[publication.table]]\nname = \"visit\"\npartition = {{ follows = \"customer\" }}\n\
         [[publication.table]]\nname = \"measure\"\npartition = {{ follows = \"visit\" }}\n\
         [[publication.table]]\nname = \"reading\"\npartition = {{ window = \
         {{ column = \"day\", last = \"{RECENT_DAYS} days\" }} }}\n\
         [[publication.table]]\nname = \"stock\"\npartition = {{ columns = [\"region\"], \
         values = \"SELECT CAST({asked} AS INTEGER)\" }}\n\
         [[publication.table]]\nname = \"account\"\npartition = \"everyone\"\n\
         direction = \"download\"\n\
         [[publication.table]]\nname = \"reserve\"\npartition = \"everyone\"\n\
         direction = \"download\"\n{}",
        besides.config()
    )
}
