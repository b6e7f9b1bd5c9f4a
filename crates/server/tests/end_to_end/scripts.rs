//! Scripts at the events of a sync: each in its order and transaction, and what they decide.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::time::Duration;

use tidewater_centre::ScriptSpec;
use tidewater_centre::engine::scripts::{EVENTS, ScriptEvent, ScriptForm, ScriptTransaction};

use tempfile::TempDir;
use tidewater_protocol::Code;
use tidewater_server::config::PasswordSource;

use crate::backend::{Backend, save_sqlite};
use crate::compare::assert_converged;
use crate::device::Device;
use crate::scenario::{Scenario, shop};
use crate::world::World;

const JOURNAL: &str = "CREATE TABLE journal (id INTEGER PRIMARY KEY, line TEXT, tx TEXT);";

/// The shop with a journal, and scripts.
fn open<B: Backend>(scripts: Vec<ScriptSpec>) -> World<B> {
    let mut scenario: Scenario = shop();
    scenario.schema.push_str(JOURNAL);
    World::open_changed(B::new(), scenario, |config| {
        config.publications[0].scripts = scripts;
    })
}

fn script(table: &str, event: &str, sql: &str) -> ScriptSpec {
    ScriptSpec::at("scripts", ["default", table, event], sql)
}

/// A statement that notes an event, and its transaction.
fn note<B: Backend>(table: &str, event: &str) -> String {
    let line = match table {
        "connection" => event.to_owned(),
        table => format!("{table} {event}"),
    };
    format!(
        "INSERT INTO journal (id, line, tx)
         SELECT coalesce(max(id), 0) + 1, '{line}', {} FROM journal;",
        B::TRANSACTION
    )
}

/// What was noted since the last look: lines, each with its transaction.
fn journal<B: Backend>(backend: &B) -> Vec<(String, String)> {
    let lines = backend.rows("SELECT line, tx FROM journal ORDER BY id");
    backend.execute("DELETE FROM journal");
    let lines = lines
        .iter()
        .map(|it| it.split_once('|').expect("two columns"));
    lines
        .map(|(line, tx)| (line.to_owned(), tx.to_owned()))
        .collect()
}

/// A script for every event of the connection and of products.
fn everything<B: Backend>() -> Vec<ScriptSpec> {
    let mut scripts = Vec::new();
    for event in EVENTS {
        let of: &[&str] = match (event.of_connection, event.of_table) {
            (true, true) => &["connection", "product"],
            (true, false) => &["connection"],
            (false, _) => &["product"],
        };
        for table in of {
            // What is only read notes nothing.
            let sql = match rows(event) {
                Some(sql) if event.transaction == ScriptTransaction::Download => sql.to_owned(),
                Some(sql) if event.form == ScriptForm::Fetch => sql.to_owned(),
                Some(sql) => note::<B>(table, event.name) + sql,
                None => note::<B>(table, event.name),
            };
            scripts.push(script(table, event.name, &sql));
        }
    }
    // They contradict each other.
    scripts.retain(|it| it.event != "upload_fetch_column_conflict");
    scripts
}

/// What an event of rows does.
fn rows(event: &ScriptEvent) -> Option<&'static str> {
    Some(match event.name {
        "upload_insert" => {
            "INSERT INTO product (product_id, name, stock)
             VALUES ({ml r.product_id}, {ml r.name}, {ml r.stock})"
        }
        "upload_fetch" => {
            "SELECT product_id, name, stock FROM product WHERE product_id = {r.product_id}"
        }
        "upload_update" => {
            "UPDATE product SET name = {r.name}, stock = {r.stock} WHERE product_id = {o.product_id}"
        }
        "resolve_conflict" => {
            "UPDATE product SET stock = stock + {r.stock} - {o.stock} WHERE product_id = {r.product_id}"
        }
        "upload_delete" => "DELETE FROM product WHERE product_id = {r.product_id}",
        "download_cursor" => "SELECT product_id, name, stock FROM product",
        "download_delete_cursor" => "SELECT product_id FROM product WHERE 1 = 0",
        _ => return None,
    })
}

