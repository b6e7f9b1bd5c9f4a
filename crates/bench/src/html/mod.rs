//! A report as one page that opens without network: tables, charts, and what others have
//! published of the same.
//!
//! The page is well-formed as XML too, runs nothing and loads nothing. All text that may come
//! from a user goes through [`text::escaped`].

mod bars;
mod canvas;
mod lines;
mod live;
mod paint;
mod text;

use std::fmt::Write;

pub use self::live::live_html;

use self::bars::{Bar, Group};
use self::lines::{Axis, ChartLine, PublishedFigure};
use self::text::{escaped, number};
use crate::papers::{self, Paper};
use crate::report::{MachineReport, Median, OperationRun, Point, ScenarioReport, TimedOperation};
use crate::spread::Spread;
use crate::table;

/// The page.
///
/// # Errors
/// A chart cannot be drawn, which would be a mistake of ours.
pub fn html(report: &ScenarioReport) -> anyhow::Result<String> {
    let mut out = head(&report.scenario, &report.machine);
    results(&mut out, report);
    throughput(&mut out, report)?;
    phases(&mut out, report)?;
    processors(&mut out, report)?;
    limit(&mut out, report);
    published(&mut out, report);
    notes(&mut out, report);
    known(&mut out, &report.machine);
    out.push_str("</body>\n</html>\n");
    Ok(out)
}

fn head(scenario: &str, machine: &MachineReport) -> String {
    let title = format!("tidewater bench {scenario}");
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <meta http-equiv=\"Content-Security-Policy\" \
         content=\"default-src 'none'; style-src 'unsafe-inline'\"/>\n\
         <title>{0}</title>\n<style>\n{1}{2}</style>\n</head>\n<body>\n{3}<h1>{0}</h1>\n",
        escaped(&title),
        include_str!("style.css"),
        paint::style(),
        paint::textures(),
    );
    let _ = writeln!(
        out,
        "<p>{}, {} cores; {}.</p>",
        escaped(&machine.processor),
        machine.cores,
        escaped(&machine.database)
    );
    out
}

fn results(out: &mut String, report: &ScenarioReport) {
    out.push_str("<h2>Results</h2>\n");
    push_table(out, "Medians", &table::medians(report), 2);
    let noisiest = report.medians.iter().filter(|it| it.repeats > 1);
    let noise = |it: &Median| it.server_seconds.noise();
    let noisiest = noisiest.max_by(|a, b| noise(a).total_cmp(&noise(b)));
    let text = match noisiest {
        Some(median) => format!(
            "Each point was measured {} times, in alternation. Noise is the distance from the \
             shortest to the longest server time as a share of the median; the most is {:.0} %, of \
             {} at {}.",
            median.repeats,
            noise(median) * 100.0,
            median.operation.name(),
            label(&median.point)
        ),
        None => "Each point was measured once, so nobody knows how noisy that was: --repeat 3 \
                 tells."
            .into(),
    };
    paragraph(out, &text);
}

/// A point's name, with its series.
fn label(point: &Point) -> String {
    match point.series.is_empty() || point.label.contains(&point.series) {
        true => point.label.clone(),
        false => format!("{}, {}", point.label, point.series),
    }
}

/// One chart for each series that shares its points with others, because lines on one chart are
/// told apart by operation.
fn throughput(out: &mut String, report: &ScenarioReport) -> anyhow::Result<()> {
    let points = || report.medians.iter().map(|it| &it.point);
    let is_shared = points().any(|a| points().any(|b| a.label == b.label && a.series != b.series));
    let mut series: Vec<&str> = Vec::new();
    for point in points().filter(|_| is_shared) {
        if !series.contains(&point.series.as_str()) {
            series.push(&point.series);
        }
    }
    let series: Vec<Option<&str>> = match is_shared {
        true => series.into_iter().map(Some).collect(),
        false => vec![None],
    };
    let has_empty = report
        .medians
        .iter()
        .any(|it| it.operation == TimedOperation::Empty);
    for series in series {
        let of_series =
            |it: &&Median| series.is_none_or(|series| it.point.series.as_str() == series);
        let medians: Vec<&Median> = report.medians.iter().filter(of_series).collect();
        let suffix = series.map_or(String::new(), |series| format!(", {series}"));
        let moving: Vec<&Median> = medians
            .iter()
            .filter(|it| it.operation != TimedOperation::Empty)
            .copied()
            .collect();
        let rows = Rate {
            title: format!("Throughput{suffix}"),
            unit: "Rows a second",
            of: |it| it.rows_per_second,
        };
        rates(out, report, &rows, &moving, references(report))?;
        if has_empty {
            let syncs = Rate {
                title: format!("Syncs{suffix}"),
                unit: "Syncs a second",
                of: |it| it.syncs_per_second,
            };
            rates(out, report, &syncs, &medians, Vec::new())?;
        }
    }
    Ok(())
}

