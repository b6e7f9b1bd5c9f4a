//! Uploads by COPY and by statements, among triggers and constraints of the application.

use tidewater_centre::{CentreError, OwnUpload, TableSpec, UploadOutcome};
use tidewater_centre_postgres::connect;

use super::table;
use crate::fixture::PostgresFixture;
use tidewater_centre_conformance::fixture::Fixture;
use tidewater_centre_conformance::remote::{TestRemote, delete, download_together, insert, update};
use tidewater_centre_conformance::scripting::script;
use tidewater_centre_conformance::world::{
    DeployedCentre, NOW_MS, SHOP_DDL, everyone, partitioned, publication, shop,
};

/// Uploads of users that hold nothing together, and whether they have gone in by the same
/// statements: only then is the version that they share left out of their downloads.
async fn upload_of_each(
    world: &DeployedCentre<PostgresFixture>,
    row: impl Fn(&str) -> String,
) -> Vec<OwnUpload> {
    let mut uploads = Vec::new();
    for user in ["anna", "clara"] {
        let mut remote = TestRemote::synced(world, user).await;
        uploads.push(remote.next_upload(&[insert("note", &row(user))]));
    }
    let outcomes = world.worker().await.apply(uploads).await.unwrap();
    let own = outcomes.into_iter().map(|outcome| match outcome {
        UploadOutcome::Applied { own, .. } => own,
        other => panic!("{other:?}"),
    });
    own.collect()
}

fn notes() -> Vec<TableSpec> {
    vec![partitioned("note", &["login"], "SELECT {s.username}")]
}

#[tokio::test]
async fn uploads_of_a_list_share_their_statements() {
    let ddl = "CREATE TABLE note (login TEXT NOT NULL, id INTEGER NOT NULL,
        at TIMESTAMPTZ NOT NULL DEFAULT now(), PRIMARY KEY (login, id))";
    let notes = vec![TableSpec {
        columns: Some(vec!["login".into(), "id".into()]),
        ..notes().remove(0)
    }];
    let world = DeployedCentre::<PostgresFixture>::new(ddl, notes).await;
    let own = upload_of_each(&world, |user| format!("{user}|1")).await;
    assert!(own.iter().all(|own| own.skip_version && own.version != 0));
    assert!(
        own.windows(2)
            .all(|pair| pair[0].version == pair[1].version)
    );
}

/// By which rule somebody holds a row is nobody else's affair.
#[tokio::test]
async fn a_row_of_a_list_comes_to_who_holds_it_by_another_rule() {
    let ddl = "CREATE TABLE note (login TEXT NOT NULL, store TEXT NOT NULL, id INTEGER NOT NULL,
                 PRIMARY KEY (login, id));
               CREATE TABLE shift (login TEXT PRIMARY KEY, store TEXT NOT NULL);
               INSERT INTO shift VALUES ('anna', 'first'), ('clara', 'second')";
    let mut notes = notes();
    let stores = "SELECT store FROM shift WHERE login = {s.username}";
    let by_store = partitioned("note", &["store"], stores).partition;
    notes[0].partition.extend(by_store);
    let world = DeployedCentre::<PostgresFixture>::new(ddl, notes).await;
    let (mut anna, mut clara) = (
        TestRemote::synced(&world, "anna").await,
        TestRemote::synced(&world, "clara").await,
    );
    let uploads = vec![
        anna.next_upload(&[insert("note", "anna|second|1")]),
        clara.next_upload(&[insert("note", "clara|second|2")]),
    ];
    let outcomes = world.worker().await.apply(uploads).await.unwrap();
    for (remote, outcome) in [&mut anna, &mut clara].into_iter().zip(outcomes) {
        let UploadOutcome::Applied { own, .. } = outcome else {
            panic!("{outcome:?}");
        };
        remote.own = Some(own);
    }
    assert_eq!(clara.download().await.rows(), ["note: anna|second|1"]);
    assert_eq!(anna.download().await.rows(), [""; 0]);
}

