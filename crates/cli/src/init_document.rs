//! The configuration that `tidewater init` writes: TOML with comments, made from the
//! tables that a database has.
//!
//! Owns the document's text. Where the tables come from, and where the text goes, is
//! the command's affair.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use tidewater_centre::{ListedReference, ListedTable};

/// What the document is made of.
pub(crate) struct Draft<'a> {
    /// The database's URL as the user gave it, environment variables unexpanded.
    pub(crate) consolidated: &'a str,
    /// The publication's name.
    pub(crate) publication: &'a str,
    /// The tables to publish, and those that cannot be.
    pub(crate) tables: &'a [ListedTable],
}

/// What of the tables became part of the document.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Drafted {
    /// The text of the file.
    pub(crate) text: String,
    /// Tables that wait for their partition.
    pub(crate) published: usize,
    /// How many of them wait for a decision.
    pub(crate) undecided: usize,
    /// Tables that cannot be published, with the reason.
    pub(crate) left_out: Vec<(String, String)>,
}

/// Begins the line of a table that waits for a decision.
const TODO: &str = "# TODO:";

/// Writes the document.
pub(crate) fn write(draft: &Draft<'_>) -> Drafted {
    let (usable, unusable): (Vec<&ListedTable>, Vec<&ListedTable>) = draft
        .tables
        .iter()
        .partition(|table| table.obstacle.is_none());
    let usable = parents_first(usable);
    let mut text = head(draft);
    for table in &usable {
        text.push_str(&published(table, &usable));
    }
    let left_out: Vec<(String, String)> = unusable
        .iter()
        .map(|table| {
            let reason = table.obstacle.clone().unwrap_or_default();
            (table.name.clone(), reason)
        })
        .collect();
    if !left_out.is_empty() {
        text.push_str("\n# These tables cannot be published as they are:\n");
    }
    for (name, reason) in &left_out {
        comment(&mut text, &format!("  {name}: {reason}"));
    }
    Drafted {
        undecided: text.matches(TODO).count(),
        text,
        published: usable.len(),
        left_out,
    }
}

fn head(draft: &Draft<'_>) -> String {
    format!(
        "\
# Tidewater's configuration, made by `tidewater init` from the database's tables.
# ${{NAME}} anywhere in a value stands for the environment variable NAME.

[server]
# Where remotes connect. Off loopback use tls://, and [server.tls] below.
listen = [\"tcp://127.0.0.1:7439\"]
# The central database: postgres://user:password@host:5432/database or sqlite:path
# To keep the password out of this file: postgres://user:${{DB_PASSWORD}}@host/database, and
# set DB_PASSWORD. Characters that a URL needs for itself are written as %XX (@ is %40).
# Here and below, relative paths start at the folder of this file.
consolidated = {consolidated}

# For listen = [\"tls://0.0.0.0:7439\"]. To try it: tidewater cert --out . --host NAME
# [server.tls]
# certificate = \"tidewater-dev.pem\"
# key = \"tidewater-dev.key\"

[retention]
# How long changes are remembered. A remote that stays away longer compares what it holds.
log = \"60d\"
# How long finished syncs stay listed in `tidewater status`.
history = \"14d\"
# How long conflicts and refused rows are kept for you to look at.
conflicts = \"180d\"

# What remotes subscribe to. A table that refers to another one follows it: a remote holds a
# row if it holds the one that it refers to. Each of the others waits for your decision which
# of its rows a remote holds: remove the \"# \" before one of its partition lines. Delete the
# tables that no remote needs, children before their parents. See docs/partitions.md.
[[publication]]
name = {publication}
",
        consolidated = quoted(draft.consolidated),
        publication = name(draft.publication),
    )
}

fn published(table: &ListedTable, all: &[&ListedTable]) -> String {
    let mut text = format!("\n[[publication.table]]\nname = {}\n", name(&table.name));
    text.push_str(&partition(table, all));
    text.push_str(
        "# direction = \"both\"    # or \"download\": changed in the centre only; or \"upload\"\n",
    );
    text.push_str(
        "# tracking = \"log\"      # or \"row\": also sees logical replication; or \"off\"\n",
    );
    text.push_str(
        "# To publish fewer columns, delete some of these (never one of the primary key):\n",
    );
    text.push_str("# columns = [\n");
    for column in &table.columns {
        let mut remark = column.type_name.clone();
        if table.primary_key.contains(&column.name) {
            remark.push_str(", primary key");
        } else if !column.nullable {
            remark.push_str(", not null");
        }
        comment(&mut text, &format!("  {},  # {remark}", name(&column.name)));
    }
    text.push_str("# ]\n");
    text
}

/// Appends comment lines. Names and reasons come from the database and may hold line
/// ends; they must not end the comment.
fn comment(text: &mut String, content: &str) {
    for line in content.split(['\n', '\r']) {
        let clean = line.chars().filter(|it| !it.is_control());
        let _ = writeln!(text, "# {}", clean.collect::<String>());
    }
}

/// A name as a TOML string: `${` in it is no environment variable.
fn name(text: &str) -> String {
    quoted(&text.replace("${", "$${"))
}

/// A basic TOML string, always on one line, so that it can stand in a comment.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            control if control.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(control));
            }
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

