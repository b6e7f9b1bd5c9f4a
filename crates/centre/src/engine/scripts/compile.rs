//! Reading and checking scripts.

use std::collections::BTreeMap;

use tidewater_protocol::{ColumnType, PublicationSchema, Table};

use super::agreement::{
    beside_handlers, differing, leave_unserved, overwriting, resolves_by_script, together,
};
use super::spelling::{NamedEvent, is_ignored, named_event, without_braces};
use super::statement_text::{
    StatementText, by_key, check_order, line, lookup, marks, name_column, names_client, nothing,
    parse, relation, set, sets, type_of, typed,
};
use super::trial::{TrialTables, created_table};
use super::{CompiledScript, EVENTS, ScriptEvent, ScriptForm, ScriptStatement, Scripts, Versions};
use crate::engine::activity::check_safe_time;
use crate::engine::change_tracking::ChangeTracking;
use crate::engine::scope_query::wrong;
use crate::engine::script::{
    ROWS, Script, ScriptError, ScriptParameter, ScriptPurpose, first_word, statements,
};
use crate::engine::sql::served_table::ServedTable;
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
