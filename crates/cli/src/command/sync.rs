//! `tidewater sync`: one sync of a remote's file with its server.

use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use clap::Args;
use tidewater_carrier::NoCompression;
use tidewater_client::{
    AdoptionRule, ClientError, Compression, CompressionOptions, ImageRequest, OutboxCounts, Pin,
    Remote, RemoteAccount, Report, RetryPolicy, SyncDirection, SyncOptions, begin_from_image,
};
use tidewater_protocol::Code;
use tidewater_terminal::output::{self, TextTable};
use tidewater_terminal::{CommandOutcome, Failure, Interrupt, ProgressLine, with_exit_codes};

use super::network::NetworkArgs;
use crate::proof::{GivenProof, ProofArgs};
use crate::remote_file;
use crate::sync_object::SyncObject;

/// Sync a remote's file with its server
///
/// The first time, name the server, the user and the publications: the file is made, or
/// an SQLite file of yours gets the publications' tables beside its own. Every time
/// after that the file alone is enough; no password is kept in it, but a credential of
/// its own that can be revoked. Other programs may read and write the file meanwhile.
///
/// Rows that the centre refuses stay in the file, marked, and do not hold up the rest; see
/// `tidewater refused`. The exit code is 6 if this sync was refused any, and 0 again with
/// the next one: those of earlier syncs are only mentioned. Ctrl-C cancels; nothing is lost.
///
/// A server that is busy says when to come back, and the sync waits and tries again by itself,
/// for up to five minutes. With --watch it stays connected and goes on, as tidewater live does.
#[derive(Debug, Args)]
#[command(after_help = with_exit_codes!("\
Examples:
  tidewater sync nancy.db --server tcp://127.0.0.1:7439 --user nancy --publication main
  tidewater sync nancy.db
  tidewater sync nancy.db --watch                     # until Ctrl-C: see tidewater live
  tidewater sync nancy.db --upload-only --json
  tidewater sync nancy.db --parameter month=2026-11   # remembered; month= drops it
  tidewater sync own.db --adopt mine --server ... --user ... --publication main
  TIDEWATER_PASSWORD=... tidewater sync nancy.db    # sign in again, e.g. after a restore
  tidewater sync new.db --token-file token --server ... --publication main   # see docs/sign-in.md

The object of --json:
  {\"uploaded\":{\"inserts\":n,\"updates\":n,\"deletes\":n},\"downloaded\":{\"upserts\":n,\"removals\":n},
   \"starts_over\":true, only if the file is a copy or was restored, and is another remote since,
   \"conflicts\":n,\"conflict_rows\":[{\"table\",\"key\":[...]}, the first 100],
   \"refused\":n,\"refused_rows\":[{\"table\",\"key\":[...],\"reason\"}, the first 100],
   \"refused_before\":n, of earlier syncs, still in the file,
   \"stale_count\":n, rows that the centre has otherwise or not any more, and that stay as they are,
   \"stale\":[{\"table\",\"key\":[...],\"reason\"}, the first 100],
   \"not_restored\":[SQL of your indexes, triggers and views that a new schema made impossible],
   \"outbox\":{\"answered\":n,\"failed\":n,\"pending\":n}, calls and events of tidewater_outbox,
   \"inbox\":n, rows that came into tidewater_inbox,
   \"refused_interests\":[{\"space\",\"subject\",\"reason\"}, rows of tidewater_interest; those of which
     no earlier sync of the file has said so],
   \"bytes_sent\":n,\"bytes_received\":n,
   \"bytes_kept\":n, of a download, from earlier syncs that broke,
   \"retries\":n, how often the server turned it away before,
   \"duration_ms\":n}
