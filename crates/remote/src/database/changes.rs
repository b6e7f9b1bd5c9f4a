//! What is recorded of a row: moving it from one generation to another, and forgetting it.
//!
//! A row whose key was changed has two records, one under each key: what was under the old one is
//! gone, and under the new one there was nothing. `tidewater_rekeyed_...` says that they belong
//! together. Triggers write there whatever happens, net over a generation. What is taken keeps
//! only what makes one change: a row that was there under its old key, which nothing has since,
//! and that has a key under which nothing was. From then on both records go together, wherever
//! they go, and are known by the old key.

use rusqlite::Connection;
use tidewater_protocol::Value;

use super::quote;
use super::row::BoundValue;
use super::tables::QuotedNames;

/// The generation of refused changes: they wait here for the user or for another try.
pub(crate) const PARKED: i64 = 0;

/// A change of a key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KeyChange {
    pub(crate) old: Vec<Value>,
    pub(crate) new: Vec<Value>,
}

/// Whether keys were changed in a generation.
pub(crate) fn any_rekeyed(
    connection: &Connection,
    names: &QuotedNames,
    generation: i64,
) -> rusqlite::Result<bool> {
    connection
        .prepare_cached(&format!(
            "SELECT 1 FROM {} WHERE generation = ?1",
            names.rekeyed
        ))?
        .exists([generation])
}

/// The change of a key in a generation, by the old key or by the new one.
pub(crate) fn rekeyed(
    connection: &Connection,
    names: &QuotedNames,
    generation: i64,
    key: &[Value],
) -> rusqlite::Result<Option<KeyChange>> {
    for known in [&names.old_key, &names.new_key] {
        let mut statement = connection.prepare_cached(&format!(
            "SELECT {}, {} FROM {} WHERE {} AND generation = ?{}",
            names.old_key.join(", "),
            names.new_key.join(", "),
            names.rekeyed,
            is_bound(known, 1),
            key.len() + 1,
        ))?;
        names.bind_key(&mut statement, key)?;
        statement.raw_bind_parameter(key.len() + 1, generation)?;
        let mut rows = statement.raw_query();
        if let Some(found) = rows.next()? {
            return Ok(Some(KeyChange {
                old: super::row::owned(found, 0, key.len())?,
                new: super::row::owned(found, key.len(), key.len())?,
            }));
        }
    }
    Ok(None)
}

/// Of what the triggers noted of changed keys in a generation, keeps what makes one
/// change. To be called when the generation is taken.
pub(super) fn keep_whole(
    connection: &Connection,
    names: &QuotedNames,
    generation: i64,
) -> rusqlite::Result<()> {
    if !any_rekeyed(connection, names, generation)? {
        return Ok(());
    }
    let (rekeyed, change, table) = (&names.rekeyed, &names.change, &names.table);
    let same = |left: &str, left_key: &[String], right: &[String]| {
        quote::list(left_key.iter().zip(right), " AND ", |(left_key, right)| {
            format!("{left}.{left_key} = r.{right}")
        })
    };
    let recorded = |key: &[String], present: bool| {
        format!(
            "EXISTS (SELECT 1 FROM {change} AS h WHERE {} AND h.generation = r.generation \
             AND h.present = {present})",
            same("h", &names.change_key, key)
        )
    };
    // Another generation may have ended since.
    let is_there = |key: &[String]| {
        format!(
            "coalesce((SELECT l.present FROM {change} AS l WHERE {} \
             AND l.generation > r.generation ORDER BY l.generation LIMIT 1), \
             EXISTS (SELECT 1 FROM {table} AS p WHERE {}))",
            same("l", &names.change_key, key),
            same("p", &names.key, key)
        )
    };
    connection
        .prepare_cached(&format!(
            "DELETE FROM {rekeyed} AS r WHERE generation = ?1 \
             AND NOT ({} AND NOT {} AND {} AND {})",
            recorded(&names.old_key, true),
            is_there(&names.old_key),
            recorded(&names.new_key, false),
            is_there(&names.new_key),
        ))?
        .execute([generation])
        .map(drop)
}

