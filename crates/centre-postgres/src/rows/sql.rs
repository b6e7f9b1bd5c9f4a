//! The text of the statements that apply uploaded rows.
//!
//! Every statement gets one array parameter for each column of an image that it
//! needs, and unnests them side by side.

use std::collections::BTreeSet;

use tidewater_protocol::Op;

use crate::array::Array;
use crate::publication::{PublishedTable, TableRule};
use crate::quote::ident_list;
use crate::triggers::log_column;
use tidewater_centre::engine::upload::incoming;
use tidewater_centre::engine::upload::rows::{Image, Part};

/// The uploaded rows of a table.
pub(super) type Incoming<'u> = incoming::Incoming<'u, PublishedTable>;

fn alias(image: Image, column: usize) -> String {
    match image {
        Image::Old => format!("o{column}"),
        Image::New => format!("n{column}"),
    }
}

/// The parameters of an operation's statement, in order.
pub(super) fn images(incoming: &Incoming<'_>, op: Op, changed: &[usize]) -> Vec<(Image, usize)> {
    match op {
        Op::Insert => {
            let written = incoming.written.iter();
            written.map(|&index| (Image::New, index)).collect()
        }
        _ => {
            let old = incoming.sent.iter().map(|&index| (Image::Old, index));
            old.chain(changed.iter().map(|&index| (Image::New, index)))
                .collect()
        }
    }
}

/// The parameters of [`read_by_key`]: the key for a delete, everything that an
/// insert or update writes otherwise.
pub(super) fn compared(incoming: &Incoming<'_>, op: Op) -> Vec<usize> {
    match op {
        Op::Delete => incoming.table.key.clone(),
        _ => incoming.written.clone(),
    }
}

/// `unnest(...) WITH ORDINALITY AS i(..., ord)`, of parameters that begin with number `first`.
fn unnest(incoming: &Incoming<'_>, images: &[(Image, usize)], first: usize) -> String {
    let columns = &incoming.table.columns;
    let parameters = images.iter().zip(first..);
    let parameters = parameters.map(|(&(_, it), at)| Array::parameter(columns[it].kind, at));
    let names = images.iter().map(|&(image, index)| alias(image, index));
    format!(
        "unnest({}) WITH ORDINALITY AS i({}, ord)",
        parameters.collect::<Vec<_>>().join(", "),
        names.collect::<Vec<_>>().join(", ")
    )
}

/// Inserts rows; those whose key, or another unique value, is taken are passed over,
/// or fail.
pub(super) fn insert(incoming: &Incoming<'_>, pass_over: bool) -> String {
    let what_is_taken = match pass_over {
        true => " ON CONFLICT DO NOTHING",
        false => "",
    };
    insert_with(incoming, 1, what_is_taken)
}

fn insert_with(incoming: &Incoming<'_>, first: usize, clause: &str) -> String {
    let table = incoming.table;
    let images = images(incoming, Op::Insert, &[]);
    let names = images
        .iter()
        .map(|&(_, index)| table.columns[index].name.as_str());
    let values = images.iter().map(|&(image, index)| {
        let column = &table.columns[index];
        let value = column.input(&format!("i.{}", alias(image, index)));
        match column.default.as_ref().filter(|_| column.is_filled) {
            // The application's triggers see the default, as if nothing had been said.
            Some(default) => format!("coalesce({value}, {default})"),
            None => value,
        }
    });
    let keys = table
        .key
        .iter()
        .map(|&index| table.columns[index].output("t."));
    format!(
        "INSERT INTO {} AS t ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {}{clause} RETURNING {}",
        table.sql_name,
        ident_list("", names),
        values.collect::<Vec<_>>().join(", "),
        unnest(incoming, &images, first),
        keys.collect::<Vec<_>>().join(", ")
    )
}

/// Logs inserted rows that a trigger has put into another partition, under the one that they
/// were uploaded into: whoever holds that has them otherwise for ever. One statement for each log
/// of a rule by columns of the table's own.
pub(super) fn log_moved(incoming: &Incoming<'_>) -> Vec<String> {
    let rules = incoming.table.own_rules();
    rules.filter_map(|it| log_moved_by(incoming, it)).collect()
}

