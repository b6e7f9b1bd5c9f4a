//! The text of a script: its statements with their parameters, and what they read and set.

use tidewater_protocol::{ColumnType, Table};

use super::check::CheckedScript;
use super::events::parameter_type;
use super::spelling::{is_function_call, marked, without_braces};
use super::{ScriptEvent, ScriptForm, ScriptImages, ScriptStatement, SetColumn};
use crate::engine::change_tracking::ChangeTracking;
use crate::engine::scope_query::wrong;
use crate::engine::script::{Script, ScriptParameter, ScriptPurpose};
use crate::engine::sql::column::SqlColumn as _;
use crate::engine::sql::served_table::ServedTable;
use crate::engine::sql::set_relation::{RelationColumn, SetRelation};
use crate::error::CentreError;
use crate::nearest::nearest;
use crate::publication::ScriptSpec;

type Result<T> = std::result::Result<T, CentreError>;

/// Whether a statement names what a client sends or takes.
pub(super) fn names_client(statement: &str) -> bool {
    let mut words = statement.split(|it: char| !it.is_alphanumeric());
    words.any(|it| it.eq_ignore_ascii_case("stdin") || it.eq_ignore_ascii_case("stdout"))
}

/// A statement of a script that is to be read by the database.
pub(super) struct StatementText<'s> {
    pub(super) place: &'s str,
    pub(super) text: &'s str,
    pub(super) word: String,
    pub(super) script: Script,
    /// The same with the types of the columns, where the database has a spelling for that.
    pub(super) typed: Option<Script>,
    pub(super) types: Vec<ColumnType>,
    pub(super) set: Vec<SetColumn>,
    /// How many parameters the relation of these columns has.
    pub(super) of_rows: usize,
}

/// Parses the statements of a script; their question marks are numbered through.
pub(super) fn parse<T: ChangeTracking>(spec: &ScriptSpec, texts: &[&str]) -> Result<Vec<Script>> {
    let mut parsed = Vec::with_capacity(texts.len());
    let mut before = 0;
    for text in texts {
        let place = format!("{}, line {}", spec.file, line(&spec.sql, text));
        let text = without_braces(text);
        if is_function_call(text) {
            let hint = "write SELECT f(...) AS NAME, with the name of a parameter that can be set \
                        (docs/scripts.md), or SELECT f(...) if nothing is to be set";
            return Err(wrong(
                &place,
                "calls a function for its value, {? = call f(...)}",
                hint,
            ));
        }
        let script = Script::parse_for(ScriptPurpose::Script, text, T::lexing(), T::parameter);
        let mut script =
            script.map_err(|error| wrong(&place, &format!("is wrong: {error}"), error.hint()))?;
        let mut marks = 0;
        for parameter in &mut script.parameters {
            if let ScriptParameter::Mark(number) = parameter {
                *number += before;
                marks += 1;
            }
        }
        before += marks;
        parsed.push(script);
    }
    Ok(parsed)
}

/// Has the question marks of a script be what they stand for.
pub(super) fn marks(
    place: &str,
    (event, is_hashed): (&ScriptEvent, bool),
    table: Option<&Table>,
    mut parsed: Vec<Script>,
) -> Result<Vec<Script>> {
    let all = || parsed.iter().flat_map(|it| &it.parameters);
    let is_mark = |it: &&ScriptParameter| matches!(it, ScriptParameter::Mark(_));
    let count = all().filter(is_mark).count();
    if count == 0 {
        return Ok(parsed);
    }
    if let Some(named) = all().find(|it| !is_mark(it)) {
        let what = format!("has question marks, and names {{{named}}} beside them");
        return Err(wrong(place, &what, "name all of them, or none"));
    }
    let meant = marked(event, is_hashed, table, count).map_err(|known| {
        let what = format!(
            "has {count} question marks, and {} has fewer parameters",
            event.name
        );
        wrong(place, &what, format!("{known}; name them instead"))
    })?;
    for parameter in parsed.iter_mut().flat_map(|it| &mut it.parameters) {
        if let ScriptParameter::Mark(number) = parameter {
            *parameter = meant[*number].clone();
        }
    }
    Ok(parsed)
}

