//! Reading and checking scripts.

use std::collections::BTreeMap;

use tidewater_protocol::{ColumnType, PublicationSchema, Table};

use super::events::parameter_type;
use super::{COMMON, Compiled, EVENTS, Event, Form, Images, Scripts, Statement, Versions, event};
use crate::engine::database::Tracking;
use crate::engine::scope::wrong;
use crate::engine::script::{Parameter, Purpose, Script, ScriptError, first_word, statements};
use crate::error::CentreError;
use crate::nearest::nearest;
use crate::publication::{PublicationSpec, RuleSpec, ScriptSpec, TableSpec};

type Result<T> = std::result::Result<T, CentreError>;

/// What ends or begins a transaction, or changes what holds for it: the server's affair.
const FORBIDDEN: [&str; 12] = [
    "BEGIN",
    "START",
    "COMMIT",
    "END",
    "ROLLBACK",
    "ABORT",
    "SAVEPOINT",
    "RELEASE",
    "PREPARE",
    "PRAGMA",
    "ATTACH",
    "DETACH",
];

/// Statements of which it is known how many rows they have changed.
const COUNTED: [&str; 4] = ["INSERT", "UPDATE", "DELETE", "REPLACE"];

/// Reads the scripts of a publication, and has the database read them.
///
/// # Errors
/// [`CentreError::Configuration`], with the file.
pub async fn compile<T: Tracking>(
    connection: &mut T::Connection,
    spec: &PublicationSpec,
    schema: &PublicationSchema,
) -> Result<Versions> {
    let mut versions: BTreeMap<String, Scripts> = BTreeMap::new();
    for script in &spec.scripts {
        let scripts = versions.entry(script.version.clone()).or_default();
        scripts
            .tables
            .resize_with(schema.tables.len(), Default::default);
        let compiled = one::<T>(connection, script, schema).await?;
        let name = compiled.event.name;
        match &script.table {
            None => scripts.connection.insert(name, compiled),
            Some(table) => {
                let index = schema.tables.iter().position(|it| it.name == *table);
                index.and_then(|it| scripts.tables[it].insert(name, compiled))
            }
        };
    }
    for (version, scripts) in &versions {
        together(version, scripts, spec, schema)?;
    }
    let versions = versions.into_iter();
    Ok(versions.map(|(name, it)| (name, it.into())).collect())
}

/// Checks one script.
async fn one<T: Tracking>(
    connection: &mut T::Connection,
    spec: &ScriptSpec,
    schema: &PublicationSchema,
) -> Result<Compiled> {
    let place = spec.file.clone();
    let Some(event) = event(&spec.event) else {
        let near = nearest(&spec.event, EVENTS.iter().map(|it| it.name));
        let hint = match near {
            Some(near) => format!("did you mean {near}.sql?"),
            None => "docs/scripts.md lists the events".into(),
        };
        return Err(wrong(
            &place,
            &format!("stands for no event: there is no {:?}", spec.event),
            hint,
        ));
    };
    let table = match &spec.table {
        None if !event.of_connection => {
            let hint = "put it into the folder of the table that it is for";
            return Err(wrong(
                &place,
                "stands for an event of tables, not of the connection",
                hint,
            ));
        }
        Some(_) if !event.of_table => {
            let hint = "put it into the folder \"connection\"";
            return Err(wrong(
                &place,
                "stands for an event of the connection, not of a table",
                hint,
            ));
        }
        None => None,
        Some(name) => schema.tables.iter().find(|it| it.name == *name),
    };
    let is_wrong = |error: ScriptError| wrong(&place, &format!("is wrong: {error}"), error.hint());
    let texts = statements(&spec.sql, T::DIALECT).map_err(is_wrong)?;
    let is_query = matches!(event.form, Form::Rows | Form::Keys | Form::Fetch);
    if texts.len() > 1 && is_query {
        return Err(wrong(&place, "has several statements", "write one query"));
    }
    let columns = |key_only: bool| -> Vec<ColumnType> {
        let Some(table) = table else {
            return Vec::new();
        };
        match key_only {
            true => table.key_columns().map(|it| it.column_type).collect(),
            false => table.columns.iter().map(|it| it.column_type).collect(),
        }
    };
    let yields = match event.form {
        Form::Rows | Form::Fetch => columns(false),
        Form::Keys => columns(true),
        Form::Once | Form::Row(_) => Vec::new(),
    };
    let mut compiled = Compiled {
        event,
        place: place.clone(),
        statements: Vec::with_capacity(texts.len()),
    };
    for text in texts {
        let word = first_word(text, T::DIALECT);
        if FORBIDDEN.contains(&&*word) {
            let what = format!("has a statement that begins with {word:?}");
            let hint = "transactions are the server's affair: it begins and commits them";
            return Err(wrong(&place, &what, hint));
        }
        let script = Script::parse_for(Purpose::Script, text, T::DIALECT, T::parameter);
        let script = script.map_err(is_wrong)?;
        let mut types = Vec::with_capacity(script.parameters.len());
        for parameter in &script.parameters {
            types.push(type_of(&place, event, table, parameter)?);
        }
        let found = T::check_script(connection, &place, &script, &types).await?;
        if is_query && found.len() != yields.len() {
            let names = match event.form {
                Form::Keys => table.map(|it| it.key_columns().map(|it| &*it.name).collect()),
                _ => table.map(|it| it.columns.iter().map(|it| &*it.name).collect()),
            };
            let names: Vec<&str> = names.unwrap_or_default();
            let what = format!(
                "yields {} columns, and {} are wanted",
                found.len(),
                yields.len()
            );
            let hint = format!("select {}", names.join(", "));
            return Err(wrong(&place, &what, hint));
        }
        compiled.statements.push(Statement {
            script,
            types,
            yields: yields.clone(),
            counts: COUNTED.contains(&&*word),
        });
    }
    Ok(compiled)
}

