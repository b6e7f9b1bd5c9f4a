//! The configuration that `tidewater init` writes: TOML with comments, made from the
//! tables that a database has.
//!
//! Owns the document's text. Whose the rows of a table are is `init_people`'s to say, which of them a
//! remote holds `init_partition`'s, which statements the database needs `init_statements`', and how a
//! key is explained the grammar's. Where the tables come from, and where the text
//! goes, is the command's affair.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use tidewater_centre::{ListedNumbering, ListedReference, ListedTable};
use tidewater_server::config::grammar::{first_lines, optional_line};

use crate::init_partition::{TODO, follows, owned, partition};
use crate::init_people::{PathToPeople, People, bare_name, parents};
use crate::init_statements::{self, DatabaseKind, Proposal};
use crate::init_text::{comment, name, printable, quoted};

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
pub(crate) struct DraftDocument {
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

/// Writes the document.
pub(crate) fn write(draft: &Draft<'_>) -> DraftDocument {
    let kind = DatabaseKind::from_url(draft.consolidated);
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
    DraftDocument {
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
mod tests;
