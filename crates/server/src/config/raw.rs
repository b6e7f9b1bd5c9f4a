//! From TOML values to the configuration: types, ranges, and what must be said.

use std::collections::HashSet;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use tidewater_carrier::ServerUrl;
use tidewater_centre::{
    ConflictSpec, Detect, HandledSpec, OnReject, OnUnseenChildren, ParameterSpec, PublicationSpec,
    Replay, RuleBy, TableSpec, Tracking, WriteScopeSpec, WritesSpec, nearest,
};

use crate::databases::check_url;
use tidewater_protocol::Direction;
use tidewater_protocol::message::Parameter;

use super::acting;
use super::handler::{HandlerEvent, Handlers, RawHandler, RawUse, TableHandling};
use super::identity::RawIdentity;
use super::lines::Lines;
use super::partition;
use super::procedure::{ProcedureConfig, RawProcedure};
use super::sign_in::RawSignIn;
use super::space::{self, RawSpace};
use super::text;
use super::wake::RawWake;
use super::{
    Config, Limits, LiveConfig, LogConfig, LogFormat, RetentionConfig, ServerConfig, TlsConfig,
};
use crate::error::ServerError;
use crate::sign_in::MAX_NAME_BYTES;

#[derive(Deserialize)]
struct RawConfig {
    server: Option<RawServer>,
    #[serde(default)]
    retention: RawRetention,
    #[serde(default)]
    log: RawLog,
    #[serde(default)]
    publication: Vec<RawPublication>,
    #[serde(default)]
    procedure: Vec<RawProcedure>,
    #[serde(default)]
    space: Vec<RawSpace>,
    #[serde(default)]
    live: RawLive,
    #[serde(default)]
    wake: Vec<RawWake>,
    scripts: Option<PathBuf>,
    #[serde(default)]
    sign_in: RawSignIn,
    #[serde(default)]
    handler: Vec<RawHandler>,
}

#[derive(Deserialize, Default)]
struct RawLive {
    nats: Option<String>,
    #[serde(default)]
    servers: Vec<String>,
}

impl RawLive {
    fn read(self) -> Result<LiveConfig, ServerError> {
        let servers = self.servers.iter().map(|server| {
            let url = server.parse::<ServerUrl>().map_err(|error| {
                ServerError::configuration(
                    format!("live.servers: {server:?}: {error}"),
                    "write the addresses at which remotes reach the servers, such as \
                     servers = [\"tls://one.example.com:7439\", \"tls://two.example.com:7439\"]",
                )
            })?;
            Ok(url.to_string())
        });
        Ok(LiveConfig {
            servers: servers.collect::<Result<_, ServerError>>()?,
            nats: self.nats,
        })
    }
}

#[derive(Deserialize)]
struct RawServer {
    #[serde(default)]
    listen: Vec<String>,
    admin: Option<String>,
    http: Option<String>,
    consolidated: Option<String>,
    #[serde(default)]
    insecure: bool,
    tls: Option<RawTls>,
    #[serde(default)]
    limits: RawLimits,
}

#[derive(Deserialize)]
struct RawTls {
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
}

