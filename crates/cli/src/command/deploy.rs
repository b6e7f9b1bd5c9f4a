//! `tidewater deploy`: makes the consolidated database fit the configuration.

use std::fmt::Write;

use clap::Args;
use serde::Serialize;

use tidewater_protocol::Code;
use tidewater_terminal::{CommandOutcome, ConfigArgs, Failure, output, with_exit_codes};

use crate::centre::OpenCentre;
use tidewater_centre::CentreError;
use tidewater_centre::deploy_report::DeployReport;

/// Prepare the central database: server state, change logs, triggers
///
/// Repeatable: what is in place already stays as it is. Prints each step with the lock
/// that it takes. Your tables are not altered; they get triggers. Locks are waited for
/// only briefly, so that the applications of a busy database are not held up: if it
/// gives up, run it again.
///
/// When the configuration or the tables have changed, remotes follow at their next sync,
/// and what they have pending goes up before. Where that cannot be (a column, a table or a
/// key that is gone), their pending changes are refused: they stay on the remote with their
/// values. Then nothing is done unless you say --refuse-pending; the remotes are listed.
#[derive(Debug, Args)]
#[command(after_help = with_exit_codes!("\
Examples:
  tidewater deploy --dry-run        # what would be done, with which locks, and to remotes
  tidewater deploy
  tidewater deploy -c /etc/tidewater.toml
  tidewater deploy -c staging.toml --new-centre     # a copy that was just restored
  tidewater deploy --dry-run --refuse-pending --json | jq .held_up

The object of --json:
  {\"dry_run\",\"first\",\"steps\":[{\"description\",\"lock\"}],
   \"effects\":[{\"publication\",\"description\",\"refuses_pending\"}],
   \"held_up\":[{\"id\",\"user\",\"last_sync_ms\"}],\"warnings\":[..],
   \"missing_rights\":[{\"message\",\"statement\"}]}
steps are what was done, with dry_run what would be; lock and last_sync_ms may be null.
missing_rights are what the role of the database lacks, with the statement that gives it."))]
pub(crate) struct DeployArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Print what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Go ahead although pending changes of the listed remotes would be refused
    #[arg(long)]
    refuse_pending: bool,
    /// This database is a copy, of production for example: before anything else, give it a name of
    /// its own and forget the original's remotes, so that nothing typed against one ever reaches
    /// the other. Users stay
    #[arg(long, conflicts_with = "dry_run")]
    new_centre: bool,
    /// Print one JSON object, see below
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &DeployArgs) -> Result<CommandOutcome, Failure> {
    args.config.load()?.check_listen()?;
    let centre = OpenCentre::open(&args.config)?;
    if args.new_centre && centre.rename()? {
        output::note("this database is a centre of its own from now on, without remotes");
    }
    let planned = centre.deploy(true, args.refuse_pending)?;
    let lacks_rights = planned.missing_rights.iter().any(|it| !it.is_for_serving);
    if lacks_rights && !args.dry_run {
        return Err(not_allowed("deploy", &planned));
    }
    if args.dry_run || !args.refuse_pending {
        let refuses = !planned.held_up.is_empty() && !args.refuse_pending;
        if refuses {
            // With --json the error is the one object.
            if !args.json {
                print(&planned, true, false)?;
            }
            return Err(held_up(&planned));
        }
        if args.dry_run {
            print(&planned, true, args.json)?;
        }
    }
    if !args.dry_run {
        let mut report = centre.deploy(false, args.refuse_pending)?;
        report.missing_rights = planned.missing_rights;
        let told = planned.warnings.into_iter();
        let told = told.filter(|it| !report.warnings.contains(it));
        report.warnings.extend(told.collect::<Vec<_>>());
        let mut seen = std::collections::HashSet::new();
        report.warnings.retain(|it| seen.insert(it.clone()));
        print(&report, false, args.json)?;
        if report.is_first {
            output::note("next: tidewater user add NAME, then tidewater serve");
        } else if !report.steps.is_empty() {
            output::note("servers that run go on with it within a second");
        }
    }
    Ok(CommandOutcome::Complete)
}

/// Why nothing was done, after the remotes have been listed.
fn held_up(report: &DeployReport) -> Failure {
    let remotes = report.held_up.len() as u64;
    Failure::usage(
        format!(
            "{} may have changes pending that would be refused; nothing was changed",
            output::counted(remotes, "remote", "remotes")
        ),
        CentreError::HELD_UP_HINT,
    )
}

/// Why nothing was done: the rights of the database's role, and what gives those that are missing.
pub(super) fn not_allowed(what: &str, report: &DeployReport) -> Failure {
    let missing = report.missing_rights.iter();
    let missing = missing.filter(|it| !it.is_for_serving);
    let reasons: Vec<&str> = missing.clone().map(|it| &*it.message).collect();
    let statements = missing.map(|it| &*it.statement);
    let statements: Vec<&str> = statements.filter(|it| !it.is_empty()).collect();
    let hint = match statements.is_empty() {
        true => format!("{what} as the owner does: put his name into the URL"),
        false => format!(
            "have the owner or a superuser run:\n{}",
            statements.join("\n")
        ),
    };
    Failure::new(
        Code::ConsolidatedRefused,
        format!(
            "the role of the database may not {what}; nothing was changed\n{}",
            reasons.join("\n")
        ),
        hint,
    )
}

