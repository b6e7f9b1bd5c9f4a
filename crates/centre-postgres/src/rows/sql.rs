//! The text of the statements that apply uploaded rows.
//!
//! Every statement gets one array parameter for each column of an image that it
//! needs, and unnests them side by side.

use tidewater_protocol::Op;

use crate::array::Array;
use crate::publication::{PostgresTables, TableRule};
use crate::quote::ident_list;
use tidewater_centre::engine::sql::column::SqlColumn as _;
use tidewater_centre::engine::sql::served_table::ChildKey;
use tidewater_centre::engine::upload::incoming_rows;
use tidewater_centre::engine::upload::upload_writer::{CyclePart, RowImage};

/// The uploaded rows of a table.
pub(super) type PostgresIncomingTable<'u> = incoming_rows::IncomingTable<'u, PostgresTables>;

fn alias(image: RowImage, column: usize) -> String {
    match image {
        RowImage::Old => format!("o{column}"),
        RowImage::New => format!("n{column}"),
    }
}

/// The parameters of an operation's statement, in order.
pub(super) fn images(
    incoming: &PostgresIncomingTable<'_>,
    op: Op,
    changed: &[usize],
) -> Vec<(RowImage, usize)> {
    match op {
        Op::Insert => {
            let written = incoming.written.iter();
            written.map(|&index| (RowImage::New, index)).collect()
        }
        _ => {
            let old = incoming.sent.iter().map(|&index| (RowImage::Old, index));
            old.chain(changed.iter().map(|&index| (RowImage::New, index)))
                .collect()
        }
    }
}

/// What [`read_by_key`] compares, which it gets after the key: everything that an insert or update
/// writes.
pub(super) fn compared(incoming: &PostgresIncomingTable<'_>, op: Op) -> Vec<usize> {
    match op {
        Op::Delete => Vec::new(),
        _ => incoming.written.clone(),
    }
}

