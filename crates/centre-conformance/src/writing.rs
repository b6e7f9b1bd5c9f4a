//! What remotes may write of what they hold: which rows, which columns, and whether they may give
//! rows away.

use tidewater_centre::{
    RuleBy, RuleSpec, TableSpec, WindowLength, WindowSpec, WriteScopeSpec, WritesSpec,
};
use tidewater_protocol::Direction;

use crate::fixture::Fixture;
use crate::remote::{TestRemote, delete, insert, update};
use crate::world::{DeployedCentre, everyone, partitioned};

const OWNED: &str = "SELECT {s.username}";
const OUT_OF_SCOPE: &str = "out_of_scope: this row is not in your partitions";
const READ_ONLY: &str = "out_of_scope: this row may be read, but not written by you";

/// Jobs are read by region, and written by their technicians.
const JOBS: &str = "CREATE TABLE member (login TEXT NOT NULL, region TEXT NOT NULL,
        PRIMARY KEY (login, region));
    CREATE TABLE crew (id INTEGER NOT NULL PRIMARY KEY, login TEXT NOT NULL, tech TEXT NOT NULL);
    CREATE TABLE job (id INTEGER NOT NULL PRIMARY KEY, region TEXT NOT NULL, tech TEXT,
        note TEXT);
    INSERT INTO member VALUES ('anna', 'north'), ('berta', 'north'), ('clara', 'south');
    INSERT INTO crew VALUES (1, 'anna', 't1');
    INSERT INTO job VALUES (1, 'north', 'anna', 'a'), (2, 'north', 'berta', 'b'),
        (3, 'south', 'anna', 'c'), (4, 'north', NULL, 'd'), (5, 'north', 't1', 'e')";

const REGIONS: &str = "SELECT region FROM member WHERE login = {s.username}";

fn written_by(values: &str) -> Option<WriteScopeSpec> {
    Some(WriteScopeSpec {
        columns: vec!["tech".into()],
        values: values.into(),
    })
}

fn jobs(values: &str, hand_over: bool) -> TableSpec {
    TableSpec {
        writes: WritesSpec {
            scope: written_by(values),
            hand_over,
            ..WritesSpec::default()
        },
        ..partitioned("job", &["region"], REGIONS)
    }
}

pub async fn rows_that_may_only_be_read_are_not_written<F: Fixture>() {
    let world = DeployedCentre::<F>::new(JOBS, vec![jobs(OWNED, false)]).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    assert_eq!(
        anna.rows("job"),
        [
            "1|north|anna|a",
            "2|north|berta|b",
            "4|north|NULL|d",
            "5|north|t1|e"
        ]
    );
    for (change, told) in [
        (
            update("job", "2|north|berta|b", "2|north|berta|x"),
            format!("refused job [2] Update {READ_ONLY}"),
        ),
        (
            delete("job", "2|north|berta|b"),
            format!("refused job [2] Delete {READ_ONLY}"),
        ),
        (
            update("job", "2|north|berta|b", "2|north|anna|b"),
            format!("refused job [2] Update {READ_ONLY}"),
        ),
        // She says that it was hers.
        (
            update("job", "2|north|anna|b", "2|north|anna|x"),
            format!("refused job [2] Update {READ_ONLY}"),
        ),
        (
            update("job", "4|north|NULL|d", "4|north|anna|d"),
            format!("refused job [4] Update {READ_ONLY}"),
        ),
        (
            update("job", "1|north|anna|a", "1|north|berta|a"),
            format!("refused job [1] Update {READ_ONLY}"),
        ),
        (
            update("job", "1|north|anna|a", "1|south|anna|a"),
            format!("refused job [1] Update {OUT_OF_SCOPE}"),
        ),
        (
            insert("job", "9|north|berta|x"),
            format!("refused job [9] Insert {READ_ONLY}"),
        ),
        (
            insert("job", "9|south|anna|x"),
            format!("refused job [9] Insert {OUT_OF_SCOPE}"),
        ),
        (
            update("job", "3|south|anna|c", "3|south|anna|x"),
            format!("refused job [3] Update {OUT_OF_SCOPE}"),
        ),
        // What may be read is what the insert has lost against.
        (
            insert("job", "2|north|anna|x"),
            "conflict job: 2|north|berta|b".into(),
        ),
    ] {
        let result = anna.upload(&[change]).await;
        assert_eq!(result[1..], [told]);
    }
    let changes = [
        update("job", "1|north|anna|a", "1|north|anna|x"),
        insert("job", "9|north|anna|y"),
    ];
    let result = anna.upload(&changes);
    assert_eq!(
        result.await,
        ["1 inserted, 1 updated, 0 deleted, 0 conflicts, 0 refused"]
    );
    // Also of many at once.
    let rows = (100..300).map(|id| match id {
        217 => insert("job", "217|north|berta|x"),
        id => insert("job", &format!("{id}|north|anna|x")),
    });
    let result = anna.upload(&rows.collect::<Vec<_>>()).await;
    assert_eq!(
        result,
        [
            "199 inserted, 0 updated, 0 deleted, 0 conflicts, 1 refused".to_owned(),
            format!("refused job [217] Insert {READ_ONLY}")
        ]
    );
    let berta = "SELECT id, note FROM job WHERE tech = 'berta'";
    assert_eq!(world.fixture.query(berta).await, ["2|b"]);
}

