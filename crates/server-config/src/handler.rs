//! `[[handler]]`: programs that are asked at events of syncs, and what asks them.
//!
//! A handler is written where it is used (`handler = "https://..."`, or a section in its place), or
//! once under a name. What it is asked about is said by whoever names it: a table its rows, a
//! publication its syncs, `[sign_in]` its users.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use super::value::{choice, duration};
use super::web::WebAddress;
use super::{Config, ProcedureConfig, Provision, Work};
use crate::error::ConfigError;
use tidewater_centre::nearest;
use tidewater_protocol::ColumnType;

/// How long a handler has for one answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Requests to a handler at the same time.
const PARALLEL: usize = 4;

/// How often a request is sent again that got no answer.
const RETRIES: u32 = 2;

/// Rows of one request.
const ROWS: usize = 500;

/// So many failures in a row, and nothing is asked for so long.
const FAILURES: u32 = 5;
const PAUSE: Duration = Duration::from_secs(10);

/// What is written in place of a URL for a provider of the live layer.
const CALL: &str = "call:";

/// A program that is asked at events.
#[derive(Clone, PartialEq, Eq)]
pub struct HandlerConfig {
    /// What it is called in messages and metrics: its address, unless it has a name.
    pub name: String,
    /// Where it is.
    pub to: HandlerAddress,
    /// At which events it is asked; `None`: at all that concern who names it.
    pub events: Option<Vec<HandlerEvent>>,
    /// What requests are signed with: the current secret and, while it is replaced, the one before.
    pub secrets: Vec<Secret>,
    /// A PEM file with the authorities to trust, instead of public ones.
    pub ca: Option<PathBuf>,
    /// How long it has for one answer.
    pub timeout: Duration,
    /// Requests at the same time.
    pub parallel: usize,
    /// How often a request is sent again that got no answer.
    pub retries: u32,
    /// Rows of one request.
    pub rows: usize,
    /// How rows are written.
    pub format: HandlerFormat,
    /// After so many failures in a row nothing is asked for a while.
    pub failures: u32,
    /// This while.
    pub pause: Duration,
}

/// Secrets are not shown.
impl fmt::Debug for HandlerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerConfig")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Where a handler is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandlerAddress {
    /// On the web.
    Web(WebAddress),
    /// It provides this procedure.
    Call(String),
    /// It stands in for the handler in this process, where nobody outside is asked: of simulations.
    StandIn(HandlerStandIn),
}

/// What answers in the place of a handler: JSON to JSON.
#[derive(Clone)]
pub struct HandlerStandIn(pub Arc<AnswerRequest>);

/// Answers the body of a request to a handler with that of an answer.
type AnswerRequest = dyn Fn(&[u8]) -> Vec<u8> + Send + Sync;

impl PartialEq for HandlerStandIn {
    fn eq(&self, other: &HandlerStandIn) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for HandlerStandIn {}

impl fmt::Debug for HandlerStandIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HandlerStandIn")
    }
}

/// What requests are signed with.
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    /// This.
    Text(String),
    /// What this file holds, without the end of its line.
    File(PathBuf),
}

/// Something that a handler is asked about, or told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HandlerEvent {
    /// Somebody signs in with a password.
    AuthenticateUser,
    /// A sync of a publication begins.
    BeginSynchronization,
    /// It has ended.
    EndSynchronization,
    /// Rows of a table are uploaded.
    Upload,
    /// They have met those of others.
    ResolveConflict,
    /// A remote wants what is new in a table.
    Download,
}

impl HandlerEvent {
    const ALL: [(HandlerEvent, &str); 6] = [
        (HandlerEvent::AuthenticateUser, "authenticate_user"),
        (HandlerEvent::BeginSynchronization, "begin_synchronization"),
        (HandlerEvent::EndSynchronization, "end_synchronization"),
        (HandlerEvent::Upload, "upload"),
        (HandlerEvent::ResolveConflict, "resolve_conflict"),
        (HandlerEvent::Download, "download"),
    ];

