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

use super::web::WebAddress;
use super::{Config, ProcedureConfig, ProcedureProvider, ProcedureWork};
use crate::error::ConfigError;
use crate::section_reader::{SectionReader, unknown_word};
use tidewater_centre::nearest;
use tidewater_protocol::ColumnType;

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
    pub secrets: Vec<HandlerSecret>,
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
pub enum HandlerSecret {
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
pub struct HandlerAssignments {
    /// Of tables, by publication and by the name that they have on remotes.
    pub tables: BTreeMap<(String, String), TableAssignment>,
    /// Of publications: their syncs.
    pub publications: BTreeMap<String, String>,
    /// Who knows passwords.
    pub sign_in: Option<String>,
}

/// What a table asks its handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableAssignment {
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
pub(super) struct HandlerReader {
    insecure: bool,
    pub(super) all: Vec<HandlerConfig>,
    pub(super) handling: HandlerAssignments,
}

/// A handler where it is used.
pub(super) enum HandlerUse {
    /// A name, or an address.
    Text(String),
    /// What stands there says everything of it.
    Section(SectionReader),
}

impl HandlerUse {
    /// Takes `handler` of a section.
    pub(super) fn read(section: &mut SectionReader) -> Result<Option<HandlerUse>, ConfigError> {
        match section.is_section("handler") {
            true => Ok(section.section("handler")?.map(HandlerUse::Section)),
            false => Ok(section.text("handler")?.map(HandlerUse::Text)),
        }
    }
}

impl HandlerReader {
    /// Reads `[[handler]]`.
    ///
    /// # Errors
    /// One of them says what cannot be.
    pub(super) fn read(
        sections: Vec<SectionReader>,
        insecure: bool,
    ) -> Result<HandlerReader, ConfigError> {
        let mut handlers = HandlerReader {
            insecure,
            ..HandlerReader::default()
        };
        for (index, mut section) in sections.into_iter().enumerate() {
            let name = section.text("name")?.filter(|it| !it.is_empty());
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
            let url = section.text("url")?;
            let handler = HandlerConfig::read(section, &place, (name, url), insecure)?;
            handlers.all.push(handler);
        }
        Ok(handlers)
    }

    /// The name of the handler that stands at a place.
    ///
    /// # Errors
    /// There is none like it.
    pub(super) fn assign(&mut self, place: &str, used: HandlerUse) -> Result<String, ConfigError> {
        let (section, name, url) = match used {
            HandlerUse::Text(text) if text.contains("://") || text.starts_with(CALL) => {
                (SectionReader::empty("handler"), text.clone(), Some(text))
            }
            HandlerUse::Text(name) => {
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
            HandlerUse::Section(mut section) => {
                let (name, url) = (section.text("name")?, section.text("url")?);
                let name = name.or_else(|| url.clone()).unwrap_or_default();
                (section, name, url)
            }
        };
        let place_of_handler = format!("{place}: handler");
        let mut handler =
            HandlerConfig::read(section, &place_of_handler, (name, url), self.insecure)?;
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
            if !matches!(
                known.work,
                ProcedureWork::Provided(ProcedureProvider::By(_))
            ) {
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

impl HandlerConfig {
    fn read(
        mut section: SectionReader,
        place: &str,
        (name, url): (String, Option<String>),
        insecure: bool,
    ) -> Result<HandlerConfig, ConfigError> {
        section.place(place);
        let url = url.filter(|it| !it.is_empty()).ok_or_else(|| {
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
        let texts = section.one_or_more_texts("secret")?.unwrap_or_default();
        let files = section.one_or_more_texts("secret_file")?;
        let files = files.unwrap_or_default().into_iter().map(PathBuf::from);
        if texts.iter().any(String::is_empty) {
            return Err(ConfigError::new(
                format!("{place}: secret is empty"),
                "write secret = \"${VARIABLE}\" or secret_file = \"FILE\", with 32 random bytes or \
                 so",
            ));
        }
        let secrets: Vec<HandlerSecret> = texts
            .into_iter()
            .map(HandlerSecret::Text)
            .chain(files.map(HandlerSecret::File))
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
        let events = section.optional_texts("events")?;
        let events = events.map(|events| {
            let events = events.iter().map(|name| {
                let mut all = HandlerEvent::ALL.iter();
                let known = all.find(|it| it.1 == name).map(|it| it.0);
                known.ok_or_else(|| {
                    let names = HandlerEvent::ALL.map(|it| it.1);
                    unknown_word(&format!("{place}: an event"), name, &names)
                })
            });
            events.collect::<Result<Vec<_>, _>>()
        });
        Ok(HandlerConfig {
            events: events.transpose()?,
            secrets,
            ca: section.path("ca")?,
            timeout: section.duration("timeout")?,
            parallel: section.count("parallel")?,
            retries: section.number("retries")? as u32,
            rows: section.count("batch_rows")?,
            failures: section.number("breaker_failures")? as u32,
            pause: section.duration("breaker_pause")?,
            format: section.choice("format", &[HandlerFormat::Json, HandlerFormat::Lines])?,
            name,
            to,
        })
    }
}

impl HandlerConfig {
    /// Makes relative paths start at this folder.
    pub(super) fn start_paths_at(&mut self, folder: &Path) {
        let files = self.secrets.iter_mut().filter_map(|it| match it {
            HandlerSecret::File(file) => Some(file),
            HandlerSecret::Text(_) => None,
        });
        for path in self.ca.iter_mut().chain(files) {
            *path = folder.join(&*path);
        }
    }
}

impl Config {
    /// The handlers that nobody asks.
    pub fn handler_warnings(&self) -> Vec<String> {
        let HandlerAssignments {
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
