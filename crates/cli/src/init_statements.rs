//! Statements for the central database that `tidewater init` proposes: what a schema needs before
//! rows are made offline.
//!
//! Owns their text and the reasons. Nothing here is run; [`crate::command::init`] runs those of
//! sign-in names when it is asked to.

use tidewater_centre::{ListedColumn, ListedNumbering, ListedTable, identifier};

use crate::init_people::{Login, People, bare_name};

/// Which database it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DatabaseKind {
    Postgres,
    Sqlite,
}

impl DatabaseKind {
    pub(crate) fn from_url(url: &str) -> DatabaseKind {
        match url.starts_with("sqlite:") {
            true => DatabaseKind::Sqlite,
            false => DatabaseKind::Postgres,
        }
    }
}

/// Something to run, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Proposal {
    pub(crate) why: String,
    /// Whole statements, one or several in lines.
    pub(crate) sql: String,
}

/// Whom the table of sign-in names leaves out, where names are taken from a column.
pub(crate) const NAMELESS: &str =
    "whoever has an empty name is left out: add a sign-in name for him";

/// Columns that a sign-in name can be made of, the best first, without `_`.
const NAMES: [&str; 9] = [
    "firstname",
    "givenname",
    "forename",
    "name",
    "fullname",
    "lastname",
    "surname",
    "email",
    "mail",
];

/// The table of sign-in names, if one is missing: made, and filled with a name for each person.
pub(crate) fn sign_in_names(people: &People<'_>) -> Option<Proposal> {
    let Login::Missing(mapping) = &people.login else {
        return None;
    };
    let (table, key) = (&people.table.sql_name, identifier(&people.key.name));
    let number = format!("CAST({key} AS text)");
    let (name, named) = match name_column(people.table) {
        Some(column) => {
            let own = identifier(&column.name);
            let name = format!("lower(replace({own}, ' ', '.'))");
            match column.nullable {
                true => (
                    format!("coalesce({name}, {number})"),
                    format!("\n  WHERE {own} IS NULL OR trim({own}) <> ''"),
                ),
                false => (name, format!("\n  WHERE trim({own}) <> ''")),
            }
        }
        None => (number.clone(), String::new()),
    };
    let left_out = match named.is_empty() {
        true => String::new(),
        false => format!("; {NAMELESS}"),
    };
    Some(Proposal {
        why: format!(
            "who signs in as whom: a user whose sign-in name stands here holds the rows of that \
             person. Change the names as you like, before or after{left_out}"
        ),
        sql: format!(
            "CREATE TABLE {mapping} (login text NOT NULL PRIMARY KEY,\n  \
             {key} {type_name} NOT NULL REFERENCES {table} ({key}));\n\
             INSERT INTO {mapping} (login, {key})\n  \
             SELECT {name} || CASE WHEN count(*) OVER (PARTITION BY {name}) > 1\n    \
             THEN '.' || {number} ELSE '' END, {key} FROM {table}{named};",
            type_name = people.key.type_name,
        ),
    })
}

/// The query for the sign-in names that there are.
pub(crate) fn names_query(people: &People<'_>) -> String {
    let (table, login) = match &people.login {
        Login::Column(login) => (people.table.sql_name.clone(), identifier(login)),
        Login::Mapping { table, login, .. } => (table.sql_name.clone(), identifier(login)),
        Login::Missing(table) => (table.clone(), "login".to_owned()),
    };
    format!("SELECT {login} FROM {table} ORDER BY 1;")
}

fn name_column(people: &ListedTable) -> Option<&ListedColumn> {
    NAMES.iter().find_map(|name| {
        let mut columns = people.columns.iter();
        columns.find(|it| it.is_text && it.name.to_lowercase().replace('_', "") == **name)
    })
}

/// The column whose numbers remotes should have blocks of: a key of one column that refers to no
/// other table.
pub(crate) fn numbered_key(table: &ListedTable) -> Option<&ListedColumn> {
    let [key] = &table.primary_key[..] else {
        return None;
    };
    let refers = table.references.iter().any(|it| it.columns.contains(key));
    let mut columns = table.columns.iter();
    columns.find(|it| it.name == *key && it.is_integer && !refers)
}

/// How many numbers a remote gets at once, and below how many it gets more: of two bytes there are
/// not many.
pub(crate) fn block(key: &ListedColumn) -> (u32, u32) {
    match key.type_name.as_str() {
        "smallint" => (100, 20),
        _ => (1_000, 200),
    }
}