/// Whether a change of a key is recorded in a generation.
pub(crate) fn has_change(
    connection: &Connection,
    names: &QuotedNames,
    key: &[Value],
    generation: i64,
) -> rusqlite::Result<bool> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT 1 FROM {} WHERE {} AND generation = ?{}",
        names.change,
        names.change_key_is_bound(),
        key.len() + 1
    ))?;
    names.bind_key(&mut statement, key)?;
    statement.raw_bind_parameter(key.len() + 1, generation)?;
    let found = statement.raw_query().next()?.is_some();
    Ok(found)
}

/// The next generation after this one in which a row was changed again, under any of its keys.
pub(crate) fn later_than(
    connection: &Connection,
    names: &QuotedNames,
    key: &[Value],
    generation: i64,
) -> rusqlite::Result<Option<i64>> {
    let mut earliest: Option<i64> = None;
    for key in keys_of_change(connection, names, generation, key)? {
        let found = next_of(connection, names, &key, generation)?;
        earliest = earliest.into_iter().chain(found).min();
    }
    Ok(earliest)
}

/// The next generation after this one in which a change of this key is recorded.
pub(crate) fn next_of(
    connection: &Connection,
    names: &QuotedNames,
    key: &[Value],
    generation: i64,
) -> rusqlite::Result<Option<i64>> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT min(generation) FROM {} WHERE {} AND generation > ?{}",
        names.change,
        names.change_key_is_bound(),
        key.len() + 1
    ))?;
    names.bind_key(&mut statement, key)?;
    statement.raw_bind_parameter(key.len() + 1, generation)?;
    let mut rows = statement.raw_query();
    rows.next()?.map_or(Ok(None), |row| row.get(0))
}

/// The keys under which a change is recorded.
fn keys_of_change(
    connection: &Connection,
    names: &QuotedNames,
    generation: i64,
    key: &[Value],
) -> rusqlite::Result<Vec<Vec<Value>>> {
    Ok(match rekeyed(connection, names, generation, key)? {
        Some(pair) => vec![pair.old, pair.new],
        None => vec![key.to_vec()],
    })
}

/// Moves a change from one generation to another, as the change of that generation, or as the
/// pre-image of the one that is there already. Returns the key by which the change is known.
pub(crate) fn move_to(
    connection: &Connection,
    names: &QuotedNames,
    key: &[Value],
    from: i64,
    to: i64,
) -> rusqlite::Result<Vec<Value>> {
    let Some(pair) = rekeyed(connection, names, from, key)? else {
        move_record(connection, names, key, from, to)?;
        return Ok(key.to_vec());
    };
    move_record(connection, names, &pair.old, from, to)?;
    move_record(connection, names, &pair.new, from, to)?;
    move_rekeyed(connection, names, &pair, from, to)?;
    Ok(pair.old)
}

/// Forgets a change, under all its keys.
pub(crate) fn forget(
    connection: &Connection,
    names: &QuotedNames,
    key: &[Value],
    generation: i64,
) -> rusqlite::Result<()> {
    let keys = keys_of_change(connection, names, generation, key)?;
    for (table, columns, key) in keys
        .iter()
        .map(|key| (&names.change, &names.change_key, key))
        .chain(keys.last().map(|new| (&names.rekeyed, &names.new_key, new)))
    {
        let mut delete = connection.prepare_cached(&format!(
            "DELETE FROM {table} WHERE {} AND generation = ?{}",
            is_bound(columns, 1),
            key.len() + 1
        ))?;
        names.bind_key(&mut delete, key)?;
        delete.raw_bind_parameter(key.len() + 1, generation)?;
        delete.raw_execute()?;
    }
    Ok(())
}

fn move_record(
    connection: &Connection,
    names: &QuotedNames,
    key: &[Value],
    from: i64,
    to: i64,
) -> rusqlite::Result<()> {
    if !has_change(connection, names, key, from)? {
        return Ok(());
    }
    if has_change(connection, names, key, to)? {
        return merge_into(connection, names, key, from, to);
    }
    let mut statement = connection.prepare_cached(&format!(
        "UPDATE {} SET generation = ?{} WHERE {} AND generation = ?{}",
        names.change,
        key.len() + 1,
        names.change_key_is_bound(),
        key.len() + 2,
    ))?;
    names.bind_key(&mut statement, key)?;
    statement.raw_bind_parameter(key.len() + 1, to)?;
    statement.raw_bind_parameter(key.len() + 2, from)?;
    statement.raw_execute().map(drop)
}