/// The type of a parameter, if the event has it.
fn type_of(
    place: &str,
    event: &Event,
    table: Option<&Table>,
    parameter: &Parameter,
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
        Parameter::New(name) => of_column(name, matches!(event.form, Form::Row(_) | Form::Fetch)),
        Parameter::Old(name) => of_column(
            name,
            matches!(
                event.form,
                Form::Row(Images::Old | Images::Both) | Form::Fetch
            ),
        ),
        Parameter::System(name) => {
            let is_known = COMMON.contains(name)
                || event.parameters.contains(name)
                || *name == "table" && event.of_table;
            if !is_known {
                let mut known: Vec<&str> = COMMON
                    .into_iter()
                    .chain(event.parameters.iter().copied())
                    .collect();
                known.extend(event.of_table.then_some("table"));
                let known: Vec<String> = known.iter().map(|it| format!("{{s.{it}}}")).collect();
                let what = format!("names {{{parameter}}}, which {} does not have", event.name);
                return Err(wrong(place, &what, format!("it has {}", known.join(", "))));
            }
            Ok(parameter_type(name))
        }
        Parameter::User(_) | Parameter::Claim(_) | Parameter::Argument(_) => Ok(ColumnType::Text),
    }
}

/// Checks what the scripts of a version are together.
fn together(
    version: &str,
    scripts: &Scripts,
    spec: &PublicationSpec,
    schema: &PublicationSchema,
) -> Result<()> {
    for (table, of_table) in schema.tables.iter().zip(&scripts.tables) {
        let has = |event: &str| of_table.contains_key(event);
        let place = format!("script version {version:?}, table {:?}", table.name);
        let twice = [("upload_fetch", "upload_fetch_column_conflict")];
        if let Some((one, other)) = twice.iter().find(|(one, other)| has(one) && has(other)) {
            let what = format!("has both {one} and {other}, which contradict each other");
            return Err(wrong(&place, &what, "keep one of them"));
        }
        let resolving = [
            "resolve_conflict",
            "upload_new_row_insert",
            "upload_old_row_insert",
        ];
        if let Some(event) = resolving.iter().find(|it| has(it))
            && !has("upload_fetch")
            && !has("upload_fetch_column_conflict")
            && has("upload_update")
        {
            let what = format!("has {event}, and nothing that finds conflicts");
            let hint = "add upload_fetch; or remove upload_update, so that every update is one";
            return Err(wrong(&place, &what, hint));
        }
        if has("download_delete_cursor") && !has("download_cursor") {
            let what = "has download_delete_cursor without download_cursor";
            return Err(wrong(
                &place,
                what,
                "add download_cursor, or remove the other",
            ));
        }
        // Remotes have tables without their schema.
        let own = |it: &&TableSpec| it.name.rsplit('.').next() == Some(&*table.name);
        let rules = spec.tables.iter().find(own).map(|it| &it.partition);
        let everyones = rules.is_some_and(|it| it[..] == [RuleSpec::everyone()]);
        if has("download_cursor") && !everyones {
            let what =
                "has download_cursor, which says who gets which rows, and a partition beside";
            return Err(wrong(&place, what, "write partition = \"everyone\""));
        }
        if has("download_cursor") && !table.direction.downloads() {
            let what = "has download_cursor, and is only uploaded";
            return Err(wrong(
                &place,
                what,
                "change `direction`, or remove the script",
            ));
        }
    }
    Ok(())
}
