//! Remotes act under roles of the database, so that its row security and audit triggers hold.

use std::collections::BTreeMap;

use tidewater_centre::{ActAs, CentreError, PublicationSpec, RuleSpec, UploadOutcome};
use tidewater_centre_postgres::connect;

use super::PostgresWorld;
use crate::fixture::{Fixture, PostgresFixture};
use tidewater_centre::explain::{ExplainQuestion, ExplainVerdict};
use tidewater_centre::preview::PreviewRequest;
use tidewater_centre_conformance::explaining::register;
use tidewater_centre_conformance::remote::{TestRemote, delete, download_together, insert, update};
use tidewater_centre_conformance::world::{
    DeployedCentre, NOW_MS, everyone, partitioned, publication,
};
use tidewater_protocol::Code;

/// Documents of a team, of which everybody sees his own, and their lines. `{role}` may write them;
/// whoever does is written down.
const DOCS: &str = "
    CREATE TABLE staff (login text, role text);
    CREATE TABLE member (login text, team integer);
    CREATE TABLE doc (id integer PRIMARY KEY, team integer NOT NULL, owner text NOT NULL, body text);
    CREATE TABLE line (id integer PRIMARY KEY, doc_id integer NOT NULL REFERENCES doc
      ON DELETE CASCADE, body text);
    CREATE INDEX ON line (doc_id);
    CREATE TABLE audit (number integer GENERATED ALWAYS AS IDENTITY, who text, login text, did text);
    CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
      INSERT INTO audit (who, login, did) VALUES (current_user,
        current_setting('tidewater.username', true), TG_OP || ' ' || TG_TABLE_NAME); RETURN NULL; END $$;
    CREATE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON doc FOR EACH ROW EXECUTE FUNCTION audit();
    CREATE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON line FOR EACH ROW EXECUTE FUNCTION audit();
    ALTER TABLE doc ENABLE ROW LEVEL SECURITY; ALTER TABLE doc FORCE ROW LEVEL SECURITY;
    CREATE POLICY mine ON doc USING (owner = current_setting('tidewater.username'));
    ALTER TABLE line ENABLE ROW LEVEL SECURITY; ALTER TABLE line FORCE ROW LEVEL SECURITY;
    CREATE POLICY mine ON line USING (EXISTS (SELECT FROM doc d WHERE d.id = doc_id));
    CREATE ROLE {role};
    GRANT SELECT, INSERT, UPDATE, DELETE ON doc, line TO {role};
    GRANT INSERT ON audit TO {role};
    INSERT INTO member VALUES ('anna', 1), ('berta', 1), ('clara', 1);
    INSERT INTO staff VALUES ('anna', '{role}'), ('berta', '{role}');
    INSERT INTO doc VALUES (1, 1, 'anna', 'a'), (2, 1, 'berta', 'b'), (3, 2, 'anna', 'far away');
    INSERT INTO line VALUES (10, 1, 'a'), (20, 2, 'b');
    TRUNCATE audit";

const TEAMS: &str = "SELECT team FROM member WHERE login = {s.username}";
const STAFF: &str = "SELECT role FROM staff WHERE login = {s.username}";

/// A role that no other test has.
fn role(name: &str, fixture: &PostgresFixture) -> String {
    format!("{name}_{}", fixture.url().rsplit('_').next().unwrap())
}

fn docs(act_as: ActAs) -> PublicationSpec {
    let mut line = everyone("line");
    line.partition = vec![RuleSpec::follows("doc")];
    PublicationSpec {
        act_as: Some(act_as),
        ..publication("docs", vec![partitioned("doc", &["team"], TEAMS), line])
    }
}

