//! Uploaded rows that handlers have judged: what becomes of each verdict, and that rights hold.

use std::collections::BTreeMap;

use tidewater_centre::{
    CentreError, HandledSpec, RowVerdict, TableSpec, UploadOutcome, UploadResult, Verdicts,
};
use tidewater_protocol::{Code, Value};

use crate::fixture::Fixture;
use crate::remote::{RowChange, TestRemote, delete, insert, result_text, update};
use crate::world::{DeployedCentre, SHOP_DDL, shop};

/// The shop, of which handlers judge customers and products; `keeps` if they keep the products.
async fn world<F: Fixture>(keeps: bool) -> DeployedCentre<F> {
    let tables = shop().into_iter().map(|table| TableSpec {
        handled: HandledSpec {
            upload: table.name != "purchase",
            keeps_uploads: keeps && table.name == "product",
            download: false,
        },
        ..table
    });
    DeployedCentre::new(SHOP_DDL, tables.collect()).await
}

/// Uploads changes; verdicts by the table and the number of the change among its own.
async fn judged(
    remote: &mut TestRemote,
    changes: &[RowChange],
    verdicts: &[(&str, u64, RowVerdict)],
) -> Result<UploadResult, CentreError> {
    let mut upload = remote.next_upload(changes);
    upload.verdicts = verdicts_for(&upload, verdicts);
    match remote.apply(upload).await {
        UploadOutcome::Applied { result, .. } => Ok(result),
        UploadOutcome::Failed { error } => Err(error),
        other => panic!("{other:?}"),
    }
}

fn verdicts_for(
    upload: &tidewater_centre::SyncUpload,
    verdicts: &[(&str, u64, RowVerdict)],
) -> Verdicts {
    let tables = upload.tables.iter().enumerate();
    let tables = tables.filter(|(_, it)| it.begin.table != "purchase");
    let verdicts = tables.map(|(place, table)| {
        let of_table = verdicts.iter().filter(|it| it.0 == table.begin.table);
        let by_row: BTreeMap<_, _> = of_table.map(|it| (it.1, it.2.clone())).collect();
        (place, by_row)
    });
    verdicts.collect()
}

fn change(column: &str, value: &str) -> RowVerdict {
    let value = match value.parse() {
        Ok(integer) => Value::Integer(integer),
        Err(_) => Value::Text(value.to_owned()),
    };
    RowVerdict::Change(vec![(column.to_owned(), value)])
}

fn refuse(reason: &str) -> RowVerdict {
    RowVerdict::Refuse(reason.to_owned())
}

/// The rows of a result, sorted.
fn told(remote: &TestRemote, result: &UploadResult) -> Vec<String> {
    let mut told = result_text(&remote.schema, result);
    told[1..].sort();
    told
}

const CUSTOMERS: &str = "SELECT customer_id, region, name FROM customer ORDER BY 1";

pub async fn verdicts_say_what_becomes_of_uploaded_rows<F: Fixture>() {
    let world = world::<F>(false).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let changes = [
        insert("customer", "40|north|Nina|NULL"),
        insert("customer", "41|north|Nils|NULL"),
        insert("customer", "42|north|Nele|NULL"),
        insert("customer", "43|north|Nick|NULL"),
        update("customer", "1|north|Nora|nora@x", "1|north|Norah|nora@x"),
        delete("customer", "2|north|Niels|NULL"),
        // Of one that is refused, and of one that nobody has.
        insert("purchase", "50|north|41|1.00"),
        insert("purchase", "51|north|40|1.00"),
    ];
    let verdicts = [
        ("customer", 1, refuse("we know Nils")),
        ("customer", 2, change("name", "Nelly")),
        ("customer", 3, RowVerdict::Handled),
        ("customer", 4, change("email", "norah@x")),
        ("customer", 5, RowVerdict::Handled),
    ];
    let result = judged(&mut anna, &changes, &verdicts).await.unwrap();
    assert_eq!(
        told(&anna, &result),
        [
            "4 inserted, 1 updated, 1 deleted, 0 conflicts, 2 refused",
            "made customer: 1|north|Norah|norah@x",
            "made customer: 42|north|Nelly|NULL",
            "refused customer [41] Insert handler_refused: we know Nils",
            "refused purchase [50] Insert foreign_key: the row that it refers to was refused: customer [41]",
        ]
    );
    let rows = [
        "1|north|Norah",
        "2|north|Niels",
        "3|south|Sven",
        "40|north|Nina",
        "42|north|Nelly",
    ];
    assert_eq!(world.fixture.query(CUSTOMERS).await, rows);
    // What handlers have seen to is answered by the download: there is one, and not the other.
    let asked: Vec<_> = result.requests().collect();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].begin.table, "customer");
    anna.write(&changes[3..4]);
    anna.write(&changes[5..6]);
    anna.asked = asked;
    anna.download().await;
    let held = anna.rows("customer");
    let has = |id: &str| held.iter().any(|it| it.starts_with(id));
    assert!(has("2|") && !has("43|"), "{held:?}");
}