or, when it failed:
  {\"error\":{\"code\",\"message\",\"hint\",\"retry_after_ms\"}}
With --watch, the lines that tidewater live prints."))]
pub(crate) struct SyncCommand {
    #[command(flatten)]
    pub(crate) sync: SyncArgs,
    /// Stay in sync until Ctrl-C: tidewater live, which has more options
    #[arg(long)]
    pub(super) watch: bool,
}

/// The parameter by which a remote asks for a version of the server's scripts.
const SCRIPT_VERSION: &str = "script_version";

/// What has to be known of a file and its server.
#[derive(Debug, Args)]
pub(crate) struct SyncArgs {
    /// The remote's file
    #[arg(value_name = "REMOTE.db")]
    pub(super) remote: PathBuf,
    /// The server: tls://host:port, wss:// or https:// where nothing else gets through, tcp:// on
    /// loopback [default port: 7439, of https and wss 443]. Several with commas between them are
    /// tried one after the other. Remembered, that one first which got through
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// The user who signs in; remembered. A token or a certificate tells by itself
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// A publication to subscribe to; remembered; repeatable, also later
    #[arg(long = "publication", value_name = "NAME")]
    publications: Vec<String>,
    /// What people call this device, wherever the server's operator is told of it; remembered. The
    /// name of the host unless this is said at the first sync
    #[arg(long, value_name = "NAME")]
    device_name: Option<String>,
    /// Set what the publications' queries know as {u.NAME}; remembered; repeatable; NAME= drops it
    #[arg(long = "parameter", value_name = "NAME=VALUE", value_parser = parameter)]
    parameters: Vec<(String, String)>,
    /// The version of the server's scripts to sync by; remembered
    #[arg(long, value_name = "NAME")]
    script_version: Option<String>,
    /// Adopt tables that the file already has under the names of published ones: compare their
    /// rows with the centre's, and where they differ upload mine, or take the centre's
    #[arg(long, value_enum, value_name = "WHOSE")]
    adopt: Option<Whose>,
    /// Begin a new file from an image: its manifest (NAME.json), a file or http(s):// address, with
    /// the image beside it; only what has changed since comes from the server
    #[arg(long, value_name = "MANIFEST", conflicts_with = "upload_only")]
    image: Option<String>,
    /// Upload the file's changes, download nothing
    #[arg(long, conflicts_with = "download_only")]
    upload_only: bool,
    /// Download, and keep the file's changes for a later sync
    #[arg(long)]
    download_only: bool,
    /// Trust the authorities in this PEM file, and no others; remembered
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Trust the server that has this key, sha256/BASE64 as tidewater cert prints it, and no
    /// authorities; remembered
    #[arg(long, value_name = "PIN", conflicts_with = "ca")]
    pin: Option<Pin>,
    /// Go over to another centre: its rows take the place of those that the file has
    #[arg(long)]
    other_centre: bool,
    #[command(flatten)]
    network: NetworkArgs,
    /// Pack what goes over the network: auto (where it makes the sync faster), off, zstd or deflate
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = compression)]
    compression: Compression,
    /// How far to pack what goes up, from 1 (fast) to 19 with zstd or 9 with deflate (small)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=19))]
    compression_level: Option<u8>,
    #[command(flatten)]
    pub(super) proof: ProofArgs,
    /// Do not wait for a server that is busy: exit with 2 at once
    #[arg(long)]
    no_retry: bool,
    /// Print errors and refused rows only: no progress, no report, no remarks. With --json the object all the same
    #[arg(long, short)]
    pub(super) quiet: bool,
    /// Print one JSON object, see below
    #[arg(long)]
    pub(crate) json: bool,
}

/// Whose rows count where an adopted table differs from the centre.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Whose {
    /// The file's: they go up
    Mine,
    /// The centre's
    Centre,
}

/// What there is to choose from stands in the help.
fn compression(text: &str) -> Result<Compression, NoCompression> {
    text.parse()
}

/// Reads `month=2026-11`.
fn parameter(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err("write NAME=VALUE, or NAME= to drop it".into()),
    }
}

/// Syncs once.
pub(crate) fn run(args: &SyncArgs) -> Result<CommandOutcome, Failure> {
    let begins = begins(args);
    let (mut remote, given) = prepared(args)?;
    // Not before somebody was asked for a password: there, Ctrl-C simply ends the program.
    let interrupt = Interrupt::listen()?;
    let report = signed_in(&mut remote, &args.proof, given, |remote| {
        sync(remote, args, &interrupt)
    });
    if let Err(failure) = &report
        && begins
        && [Code::ImageInvalid, Code::AnotherCentre].contains(&failure.code)
    {
        // Nothing is in it but what was to be an image.
        drop(remote);
        for end in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{end}", args.remote.display()));
        }
        return report.map(|_| CommandOutcome::Complete);
    }
    let report = report?;
    let refused_before = refused_before(&mut remote, &report)?;
    let dropped = dropped_publications(&mut remote)?;
    if args.json {
        output::json(&SyncObject::new(&report, refused_before))?;
    } else if !args.quiet {
        output::text(&describe(&report))?;
    }
    if !args.quiet {
        remark(&report, refused_before, &dropped, &args.remote);
    }
    if report.refused > 0 {
        tell_refused(args, &report);
        Ok(CommandOutcome::WithRefusedRows)
    } else {
        Ok(CommandOutcome::Complete)
    }
}