#[derive(Deserialize, Default)]
struct RawLimits {
    connections: Option<u64>,
    backlog: Option<u64>,
    memory: Option<RawSize>,
    session_workers: Option<u64>,
    upload_workers: Option<u64>,
    download_workers: Option<u64>,
    call_workers: Option<u64>,
    upload_bytes: Option<RawSize>,
    upload_rows: Option<u64>,
    row_bytes: Option<RawSize>,
    subscriptions: Option<u64>,
    password_checks: Option<u64>,
    handshake: Option<String>,
    idle: Option<String>,
    sync: Option<String>,
    shutdown: Option<String>,
    waiting: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum RawSize {
    Bytes(u64),
    Text(String),
}

#[derive(Deserialize, Default)]
struct RawRetention {
    log: Option<String>,
    history: Option<String>,
    conflicts: Option<String>,
    interval: Option<String>,
}

#[derive(Deserialize, Default)]
struct RawLog {
    format: Option<String>,
    level: Option<String>,
}

#[derive(Deserialize)]
struct RawPublication {
    name: Option<String>,
    #[serde(default)]
    table: Vec<RawTable>,
    #[serde(default)]
    parameter: Vec<RawParameter>,
    act_as: Option<toml::Value>,
    on_reject: Option<String>,
    replay: Option<String>,
    handler: Option<RawUse>,
}

#[derive(Deserialize)]
struct RawParameter {
    name: Option<String>,
    allowed: Option<String>,
}

#[derive(Deserialize)]
struct RawTable {
    name: Option<String>,
    partition: Option<toml::Value>,
    direction: Option<String>,
    columns: Option<Vec<String>>,
    tracking: Option<String>,
    on_unseen_children: Option<String>,
    identity: Option<RawIdentity>,
    #[serde(default)]
    filled_by_centre: Vec<String>,
    write: Option<RawWrite>,
    #[serde(default)]
    read_only: Vec<String>,
    #[serde(default)]
    hand_over: bool,
    conflict: Option<RawConflict>,
    handler: Option<RawUse>,
    upload: Option<String>,
    download: Option<String>,
}

#[derive(Deserialize)]
struct RawConflict {
    detect: Option<String>,
    resolve: Option<RawResolve>,
}

/// One resolver, or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum RawResolve {
    One(String),
    Several(Vec<String>),
}

#[derive(Deserialize)]
struct RawWrite {
    columns: Option<Vec<String>>,
    values: Option<String>,
}

/// Makes a configuration of TOML whose keys are known and whose variables are
/// expanded.
///
/// # Errors
/// Something has the wrong type, is out of range, or must be said and is not.
pub(super) fn read(value: toml::Value) -> Result<Config, ServerError> {
    let raw: RawConfig = value.try_into().map_err(|error: toml::de::Error| {
        ServerError::configuration(
            error.to_string().trim().replace('\n', " "),
            "see docs/configuration.md for what each setting takes",
        )
    })?;
    let server = raw.server.ok_or_else(|| {
        ServerError::configuration(
            "[server] is missing",
            "write [server] with listen and consolidated",
        )
    })?;
    let insecure = server.insecure;
    let mut handlers = Handlers::read(raw.handler, insecure)?;
    let publications = raw.publication.into_iter().enumerate();
    let publications: Vec<PublicationSpec> = publications
        .map(|(index, publication)| publication.read(index, &mut handlers))
        .collect::<Result<_, _>>()?;
    check_names("publication", publications.iter().map(|it| &it.name))?;
    let procedures = raw.procedure.into_iter().enumerate();
    let procedures: Vec<ProcedureConfig> = procedures
        .map(|(index, procedure)| procedure.read(index))
        .collect::<Result<_, _>>()?;
    check_names("procedure", procedures.iter().map(|it| &it.name))?;
    let names: Vec<&str> = publications.iter().map(|it| &*it.name).collect();
    let wakes = raw.wake.into_iter().map(|it| it.read(insecure, &names));
    let wakes = wakes.collect::<Result<_, _>>()?;
    let server = server.read()?;
    let sign_in = raw.sign_in.read(insecure, &mut handlers)?;
    handlers.check(&procedures)?;
    Ok(Config {
        scripts: raw.scripts,
        handlers: handlers.all,
        handling: handlers.handling,
        wakes,
        sign_in,
        server,
        retention: raw.retention.read()?,
        log: raw.log.read()?,
        publications,
        procedures,
        spaces: space::read(raw.space)?,
        live: raw.live.read()?,
        lines: Lines::default(),
    })
}

/// Each section of a kind has a name of its own.
fn check_names<'n>(kind: &str, names: impl Iterator<Item = &'n String>) -> Result<(), ServerError> {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(ServerError::configuration(
                format!("two {kind}s are named {name:?}"),
                format!("give each [[{kind}]] a name of its own"),
            ));
        }
    }
    Ok(())
}

