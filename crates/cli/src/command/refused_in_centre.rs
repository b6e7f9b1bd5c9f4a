//! `tidewater refused -c FILE`: what the centre refused, for its operator.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use tidewater_centre::records::{RefusalEnd, RefusedFilter, RefusedRecord};
use tidewater_centre::{AddedSum, Judgement, RefusedChoice, RefusedRowAction, SettleOutcome};
use tidewater_protocol::Code;
use tidewater_terminal::output::{self, moment, printable};
use tidewater_terminal::{CommandOutcome, ConfigArgs, Failure};

use super::conflicts_in_centre::system_user;
use crate::centre::OpenCentre;
use crate::clock::now_ms;
use crate::devices::{DeviceNames, OfDevice};
use crate::kept::{JsonText, RefusedLine, embedded};

/// What an operator says beside what is to be done.
#[derive(Debug, Args)]
pub(super) struct OperatorArgs {
    /// In the centre: who decides, for the record [default: the name of the system's user]
    #[arg(long, value_name = "NAME")]
    pub(super) by: Option<String>,
    /// In the centre: also if the row was changed since, or rows that refer to it go with it
    #[arg(long)]
    pub(super) force: bool,
    /// The configuration of the centre [default: tidewater.toml, if no REMOTE.db is named]
    #[arg(short, long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// In the centre: print one JSON object, see below
    #[arg(long)]
    pub(super) json: bool,
}

