//! The configuration that `tidewater init` writes: TOML with comments, made from the
//! tables that a database has.
//!
//! Owns the document's text. Whose the rows of a table are is `init_people`'s to say, which
//! statements the database needs `init_statements`'. Where the tables come from, and where the text
//! goes, is the command's affair.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use tidewater_centre::{ListedNumbering, ListedReference, ListedTable};
use tidewater_server::config::grammar::{first_lines, optional_line};

use crate::init_people::{PathToPeople, People, bare_name, parents};
use crate::init_statements::{self, DatabaseKind, Proposal};

/// What the document is made of.
pub(crate) struct Draft<'a> {
    /// The database's URL as the user gave it, environment variables unexpanded.
    pub(crate) consolidated: &'a str,
    /// The publication's name.
    pub(crate) publication: &'a str,
    /// The tables to publish, and those that cannot be.
    pub(crate) tables: &'a [ListedTable],
    /// The table of those who sign in, if there is one.
    pub(crate) people: Option<&'a People<'a>>,
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
    /// Tables that cannot be published, or need not be, with the reason.
    pub(crate) left_out: Vec<(String, String)>,
    /// What the database needs for them.
    pub(crate) proposals: Vec<Proposal>,
    /// What may not be as it has to be.
    pub(crate) warnings: Vec<String>,
}

/// Whose the rows of the tables are.
struct Owners<'a> {
    people: &'a People<'a>,
    ways: HashMap<&'a str, PathToPeople<'a>>,
}

/// Begins the line of a table that waits for a decision.
const TODO: &str = "# TODO:";

/// Writes the document.
pub(crate) fn write(draft: &Draft<'_>) -> Drafted {
    let kind = DatabaseKind::of(draft.consolidated);
    let mut left_out = Vec::new();
    let mut usable: Vec<&ListedTable> = Vec::new();
    for table in draft.tables {
        let is_mapping = draft.people.is_some_and(|it| it.is_mapping(table));
        let obstacle = table.obstacle.clone();
        match obstacle.or_else(|| unusable_name(table, &usable)) {
            Some(reason) => left_out.push((table.name.clone(), reason)),
            None if is_mapping => {
                let reason = "it says who signs in as whom, which no device needs to know";
                left_out.push((table.name.clone(), reason.to_owned()));
            }
            None => usable.push(table),
        }
    }
    let usable = parents_first(usable);
    let owners = draft.people.map(|people| Owners {
        people,
        ways: people.ways(&usable),
    });
    let mut text = head(draft);
    let mut proposals: Vec<Proposal> = Vec::new();
    let missing = draft.people.and_then(init_statements::sign_in_names);
    let missing = missing.filter(|_| {
        !draft
            .people
            .is_some_and(|it| has_control_characters(it.table))
    });
    if let Some(names) = &missing {
        text.push_str("\n# To be run in the database before `tidewater deploy`, unless\n");
        text.push_str("# `tidewater init --map-users` has done so:\n");
        propose(&mut text, names);
    }
    proposals.extend(missing);
    let mut warnings = Vec::new();
    for table in &usable {
        let (of_table, needed) = published(table, &usable, owners.as_ref(), kind);
        warnings.extend(owners.as_ref().and_then(|it| it.warning(table, &usable)));
        text.push_str(&of_table);
        proposals.extend(needed);
    }
    if !left_out.is_empty() {
        text.push_str("\n# These tables are not published:\n");
    }
    for (name, reason) in &left_out {
        comment(&mut text, &format!("  {name}: {reason}"));
    }
    Drafted {
        undecided: text.matches(TODO).count(),
        text,
        published: usable.len(),
        left_out,
        proposals,
        warnings,
    }
}

/// Why remotes cannot have a table of this name beside others, if so.
fn unusable_name(table: &ListedTable, others: &[&ListedTable]) -> Option<String> {
    let name = bare_name(table).to_lowercase();
    if name.is_empty() || table.columns.iter().any(|it| it.name.is_empty()) {
        return Some("a name of it is empty, which no remote can have".to_owned());
    }
    let reserved = ["tidewater_", "sqlite_"];
    if let Some(begin) = reserved.iter().find(|it| name.starts_with(**it)) {
        return Some(format!(
            "names that begin with {begin} are reserved on remotes"
        ));
    }
    let other = others
        .iter()
        .find(|it| bare_name(it).to_lowercase() == name)?;
    Some(format!(
        "remotes know tables without their schema, in small or capital letters, and {} is published: \
         publish one of the two in another publication",
        other.name
    ))
}

