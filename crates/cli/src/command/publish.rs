//! `tidewater publish`: one event.

use std::io::{self, Read};

use clap::Args;
use serde_json::json;
use tidewater_protocol::frame::MAX_MESSAGE_BYTES;
use tidewater_protocol::identity::parse_uuid;
use tidewater_terminal::{CommandOutcome, Failure, describe, output, with_exit_codes};

use super::program::{self, ProgramArgs, SpaceSubject};

/// Publish an event
///
/// It reaches whoever subscribed: tidewater listen, programs, devices, HTTP. In a durable space it is
/// kept, and its position is printed; elsewhere it reaches those who listen now. From within a file,
/// also offline, events go by its outbox: see docs/spaces.md.
#[derive(Debug, Args)]
#[command(after_help = with_exit_codes!("\
Examples:
  tidewater publish fleet/unit.7.position 52.52,13.40 --server tcp://127.0.0.1:7439 --user anna
  tidewater publish orders/new - --server ... --user shop < order.json

The object of --json:
  {\"position\": where it stands in a durable space, else null}
or, when it failed:
  {\"error\":{\"code\",\"message\",\"hint\",\"retry_after_ms\"}}"))]
pub(crate) struct PublishArgs {
    /// Under which subject of which space
    #[arg(value_name = "SPACE/SUBJECT", value_parser = program::place)]
    place: SpaceSubject,
    /// What it says; - for all of standard input, nothing for nothing
    #[arg(value_name = "PAYLOAD", allow_negative_numbers = true)]
    payload: Option<String>,
    #[command(flatten)]
    program: ProgramArgs,
    /// Keep it once under this UUID, however often it is published: for durable spaces
    #[arg(long, value_name = "UUID", value_parser = key)]
    key: Option<[u8; 16]>,
    /// Print one JSON object, see below
    #[arg(long)]
    pub(crate) json: bool,
}

/// Reads a UUID.
fn key(text: &str) -> Result<[u8; 16], String> {
    parse_uuid(text).ok_or_else(|| "write a UUID, as uuidgen gives one".into())
}

pub(crate) fn run(args: &PublishArgs) -> Result<CommandOutcome, Failure> {
    let payload = payload(args)?;
    let link = args.program.connect(&args.program.options()?)?;
    let events = [(args.place.subject.as_str(), &payload[..])];
    let position = link.publish_durable(&args.place.space, &events, args.key)?;
    let position = position.map(|it| it.to_string());
    if args.json {
        output::json(&json!({ "position": position }))?;
    } else if let Some(position) = position {
        output::text(&format!("{position}\n"))?;
    }
    Ok(CommandOutcome::Complete)
}

fn payload(args: &PublishArgs) -> Result<Vec<u8>, Failure> {
    match args.payload.as_deref() {
        Some("-") if args.program.proof.password.password_stdin => Err(Failure::usage(
            "standard input cannot hold both the password and the payload",
            "set TIDEWATER_PASSWORD",
        )),
        Some("-") => {
            let mut payload = Vec::new();
            let mut input = io::stdin().lock().take(MAX_MESSAGE_BYTES as u64 + 1);
            input.read_to_end(&mut payload).map_err(|error| {
                let reason = describe(&error);
                Failure::usage(format!("cannot read standard input: {reason}"), "")
            })?;
            Ok(payload)
        }
        Some(text) => Ok(text.as_bytes().to_vec()),
        None => Ok(Vec::new()),
    }
}
