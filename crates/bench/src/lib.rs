//! The load generator behind `tidewater bench`: real remotes over real sockets against any
//! consolidated database, in step, and what came of it as one report.
//!
//! The supervisor prepares the database, starts a server and drivers (or waits for drivers on
//! other machines), and leads them from gate to gate. A driver is a process with a share of the
//! remotes. Owns the scenarios, their processes and the report; how a sync works is what is
//! measured, so nothing here knows more of it than an application does.
//!
//! | module | owns |
//! |---|---|
//! | `options`, `report`, `table`, `html` | what can be asked for, and how it is told |
//! | `papers` | what others have published of the same |
//! | `scenario`, `measure` | what is varied, and the timed syncs of one point |
//! | `fleet` | everything that a scenario needs, made before it and removed after it |
//! | `supervisor`, `gate`, `driver` | drivers and their remotes, and how they are kept in step |
//! | `way`, `relay` | what carries connections, and certificates for it |
//! | `program` | where `tidewater` is, of which servers are started, and this program |
//! | `server`, `guardian`, `processes` | the server's process, and what the system knows of it |
//! | `live` | calls, events and wake-ups: the live layer under load |
//! | `base` | the consolidated database, as an application of the centre sees it |

#![cfg(unix)]
#![allow(
    clippy::disallowed_methods,
    reason = "a load generator is about real time, and nothing replays it"
)]

mod base;
pub mod copy;
mod driver;
mod error;
mod fleet;
mod gate;
mod guardian;
mod html;
mod limit;
mod live;
mod machine;
mod measure;
mod options;
mod own;
mod papers;
mod password;
mod processes;
mod program;
mod relay;
pub mod report;
mod scenario;
mod server;
pub mod spread;
mod sql_name;
mod supervisor;
mod table;
mod way;

pub use driver::{DriveOptions, drive};
pub use error::BadInput;
pub use gate::Retry;
pub use html::{html, live_html};
pub use live::{
    Goal, LiveBenchOptions, LivePoint, LiveReport, LiveScenario, Unit, client, live_table, run_live,
};
pub use options::{FilesPlace, Options, Scenario, Supervise, TrackingSetting, Workers};
pub use scenario::run;
pub use supervisor::Watcher;
pub use table::table;
pub use way::{Protocol, own_address};
