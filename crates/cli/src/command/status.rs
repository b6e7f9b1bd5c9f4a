//! `tidewater status`: the state of a remote's file, or of the centre.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use tidewater_centre::records::{
    BlockRecord, BlockingTransaction, CentreStatus, IncidentKind, IncidentRecord, NumbersStatus,
    SyncRecord,
};
use tidewater_client::{OutboxStatus, RemoteStatus, SubscriptionStatus};
use tidewater_terminal::output::{self, TextTable, bytes, duration, moment, printable};
use tidewater_terminal::{CommandOutcome, ConfigArgs, Failure, with_exit_codes};

use crate::centre::OpenCentre;
use crate::devices::DeviceNames;
use crate::remote_file;
use crate::running::ServerStatus;

/// Show the state of a remote's file, or of the central database
///
/// Of a remote: whose it is, what it subscribes to, what waits to be uploaded, what was
/// refused. Of the centre (-c FILE): users, remotes, kept conflicts and refused rows,
/// change logs, the last syncs, and whether the database was restored or remotes were:
/// what was found, and what to do;
/// and which transactions of applications keep syncs waiting. Needs no server; of one that runs,
/// and has the admin endpoint that the configuration names, it shows the figures too. Never shows
/// passwords or credentials.
#[derive(Debug, Args)]
#[command(after_help = with_exit_codes!("\
Examples:
  tidewater status nancy.db
  tidewater status nancy.db --json | jq .pending
  tidewater status -c tidewater.toml

The object of --json, of a remote:
  {\"remote_id\",\"device_name\",\"user\",\"server\",\"pending\":n,\"refused\":n,\"stale\":n,
   \"outbox\":{\"pending\":n,\"failed\":n},\"inbox\":n,\"conflicts\":n,
   \"subscriptions\":[{\"publication\",\"last_sync_at_ms\",\"sequence\",\"upload_in_flight\",
                     \"compare_due\",\"kept\",\"giving\",
                     \"tables\":[{\"table\",\"rows\",\"pending\",\"refused\",\"stale\"}]}]}
of the centre:
  {\"users\":n,\"users_disabled\":n,\"remotes\":n,\"remotes_revoked\":n,\"conflicts\":n,
   \"open_conflicts\":n,\"refused\":n,
   \"logs\":[{\"table\",\"entries\"}],
   \"syncs\":[{\"remote_id\",\"device_name\",\"user\",\"publications\",\"started_ms\",\"duration_ms\",\"uploaded\",
             \"downloaded\",\"conflicts\",\"refused\",\"bytes_received\",\"bytes_sent\",\"error\"}],
   \"incident_counts\":{\"history_unknown\":n,\"uploads_missing\":n,\"new_identity\":n,
                      \"tracking_lost\":n,\"differed\":n},
   \"incidents\":[{\"at_ms\",\"kind\",\"remote_id\",\"device_name\",\"user\",\"publication\",
                 \"detail\"}],
   \"numbers\":[{\"table\",\"column\",\"count\",\"highest\",\"remotes\"}],
   \"number_blocks\":[{\"table\",\"remote_id\",\"device_name\",\"user\",\"first\",\"last\",\"at_ms\"}],
   \"keyless_rows\":[{\"table\",\"rows\":n}],
   \"blockers\":[{\"process\",\"application\",\"user\",\"since_ms\",\"statement\",\"prepared\"}],
   \"server\":{\"admin\",\"reachable\",\"ready\",\"reason\",\"figures\":[{\"name\",\"labels\":{},\"value\"}]}}
downloaded are the rows that were sent; a remote reports those that it wrote."))]
pub(crate) struct StatusArgs {
    /// The remote's file
    #[arg(value_name = "REMOTE.db")]
    remote: Option<PathBuf>,
    /// Show the centre of this configuration file instead [default: tidewater.toml, if it is
    /// here and no remote is named]
    #[arg(short, long, value_name = "FILE", conflicts_with = "remote")]
    config: Option<PathBuf>,
    /// Print one JSON object, see below
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &StatusArgs) -> Result<CommandOutcome, Failure> {
    match (&args.remote, &args.config) {
        (Some(path), _) => {
            let status = remote_file::open(path)?.status()?;
            let totals = RemoteObject::from_status(&status);
            if args.json {
                output::json(&totals)?;
            } else {
                output::text(&describe_remote(&totals, path))?;
            }
        }
        (None, config) => {
            let path = config.clone().unwrap_or_else(|| "tidewater.toml".into());
            if config.is_none() && !path.exists() {
                return Err(Failure::usage(
                    "neither a remote's file is named nor a configuration file",
                    "write tidewater status REMOTE.db, or tidewater status -c FILE",
                ));
            }
            let centre = OpenCentre::open(&ConfigArgs { path: path.clone() })?;
            let (status, server) = (centre.status()?, centre.server()?);
            let names = DeviceNames::read(&centre)?;
            let file = centre.branch_file();
            let upstream = file
                .as_ref()
                .map(|file| Ok::<_, Failure>(remote_file::open(file)?.status()?));
            let upstream = upstream.transpose()?;
            let upstream = upstream.as_ref().map(RemoteObject::from_status);
            if args.json {
                let object = CentreObject {
                    upstream,
                    ..CentreObject::new(&status, &server, &names)
                };
                output::json(&object)?;
            } else {
                let line = upstream.as_ref().zip(file.as_ref());
                let line = line.map_or(String::new(), |(line, file)| describe_line(line, file));
                output::text(&describe_centre(&status, (&server, &names), &path, &line))?;
            }
        }
    }
    Ok(CommandOutcome::Complete)
}

#[derive(Serialize)]
struct RemoteObject<'a> {
    #[serde(flatten)]
    status: &'a RemoteStatus,
    pending: u64,
    refused: u64,
    stale: u64,
}

impl RemoteObject<'_> {
    fn from_status(status: &RemoteStatus) -> RemoteObject<'_> {
        let tables = || status.subscriptions.iter().flat_map(|it| &it.tables);
        RemoteObject {
            status,
            pending: tables().map(|it| it.pending).sum(),
            refused: status.refused,
            stale: tables().map(|it| it.stale).sum(),
        }
    }
}

