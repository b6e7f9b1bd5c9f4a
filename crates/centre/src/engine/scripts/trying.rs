//! Trying a script in a transaction that is undone, and printing the statement that is generated where
//! there is no script.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidewater_protocol::{ColumnType, Datum, Table, Value};

use super::{
    CompiledScript, ScriptEnvironment, ScriptForm, ScriptImages, ScriptStatement,
    ScriptTransaction, Scripts, failed,
};
use crate::engine::change_tracking::ChangeTracking;
use crate::engine::connection::{DatabaseConnection as _, TransactionMode};
use crate::engine::publication_compiler::compile_one;
use crate::engine::script::{Script, ScriptParameter};
use crate::engine::upload::row_batch::{RowSet, ScriptOutcome};
use crate::engine::upload::row_json;
use crate::engine::upload::upload_driver::UploadDriver;
use crate::engine::upload::upload_writer::UploadWriter;
use crate::error::CentreError;
use crate::publication::PublicationSpec;
use crate::trying::{ScriptTrial, ScriptsToTry, TriedScript, TriedStatement};

type Result<T> = std::result::Result<T, CentreError>;

/// Reads the scripts of a version of a publication.
///
/// # Errors
/// Whatever is wrong with the publication.
pub async fn scripts_to_try<T: ChangeTracking>(
    connection: &mut T::Connection,
    spec: &PublicationSpec,
    version: &str,
) -> Result<ScriptsToTry> {
    connection.begin(TransactionMode::Trying).await?;
    let catalog = T::catalog(connection).await?;
    let publication = compile_one::<T>(connection, spec, &catalog).await?;
    connection.rollback().await?;
    let scripts = publication.scripts.get(version).cloned();
    let tables = &publication.schema.tables;
    let served = tables.iter().zip(&publication.tables);
    Ok(ScriptsToTry {
        publication: spec.name.clone(),
        tables: tables.clone(),
        sql_names: publication
            .tables
            .iter()
            .map(|it| it.sql_name.clone())
            .collect(),
        scripts: scripts.unwrap_or_else(|| Arc::new(Scripts::default())),
        rows: served
            .map(|(table, served)| read_row::<T>(table, &served.sql_name))
            .collect(),
    })
}

/// A name in quotes, as every database reads it.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// What reads the row of a table with a key.
fn read_row<T: ChangeTracking>(table: &Table, sql_name: &str) -> ScriptStatement {
    let names = table.columns.iter().map(|it| quoted(&it.name));
    let names: Vec<String> = names.collect();
    let mut parameters = Vec::with_capacity(table.key.len());
    let mut types = Vec::with_capacity(table.key.len());
    let mut is_it = Vec::with_capacity(table.key.len());
    for &column in &table.key {
        parameters.push(ScriptParameter::New(table.columns[column].name.clone()));
        types.push(table.columns[column].column_type);
        is_it.push(format!(
            "{} = {}",
            names[column],
            T::parameter(parameters.len())
        ));
    }
    ScriptStatement {
        script: Script {
            sql: format!(
                "SELECT {} FROM {sql_name} WHERE {}",
                names.join(", "),
                is_it.join(" AND ")
            ),
            parameters,
        },
        types,
        yields: table.columns.iter().map(|it| it.column_type).collect(),
        sets: Vec::new(),
        counts: false,
        set: Vec::new().into(),
    }
}

/// Values of a row by column.
type Row = BTreeMap<usize, Value>;

/// Tries a script; see [`crate::Worker::try_script`].
pub async fn try_script<R: UploadDriver>(
    rows: &mut UploadWriter<R>,
    asked: &ScriptTrial,
) -> Result<TriedScript> {
    rows.begin(0).await?;
    let tried = run(rows, asked).await;
    match &tried {
        Ok(_) => rows.connection().rollback().await?,
        Err(CentreError::Unavailable { .. }) => {}
        Err(_) => rows.connection().rollback().await?,
    }
    tried
}