/// The documents, served under the role that the query yields for a user; and that role's name.
async fn world(name: &str) -> (PostgresWorld, String) {
    let mut world = DeployedCentre::<PostgresFixture>::new(
        "CREATE TABLE x (id integer PRIMARY KEY)",
        vec![everyone("x")],
    )
    .await;
    let role = role(name, &world.fixture);
    world.execute(&DOCS.replace("{role}", &role)).await;
    world.specs = vec![docs(ActAs::Query(STAFF.into()))];
    world.deploy().await.unwrap();
    (world, role)
}

async fn end(world: PostgresWorld, roles: &[&str]) {
    for role in roles {
        let drop = format!("DROP OWNED BY {role}; DROP ROLE {role}");
        world.execute(&drop).await;
    }
}

async fn audit(world: &PostgresWorld) -> Vec<String> {
    let audit = "SELECT who, login, did FROM audit ORDER BY number";
    let audit = world.fixture.query(audit).await;
    world.execute("TRUNCATE audit").await;
    audit
}

#[tokio::test]
async fn what_a_role_does_not_see_is_explained_and_not_counted() {
    let (world, role) = world("reader").await;
    let mut anna = TestRemote::new(&world, "anna").await;
    register(&world, &mut anna).await;
    anna.download().await;
    let explain = async |key: &str| {
        let question = ExplainQuestion {
            remote_id: anna.id,
            table: "doc".into(),
            key: key.into(),
            parameters: BTreeMap::new(),
            now_ms: NOW_MS,
        };
        world.centre.explain(&question).await.unwrap()
    };
    let hidden = explain("2").await;
    assert_eq!(hidden.verdict, ExplainVerdict::NotHeld);
    let why = "under which the remote reads, does not see it: row security hides it";
    assert!(hidden.sentence.contains(why), "{}", hidden.sentence);
    let seen = explain("1").await.publications[0].role.clone().unwrap();
    assert_eq!((seen.name, seen.sees), (role.clone(), true));
    let asked = PreviewRequest {
        rows: 9,
        now_ms: NOW_MS,
        ..PreviewRequest::default()
    };
    let mut specs = world.specs.clone();
    specs[0].tables[0].partition = vec![RuleSpec::columns(&["team"], "SELECT 2")];
    let preview = world.centre.preview(&specs, &asked).await.unwrap();
    let tables = preview.remotes[0].tables.iter();
    let tables = tables.map(|it| (&*it.table, it.added_keys.concat(), it.removed_keys.concat()));
    assert_eq!(
        tables.collect::<Vec<_>>(),
        [
            ("doc", "[3]".to_owned(), "[1]".to_owned()),
            ("line", String::new(), "[10]".to_owned())
        ]
    );
    specs[0].act_as = None;
    let preview = world.centre.preview(&specs, &asked).await.unwrap();
    let note = preview.notes.join("\n");
    assert!(
        note.contains("the role under which remotes read changes"),
        "{note}"
    );
    assert!(preview.remotes.is_empty());
    drop(anna);
    end(world, &[&role]).await;
}