/// Whether a name that is needed for the statements about a table has control characters, which
/// neither a comment of the file nor a terminal shows as they are.
fn has_control_characters(table: &ListedTable) -> bool {
    let own = table.columns.iter().map(|it| &it.name);
    let parents = table.references.iter();
    let parents = parents.flat_map(|it| it.parent_columns.iter().chain([&it.parent]));
    let mut names = own.chain(parents).chain([&table.name]);
    names.any(|it| it.contains(char::is_control))
}

impl Owners<'_> {
    /// That whom a row names may not hold the row that it needs.
    fn warning(&self, table: &ListedTable, all: &[&ListedTable]) -> Option<String> {
        let Some(PathToPeople::Columns(columns)) = self.ways.get(&*table.name) else {
            return None;
        };
        let is_required = |reference: &&ListedReference| {
            let mut columns = table.columns.iter();
            let is_nullable = columns.any(|it| it.nullable && reference.columns.contains(&it.name));
            let way = self.ways.get(&*reference.parent);
            let is_owned = matches!(
                way,
                Some(PathToPeople::Columns(_) | PathToPeople::Follows(_))
            );
            is_owned && !is_nullable
        };
        let parent = parents(table, all).into_iter().find(is_required)?;
        Some(format!(
            "{}: its rows go to whom {} names, who may not hold the rows of {} that they refer to; \
             if so, write {} at it",
            table.name,
            columns.first()?,
            parent.parent,
            follows(parent, &parents(table, all)),
        ))
    }
}

/// Appends a statement, as a comment.
fn propose(text: &mut String, proposal: &Proposal) {
    let Proposal { why, sql } = proposal;
    comment(text, &format!("({why})"));
    for line in sql.lines() {
        comment(text, &format!("    {line}"));
    }
}

fn head(draft: &Draft<'_>) -> String {
    let consolidated = quoted(draft.consolidated);
    let retention = ["log", "history", "conflicts"];
    let retention = retention.map(|key| first_lines("retention", key, None));
    format!(
        "\
# Tidewater's configuration, made by `tidewater init` from the database's tables.
# ${{NAME}} anywhere in a value stands for the environment variable NAME.

[server]
{listen}{consolidated}\
# To keep the password out of this file: postgres://user:${{DB_PASSWORD}}@host/database, and
# set DB_PASSWORD. Characters that a URL needs for itself are written as %XX (@ is %40).
# Here and below, relative paths start at the folder of this file.

# For listen = [\"tls://0.0.0.0:7439\"]. To try it: tidewater cert --out . --host NAME
# [server.tls]
# certificate = \"tidewater-dev.pem\"
# key = \"tidewater-dev.key\"

[retention]
{retention}
# What remotes subscribe to, with what was found in the tables: read it before you deploy.
# - Rows belong to the person whom they name, and what refers to them follows: a remote holds a
#   row if it holds the one that it refers to. Tables that lead to nobody go to everyone.
# - A table that is marked TODO waits for your decision which of its rows a remote holds: remove
#   the \"# \" before one of its partition lines.
# - Delete the tables that no remote needs, children before their parents.
# See docs/partitions.md and docs/keys.md; every key is in docs/configuration.md.
[[publication]]
name = {publication}
",
        listen = first_lines("server", "listen", None),
        consolidated = first_lines("server", "consolidated", Some(&consolidated)),
        retention = retention.concat(),
        publication = name(draft.publication),
    )
}

/// The lines of a table, and what it needs of the database.
fn published(
    table: &ListedTable,
    all: &[&ListedTable],
    owners: Option<&Owners<'_>>,
    kind: DatabaseKind,
) -> (String, Vec<Proposal>) {
    let mut text = format!("\n[[publication.table]]\nname = {}\n", name(&table.name));
    let way = owners.and_then(|it| it.ways.get(&*table.name));
    match (owners, way) {
        (Some(owners), Some(way)) => text.push_str(&owned(table, all, owners.people, way)),
        _ => text.push_str(&partition(table, all)),
    }
    let mut proposals = Vec::new();
    if way == Some(&PathToPeople::Person) {
        text.push_str("# Whoever could write it could make himself somebody else.\n");
        text.push_str("direction = \"download\"\n");
    } else {
        text.push_str(&optional_line("publication.table", "direction"));
        let is_everyones = way == Some(&PathToPeople::Everyone);
        proposals = offline(&mut text, table, kind, is_everyones);
    }
    text.push_str(&optional_line("publication.table", "tracking"));
    let (cascades, remarks) = init_statements::cascades(table, all);
    for remark in &remarks {
        comment(&mut text, remark);
    }
    proposals.extend(cascades);
    if !proposals.is_empty() && has_control_characters(table) {
        proposals.clear();
        comment(
            &mut text,
            "It needs statements in the database, and a name has control characters: rename it, and \
             run `tidewater init` again.",
        );
    }
    if !proposals.is_empty() {
        text.push_str("# To be run in the database, best before `tidewater deploy`:\n");
    }
    for proposal in &proposals {
        propose(&mut text, proposal);
    }
    text.push_str(&columns(table));
    (text, proposals)
}