/// `unnest(...) WITH ORDINALITY AS i(..., ord)`, of parameters that begin with number `first`.
fn unnest(
    incoming: &PostgresIncomingTable<'_>,
    images: &[(RowImage, usize)],
    first: usize,
) -> String {
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
pub(super) fn insert(incoming: &PostgresIncomingTable<'_>, pass_over: bool) -> String {
    let what_is_taken = match pass_over {
        true => " ON CONFLICT DO NOTHING",
        false => "",
    };
    insert_with(incoming, 1, what_is_taken)
}

fn insert_with(incoming: &PostgresIncomingTable<'_>, first: usize, clause: &str) -> String {
    let table = incoming.table;
    let images = images(incoming, Op::Insert, &[]);
    let names = images
        .iter()
        .map(|&(_, index)| table.columns[index].name.as_str());
    let values = images.iter().map(|&(image, index)| {
        let column = &table.columns[index];
        let value = column.input(&format!("i.{}", alias(image, index)));
        match &table.filled[index] {
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
pub(super) fn log_moved(incoming: &PostgresIncomingTable<'_>) -> Vec<String> {
    let rules = incoming.table.own_rules();
    rules.filter_map(|it| log_moved_by(incoming, it)).collect()
}

fn log_moved_by(incoming: &PostgresIncomingTable<'_>, rule: &TableRule) -> Option<String> {
    let table = incoming.table;
    let images = images(incoming, Op::Insert, &[]);
    let mut names = Vec::new();
    let mut values = Vec::new();
    let partition = rule
        .own
        .iter()
        .zip(rule.log_columns.partition.iter().cloned());
    let key = table.key.iter().zip(rule.log_columns.key.iter().cloned());
    for (index, name) in partition.chain(key) {
        if names.contains(&name) {
            continue;
        }
        images.iter().find(|&&(_, sent)| sent == *index)?;
        names.push(name);
        values.push(table.columns[*index].input(&format!("i.{}", alias(RowImage::New, *index))));
    }
    let stays = rule.own.iter().map(|&index| {
        let column = &table.columns[index];
        column.same(
            &format!("t.{}", column.sql),
            &format!("i.{}", alias(RowImage::New, index)),
        )
    });
    Some(format!(
        "INSERT INTO {} ({}) SELECT {} FROM {} JOIN {} AS t ON {} WHERE NOT ({})",
        rule.log_table(),
        names.join(", "),
        values.join(", "),
        unnest(incoming, &images, 1),
        table.sql_name,
        has_key(incoming, RowImage::New),
        stays.collect::<Vec<_>>().join(" AND ")
    ))
}

/// Updates rows that still are as their pre-images say, or with `found_by` those with that image's
/// key; gives back their ordinals, and whether they have the key that they were to have. The
/// parameters begin with number `first`.
pub(super) fn update(
    incoming: &PostgresIncomingTable<'_>,
    changed: &[usize],
    first: usize,
    found_by: Option<RowImage>,
) -> String {
    let table = incoming.table;
    let images = images(incoming, Op::Update, changed);
    let sets = changed.iter().map(|&index| {
        let column = &table.columns[index];
        let value = column.input(&format!("i.{}", alias(RowImage::New, index)));
        format!("{} = {value}", column.sql)
    });
    let key = table.key.iter();
    let key = key.map(|&index| key_after(index, changed));
    let condition = match found_by {
        None => is_pre_image(incoming),
        Some(RowImage::Old) => has_key(incoming, RowImage::Old),
        Some(RowImage::New) => has_each(incoming, key.clone()),
    };
    let is_there = match changed.iter().any(|it| table.key.contains(it)) {
        true => has_each(incoming, key),
        false => "true".into(),
    };
    format!(
        "UPDATE {} AS t SET {} FROM {} WHERE {condition} RETURNING i.ord, {is_there}",
        table.sql_name,
        sets.collect::<Vec<_>>().join(", "),
        unnest(incoming, &images, first)
    )
}

/// Where the values of inserted or updated rows as they are to be are, as far as they came.
pub(super) fn known_after(
    incoming: &PostgresIncomingTable<'_>,
    op: Op,
    changed: &[usize],
) -> Vec<(RowImage, usize)> {
    let mut known = images(incoming, op, changed);
    known.retain(|&(image, index)| image == RowImage::New || !changed.contains(&index));
    known
}

/// The ordinals of those inserted or updated rows `r` that a condition on their columns holds for.
pub(super) fn violating(
    incoming: &PostgresIncomingTable<'_>,
    op: Op,
    changed: &[usize],
    condition: &str,
) -> String {
    let known = known_after(incoming, op, changed).into_iter();
    let values = known.map(|(image, index)| {
        let column = &incoming.table.columns[index];
        let value = column.input(&format!("i.{}", alias(image, index)));
        format!(", {value} AS {}", column.sql)
    });
    format!(
        "SELECT tidewater_ord FROM (SELECT i.ord AS tidewater_ord{} FROM {}) AS r WHERE {condition}",
        values.collect::<String>(),
        unnest(incoming, &images(incoming, op, changed), 1)
    )
}

/// In which image an update has the value of a key column as it is to be.
fn key_after(index: usize, changed: &[usize]) -> (RowImage, usize) {
    match changed.contains(&index) {
        true => (RowImage::New, index),
        false => (RowImage::Old, index),
    }
}

/// Deletes rows that still are as their pre-images say, or with `as_they_are` those with their keys;
/// gives back their ordinals. The parameters begin with number `first`.
pub(super) fn delete(
    incoming: &PostgresIncomingTable<'_>,
    first: usize,
    as_they_are: bool,
) -> String {
    let images = images(incoming, Op::Delete, &[]);
    format!(
        "DELETE FROM {} AS t USING {} WHERE {} RETURNING i.ord",
        incoming.table.sql_name,
        unnest(incoming, &images, first),
        is_deleted(incoming, as_they_are)
    )
}

fn is_deleted(incoming: &PostgresIncomingTable<'_>, as_they_are: bool) -> String {
    match as_they_are {
        true => has_key(incoming, RowImage::Old),
        false => is_pre_image(incoming),
    }
}

/// Finds, and locks, the rows that [`delete`] would delete; gives back their ordinals. Nobody can
/// begin to refer to a row that is locked so.
pub(super) fn deletable(incoming: &PostgresIncomingTable<'_>, as_they_are: bool) -> String {
    let images = images(incoming, Op::Delete, &[]);
    format!(
        "SELECT i.ord FROM {} AS t JOIN {} ON {} FOR UPDATE OF t",
        incoming.table.sql_name,
        unnest(incoming, &images, 1),
        is_deleted(incoming, as_they_are)
    )
}

/// Locks rows against changes, by key; that others refer to them hinders nobody.
pub(super) fn lock(incoming: &PostgresIncomingTable<'_>) -> String {
    let key = incoming.table.key.iter();
    let key: Vec<_> = key.map(|&index| (RowImage::Old, index)).collect();
    format!(
        "SELECT FROM {} AS t JOIN {} ON {} FOR NO KEY UPDATE OF t",
        incoming.table.sql_name,
        unnest(incoming, &key, 1),
        has_key(incoming, RowImage::Old)
    )
}

/// The ordinals of those of some keys to whose rows others refer by foreign keys that act on
/// deletes; rows that have one of the keys themselves do not count.
pub(super) fn parents(incoming: &PostgresIncomingTable<'_>) -> String {
    let table = incoming.table;
    let names: Vec<String> = table
        .key
        .iter()
        .map(|&it| alias(RowImage::Old, it))
        .collect();
    let parameters = table.key.iter().zip(1..);
    let parameters = parameters.map(|(&it, at)| Array::parameter(table.columns[it].kind, at));
    let keys = format!(
        "SELECT * FROM unnest({}) WITH ORDINALITY AS i({}, ord)",
        parameters.collect::<Vec<_>>().join(", "),
        names.join(", ")
    );
    let exist = table.children.iter().map(|children| {
        let among = match children.is_same_table {
            true => {
                let same = table.key.iter().map(|&index| {
                    let column = &table.columns[index];
                    let value = format!("d.{}", alias(RowImage::Old, index));
                    column.equals(&format!("c.{}", column.sql), &value)
                });
                let same = same.collect::<Vec<_>>().join(" AND ");
                format!(" AND NOT EXISTS (SELECT FROM keys d WHERE {same})")
            }
            false => String::new(),
        };
        let ChildKey { table, refers, .. } = children;
        format!("EXISTS (SELECT FROM {table} c WHERE {refers}{among})")
    });
    format!(
        "WITH keys AS MATERIALIZED ({keys}) SELECT i.ord FROM keys i JOIN {} t ON {} WHERE {}",
        table.sql_name,
        has_key(incoming, RowImage::Old),
        exist.collect::<Vec<_>>().join(" OR ")
    )
}

/// Applies rows of several operations at once: what one of them frees, the others can take, and
/// foreign keys are checked, and act, when all of it is done. Gives back for each row that was
/// written the number of its part, and whether it is where it was to be; the parameters are those
/// of all parts, in order. Deletes are to be first.
pub(super) fn together(parts: &[CyclePart<'_, '_, PostgresTables>]) -> String {
    let is_delete = |part: &CyclePart<'_, '_, PostgresTables>| part.op == Op::Delete;
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
        let key = &incoming.table.key;
        let (columns, statement) = match part.op {
            Op::Insert => {
                let columns = key.iter().map(|index| format!("k{index}"));
                (
                    columns.collect::<Vec<_>>().join(", "),
                    insert_with(incoming, first, &when_done),
                )
            }
            Op::Update => (
                "ord, is_there".into(),
                update(incoming, &part.changed, first, None),
            ),
            _ => ("ord".into(), delete(incoming, first, false)),
        };
        written.push(format!("p{number} ({columns}) AS ({statement})"));
        let images = images(incoming, part.op, &part.changed);
        told.push(match part.op {
            // An insert can only give back what is in the table.
            Op::Insert => {
                let same = key.iter().map(|index| {
                    let value = alias(RowImage::New, *index);
                    format!("p{number}.k{index} = i.{value}")
                });
                format!(
                    "SELECT {number}, true FROM {} JOIN p{number} ON {}",
                    unnest(incoming, &images, first),
                    same.collect::<Vec<_>>().join(" AND ")
                )
            }
            Op::Update => format!("SELECT {number}, is_there FROM p{number}"),
            _ => format!("SELECT {number}, true FROM p{number}"),
        });
        first += images.len();
    }
    format!("WITH {} {}", written.join(", "), told.join(" UNION ALL "))
}

/// Reads rows by key: the ordinal, whether the row is what an insert or update wants
/// it to be, the row. The parameters are the key and what is compared.
pub(super) fn read_by_key(incoming: &PostgresIncomingTable<'_>, op: Op) -> String {
    let table = incoming.table;
    let compared = compared(incoming, op);
    let key = table.key.iter().map(|&index| (RowImage::Old, index));
    let images = compared.iter().map(|&index| (RowImage::New, index));
    let images: Vec<_> = key.chain(images).collect();
    let equal = compared.iter().map(|&index| {
        let column = &table.columns[index];
        let value = format!("i.{}", alias(RowImage::New, index));
        column.same(&format!("t.{}", column.sql), &value)
    });
    let mut equal: Vec<String> = equal.collect();
    equal.push("true".into());
    format!(
        "SELECT i.ord, {}, {} FROM {} JOIN {} ON {}",
        equal.join(" AND "),
        table.outputs(),
        unnest(incoming, &images, 1),
        table.joined(),
        has_key(incoming, RowImage::Old)
    )
}

fn has_key(incoming: &PostgresIncomingTable<'_>, image: RowImage) -> String {
    let key = incoming.table.key.iter();
    has_each(incoming, key.map(|&index| (image, index)))
}

/// Whether a row `t` has these values.
fn has_each(
    incoming: &PostgresIncomingTable<'_>,
    values: impl Iterator<Item = (RowImage, usize)>,
) -> String {
    let equal = values.map(|(image, index)| {
        let column = &incoming.table.columns[index];
        let value = format!("i.{}", alias(image, index));
        column.equals(&format!("t.{}", column.sql), &value)
    });
    equal.collect::<Vec<_>>().join(" AND ")
}

fn is_pre_image(incoming: &PostgresIncomingTable<'_>) -> String {
    let table = incoming.table;
    let mut conditions = has_key(incoming, RowImage::Old);
    for &index in &incoming.sent {
        let column = &table.columns[index];
        // What is computed has changed with the rest, or with the expression; what remotes do not
        // write is nothing that they could lose against.
        if column.generated || incoming.read_only.contains(&index) {
            continue;
        }
        // The key is equal already, unless its collation takes others for equal.
        if table.key.contains(&index) && column.collation.is_none() {
            continue;
        }
        let value = column.kept(&format!("i.{}", alias(RowImage::Old, index)));
        let same = column.same(&format!("t.{}", column.sql), &value);
        conditions.push_str(&format!(" AND {same}"));
    }
    conditions
}