pub async fn what_may_be_written_is_judged_before_the_upload_and_at_its_end<F: Fixture>() {
    let values = "SELECT tech FROM crew WHERE login = {s.username}";
    let tables = vec![everyone("crew"), jobs(values, false)];
    let world = DeployedCentre::<F>::new(JOBS, tables).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let changes = [
        insert("crew", "2|anna|t2"),
        insert("job", "9|north|t2|x"),
        update("job", "5|north|t1|e", "5|north|t2|e"),
        // It is not hers yet.
        update("job", "4|north|NULL|d", "4|north|t2|d"),
    ];
    let result = anna.upload(&changes);
    assert_eq!(
        result.await,
        [
            "2 inserted, 1 updated, 0 deleted, 0 conflicts, 1 refused".to_owned(),
            format!("refused job [4] Update {READ_ONLY}")
        ]
    );
    let changes = [
        delete("crew", "2|anna|t2"),
        update("job", "5|north|t2|e", "5|north|t1|E"),
        update("job", "9|north|t2|x", "9|north|t2|X"),
    ];
    let result = anna.upload(&changes);
    assert_eq!(
        result.await,
        [
            "0 inserted, 1 updated, 1 deleted, 0 conflicts, 1 refused".to_owned(),
            format!("refused job [9] Update {READ_ONLY}")
        ]
    );
}

pub async fn a_read_only_column_is_the_centres<F: Fixture>() {
    let ddl = "CREATE TABLE note (id INTEGER NOT NULL PRIMARY KEY, body TEXT,
        approved VARCHAR(9) NOT NULL DEFAULT 'no')";
    let note = TableSpec {
        writes: WritesSpec {
            read_only: vec!["approved".into()],
            ..WritesSpec::default()
        },
        ..everyone("note")
    };
    let world = DeployedCentre::<F>::new(ddl, vec![note]).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    assert!(world.schema().tables[0].columns[2].nullable);
    let counts = "1 inserted, 0 updated, 0 deleted, 0 conflicts, 0 refused";
    for (uploaded, made) in [
        ("1|v0|NULL", "made note: 1|v0|no"),
        ("2|w0|yes", "made note: 2|w0|no"),
    ] {
        let result = anna.upload(&[insert("note", uploaded)]).await;
        assert_eq!(result, [counts, made]);
    }
    let result = anna.upload(&[update("note", "1|v0|no", "1|v1|yes")]).await;
    let told =
        "refused note [1] Update download_only: the column approved is not written by remotes";
    assert_eq!(result[1..], [told]);
    // Nothing of hers is lost when the centre changes it.
    world.execute("UPDATE note SET approved = 'yes'").await;
    let result = anna.upload(&[update("note", "1|v0|no", "1|v1|no")]).await;
    let counts = "0 inserted, 1 updated, 0 deleted, 0 conflicts, 0 refused";
    assert_eq!(result, [counts, "made note: 1|v1|yes"]);
    let result = anna.upload(&[delete("note", "2|w0|no")]).await;
    assert_eq!(
        result,
        ["0 inserted, 0 updated, 1 deleted, 0 conflicts, 0 refused"]
    );
    let rows = (100..300).map(|id| insert("note", &format!("{id}|x|NULL")));
    let result = anna.upload(&rows.collect::<Vec<_>>()).await;
    assert_eq!((result.len(), &*result[200]), (201, "made note: 299|x|no"));
    let all = "SELECT count(*) FROM note WHERE approved = 'no' AND body = 'x'";
    assert_eq!(world.fixture.query(all).await, ["200"]);
}

