//! Procedures that can be called, as they are declared.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tidewater_centre::procedure_spec::{ArgumentSpec, ProcedureSpec};
use tidewater_protocol::ColumnType;
use tidewater_protocol::argument::{ARGUMENT_TYPES, argument_type};
use tidewater_protocol::message::Returns;

use crate::error::ConfigError;
use crate::names::{BUILT_IN_PREFIX, MAX_NAME_BYTES};
use crate::section_reader::SectionReader;

/// `[[procedure]]`.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcedureConfig {
    /// By which it is called.
    pub name: String,
    /// Who does it, and how.
    pub work: ProcedureWork,
    /// What it takes, by name.
    pub arguments: Vec<ArgumentConfig>,
    /// Who may call it.
    pub allow: CallPermission,
    /// What a call is given at most.
    pub timeout: Duration,
    /// Whether it may be done once more by another provider when one has gone.
    pub idempotent: bool,
}

/// Who does a procedure, and how.
#[derive(Clone, Debug, PartialEq)]
pub enum ProcedureWork {
    /// The database.
    Sql {
        /// The statement.
        sql: SqlSource,
        /// What it gives back.
        returns: Returns,
        /// It changes nothing.
        read_only: bool,
    },
    /// A program that is connected.
    Provided(ProcedureProvider),
}

/// Where a statement stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SqlSource {
    /// In the configuration.
    Text(String),
    /// In a file of its own, until the configuration is loaded.
    File(PathBuf),
}

/// Which programs may provide a procedure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcedureProvider {
    /// Those of these users.
    By(Vec<String>),
    /// Each remote, for itself.
    OnRemotes,
}

/// An argument of a procedure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArgumentConfig {
    /// Its name.
    pub name: String,
    /// Its type.
    pub column_type: ColumnType,
    /// It may be NULL or missing.
    pub optional: bool,
}

/// Who may do something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallPermission {
    /// Everyone who can sign in.
    Everyone,
    /// Users for whom the query yields a row.
    Query(String),
}

