//! Pages of made-up reports, read as XML.

use roxmltree::{Document, ParsingOptions};

use super::*;
use crate::report::{Cpu, Limit, MachineReport, Phases, RunClock};

fn run(operation: TimedOperation, label: &str, value: Option<f64>, seconds: f64) -> OperationRun {
    let rows = match operation {
        TimedOperation::Empty => 0,
        _ => 1_000,
    };
    OperationRun {
        operation,
        point: Point {
            label: label.into(),
            value,
            series: String::new(),
            ..Point::default()
        },
        repeat: 0,
        remotes: 10,
        rows_per_sync: rows / 10,
        sets: 1,
        syncs: 10,
        rows,
        tracking: "log".into(),
        workers: "auto".into(),
        connections: None,
        server_seconds: seconds,
        clock: RunClock::Drivers,
        driver_seconds: seconds,
        history_seconds: None,
        rows_per_second: rows as f64 / seconds,
        syncs_per_second: 10.0 / seconds,
        remote_seconds: Default::default(),
        cpu_seconds: Cpu {
            server: 0.1,
            database: Some(0.2),
            drivers: 0.3,
        },
        server_peak_bytes: None,
        retries: 0,
        conflicts: 0,
        refused: 0,
        bytes_sent: 1,
        bytes_received: 1,
        phases: Phases {
            open: 0.001,
            connect: 0.002,
            upload: 0.003,
            wait: 0.004,
            download: 0.005,
            apply: 0.006,
            retry: 0.007,
        },
    }
}

fn report(scenario: &str, runs: Vec<OperationRun>) -> ScenarioReport {
    let mut report = ScenarioReport {
        scenario: scenario.into(),
        varied: "remotes".into(),
        machine: MachineReport::default(),
        runs,
        medians: Vec::new(),
        limit: Vec::new(),
        notes: Vec::new(),
    };
    report.summarize();
    report
}

