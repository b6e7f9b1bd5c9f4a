//! Following what is committed, and whom it concerns.

use std::sync::Arc;
use std::time::Duration;

use tidewater_centre::{FollowPosition, HoldingRequest, RemoteHolding, RuleSpec};

use crate::fixture::{ApplicationTransaction, Fixture};
use crate::remote::{TestRemote, insert};
use crate::world::{DeployedCentre, PUBLICATION, SHOP_DDL, everyone, partitioned, shop};

/// Looks what was committed since it did so last.
struct CommitFollower {
    position: FollowPosition,
}

impl CommitFollower {
    async fn new<F: Fixture>(world: &DeployedCentre<F>) -> CommitFollower {
        let begun = world.centre.follow(None).await.unwrap();
        assert!(begun.touched.is_empty());
        CommitFollower {
            position: begun.position,
        }
    }

    /// Whom of these it concerns, and how many interests were touched.
    async fn look<F: Fixture, const N: usize>(
        &mut self,
        world: &DeployedCentre<F>,
        holdings: [&RemoteHolding; N],
    ) -> ([bool; N], usize) {
        let followed = world.centre.follow(Some(self.position.clone())).await;
        let followed = followed.unwrap();
        self.position = followed.position;
        let touched = followed.touched;
        let concerned = holdings.map(|it| it.interests().iter().any(|it| touched.contains(it)));
        (concerned, touched.len())
    }
}

impl CommitFollower {
    /// Whether something was written since that partition queries read.
    async fn sees_scopes_written<F: Fixture>(&mut self, world: &DeployedCentre<F>) -> bool {
        let followed = world.centre.follow(Some(self.position.clone())).await;
        let followed = followed.unwrap();
        self.position = followed.position;
        followed.scopes
    }
}

/// Whether remotes hold now what they did.
async fn hold_the_same<F: Fixture>(
    world: &DeployedCentre<F>,
    remotes: &[(&TestRemote, &RemoteHolding)],
) -> Vec<bool> {
    let asked = remotes.iter().map(|(remote, _)| HoldingRequest {
        context: Arc::new(remote.context()),
        publications: vec![PUBLICATION.to_owned()],
    });
    let mut worker = world.worker().await;
    let answers = worker.holdings_now(asked.collect()).await.unwrap();
    let pairs = answers.iter().zip(remotes);
    let same = pairs.map(|(now, (_, held))| *now == Some(vec![(*held).clone()]));
    same.collect()
}

/// A remote that has synced, and what it holds.
async fn synced<F: Fixture>(world: &DeployedCentre<F>, user: &str) -> (TestRemote, RemoteHolding) {
    let mut remote = TestRemote::new(world, user).await;
    let received = remote.download().await;
    let holding = received.holding.unwrap();
    (remote, holding)
}

pub async fn a_commit_concerns_who_holds_what_it_changed_and_nobody_else<F: Fixture>() {
    let world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    let (_, anna) = synced(&world, "anna").await;
    let (_, clara) = synced(&world, "clara").await;
    let mut follower = CommitFollower::new(&world).await;
    for (sql, expected) in [
        (
            "UPDATE customer SET name = 'Norbert' WHERE customer_id = 1",
            [true, false],
        ),
        (
            "UPDATE customer SET name = 'Susi' WHERE customer_id = 3",
            [false, true],
        ),
        (
            "INSERT INTO purchase VALUES (12, 'north', 1, 7)",
            [true, false],
        ),
        ("DELETE FROM purchase WHERE purchase_id = 11", [false, true]),
        ("INSERT INTO product VALUES (3, 'milk')", [true, true]),
        (
            "INSERT INTO customer VALUES (9, 'west', 'Wanda', NULL)",
            [false, false],
        ),
        (
            "INSERT INTO visit_plan VALUES ('dora', 'west')",
            [false, false],
        ),
    ] {
        world.execute(sql).await;
        let (concerned, _) = follower.look(&world, [&anna, &clara]).await;
        assert_eq!(concerned, expected, "{sql}");
        let (_, touched) = follower.look(&world, [&anna, &clara]).await;
        assert_eq!(touched, 0, "it is told once");
    }
}