/// Which refused rows are meant.
pub(super) enum Which<'a> {
    /// Those of these numbers.
    Ids(&'a [i64]),
    /// All that were refused for this.
    Cause(&'a str),
    /// All.
    All,
}

/// Lists the rows that were refused last, newest first.
pub(super) fn list(
    config: &ConfigArgs,
    filter: &RefusedFilter,
    json: bool,
) -> Result<CommandOutcome, Failure> {
    let centre = OpenCentre::open(config)?;
    let (rows, names) = (centre.find_refused(filter)?, DeviceNames::read(&centre)?);
    if json {
        let refused = rows
            .iter()
            .map(|it| OfDevice::new(RefusedLine::from_record(it), &names, it.remote_id));
        let refused = refused.collect();
        output::json(&ListedRows { refused })?;
    } else if rows.is_empty() {
        let all = RefusedFilter {
            limit: filter.limit,
            ..RefusedFilter::default()
        };
        output::note(match *filter == all {
            true => "no refused rows are kept",
            false => "no such refused rows are kept",
        });
    } else {
        output::text(&describe(&rows, &names))?;
    }
    Ok(CommandOutcome::Complete)
}

/// Shows one with everything that is known of it.
pub(super) fn show(config: &ConfigArgs, id: i64, json: bool) -> Result<CommandOutcome, Failure> {
    let centre = OpenCentre::open(config)?;
    let (row, names) = (centre.refused_row(id)?, DeviceNames::read(&centre)?);
    let row = row.ok_or_else(|| unknown(id, config))?;
    if json {
        let line = RefusedLine::from_record(&row);
        output::json(&OfDevice::new(line, &names, row.remote_id))?;
        return Ok(CommandOutcome::Complete);
    }
    let mut text = describe(std::slice::from_ref(&row), &names);
    let mut say = |name: &str, what: &str| {
        let _ = writeln!(text, "    {name:<7} {}", printable(what));
    };
    if let Some(pre_image) = &row.pre_image {
        say("before", pre_image);
    }
    if let Some((table, key)) = &row.parent {
        say("refers", &format!("to {table} {key}, which was refused"));
    }
    say(
        "upload",
        &format!("{} of {}", row.sequence, row.publication),
    );
    if let Some(written) = row.settled.as_ref().and_then(|it| it.row.as_ref()) {
        say("written", written);
    }
    output::text(&text)?;
    Ok(CommandOutcome::Complete)
}

fn unknown(id: i64, config: &ConfigArgs) -> Failure {
    Failure::usage(
        format!("no refused row {id} is kept"),
        format!("see: tidewater refused list -c {}", config.path.display()),
    )
}

/// A row that nobody has settled.
pub(super) fn open_row(config: &ConfigArgs, id: i64) -> Result<RefusedRecord, Failure> {
    let row = OpenCentre::open(config)?.refused_row(id)?;
    check_open(id, row, config)
}

fn check_open(
    id: i64,
    row: Option<RefusedRecord>,
    config: &ConfigArgs,
) -> Result<RefusedRecord, Failure> {
    let row = row.ok_or_else(|| unknown(id, config))?;
    match &row.settled {
        None => Ok(row),
        Some(end) => Err(Failure::usage(
            format!(
                "refused row {id} is settled already: {}; nothing was changed",
                how(end)
            ),
            format!(
                "see: tidewater refused show {id} -c {}",
                config.path.display()
            ),
        )),
    }
}

/// A paragraph for each row: whole rows and reasons do not fit a table.
fn describe(rows: &[RefusedRecord], names: &DeviceNames) -> String {
    let mut text = String::new();
    for row in rows {
        let attempts = match row.attempts {
            1 => String::new(),
            attempts => format!("  ({attempts} attempts)"),
        };
        let line = format!(
            "{}  {}  {}  {} {} {}{attempts}",
            row.id,
            moment(row.at_ms),
            row.user,
            row.operation,
            row.table,
            row.key,
        );
        let _ = writeln!(text, "{}", printable(&line));
        let reason = format!("{}: {}", row.code, row.reason);
        let _ = writeln!(text, "    {}", printable(&reason));
        let _ = writeln!(text, "    row     {}", printable(&row.row));
        let remote = names.describe(row.remote_id);
        let _ = writeln!(text, "    remote  {}", printable(&remote));
        if let Some(end) = &row.settled {
            let _ = writeln!(text, "    settled {}", printable(&how(end)));
        }
    }
    text
}

/// How a row is settled.
fn how(end: &RefusalEnd) -> String {
    let outcome = match end.outcome.name() {
        "taken" => "sent again and taken",
        "lost" => "sent again, and lost as a conflict",
        "given_up" => "given up",
        name => name,
    };
    let reason = match &end.reason {
        None => String::new(),
        Some(reason) => format!(": {reason}"),
    };
    format!("{outcome} by {}, {}{reason}", end.by, moment(end.at_ms))
}

/// Writes rows as they were sent, and those that refer to them.
pub(super) fn replay(
    config: &ConfigArgs,
    which: &Which<'_>,
    operator: &OperatorArgs,
) -> Result<CommandOutcome, Failure> {
    let centre = OpenCentre::open(config)?;
    let rows = chosen(&centre, config, which)?;
    let action = |_: &RefusedRecord| RefusedRowAction::Replay;
    settle(&centre, config, rows, &action, operator)
}

/// Gives rows up, and those that refer to them.
pub(super) fn discard(
    config: &ConfigArgs,
    which: &Which<'_>,
    reason: &str,
    operator: &OperatorArgs,
) -> Result<CommandOutcome, Failure> {
    let centre = OpenCentre::open(config)?;
    let rows = chosen(&centre, config, which)?;
    let action = |_: &RefusedRecord| RefusedRowAction::Discard(reason.to_owned());
    settle(&centre, config, rows, &action, operator)
}

/// Writes a row with other values.
pub(super) fn edit(
    config: &ConfigArgs,
    id: i64,
    values: String,
    operator: &OperatorArgs,
) -> Result<CommandOutcome, Failure> {
    let centre = OpenCentre::open(config)?;
    let row = check_open(id, centre.refused_row(id)?, config)?;
    let action = |_: &RefusedRecord| RefusedRowAction::Edit(values.clone());
    settle(&centre, config, vec![row], &action, operator)
}

/// The rows that are meant and nobody has settled, with those that were refused because of them,
/// these behind them.
fn chosen(
    centre: &OpenCentre,
    config: &ConfigArgs,
    which: &Which<'_>,
) -> Result<Vec<RefusedRecord>, Failure> {
    let open = RefusedFilter {
        open: true,
        limit: u64::MAX >> 1,
        ..RefusedFilter::default()
    };
    let mut waiting = centre.find_refused(&open)?;
    // As they happened.
    waiting.reverse();
    let mut wanted = HashSet::new();
    match which {
        Which::All => wanted.extend(waiting.iter().map(|it| it.id)),
        Which::Cause(cause) => {
            let of_cause = waiting.iter().filter(|it| it.code == *cause);
            wanted.extend(of_cause.map(|it| it.id));
        }
        Which::Ids([]) => {
            return Err(Failure::usage(
                "which refused rows are meant?",
                format!(
                    "name their numbers, as tidewater refused list --open -c {} shows them, or --all",
                    config.path.display()
                ),
            ));
        }
        Which::Ids(ids) => {
            for id in *ids {
                wanted.insert(check_open(*id, centre.refused_row(*id)?, config)?.id);
            }
        }
    }
    let place = |it: &RefusedRecord, row: (&str, &str)| {
        (
            it.remote_id,
            it.publication.clone(),
            row.0.to_owned(),
            row.1.to_owned(),
        )
    };
    let mut ordered: Vec<RefusedRecord> = Vec::new();
    let mut taken = HashSet::new();
    let all: HashSet<_> = waiting
        .iter()
        .map(|it| place(it, (&it.table, &it.key)))
        .collect();
    // Parents go first; who refers to one that was chosen goes with it.
    loop {
        let before = ordered.len();
        let mut left = Vec::new();
        for row in waiting {
            let parent = row.parent.as_ref();
            let parent = parent.map(|(table, key)| place(&row, (table, key)));
            let parent = parent.filter(|it| all.contains(it));
            let goes_along = parent.as_ref().is_some_and(|it| taken.contains(it));
            let has_to_wait = parent.is_some() && !goes_along;
            if goes_along || wanted.contains(&row.id) && !has_to_wait {
                taken.insert(place(&row, (&row.table, &row.key)));
                ordered.push(row);
            } else {
                left.push(row);
            }
        }
        waiting = left;
        if ordered.len() == before {
            break;
        }
    }
    // Their parents are not among the chosen.
    ordered.extend(waiting.into_iter().filter(|it| wanted.contains(&it.id)));
    Ok(ordered)
}

/// Settles rows one by one; what fails is tried again as long as others succeed.
fn settle(
    centre: &OpenCentre,
    config: &ConfigArgs,
    rows: Vec<RefusedRecord>,
    action: &dyn Fn(&RefusedRecord) -> RefusedRowAction,
    operator: &OperatorArgs,
) -> Result<CommandOutcome, Failure> {
    let by = operator.by.clone().unwrap_or_else(system_user);
    let (mut settled, mut failed) = (Vec::new(), rows);
    loop {
        let choices = failed.iter().map(|row| RefusedChoice {
            refused: row.id,
            action: action(row),
            force: operator.force,
            judgement: Judgement::default(),
            by: by.clone(),
            now_ms: now_ms(),
        });
        let outcomes = centre.settle_refused(choices.collect())?;
        let before = settled.len();
        let mut reasons = Vec::new();
        let mut left = Vec::new();
        for (row, outcome) in failed.into_iter().zip(outcomes) {
            match outcome {
                SettleOutcome::Settled {
                    row: written,
                    added,
                } => {
                    settled.push(SettledRow {
                        row,
                        written,
                        added,
                    });
                }
                outcome => {
                    reasons.push(outcome);
                    left.push(row);
                }
            }
        }
        failed = left;
        if failed.is_empty() || settled.len() == before {
            return tell(
                config,
                action,
                &settled,
                failed.iter().zip(&reasons),
                operator,
            );
        }
    }
}

/// A row that was settled.
struct SettledRow {
    row: RefusedRecord,
    /// What the centre has; `None` if it is gone.
    written: Option<String>,
    added: Vec<AddedSum>,
}

/// Tells what was settled, and what was not and why.
fn tell<'r>(
    config: &ConfigArgs,
    action: &dyn Fn(&RefusedRecord) -> RefusedRowAction,
    settled: &[SettledRow],
    failed: impl Iterator<Item = (&'r RefusedRecord, &'r SettleOutcome)>,
    operator: &OperatorArgs,
) -> Result<CommandOutcome, Failure> {
    let done = |row: &RefusedRecord| match action(row) {
        RefusedRowAction::Replay => "replayed",
        RefusedRowAction::Edit(_) => "edited",
        RefusedRowAction::Discard(_) => "discarded",
    };
    // What is to be done about the others shows when the rows that they refer to are settled.
    let mut roots = Vec::new();
    let mut failures = Vec::new();
    for (row, why) in failed {
        roots.push(row.parent.is_none());
        failures.push(failure(row, why, config));
    }
    if failures.is_empty() && operator.json {
        let settled = settled.iter().map(|it| SettledObject {
            id: it.row.id,
            outcome: done(&it.row),
            row: it.written.as_deref().map(embedded),
            added: it
                .added
                .iter()
                .map(|it| (it.column.clone(), it.difference.clone()))
                .collect(),
        });
        output::json(&SettledRows {
            settled: settled.collect(),
        })?;
        return Ok(CommandOutcome::Complete);
    }
    for it in settled {
        let line = format!("{} is {}", name(&it.row), done(&it.row));
        let line = match (action(&it.row), &it.written) {
            (RefusedRowAction::Discard(_), _) => line,
            (_, Some(written)) => format!("{line}: {written}"),
            (_, None) => format!("{line}: the row is gone"),
        };
        let added = it.added.iter().map(|it| {
            let AddedSum { column, difference } = it;
            format!("; {column} is a sum: {difference} was added to what others have made of it")
        });
        output::note(&printable(&(line + &added.collect::<String>())));
    }
    if settled.is_empty() && failures.is_empty() {
        output::note("nothing is refused that nobody has settled");
    }
    if failures.is_empty() {
        return Ok(CommandOutcome::Complete);
    }
    let last = failures.remove(roots.iter().position(|it| *it).unwrap_or(0));
    for failure in &failures {
        output::note(&printable(&failure.message));
    }
    Err(last)
}

