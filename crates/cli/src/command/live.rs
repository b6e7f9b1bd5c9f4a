//! `tidewater live`: a remote's file stays in sync.

use std::ops::ControlFlow;
use std::path::Path;
use std::thread;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tidewater_client::{Code, LiveEvent, LiveOptions, Report, SyncReason};
use tidewater_terminal::{CommandOutcome, Failure, Interrupt, output, with_exit_codes};

use super::program;
use super::provide::run_command;
use super::sync::{self, SyncArgs};
use crate::remote_file;
use crate::sync_object::SyncObject;

/// The pause between two looks at a locked file, each of which waits for a while itself.
const LOCKED_PAUSE: Duration = Duration::from_millis(200);

/// Keep a remote's file in sync, until Ctrl-C
///
/// Stays connected: syncs when somebody else has changed what the file holds, within a second when
/// something is changed in the file, and every so often anyway. Connects again, with growing pauses,
/// when the connection is lost. Its outbox is emptied on the way, its inbox filled as soon as there
/// is something for it, and other programs may read and write the file as ever.
#[derive(Debug, Args)]
#[command(after_help = with_exit_codes!("\
Examples:
  tidewater live nancy.db --server tcp://127.0.0.1:7439 --user nancy --publication main
  tidewater live nancy.db
  tidewater live nancy.db --json | while read -r line; do ...
  tidewater live nancy.db --provide position=./position.sh   # the office asks this device

The lines of --json:
  {\"event\":\"synced\",\"why\":\"connected\", \"told\", \"local\", \"event\" or \"regular\",
   \"tables\":[those whose rows have changed],\"report\":{as of tidewater sync}}
  {\"event\":\"failed\",\"code\",\"message\",\"hint\",\"again_after_ms\"}
  {\"event\":\"leaving\"}   the server shuts down"))]
pub(crate) struct LiveArgs {
    #[command(flatten)]
    pub(crate) sync: SyncArgs,
    /// Sync at least so often: 30s, 5m
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = program::time)]
    every: Duration,
    /// Do what others call: run the command for each call of the procedure, see tidewater provide;
    /// repeatable
    #[arg(long = "provide", value_name = "PROCEDURE=COMMAND", value_parser = provided)]
    provide: Vec<(String, String)>,
}

/// Reads `position=./position.sh`.
fn provided(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, command)) => Ok((name.to_owned(), command.to_owned())),
        None => Err("write PROCEDURE=COMMAND".into()),
    }
}

pub(crate) fn run(args: &LiveArgs) -> Result<CommandOutcome, Failure> {
    let options = LiveOptions {
        every: args.every,
        ..LiveOptions::default()
    };
    run_with(&args.sync, options, &args.provide)
}

/// Keeps a file in sync by what `tidewater sync --watch` says.
pub(super) fn watch(args: &SyncArgs) -> Result<CommandOutcome, Failure> {
    run_with(args, LiveOptions::default(), &[])
}

/// Keeps a file in sync, and runs commands for what it provides.
fn run_with(
    args: &SyncArgs,
    options: LiveOptions,
    provide: &[(String, String)],
) -> Result<CommandOutcome, Failure> {
    wait_for_lock(&args.remote);
    let (mut remote, given) = sync::prepared(args)?;
    let interrupt = Interrupt::listen()?;
    for (name, command) in provide {
        let command = command.clone();
        remote.provide(name, move |called| run_command(&command, called));
    }
    // Whether somebody reads.
    let mut told = Ok(true);
    sync::signed_in(&mut remote, &args.proof, given, |remote| {
        remote.live(&options, &mut |event| {
            told = tell(event, args);
            match !interrupt.is_raised() && matches!(told, Ok(true)) {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        })
    })?;
    told.map(|_| CommandOutcome::Complete)
}

/// Waits until no other program keeps the file locked.
fn wait_for_lock(file: &Path) {
    let mut is_told = false;
    loop {
        let account = remote_file::open(file).and_then(|database| Ok(database.account()?));
        match account {
            Err(failure) if failure.code == Code::RemoteLocked => {}
            // Whatever else is wrong is told where the file is used.
            _ => return,
        }
        if !is_told {
            let file = file.display();
            output::note(&format!(
                "{file} is locked by another program; waiting for it"
            ));
            is_told = true;
        }
        thread::sleep(LOCKED_PAUSE);
    }
}

/// Whether there is still somebody who reads.
fn tell(event: &LiveEvent<'_>, args: &SyncArgs) -> Result<bool, Failure> {
    let as_json = args.json;
    match event {
        LiveEvent::Synced { why, report } if as_json => output::json_to_reader(&json!({
            "event": "synced",
            "why": why.name(),
            "tables": report.tables,
            "report": SyncObject::new(report, 0),
        })),
        LiveEvent::Synced { .. } | LiveEvent::Leaving if args.quiet && !as_json => Ok(true),
        LiveEvent::Synced { why, report }
            if *why == SyncReason::Connected || says_something(report) =>
        {
            let tables: Vec<&str> = report.tables.iter().map(String::as_str).collect();
            let tables = match tables.is_empty() {
                true => String::new(),
                false => format!(" in {}", tables.join(", ")),
            };
            let outbox = report.outbox;
            let mut calls = String::new();
            if outbox.answered + outbox.failed > 0 {
                calls = format!("; {} answered, {} failed", outbox.answered, outbox.failed);
            }
            if report.inbox > 0 {
                calls.push_str(&format!("; {} into the inbox", report.inbox));
            }
            output::text_to_reader(&format!(
                "{}: {} up, {} down{tables}{calls}\n",
                why.name(),
                uploaded(report),
                report.downloaded.upserts + report.downloaded.removals,
            ))
        }
        LiveEvent::Failed { error, again_after } if as_json => output::json_to_reader(&json!({
            "event": "failed",
            "code": error.code().name(),
            "message": error.to_string(),
            "hint": error.hint(),
            "again_after_ms": again_after.map(|it| it.as_millis() as u64),
        })),
        LiveEvent::Failed {
            error,
            again_after: Some(pause),
        } => {
            let pause = output::duration(pause.as_millis() as u64);
            output::note(&format!("{error}; trying again in {pause}"));
            Ok(true)
        }
        LiveEvent::Leaving if as_json => output::json_to_reader(&json!({ "event": "leaving" })),
        LiveEvent::Leaving => {
            output::note("the server shuts down");
            Ok(true)
        }
        _ => Ok(true),
    }
}

fn says_something(report: &Report) -> bool {
    let called = report.outbox.answered + report.outbox.failed + report.inbox;
    uploaded(report) > 0 || !report.tables.is_empty() || report.refused > 0 || called > 0
}

fn uploaded(report: &Report) -> u64 {
    let uploaded = report.uploaded;
    uploaded.inserts + uploaded.updates + uploaded.deletes
}
