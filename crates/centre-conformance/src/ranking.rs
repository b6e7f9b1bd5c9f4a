//! Conflicts that go by the rank of users: that of who uploads, and of who has written the centre's
//! row.

use tidewater_centre::{ConflictDetection, ConflictSpec, TableSpec};

use crate::fixture::Fixture;
use crate::proving::claims;
use crate::remote::{TestRemote, update};
use crate::world::{DeployedCentre, everyone};

const DDL: &str = "
    CREATE TABLE staff (login TEXT NOT NULL PRIMARY KEY, level INTEGER);
    CREATE TABLE item (id INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL, price NUMERIC(8,2));
    INSERT INTO staff VALUES ('clerk', 1), ('clark', 1), ('lead', 2), ('boss', 3), ('guest', NULL);
    INSERT INTO item VALUES (1, 'tea', 1.5)";

const BY_LEVEL: &str = "SELECT level FROM staff WHERE login = {s.username}";

fn item(rank: &str, centre_rank: Option<i64>) -> TableSpec {
    TableSpec {
        conflict: ConflictSpec {
            resolve: vec!["rank".into()],
            rank: Some(rank.into()),
            centre_rank,
            ..ConflictSpec::default()
        },
        ..everyone("item")
    }
}

/// Users change the row one after the other, each without having seen what those before made of it;
/// whose name it has in the end.
async fn contest<F: Fixture>(world: &DeployedCentre<F>, users: &[&str]) -> String {
    world
        .execute("UPDATE item SET name = 'tea', price = 1.5")
        .await;
    let mut remotes = Vec::new();
    for user in users {
        remotes.push(TestRemote::synced(world, user).await);
    }
    for (remote, user) in remotes.iter_mut().zip(users) {
        let change = update("item", "1|tea|1.50", &format!("1|{user}|1.50"));
        remote.upload(&[change]).await;
    }
    name_of_item(world).await
}

async fn name_of_item<F: Fixture>(world: &DeployedCentre<F>) -> String {
    let fresh = TestRemote::synced(world, "fresh").await;
    let rows = fresh.rows("item");
    rows[0].split('|').nth(1).unwrap().to_owned()
}

pub async fn who_has_the_higher_rank_wins_over_who_wrote_the_centres_row<F: Fixture>() {
    let world = DeployedCentre::<F>::new(DDL, vec![item(BY_LEVEL, None)]).await;
    for (users, winner) in [
        (&["clerk", "boss"][..], "boss"),
        (&["boss", "clerk"], "boss"),
        (&["clerk", "boss", "lead"], "boss"),
        (&["clerk", "lead", "boss"], "boss"),
        // Of equals the first one keeps the row.
        (&["clerk", "clark"], "clerk"),
        // Who has no rank goes before nobody, and everybody goes before him.
        (&["guest", "clerk"], "clerk"),
        (&["clerk", "guest"], "clerk"),
        (&["guest", "nobody"], "guest"),
    ] {
        assert_eq!(contest(&world, users).await, winner, "{users:?}");
    }
    // A rank counts as it was when the row was written.
    world
        .execute("UPDATE item SET name = 'tea', price = 1.5")
        .await;
    let mut clerk = TestRemote::synced(&world, "clerk").await;
    let mut lead = TestRemote::synced(&world, "lead").await;
    clerk
        .upload(&[update("item", "1|tea|1.50", "1|clerk|1.50")])
        .await;
    world
        .execute("UPDATE staff SET level = 9 WHERE login = 'clerk'")
        .await;
    lead.upload(&[update("item", "1|tea|1.50", "1|lead|1.50")])
        .await;
    assert_eq!(name_of_item(&world).await, "lead");
}