fn describe_remote(remote: &RemoteObject<'_>, path: &Path) -> String {
    let or_dash = |text: &str| match text {
        "" => "-".to_owned(),
        text => printable(text),
    };
    let status = remote.status;
    let id = status
        .remote_id
        .as_deref()
        .unwrap_or("none: this file has never signed in");
    let mut text = String::new();
    let _ = writeln!(text, "remote id  {id}");
    let _ = writeln!(text, "device     {}", or_dash(&status.device_name));
    let _ = writeln!(text, "user       {}", or_dash(&status.user));
    let _ = writeln!(text, "server     {}", or_dash(&status.server));
    for subscription in &status.subscriptions {
        text.push_str(&describe_subscription(subscription));
    }
    let _ = writeln!(
        text,
        "\n{} to upload, {} refused",
        output::counted(remote.pending, "change", "changes"),
        remote.refused
    );
    if status.outbox != OutboxStatus::default() || status.inbox > 0 {
        let _ = writeln!(
            text,
            "outbox: {} to execute, {} failed; inbox: {}",
            status.outbox.pending,
            status.outbox.failed,
            output::counted(status.inbox, "row", "rows"),
        );
    }
    if remote.refused > 0 {
        let _ = writeln!(text, "see: tidewater refused list {}", path.display());
    }
    if status.conflicts > 0 {
        let _ = writeln!(
            text,
            "{} with somebody else's changes; see: tidewater conflicts list {}",
            output::counted(status.conflicts, "conflict", "conflicts"),
            path.display()
        );
    }
    text
}