/// A statement whose parameters of columns say their types.
pub(super) fn typed<T: ChangeTracking>(
    text: &str,
    script: &Script,
    table: &Table,
    served: &ServedTable<T::Tables>,
) -> Option<Script> {
    let spelled = |number: usize| {
        let parameter = number
            .checked_sub(1)
            .and_then(|it| script.parameters.get(it));
        let column = match parameter {
            Some(ScriptParameter::New(name) | ScriptParameter::Old(name)) => table.column(name),
            _ => None,
        };
        let parameter = T::parameter(number);
        let typed = column.and_then(|it| served.columns.get(it)?.typed_parameter(&parameter));
        typed.unwrap_or(parameter)
    };
    let typed = Script::parse_for(ScriptPurpose::Script, text, T::lexing(), spelled).ok()?;
    (typed.sql != script.sql).then(|| Script {
        sql: typed.sql,
        parameters: script.parameters.clone(),
    })
}

/// Gives a parameter of a column the name as the table has it: scripts may number columns from 1, and
/// other servers take small and capital letters as the same.
pub(super) fn name_column(parameter: &mut ScriptParameter, table: Option<&Table>) {
    let (ScriptParameter::New(name) | ScriptParameter::Old(name), Some(table)) = (parameter, table)
    else {
        return;
    };
    if table.column(name).is_some() {
        return;
    }
    let number = name.parse::<usize>().ok().and_then(|it| it.checked_sub(1));
    let mut alike = table
        .columns
        .iter()
        .filter(|it| it.name.eq_ignore_ascii_case(name));
    let column = match number {
        Some(number) => table.columns.get(number),
        None => alike.next().filter(|_| alike.next().is_none()),
    };
    if let Some(column) = column {
        name.clone_from(&column.name);
    }
}

/// The query that tells that no row is given to anybody.
pub(super) fn nothing() -> ScriptStatement {
    ScriptStatement {
        script: Script {
            sql: "SELECT 1 WHERE 1 = 0".to_owned(),
            parameters: Vec::new(),
        },
        types: Vec::new(),
        yields: vec![ColumnType::Integer],
        sets: Vec::new(),
        counts: false,
        set: Vec::new().into(),
    }
}

/// The query that tells whether one that yields rows of a table yields the row with a key, whatever
/// it calls its columns.
pub(super) fn lookup<T: ChangeTracking>(
    table: &Table,
    (query, types): (&Script, &[ColumnType]),
) -> ScriptStatement {
    let (mut parameters, mut types) = (query.parameters.clone(), types.to_vec());
    let names: Vec<String> = (0..table.columns.len())
        .map(|it| format!("c{it}"))
        .collect();
    let mut is_it = Vec::with_capacity(table.key.len());
    for &column in &table.key {
        parameters.push(ScriptParameter::New(table.columns[column].name.clone()));
        types.push(table.columns[column].column_type);
        let parameter = T::parameter(parameters.len());
        is_it.push(format!("{} = {parameter}", names[column]));
    }
    // The line may end with a comment.
    let sql = format!(
        "WITH tidewater_given ({}) AS ({}\n) {FOUND}{}",
        names.join(", "),
        query.sql,
        is_it.join(" AND "),
    );
    ScriptStatement {
        script: Script { sql, parameters },
        types,
        yields: vec![ColumnType::Integer],
        sets: Vec::new(),
        counts: false,
        set: Vec::new().into(),
    }
}

/// What the query that [`lookup`] makes selects.
const FOUND: &str = "SELECT 1 FROM tidewater_given WHERE ";

/// The query that yields the row that a lookup tells of.
pub(super) fn by_key(
    table: &Table,
    lookup: &ScriptStatement,
    yields: &[ColumnType],
) -> ScriptStatement {
    let mut by_key = lookup.clone();
    let (query, is_it) = lookup.script.sql.rsplit_once(FOUND).unwrap_or_default();
    let names: Vec<String> = (0..table.columns.len())
        .map(|it| format!("c{it}"))
        .collect();
    let names = names.join(", ");
    by_key.script.sql = format!("{query}SELECT {names} FROM tidewater_given WHERE {is_it}");
    by_key.yields = yields.to_vec();
    by_key
}

