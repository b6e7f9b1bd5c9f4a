//! `tidewater call`: one call of a procedure, and what comes of it.

use std::time::Duration;

use clap::Args;
use serde_json::Value;
use tidewater_client::AnswerRows;
use tidewater_protocol::message::{Answer, Returns};
use tidewater_protocol::{RemoteId, json};
use tidewater_terminal::{CommandOutcome, Failure, output, with_exit_codes};

use super::program::{self, CallArgument, ProgramArgs};

/// Call a procedure, and print what comes of it
///
/// What can be called, the server's operator declares: in SQL, or provided by a program that is
/// connected (tidewater provide). A value is printed as it is, a row or rows as JSON. From within a
/// file, also offline, calls go by its outbox: see docs/calls.md.
#[derive(Debug, Args)]
#[command(after_help = with_exit_codes!("\
Examples:
  tidewater call price item=7 --server tcp://127.0.0.1:7439 --user anna
  tidewater call order lines:='[{\"item\":7,\"count\":2}]' --server ... --user anna --timeout 5s
  tidewater call position --to-user nancy --server ... --user office     # asks nancy's device

The object of --json:
  {\"answer\": null, a value, an object for a row, or a list of objects}
or, when it failed:
  {\"error\":{\"code\",\"message\",\"hint\",\"retry_after_ms\"}}"))]
pub(crate) struct CallArgs {
    /// The procedure
    #[arg(value_name = "PROCEDURE")]
    procedure: String,
    /// Its arguments, by name; NAME:=JSON for null, numbers, lists and objects
    #[arg(value_name = "NAME=VALUE", value_parser = program::argument)]
    arguments: Vec<CallArgument>,
    #[command(flatten)]
    program: ProgramArgs,
    /// Of those that provide it, one of this user's
    #[arg(long, value_name = "NAME", conflicts_with = "to_remote")]
    to_user: Option<String>,
    /// Of those that provide it, this remote
    #[arg(long, value_name = "ID")]
    to_remote: Option<RemoteId>,
    /// Give it up after that: 250ms, 5s, 2m
    #[arg(long, value_name = "TIME", value_parser = program::time)]
    timeout: Option<Duration>,
    /// Do not wait for what comes of it
    #[arg(long)]
    one_way: bool,
    /// Print one JSON object, see below
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &CallArgs) -> Result<CommandOutcome, Failure> {
    let mut request = program::request(&args.procedure, &args.arguments);
    if let Some(user) = &args.to_user {
        request = request.to_user(user);
    }
    if let Some(remote_id) = args.to_remote {
        request = request.to_remote(remote_id);
    }
    if let Some(time) = args.timeout {
        request = request.within(time);
    }
    let link = args.program.connect(&args.program.options()?)?;
    if args.one_way {
        link.tell(&request)?;
        if args.json {
            output::json(&serde_json::json!({ "answer": null }))?;
        }
    } else if args.json {
        let answer = read(&link.call(&request)?)?;
        output::json(&serde_json::json!({ "answer": answer }))?;
    } else {
        print(link.rows(&request)?)?;
    }
    Ok(CommandOutcome::Complete)
}

/// Prints an answer; rows while they come.
fn print(mut rows: AnswerRows) -> Result<(), Failure> {
    let mut separator = "[";
    while let Some(piece) = rows.next_piece()? {
        match read(&piece)? {
            Value::Null => return Ok(()),
            Value::String(text) => return output::text(&format!("{text}\n")),
            Value::Array(list) if piece.returns() == Returns::Rows => {
                let mut text = String::new();
                for row in list {
                    text.push_str(&format!("{separator}{row}"));
                    separator = ",";
                }
                if !output::text_to_reader(&text)? {
                    return Ok(());
                }
            }
            value => return output::text(&format!("{value}\n")),
        }
    }
    output::text(if separator == "[" { "[]\n" } else { "]\n" })
}

fn read(answer: &Answer) -> Result<Value, Failure> {
    json::answer(answer).map_err(|error| {
        Failure::new(
            tidewater_protocol::Code::MalformedMessage,
            format!("the answer cannot be read: {error}"),
            "update the older of the two, this program or the server",
        )
    })
}