/// The sequence that a key has not.
pub(crate) fn sequence(table: &ListedTable, kind: DatabaseKind) -> Option<Proposal> {
    let key = numbered_key(table)?;
    if kind != DatabaseKind::Postgres || key.numbering != ListedNumbering::None {
        return None;
    }
    let (name, column) = (&table.sql_name, identifier(&key.name));
    let text = |text: &str| format!("'{}'", text.replace('\'', "''"));
    // An identity column can be of no other type, not even a domain.
    let is_identity = ["smallint", "integer", "bigint"].contains(&&*key.type_name);
    let numbered = match is_identity {
        true => "ADD GENERATED BY DEFAULT AS IDENTITY;".to_owned(),
        false => format!("SET DEFAULT nextval({});", text(&sequence_name(table, key))),
    };
    let made = match is_identity {
        true => String::new(),
        false => format!(
            "CREATE SEQUENCE {} OWNED BY {name}.{column};\n",
            sequence_name(table, key)
        ),
    };
    Some(Proposal {
        why: format!(
            "{} gets the numbers of {} from a sequence, so that rows that are inserted here and \
             blocks of numbers that devices get keep clear of each other",
            table.name, key.name
        ),
        sql: format!(
            "{made}ALTER TABLE {name} ALTER COLUMN {column} {numbered}\n\
             SELECT setval(pg_get_serial_sequence({}, {}), (SELECT coalesce(max({column}), 0) + 1 \
             FROM {name}), false);",
            text(name),
            text(&key.name)
        ),
    })
}

/// The name in SQL of a sequence of a table's own, in its schema.
fn sequence_name(table: &ListedTable, key: &ListedColumn) -> String {
    let bare = bare_name(table);
    let schema = table.name.len() - bare.len();
    let name = identifier(&format!("{bare}_{}_numbers", key.name));
    match schema.checked_sub(1) {
        None => name,
        Some(end) => format!("{}.{name}", identifier(&table.name[..end])),
    }
}

/// Foreign keys to text keys that do not pass on a changed key: the statements that have them do
/// so, and what to change where there is no statement.
pub(crate) fn cascades(table: &ListedTable, all: &[&ListedTable]) -> (Vec<Proposal>, Vec<String>) {
    let (mut proposals, mut remarks) = (Vec::new(), Vec::new());
    for reference in table.references.iter().filter(|it| !it.follows_key) {
        let parent = all.iter().find(|it| it.name == reference.parent);
        let is_text = parent.is_some_and(|parent| {
            let mut columns = parent.columns.iter();
            columns.any(|it| it.is_text && reference.parent_columns.contains(&it.name))
        });
        if !is_text {
            continue;
        }
        let why = format!(
            "when somebody changes a key of {}, what refers to it in {} ({}) follows, instead of \
             having the change refused",
            reference.parent,
            table.name,
            reference.columns.join(", ")
        );
        match &reference.cascading {
            Some(sql) => proposals.push(Proposal {
                why,
                sql: sql.clone(),
            }),
            None => remarks.push(format!(
                "Declare ({}) REFERENCES {} ({}) ON UPDATE CASCADE: {why}. SQLite alters no foreign \
                 key: it takes a new table.",
                reference.columns.join(", "),
                reference.parent,
                reference.parent_columns.join(", ")
            )),
        }
    }
    (proposals, remarks)
}

/// The columns that take no NULL and get their value in the centre only: by a default that remotes
/// cannot compute, or by a trigger that is known.
pub(crate) fn filled_by_centre(table: &ListedTable) -> Vec<&str> {
    let columns = table.columns.iter().filter(|column| {
        let is_default = column.has_default && !column.has_default_on_remotes;
        let is_key = table.primary_key.contains(&column.name);
        is_default && !column.nullable && !column.is_generated && !is_key
    });
    let known = table.set_by_triggers.iter().filter(|it| it.is_known);
    let columns = columns.map(|it| &*it.name);
    columns.chain(known.map(|it| &*it.column)).collect()
}

