//! `tidewater serve`: the server, until it is asked to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use tidewater_protocol::Code;
use tidewater_server::{Config, Environment, RunningServer, Server};
use tidewater_terminal::{CommandOutcome, ConfigArgs, Failure, output, with_exit_codes};
use tokio::runtime::{Builder, Handle};
use tokio::signal::unix::{SignalKind, signal};

use crate::command::deploy;
use crate::images;
use crate::open_files;
use crate::service::{LogArgs, Stop};
use crate::serving_lock::ServingLock;
use crate::upstream::{self, BranchDeployment, UpstreamLine};

/// How long the line to headquarters may take to end.
const LINE_ENDS_WITHIN: Duration = Duration::from_secs(5);

/// Run the server
///
/// Prints the addresses that it listens on to standard output and logs to standard
/// error, one summary line per sync. SIGTERM or Ctrl-C ends it: no new syncs are
/// admitted, running ones get some time to finish. SIGHUP reads the configuration file and
/// the certificate again; if they are wrong, the log says so and it goes on with those before.
///
/// It serves what is deployed, and goes on with another deployment within a second.
///
/// With [upstream] it is a branch's: it keeps its file in sync with headquarters as well, and fetches
/// it first if it is not there. With [images] it makes images, and keeps them fresh.
#[derive(Debug, Args)]
#[command(after_help = with_exit_codes!("\
Examples:
  tidewater serve
  tidewater serve -c /etc/tidewater.toml --log-format json
  tidewater serve --deploy --listen tcp://127.0.0.1:0      # any free port; it is printed"))]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Listen here instead of where the configuration says; repeatable
    #[arg(long = "listen", value_name = "URL")]
    listen: Vec<String>,
    /// First do what `tidewater deploy` does
    #[arg(long)]
    deploy: bool,
    #[command(flatten)]
    log: LogArgs,
}

pub(crate) fn run(args: &ServeArgs) -> Result<CommandOutcome, Failure> {
    let mut config = args.config.load()?;
    if !args.listen.is_empty() {
        config.server.listen.clone_from(&args.listen);
    }
    args.log.start(&config.log)?;
    open_files::make_room(
        config.server.limits.connections,
        "server.limits.connections",
    );
    let runtime = Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::start(&error))?;
    let served = runtime.block_on(serve(config, args));
    // What still runs by now has been given its time.
    runtime.shutdown_background();
    served.map(|()| CommandOutcome::Complete)
}

async fn serve(config: Config, args: &ServeArgs) -> Result<(), Failure> {
    // Before anything is announced: who reads the addresses may end the server at once.
    let mut stop = Stop::listen().map_err(|error| Failure::start(&error))?;
    let environment = Environment::real();
    let mut hang_up = signal(SignalKind::hangup()).map_err(|error| Failure::start(&error))?;
    let line = match fetched(&config, &mut stop).await? {
        UpstreamStart::Stopped => return Ok(()),
        UpstreamStart::Nothing => None,
        UpstreamStart::Line(line) => Some(line),
    };
    let centre = tidewater_server::databases::connect(&config.server.consolidated).await?;
    let is_new = match &line {
        Some(line) => line.is_undeployed()?,
        None => false,
    };
    if args.deploy || is_new {
        let now_ms = environment.clock.now_ms();
        let report = centre.deploy(&config.publications, false, now_ms).await?;
        output::note(deploy::describe(&report, false).trim_end());
    }
    let deploying = line.is_some().then(|| BranchDeployment {
        centre: centre.clone(),
        config: config.clone(),
        runtime: Handle::current(),
    });
    let _lock = ServingLock::hold(&config.server.consolidated);
    let for_images = (config.clone(), environment.clone());
    let running = Server::start(config, centre, environment).await?;
    let line = line.zip(deploying);
    let line = line.map(|(line, deploying)| line.keep(running.upstream(), deploying));
    for address in &running.addresses {
        output::text(&format!("listening on {address}\n"))?;
    }
    if let Some(admin) = &running.admin {
        output::text(&format!("admin on {admin}\n"))?;
    }
    let (config, environment) = for_images;
    let images = images::keep(config, environment);
    loop {
        tokio::select! {
            () = stop.requested() => break,
            _ = hang_up.recv() => read_again(&running, args).await,
        }
    }
    let line = line.map(|line| tokio::task::spawn_blocking(|| line.end()));
    let images = images.map(|it| tokio::spawn(it.end()));
    tokio::select! {
        () = running.shutdown() => {}
        // Asked twice: the user does not want to wait for running syncs.
        () = stop.requested() => tracing::warn!("ended without waiting for running syncs"),
    }
    if let Some(line) = line {
        // It ends by itself, within a moment.
        let _ = tokio::time::timeout(LINE_ENDS_WITHIN, line).await;
    }
    if let Some(images) = images {
        let _ = images.await;
    }
    Ok(())
}

/// What there is of a line to headquarters before the server starts.
enum UpstreamStart {
    /// It is no branch's server.
    Nothing,
    Line(Box<UpstreamLine>),
    /// It was asked to end first.
    Stopped,
}

/// Opens a branch's line to headquarters, and fetches what there is to serve if it is new.
async fn fetched(config: &Config, stop: &mut Stop) -> Result<UpstreamStart, Failure> {
    let upstream = config.upstream.as_ref().zip(upstream::file_of(config));
    let Some((upstream, path)) = upstream else {
        return Ok(UpstreamStart::Nothing);
    };
    let (upstream, stopped) = (upstream.clone(), Arc::new(AtomicBool::new(false)));
    let stops = stopped.clone();
    let fetching = tokio::task::spawn_blocking(move || {
        let mut line = UpstreamLine::open(&upstream, path)?;
        Ok(match line.fetch(&stops)? {
            true => UpstreamStart::Line(Box::new(line)),
            false => UpstreamStart::Stopped,
        })
    });
    tokio::pin!(fetching);
    let done = tokio::select! {
        done = &mut fetching => done,
        () = stop.requested() => {
            stopped.store(true, Ordering::Relaxed);
            fetching.await
        }
    };
    done.unwrap_or_else(|error| {
        let message = format!("cannot fetch the branch's file: {error}");
        Err(Failure::new(Code::Internal, message, ""))
    })
}

/// Goes by the configuration file as it is now.
async fn read_again(running: &RunningServer, args: &ServeArgs) {
    let result = match Config::load(&args.config.path) {
        Ok(mut config) => {
            if !args.listen.is_empty() {
                config.server.listen.clone_from(&args.listen);
            }
            running.reconfigure(config).await
        }
        Err(error) => Err(error.into()),
    };
    match result {
        Ok(later) if later.is_empty() => tracing::info!("the configuration was read again"),
        Ok(later) => tracing::warn!(
            "the configuration was read again; what counts when the server is started anew has \
             changed: {}",
            later.join(", ")
        ),
        Err(error) => tracing::error!(
            %error,
            hint = error.hint(),
            "the configuration is wrong, and the one before stays"
        ),
    }
}
