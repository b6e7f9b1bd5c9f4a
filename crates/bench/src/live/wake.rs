//! From a commit in the centre to the row on the device, and what it costs to wait for that.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tidewater_client::{LiveEvent, LiveOptions as StayOptions, Remote, SyncReason};
use tidewater_purchase::FIRST_PURCH_ID;

use super::LiveBenchOptions;
use super::client::{Job, JobKind, JobOutcome};
use super::report::{Goal, Unit};
use super::stage::{Program, Stage, StageSetting};
use super::trial::{Figure, Trial};
use crate::driver::{employee, user};
use crate::processes::{anonymous_bytes, cpu_seconds};
use crate::server::PUBLICATION;

/// Programs that keep the other remotes live.
const PROGRAMS: u32 = 4;

/// Rows of each remote.
const ROWS: u32 = 10;

/// Commits a second at most, so that each finds the server at rest.
const COMMITS: f64 = 10.0;

/// What is not measured because it is well: a row that takes longer is lost.
const PATIENCE: Duration = Duration::from_secs(30);

/// Idle remotes that are there before memory is first looked at: the server makes its own buffers.
const WARM: u32 = 200;

pub(super) fn setting(remotes: u32, idle: u32) -> StageSetting {
    StageSetting {
        sections: "",
        employees: employee(0)..employee(remotes),
        purchases: ROWS,
        users: remotes,
        remotes: remotes.max(idle + WARM),
    }
}

pub(super) fn trials(options: &LiveBenchOptions, remotes: u32, idle: u32) -> Vec<Trial> {
    let seconds = options.seconds;
    let milliseconds = |name: &str, value: fn(&JobOutcome) -> f64, most: f64| Figure {
        unit: Unit::Milliseconds,
        value,
        ..Figure::rate(name).goal(Goal::AtMost(most))
    };
    let told = format!("commit to row, {remotes} live, one meant");
    let waits = Trial {
        name: told.clone(),
        run: Box::new(move |stage| tell_one(stage, seconds, remotes)),
        figures: vec![
            milliseconds(&format!("{told}: median"), |it| it.median_us / 1e3, 60.0),
            milliseconds(&format!("{told}: 99th"), |it| it.p99_us / 1e3, 200.0),
            Figure {
                unit: Unit::CorePercent,
                value: |it| it.extra,
                ..Figure::rate("the server, while nothing happens")
            },
        ],
    };
    let memory = |name: &str, most: f64, tls: bool| Trial {
        name: name.into(),
        run: Box::new(move |stage| remember(stage, idle, tls)),
        figures: vec![Figure {
            unit: Unit::Kib,
            value: |it| it.extra,
            ..Figure::rate(name).goal(Goal::AtMost(most))
        }],
    };
    vec![
        waits,
        memory("memory of each of many idle, without TLS", 8.0, false),
        memory("memory of each of many idle, with TLS", 24.0, true),
    ]
}

/// The remote that is meant: live in a thread of this process.
struct Meant {
    came: Receiver<Instant>,
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<anyhow::Result<()>>,
}

impl Meant {
    fn start(stage: &Stage) -> anyhow::Result<Meant> {
        let path = stage.folder().join("meant.db");
        let mut remote = Remote::open(path)?;
        remote.subscribe(&stage.url(), &user(0), &[PUBLICATION])?;
        remote.set_password(stage.password().to_owned());
        let (sender, came) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let result = remote.live(&StayOptions::default(), &mut |event| {
                let now = Instant::now();
                let lost = match event {
                    LiveEvent::Synced { why, report } => {
                        let is_it = report.downloaded.upserts > 0 || *why == SyncReason::Connected;
                        is_it && sender.send(now).is_err()
                    }
                    _ => false,
                };
                match lost || stopped.load(Ordering::Relaxed) {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            });
            Ok(result?)
        });
        let meant = Meant { came, stop, thread };
        match meant.came.recv_timeout(PATIENCE) {
            Ok(_) => Ok(meant),
            Err(_) => {
                meant.stop()?;
                bail!("the remote does not come to be live");
            }
        }
    }

    fn stop(self) -> anyhow::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let joined = self.thread.join();
        joined.map_err(|_| anyhow::anyhow!("a thread has panicked"))?
    }
}

fn tell_one(stage: &mut Stage, seconds: f64, remotes: u32) -> anyhow::Result<JobOutcome> {
    let others = remotes.saturating_sub(1);
    let share = |program: u32| {
        let first = 1 + others * program / PROGRAMS;
        let end = 1 + others * (program + 1) / PROGRAMS;
        JobKind::Live {
            first,
            remotes: end - first,
        }
    };
    let jobs = (0..PROGRAMS).map(|it| stage.job(seconds, share(it)));
    let programs = jobs.map(|job| Program::start(&job));
    let mut programs: Vec<Program> = programs.collect::<Result<_, _>>()?;
    let meant = Meant::start(stage)?;
    let result = commits(stage, seconds, &meant);
    let stopped = meant.stop();
    let outcome = result?;
    stopped?;
    programs.iter_mut().try_for_each(Program::go)?;
    for program in programs {
        let others = program.outcome()?;
        anyhow::ensure!(
            others.count == 0,
            "{} remotes were told that were not meant",
            others.count
        );
    }
    Ok(outcome)
}

fn commits(stage: &mut Stage, seconds: f64, meant: &Meant) -> anyhow::Result<JobOutcome> {
    let cpu = |stage: &Stage| cpu_seconds(stage.process()).unwrap_or(0.0);
    let (begun, before) = (Instant::now(), cpu(stage));
    thread::sleep(Duration::from_secs_f64(seconds.min(5.0)));
    let used = (cpu(stage) - before) / begun.elapsed().as_secs_f64();
    let update = format!(
        "UPDATE purchase SET cost = cost + 1 WHERE emp_id = {} AND purch_id = {FIRST_PURCH_ID}",
        employee(0)
    );
    let mut times = Vec::new();
    let begun = Instant::now();
    let count = (seconds * COMMITS).max(20.0) as u64;
    for number in 0..count {
        stage.base.execute(&update)?;
        let committed = Instant::now();
        let came = meant.came.recv_timeout(PATIENCE);
        let came = came.context("a committed row has not come to the device")?;
        // It may come before the commit has been reported to whoever made it.
        times.push(came.saturating_duration_since(committed).as_secs_f64() * 1e6);
        // Not in step with whatever looks at intervals.
        let pause = 20 + (number * 7_919) % 97;
        thread::sleep(Duration::from_millis(pause));
    }
    Ok(JobOutcome {
        extra: used * 100.0,
        ..JobOutcome::of_times(times, begun.elapsed())
    })
}

/// KiB of the server for each of many that are live and hear nothing.
fn remember(stage: &mut Stage, idle: u32, tls: bool) -> anyhow::Result<JobOutcome> {
    // One that has served others would not grow by all that these need.
    let server = stage.another_server(tls)?;
    let job = |remotes| Job {
        server: server.url.clone(),
        ca_file: server.ca_file.clone(),
        ..stage.job(0.0, JobKind::Idle { remotes })
    };
    let memory =
        || anonymous_bytes(server.process.process()).context("nobody knows how much memory it has");
    let warm = Program::start(&job(WARM))?;
    let before = memory()?;
    let programs = Program::start(&job(idle))?;
    let grown = memory()?.saturating_sub(before);
    for mut program in [warm, programs] {
        program.go()?;
        program.outcome()?;
    }
    server.process.stop()?;
    Ok(JobOutcome {
        extra: grown as f64 / 1024.0 / f64::from(idle),
        ..JobOutcome::default()
    })
}
