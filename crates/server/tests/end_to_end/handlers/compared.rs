//! Tables that live with a handler, compared with what devices have of them.

use std::sync::{Arc, Mutex};

use serde_json::json;

use super::Notes;
use crate::backend::Backend;
use crate::device::Device;
use crate::handler::Handler;
use crate::scenario::shop;
use crate::verifying::{behind_the_back, verify};
use crate::world::World;

const NOTES: &str = "SELECT id, text FROM note ORDER BY id";

/// The shop with notes that live with a handler, who has five.
fn world_of_notes<B: Backend>() -> (World<B>, Handler, Arc<Mutex<Notes>>) {
    let notes = Arc::new(Mutex::new(Notes::default()));
    let answering = notes.clone();
    let handler = Handler::start(move |asked| answering.lock().unwrap().answer(asked));
    for id in 1..=5 {
        notes.lock().unwrap().write(id, Some("first"));
    }
    let mut world = World::<B>::open(shop());
    world.execute("CREATE TABLE note (id INTEGER NOT NULL PRIMARY KEY, text TEXT NOT NULL)");
    let table = format!(
        "[[publication.table]]\nname = \"note\"\npartition = \"everyone\"\nhandler = {:?}\n\
         upload = \"handler\"\ndownload = \"handler\"\n",
        handler.url
    );
    world.republish(&format!("{}\n{table}", shop().publication));
    (world, handler, notes)
}

/// Changes notes while no trigger records it.
fn edit_untracked(device: &Device) {
    let triggers =
        device.rows("SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 'note'");
    let drops: Vec<String> = triggers
        .iter()
        .map(|name| format!("DROP TRIGGER \"{name}\";"))
        .collect();
    device.edit(&format!(
        "{} UPDATE note SET text = 'mine' WHERE id = 1;
         UPDATE note SET text = 'both' WHERE id = 2;
         DELETE FROM note WHERE id = 3;
         INSERT INTO note VALUES (10, 'new')",
        drops.concat()
    ));
}

/// What the handler has by now.
fn kept_by(notes: &Mutex<Notes>) -> Vec<String> {
    let mut rows = std::collections::BTreeMap::new();
    for (id, text) in &notes.lock().unwrap().changes {
        rows.insert(*id, text.clone());
    }
    let rows = rows.into_iter();
    rows.filter_map(|(id, text)| Some(format!("{id}|{}", text?)))
        .collect()
}

fn what_is_changed_without_triggers_in_a_table_of_a_handler_goes_up<B: Backend>() {
    let (world, handler, notes) = world_of_notes::<B>();
    let mut ada = world.synced("ada");
    handler.asked();
    edit_untracked(&ada);
    let write = |id, text| notes.lock().unwrap().write(id, text);
    write(2, Some("theirs"));
    write(4, None);
    write(20, Some("other"));
    ada.sync();
    let expected = ["1|mine", "2|theirs", "5|first", "10|new", "20|other"];
    assert_eq!(kept_by(&notes), expected);
    assert_eq!(ada.rows(NOTES), expected);
    assert_eq!(ada.pending(), 0);
    let mut kept: Vec<String> = ada.refused().into_iter().map(|it| it.key).collect();
    kept.sort();
    assert_eq!(kept, ["[2]", "[4]"]);
    // Everything first, and then what is new since the last download.
    let asked = handler.asked();
    let downloads = asked.iter().filter(|it| it.event() == "download");
    let cursors: Vec<_> = downloads.map(|it| it.body["cursor"].clone()).collect();
    assert_eq!(cursors[0], json!(null));
    assert!(cursors.contains(&json!({ "at": 5 })), "{cursors:?}");
}

/// What was new since the last download is not known then: the rows of others win.
fn where_a_handler_begins_anew_what_was_changed_without_triggers_is_kept<B: Backend>() {
    let (world, _handler, notes) = world_of_notes::<B>();
    let mut ada = world.synced("ada");
    edit_untracked(&ada);
    {
        let mut notes = notes.lock().unwrap();
        notes.changes.truncate(3);
        notes.since = usize::MAX;
    }
    ada.sync();
    let all = ["1|first", "2|first", "3|first"];
    assert_eq!(kept_by(&notes), all);
    assert_eq!(ada.rows(NOTES), all);
    let mut kept: Vec<String> = ada.refused().into_iter().map(|it| it.key).collect();
    kept.sort();
    assert_eq!(kept, ["[10]", "[1]", "[2]", "[4]", "[5]"]);
}

fn what_differs_from_the_rows_of_a_handler_is_told_and_repaired_on_request<B: Backend>() {
    let (world, _handler, _notes) = world_of_notes::<B>();
    let mut ada = world.synced("ada");
    assert!(verify(&mut ada, false).is_equal);
    behind_the_back(
        &ada,
        "note",
        "UPDATE note SET text = 'other' WHERE id = 1; DELETE FROM note WHERE id = 2",
    );
    let changed = ada.rows(NOTES);
    let found = verify(&mut ada, false);
    assert!(!found.is_equal, "{found:?}");
    let note = found.tables.iter().find(|it| it.table == "note");
    let note = note.expect("all tables are told");
    assert_eq!((note.uncompared, note.equal), (None, 3));
    assert_eq!((note.different, note.missing, note.extra), (1, 1, 0));
    assert_eq!(ada.rows(NOTES), changed);
    let repaired = verify(&mut ada, true);
    assert!(repaired.is_equal && repaired.repaired, "{repaired:?}");
    let all = ["1|first", "2|first", "3|first", "4|first", "5|first"];
    assert_eq!(ada.rows(NOTES), all);
}

on_both_adapters!(
    what_is_changed_without_triggers_in_a_table_of_a_handler_goes_up,
    where_a_handler_begins_anew_what_was_changed_without_triggers_is_kept,
    what_differs_from_the_rows_of_a_handler_is_told_and_repaired_on_request,
);