pub async fn a_write_to_what_partition_queries_read_is_told_and_the_queries_answer<F: Fixture>() {
    let ddl =
        format!("{SHOP_DDL}; CREATE VIEW visited AS SELECT login AS who, region FROM visit_plan");
    let by_view = "SELECT region FROM visited WHERE who = {s.username}";
    let tables = vec![
        partitioned("customer", &["region"], by_view),
        everyone("product"),
    ];
    let world = DeployedCentre::<F>::new(&ddl, tables).await;
    let (anna, of_anna) = synced(&world, "anna").await;
    let (clara, of_clara) = synced(&world, "clara").await;
    let both = [(&anna, &of_anna), (&clara, &of_clara)];
    let mut follower = CommitFollower::new(&world).await;
    for (sql, is_of_scopes, same) in [
        (
            "UPDATE customer SET name = 'N' WHERE customer_id = 1",
            false,
            [true, true],
        ),
        (
            "UPDATE product SET name = 'mate' WHERE product_id = 1",
            false,
            [true, true],
        ),
        (
            "INSERT INTO visit_plan VALUES ('dora', 'west')",
            true,
            [true, true],
        ),
        (
            "INSERT INTO visit_plan VALUES ('anna', 'west')",
            true,
            [false, true],
        ),
        (
            "DELETE FROM visit_plan WHERE region = 'west'",
            true,
            [true, true],
        ),
        (
            "UPDATE visit_plan SET region = 'east' WHERE login = 'clara'",
            true,
            [true, false],
        ),
    ] {
        world.execute(sql).await;
        assert_eq!(
            follower.sees_scopes_written(&world).await,
            is_of_scopes,
            "{sql}"
        );
        assert!(
            !follower.sees_scopes_written(&world).await,
            "it is told once"
        );
        assert_eq!(hold_the_same(&world, &both).await, same, "{sql}");
    }
    // What is undone is not told, and what is committed late is told then.
    let mut open = world.fixture.begin().await;
    open.execute("INSERT INTO visit_plan VALUES ('anna', 'south')")
        .await;
    assert!(!follower.sees_scopes_written(&world).await);
    open.execute("ROLLBACK").await;
    drop(open);
    assert!(!follower.sees_scopes_written(&world).await);
    let mut open = world.fixture.begin().await;
    open.execute("INSERT INTO visit_plan VALUES ('anna', 'south')")
        .await;
    if F::CONCURRENT_WRITERS {
        world
            .execute("UPDATE customer SET name = 'N2' WHERE customer_id = 1")
            .await;
    }
    assert!(!follower.sees_scopes_written(&world).await);
    open.commit().await;
    assert!(follower.sees_scopes_written(&world).await);
    assert_eq!(hold_the_same(&world, &both).await, [false, false]);
}

pub async fn tables_that_no_partition_query_reads_any_more_are_left_alone<F: Fixture>() {
    let mut world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    for table in &mut world.specs[0].tables {
        if table.name != "product" {
            let query = "SELECT name FROM product WHERE name = {s.username}";
            table.partition = vec![RuleSpec::columns(&["region"], query)];
        }
    }
    let report = world.deploy().await.unwrap();
    let told = |what: &str| report.steps.iter().any(|it| it.description.contains(what));
    assert!(told("note when product is written to"), "{report:?}");
    assert_eq!(world.deploy().await.unwrap().steps, []);
    let mut follower = CommitFollower::new(&world).await;
    world
        .execute("INSERT INTO visit_plan VALUES ('anna', 'west')")
        .await;
    assert!(!follower.sees_scopes_written(&world).await);
    world
        .execute("INSERT INTO product VALUES (7, 'anna')")
        .await;
    assert!(follower.sees_scopes_written(&world).await);
}

pub async fn a_row_that_moves_concerns_whom_it_leaves_and_whom_it_reaches<F: Fixture>() {
    let world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    let (_, anna) = synced(&world, "anna").await;
    let (_, clara) = synced(&world, "clara").await;
    let mut follower = CommitFollower::new(&world).await;
    world
        .execute("UPDATE customer SET region = 'south' WHERE customer_id = 2")
        .await;
    let (concerned, touched) = follower.look(&world, [&anna, &clara]).await;
    assert_eq!((concerned, touched), ([true, true], 2));
    world
        .execute("UPDATE customer SET region = 'west' WHERE customer_id = 2")
        .await;
    let (concerned, touched) = follower.look(&world, [&anna, &clara]).await;
    assert_eq!((concerned, touched), ([false, true], 2));
}

pub async fn a_commit_is_told_when_it_is_committed_however_late<F: Fixture>() {
    let world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    let (_, anna) = synced(&world, "anna").await;
    let (_, clara) = synced(&world, "clara").await;
    let mut follower = CommitFollower::new(&world).await;
    let mut late = world.fixture.begin().await;
    late.execute("UPDATE customer SET name = 'Susi' WHERE customer_id = 3")
        .await;
    for round in 0..3 {
        if F::CONCURRENT_WRITERS {
            let sql = format!("UPDATE customer SET name = 'N{round}' WHERE customer_id = 1");
            world.execute(&sql).await;
        }
        let (concerned, _) = follower.look(&world, [&anna, &clara]).await;
        assert_eq!(concerned, [F::CONCURRENT_WRITERS, false]);
    }
    late.commit().await;
    let (concerned, touched) = follower.look(&world, [&anna, &clara]).await;
    assert_eq!((concerned, touched), ([false, true], 1));
}

