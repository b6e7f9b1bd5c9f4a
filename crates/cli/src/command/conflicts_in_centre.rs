//! `tidewater conflicts -c FILE`: the conflicts that the centre keeps, for its operator.

use std::fmt::Write;
use std::path::Path;

use clap::ValueEnum;
use serde::Serialize;
use serde_json::value::RawValue;
use tidewater_centre::records::{ConflictFilter, ConflictRecord};
use tidewater_centre::{ConflictChoice, ConflictVersion, Judgement, SettleOutcome};
use tidewater_protocol::Code;
use tidewater_terminal::output::{self, TextTable, moment, printable};
use tidewater_terminal::{CommandOutcome, ConfigArgs, Failure, describe};

use crate::centre::OpenCentre;
use crate::clock::now_ms;
use crate::devices::{DeviceNames, OfDevice};
use crate::kept::{ConflictLine, JsonText, embedded};

/// How conflicts are exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ExportFormat {
    /// A JSON object a line
    Json,
    /// A line each, under a line with the names of the columns
    Csv,
}

/// A value that is longer is cut where versions stand side by side.
const WIDEST: usize = 40;

/// What the operator wants a row to be.
pub(super) struct RowChoice<'a> {
    pub(super) id: i64,
    /// The name of a version, or a file.
    pub(super) version: &'a str,
    pub(super) by: Option<&'a str>,
    pub(super) force: bool,
}

pub(super) fn list(
    config: &ConfigArgs,
    filter: &ConflictFilter,
    json: bool,
) -> Result<CommandOutcome, Failure> {
    let centre = OpenCentre::open(config)?;
    let (conflicts, names) = (centre.find_conflicts(filter)?, DeviceNames::read(&centre)?);
    if json {
        let conflicts = conflicts
            .iter()
            .map(|it| OfDevice::new(ConflictLine::from_record(it), &names, it.remote_id));
        let conflicts = conflicts.collect();
        output::json(&ListedConflicts { conflicts })?;
    } else if conflicts.is_empty() {
        output::note(match *filter == ConflictFilter::newest(filter.limit) {
            true => "no conflicts are kept",
            false => "no such conflicts are kept",
        });
    } else {
        output::text(&lines(&conflicts, &names))?;
    }
    Ok(CommandOutcome::Complete)
}

fn lines(conflicts: &[ConflictRecord], names: &DeviceNames) -> String {
    let mut table = TextTable::new(&[
        ">id", "when", "outcome", "table", "key", "change", "user", "device",
    ]);
    for conflict in conflicts {
        table.row([
            conflict.id.to_string(),
            moment(conflict.at_ms),
            outcome(conflict),
            conflict.table.clone(),
            cut(&conflict.key),
            conflict.operation.clone(),
            conflict.user.clone(),
            names.name(conflict.remote_id).to_owned(),
        ]);
    }
    table.render(0)
}

/// What a conflict has come to, and what an operator has made of it.
fn outcome(conflict: &ConflictRecord) -> String {
    let outcome = conflict.outcome.name();
    match &conflict.settled {
        Some(settled) => format!("{outcome}, settled: {}", settled.version),
        None if conflict.is_open() => format!("{outcome}, open"),
        None => outcome.to_owned(),
    }
}

pub(super) fn show(config: &ConfigArgs, id: i64, json: bool) -> Result<CommandOutcome, Failure> {
    let centre = OpenCentre::open(config)?;
    let (conflict, names) = (centre.conflict(id)?, DeviceNames::read(&centre)?);
    let conflict = conflict.ok_or_else(|| unknown(id, config))?;
    match json {
        true => {
            let line = ConflictLine::from_record(&conflict);
            output::json(&OfDevice::new(line, &names, conflict.remote_id))?;
        }
        false => output::text(&side_by_side(&conflict, &names))?,
    }
    Ok(CommandOutcome::Complete)
}

fn unknown(id: i64, config: &ConfigArgs) -> Failure {
    Failure::usage(
        format!("no conflict {id} is kept"),
        format!("see: tidewater conflicts list -c {}", config.path.display()),
    )
}

