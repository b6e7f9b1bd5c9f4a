//! The tables that every simulation is about, and what is published of them.

use rusqlite::types::{FromSqlError, Value, ValueRef};
use rusqlite::{Connection, OptionalExtension};

use tidewater_centre::ScriptSpec;
use tidewater_protocol::datetime;

use crate::besides::Besides;
use crate::world::BEGIN_MS;

/// A day, in milliseconds.
pub(crate) const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

/// What the values of a table's key look like. Whoever talks about rows numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Integer,
    Uuid,
    /// With two digits behind the point.
    Decimal,
}

impl Key {
    /// The key of a row.
    pub(crate) fn value(self, number: i64) -> Value {
        match self {
            Key::Integer => number.into(),
            Key::Uuid => format!("{number:08x}-0000-4000-8000-00000000abcd").into(),
            Key::Decimal => format!("{number}.00").into(),
        }
    }

    /// The number of a row.
    ///
    /// # Errors
    /// It is the key of no row.
    pub(crate) fn number(self, value: ValueRef<'_>) -> Result<i64, FromSqlError> {
        let text = match value {
            ValueRef::Integer(number) if self == Key::Integer => return Ok(number),
            value => value.as_str()?,
        };
        self.parse(text).ok_or(FromSqlError::InvalidType)
    }

    fn parse(self, text: &str) -> Option<i64> {
        let number = match self {
            Key::Integer => text.parse(),
            Key::Uuid => i64::from_str_radix(text.get(..8)?, 16),
            Key::Decimal => text.strip_suffix(".00")?.parse(),
        };
        number.ok()
    }

    /// The key of a row as it is told to people.
    pub(crate) fn json(self, number: i64) -> String {
        match self.value(number) {
            Value::Text(text) => format!("[\"{text}\"]"),
            _ => format!("[{number}]"),
        }
    }

    /// The number of a row of which people were told.
    pub(crate) fn number_in(self, json: &str) -> Option<i64> {
        self.parse(json.trim_matches(['[', ']', '"']))
    }

    /// What an application may take for the key of a row: it is to hear at once that it is none.
    pub(crate) fn misspelt(self, number: i64) -> Value {
        match self {
            Key::Integer => Value::Null,
            Key::Uuid => format!("{number:08X}-0000-4000-8000-00000000ABCD").into(),
            Key::Decimal => format!("{number}.0").into(),
        }
    }
}

/// A published table.
pub(crate) struct Table {
    pub(crate) name: &'static str,
    pub(crate) key_is: Key,
    /// All published columns, the key first.
    pub(crate) columns: &'static [&'static str],
    /// The column that every change gives a text of its own.
    pub(crate) text: &'static str,
    /// Which rows of the centre a user holds.
    pub(crate) held: Held,
    /// A column with the key of another table, and that table.
    pub(crate) parent: Option<(&'static str, &'static str)>,
}

impl Table {
    pub(crate) fn key(&self) -> &'static str {
        self.columns[0]
    }

    /// Whether rows have a code: in the centre, one row only.
    pub(crate) fn has_code(&self) -> bool {
        self.columns.contains(&"code")
    }

    /// The columns that say where a row belongs.
    pub(crate) fn places(&self) -> Vec<&'static str> {
        let columns = self.columns[1..].iter().copied();
        columns
            .filter(|it| *it != self.text && *it != "stamp")
            .collect()
    }

    /// The column that refers to a parent, and the parent.
    pub(crate) fn reference(&self) -> Option<(&'static str, &'static Table)> {
        let (column, parent) = self.parent?;
        let parent = EDITED.iter().find(|it| it.name == parent)?;
        Some((column, parent))
    }

    /// Which of [`EDITED`] go when a row of this one goes.
    pub(crate) fn children(&self) -> impl Iterator<Item = usize> {
        let is_child = |it: &Table| it.parent.is_some_and(|(_, parent)| parent == self.name);
        (0..EDITED.len()).filter(move |&index| is_child(&EDITED[index]))
    }
}

/// Which rows a user holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    All,
    /// Those of his regions.
    Mine,
    /// And those whose code he likes.
    MineOrLiked,
    /// Those of the days of the window.
    Recent,
    /// Those whose parents he holds.
    OfParent,
    /// Those of the one of his regions that his remote asks for.
    Asked,
}

/// Who holds rows, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holder<'a> {
    pub(crate) user: &'a str,
    pub(crate) now_ms: i64,
    /// What his remote has set the parameter to.
    pub(crate) asked: Option<&'a str>,
}

impl Table {
    /// The condition for the rows that somebody holds; his name is `?1`.
    pub(crate) fn held_by(&self, holder: Holder<'_>) -> String {
        let mine = "region IN (SELECT region FROM assignment WHERE login = ?1)";
        match (self.held, self.reference()) {
            (Held::Mine, _) => mine.into(),
            (Held::MineOrLiked, _) => {
                format!("({mine} OR code IN (SELECT code FROM liking WHERE login = ?1))")
            }
            (Held::Recent, _) => {
                format!("?1 IS NOT NULL AND day >= '{}'", low_day(holder.now_ms))
            }
            (Held::Asked, _) => match holder.asked {
                Some(region) => format!("?1 IS NOT NULL AND CAST(region AS TEXT) = '{region}'"),
                None => "?1 IS NULL".into(),
            },
            (Held::OfParent, Some((column, parent))) => format!(
                "{column} IN (SELECT {} FROM {} WHERE {})",
                parent.key(),
                parent.name,
                parent.held_by(holder)
            ),
            (Held::All | Held::OfParent, _) => "?1 IS NOT NULL".into(),
        }
    }
}

