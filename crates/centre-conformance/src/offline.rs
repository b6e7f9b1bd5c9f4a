//! What remotes do without the centre: numbers for keys, defaults, rules, what they leave open.

use tidewater_protocol::message::NumberBlock;
use tidewater_protocol::{Direction, RemoteId};

use crate::fixture::Fixture;
use crate::remote::{TestRemote, insert};
use crate::world::{DeployedCentre, NOW_MS, PUBLICATION, everyone};
use tidewater_centre::records::NumbersRequest;
use tidewater_centre::{CentreError, IdentitySpec, TableSpec};

/// A table for everybody whose column gets numbers, a hundred in a block.
pub fn numbered(table: &str, column: &str) -> TableSpec {
    TableSpec {
        identity: Some(IdentitySpec {
            column: column.into(),
            block: 100,
            refill_below: 20,
        }),
        ..everyone(table)
    }
}

fn ddl<F: Fixture>() -> String {
    format!(
        "CREATE TABLE invoice (invoice_id {}, total INTEGER);",
        F::NUMBERED_KEY
    )
}

async fn hand_out<F: Fixture>(world: &DeployedCentre<F>, remote: u8) -> Vec<NumberBlock> {
    hand_out_of(world, remote, &["invoice"]).await
}

/// Hands a remote numbers of these tables.
pub async fn hand_out_of<F: Fixture>(
    world: &DeployedCentre<F>,
    remote: u8,
    tables: &[&str],
) -> Vec<NumberBlock> {
    let wanted = NumbersRequest {
        remote_id: RemoteId([remote; 16]),
        user: "anna".into(),
        publication: PUBLICATION.into(),
        tables: tables.iter().map(|&it| it.into()).collect(),
        now_ms: NOW_MS,
    };
    world.worker().await.hand_out(&wanted).await.unwrap()
}

/// All numbers of blocks.
pub fn numbers(blocks: &[NumberBlock]) -> Vec<i64> {
    blocks.iter().flat_map(|it| it.first..=it.last).collect()
}

/// Inserts a row as an application of the centre does; gives its number.
async fn number_of_another<F: Fixture>(world: &DeployedCentre<F>) -> i64 {
    world
        .execute("INSERT INTO invoice (total) VALUES (7)")
        .await;
    let rows = world.fixture.query("SELECT max(invoice_id) FROM invoice");
    rows.await[0].parse().unwrap()
}

pub async fn numbers_are_handed_out_once_and_the_centre_keeps_clear_of_them<F: Fixture>() {
    let world =
        DeployedCentre::<F>::new(&ddl::<F>(), vec![numbered("invoice", "invoice_id")]).await;
    let mut all = vec![number_of_another(&world).await];
    for round in 1..=3 {
        let (one, two) = tokio::join!(hand_out(&world, 2 * round), hand_out(&world, 2 * round + 1));
        for blocks in [one, two] {
            assert_eq!(numbers(&blocks).len(), 100);
            assert!(blocks.iter().all(|it| it.table == "invoice"));
            all.extend(numbers(&blocks));
        }
        all.push(number_of_another(&world).await);
    }
    all.sort_unstable();
    assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "{all:?}");
    // Who has which is written down.
    let holders = format!(
        "SELECT count(DISTINCT remote_id), sum(last - first + 1), min(user_name), min(column_name) \
         FROM {} WHERE table_name = 'invoice'",
        F::own_table("identity_block")
    );
    let holders = world.fixture.query(&holders).await;
    assert_eq!(holders, ["6|600|anna|invoice_id"]);
    let status = world.centre.status().await.unwrap();
    let [told] = &status.numbers[..] else {
        panic!("{:?}", status.numbers);
    };
    assert_eq!((&*told.table, &*told.column), ("invoice", "invoice_id"));
    assert_eq!((told.count, told.remotes), (600, 6));
    let newest = &status.blocks[0];
    assert_eq!((newest.last, &*newest.user), (told.highest, "anna"));
}