#[tokio::test]
async fn a_remote_sees_and_writes_what_its_role_may() {
    let (world, role) = world("clerk").await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut berta = TestRemote::synced(&world, "berta").await;
    assert_eq!(anna.rows("doc"), ["1|1|anna|a"]);
    assert_eq!(anna.rows("line"), ["10|1|a"]);
    assert_eq!(berta.rows("line"), ["20|2|b"]);
    let changes = [
        insert("doc", "4|1|anna|new"),
        update("doc", "1|1|anna|a", "1|1|anna|mine"),
        insert("line", "40|4|with it"),
    ];
    anna.write(&changes);
    let result = anna.upload(&changes).await;
    assert_eq!(
        result,
        ["2 inserted, 1 updated, 0 deleted, 0 conflicts, 0 refused"]
    );
    let who = |did: &str| format!("{role}|anna|{did}");
    assert_eq!(
        audit(&world).await,
        ["INSERT doc", "UPDATE doc", "INSERT line"].map(who)
    );
    assert_eq!(anna.download().await.rows(), [""; 0]);
    // What others write is tracked as ever; what the role does not see is not there for it.
    world
        .execute("UPDATE doc SET body = 'theirs'; UPDATE line SET body = 'theirs'")
        .await;
    assert_eq!(
        berta.download().await.rows(),
        [
            "-doc [1]",
            "-doc [4]",
            "-line [10]",
            "-line [40]",
            "doc: 2|1|berta|theirs",
            "line: 20|2|theirs"
        ]
    );
    anna.download().await;
    assert_eq!(anna.rows("doc"), ["1|1|anna|theirs", "4|1|anna|theirs"]);
    // A row that goes to another owner leaves, and so does what follows it.
    world.execute("UPDATE doc SET owner = 'berta' WHERE id = 4; UPDATE line SET body = 'moved' WHERE id = 40").await;
    anna.download().await;
    berta.download().await;
    assert_eq!((anna.rows("doc").len(), anna.rows("line").len()), (1, 1));
    assert_eq!(berta.rows("line"), ["20|2|theirs", "40|4|moved"]);
    assert_eq!(anna.download().await.rows(), [""; 0]);
    end(world, &[&role]).await;
}

#[tokio::test]
async fn what_row_security_hides_is_met_by_nobody() {
    let (world, role) = world("blind").await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    let result = anna
        .upload(&[
            // A key of somebody else, ...
            insert("doc", "2|1|anna|mine"),
            // ... a row for somebody else, ...
            insert("doc", "5|1|berta|hers"),
            // ... rows that nobody has shown her.
            update("doc", "2|1|berta|b", "2|1|anna|stolen"),
            insert("line", "21|2|below hers"),
            delete("line", "20|2|b"),
        ])
        .await;
    let expected = [
        "0 inserted, 0 updated, 1 deleted, 1 conflicts, 3 refused",
        "gone doc [2]",
        "refused doc [2] Insert key_in_use: duplicate key value violates unique constraint \"doc_pkey\"",
        "refused doc [5] Insert constraint: new row violates row-level security policy for table \"doc\"",
        "refused line [21] Insert foreign_key: the row that it refers to was refused: doc [2]",
    ];
    assert_eq!(result, expected);
    assert_eq!(audit(&world).await, [""; 0]);
    end(world, &[&role]).await;
}

/// Own statements of the server run under its own role, whatever goes on between them.
#[tokio::test]
async fn each_upload_of_a_list_acts_for_itself() {
    let (mut world, role) = world("batch").await;
    world.specs.push(PublicationSpec {
        act_as: None,
        scripts: Vec::new(),
        name: "plain".into(),
        ..docs(ActAs::Role(String::new()))
    });
    world.deploy().await.unwrap();
    let mut anna = TestRemote::synced(&world, "anna").await;
    let mut clara = TestRemote::new(&world, "clara").await;
    let mut dora = TestRemote::new(&world, "berta").await;
    dora.subscribe_to(world.schemas[1].clone());
    dora.download().await;
    assert_eq!(dora.rows("doc").len(), 2);
    world
        .execute("GRANT INSERT ON line TO PUBLIC; ALTER TABLE line ADD CHECK (body <> 'wrong')")
        .await;
    let uploads = vec![
        anna.next_upload(&[insert("line", "11|1|wrong"), insert("line", "12|1|right")]),
        clara.next_upload(&[insert("doc", "6|1|clara|hers")]),
        dora.next_upload(&[insert("line", "13|1|hers")]),
        anna.next_upload(&[insert("line", "14|1|again")]),
    ];
    let outcomes = anna.worker.apply(uploads).await.unwrap();
    let is_applied = |it: &UploadOutcome| matches!(it, UploadOutcome::Applied { .. });
    assert_eq!(
        outcomes.iter().map(is_applied).collect::<Vec<_>>(),
        [true, false, true, true]
    );
    let UploadOutcome::Failed { error } = &outcomes[1] else {
        panic!("{outcomes:?}");
    };
    assert_eq!(error.code(), Code::NoRole);
    assert_eq!(
        error.to_string(),
        "publication \"docs\", act_as: the query yields no role"
    );
    let expected = [
        format!("{role}|anna|INSERT line"),
        "postgres|berta|INSERT line".to_owned(),
        format!("{role}|anna|INSERT line"),
    ];
    assert_eq!(audit(&world).await, expected);
    end(world, &[&role]).await;
}

