//! The points of the scenarios that are lists of cases, and how large they are by default.

use crate::error::BadInput;
use crate::gate::Retry;
use crate::measure::{ALL, Plan};
use crate::options::{Options, Scenario, Workers};
use crate::report::{Operation, Point};
use crate::scenario::{Case, settings};

/// What a scenario varies, as the title of an axis.
pub(crate) fn varied(scenario: Scenario) -> &'static str {
    match scenario {
        Scenario::Remotes => "remotes",
        Scenario::Size | Scenario::Limit => "rows a sync",
        Scenario::Workers => "workers",
        Scenario::Retry => "connections and retry delay",
        Scenario::Merge => "subscribers",
        Scenario::Slow => "lines",
        Scenario::Cpus => "cores of server and database",
        Scenario::Own => "remotes",
    }
}

/// The cases of a scenario.
pub(crate) fn cases(options: &Options) -> anyhow::Result<Vec<Case>> {
    let cases = match options.scenario {
        Scenario::Remotes => remotes(options),
        Scenario::Size | Scenario::Limit => size(options),
        Scenario::Workers => workers(options),
        other => {
            return Err(BadInput::error(
                format!("the scenario {} is not there yet", other.name()),
                "",
            ));
        }
    };
    for case in &cases {
        check(&case.plan)?;
    }
    Ok(cases)
}

/// Numbers that are within what tables and messages take.
fn check(plan: &Plan) -> anyhow::Result<()> {
    let most = 1_000_000;
    for (what, number) in [
        ("remotes", plan.remotes),
        ("rows", plan.rows),
        ("sets", plan.sets),
    ] {
        if number == 0 || number > most {
            return Err(BadInput::error(
                format!("{number} {what} were asked for"),
                format!("choose a number from 1 to {most}"),
            ));
        }
    }
    if u64::from(plan.remotes) * u64::from(plan.sets) > u64::from(most) {
        return Err(BadInput::error(
            format!(
                "{} sets of {} remotes are too many",
                plan.sets, plan.remotes
            ),
            format!("choose at most {most} remotes altogether"),
        ));
    }
    Ok(())
}

fn case(options: &Options, point: Point, remotes: u32, rows: u32, sets: u32) -> Case {
    Case {
        plan: Plan {
            point,
            remotes,
            rows,
            sets,
            operations: ALL.to_vec(),
            retry: options.retries.first().copied().unwrap_or(Retry::Advised),
        },
        settings: settings(options),
    }
}

fn number(value: u32) -> Point {
    Point {
        label: value.to_string(),
        value: Some(f64::from(value)),
        series: String::new(),
    }
}

/// What was asked for, or else what the scenario has.
fn or<T: Clone>(asked: &[T], default: &[T]) -> Vec<T> {
    if asked.is_empty() {
        default.to_vec()
    } else {
        asked.to_vec()
    }
}

fn remotes(options: &Options) -> Vec<Case> {
    let default: &[u32] = if options.paper {
        &[20, 100, 500, 1_000, 5_000, 10_000]
    } else {
        &[20, 100, 500, 1_000]
    };
    let total = if options.paper { 10_000_000 } else { 100_000 };
    let total = options.total.unwrap_or(total);
    let sets = options.sets.unwrap_or(1);
    let mut cases = Vec::new();
    for remotes in or(&options.remotes, default) {
        let constant = total / u64::from(remotes.max(1)) / u64::from(sets.max(1));
        let constant = u32::try_from(constant.max(1)).unwrap_or(u32::MAX);
        for rows in or(&options.rows, &[constant]) {
            let mut case = case(options, number(remotes), remotes, rows, sets);
            if options.rows.len() > 1 {
                case.plan.point.series = format!("{rows} rows");
            }
            // What a sync costs when there is nothing to do, at the same number of remotes.
            case.plan.operations.push(Operation::Empty);
            cases.push(case);
        }
    }
    cases
}

fn size(options: &Options) -> Vec<Case> {
    let default: &[u32] = match (options.scenario, options.paper) {
        (Scenario::Limit, false) => &[1_000],
        _ => &[1, 10, 100, 1_000, 10_000],
    };
    let (remotes, total, most_sets) = match options.paper {
        true => (1_000, 1_000_000, 10),
        false => (200, 100_000, 1),
    };
    let remotes = options.remotes.first().copied().unwrap_or(remotes);
    let total = options.total.unwrap_or(total);
    let sizes = or(&options.rows, default);
    let cases = sizes.into_iter().map(|rows| {
        let syncs = (total / u64::from(rows.max(1))).max(1);
        let at_once = u64::from(remotes).min(syncs);
        let sets = (syncs / at_once.max(1)).min(u64::from(options.sets.unwrap_or(most_sets)));
        case(
            options,
            number(rows),
            at_once as u32,
            rows,
            sets.max(1) as u32,
        )
    });
    cases.collect()
}

fn workers(options: &Options) -> Vec<Case> {
    let paper = [1, 2, 5, 10, 20, 50, 75, 100].map(Workers::Fixed);
    let short = [1, 2, 5, 10, 20].map(Workers::Fixed);
    let mut default = if options.paper {
        paper.to_vec()
    } else {
        short.to_vec()
    };
    default.push(Workers::Auto);
    let (remotes, rows, sets) = match options.paper {
        true => (1_000, 1_000, 10),
        false => (200, 100, 1),
    };
    let remotes = options.remotes.first().copied().unwrap_or(remotes);
    let rows = options.rows.first().copied().unwrap_or(rows);
    let sets = options.sets.unwrap_or(sets);
    let cases = or(&options.workers, &default).into_iter().map(|workers| {
        let point = Point {
            label: workers.to_string(),
            value: match workers {
                Workers::Auto => None,
                Workers::Fixed(number) => Some(f64::from(number)),
            },
            series: String::new(),
        };
        let mut case = case(options, point, remotes, rows, sets);
        case.settings.workers = workers;
        case
    });
    cases.collect()
}
