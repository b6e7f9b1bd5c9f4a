//! `tidewater check`: whether a configuration and its scripts fit the database, without a change.

use clap::Args;
use serde::Serialize;

use tidewater_server::{Environment, Server};
use tidewater_terminal::{CommandOutcome, ConfigArgs, Failure, output, with_exit_codes};

use crate::centre::OpenCentre;
use tidewater_centre::ScriptFault;
use tidewater_centre::deploy_report::MissingRight;

/// Check a configuration and its scripts against the database, and change nothing
///
/// Reads the configuration and the certificates, keys and tokens that it names, has the database read
/// every query, procedure and script, and names each script that is wrong by its file, with the line
/// of the statement. Tells which rights the role of the database lacks to deploy and to serve, with the
/// statement that gives each. `tidewater deploy --dry-run` tells in addition what deploying would do.
#[derive(Debug, Args)]
#[command(after_help = with_exit_codes!("\
Examples:
  tidewater check
  tidewater check -c /etc/tidewater.toml
  tidewater check --json | jq -r '.faults[].message'

Here, 5 also means: something is wrong.

The object of --json:
  {\"publications\":n,\"scripts\":n,\"faults\":[{\"message\",\"hint\"}],\"warnings\":[..]}
What is wrong with the configuration itself is an error, as of any command."))]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Print one JSON object, see below
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Serialize)]
struct CheckReport {
    publications: usize,
    scripts: usize,
    faults: Vec<ConfigFault>,
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct ConfigFault {
    message: String,
    hint: String,
}

pub(crate) fn run(args: &CheckArgs) -> Result<CommandOutcome, Failure> {
    let config = args.config.load()?;
    Server::check(&config, &Environment::real())?;
    let centre = OpenCentre::open(&args.config)?;
    let (faults, warnings) = match centre.check()? {
        Ok(report) => {
            let missing = report.missing_rights.iter().map(missing);
            (missing.collect(), report.warnings)
        }
        Err(faults) => (faults, Vec::new()),
    };
    let scripts = config.publications.iter().map(|it| it.scripts.len()).sum();
    let publications = config.publications.len();
    if args.json {
        output::json(&CheckReport {
            publications,
            scripts,
            faults: faults.iter().map(ConfigFault::from_script).collect(),
            warnings,
        })?;
    } else if faults.is_empty() {
        for warning in &warnings {
            output::note(warning);
        }
        output::text(&format!(
            "{} and {} fit the database\n",
            output::counted(publications as u64, "publication", "publications"),
            output::counted(scripts as u64, "script", "scripts"),
        ))?;
    } else {
        for warning in &warnings {
            output::note(warning);
        }
        let lines = faults.iter();
        let lines = lines.map(|it| format!("{}\n  hint: {}\n", it.message, it.hint));
        output::text(&lines.collect::<String>())?;
    }
    match faults.is_empty() {
        true => Ok(CommandOutcome::Complete),
        false => Ok(CommandOutcome::WithDifferences),
    }
}

/// A missing right as something that is wrong.
fn missing(right: &MissingRight) -> ScriptFault {
    ScriptFault {
        message: right.message.clone(),
        hint: match right.statement.is_empty() {
            true => "put the owner's name into the URL".into(),
            false => format!("have the owner or a superuser run: {}", right.statement),
        },
    }
}

impl ConfigFault {
    fn from_script(fault: &ScriptFault) -> ConfigFault {
        ConfigFault {
            message: fault.message.clone(),
            hint: fault.hint.clone(),
        }
    }
}