#[tokio::test]
async fn a_user_without_the_one_role_is_told_and_others_go_on() {
    let (world, clerk) = world("one").await;
    let other = role("other", &world.fixture);
    world
        .execute(&format!("CREATE ROLE {other} SUPERUSER"))
        .await;
    let mut clara = TestRemote::new(&world, "clara").await;
    let mut failure = async |sql: &str| {
        world
            .execute("DELETE FROM staff WHERE login = 'clara'")
            .await;
        world.execute(sql).await;
        let error = clara.try_download(&[]).await.unwrap_err();
        assert_eq!(error.code(), Code::NoRole, "{error}");
        (error.to_string(), error.hint())
    };
    let start = "publication \"docs\", act_as: ";
    let (message, _) = failure("").await;
    assert_eq!(message, format!("{start}the query yields no role"));
    let (message, _) = failure("INSERT INTO staff VALUES ('clara', NULL)").await;
    assert_eq!(message, format!("{start}the query yields no role"));
    let (message, _) = failure(&format!(
        "INSERT INTO staff VALUES ('clara', '{clerk}'), ('clara', '{other}')"
    ))
    .await;
    assert!(
        message.starts_with(&format!("{start}the query yields several roles: ")),
        "{message}"
    );
    let (message, _) = failure("INSERT INTO staff VALUES ('clara', 'nobody here')").await;
    assert_eq!(message, format!("{start}there is no role \"nobody here\""));
    for privileged in ["postgres", &other] {
        let (message, _) = failure(&format!(
            "INSERT INTO staff VALUES ('clara', '{privileged}')"
        ))
        .await;
        assert!(
            message.contains("is a superuser, or may do what the server's own role may"),
            "{message}"
        );
    }
    // Twice the same is one; and the connection is of use as before.
    world
        .execute("DELETE FROM staff WHERE login = 'clara'")
        .await;
    world
        .execute(&format!(
            "INSERT INTO staff VALUES ('clara', '{clerk}'), ('clara', '{clerk}')"
        ))
        .await;
    assert_eq!(clara.download().await.rows(), [""; 0]);
    end(world, &[&clerk, &other]).await;
}

#[tokio::test]
async fn what_the_role_has_no_right_to_is_refused() {
    let (world, role) = world("poor").await;
    world
        .execute("INSERT INTO doc VALUES (9, 1, 'anna', 'childless')")
        .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    world
        .execute(&format!(
            "REVOKE INSERT ON line FROM {role}; REVOKE DELETE ON doc FROM {role}"
        ))
        .await;
    let many = (100..2_100).map(|id| insert("line", &format!("{id}|1|x")));
    let mut changes: Vec<_> = many.collect();
    changes.push(delete("doc", "9|1|anna|childless"));
    changes.push(update("line", "10|1|a", "10|1|changed"));
    let result = anna.upload(&changes).await;
    assert_eq!(
        result[0],
        "0 inserted, 1 updated, 0 deleted, 0 conflicts, 2001 refused"
    );
    assert!(result.contains(
        &"refused line [100] Insert constraint: permission denied for table line".to_owned()
    ));
    // Without a word about what may be read nothing goes.
    world
        .execute(&format!(
            "REVOKE SELECT ON line FROM {role}; UPDATE line SET body = 'y'"
        ))
        .await;
    let error = anna.try_download(&[]).await.unwrap_err();
    assert_eq!(error.code(), Code::NoRole);
    assert_eq!(
        error.to_string(),
        format!(
            "publication \"docs\", act_as: \"{role}\" may not read what is published: permission denied for table line"
        )
    );
    let upload = anna.next_upload(&[update("line", "10|1|changed", "10|1|more")]);
    let outcome = anna.apply(upload).await;
    assert!(
        matches!(&outcome, UploadOutcome::Failed { error } if error.code() == Code::NoRole),
        "{outcome:?}"
    );
    world
        .execute(&format!("GRANT SELECT ON line TO {role}"))
        .await;
    anna.sequence -= 1;
    // Of a row that she does not see, its key is said.
    assert_eq!(anna.download().await.rows(), ["-line [20]", "line: 10|1|y"]);
    end(world, &[&role]).await;
}