pub async fn a_verdict_gives_nobody_more_rights<F: Fixture>() {
    let world = world::<F>(false).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let changes = [
        insert("customer", "40|north|Nina|NULL"),
        insert("customer", "41|north|Nils|NULL"),
        insert("customer", "42|north|Nele|NULL"),
        insert("customer", "43|south|Sina|NULL"),
        insert("customer", "44|south|Svea|NULL"),
        update("customer", "3|south|Sven|sven@x", "3|south|Mine|sven@x"),
    ];
    let verdicts = [
        ("customer", 0, change("customer_id", "60")),
        ("customer", 1, change("region", "south")),
        ("customer", 2, change("name", "forbidden")),
        ("customer", 4, RowVerdict::Handled),
        ("customer", 5, RowVerdict::Handled),
    ];
    let result = judged(&mut anna, &changes, &verdicts).await.unwrap();
    let lines = told(&anna, &result);
    let codes: Vec<&str> = lines[1..]
        .iter()
        .filter_map(|it| it.split(": ").next())
        .collect();
    assert_eq!(
        codes,
        [
            "refused customer [3] Update out_of_scope",
            "refused customer [40] Insert handler_refused",
            "refused customer [41] Insert handler_refused",
            "refused customer [42] Insert check",
            "refused customer [43] Insert out_of_scope",
            "refused customer [44] Insert out_of_scope",
        ]
    );
    assert!(lines[2].ends_with("another key (customer_id)"), "{lines:?}");
    assert!(lines[3].ends_with("somebody else (region)"), "{lines:?}");
    let rows = ["1|north|Nora", "2|north|Niels", "3|south|Sven"];
    assert_eq!(world.fixture.query(CUSTOMERS).await, rows);
    assert!(result.asked.is_empty());
}

pub async fn no_row_passes_that_its_handler_has_not_seen<F: Fixture>() {
    let world = world::<F>(true).await;
    let (mut anna, berta) = (
        TestRemote::synced(&world, "anna").await,
        TestRemote::synced(&world, "berta").await,
    );
    let mut upload = anna.next_upload(&[insert("customer", "40|north|Nina|NULL")]);
    upload.verdicts.clear();
    let outcome = anna.apply(upload).await;
    let UploadOutcome::Failed { error } = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(error.code(), Code::NotDeployed);
    // A list of which others have been judged.
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut berta = berta;
    let unseen = berta.next_upload(&[insert("customer", "41|north|Nils|NULL")]);
    let mut seen = anna.next_upload(&[insert("customer", "40|north|Nina|NULL")]);
    seen.verdicts = verdicts_for(&seen, &[]);
    let outcomes = world
        .worker()
        .await
        .apply(vec![unseen, seen])
        .await
        .unwrap();
    assert!(matches!(outcomes[0], UploadOutcome::Failed { .. }));
    assert!(matches!(outcomes[1], UploadOutcome::Applied { .. }));
    // Where a handler keeps the rows, nothing is written.
    let product = [insert("product", "9|cocoa")];
    let error = judged(&mut anna, &product, &[]).await.unwrap_err();
    assert_eq!(error.code(), Code::Internal);
    let mut anna = TestRemote::synced(&world, "anna").await;
    let changes = [insert("product", "9|cocoa"), delete("product", "1|tea")];
    let handled = [
        ("product", 0, RowVerdict::Handled),
        ("product", 1, RowVerdict::Handled),
    ];
    let result = judged(&mut anna, &changes, &handled).await.unwrap();
    assert!(result.asked.is_empty() && result.tables.is_empty());
    let products = "SELECT product_id FROM product ORDER BY 1";
    assert_eq!(world.fixture.query(products).await, ["1", "2"]);
}
