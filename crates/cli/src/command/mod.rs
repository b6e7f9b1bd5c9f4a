//! One file per command: its arguments, its help, and what it does.

pub(crate) mod call;
pub(crate) mod cert;
pub(crate) mod change_password;
pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod conflicts;
mod conflicts_in_centre;
mod conflicts_on_device;
pub(crate) mod deploy;
pub(crate) mod explain;
mod explain_on_device;
pub(crate) mod image;
pub(crate) mod init;
pub(crate) mod key;
pub(crate) mod listen;
pub(crate) mod live;
mod network;
pub(crate) mod ping;
pub(crate) mod preview;
mod program;
pub(crate) mod provide;
pub(crate) mod publish;
pub(crate) mod refused;
mod refused_in_centre;
mod refused_on_device;
pub(crate) mod relay;
pub(crate) mod remote;
pub(crate) mod script;
mod script_import;
pub(crate) mod serve;
pub(crate) mod status;
pub(crate) mod sync;
pub(crate) mod undeploy;
pub(crate) mod unsubscribe;
pub(crate) mod user;
mod user_import;
pub(crate) mod verify;

use tidewater_terminal::{CommandOutcome, Failure};

use crate::args::Command;
use crate::separate_program::{BENCH, SIMULATE};

/// Runs a command to its end.
pub(crate) fn run(command: Command) -> Result<CommandOutcome, Failure> {
    match command {
        Command::Init(args) => init::run(&args),
        Command::Preview(args) => preview::run(&args),
        Command::Simulate(args) => SIMULATE.run(&args),
        Command::Deploy(args) => deploy::run(&args),
        Command::Undeploy(args) => undeploy::run(&args),
        Command::User(args) => user::run(&args),
        Command::Key(args) => key::run(&args),
        Command::Remote(args) => remote::run(&args),
        Command::Script(args) => script::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Image(args) => image::run(&args),
        Command::Relay(args) => relay::run(&args),
        Command::Sync(args) => sync::run(&args),
        Command::Live(args) => live::run(&args),
        Command::Call(args) => call::run(&args),
        Command::Provide(args) => provide::run(&args),
        Command::ChangePassword(args) => change_password::run(&args),
        Command::Publish(args) => publish::run(&args),
        Command::Listen(args) => listen::run(&args),
        Command::Unsubscribe(args) => unsubscribe::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Conflicts(args) => conflicts::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Refused(args) => refused::run(&args),
        Command::Ping(args) => ping::run(&args),
        Command::Cert(args) => cert::run(&args),
        Command::Bench(args) => BENCH.run(&args),
        Command::Demo(args) => crate::demo::run(&args),
        Command::Completions(args) => completions::run(&args),
    }
}
