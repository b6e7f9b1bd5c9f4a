//! What a world is made of: tables, publication, users; and the shop that most tests use.

use crate::backend::Backend;

/// What a world begins with.
pub(crate) struct Scenario {
    /// The tables of the centre, and their first rows.
    pub(crate) schema: String,
    /// `[[publication]]` and its tables; the name is `main`.
    pub(crate) publication: &'static str,
    /// What is published, for comparing.
    pub(crate) tables: &'static [Table],
    /// Who may sign in.
    pub(crate) users: &'static [&'static str],
    /// Lines of `[server.limits]`.
    pub(crate) limits: &'static str,
}

/// A published table.
pub(crate) struct Table {
    pub(crate) name: &'static str,
    /// The key first.
    pub(crate) columns: &'static [Column],
    /// Which rows of the centre the user `{user}` holds.
    pub(crate) scope: &'static str,
    /// What its rows refer to, as far as those may leave a remote.
    pub(crate) parents: &'static [Parent],
}

/// A reference to a published table.
pub(crate) struct Parent {
    pub(crate) column: &'static str,
    pub(crate) table: &'static str,
    /// The key of the table that refers.
    pub(crate) child_key: &'static str,
}

/// A published column.
pub(crate) enum Column {
    /// Integers and text, the same everywhere.
    Plain(&'static str),
    Decimal(&'static str, u8),
    Timestamp(&'static str),
}

/// The name of every scenario's publication.
pub(crate) const PUBLICATION: &str = "main";

const MY_REGIONS: &str = "region IN (SELECT region FROM assignment WHERE login = '{user}')";
const EVERYTHING: &str = "1 = 1";

const SHOP_TABLES: &[Table] = &[
    Table {
        name: "customer",
        columns: &[
            Column::Plain("customer_id"),
            Column::Plain("region"),
            Column::Plain("name"),
            Column::Plain("email"),
            Column::Decimal("balance", 2),
        ],
        scope: MY_REGIONS,
        parents: &[],
    },
    Table {
        name: "invoice",
        columns: &[
            Column::Plain("invoice_id"),
            Column::Plain("region"),
            Column::Plain("customer_id"),
            Column::Plain("note"),
        ],
        scope: MY_REGIONS,
        parents: &[Parent {
            column: "customer_id",
            table: "customer",
            child_key: "invoice_id",
        }],
    },
    Table {
        name: "product",
        columns: &[
            Column::Plain("product_id"),
            Column::Plain("name"),
            Column::Plain("stock"),
        ],
        scope: EVERYTHING,
        parents: &[],
    },
];

pub(crate) const SHOP_PUBLICATION: &str = r#"
[[publication]]
name = "main"

[[publication.table]]
name = "customer"
partition = { columns = ["region"], values = "SELECT region FROM assignment WHERE login = {s.username}" }

[[publication.table]]
name = "invoice"
partition = { columns = ["region"], values = "SELECT region FROM assignment WHERE login = {s.username}" }

[[publication.table]]
name = "product"
partition = "everyone"
"#;

/// Regions 1 to 3 of ada, 2 of bob as well, 3 of cleo too; customers and invoices by region
/// (an invoice by its own, whatever its customer's is), products for everyone.
pub(crate) fn shop() -> Scenario {
    let schema = "
        CREATE TABLE assignment (
            login TEXT NOT NULL,
            region INTEGER NOT NULL,
            PRIMARY KEY (login, region));
        CREATE TABLE customer (
            customer_id INTEGER NOT NULL PRIMARY KEY,
            region INTEGER NOT NULL,
            name TEXT NOT NULL CHECK (trim(name) <> ''),
            email TEXT UNIQUE,
            balance NUMERIC(12,2) NOT NULL);
        CREATE TABLE invoice (
            invoice_id INTEGER NOT NULL PRIMARY KEY,
            region INTEGER NOT NULL,
            customer_id INTEGER NOT NULL REFERENCES customer (customer_id) ON DELETE CASCADE,
            note TEXT NOT NULL);
        CREATE INDEX invoice_customer ON invoice (customer_id);
        CREATE TABLE product (
            product_id INTEGER NOT NULL PRIMARY KEY,
            name TEXT NOT NULL CHECK (trim(name) <> ''),
            stock INTEGER NOT NULL);
        INSERT INTO assignment VALUES ('ada', 1), ('ada', 2), ('ada', 3), ('bob', 2), ('cleo', 3);
        INSERT INTO customer VALUES
            (1, 1, 'one', 'one@x', 1.5), (2, 2, 'two', 'two@x', 20), (3, 3, 'three', NULL, 0.25);
        INSERT INTO invoice VALUES (1, 1, 1, 'a'), (2, 2, 2, 'b'), (3, 3, 3, 'c'), (4, 2, 3, 'd');
        INSERT INTO product VALUES (1, 'pen', 10), (2, 'ink', 20), (3, 'cap', 30);";
    Scenario {
        schema: schema.to_owned(),
        publication: SHOP_PUBLICATION,
        tables: SHOP_TABLES,
        users: &["ada", "bob", "cleo"],
        limits: "",
    }
}

/// The shop, and an audit of everything that happens to its rows.
pub(crate) fn audited_shop<B: Backend>() -> Scenario {
    let mut scenario = shop();
    scenario.schema += &B::audit(&[
        ("customer", "customer_id", "name"),
        ("invoice", "invoice_id", "note"),
        ("product", "product_id", "name"),
    ]);
    scenario
}
