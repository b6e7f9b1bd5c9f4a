//! `tidewater demo`: the whole story, and that it ends well.

use crate::program::Place;

#[test]
fn the_demonstration_shows_syncs_a_call_an_event_and_a_change_that_arrives() {
    let place = Place::new();
    let run = place.tidewater(&["demo", "--directory", "demo"]).done();
    let story = [
        "First sync",
        "refused:",
        "a call:     eli asks the office what a valve costs: 38.75",
        "an event:   anna publishes where she is; heard by bela, chen, dara",
        "a change:   the office writes a note; eli's file is connected, and has it",
        "all equal",
    ];
    let mut rest = run.stdout.as_str();
    for told in story {
        let (_, after) = rest
            .split_once(told)
            .unwrap_or_else(|| panic!("{told}: {run:#?}"));
        rest = after;
    }
    // It is there to go on with, and an earlier one makes way.
    place.tidewater(&["status", "demo/anna.db"]).done();
    place.tidewater(&["demo", "--directory", "demo"]).done();
}