const TASKS: &str = "CREATE TABLE task (id INTEGER NOT NULL PRIMARY KEY, owner TEXT NOT NULL,
        body TEXT);
    INSERT INTO task VALUES (1, 'anna', 'a'), (2, 'anna', 'b'), (3, 'berta', 'c')";

fn tasks() -> TableSpec {
    let mut task = partitioned("task", &["owner"], OWNED);
    task.writes.hand_over = true;
    task
}

pub async fn a_row_that_is_handed_over_leaves_with_the_same_sync<F: Fixture>() {
    let world = DeployedCentre::<F>::new(TASKS, vec![tasks()]).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut berta = TestRemote::synced(&world, "berta").await;
    let changes = [
        update("task", "1|anna|a", "1|berta|A"),
        update("task", "2|anna|b", "20|berta|b"),
    ];
    let result = anna.upload(&changes);
    assert_eq!(
        result.await,
        ["0 inserted, 2 updated, 0 deleted, 0 conflicts, 0 refused"]
    );
    // It is not hers any more, though she has not heard of that.
    for change in [
        update("task", "1|berta|A", "1|anna|A"),
        update("task", "1|berta|A", "1|berta|AA"),
        delete("task", "1|berta|A"),
    ] {
        let result = anna.upload(&[change]).await;
        assert!(result[1].ends_with(OUT_OF_SCOPE), "{result:?}");
    }
    // The remote has kept its rows so far.
    let received = anna.download().await;
    assert!(
        received.rows().contains(&"-task [1]".to_owned()),
        "{received:?}"
    );
    berta.download().await;
    assert_eq!(berta.rows("task"), ["1|berta|A", "20|berta|b", "3|berta|c"]);
    let result = berta
        .upload(&[update("task", "1|berta|A", "1|anna|B")])
        .await;
    assert_eq!(
        result,
        ["0 inserted, 1 updated, 0 deleted, 0 conflicts, 0 refused"]
    );
    assert_eq!(berta.download().await.rows(), ["-task [1]"]);
    anna.download().await;
    // Nobody makes a row for somebody else, or takes one from him.
    for change in [
        insert("task", "9|berta|x"),
        update("task", "3|berta|c", "3|anna|c"),
    ] {
        let result = anna.upload(&[change]).await;
        assert!(result[1].ends_with(OUT_OF_SCOPE), "{result:?}");
    }
}

pub async fn a_row_of_a_lost_partition_can_be_handed_over_once<F: Fixture>() {
    let world = DeployedCentre::<F>::new(JOBS, vec![jobs(OWNED, true)]).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    world
        .execute("DELETE FROM member WHERE login = 'anna'")
        .await;
    let changes = [
        update("job", "1|north|anna|a", "1|south|clara|A"),
        update("job", "2|north|berta|b", "2|south|berta|b"),
    ];
    let result = anna.upload(&changes);
    assert_eq!(
        result.await,
        [
            "0 inserted, 1 updated, 0 deleted, 0 conflicts, 1 refused".to_owned(),
            format!("refused job [2] Update {READ_ONLY}")
        ]
    );
    world
        .execute("INSERT INTO job VALUES (6, 'north', 'anna', 'f')")
        .await;
    let result = anna
        .upload(&[update("job", "6|north|anna|f", "6|south|clara|f")])
        .await;
    assert!(result[1].ends_with(OUT_OF_SCOPE), "{result:?}");
    anna.download().await;
    assert!(anna.rows("job").is_empty());
    let clara = TestRemote::synced(&world, "clara").await;
    assert_eq!(clara.rows("job"), ["1|south|clara|A", "3|south|anna|c"]);
}