pub async fn what_is_undone_is_not_told<F: Fixture>() {
    let world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    let (_, anna) = synced(&world, "anna").await;
    let (_, clara) = synced(&world, "clara").await;
    let mut follower = CommitFollower::new(&world).await;
    let mut undone = world.fixture.begin().await;
    undone
        .execute("UPDATE customer SET name = 'Susi' WHERE customer_id = 3")
        .await;
    follower.look(&world, [&anna]).await;
    undone.execute("ROLLBACK").await;
    drop(undone);
    world
        .execute("UPDATE customer SET name = 'N' WHERE customer_id = 1")
        .await;
    let (concerned, touched) = follower.look(&world, [&anna, &clara]).await;
    assert_eq!((concerned, touched), ([true, false], 1));
}

pub async fn many_rows_of_a_partition_are_told_once<F: Fixture>() {
    let world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    let (_, anna) = synced(&world, "anna").await;
    let mut follower = CommitFollower::new(&world).await;
    world
        .execute(
            "WITH RECURSIVE n (i) AS (SELECT 100 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)
             INSERT INTO customer (customer_id, region, name) SELECT i, 'north', 'x' FROM n",
        )
        .await;
    let (concerned, touched) = follower.look(&world, [&anna]).await;
    assert_eq!((concerned, touched), ([true], 1));
}

pub async fn what_a_sync_notes_of_itself_concerns_nobody<F: Fixture>() {
    let world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    let (_, anna) = synced(&world, "anna").await;
    let mut follower = CommitFollower::new(&world).await;
    synced(&world, "berta").await;
    let (_, touched) = follower.look(&world, [&anna]).await;
    assert_eq!(touched, 0);
    // A database may commit something of its own now and then, but a look commits nothing.
    for looks in 1.. {
        assert!(looks < 100, "each look moves the position");
        let position = follower.position.clone();
        follower.look(&world, [&anna]).await;
        if position == follower.position {
            break;
        }
    }
}

pub async fn an_upload_concerns_who_holds_the_same<F: Fixture>() {
    let world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    let (mut remote, anna) = synced(&world, "anna").await;
    let (_, berta) = synced(&world, "berta").await;
    let (_, clara) = synced(&world, "clara").await;
    let mut follower = CommitFollower::new(&world).await;
    remote
        .upload(&[insert("purchase", "20|north|1|5.00")])
        .await;
    let (concerned, touched) = follower.look(&world, [&anna, &berta, &clara]).await;
    assert_eq!((concerned, touched), ([true, true, false], 1));
}

pub async fn a_table_of_which_all_is_sent_again_concerns_everybody<F: Fixture>() {
    let mut world = DeployedCentre::<F>::new(SHOP_DDL, shop()).await;
    let (_, anna) = synced(&world, "anna").await;
    let (_, clara) = synced(&world, "clara").await;
    let mut follower = CommitFollower::new(&world).await;
    world
        .execute(&F::EMPTY_TABLE.replace("{}", "purchase"))
        .await;
    let (concerned, _) = follower.look(&world, [&anna, &clara]).await;
    assert_eq!(concerned, [true, true]);
    // Another change log, of which nobody knows anything.
    for table in &mut world.specs[0].tables {
        if table.name == "customer" {
            table.partition = vec![RuleSpec::everyone()];
        }
    }
    world.deploy().await.unwrap();
    let (_, touched) = follower.look(&world, [&anna, &clara]).await;
    assert!(touched > 0);
    let (_, anna) = synced(&world, "anna").await;
    let (_, clara) = synced(&world, "clara").await;
    follower.look(&world, [&anna, &clara]).await;
    world
        .execute("UPDATE customer SET name = 'N' WHERE customer_id = 1")
        .await;
    let (concerned, _) = follower.look(&world, [&anna, &clara]).await;
    assert_eq!(concerned, [true, true]);
}