fn every_event_happens_in_its_order_and_transaction<B: Backend>() {
    let world = open::<B>(everything::<B>());
    let mut ada = world.synced("ada");
    journal(&world.backend);
    ada.edit(
        "INSERT INTO product VALUES (9, 'hat', 1);
         INSERT INTO product VALUES (10, 'mug', 1);
         UPDATE product SET name = 'biro' WHERE product_id = 1;
         UPDATE product SET stock = stock + 5 WHERE product_id = 2;
         DELETE FROM product WHERE product_id = 3",
    );
    world.execute(
        "INSERT INTO product VALUES (10, 'taken', 7);
         UPDATE product SET stock = stock - 1 WHERE product_id = 2",
    );
    let report = ada.sync();
    assert_eq!((report.refused, report.conflicts), (1, 1), "{report:?}");
    // The acknowledgement is on its way when the sync is over.
    let acknowledged = "SELECT 1 FROM journal WHERE line = 'publication_download_ack'";
    while world.rows(acknowledged).is_empty() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let lines = journal(&world.backend);
    let names = lines.iter().map(|it| it.0.as_str());
    // Which of the server's connections it is, is not said; and times are told of whatever ran.
    let names: Vec<&str> = names
        .filter(|it| *it != "begin_connection" && !it.ends_with("time_statistics"))
        .collect();
    let times = |of: &str| lines.iter().filter(|it| it.0 == of).count();
    assert!(times("time_statistics") > 10, "{lines:?}");
    assert!(times("product time_statistics") > 10, "{lines:?}");
    assert_eq!(
        names,
        [
            "authenticate_parameters",
            "modify_user",
            "begin_synchronization",
            "product begin_synchronization",
            "begin_publication",
            "begin_upload",
            "product begin_upload",
            "product begin_upload_rows",
            "product upload_insert",
            "product upload_update",
            "product upload_old_row_insert",
            "product upload_new_row_insert",
            "product resolve_conflict",
            "product end_upload_rows",
            "product begin_upload_deletes",
            "product upload_delete",
            "product end_upload_deletes",
            "product handle_error",
            "product end_upload",
            "end_upload",
            "product upload_statistics",
            "upload_statistics",
            "product report_error",
            "modify_last_download",
            "prepare_for_download",
            "modify_next_last_download",
            "begin_download",
            "product begin_download",
            "product end_download",
            "end_download",
            "download_statistics",
            "product download_statistics",
            "end_publication",
            "product end_synchronization",
            "end_synchronization",
            "synchronization_statistics",
            "product synchronization_statistics",
            "download_ack",
            "product download_ack",
            "publication_download_ack",
        ]
    );
    // Each in the transaction that the page says.
    let mut transactions: HashMap<&str, ScriptTransaction> = HashMap::new();
    for (line, tx) in lines.iter().filter(|it| !it.1.is_empty()) {
        let name = line.rsplit(' ').next().unwrap_or(line);
        let event = EVENTS
            .iter()
            .find(|it| it.name == name)
            .expect("it is an event");
        let known = transactions.insert(tx, event.transaction);
        assert!(known.is_none_or(|it| it == event.transaction), "{line}");
    }
    let different: HashSet<ScriptTransaction> = transactions.values().copied().collect();
    assert_eq!(different.len(), transactions.len(), "{lines:?}");
    ada.discard_refused();
    ada.sync();
    assert_converged(&world, &[&ada]);
}

fn connections_begin_and_end_with_their_scripts<B: Backend>() {
    let events = ["begin_connection", "end_connection"];
    let scripts = events.map(|event| script("connection", event, &note::<B>("connection", event)));
    let world = open::<B>(scripts.into());
    let (mut ada, mut bob) = (world.synced("ada"), world.synced("bob"));
    ada.edit("UPDATE product SET stock = 0");
    ada.sync();
    bob.sync();
    let count = |lines: &[(String, String)], event| lines.iter().filter(|it| it.0 == event).count();
    let begun = journal(&world.backend);
    assert!(count(&begun, "begin_connection") > 0, "{begun:?}");
    assert_eq!(count(&begun, "end_connection"), 0);
    let World {
        server, backend, ..
    } = world;
    server.shut_down();
    let ended = journal(&backend);
    assert_eq!(
        count(&ended, "end_connection"),
        count(&begun, "begin_connection"),
        "{ended:?}"
    );
}

fn a_script_knows_passwords<B: Backend>() {
    let check = "SELECT CASE WHEN {s.username} = 'ada' AND {s.password} = 'correct horse'
        THEN 1000 ELSE 4000 END AS authentication_status";
    let scripts = vec![script("connection", "authenticate_user", check)];
    let world = World::<B>::open_changed(B::new(), shop(), |config| {
        config.publications[0].scripts = scripts;
        config.sign_in.passwords = PasswordSource::Script;
    });
    let mut ada = world.device("ada");
    ada.sync();
    let mut bob = world.device("bob");
    let error = bob.try_sync().expect_err("the script does not know him");
    assert_eq!(error.code(), Code::WrongPassword, "{error}");
    // Whoever was let in has a credential of its own.
    ada.sync();
}

