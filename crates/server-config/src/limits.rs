//! `[server.limits]`: how much of everything there may be.

use std::ops::RangeInclusive;
use std::time::Duration;

use tidewater_centre::MarkFrequency;

use crate::error::ConfigError;
use crate::section_reader::SectionReader;

/// `[server.limits]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Connections at the same time.
    pub connections: usize,
    /// Syncs that wait for a worker before new ones are told to come back later.
    pub backlog: usize,
    /// Memory for rows on their way; what does not fit goes to temporary files.
    pub memory_bytes: u64,
    /// Database connections that look up who signs in.
    pub session_workers: usize,
    /// Database connections that apply uploads; `None`: as many as get the most done.
    pub upload_workers: Option<usize>,
    /// Database connections that read downloads; `None`: as many as get the most done.
    pub download_workers: Option<usize>,
    /// Database connections that run calls; `None`: as many as get the most done.
    pub call_workers: Option<usize>,
    /// Between how many of each of these is tried, where no number is fixed.
    pub tried_workers: RangeInclusive<usize>,
    /// Packed bytes of the uploads of one sync.
    pub upload_bytes: u64,
    /// Rows of the uploads of one sync.
    pub upload_rows: u64,
    /// Packed bytes of one uploaded row.
    pub row_bytes: usize,
    /// Bytes of one call, of one answer in one piece, and of one event.
    pub message_bytes: usize,
    /// Bytes of the rows of one answer, which come in pieces.
    pub answer_bytes: usize,
    /// The same of one that is sent while it is read.
    pub answer_stream_bytes: u64,
    /// Publications in one sync.
    pub subscriptions: usize,
    /// Passwords that are checked at the same time (19 MiB and some ten milliseconds
    /// of a core each).
    pub password_checks: usize,
    /// From the accepted connection to the complete SignIn.
    pub handshake: Duration,
    /// Silence of a remote that has to say something, takes nothing, or does not sync.
    pub idle: Duration,
    /// One whole sync.
    pub sync: Duration,
    /// What running syncs are given at shutdown.
    pub shutdown: Duration,
    /// How often a waiting remote hears that the server is there.
    pub waiting: Duration,
    /// How often a first download can be gone on with, should it break.
    pub marks: MarkFrequency,
}

/// What counts where nothing is said.
impl Default for ServerLimits {
    fn default() -> Self {
        let section = SectionReader::empty("server.limits");
        ServerLimits::read(section).expect("the defaults of the grammar are limits")
    }
}

impl ServerLimits {
    pub(super) fn read(mut section: SectionReader) -> Result<ServerLimits, ConfigError> {
        let mut workers = |key| {
            let number = section.optional_number(key)?;
            Ok::<_, ConfigError>(number.and_then(|it| usize::try_from(it).ok()))
        };
        let password_checks = workers("password_checks")?;
        Ok(ServerLimits {
            upload_workers: workers("upload_workers")?,
            download_workers: workers("download_workers")?,
            call_workers: workers("call_workers")?,
            password_checks: password_checks.unwrap_or_else(half_of_the_cores),
            connections: section.count("connections")?,
            backlog: section.count("backlog")?,
            memory_bytes: section.size("memory")?,
            session_workers: section.count("session_workers")?,
            tried_workers: read_tried_workers(&mut section)?,
            upload_bytes: section.size("upload_size")?,
            upload_rows: section.number("upload_rows")?,
            row_bytes: section.memory_size("row_size")?,
            message_bytes: section.memory_size("message_size")?,
            answer_bytes: section.memory_size("answer_size")?,
            answer_stream_bytes: section.size("answer_stream_size")?,
            subscriptions: section.count("subscriptions")?,
            handshake: section.duration("handshake_timeout")?,
            idle: section.duration("idle_timeout")?,
            sync: section.duration("sync_timeout")?,
            shutdown: section.duration("shutdown_timeout")?,
            waiting: section.duration("keepalive_interval")?,
            marks: MarkFrequency::default(),
        })
    }
}

/// Sign-ins must leave room for running syncs.
fn half_of_the_cores() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores / 2).max(1)
}

/// Between how many workers the best number is looked for. One of the two bounds alone moves the
/// default of the other out of its way.
fn read_tried_workers(section: &mut SectionReader) -> Result<RangeInclusive<usize>, ConfigError> {
    let has_most = section.has("max_workers");
    let least = section.count("min_workers")?;
    let most = section.count("max_workers")?;
    match least <= most {
        true => Ok(least..=most),
        false if !has_most => Ok(least..=least),
        false => Err(ConfigError::new(
            format!("server.limits.min_workers is {least}, and max_workers is {most}"),
            "write min_workers not greater than max_workers",
        )),
    }
}