/// What the one role saw says nothing of what another one sees, and what is lost leaves although
/// the role does not see it.
#[tokio::test]
async fn another_role_gets_everything_anew() {
    let (world, clerk) = world("first").await;
    let chief = role("chief", &world.fixture);
    world
        .execute(&format!(
            "CREATE ROLE {chief}; GRANT SELECT, INSERT, UPDATE, DELETE ON doc, line TO {chief};
         CREATE POLICY all_of_them ON doc TO {chief} USING (true)"
        ))
        .await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    world
        .execute(&format!(
            "UPDATE staff SET role = '{chief}' WHERE login = 'anna'"
        ))
        .await;
    assert_eq!(anna.download().await.replaced, ["doc", "line"]);
    assert_eq!((anna.rows("doc").len(), anna.rows("line").len()), (2, 2));
    assert_eq!(anna.download().await.rows(), [""; 0]);
    world
        .execute("DELETE FROM member WHERE login = 'anna'; DROP POLICY all_of_them ON doc")
        .await;
    anna.download().await;
    assert_eq!((anna.rows("doc").len(), anna.rows("line").len()), (0, 0));
    end(world, &[&clerk, &chief]).await;
}

/// More keys than are read at once.
#[tokio::test]
async fn many_changes_are_read_by_their_keys() {
    let (world, role) = world("many").await;
    let mut anna = TestRemote::synced(&world, "anna").await;
    world
        .execute(
            "INSERT INTO doc SELECT i, 1, CASE i % 2 WHEN 0 THEN 'anna' ELSE 'berta' END, 'x'
           FROM generate_series(100, 12099) i",
        )
        .await;
    let received = anna.download().await;
    assert_eq!(
        (received.upserts.len(), received.removals.len()),
        (6_000, 6_000)
    );
    assert_eq!(anna.rows("doc").len(), 6_001);
    end(world, &[&role]).await;
}