/// A row for which a script ends each sync holds a device up only until its user has changed it.
fn a_sync_that_a_script_has_ended_goes_on_with_what_is_pending_then<B: Backend>() {
    let world = open::<B>(vec![
        script(
            "product",
            "upload_insert",
            "INSERT INTO product (product_id, name, stock)
             VALUES ({r.product_id}, CASE WHEN {r.name} <> 'bad' THEN {r.name} END, {r.stock})",
        ),
        script(
            "product",
            "handle_error",
            "SELECT CASE {s.error_code} WHEN 'not_null' THEN 3000 ELSE 1000 END AS action_code",
        ),
        script(
            "connection",
            "report_error",
            &note::<B>("connection", "report_error"),
        ),
    ]);
    let mut ada = world.synced("ada");
    let ends = |device: &mut Device| {
        let error = device.try_sync().expect_err("the script ends it");
        assert_eq!(error.code(), Code::ScriptFailed, "{error}");
        let told = error.to_string();
        let named = ["handle_error.sql ends the sync, because", "\"product\""];
        assert!(named.iter().all(|it| told.contains(it)), "{told}");
    };
    ada.edit("INSERT INTO product VALUES (10, 'bad', 1), (11, 'good', 1)");
    ends(&mut ada);
    assert_eq!(journal(&world.backend).len(), 1);
    ada.edit("UPDATE product SET stock = 2 WHERE product_id = 11");
    ends(&mut ada);
    assert_eq!(ada.pending(), 2);
    ada.edit("UPDATE product SET name = 'better' WHERE product_id = 10");
    assert_eq!(ada.sync().refused, 0);
    let all = "SELECT product_id, name, stock FROM product WHERE product_id > 9 ORDER BY 1";
    assert_eq!(world.rows(all), ["10|better|1", "11|good|2"]);
    ada.edit("INSERT INTO product VALUES (12, 'bad', 1)");
    ends(&mut ada);
    ada.edit("DELETE FROM product WHERE product_id = 12");
    ada.sync();
    assert_eq!(world.rows(all), ["10|better|1", "11|good|2"]);
    assert_eq!(ada.pending(), 0);
    // Its copy has the same upload on the way, and both go in, each under its own id.
    ada.edit("INSERT INTO product VALUES (13, 'bad', 1)");
    ends(&mut ada);
    let folder = TempDir::new().expect("a temporary folder");
    let path = folder.path().join("copy.db");
    save_sqlite(&ada.path, &path);
    let mut copy = Device::at(&path, &ada);
    ada.edit("UPDATE product SET name = 'mine' WHERE product_id = 13");
    copy.edit("UPDATE product SET name = 'mine' WHERE product_id = 13");
    ada.sync();
    copy.sync();
    copy.sync();
    assert_eq!(world.rows(all).len(), 3);
    assert_eq!(copy.rows(all), world.rows(all));
}

/// Whatever asks for rows beside the downloads does not get those of others.
fn only_the_script_says_who_gets_which_rows<B: Backend>() {
    let cursor = "SELECT product_id, name, stock FROM product WHERE name LIKE {s.username} || '%'";
    let scripts = vec![script("product", "download_cursor", cursor)];
    let world = World::<B>::open_changed(B::new(), shop(), |config| {
        config.publications[0].scripts = scripts;
        config.server.verify_every = 1;
    });
    world.execute(
        "UPDATE product SET name = 'bob ' || product_id;
         INSERT INTO product VALUES (10, 'ada 10', 1), (11, 'ada 11', 1)",
    );
    let mut ada = world.synced("ada");
    let mine = "SELECT product_id FROM product ORDER BY product_id";
    assert_eq!(ada.rows(mine), ["10", "11"]);
    // It verifies itself with each.
    for _ in 0..4 {
        ada.sync();
        assert_eq!(ada.rows(mine), ["10", "11"]);
    }
    let verified = ada.remote.verify(true, &mut |_| ControlFlow::Continue(()));
    verified.expect("it can be verified");
    assert_eq!(ada.rows(mine), ["10", "11"]);
    let told = world.server.ask(async |centre| centre.status().await);
    assert!(told.expect("it can be read").incidents.is_empty());
    // Of two refused changes one row has gone to bob by the time when ada gives up.
    ada.edit("UPDATE product SET name = ''");
    assert_eq!(ada.sync().refused, 2);
    world.execute("UPDATE product SET name = 'bob too' WHERE product_id = 10");
    ada.discard_refused();
    ada.sync();
    assert_eq!(
        ada.rows("SELECT product_id, name FROM product"),
        ["11|ada 11"]
    );
}