impl RawServer {
    fn read(self) -> Result<ServerConfig, ServerError> {
        let consolidated = self.consolidated.ok_or_else(|| {
            ServerError::configuration(
                "server.consolidated is missing",
                "write consolidated = \"postgres://user@host:5432/database\" or \"sqlite:path\"",
            )
        })?;
        check_url(&consolidated).map_err(|error| {
            ServerError::configuration(format!("server.consolidated: {error}"), error.hint())
        })?;
        let listen = if self.listen.is_empty() {
            vec!["tcp://127.0.0.1:7439".to_owned()]
        } else {
            self.listen
        };
        let tls = match self.tls {
            None => None,
            Some(RawTls {
                certificate: Some(certificate),
                key: Some(key),
            }) if names_file(&certificate) && names_file(&key) => {
                Some(TlsConfig { certificate, key })
            }
            Some(_) => {
                return Err(ServerError::configuration(
                    "[server.tls] needs both certificate and key",
                    "write certificate = \"FILE.pem\" and key = \"FILE.pem\"",
                ));
            }
        };
        Ok(ServerConfig {
            listen,
            admin: self.admin,
            http: self.http,
            consolidated,
            insecure: self.insecure,
            tls,
            limits: self.limits.read()?,
        })
    }
}

fn names_file(path: &Path) -> bool {
    !path.as_os_str().is_empty()
}

impl RawLimits {
    fn read(self) -> Result<Limits, ServerError> {
        let default = Limits::default();
        Ok(Limits {
            connections: count("connections", self.connections, default.connections)?,
            backlog: count("backlog", self.backlog, default.backlog)?,
            memory_bytes: bytes("memory", self.memory, default.memory_bytes)?,
            session_workers: count(
                "session_workers",
                self.session_workers,
                default.session_workers,
            )?,
            upload_workers: workers("upload_workers", self.upload_workers)?,
            download_workers: workers("download_workers", self.download_workers)?,
            call_workers: workers("call_workers", self.call_workers)?,
            upload_bytes: bytes("upload_bytes", self.upload_bytes, default.upload_bytes)?,
            upload_rows: rows("upload_rows", self.upload_rows, default.upload_rows)?,
            row_bytes: usize::try_from(bytes(
                "row_bytes",
                self.row_bytes,
                default.row_bytes as u64,
            )?)
            .unwrap_or(usize::MAX),
            subscriptions: count("subscriptions", self.subscriptions, default.subscriptions)?,
            password_checks: count(
                "password_checks",
                self.password_checks,
                default.password_checks,
            )?,
            handshake: deadline("handshake", self.handshake, default.handshake)?,
            idle: deadline("idle", self.idle, default.idle)?,
            sync: deadline("sync", self.sync, default.sync)?,
            shutdown: deadline("shutdown", self.shutdown, default.shutdown)?,
            waiting: deadline("waiting", self.waiting, default.waiting)?,
        })
    }
}

fn count(key: &str, value: Option<u64>, default: usize) -> Result<usize, ServerError> {
    match value {
        None => Ok(default),
        Some(value @ 1..=1_000_000) => Ok(value as usize),
        Some(value) => Err(ServerError::configuration(
            format!("server.limits.{key} is {value}"),
            "write a number from 1 to 1000000",
        )),
    }
}

/// Nothing said: as many as get the most done.
fn workers(key: &str, value: Option<u64>) -> Result<Option<usize>, ServerError> {
    value.map(|value| count(key, Some(value), 1)).transpose()
}

fn rows(key: &str, value: Option<u64>, default: u64) -> Result<u64, ServerError> {
    match value {
        None => Ok(default),
        Some(0) => Err(ServerError::configuration(
            format!("server.limits.{key} is 0"),
            "write a number from 1, or direction = \"download\" below tables that take no uploads",
        )),
        Some(value) => Ok(value),
    }
}