/// Deploying and serving say what is missing.
#[tokio::test]
async fn a_role_that_cannot_be_assumed_is_told_when_deploying() {
    let fixture = PostgresFixture::new().await;
    let (server, clerk) = (role("server", &fixture), role("far", &fixture));
    fixture.execute(&DOCS.replace("{role}", &clerk)).await;
    fixture.execute(&format!(
        "CREATE ROLE {server} LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO {server};
         DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO {server}', current_database()); END $$;"
    )).await;
    let url = fixture.url().replace("postgres@", &format!("{server}@"));
    let centre = connect(&url).await.unwrap();
    let told = async |act_as: ActAs| {
        let specs = [docs(act_as)];
        match centre.deploy(&specs, true, NOW_MS).await {
            Err(CentreError::Configuration { message, hint }) => (message, hint),
            other => panic!("{other:?}"),
        }
    };
    let named = |name: &str| ActAs::Role(name.to_owned());
    let start = "publication \"docs\", act_as: ";
    let (message, _) = told(named("nobody")).await;
    assert_eq!(message, format!("{start}there is no role \"nobody\""));
    let (message, hint) = told(named(&clerk)).await;
    assert_eq!(
        message,
        format!("{start}the server's role may not assume {clerk:?}")
    );
    assert_eq!(hint, format!("run: GRANT {clerk} TO {server}"));
    let (message, _) = told(named(&server)).await;
    assert!(
        message.contains("may do what the server's own role may"),
        "{message}"
    );
    fixture.execute(&hint["run: ".len()..]).await;
    // The server itself has to see all rows.
    let (message, hint) = told(named(&clerk)).await;
    assert_eq!(
        message,
        "publication \"docs\", act_as: row security of doc may hide rows from the server's role"
    );
    assert!(
        hint.contains(&format!(
            "CREATE POLICY tidewater ON doc TO \"{server}\" USING (true)"
        )),
        "{hint}"
    );
    let (message, _) = told(ActAs::Query("SELECT role, login FROM staff".into())).await;
    assert_eq!(
        message,
        "publication \"docs\", act_as: the query yields 2 columns"
    );
    let (message, _) = told(ActAs::Query("SELECT {u.role}".into())).await;
    assert!(
        message.contains("names {u.role}: no device says who it is"),
        "{message}"
    );
    fixture
        .execute(&format!(
            "CREATE POLICY tidewater ON doc TO {server} USING (true);
         CREATE POLICY tidewater ON line TO {server} USING (true)"
        ))
        .await;
    let specs = [docs(named(&clerk))];
    fixture
        .execute("ALTER TABLE line DISABLE ROW LEVEL SECURITY")
        .await;
    let report = centre.deploy(&specs, true, NOW_MS).await.unwrap();
    let warned = "line: row security may hide rows of doc to which its rows refer";
    assert!(
        report.warnings.iter().any(|it| it.starts_with(warned)),
        "{report:?}"
    );
    fixture
        .execute("ALTER TABLE line ENABLE ROW LEVEL SECURITY")
        .await;
    let report = centre.deploy(&specs, false, NOW_MS).await.unwrap();
    assert!(
        !report.warnings.iter().any(|it| it.starts_with(warned)),
        "{report:?}"
    );
    // Serving says it, too.
    fixture
        .execute(&format!("REVOKE {clerk} FROM {server}"))
        .await;
    let error = centre.load(&specs).await.unwrap_err();
    assert!(
        error.hint().contains(&format!("GRANT {clerk} TO {server}")),
        "{error}"
    );
    fixture.execute(&format!("GRANT {clerk} TO {server}")).await;
    let schemas = centre.load(&specs).await.unwrap();
    let mut anna =
        TestRemote::with_worker(schemas[0].clone(), centre.worker().await.unwrap(), "anna");
    anna.download().await;
    assert_eq!(anna.rows("line"), ["10|1|a"]);
    anna.upload(&[update("line", "10|1|a", "10|1|b")]).await;
    assert_eq!(anna.download().await.rows(), [""; 0]);
    drop(anna);
    fixture.execute(&format!(
        "DROP SCHEMA tidewater CASCADE; DROP OWNED BY {clerk}, {server}; DROP ROLE {clerk}, {server}"
    )).await;
}

/// What everybody gets by the publication, and policies show each something else of.
#[tokio::test]
async fn what_policies_show_one_is_not_given_to_another() {
    let (mut world, role) = world("shared").await;
    world.specs = vec![PublicationSpec {
        act_as: Some(ActAs::Query(STAFF.into())),
        ..publication("docs", vec![everyone("doc")])
    }];
    world.deploy().await.unwrap();
    let mut remotes = Vec::new();
    for user in ["anna", "berta"] {
        remotes.push(TestRemote::new(&world, user).await);
    }
    let received = download_together(&mut remotes).await.into_iter();
    let received: Vec<Vec<String>> = received.map(|it| it.unwrap().rows()).collect();
    assert_eq!(received[0], ["doc: 1|1|anna|a", "doc: 3|2|anna|far away"]);
    assert_eq!(received[1], ["doc: 2|1|berta|b"]);
    end(world, &[&role]).await;
}
