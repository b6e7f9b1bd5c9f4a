//! What is refused because of something else: of what is published, of another row.

use std::sync::Arc;

use tidewater_protocol::{Column, ColumnType, PublicationSchema};

use crate::fixture::Fixture;
use crate::remote::{TestRemote, delete, insert, update};
use crate::world::{DeployedCentre, REGIONS, SHOP_DDL, everyone, partitioned, shop};

async fn world<F: Fixture>() -> DeployedCentre<F> {
    DeployedCentre::new(SHOP_DDL, shop()).await
}

/// The result's rows, sorted.
fn sorted(mut result: Vec<String>) -> Vec<String> {
    result[1..].sort();
    result
}

/// Gives a remote another version of its schema.
fn has_schema(remote: &mut TestRemote, change: impl FnOnce(&mut PublicationSchema)) {
    let mut schema = (*remote.schema).clone();
    change(&mut schema);
    remote.schema = Arc::new(schema);
}

pub async fn rows_of_an_unpublished_table_are_refused_and_the_others_go_through<F: Fixture>() {
    let mut world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    world.specs[0]
        .tables
        .retain(|table| table.name != "product");
    world.deploy().await.unwrap();
    let upload = anna.next_upload(&[
        insert("product", "3|cocoa"),
        update("product", "1|tea", "1|green tea"),
        delete("product", "2|coffee"),
        insert("customer", "40|north|Nina|NULL"),
    ]);
    let outcome = anna.apply(upload.clone()).await;
    let tidewater_centre::UploadOutcome::Applied { result, .. } = outcome else {
        panic!("{outcome:?}");
    };
    let reason = "not_published: the table \"product\" is not published any more";
    assert_eq!(
        sorted(crate::remote::result_text(&anna.schema, &result)),
        [
            "1 inserted, 0 updated, 0 deleted, 0 conflicts, 3 refused".to_owned(),
            format!("refused product [1] Update {reason}"),
            format!("refused product [2] Delete {reason}"),
            format!("refused product [3] Insert {reason}"),
        ]
    );
    let products = "SELECT product_id, name FROM product ORDER BY 1";
    assert_eq!(world.fixture.query(products).await, ["1|tea", "2|coffee"]);
    let mut kept: Vec<_> = world.centre.refused().await.unwrap();
    kept.sort_by(|left, right| left.key.cmp(&right.key));
    let kept: Vec<_> = kept
        .iter()
        .map(|it| (&*it.table, &*it.key, &*it.operation, &*it.row, &*it.code))
        .collect();
    let code = "not_published";
    assert_eq!(
        kept,
        [
            (
                "product",
                "[1]",
                "update",
                r#"{"product_id":1,"name":"green tea"}"#,
                code
            ),
            (
                "product",
                "[2]",
                "delete",
                r#"{"product_id":2,"name":"coffee"}"#,
                code
            ),
            (
                "product",
                "[3]",
                "insert",
                r#"{"product_id":3,"name":"cocoa"}"#,
                code
            ),
        ]
    );
    // The same again tells the same.
    let again = anna.apply(upload).await;
    let tidewater_centre::UploadOutcome::AlreadyApplied { result: stored } = again else {
        panic!("{again:?}");
    };
    assert_eq!(stored, result);
}

pub async fn rows_with_a_column_that_changed_its_type_are_refused<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    has_schema(&mut anna, |schema| {
        let product = schema.tables.iter_mut().find(|it| it.name == "product");
        product.unwrap().columns[1].column_type = ColumnType::Integer;
    });
    let result = anna
        .upload(&[
            insert("product", "3|7"),
            insert("customer", "40|north|Nina|NULL"),
        ])
        .await;
    assert_eq!(
        result,
        [
            "1 inserted, 0 updated, 0 deleted, 0 conflicts, 1 refused",
            "refused product [3] Insert not_published: the column \"name\" has another type now",
        ]
    );
}

pub async fn rows_told_apart_by_another_key_are_refused<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    has_schema(&mut anna, |schema| {
        let product = schema.tables.iter_mut().find(|it| it.name == "product");
        product.unwrap().key = vec![1];
    });
    let result = anna
        .upload(&[
            insert("product", "3|cocoa"),
            insert("customer", "40|north|Nina|NULL"),
        ])
        .await;
    assert_eq!(
        result,
        [
            "1 inserted, 0 updated, 0 deleted, 0 conflicts, 1 refused",
            "refused product [cocoa] Insert not_published: the table \"product\" has another key \
             now",
        ]
    );
}

pub async fn rows_without_a_new_partition_column_are_refused<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    has_schema(&mut anna, |schema| {
        let customer = schema.tables.iter_mut().find(|it| it.name == "customer");
        let customer = customer.unwrap();
        customer.columns.retain(|column| column.name != "region");
        customer.partition.clear();
        customer.unique.clear();
    });
    let result = anna
        .upload(&[
            insert("customer", "40|Nina|NULL"),
            insert("product", "3|cocoa"),
        ])
        .await;
    assert_eq!(
        result[0],
        "1 inserted, 0 updated, 0 deleted, 0 conflicts, 1 refused"
    );
    assert!(result[1].contains("\"region\""), "{result:?}");
}

