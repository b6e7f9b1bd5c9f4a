//! How conflicts of a table are resolved, read and checked against the table.

use tidewater_protocol::ColumnType;

use super::{ComputedValue, Resolver, Winner};
use crate::engine::catalog::TableInfo;
use crate::engine::compile::{CompiledWrites, named_columns, wrong};
use crate::error::CentreError;
use crate::nearest::nearest;
use crate::publication::{ConflictDetection, TableSpec};

type Result<T> = std::result::Result<T, CentreError>;

/// What resolvers are called, how one is written, and what its columns have to be.
const RESOLVERS: [(&str, &str, ResolverColumns); 14] = [
    ("server_wins", "server_wins", ResolverColumns::None),
    ("client_wins", "client_wins", ResolverColumns::Users),
    ("rank", "rank", ResolverColumns::None),
    ("park", "park", ResolverColumns::None),
    ("handler", "handler", ResolverColumns::None),
    ("script", "script", ResolverColumns::None),
    (
        "later",
        "later(changed_at)",
        ResolverColumns::One(is_time, TIME),
    ),
    (
        "earlier",
        "earlier(booked_at)",
        ResolverColumns::One(is_time, TIME),
    ),
    (
        "maximum",
        "maximum(version)",
        ResolverColumns::One(is_ordered, ORDERED),
    ),
    (
        "minimum",
        "minimum(price)",
        ResolverColumns::One(is_ordered, ORDERED),
    ),
    (
        "priority",
        "priority(level)",
        ResolverColumns::One(is_number, NUMBER),
    ),
    (
        "additive",
        "additive(stock)",
        ResolverColumns::Some(is_number, NUMBER),
    ),
    (
        "average",
        "average(rating)",
        ResolverColumns::Some(is_number, NUMBER),
    ),
    (
        "merge_text",
        "merge_text(notes)",
        ResolverColumns::Some(is_text, TEXT),
    ),
];

const TIME: &str = "a date or a time";
const ORDERED: &str = "a number, a date or a time";
const NUMBER: &str = "a number";
const TEXT: &str = "text";