/// Says on standard error what of a sync deserves a remark.
fn remark(report: &Report, refused_before: u64, dropped: &[String], file: &Path) {
    if report.starts_over {
        output::note(
            "the file is a copy, or was restored from a backup, or its server forgot it: it is another \
             remote from now on, with numbers of its own; what it had pending is kept and goes up",
        );
    }
    if report.conflicts > 0 {
        tell_conflicts(report, file);
    }
    if report.stale_count > 0 {
        tell_stale(report);
    }
    if !report.not_restored.is_empty() {
        tell_not_restored(report);
    }
    for interest in &report.refused_interests {
        let told = format!(
            "no events of {}/{}: {}",
            interest.space, interest.subject, interest.reason
        );
        output::note(&output::printable(&told));
    }
    for dropped in dropped {
        output::note(&output::printable(&format!(
            "nothing of {dropped} is synced: the server has no such publication; to take its \
             tables out of the file: tidewater unsubscribe {} {dropped}",
            file.display()
        )));
    }
    if refused_before > 0 {
        output::note(&format!(
            "{} refused earlier; see: tidewater refused list {}",
            output::counted(refused_before, "row", "rows"),
            file.display()
        ));
    }
}

/// Whether the file is to be made of an image.
fn begins(args: &SyncArgs) -> bool {
    args.image.is_some() && !args.remote.exists()
}

/// Makes the file of an image, if it is to be; gives what signs in then.
fn begin(args: &SyncArgs) -> Result<Option<GivenProof>, Failure> {
    let Some(image) = args.image.as_ref().filter(|_| begins(args)) else {
        return Ok(None);
    };
    check_folder(&args.remote)?;
    let missing = missing_for_a_first_sync(args);
    if !missing.is_empty() {
        return Err(Failure::usage(
            format!("{} has never been synced", args.remote.display()),
            format!("add {}", missing.join(", ")),
        ));
    }
    let user = args.user.as_deref().unwrap_or_default();
    let given = args.proof.obtain(&prompt(user))?;
    let mut options = SyncOptions {
        ca_file: args.ca.clone(),
        pin: args.pin,
        insecure: args.network.insecure,
        proxy: args.network.proxy.clone(),
        ..SyncOptions::default()
    };
    match &given {
        GivenProof::Password(password) => options.password = Some(password.clone()),
        GivenProof::Bearer(bearer) => options.bearer = Some(bearer.clone()),
        GivenProof::Certificate(certificate) => options.certificate = Some(certificate.clone()),
    }
    // Ctrl-C simply ends the program: the next one goes on with what has come.
    let go_on = &mut |_, _| ControlFlow::Continue(());
    let server = args.server.as_deref().unwrap_or_default();
    let wanted = ImageRequest {
        manifest: image,
        server: &args.network.addresses(server)?.to_string(),
        user,
    };
    begin_from_image(&args.remote, wanted, &options, go_on)?;
    Ok(Some(given))
}

/// Tries with what is at hand, and asks for a password if the remote's credential is
/// no longer valid.
pub(super) fn signed_in<T>(
    remote: &mut Remote,
    asked: &ProofArgs,
    mut given: Option<GivenProof>,
    mut attempt: impl FnMut(&mut Remote) -> Result<T, ClientError>,
) -> Result<T, Failure> {
    loop {
        let may_ask = given.is_none() && asked.can_ask();
        if let Some(given) = given.take() {
            given.give(remote);
        }
        match attempt(remote) {
            Err(error) if error.code() == Code::CredentialInvalid && may_ask => {
                output::note(&format!("{error}: sign in again"));
                let account = remote.account()?;
                given = Some(asked.obtain(&prompt(&account.user))?);
            }
            result => return result.map_err(reassure),
        }
    }
}

/// What it means to a file that there is no connection to its server.
fn reassure(error: ClientError) -> Failure {
    let is_unconnected = matches!(error, ClientError::Carrier(_));
    let mut failure = Failure::from(error);
    if is_unconnected && failure.code != Code::Usage {
        failure.hint.push_str("; local changes are kept");
    }
    failure
}

/// The publications of the file that the server has not any more.
fn dropped_publications(remote: &mut Remote) -> Result<Vec<String>, Failure> {
    let subscriptions = remote.database()?.subscriptions()?;
    let dropped = subscriptions.into_iter().filter(|it| it.is_dropped);
    Ok(dropped.map(|it| it.publication).collect())
}