impl ProcedureConfig {
    /// # Errors
    /// It says too little, or what cannot be.
    pub(super) fn read(
        mut section: SectionReader,
        index: usize,
    ) -> Result<ProcedureConfig, ConfigError> {
        let name = section
            .text("name")?
            .filter(|name| !name.is_empty())
            .ok_or_else(|| {
                ConfigError::new(
                    format!("the {}. [[procedure]] has no name", index + 1),
                    "write name = \"price\"",
                )
            })?;
        let place = format!("procedure {name:?}");
        section.place(&place);
        let wrong =
            |what: &str, hint: &str| ConfigError::new(format!("{place}: {what}"), hint.to_owned());
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if name.len() > MAX_NAME_BYTES || !name.chars().all(is_plain) {
            return Err(wrong(
                "the name cannot be one",
                "use letters, digits, '_', '-' and '.'",
            ));
        }
        if name.starts_with(BUILT_IN_PREFIX) {
            return Err(wrong(
                "names that begin with \"tidewater.\" are the server's own",
                "choose another name",
            ));
        }
        let sql = match (section.text("sql")?, section.path("sql_file")?) {
            (Some(_), Some(_)) => {
                return Err(wrong("it has sql and sql_file", "write one of the two"));
            }
            (Some(sql), None) if sql.trim().is_empty() => {
                return Err(wrong("sql is empty", "write a statement"));
            }
            (Some(sql), None) => Some(SqlSource::Text(sql)),
            (None, file) => file.map(SqlSource::File),
        };
        let provided_by = section.one_or_more_texts("provided_by")?;
        let returns = [
            Returns::Nothing,
            Returns::Value,
            Returns::Row,
            Returns::Rows,
        ];
        let returns = section.optional_choice("returns", &returns)?;
        let read_only = section.flag("read_only")?;
        let idempotent = section.flag("idempotent")?;
        let work = match (sql, provided_by, section.flag("on_remotes")?) {
            (Some(sql), None, false) => ProcedureWork::Sql {
                sql,
                returns: returns.ok_or_else(|| {
                    wrong(
                        "returns is missing",
                        "write returns = \"nothing\", \"value\", \"row\" or \"rows\"",
                    )
                })?,
                read_only,
            },
            (None, Some(users), false)
                if users.iter().all(|it| !it.is_empty()) && !users.is_empty() =>
            {
                ProcedureWork::Provided(ProcedureProvider::By(users))
            }
            (None, None, true) => ProcedureWork::Provided(ProcedureProvider::OnRemotes),
            _ => {
                return Err(wrong(
                    "one thing has to be said of who does it",
                    "write sql = \"SELECT ...\" or sql_file = \"FILE.sql\" for the database, \
                     provided_by = \"USER\" for a program that signs in as this user, or \
                     on_remotes = true for what remotes themselves provide",
                ));
            }
        };
        if matches!(work, ProcedureWork::Provided(_)) && (returns.is_some() || read_only) {
            return Err(wrong(
                "returns and read_only are for statements",
                "leave them out: whoever provides the procedure decides",
            ));
        }
        if matches!(work, ProcedureWork::Sql { .. }) && idempotent {
            return Err(wrong(
                "idempotent is for what programs provide",
                "leave it out: a statement is a transaction, and is never done by halves",
            ));
        }
        let arguments = section.named_texts("arguments")?;
        let arguments = arguments.into_iter().map(|(argument, type_name)| {
            let (bare, optional) = match type_name.strip_suffix('?') {
                Some(bare) => (bare, true),
                None => (type_name.as_str(), false),
            };
            let column_type = argument_type(bare).ok_or_else(|| {
                wrong(
                    &format!("the argument {argument} has the type {type_name:?}"),
                    &format!(
                        "write one of {}, with a ? behind it if it may be missing",
                        ARGUMENT_TYPES.join(", ")
                    ),
                )
            })?;
            Ok(ArgumentConfig {
                name: argument,
                column_type,
                optional,
            })
        });
        let allow = match section.text("allow")?.as_deref().map(str::trim) {
            None | Some("") => {
                return Err(wrong(
                    "allow is missing",
                    "write allow = \"everyone\", or a query that yields a row for those who may: \
                     \"SELECT 1 FROM staff WHERE login = {s.username}\"",
                ));
            }
            Some("everyone") => CallPermission::Everyone,
            Some(query) => CallPermission::Query(query.to_owned()),
        };
        Ok(ProcedureConfig {
            timeout: section.duration("timeout")?,
            arguments: arguments.collect::<Result<_, ConfigError>>()?,
            name,
            work,
            allow,
            idempotent,
        })
    }
}

impl ProcedureConfig {
    /// Reads the statement's file, whose path starts at this folder.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn load(&mut self, folder: &Path) -> Result<(), ConfigError> {
        if let ProcedureWork::Sql { sql, .. } = &mut self.work
            && let SqlSource::File(file) = sql
        {
            let path = folder.join(&*file);
            let text = std::fs::read_to_string(&path).map_err(|source| ConfigError::File {
                what: "procedure",
                path: path.display().to_string(),
                source,
            })?;
            *sql = SqlSource::Text(text);
        }
        Ok(())
    }
}

impl ProcedureConfig {
    /// What the database has to know of the procedure, if that is anything.
    pub fn to_spec(&self) -> Option<ProcedureSpec> {
        let allow = match &self.allow {
            CallPermission::Everyone => None,
            CallPermission::Query(query) => Some(query.clone()),
        };
        let (sql, returns, read_only) = match &self.work {
            ProcedureWork::Sql {
                sql,
                returns,
                read_only,
            } => {
                let SqlSource::Text(text) = sql else {
                    return None;
                };
                (Some(text.clone()), *returns, *read_only)
            }
            ProcedureWork::Provided(_) => (None, Returns::Nothing, true),
        };
        let arguments = self.arguments.iter().map(|it| ArgumentSpec {
            name: it.name.clone(),
            column_type: it.column_type,
            optional: it.optional,
        });
        (sql.is_some() || allow.is_some()).then(|| ProcedureSpec {
            name: self.name.clone(),
            sql,
            arguments: arguments.collect(),
            returns,
            allow,
            read_only,
        })
    }
}