/// The columns that a resolver is given, and what they have to be.
#[derive(Clone, Copy)]
enum ResolverColumns {
    None,
    /// Names of users, or none.
    Users,
    One(fn(ColumnType) -> bool, &'static str),
    Some(fn(ColumnType) -> bool, &'static str),
}

fn is_time(column_type: ColumnType) -> bool {
    use ColumnType::{Date, Time, Timestamp, TimestampTz};
    matches!(column_type, Date | Time | Timestamp | TimestampTz)
}

fn is_number(column_type: ColumnType) -> bool {
    use ColumnType::{Decimal, Integer, Real};
    matches!(column_type, Integer | Decimal { .. } | Real)
}

fn is_ordered(column_type: ColumnType) -> bool {
    is_time(column_type) || is_number(column_type)
}

fn is_text(column_type: ColumnType) -> bool {
    column_type == ColumnType::Text
}

/// Reads how conflicts of a table are resolved.
///
/// # Errors
/// [`CentreError::Configuration`], with the place.
pub fn compile(
    place: &str,
    spec: &TableSpec,
    table: &TableInfo,
    published: &[usize],
    writes: &CompiledWrites,
) -> Result<Resolver> {
    let mut resolver = Resolver {
        detect: spec.conflict.detect,
        centre_rank: spec.conflict.centre_rank,
        ..Resolver::default()
    };
    if spec.conflict == crate::publication::ConflictSpec::default() {
        return Ok(resolver);
    }
    if !spec.direction.uploads() {
        return Err(wrong(
            format!("{place}: `conflict` is about what remotes write, and they only download it"),
            "leave out `conflict`, or `direction`",
        ));
    }
    let place = format!("{place}: conflict.resolve");
    let mut winner: Option<&str> = None;
    for written in &spec.conflict.resolve {
        let (name, names) = parse(&place, written)?;
        let Some(&(name, example, wanted)) = RESOLVERS.iter().find(|it| it.0 == name) else {
            let near = nearest(&name, RESOLVERS.iter().map(|it| it.0));
            let known = RESOLVERS.iter().map(|it| it.1).collect::<Vec<_>>();
            return Err(wrong(
                format!("{place}: there is no resolver {name:?}"),
                match near {
                    Some(near) => format!("did you mean {near:?}?"),
                    None => format!("there are {}", known.join(", ")),
                },
            ));
        };
        let (is_fit, what) = match (wanted, names.len()) {
            (ResolverColumns::None | ResolverColumns::Users, 0) if !written.contains('(') => {
                set_winner(&place, &mut resolver, &mut winner, name, 0)?;
                continue;
            }
            (ResolverColumns::Users, 1..) => {
                set_winner(&place, &mut resolver, &mut winner, name, 0)?;
                resolver.users = names;
                continue;
            }
            (ResolverColumns::One(is_fit, what), 1) => (is_fit, what),
            (ResolverColumns::Some(is_fit, what), 1..) => (is_fit, what),
            (ResolverColumns::Users, _) => {
                return Err(wrong(
                    format!("{place}: {written:?} names nobody"),
                    "name users, or write client_wins for all",
                ));
            }
            (ResolverColumns::One(is_fit, what) | ResolverColumns::Some(is_fit, what), _) => {
                let of_key = |name: &&str| {
                    let mut key = table.key.iter();
                    key.any(|&it| &*table.columns[it].name == *name)
                };
                let mut fitting = name_fitting(table, is_fit);
                fitting.retain(|it| !of_key(it));
                return Err(wrong(
                    format!("{place}: {written:?} does not name the columns that it needs"),
                    match fitting.as_slice() {
                        [] => {
                            format!("it needs {what}, and the table has none: use another resolver")
                        }
                        [only] => format!("write {name}({only})"),
                        [first, others @ ..] => format!(
                            "write {name}({first}), or another column that is {what}: {}",
                            others.join(", ")
                        ),
                    },
                ));
            }
            (ResolverColumns::None, _) => {
                return Err(wrong(
                    format!("{place}: {written:?} names columns, and needs none"),
                    format!("write {example}"),
                ));
            }
        };
        let columns = named_columns(&place, table, &names, written)?;
        for column in columns {
            let info = &table.columns[column];
            let column_name = &info.name;
            let Some(position) = published.iter().position(|it| *it == column) else {
                return Err(wrong(
                    format!("{place}: the column {column_name:?} of {written:?} is not published"),
                    format!("add {column_name:?} to `columns`"),
                ));
            };
            let column_type = info.column_type.as_ref();
            if !column_type.is_ok_and(|it| is_fit(*it)) {
                let (declared, fitting) = (&info.type_name, name_fitting(table, is_fit));
                return Err(wrong(
                    format!(
                        "{place}: {name} needs {what}, and the column {column_name:?} is {declared}"
                    ),
                    match fitting.is_empty() {
                        true => "use another resolver".to_owned(),
                        false => format!("these columns would do: {}", fitting.join(", ")),
                    },
                ));
            }
            let ResolverColumns::Some(..) = wanted else {
                set_winner(&place, &mut resolver, &mut winner, name, position)?;
                continue;
            };
            let obstacle = if table.key.contains(&column) {
                "belongs to the primary key"
            } else if info.is_generated {
                "is computed by the database"
            } else if writes.read_only.contains(&column) {
                "is in `read_only`"
            } else if resolver.computed.iter().any(|it| it.0 == position) {
                "has a resolver already"
            } else {
                ""
            };
            if !obstacle.is_empty() {
                return Err(wrong(
                    format!("{place}: {written:?}: the column {column_name:?} {obstacle}"),
                    "leave it out",
                ));
            }
            let how = match name {
                "additive" => ComputedValue::Additive,
                "average" => ComputedValue::Average,
                _ => ComputedValue::MergedText,
            };
            resolver.computed.push((position, how));
        }
    }
    check_rank(&place, spec, resolver.winner)?;
    let is_alone = resolver.computed.is_empty() && resolver.detect == ConflictDetection::Row;
    if resolver.winner == Winner::Script && !is_alone {
        return Err(wrong(
            format!("{place}: scripts resolve whole rows"),
            "leave out the other resolvers, and detect = \"column\"",
        ));
    }
    Ok(resolver)
}

/// Whether the keys about ranks go with the resolver.
fn check_rank(place: &str, spec: &TableSpec, winner: Winner) -> Result<()> {
    let conflict = &spec.conflict;
    match (winner, &conflict.rank, conflict.centre_rank) {
        (Winner::Rank, None, _) => Err(wrong(
            format!("{place}: nothing says which rank a user has"),
            "write conflict.rank = \"SELECT level FROM staff WHERE login = {s.username}\", or \
             conflict.rank = \"{s.claims.level}\"",
        )),
        (Winner::Rank, Some(_), _) | (_, None, None) => Ok(()),
        _ => Err(wrong(
            format!("{place}: `rank` and `centre_rank` are for the resolver rank"),
            "write conflict.resolve = \"rank\", or leave them out",
        )),
    }
}

/// Sets whose values count. One resolver of a table says so, and no more.
fn set_winner<'n>(
    place: &str,
    resolver: &mut Resolver,
    before: &mut Option<&'n str>,
    name: &'n str,
    column: usize,
) -> Result<()> {
    if let Some(before) = before.replace(name) {
        return Err(wrong(
            format!("{place}: both {before} and {name} say whose values count"),
            "keep one of them; additive, average and merge_text can stand beside it",
        ));
    }
    resolver.winner = match name {
        "client_wins" => Winner::Remote,
        "rank" => Winner::Rank,
        "park" => Winner::Nobody,
        "handler" => Winner::Handler,
        "script" => Winner::Script,
        "later" | "maximum" | "priority" => Winner::Greater(column),
        "earlier" | "minimum" => Winner::Less(column),
        _ => Winner::Centre,
    };
    Ok(())
}

/// The columns of a table that would do.
fn name_fitting(table: &TableInfo, is_fit: fn(ColumnType) -> bool) -> Vec<&str> {
    let columns = table.columns.iter();
    let fitting = columns.filter(|it| it.column_type.as_ref().is_ok_and(|it| is_fit(*it)));
    fitting.map(|it| &*it.name).collect()
}

/// Reads `name`, or `name(column, column)`.
fn parse(place: &str, written: &str) -> Result<(String, Vec<String>)> {
    let written = written.trim();
    let Some((name, rest)) = written.split_once('(') else {
        return Ok((written.to_owned(), Vec::new()));
    };
    let Some(columns) = rest.strip_suffix(')') else {
        return Err(wrong(
            format!("{place}: {written:?} has no closing bracket"),
            "write it like later(changed_at)",
        ));
    };
    let columns = columns.split(',').map(|it| it.trim().to_owned());
    let columns = columns.filter(|it| !it.is_empty());
    Ok((name.trim().to_owned(), columns.collect()))
}
