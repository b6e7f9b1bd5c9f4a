//! `tidewater bench calls`, `events`, `wake` and `images`, small.

use std::fs;

use serde_json::Value;

use super::nothing_is_left;
use super::page::read_page;
use crate::centre::Centre;
use crate::program::Place;

/// A measure of the live layer, with its points.
fn live_points(place: &Place, centre: &Centre, name: &str, arguments: &[&str]) -> Vec<Value> {
    let url = centre.url();
    let mut all = vec!["bench", name, "--json", "--seconds", "0.1"];
    all.extend(["--consolidated", &url, "--report", "report.html"]);
    all.extend(arguments);
    let report = place.tidewater(&all).done().json();
    assert_eq!(report["scenario"], name, "{report}");
    let page = fs::read_to_string(place.path("report.html")).expect("the page");
    let document = read_page(&page, &report);
    let cells = document.descendants().filter(|it| it.has_tag_name("td"));
    let cells: Vec<&str> = cells.filter_map(|it| it.text()).collect();
    let points = report["points"].as_array().expect("points").clone();
    for point in &points {
        let name = point["name"].as_str().expect("a name");
        assert!(cells.contains(&name), "{name}: {cells:?}");
    }
    nothing_is_left(centre);
    points
}

#[test]
fn the_live_layer_is_measured_beside_references() {
    let place = Place::new();
    let (sqlite, postgres) = (Centre::sqlite(&place), Centre::postgres());
    let points = live_points(&place, &sqlite, "calls", &["--repeat", "2"]);
    let goals = points.iter().filter(|it| it["goal"].is_object());
    assert_eq!((points.len(), goals.count()), (6, 4), "{points:?}");
    points_are_more_than_nothing(&points);
    let points = live_points(&place, &postgres, "events", &[]);
    assert_eq!(points.len(), 18, "{points:?}");
    points_are_more_than_nothing(&points);
    let few = ["--remotes", "5", "--idle", "20"];
    assert_eq!(live_points(&place, &postgres, "wake", &few).len(), 5);
}

#[test]
fn first_syncs_are_measured_by_rows_and_from_an_image() {
    let place = Place::new();
    let few = ["--rows", "3000", "--repeat", "2"];
    for centre in [Centre::postgres(), Centre::sqlite(&place)] {
        let points = live_points(&place, &centre, "images", &few);
        assert_eq!(points.len(), 4, "{points:?}");
        points_are_more_than_nothing(&points);
        assert_eq!(points[3]["share_of"][0], "rows a second, by rows");
        assert_eq!(points[3]["goal"]["share"], 5.0);
    }
}

fn points_are_more_than_nothing(points: &[Value]) {
    for point in points {
        let median = point["value"]["median"].as_f64().expect("a number");
        assert!(median > 0.0, "{point}");
    }
}