async fn run<R: UploadDriver>(
    rows: &mut UploadWriter<R>,
    asked: &ScriptTrial,
) -> Result<TriedScript> {
    let to_try = &asked.scripts;
    let scripting =
        ScriptEnvironment::with(to_try.scripts.clone(), &asked.context, &to_try.publication);
    let table = asked.table.map(|it| &to_try.tables[it]);
    let name = table.map_or("", |it| &*it.name);
    let Some(compiled) = scripting.script(asked.event, asked.table) else {
        let of = if name.is_empty() { "connection" } else { name };
        return Err(CentreError::Configuration {
            message: format!("there is no script of {of} at {}", asked.event),
            hint: format!(
                "write one; `tidewater script print {of} {}` prints what to begin from",
                asked.event
            ),
        });
    };
    let (new, old) = match table {
        Some(table) if compiled.event.form.has_rows() => images(table, compiled, asked)?,
        _ => (Row::new(), Row::new()),
    };
    rows.watch_changes().await?;
    let mut tried = TriedScript {
        before: before(rows, &scripting, compiled, asked).await?,
        ..TriedScript::default()
    };
    let own = asked.table.filter(|_| compiled.event.form.has_rows());
    let own = own.map(|it| (&to_try.tables[it], &to_try.rows[it]));
    if let Some((table, reads)) = own {
        tried.row_before = read(rows, table, reads, &old, &new).await?;
    }
    let rows_of = RowsOfTrial {
        asked,
        table,
        scripting: &scripting,
        new: &new,
        old: &old,
    };
    // Of a conflict its images come before what resolves it.
    let images = ["upload_old_row_insert", "upload_new_row_insert"];
    let resolving = [images[0], images[1], "resolve_conflict"];
    let place = resolving.iter().position(|it| *it == compiled.event.name);
    for event in images.into_iter().take(place.unwrap_or_default()) {
        let Some(script) = scripting.script(event, asked.table) else {
            continue;
        };
        if let Err(reason) = rows_of.run(rows, script).await? {
            tried.refused = Some(format!("{}: {reason}", script.place));
            return Ok(tried);
        }
        tried.before.push(script.place.clone());
    }
    match rows_of.run(rows, compiled).await? {
        Ok(statements) => tried.statements = statements,
        Err(reason) => tried.refused = Some(reason),
    }
    if let Some((table, reads)) = own {
        tried.row_after = read(rows, table, reads, &old, &new).await?;
    }
    tried.changed = rows.changed_tables().await?;
    Ok(tried)
}

/// What a script is tried with.
struct RowsOfTrial<'t> {
    asked: &'t ScriptTrial,
    table: Option<&'t Table>,
    scripting: &'t ScriptEnvironment<'t>,
    new: &'t Row,
    old: &'t Row,
}

impl RowsOfTrial<'_> {
    /// The values of a statement's parameters.
    fn values(&self, statement: &ScriptStatement) -> Vec<Value> {
        let column = |row: &Row, name: &str| {
            let place = self.table.and_then(|it| it.column(name));
            let value = place.and_then(|it| row.get(&it));
            value.cloned().unwrap_or(Value::Null)
        };
        let name = self.table.map_or("", |it| &*it.name);
        let parameters = statement.script.parameters.iter();
        let values = parameters.map(|parameter| match parameter {
            ScriptParameter::New(name) => column(self.new, name),
            ScriptParameter::Old(name) => column(self.old, name),
            other => self.scripting.value(other, name),
        });
        values.collect()
    }

    /// Runs a script; gives what its statements did, or why the database refuses it.
    async fn run<R: UploadDriver>(
        &self,
        rows: &mut UploadWriter<R>,
        compiled: &CompiledScript,
    ) -> Result<std::result::Result<Vec<TriedStatement>, String>> {
        let statements = &compiled.statements;
        let mut tried = Vec::with_capacity(statements.len());
        if compiled.is_of_sets() {
            let mut sets = statements.iter().map(|it| &it.set);
            let columns = sets.find(|it| !it.is_empty());
            let row = columns.into_iter().flat_map(|it| it.iter()).map(|it| {
                let image = if it.is_old { self.old } else { self.new };
                image.get(&it.index).cloned().unwrap_or(Value::Null)
            });
            let set = RowSet {
                values: statements.iter().map(|it| self.values(it)).collect(),
                rows: vec![row.collect()],
            };
            let publication = rows.publication(&self.asked.scripts.publication)?;
            let place = self.asked.table.unwrap_or_default();
            let ran = rows
                .run_set(&publication.tables[place], statements, &set)
                .await;
            if let ScriptOutcome::Refused(refusal) = ran.map_err(|error| compiled.names(error))? {
                return Ok(Err(refusal.reason));
            }
            tried.extend(statements.iter().map(|it| TriedStatement {
                sql: it.script.sql.clone(),
                ..TriedStatement::default()
            }));
            return Ok(Ok(tried));
        }
        for statement in statements {
            let bound = self.values(statement);
            let read = (compiled, statement);
            match one(rows, read, self.table, &bound, self.scripting).await? {
                Ok(done) => tried.push(done),
                Err(reason) => return Ok(Err(reason)),
            }
        }
        Ok(Ok(tried))
    }
}