pub async fn what_no_upload_has_written_is_the_centres_and_has_its_rank<F: Fixture>() {
    for (centre_rank, winner) in [(None, "centre"), (Some(3), "centre"), (Some(2), "boss")] {
        let world = DeployedCentre::<F>::new(DDL, vec![item(BY_LEVEL, centre_rank)]).await;
        let mut clerk = TestRemote::synced(&world, "clerk").await;
        let mut boss = TestRemote::synced(&world, "boss").await;
        clerk
            .upload(&[update("item", "1|tea|1.50", "1|clerk|1.50")])
            .await;
        world.execute("UPDATE item SET name = 'centre'").await;
        boss.upload(&[update("item", "1|tea|1.50", "1|boss|1.50")])
            .await;
        assert_eq!(name_of_item(&world).await, winner, "{centre_rank:?}");
        // What the centre put back as it was is the user's again.
        world.execute("UPDATE item SET name = 'x'").await;
        clerk.download().await;
        boss.download().await;
        clerk
            .upload(&[update("item", "1|x|1.50", "1|clerk|1.50")])
            .await;
        world.execute("UPDATE item SET price = 7").await;
        world.execute("UPDATE item SET price = 1.5").await;
        boss.upload(&[update("item", "1|x|1.50", "1|boss|1.50")])
            .await;
        assert_eq!(name_of_item(&world).await, "boss");
    }
}

pub async fn a_rank_is_what_others_say_of_the_user<F: Fixture>() {
    let mut table = item("{s.claims.level}", None);
    table.conflict.detect = ConflictDetection::Column;
    let world = DeployedCentre::<F>::new(DDL, vec![table]).await;
    let mut low = TestRemote::synced(&world, "low").await;
    let mut high = TestRemote::synced(&world, "high").await;
    low.claims = claims(&[("level", "10")]);
    high.claims = claims(&[("level", "20")]);
    low.upload(&[update("item", "1|tea|1.50", "1|low|1.50")])
        .await;
    high.upload(&[update("item", "1|tea|1.50", "1|high|2.00")])
        .await;
    assert_eq!(name_of_item(&world).await, "high");
    let mut unknown = TestRemote::synced(&world, "unknown").await;
    low.download().await;
    unknown
        .upload(&[update("item", "1|high|2.00", "1|unknown|2.00")])
        .await;
    low.upload(&[update("item", "1|high|2.00", "1|low|2.00")])
        .await;
    assert_eq!(name_of_item(&world).await, "low");
}

pub async fn a_rank_that_is_no_number_is_told_with_its_table<F: Fixture>() {
    let world = DeployedCentre::<F>::new(DDL, vec![item("SELECT login FROM staff", None)]).await;
    let mut remote = TestRemote::synced(&world, "clerk").await;
    let upload = remote.next_upload(&[update("item", "1|tea|1.50", "1|mate|1.50")]);
    let told = format!("{:?}", remote.worker.apply(vec![upload]).await);
    assert!(told.contains("the rank query of"), "{told}");
    assert!(told.contains("Configuration"), "{told}");
}

pub async fn a_rank_that_cannot_be_is_refused_with_the_place<F: Fixture>() {
    let mut world = DeployedCentre::<F>::new(DDL, vec![item(BY_LEVEL, None)]).await;
    let conflict = |resolve: &str, rank: Option<&str>| ConflictSpec {
        resolve: vec![resolve.to_owned()],
        rank: rank.map(str::to_owned),
        ..ConflictSpec::default()
    };
    for (conflict, wrong) in [
        (conflict("rank", None), "nothing says which rank a user has"),
        (
            conflict("client_wins", Some(BY_LEVEL)),
            "are for the resolver rank",
        ),
        (
            conflict("rank", Some("SELECT login, level FROM staff")),
            "yields 2 columns",
        ),
        (
            conflict("rank", Some("SELECT nothing FROM staff")),
            "conflict.rank",
        ),
    ] {
        world.specs[0].tables[0].conflict = conflict;
        let error = world.deploy().await.unwrap_err().to_string();
        assert!(error.contains(wrong), "{error}");
    }
}
