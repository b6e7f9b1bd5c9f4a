//! `tidewater cert`: a certificate for trying out `tls://`.

use std::fs;
use std::path::PathBuf;

use clap::Args;
use tidewater_client::{ClientError, Pin};
use tidewater_server::{dev_certificate, dev_client_certificates};
use tidewater_terminal::{CommandOutcome, Failure, output, with_exit_codes};

/// Make a self-signed certificate to try out tls://
///
/// For trials and test networks; take a real certificate for anything else. Writes
/// tidewater-dev.pem and tidewater-dev.key. Remotes trust the certificate with --ca, or
/// its key with --pin, which stays the same when the certificate is made anew for the same key.
///
/// With --client it makes certificates of users, too, with which they sign in: NAME.pem and
/// NAME.key, and the authority that has issued them, tidewater-clients.pem.
#[derive(Debug, Args)]
#[command(after_help = with_exit_codes!("\
Examples:
  tidewater cert --out . --host localhost --host 192.168.1.20
  tidewater sync nancy.db --ca tidewater-dev.pem --server tls://192.168.1.20 --user nancy \\
                 --publication main
  tidewater cert --out . --host localhost --client nancy --client andrew"))]
pub(crate) struct CertArgs {
    /// The folder to write to; made if need be
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// A name or address by which remotes reach the server
    #[arg(long = "host", value_name = "NAME", required = true, num_args = 1..)]
    hosts: Vec<String>,
    /// A user for whom to make a certificate to sign in with
    #[arg(long = "client", value_name = "NAME")]
    clients: Vec<String>,
    /// Replace a certificate that was made before: remotes must then trust the new one
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(args: &CertArgs) -> Result<CommandOutcome, Failure> {
    fs::create_dir_all(&args.out)
        .map_err(|error| Failure::file("create the folder", &args.out, &error))?;
    let existing = args.out.join("tidewater-dev.key");
    if existing.exists() && !args.force {
        return Err(Failure::usage(
            format!("{} is there already", existing.display()),
            "use it, name another folder, or replace it with --force",
        ));
    }
    let tls = dev_certificate(&args.out, &args.hosts)?;
    let quoted = |path: &PathBuf| toml::Value::String(path.display().to_string());
    output::text(&format!(
        "[server.tls]\ncertificate = {}\nkey = {}\n",
        quoted(&tls.certificate),
        quoted(&tls.key)
    ))?;
    let pin = Pin::from_file(&tls.certificate).map_err(ClientError::from)?;
    if !args.clients.is_empty() {
        let authority = dev_client_certificates(&args.out, &args.clients)?;
        output::text(&format!(
            "\n[sign_in.certificates]\nauthority = {}\n",
            quoted(&authority)
        ))?;
    }
    output::note(&format!(
        "remotes trust the key of this server with --pin {pin}"
    ));
    output::note(
        "next: put these lines into tidewater.toml and listen on tls:// (relative paths start at \
         the folder of that file)",
    );
    Ok(CommandOutcome::Complete)
}