pub async fn a_column_that_is_not_published_any_more_is_ignored<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    has_schema(&mut anna, |schema| {
        let product = schema.tables.iter_mut().find(|it| it.name == "product");
        product.unwrap().columns.push(Column {
            name: "gone".into(),
            column_type: ColumnType::Text,
            nullable: true,
            default: None,
        });
    });
    let result = anna
        .upload(&[
            insert("product", "3|cocoa|x"),
            update("product", "1|tea|x", "1|tea|y"),
        ])
        .await;
    assert_eq!(
        result,
        ["1 inserted, 1 updated, 0 deleted, 0 conflicts, 0 refused"]
    );
}

pub async fn a_child_of_a_refused_parent_does_not_attach_to_somebody_elses_row<F: Fixture>() {
    let world = world::<F>().await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut changes = vec![
        // Customer 3 is of the south, and not shown to anna.
        insert("customer", "3|north|Mine|NULL"),
        insert("customer", "40|north|Nina|NULL"),
        insert("purchase", "50|north|3|1.00"),
        update("purchase", "10|north|1|1.50", "10|north|3|1.50"),
    ];
    // So many that they would go at once.
    for id in 100..250 {
        changes.push(insert("purchase", &format!("{id}|north|40|1.00")));
    }
    let result = sorted(anna.upload(&changes).await);
    let reason = "foreign_key: the row that it refers to was refused";
    assert_eq!(
        result,
        [
            "151 inserted, 0 updated, 0 deleted, 0 conflicts, 3 refused".to_owned(),
            "refused customer [3] Insert key_in_use: key in use".to_owned(),
            format!("refused purchase [10] Update {reason}: customer [3]"),
            format!("refused purchase [50] Insert {reason}: customer [3]"),
        ]
    );
    let attached = "SELECT purchase_id FROM purchase WHERE customer_id = 3 ORDER BY 1";
    assert_eq!(world.fixture.query(attached).await, ["11"]);
    assert_eq!(world.centre.refused().await.unwrap().len(), 3);
}

pub async fn what_refers_to_a_child_of_a_refused_parent_is_refused_too<F: Fixture>() {
    let world = DeployedCentre::<F>::new(
        "CREATE TABLE visit_plan (login TEXT NOT NULL, region TEXT NOT NULL,
             PRIMARY KEY (login, region));
         CREATE TABLE house (id INTEGER NOT NULL PRIMARY KEY, region TEXT NOT NULL);
         CREATE TABLE room (id INTEGER NOT NULL PRIMARY KEY, region TEXT NOT NULL,
             house_id INTEGER NOT NULL REFERENCES house);
         CREATE TABLE bed (id INTEGER NOT NULL PRIMARY KEY, region TEXT NOT NULL,
             room_id INTEGER NOT NULL REFERENCES room, next_to INTEGER REFERENCES bed);
         INSERT INTO visit_plan VALUES ('anna', 'north');
         INSERT INTO house VALUES (1, 'south'), (2, 'north');
         INSERT INTO room VALUES (8, 'north', 2);
         INSERT INTO bed VALUES (90, 'south', 8, NULL);",
        vec![
            partitioned("house", &["region"], REGIONS),
            partitioned("room", &["region"], REGIONS),
            partitioned("bed", &["region"], REGIONS),
            everyone("visit_plan"),
        ],
    )
    .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let result = sorted(
        anna.upload(&[
            insert("house", "1|north"),
            insert("room", "5|north|1"),
            insert("room", "6|north|2"),
            insert("bed", "50|north|5|NULL"),
            insert("bed", "51|north|6|50"),
            insert("bed", "52|north|6|NULL"),
            // The row comes before the one that it refers to, and that is taken.
            insert("bed", "60|north|6|90"),
            insert("bed", "61|north|6|60"),
            insert("bed", "90|north|6|NULL"),
        ])
        .await,
    );
    let reason = "foreign_key: the row that it refers to was refused";
    assert_eq!(
        result,
        [
            "2 inserted, 0 updated, 0 deleted, 0 conflicts, 7 refused".to_owned(),
            format!("refused bed [50] Insert {reason}: room [5]"),
            format!("refused bed [51] Insert {reason}: bed [50]"),
            format!("refused bed [60] Insert {reason}: bed [90]"),
            format!("refused bed [61] Insert {reason}: bed [60]"),
            "refused bed [90] Insert key_in_use: key in use".to_owned(),
            "refused house [1] Insert key_in_use: key in use".to_owned(),
            format!("refused room [5] Insert {reason}: house [1]"),
        ]
    );
    let beds = "SELECT id FROM bed ORDER BY 1";
    assert_eq!(world.fixture.query(beds).await, ["52", "90"]);
}