fn name(row: &RefusedRecord) -> String {
    format!(
        "refused row {} ({} {} {})",
        row.id, row.operation, row.table, row.key
    )
}

/// Why a row was not settled.
fn failure(row: &RefusedRecord, outcome: &SettleOutcome, config: &ConfigArgs) -> Failure {
    let name = name(row);
    let config = config.path.display();
    match outcome {
        SettleOutcome::Refused { code, reason } => Failure::new(
            *code,
            format!(
                "{name} cannot be written: {}: {reason}; nothing of it was changed",
                code.name()
            ),
            match code {
                Code::RowForeignKey => match &row.parent {
                    Some((table, key)) => format!(
                        "see to {table} {key} first: this row goes with it, when it is replayed or \
                         when its user sends it again (on the device: tidewater refused retry \
                         REMOTE.db ID, with --new-key if another row has its key)"
                    ),
                    None => "put the rows in order that it refers to, or that refer to it, and \
                             replay it then"
                        .to_owned(),
                },
                Code::RowKeyInUse if row.operation == "insert" => format!(
                    "on the device: tidewater refused retry REMOTE.db ID --new-key=KEY, which takes \
                     the rows below along (tidewater refused list REMOTE.db shows the ID); or \
                     discard it: tidewater refused discard {} --reason TEXT -c {config}",
                    row.id
                ),
                Code::RowHandler => format!(
                    "give it values that its handler takes: tidewater refused edit {} --set \
                     COLUMN=VALUE -c {config}; or discard it",
                    row.id
                ),
                Code::HandlerFailed => "see to the handler, and replay it then".to_owned(),
                _ => format!(
                    "give it values that fit: tidewater refused edit {} --set COLUMN=VALUE -c \
                     {config}; or discard it",
                    row.id
                ),
            },
        ),
        SettleOutcome::Changed { row: now } => Failure::usage(
            format!(
                "{name} is not written: it would lose against what others have made of the row; {}",
                match now {
                    Some(now) => format!("it is {now} now"),
                    None => "it is gone".to_owned(),
                }
            ),
            "look whether the change is right by now; to write it over the row, add --force",
        ),
        SettleOutcome::Unjudged { .. } | SettleOutcome::Contended { .. } => Failure::new(
            Code::HandlerFailed,
            format!("{name} is not written: its handler was not asked"),
            "see to the handler, and replay it then",
        ),
        SettleOutcome::Unknown | SettleOutcome::Settled { .. } => Failure::usage(
            format!("{name} was settled by somebody else meanwhile"),
            format!("see: tidewater refused show {} -c {config}", row.id),
        ),
    }
}

#[derive(Serialize)]
struct ListedRows<'a> {
    refused: Vec<OfDevice<'a, RefusedLine<'a>>>,
}

#[derive(Serialize)]
struct SettledRows {
    settled: Vec<SettledObject>,
}

#[derive(Serialize)]
struct SettledObject {
    id: i64,
    #[serde(rename = "as")]
    outcome: &'static str,
    row: Option<JsonText>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    added: BTreeMap<String, String>,
}
