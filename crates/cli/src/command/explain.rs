//! `tidewater explain`: why a row is, is not, or was removed from a remote.
//!
//! What the centre knows is rendered here; what a device's file knows in
//! [`crate::command::explain_on_device`].

use std::fmt::Write;
use std::path::Path;

use clap::Args;
use serde::Serialize;
use tidewater_centre::explain::{
    ExplainQuestion, ExplainedEntry, ExplainedPublication, ExplainedRule, Explanation,
};
use tidewater_terminal::output::{self, moment, printable};
use tidewater_terminal::{CommandOutcome, ConfigArgs, Failure, with_exit_codes};

use crate::centre::OpenCentre;
use crate::clock::now_ms;
use crate::command::explain_on_device;
use crate::devices::{DeviceNames, OfDevice, find_remote};
use crate::kept::{ConflictLine, RefusedLine};

/// Tell why a row is, is not, or was removed from a remote
///
/// Asks the centre: whether the row is there, which rules hold it for the remote's user, what the
/// change logs have of it since the last sync, and what was refused of it. With a device's file in
/// place of --remote it tells what only the device knows: what is pending, lost or stale of it.
/// Nothing is changed, and nothing is kept for this: what nobody has noted it says so.
#[derive(Debug, Args)]
#[command(after_help = with_exit_codes!("\
Examples:
  tidewater explain --remote 0f8fad5b-d9cb-469f-a165-70867728950e customer 17
  tidewater explain -c tidewater.toml --remote 0f8fad5b-... stock 'north,7'
  tidewater explain --remote 0f8fad5b-... stock '[\"north\",7]' --json | jq .verdict
  tidewater explain nancy.db customer 17        # on the device

The object of --json, of the centre:
  {\"verdict\",\"sentence\",\"remote\":{\"id\",\"user\",\"revoked\",\"disabled\",\"last_sync_ms\"},\"device_name\",
   \"table\",\"key\":[..],\"row\":{..}|null,
   \"publications\":[{\"name\",\"direction\",\"source\",\"download_script\",\"uploads_by\",\"holds\",\"rules\":[{\"number\",\"holds\",
      \"follows\":[{\"table\",\"refers\",\"is_there\"}],\"columns\",\"values\",\"query\",
      \"unknown_parameters\",\"held_count\",\"held\",\"windows\":[..]}],
      \"writes\":{\"may\",\"reason\",\"read_only\"},\"role\",\"is_tracked\",
      \"log\":[{\"rule\",\"version\",\"after_ms\",\"before_ms\",\"partition\",\"is_held\",\"is_covered\"}]}],
   \"last_change\":{\"after_ms\",\"before_ms\",\"uploads\":[..]}|null,\"notes\":[..],
   \"refused\":[see tidewater refused --help],\"conflicts\":[see tidewater conflicts --help]}
verdict is held, comes, not_held, left, leaves, gone, goes, absent, not_downloaded,
not_by_rules or unknown; holds, may and is_held are null where that is not known.
Of a device:
  {\"publication\",\"table\",\"key\",\"row\",\"uploads\",\"downloads\",
   \"pending\":[{\"operation\",\"in_flight\",\"pre_image\",\"row\"}],\"refused\":[..],\"settled\":[..],
   \"conflicts\":[..],\"stale\",\"last_sync_ms\",\"compare_due\",\"sentence\"}"))]
pub(crate) struct ExplainArgs {
    /// The table; the key, as a JSON array or its values separated by commas; and before them the
    /// device's file, if it is the device that is asked
    #[arg(value_name = "[REMOTE.db] TABLE KEY", required = true, num_args = 2..=3,
          allow_negative_numbers = true)]
    what: Vec<String>,
    /// The remote's id, or the name of its device, as `tidewater remote list` shows them
    #[arg(long, value_name = "ID")]
    remote: Option<String>,
    /// What the remote has set, where rules name it: the centre does not keep it
    #[arg(long = "parameter", value_name = "NAME=VALUE")]
    parameters: Vec<String>,
    #[command(flatten)]
    config: ConfigArgs,
    /// Print one JSON object, see below
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &ExplainArgs) -> Result<CommandOutcome, Failure> {
    match (&args.what[..], &args.remote) {
        ([file, table, key], None) => {
            explain_on_device::run(Path::new(file), table, key, args.json)
        }
        ([_, _, _], Some(_)) => Err(Failure::usage(
            "a device's file and --remote are two questions",
            "ask the centre with --remote ID TABLE KEY, or the device with REMOTE.db TABLE KEY",
        )),
        ([table, key], Some(remote)) => in_centre(args, remote, table, key),
        _ => Err(Failure::usage(
            "which remote is meant?",
            format!(
                "name it with --remote ID (see: tidewater remote list -c {}), or its file before \
                 the table",
                args.config.path.display()
            ),
        )),
    }
}