/// Which rows of a table a remote holds: as it follows another one, or what there is to choose from.
fn partition(table: &ListedTable, all: &[&ListedTable]) -> String {
    let mut text = String::new();
    let owner = owner_column(table);
    let parents = parents(table, all);
    let follows = |reference: &ListedReference| {
        let several = parents
            .iter()
            .filter(|it| it.parent == reference.parent)
            .count()
            > 1;
        let columns: Vec<String> = reference.columns.iter().map(|it| name(it)).collect();
        match several {
            true => format!(
                "partition = {{ follows = {}, by = [{}] }}",
                name(&reference.parent),
                columns.join(", ")
            ),
            false => format!("partition = {{ follows = {} }}", name(&reference.parent)),
        }
    };
    let mut others = parents.iter();
    match (owner, others.next()) {
        (None, Some(likely)) if !is_in_circle(table, all) => {
            text.push_str(&follows(likely));
            text.push('\n');
            text.push_str("# or: partition = \"everyone\"\n");
        }
        (owner, likely) => {
            text.push_str(&format!(
                "{TODO} which rows does a remote hold? All of them, or those of its user:\n"
            ));
            text.push_str("# partition = \"everyone\"\n");
            let line = format!(
                "partition = {{ columns = [{}], values = {} }}",
                name(owner.unwrap_or("...")),
                quoted("SELECT ... WHERE login = {s.username}")
            );
            comment(&mut text, &line);
            if let Some(likely) = likely {
                comment(&mut text, &format!("or: {}", follows(likely)));
            }
        }
    }
    for other in others {
        comment(&mut text, &format!("or: {}", follows(other)));
    }
    text
}

/// The foreign keys that a table may follow, the likeliest first: the one whose rows it is a part
/// of.
fn parents<'a>(table: &'a ListedTable, all: &[&ListedTable]) -> Vec<&'a ListedReference> {
    let is_published = |it: &&ListedReference| {
        it.parent != table.name && all.iter().any(|other| other.name == it.parent)
    };
    let mut parents: Vec<&ListedReference> = table.references.iter().filter(is_published).collect();
    let is_required = |column: &String| {
        let mut columns = table.columns.iter();
        columns.any(|it| it.name == *column && !it.nullable)
    };
    let bare = |name: &str| name.rsplit('.').next().unwrap_or(name).to_lowercase();
    parents.sort_by_key(|it| {
        let begins = bare(&table.name).starts_with(bare(&it.parent).trim_end_matches('s'));
        let in_key = it
            .columns
            .iter()
            .all(|column| table.primary_key.contains(column));
        let required = it.columns.iter().all(is_required);
        (!begins, !in_key, !it.cascades, !required)
    });
    parents
}

/// Whether following references comes back to the table: which of them lead to an owner cannot be
/// told then.
fn is_in_circle(table: &ListedTable, all: &[&ListedTable]) -> bool {
    let mut reached: Vec<&str> = Vec::new();
    let mut waiting = vec![table];
    while let Some(next) = waiting.pop() {
        for reference in parents(next, all) {
            let parent = &*reference.parent;
            if parent == table.name {
                return true;
            }
            if !reached.contains(&parent) {
                reached.push(parent);
                waiting.extend(all.iter().filter(|it| it.name == parent));
            }
        }
    }
    false
}

