//! The points of the scenarios that are lists of cases, and how large they are by default.

use tidewater_carrier::Compression;

use crate::error::BadInput;
use crate::gate::Retry;
use crate::measure::MeasurePlan;
use crate::options::{Options, Scenario, TrackingSetting, Workers};
use crate::processes;
use crate::report::{Point, TimedOperation};
use crate::scenario::{PlannedCase, settings};
use crate::way::{ConnectionWay, Protocol};

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
        Scenario::Protocols => "carrier and compression",
        Scenario::Own => "remotes",
    }
}

/// The cases of a scenario.
pub(crate) fn cases(options: &Options) -> anyhow::Result<Vec<PlannedCase>> {
    let waits_for = options.supervise.as_ref().map(|it| u64::from(it.drivers));
    for (what, number) in [
        ("--drivers", options.drivers.map(u64::from)),
        ("--wait-for", waits_for),
        ("--repeat", Some(u64::from(options.repeat))),
        ("--servers", Some(u64::from(options.servers))),
        ("--at-once", options.at_once.map(u64::from)),
        ("--connections", options.connections.map(u64::from)),
        ("--line", options.line),
    ] {
        if number == Some(0) {
            return Err(BadInput::error(
                format!("{what} 0 was asked for"),
                "choose a number from 1",
            ));
        }
    }
    if options.seconds.is_some_and(|it| !(0.1..=1e6).contains(&it)) {
        return Err(BadInput::error(
            "--seconds is no time to measure",
            "choose from 0.1 to 1000000 seconds",
        ));
    }
    let cases = match options.scenario {
        Scenario::Remotes => remotes(options),
        Scenario::Size | Scenario::Limit => size(options),
        Scenario::Workers => workers(options),
        Scenario::Retry => retry(options),
        Scenario::Cpus => cpus(options)?,
        Scenario::Protocols => protocols(options)?,
        Scenario::Merge => merge(options)?,
        Scenario::Slow => slow(options),
        Scenario::Own => own(options),
    };
    for case in &cases {
        check(&case.plan)?;
    }
    Ok(cases)
}

/// Numbers that are within what tables and messages take.
fn check(plan: &MeasurePlan) -> anyhow::Result<()> {
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

fn case(options: &Options, point: Point, remotes: u32, rows: u32, sets: u32) -> PlannedCase {
    PlannedCase {
        plan: MeasurePlan {
            point,
            remotes,
            rows,
            sets,
            operations: TimedOperation::TIMED.to_vec(),
            retry: options.retries.first().copied().unwrap_or(Retry::Advised),
        },
        settings: settings(options),
    }
}

fn number(value: u32) -> Point {
    Point {
        label: value.to_string(),
        value: Some(f64::from(value)),
        ..Point::default()
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

fn remotes(options: &Options) -> Vec<PlannedCase> {
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
            // What a sync costs when there is nothing to do, at the same number of remotes. First,
            // because without tracking a partition that has rows is sent whole.
            case.plan.operations.insert(0, TimedOperation::Empty);
            cases.push(case);
        }
    }
    cases
}

fn size(options: &Options) -> Vec<PlannedCase> {
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

fn workers(options: &Options) -> Vec<PlannedCase> {
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
            ..Point::default()
        };
        let mut case = case(options, point, remotes, rows, sets);
        case.settings.workers = workers;
        case
    });
    cases.collect()
}

fn retry(options: &Options) -> Vec<PlannedCase> {
    let seconds = |all: &[u64]| {
        let fixed = all.iter().map(|seconds| Retry::FixedMs(seconds * 1_000));
        std::iter::once(Retry::Advised).chain(fixed).collect()
    };
    let (remotes, rows, connections, delays): (_, _, _, Vec<Retry>) = match options.paper {
        true => (
            10_000,
            1_000,
            1_024,
            seconds(&[0, 1, 2, 5, 10, 20, 30, 40, 50]),
        ),
        false => (400, 50, 100, seconds(&[0, 1])),
    };
    let remotes = options.remotes.first().copied().unwrap_or(remotes);
    let rows = options.rows.first().copied().unwrap_or(rows);
    let sets = options.sets.unwrap_or(1);
    let connections = options.connections.unwrap_or(connections);
    let point = |label: String, value, series: &str| Point {
        label,
        value,
        series: series.into(),
        ..Point::default()
    };
    let mut cases = Vec::new();
    let none = point("no limit".into(), None, "no limit");
    let mut unlimited = case(options, none, remotes, rows, sets);
    unlimited.settings.connections = None;
    cases.push(unlimited);
    for retry in or(&options.retries, &delays) {
        let (delay, value) = match retry {
            Retry::Advised => ("as advised".to_owned(), None),
            Retry::FixedMs(delay) => {
                let seconds = delay as f64 / 1_000.0;
                (format!("after {seconds} s"), Some(seconds))
            }
        };
        let series = format!("limit {connections}");
        let point = point(format!("{series}, {delay}"), value, &series);
        let mut case = case(options, point, remotes, rows, sets);
        case.settings.connections = Some(connections);
        case.plan.retry = retry;
        cases.push(case);
    }
    cases
}