/// Parameters as they are given.
pub(super) fn parameters(
    given: &[String],
) -> Result<std::collections::BTreeMap<String, String>, Failure> {
    let parameters = given.iter().map(|given| {
        let pair = given.split_once('=');
        let (name, value) = pair.filter(|it| !it.0.is_empty()).ok_or_else(|| {
            Failure::usage(
                format!("{given:?} is no parameter"),
                "write --parameter NAME=VALUE",
            )
        })?;
        Ok((name.to_owned(), value.to_owned()))
    });
    parameters.collect()
}

fn in_centre(
    args: &ExplainArgs,
    remote: &str,
    table: &str,
    key: &str,
) -> Result<CommandOutcome, Failure> {
    let centre = OpenCentre::open(&args.config)?;
    let remote_id = find_remote(&centre, remote)?;
    let question = ExplainQuestion {
        remote_id,
        table: table.to_owned(),
        key: key.to_owned(),
        parameters: parameters(&args.parameters)?,
        now_ms: now_ms(),
    };
    let found = centre.explain(&question)?;
    let names = DeviceNames::read(&centre)?;
    match args.json {
        true => output::json(&OfDevice::new(
            ExplanationObject::new(&found),
            &names,
            remote_id,
        ))?,
        false => {
            let remote = names.describe(remote_id);
            output::text(&describe(&found, &remote, &args.config))?;
        }
    }
    Ok(CommandOutcome::Complete)
}

#[derive(Serialize)]
struct ExplanationObject<'a> {
    #[serde(flatten)]
    found: &'a Explanation,
    refused: Vec<RefusedLine<'a>>,
    conflicts: Vec<ConflictLine<'a>>,
}

impl ExplanationObject<'_> {
    fn new(found: &Explanation) -> ExplanationObject<'_> {
        ExplanationObject {
            found,
            refused: found.refused.iter().map(RefusedLine::from_record).collect(),
            conflicts: found
                .conflicts
                .iter()
                .map(ConflictLine::from_record)
                .collect(),
        }
    }
}

/// What was found, for people: the sentence first.
fn describe(found: &Explanation, device: &str, config: &ConfigArgs) -> String {
    let mut text = String::new();
    let mut say = |name: &str, what: &str| {
        let _ = writeln!(text, "{name:<12} {}", printable(what));
    };
    let sentence = found.sentence.clone();
    if let Some(row) = &found.row {
        say("row", row);
    }
    let remote = &found.remote;
    let last = match remote.last_sync_ms {
        Some(at) => format!("last sync {}", moment(at)),
        None => "never synced".to_owned(),
    };
    say("remote", &format!("{device} of {}, {last}", remote.user));
    for publication in &found.publications {
        describe_publication(publication, &remote.user, &mut say);
    }
    if let Some(change) = &found.last_change {
        let mut what = between(change.after_ms, change.before_ms);
        for upload in &change.uploads {
            let [inserts, updates, deletes] = upload.rows;
            let _ = write!(
                what,
                "; {} uploaded then ({inserts} inserted, {updates} updated, {deletes} deleted)",
                upload.user
            );
        }
        if change.uploads.is_empty() {
            what.push_str("; no remote is known to have uploaded then");
        }
        say("last changed", &what);
    }
    let config = config.path.display();
    for refused in &found.refused {
        let state = match &refused.settled {
            Some(end) => format!("settled: {}", end.outcome.name()),
            None => "open".to_owned(),
        };
        say(
            "refused",
            &format!(
                "{} of {}, {}: {}: {} ({state}); see: tidewater refused show {} -c {config}",
                refused.operation,
                refused.user,
                moment(refused.at_ms),
                refused.code,
                refused.reason,
                refused.id
            ),
        );
    }
    for conflict in &found.conflicts {
        say(
            "conflict",
            &format!(
                "{} of {}, {}: {}; see: tidewater conflicts show {} -c {config}",
                conflict.operation,
                conflict.user,
                moment(conflict.at_ms),
                conflict.outcome.name(),
                conflict.id
            ),
        );
    }
    for note in &found.notes {
        say("note", note);
    }
    format!("{}\n\n{text}", printable(&sentence))
}

