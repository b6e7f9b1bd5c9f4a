//! `tidewater deploy`: makes the consolidated database fit the configuration.

use std::fmt::Write;

use clap::Args;
use tidewater_consolidated::DeployReport;

use crate::Done;
use crate::args::{ConfigArgs, with_exit_codes};
use crate::centre::OpenCentre;
use crate::failure::Failure;
use crate::output;

/// Prepare the central database: server state, change logs, triggers
///
/// Repeatable: what is in place already stays as it is. Prints each step with the lock
/// that it takes. Your tables are not altered; they get triggers. Locks are waited for
/// only briefly, so that the applications of a busy database are not held up: if it
/// gives up, run it again.
#[derive(Debug, Args)]
#[command(after_help = with_exit_codes!("\
Examples:
  tidewater deploy --dry-run        # what would be done, and with which locks
  tidewater deploy
  tidewater deploy -c /etc/tidewater.toml"))]
pub(crate) struct DeployArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Print what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(args: &DeployArgs) -> Result<Done, Failure> {
    let centre = OpenCentre::open(&args.config)?;
    let report = centre.deploy(args.dry_run)?;
    output::text(&describe(&report, args.dry_run))?;
    if !args.dry_run {
        output::note("next: tidewater user add NAME, then tidewater serve");
        if !report.steps.is_empty() {
            output::note("servers that run already must be restarted to serve the change");
        }
    }
    Ok(Done::Fully)
}

/// Steps, locks and warnings, for people.
pub(crate) fn describe(report: &DeployReport, dry_run: bool) -> String {
    let mut text = String::new();
    for step in &report.steps {
        let lock = match step.lock.as_str() {
            "" => String::new(),
            lock => format!("  [lock: {}]", output::printable(lock)),
        };
        let _ = writeln!(text, "{}{lock}", output::printable(&step.description));
    }
    for warning in &report.warnings {
        let _ = writeln!(text, "warning: {}", output::printable(warning));
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
    use tidewater_consolidated::DeployStep;

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
        };
        assert_eq!(
            describe(&report, true),
            "create triggers on public.customer  [lock: SHARE ROW EXCLUSIVE on public.customer]\n\
             create a signing key\n\
             warning: public.customer is fed by replication\n\
             2 steps to do; nothing was changed\n"
        );
        assert_eq!(describe(&DeployReport::default(), false), "nothing to do\n");
    }
}
