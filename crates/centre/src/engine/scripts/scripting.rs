//! The scripts of one sync, and what their parameters are that no row has.

use std::sync::Arc;

use tidewater_protocol::{Code, ColumnType, Datum, Value};

use super::events::parameter_type;
use super::{CompiledScript, ScriptStatement, Scripts, Versions};
use crate::context::{DEFAULT, SyncContext, VERSION};
use crate::engine::flight::{TableArgument, TableStatement};
use crate::engine::script::ScriptParameter;
use crate::engine::sql::served_table::TableAdapter;
use crate::engine::watermark::PresentedCheckpoint;
use crate::error::CentreError;
use crate::scope::Checkpoint;
use crate::script_notes::ScriptReport;

type Result<T> = std::result::Result<T, CentreError>;

/// When a remote downloads for the first time, this is when it did so last: 1900-01-01, in
/// microseconds since 1970.
const NEVER: i64 = -2_208_988_800_000_000;

/// The scripts of a sync, and for whom they run.
pub struct ScriptEnvironment<'r> {
    /// The scripts.
    pub scripts: Arc<Scripts>,
    context: &'r SyncContext,
    publication: &'r str,
    /// Up to when the remote has everything, in microseconds since 1970, if it has anything.
    last_download: Option<i64>,
    /// Up to when it will have.
    next_last_download: i64,
}

/// The version that a remote has chosen.
pub fn version<'c>(context: &'c SyncContext, publication: &str) -> &'c str {
    context.script_version(publication).unwrap_or(DEFAULT)
}

/// The parameters of remotes that scripts go by.
pub fn named(scripts: &Scripts) -> impl Iterator<Item = &str> {
    let statements = scripts.all().flat_map(|it| &it.statements);
    let parameters = statements.flat_map(|it| &it.script.parameters);
    parameters
        .filter_map(ScriptParameter::of_remote)
        .chain([VERSION])
}

/// The scripts that a remote has chosen.
///
/// # Errors
/// There is no such version.
pub fn chosen(
    versions: &Versions,
    context: &SyncContext,
    publication: &str,
) -> Result<Option<Arc<Scripts>>> {
    let asked = version(context, publication);
    let named = match context.script_version(publication) {
        Some(_) => format!("script version {asked:?}"),
        None => format!("no script version, so that it has {asked:?}"),
    };
    let found = of_version(versions, context, publication);
    let message = match found.map(|it| (it, &it.unserved)) {
        Some((_, Some(why))) => {
            format!("{named}, which {publication:?} does not serve: {why}")
        }
        Some((scripts, None)) => {
            let has_some = scripts.all().next().is_some();
            return Ok(has_some.then(|| scripts.clone()));
        }
        None if asked == DEFAULT => return Ok(None),
        None => format!("there is no script version {asked:?} of {publication:?}"),
    };
    let served = versions.iter().filter(|it| it.1.unserved.is_none());
    let served: Vec<&str> = served.map(|it| it.0.as_str()).collect();
    let served = match served.is_empty() {
        true => "none".to_owned(),
        false => format!("{} (--script-version NAME)", served.join(", ")),
    };
    Err(CentreError::Peer {
        message: format!("{message}; there are: {served}"),
        code: Code::ParameterNotAllowed,
    })
}

/// The scripts of the version that a remote has chosen, whether it may have them or not.
pub fn of_version<'v>(
    versions: &'v Versions,
    context: &SyncContext,
    publication: &str,
) -> Option<&'v Arc<Scripts>> {
    versions.get(version(context, publication))
}