/// A partition query may ask the setting: here for the rows of everybody else.
#[tokio::test]
async fn who_uploads_is_known_to_the_queries_of_a_list() {
    let ddl =
        "CREATE TABLE note (login TEXT NOT NULL, id INTEGER NOT NULL, PRIMARY KEY (login, id))";
    let query = "SELECT l FROM (VALUES ('anna'), ('clara')) v (l)
                 WHERE l <> pg_catalog.current_setting('tidewater.username', true)";
    let notes = vec![partitioned("note", &["login"], query)];
    let world = DeployedCentre::<PostgresFixture>::new(ddl, notes).await;
    let mut remotes = Vec::new();
    for user in ["anna", "clara"] {
        remotes.push(TestRemote::synced(&world, user).await);
    }
    let uploads = remotes.iter_mut().zip(["anna|1", "anna|2"]);
    let uploads = uploads.map(|(it, row)| it.next_upload(&[insert("note", row)]));
    let outcomes = world.worker().await.apply(uploads.collect()).await.unwrap();
    let counts = outcomes.iter().map(|it| match it {
        UploadOutcome::Applied { result, .. } => (result.inserts, result.refused),
        other => panic!("{other:?}"),
    });
    assert_eq!(counts.collect::<Vec<_>>(), [(0, 1), (1, 0)]);
}

/// Neither a setting nor a function of the application may say another one's name.
#[tokio::test]
async fn what_a_default_says_of_who_uploads_is_right_in_a_list() {
    for default in [
        "pg_catalog.current_setting('tidewater.username', true)",
        "who()",
    ] {
        let ddl = format!(
            "CREATE FUNCTION who() RETURNS TEXT LANGUAGE sql AS
               $$ SELECT pg_catalog.current_setting('tidewater.username', true) $$;
             CREATE TABLE note (login TEXT NOT NULL, id INTEGER NOT NULL,
               made_by TEXT DEFAULT {default}, PRIMARY KEY (login, id))"
        );
        let notes = vec![TableSpec {
            columns: Some(vec!["login".into(), "id".into()]),
            ..notes().remove(0)
        }];
        let world = DeployedCentre::<PostgresFixture>::new(&ddl, notes).await;
        let own = upload_of_each(&world, |user| format!("{user}|1")).await;
        assert!(own.iter().all(|own| !own.skip_version), "{default}");
        let made = "SELECT login, made_by FROM note ORDER BY 1";
        let made = world.fixture.query(made).await;
        assert_eq!(made, ["anna|anna", "clara|clara"], "{default}");
    }
}