/// What a chart of lines shows.
struct Rate {
    title: String,
    unit: &'static str,
    of: fn(&Median) -> Spread,
}

fn rates(
    out: &mut String,
    report: &ScenarioReport,
    rate: &Rate,
    medians: &[&Median],
    references: Vec<PublishedFigure>,
) -> anyhow::Result<()> {
    let mut lines: Vec<ChartLine> = Vec::new();
    for median in medians {
        let point = (median.point.label.clone(), (rate.of)(median));
        let name = median.operation.name();
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => {
                let (colour, mark) = paint::for_operation(median.operation);
                lines.push(ChartLine {
                    name: name.into(),
                    colour,
                    mark,
                    points: vec![point],
                });
            }
        }
    }
    let axis = Axis::from_points(&report.varied, medians.iter().map(|it| &it.point));
    let name = format!("{}: {} by {}", rate.title, rate.unit, report.varied);
    let chart = lines::chart(&name, &axis, &lines, &references)?;
    let mut caption = format!("{} by {}, by total server time.", rate.unit, report.varied);
    if medians.iter().any(|it| it.repeats > 1) {
        caption.push_str(" Upright strokes reach from the smallest to the largest of the repeats.");
    }
    if !references.is_empty() {
        caption.push_str(
            " Dashed lines are published figures, measured on other machines: see the end of this \
             page.",
        );
    }
    figure(out, &rate.title, &caption, &chart);
    Ok(())
}

/// The published figures that are rates.
fn references(report: &ScenarioReport) -> Vec<PublishedFigure> {
    let figures = papers::figures(&report.scenario).into_iter();
    let lines = figures.filter_map(|figure| {
        let (colour, mark) = paint::for_operation(figure.operation);
        Some(PublishedFigure {
            name: format!("{}, {}", figure.paper.name, figure.operation.name()),
            colour,
            mark,
            value: figure.rows_per_second()?,
        })
    });
    lines.collect()
}

/// The runs of an operation at a point.
fn runs<'a>(report: &'a ScenarioReport, median: &Median) -> Vec<&'a OperationRun> {
    let ours = |run: &&OperationRun| run.operation == median.operation && run.point == median.point;
    report.runs.iter().filter(ours).collect()
}

fn middle(runs: &[&OperationRun], of: impl Fn(&OperationRun) -> f64) -> f64 {
    Spread::from_values(runs.iter().map(|run| of(run)).collect()).median
}

/// A bar for each operation, under the title of its point.
fn groups(report: &ScenarioReport, values: impl Fn(&[&OperationRun]) -> Vec<f64>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for median in &report.medians {
        let title = format!("{}: {}", report.varied, label(&median.point));
        let bar = Bar {
            name: median.operation.name().into(),
            values: values(&runs(report, median)),
        };
        match groups.iter_mut().find(|group| group.title == title) {
            Some(group) => group.bars.push(bar),
            None => groups.push(Group {
                title,
                bars: vec![bar],
            }),
        }
    }
    groups
}

fn phases(out: &mut String, report: &ScenarioReport) -> anyhow::Result<()> {
    let parts = [
        "open", "connect", "upload", "wait", "download", "apply", "retry",
    ];
    let groups = groups(report, |runs| {
        let phase = |of: fn(&OperationRun) -> f64| middle(runs, of) * 1e3;
        vec![
            phase(|run| run.phases.open),
            phase(|run| run.phases.connect),
            phase(|run| run.phases.upload),
            phase(|run| run.phases.wait),
            phase(|run| run.phases.download),
            phase(|run| run.phases.apply),
            phase(|run| run.phases.retry),
        ]
    });
    let chart = bars::chart("Phases of a sync, milliseconds", "ms", &parts, &groups)?;
    let caption = "Milliseconds of a sync by what the remote was at, a mean over all syncs: \
                   opening its file, reaching the server and signing in, sending, waiting for the \
                   answer, receiving, writing what was received, and being sent away until coming \
                   back. The parts follow each other in the order of the legend.";
    figure(out, "Phases of a sync", caption, &chart);
    values(out, report, &parts, &groups);
    Ok(())
}