/// The columns: all, unless there are some that no device should have.
fn columns(table: &ListedTable) -> String {
    let is_secret = |name: &str| {
        let name = name.to_lowercase();
        let is_key = table.primary_key.iter().any(|it| it.to_lowercase() == name);
        !is_key
            && ["password", "passwd", "pwd", "secret"]
                .iter()
                .any(|it| name.contains(it))
    };
    let has_secrets = table.columns.iter().any(|it| is_secret(&it.name));
    let mut text = String::new();
    let mut line = |is_comment: bool, line: &str| match is_comment {
        true => comment(&mut text, line),
        false => {
            let _ = writeln!(text, "{line}");
        }
    };
    line(
        true,
        match has_secrets {
            true => "What looks like a secret stays in the centre:",
            false => {
                "To publish fewer columns, delete some of these (never one of the primary key):"
            }
        },
    );
    line(!has_secrets, "columns = [");
    for column in &table.columns {
        let mut remark = printable(&column.type_name);
        if table.primary_key.contains(&column.name) {
            remark.push_str(", primary key");
        } else if !column.nullable {
            remark.push_str(", not null");
        }
        let is_left_out = !has_secrets || is_secret(&column.name);
        line(
            is_left_out,
            &format!("  {},  # {remark}", name(&column.name)),
        );
    }
    line(!has_secrets, "]");
    text
}

/// What rows need that are made offline: numbers for keys, and values that only the centre has.
fn offline(
    text: &mut String,
    table: &ListedTable,
    kind: DatabaseKind,
    is_everyones: bool,
) -> Vec<Proposal> {
    let mut proposals = Vec::new();
    if let Some(key) = init_statements::numbered_key(table) {
        let (block, refill_below) = init_statements::block(key);
        let line = format!(
            "identity = {{ column = {}, block = {block}, refill_below = {refill_below} }}",
            name(&key.name)
        );
        // What everyone has is changed in the centre more often than not.
        let is_optional = is_everyones && key.numbering != ListedNumbering::Sequence;
        if is_optional {
            comment(text, &format!("{line}    # if devices insert rows"));
        } else {
            text.push_str("# Devices insert rows with numbers that they got beforehand:\n");
            let _ = writeln!(text, "{line}");
            proposals.extend(init_statements::sequence(table, kind));
        }
        if kind == DatabaseKind::Sqlite && key.numbering == ListedNumbering::Highest && !is_optional
        {
            comment(
                text,
                "If rows are inserted in the centre, too, declare the key INTEGER PRIMARY KEY \
                 AUTOINCREMENT:\nthen it takes no number that a device has.",
            );
        }
    }
    let filled = init_statements::filled_by_centre(table);
    if !filled.is_empty() {
        let names: Vec<String> = filled.iter().map(|it| name(it)).collect();
        text.push_str("# NOT NULL, and only the centre knows the value that is left out:\n");
        let _ = writeln!(text, "filled_by_centre = [{}]", names.join(", "));
    }
    for guess in table.set_by_triggers.iter().filter(|it| !it.is_known) {
        comment(
            text,
            &format!(
                "filled_by_centre = [{}]    # a guess: the trigger {} names the column; if it \
                 sets it",
                name(&guess.column),
                guess.trigger
            ),
        );
    }
    proposals
}