fn describe_publication(
    publication: &ExplainedPublication,
    user: &str,
    say: &mut impl FnMut(&str, &str),
) {
    say(
        "publication",
        &format!("{}, direction {}", publication.name, publication.direction),
    );
    for rule in &publication.rules {
        describe_rule(rule, user, say);
    }
    if let Some(role) = &publication.role {
        let sees = if role.sees {
            "sees it"
        } else {
            "does not see it"
        };
        say(
            "  role",
            &format!("the remote reads as {:?}, which {sees}", role.name),
        );
    }
    let writes = &publication.writes;
    let may = match writes.may {
        Some(true) => "allowed",
        Some(false) => "not allowed",
        None => "not known",
    };
    let mut what = format!("{may}: {}", writes.reason);
    if !writes.read_only.is_empty() {
        let _ = write!(what, "; but for {}", writes.read_only.join(", "));
    }
    say("  writing", &what);
    for entry in &publication.log {
        say("  log", &describe_entry(entry));
    }
}

fn describe_rule(rule: &ExplainedRule, user: &str, say: &mut impl FnMut(&str, &str)) {
    let holds = match rule.holds {
        Some(true) => "holds it",
        Some(false) => "does not hold it",
        None => "not known",
    };
    let what = match (&rule.values, rule.columns.is_empty()) {
        (_, true) => "everyone".to_owned(),
        (Some(values), _) => {
            let pairs = rule.columns.iter().zip(values);
            let pairs: Vec<String> = pairs
                .map(|(name, value)| format!("{name} = {value}"))
                .collect();
            pairs.join(", ")
        }
        (None, _) => rule.columns.join(", "),
    };
    say("  rule", &format!("{} {holds}: {what}", rule.number));
    for parent in &rule.follows {
        let refers = parent.refers.iter();
        let refers: Vec<String> = refers.map(|it| format!("{} = {}", it.0, it.1)).collect();
        let there = if parent.is_there {
            "is there"
        } else {
            "is not there"
        };
        say(
            "    follows",
            &format!("{} ({}), which {there}", parent.table, refers.join(", ")),
        );
    }
    if let Some(query) = &rule.query {
        let held: Vec<String> = rule.held.iter().map(|it| it.join(", ")).collect();
        let more = match rule.held_count.saturating_sub(rule.held.len()) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let held = match (rule.unknown_parameters.is_empty(), held.is_empty()) {
            (false, _) => format!(
                "depends on the parameter {}, which the remote keeps itself",
                rule.unknown_parameters.join(", ")
            ),
            (true, true) => format!("{user} holds nothing"),
            (true, false) => format!("{user} holds {}{more}", held.join("; ")),
        };
        say("    values", &format!("{held}: {query}"));
    }
    for window in &rule.windows {
        let is_in = match window.is_in {
            Some(true) => "in it",
            Some(false) => "outside of it",
            None => "not known",
        };
        say(
            "    window",
            &format!(
                "{} of the last {}, from {} on: {} is {is_in}",
                window.column,
                window.last,
                window.from,
                window.value.as_deref().unwrap_or("no value"),
            ),
        );
    }
}

fn describe_entry(entry: &ExplainedEntry) -> String {
    let partition = match entry.partition.is_empty() {
        true => String::new(),
        false => format!(" in ({})", entry.partition.join(", ")),
    };
    let is_held = match (entry.is_held, entry.partition.is_empty()) {
        (_, true) => "",
        (Some(true), _) => ", which the user holds",
        (Some(false), _) => ", which the user does not hold",
        (None, _) => "",
    };
    let covered = match entry.is_covered {
        true => "the last sync has come behind it",
        false => "the last sync was before it",
    };
    let when = between(entry.after_ms, entry.before_ms);
    format!("changed {when}{partition}{is_held}; {covered}")
}

/// When something was, as far as that is known.
fn between(after_ms: Option<i64>, before_ms: Option<i64>) -> String {
    match (after_ms, before_ms) {
        (Some(after), Some(before)) => format!("between {} and {}", moment(after), moment(before)),
        (Some(after), None) => format!("after {}", moment(after)),
        (None, Some(before)) => format!("before {}", moment(before)),
        (None, None) => "at a time that is not known".to_owned(),
    }
}