/// What was noted of a changed key goes with its records. If the row has got another key in the
/// generation where it goes, that one counts; if the keys mean other rows there, none does.
fn move_rekeyed(
    connection: &Connection,
    names: &QuotedNames,
    pair: &KeyChange,
    from: i64,
    to: i64,
) -> rusqlite::Result<()> {
    let count = pair.old.len();
    let run = |sql: &str| -> rusqlite::Result<usize> {
        let mut statement = connection.prepare_cached(sql)?;
        names.bind_key(&mut statement, &pair.old)?;
        for (index, (value, is_bytes)) in pair.new.iter().zip(names.key_is_bytes()).enumerate() {
            let value = BoundValue::for_key(value.as_ref(), is_bytes);
            statement.raw_bind_parameter(count + 1 + index, value)?;
        }
        statement.raw_bind_parameter(2 * count + 1, from)?;
        statement.raw_bind_parameter(2 * count + 2, to)?;
        statement.raw_execute()
    };
    let rekeyed = &names.rekeyed;
    let (is_from, is_to) = (2 * count + 1, 2 * count + 2);
    // Every statement has all the parameters.
    let all = quote::list(1..=is_to, " OR ", |n| format!("?{n} IS NULL"));
    let all = format!("(1 OR {all})");
    let old_is_old = is_bound(&names.old_key, 1);
    let old_is_new = is_bound(&names.old_key, count + 1);
    let new_is_new = is_bound(&names.new_key, count + 1);
    let is_free = |noted: &str| {
        format!("NOT EXISTS (SELECT 1 FROM {rekeyed} AS r WHERE generation = ?{is_to} AND {noted})")
    };
    run(&format!(
        "DELETE FROM {rekeyed} WHERE generation = ?{is_from} AND {new_is_new} AND {all}"
    ))?;
    let set = quote::list(names.old_key.iter().enumerate(), ", ", |(index, column)| {
        format!("{column} = ?{}", index + 1)
    });
    let gone_on = run(&format!(
        "UPDATE {rekeyed} SET {set} WHERE generation = ?{is_to} AND {old_is_new} \
         AND {} AND {all}",
        is_free(&old_is_old)
    ))?;
    if gone_on == 0 {
        run(&format!(
            "INSERT INTO {rekeyed} (generation, {}, {}) SELECT ?{is_to}, {} WHERE {} AND {} \
             AND {all}",
            names.old_key.join(", "),
            names.new_key.join(", "),
            quote::list(1..=2 * count, ", ", |n| format!("?{n}")),
            is_free(&old_is_old),
            is_free(&new_is_new),
        ))?;
    }
    Ok(())
}

/// Notes that a row has got another key in a generation that is not taken yet, as the triggers do.
/// Both keys are recorded in it.
pub(super) fn note_rekeyed(
    connection: &Connection,
    names: &QuotedNames,
    old: &[Value],
    new: &[Value],
    generation: i64,
) -> rusqlite::Result<()> {
    let before = rekeyed(connection, names, generation, old)?.filter(|it| it.new == old);
    if let Some(stale) = rekeyed(connection, names, generation, new)?.filter(|it| it.new == new) {
        forget_rekeyed(connection, names, &stale.new, generation)?;
    }
    let mut origin = old.to_vec();
    if let Some(before) = before {
        forget_rekeyed(connection, names, &before.new, generation)?;
        origin = before.old;
    } else if rekeyed(connection, names, generation, old)?.is_some() {
        // The row that had this key first has another one, and this is a row since then.
        return Ok(());
    }
    let count = new.len();
    let mut insert = connection.prepare_cached(&format!(
        "INSERT INTO {} ({}, {}, generation) VALUES ({})",
        names.rekeyed,
        names.new_key.join(", "),
        names.old_key.join(", "),
        quote::list(1..=2 * count + 1, ", ", |n| format!("?{n}")),
    ))?;
    names.bind_key(&mut insert, new)?;
    for (index, (value, is_bytes)) in origin.iter().zip(names.key_is_bytes()).enumerate() {
        let value = BoundValue::for_key(value.as_ref(), is_bytes);
        insert.raw_bind_parameter(count + 1 + index, value)?;
    }
    insert.raw_bind_parameter(2 * count + 1, generation)?;
    insert.raw_execute().map(drop)
}