/// How many rows wait in the file that earlier syncs were refused.
pub(super) fn refused_before(remote: &mut Remote, report: &Report) -> Result<u64, Failure> {
    let all = remote.database()?.status()?.refused;
    Ok(all.saturating_sub(report.refused))
}

fn sync(
    remote: &mut Remote,
    args: &SyncArgs,
    interrupt: &Interrupt,
) -> Result<Report, ClientError> {
    let line = ProgressLine::new(!args.quiet);
    remote.sync(&mut |progress| {
        line.show(progress);
        if interrupt.is_raised() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })
}

/// The remote, subscribed, and what signs it in if there is something. A file is only made when
/// everything is at hand that a first sync needs.
pub(super) fn prepared(args: &SyncArgs) -> Result<(Remote, Option<GivenProof>), Failure> {
    check_folder(&args.remote)?;
    let obtained = begin(args)?;
    let missing = missing_for_a_first_sync(args);
    let known = match remote_file::open(&args.remote) {
        Ok(database) => database.account()?,
        Err(_) if missing.is_empty() => RemoteAccount::default(),
        Err(mut failure) => {
            // A remote that cannot be opened is none that a first sync would make.
            if !failure.code.is_transient() && failure.code != Code::RemoteDatabase {
                failure.hint = format!("for a first sync into it, add {}", missing.join(", "));
            }
            return Err(failure);
        }
    };
    let choose = |given: &Option<String>, known: &str| given.clone().unwrap_or(known.to_owned());
    let server = choose(&args.server, &known.server);
    let user = choose(&args.user, &known.user);
    if server.is_empty() || (user.is_empty() && !args.proof.tells_user()) {
        return Err(Failure::usage(
            format!("{} has never been synced", args.remote.display()),
            format!("add {}", missing.join(", ")),
        ));
    }
    let server = args.network.addresses(&server)?;
    let given = match known.credential {
        _ if obtained.is_some() => obtained,
        Some(_) => args.proof.given()?,
        None => Some(args.proof.obtain(&prompt(&user))?),
    };

    let mut remote = Remote::open(&args.remote)?;
    if args.publications.is_empty() && remote.database()?.subscriptions()?.is_empty() {
        return Err(Failure::usage(
            format!("{} subscribes to nothing yet", args.remote.display()),
            "first sync: add --publication NAME",
        ));
    }
    if args.server.is_some() || args.user.is_some() || !args.publications.is_empty() {
        let publications: Vec<&str> = args.publications.iter().map(String::as_str).collect();
        if !publications.is_empty() {
            // A name that was mistyped the last time would fail for ever.
            remote.database()?.forget_never_synced(&publications)?;
        }
        remote.subscribe(&server.to_string(), &user, &publications)?;
    }
    if let Some(name) = &args.device_name {
        remote.set_device_name(name)?;
    }
    for (name, value) in &args.parameters {
        remote.set_parameter(name, (!value.is_empty()).then_some(value))?;
    }
    if let Some(version) = &args.script_version {
        remote.set_parameter(SCRIPT_VERSION, (!version.is_empty()).then_some(version))?;
    }
    remote.set_adopt(args.adopt.map(|whose| match whose {
        Whose::Mine => AdoptionRule::Mine,
        Whose::Centre => AdoptionRule::Centre,
    }));
    if let Some(file) = &args.ca {
        remote.set_ca_file(Some(file))?;
    }
    if let Some(pin) = args.pin {
        remote.set_pin(Some(pin))?;
    }
    remote.set_insecure(args.network.insecure);
    remote.set_proxy(args.network.proxy.clone());
    remote.set_compression(CompressionOptions {
        compression: args.compression,
        level: args.compression_level,
    });
    remote.set_other_centre(args.other_centre);
    if args.no_retry {
        remote.set_retry(RetryPolicy::Off);
    }
    remote.set_client(concat!("tidewater/", env!("CARGO_PKG_VERSION")));
    remote.set_direction(match (args.upload_only, args.download_only) {
        (true, _) => SyncDirection::UploadOnly,
        (_, true) => SyncDirection::DownloadOnly,
        _ => SyncDirection::Both,
    });
    Ok((remote, given))
}

/// SQLite would only say that it cannot open the file.
fn check_folder(remote: &Path) -> Result<(), Failure> {
    match remote.parent() {
        Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => Err(Failure::usage(
            format!("the folder {} does not exist", folder.display()),
            "make it first, or check the path",
        )),
        _ => Ok(()),
    }
}

fn prompt(user: &str) -> String {
    format!("Password for {}: ", output::printable(user))
}