/// Text as an SQL comment.
pub(crate) fn sql_comment(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let clean = line.chars().filter(|it| !it.is_control());
        format!("-- {}\n", clean.collect::<String>())
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use tidewater_centre::{ListedReference, TriggeredColumn};

    use super::*;

    fn column(name: &str, type_name: &str) -> ListedColumn {
        ListedColumn {
            name: name.into(),
            type_name: type_name.into(),
            is_integer: type_name.ends_with("int") || type_name == "integer",
            is_text: type_name == "text",
            ..ListedColumn::default()
        }
    }

    fn table(name: &str, columns: Vec<ListedColumn>) -> ListedTable {
        ListedTable {
            name: name.into(),
            sql_name: identifier(name),
            primary_key: vec![columns[0].name.clone()],
            columns,
            ..ListedTable::default()
        }
    }

    #[test]
    fn a_key_without_a_sequence_gets_one_behind_the_rows_that_there_are() {
        let mut orders = table("Orders", vec![column("order_id", "smallint")]);
        let proposed = sequence(&orders, DatabaseKind::Postgres).unwrap();
        assert_eq!(
            proposed.sql,
            "ALTER TABLE \"Orders\" ALTER COLUMN order_id ADD GENERATED BY DEFAULT AS IDENTITY;\n\
             SELECT setval(pg_get_serial_sequence('\"Orders\"', 'order_id'), (SELECT \
             coalesce(max(order_id), 0) + 1 FROM \"Orders\"), false);"
        );
        assert_eq!(block(&orders.columns[0]), (100, 20));
        // A domain.
        orders.columns[0].type_name = "posint".into();
        let proposed = sequence(&orders, DatabaseKind::Postgres).unwrap();
        assert!(
            proposed.sql.starts_with(
                "CREATE SEQUENCE \"Orders_order_id_numbers\" OWNED BY \"Orders\".order_id;\n\
                 ALTER TABLE \"Orders\" ALTER COLUMN order_id SET DEFAULT \
                 nextval('\"Orders_order_id_numbers\"');\n"
            ),
            "{proposed:?}"
        );
        assert_eq!(sequence(&orders, DatabaseKind::Sqlite), None);
        orders.columns[0].numbering = ListedNumbering::Sequence;
        assert_eq!(sequence(&orders, DatabaseKind::Postgres), None);
        // A row of a table that shares its key gets the number there.
        orders.references.push(ListedReference {
            columns: vec!["order_id".into()],
            ..ListedReference::default()
        });
        assert_eq!(numbered_key(&orders), None);
    }

    #[test]
    fn only_references_to_text_keys_are_to_pass_on_changes() {
        let parent = table("customers", vec![column("customer_id", "text")]);
        let numbered = table("products", vec![column("product_id", "integer")]);
        let reference = |parent: &str, key: &str, cascading: Option<&str>| ListedReference {
            columns: vec![key.into()],
            parent: parent.into(),
            parent_columns: vec![key.into()],
            cascading: cascading.map(str::to_owned),
            ..ListedReference::default()
        };
        let mut orders = table("orders", vec![column("order_id", "integer")]);
        orders.references = vec![
            reference("customers", "customer_id", Some("ALTER TABLE orders ...;")),
            reference("products", "product_id", Some("ALTER TABLE orders ...;")),
        ];
        let (proposals, remarks) = cascades(&orders, &[&parent, &numbered]);
        assert_eq!((proposals.len(), remarks.len()), (1, 0));
        orders.references[0].cascading = None;
        let (proposals, remarks) = cascades(&orders, &[&parent, &numbered]);
        assert_eq!((proposals.len(), remarks.len()), (0, 1));
        assert!(remarks[0].contains("REFERENCES customers (customer_id) ON UPDATE CASCADE"));
        orders.references[0].follows_key = true;
        assert_eq!(cascades(&orders, &[&parent]).1.len(), 0);
    }

    #[test]
    fn what_only_the_centre_computes_is_left_to_it() {
        let mut film = table(
            "film",
            vec![
                column("film_id", "integer"),
                column("code", "text"),
                column("rate", "text"),
                column("fulltext", "tsvector"),
                column("note", "text"),
            ],
        );
        for column in &mut film.columns {
            column.has_default = column.name != "fulltext";
        }
        film.columns[2].has_default_on_remotes = true;
        film.columns[4].nullable = true;
        let set = |column: &str, is_known| TriggeredColumn {
            column: column.into(),
            trigger: "t".into(),
            is_known,
        };
        film.set_by_triggers = vec![set("fulltext", true), set("title", false)];
        assert_eq!(filled_by_centre(&film), ["code", "fulltext"]);
    }

    #[test]
    fn comments_end_with_their_line() {
        assert_eq!(sql_comment("one\ntwo\r; DROP"), "-- one\n-- two; DROP\n");
    }
}
