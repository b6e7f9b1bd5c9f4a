//! `tidewater relay`: brings devices and servers together that cannot reach each other.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use tidewater_carrier::listen::RelayToken;
use tidewater_carrier::tls;
use tidewater_protocol::Code;
use tidewater_relay::{RelayError, RelayService, RelayServiceConfig, RunningRelay};
use tidewater_server::config::{LogConfig, LogFormat};
use tidewater_terminal::{CommandOutcome, Failure, output, with_exit_codes};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use crate::open_files;
use crate::service::{LogArgs, Stop};

/// Run a relay, through which devices reach servers that nobody can dial
///
/// Servers dial it ([relay] in their configuration) and keep idle lines; devices come to it by the
/// host name of their server, and TLS goes through from end to end. Prints the addresses that it
/// listens on to standard output, and logs to standard error. SIGTERM or Ctrl-C ends it: no new
/// devices, others have half a minute to finish. SIGHUP reads names, tokens and certificates again.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = with_exit_codes!("\
Examples:
  tidewater relay -c /etc/tidewater/relay.toml
  tidewater relay -c relay.toml --check       # whether it could start
  tidewater relay token                       # a token for a server, and its hash for the relay"))]
pub(crate) struct RelayArgs {
    #[command(subcommand)]
    command: Option<RelayCommand>,
    /// The configuration file
    #[arg(
        short = 'c',
        long = "config",
        value_name = "FILE",
        default_value = "relay.toml"
    )]
    config: PathBuf,
    /// Only check the configuration and the files that it names
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    log: LogArgs,
}

#[derive(Debug, Subcommand)]
enum RelayCommand {
    Token(TokenArgs),
}

/// Make a token by which a server proves to a relay who it is
///
/// Prints the token, for `[relay] token_file` of the server, and its hash, for `[[server]] tokens`
/// of the relay, which then owns no secret.
#[derive(Debug, Args)]
#[command(after_help = with_exit_codes!("\
Examples:
  tidewater relay token
  tidewater relay token --out relay.token     # writes the token, prints the hash only"))]
struct TokenArgs {
    /// Write the token to this new file, which only its owner can read
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(crate) fn run(args: &RelayArgs) -> Result<CommandOutcome, Failure> {
    if let Some(RelayCommand::Token(token)) = &args.command {
        return make_token(token);
    }
    let config = RelayServiceConfig::load(&args.config).map_err(failure)?;
    if args.check {
        RelayService::check(&config).map_err(failure)?;
        let names = output::counted(config.names.len() as u64, "server", "servers");
        output::text(&format!("{} is right: {names}\n", args.config.display()))?;
        return Ok(CommandOutcome::Complete);
    }
    args.log.start(&log(&config)?)?;
    // Each device has a line, too.
    let files = config.connections.saturating_mul(2);
    open_files::make_room(files, "twice the connections of the relay");
    let runtime = Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::start(&error))?;
    let served = runtime.block_on(serve(config, args));
    runtime.shutdown_background();
    served.map(|()| CommandOutcome::Complete)
}

fn log(config: &RelayServiceConfig) -> Result<LogConfig, Failure> {
    let format = match config.log.format.as_deref() {
        None | Some("text") => LogFormat::Text,
        Some("json") => LogFormat::Json,
        Some(other) => {
            let message = format!("log.format is {other:?}");
            return Err(Failure::usage(message, "write one of: text, json"));
        }
    };
    let level = config.log.level.clone().unwrap_or_else(|| "info".into());
    Ok(LogConfig { format, level })
}

async fn serve(config: RelayServiceConfig, args: &RelayArgs) -> Result<(), Failure> {
    // Before anything is announced: who reads the addresses may end the relay at once.
    let mut stop = Stop::listen().map_err(|error| Failure::start(&error))?;
    let mut hang_up = signal(SignalKind::hangup()).map_err(|error| Failure::start(&error))?;
    let running = RelayService::start(config).await.map_err(failure)?;
    for address in &running.addresses {
        output::text(&format!("listening on {address}\n"))?;
    }
    output::text(&format!("servers at {}\n", running.servers))?;
    if let Some(admin) = &running.admin {
        output::text(&format!("admin on {admin}\n"))?;
    }
    loop {
        tokio::select! {
            () = stop.requested() => break,
            _ = hang_up.recv() => read_again(&running, args),
        }
    }
    tokio::select! {
        () = running.shutdown() => {}
        // Asked twice: the user does not want to wait for devices.
        () = stop.requested() => tracing::warn!("ended without waiting for devices"),
    }
    Ok(())
}

/// Goes by the configuration file as it is now.
fn read_again(running: &RunningRelay, args: &RelayArgs) {
    let read = RelayServiceConfig::load(&args.config).and_then(|it| running.reconfigure(&it));
    match read {
        Ok(()) => tracing::info!("names, tokens and certificates were read again"),
        Err(error) => tracing::error!(
            %error,
            hint = error.hint(),
            "the configuration is wrong, and the one before stays"
        ),
    }
}

fn failure(error: RelayError) -> Failure {
    Failure::usage(error.to_string(), error.hint())
}

/// As many bytes as nobody guesses.
const TOKEN_BYTES: usize = 32;

fn make_token(args: &TokenArgs) -> Result<CommandOutcome, Failure> {
    let mut bytes = [0; TOKEN_BYTES];
    tls::random(&mut bytes).map_err(|error| Failure::start(&error))?;
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let token: Result<RelayToken, ()> = text.parse();
    let token = token.map_err(|()| Failure::new(Code::Internal, "no token was made", ""))?;
    match &args.out {
        None => output::text(&format!("token = {text:?}\n"))?,
        Some(file) => write_secret(file, &text)?,
    }
    output::text(&format!("tokens = [\"{}\"]\n", token.hash()))?;
    output::note(
        "next: the token, or token_file, is for [relay] of the server; tokens is for [[server]] of \
         the relay",
    );
    Ok(CommandOutcome::Complete)
}

fn write_secret(file: &PathBuf, text: &str) -> Result<(), Failure> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let write = || {
        std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(file)?
            .write_all(format!("{text}\n").as_bytes())
    };
    write().map_err(|error| Failure::file("write the token to", file, &error))
}
