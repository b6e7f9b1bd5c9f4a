//! What programs that serve have in common: their log, and the signals that end them.

use std::io::{self, IsTerminal};
use std::str::FromStr;

use clap::Args;
use tidewater_server::config::{LogConfig, LogFormat};
use tidewater_terminal::Failure;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// How a program that serves logs.
#[derive(Debug, Args)]
pub(crate) struct LogArgs {
    /// How log lines are written [default: as the configuration says, or text]
    #[arg(long, value_name = "FORMAT", value_parser = ["text", "json"])]
    log_format: Option<String>,
    /// What is logged: error, warn, info, debug, trace, or directives such as
    /// info,tidewater_server=debug [default: as the configuration says, or info]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
}

/// A word that stands alone, as a level does, and is none: as the name of a part of a program it
/// would switch everything else off.
fn unknown_word(level: &str) -> Option<&str> {
    let words = level.split(',').map(str::trim);
    let mut unknown = words.filter(|word| {
        let is_level = LevelFilter::from_str(word).is_ok();
        !is_level && !word.contains(['=', '[']) && !word.starts_with("tidewater")
    });
    unknown.find(|word| !word.is_empty())
}

impl LogArgs {
    /// Logs from now on, as the command line says, or else the configuration.
    pub(crate) fn start(&self, config: &LogConfig) -> Result<(), Failure> {
        let level = self.log_level.as_deref().unwrap_or(&config.level);
        let meaningless = |what: String| {
            Failure::usage(
                format!("{level:?} does not say what to log: {what}"),
                "write off, error, warn, info, debug, trace, or directives such as \
             info,tidewater_server=debug",
            )
        };
        if let Some(word) = unknown_word(level) {
            return Err(meaningless(format!("{word:?} is no level")));
        }
        let filter = EnvFilter::try_new(level).map_err(|error| meaningless(error.to_string()))?;
        let format = match self.log_format.as_deref() {
            Some("json") => LogFormat::Json,
            Some(_) => LogFormat::Text,
            None => config.format,
        };
        let log = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(io::stderr)
            .with_ansi(io::stderr().is_terminal());
        match format {
            LogFormat::Json => log.json().init(),
            LogFormat::Text => log.init(),
        }
        Ok(())
    }
}

/// The signals that end a program that serves.
pub(crate) struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    pub(crate) fn listen() -> io::Result<Stop> {
        Ok(Stop {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    pub(crate) async fn requested(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_are_no_level_are_not_taken_for_parts_of_a_program() {
        for known in [
            "info",
            "WARN",
            "off",
            "info,tidewater_server=debug",
            "tidewater_server",
        ] {
            assert_eq!(unknown_word(known), None);
        }
        assert_eq!(unknown_word("inf"), Some("inf"));
        assert_eq!(
            unknown_word("tidewater_server=debug, warning"),
            Some("warning")
        );
    }
}