impl<'r> ScriptEnvironment<'r> {
    /// Those of a sync, if its remote has chosen some.
    ///
    /// # Errors
    /// There is no such version.
    pub fn for_sync(
        versions: &Versions,
        context: &'r SyncContext,
        publication: &'r str,
    ) -> Result<Option<ScriptEnvironment<'r>>> {
        let scripts = chosen(versions, context, publication)?;
        Ok(scripts.map(|scripts| ScriptEnvironment::with(scripts, context, publication)))
    }

    /// Those of a version that is not served.
    pub fn with(
        scripts: Arc<Scripts>,
        context: &'r SyncContext,
        publication: &'r str,
    ) -> ScriptEnvironment<'r> {
        ScriptEnvironment {
            scripts,
            context,
            publication,
            last_download: None,
            next_last_download: context.now_ms.saturating_mul(1000),
        }
    }

    /// The same for a remote that presents this.
    pub fn since(self, checkpoint: Option<&Checkpoint>) -> ScriptEnvironment<'r> {
        let presented = checkpoint.and_then(PresentedCheckpoint::from_checkpoint);
        ScriptEnvironment {
            last_download: presented.and_then(|it| it.watermark.last_download),
            ..self
        }
    }

    /// The same for a download between these times; where scripts have said another thing, between
    /// what they said, as far as no row is lost by that: of a remote that has nothing everything is
    /// asked for, and what may be written later is asked for the next time.
    pub fn between(self, last: Option<i64>, next: i64) -> ScriptEnvironment<'r> {
        let said = self
            .time("next_last_download")
            .map_or(next, |said| said.min(next));
        let last = last.map(|last| self.time("last_download").unwrap_or(last));
        self.note_time("last_download", last.unwrap_or(NEVER));
        self.note_time("next_last_download", said);
        ScriptEnvironment {
            last_download: last,
            next_last_download: said,
            ..self
        }
    }

    /// Up to when the remote will have everything.
    pub fn next_last_download(&self) -> i64 {
        self.next_last_download
    }

    /// For whom they run.
    pub(super) fn context(&self) -> &'r SyncContext {
        self.context
    }

    /// The publication's name.
    pub(super) fn publication(&self) -> &'r str {
        self.publication
    }

    /// Whether `{s.name}` is known by itself.
    pub(super) fn knows(&self, name: &str) -> bool {
        self.context.scripts.fact(self.publication, name).is_some()
    }

    /// What a script has said of a time, in microseconds since 1970.
    fn time(&self, name: &str) -> Option<i64> {
        let value = self.context.scripts.fact(self.publication, name)?;
        match ColumnType::TimestampTz.datum(value.as_ref()).0 {
            Datum::TimestampTz(micros) => Some(micros),
            _ => None,
        }
    }

    /// Has `{s.name}` be a time, in microseconds since 1970.
    pub(super) fn note_time(&self, name: &'static str, micros: i64) {
        self.note(name, Datum::TimestampTz(micros).to_value());
    }

    /// Has `{s.name}` be this.
    pub fn note(&self, name: &'static str, value: Value) {
        self.context.scripts.set_fact(self.publication, name, value);
    }

    /// What a script has set.
    pub fn fact(&self, name: &str) -> Option<Value> {
        self.context.scripts.fact(self.publication, name)
    }

    /// A number that a script has set.
    pub fn number(&self, name: &str) -> Option<i64> {
        match self.fact(name) {
            Some(Value::Integer(number)) => Some(number),
            _ => None,
        }
    }

    /// What is to be reported and counted of an upload comes from what is done now.
    pub fn forget_upload(&self) {
        self.context.scripts.forget_upload(self.publication);
    }

    /// Keeps something to be reported when the upload has ended.
    pub fn keep_report(&self, report: ScriptReport) {
        self.context.scripts.report(self.publication, report);
    }

    /// Adds to a figure of a table; of the connection if that is empty.
    pub fn add_count(&self, table: &str, name: &'static str, count: u64) {
        if count > 0 {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.context
                .scripts
                .add_count(self.publication, table, name, count);
        }
    }

    /// Has a figure of a table be this.
    pub fn count(&self, table: &str, name: &'static str, count: u64) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.context
            .scripts
            .set_count(self.publication, table, name, count);
    }

    /// The value of a parameter that no row has.
    pub fn value(&self, parameter: &ScriptParameter, table: &str) -> Value {
        let text = |text: &str| Value::Text(text.to_owned());
        let time = |micros: i64| Datum::TimestampTz(micros).to_value();
        let notes = &self.context.scripts;
        match parameter {
            ScriptParameter::System("table") => text(table),
            ScriptParameter::System(name) => match notes.fact(self.publication, name) {
                Some(value) => value,
                None => match *name {
                    "username" => text(&self.context.user),
                    "remote_id" => text(&self.context.remote_id.to_string()),
                    "publication" => text(self.publication),
                    "subscription_id" => {
                        text(&format!("{}/{}", self.context.remote_id, self.publication))
                    }
                    // What is downloaded is never a file, and what ends badly ends otherwise.
                    "generation_number" | "synchronization_ok" => Value::Integer(1),
                    "password" | "new_password" | "hashed_password" | "hashed_new_password" => {
                        Value::Null
                    }
                    VERSION => text(version(self.context, self.publication)),
                    "last_download" => time(self.last_download.unwrap_or(NEVER)),
                    "next_last_download" => time(self.next_last_download),
                    "last_upload" => time(NEVER),
                    counted => Value::Integer(notes.count(self.publication, table, counted)),
                },
            },
            ScriptParameter::User(name) => notes
                .variable(self.publication, name)
                .unwrap_or_else(|| self.parameter(name).map_or(Value::Null, text)),
            ScriptParameter::Claim(name) => {
                self.context.claims.named(name).map_or(Value::Null, text)
            }
            ScriptParameter::Argument(number) => self.parameter(number).map_or(Value::Null, text),
            ScriptParameter::New(_) | ScriptParameter::Old(_) | ScriptParameter::Mark(_) => {
                Value::Null
            }
        }
    }

    /// Sets parameters to what a statement has yielded.
    ///
    /// # Errors
    /// A time is none.
    pub(super) fn set(
        &self,
        compiled: &CompiledScript,
        statement: &ScriptStatement,
        row: Vec<Value>,
    ) -> Result<()> {
        let notes = &self.context.scripts;
        for (parameter, value) in statement.sets.iter().zip(row) {
            match parameter {
                Some(ScriptParameter::System("generation_number")) => {}
                Some(ScriptParameter::System(name)) => {
                    let value = match parameter_type(name) {
                        ColumnType::TimestampTz => moment(value, name, compiled)?,
                        ColumnType::Integer => whole(value),
                        _ => value,
                    };
                    notes.set_fact(self.publication, name, value);
                }
                Some(ScriptParameter::User(name)) => {
                    notes.set_variable(self.publication, name, value);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The values of a statement's parameters, with their types.
    pub fn values(&self, statement: &ScriptStatement, table: &str) -> Vec<Value> {
        let parameters = statement.script.parameters.iter();
        parameters.map(|it| self.value(it, table)).collect()
    }

    /// The values of the parameters of [`Scripts::lookup`], for a key: as for a remote that has
    /// nothing.
    pub fn lookup_values(
        &self,
        lookup: &ScriptStatement,
        table: &str,
        key: &[Value],
    ) -> Vec<Value> {
        let mut key = key.iter().cloned();
        let parameters = lookup.script.parameters.iter();
        let values = parameters.map(|parameter| match parameter {
            ScriptParameter::New(_) => key.next().unwrap_or(Value::Null),
            ScriptParameter::System("last_download") => Datum::TimestampTz(NEVER).to_value(),
            ScriptParameter::System("next_last_download") => {
                Datum::TimestampTz(self.next_last_download).to_value()
            }
            other => self.value(other, table),
        });
        values.collect()
    }

    fn parameter(&self, name: &str) -> Option<&str> {
        let set = self.context.parameters.get(self.publication);
        set.and_then(|it| it.get(name)).map(String::as_str)
    }
}

/// A time as a script has set it: as this server, or as its database writes one.
fn moment(value: Value, name: &str, compiled: &CompiledScript) -> Result<Value> {
    let text = match &value {
        Value::Text(text) => text.clone(),
        _ => String::new(),
    };
    let mut spelled = text.trim().replacen(' ', "T", 1);
    let has_zone = spelled
        .get(19..)
        .is_some_and(|it| it.contains(['Z', '+', '-']));
    if !has_zone {
        spelled.push('Z');
    }
    let spelled = Value::Text(spelled);
    match ColumnType::TimestampTz.datum(spelled.as_ref()) {
        (Datum::TimestampTz(micros), _) => Ok(Datum::TimestampTz(micros).to_value()),
        _ => Err(CentreError::Configuration {
            message: format!(
                "the script {} has set {name} to {text:?}, which is no time",
                compiled.place
            ),
            hint: "yield a timestamp, such as 2026-11-27T10:00:00Z".into(),
        }),
    }
}

/// A number as a script has set it.
fn whole(value: Value) -> Value {
    match &value {
        Value::Text(text) => text.trim().parse().map_or(value.clone(), Value::Integer),
        _ => value,
    }
}

impl ScriptStatement {
    /// The statement with the values of its parameters; `what` is being done, for the error.
    pub(crate) fn with_values<'s, T: TableAdapter>(
        &'s self,
        what: &'static str,
        values: &'s [Value],
    ) -> TableStatement<'s, T> {
        let mut statement = TableStatement::new(what, &*self.script.sql);
        let typed = self.typed().zip(values);
        let arguments = typed.map(|((column_type, is_own_time), value)| match is_own_time {
            true => TableArgument::Moment(value),
            false => TableArgument::Untyped(column_type, value),
        });
        statement.arguments = arguments.collect();
        statement.described = &self.yields;
        statement
    }

    /// The types of its parameters, and whether each is a time of the server's own.
    pub fn typed(&self) -> impl Iterator<Item = (ColumnType, bool)> {
        let types = self.types.iter().zip(&self.script.parameters);
        types.map(|(of, parameter)| {
            let is_own = matches!(parameter, ScriptParameter::System(_));
            (*of, is_own && *of == ColumnType::TimestampTz)
        })
    }
}
