//! Several syncs at once: uploads that share their statements, downloads from one snapshot.

use tidewater_centre::{CentreError, UploadOutcome};

use crate::fixture::Fixture;
use crate::remote::{
    ReceivedDownload, RowChange, TestRemote, delete, download_together, insert, result_text, update,
};
use crate::world::{DeployedCentre, SHOP_DDL, shop};

/// So many remotes come at the same time.
const REMOTES: usize = 50;

/// Everybody has a region of his own, with one customer in it.
async fn many<F: Fixture>() -> (DeployedCentre<F>, Vec<TestRemote>) {
    let world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    let mut remotes = Vec::with_capacity(REMOTES);
    for number in 0..REMOTES {
        let (user, region, customer) = (user(number), region(number), 100 + number);
        let plan = format!("INSERT INTO visit_plan VALUES ('{user}', '{region}')");
        world.execute(&plan).await;
        let customer =
            format!("INSERT INTO customer VALUES ({customer}, '{region}', 'before', NULL)");
        world.execute(&customer).await;
        remotes.push(TestRemote::synced(&world, &user).await);
    }
    (world, remotes)
}

/// Two who hold a region together, and one who holds another one.
async fn three<F: Fixture>() -> (DeployedCentre<F>, Vec<TestRemote>) {
    let world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    let mut remotes = Vec::new();
    for user in ["anna", "berta", "clara"] {
        remotes.push(TestRemote::synced(&world, user).await);
    }
    (world, remotes)
}

/// What each receives.
async fn download(remotes: &mut [TestRemote]) -> Vec<Vec<String>> {
    let received = download_together(remotes).await.into_iter();
    received.map(|it| it.unwrap().rows()).collect()
}

fn user(number: usize) -> String {
    format!("user{number}")
}

fn region(number: usize) -> String {
    format!("region{number}")
}

/// A customer with an order, a new name for the old customer, and another customer under `name`.
fn changes(number: usize, name: &str) -> Vec<RowChange> {
    let region = region(number);
    let (old, new, other) = (100 + number, 1_000 + number, 2_000 + number);
    vec![
        insert("purchase", &format!("{new}|{region}|{new}|1.50")),
        insert("customer", &format!("{new}|{region}|new|NULL")),
        insert("customer", &format!("{other}|{region}|{name}|NULL")),
        update(
            "customer",
            &format!("{old}|{region}|before|NULL"),
            &format!("{old}|{region}|after|NULL"),
        ),
    ]
}

fn texts(remotes: &[TestRemote], outcomes: &[UploadOutcome]) -> Vec<Vec<String>> {
    let outcomes = outcomes.iter().zip(remotes);
    let texts = outcomes.map(|(outcome, remote)| match outcome {
        UploadOutcome::Applied { result, .. } => result_text(&remote.schema, result),
        other => panic!("{other:?}"),
    });
    texts.collect()
}

/// Applies an upload of each remote as one list, and tells their downloads what they uploaded.
async fn upload(remotes: &mut [TestRemote], changes: Vec<Vec<RowChange>>) -> Vec<Vec<String>> {
    let uploads = remotes.iter_mut().zip(&changes);
    let uploads = uploads.map(|(remote, changes)| remote.next_upload(changes));
    let uploads = uploads.collect();
    let outcomes = remotes[0].worker.apply(uploads).await.unwrap();
    let texts = texts(remotes, &outcomes);
    for (remote, outcome) in remotes.iter_mut().zip(outcomes) {
        if let UploadOutcome::Applied { own, .. } = outcome {
            remote.own = Some(own);
        }
    }
    texts
}

pub async fn one_poisonous_row_among_fifty_uploads_is_refused_alone<F: Fixture>() {
    let (world, mut remotes) = many::<F>().await;
    const POISONED: usize = 17;
    let changes = (0..REMOTES).map(|number| match number {
        POISONED => changes(number, "forbidden"),
        _ => changes(number, "fine"),
    });
    let texts = upload(&mut remotes, changes.collect()).await;
    for (number, text) in texts.iter().enumerate() {
        match number {
            POISONED => {
                assert_eq!(
                    text[0],
                    "2 inserted, 1 updated, 0 deleted, 0 conflicts, 1 refused"
                );
                assert!(text[1].contains("2017"), "{text:?}");
            }
            _ => assert_eq!(
                *text,
                ["3 inserted, 1 updated, 0 deleted, 0 conflicts, 0 refused"]
            ),
        }
    }
    let count = "SELECT count(*), count(DISTINCT region) FROM customer WHERE customer_id >= 1000";
    assert_eq!(world.fixture.query(count).await, ["99|50"]);
    let after = "SELECT count(*) FROM customer WHERE name = 'after'";
    assert_eq!(world.fixture.query(after).await, ["50"]);
    assert_eq!(world.centre.refused().await.unwrap().len(), 1);
    // Nobody gets back what he uploaded, and nobody has got anything of another one's.
    for received in download_together(&mut remotes).await {
        assert_eq!(received.unwrap().rows(), [""; 0]);
    }
    for received in download_together(&mut remotes).await {
        assert_eq!(received.unwrap().rows(), [""; 0]);
    }
}