/// The relation of the rows of an event.
pub(super) fn set(place: &str, event: &ScriptEvent, table: &Table) -> Result<Vec<SetColumn>> {
    let ScriptForm::Row(images) = event.form else {
        let what = format!("names {{rows}}, which {} does not have", event.name);
        return Err(wrong(place, &what, "only events of uploaded rows have it"));
    };
    let columns = |is_old: bool| {
        let columns = table.columns.iter().enumerate();
        columns.map(move |(index, column)| SetColumn {
            name: match is_old && images == ScriptImages::Both {
                true => format!("old_{}", column.name),
                false => column.name.clone(),
            },
            is_old,
            index,
            column_type: column.column_type,
        })
    };
    Ok(match images {
        ScriptImages::New => columns(false).collect(),
        ScriptImages::Old => columns(true).collect(),
        ScriptImages::Both => columns(false).chain(columns(true)).collect(),
    })
}

/// The relation of these columns of a table, as a statement reads it.
pub(super) fn relation<T: ChangeTracking>(
    served: &ServedTable<T::Tables>,
    set: &[SetColumn],
    first: usize,
) -> SetRelation {
    let columns = set.iter().enumerate().map(|(at, column)| {
        let of_table = &served.columns[column.index];
        RelationColumn {
            name: &column.name,
            parameter_type: of_table.parameter_type().to_owned(),
            value: of_table.input(&format!("i.c{at}")),
        }
    });
    let columns: Vec<RelationColumn<'_>> = columns.collect();
    T::dialect().set_relation(&columns, first)
}

/// What the columns that a statement yields set: those of a procedure's answer the parameters that
/// can be set, in the order in which it names them; of any other statement, each by its name.
pub(super) fn sets(
    place: &str,
    event: &ScriptEvent,
    word: &str,
    script: &Script,
    checked: &CheckedScript,
) -> Result<Vec<Option<ScriptParameter>>> {
    let found = &checked.columns;
    let is_time = |name: &String| event.sets.contains(&&**name) && is_time(name);
    if let Some(name) = checked.zoneless.iter().find(|it| is_time(it)) {
        let what =
            format!("sets {name} to a time without a zone, which may be any moment of a day");
        let hint = "cast it: (...)::timestamptz is that time in the time zone of the database";
        return Err(wrong(place, &what, hint));
    }
    let is_set = |it: &&ScriptParameter| match it {
        ScriptParameter::System(name) => event.sets.contains(name),
        it => matches!(it, ScriptParameter::User(_)),
    };
    if word == "CALL" && !found.is_empty() {
        let named: Vec<&ScriptParameter> = script.parameters.iter().filter(is_set).collect();
        if named.len() != found.len() {
            let what = format!(
                "calls a procedure that gives back {} values, and names {} parameters that it can \
                 set",
                found.len(),
                named.len()
            );
            let settable = event.sets.iter().map(|it| format!("{{s.{it}}}"));
            let settable: Vec<String> = settable.chain(["{u.NAME}".to_owned()]).collect();
            let hint = format!("pass one of {} for each", settable.join(", "));
            return Err(wrong(place, &what, hint));
        }
        return Ok(named.into_iter().cloned().map(Some).collect());
    }
    let columns = found.iter().map(|column| {
        if let Some(name) = column.strip_prefix("u.") {
            return Some(ScriptParameter::User(name.to_owned()));
        }
        let set = event.sets.iter().find(|it| *it == column);
        set.map(|it| ScriptParameter::System(it))
    });
    let columns: Vec<Option<ScriptParameter>> = columns.collect();
    let unknown = columns.iter().position(Option::is_none);
    if let Some(unknown) = unknown.filter(|_| !event.sets.is_empty()) {
        let name = &found[unknown];
        let what = format!("yields a column {name:?}, which sets nothing");
        let hint = match nearest(name, event.sets.iter().copied()) {
            Some(near) => format!("did you mean {near:?}?"),
            None => format!(
                "name it {}, or \"u.NAME\" to keep it for other scripts",
                event.sets.join(" or ")
            ),
        };
        return Err(wrong(place, &what, hint));
    }
    Ok(match columns.iter().any(Option::is_some) {
        true => columns,
        false => Vec::new(),
    })
}