/// Which rows of a table a remote holds, where people were found.
fn owned(
    table: &ListedTable,
    all: &[&ListedTable],
    people: &People<'_>,
    way: &PathToPeople<'_>,
) -> String {
    let mut text = String::new();
    let by = |column: &str| by_values(column, &people.values());
    let parents = parents(table, all);
    let mut others: Vec<String> = parents
        .iter()
        .filter(|it| *way != PathToPeople::Follows(it) && it.parent != people.table.name)
        .map(|it| follows(it, &parents))
        .collect();
    match way {
        PathToPeople::Undecided => return partition(table, all),
        PathToPeople::Everyone => {
            text.push_str("partition = \"everyone\"\n");
            if let Some(owner) = owner_column(table) {
                others.push(by_values(owner, UNKNOWN_VALUES));
            }
        }
        PathToPeople::Person => {
            let _ = writeln!(text, "{}", by(&people.key.name));
            others.clear();
            others.push("partition = \"everyone\"    # everybody sees everybody".to_owned());
        }
        PathToPeople::Columns(columns) => {
            let mut columns = columns.iter();
            let first = columns.next().map(|it| by(it)).unwrap_or_default();
            let _ = writeln!(text, "{first}");
            others.splice(0..0, columns.map(|it| by(it)));
            others.insert(0, "partition = \"everyone\"".to_owned());
        }
        PathToPeople::Follows(reference) => {
            let _ = writeln!(text, "{}", follows(reference, &parents));
            others.splice(0..0, people.columns_of(table).iter().map(|it| by(it)));
            others.insert(0, "partition = \"everyone\"".to_owned());
        }
    }
    for other in &others {
        comment(&mut text, &format!("or: {other}"));
    }
    text
}

/// A query that the operator has to write.
const UNKNOWN_VALUES: &str = "SELECT ... WHERE login = {s.username}";

/// The partition by a column and the query for its values.
fn by_values(column: &str, values: &str) -> String {
    format!(
        "partition = {{ columns = [{}], values = {} }}",
        name(column),
        name(values)
    )
}

/// The partition by a foreign key, one of several of its table.
fn follows(reference: &ListedReference, all: &[&ListedReference]) -> String {
    let same = all.iter().filter(|it| it.parent == reference.parent);
    let columns: Vec<String> = reference.columns.iter().map(|it| name(it)).collect();
    match same.count() > 1 {
        true => format!(
            "partition = {{ follows = {}, by = [{}] }}",
            name(&reference.parent),
            columns.join(", ")
        ),
        false => format!("partition = {{ follows = {} }}", name(&reference.parent)),
    }
}

