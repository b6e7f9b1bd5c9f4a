//! A program of a measure: a process of its own, which is told what to do on its standard input.

mod calls;
mod events;
mod http;
mod remotes;

use std::io::BufRead;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidewater_client::{Link, LinkOptions, Request};

use self::calls::{by_threads, one_after_the_other};
use self::http::Http;
use crate::base;
use crate::spread::percentile;

/// The user as whom programs sign in.
pub(super) const USER: &str = "bench-0";

/// What a program is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Job {
    /// Where the server listens.
    pub(super) server: String,
    /// Whom to trust, with TLS.
    pub(super) ca_file: Option<PathBuf>,
    pub(super) http_port: u16,
    pub(super) password: String,
    pub(super) seconds: f64,
    pub(super) kind: JobKind,
}

/// A kind of job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum JobKind {
    /// Bytes to another thread's socket of this process and back: what the machine can do.
    Raw,
    /// Calls that the server answers itself, by so many threads with pauses.
    Echo { threads: u32, pause_ms: u64 },
    /// The same over HTTP, one after the other.
    EchoHttp,
    /// Calls of a statement.
    Lookup { threads: u32 },
    /// The bytes of events to six sockets of this process.
    RawToSix,
    /// Publishes events one by one, as many as it can or so many.
    Publish {
        publisher: u32,
        per_second: Option<u32>,
    },
    /// Hears all events, and sees that those of a publisher come in their order.
    Listen,
    /// Publishes durable events, so many at once, and waits until they are kept.
    Keep { threads: u32, at_once: u32 },
    /// Changes rows of remotes and syncs, again and again.
    Syncs { remotes: u32 },
    /// Keeps remotes in sync from `first` on; counts how often one was told to.
    Live { first: u32, remotes: u32 },
    /// Connections of remotes that have synced and are live, without their files.
    Idle { remotes: u32 },
}

/// What came of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct JobOutcome {
    pub(super) count: u64,
    pub(super) seconds: f64,
    pub(super) median_us: f64,
    pub(super) p99_us: f64,
    /// Events that did not come because this program was too slow.
    pub(super) missed: u64,
    /// Something else that was measured beside it.
    pub(super) extra: f64,
}

impl JobOutcome {
    pub(super) fn counted(count: u64, took: Duration) -> JobOutcome {
        JobOutcome {
            count,
            seconds: took.as_secs_f64(),
            ..JobOutcome::default()
        }
    }

    /// Of single ones that took so many microseconds each.
    pub(super) fn of_times(mut times: Vec<f64>, took: Duration) -> JobOutcome {
        times.sort_by(f64::total_cmp);
        JobOutcome {
            median_us: percentile(&times, 0.5),
            p99_us: percentile(&times, 0.99),
            ..JobOutcome::counted(times.len() as u64, took)
        }
    }

    /// What programs that ran beside each other came to.
    pub(super) fn beside(outcomes: &[JobOutcome]) -> JobOutcome {
        let most = |value: fn(&JobOutcome) -> f64| outcomes.iter().map(value).fold(0.0, f64::max);
        JobOutcome {
            count: outcomes.iter().map(|it| it.count).sum(),
            seconds: most(|it| it.seconds),
            median_us: most(|it| it.median_us),
            p99_us: most(|it| it.p99_us),
            missed: outcomes.iter().map(|it| it.missed).sum(),
            extra: 0.0,
        }
    }

    pub(super) fn rate(&self) -> f64 {
        match self.count {
            0 => 0.0,
            count => count as f64 / self.seconds,
        }
    }

    pub(super) fn missed_share(&self) -> f64 {
        match self.missed {
            0 => 0.0,
            missed => missed as f64 / (missed + self.count) as f64,
        }
    }
}

/// Bytes of what is carried.
const PAYLOAD: usize = 100;

fn payload() -> String {
    "x".repeat(PAYLOAD)
}

/// Does what its standard input says.
///
/// # Errors
/// It cannot be done.
pub fn client() -> anyhow::Result<()> {
    let mut input = std::io::stdin().lock();
    let mut line = String::new();
    input.read_line(&mut line)?;
    let job: Job = serde_json::from_str(&line)?;
    let worker = prepare(&job)?;
    println!("ready");
    line.clear();
    input.read_line(&mut line)?;
    let outcome = worker(&job)?;
    println!("{}", serde_json::to_string(&outcome)?);
    Ok(())
}

/// What is left to do when everything is ready.
type Worker = Box<dyn FnOnce(&Job) -> anyhow::Result<JobOutcome>>;

fn prepare(job: &Job) -> anyhow::Result<Worker> {
    Ok(match job.kind {
        JobKind::Raw => Box::new(calls::raw),
        JobKind::EchoHttp => {
            let mut stream = Http::connect(job)?;
            Box::new(move |job| {
                let body = serde_json::json!({ "value": payload() }).to_string();
                one_after_the_other(job, || stream.call("tidewater.echo", &body))
            })
        }
        JobKind::Echo { threads, pause_ms } => {
            let link = connect(job)?;
            let request = Request::new("tidewater.echo").with("value", Some(payload().into()));
            let request = Arc::new(move |_| request.clone());
            let pause = Duration::from_millis(pause_ms);
            Box::new(move |job| by_threads(job, threads, pause, &link, request))
        }
        JobKind::Lookup { threads } => {
            let link = connect(job)?;
            let request = |number: u64| {
                let (employee, purchase) = base::key_of(number);
                Request::new("lookup")
                    .with("emp", Some(i64::from(employee).into()))
                    .with("purch", Some(i64::from(purchase).into()))
            };
            let request = Arc::new(request);
            Box::new(move |job| by_threads(job, threads, Duration::ZERO, &link, request))
        }
        JobKind::RawToSix => Box::new(events::raw_to_six),
        JobKind::Publish {
            publisher,
            per_second,
        } => {
            let link = connect(job)?;
            Box::new(move |job| events::publish(job, &link, publisher, per_second))
        }
        JobKind::Listen => {
            let listener = events::Listener::start(&connect(job)?)?;
            Box::new(move |job| listener.listen(job))
        }
        JobKind::Keep { threads, at_once } => {
            let link = connect(job)?;
            Box::new(move |job| events::keep(job, &link, threads, at_once))
        }
        JobKind::Syncs { remotes } => {
            let syncing = remotes::SyncedRemotes::start(job, remotes)?;
            Box::new(move |job| syncing.run(job))
        }
        JobKind::Live { first, remotes } => {
            let live = remotes::Live::start(job, first, remotes)?;
            Box::new(|_| live.stop())
        }
        JobKind::Idle { remotes } => {
            let idle = remotes::idle(job, remotes)?;
            Box::new(move |_| Ok(JobOutcome::counted(idle.len() as u64, Duration::ZERO)))
        }
    })
}

fn connect(job: &Job) -> anyhow::Result<Link> {
    let options = LinkOptions::password(USER, &job.password);
    Ok(Link::connect(&job.server, &options)?)
}