fn describe_subscription(subscription: &SubscriptionStatus) -> String {
    let mut text = String::new();
    let last_sync = moment(subscription.last_sync_at_ms.unwrap_or_default());
    let _ = writeln!(
        text,
        "\npublication {}  last sync {last_sync}, uploads acknowledged {}{}",
        printable(&subscription.publication),
        subscription.sequence,
        if subscription.upload_in_flight {
            ", one sent without an answer yet"
        } else {
            ""
        }
    );
    if subscription.giving > 0 {
        let uploads = output::counted(subscription.giving, "upload", "uploads");
        let _ = writeln!(
            text,
            "  the centre was restored: the next sync gives {uploads} back"
        );
    }
    if subscription.compare_due {
        text.push_str("  the next sync compares the tables with the centre\n");
    }
    let mut table = TextTable::new(&["table", ">rows", ">pending", ">refused", ">stale"]);
    for status in &subscription.tables {
        let figures = [status.rows, status.pending, status.refused, status.stale];
        let figures = figures.map(|it| it.to_string());
        table.row(std::iter::once(status.table.clone()).chain(figures));
    }
    if !table.is_empty() {
        text.push_str(&table.render(2));
    }
    text
}

#[derive(Serialize)]
struct CentreObject<'a> {
    users: u64,
    users_disabled: u64,
    remotes: u64,
    remotes_revoked: u64,
    conflicts: u64,
    open_conflicts: u64,
    refused: u64,
    logs: Vec<LogObject<'a>>,
    syncs: Vec<SyncObject<'a>>,
    incident_counts: BTreeMap<&'a str, u64>,
    incidents: Vec<IncidentObject<'a>>,
    numbers: Vec<NumbersObject<'a>>,
    number_blocks: Vec<BlockObject<'a>>,
    keyless_rows: Vec<KeylessObject<'a>>,
    blockers: Vec<BlockerObject<'a>>,
    server: &'a ServerStatus,
    /// A branch's line to headquarters, as `tidewater status` shows a remote.
    #[serde(skip_serializing_if = "Option::is_none")]
    upstream: Option<RemoteObject<'a>>,
}

#[derive(Serialize)]
struct NumbersObject<'a> {
    table: &'a str,
    column: &'a str,
    count: u64,
    highest: i64,
    remotes: u64,
}

#[derive(Serialize)]
struct BlockObject<'a> {
    table: &'a str,
    remote_id: String,
    device_name: &'a str,
    user: &'a str,
    first: i64,
    last: i64,
    at_ms: i64,
}

#[derive(Serialize)]
struct KeylessObject<'a> {
    table: &'a str,
    rows: u64,
}

#[derive(Serialize)]
struct BlockerObject<'a> {
    process: i64,
    application: &'a str,
    user: &'a str,
    since_ms: Option<i64>,
    statement: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    prepared: Option<&'a String>,
}

#[derive(Serialize)]
struct IncidentObject<'a> {
    at_ms: i64,
    kind: &'a str,
    remote_id: Option<String>,
    device_name: &'a str,
    user: &'a str,
    publication: &'a str,
    detail: &'a str,
}

#[derive(Serialize)]
struct LogObject<'a> {
    table: &'a str,
    entries: u64,
}

#[derive(Serialize)]
struct SyncObject<'a> {
    remote_id: Option<String>,
    device_name: &'a str,
    user: &'a str,
    publications: Vec<&'a str>,
    started_ms: i64,
    duration_ms: u64,
    uploaded: UploadCounts,
    downloaded: DownloadCounts,
    conflicts: u64,
    refused: u64,
    bytes_received: u64,
    bytes_sent: u64,
    error: Option<&'a str>,
}

#[derive(Serialize)]
struct UploadCounts {
    inserts: u64,
    updates: u64,
    deletes: u64,
}

#[derive(Serialize)]
struct DownloadCounts {
    upserts: u64,
    removals: u64,
}