fn bytes(key: &str, value: Option<RawSize>, default: u64) -> Result<u64, ServerError> {
    let value = match value {
        None => Some(default),
        Some(RawSize::Bytes(bytes)) => Some(bytes),
        Some(RawSize::Text(text)) => text::size(&text),
    };
    value.filter(|&bytes| bytes > 0).ok_or_else(|| {
        ServerError::configuration(
            format!("server.limits.{key} is not a size"),
            "write a number of bytes, or \"64KiB\", \"256MiB\", \"4GiB\"",
        )
    })
}

fn deadline(key: &str, value: Option<String>, default: Duration) -> Result<Duration, ServerError> {
    duration(&format!("server.limits.{key}"), value, default)
}

pub(super) fn duration(
    key: &str,
    value: Option<String>,
    default: Duration,
) -> Result<Duration, ServerError> {
    let Some(value) = value else {
        return Ok(default);
    };
    text::duration(&value)
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| {
            ServerError::configuration(
                format!("{key} is {value:?}, which is no duration"),
                "write a number and a unit: \"250ms\", \"30s\", \"5m\", \"12h\", \"60d\"",
            )
        })
}

/// A signing key that another one has superseded must outlive the moment at which every server
/// has heard of that.
const MIN_LOG_MS: i64 = 60_000;

impl RawRetention {
    fn read(self) -> Result<RetentionConfig, ServerError> {
        let mut retention = RetentionConfig::default();
        let keep = |key, value, default_ms: &mut i64| {
            let default = Duration::from_millis(*default_ms as u64);
            let kept = duration(&format!("retention.{key}"), value, default)?;
            *default_ms = i64::try_from(kept.as_millis()).unwrap_or(i64::MAX);
            Ok::<(), ServerError>(())
        };
        keep("log", self.log, &mut retention.keep.log_ms)?;
        if retention.keep.log_ms < MIN_LOG_MS {
            return Err(ServerError::configuration(
                "retention.log is less than a minute",
                "write at least \"1m\"; for remotes that are offline for weeks, months are better",
            ));
        }
        keep("history", self.history, &mut retention.keep.history_ms)?;
        keep(
            "conflicts",
            self.conflicts,
            &mut retention.keep.conflicts_ms,
        )?;
        retention.interval = duration("retention.interval", self.interval, retention.interval)?;
        Ok(retention)
    }
}

impl RawLog {
    fn read(self) -> Result<LogConfig, ServerError> {
        let format = match self.format.as_deref() {
            None | Some("text") => LogFormat::Text,
            Some("json") => LogFormat::Json,
            Some(other) => return Err(choice("log.format", other, &["text", "json"])),
        };
        let level = self.level.unwrap_or_else(|| "info".into());
        if level.trim().is_empty() {
            return Err(ServerError::configuration(
                "log.level is empty",
                "write error, warn, info, debug or trace, or leave the key out",
            ));
        }
        Ok(LogConfig { format, level })
    }
}

