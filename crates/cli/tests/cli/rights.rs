//! What a role of PostgreSQL may not do, and the statements that mend it.

use crate::centre::Centre;
use crate::program::Place;

const TABLES: &str = r#"
[[publication]]
name = "main"

[[publication.table]]
name = "note"
partition = "everyone"
identity = { column = "id" }

[[publication.table]]
name = "price"
partition = "everyone"
tracking = "row"
direction = "download"
"#;

/// The statements in what was printed.
fn statements(text: &str) -> Vec<String> {
    let words = ["GRANT ", "ALTER "];
    let lines = text.lines().filter_map(|line| {
        let at = words.iter().filter_map(|word| line.find(word)).min()?;
        line.ends_with(';').then(|| line[at..].to_owned())
    });
    lines.collect()
}

#[test]
fn a_role_that_may_not_deploy_is_told_what_mends_it() {
    let (place, centre) = (Place::new(), Centre::postgres());
    let url = centre.url();
    let number = url.rsplit('_').next().unwrap().to_owned();
    let (clerk, boss) = (format!("clerk_{number}"), format!("boss_{number}"));
    centre.execute(&format!(
        "CREATE ROLE {clerk} LOGIN; CREATE ROLE {boss};
         CREATE TABLE note (id serial PRIMARY KEY, text text); ALTER TABLE note OWNER TO {boss};
         CREATE TABLE price (id integer PRIMARY KEY); ALTER TABLE price OWNER TO {clerk};"
    ));
    let config = |url: &str| format!("[server]\nconsolidated = \"{url}\"\n{TABLES}");
    let clerks = url.replace("postgres@", &format!("{clerk}@"));
    place.write("tidewater.toml", &config(&clerks));

    let checked = place.tidewater(&["check"]).exits(5).stdout;
    for part in [
        "may not make the schema tidewater",
        "may not make triggers on note",
    ] {
        assert!(checked.contains(part), "{part}: {checked}");
    }
    let mends = statements(&checked);
    let has = |mend: &str| mends.iter().any(|it| it.contains(mend));
    for mend in [
        "GRANT CREATE ON DATABASE ",
        "GRANT TRIGGER ON note TO ",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON note TO ",
        "GRANT USAGE, UPDATE ON SEQUENCE note_id_seq TO ",
    ] {
        assert!(has(mend), "{mend}: {mends:?}");
    }
    assert_eq!(mends.len(), 4, "{mends:?}");
    let run = place.tidewater(&["deploy"]).exits(5);
    let run = run.tells(&[
        "may not deploy; nothing was changed",
        "GRANT TRIGGER ON note",
    ]);
    assert!(!run.stderr.contains("SEQUENCE"), "{run:#?}");
    for mend in &mends {
        centre.execute(mend);
    }
    let checked = place.tidewater(&["check"]).done();
    let owner = format!("only its owner, {boss}, may remove");
    assert!(checked.stderr.contains(&owner), "{checked:#?}");
    let deployed = place.tidewater(&["deploy"]).done();
    assert!(deployed.stdout.contains(&owner), "{deployed:#?}");

    // To remove the triggers again needs more, and says so before it begins.
    let run = place.tidewater(&["undeploy", "--yes"]).exits(5);
    let grant = format!("GRANT {boss} TO {clerk};");
    let run = run.tells(&["may not undeploy; nothing was changed", &grant]);
    let mends = statements(&run.stderr);
    assert_eq!(mends, [grant]);
    // Nor can others undeploy what the clerk deployed.
    let cook = format!("cook_{number}");
    centre.execute(&format!("CREATE ROLE {cook} LOGIN"));
    let cooks = url.replace("postgres@", &format!("{cook}@"));
    place.write("cook.toml", &config(&cooks));
    place
        .tidewater(&["undeploy", "--yes", "-c", "cook.toml"])
        .exits(1)
        .tells(&[&format!("GRANT {clerk} TO {cook};")]);
    centre.execute(&mends[0]);
    place.tidewater(&["undeploy", "--yes"]).done();
    assert_eq!(
        centre.rows("SELECT count(*) FROM pg_namespace WHERE nspname = 'tidewater'"),
        ["0"]
    );
    centre.execute(&format!(
        "REASSIGN OWNED BY {clerk}, {boss} TO postgres; DROP OWNED BY {clerk}, {boss}, {cook};
         DROP ROLE {clerk}, {boss}, {cook}"
    ));
}

#[test]
fn a_table_whose_triggers_fire_always_needs_its_owner() {
    let (place, centre) = (Place::new(), Centre::postgres());
    let url = centre.url();
    let clerk = format!("porter_{}", url.rsplit('_').next().unwrap());
    let database = url.rsplit('/').next().unwrap();
    centre.execute(&format!(
        "CREATE ROLE {clerk} LOGIN; GRANT CREATE ON DATABASE {database} TO {clerk};
         CREATE TABLE note (id serial PRIMARY KEY, text text); CREATE TABLE price (id integer PRIMARY KEY);
         GRANT ALL ON note, price TO {clerk}; GRANT ALL ON SEQUENCE note_id_seq TO {clerk}"
    ));
    let clerks = url.replace("postgres@", &format!("{clerk}@"));
    let config = format!("[server]\nconsolidated = \"{clerks}\"\n{TABLES}");
    place.write("tidewater.toml", &config);
    let checked = place.tidewater(&["check"]).exits(5).stdout;
    // Nobody is made as mighty as a superuser.
    let give = format!("ALTER TABLE price OWNER TO {clerk};");
    assert_eq!(statements(&checked), std::slice::from_ref(&give));
    centre.execute(&give);
    place.tidewater(&["deploy"]).done();
    centre.execute(&format!(
        "DROP SCHEMA tidewater CASCADE; REASSIGN OWNED BY {clerk} TO postgres;
         DROP OWNED BY {clerk}; DROP ROLE {clerk}"
    ));
}