/// What remotes edit.
pub(crate) const EDITED: &[Table] = &[
    Table {
        name: "customer",
        key_is: Key::Integer,
        columns: &["customer_id", "region", "code", "name"],
        text: "name",
        held: Held::Mine,
        parent: None,
    },
    Table {
        name: "invoice",
        key_is: Key::Integer,
        columns: &["invoice_id", "region", "customer_id", "note", "stamp"],
        text: "note",
        held: Held::Mine,
        parent: Some(("customer_id", "customer")),
    },
    Table {
        name: "product",
        key_is: Key::Integer,
        columns: &["product_id", "code", "name"],
        text: "name",
        held: Held::All,
        parent: None,
    },
    // Others may hold the row that has the code already.
    Table {
        name: "site",
        key_is: Key::Uuid,
        columns: &["site_id", "region", "code", "name"],
        text: "name",
        held: Held::MineOrLiked,
        parent: None,
    },
    // Goes with its parent wherever that goes.
    Table {
        name: "visit",
        key_is: Key::Decimal,
        columns: &["visit_id", "customer_id", "note"],
        text: "note",
        held: Held::OfParent,
        parent: Some(("customer_id", "customer")),
    },
    // And its children with it.
    Table {
        name: "measure",
        key_is: Key::Integer,
        columns: &["measure_id", "visit_id", "note"],
        text: "note",
        held: Held::OfParent,
        parent: Some(("visit_id", "visit")),
    },
    // Goes when its day is too long ago.
    Table {
        name: "reading",
        key_is: Key::Integer,
        columns: &["reading_id", "day", "note"],
        text: "note",
        held: Held::Recent,
        parent: None,
    },
    // Comes and goes with what its remote asks for.
    Table {
        name: "stock",
        key_is: Key::Integer,
        columns: &["stock_id", "region", "note"],
        text: "note",
        held: Held::Asked,
        parent: None,
    },
];

/// What only comes down: every transaction of the centre keeps the sum of the balances of both.
pub(crate) const BALANCES: &[Table] = &[balances("account"), balances("reserve")];

const fn balances(name: &'static str) -> Table {
    Table {
        name,
        key_is: Key::Integer,
        columns: &["account_id", "balance"],
        text: "balance",
        held: Held::All,
        parent: None,
    }
}

/// The sum of the balances in every snapshot.
pub(crate) const BALANCE: i64 = 1_000;

/// Regions that there are.
pub(crate) const REGIONS: u64 = 4;

/// Users that there are; everybody has some regions.
pub(crate) const USERS: &[&str] = &["ada", "bob", "cleo"];

/// How many days a reading is held.
const RECENT_DAYS: i64 = 2;

/// Days that readings are of, from the one on which simulations begin.
pub(crate) const DAYS: std::ops::RangeInclusive<i64> = -4..=2;

/// A day as the database writes it, so many after the one on which simulations begin.
pub(crate) fn day(after: i64) -> String {
    day_of(BEGIN_MS + after * DAY_MS)
}

/// The first day of the window, at a time in milliseconds since 1970.
fn low_day(now_ms: i64) -> String {
    day_of(now_ms - RECENT_DAYS * DAY_MS)
}

fn day_of(ms: i64) -> String {
    let mut text = String::new();
    datetime::push_date(ms.div_euclid(DAY_MS), &mut text);
    text
}

/// The parameter by which a remote asks for one of its user's regions.
pub(crate) const ASKED: &str = "region";

/// What a remote's file asks for at its next sync.
pub(crate) fn asked(remote: &Connection) -> rusqlite::Result<Option<String>> {
    remote
        .prepare_cached("SELECT value FROM tidewater_parameter WHERE name = ?1")?
        .query_row([ASKED], |row| row.get(0))
        .optional()
}

/// The code of rows that a user holds of any region, if there is one.
pub(crate) fn liked(user: &str) -> Option<&'static str> {
    match user {
        "ada" => Some("B"),
        "cleo" => Some("A"),
        _ => None,
    }
}

/// Who belongs to the staff, of those who use remotes. The others may call and hear less.
pub(crate) const STAFF: &str = "ada";

/// As whom programs of the office sign in.
pub(crate) const OFFICE: &str = "office";

/// What the programs of the office provide: the first one for the staff only, and it may be done
/// again by another one if one of them dies.
pub(crate) const REPEATED: &str = "repeat";
pub(crate) const FETCHED: &str = "fetch";

/// Whether a user may hear of a subject of a durable space, and of a pattern of them.
pub(crate) fn may_hear(user: &str, space: &str, subject: &str) -> bool {
    match space {
        "desk" => user == STAFF,
        _ => subject.starts_with("all.") || subject.starts_with(&format!("unit.{user}.")),
    }
}

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
            (true, Held::MineOrLiked) => {
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
