//! Reading and checking scripts.

use std::collections::BTreeMap;

use tidewater_protocol::{ColumnType, PublicationSchema, Table};

use super::agreement::{
    beside_handlers, differing, leave_unserved, overwriting, resolves_by_script, together,
};
use super::check::CheckedScript;
use super::events::parameter_type;
use super::spelling::{
    NamedEvent, is_function_call, is_ignored, marked, named_event, without_braces,
};
use super::trial::{TrialTables, created_table};
use super::{
    CompiledScript, EVENTS, ScriptEvent, ScriptForm, ScriptImages, ScriptStatement, Scripts,
    SetColumn, Versions,
};
use crate::engine::activity::check_safe_time;
use crate::engine::change_tracking::ChangeTracking;
use crate::engine::scope_query::wrong;
use crate::engine::script::{
    ROWS, Script, ScriptError, ScriptParameter, ScriptPurpose, first_word, statements,
};
use crate::engine::sql::column::SqlColumn as _;
use crate::engine::sql::served_table::ServedTable;
use crate::engine::sql::set_relation::{RelationColumn, SetRelation};
use crate::error::{CentreError, ScriptFault};
use crate::nearest::nearest;
use crate::publication::{PublicationSpec, ScriptSpec};

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

/// Reads the scripts of a publication, and has the database read them. Tells beside them what their
/// operator may not have thought of.
///
/// # Errors
/// [`CentreError::Scripts`], with everything that is wrong.
pub async fn compile<T: ChangeTracking>(
    connection: &mut T::Connection,
    spec: &PublicationSpec,
    schema: &PublicationSchema,
    tables: &[ServedTable<T::Tables>],
) -> Result<(Versions, Vec<String>)> {
    let mut versions: BTreeMap<String, Scripts> = BTreeMap::new();
    let (mut faults, mut warnings) = (Vec::new(), Vec::new());
    let mut by_version: BTreeMap<&str, Vec<&ScriptSpec>> = BTreeMap::new();
    for script in &spec.scripts {
        by_version.entry(&script.version).or_default().push(script);
    }
    for (version, mut specs) in by_version {
        let mut scripts = Scripts::default();
        scripts
            .tables
            .resize_with(schema.tables.len(), Default::default);
        let creates = specs.iter().any(|it| creates_tables::<T>(it));
        if creates {
            specs.sort_by_key(|it| order(it, schema));
        }
        let mut trial = TrialTables::begin::<T>(connection, creates).await?;
        for script in specs {
            let reading = ScriptReader::<T> {
                schema,
                tables,
                trial: &mut trial,
                warnings: &mut warnings,
            };
            let compiled = reading.one(connection, script).await;
            let compiled = compiled.and_then(|compiled| {
                beside_handlers(&compiled, script, spec)?;
                Ok(compiled)
            });
            let Some(compiled) = noted(compiled, &mut faults)? else {
                continue;
            };
            let taken = scripts.add(compiled, script.table.as_deref(), schema);
            noted(taken, &mut faults)?;
        }
        trial.end::<T>(connection).await?;
        versions.insert(version.to_owned(), scripts);
    }
    let mut tables_of_none = schema.tables.iter().filter(|_| versions.is_empty());
    if let Some(table) = tables_of_none.find(|it| resolves_by_script(spec, &it.name)) {
        faults.push(ScriptFault {
            message: format!(
                "table {:?} resolves conflicts by script, and there is no script",
                table.name
            ),
            hint: format!("write scripts/default/{}/resolve_conflict.sql", table.name),
        });
    }
    if faults.is_empty() {
        for (version, scripts) in &versions {
            let checked = together(version, scripts, spec, schema);
            noted(checked, &mut faults)?;
            warnings.extend(overwriting(version, scripts, schema));
        }
    }
    if versions.values().any(Scripts::has_downloads) {
        let checked = check_safe_time::<T>(connection).await;
        noted(checked, &mut faults)?;
    }
    if !faults.is_empty() {
        return Err(CentreError::Scripts { faults });
    }
    warnings.extend(leave_unserved(&mut versions, spec, schema));
    let versions = versions.into_iter();
    let versions = versions.map(|(name, it)| (name, it.into()));
    Ok((versions.collect(), warnings))
}