/// The column that tells whose rows these are, going by its name: of a type that has as many values
/// as there are people or places.
fn owner_column(table: &ListedTable) -> Option<&str> {
    const WORDS: [&str; 9] = [
        "rep", "owner", "user", "employee", "emp_id", "region", "tenant", "store", "login",
    ];
    let can_be = |type_name: &str| {
        let type_name = type_name.to_lowercase();
        let is_plain = !type_name.contains("[]") && !type_name.contains("interval");
        is_plain
            && ["int", "char", "text", "uuid"]
                .iter()
                .any(|it| type_name.contains(it))
    };
    let is_own_key = |name: &str| table.primary_key.len() == 1 && table.primary_key[0] == name;
    let is_word = |name: &str, word: &str| {
        let name = name.to_lowercase();
        let is_part = name.split('_').any(|part| part == word);
        is_part || word.len() > 3 && (name.starts_with(word) || name.ends_with(word))
    };
    let mut columns = WORDS.iter().flat_map(|word| {
        let columns = table.columns.iter();
        columns.filter(move |column| is_word(&column.name, word))
    });
    let found = columns.find(|it| !is_own_key(&it.name) && can_be(&it.type_name));
    found.map(|column| column.name.as_str())
}

/// Parents before the tables that refer to them; cycles and everything else in the
/// order given.
fn parents_first(tables: Vec<&ListedTable>) -> Vec<&ListedTable> {
    let by_name: HashMap<&str, &ListedTable> =
        tables.iter().map(|it| (it.name.as_str(), *it)).collect();
    let mut placed = HashSet::new();
    let mut ordered = Vec::with_capacity(tables.len());
    for table in &tables {
        // Depth first with a stack of its own: a chain of references may be long.
        let mut stack = vec![(*table, false)];
        while let Some((next, parents_done)) = stack.pop() {
            if parents_done {
                ordered.push(next);
                continue;
            }
            if !placed.insert(next.name.as_str()) {
                continue;
            }
            stack.push((next, true));
            let parents = next.references.iter().rev();
            let parents = parents.map(|it| it.parent.as_str());
            stack.extend(parents.filter_map(|it| Some((*by_name.get(it)?, false))));
        }
    }
    ordered
}

#[cfg(test)]
mod tests {
    use tidewater_centre::ListedColumn;

    use super::*;

    fn table(name: &str, references: &[&str]) -> ListedTable {
        let column = |name: &str, nullable| ListedColumn {
            name: name.into(),
            type_name: "integer".into(),
            nullable,
        };
        ListedTable {
            name: name.into(),
            columns: vec![column("id", false), column("owner \"id\"", true)],
            primary_key: vec!["id".into()],
            references: references.iter().map(|it| reference(it)).collect(),
            obstacle: None,
        }
    }

    fn reference(parent: &str) -> ListedReference {
        ListedReference {
            columns: vec![format!("{parent}_id")],
            parent: parent.into(),
            cascades: false,
        }
    }

    fn document(tables: &[ListedTable]) -> Drafted {
        write(&Draft {
            consolidated: "postgres://me:pass\"word@127.0.0.1/shop",
            publication: "o'brien's \"sales\"",
            tables,
        })
    }