#[tokio::test]
async fn many_rows_of_which_some_are_refused_lose_only_those() {
    let world = DeployedCentre::<PostgresFixture>::new(SHOP_DDL, shop()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let row = |id: i32| match id {
        250 => format!("{id}|north|forbidden|NULL"),
        251 => format!("{id}|south|Out of scope|NULL"),
        252 => format!("{id}|north|Taken|nora@x"),
        _ => format!("{id}|north|Name {id}|NULL"),
    };
    let changes: Vec<_> = (100..700).map(|id| insert("customer", &row(id))).collect();
    let result = anna.upload(&changes).await;
    assert_eq!(
        result[0],
        "597 inserted, 0 updated, 0 deleted, 0 conflicts, 3 refused"
    );
    let codes: Vec<_> = world.centre.refused().await.unwrap();
    let mut codes: Vec<_> = codes
        .iter()
        .map(|row| format!("{} {}", row.key, row.code))
        .collect();
    codes.sort();
    assert_eq!(
        codes,
        ["[250] check", "[251] out_of_scope", "[252] key_in_use"]
    );
    let received = anna.download().await;
    assert_eq!(received.rows(), [] as [&str; 0]);
}

#[tokio::test]
async fn many_rows_go_by_copy_and_are_not_sent_back() {
    let world = DeployedCentre::<PostgresFixture>::new(SHOP_DDL, shop()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut berta = TestRemote::synced(&world, "berta").await;
    let changes = (100..5_000).map(|id| insert("customer", &format!("{id}|north|Name {id}|NULL")));
    let upload = anna.next_upload(&changes.collect::<Vec<_>>());
    let UploadOutcome::Applied { result, own } = anna.apply(upload).await else {
        panic!("not applied");
    };
    assert_eq!(result.inserts, 4_900);
    assert!(own.skip_version && own.rows.is_empty());
    anna.own = Some(own);
    let received = anna.download().await;
    assert_eq!(received.rows(), [] as [&str; 0]);
    assert!(
        received.checkpoint().is_some(),
        "the watermark moves past them"
    );
    assert_eq!(anna.download().await.rows(), [] as [&str; 0]);
    assert_eq!(berta.download().await.upserts.len(), 4_900);
}

/// A trigger that is made after loading is noticed.
#[tokio::test]
async fn a_trigger_that_appears_while_serving_is_noticed() {
    let world = DeployedCentre::<PostgresFixture>::new(SHOP_DDL, shop()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    world
        .execute(
            "CREATE FUNCTION shout() RETURNS trigger LANGUAGE plpgsql AS
               $$ BEGIN NEW.name := upper(NEW.name); RETURN NEW; END $$;
             CREATE TRIGGER shout BEFORE INSERT ON customer FOR EACH ROW EXECUTE FUNCTION shout()",
        )
        .await;
    let result = anna
        .upload(&[insert("customer", "50|north|Nadja|NULL")])
        .await;
    assert_eq!(result[1..], ["made customer: 50|north|NADJA|NULL"]);
    assert_eq!(anna.download().await.rows(), [] as [&str; 0]);
}

#[tokio::test]
async fn updates_of_ever_other_columns_are_all_applied() {
    let world = table(
        "CREATE TABLE v (id integer PRIMARY KEY, a integer, b integer, c integer, d integer, e integer);
         INSERT INTO v SELECT i, 0, 0, 0, 0, 0 FROM generate_series(1, 31) i;
         CREATE TABLE seen (id integer);
         CREATE FUNCTION seen() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN INSERT INTO seen VALUES (NEW.id); RETURN NULL; END $$;
         CREATE TRIGGER seen AFTER UPDATE OF e ON v FOR EACH ROW EXECUTE FUNCTION seen()",
        "v",
    )
    .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let row = |id: i32, set: i32| {
        let bits: Vec<_> = (0..5).map(|bit| (set >> bit & 1).to_string()).collect();
        format!("{id}|{}", bits.join("|"))
    };
    // One row for each set of changed columns; few sets with the last one.
    let changes: Vec<_> = (1..32)
        .map(|id| update("v", &row(id, 0), &row(id, id)))
        .collect();
    let result = anna.upload(&changes[..15]).await;
    assert_eq!(
        result,
        ["0 inserted, 15 updated, 0 deleted, 0 conflicts, 0 refused"]
    );
    // Triggers of a column fire for those only that change it.
    assert_eq!(
        world.fixture.query("SELECT count(*) FROM seen").await,
        ["0"]
    );
    world
        .execute("UPDATE v SET a = 0, b = 0, c = 0, d = 0")
        .await;
    let result = anna.upload(&changes).await;
    assert_eq!(
        result,
        ["0 inserted, 31 updated, 0 deleted, 0 conflicts, 0 refused"]
    );
    let expected: Vec<_> = (1..32).map(|id| row(id, id)).collect();
    assert_eq!(
        world.fixture.query("SELECT * FROM v ORDER BY id").await,
        expected
    );
}

/// A batch must not go in twice because a trigger gave its rows other keys.
#[tokio::test]
async fn rows_that_a_trigger_gives_keys_of_its_own_are_there_once() {
    for count in [5, 300] {
        let world = table(
            "CREATE SEQUENCE number START 1000;
             CREATE FUNCTION number() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN NEW.id := nextval('number'); RETURN NEW; END $$;
             CREATE TABLE v (id integer PRIMARY KEY, x text);
             INSERT INTO v VALUES (9, 'theirs');
             CREATE TRIGGER number BEFORE INSERT ON v FOR EACH ROW
               WHEN (NEW.id > 9) EXECUTE FUNCTION number()",
            "v",
        )
        .await;
        let mut anna = TestRemote::synced(&world, "anna").await;
        let mut changes = vec![insert("v", "9|mine"), insert("v", "8|kept")];
        changes.extend((10..10 + count).map(|id| insert("v", &format!("{id}|new"))));
        let result = anna.upload(&changes).await;
        let conflicts = count + 1;
        assert_eq!(
            result[0],
            format!("1 inserted, 0 updated, 0 deleted, {conflicts} conflicts, 0 refused")
        );
        anna.download().await;
        let new = "SELECT count(*), count(DISTINCT id), min(id) >= 1000 FROM v WHERE x = 'new'";
        assert_eq!(
            world.fixture.query(new).await,
            [format!("{count}|{count}|t")]
        );
        // The row kept as it was is not sent back.
        assert_eq!(anna.rows("v").len() as i32, count + 1);
    }
}

#[tokio::test]
async fn a_row_that_a_trigger_keeps_out_is_refused() {
    let world = table(
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
         CREATE TABLE v (id integer PRIMARY KEY, x text)",
        "v",
    )
    .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    // It comes while the publication is served.
    world
        .fixture
        .execute(
            "CREATE TRIGGER no BEFORE INSERT ON v FOR EACH ROW
             WHEN (NEW.x = 'no') EXECUTE FUNCTION no()",
        )
        .await;
    let changes = [insert("v", "1|yes"), insert("v", "2|no")];
    let result = anna.upload(&changes).await;
    assert_eq!(
        result[0],
        "1 inserted, 0 updated, 0 deleted, 0 conflicts, 1 refused"
    );
    let refused = world.centre.refused().await.unwrap();
    assert_eq!(refused[0].code, "constraint");
}

#[tokio::test]
async fn deferrable_unique_constraints_take_uploads() {
    let world = table(
        "CREATE TABLE v (id integer PRIMARY KEY DEFERRABLE INITIALLY DEFERRED,
           x text UNIQUE DEFERRABLE);
         INSERT INTO v VALUES (1, 'a'), (2, 'b')",
        "v",
    )
    .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let changes = [
        insert("v", "1|mine"),
        insert("v", "2|b"),
        insert("v", "3|a"),
        insert("v", "4|d"),
    ];
    let result = anna.upload(&changes).await;
    assert_eq!(
        result[0],
        "2 inserted, 0 updated, 0 deleted, 1 conflicts, 1 refused"
    );
    assert_eq!(
        world.fixture.query("SELECT id, x FROM v ORDER BY 1").await,
        ["1|a", "2|b", "4|d"]
    );
}

/// Row security refuses rows, and does not fail uploads: by statements, and where many
/// rows would go by COPY, which row security does not take.
/// A value, or a trigger of the application, fails with a state that a mistake in the statement has
/// as well.
#[tokio::test]
async fn what_one_value_cannot_be_or_a_trigger_does_not_find_refuses_its_row_alone() {
    let ddl = "CREATE TABLE q (id int PRIMARY KEY, v tsquery);
         CREATE TABLE r (id int PRIMARY KEY, v regclass);
         CREATE TABLE m (id int PRIMARY KEY, mon text);
         CREATE TABLE m_may (id int);
         CREATE SEQUENCE s;
         CREATE FUNCTION into_month() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
           IF NEW.mon = 'none' THEN PERFORM currval('s'); END IF;
           EXECUTE format('INSERT INTO m_%s VALUES (%s)', NEW.mon, NEW.id); RETURN NULL; END$$;
         CREATE TRIGGER into_month AFTER INSERT ON m FOR EACH ROW EXECUTE FUNCTION into_month()";
    let tables = ["q", "r", "m"].map(everyone);
    let world = DeployedCentre::<PostgresFixture>::new(ddl, tables.to_vec()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    for many in [0, 300] {
        let mut changes = vec![
            insert("q", &format!("{}|a &", 1 + many)),
            insert("q", &format!("{}|'a'", 2 + many)),
            insert("r", &format!("{}|nowhere", 1 + many)),
            insert("r", &format!("{}|m_may", 2 + many)),
            insert("m", &format!("{}|may", 1 + many)),
            insert("m", &format!("{}|june", 2 + many)),
            insert("m", &format!("{}|none", 3 + many)),
        ];
        // Enough for COPY.
        let more = 4 + many..4 + 2 * many;
        changes.extend(more.map(|id| insert("m", &format!("{id}|may"))));
        let result = anna.upload(&changes).await;
        let all = format!(
            "{} inserted, 0 updated, 0 deleted, 0 conflicts, 4 refused",
            3 + many
        );
        assert_eq!(result[0], all);
        let counts = "SELECT (SELECT count(*) FROM q) || ' ' || (SELECT count(*) FROM r) || ' ' ||
            (SELECT count(*) FROM m) || ' ' || (SELECT count(*) FROM m_may)";
        let (few, months) = (1 + many / 300, 1 + many / 300 + many);
        assert_eq!(
            world.fixture.query(counts).await,
            [format!("{few} {few} {months} {months}")]
        );
    }
    // What is wrong with the statement is nobody's row.
    world.execute("ALTER TABLE q RENAME TO elsewhere").await;
    let upload = anna.next_upload(&[insert("q", "9|'a'")]);
    let outcomes = anna.worker.apply(vec![upload]).await;
    assert!(
        matches!(
            outcomes.as_deref(),
            Err(_) | Ok([UploadOutcome::Failed { .. }])
        ),
        "{outcomes:?}"
    );
}

/// Nor those of an insert that was passed over, refused, sent again, or ignored.
#[tokio::test]
async fn what_a_trigger_did_for_an_insert_that_came_to_nothing_is_undone() {
    let ddl = "CREATE TABLE stock (id int PRIMARY KEY, n int);
         INSERT INTO stock VALUES (1, 100);
         CREATE TABLE o (id int PRIMARY KEY, code text UNIQUE, qty int);
         CREATE TABLE archive (id int);
         CREATE FUNCTION take() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
           UPDATE stock SET n = n - NEW.qty WHERE id = 1;
           IF NEW.qty = 0 THEN INSERT INTO archive VALUES (NEW.id); RETURN NULL; END IF;
           RETURN NEW; END$$;
         CREATE TRIGGER take BEFORE INSERT ON o FOR EACH ROW EXECUTE FUNCTION take()";
    let world = DeployedCentre::<PostgresFixture>::new(ddl, vec![everyone("o")]).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut berta = TestRemote::synced(&world, "berta").await;
    let stock = "SELECT n || ' ' || (SELECT count(*) FROM archive) FROM stock";
    anna.upload(&[insert("o", "1|a|10")]).await;
    assert_eq!(world.fixture.query(stock).await, ["90 0"]);
    let result = berta
        .upload(&[
            // Another's key, the same once more, a code that is taken, and two that are well.
            insert("o", "1|b|7"),
            insert("o", "2|a|7"),
            insert("o", "3|c|1"),
            insert("o", "4|d|1"),
            insert("o", "5|e|0"),
        ])
        .await;
    assert_eq!(
        result[0],
        "2 inserted, 0 updated, 0 deleted, 1 conflicts, 2 refused"
    );
    assert_eq!(world.fixture.query(stock).await, ["88 0"]);
    // A copy of the file brings what is there.
    let result = berta.upload(&[insert("o", "3|c|1")]).await;
    assert_eq!(
        result,
        ["1 inserted, 0 updated, 0 deleted, 0 conflicts, 0 refused"]
    );
    assert_eq!(world.fixture.query(stock).await, ["88 0"]);
}

/// Each waits for the next one: in their order, a round would get in one of them.
#[tokio::test]
async fn rows_that_wait_for_the_next_one_each_get_in() {
    let ddl = "CREATE TABLE li (id int PRIMARY KEY, pos int UNIQUE);
         CREATE TABLE node (id int PRIMARY KEY, up int REFERENCES node, v int CHECK (v < 100));
         INSERT INTO li SELECT i, i FROM generate_series(1, 60) i";
    let world =
        DeployedCentre::<PostgresFixture>::new(ddl, vec![everyone("li"), everyone("node")]).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut changes = vec![insert("li", "100|1")];
    changes.extend(
        (1..=60).map(|id| update("li", &format!("{id}|{id}"), &format!("{id}|{}", id + 1))),
    );
    changes.extend((1..100).map(|id| insert("node", &format!("{id}|{}|1", id + 1))));
    changes.push(insert("node", "100|NULL|1"));
    changes.push(insert("node", "200|NULL|100"));
    let result = anna.upload(&changes).await;
    assert_eq!(
        result[0],
        "101 inserted, 60 updated, 0 deleted, 0 conflicts, 1 refused"
    );
}

#[tokio::test]
async fn who_syncs_is_known_to_row_security_when_many_download() {
    let fixture = PostgresFixture::new().await;
    let role = format!("owning_{}", fixture.url().rsplit('_').next().unwrap());
    fixture
        .execute(&format!(
            "CREATE ROLE {role} LOGIN;
             DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO {role}', current_database()); END $$;
             CREATE TABLE doc (id integer PRIMARY KEY, owner text);
             ALTER TABLE doc OWNER TO {role};
             ALTER TABLE doc ENABLE ROW LEVEL SECURITY; ALTER TABLE doc FORCE ROW LEVEL SECURITY;
             CREATE POLICY mine ON doc USING (owner = current_setting('tidewater.username', true))"
        ))
        .await;
    let url = fixture.url().replace("postgres@", &format!("{role}@"));
    let centre = connect(&url).await.unwrap();
    let specs = [publication("sales", vec![everyone("doc")])];
    centre.deploy(&specs, false, NOW_MS).await.unwrap();
    let schemas = centre.load(&specs).await.unwrap();
    let mut remotes = Vec::new();
    for user in ["anna", "berta", "clara"] {
        let worker = centre.worker().await.unwrap();
        let mut remote = TestRemote::with_worker(schemas[0].clone(), worker, user);
        remote.download().await;
        remotes.push(remote);
    }
    fixture
        .execute("INSERT INTO doc VALUES (1, 'anna'), (2, 'berta'), (3, 'clara')")
        .await;
    let received = download_together(&mut remotes).await;
    // What the log tells and the user does not see is not there for him.
    let own = [
        ["-doc [2]", "-doc [3]", "doc: 1|anna"],
        ["-doc [1]", "-doc [3]", "doc: 2|berta"],
        ["-doc [1]", "-doc [2]", "doc: 3|clara"],
    ];
    for (received, own) in received.into_iter().zip(own) {
        assert_eq!(received.unwrap().rows(), own);
    }
}

#[tokio::test]
async fn what_row_security_refuses_is_refused_by_row() {
    let fixture = PostgresFixture::new().await;
    let role = format!("guarded_{}", fixture.url().rsplit('_').next().unwrap());
    fixture
        .execute(&format!(
            "CREATE ROLE {role} LOGIN;
             DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO {role}', current_database()); END $$;
             CREATE TABLE v (id integer PRIMARY KEY, owner text);
             GRANT SELECT, INSERT, UPDATE, DELETE, TRIGGER ON v TO {role};
             ALTER TABLE v ENABLE ROW LEVEL SECURITY;
             CREATE POLICY mine ON v USING (true) WITH CHECK (owner <> 'theirs');
             INSERT INTO v VALUES (1, 'mine'), (2, 'mine')"
        ))
        .await;
    let url = fixture.url().replace("postgres@", &format!("{role}@"));
    let centre = connect(&url).await.unwrap();
    let specs = [publication("sales", vec![everyone("v")])];
    centre.deploy(&specs, false, NOW_MS).await.unwrap();
    let schemas = centre.load(&specs).await.unwrap();
    let mut anna =
        TestRemote::with_worker(schemas[0].clone(), centre.worker().await.unwrap(), "anna");
    anna.download().await;
    let result = anna
        .upload(&[
            insert("v", "3|mine"),
            insert("v", "4|theirs"),
            update("v", "1|mine", "1|theirs"),
            update("v", "2|mine", "2|yours"),
        ])
        .await;
    assert_eq!(
        result,
        [
            "1 inserted, 1 updated, 0 deleted, 0 conflicts, 2 refused",
            "refused v [4] Insert constraint: new row violates row-level security policy for table \"v\"",
            "refused v [1] Update constraint: new row violates row-level security policy for table \"v\"",
        ]
    );
    let owner = |id: i32| if id % 100 == 0 { "theirs" } else { "mine" };
    let many = (1000..1300).map(|id| insert("v", &format!("{id}|{}", owner(id))));
    let result = anna.upload(&many.collect::<Vec<_>>()).await;
    assert_eq!(
        result[0],
        "297 inserted, 0 updated, 0 deleted, 0 conflicts, 3 refused"
    );
    // A privilege that is missing is the operator's affair: the upload waits for it.
    fixture
        .execute(&format!("REVOKE INSERT ON v FROM {role}"))
        .await;
    let upload = anna.next_upload(&[insert("v", "5|mine")]);
    let outcome = anna.apply(upload).await;
    assert!(
        matches!(outcome, UploadOutcome::Failed { .. }),
        "{outcome:?}"
    );
    drop(anna);
    fixture
        .execute(&format!(
            "DROP SCHEMA tidewater CASCADE; DROP OWNED BY {role}; DROP ROLE {role}"
        ))
        .await;
}

/// A COPY that is refused before it begins leaves the driver out of step: whoever goes on
/// would take the answer to one statement for that to the next, also for that to a commit.
#[tokio::test]
async fn a_connection_whose_copy_could_not_begin_is_never_used_again() {
    let fixture = PostgresFixture::new().await;
    let role = format!("limited_{}", fixture.url().rsplit('_').next().unwrap());
    let revoked = format!("REVOKE INSERT ON v FROM {role}");
    fixture
        .execute(&format!(
            "CREATE ROLE {role} LOGIN;
             DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO {role}', current_database()); END $$;
             CREATE TABLE v (id integer PRIMARY KEY, x text);
             GRANT SELECT, INSERT, UPDATE, DELETE, TRIGGER ON v TO {role}"
        ))
        .await;
    let url = fixture.url().replace("postgres@", &format!("{role}@"));
    let centre = connect(&url).await.unwrap();
    let specs = [publication("sales", vec![everyone("v")])];
    centre.deploy(&specs, false, NOW_MS).await.unwrap();
    let schemas = centre.load(&specs).await.unwrap();
    let mut anna =
        TestRemote::with_worker(schemas[0].clone(), centre.worker().await.unwrap(), "anna");
    anna.download().await;
    fixture.execute(&revoked).await;
    let many: Vec<_> = (0..500).map(|id| insert("v", &format!("{id}|x"))).collect();
    let upload = anna.next_upload(&many);
    let outcome = anna.worker.apply(vec![upload.clone()]).await;
    let error = outcome.expect_err("the privilege is missing");
    assert!(error.to_string().contains("permission denied"), "{error}");
    assert!(!anna.worker.is_usable());
    let again = anna.worker.apply(vec![upload.clone()]).await;
    assert!(
        matches!(again, Err(CentreError::Unavailable { .. })),
        "{again:?}"
    );
    let granted = format!("GRANT INSERT ON v TO {role}");
    fixture.execute(&granted).await;
    anna.worker = centre.worker().await.unwrap();
    let outcome = anna.apply(upload).await;
    assert!(
        matches!(outcome, UploadOutcome::Applied { .. }),
        "{outcome:?}"
    );
    drop(anna);
    fixture
        .execute(&format!(
            "DROP SCHEMA tidewater CASCADE; DROP OWNED BY {role}; DROP ROLE {role}"
        ))
        .await;
}

/// What a trigger of the application refuses by RAISE is that row's affair, whatever
/// state it chose.
#[tokio::test]
async fn what_a_trigger_raises_refuses_its_row() {
    let world = table(
        "CREATE TABLE v (id integer PRIMARY KEY, x text);
         CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN RAISE EXCEPTION 'not today' USING ERRCODE = NEW.x; END $$;
         CREATE TRIGGER no BEFORE INSERT ON v FOR EACH ROW
           WHEN (NEW.x <> 'yes') EXECUTE FUNCTION no()",
        "v",
    )
    .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let states = ["42501", "55000", "28000", "XX001", "P0001"];
    let mut changes = vec![insert("v", "0|yes")];
    let rows = states.iter().zip(1..);
    changes.extend(rows.map(|(state, id)| insert("v", &format!("{id}|{state}"))));
    let result = anna.upload(&changes).await;
    assert_eq!(
        result[0],
        "1 inserted, 0 updated, 0 deleted, 0 conflicts, 5 refused"
    );
    assert!(result[1].ends_with("not today"), "{result:?}");
}

/// Each of a pair fails alone once constraints are checked after each statement, which they are
/// where some other row violates one.
#[tokio::test]
async fn rows_that_need_each_other_are_taken_beside_one_that_can_never_be() {
    let ddl =
        "CREATE TABLE hen (id int PRIMARY KEY, egg int NOT NULL, place int UNIQUE DEFERRABLE);
         CREATE TABLE egg (id int PRIMARY KEY,
           hen int NOT NULL REFERENCES hen DEFERRABLE INITIALLY DEFERRED);
         ALTER TABLE hen ADD FOREIGN KEY (egg) REFERENCES egg DEFERRABLE INITIALLY DEFERRED;
         CREATE TABLE seat (id int PRIMARY KEY, number int UNIQUE DEFERRABLE);
         CREATE TABLE department (id int PRIMARY KEY, head int);
         CREATE TABLE employee (id int PRIMARY KEY, department int REFERENCES department,
           name text CHECK (name <> 'nobody'));
         ALTER TABLE department ADD FOREIGN KEY (head) REFERENCES employee;
         INSERT INTO seat VALUES (1, 10), (2, 20)";
    let tables = ["hen", "egg", "seat", "department", "employee"].map(everyone);
    let world = DeployedCentre::<PostgresFixture>::new(ddl, tables.to_vec()).await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let result = anna
        .upload(&[
            insert("hen", "1|1|1"),
            insert("egg", "1|1"),
            insert("hen", "2|2|2"),
            insert("egg", "2|2"),
            insert("egg", "3|99"),
            update("seat", "1|10", "1|20"),
            update("seat", "2|20", "2|10"),
        ])
        .await;
    let counts = "4 inserted, 2 updated, 0 deleted, 0 conflicts, 1 refused";
    assert_eq!(result[0], counts, "{result:?}");
    let result = anna
        .upload(&[
            delete("hen", "1|1|1"),
            delete("egg", "1|1"),
            delete("hen", "2|2|2"),
        ])
        .await;
    let counts = "0 inserted, 0 updated, 2 deleted, 0 conflicts, 1 refused";
    assert_eq!(result[0], counts, "{result:?}");
    // With keys that are never deferred it is always so. The remote wrote one of them in two
    // steps, of which nothing is left.
    let result = anna
        .upload(&[
            insert("department", "1|1"),
            insert("employee", "1|1|Ada"),
            insert("employee", "2|1|nobody"),
            insert("department", "2|3"),
            insert("employee", "3|2|nobody"),
        ])
        .await;
    let counts = "2 inserted, 0 updated, 0 deleted, 0 conflicts, 3 refused";
    assert_eq!(result[0], counts, "{result:?}");
    let result = anna
        .upload(&[delete("department", "1|1"), delete("employee", "1|1|Ada")])
        .await;
    assert_eq!(result.len(), 1, "{result:?}");
}

/// Of a set, a value that the database cannot have is found before anything is sent.
#[tokio::test]
async fn a_pre_image_that_does_not_fit_a_set_is_refused_alone() {
    let ddl = "CREATE TABLE note (id INTEGER PRIMARY KEY, text TEXT);
               INSERT INTO note VALUES (1, 'a'), (2, 'b'), (3, 'c')";
    let mut world = DeployedCentre::<PostgresFixture>::new(ddl, vec![everyone("note")]).await;
    let set = "DELETE FROM note WHERE id IN (SELECT id FROM {rows} AS r)";
    world.specs[0].scripts = vec![script("note", "upload_delete", set)];
    world.deploy().await.unwrap();
    let mut anna = TestRemote::synced(&world, "anna").await;
    let told = anna
        .upload(&[
            delete("note", "1|a"),
            delete("note", "2|b\0b"),
            delete("note", "3|c"),
        ])
        .await;
    assert_eq!(
        told[0], "0 inserted, 0 updated, 2 deleted, 0 conflicts, 1 refused",
        "{told:?}"
    );
    assert!(told[1].starts_with("refused note [2] Delete"), "{told:?}");
    let rows = world.fixture.query("SELECT id, text FROM note").await;
    assert_eq!(rows, ["2|b"]);
}

/// What a script gives and nobody can read must not be left out while the remote is told that it has
/// everything.
#[tokio::test]
async fn a_row_of_a_script_that_cannot_be_read_fails_the_download() {
    let ddl = "CREATE TABLE host (id INTEGER PRIMARY KEY, address TEXT);
               INSERT INTO host VALUES (1, '192.168.1.1')";
    let mut world = DeployedCentre::<PostgresFixture>::new(ddl, vec![everyone("host")]).await;
    let cursor = "SELECT id, address::inet FROM host";
    world.specs[0].scripts = vec![script("host", "download_cursor", cursor)];
    world.deploy().await.unwrap();
    let mut anna = TestRemote::new(&world, "anna").await;
    let told = anna.try_download(&[]).await;
    assert!(told.is_err(), "{told:?}");
}
