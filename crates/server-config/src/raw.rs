//! From TOML values to the configuration: types, ranges, and what must be said.

use std::ops::RangeInclusive;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use tidewater_carrier::ServerUrl;
use tidewater_carrier::proxy_header::{IpNetwork, IpNetworkError, IpNetworks};
use tidewater_centre::PublicationSpec;
use tidewater_protocol::frame::MAX_MESSAGE_BYTES;

use super::handler::{Handlers, RawHandler};
use super::images::RawImages;
use super::lines::Lines;
use super::procedure::{ProcedureConfig, RawProcedure};
use super::publication::RawPublication;
use super::relay::RawRelay;
use super::sign_in::RawSignIn;
use super::space::{self, RawSpace};
use super::text;
use super::upstream::RawUpstream;
use super::value::{RawSize, check_names, choice, duration, packing};
use super::wake::RawWake;
use super::{
    Config, Limits, LiveConfig, LogConfig, LogFormat, RetentionConfig, ServerConfig, TlsConfig,
};
use crate::database_url::DatabaseUrl;
use crate::error::ConfigError;

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
    relay: Option<RawRelay>,
    upstream: Option<RawUpstream>,
    images: Option<RawImages>,
}

#[derive(Deserialize, Default)]
struct RawLive {
    nats: Option<String>,
    #[serde(default)]
    servers: Vec<String>,
}

