//! How rows of the table travel: images, transfers that break and are resumed, a branch between
//! device and headquarters, and a centre that was restored.

use std::net::SocketAddr;

use tidewater_testing::FrameProxy;
use tidewater_testing::proxy::{Journey, Way};

use super::actions::said;
use super::world::{Cell, NOTES, World};
use crate::centre::{Centre, sqlite_rows};
use crate::program::{sqlite, until};
use crate::shop::{add_user, password};

/// Rows that go up, and rows that come down: a download is only marked inside of large tables.
const ROWS_UP: i64 = 400;
const ROWS_DOWN: i64 = 20_500;

/// Rows that come down where nothing is marked.
const UNMARKED_ROWS_DOWN: i64 = 3_000;

/// How much of a transfer passes before the line breaks: of some 400 KB up, and 200 bytes a row down.
const PASSES_UP_BYTES: usize = 250_000;
const PASSES_DOWN_ROW_BYTES: usize = 136;

/// What the part that is sent again may come to: whoever begins anew sends more.
const REST_UP_BYTES: usize = 250_000;
const REST_DOWN_ROW_BYTES: usize = 122;

/// So many notes from this id on, of a text that compression cannot make small.
fn long_notes(first: i64, rows: i64, text: &str) -> String {
    let last = first + rows - 1;
    format!(
        "WITH RECURSIVE numbers (id) AS (SELECT {first} UNION ALL
           SELECT id + 1 FROM numbers WHERE id < {last})
         INSERT INTO note (id, topic, body) SELECT id, 1, {text} FROM numbers"
    )
}

fn remove_notes(first: i64, rows: i64) -> String {
    let last = first + rows - 1;
    format!("DELETE FROM note WHERE id BETWEEN {first} AND {last}")
}

fn bytes(journey: &Journey, way: Way) -> usize {
    let frames = match way {
        Way::Up => &journey.up,
        Way::Down => &journey.down,
    };
    frames.iter().map(Vec::len).sum()
}

fn line_to(world: &World) -> FrameProxy {
    let url = world.server().url();
    let address: SocketAddr = url["tcp://".len()..].parse().expect("an address");
    let line = FrameProxy::start(address).expect("a port is free");
    line.record();
    line
}

/// A new device begins from an image.
pub(super) fn image(world: &World) -> Cell {
    let build = ["image", "build", "--everyone", "--publication", "main"];
    let build = [&build[..], &["--out", "images/all.json"]].concat();
    let built = world.place.tidewater(&build);
    if built.code != 0 {
        return Cell::Refused(said(&built));
    }
    world
        .notes
        .execute("UPDATE note SET body = 'after the image' WHERE id = 6");
    let device = world.new_device("imaged");
    let begun = device.begin(
        world.server().url(),
        &["--image", "images/all.json", "--json"],
    );
    let report = begun.done().json();
    assert_eq!(report["downloaded"]["upserts"], 1, "{report}");
    device.comes_to_equal();
    device.execute("UPDATE note SET body = 'from the image' WHERE id = 6");
    device.sync().done();
    assert_eq!(world.note(6), world.written(2, "from the image"));
    Cell::Works
}

/// A first download that breaks goes on where it was.
pub(super) fn resumed_download(world: &World) -> Cell {
    let text = match world.notes {
        Centre::Sqlite(_) => "hex(randomblob(96))".to_owned(),
        Centre::Postgres(_) => ["md5(random()::text)"; 6].join(" || "),
    };
    let rows = match world.kind.has_own_download() {
        true => UNMARKED_ROWS_DOWN,
        false => ROWS_DOWN,
    };
    let of_rows = |row_bytes: usize| row_bytes * rows.unsigned_abs() as usize;
    world.notes.execute(&long_notes(30_001, rows, &text));
    if let Centre::Postgres(_) = world.notes {
        // How many rows there are PostgreSQL may remember from before.
        world.notes.execute("ANALYZE note");
    }
    let device = world.new_device("resumed_down");
    let line = line_to(world);
    line.plan_cut(Way::Down, of_rows(PASSES_DOWN_ROW_BYTES));
    device.begin(&line.url(), &["--no-retry"]).exits(2);
    assert!(line.happened());
    device.begin(&line.url(), &["--no-retry"]).done();
    let rest = bytes(line.journeys().last().expect("it connected"), Way::Down);
    assert_eq!(device.rows(NOTES), world.notes.rows(NOTES));
    world.notes.execute(&remove_notes(30_001, rows));
    device.sync_with(world.server().url()).done();
    device.comes_to_equal();
    if rest < of_rows(REST_DOWN_ROW_BYTES) {
        return Cell::Works;
    }
    let told = world.place.tidewater(&["deploy", "--dry-run"]).done();
    Cell::Refused(said(&told))
}