fn log_moved_by(incoming: &Incoming<'_>, rule: &TableRule) -> Option<String> {
    let table = incoming.table;
    let images = images(incoming, Op::Insert, &[]);
    let mut names = Vec::new();
    let mut values = Vec::new();
    let partition = (0..rule.own.len()).map(log_column);
    let partition = rule.own.iter().zip(partition);
    let key = table.key.iter().zip(rule.log_key.iter().cloned());
    for (index, name) in partition.chain(key) {
        if names.contains(&name) {
            continue;
        }
        images.iter().find(|&&(_, sent)| sent == *index)?;
        names.push(name);
        values.push(table.columns[*index].input(&format!("i.{}", alias(Image::New, *index))));
    }
    let stays = rule.own.iter().map(|&index| {
        let column = &table.columns[index];
        column.same(
            &format!("t.{}", column.sql),
            &format!("i.{}", alias(Image::New, index)),
        )
    });
    Some(format!(
        "INSERT INTO {} ({}) SELECT {} FROM {} JOIN {} AS t ON {} WHERE NOT ({})",
        rule.log_table(),
        names.join(", "),
        values.join(", "),
        unnest(incoming, &images, 1),
        table.sql_name,
        has_key(incoming, Image::New),
        stays.collect::<Vec<_>>().join(" AND ")
    ))
}

/// Updates rows that still are as their pre-images say; gives back their ordinals. The parameters
/// begin with number `first`.
pub(super) fn update(incoming: &Incoming<'_>, changed: &[usize], first: usize) -> String {
    update_with(incoming, changed, first, "")
}

/// The same, which also gives back something else.
fn update_with(
    incoming: &Incoming<'_>,
    changed: &[usize],
    first: usize,
    returning: &str,
) -> String {
    let table = incoming.table;
    let images = images(incoming, Op::Update, changed);
    let sets = changed.iter().map(|&index| {
        let column = &table.columns[index];
        let value = column.input(&format!("i.{}", alias(Image::New, index)));
        format!("{} = {value}", column.sql)
    });
    format!(
        "UPDATE {} AS t SET {} FROM {} WHERE {} RETURNING i.ord{returning}",
        table.sql_name,
        sets.collect::<Vec<_>>().join(", "),
        unnest(incoming, &images, first),
        is_pre_image(incoming)
    )
}

/// Deletes rows that still are as their pre-images say, or with `as_they_are` those with their keys;
/// gives back their ordinals. The parameters begin with number `first`.
pub(super) fn delete(incoming: &Incoming<'_>, first: usize, as_they_are: bool) -> String {
    let images = images(incoming, Op::Delete, &[]);
    let condition = match as_they_are {
        true => has_key(incoming, Image::Old),
        false => is_pre_image(incoming),
    };
    format!(
        "DELETE FROM {} AS t USING {} WHERE {condition} RETURNING i.ord",
        incoming.table.sql_name,
        unnest(incoming, &images, first),
    )
}

/// Finds, and locks, the rows that [`delete`] would delete; gives back their ordinals.
pub(super) fn deletable(incoming: &Incoming<'_>) -> String {
    let images = images(incoming, Op::Delete, &[]);
    format!(
        "SELECT i.ord FROM {} AS t JOIN {} ON {} FOR UPDATE OF t",
        incoming.table.sql_name,
        unnest(incoming, &images, 1),
        is_pre_image(incoming)
    )
}

