//! Facts about subscriptions that end, and about parameters.

use super::*;

fn internal(remote: &Remote) -> Vec<String> {
    remote
        .query("SELECT name FROM sqlite_master WHERE name LIKE '%item%' OR tbl_name LIKE '%item%'")
}

#[test]
fn a_publication_leaves_no_trace_of_its_tables() {
    let mut remote = with_items();
    remote.run("CREATE TABLE own (x); CREATE INDEX by_name ON item (name)");
    let left = remote.database_mut().unsubscribe("sales", false).unwrap();
    assert_eq!(left.len(), 1);
    let item = (left[0].table.as_str(), left[0].rows, left[0].discarded);
    assert_eq!(item, ("item", 3, 0));
    assert_eq!(internal(&remote), Vec::<String>::new());
    assert!(remote.database().subscriptions().unwrap().is_empty());
    remote.run("CREATE TABLE item (mine)");
    assert!(remote.database_mut().unsubscribe("sales", false).is_err());
}

#[test]
fn what_is_pending_goes_only_if_that_is_wanted() {
    let mut remote = with_items();
    remote.run("UPDATE item SET name = 'x' WHERE id = 1; DELETE FROM item WHERE id = 2");
    assert!(remote.database_mut().has_pending("sales").unwrap());
    let error = remote
        .database_mut()
        .unsubscribe("sales", false)
        .unwrap_err();
    assert!(error.hint().contains("--discard-pending"));
    assert_eq!(remote.query("SELECT count(*) FROM item"), ["2"]);
    // An upload that is on its way is pending, too.
    remote.begin();
    assert!(remote.database_mut().unsubscribe("sales", false).is_err());
    let left = remote.database_mut().unsubscribe("sales", true).unwrap();
    assert_eq!((left[0].rows, left[0].discarded), (2, 2));
    assert_eq!(internal(&remote), Vec::<String>::new());
}

#[test]
fn refused_values_stay_when_their_publication_goes() {
    let mut remote = with_items();
    remote.run("UPDATE item SET name = 'mine' WHERE id = 1");
    remote.acknowledge_refused_item();
    remote.database_mut().unsubscribe("sales", false).unwrap();
    let refused = remote.database().refused().unwrap();
    assert_eq!(refused.len(), 1);
    assert!(refused[0].values.as_deref().unwrap().contains("mine"));
}

#[test]
fn a_publication_that_comes_back_goes_on_with_its_number() {
    let mut remote = with_items();
    remote.run("UPDATE item SET name = 'mine' WHERE id = 1");
    remote.acknowledge(|_| {});
    let before = remote.state();
    assert_eq!(before.sequence, 1);
    remote.database_mut().unsubscribe("sales", false).unwrap();
    let subscribe = |remote: &mut Remote, publications: &[&str]| {
        let database = remote.database_mut();
        database
            .subscribe("tcp://127.0.0.1", "ann", publications)
            .unwrap();
    };
    // Its number in the file is nobody else's.
    subscribe(&mut remote, &["q"]);
    assert_ne!(remote.state().id, before.id);
    subscribe(&mut remote, &["sales"]);
    remote
        .database_mut()
        .forget_never_synced(&["sales"])
        .unwrap();
    let after = remote.state();
    assert_eq!((after.id, after.sequence), (before.id, 1));
    assert_eq!(after.upload_id, before.upload_id);
    assert!(after.schema.is_none() && after.checkpoint.is_empty());
    let schema = remote.schema.clone();
    remote.download_schema(Some(schema), |server| {
        server.replace("item", |rows| rows.row(Op::Upsert, &item(7, "g", 70)));
    });
    assert_eq!(remote.query("SELECT name FROM item"), ["g"]);
    remote.run("UPDATE item SET name = 'h'");
    assert_eq!(
        remote.upload(),
        [update(&item(7, "g", 70), &item(7, "h", 70))]
    );
}

#[test]
fn parameters_are_kept_changed_and_dropped() {
    let mut remote = with_items();
    let set = |remote: &Remote| -> Vec<String> {
        let parameters = remote.state().parameters;
        let told = parameters
            .iter()
            .map(|it| format!("{}={}", it.name, it.value));
        told.collect()
    };
    let database = remote.database_mut();
    database
        .set_parameter(None, "month", Some("2026-10"))
        .unwrap();
    database
        .set_parameter(Some("sales"), "store", Some("it's"))
        .unwrap();
    database
        .set_parameter(None, "month", Some("2026-11"))
        .unwrap();
    assert_eq!(set(&remote), ["month=2026-11", "store=it's"]);
    let database = remote.database_mut();
    database.set_parameter(None, "month", None).unwrap();
    assert_eq!(set(&remote), ["store=it's"]);
    let database = remote.database_mut();
    assert!(database.set_parameter(None, "a b", Some("1")).is_err());
    assert!(database.set_parameter(None, "a", Some("x\0")).is_err());
    assert!(
        database
            .set_parameter(Some("nope"), "a", Some("1"))
            .is_err()
    );
    let many = (0..40).map(|it| database.set_parameter(None, &format!("p{it}"), Some("1")));
    assert_eq!(many.filter(Result::is_err).count(), 9);
    database.unsubscribe("sales", true).unwrap();
    database
        .subscribe("tcp://127.0.0.1", "ann", &["sales"])
        .unwrap();
    assert_eq!(set(&remote), Vec::<String>::new());
}
