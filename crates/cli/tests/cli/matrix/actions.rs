//! What people and operators do with a table, as functions that try it in a world: uploads, what
//! becomes of refused rows and conflicts, and what tells of the table.

use serde_json::Value;

use super::world::{Cell, Device, NOTES, World};
use crate::live::LiveCommand;
use crate::program::{Run, until};

/// What a command says when it refuses: everything, on one line.
pub(super) fn said(run: &Run) -> String {
    let text = format!("{} {}", run.stdout, run.stderr);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Inserts, updates and deletes go up, and reach another device.
pub(super) fn upload(world: &World) -> Cell {
    let (writer, reader) = (world.device("writer"), world.device("reader"));
    writer.execute(
        "INSERT INTO note (id, topic, body) VALUES (101, 1, 'inserted');
         UPDATE note SET body = 'updated' WHERE id = 1;
         DELETE FROM note WHERE id = 2",
    );
    writer.sync().done();
    assert_eq!(world.note(101), world.written(1, "inserted"));
    assert_eq!(world.note(1), world.written(1, "updated"));
    assert!(world.note(2).is_empty());
    writer.comes_to_equal();
    reader.comes_to_equal();
    Cell::Works
}

/// What decides when a device sends a row decides when the operator sends it again.
pub(super) fn replay(world: &World) -> Cell {
    let device = world.device("replayed");
    device.execute("INSERT INTO note (id, topic, body) VALUES (201, 9, 'closed')");
    device.sync().exits(6);
    let number = world.refused(201);
    let replay = || world.place.tidewater(&["refused", "replay", &number]);
    assert_ne!(replay().code, 0);
    assert!(world.note(201).is_empty());
    world.open_topic(9);
    replay().done();
    assert_eq!(world.note(201), world.written(9, "closed"));
    device.comes_to_equal();
    assert_eq!(
        device.rows("SELECT body FROM note WHERE id = 201"),
        ["closed"]
    );
    let open = world
        .place
        .tidewater(&["refused", "list", "--open", "--json"]);
    assert_eq!(open.done().json()["refused"], serde_json::json!([]));
    Cell::Works
}

/// An operator gives a refused row values that are taken.
pub(super) fn edit(world: &World) -> Cell {
    let device = world.device("edited");
    device.execute("INSERT INTO note (id, topic, body) VALUES (301, 8, 'edited')");
    device.sync().exits(6);
    let number = world.refused(301);
    let edit = |set: &str| {
        world
            .place
            .tidewater(&["refused", "edit", &number, "--set", set])
    };
    assert_ne!(edit("body=again").code, 0);
    assert!(world.note(301).is_empty());
    edit("topic=2").done();
    assert_eq!(world.note(301), world.written(2, "edited"));
    device.comes_to_equal();
    assert_eq!(device.rows("SELECT topic FROM note WHERE id = 301"), ["2"]);
    Cell::Works
}

/// A row that two sides have changed: what the device wanted is written after all.
pub(super) fn resolve(world: &World) -> Cell {
    let decided = world.publication(
        "\"everyone\"",
        "conflict = { resolve = \"client_wins\" }",
        "",
    );
    world.configure("decided.toml", &decided);
    let checked = world
        .place
        .tidewater(&["deploy", "--dry-run", "-c", "decided.toml"]);
    if checked.code != 0 {
        return Cell::Refused(said(&checked));
    }
    // Where scripts write updates no resolver is asked, which is said.
    let is_unasked = said(&checked).contains("conflict.resolve has no effect on updates");
    assert_eq!(is_unasked, world.kind.scripts_updates(), "{checked:#?}");
    let device = world.device("resolved");
    world
        .notes
        .execute("UPDATE note SET body = 'of the centre' WHERE id = 3");
    device.execute("UPDATE note SET body = 'of the device' WHERE id = 3");
    let lost = device.sync().done();
    assert!(lost.stderr.contains("changes that lost"), "{lost:#?}");
    assert_eq!(
        device.rows("SELECT body FROM note WHERE id = 3"),
        ["of the centre"]
    );
    let number = world.conflict(3);
    let resolve = ["conflicts", "resolve", &number, "--with", "uploaded"];
    world.place.tidewater(&resolve).done();
    assert_eq!(world.note(3), world.written(1, "of the device"));
    device.comes_to_equal();
    Cell::Works
}

/// A comparison finds what was changed behind the back of tracking.
pub(super) fn verify(world: &World) -> Cell {
    let device = world.device("verified");
    let verify = || world.place.tidewater(&["verify", &device.file]);
    let told = verify();
    if told.stderr.contains("was not compared") {
        assert!(
            told.stdout.contains("but for what was not compared"),
            "{told:#?}"
        );
        return Cell::Refused(said(&told.done()));
    }
    assert!(told.done().stdout.contains("equal to the centre"));
    let (drops, triggers) = tracking(&device);
    device.execute(&format!(
        "BEGIN; {drops} UPDATE note SET body = 'behind' WHERE id = 4; {triggers}; COMMIT"
    ));
    let told = verify().exits(5);
    assert!(told.stderr.contains("[4]"), "{told:#?}");
    world
        .place
        .tidewater(&["verify", &device.file, "--repair"])
        .done();
    assert_eq!(device.rows(NOTES), world.notes.rows(NOTES));
    Cell::Works
}

/// The statements that drop the triggers of the table on a device, and that make them again.
fn tracking(device: &Device) -> (String, String) {
    let of_table = "FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 'note'";
    let triggers = device.rows(&format!("SELECT sql {of_table}")).join(";");
    let names = device.rows(&format!("SELECT name {of_table}"));
    let drops = names.iter().map(|it| format!("DROP TRIGGER \"{it}\";"));
    (drops.collect(), triggers)
}

/// What is edited while a tool has dropped the tracking triggers goes up, or is listed as refused.
pub(super) fn edit_untracked(world: &World) {
    let device = world.device("untracked");
    let (drops, _) = tracking(&device);
    device.execute(&format!(
        "{drops} UPDATE note SET body = 'edited untracked' WHERE id = 5;
         INSERT INTO note (id, topic, body) VALUES (801, 1, 'made untracked')"
    ));
    for _ in 0..3 {
        let code = device.sync().code;
        assert!([0, 6].contains(&code), "{code}");
    }
    let listed = world
        .place
        .tidewater(&["refused", "list", &device.file, "--json"]);
    let listed = listed.done().json();
    for (id, body) in [(5, "edited untracked"), (801, "made untracked")] {
        let is_there = world.note(id) == world.written(1, body);
        let refused = listed["refused"].to_string();
        let is_listed = refused.contains(&format!("[{id}]")) && refused.contains(body);
        assert!(
            is_there || is_listed,
            "note {id} of {:?}: {listed}",
            world.kind
        );
    }
}

/// What a narrower partition would take from devices is counted.
pub(super) fn preview(world: &World) -> Cell {
    let device = world.device("previewed");
    let id = world.remote_id(&device);
    let preview = |config| {
        let told = ["preview", "-c", config, "--remote", &id, "--json"];
        world.place.tidewater(&told)
    };
    // As it is deployed, nothing comes and nothing goes.
    let still = preview("tidewater.toml").done().json();
    let nothing = serde_json::json!([0, 0]);
    assert_eq!(
        serde_json::json!([still["added"], still["removed"]]),
        nothing
    );
    let partition = "{ columns = [\"topic\"], values = \"SELECT 1\" }";
    world.configure("narrow.toml", &world.publication(partition, "", ""));
    let told = preview("narrow.toml");
    if told.code != 0 {
        return Cell::Refused(said(&told));
    }
    let counted = told.json();
    let gone = world
        .notes
        .rows("SELECT count(*) FROM note WHERE topic <> 1");
    assert_eq!(counted["removed"].to_string(), gone[0], "{counted}");
    assert_ne!(gone, ["0"]);
    Cell::Works
}

/// The operator is told why the device has a row, or not, and what decides about it.
pub(super) fn explain(world: &World) -> Cell {
    let device = world.device("explained");
    let id = world.remote_id(&device);
    let explain = |key: &str| {
        let told = ["explain", "--remote", &id, "note", key, "--json"];
        world.place.tidewater(&told).done().json()
    };
    let held = explain("5");
    if held["verdict"] == "not_by_rules" {
        return Cell::Refused(held["sentence"].as_str().unwrap_or_default().to_owned());
    }
    // Of the remote's first sync the centre knows a moment later.
    let verdict = held["verdict"].as_str().unwrap_or_default();
    assert!(["held", "comes"].contains(&verdict), "{held}");
    assert_eq!(held["publications"][0]["holds"], true, "{held}");
    assert_eq!(held["row"]["body"], "five", "{held}");
    assert_eq!(explain("999")["verdict"], "absent");
    Cell::Works
}

/// Simulated devices edit the table while everything goes wrong, and every promise is kept.
pub(super) fn simulate(world: &World) -> Cell {
    let mut simulate = vec!["simulate", "--seeds", "0..3", "--json"];
    if !world.kind.via().is_empty() {
        simulate.extend(["--centre-writes", "note.via"]);
    }
    if world.kind.has_handler() {
        let answers = r#"{"table":"note","operation":"delete","verdict":"apply"}
{"table":"note","verdict":"change","new":{"via":"handler"}}"#;
        world.place.write("answers.jsonl", answers);
        simulate.extend(["--handler-answers", "answers.jsonl"]);
    }
    let told = world.place.tidewater(&simulate);
    if told.code == 1 {
        return Cell::Refused(said(&told));
    }
    let told = told.done().json();
    assert_eq!(told["failure"], serde_json::Value::Null);
    assert!(
        told["tally"]["changes_of_remotes"].as_u64() > Some(5),
        "{told}"
    );
    let left_out = told["remarks"].to_string();
    if left_out.contains("note/download_cursor") || left_out.contains("note is left out") {
        return Cell::Refused(left_out);
    }
    Cell::Works
}

/// A live device gets a change of the centre without asking.
pub(super) fn wake(world: &World) -> Cell {
    let device = world.device("woken");
    let living = LiveCommand::start(&world.place, &["live", &device.file, "--every", "1h"]);
    living.next(&|event| event["why"] == "connected");
    if world.kind.has_own_download() {
        living.end();
        let told = world.place.tidewater(&["deploy", "--dry-run"]).done();
        return Cell::Refused(said(&told));
    }
    world
        .notes
        .execute("UPDATE note SET body = 'woken' WHERE id = 5");
    // It may be told of what was before, too.
    let is_of_notes = |event: &Value| event["tables"] == serde_json::json!(["note"]);
    living.next(&|event| event["why"] == "told" && is_of_notes(event));
    until("the device has it", || {
        device.rows("SELECT body FROM note WHERE id = 5") == ["woken"]
    });
    living.end();
    Cell::Works
}