impl RawPublication {
    fn read(self, index: usize, handlers: &mut Handlers) -> Result<PublicationSpec, ServerError> {
        let name = self.name.filter(|name| !name.is_empty()).ok_or_else(|| {
            ServerError::configuration(
                format!("[[publication]] number {} has no name", index + 1),
                "write name = \"...\" below it",
            )
        })?;
        if name.contains(',') {
            return Err(ServerError::configuration(
                format!("publication {name:?}: a name must not contain a comma"),
                "choose another name",
            ));
        }
        if name.len() > MAX_NAME_BYTES || name.contains('\0') {
            return Err(ServerError::configuration(
                format!("publication {name:?}: no remote can ask for a name like this"),
                format!("choose one of at most {MAX_NAME_BYTES} bytes, without zero bytes"),
            ));
        }
        if self.table.is_empty() {
            return Err(ServerError::configuration(
                format!("publication {name:?} has no tables"),
                "write [[publication.table]] below it, with name and partition",
            ));
        }
        let missing = |table: &&RawTable| table.partition.is_none() && table.name.is_some();
        let undecided: Vec<&RawTable> = self.table.iter().filter(missing).collect();
        if undecided.len() > 1 {
            let names = undecided.iter().filter_map(|table| table.name.as_ref());
            let names: Vec<String> = names.map(|name| format!("{name:?}")).collect();
            let names = names.join(", ");
            return Err(ServerError::configuration(
                format!("publication {name:?}, tables {names}: partition is missing"),
                partition::HINT,
            ));
        }
        let tables = self.table.into_iter().enumerate();
        let tables: Vec<TableSpec> = tables
            .map(|(index, table)| table.read(&name, index, handlers))
            .collect::<Result<_, _>>()?;
        for (index, table) in tables.iter().enumerate() {
            if tables[..index].iter().any(|t| t.name == table.name) {
                return Err(ServerError::configuration(
                    format!("publication {name:?} has the table {:?} twice", table.name),
                    "remove one of the two",
                ));
            }
        }
        let mut parameters: Vec<ParameterSpec> = Vec::with_capacity(self.parameter.len());
        for (index, parameter) in self.parameter.into_iter().enumerate() {
            let parameter = parameter.read(&name, index)?;
            if parameters.iter().any(|it| it.name == parameter.name) {
                return Err(ServerError::configuration(
                    format!(
                        "publication {name:?} has the parameter {:?} twice",
                        parameter.name
                    ),
                    "remove one of the two",
                ));
            }
            parameters.push(parameter);
        }
        let named = |key: &str| format!("publication {name:?}: {key}");
        let on_reject = match self.on_reject.as_deref() {
            None | Some("set_aside") => OnReject::SetAside,
            Some("abort") => OnReject::Abort,
            Some(other) => {
                return Err(choice(&named("on_reject"), other, &["set_aside", "abort"]));
            }
        };
        let replay = match self.replay.as_deref() {
            None | Some("auto") => Replay::Auto,
            Some("no") => Replay::No,
            Some(other) => return Err(choice(&named("replay"), other, &["auto", "no"])),
        };
        if let Some(used) = self.handler {
            let handler = handlers.used(&format!("publication {name:?}"), used)?;
            handlers.handling.publications.insert(name.clone(), handler);
        }
        Ok(PublicationSpec {
            on_reject,
            replay,
            act_as: acting::read(&name, self.act_as)?,
            name,
            tables,
            parameters,
            scripts: Vec::new(),
        })
    }
}

impl RawParameter {
    fn read(self, publication: &str, index: usize) -> Result<ParameterSpec, ServerError> {
        let name = self.name.unwrap_or_default();
        if !Parameter::is_name(&name) {
            let number = index + 1;
            return Err(ServerError::configuration(
                format!(
                    "publication {publication:?}: [[publication.parameter]] number {number} has \
                     {name:?} for its name, which can be none"
                ),
                "write name = \"month\": letters, digits and underscores, without {u.}",
            ));
        }
        Ok(ParameterSpec {
            name,
            allowed: self.allowed,
        })
    }
}

