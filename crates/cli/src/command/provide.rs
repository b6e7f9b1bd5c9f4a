//! `tidewater provide`: a command of this machine does what others call.

use std::io::Write;
use std::ops::ControlFlow;
use std::process::{Command, Stdio};
use std::thread;

use clap::Args;
use serde_json::Value;
use tidewater_client::{Answer, CallFailed, Code, Link, ProvidedCall};
use tidewater_protocol::json;
use tidewater_terminal::{CommandOutcome, Failure, Interrupt, describe, output, with_exit_codes};

use super::program::{ConnectionTask, ProgramArgs, TICK};
use crate::password;

/// Provide a procedure: run a command for each call
///
/// The command gets the arguments as one JSON object on its standard input, and the caller in
/// TIDEWATER_CALLER (and TIDEWATER_REMOTE, if it is a device). What it prints is the answer: JSON,
/// or text. If it fails, its exit code and what it has printed to standard error are what the
/// caller is told. Several at once share the calls; when the connection is lost, it connects again.
#[derive(Debug, Args)]
#[command(after_help = with_exit_codes!("\
Examples:
  tidewater provide price --server tcp://127.0.0.1:7439 --user pricing --exec ./price.sh
  tidewater provide twice --server ... --user maths --exec \"jq '.number * 2'\""))]
pub(crate) struct ProvideArgs {
    /// The procedure, which the server's operator declares with provided_by
    #[arg(value_name = "PROCEDURE")]
    procedure: String,
    #[command(flatten)]
    program: ProgramArgs,
    /// What does it, as a shell would run it
    #[arg(long, value_name = "COMMAND")]
    exec: String,
}

pub(crate) fn run(args: &ProvideArgs) -> Result<CommandOutcome, Failure> {
    let options = args.program.options()?;
    let interrupt = Interrupt::listen()?;
    let mut providing = ProvideTask {
        args,
        interrupt: &interrupt,
    };
    let program = &args.program;
    program.stay_connected(&options, &interrupt, &mut providing)?;
    Ok(CommandOutcome::Complete)
}

struct ProvideTask<'a> {
    args: &'a ProvideArgs,
    interrupt: &'a Interrupt,
}

impl ConnectionTask for ProvideTask<'_> {
    fn begin(&mut self, link: &Link) -> Result<(), Failure> {
        let command = self.args.exec.clone();
        let procedure = &self.args.procedure;
        link.provide(procedure, move |called| run_command(&command, called))?;
        output::note(&format!("providing {procedure}; Ctrl-C ends"));
        Ok(())
    }

    fn go_on(&mut self, link: &Link) -> Result<ControlFlow<()>, Failure> {
        if self.interrupt.is_raised() {
            // What was begun is finished.
            link.withdraw(&self.args.procedure)?;
            return Ok(ControlFlow::Break(()));
        }
        if let Some(lost) = link.lost() {
            return Err(Failure::new(lost.code(), lost.to_string(), lost.hint()));
        }
        thread::sleep(TICK);
        Ok(ControlFlow::Continue(()))
    }
}

/// Runs a shell's command line for a call.
pub(crate) fn run_command(command: &str, called: &ProvidedCall) -> Result<Answer, CallFailed> {
    let cannot = |error: std::io::Error| {
        CallFailed::new(
            Code::ProcedureFailed,
            format!("the provider's command cannot be run: {}", describe(&error)),
            "tell whoever runs the provider",
        )
    };
    let mut child = Command::new("sh");
    child
        .args(["-c", command])
        .env_remove(password::VARIABLE)
        .env("TIDEWATER_CALLER", called.user())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if let Some(remote_id) = called.remote_id() {
        child.env("TIDEWATER_REMOTE", remote_id.to_string());
    }
    let mut child = child.spawn().map_err(cannot)?;
    let arguments = Value::Object(json::object(called.arguments())).to_string();
    if let Some(mut input) = child.stdin.take() {
        // A command that does not read its arguments closes its input.
        let _ = writeln!(input, "{arguments}");
    }
    let output = child.wait_with_output().map_err(cannot)?;
    if !output.status.success() {
        let told = String::from_utf8_lossy(&output.stderr);
        let told = told.trim();
        let code = output.status.code();
        return Err(CallFailed {
            own_code: code.map_or_else(String::new, |code| code.to_string()),
            ..CallFailed::new(
                Code::ProcedureFailed,
                match told.is_empty() {
                    true => "the provider's command failed".to_owned(),
                    false => told.to_owned(),
                },
                "",
            )
        });
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let text = text.trim_end();
    let value = match text.is_empty() {
        true => Value::Null,
        false => serde_json::from_str(text).unwrap_or_else(|_| Value::from(text)),
    };
    Ok(json::to_answer(&value))
}