/// Whether a script creates temporary tables.
fn creates_tables<T: ChangeTracking>(script: &ScriptSpec) -> bool {
    let texts = statements(&script.sql, T::lexing()).unwrap_or_default();
    texts
        .iter()
        .any(|it| created_table(it, T::lexing()).is_some())
}

/// Where a script stands in a sync.
fn order(script: &ScriptSpec, schema: &PublicationSchema) -> (usize, usize) {
    let event = match named_event(&script.event) {
        NamedEvent::Known { event, .. } => EVENTS.iter().position(|it| it == event),
        _ => None,
    };
    let table = script.table.as_ref();
    let table = table.and_then(|name| schema.tables.iter().position(|it| it.name == *name));
    (event.unwrap_or(EVENTS.len()), table.map_or(0, |it| it + 1))
}

impl Scripts {
    /// Adds a script, of the connection or of a table.
    ///
    /// # Errors
    /// There is one of the event, under another name.
    fn add(
        &mut self,
        compiled: CompiledScript,
        table: Option<&str>,
        schema: &PublicationSchema,
    ) -> Result<()> {
        let of_event = match table {
            None => &mut self.connection,
            Some(name) => match schema.tables.iter().position(|it| it.name == name) {
                Some(index) => &mut self.tables[index],
                None => return Ok(()),
            },
        };
        let name = compiled.event.name;
        // Who is to lose no rows has no script for that.
        if name == "download_delete_cursor" && compiled.statements.is_empty() {
            return Ok(());
        }
        match of_event.get(name) {
            None => {
                of_event.insert(name, compiled);
                Ok(())
            }
            Some(other) => Err(wrong(
                &compiled.place,
                &format!("stands for {name}, as {} does", other.place),
                "keep one of them",
            )),
        }
    }
}

/// Keeps what is wrong with the configuration; passes on what else failed.
fn noted<T>(result: Result<T>, faults: &mut Vec<ScriptFault>) -> Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(CentreError::Configuration { message, hint }) => {
            faults.push(ScriptFault { message, hint });
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The line of a script, from 1, at which a part of it begins.
fn line(script: &str, part: &str) -> usize {
    let at = (part.as_ptr() as usize).saturating_sub(script.as_ptr() as usize);
    let before = script.get(..at).unwrap_or_default();
    before.matches('\n').count() + 1
}

/// Reads the scripts of a version.
struct ScriptReader<'r, T: ChangeTracking> {
    schema: &'r PublicationSchema,
    tables: &'r [ServedTable<T::Tables>],
    trial: &'r mut TrialTables,
    warnings: &'r mut Vec<String>,
}

/// The event of a script, and whether its question marks stand for hashed passwords.
fn event_of(spec: &ScriptSpec) -> Result<(&'static ScriptEvent, bool)> {
    let place = &spec.file;
    match named_event(&spec.event) {
        NamedEvent::Known { event, is_hashed } => Ok((event, is_hashed)),
        NamedEvent::Absent { instead } => Err(wrong(
            place,
            &format!(
                "stands for {}, an event of other servers that this one does not have",
                spec.event
            ),
            instead,
        )),
        NamedEvent::Unknown => {
            let near = nearest(&spec.event, EVENTS.iter().map(|it| it.name));
            let hint = match near {
                Some(near) => format!("did you mean {near}.sql?"),
                None => "docs/scripts.md lists the events".into(),
            };
            Err(wrong(
                place,
                &format!("stands for no event: there is no {:?}", spec.event),
                hint,
            ))
        }
    }
}