pub async fn what_follows_a_row_that_is_handed_over_goes_with_it<F: Fixture>() {
    let ddl = "CREATE TABLE doc (id INTEGER NOT NULL PRIMARY KEY, owner TEXT, title TEXT);
        CREATE TABLE line (id INTEGER NOT NULL PRIMARY KEY, doc_id INTEGER REFERENCES doc,
            body TEXT);
        CREATE TABLE part (id INTEGER NOT NULL PRIMARY KEY, line_id INTEGER REFERENCES line);
        INSERT INTO doc VALUES (1, 'anna', 'one'), (2, 'berta', 'two'), (3, 'anna', 'three');
        INSERT INTO line VALUES (10, 1, 'a'), (11, 1, 'b'), (20, 2, 'c'), (30, 3, 'd');
        INSERT INTO part VALUES (100, 10), (200, 20)";
    let follows = |table: &str, parent: &str, hand_over| {
        let mut spec = everyone(table);
        spec.partition = vec![RuleSpec::follows(parent)];
        spec.writes.hand_over = hand_over;
        spec
    };
    let mut doc = partitioned("doc", &["owner"], OWNED);
    doc.writes.hand_over = true;
    let tables = vec![
        doc,
        follows("line", "doc", true),
        follows("part", "line", false),
    ];
    let world = DeployedCentre::<F>::new(ddl, tables).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut berta = TestRemote::synced(&world, "berta").await;
    // What she did to it before is taken; what was never hers is not.
    let changes = [
        update("doc", "1|anna|one", "1|berta|ONE"),
        update("line", "10|1|a", "10|1|A"),
        insert("line", "12|1|new"),
        insert("line", "22|2|not hers"),
        insert("part", "120|12"),
        insert("part", "202|20"),
    ];
    let result = anna.upload(&changes);
    let mut result = result.await;
    result[1..].sort();
    assert_eq!(
        result,
        [
            "2 inserted, 2 updated, 0 deleted, 0 conflicts, 2 refused".to_owned(),
            format!("refused line [22] Insert {OUT_OF_SCOPE}"),
            format!("refused part [202] Insert {OUT_OF_SCOPE}"),
        ]
    );
    anna.download().await;
    assert_eq!(anna.rows("doc"), ["3|anna|three"]);
    assert_eq!(anna.rows("line"), ["30|3|d"]);
    assert!(anna.rows("part").is_empty());
    // A line of hers goes to another document, with what is below it.
    let changes = [update("line", "30|3|d", "30|2|d"), insert("part", "300|30")];
    let result = anna.upload(&changes);
    assert_eq!(
        result.await,
        ["1 inserted, 1 updated, 0 deleted, 0 conflicts, 0 refused"]
    );
    anna.download().await;
    assert!(anna.rows("line").is_empty() && anna.rows("part").is_empty());
    berta.download().await;
    assert_eq!(
        berta.rows("line"),
        ["10|1|A", "11|1|b", "12|1|new", "20|2|c", "30|2|d"]
    );
    assert_eq!(berta.rows("part"), ["100|10", "120|12", "200|20", "300|30"]);
}

pub async fn an_older_row_that_a_device_makes_leaves_it_with_the_same_sync<F: Fixture>() {
    let ddl = "CREATE TABLE reading (id INTEGER NOT NULL PRIMARY KEY, seq INTEGER);
        INSERT INTO reading VALUES (1, 100)";
    let reading = TableSpec {
        partition: vec![RuleSpec {
            by: RuleBy::Everyone,
            window: Some(WindowSpec {
                column: "seq".into(),
                last: WindowLength::Number(10),
            }),
        }],
        ..everyone("reading")
    };
    let world = DeployedCentre::<F>::new(ddl, vec![reading]).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let changes = [insert("reading", "2|50"), insert("reading", "3|95")];
    let result = anna.upload(&changes);
    assert_eq!(
        result.await,
        ["2 inserted, 0 updated, 0 deleted, 0 conflicts, 0 refused"]
    );
    assert_eq!(anna.download().await.rows(), ["-reading [2]"]);
}