fn processors(out: &mut String, report: &ScenarioReport) -> anyhow::Result<()> {
    let parts = ["server", "database", "drivers"];
    let groups = groups(report, |runs| {
        let part = |of: &dyn Fn(&OperationRun) -> f64| {
            middle(runs, |run| of(run) * 1e6 / run.syncs.max(1) as f64)
        };
        vec![
            part(&|run| run.cpu_seconds.server),
            part(&|run| run.cpu_seconds.database.unwrap_or(0.0)),
            part(&|run| run.cpu_seconds.drivers),
        ]
    });
    let chart = bars::chart(
        "Processor time of a sync, microseconds",
        "us",
        &parts,
        &groups,
    )?;
    let has_database = |run: &OperationRun| run.cpu_seconds.database.is_some();
    let database = match report.runs.iter().all(has_database) {
        true if report.machine.database.starts_with("SQLite") => {
            " The database is embedded and counts with the server."
        }
        true => "",
        false => " The database runs elsewhere, and nobody here knows what it took.",
    };
    let caption = format!(
        "Microseconds of one core for a sync, by whose they were; drivers count with all their \
         remotes. The parts follow each other in the order of the legend.{database}"
    );
    figure(out, "Processor time by part", &caption, &chart);
    values(out, report, &parts, &groups);
    Ok(())
}

/// The numbers that the bars above show.
fn values(out: &mut String, report: &ScenarioReport, parts: &[&str], groups: &[Group]) {
    let mut titles = vec![report.varied.clone(), "operation".to_owned()];
    titles.extend(parts.iter().map(ToString::to_string));
    let mut lines = vec![titles];
    for group in groups {
        let prefix = format!("{}: ", report.varied);
        let title = group.title.strip_prefix(&prefix).unwrap_or(&group.title);
        for bar in &group.bars {
            let mut line = vec![title.to_owned(), bar.name.clone()];
            line.extend(bar.values.iter().map(|value| number(*value)));
            lines.push(line);
        }
    }
    out.push_str("<details>\n<summary>The same in numbers</summary>\n");
    push_table(out, "The chart above in numbers", &lines, 2);
    out.push_str("</details>\n");
}

fn limit(out: &mut String, report: &ScenarioReport) {
    if report.limit.is_empty() {
        return;
    }
    out.push_str("<h2>The databases alone</h2>\n");
    paragraph(
        out,
        "The same rows, operations and batches with nothing of Tidewater's between. Rows a second \
         of both on the same cores are 1 / (1 / database + 1 / remote); share is what Tidewater \
         reached of that.",
    );
    push_table(out, "The databases alone", &table::limits(report), 2);
}

fn published(out: &mut String, report: &ScenarioReport) {
    let figures = papers::figures(&report.scenario);
    let ratios = papers::ratios(&report.scenario);
    if figures.is_empty() && ratios.is_empty() {
        return;
    }
    out.push_str("<h2>Published figures</h2>\n");
    paragraph(
        out,
        "What others have published of the same operations, on machines of their own: compare \
         with care.",
    );
    let mut papers: Vec<&Paper> = Vec::new();
    if !figures.is_empty() {
        let titles = [
            "published by",
            "operation",
            "conditions",
            "seconds",
            "rows/s",
            "here at best, rows/s",
            "at",
        ];
        let mut lines = vec![titles.map(str::to_owned).to_vec()];
        for figure in figures {
            papers.push(figure.paper);
            let rate = figure.rows_per_second();
            let best = best(report, figure.operation).filter(|_| rate.is_some());
            lines.push(vec![
                figure.paper.name.into(),
                figure.operation.name().into(),
                figure.conditions.into(),
                number(figure.seconds),
                rate.map_or("-".into(), number),
                best.map_or("-".into(), |it| number(it.rows_per_second.median)),
                best.map_or("-".into(), |it| label(&it.point)),
            ]);
        }
        push_table(out, "Published times", &lines, 3);
    }
    if !ratios.is_empty() {
        let titles = [
            "published by",
            "operation",
            "what",
            "seconds",
            "ratio",
            "here",
        ];
        let mut lines = vec![titles.map(str::to_owned).to_vec()];
        for ratio in ratios {
            papers.push(ratio.paper);
            let (dividend, divisor) = ratio.seconds;
            lines.push(vec![
                ratio.paper.name.into(),
                ratio
                    .operation
                    .map_or("all four", TimedOperation::name)
                    .into(),
                ratio.what.into(),
                format!("{dividend} / {divisor}"),
                format!("{:.2}", ratio.published()),
                ratio
                    .here(report)
                    .map_or("-".into(), |it| format!("{it:.2}")),
            ]);
        }
        push_table(out, "Published ratios", &lines, 3);
    }
    papers.dedup();
    out.push_str("<ul>\n");
    for paper in papers {
        let _ = writeln!(
            out,
            "<li>{}: {}. Measured on {}.</li>",
            escaped(paper.name),
            escaped(paper.source),
            escaped(paper.machine)
        );
    }
    out.push_str("</ul>\n");
}