/// Whatever a script says that is not clear lets nobody in.
fn parameters_are_authenticated_only_by_what_is_clear<B: Backend>() {
    let with = |status: &str| {
        let sql = format!("SELECT {status} AS authentication_status");
        open::<B>(vec![script("connection", "authenticate_parameters", &sql)])
    };
    with("1000").synced("ada");
    for status in ["4000", "2000", "0", "-1", "NULL", "'yes'"] {
        let world = with(status);
        let error = world.device("ada").try_sync().expect_err(status);
        assert_eq!(error.code(), Code::ParameterNotAllowed, "{status}: {error}");
    }
}

/// A statement that leaves a word in the session, and what has been left there.
fn leave<B: Backend>(word: &str) -> String {
    match B::CONCURRENT_WRITERS {
        true => format!("CREATE TEMPORARY TABLE IF NOT EXISTS left_{word} (x int)"),
        false => format!("CREATE TEMP TABLE IF NOT EXISTS left_{word} (x)"),
    }
}

fn left<B: Backend>() -> &'static str {
    match B::CONCURRENT_WRITERS {
        true => {
            "(SELECT coalesce(string_agg(substr(relname, 6), ' ' ORDER BY relname), '')
              FROM pg_class WHERE relpersistence = 't' AND relname LIKE 'left\\_%'
              AND relkind = 'r' AND relnamespace = pg_my_temp_schema())"
        }
        false => {
            "(SELECT coalesce(group_concat(substr(name, 6), ' '), '') FROM (SELECT name
              FROM sqlite_temp_master WHERE name LIKE 'left\\_%' ESCAPE '\\' ORDER BY name))"
        }
    }
}

/// Interleaving 37, and what a sync finds of its own.
fn a_session_is_of_one_version_and_whole_for_a_sync<B: Backend>() {
    let noted = |version: &str, event: &str, word: &str| {
        let sql = format!(
            "{}; INSERT INTO journal (id, line)
             SELECT coalesce(max(id), 0) + 1, '{version} {event}: ' || {} FROM journal",
            leave::<B>(word),
            left::<B>()
        );
        ScriptSpec::at("scripts", [version, "connection", event], sql)
    };
    let world = open::<B>(vec![
        noted("default", "begin_synchronization", "a"),
        noted("default", "begin_upload", "b"),
        noted("default", "begin_download", "c"),
        noted("default", "end_synchronization", "d"),
        noted("v2", "begin_synchronization", "z"),
        noted("v2", "end_synchronization", "z"),
    ]);
    let mut ada = world.device("ada");
    ada.sync();
    journal(&world.backend);
    let mut bob = world.device("bob");
    bob.remote
        .set_parameter("script_version", Some("v2"))
        .expect("it can be set");
    bob.sync();
    let lines =
        |backend: &B| -> Vec<String> { journal(backend).into_iter().map(|it| it.0).collect() };
    assert_eq!(
        lines(&world.backend),
        ["v2 begin_synchronization: z", "v2 end_synchronization: z"]
    );
    // Another sync in the middle does not take what the first one left.
    ada.edit("UPDATE product SET stock = 0 WHERE product_id = 1");
    ada.sync();
    let of_ada = lines(&world.backend);
    assert_eq!(of_ada.len(), 4, "{of_ada:?}");
    assert!(
        of_ada[1].starts_with("default begin_upload: a b"),
        "{of_ada:?}"
    );
    assert_eq!(of_ada[3], "default end_synchronization: a b c d");
    assert!(of_ada.iter().all(|it| !it.ends_with('z')), "{of_ada:?}");
}

on_both_adapters!(
    a_session_is_of_one_version_and_whole_for_a_sync,
    only_the_script_says_who_gets_which_rows,
    parameters_are_authenticated_only_by_what_is_clear,
    connections_begin_and_end_with_their_scripts,
    a_script_knows_passwords,
    a_sync_that_a_script_has_ended_goes_on_with_what_is_pending_then,
    every_event_happens_in_its_order_and_transaction
);
