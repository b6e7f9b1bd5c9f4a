//! The configuration that `tidewater init` writes: TOML with comments, made from the
//! tables that a database has.
//!
//! Owns the document's text. Where the tables come from, and where the text goes, is
//! the command's affair.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::Write;

use tidewater_centre::ListedTable;

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
    /// Tables that cannot be published, with the reason.
    pub(crate) left_out: Vec<(String, String)>,
}

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

# What remotes subscribe to. Each table below waits for your decision which of its rows
# a remote holds: remove the \"# \" before one of its two partition lines. Delete the
# tables that no remote needs, children before their parents.
[[publication]]
name = {publication}
",
        consolidated = quoted(draft.consolidated),
        publication = name(draft.publication),
    )
}

fn published(table: &ListedTable, all: &[&ListedTable]) -> String {
    let mut text = format!("\n[[publication.table]]\nname = {}\n", name(&table.name));
    text.push_str("# TODO: which rows does a remote hold? All of them, or those of its user:\n");
    text.push_str("# partition = \"everyone\"\n");
    let column = likely_partition_column(table, all);
    let line = format!(
        "partition = {{ columns = [{}], values = {} }}",
        name(column),
        quoted("SELECT ... WHERE login = {s.username}")
    );
    comment(&mut text, &line);
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

/// The column to show as an example: one that refers to somebody, else the first of the
/// primary key.
fn likely_partition_column<'a>(table: &'a ListedTable, all: &[&ListedTable]) -> &'a str {
    let words = [
        "rep", "owner", "user", "employee", "emp_id", "region", "tenant", "store",
    ];
    let named = |word: &&str| {
        let mut columns = table.columns.iter();
        columns.find(|column| column.name.to_lowercase().contains(*word))
    };
    let is_own_key = |name: &str| table.primary_key.len() == 1 && table.primary_key[0] == name;
    let parent_key = || {
        let parents = all.iter().filter(|it| table.references.contains(&it.name));
        let keys: BTreeSet<&String> = parents.flat_map(|it| &it.primary_key).collect();
        let mut columns = table.columns.iter();
        columns.find(|column| keys.contains(&column.name))
    };
    words
        .iter()
        .find_map(named)
        .filter(|column| !is_own_key(&column.name))
        .or_else(parent_key)
        .map(|column| column.name.as_str())
        .or(table.primary_key.first().map(String::as_str))
        .unwrap_or("column")
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
            stack.extend(parents.filter_map(|it| Some((*by_name.get(it.as_str())?, false))));
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
            references: references.iter().map(|it| (*it).to_owned()).collect(),
            obstacle: None,
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
            let is_columns = bare.starts_with("partition = {");
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