/// The options without which nobody knows where to sync, and as whom.
fn missing_for_a_first_sync(args: &SyncArgs) -> Vec<&'static str> {
    let options = [
        ("--server URL", args.server.is_none()),
        (
            "--user NAME",
            args.user.is_none() && !args.proof.tells_user(),
        ),
        ("--publication NAME", args.publications.is_empty()),
    ];
    let missing = options.into_iter().filter(|(_, missing)| *missing);
    missing.map(|(option, _)| option).collect()
}

/// What moved, for people.
fn describe(report: &Report) -> String {
    let up = &report.uploaded;
    let down = &report.downloaded;
    let mut text = format!(
        "uploaded    {} inserted, {} updated, {} deleted\n\
         downloaded  {}, {}\n",
        up.inserts,
        up.updates,
        up.deletes,
        output::counted(down.upserts, "row", "rows"),
        output::counted(down.removals, "removal", "removals"),
    );
    if report.conflicts > 0 {
        let met = output::counted(report.conflicts, "change", "changes");
        let _ = writeln!(
            text,
            "conflicts   {met} met somebody else's of the same row"
        );
    }
    if report.refused > 0 {
        let rows = output::counted(report.refused, "row", "rows");
        let _ = writeln!(text, "refused     {rows} not taken by the centre");
    }
    if report.stale_count > 0 {
        let rows = output::counted(report.stale_count, "row", "rows");
        let _ = writeln!(text, "stale       {rows} not as in the centre");
    }
    let outbox = report.outbox;
    if outbox != OutboxCounts::default() {
        let _ = writeln!(
            text,
            "outbox      {} answered, {} failed, {} to be tried again",
            outbox.answered, outbox.failed, outbox.pending,
        );
    }
    if report.inbox > 0 {
        let rows = output::counted(report.inbox, "row", "rows");
        let _ = writeln!(text, "inbox       {rows} for the application");
    }
    if report.bytes_kept > 0 {
        let kept = output::bytes(report.bytes_kept);
        let _ = writeln!(text, "gone on     behind {kept} that had come before");
    }
    if report.retries > 0 {
        let times = output::counted(report.retries, "time", "times");
        let _ = writeln!(text, "turned away {times} by the server, tried again");
    }
    let _ = writeln!(
        text,
        "in {}, {} sent, {} received",
        output::duration(report.duration_ms),
        output::bytes(report.bytes_sent),
        output::bytes(report.bytes_received),
    );
    text
}

/// Lists the changes that met somebody else's, on standard error like what was refused: the rows
/// now hold what somebody else wrote, or something of both.
fn tell_conflicts(report: &Report, remote: &Path) {
    let mut table = TextTable::new(&["table", "key"]);
    for row in &report.conflict_rows {
        table.row([row.table.clone(), row.key.clone()]);
    }
    output::note("changes that lost, or were merged with somebody else's:");
    output::note(table.render(2).trim_end());
    tell_more(report.conflicts, report.conflict_rows.len());
    output::note(&format!(
        "both versions are kept; see: tidewater conflicts list {}",
        remote.display()
    ));
}

/// Lists the rows that are not as in the centre, on standard error.
fn tell_stale(report: &Report) {
    let mut table = TextTable::new(&["table", "key", "why it stays"]);
    for row in &report.stale {
        table.row([row.table.clone(), row.key.clone(), row.reason.to_owned()]);
    }
    output::note("stale, asked for again by the next sync:");
    output::note(table.render(2).trim_end());
    tell_more(report.stale_count, report.stale.len());
}

/// Says what of the application a new schema has broken.
fn tell_not_restored(report: &Report) {
    output::note("impossible with the publication's new schema:");
    for sql in &report.not_restored {
        output::note(&format!("  {}", output::printable(sql)));
    }
}

fn tell_more(all: u64, told: usize) {
    let more = all.saturating_sub(told as u64);
    if more > 0 {
        output::note(&format!("and {more} more"));
    }
}

/// Lists what was refused, on standard error: it is a warning also for scripts.
fn tell_refused(args: &SyncArgs, report: &Report) {
    let mut table = TextTable::new(&["table", "key", "reason"]);
    for row in &report.refused_rows {
        table.row([row.table.clone(), row.key.clone(), row.reason.clone()]);
    }
    output::note("refused:");
    output::note(table.render(2).trim_end());
    tell_more(report.refused, report.refused_rows.len());
    let path = args.remote.display();
    output::note(&format!(
        "the file keeps what was refused; see: tidewater refused list {path}\n\
         then change the row, or send it again with refused retry, or give it up with refused \
         discard"
    ));
}
