//! The page that a bench writes, with `--report`.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::program::Place;

/// A page that is well-formed, needs nothing from outside, and tells of the machine.
pub(super) fn read_page<'a>(page: &'a str, report: &Value) -> roxmltree::Document<'a> {
    let options = roxmltree::ParsingOptions {
        allow_dtd: true,
        ..Default::default()
    };
    let document = roxmltree::Document::parse_with_options(page, options);
    let document = document.unwrap_or_else(|error| panic!("{error}: {page}"));
    for node in document.descendants() {
        for attribute in node.attributes() {
            let is_outside = ["src", "href"].contains(&attribute.name());
            assert!(!is_outside, "{attribute:?}");
            assert!(!attribute.value().contains("http"), "{attribute:?}");
        }
    }
    for (start, _) in page.match_indices("url(") {
        assert!(page[start..].starts_with("url(#"), "{page}");
    }
    for word in ["<script", "<link", "@import", "http:", "https:"] {
        assert!(!page.contains(word), "{word}: {page}");
    }
    let cells = document.descendants().filter(|it| it.has_tag_name("td"));
    let cells: Vec<&str> = cells.filter_map(|it| it.text()).collect();
    for part in ["processor", "system", "database"] {
        let part = report["machine"][part].as_str().expect("a text");
        assert!(cells.contains(&part), "{part}: {cells:?}");
    }
    document
}

/// The page has every chart with every operation.
pub(super) fn is_a_page(path: &Path, report: &Value) {
    let page = fs::read_to_string(path).expect("the page");
    let document = read_page(&page, report);
    let charts = document
        .descendants()
        .filter(|it| it.attribute("class") == Some("chart"));
    let charts: Vec<(&str, Vec<&str>)> = charts
        .map(|chart| {
            let texts = chart.descendants().filter(|it| it.has_tag_name("text"));
            let texts = texts.filter_map(|it| it.text()).map(str::trim);
            (
                chart.attribute("aria-label").expect("a name"),
                texts.collect(),
            )
        })
        .collect();
    let runs = report["runs"].as_array().expect("runs");
    for begins in ["Throughput", "Phases", "Processor time"] {
        let ours = charts.iter().filter(|(name, _)| name.starts_with(begins));
        let texts: Vec<&&str> = ours.flat_map(|(_, texts)| texts).collect();
        for run in runs {
            let operation = run["operation"].as_str().expect("a name");
            let is_in_it = operation != "empty" || begins != "Throughput";
            let is_there = texts.iter().any(|it| **it == operation);
            assert_eq!(is_there, is_in_it, "{begins}, {operation}: {texts:?}");
        }
    }
}

#[test]
fn a_page_that_cannot_be_written_is_told_after_the_table() {
    let place = Place::new();
    let small = ["--remotes", "2", "--rows", "1"];
    for (path, message) in [
        ("nowhere/report.html", "no such file or directory"),
        ("/dev/full", "no space left on device"),
    ] {
        let arguments = [&["bench", "size", "--report", path], &small[..]].concat();
        let run = place.tidewater(&arguments).exits(1);
        assert!(run.stdout.contains("rows a sync  operation"), "{run:?}");
        let error = format!("error: cannot write the report {path}: {message}");
        assert!(run.stderr.contains(&error), "{run:?}");
        // One object, and it is the result.
        let run = place.tidewater(&[&arguments[..], &["--json"]].concat());
        assert_eq!(run.exits(1).json()["scenario"], "size");
    }
    // Bench's own text in it is text.
    let odd = "a<b>&\"c\".html";
    let files = place.path("<i>&");
    fs::create_dir(&files).expect("a folder");
    let files = files.to_str().expect("a path");
    let more = ["--files", files, "--report", odd];
    let report = place
        .tidewater(&[&["bench", "size", "--json"], &small[..], &more].concat())
        .done()
        .json();
    is_a_page(&place.path(odd), &report);
    let page = fs::read_to_string(place.path(odd)).expect("the page");
    assert!(page.contains("&lt;i&gt;&amp;"), "{page}");
}