impl RawTable {
    fn read(
        self,
        publication: &str,
        index: usize,
        handlers: &mut Handlers,
    ) -> Result<TableSpec, ServerError> {
        let name = self.name.filter(|name| !name.is_empty()).ok_or_else(|| {
            ServerError::configuration(
                format!(
                    "publication {publication:?}: [[publication.table]] number {} has no name",
                    index + 1
                ),
                "write name = \"...\" below it",
            )
        })?;
        let place = format!("publication {publication:?}, table {name:?}");
        let direction = match self.direction.as_deref() {
            None | Some("both") => Direction::Both,
            Some("download") => Direction::Download,
            Some("upload") => Direction::Upload,
            Some(other) => {
                let key = format!("{place}: direction");
                return Err(choice(&key, other, &["both", "download", "upload"]));
            }
        };
        let tracking = match self.tracking.as_deref() {
            None | Some("log") => Tracking::Log,
            Some("row") => Tracking::Row,
            Some("off") => Tracking::Off,
            Some(other) => {
                let key = format!("{place}: tracking");
                return Err(choice(&key, other, &["log", "row", "off"]));
            }
        };
        let on_unseen_children = match self.on_unseen_children.as_deref() {
            None | Some("conflict") => OnUnseenChildren::Conflict,
            Some("cascade") => OnUnseenChildren::Cascade,
            Some(other) => {
                let key = format!("{place}: on_unseen_children");
                return Err(choice(&key, other, &["conflict", "cascade"]));
            }
        };
        if self.columns.as_ref().is_some_and(Vec::is_empty) {
            return Err(ServerError::configuration(
                format!("{place}: columns is empty"),
                "name the published columns, or leave the key out to publish all",
            ));
        }
        check_columns(&format!("{place}: columns"), self.columns.iter().flatten())?;
        let filled = format!("{place}: filled_by_centre");
        check_columns(&filled, &self.filled_by_centre)?;
        let identity = self.identity.map(|identity| identity.read(&place));
        check_columns(&format!("{place}: read_only"), &self.read_only)?;
        let write = self.write.map(|write| write.read(&place));
        let conflict = self.conflict.map(|conflict| conflict.read(&place));
        let conflict = conflict.transpose()?.unwrap_or_default();
        let by_handler = [("upload", self.upload), ("download", self.download)];
        let handled = RawHandling {
            handler: self.handler,
            by_handler,
            resolves: conflict.resolve.iter().any(|it| it.trim() == "handler"),
            direction,
        };
        let handled = handled.read(&place, (publication, &name), handlers)?;
        let partition = partition::read(&place, self.partition)?;
        let is_everyones = partition.iter().all(|it| it.by == RuleBy::Everyone);
        if handled.download && !is_everyones {
            return Err(ServerError::configuration(
                format!("{place}: a handler tells what is new, and partition says whose it is"),
                "write partition = \"everyone\": the handler is told the user and what is known \
                 of him, and answers with what is his",
            ));
        }
        // Nothing of it is read from the consolidated database.
        let tracking = match handled.download {
            true => Tracking::Off,
            false => tracking,
        };
        Ok(TableSpec {
            handled,
            identity: identity.transpose()?,
            filled_by_centre: self.filled_by_centre,
            writes: WritesSpec {
                scope: write.transpose()?,
                read_only: self.read_only,
                hand_over: self.hand_over,
            },
            conflict,
            partition,
            name,
            direction,
            columns: self.columns,
            tracking,
            on_unseen_children,
        })
    }
}