fn cpus(options: &Options) -> anyhow::Result<Vec<PlannedCase>> {
    let cores = processes::allowed_cores().len().max(1) as u32;
    let doubled = std::iter::successors(Some(1), |cores| Some(cores * 2));
    let mut default: Vec<u32> = doubled.take_while(|&some| some < cores).collect();
    default.push(cores);
    let (remotes, rows) = if options.paper {
        (1_000, 1_000)
    } else {
        (100, 200)
    };
    let remotes = options.remotes.first().copied().unwrap_or(remotes);
    let rows = options.rows.first().copied().unwrap_or(rows);
    let mut cases = Vec::new();
    for cpus in or(&options.cpus, &default) {
        if cpus == 0 || cpus > cores {
            return Err(BadInput::error(
                format!("{cpus} cores were asked for, and there are {cores}"),
                format!("choose numbers from 1 to {cores}: --cpus"),
            ));
        }
        let sets = options.sets.unwrap_or(1);
        let mut case = case(options, number(cpus), remotes, rows, sets);
        case.settings.cpus = Some(cpus);
        cases.push(case);
    }
    Ok(cases)
}

/// The useful ones of all ways, or those that are asked for; always what they are compared with.
fn protocols(options: &Options) -> anyhow::Result<Vec<PlannedCase>> {
    let way = |protocol, compression| ConnectionWay {
        protocol,
        compression,
    };
    let mut ways = vec![ConnectionWay::PLAIN];
    match options.carriers.is_empty() && options.compressions.is_empty() {
        true => {
            ways.extend(Protocol::ALL.map(|it| way(it, Compression::Off)));
            ways.extend(Compression::ALL.map(|it| way(Protocol::Tcp, it)));
        }
        false => {
            for protocol in or(&options.carriers, &[Protocol::Tcp]) {
                for compression in or(&options.compressions, &[Compression::Off]) {
                    let way = way(protocol, compression);
                    ways.extend([way.below(), way]);
                }
            }
        }
    }
    if options.servers > 1 {
        return Err(BadInput::error(
            "protocols has one server",
            "leave out --servers",
        ));
    }
    if options.supervise.is_some() && ways.iter().any(|it| it.protocol == Protocol::Relay) {
        return Err(BadInput::error(
            "the relay of bench is for drivers of this machine",
            "choose other --carriers",
        ));
    }
    let (remotes, rows) = if options.paper {
        (1_000, 1_000)
    } else {
        (60, 200)
    };
    let remotes = options.remotes.first().copied().unwrap_or(remotes);
    let rows = options.rows.first().copied().unwrap_or(rows);
    let mut cases: Vec<PlannedCase> = Vec::new();
    for way in ways {
        if cases.iter().any(|it| it.settings.way == Some(way)) {
            continue;
        }
        let point = Point {
            label: way.label(),
            against: (way != ConnectionWay::PLAIN).then(|| way.below().label()),
            ..Point::default()
        };
        let mut case = case(options, point, remotes, rows, 1);
        case.plan.operations.insert(0, TimedOperation::Empty);
        case.settings.way = Some(way);
        cases.push(case);
    }
    Ok(cases)
}

fn merge(options: &Options) -> anyhow::Result<Vec<PlannedCase>> {
    if options.tracking == TrackingSetting::Off {
        return Err(BadInput::error(
            "subscribers merge what is tracked, and tracking is off",
            "leave --tracking out",
        ));
    }
    let (remotes, rows) = if options.paper {
        (1_200, 1_000)
    } else {
        (100, 100)
    };
    let rows = options.rows.first().copied().unwrap_or(rows);
    let cases = or(&options.remotes, &[remotes]).into_iter().map(|remotes| {
        let mut case = case(options, number(remotes), remotes, rows, 1);
        case.plan.operations = vec![TimedOperation::Update];
        case
    });
    Ok(cases.collect())
}

/// How fast ones do alone, beside slow ones, and beside slow ones with few workers for uploads.
fn slow(options: &Options) -> Vec<PlannedCase> {
    let (fast, rows) = if options.paper {
        (100, 1_000)
    } else {
        (20, 1_000)
    };
    let fast = options.fast.unwrap_or(fast);
    let rows = options.rows.first().copied().unwrap_or(rows);
    let few = options
        .workers
        .first()
        .copied()
        .unwrap_or(Workers::Fixed(2));
    let points = [
        ("alone", Workers::Auto),
        ("beside slow ones", Workers::Auto),
        ("beside slow ones, few workers", few),
    ];
    let cases = points.into_iter().map(|(label, workers)| {
        let point = Point {
            label: label.into(),
            value: None,
            series: "fast".into(),
            ..Point::default()
        };
        let mut case = case(options, point, fast, rows, 1);
        case.settings.workers = workers;
        case
    });
    cases.collect()
}

fn own(options: &Options) -> Vec<PlannedCase> {
    let remotes = if options.paper { 1_000 } else { 20 };
    let cases = or(&options.remotes, &[remotes]).into_iter().map(|remotes| {
        let mut case = case(options, number(remotes), remotes, 1, 1);
        case.plan.operations = vec![TimedOperation::Download, TimedOperation::Upload];
        case
    });
    cases.collect()
}
