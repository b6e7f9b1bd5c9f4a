//! Facts about what changed publications mean to remotes.

use tidewater_protocol::Direction;

use super::*;

fn table(name: &str, columns: &[(&str, ColumnType)]) -> Table {
    let columns = columns.iter().map(|&(name, column_type)| Column {
        name: name.into(),
        column_type,
        nullable: true,
        default: None,
    });
    Table {
        name: name.into(),
        columns: columns.collect(),
        key: vec![0],
        partition: Vec::new(),
        unique: Vec::new(),
        foreign_keys: Vec::new(),
        direction: Direction::Both,
        checks: Vec::new(),
        identity: None,
    }
}

fn publication(tables: Vec<Table>) -> PublicationSchema {
    PublicationSchema {
        name: "p".into(),
        tables,
        transactional: false,
    }
}

fn item() -> Table {
    table(
        "item",
        &[
            ("id", ColumnType::Integer),
            ("note", ColumnType::Text),
            ("price", ColumnType::Decimal { scale: Some(2) }),
        ],
    )
}

/// What is held up, and what is not, by one change of the table `item`.
fn judge(change: impl FnOnce(&mut Table)) -> (Vec<String>, Vec<String>) {
    let mut new = item();
    change(&mut new);
    let all = effects(&publication(vec![item()]), Some(&publication(vec![new])));
    let (held, free): (Vec<_>, Vec<_>) = all.into_iter().partition(|it| it.holds_up);
    let subjects =
        |effects: Vec<SchemaDifference>| effects.into_iter().map(|it| it.subject).collect();
    (subjects(held), subjects(free))
}

#[test]
fn what_remotes_can_follow_holds_nothing_up() {
    let none = Vec::<String>::new();
    let added = judge(|item| {
        let more = table("", &[("extra", ColumnType::Real)]).columns;
        item.columns.extend(more);
    });
    assert_eq!(added, (none.clone(), vec!["item.extra".into()]));
    let wider = judge(|item| item.columns[2].column_type = ColumnType::Decimal { scale: Some(4) });
    assert_eq!(wider, (none.clone(), vec!["item.price".into()]));
    let partition = judge(|item| item.partition = vec![1]);
    assert_eq!(
        partition,
        (none.clone(), vec!["item partition note".into()])
    );
    let strict = judge(|item| item.columns[1].nullable = false);
    assert_eq!(strict, (none.clone(), vec!["item.note".into()]));
    assert_eq!(judge(|_| {}), (none.clone(), none));
}

#[test]
fn what_pending_changes_do_not_survive_holds_them_up() {
    let held = |change: fn(&mut Table)| judge(change).0;
    assert_eq!(held(|item| drop(item.columns.pop())), ["item.price"]);
    assert_eq!(
        held(|item| item.columns[1].name = "remark".into()),
        ["item.note"]
    );
    assert_eq!(
        held(|item| item.columns[2].column_type = ColumnType::Decimal { scale: Some(1) }),
        ["item.price"]
    );
    assert_eq!(held(|item| item.key = vec![0, 1]), ["item key"]);
    assert_eq!(
        held(|item| item.direction = Direction::Download),
        ["item direction"]
    );
    assert_eq!(
        held(|item| {
            let more = table("", &[("zone", ColumnType::Integer)]).columns;
            item.columns.extend(more);
            item.partition = vec![3];
        }),
        ["item partition zone"]
    );
    let mut only_down = item();
    only_down.direction = Direction::Download;
    let old = publication(vec![only_down]);
    let gone = effects(&old, Some(&publication(Vec::new())));
    assert!(!gone[0].holds_up, "nothing is ever pending of it");
}

fn remote(byte: u8, schemas: &[(String, Vec<u8>)], subscriptions: &[&str]) -> KnownRemote {
    KnownRemote {
        id: RemoteId([byte; 16]),
        user: "ada".into(),
        last_sync_ms: 0,
        schemas: encode_known(schemas),
        subscriptions: subscriptions.iter().map(|it| (*it).to_owned()).collect(),
    }
}

#[test]
fn only_remotes_that_have_what_leaves_are_held_up() {
    let mut oldest = item();
    oldest.columns.pop();
    let oldest = publication(vec![oldest]);
    let old = publication(vec![item()]);
    let new = oldest.clone();
    let known = |schema: &PublicationSchema| vec![("p".to_owned(), schema.hash().to_vec())];
    let remotes = [
        // It has the schema that changes.
        remote(1, &known(&old), &[]),
        // It has never heard of the column that goes.
        remote(2, &known(&oldest), &["p"]),
        // Nothing is known, but that it is there.
        remote(3, &[], &["p"]),
        // It has other publications.
        remote(4, &[("q".to_owned(), vec![1])], &["q"]),
        remote(5, &[], &[]),
    ];
    let past = PastSchemas::from([(oldest.hash().to_vec(), oldest.clone())]);
    let change = PublicationChange {
        publication: "p",
        old: &old,
        new: Some(&new),
    };
    let review = DeploymentReview::new(&[change], &remotes, &past);
    let held: Vec<u8> = review.held_up.iter().map(|it| it.id.0[0]).collect();
    assert_eq!(held, [1, 3]);
    let gone = PublicationChange {
        publication: "p",
        old: &old,
        new: None,
    };
    let review = DeploymentReview::new(&[gone], &remotes, &past);
    let held: Vec<u8> = review.held_up.iter().map(|it| it.id.0[0]).collect();
    assert_eq!(held, [1, 2, 3]);
    assert!(
        review.allow(DeploymentMode::DryRun).is_ok()
            && review.allow(DeploymentMode::RefusePending).is_ok()
    );
    let error = review.allow(DeploymentMode::Careful).unwrap_err();
    assert!(error.to_string().contains("3 remotes"), "{error}");
}