/// Runs one statement; gives why the database refuses it.
async fn one<R: UploadDriver>(
    rows: &mut UploadWriter<R>,
    (compiled, statement): (&CompiledScript, &ScriptStatement),
    table: Option<&Table>,
    values: &[Value],
    scripting: &ScriptEnvironment<'_>,
) -> Result<std::result::Result<TriedStatement, String>> {
    let is_query = matches!(
        compiled.event.form,
        ScriptForm::Rows | ScriptForm::Keys | ScriptForm::Fetch
    );
    let counted = ScriptStatement {
        counts: !is_query,
        ..statement.clone()
    };
    let bound = [vec![values.to_vec()]];
    let ran = rows.run_script(std::slice::from_ref(&counted), &bound);
    let ran = ran.await.map_err(|error| compiled.names(error))?;
    let (changed, row) = match ran.into_iter().next().unwrap_or_default() {
        ScriptOutcome::Refused(refusal) => return Ok(Err(refusal.reason)),
        ScriptOutcome::Done { changed, row } => (changed, row),
    };
    let mut done = TriedStatement {
        sql: statement.script.sql.clone(),
        rows: changed,
        ..TriedStatement::default()
    };
    if is_query {
        let count = ScriptStatement {
            script: Script {
                // The line may end with a comment.
                sql: format!(
                    "SELECT count(*) FROM ({}\n) AS tidewater_tried",
                    statement.script.sql
                ),
                parameters: statement.script.parameters.clone(),
            },
            yields: vec![ColumnType::Integer],
            ..statement.clone()
        };
        let ran = rows.run_script(std::slice::from_ref(&count), &bound);
        let ran = ran.await.map_err(|error| compiled.names(error))?;
        if let Some(ScriptOutcome::Done { row: Some(row), .. }) = ran.into_iter().next()
            && let Some(Value::Integer(count)) = row.first()
        {
            done.rows = u64::try_from(*count).ok();
        }
        let columns = table.map(|it| match compiled.event.form {
            ScriptForm::Keys => it.key_columns().collect::<Vec<_>>(),
            _ => it.columns.iter().collect(),
        });
        if let (Some(row), Some(columns)) = (&row, columns) {
            let names = columns.iter().map(|it| &*it.name);
            let values = row.iter().zip(&columns);
            let values = values.map(|(value, of)| of.column_type.datum(value.as_ref()).0);
            done.first = Some(row_json::row(names, &values.collect::<Vec<Datum<'_>>>()));
        }
    } else if let Some(row) = row {
        let named = statement.sets.iter().zip(&row);
        let named = named.filter_map(|(set, value)| Some((set.as_ref()?, value)));
        done.set = named
            .map(|(set, value)| (set.to_string(), shown(value)))
            .collect();
        scripting.set(compiled, statement, row)?;
    }
    Ok(Ok(done))
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "NULL".to_owned(),
        Value::Integer(number) => number.to_string(),
        Value::Real(number) => number.to_string(),
        Value::Text(text) => text.clone(),
        Value::Blob(bytes) => format!("{} bytes", bytes.len()),
    }
}

/// The row as it is to be, and as it was.
fn images(table: &Table, compiled: &CompiledScript, asked: &ScriptTrial) -> Result<(Row, Row)> {
    let wrong = |message: String| CentreError::Configuration {
        message,
        hint: format!(
            "write --row '{{\"{}\": ...}}' with the row as a device wants it, and --old with the row \
             as it was where that differs",
            table.columns.first().map_or("column", |it| &it.name)
        ),
    };
    let read = |json: &String| -> Result<Row> {
        let row = row_json::read(table, json).map_err(wrong)?;
        match row.unknown.first() {
            None => Ok(row.values.into_iter().collect()),
            Some(name) => Err(wrong(format!("{:?} has no column {name:?}", table.name))),
        }
    };
    let row = asked.row.as_ref().map(read).transpose()?;
    let old = asked.old.as_ref().map(read).transpose()?;
    let (new, old) = match (row, old) {
        (None, None) => {
            let what = format!(
                "{} is run for a row, and there is none",
                compiled.event.name
            );
            return Err(wrong(what));
        }
        (Some(new), None) => (new.clone(), new),
        (None, Some(old)) => (old.clone(), old),
        (Some(new), Some(old)) => {
            let mut whole = old.clone();
            whole.extend(new);
            (whole, old)
        }
    };
    match table.key.iter().find(|it| !new.contains_key(it)) {
        None => Ok((new, old)),
        Some(&column) => {
            let name = &table.columns[column].name;
            Err(wrong(format!(
                "the row has no {name:?}, which is of its key"
            )))
        }
    }
}

/// Runs what stands before a script in a sync; gives where it stands.
async fn before<R: UploadDriver>(
    rows: &mut UploadWriter<R>,
    scripting: &ScriptEnvironment<'_>,
    compiled: &CompiledScript,
    asked: &ScriptTrial,
) -> Result<Vec<String>> {
    let event = compiled.event;
    let tables = || (0..asked.scripts.tables.len()).map(Some);
    let mut all: Vec<(&str, Option<usize>)> = Vec::new();
    if event.is_of_a_sync() || event.transaction == ScriptTransaction::Acknowledged {
        all.push(("begin_connection", None));
        all.push(("begin_synchronization", None));
        all.extend(tables().map(|it| ("begin_synchronization", it)));
        all.push(("begin_publication", None));
    }
    let of_table: &[&str] = match (event.transaction, event.form) {
        (ScriptTransaction::Upload, ScriptForm::Row(ScriptImages::Old)) => {
            &["begin_upload", "begin_upload_deletes"]
        }
        (ScriptTransaction::Upload, ScriptForm::Row(_) | ScriptForm::Fetch) => {
            &["begin_upload", "begin_upload_rows"]
        }
        (ScriptTransaction::Upload, _) => &["begin_upload"],
        (ScriptTransaction::Download | ScriptTransaction::AfterDownload, _) => &["begin_download"],
        _ => &[],
    };
    for event in of_table {
        all.push((event, None));
        all.push((event, asked.table));
    }
    let is_it = |it: &(&str, Option<usize>)| *it == (event.name, asked.table);
    let mut ran = Vec::new();
    for (event, table) in all.iter().take_while(|it| !is_it(it)) {
        let Some(script) = scripting.script(event, *table) else {
            continue;
        };
        if ran.contains(&script.place) {
            continue;
        }
        let name = table.map_or("", |it| &*asked.scripts.tables[it].name);
        if let Some(refusal) = scripting.once(rows, script, name).await? {
            return Err(failed(script, &refusal));
        }
        ran.push(script.place.clone());
    }
    Ok(ran)
}

/// The row of a table as it is: by its key as it was, or as it is to be.
async fn read<R: UploadDriver>(
    rows: &mut UploadWriter<R>,
    table: &Table,
    reads: &ScriptStatement,
    old: &Row,
    new: &Row,
) -> Result<Option<String>> {
    for row in [new, old] {
        let key = table
            .key
            .iter()
            .map(|it| row.get(it).cloned().unwrap_or(Value::Null));
        let key = [vec![key.collect()]];
        let ran = rows.run_script(std::slice::from_ref(reads), &key);
        if let Some(ScriptOutcome::Done { row: Some(row), .. }) = ran.await?.into_iter().next() {
            let names = table.columns.iter().map(|it| &*it.name);
            let values = row.iter().zip(&table.columns);
            let values = values.map(|(value, of)| of.column_type.datum(value.as_ref()).0);
            let values: Vec<Datum<'_>> = values.collect();
            return Ok(Some(row_json::row(names, &values)));
        }
    }
    Ok(None)
}

/// The statement that a script at an event of a table can begin from: it does what is done without a
/// script; as SQL with named parameters.
pub fn print_script(table: &Table, sql_name: &str, form: ScriptForm, event: &str) -> String {
    let name = |column: usize| quoted(&table.columns[column].name);
    let parameter =
        |image: &str, column: usize| format!("{{{image}.{}}}", table.columns[column].name);
    let all = 0..table.columns.len();
    let names: Vec<String> = all.clone().map(name).collect();
    let names = names.join(", ");
    let is_row = |image: &str| {
        let parts = table
            .key
            .iter()
            .map(|&it| format!("{} = {}", name(it), parameter(image, it)));
        parts.collect::<Vec<_>>().join(" AND ")
    };
    match (form, event) {
        (_, "upload_insert") => {
            let values: Vec<String> = all.map(|it| parameter("r", it)).collect();
            format!(
                "INSERT INTO {sql_name} ({names})\nVALUES ({});\n",
                values.join(", ")
            )
        }
        (_, "upload_update") => {
            let set = all.map(|it| format!("{} = {}", name(it), parameter("r", it)));
            let set: Vec<String> = set.collect();
            format!(
                "UPDATE {sql_name}\nSET {}\nWHERE {};\n",
                set.join(",\n    "),
                is_row("o")
            )
        }
        (_, "upload_delete") => format!("DELETE FROM {sql_name}\nWHERE {};\n", is_row("o")),
        (ScriptForm::Fetch, _) => {
            format!("SELECT {names}\nFROM {sql_name}\nWHERE {};\n", is_row("o"))
        }
        (ScriptForm::Rows, _) => format!(
            "-- Say here who gets which rows: by {{s.username}}, and by the time of their last change,\n\
             -- such as WHERE last_modified >= {{s.last_download}}\n\
             SELECT {names}\nFROM {sql_name};\n"
        ),
        (ScriptForm::Keys, _) => {
            let keys: Vec<String> = table.key.iter().map(|&it| name(it)).collect();
            format!(
                "-- Say here which rows the remote is to lose, such as WHERE last_modified >= {{s.last_download}}\n\
                 SELECT {}\nFROM {sql_name}\nWHERE 1 = 0;\n",
                keys.join(", ")
            )
        }
        _ => String::new(),
    }
}