pub async fn numbers_begin_behind_those_that_are_there<F: Fixture>() {
    let world =
        DeployedCentre::<F>::new(&ddl::<F>(), vec![numbered("invoice", "invoice_id")]).await;
    world.execute("INSERT INTO invoice VALUES (5000, 1)").await;
    assert!(numbers(&hand_out(&world, 1).await)[0] > 5000);
    assert!(number_of_another(&world).await > 5100);
    // Where nothing numbers the rows.
    let plain = "CREATE TABLE invoice (invoice_id BIGINT NOT NULL, line INTEGER NOT NULL,
         PRIMARY KEY (invoice_id, line)); INSERT INTO invoice VALUES (40, 1);";
    let world = DeployedCentre::<F>::new(plain, vec![numbered("invoice", "invoice_id")]).await;
    assert_eq!(numbers(&hand_out(&world, 1).await)[0], 41);
    assert_eq!(numbers(&hand_out(&world, 2).await)[0], 141);
}

async fn refusal<F: Fixture>(table: TableSpec) -> String {
    let ddl = format!(
        "{} CREATE TABLE item (code VARCHAR(10) NOT NULL PRIMARY KEY, number INTEGER);",
        ddl::<F>()
    );
    let mut world = DeployedCentre::<F>::new(&ddl, vec![numbered("invoice", "invoice_id")]).await;
    world.specs[0].tables = vec![table];
    let error = world.deploy().await.unwrap_err();
    assert!(
        matches!(error, CentreError::Configuration { .. }),
        "{error}"
    );
    format!("{error} / {}", error.hint())
}

pub async fn what_cannot_have_numbers_is_named<F: Fixture>() {
    let said = refusal::<F>(numbered("item", "code")).await;
    assert!(said.contains("\"item\": the column \"code\""), "{said}");
    assert!(
        said.contains("integer") && said.contains("docs/keys.md"),
        "{said}"
    );
    let said = refusal::<F>(numbered("item", "numbr")).await;
    assert!(said.contains("did you mean \"number\"?"), "{said}");
    let said = refusal::<F>(TableSpec {
        direction: Direction::Download,
        ..numbered("item", "number")
    });
    assert!(said.await.contains("none come up"));
    let said = refusal::<F>(TableSpec {
        columns: Some(vec!["code".into()]),
        ..numbered("item", "number")
    });
    assert!(said.await.contains("add \"number\" to `columns`"));
    let said = refusal::<F>(TableSpec {
        filled_by_centre: vec!["code".into()],
        ..everyone("item")
    });
    assert!(
        said.await
            .contains("`filled_by_centre` names \"code\" of the primary key")
    );
}

pub async fn a_numbered_key_that_remotes_have_no_numbers_for_is_warned_of<F: Fixture>() {
    let mut world = DeployedCentre::<F>::new(&ddl::<F>(), vec![everyone("invoice")]).await;
    let warned = |report: tidewater_centre::deploy_report::DeployReport| {
        let mut warnings = report.warnings.into_iter();
        warnings.any(|it| it.contains("identity = { column = \"invoice_id\""))
    };
    assert!(warned(world.deploy().await.unwrap()));
    world.specs[0].tables = vec![numbered("invoice", "invoice_id")];
    assert!(!warned(world.deploy().await.unwrap()));
    world.specs[0].tables = vec![TableSpec {
        direction: Direction::Download,
        ..everyone("invoice")
    }];
    assert!(!warned(world.deploy().await.unwrap()));
}