pub async fn whose_a_row_is_that_the_centre_fills_shows_when_it_is_there<F: Fixture>() {
    let ddl = "CREATE TABLE note (id INTEGER NOT NULL PRIMARY KEY, body VARCHAR(9) NOT NULL,
        owner VARCHAR(9))";
    for is_written in [false, true] {
        let mut note = match is_written {
            false => partitioned("note", &["owner"], OWNED),
            true => everyone("note"),
        };
        note.filled_by_centre = vec!["owner".into()];
        note.writes.scope = is_written.then(|| WriteScopeSpec {
            columns: vec!["owner".into()],
            values: OWNED.into(),
        });
        let barrier = if is_written { READ_ONLY } else { OUT_OF_SCOPE };
        let world = DeployedCentre::<F>::new(ddl, vec![note]).await;
        world.execute(&F::fill_trigger()).await;
        let mut anna = TestRemote::synced(&world, "anna").await;
        let changes = [
            insert("note", "1|anna|NULL"),
            insert("note", "2|berta|NULL"),
            insert("note", "3|berta|anna"),
            insert("note", "4|anna|berta"),
        ];
        let mut result = anna.upload(&changes).await;
        result.sort();
        assert_eq!(
            result,
            [
                "2 inserted, 0 updated, 0 deleted, 0 conflicts, 2 refused".to_owned(),
                "made note: 1|anna|anna".to_owned(),
                format!("refused note [2] Insert {barrier}"),
                format!("refused note [4] Insert {barrier}"),
            ]
        );
        let result = anna
            .upload(&[update("note", "1|anna|anna", "1|anna|NULL")])
            .await;
        assert_eq!(result[1..], [format!("refused note [1] Update {barrier}")]);
        let rows = (100..300).map(|id| insert("note", &format!("{id}|anna|NULL")));
        let result = anna.upload(&rows.collect::<Vec<_>>()).await;
        let counts = "200 inserted, 0 updated, 0 deleted, 0 conflicts, 0 refused";
        assert_eq!((result.len(), &*result[0]), (201, counts));
        anna.download().await;
        let others = world
            .fixture
            .query("SELECT id FROM note WHERE owner = 'berta'");
        assert!(others.await.is_empty());
        assert_eq!(anna.rows("note").len(), 202);
    }
}

/// Deploys a table; gives the error.
async fn refusal<F: Fixture>(world: &mut DeployedCentre<F>, table: TableSpec) -> String {
    world.specs[0].tables = vec![table];
    let error = world.deploy().await.unwrap_err();
    format!("{error} / {}", error.hint())
}

pub async fn what_nobody_could_write_so_is_named<F: Fixture>() {
    let mut world = DeployedCentre::<F>::new(JOBS, vec![jobs(OWNED, false)]).await;
    let of = |columns: &[&str], values: &str| {
        let mut job = jobs(values, false);
        let columns = columns.iter().map(|&it| it.into()).collect();
        let values = values.into();
        job.writes.scope = Some(WriteScopeSpec { columns, values });
        job
    };
    let read_only = |column: &str| {
        let mut job = jobs(OWNED, false);
        job.writes.read_only = vec![column.into()];
        job
    };
    let mut unpublished = jobs(OWNED, false);
    unpublished.columns = Some(vec!["id".into(), "region".into()]);
    let mut downloaded = jobs(OWNED, false);
    downloaded.direction = Direction::Download;
    let mut nobodys = everyone("job");
    nobodys.writes.hand_over = true;
    for (table, told) in [
        (
            of(&["teh"], OWNED),
            ["no column \"teh\"", "did you mean \"tech\"?"],
        ),
        (
            of(&["tech"], "SELECT tec FROM crew"),
            ["\"job\": the values query", "tec"],
        ),
        (
            of(&["tech"], "SELECT tech, id FROM crew"),
            ["yields 2 columns", "select values for tech"],
        ),
        (
            of(&["tech"], "SELECT {s.user}"),
            ["the values query", "{s.username}"],
        ),
        (
            unpublished,
            ["leaves out \"tech\"", "add \"tech\" to `columns`"],
        ),
        (
            downloaded,
            ["`write` is about what remotes write", "leave out `write`"],
        ),
        (
            nobodys,
            ["`hand_over` means nothing", "`partition` or `write`"],
        ),
        (
            read_only("nte"),
            ["no column \"nte\"", "did you mean \"note\"?"],
        ),
        (
            read_only("id"),
            ["\"id\" belongs to the primary key", "leave it out"],
        ),
        (
            read_only("region"),
            ["\"region\" tells whose a row is", "`write`"],
        ),
        (
            read_only("tech"),
            ["\"tech\" tells whose a row is", "hand_over"],
        ),
    ] {
        let message = refusal(&mut world, table).await;
        assert!(told.iter().all(|it| message.contains(it)), "{message}");
    }
    world
        .execute("CREATE TABLE entry (id INTEGER NOT NULL PRIMARY KEY, stamp TEXT NOT NULL)")
        .await;
    let mut entry = everyone("entry");
    entry.writes.read_only = vec!["stamp".into()];
    world.specs[0].tables = vec![entry];
    let warnings = world.deploy().await.unwrap().warnings.join("\n");
    assert!(
        warnings.contains("the read-only column \"stamp\", which must not be NULL"),
        "{warnings}"
    );
}