impl<'a> CentreObject<'a> {
    fn new(
        status: &'a CentreStatus,
        server: &'a ServerStatus,
        names: &'a DeviceNames,
    ) -> CentreObject<'a> {
        let logs = status.logs.iter();
        let syncs = status.syncs.iter().map(|it| SyncObject::new(it, names));
        let listed = status
            .incidents
            .iter()
            .map(|it| IncidentObject::new(it, names));
        let blocks = status.blocks.iter().map(|it| BlockObject::new(it, names));
        let keyless = status.keyless_rows.iter().map(|it| KeylessObject {
            table: &it.table,
            rows: it.rows,
        });
        CentreObject {
            users: status.users[0],
            users_disabled: status.users[1],
            remotes: status.remotes[0],
            remotes_revoked: status.remotes[1],
            conflicts: status.conflicts,
            open_conflicts: status.open_conflicts,
            refused: status.refused,
            logs: logs
                .map(|(table, entries)| LogObject {
                    table,
                    entries: *entries,
                })
                .collect(),
            syncs: syncs.collect(),
            incident_counts: IncidentKind::ALL
                .iter()
                .map(|&kind| (kind.name(), incidents(status, kind)))
                .collect(),
            incidents: listed.collect(),
            numbers: status
                .numbers
                .iter()
                .map(NumbersObject::from_status)
                .collect(),
            number_blocks: blocks.collect(),
            keyless_rows: keyless.collect(),
            blockers: status
                .blockers
                .iter()
                .map(BlockerObject::from_transaction)
                .collect(),
            server,
            upstream: None,
        }
    }
}

impl NumbersObject<'_> {
    fn from_status(numbers: &NumbersStatus) -> NumbersObject<'_> {
        NumbersObject {
            table: &numbers.table,
            column: &numbers.column,
            count: numbers.count,
            highest: numbers.highest,
            remotes: numbers.remotes,
        }
    }
}

impl BlockObject<'_> {
    fn new<'a>(block: &'a BlockRecord, names: &'a DeviceNames) -> BlockObject<'a> {
        BlockObject {
            table: &block.table,
            remote_id: block.remote_id.to_string(),
            device_name: names.name(block.remote_id),
            user: &block.user,
            first: block.first,
            last: block.last,
            at_ms: block.at_ms,
        }
    }
}

/// How many incidents of a kind are kept.
fn incidents(status: &CentreStatus, kind: IncidentKind) -> u64 {
    let counts = status.incident_counts.iter();
    counts.filter(|it| it.0 == kind).map(|it| it.1).sum()
}

impl BlockerObject<'_> {
    fn from_transaction(blocker: &BlockingTransaction) -> BlockerObject<'_> {
        BlockerObject {
            process: blocker.process,
            application: &blocker.application,
            user: &blocker.user,
            since_ms: (blocker.since_ms != 0).then_some(blocker.since_ms),
            statement: &blocker.statement,
            prepared: (!blocker.prepared.is_empty()).then_some(&blocker.prepared),
        }
    }
}

impl IncidentObject<'_> {
    fn new<'a>(incident: &'a IncidentRecord, names: &'a DeviceNames) -> IncidentObject<'a> {
        IncidentObject {
            at_ms: incident.at_ms,
            kind: incident.kind.name(),
            remote_id: incident.remote_id.map(|id| id.to_string()),
            device_name: incident.remote_id.map_or("", |id| names.name(id)),
            user: &incident.user,
            publication: &incident.publication,
            detail: &incident.detail,
        }
    }
}

impl SyncObject<'_> {
    fn new<'a>(sync: &'a SyncRecord, names: &'a DeviceNames) -> SyncObject<'a> {
        let [inserts, updates, deletes] = sync.uploaded;
        let [upserts, removals] = sync.downloaded;
        // No publication's name has a comma.
        let publications = sync.publications.split(',');
        SyncObject {
            remote_id: sync.remote_id.map(|id| id.to_string()),
            device_name: sync.remote_id.map_or("", |id| names.name(id)),
            user: &sync.user,
            publications: publications.filter(|name| !name.is_empty()).collect(),
            started_ms: sync.started_ms,
            duration_ms: sync.duration_ms,
            uploaded: UploadCounts {
                inserts,
                updates,
                deletes,
            },
            downloaded: DownloadCounts { upserts, removals },
            conflicts: sync.conflicts,
            refused: sync.refused,
            bytes_received: sync.bytes[0],
            bytes_sent: sync.bytes[1],
            error: (!sync.error.is_empty()).then_some(sync.error.as_str()),
        }
    }
}

