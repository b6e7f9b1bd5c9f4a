//! The order in which the operations of an upload are applied.

use crate::engine::sql::served_table::{OnDelete, TableAdapter};
use crate::engine::upload::incoming_rows::IncomingTable;

/// What is done with rows of a table.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ApplyStep {
    /// Runs what stands at an event of the table.
    Event(&'static str),
    Delete,
    Move,
    Insert,
    Update,
    HandOver,
}

/// The places of tables, and what is done with rows of them.
pub(super) type Steps = Vec<(usize, ApplyStep)>;

/// What is done where rows go before deletes, with the events of scripts around each: rows of all
/// tables, parents first; rows that are handed over; and deletes, of the last table first.
pub(super) fn rows_first<T: TableAdapter>(
    tables: &[IncomingTable<'_, T>],
    is_handed_over: impl Fn(usize) -> bool,
) -> [Steps; 3] {
    let mut parents_first: Vec<usize> = (0..tables.len()).collect();
    parents_first.sort_by_key(|&place| tables[place].index);
    let (mut first, mut handing_over, mut last) = (Steps::new(), Steps::new(), Steps::new());
    for &place in &parents_first {
        let steps = [
            ApplyStep::Event("begin_upload_rows"),
            ApplyStep::Move,
            ApplyStep::Insert,
            ApplyStep::Update,
        ];
        first.extend(steps.map(|it| (place, it)));
        let rest = [
            (place, ApplyStep::HandOver),
            (place, ApplyStep::Event("end_upload_rows")),
        ];
        match is_handed_over(place) {
            true => handing_over.extend(rest),
            false => first.push(rest[1]),
        }
    }
    for &place in parents_first.iter().rev() {
        let steps = [
            ApplyStep::Event("begin_upload_deletes"),
            ApplyStep::Delete,
            ApplyStep::Event("end_upload_deletes"),
        ];
        last.extend(steps.map(|it| (place, it)));
    }
    [first, handing_over, last]
}

/// Adds the events of scripts to what is done where deletes go first.
pub(super) fn with_events(steps: [Steps; 3]) -> [Steps; 3] {
    let is_of_rows = |step: ApplyStep| !matches!(step, ApplyStep::Delete);
    let last_of_rows = |place: usize| {
        let all: Vec<_> = steps.iter().flatten().collect();
        all.iter()
            .rposition(|&&(of, step)| of == place && is_of_rows(step))
    };
    let (mut number, mut begun) = (0, Vec::new());
    let with_events = steps.iter().map(|some| {
        let mut with_events = Steps::with_capacity(some.len() + 2);
        for &(place, step) in some {
            let mut event = |name| with_events.push((place, ApplyStep::Event(name)));
            if !is_of_rows(step) {
                event("begin_upload_deletes");
            } else if !begun.contains(&place) {
                begun.push(place);
                event("begin_upload_rows");
            }
            with_events.push((place, step));
            let mut event = |name| with_events.push((place, ApplyStep::Event(name)));
            if !is_of_rows(step) {
                event("end_upload_deletes");
            } else if last_of_rows(place) == Some(number) {
                event("end_upload_rows");
            }
            number += 1;
        }
        with_events
    });
    let with_events: Vec<Steps> = with_events.collect();
    with_events.try_into().unwrap_or_default()
}

/// What is done first; then rows are handed over, as all the others are judged by whose they are
/// before that; and the deletes that come afterwards.
pub(super) fn order<T: TableAdapter>(tables: &[IncomingTable<'_, T>]) -> [Steps; 3] {
    let mut parents_first: Vec<usize> = (0..tables.len()).collect();
    parents_first.sort_by_key(|&place| tables[place].index);
    let deletes = parents_first
        .iter()
        .rev()
        .map(|&it| (it, ApplyStep::Delete));
    // The upload may move elsewhere what these would take along.
    let (last, mut first): (Steps, Steps) =
        deletes.partition(|&(place, _)| tables[place].table.on_delete == OnDelete::TakesAlong);
    let handing_over = parents_first.iter().map(|&it| (it, ApplyStep::HandOver));
    let handing_over = handing_over.collect();
    for place in parents_first {
        // A row that is inserted may have a key that another one leaves.
        let others = [ApplyStep::Move, ApplyStep::Insert, ApplyStep::Update];
        first.extend(others.map(|step| (place, step)));
    }
    [first, handing_over, last]
}