    /// What it is called.
    pub fn name(self) -> &'static str {
        let mut all = HandlerEvent::ALL.iter();
        all.find(|it| it.0 == self).map_or("", |it| it.1)
    }
}

/// How rows are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HandlerFormat {
    /// One JSON object with a list of them.
    #[default]
    Json,
    /// A JSON object a line: first what is said of all rows, then the rows.
    Lines,
}

/// What is asked of handlers, and who: by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handling {
    /// Of tables, by publication and by the name that they have on remotes.
    pub tables: BTreeMap<(String, String), TableHandling>,
    /// Of publications: their syncs.
    pub publications: BTreeMap<String, String>,
    /// Who knows passwords.
    pub sign_in: Option<String>,
}

/// What a table asks its handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableHandling {
    /// The handler's name.
    pub handler: String,
    /// About uploaded rows.
    pub upload: bool,
    /// It is the only one who keeps them.
    pub keeps_uploads: bool,
    /// About rows that two sides have changed.
    pub resolve: bool,
    /// About what is new.
    pub download: bool,
}

/// Everything about handlers in a configuration.
#[derive(Default)]
pub(super) struct Handlers {
    insecure: bool,
    pub(super) all: Vec<HandlerConfig>,
    pub(super) handling: Handling,
}

/// A handler where it is used: a name, an address, or a section.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum RawUse {
    Text(String),
    Section(Box<RawHandler>),
}

#[derive(Deserialize, Default)]
pub(super) struct RawHandler {
    name: Option<String>,
    url: Option<String>,
    events: Option<Vec<String>>,
    secret: Option<OneOrTwo<String>>,
    secret_file: Option<OneOrTwo<PathBuf>>,
    ca: Option<PathBuf>,
    timeout: Option<String>,
    parallel: Option<u64>,
    retries: Option<u64>,
    rows: Option<u64>,
    format: Option<String>,
    failures: Option<u64>,
    pause: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrTwo<T> {
    One(T),
    Two(Vec<T>),
}

impl<T> OneOrTwo<T> {
    fn into_vec(self) -> Vec<T> {
        match self {
            OneOrTwo::One(one) => vec![one],
            OneOrTwo::Two(two) => two,
        }
    }
}

impl Handlers {
    /// Reads `[[handler]]`.
    ///
    /// # Errors
    /// One of them says what cannot be.
    pub(super) fn read(raw: Vec<RawHandler>, insecure: bool) -> Result<Handlers, ConfigError> {
        let mut handlers = Handlers {
            insecure,
            ..Handlers::default()
        };
        for (index, raw) in raw.into_iter().enumerate() {
            let name = raw.name.clone().filter(|it| !it.is_empty());
            let name = name.ok_or_else(|| {
                ConfigError::new(
                    format!("[[handler]] number {} has no name", index + 1),
                    "write name = \"orders\" below it, and handler = \"orders\" where it is asked",
                )
            })?;
            if name.contains("://") || name.starts_with(CALL) {
                return Err(ConfigError::new(
                    format!("handler {name:?}: its name is an address"),
                    "write the address as url, and choose a name",
                ));
            }
            if handlers.all.iter().any(|it| it.name == name) {
                return Err(ConfigError::new(
                    format!("two handlers are named {name:?}"),
                    "give each [[handler]] a name of its own",
                ));
            }
            let place = format!("handler {name:?}");
            handlers.all.push(raw.read(&place, name, insecure)?);
        }
        Ok(handlers)
    }

