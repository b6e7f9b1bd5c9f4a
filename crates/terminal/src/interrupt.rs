//! Ctrl-C: the first one asks the command to stop cleanly, the second ends the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::failure::{Failure, describe};

/// The exit code of "anything else".
const EXIT_KILLED: i32 = 5;

/// Tells whether the user wants the command to stop.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens for SIGINT and SIGTERM from now on.
    pub fn listen() -> Result<Interrupt, Failure> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first signal finds the flag down and only raises it.
            flag::register_conditional_shutdown(signal, EXIT_KILLED, Arc::clone(&flag))
                .and_then(|_| flag::register(signal, Arc::clone(&flag)))
                .map_err(|error| {
                    Failure::usage(
                        format!("cannot listen for signals: {}", describe(&error)),
                        "",
                    )
                })?;
        }
        Ok(Interrupt(flag))
    }

    /// Whether a signal has arrived.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
