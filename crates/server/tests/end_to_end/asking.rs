//! Remotes that ask for more, and let go of it again: parameters, and subscriptions that end.

use std::ops::ControlFlow;

use tidewater_protocol::Code;

use crate::backend::Backend;
use crate::scenario::Scenario;
use crate::world::World;

fn stores() -> Scenario {
    Scenario {
        schema: "
            CREATE TABLE stock (id INTEGER NOT NULL PRIMARY KEY, store TEXT NOT NULL, note TEXT);
            CREATE TABLE manager (login TEXT NOT NULL, store TEXT NOT NULL);
            INSERT INTO stock VALUES (1, 's1', 'a'), (2, 's2', 'b'), (3, 's3', 'c');
            INSERT INTO manager VALUES ('ada', 's1'), ('ada', 's2');"
            .to_owned(),
        publication: r#"
[[publication]]
name = "main"

[[publication.parameter]]
name = "store"
allowed = "SELECT store FROM manager WHERE login = {s.username}"

[[publication.table]]
name = "stock"
partition = { columns = ["store"], values = "SELECT {u.store}" }
"#,
        tables: &[],
        users: &["ada"],
        limits: "",
    }
}

const IDS: &str = "SELECT id FROM stock ORDER BY id";

fn a_remote_holds_what_it_asks_for_and_may_have<B: Backend>() {
    let world = World::<B>::open(stores());
    let mut ada = world.synced("ada");
    assert!(ada.rows(IDS).is_empty());
    let ask = |ada: &mut crate::device::Device, store| {
        ada.remote.set_parameter("store", store).unwrap();
    };
    ask(&mut ada, Some("s1"));
    ada.sync();
    assert_eq!(ada.rows(IDS), ["1"]);
    // What is pending of the one goes up with the word that it is to be the other.
    ada.edit("UPDATE stock SET note = 'mine' WHERE id = 1");
    ask(&mut ada, Some("s3"));
    let error = ada.try_sync().unwrap_err();
    assert_eq!(error.code(), Code::ParameterNotAllowed);
    assert!(error.to_string().contains("\"store\""), "{error}");
    assert!(
        error.hint().contains("--parameter store="),
        "{}",
        error.hint()
    );
    assert_eq!(world.rows("SELECT note FROM stock WHERE id = 1"), ["a"]);
    ask(&mut ada, Some("s2"));
    let report = ada.sync();
    assert_eq!((report.uploaded.updates, report.refused), (1, 0));
    assert_eq!(ada.rows(IDS), ["2"]);
    assert_eq!(world.rows("SELECT note FROM stock WHERE id = 1"), ["mine"]);
    ask(&mut ada, None);
    ada.sync();
    assert!(ada.rows(IDS).is_empty());
}

fn a_subscription_ends_and_begins_again<B: Backend>() {
    let world = World::<B>::open(stores());
    let mut ada = world.synced("ada");
    ada.remote.set_parameter("store", Some("s1")).unwrap();
    ada.sync();
    let id = ada.remote.account().unwrap().remote_id;
    ada.edit("UPDATE stock SET note = 'mine' WHERE id = 1");
    let go_on = &mut |_: &_| ControlFlow::Continue(());
    let left = ada.remote.unsubscribe("main", false, go_on).unwrap();
    assert_eq!((left[0].rows, left[0].discarded), (1, 0));
    assert_eq!(world.rows("SELECT note FROM stock WHERE id = 1"), ["mine"]);
    assert!(
        ada.rows("SELECT name FROM sqlite_master WHERE name LIKE '%stock%'")
            .is_empty()
    );
    let url = ada.network.url();
    ada.remote.subscribe(&url, "ada", &["main"]).unwrap();
    ada.remote.set_parameter("store", Some("s1")).unwrap();
    ada.sync();
    assert_eq!(ada.rows("SELECT note FROM stock"), ["mine"]);
    ada.edit("UPDATE stock SET note = 'again'");
    ada.sync();
    assert_eq!(world.rows("SELECT note FROM stock WHERE id = 1"), ["again"]);
    // It still is the same remote.
    assert_eq!(ada.remote.account().unwrap().remote_id, id);
}

on_both_adapters!(
    a_remote_holds_what_it_asks_for_and_may_have,
    a_subscription_ends_and_begins_again,
);