/// A branch's line to headquarters.
fn describe_line(line: &RemoteObject<'_>, file: &Path) -> String {
    let subscriptions = &line.status.subscriptions;
    let last = subscriptions
        .iter()
        .filter_map(|it| it.last_sync_at_ms)
        .max();
    let last = last.map_or("never synced".to_owned(), |it| {
        format!("last sync {}", moment(it))
    });
    let mut text = format!(
        "upstream   headquarters {}, as {}: {last}; {} wait, {} refused",
        printable(&line.status.server),
        printable(&line.status.user),
        output::counted(line.pending, "row", "rows"),
        line.refused,
    );
    if line.refused > 0 {
        let _ = write!(text, "; see: tidewater refused list {}", file.display());
    }
    text.push('\n');
    text
}

fn describe_centre(
    status: &CentreStatus,
    (server, names): (&ServerStatus, &DeviceNames),
    config: &Path,
    line: &str,
) -> String {
    let mut text = String::new();
    let [users, disabled] = status.users;
    let [remotes, revoked] = status.remotes;
    let _ = writeln!(text, "users      {users} ({disabled} disabled)");
    let _ = writeln!(text, "remotes    {remotes} ({revoked} revoked)");
    let list = match status.conflicts {
        0 => String::new(),
        _ => format!("; see: tidewater conflicts list -c {}", config.display()),
    };
    let open = match status.open_conflicts {
        0 => String::new(),
        open => format!(", {open} open"),
    };
    let _ = writeln!(text, "conflicts  {} kept{open}{list}", status.conflicts);
    let list = match status.refused {
        0 => String::new(),
        _ => format!(
            "; see: tidewater refused list --open -c {}",
            config.display()
        ),
    };
    let _ = writeln!(text, "refused    {} open{list}", status.refused);
    for keyless in &status.keyless_rows {
        let _ = writeln!(
            text,
            "no key     {} of {} can be on no device: a column of their primary key is NULL",
            output::counted(keyless.rows, "row", "rows"),
            printable(&keyless.table)
        );
    }
    for blocker in &status.blockers {
        let _ = writeln!(text, "waiting    {}", describe_blocker(blocker));
    }
    text.push_str(line);
    text.push_str(&server.describe());
    let mut logs = TextTable::new(&["change log of", ">entries"]);
    for (table, entries) in &status.logs {
        logs.row([table.clone(), entries.to_string()]);
    }
    if !logs.is_empty() {
        let _ = write!(text, "\n{}", logs.render(0));
    }
    text.push_str(&describe_numbers(status, names));
    let mut syncs = TextTable::new(&[
        "last syncs",
        "user",
        "device",
        "publications",
        ">up",
        ">sent",
        ">conflicts",
        ">refused",
        ">bytes",
        ">took",
        "error",
    ]);
    for sync in &status.syncs {
        syncs.row([
            moment(sync.started_ms),
            sync.user.clone(),
            sync.remote_id
                .map_or(String::new(), |id| names.name(id).to_owned()),
            sync.publications.clone(),
            sync.uploaded.iter().sum::<u64>().to_string(),
            sync.downloaded.iter().sum::<u64>().to_string(),
            sync.conflicts.to_string(),
            sync.refused.to_string(),
            bytes(sync.bytes.iter().sum()),
            duration(sync.duration_ms),
            sync.error.clone(),
        ]);
    }
    if !syncs.is_empty() {
        let _ = write!(text, "\n{}", syncs.render(0));
    }
    text.push_str(&describe_incidents(status, names, config));
    text
}