pub async fn columns_that_would_be_null_in_place_of_their_default_are_warned_of<F: Fixture>() {
    let ddl =
        "CREATE TABLE item (id INTEGER NOT NULL PRIMARY KEY, size INTEGER DEFAULT (length('ab')),
             code INTEGER DEFAULT (length('abc')), kind VARCHAR(9) DEFAULT 'new',
             note VARCHAR(9) DEFAULT NULL);";
    let mut world = DeployedCentre::<F>::new(ddl, vec![everyone("item")]).await;
    let warned = |report: tidewater_centre::deploy_report::DeployReport| -> Vec<String> {
        let warnings = report.warnings.into_iter();
        warnings
            .filter(|it| it.contains("filled_by_centre"))
            .collect()
    };
    let told = warned(world.deploy().await.unwrap());
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].contains("filled_by_centre = [\"size\", \"code\"]"),
        "{told:?}"
    );
    world.specs[0].tables[0].filled_by_centre = vec!["size".into(), "code".into()];
    let told = warned(world.deploy().await.unwrap());
    assert!(told.is_empty(), "{told:?}");
}

pub async fn remotes_are_told_defaults_and_rules_that_they_understand<F: Fixture>() {
    let ddl = "CREATE TABLE item (id INTEGER NOT NULL PRIMARY KEY, made DATE DEFAULT CURRENT_DATE,
             kind VARCHAR(9) NOT NULL DEFAULT 'new' CONSTRAINT item_kind CHECK (kind IN ('new', 'old')),
             qty INTEGER CONSTRAINT item_qty CHECK (qty BETWEEN 0 AND 9),
             note VARCHAR(5), CONSTRAINT item_unknown CHECK (note || kind <> 'xx'));";
    let columns = ["id", "made", "kind", "qty", "note"].map(String::from);
    let item = TableSpec {
        columns: Some(columns.to_vec()),
        filled_by_centre: vec!["kind".into()],
        ..everyone("item")
    };
    let mut world = DeployedCentre::<F>::new(ddl, vec![item.clone()]).await;
    let table = world.schema().tables[0].clone();
    let default = |name: &str| {
        let column = table.column(name).unwrap();
        table.columns[column].default.clone()
    };
    assert_eq!(default("made").as_deref(), Some("(date('now'))"));
    assert_eq!(default("kind").as_deref(), Some("'new'"));
    assert!(table.columns[2].nullable);
    let check = |name: &str| {
        let mut checks = table.checks.iter();
        checks.find(|it| it.name == name).map(|it| &*it.condition)
    };
    assert_eq!(
        check("item.kind: item_kind"),
        Some("(\"kind\" IN ('new', 'old'))")
    );
    assert!(check("item.qty: item_qty").is_some_and(|it| it.contains(">= 0")));
    assert!(
        !table
            .checks
            .iter()
            .any(|it| it.name.contains("item_unknown"))
    );
    // A rule about a column that is not published is none for remotes.
    world.specs[0].tables = vec![TableSpec {
        columns: Some(["id", "kind"].map(String::from).to_vec()),
        ..item
    }];
    world.deploy().await.unwrap();
    let checks = &world.schema().tables[0].checks;
    assert!(!checks.iter().any(|it| it.name.contains("qty")));
}

pub async fn what_a_remote_leaves_to_the_centre_gets_its_default<F: Fixture>() {
    let ddl = "CREATE TABLE item (id INTEGER NOT NULL PRIMARY KEY,
         kind VARCHAR(9) NOT NULL DEFAULT 'new', note VARCHAR(5) DEFAULT 'none');";
    let item = TableSpec {
        filled_by_centre: vec!["kind".into()],
        ..everyone("item")
    };
    let world = DeployedCentre::<F>::new(ddl, vec![item]).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let items = [insert("item", "1|NULL|NULL"), insert("item", "2|old|x")];
    let result = anna.upload(&items).await;
    assert!(result[0].starts_with("2 inserted, 0 updated"), "{result:?}");
    let rows = world.fixture.query("SELECT * FROM item ORDER BY id").await;
    assert_eq!(rows, ["1|new|NULL", "2|old|x"]);
    // What became of it goes back.
    assert!(result.iter().any(|it| it.contains("new")), "{result:?}");
}