    fn names(text: &str) -> Vec<String> {
        let parsed: toml::Table = text.parse().unwrap();
        let tables = parsed["publication"][0].get("table");
        tables
            .and_then(toml::Value::as_array)
            .into_iter()
            .flatten()
            .map(|it| it["name"].as_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn tables_stand_parents_first_and_cycles_do_no_harm() {
        let tables = [
            table("invoice", &["customer"]),
            table("customer", &["employee"]),
            table("employee", &["employee"]),
            table("hen", &["egg"]),
            table("egg", &["hen"]),
        ];
        let drafted = document(&tables);
        assert_eq!(
            names(&drafted.text),
            ["employee", "customer", "invoice", "egg", "hen"]
        );
        assert_eq!(drafted.published, 5);
    }

    #[test]
    fn every_line_that_may_be_uncommented_is_valid_toml() {
        let drafted = document(&[table("a \"b\"\nc", &[])]);
        let mut everyone = String::new();
        let mut columns = String::new();
        let mut inside = false;
        for line in drafted.text.lines() {
            let bare = line.strip_prefix("# ").unwrap_or(line);
            inside |= bare == "columns = [";
            let optional = inside || bare.starts_with("direction") || bare.starts_with("tracking");
            let is_everyone = bare.starts_with("partition = \"everyone\"");
            let is_columns = bare.starts_with("partition = { columns");
            let take = |wanted| if optional || wanted { bare } else { line };
            writeln!(everyone, "{}", take(is_everyone)).unwrap();
            writeln!(columns, "{}", take(is_columns)).unwrap();
            inside &= bare != "]";
        }
        for text in [everyone, columns] {
            let parsed: toml::Table = text.parse().unwrap();
            let table = &parsed["publication"][0]["table"][0];
            assert!(table.get("partition").is_some());
            assert_eq!(table["columns"][1].as_str(), Some("owner \"id\""));
            assert_eq!(table["name"].as_str(), Some("a \"b\"\nc"));
        }
    }

    /// A table with these columns, as `name type`, and these foreign keys, as `column parent`.
    fn with(name: &str, columns: &[&str], references: &[&str]) -> ListedTable {
        let words = |text: &str| {
            let (one, other) = text.split_once(' ').unwrap();
            (one.to_owned(), other.to_owned())
        };
        let columns = columns.iter().map(|text| {
            let (name, type_name) = words(text);
            ListedColumn {
                name,
                type_name,
                nullable: false,
            }
        });
        let references = references.iter().map(|text| {
            let (column, parent) = words(text);
            ListedReference {
                columns: vec![column],
                parent,
                cascades: false,
            }
        });
        ListedTable {
            columns: columns.collect(),
            references: references.collect(),
            ..table(name, &[])
        }
    }

    /// The lines about the partition of the last table.
    fn partition_lines(tables: &[ListedTable]) -> Vec<String> {
        let text = document(tables).text;
        let last = text.rsplit("[[publication.table]]").next().unwrap();
        let lines = last.lines().filter(|line| line.contains("partition ="));
        lines.map(str::to_owned).collect()
    }

    #[test]
    fn a_table_follows_the_one_that_it_is_a_part_of() {
        let details = with(
            "order_details",
            &[
                "order_id smallint",
                "product_id smallint",
                "unit_price real",
            ],
            &["product_id products", "order_id orders"],
        );
        let tables = [table("products", &[]), table("orders", &[]), details];
        assert_eq!(
            partition_lines(&tables),
            [
                "partition = { follows = \"orders\" }",
                "# or: partition = \"everyone\"",
                "# or: partition = { follows = \"products\" }",
            ]
        );
        let match_ = with(
            "match",
            &["home_id integer", "guest_id integer"],
            &["home_id club", "guest_id club"],
        );
        assert_eq!(
            partition_lines(&[table("club", &[]), match_])[0],
            "partition = { follows = \"club\", by = [\"home_id\"] }"
        );
    }

    #[test]
    fn tables_that_refer_to_each_other_wait_for_a_decision() {
        let table =
            |name: &str, parent: &str| with(name, &["boss integer"], &[&format!("boss {parent}")]);
        let tables = [
            table("shop", "clerk"),
            table("clerk", "shop"),
            table("till", "shop"),
        ];
        let drafted = document(&tables);
        assert_eq!(
            (drafted.published, drafted.undecided),
            (3, 2),
            "{}",
            drafted.text
        );
        assert!(
            !drafted
                .text
                .contains("\npartition = { follows = \"clerk\" }")
        );
    }

    #[test]
    fn what_names_somebody_is_suggested_and_never_a_date_a_price_or_an_array() {
        let orders = with(
            "orders",
            &["order_id integer", "employee_id smallint"],
            &["employee_id employees"],
        );
        let lines = partition_lines(&[table("employees", &[]), orders]);
        assert!(
            lines[1].contains("columns = [\"employee_id\"]"),
            "{lines:?}"
        );
        assert_eq!(lines[2], "# or: partition = { follows = \"employees\" }");
        let columns = [
            "id integer",
            "stored_on date",
            "store_price numeric(5,2)",
            "owners text[]",
            "report text",
        ];
        let lines = partition_lines(&[with("film", &columns, &[])]);
        assert!(lines[1].contains("columns = [\"...\"]"), "{lines:?}");
    }

    #[test]
    fn a_table_that_cannot_be_published_is_a_comment_with_its_reason() {
        let mut keyless = table("note", &[]);
        keyless.obstacle = Some("it has no primary key\n[server]".into());
        let drafted = document(&[keyless, table("customer", &[])]);
        assert_eq!(names(&drafted.text), ["customer"]);
        assert!(drafted.text.contains("#   note: it has no primary key\n"));
        assert_eq!(drafted.left_out.len(), 1);
    }
}
