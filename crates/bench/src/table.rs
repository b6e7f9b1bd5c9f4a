//! A report as text for people.

use std::fmt::Write;

use crate::report::{Median, OperationRun, ScenarioReport, TimedOperation};
use crate::spread::Spread;

/// The report as tables: the medians, what the databases do alone, and what to know.
pub fn table(report: &ScenarioReport) -> String {
    let mut out = String::new();
    let machine = &report.machine;
    let _ = writeln!(
        out,
        "{}: {}, {} cores, {:.1} GiB; {}; {} drivers{}\n",
        report.scenario,
        machine.processor,
        machine.cores,
        machine.memory_bytes as f64 / f64::from(1 << 30),
        machine.database,
        machine.drivers,
        if machine.drivers_are_elsewhere {
            " elsewhere"
        } else {
            ""
        }
    );
    out.push_str(&aligned(medians(report)));
    if !report.limit.is_empty() {
        out.push_str("\nThe databases alone, with nothing of Tidewater's between:\n");
        out.push_str(&aligned(limits(report)));
    }
    for note in &report.notes {
        let _ = writeln!(out, "\n{note}");
    }
    out
}

/// The medians, under a line of titles.
pub(crate) fn medians(report: &ScenarioReport) -> Vec<Vec<String>> {
    let titles = [
        &report.varied,
        "operation",
        "rows",
        "syncs",
        "server s",
        "rows/s",
        "syncs/s",
        "p50 s",
        "p99 s",
        "max s",
        "CPU us/sync",
        "of server",
        "of database",
        "of drivers",
        "MiB",
        "retries",
        "noise",
    ];
    let mut lines = vec![titles.iter().map(ToString::to_string).collect::<Vec<_>>()];
    for median in &report.medians {
        lines.push(line(report, median));
    }
    // Bench's own rows meet nobody else's.
    let runs = &report.runs;
    if runs.iter().any(|it| it.operation == TimedOperation::Upload) {
        lines[0].extend(["conflicts", "refused"].map(str::to_owned));
        for (line, median) in lines[1..].iter_mut().zip(&report.medians) {
            let ours = runs.iter();
            let ours =
                ours.filter(|it| it.operation == median.operation && it.point == median.point);
            let sum =
                |count: fn(&OperationRun) -> u64| ours.clone().map(count).sum::<u64>().to_string();
            line.extend([sum(|it| it.conflicts), sum(|it| it.refused)]);
        }
    }
    let others = report.medians.iter().map(|it| it.against.as_ref());
    if others.clone().any(|it| it.is_some()) {
        lines[0].extend(["time to", "", "bytes to"].map(str::to_owned));
        for (line, against) in lines[1..].iter_mut().zip(others) {
            line.extend(match against {
                None => [const { String::new() }; 3],
                Some(it) => {
                    let time = it.server_seconds;
                    [
                        format!("{:.2} of {}", time.median, it.label),
                        format!("({:.2} to {:.2})", time.min, time.max),
                        format!("{:.2}", it.bytes.median),
                    ]
                }
            });
        }
    }
    lines
}

fn line(report: &ScenarioReport, median: &Median) -> Vec<String> {
    let ours = report
        .runs
        .iter()
        .filter(|run| run.operation == median.operation && run.point == median.point);
    let runs: Vec<_> = ours.collect();
    let middle = |value: &dyn Fn(&crate::report::OperationRun) -> f64| {
        Spread::from_values(runs.iter().map(|run| value(run)).collect()).median
    };
    let per_sync = |seconds: f64, syncs: u64| seconds * 1e6 / syncs.max(1) as f64;
    let has_database = runs.iter().all(|run| run.cpu_seconds.database.is_some());
    let database = middle(&|run| per_sync(run.cpu_seconds.database.unwrap_or(0.0), run.syncs));
    let point = &median.point;
    let label = match point.series.is_empty() {
        true => point.label.clone(),
        false => format!("{}, {}", point.label, point.series),
    };
    vec![
        label,
        median.operation.name().into(),
        format!("{:.0}", middle(&|run| run.rows_per_sync as f64)),
        format!("{:.0}", middle(&|run| run.syncs as f64)),
        format!("{:.2}", median.server_seconds.median),
        format!("{:.0}", median.rows_per_second.median),
        format!("{:.0}", median.syncs_per_second.median),
        format!("{:.3}", middle(&|run| run.remote_seconds.p50)),
        format!("{:.3}", middle(&|run| run.remote_seconds.p99)),
        format!("{:.3}", middle(&|run| run.remote_seconds.max)),
        format!("{:.0}", median.cpu_us_per_sync.median),
        format!(
            "{:.0}",
            middle(&|run| per_sync(run.cpu_seconds.server, run.syncs))
        ),
        if has_database {
            format!("{database:.0}")
        } else {
            "-".into()
        },
        format!(
            "{:.0}",
            middle(&|run| per_sync(run.cpu_seconds.drivers, run.syncs))
        ),
        format!(
            "{:.0}",
            middle(&|run| run.server_peak_bytes.unwrap_or(0) as f64) / f64::from(1 << 20)
        ),
        format!("{:.0}", middle(&|run| run.retries as f64)),
        match median.repeats {
            1 => "-".into(),
            _ => format!("{:.0} %", median.server_seconds.noise() * 100.0),
        },
    ]
}

/// What the databases do alone, under a line of titles.
pub(crate) fn limits(report: &ScenarioReport) -> Vec<Vec<String>> {
    let titles = [
        "rows",
        "operation",
        "database rows/s",
        "remote rows/s",
        "rows/s",
        "share",
    ];
    let mut lines = vec![titles.iter().map(ToString::to_string).collect::<Vec<_>>()];
    for limit in &report.limit {
        lines.push(vec![
            limit.rows_per_sync.to_string(),
            limit.operation.name().into(),
            format!("{:.0}", limit.database_rows_per_second),
            format!("{:.0}", limit.remote_rows_per_second),
            format!("{:.0}", limit.rows_per_second),
            limit
                .share
                .map_or("-".into(), |share| format!("{share:.2}")),
        ]);
    }
    lines
}

/// Columns under each other: the first to the left, numbers to the right.
fn aligned(lines: Vec<Vec<String>>) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let widths = lines.iter().map(|line| line[column].chars().count());
        widths.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for line in &lines {
        let cells = line.iter().zip(&widths).enumerate();
        let cells = cells.map(|(column, (cell, &width))| match column {
            0 | 1 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::aligned;

    #[test]
    fn columns_stand_under_each_other() {
        let line = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let text = aligned(vec![line(["a", "bcd", "s"]), line(["xyz", "u", "10.5"])]);
        assert_eq!(text, "a    bcd     s\nxyz  u    10.5\n");
    }
}