/// Prints what was done, or would be.
fn print(report: &DeployReport, dry_run: bool, json: bool) -> Result<(), Failure> {
    if json {
        output::json(&ReportObject::new(report, dry_run))
    } else {
        output::text(&describe(report, dry_run))
    }
}

#[derive(Serialize)]
pub(super) struct ReportObject<'a> {
    dry_run: bool,
    first: bool,
    steps: Vec<StepObject<'a>>,
    effects: Vec<EffectObject<'a>>,
    held_up: Vec<HeldUpObject<'a>>,
    warnings: &'a [String],
    missing_rights: Vec<MissingObject<'a>>,
}

#[derive(Serialize)]
struct MissingObject<'a> {
    message: &'a str,
    statement: &'a str,
}

#[derive(Serialize)]
struct StepObject<'a> {
    description: &'a str,
    lock: Option<&'a str>,
}

#[derive(Serialize)]
struct EffectObject<'a> {
    publication: &'a str,
    description: &'a str,
    refuses_pending: bool,
}

#[derive(Serialize)]
struct HeldUpObject<'a> {
    id: String,
    user: &'a str,
    last_sync_ms: Option<i64>,
}

impl ReportObject<'_> {
    pub(super) fn new(report: &DeployReport, dry_run: bool) -> ReportObject<'_> {
        let steps = report.steps.iter().map(|step| StepObject {
            description: &step.description,
            lock: (!step.lock.is_empty()).then_some(&*step.lock),
        });
        let effects = report.effects.iter().map(|effect| EffectObject {
            publication: &effect.publication,
            description: &effect.description,
            refuses_pending: effect.holds_up,
        });
        let held_up = report.held_up.iter().map(|remote| HeldUpObject {
            id: remote.id.to_string(),
            user: &remote.user,
            last_sync_ms: (remote.last_sync_ms != 0).then_some(remote.last_sync_ms),
        });
        let missing_rights = report.missing_rights.iter();
        let missing_rights = missing_rights.map(|it| MissingObject {
            message: &it.message,
            statement: &it.statement,
        });
        ReportObject {
            dry_run,
            first: report.is_first,
            steps: steps.collect(),
            effects: effects.collect(),
            held_up: held_up.collect(),
            warnings: &report.warnings,
            missing_rights: missing_rights.collect(),
        }
    }
}

/// Steps, locks, what remotes will see, and warnings, for people.
pub(super) fn describe(report: &DeployReport, dry_run: bool) -> String {
    let mut text = String::new();
    for step in &report.steps {
        let lock = match step.lock.as_str() {
            "" => String::new(),
            lock => format!("  [lock: {}]", output::printable(lock)),
        };
        let _ = writeln!(text, "{}{lock}", output::printable(&step.description));
    }
    for effect in &report.effects {
        let _ = writeln!(
            text,
            "remotes of {:?}: {}",
            effect.publication,
            output::printable(&effect.description)
        );
    }
    if !report.held_up.is_empty() {
        let mut table = output::TextTable::new(&["held up", "user", "last sync"]);
        for remote in &report.held_up {
            table.row([
                remote.id.to_string(),
                remote.user.clone(),
                output::moment(remote.last_sync_ms),
            ]);
        }
        text.push_str(&table.render(0));
    }
    for warning in &report.warnings {
        let _ = writeln!(text, "warning: {}", output::printable(warning));
    }
    for right in &report.missing_rights {
        let _ = writeln!(text, "missing right: {}", output::printable(&right.message));
        if !right.statement.is_empty() {
            let _ = writeln!(text, "  {}", output::printable(&right.statement));
        }
    }
    let count = report.steps.len() as u64;
    let _ = match (count, dry_run) {
        (0, _) => writeln!(text, "nothing to do"),
        (_, true) => writeln!(
            text,
            "{} to do; nothing was changed",
            output::counted(count, "step", "steps")
        ),
        (_, false) => writeln!(text, "{} done", output::counted(count, "step", "steps")),
    };
    text
}

#[cfg(test)]
mod tests {
    use tidewater_centre::deploy_report::{DeployStep, MissingRight, RemoteEffect};

    use super::*;

    #[test]
    fn steps_are_printed_with_their_locks_and_warnings() {
        let report = DeployReport {
            steps: vec![
                DeployStep {
                    description: "create triggers on public.customer".into(),
                    lock: "SHARE ROW EXCLUSIVE on public.customer".into(),
                },
                DeployStep {
                    description: "create a signing key".into(),
                    lock: String::new(),
                },
            ],
            warnings: vec!["public.customer is fed by replication".into()],
            effects: vec![RemoteEffect {
                publication: "sales".into(),
                description: "remotes get the table \"note\"".into(),
                holds_up: false,
            }],
            held_up: Vec::new(),
            missing_rights: vec![MissingRight {
                message: "clerk may not make triggers on customer".into(),
                statement: "GRANT TRIGGER ON customer TO clerk;".into(),
                is_for_serving: false,
            }],
            is_first: true,
        };
        assert_eq!(
            describe(&report, true),
            "create triggers on public.customer  [lock: SHARE ROW EXCLUSIVE on public.customer]\n\
             create a signing key\n\
             remotes of \"sales\": remotes get the table \"note\"\n\
             warning: public.customer is fed by replication\n\
             missing right: clerk may not make triggers on customer\n  \
             GRANT TRIGGER ON customer TO clerk;\n\
             2 steps to do; nothing was changed\n"
        );
        assert_eq!(describe(&DeployReport::default(), false), "nothing to do\n");
    }
}