/// Applies rows of several operations at once: what one of them frees, the others can take, and
/// foreign keys are checked, and act, when all of it is done. Gives back the number of the part
/// and the ordinal of each row that was written; the parameters are those of all parts, in order.
/// Deletes are to be first.
pub(super) fn together(parts: &[Part<'_, '_, PublishedTable>]) -> String {
    let is_delete = |part: &Part<'_, '_, PublishedTable>| part.op == Op::Delete;
    // PostgreSQL decides which part goes first, unless one needs another's rows.
    let deletes = parts.iter().enumerate().filter(|(_, part)| is_delete(part));
    let done = deletes.map(|(number, _)| format!("(SELECT count(*) FROM p{number}) >= 0"));
    let done: Vec<String> = done.collect();
    let when_done = match done.is_empty() {
        true => String::new(),
        false => format!(" WHERE {}", done.join(" AND ")),
    };
    let (mut written, mut told) = (Vec::new(), Vec::new());
    let mut first = 1;
    for (number, part) in parts.iter().enumerate() {
        let incoming = part.table;
        let succeeds = !part.successors.is_empty();
        let key = &incoming.table.key;
        let (columns, statement) = match part.op {
            Op::Insert => {
                let columns = key.iter().map(|index| format!("k{index}"));
                (
                    columns.collect::<Vec<_>>().join(", "),
                    insert_with(incoming, first, &when_done),
                )
            }
            Op::Update if succeeds => {
                let returning = format!(", {}", is_where_it_was_sent(incoming, &part.changed));
                let statement = update_with(incoming, &part.changed, first, &returning);
                ("ord, is_there".into(), statement)
            }
            Op::Update => ("ord".into(), update(incoming, &part.changed, first)),
            _ => ("ord".into(), delete(incoming, first, false)),
        };
        written.push(format!("p{number} ({columns}) AS ({statement})"));
        let images = images(incoming, part.op, &part.changed);
        told.push(match part.op {
            // An insert can only give back what is in the table.
            Op::Insert => {
                let same = key.iter().map(|index| {
                    let value = alias(Image::New, *index);
                    format!("p{number}.k{index} = i.{value}")
                });
                format!(
                    "SELECT {number}, i.ord FROM {} JOIN p{number} ON {}",
                    unnest(incoming, &images, first),
                    same.collect::<Vec<_>>().join(" AND ")
                )
            }
            _ if succeeds => format!("SELECT {number}, ord FROM p{number} WHERE is_there"),
            _ => format!("SELECT {number}, ord FROM p{number}"),
        });
        first += images.len();
    }
    format!("WITH {} {}", written.join(", "), told.join(" UNION ALL "))
}

/// Reads rows by key: the ordinal, whether the row is what an insert or update wants
/// it to be, the row.
pub(super) fn read_by_key(incoming: &Incoming<'_>, op: Op) -> String {
    let table = incoming.table;
    let compared = compared(incoming, op);
    let images: Vec<_> = compared.iter().map(|&index| (Image::New, index)).collect();
    let equal = compared.iter().map(|&index| {
        let column = &table.columns[index];
        let value = format!("i.{}", alias(Image::New, index));
        column.same(&format!("t.{}", column.sql), &value)
    });
    format!(
        "SELECT i.ord, {}, {} FROM {} JOIN {} AS t ON {}",
        equal.collect::<Vec<_>>().join(" AND "),
        table.outputs("t."),
        unnest(incoming, &images, 1),
        table.sql_name,
        has_key(incoming, Image::New)
    )
}

fn has_key(incoming: &Incoming<'_>, image: Image) -> String {
    let table = incoming.table;
    let equal = table.key.iter().map(|&index| {
        let column = &table.columns[index];
        let value = format!("i.{}", alias(image, index));
        column.equals(&format!("t.{}", column.sql), &value)
    });
    equal.collect::<Vec<_>>().join(" AND ")
}

/// Whether no trigger has put the written row `t` under another key, or into another partition.
fn is_where_it_was_sent(incoming: &Incoming<'_>, written: &[usize]) -> String {
    let table = incoming.table;
    let partition: BTreeSet<usize> = table.rules.iter().flat_map(|it| &it.own).copied().collect();
    let partition = partition
        .into_iter()
        .filter(|it| written.contains(it))
        .map(|index| {
            let column = &table.columns[index];
            let value = format!("i.{}", alias(Image::New, index));
            column.same(&format!("t.{}", column.sql), &value)
        });
    let key = std::iter::once(has_key(incoming, Image::New));
    key.chain(partition).collect::<Vec<_>>().join(" AND ")
}

fn is_pre_image(incoming: &Incoming<'_>) -> String {
    let table = incoming.table;
    let mut conditions = has_key(incoming, Image::Old);
    for &index in &incoming.sent {
        let column = &table.columns[index];
        // The key is equal already, unless its collation takes others for equal.
        if table.key.contains(&index) && column.collation.is_none() {
            continue;
        }
        let value = format!("i.{}", alias(Image::Old, index));
        let same = column.same(&format!("t.{}", column.sql), &value);
        conditions.push_str(&format!(" AND {same}"));
    }
    conditions
}