    /// The name of the handler that stands at a place.
    ///
    /// # Errors
    /// There is none like it.
    pub(super) fn used(&mut self, place: &str, used: RawUse) -> Result<String, ConfigError> {
        let (raw, name) = match used {
            RawUse::Text(text) if text.contains("://") || text.starts_with(CALL) => {
                let raw = RawHandler {
                    url: Some(text.clone()),
                    ..RawHandler::default()
                };
                (raw, text)
            }
            RawUse::Text(name) => {
                let mut names = self.all.iter().map(|it| it.name.as_str());
                if names.any(|it| it == name) {
                    return Ok(name);
                }
                let names: Vec<&str> = self.all.iter().map(|it| it.name.as_str()).collect();
                let hint = match nearest(&name, names.iter().copied()) {
                    Some(near) => format!("did you mean {near:?}?"),
                    None => {
                        "write an address (\"https://...\", \"call:PROCEDURE\"), or the name of a \
                         [[handler]]"
                            .to_owned()
                    }
                };
                return Err(ConfigError::new(
                    format!("{place}: there is no handler {name:?}"),
                    hint,
                ));
            }
            RawUse::Section(raw) => {
                let name = raw.name.clone().or_else(|| raw.url.clone());
                (*raw, name.unwrap_or_default())
            }
        };
        let mut handler = raw.read(&format!("{place}: handler"), name, self.insecure)?;
        match self.all.iter().find(|it| it.name == handler.name) {
            Some(known) if *known == handler => return Ok(handler.name),
            Some(_) => handler.name = format!("{} ({place})", handler.name),
            None => {}
        }
        let name = handler.name.clone();
        self.all.push(handler);
        Ok(name)
    }

    /// Whether a handler wants to be asked at an event.
    pub(super) fn wants(&self, name: &str, event: HandlerEvent) -> bool {
        let handler = self.all.iter().find(|it| it.name == name);
        handler.is_some_and(|it| it.events.as_ref().is_none_or(|it| it.contains(&event)))
    }