/// The numbers of tables with `identity` that remotes have.
fn describe_numbers(status: &CentreStatus, names: &DeviceNames) -> String {
    let mut text = String::new();
    let mut tables = TextTable::new(&[
        "numbers of",
        "column",
        ">handed out",
        ">highest",
        ">remotes",
    ]);
    for numbers in &status.numbers {
        let figures = [numbers.count.to_string(), numbers.highest.to_string()];
        let names = [numbers.table.clone(), numbers.column.clone()];
        let remotes = std::iter::once(numbers.remotes.to_string());
        tables.row(names.into_iter().chain(figures).chain(remotes));
    }
    if !tables.is_empty() {
        let _ = write!(text, "\n{}", tables.render(0));
    }
    let mut blocks = TextTable::new(&[
        "last blocks of",
        ">first",
        ">last",
        "user",
        "remote",
        "since",
    ]);
    for block in &status.blocks {
        blocks.row([
            block.table.clone(),
            block.first.to_string(),
            block.last.to_string(),
            block.user.clone(),
            names.describe(block.remote_id),
            moment(block.at_ms),
        ]);
    }
    if !blocks.is_empty() {
        let _ = write!(text, "\n{}", blocks.render(0));
    }
    text
}

/// Who is in the way of syncs.
fn describe_blocker(blocker: &BlockingTransaction) -> String {
    let or = |text: &str, nothing: &str| match text {
        "" => nothing.to_owned(),
        text => printable(text),
    };
    let since = match blocker.since_ms {
        0 => "open".to_owned(),
        since_ms => format!("open since {}", moment(since_ms)),
    };
    if !blocker.prepared.is_empty() {
        return format!(
            "for the transaction {:?}, prepared {} by {}: COMMIT PREPARED or ROLLBACK PREPARED ends it",
            blocker.prepared,
            moment(blocker.since_ms),
            or(&blocker.user, "an unknown user"),
        );
    }
    format!(
        "for a transaction {since} of process {} ({}, user {}), last statement: {}",
        blocker.process,
        or(&blocker.application, "an application without a name"),
        or(&blocker.user, "unknown"),
        or(&blocker.statement, "unknown")
    )
}

/// What was found to be at odds, and what to do about it.
fn describe_incidents(status: &CentreStatus, names: &DeviceNames, config: &Path) -> String {
    let mut text = String::new();
    let config = config.display();
    for kind in IncidentKind::ALL {
        let count = incidents(status, kind);
        if count == 0 {
            continue;
        }
        let count = output::counted(count, "time", "times");
        let meaning = match kind {
            IncidentKind::HistoryUnknown => format!(
                "{count} a remote came that has seen another state of this database, or was away \
                 for longer than retention.log, and compared what it holds: if nobody restored \
                 the database or failed over to a standby, make sure that it is the right one"
            ),
            IncidentKind::UploadsMissing => format!(
                "{count} a remote had uploads acknowledged that this database does not have: it \
                 was restored, or failed over with loss. Remotes give back what they keep; look \
                 at `tidewater conflicts list -c {config}`, and let those sync that have not yet"
            ),
            IncidentKind::NewIdentity => format!(
                "{count} a remote was given a new identity, because its file was restored or \
                 copied, or because it is not known here any more: nothing is to do; \
                 `tidewater remote list -c {config}` shows identities that are not used any more"
            ),
            IncidentKind::TrackingLost => format!(
                "{count} triggers that track changes were found missing or switched off, or \
                 columns altered. Nothing is lost, but whole tables are sent to remotes: run \
                 `tidewater deploy -c {config}` unless the last line about the table says that \
                 its rows are sent once more"
            ),
            IncidentKind::Differed => format!(
                "{count} a remote that compared everything to be sure (server.verify_every) was \
                 not equal to the centre, and has taken the centre's rows: look what changed rows \
                 behind the triggers' back, on the device or here"
            ),
        };
        let _ = writeln!(text, "\n{meaning}");
    }
    let mut table = TextTable::new(&[
        "last incidents",
        "kind",
        "user",
        "publication",
        "remote",
        "",
    ]);
    for incident in &status.incidents {
        table.row([
            moment(incident.at_ms),
            incident.kind.name().to_owned(),
            incident.user.clone(),
            incident.publication.clone(),
            incident
                .remote_id
                .map_or(String::new(), |id| names.describe(id)),
            incident.detail.clone(),
        ]);
    }
    if !table.is_empty() {
        let _ = write!(text, "\n{}", table.render(0));
    }
    text
}