/// Who, when and what; and the versions, a line for each column.
fn side_by_side(conflict: &ConflictRecord, names: &DeviceNames) -> String {
    let mut text = String::new();
    let mut say = |name: &str, what: &str| {
        let _ = writeln!(text, "{name:<12}{}", printable(what));
    };
    say("conflict", &conflict.id.to_string());
    let row = format!("{} {}", conflict.table, conflict.key);
    say("row", &row);
    say("publication", &conflict.publication);
    let who = format!("{} by {}", conflict.operation, conflict.user);
    say("change", &who);
    say("remote", &names.describe(conflict.remote_id));
    say("at", &moment(conflict.at_ms));
    say("outcome", &outcome(conflict));
    if let Some(settled) = &conflict.settled {
        let who = format!(
            "{} by {}, {}",
            settled.version,
            settled.by,
            moment(settled.at_ms)
        );
        say("settled", &who);
    }
    text.push('\n');
    let versions = [
        conflict.pre_image.as_deref(),
        conflict.uploaded.as_deref(),
        conflict.centre(),
        conflict.winner.as_deref(),
    ]
    .map(|it| it.map(columns));
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in versions.iter().flatten().flatten() {
        if !names.contains(&&**name) {
            names.push(name);
        }
    }
    let mut table = TextTable::new(&["column", "pre-image", "uploaded", "centre", "since"]);
    for name in &names {
        let value = |version: &Option<Vec<(String, String)>>| match version {
            None => "-".to_owned(),
            Some(columns) => {
                let found = columns.iter().find(|it| it.0 == *name);
                found.map_or_else(String::new, |it| cut(&it.1))
            }
        };
        table.row(std::iter::once((*name).to_owned()).chain(versions.iter().map(value)));
    }
    text.push_str(&table.render(0));
    text
}

/// The columns of a row in their order, each with its value as JSON.
fn columns(row: &str) -> Vec<(String, String)> {
    struct Columns(Vec<(String, String)>);
    impl<'de> serde::de::Visitor<'de> for Columns {
        type Value = Columns;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a row")
        }

        fn visit_map<A: serde::de::MapAccess<'de>>(
            mut self,
            mut row: A,
        ) -> Result<Columns, A::Error> {
            while let Some((name, value)) = row.next_entry::<String, Box<RawValue>>()? {
                self.0.push((name, value.get().to_owned()));
            }
            Ok(self)
        }
    }
    let mut reader = serde_json::Deserializer::from_str(row);
    let read = serde::Deserializer::deserialize_map(&mut reader, Columns(Vec::new()));
    read.map_or_else(|_| vec![(String::new(), row.to_owned())], |it| it.0)
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(WIDEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// Writes a version as an ordinary change.
pub(super) fn resolve(
    config: &ConfigArgs,
    wanted: &RowChoice<'_>,
    json: bool,
) -> Result<CommandOutcome, Failure> {
    let version = match wanted.version {
        "uploaded" => ConflictVersion::Uploaded,
        "centre" => ConflictVersion::Centre,
        "pre-image" => ConflictVersion::PreImage,
        path => ConflictVersion::Given(row_of(Path::new(path))?),
    };
    let settled_as = version.name();
    let choice = ConflictChoice {
        conflict: wanted.id,
        version,
        force: wanted.force,
        judgement: Judgement::default(),
        by: wanted.by.map_or_else(system_user, str::to_owned),
        now_ms: now_ms(),
    };
    let outcome = OpenCentre::open(config)?.settle_conflict(choice)?;
    let now = |row: &Option<String>| match row {
        Some(row) => format!("it is {row} now"),
        None => "it is gone".to_owned(),
    };
    match &outcome {
        SettleOutcome::Settled { row, .. } if json => output::json(&ResolvedConflict {
            id: wanted.id,
            settled_as,
            row: row.as_deref().map(embedded),
        })?,
        SettleOutcome::Settled { row, .. } => {
            let settled = format!("conflict {} is settled as {settled_as}: the row", wanted.id);
            output::note(&printable(&match row {
                Some(row) => format!("{settled} is {row}"),
                None => format!("{settled} is gone"),
            }));
        }
        SettleOutcome::Unjudged { .. } | SettleOutcome::Contended { .. } => {
            return Err(Failure::new(
                Code::HandlerFailed,
                "nothing was changed: the handler of the row was not asked",
                "see to the handler, and resolve the conflict then",
            ));
        }
        SettleOutcome::Unknown => return Err(unknown(wanted.id, config)),
        SettleOutcome::Changed { row } => {
            return Err(Failure::usage(
                format!(
                    "nothing was changed: the row is not any more what conflict {} left; {}",
                    wanted.id,
                    now(row)
                ),
                "look whether that is right by now; to write the version over it, add --force (of a \
                 sum, `uploaded` adds the device's difference to what is there now; pre-image and a \
                 file write over what others have added)",
            ));
        }
        SettleOutcome::Refused { code, reason } => {
            return Err(Failure::new(
                *code,
                format!(
                    "nothing was changed: the row cannot be so: {}: {reason}",
                    code.name()
                ),
                match code {
                    Code::RowForeignKey => {
                        "put the other rows in order first; a delete that is to take them along, \
                         or to change them, goes with --force"
                    }
                    Code::HandlerFailed => "see to the handler, and resolve the conflict then",
                    _ => "write the row in a file as it can be, and resolve with that",
                },
            ));
        }
    }
    Ok(CommandOutcome::Complete)
}

/// The row in a file; `None` if it says that there is none.
fn row_of(path: &Path) -> Result<Option<String>, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::usage(
            format!("cannot read {}: {}", path.display(), describe(&error)),
            "name a version (uploaded, centre or pre-image), or a file with the row as a JSON \
             object",
        )
    })?;
    match serde_json::from_str::<serde_json::Value>(&text) {
        Ok(serde_json::Value::Null) => Ok(None),
        Ok(serde_json::Value::Object(_)) => Ok(Some(text)),
        Ok(_) => Err(Failure::usage(
            format!("{} has no JSON object", path.display()),
            "write the row as {\"column\": value, ...}, or null to have it deleted",
        )),
        Err(error) => Err(Failure::usage(
            format!("{} is no JSON: {error}", path.display()),
            "write the row as {\"column\": value, ...}, or null to have it deleted",
        )),
    }
}