/// Text of the database on one line.
fn printable(text: &str) -> String {
    text.chars().filter(|it| !it.is_control()).collect()
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
    let mut others = parents.iter();
    match (owner, others.next()) {
        (None, Some(likely)) if !is_in_circle(table, all) => {
            text.push_str(&follows(likely, &parents));
            text.push('\n');
            text.push_str("# or: partition = \"everyone\"\n");
        }
        (owner, likely) => {
            text.push_str(&format!(
                "{TODO} which rows does a remote hold? All of them, or those of its user:\n"
            ));
            text.push_str("# partition = \"everyone\"\n");
            let line = by_values(owner.unwrap_or("..."), UNKNOWN_VALUES);
            comment(&mut text, &line);
            if let Some(likely) = likely {
                comment(&mut text, &format!("or: {}", follows(likely, &parents)));
            }
        }
    }
    for other in others {
        comment(&mut text, &format!("or: {}", follows(other, &parents)));
    }
    text
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
            is_integer: true,
            ..ListedColumn::default()
        };
        ListedTable {
            name: name.into(),
            sql_name: name.into(),
            columns: vec![column("id", false), column("owner \"id\"", true)],
            primary_key: vec!["id".into()],
            references: references.iter().map(|it| reference(it)).collect(),
            ..ListedTable::default()
        }
    }

    fn reference(parent: &str) -> ListedReference {
        ListedReference {
            columns: vec![format!("{parent}_id")],
            parent: parent.into(),
            ..ListedReference::default()
        }
    }

    fn document(tables: &[ListedTable]) -> Drafted {
        write(&Draft {
            consolidated: "postgres://me:pass\"word@127.0.0.1/shop",
            publication: "o'brien's \"sales\"",
            tables,
            people: People::find(tables, None).as_ref(),
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
                is_integer: type_name.ends_with("int") || type_name == "integer",
                is_text: type_name == "text",
                name,
                type_name,
                ..ListedColumn::default()
            }
        });
        let references = references.iter().map(|text| {
            let (column, parent) = words(text);
            ListedReference {
                parent_columns: vec!["id".into()],
                columns: vec![column],
                parent,
                ..ListedReference::default()
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
            &["order_id integer", "shop_owner smallint"],
            &["shop_owner shops"],
        );
        let lines = partition_lines(&[table("shops", &[]), orders]);
        assert!(lines[1].contains("columns = [\"shop_owner\"]"), "{lines:?}");
        assert_eq!(lines[2], "# or: partition = { follows = \"shops\" }");
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
    fn rows_of_people_lead_to_all_that_is_theirs() {
        let tables = [
            table("employees", &[]),
            table("region", &[]),
            with(
                "orders",
                &["id integer", "employee_id integer", "region_id integer"],
                &["employee_id employees", "region_id region"],
            ),
            with(
                "line",
                &["id integer", "order_id integer"],
                &["order_id orders"],
            ),
        ];
        let drafted = document(&tables);
        assert_eq!(drafted.undecided, 0, "{}", drafted.text);
        let values = "values = \"SELECT id FROM employees_login WHERE login = {s.username}\"";
        assert_eq!(
            partition_lines(&tables[..3]),
            [
                &format!("partition = {{ columns = [\"employee_id\"], {values} }}"),
                "# or: partition = \"everyone\"",
                "# or: partition = { follows = \"region\" }",
            ]
        );
        assert_eq!(
            partition_lines(&tables)[0],
            "partition = { follows = \"orders\" }"
        );
        let parsed: toml::Table = drafted.text.parse().unwrap();
        let employees = &parsed["publication"][0]["table"][0];
        assert_eq!(employees["direction"].as_str(), Some("download"));
        let line = &parsed["publication"][0]["table"][3];
        assert_eq!(line["identity"]["block"].as_integer(), Some(1000));
        // Names of people, and a sequence for each of the two tables that devices number.
        assert_eq!(drafted.proposals.len(), 3, "{:?}", drafted.proposals);
    }

    #[test]
    fn names_that_no_publication_can_have_are_left_out_with_the_reason() {
        let mut other = table("archive.note", &[]);
        other.sql_name = "archive.note".into();
        let tables = [
            table("note", &[]),
            other,
            table("tidewater_evil", &[]),
            table("", &[]),
        ];
        let drafted = document(&tables);
        assert_eq!(names(&drafted.text), ["note"]);
        let told: Vec<&str> = drafted.left_out.iter().map(|it| &*it.1).collect();
        assert!(told[0].contains("note is published"), "{told:?}");
        assert!(told[1].contains("reserved"), "{told:?}");
        assert!(told[2].contains("empty"), "{told:?}");
    }

    #[test]
    fn no_statement_is_proposed_for_names_with_control_characters() {
        let drafted = document(&[table("a\u{1b}[31m", &["b"]), table("b\nc", &[])]);
        assert_eq!(drafted.proposals, []);
        assert!(
            drafted.text.contains("has control characters"),
            "{}",
            drafted.text
        );
    }

    #[test]
    fn a_part_of_what_somebody_holds_follows_it_and_others_are_warned_of() {
        let job = |more: &str| {
            let part = with(
                more,
                &["id integer", "job_id integer", "author integer"],
                &["job_id job", "author employees"],
            );
            let job = with(
                "job",
                &["id integer", "employee_id integer"],
                &["employee_id employees"],
            );
            document(&[table("employees", &[]), job, part])
        };
        let note = job("job_note");
        assert!(
            note.text.contains("partition = { follows = \"job\" }"),
            "{}",
            note.text
        );
        assert!(
            note.text
                .contains("# or: partition = { columns = [\"author\"]"),
            "{}",
            note.text
        );
        assert_eq!(note.warnings, Vec::<String>::new());
        let comment = job("remark");
        assert_eq!(comment.warnings.len(), 1, "{:?}", comment.warnings);
        assert!(
            comment.warnings[0].contains("follows = \"job\""),
            "{:?}",
            comment.warnings
        );
    }

    #[test]
    fn columns_that_look_like_secrets_are_not_published() {
        let staff = with(
            "staff",
            &["staff_id integer", "Password text", "name text"],
            &[],
        );
        let drafted = document(&[staff]);
        let parsed: toml::Table = drafted.text.parse().unwrap();
        let columns = parsed["publication"][0]["table"][0]["columns"].as_array();
        let columns: Vec<&str> = columns
            .unwrap()
            .iter()
            .filter_map(|it| it.as_str())
            .collect();
        assert_eq!(columns, ["staff_id", "name"]);
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