pub async fn uploads_of_one_list_come_to_others_who_hold_the_rows<F: Fixture>() {
    let (_world, mut remotes) = three::<F>().await;
    let changes = vec![
        vec![insert("customer", "40|north|Nina|NULL")],
        vec![
            insert("customer", "41|north|Nora|NULL"),
            delete("purchase", "10|north|1|1.50"),
        ],
        vec![insert("customer", "42|south|Susi|NULL")],
    ];
    upload(&mut remotes, changes).await;
    let received = download(&mut remotes).await;
    assert_eq!(
        received[0],
        ["-purchase [10]", "customer: 41|north|Nora|NULL"]
    );
    assert_eq!(received[1], ["customer: 40|north|Nina|NULL"]);
    assert_eq!(received[2], [""; 0]);
}

pub async fn what_is_applied_by_itself_comes_to_those_that_shared<F: Fixture>() {
    let (_world, mut remotes) = three::<F>().await;
    // Those of anna and clara, who hold nothing together, go in by the same statements.
    let changes = vec![
        vec![insert("customer", "40|north|Nina|NULL")],
        vec![
            insert("customer", "41|north|Nora|NULL"),
            insert("customer", "43|south|not hers|NULL"),
        ],
        vec![insert("customer", "42|south|Susi|NULL")],
    ];
    upload(&mut remotes, changes).await;
    let received = download(&mut remotes).await;
    assert_eq!(received[0], ["customer: 41|north|Nora|NULL"]);
    assert_eq!(received[1], ["customer: 40|north|Nina|NULL"]);
    assert_eq!(received[2], [""; 0]);
}

pub async fn what_one_upload_of_a_list_may_not_write_keeps_no_other_out<F: Fixture>() {
    let (world, mut remotes) = many::<F>().await;
    // Another one's region; another one's row; a row that is there already.
    let mut changes: Vec<Vec<RowChange>> = (0..REMOTES).map(|it| changes(it, "fine")).collect();
    changes[3] = vec![insert("customer", "5000|region4|mine|NULL")];
    changes[5] = vec![update(
        "customer",
        "106|region6|before|NULL",
        "106|region6|stolen|NULL",
    )];
    changes[7] = vec![insert("customer", "1|region7|again|NULL")];
    // A key that another one of the list has, too.
    changes[9] = vec![insert("customer", "1008|region9|first|NULL")];
    let texts = upload(&mut remotes, changes).await;
    for number in [3, 5, 7] {
        let refused = "0 inserted, 0 updated, 0 deleted, 0 conflicts, 1 refused";
        assert_eq!(texts[number][0], refused, "{number}");
    }
    // One of the two has it, the other one is told that it is in use.
    let (eighth, ninth) = (texts[8][0].as_str(), texts[9][0].as_str());
    let all = "3 inserted, 1 updated, 0 deleted, 0 conflicts, 0 refused";
    let either = match ninth {
        "1 inserted, 0 updated, 0 deleted, 0 conflicts, 0 refused" => eighth != all,
        _ => eighth == all,
    };
    assert!(either, "{eighth}; {ninth}");
    let others = (0..REMOTES).filter(|it| ![3, 5, 7, 8, 9].contains(it));
    for number in others {
        assert_eq!(texts[number], [all], "{number}");
    }
    let stolen = "SELECT name FROM customer WHERE customer_id = 106";
    assert_eq!(world.fixture.query(stolen).await, ["after"]);
    let mine = "SELECT count(*) FROM customer WHERE customer_id = 5000";
    assert_eq!(world.fixture.query(mine).await, ["0"]);
}

pub async fn an_upload_that_is_twice_in_a_list_takes_effect_once<F: Fixture>() {
    let (world, mut remotes) = many::<F>().await;
    let mut uploads = Vec::new();
    for (number, remote) in remotes.iter_mut().take(3).enumerate() {
        uploads.push(remote.next_upload(&changes(number, "fine")));
    }
    uploads.push(uploads[1].clone());
    let outcomes = remotes[0].worker.apply(uploads).await.unwrap();
    let is_applied = |it: &UploadOutcome| matches!(it, UploadOutcome::Applied { .. });
    let is_known = |it: &UploadOutcome| matches!(it, UploadOutcome::AlreadyApplied { .. });
    assert_eq!(outcomes.iter().filter(|it| is_applied(it)).count(), 3);
    assert_eq!(outcomes.iter().filter(|it| is_known(it)).count(), 1);
    let count = "SELECT count(*) FROM customer WHERE customer_id >= 1000";
    assert_eq!(world.fixture.query(count).await, ["6"]);
}