impl<T: ChangeTracking> ScriptReader<'_, T> {
    /// Checks one script.
    async fn one(
        mut self,
        connection: &mut T::Connection,
        spec: &ScriptSpec,
    ) -> Result<CompiledScript> {
        let (place, schema) = (spec.file.clone(), self.schema);
        let (event, is_hashed) = event_of(spec)?;
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
            Some(name) => schema.tables.iter().position(|it| it.name == *name),
        };
        let served = table.map(|it| &self.tables[it]);
        let table = table.map(|it| &schema.tables[it]);
        let is_wrong =
            |error: ScriptError| wrong(&place, &format!("is wrong: {error}"), error.hint());
        let texts = match is_ignored(&spec.sql) {
            true => Vec::new(),
            false => statements(&spec.sql, T::lexing()).map_err(is_wrong)?,
        };
        let is_query = matches!(
            event.form,
            ScriptForm::Rows | ScriptForm::Keys | ScriptForm::Fetch
        );
        if texts.len() > 1 && is_query {
            return Err(wrong(&place, "has several statements", "write one query"));
        }
        let mut compiled = CompiledScript {
            event,
            place: place.clone(),
            statements: Vec::with_capacity(texts.len()),
            lookup: None,
            by_key: None,
        };
        let parsed = parse::<T>(spec, &texts)?;
        let parsed = marks(&place, (event, is_hashed), table, parsed)?;
        for (text, mut script) in texts.into_iter().zip(parsed) {
            let place = format!("{place}, line {}", line(&spec.sql, text));
            let text = without_braces(text);
            let word = first_word(text, T::lexing());
            if FORBIDDEN.contains(&&*word) {
                let what = format!("has a statement that begins with {word:?}");
                let hint = "transactions are the server's affair: it begins and commits them; put a \
                            block of statements into a procedure, and CALL that";
                return Err(wrong(&place, &what, hint));
            }
            if word == "COPY" && names_client(text) {
                let hint = "write INSERT: what COPY reads from STDIN, or writes to STDOUT, a client \
                            would have to send or take";
                return Err(wrong(&place, "has a COPY that only a client can run", hint));
            }
            let (set, of_rows) = match (table, served) {
                (Some(table), Some(served)) if script.sql.contains(ROWS) => {
                    let set = set(&place, event, table)?;
                    let relation = relation::<T>(served, &set, script.parameters.len() + 1);
                    script.sql = script.sql.replace(ROWS, &relation.sql);
                    (set, relation.parameters)
                }
                _ if script.sql.contains(ROWS) => {
                    let what = format!("names {{rows}}, which {} does not have", event.name);
                    return Err(wrong(&place, &what, "only events of uploaded rows have it"));
                }
                _ => (Vec::new(), 0),
            };
            let mut types = Vec::with_capacity(script.parameters.len());
            for parameter in &mut script.parameters {
                name_column(parameter, table);
                types.push(type_of(&place, event, table, parameter)?);
            }
            let is_of_column = |it: &ScriptParameter| {
                matches!(it, ScriptParameter::New(_) | ScriptParameter::Old(_))
            };
            let typed = match (table, served) {
                (Some(table), Some(served))
                    if set.is_empty() && script.parameters.iter().any(is_of_column) =>
                {
                    typed::<T>(text, &script, table, served)
                }
                _ => None,
            };
            let statement = StatementText {
                place: &place,
                text,
                word,
                script,
                typed,
                types,
                set,
                of_rows,
            };
            let statement = self
                .statement(connection, &mut compiled, statement, table)
                .await?;
            compiled.statements.push(statement);
        }
        if event.form == ScriptForm::Rows && compiled.statements.is_empty() {
            compiled.lookup = Some(nothing());
        }
        if compiled.is_of_sets() {
            let mut named = compiled
                .statements
                .iter()
                .flat_map(|it| &it.script.parameters);
            let of_row = |it: &&ScriptParameter| {
                matches!(it, ScriptParameter::New(_) | ScriptParameter::Old(_))
            };
            if let Some(parameter) = named.find(of_row) {
                let what =
                    format!("names both {{rows}}, all rows, and {{{parameter}}}, one of them");
                return Err(wrong(&place, &what, "use one or the other in a script"));
            }
        }
        let differing = differing(&compiled);
        let differing = differing.map(|it| format!("the script {place} {it}"));
        self.warnings.extend(differing);
        Ok(compiled)
    }

    /// Has the database read a statement.
    async fn statement(
        &mut self,
        connection: &mut T::Connection,
        compiled: &mut CompiledScript,
        read: StatementText<'_>,
        table: Option<&Table>,
    ) -> Result<ScriptStatement> {
        let StatementText {
            place,
            text,
            word,
            mut script,
            typed,
            types,
            set,
            of_rows,
        } = read;
        let event = compiled.event;
        let yields: Vec<ColumnType> = match (event.form, table) {
            (ScriptForm::Rows | ScriptForm::Fetch, Some(table)) => {
                table.columns.iter().map(|it| it.column_type).collect()
            }
            (ScriptForm::Keys, Some(table)) => {
                table.key_columns().map(|it| it.column_type).collect()
            }
            _ => Vec::new(),
        };
        let is_query = matches!(
            event.form,
            ScriptForm::Rows | ScriptForm::Keys | ScriptForm::Fetch
        );
        let checked = self.trial.check::<T>(connection, place, &script, of_rows);
        let mut checked = checked.await;
        if let (Err(CentreError::Configuration { .. }), Some(typed)) = (&checked, typed) {
            // The database may not find the types of parameters that it is not told.
            let again = self.trial.check::<T>(connection, place, &typed, of_rows);
            let again = again.await;
            if again.is_ok() {
                (checked, script) = (again, typed);
            }
        }
        let checked = checked?;
        if event.form == ScriptForm::Once && created_table(text, T::lexing()).is_some() {
            let sql = Script::parse_for(ScriptPurpose::Script, text, T::lexing(), |_| {
                "NULL".to_owned()
            });
            let sql = sql.map(|it| it.sql).unwrap_or_default();
            let created = self.trial.create::<T>(connection, &sql).await;
            created.map_err(|error| wrong(place, &format!("is wrong: {error}"), "mend it"))?;
        }
        let told = checked.warnings.iter();
        self.warnings
            .extend(told.map(|it| format!("the script {place} {it}")));
        let found = &checked.columns;
        if is_query && found.len() != yields.len() {
            let names = match event.form {
                ScriptForm::Keys => table.map(|it| it.key_columns().map(|it| &*it.name).collect()),
                _ => table.map(|it| it.columns.iter().map(|it| &*it.name).collect()),
            };
            let names: Vec<&str> = names.unwrap_or_default();
            let what = format!(
                "yields {} columns, and {} are wanted",
                found.len(),
                yields.len()
            );
            let hint = format!("select {}", names.join(", "));
            return Err(wrong(place, &what, hint));
        }
        if is_query && let Some(table) = table {
            check_order(place, event, table, found)?;
            if event.form == ScriptForm::Rows {
                let lookup = lookup::<T>(table, (&script, &types));
                let asked = self.trial.check::<T>(connection, place, &lookup.script, 0);
                asked.await?;
                compiled.by_key = Some(by_key(table, &lookup, &yields));
                compiled.lookup = Some(lookup);
            }
        }
        let sets = match event.form {
            ScriptForm::Once => sets(place, event, &word, &script, &checked)?,
            _ => Vec::new(),
        };
        Ok(ScriptStatement {
            yields: match sets.is_empty() {
                true => yields,
                false => vec![ColumnType::Text; sets.len()],
            },
            script,
            types,
            sets,
            counts: word == "UPDATE",
            set: set.into(),
        })
    }
}

