//! Which rows of a table a remote holds, as `tidewater init` proposes it: by whom a row names, by the
//! row that it refers to, or for the operator to decide.

use std::fmt::Write;

use tidewater_centre::{ListedReference, ListedTable};

use crate::init_people::{PathToPeople, People, parents};
use crate::init_text::{comment, name};

/// Begins the line of a table that waits for a decision.
pub(crate) const TODO: &str = "# TODO:";

/// Which rows of a table a remote holds: as it follows another one, or what there is to choose from.
pub(crate) fn partition(table: &ListedTable, all: &[&ListedTable]) -> String {
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

/// Which rows of a table a remote holds, where people were found.
pub(crate) fn owned(
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
pub(crate) fn follows(reference: &ListedReference, all: &[&ListedReference]) -> String {
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