pub(super) fn system_user() -> String {
    let named = ["USER", "LOGNAME"].map(|it| std::env::var(it).unwrap_or_default());
    let named = named.into_iter().find(|it| !it.is_empty());
    named.unwrap_or_else(|| "operator".into())
}

pub(super) fn export(
    config: &ConfigArgs,
    filter: &ConflictFilter,
    format: ExportFormat,
) -> Result<CommandOutcome, Failure> {
    let centre = OpenCentre::open(config)?;
    let (mut conflicts, names) = (centre.find_conflicts(filter)?, DeviceNames::read(&centre)?);
    // As they happened.
    conflicts.reverse();
    match format {
        ExportFormat::Csv => output::text(&csv(&conflicts, &names)?)?,
        ExportFormat::Json => {
            for conflict in &conflicts {
                let line = ConflictLine::from_record(conflict);
                let line = OfDevice::new(line, &names, conflict.remote_id);
                if !output::json_to_reader(&line)? {
                    break;
                }
            }
        }
    }
    Ok(CommandOutcome::Complete)
}

fn csv(conflicts: &[ConflictRecord], names: &DeviceNames) -> Result<String, Failure> {
    let failed = |error: &dyn std::fmt::Display| {
        Failure::new(Code::Internal, format!("cannot write CSV: {error}"), "")
    };
    let mut writer = csv::Writer::from_writer(Vec::new());
    let columns = [
        "id",
        "at_ms",
        "remote_id",
        "user",
        "publication",
        "table",
        "key",
        "operation",
        "outcome",
        "pre_image",
        "uploaded",
        "replaced",
        "winner",
        "settled_at_ms",
        "settled_by",
        "settled_as",
        "device_name",
    ];
    writer
        .write_record(columns)
        .map_err(|error| failed(&error))?;
    for conflict in conflicts {
        let settled = conflict.settled.as_ref();
        let image = |image: &Option<String>| image.clone().unwrap_or_default();
        let record = [
            conflict.id.to_string(),
            conflict.at_ms.to_string(),
            conflict.remote_id.to_string(),
            conflict.user.clone(),
            conflict.publication.clone(),
            conflict.table.clone(),
            conflict.key.clone(),
            conflict.operation.clone(),
            conflict.outcome.name().to_owned(),
            image(&conflict.pre_image),
            image(&conflict.uploaded),
            image(&conflict.replaced),
            image(&conflict.winner),
            settled.map_or_else(String::new, |it| it.at_ms.to_string()),
            settled.map_or_else(String::new, |it| it.by.clone()),
            settled.map_or_else(String::new, |it| it.version.clone()),
            names.name(conflict.remote_id).to_owned(),
        ];
        writer
            .write_record(record)
            .map_err(|error| failed(&error))?;
    }
    let bytes = writer.into_inner().map_err(|error| failed(&error))?;
    String::from_utf8(bytes).map_err(|error| failed(&error))
}

#[derive(Serialize)]
struct ResolvedConflict {
    id: i64,
    settled_as: &'static str,
    row: Option<JsonText>,
}

#[derive(Serialize)]
struct ListedConflicts<'a> {
    conflicts: Vec<OfDevice<'a, ConflictLine<'a>>>,
}