    /// Whether the providers that handlers are can be.
    ///
    /// # Errors
    /// There is no such procedure, or it is another kind of one.
    pub(super) fn check(&self, procedures: &[ProcedureConfig]) -> Result<(), ConfigError> {
        for handler in &self.all {
            let HandlerAddress::Call(procedure) = &handler.to else {
                continue;
            };
            let known = procedures.iter().find(|it| it.name == *procedure);
            let wrong = |what: &str| {
                ConfigError::new(
                    format!("handler {:?}: {what}", handler.name),
                    format!(
                        "write [[procedure]] with name = {procedure:?}, provided_by = \"USER\", \
                         arguments = {{ request = \"json\" }} and idempotent = true"
                    ),
                )
            };
            let known = known.ok_or_else(|| wrong("there is no such procedure"))?;
            if !matches!(known.work, Work::Provided(Provision::By(_))) {
                return Err(wrong("the procedure is not provided by a user's program"));
            }
            let takes_request = match &known.arguments[..] {
                [only] => only.name == "request" && only.column_type == ColumnType::Json,
                _ => false,
            };
            if !takes_request {
                return Err(wrong("the procedure takes something else than a request"));
            }
        }
        Ok(())
    }
}

impl RawHandler {
    fn read(self, place: &str, name: String, insecure: bool) -> Result<HandlerConfig, ConfigError> {
        let url = self.url.filter(|it| !it.is_empty()).ok_or_else(|| {
            ConfigError::new(
                format!("{place} has no url"),
                "write url = \"https://HOST/PATH\" or url = \"call:PROCEDURE\"",
            )
        })?;
        let to =
            match url.strip_prefix(CALL) {
                Some(procedure) => HandlerAddress::Call(procedure.to_owned()),
                None => HandlerAddress::Web(WebAddress::read(&url, insecure).map_err(
                    |(what, hint)| ConfigError::new(format!("{place}: {url:?} {what}"), hint),
                )?),
            };
        let texts = self.secret.map_or_else(Vec::new, OneOrTwo::into_vec);
        let files = self.secret_file.map_or_else(Vec::new, OneOrTwo::into_vec);
        if texts.iter().any(String::is_empty) {
            return Err(ConfigError::new(
                format!("{place}: secret is empty"),
                "write secret = \"${VARIABLE}\" or secret_file = \"FILE\", with 32 random bytes or \
                 so",
            ));
        }
        let secrets: Vec<Secret> = texts
            .into_iter()
            .map(Secret::Text)
            .chain(files.into_iter().map(Secret::File))
            .collect();
        if secrets.len() > 2 {
            return Err(ConfigError::new(
                format!("{place} has {} secrets", secrets.len()),
                "write one, or two while one takes the place of the other",
            ));
        }
        if let HandlerAddress::Web(address) = &to
            && secrets.is_empty()
            && !address.host.is_loopback()
        {
            return Err(ConfigError::new(
                format!("{place}: {url:?} is on another machine, and there is no secret"),
                format!(
                    "write handler = {{ url = {url:?}, secret = \"${{VARIABLE}}\" }}: without, the \
                     handler cannot know who asks"
                ),
            ));
        }
        let events = self.events.map(|events| {
            let events = events.iter().map(|name| {
                let mut all = HandlerEvent::ALL.iter();
                let known = all.find(|it| it.1 == name).map(|it| it.0);
                known.ok_or_else(|| {
                    let names = HandlerEvent::ALL.map(|it| it.1);
                    choice(&format!("{place}: an event"), name, &names)
                })
            });
            events.collect::<Result<Vec<_>, _>>()
        });
        let format = match self.format.as_deref() {
            None | Some("json") => HandlerFormat::Json,
            Some("lines") => HandlerFormat::Lines,
            Some(other) => {
                return Err(choice(
                    &format!("{place}: format"),
                    other,
                    &["json", "lines"],
                ));
            }
        };
        let number = |key: &str, value: Option<u64>, default: u64, least: u64, most: u64| {
            let value = value.unwrap_or(default);
            match (least..=most).contains(&value) {
                true => Ok(value),
                false => Err(ConfigError::new(
                    format!("{place}: {key} is {value}"),
                    format!("write a number from {least} to {most}"),
                )),
            }
        };
        Ok(HandlerConfig {
            events: events.transpose()?,
            secrets,
            ca: self.ca,
            timeout: duration(&format!("{place}: timeout"), self.timeout, TIMEOUT)?,
            parallel: number("parallel", self.parallel, PARALLEL as u64, 1, 1_000)? as usize,
            retries: number("retries", self.retries, u64::from(RETRIES), 0, 10)? as u32,
            rows: number("rows", self.rows, ROWS as u64, 1, 10_000)? as usize,
            failures: number("failures", self.failures, u64::from(FAILURES), 1, 1_000)? as u32,
            pause: duration(&format!("{place}: pause"), self.pause, PAUSE)?,
            format,
            name,
            to,
        })
    }
}

impl HandlerConfig {
    /// Makes relative paths start at this folder.
    pub(super) fn start_paths_at(&mut self, folder: &Path) {
        let files = self.secrets.iter_mut().filter_map(|it| match it {
            Secret::File(file) => Some(file),
            Secret::Text(_) => None,
        });
        for path in self.ca.iter_mut().chain(files) {
            *path = folder.join(&*path);
        }
    }
}

impl Config {
    /// The handlers that nobody asks.
    pub fn handler_warnings(&self) -> Vec<String> {
        let Handling {
            tables,
            publications,
            sign_in,
        } = &self.handling;
        let used: Vec<&String> = tables
            .values()
            .map(|it| &it.handler)
            .chain(publications.values())
            .chain(sign_in)
            .collect();
        let unused = self.handlers.iter().filter(|it| !used.contains(&&it.name));
        let warning = |it: &HandlerConfig| {
            format!(
                "nobody asks the handler {0:?}: write handler = {0:?} below a table, a \
                 publication or [sign_in]",
                it.name
            )
        };
        unused.map(warning).collect()
    }
}