pub async fn downloads_of_one_snapshot_go_to_their_remotes<F: Fixture>() {
    let (world, mut remotes) = many::<F>().await;
    for number in (0..REMOTES).step_by(2) {
        let (customer, region) = (3_000 + number, region(number));
        let insert =
            format!("INSERT INTO customer VALUES ({customer}, '{region}', 'of the office', NULL)");
        world.execute(&insert).await;
    }
    world
        .execute("INSERT INTO visit_plan VALUES ('user3', 'south')")
        .await;
    // One is gone when its rows come.
    remotes[4].refuse_rows = true;
    let received = download_together(&mut remotes).await;
    // Of all of them the watermark says the same: it is of one snapshot, with one mark.
    let checkpoints = received
        .iter()
        .flatten()
        .filter_map(ReceivedDownload::checkpoint);
    let watermarks: Vec<&[u8]> = checkpoints.map(|it| it.watermark.as_slice()).collect();
    assert_eq!(watermarks.len(), REMOTES / 2);
    assert!(watermarks.iter().all(|it| *it == watermarks[0]));
    for (number, received) in received.into_iter().enumerate() {
        if number == 4 {
            assert!(matches!(received, Err(CentreError::Cancelled)));
            continue;
        }
        let rows = received.unwrap().rows();
        let (customer, region) = (3_000 + number, region(number));
        match number {
            3 => assert_eq!(
                rows,
                [
                    "customer: 3|south|Sven|sven@x",
                    "purchase: 11|south|3|20.00"
                ]
            ),
            _ if number % 2 == 0 => {
                let expected = format!("customer: {customer}|{region}|of the office|NULL");
                assert_eq!(rows, [expected]);
            }
            _ => assert_eq!(rows, [""; 0]),
        }
    }
    remotes[4].refuse_rows = false;
    let received = remotes[4].download().await;
    assert_eq!(
        received.rows(),
        ["customer: 3004|region4|of the office|NULL"]
    );
}

/// The product table of each.
fn products(remotes: &[TestRemote]) -> Vec<Vec<String>> {
    remotes.iter().map(|it| it.rows("product")).collect()
}

pub async fn what_everybody_gets_is_the_same_for_all_who_ask_together<F: Fixture>() {
    let (world, mut remotes) = three::<F>().await;
    // Some are a change behind, some have nothing yet, and one has uploaded of it.
    world
        .execute("UPDATE product SET name = 'green tea' WHERE product_id = 1")
        .await;
    remotes[0].download().await;
    for user in ["anna", "clara"] {
        remotes.push(TestRemote::new(&world, user).await);
    }
    world
        .execute("DELETE FROM product WHERE product_id = 2")
        .await;
    let many: Vec<String> = (10..2_000).map(|it| format!("({it}, 'p{it}')")).collect();
    let many = format!("INSERT INTO product VALUES {}", many.join(", "));
    world.execute(&many).await;
    let mut own = vec![Vec::new(); remotes.len()];
    own[1] = vec![insert("product", "3|cocoa")];
    upload(&mut remotes, own).await;
    let received = download(&mut remotes).await;
    let expected = TestRemote::synced(&world, "berta").await.rows("product");
    assert_eq!(expected.len(), 1_992);
    // Who has uploaded a row does not get it back; everybody else does.
    let is_cocoa = |row: &String| row.contains("cocoa");
    let others: Vec<String> = expected
        .iter()
        .filter(|it| !is_cocoa(it))
        .cloned()
        .collect();
    for (number, rows) in products(&remotes).iter().enumerate() {
        assert_eq!(*rows, if number == 1 { &others } else { &expected }[..]);
    }
    let got = received.iter().map(|it| it.iter().any(is_cocoa));
    assert_eq!(got.collect::<Vec<_>>(), [true, false, true, true, true]);
    // Each has what is its own besides.
    world
        .execute("UPDATE customer SET name = name || '!'")
        .await;
    world
        .execute("DELETE FROM product WHERE product_id > 1000")
        .await;
    let received = download(&mut remotes).await;
    for (received, customers) in received.iter().zip([2, 2, 1, 2, 1]) {
        assert_eq!(received.len(), 999 + customers);
    }
}
