//! `tidewater ping`: whether a server answers, and how fast.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tidewater_carrier::ServerUrls;
use tidewater_client::{ClientError, DeviceError, Pin, SyncOptions, ping};
use tidewater_terminal::{CommandOutcome, Failure, output, with_exit_codes};

use crate::command::network::NetworkArgs;

/// How long a server may be silent: it has nothing to do for an answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Ask a server whether it is there
///
/// Needs no account. Shows the server's version and the time of one round trip. Whether the
/// server reaches its database is another question: tidewater status -c FILE.
#[derive(Debug, Args)]
#[command(after_help = with_exit_codes!("\
Examples:
  tidewater ping tcp://127.0.0.1:7439
  tidewater ping tls://sync.example.com --json"))]
pub(crate) struct PingArgs {
    /// The server: tls://host:port, wss:// or https://, tcp:// on loopback [default port: 7439]
    url: String,
    /// Trust the authorities in this PEM file, and no others
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Trust the server that has this key, sha256/BASE64 as tidewater cert prints it, and no
    /// authorities
    #[arg(long, value_name = "PIN", conflicts_with = "ca")]
    pin: Option<Pin>,
    #[command(flatten)]
    network: NetworkArgs,
    /// Print {"url","server","protocol_version","connect_ms","round_trip_ms"}
    #[arg(long)]
    pub(crate) json: bool,
}

/// What no answer means to somebody who has nothing to lose.
fn unanswered(url: &ServerUrls, error: ClientError) -> Failure {
    let silent = matches!(
        error,
        ClientError::Connection(DeviceError::ConnectionLost { .. } | DeviceError::Timeout { .. })
    );
    let mut failure = Failure::from(error);
    if silent {
        failure.message = format!("{url} answers nothing that a Tidewater server would say");
        failure.hint = "see that host and port are those of a Tidewater server".into();
    }
    failure
}

pub(crate) fn run(args: &PingArgs) -> Result<CommandOutcome, Failure> {
    let urls = args.network.addresses(&args.url)?;
    let options = SyncOptions {
        ca_file: args.ca.clone(),
        pin: args.pin,
        insecure: args.network.insecure,
        proxy: args.network.proxy.clone(),
        timeout: TIMEOUT,
        ..SyncOptions::default()
    };
    let report = ping(&args.url, &options).map_err(|error| unanswered(&urls, error))?;
    if args.json {
        output::json(&report)?;
    } else {
        output::text(&format!(
            "{}: {}, protocol {}, connected in {:.1} ms, round trip {:.1} ms\n",
            report.url,
            output::printable(&report.server),
            report.protocol_version,
            report.connect_ms,
            report.round_trip_ms,
        ))?;
    }
    Ok(CommandOutcome::Complete)
}