pub(super) fn is_time(name: &str) -> bool {
    parameter_type(name) == ColumnType::TimestampTz
}

/// What a query yields is taken by its place: whoever names the table's columns in another order
/// means something else.
pub(super) fn check_order(
    place: &str,
    event: &ScriptEvent,
    table: &Table,
    found: &[String],
) -> Result<()> {
    let wanted: Vec<String> = match event.form {
        ScriptForm::Keys => table
            .key_columns()
            .map(|it| it.name.to_lowercase())
            .collect(),
        _ => table
            .columns
            .iter()
            .map(|it| it.name.to_lowercase())
            .collect(),
    };
    let found: Vec<String> = found.iter().map(|it| it.to_lowercase()).collect();
    let elsewhere = |(at, name): &(usize, &String)| {
        let place = wanted.iter().position(|it| it == *name);
        place.is_some_and(|it| it != *at)
    };
    match found.iter().enumerate().find(elsewhere) {
        None => Ok(()),
        Some((_, name)) => Err(wrong(
            place,
            &format!("yields the column {name:?} in another place than the table has it"),
            format!("select {}", wanted.join(", ")),
        )),
    }
}

/// The type of a parameter, if the event has it.
pub(super) fn type_of(
    place: &str,
    event: &ScriptEvent,
    table: Option<&Table>,
    parameter: &ScriptParameter,
) -> Result<ColumnType> {
    let of_column = |name: &str, has: bool| {
        let Some(table) = table.filter(|_| has) else {
            let what = format!("names {{{parameter}}}, which {} does not have", event.name);
            let hint = "only events of single rows have their columns: docs/scripts.md says which";
            return Err(wrong(place, &what, hint));
        };
        match table.column(name) {
            Some(column) => Ok(table.columns[column].column_type),
            None => {
                let names = || table.columns.iter().map(|it| it.name.as_str());
                let hint = match nearest(name, names()) {
                    Some(near) => format!("did you mean {near:?}?"),
                    None => format!("its columns are {}", names().collect::<Vec<_>>().join(", ")),
                };
                let what = format!("names {{{parameter}}}, and the table has no such column");
                Err(wrong(place, &what, hint))
            }
        }
    };
    match parameter {
        ScriptParameter::New(name) => of_column(
            name,
            matches!(event.form, ScriptForm::Row(_) | ScriptForm::Fetch),
        ),
        ScriptParameter::Old(name) => of_column(
            name,
            matches!(
                event.form,
                ScriptForm::Row(ScriptImages::Old | ScriptImages::Both) | ScriptForm::Fetch
            ),
        ),
        ScriptParameter::System(name) => {
            let known = event.named();
            if !known.contains(name) {
                let known: Vec<String> = known.iter().map(|it| format!("{{s.{it}}}")).collect();
                let what = format!("names {{{parameter}}}, which {} does not have", event.name);
                return Err(wrong(place, &what, format!("it has {}", known.join(", "))));
            }
            Ok(parameter_type(name))
        }
        ScriptParameter::User(_)
        | ScriptParameter::Claim(_)
        | ScriptParameter::Argument(_)
        | ScriptParameter::Mark(_) => Ok(ColumnType::Text),
    }
}

/// The line of a script, from 1, at which a part of it begins.
pub(super) fn line(script: &str, part: &str) -> usize {
    let at = (part.as_ptr() as usize).saturating_sub(script.as_ptr() as usize);
    let before = script.get(..at).unwrap_or_default();
    before.matches('\n').count() + 1
}
