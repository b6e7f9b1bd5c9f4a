//! The tables that every simulation is about, and what is published of them.

/// A published table.
pub(crate) struct Table {
    pub(crate) name: &'static str,
    /// All published columns, the key first.
    pub(crate) columns: &'static [&'static str],
    /// The column that every change gives a text of its own.
    pub(crate) text: &'static str,
    /// Which rows of the centre a user holds, `?1`.
    pub(crate) scope: &'static str,
    /// A column with the key of another table, and that table.
    pub(crate) parent: Option<(&'static str, &'static str)>,
}

impl Table {
    pub(crate) fn key(&self) -> &'static str {
        self.columns[0]
    }
}

const MINE: &str = "region IN (SELECT region FROM assignment WHERE login = ?1)";
const ALL: &str = "?1 IS NOT NULL";

/// What remotes edit.
pub(crate) const EDITED: &[Table] = &[
    Table {
        name: "customer",
        columns: &["customer_id", "region", "name"],
        text: "name",
        scope: MINE,
        parent: None,
    },
    Table {
        name: "invoice",
        columns: &["invoice_id", "region", "customer_id", "note", "stamp"],
        text: "note",
        scope: MINE,
        parent: Some(("customer_id", "customer")),
    },
    Table {
        name: "product",
        columns: &["product_id", "code", "name"],
        text: "name",
        scope: ALL,
        parent: None,
    },
];

/// What only comes down: every transaction of the centre keeps the sum of the balances of both.
pub(crate) const BALANCES: &[Table] = &[balances("account"), balances("reserve")];

const fn balances(name: &'static str) -> Table {
    Table {
        name,
        columns: &["account_id", "balance"],
        text: "balance",
        scope: ALL,
        parent: None,
    }
}

/// The sum of the balances in every snapshot.
pub(crate) const BALANCE: i64 = 1_000;

/// Regions that there are.
pub(crate) const REGIONS: u64 = 4;

/// Users that there are; everybody has some regions.
pub(crate) const USERS: &[&str] = &["ada", "bob", "cleo"];

/// Texts that begin so are refused by a constraint of the centre.
pub(crate) const REFUSED: &str = "refused";

/// Texts that begin so are refused by a trigger of the centre.
pub(crate) const DENIED: &str = "denied";

const SCHEMA: &str = "
    CREATE TABLE assignment (
        login TEXT NOT NULL,
        region INTEGER NOT NULL,
        PRIMARY KEY (login, region));
    CREATE TABLE customer (
        customer_id INTEGER NOT NULL PRIMARY KEY,
        region INTEGER NOT NULL,
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
    CREATE TABLE account (
        account_id INTEGER NOT NULL PRIMARY KEY,
        balance INTEGER NOT NULL);
    INSERT INTO assignment VALUES ('ada', 1), ('ada', 2), ('bob', 2), ('bob', 3), ('cleo', 3);
    INSERT INTO customer VALUES (1, 1, 'one'), (2, 2, 'two'), (3, 3, 'three');
    INSERT INTO invoice VALUES (1, 1, 1, 'a', 0), (2, 2, 2, 'b', 0), (3, 3, 3, 'c', 0),
        (4, 2, 3, 'd', 0);
    INSERT INTO product VALUES (1, 'P', 'pen'), (2, 'I', 'ink'), (3, NULL, 'cap');
    INSERT INTO account VALUES (1, 400), (2, 300), (3, 0);
    CREATE TABLE reserve (
        account_id INTEGER NOT NULL PRIMARY KEY,
        balance INTEGER NOT NULL);
    INSERT INTO reserve VALUES (1, 100), (2, 0), (3, 200);
    CREATE TABLE audit (at INTEGER PRIMARY KEY AUTOINCREMENT, \"table\" TEXT, operation TEXT,
        key INTEGER, text TEXT, region INTEGER);";

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
        let region = |row: &str| match table.columns.contains(&"region") {
            true => format!("{row}.region"),
            false => "NULL".into(),
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

/// The configuration of a server; `limits` are lines of `[server.limits]`.
pub(crate) fn config(limits: &str) -> String {
    let mine = "partition = { columns = [\"region\"], values = \"SELECT region FROM assignment \
                WHERE login = {s.username}\" }";
    format!(
        "[server]\nlisten = [\"tcp://127.0.0.1:7439\"]\nconsolidated = \"sqlite:simulated\"\n\
         [server.limits]\nsession_workers = 1\nupload_workers = 2\ndownload_workers = 2\n{limits}\n\
         [[publication]]\nname = \"main\"\n\
         [[publication.table]]\nname = \"customer\"\n{mine}\n\
         [[publication.table]]\nname = \"invoice\"\n{mine}\n\
         [[publication.table]]\nname = \"product\"\npartition = \"everyone\"\n\
         [[publication.table]]\nname = \"account\"\npartition = \"everyone\"\n\
         direction = \"download\"\n\
         [[publication.table]]\nname = \"reserve\"\npartition = \"everyone\"\n\
         direction = \"download\"\n"
    )
}