/// Where an operation had the most rows a second.
fn best(report: &ScenarioReport, operation: TimedOperation) -> Option<&Median> {
    let ours = report.medians.iter().filter(|it| it.operation == operation);
    ours.max_by(|a, b| {
        let rate = |it: &Median| it.rows_per_second.median;
        rate(a).total_cmp(&rate(b))
    })
}

fn notes(out: &mut String, report: &ScenarioReport) {
    if report.notes.is_empty() {
        return;
    }
    out.push_str("<h2>Notes</h2>\n");
    for note in &report.notes {
        paragraph(out, note);
    }
}

fn known(out: &mut String, machine: &MachineReport) {
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let lines = [
        ("Processor", machine.processor.clone()),
        ("Cores", machine.cores.to_string()),
        (
            "Memory",
            format!(
                "{:.1} GiB",
                machine.memory_bytes as f64 / f64::from(1 << 30)
            ),
        ),
        ("System", machine.system.clone()),
        ("Tidewater", machine.tidewater.clone()),
        ("Consolidated database", machine.database.clone()),
        ("It runs on this machine", yes(machine.database_is_here)),
        ("SQLite of the remotes", machine.sqlite.clone()),
        ("Files of the remotes", machine.files.clone()),
        ("Drivers", machine.drivers.to_string()),
        ("They ran elsewhere", yes(machine.drivers_are_elsewhere)),
    ];
    out.push_str("<h2>Machine</h2>\n<table class=\"known\">\n<tbody>\n");
    for (name, value) in lines {
        let _ = writeln!(
            out,
            "<tr><th scope=\"row\">{name}</th><td>{}</td></tr>",
            escaped(&value)
        );
    }
    out.push_str("</tbody>\n</table>\n");
}

fn paragraph(out: &mut String, text: &str) {
    let _ = writeln!(out, "<p>{}</p>", escaped(text));
}

fn figure(out: &mut String, title: &str, caption: &str, chart: &str) {
    let title = escaped(title);
    let _ = writeln!(
        out,
        "<h2>{title}</h2>\n<figure>\n<figcaption>{}</figcaption>\n\
         <div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"{title}\">\n\
         {chart}</div>\n</figure>",
        escaped(caption)
    );
}

/// A table with a line of titles; after so many columns of words, the others are numbers.
fn push_table(out: &mut String, name: &str, lines: &[Vec<String>], words: usize) {
    let Some((titles, lines)) = lines.split_first() else {
        return;
    };
    let class = |column: usize| match column < words {
        true => "",
        false => " class=\"number\"",
    };
    let _ = write!(
        out,
        "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"{}\">\n<table>\n\
         <thead>\n<tr>",
        escaped(name)
    );
    for (column, title) in titles.iter().enumerate() {
        let class = class(column);
        let _ = write!(out, "<th scope=\"col\"{class}>{}</th>", escaped(title));
    }
    out.push_str("</tr>\n</thead>\n<tbody>\n");
    for line in lines {
        out.push_str("<tr>");
        for (column, cell) in line.iter().enumerate() {
            let class = class(column);
            let _ = write!(out, "<td{class}>{}</td>", escaped(cell));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n</table>\n</div>\n");
}

#[cfg(test)]
mod tests;