impl RawLive {
    fn read(self) -> Result<LiveConfig, ConfigError> {
        let servers = self.servers.iter().map(|server| {
            let url = server.parse::<ServerUrl>().map_err(|error| {
                ConfigError::new(
                    format!("live.servers: {server:?}: {error}"),
                    "write the addresses at which remotes reach the servers, such as \
                     servers = [\"tls://one.example.com:7439\", \"tls://two.example.com:7439\"]",
                )
            })?;
            Ok(url.to_string())
        });
        Ok(LiveConfig {
            servers: servers.collect::<Result<_, ConfigError>>()?,
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
    compression: Option<String>,
    compression_level: Option<u64>,
    #[serde(default)]
    proxies: Vec<String>,
    drain_delay: Option<String>,
    verify_every: Option<u64>,
    #[serde(default)]
    limits: RawLimits,
}

#[derive(Deserialize)]
struct RawTls {
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
}

/// A piece of an answer has so many.
const LEAST_MESSAGE_BYTES: usize = 64 << 10;

#[derive(Deserialize, Default)]
struct RawLimits {
    connections: Option<u64>,
    backlog: Option<u64>,
    memory: Option<RawSize>,
    session_workers: Option<u64>,
    upload_workers: Option<u64>,
    download_workers: Option<u64>,
    call_workers: Option<u64>,
    least_workers: Option<u64>,
    most_workers: Option<u64>,
    upload_bytes: Option<RawSize>,
    upload_rows: Option<u64>,
    row_bytes: Option<RawSize>,
    message: Option<RawSize>,
    answer: Option<RawSize>,
    answer_stream: Option<RawSize>,
    subscriptions: Option<u64>,
    password_checks: Option<u64>,
    handshake: Option<String>,
    idle: Option<String>,
    sync: Option<String>,
    shutdown: Option<String>,
    waiting: Option<String>,
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

/// Makes a configuration of TOML whose keys are known and whose variables are
/// expanded.
///
/// # Errors
/// Something has the wrong type, is out of range, or must be said and is not.
pub(super) fn read(value: toml::Value) -> Result<Config, ConfigError> {
    let raw: RawConfig = value.try_into().map_err(|error: toml::de::Error| {
        ConfigError::new(
            error.to_string().trim().replace('\n', " "),
            "see docs/configuration.md for what each setting takes",
        )
    })?;
    let server = raw.server.ok_or_else(|| {
        ConfigError::new(
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
    let images = raw.images.map(|it| it.read(&names)).transpose()?;
    let server = server.read()?;
    let relay = raw.relay.map(|it| it.read(&server)).transpose()?;
    let upstream = raw.upstream.map(|it| it.read(&server)).transpose()?;
    let sign_in = raw.sign_in.read(insecure, &mut handlers)?;
    handlers.check(&procedures)?;
    Ok(Config {
        scripts: raw.scripts,
        handlers: handlers.all,
        handling: handlers.handling,
        wakes,
        sign_in,
        upstream,
        images,
        given: None,
        only: None,
        server,
        retention: raw.retention.read()?,
        log: raw.log.read()?,
        publications,
        procedures,
        spaces: space::read(raw.space)?,
        live: raw.live.read()?,
        relay,
        lines: Lines::default(),
    })
}

impl RawServer {
    fn read(self) -> Result<ServerConfig, ConfigError> {
        let consolidated = self.consolidated.ok_or_else(|| {
            ConfigError::new(
                "server.consolidated is missing",
                "write consolidated = \"postgres://user@host:5432/database\" or \"sqlite:path\"",
            )
        })?;
        DatabaseUrl::parse(&consolidated).map_err(|error| {
            ConfigError::new(format!("server.consolidated: {error}"), error.hint())
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
                return Err(ConfigError::new(
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
            packing: packing("server", self.compression, self.compression_level)?,
            proxies: proxies(&self.proxies)?,
            drain_delay: drain_delay(self.drain_delay)?,
            verify_every: verify_every(self.verify_every)?,
            limits: self.limits.read()?,
        })
    }
}

fn proxies(texts: &[String]) -> Result<IpNetworks, ConfigError> {
    let read = |text: &String| {
        text.parse::<IpNetwork>().map_err(|error| {
            ConfigError::new(
                format!("server.proxies: {text:?} {error}"),
                match error {
                    IpNetworkError::Beyond { network } => format!("write \"{network}\""),
                    _ => "write addresses and networks, such as \
                          proxies = [\"10.0.0.0/8\", \"127.0.0.1\", \"fd00::/8\"]"
                        .to_owned(),
                },
            )
        })
    };
    texts.iter().map(read).collect()
}

/// Nothing said: at once.
fn drain_delay(value: Option<String>) -> Result<Duration, ConfigError> {
    match value.as_deref().map(str::trim) {
        Some("0s" | "0ms") => Ok(Duration::ZERO),
        _ => duration("server.drain_delay", value, Duration::ZERO),
    }
}

/// Nothing said: never.
fn verify_every(value: Option<u64>) -> Result<u64, ConfigError> {
    match value {
        None => Ok(0),
        Some(value @ 1..=1_000_000) => Ok(value),
        Some(value) => Err(ConfigError::new(
            format!("server.verify_every is {value}"),
            "write a number of syncs from 1 to 1000000, or leave the key out: then no remote \
             verifies by itself",
        )),
    }
}

fn names_file(path: &Path) -> bool {
    !path.as_os_str().is_empty()
}

impl RawLimits {
    fn read(self) -> Result<Limits, ConfigError> {
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
            tried_workers: tried(self.least_workers, self.most_workers, default.tried_workers)?,
            upload_bytes: bytes("upload_bytes", self.upload_bytes, default.upload_bytes)?,
            upload_rows: rows("upload_rows", self.upload_rows, default.upload_rows)?,
            row_bytes: usize::try_from(bytes(
                "row_bytes",
                self.row_bytes,
                default.row_bytes as u64,
            )?)
            .unwrap_or(usize::MAX),
            message_bytes: message_bytes(self.message, default.message_bytes)?,
            answer_bytes: usize::try_from(bytes(
                "answer",
                self.answer,
                default.answer_bytes as u64,
            )?)
            .unwrap_or(usize::MAX),
            answer_stream_bytes: bytes(
                "answer_stream",
                self.answer_stream,
                default.answer_stream_bytes,
            )?,
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
            marks: default.marks,
        })
    }
}

fn count(key: &str, value: Option<u64>, default: usize) -> Result<usize, ConfigError> {
    match value {
        None => Ok(default),
        Some(value @ 1..=1_000_000) => Ok(value as usize),
        Some(value) => Err(ConfigError::new(
            format!("server.limits.{key} is {value}"),
            "write a number from 1 to 1000000",
        )),
    }
}

/// Nothing said: as many as get the most done.
fn workers(key: &str, value: Option<u64>) -> Result<Option<usize>, ConfigError> {
    value.map(|value| count(key, Some(value), 1)).transpose()
}

/// So many workers no database gives a connection each.
const MOST_WORKERS: usize = 1_000;

/// Between how many workers the best number is looked for.
fn tried(
    least: Option<u64>,
    most: Option<u64>,
    default: RangeInclusive<usize>,
) -> Result<RangeInclusive<usize>, ConfigError> {
    let least = count("least_workers", least, *default.start())?;
    let most = count("most_workers", most, (*default.end()).max(least))?;
    if most > MOST_WORKERS {
        let key = if least > MOST_WORKERS {
            "least_workers"
        } else {
            "most_workers"
        };
        return Err(ConfigError::new(
            format!(
                "server.limits.{key} is {}",
                if least > MOST_WORKERS { least } else { most }
            ),
            format!(
                "write a number from 1 to {MOST_WORKERS}: each worker has a connection to the \
                 database"
            ),
        ));
    }
    match least <= most {
        true => Ok(least..=most),
        false => Err(ConfigError::new(
            format!("server.limits.least_workers is {least}, and most_workers is {most}"),
            "write least_workers not greater than most_workers",
        )),
    }
}

fn rows(key: &str, value: Option<u64>, default: u64) -> Result<u64, ConfigError> {
    match value {
        None => Ok(default),
        Some(0) => Err(ConfigError::new(
            format!("server.limits.{key} is 0"),
            "write a number from 1, or direction = \"download\" below tables that take no uploads",
        )),
        Some(value) => Ok(value),
    }
}

fn bytes(key: &str, value: Option<RawSize>, default: u64) -> Result<u64, ConfigError> {
    let value = match value {
        None => Some(default),
        Some(RawSize::Bytes(bytes)) => Some(bytes),
        Some(RawSize::Text(text)) => text::size(&text),
    };
    value.filter(|&bytes| bytes > 0).ok_or_else(|| {
        ConfigError::new(
            format!("server.limits.{key} is not a size"),
            "write a number of bytes, or \"64KiB\", \"256MiB\", \"4GiB\"",
        )
    })
}

/// A call or an event goes in one frame, and both sides hold it in memory.
fn message_bytes(value: Option<RawSize>, default: usize) -> Result<usize, ConfigError> {
    let bytes = bytes("message", value, default as u64)?;
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    match bytes {
        LEAST_MESSAGE_BYTES..=MAX_MESSAGE_BYTES => Ok(bytes),
        _ => Err(ConfigError::new(
            format!("server.limits.message is {bytes} bytes"),
            "write a size from \"64KiB\" to \"16MiB\"",
        )),
    }
}

fn deadline(key: &str, value: Option<String>, default: Duration) -> Result<Duration, ConfigError> {
    duration(&format!("server.limits.{key}"), value, default)
}

/// A signing key that another one has superseded must outlive the moment at which every server
/// has heard of that.
const MIN_LOG_MS: i64 = 60_000;

impl RawRetention {
    fn read(self) -> Result<RetentionConfig, ConfigError> {
        let mut retention = RetentionConfig::default();
        let keep = |key, value, default_ms: &mut i64| {
            let default = Duration::from_millis(*default_ms as u64);
            let kept = duration(&format!("retention.{key}"), value, default)?;
            *default_ms = i64::try_from(kept.as_millis()).unwrap_or(i64::MAX);
            Ok::<(), ConfigError>(())
        };
        keep("log", self.log, &mut retention.keep.log_ms)?;
        if retention.keep.log_ms < MIN_LOG_MS {
            return Err(ConfigError::new(
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
    fn read(self) -> Result<LogConfig, ConfigError> {
        let format = match self.format.as_deref() {
            None | Some("text") => LogFormat::Text,
            Some("json") => LogFormat::Json,
            Some(other) => return Err(choice("log.format", other, &["text", "json"])),
        };
        let level = self.level.unwrap_or_else(|| "info".into());
        if level.trim().is_empty() {
            return Err(ConfigError::new(
                "log.level is empty",
                "write error, warn, info, debug or trace, or leave the key out",
            ));
        }
        Ok(LogConfig { format, level })
    }
}