/// What a table says of its handler.
struct RawHandling {
    handler: Option<RawUse>,
    /// `upload` and `download`.
    by_handler: [(&'static str, Option<String>); 2],
    resolves: bool,
    direction: Direction,
}

impl RawHandling {
    fn read(
        self,
        place: &str,
        (publication, table): (&str, &str),
        handlers: &mut Handlers,
    ) -> Result<HandledSpec, ServerError> {
        let mut by_handler = [false; 2];
        for ((key, value), by_handler) in self.by_handler.into_iter().zip(&mut by_handler) {
            match value.as_deref() {
                None | Some("centre") => {}
                Some("handler") => *by_handler = true,
                Some(other) => {
                    let key = format!("{place}: {key}");
                    return Err(choice(&key, other, &["centre", "handler"]));
                }
            }
        }
        let [keeps_uploads, downloads] = by_handler;
        let wrong = |what: &str, hint: &str| {
            ServerError::configuration(format!("{place}: {what}"), hint.to_owned())
        };
        if keeps_uploads && !self.direction.uploads() || downloads && !self.direction.downloads() {
            return Err(wrong(
                "upload and download by a handler are about what direction leaves out",
                "leave out direction, or what it leaves out",
            ));
        }
        let Some(used) = self.handler else {
            return match by_handler.contains(&true) || self.resolves {
                false => Ok(HandledSpec::default()),
                true => Err(wrong(
                    "something is a handler's affair, and there is none",
                    "write handler = \"https://HOST/PATH\" below the table",
                )),
            };
        };
        let handler = handlers.used(place, used)?;
        let wants = |event| handlers.wants(&handler, event);
        let uploads = self.direction.uploads() && wants(HandlerEvent::Upload);
        for (is_asked, event) in [
            (keeps_uploads, HandlerEvent::Upload),
            (self.resolves, HandlerEvent::ResolveConflict),
            (downloads, HandlerEvent::Download),
        ] {
            if is_asked && !wants(event) {
                let event = event.name();
                return Err(wrong(
                    &format!("{event} is a handler's affair, and is not among its events"),
                    &format!("add {event:?} to the events of the handler"),
                ));
            }
        }
        if !uploads && !self.resolves && !downloads {
            return Err(wrong(
                "the handler is asked about nothing",
                "remotes only download the table, or the handler's events leave out \"upload\": \
                 remove handler, or write download = \"handler\"",
            ));
        }
        // Remotes have tables without their schema.
        let plain = table.rsplit('.').next().unwrap_or_default();
        let handling = TableHandling {
            handler,
            upload: uploads,
            keeps_uploads,
            resolve: self.resolves,
            download: downloads,
        };
        let key = (publication.to_owned(), plain.to_owned());
        handlers.handling.tables.insert(key, handling);
        Ok(HandledSpec {
            upload: uploads,
            keeps_uploads,
            download: downloads,
        })
    }
}

impl RawConflict {
    fn read(self, place: &str) -> Result<ConflictSpec, ServerError> {
        let detect = match self.detect.as_deref() {
            None | Some("row") => Detect::Row,
            Some("column") => Detect::Column,
            Some(other) => {
                let key = format!("{place}: conflict.detect");
                return Err(choice(&key, other, &["row", "column"]));
            }
        };
        let resolve = match self.resolve {
            None => Vec::new(),
            Some(RawResolve::One(one)) => vec![one],
            Some(RawResolve::Several(several)) => several,
        };
        Ok(ConflictSpec { detect, resolve })
    }
}

impl RawWrite {
    fn read(self, place: &str) -> Result<WriteScopeSpec, ServerError> {
        let wrong = || {
            ServerError::configuration(
                format!("{place}: write needs columns and values"),
                "write = { columns = [\"technician\"], values = \"SELECT {s.username}\" } lets each \
                 user write the rows whose columns have one of the values that the query yields",
            )
        };
        let columns = self.columns.filter(|it| !it.is_empty());
        let values = self.values.filter(|it| !it.trim().is_empty());
        let (columns, values) = columns.zip(values).ok_or_else(wrong)?;
        check_columns(&format!("{place}: write.columns"), &columns)?;
        Ok(WriteScopeSpec { columns, values })
    }
}

/// Whether the columns exist, deploying finds out.
pub(super) fn check_columns<'a>(
    place: &str,
    columns: impl IntoIterator<Item = &'a String>,
) -> Result<(), ServerError> {
    let mut seen = HashSet::new();
    for column in columns {
        let message = match column.is_empty() {
            true => format!("{place} holds an empty name"),
            false if !seen.insert(column) => format!("{place} names {column:?} twice"),
            false => continue,
        };
        return Err(ServerError::configuration(message, "remove it"));
    }
    Ok(())
}

pub(super) fn choice(key: &str, value: &str, known: &[&str]) -> ServerError {
    let hint = match nearest(value, known.iter().copied()) {
        Some(near) => format!("did you mean {near:?}?"),
        None => format!("write one of: {}", known.join(", ")),
    };
    ServerError::configuration(format!("{key} is {value:?}"), hint)
}