/// An upload that breaks goes on where it was.
pub(super) fn resumed_upload(world: &World) -> Cell {
    let device = world.device("resumed_up");
    device.execute(&long_notes(20_001, ROWS_UP, "hex(randomblob(500))"));
    let line = line_to(world);
    line.plan_cut(Way::Up, PASSES_UP_BYTES);
    let sync = ["sync", &device.file, "--server", &line.url(), "--no-retry"];
    world.place.tidewater(&sync).exits(2);
    assert!(line.happened());
    world.place.tidewater(&sync).done();
    let rest = bytes(line.journeys().last().expect("it connected"), Way::Up);
    assert!(rest < REST_UP_BYTES, "{rest} bytes were sent again");
    device.sync_with(world.server().url()).done();
    let of_them = "FROM note WHERE id BETWEEN 20001 AND 30000";
    let expected = format!("{ROWS_UP}|{}", world.kind.via());
    let count = format!("SELECT count(*), min(via) {of_them}");
    assert_eq!(world.notes.rows(&count), [expected]);
    device.comes_to_equal();
    device.execute(&remove_notes(20_001, ROWS_UP));
    device.comes_to_equal();
    assert_eq!(
        world.notes.rows(&format!("SELECT count(*) {of_them}")),
        ["0"]
    );
    Cell::Works
}

/// Headquarters has the table, a branch and its device edit it, both ways.
pub(super) fn hierarchy(world: &World) -> Cell {
    let place = &world.place;
    add_user(place, "branch");
    place.write("branch.password", &password("branch"));
    // The scripts beside it are headquarters'.
    std::fs::create_dir_all(place.path("branch_scripts")).expect("a folder can be made");
    place.write(
        "branch.toml",
        &format!(
            "scripts = \"branch_scripts\"\n\
             [server]\nconsolidated = \"sqlite:branch.db\"\n\
             [upstream]\nserver = {:?}\nuser = \"branch\"\npassword_file = \"branch.password\"\n\
             publications = [\"main\"]\nevery = \"1s\"\n\
             [[publication]]\nname = \"main\"\n[[publication.table]]\nname = \"note\"\n\
             partition = \"everyone\"\n",
            world.server().url()
        ),
    );
    let branch = place.serve(&["-c", "branch.toml"]);
    let add = ["user", "add", "nancy", "-c", "branch.toml"];
    place.tidewater_as(&password("nancy"), &add).done();
    let device = world.new_device("below");
    device.begin(branch.url(), &[]).done();
    device.execute("UPDATE note SET body = 'of the branch' WHERE id = 7");
    device.sync().done();
    let written = world.written(2, "of the branch");
    until("it is at headquarters", || world.note(7) == written);
    world
        .notes
        .execute("UPDATE note SET body = 'of headquarters' WHERE id = 8");
    until("the branch's device equals headquarters", || {
        device.sync().done();
        device.rows(NOTES) == world.notes.rows(NOTES)
    });
    let (code, log) = branch.terminate();
    assert_eq!(code, 0, "{log}");
    Cell::Works
}

/// What a restored centre has forgotten its devices give back, once. The last of a world.
pub(super) fn restored_centre(world: &mut World) -> Cell {
    let file = {
        let device = world.device("giving_back");
        device.file
    };
    let edit = |world: &World, sql: &str| {
        let file = sqlite(&world.place.path(&file));
        file.execute_batch(sql).expect("valid SQL");
    };
    let sync = |world: &World| drop(world.place.tidewater(&["sync", &file]).done());
    world.stop();
    let backup = world.centre.copy(&world.place);
    world.serve();
    edit(
        world,
        "INSERT INTO note (id, topic, body) VALUES (901, 1, 'forgotten');
         UPDATE note SET body = 'not forgotten' WHERE id = 4",
    );
    sync(world);
    assert_eq!(world.note(901), world.written(1, "forgotten"));
    world.stop();
    world.restore(backup);
    if let Centre::Postgres(_) = world.centre {
        // It has another name now, which is as good as another server.
        world.place.tidewater(&["deploy"]).done();
    }
    world.serve();
    edit(world, "UPDATE note SET body = 'edited after' WHERE id = 5");
    for _ in 0..3 {
        sync(world);
    }
    assert_eq!(world.note(901), world.written(1, "forgotten"));
    assert_eq!(world.note(4), world.written(1, "not forgotten"));
    assert_eq!(world.note(5), world.written(1, "edited after"));
    let rows = sqlite_rows(&sqlite(&world.place.path(&file)), NOTES);
    assert_eq!(rows, world.notes.rows(NOTES));
    Cell::Works
}