pub async fn rows_that_follow_a_parent_concern_whom_it_does<F: Fixture>() {
    let mut tables = shop();
    tables[0].partition = vec![RuleSpec::follows("customer")];
    let world = DeployedCentre::<F>::new(SHOP_DDL, tables).await;
    let (_, anna) = synced(&world, "anna").await;
    let (_, clara) = synced(&world, "clara").await;
    let mut follower = CommitFollower::new(&world).await;
    world
        .execute("UPDATE purchase SET cost = 3 WHERE purchase_id = 11")
        .await;
    let (concerned, _) = follower.look(&world, [&anna, &clara]).await;
    assert_eq!(concerned, [false, true]);
    world
        .execute("UPDATE customer SET region = 'north' WHERE customer_id = 3")
        .await;
    let (concerned, touched) = follower.look(&world, [&anna, &clara]).await;
    assert_eq!((concerned, touched), ([true, true], 4));
}

pub async fn what_a_remote_holds_is_told_by_its_download_and_its_checkpoint<F: Fixture>() {
    let world = DeployedCentre::<F>::new(
        "CREATE TABLE plan (login TEXT NOT NULL, place INTEGER NOT NULL, PRIMARY KEY (login, place));
         CREATE TABLE spot (id INTEGER NOT NULL PRIMARY KEY, place INTEGER NOT NULL,
             price NUMERIC(10,2));
         WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)
         INSERT INTO plan SELECT 'many', i FROM n;
         INSERT INTO plan VALUES ('few', 1), ('few', 3000);
         INSERT INTO spot VALUES (1, 1, 1.5), (2, 2, 2.5), (3000, 3000, 3)",
        vec![partitioned("spot", &["place"], "SELECT place FROM plan WHERE login = {s.username}")],
    )
    .await;
    let (mut many, of_many) = synced(&world, "many").await;
    let (mut few, of_few) = synced(&world, "few").await;
    assert_eq!(of_many.interests().len(), 3_001);
    let checkpoints = [
        few.checkpoint.clone().unwrap(),
        many.checkpoint.clone().unwrap(),
    ];
    let holdings = few.worker.holdings(&checkpoints).await.unwrap();
    assert_eq!(holdings, [Some(of_few.clone()), Some(of_many.clone())]);
    // A download that has nothing new tells it as well.
    let again = many.download().await;
    assert_eq!(again.checkpoint(), None);
    assert_eq!(again.holding.as_ref(), Some(&of_many));
    let mut follower = CommitFollower::new(&world).await;
    world
        .execute("UPDATE spot SET price = 7 WHERE id = 2")
        .await;
    let (concerned, _) = follower.look(&world, [&of_many, &of_few]).await;
    assert_eq!(concerned, [true, false]);
    world
        .execute("UPDATE spot SET price = 7 WHERE id = 3000")
        .await;
    let (concerned, _) = follower.look(&world, [&of_many, &of_few]).await;
    assert_eq!(concerned, [true, true]);
    // A list that is not kept any more is not guessed.
    world
        .execute(&format!("DELETE FROM {}", F::own_table("scope_piece")))
        .await;
    let holdings = few.worker.holdings(&checkpoints).await.unwrap();
    assert_eq!(holdings, [Some(of_few), None]);
}

/// Writers go on while somebody follows: at the end everything was told.
pub async fn whoever_follows_busy_writers_is_told_of_every_commit<F: Fixture>() {
    let world = DeployedCentre::<F>::new(
        "CREATE TABLE plan (login TEXT NOT NULL, place INTEGER NOT NULL, PRIMARY KEY (login, place));
         CREATE TABLE spot (id INTEGER NOT NULL PRIMARY KEY, place INTEGER NOT NULL);
         WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200)
         INSERT INTO plan SELECT 'p' || i, i FROM n;",
        vec![partitioned("spot", &["place"], "SELECT place FROM plan WHERE login = {s.username}")],
    )
    .await;
    let mut follower = CommitFollower::new(&world).await;
    let write = |worker: i64| {
        let fixture = &world.fixture;
        async move {
            for place in (1..=200).filter(|it| it % 4 == worker) {
                let sql = format!("INSERT INTO spot VALUES ({place}, {place})");
                match F::CONCURRENT_WRITERS && place % 3 == 0 {
                    false => fixture.execute(&sql).await,
                    true => {
                        let mut open = fixture.begin().await;
                        open.execute(&sql).await;
                        tokio::time::sleep(Duration::from_millis(3)).await;
                        open.commit().await;
                    }
                }
            }
        }
    };
    let writing = async { tokio::join!(write(0), write(1), write(2), write(3)) };
    let mut writing = std::pin::pin!(writing);
    let mut told = 0;
    let mut is_done = false;
    while !is_done {
        tokio::select! {
            _ = &mut writing => is_done = true,
            () = tokio::time::sleep(Duration::from_millis(2)) => {}
        }
        // Each commit touches a partition of its own.
        let (_, touched) = follower.look(&world, []).await;
        told += touched;
    }
    assert_eq!(told, 200);
}