/// Reads a page, and looks whether it refers to anything outside of itself.
fn with_page(report: &ScenarioReport, look: impl FnOnce(&Document<'_>)) {
    let page = html(report).expect("a page");
    let options = ParsingOptions {
        allow_dtd: true,
        ..ParsingOptions::default()
    };
    let document = Document::parse_with_options(&page, options).expect("well-formed");
    for node in document.descendants() {
        let name = node.tag_name().name();
        assert!(
            !["script", "link", "img", "iframe"].contains(&name),
            "{name}"
        );
        for attribute in node.attributes() {
            let name = attribute.name();
            assert!(!["src", "href"].contains(&name) && !name.starts_with("on"));
            // A label is text, whatever it looks like.
            let is_text = name == "aria-label";
            assert!(
                is_text || !attribute.value().contains("://"),
                "{attribute:?}"
            );
        }
    }
    assert!(!page.contains("@import"));
    for (start, _) in page.match_indices("url(") {
        assert!(page[start..].starts_with("url(#texture-"));
    }
    look(&document);
}

/// The texts of all elements of a name.
fn texts(document: &Document<'_>, name: &str) -> Vec<String> {
    let nodes = document.descendants().filter(|it| it.has_tag_name(name));
    let text = |node: roxmltree::Node<'_, '_>| {
        let texts = node.descendants().filter(|it| it.is_text());
        let texts = texts.filter_map(|it| it.text());
        texts.collect::<String>().trim().to_owned()
    };
    nodes.map(text).collect()
}

#[test]
fn a_page_has_charts_tables_and_what_is_published() {
    let mut runs = Vec::new();
    for (label, seconds) in [("20", 0.5), ("1000", 1.0), ("1000", 2.0)] {
        for operation in [
            TimedOperation::Empty,
            TimedOperation::Download,
            TimedOperation::Update,
        ] {
            runs.push(run(operation, label, label.parse().ok(), seconds));
        }
    }
    let mut report = report("remotes", runs);
    report.notes.push("A note.".into());
    report.limit.push(Limit {
        operation: TimedOperation::Update,
        rows_per_sync: 100,
        database_rows_per_second: 5_000.0,
        remote_rows_per_second: 5_000.0,
        rows_per_second: 2_500.0,
        share: Some(0.4),
    });
    with_page(&report, |document| {
        assert_eq!(
            texts(document, "h2"),
            [
                "Results",
                "Throughput",
                "Syncs",
                "Phases of a sync",
                "Processor time by part",
                "The databases alone",
                "Published figures",
                "Notes",
                "Machine"
            ]
        );
        let words = texts(document, "text");
        // Lines and their references, parts, and what varied.
        for word in [
            "download",
            "MobiLink 12, insert",
            "wait",
            "drivers",
            "remotes: 1000",
            "remotes",
        ] {
            assert!(words.iter().any(|it| it == word), "{word}: {words:?}");
        }
        let cells = texts(document, "td");
        // 10,000,000 rows by 88.1 s; what came of two repeats; seconds without a rate.
        for cell in ["113,507", "67 %", "2,072"] {
            assert!(cells.iter().any(|it| it == cell), "{cell}: {cells:?}");
        }
    });
}

#[test]
fn whatever_a_user_calls_things_is_text() {
    let evil = "</text></svg><script src='http://evil'>\"&\u{7}";
    let mut report = report("own", vec![run(TimedOperation::Upload, evil, None, 1.0)]);
    report.scenario = evil.into();
    report.varied = evil.into();
    report.machine.files = evil.into();
    report.machine.database = evil.into();
    report.notes.push(evil.into());
    with_page(&report, |document| {
        let shown = evil.replace('\u{7}', "\u{FFFD}");
        assert!(texts(document, "td").contains(&shown));
        assert!(texts(document, "p").contains(&shown));
    });
}

#[test]
fn reports_of_nothing_and_of_zeros_are_pages_too() {
    with_page(&report("limit", Vec::new()), |document| {
        assert_eq!(texts(document, "svg").len(), 4);
    });
    let mut zero = run(TimedOperation::Empty, "1", Some(1.0), 1.0);
    zero.phases = Phases::default();
    zero.cpu_seconds = Cpu::default();
    with_page(&report("remotes", vec![zero]), |document| {
        let captions = texts(document, "figcaption");
        assert!(captions.iter().any(|it| it.contains("runs elsewhere")));
    });
}

#[test]
fn series_that_share_points_have_charts_of_their_own() {
    let in_series = |label: &str, series: &str| {
        let mut run = run(TimedOperation::Update, label, None, 1.0);
        run.point.series = series.into();
        run
    };
    let runs = vec![
        in_series("alone", "fast"),
        in_series("beside", "fast"),
        in_series("beside", "slow"),
    ];
    with_page(&report("slow", runs), |document| {
        let titles = texts(document, "h2");
        assert_eq!(titles[1..3], ["Throughput, fast", "Throughput, slow"]);
    });
    let runs = vec![
        in_series("no limit", "no limit"),
        in_series("limit 2", "limit"),
    ];
    with_page(&report("retry", runs), |document| {
        assert_eq!(texts(document, "h2")[1], "Throughput");
    });
}

#[test]
fn ratios_are_those_of_the_report() {
    let runs = vec![
        run(TimedOperation::Delete, "100", Some(100.0), 4.0),
        run(TimedOperation::Delete, "10000", Some(10_000.0), 1.0),
    ];
    with_page(&report("size", runs), |document| {
        let rows = texts(document, "tr");
        let delete = rows.iter().find(|it| it.contains("58.3 / 458.7"));
        assert!(
            delete.is_some_and(|it| it.ends_with("0.130.25")),
            "{rows:?}"
        );
    });
    let limited = |label: &str, seconds: f64| {
        let mut run = run(TimedOperation::Update, label, None, seconds);
        run.connections = Some(2);
        run
    };
    let runs = vec![
        run(TimedOperation::Update, "no limit", None, 1.0),
        limited("limit 2, after 1 s", 3.0),
        limited("limit 2, as advised", 2.0),
    ];
    with_page(&report("retry", runs), |document| {
        let rows = texts(document, "tr");
        let sums = rows.iter().find(|it| it.contains("344.6 / 203.7"));
        assert!(sums.is_some_and(|it| it.ends_with("1.692.00")), "{rows:?}");
    });
}