fn forget_rekeyed(
    connection: &Connection,
    names: &QuotedNames,
    new: &[Value],
    generation: i64,
) -> rusqlite::Result<()> {
    let mut delete = connection.prepare_cached(&format!(
        "DELETE FROM {} WHERE {} AND generation = ?{}",
        names.rekeyed,
        is_bound(&names.new_key, 1),
        new.len() + 1
    ))?;
    names.bind_key(&mut delete, new)?;
    delete.raw_bind_parameter(new.len() + 1, generation)?;
    delete.raw_execute().map(drop)
}

/// Whether something is different under a key after a generation than it was before.
pub(super) fn is_net(
    connection: &Connection,
    names: &QuotedNames,
    key: &[Value],
    generation: i64,
) -> rusqlite::Result<bool> {
    let count = key.len();
    let differs = names.values.iter().zip(&names.pre);
    let differs = quote::list(differs, "", |(&at, pre)| {
        format!(
            " OR h.{pre} IS NOT CASE WHEN l.present IS NULL THEN p.{} ELSE l.{pre} END",
            names.columns[at]
        )
    });
    let of_row = quote::list(
        names.change_key.iter().enumerate(),
        " AND ",
        |(at, column)| format!("l.{column} = ?{}", at + 1),
    );
    let mut statement = connection.prepare_cached(&format!(
        "SELECT h.present <> {exists} OR h.present AND {exists} AND (0{differs}) FROM {change} AS h          LEFT JOIN {table} AS p ON {}          LEFT JOIN {change} AS l ON {of_row} AND l.generation = (SELECT min(generation)          FROM {change} WHERE {} AND generation > ?{after})          JOIN (SELECT 1) ON 1          WHERE {} AND h.generation = ?{after}",
        names.change_of("h", "p"),
        names.change_key_is_bound(),
        names.change_key_is_bound_in("h"),
        change = names.change,
        table = names.table,
        after = count + 1,
        exists = format!("coalesce(l.present, p.{} IS NOT NULL)", names.key[0]),
    ))?;
    names.bind_key(&mut statement, key)?;
    statement.raw_bind_parameter(count + 1, generation)?;
    let mut rows = statement.raw_query();
    rows.next()?.map_or(Ok(false), |row| row.get(0))
}

/// `a = ?1 AND b = ?2`, from this parameter on.
fn is_bound(columns: &[String], first: usize) -> String {
    quote::list(columns.iter().enumerate(), " AND ", |(index, column)| {
        format!("{column} = ?{}", first + index)
    })
}

/// Moves the pre-image of a key's change in generation `from` into its change in generation
/// `to`, which must exist, and removes the former.
fn merge_into(
    connection: &Connection,
    names: &QuotedNames,
    key: &[Value],
    from: i64,
    to: i64,
) -> rusqlite::Result<()> {
    let columns = std::iter::once("present").chain(names.pre.iter().map(String::as_str));
    let columns: Vec<&str> = columns.collect();
    let columns = columns.join(", ");
    let change = &names.change;
    let key_is = names.change_key_is_bound();
    let parameter = key.len() + 1;
    let mut update = connection.prepare_cached(&format!(
        "UPDATE {change} SET ({columns}) = (SELECT {columns} FROM {change} \
         WHERE {key_is} AND generation = ?{}) WHERE {key_is} AND generation = ?{parameter}",
        parameter + 1
    ))?;
    names.bind_key(&mut update, key)?;
    update.raw_bind_parameter(parameter, to)?;
    update.raw_bind_parameter(parameter + 1, from)?;
    update.raw_execute()?;
    let mut delete = connection.prepare_cached(&format!(
        "DELETE FROM {change} WHERE {key_is} AND generation = ?{parameter}"
    ))?;
    names.bind_key(&mut delete, key)?;
    delete.raw_bind_parameter(parameter, from)?;
    delete.raw_execute()?;
    Ok(())
}
