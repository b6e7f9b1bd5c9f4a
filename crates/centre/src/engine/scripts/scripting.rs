//! The scripts of one sync, and what their parameters are that no row has.

use std::sync::Arc;

use tidewater_protocol::{Code, ColumnType, Datum, Value};

use super::{Scripts, Statement, Versions};
use crate::context::SyncContext;
use crate::engine::script::Parameter;
use crate::error::CentreError;

type Result<T> = std::result::Result<T, CentreError>;

/// The parameter by which a remote chooses a script version.
pub const VERSION: &str = "script_version";

/// The version of whoever chooses none.
const DEFAULT: &str = "default";

/// When a remote downloads for the first time, this is when it did so last: 1900-01-01, in
/// microseconds since 1970.
const NEVER: i64 = -2_208_988_800_000_000;

/// The scripts of a sync, and for whom they run.
pub struct Scripting<'r> {
    /// The scripts.
    pub scripts: Arc<Scripts>,
    context: &'r SyncContext,
    publication: &'r str,
    /// Up to when the remote has everything, in microseconds since 1970, if it has anything.
    last_download: Option<i64>,
    /// Up to when it will have.
    next_last_download: i64,
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
    let set = context.parameters.get(publication);
    let asked = set.and_then(|it| it.get(VERSION));
    let found = versions.get(asked.map_or(DEFAULT, String::as_str));
    match (found, asked) {
        (Some(scripts), _) => Ok(Some(scripts.clone())),
        (None, None) => Ok(None),
        (None, Some(asked)) => {
            let known: Vec<&str> = versions.keys().map(String::as_str).collect();
            let known = match known.is_empty() {
                true => "none".to_owned(),
                false => known.join(", "),
            };
            Err(CentreError::Peer {
                message: format!(
                    "there is no script version {asked:?} of {publication:?}; there are: {known}"
                ),
                code: Code::ParameterNotAllowed,
            })
        }
    }
}

impl<'r> Scripting<'r> {
    /// Those of a sync, if its remote has chosen some.
    ///
    /// # Errors
    /// There is no such version.
    pub fn of(
        versions: &Versions,
        context: &'r SyncContext,
        publication: &'r str,
    ) -> Result<Option<Scripting<'r>>> {
        let scripts = chosen(versions, context, publication)?;
        Ok(scripts.map(|scripts| Scripting {
            scripts,
            context,
            publication,
            last_download: None,
            next_last_download: context.now_ms.saturating_mul(1000),
        }))
    }

    /// The same for a download between these times.
    pub fn between(self, last: Option<i64>, next: i64) -> Scripting<'r> {
        Scripting {
            last_download: last,
            next_last_download: next,
            ..self
        }
    }

    /// The value of a parameter that no row has.
    pub fn value(&self, parameter: &Parameter, table: &str) -> Value {
        let text = |text: &str| Value::Text(text.to_owned());
        let time = |micros: i64| Datum::TimestampTz(micros).to_value();
        match parameter {
            Parameter::System("username") => text(&self.context.user),
            Parameter::System("remote_id") => text(&self.context.remote_id.to_string()),
            Parameter::System("publication") => text(self.publication),
            Parameter::System("table") => text(table),
            Parameter::System(VERSION) => text(self.parameter(VERSION).unwrap_or(DEFAULT)),
            Parameter::System("last_download") => time(self.last_download.unwrap_or(NEVER)),
            Parameter::System("next_last_download") => time(self.next_last_download),
            Parameter::User(name) => self.parameter(name).map_or(Value::Null, text),
            Parameter::Claim(name) => self.context.claims.named(name).map_or(Value::Null, text),
            _ => Value::Null,
        }
    }

    /// The values of a statement's parameters, with their types.
    pub fn values(&self, statement: &Statement, table: &str) -> Vec<Value> {
        let parameters = statement.script.parameters.iter();
        parameters.map(|it| self.value(it, table)).collect()
    }

    fn parameter(&self, name: &str) -> Option<&str> {
        let set = self.context.parameters.get(self.publication);
        set.and_then(|it| it.get(name)).map(String::as_str)
    }
}

impl Statement {
    /// The types of its parameters, and whether each is a time of the server's own.
    pub fn typed(&self) -> impl Iterator<Item = (ColumnType, bool)> {
        let types = self.types.iter().zip(&self.script.parameters);
        types.map(|(of, parameter)| {
            let is_own = matches!(parameter, Parameter::System(_));
            (*of, is_own && *of == ColumnType::TimestampTz)
        })
    }
}
