//! The `tidewater` program: reads the command line, runs one command, tells its fate by
//! exit code.

mod args;
mod centre;
mod clock;
mod command;
mod demo;
mod devices;
mod images;
mod init_document;
mod init_partition;
mod init_people;
mod init_statements;
mod init_text;
mod kept;
mod open_files;
mod password;
mod proof;
mod remote_file;
mod running;
mod separate_program;
mod service;
mod serving_lock;
mod sync_object;
mod upstream;

use std::process::ExitCode;

use tidewater_terminal::run_program;

fn main() -> ExitCode {
    run_program(
        separate_program::pass_help_on(std::env::args_os().collect()),
        |cli: &args::Cli| cli.command.wants_json(),
        |cli| command::run(cli.command),
    )
}
