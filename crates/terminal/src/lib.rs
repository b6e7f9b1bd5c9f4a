//! What the programs of Tidewater have in common at a terminal: how a command line is read, how
//! results and errors are printed, exit codes, progress, Ctrl-C, and how one program finds another.
//!
//! Owns what must be the same whichever program somebody has called. What a command does is left to
//! its program.

mod args;
mod failure;
mod interrupt;
pub mod output;
mod program;
mod progress;
mod run;

pub use args::{ConfigArgs, check_help, wants_json};
pub use failure::{Failure, describe};
pub use interrupt::Interrupt;
pub use program::find_program;
pub use progress::{CountLine, ProgressLine};
pub use run::{CommandOutcome, run_program};

/// Memory of everything, also of SQLite: musl's own allocator has one lock for all threads.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