/// Whether a statement names what a client sends or takes.
fn names_client(statement: &str) -> bool {
    let mut words = statement.split(|it: char| !it.is_alphanumeric());
    words.any(|it| it.eq_ignore_ascii_case("stdin") || it.eq_ignore_ascii_case("stdout"))
}

/// A statement of a script that is to be read by the database.
struct StatementText<'s> {
    place: &'s str,
    text: &'s str,
    word: String,
    script: Script,
    /// The same with the types of the columns, where the database has a spelling for that.
    typed: Option<Script>,
    types: Vec<ColumnType>,
    set: Vec<SetColumn>,
    /// How many parameters the relation of these columns has.
    of_rows: usize,
}

/// Parses the statements of a script; their question marks are numbered through.
fn parse<T: ChangeTracking>(spec: &ScriptSpec, texts: &[&str]) -> Result<Vec<Script>> {
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
fn marks(
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
fn typed<T: ChangeTracking>(
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
fn name_column(parameter: &mut ScriptParameter, table: Option<&Table>) {
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
fn nothing() -> ScriptStatement {
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
fn lookup<T: ChangeTracking>(
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
fn by_key(table: &Table, lookup: &ScriptStatement, yields: &[ColumnType]) -> ScriptStatement {
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
fn set(place: &str, event: &ScriptEvent, table: &Table) -> Result<Vec<SetColumn>> {
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
fn relation<T: ChangeTracking>(
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
fn sets(
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

fn is_time(name: &str) -> bool {
    parameter_type(name) == ColumnType::TimestampTz
}

/// What a query yields is taken by its place: whoever names the table's columns in another order
/// means something else.
fn check_order(place: &str, event: &ScriptEvent, table: &Table, found: &[String]) -> Result<()> {
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
fn type_of(
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
