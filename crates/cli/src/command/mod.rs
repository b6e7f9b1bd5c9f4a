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
mod user_name;
pub(crate) mod verify;

use clap::Subcommand;
use tidewater_terminal::{CommandOutcome, Failure};

use crate::separate_program::{BENCH, PassedArgs, SIMULATE};

/// The commands, in the order in which a new user meets them.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Init(init::InitArgs),
    Check(check::CheckArgs),
    Preview(preview::PreviewArgs),
    /// Run your configuration in a simulated world, and see whether it keeps its promises (a program
    /// of its own, tidewater-simulate)
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Simulate(PassedArgs),
    Deploy(deploy::DeployArgs),
    Undeploy(undeploy::UndeployArgs),
    User(user::UserArgs),
    Key(key::KeyArgs),
    Remote(remote::RemoteArgs),
    Script(script::ScriptArgs),
    Serve(serve::ServeArgs),
    Image(image::ImageArgs),
    Relay(relay::RelayArgs),
    Sync(Box<sync::SyncCommand>),
    Live(Box<live::LiveArgs>),
    Call(call::CallArgs),
    Provide(provide::ProvideArgs),
    Publish(publish::PublishArgs),
    Listen(listen::ListenArgs),
    ChangePassword(change_password::ChangePasswordArgs),
    Unsubscribe(unsubscribe::UnsubscribeArgs),
    Status(status::StatusArgs),
    Verify(verify::VerifyArgs),
    #[command(visible_alias = "rejected")]
    Refused(Box<refused::RefusedArgs>),
    Conflicts(conflicts::ConflictsArgs),
    Explain(explain::ExplainArgs),
    Ping(ping::PingArgs),
    Cert(cert::CertArgs),
    /// Measure a deployment under load: thousands of real remotes, kept in step (a program of its
    /// own, tidewater-bench)
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Bench(PassedArgs),
    Demo(crate::demo::DemoArgs),
    Completions(completions::CompletionsArgs),
}

impl Command {
    /// Whether the result is to be one JSON object.
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            Command::Preview(args) => args.json,
            Command::Simulate(args) | Command::Bench(args) => args.wants_json(),
            Command::Deploy(args) => args.json,
            Command::Undeploy(args) => args.json,
            Command::User(args) => args.wants_json(),
            Command::Key(args) => args.wants_json(),
            Command::Remote(args) => args.wants_json(),
            Command::Script(args) => args.wants_json(),
            Command::Image(args) => args.wants_json(),
            Command::Sync(args) => args.sync.json,
            Command::Live(args) => args.sync.json,
            Command::Call(args) => args.json,
            Command::Publish(args) => args.json,
            Command::Listen(args) => args.json,
            Command::Unsubscribe(args) => args.json,
            Command::Status(args) => args.json,
            Command::Check(args) => args.json,
            Command::Verify(args) => args.json,
            Command::Refused(args) => args.wants_json(),
            Command::Conflicts(args) => args.wants_json(),
            Command::Explain(args) => args.json,
            Command::Ping(args) => args.json,
            _ => false,
        }
    }
}

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
        Command::Sync(args) if args.watch => live::watch(&args.sync),
        Command::Sync(args) => sync::run(&args.sync),
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
