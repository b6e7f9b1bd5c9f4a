//! Whose a new row is: the two ways to say it, one of which cannot work.

use crate::centre::{Centre, on_both_centres};
use crate::program::{Place, Server, sqlite};
use crate::shop::{add_user, configure, password};

const TABLES: &str = "
    CREATE TABLE visit (visit_id INTEGER NOT NULL PRIMARY KEY, technician VARCHAR(20) NOT NULL);
    CREATE TABLE assignment (
        visit_id INTEGER NOT NULL REFERENCES visit (visit_id),
        login VARCHAR(20) NOT NULL,
        PRIMARY KEY (visit_id, login));
    INSERT INTO visit VALUES (1, 'nancy');
    INSERT INTO assignment VALUES (1, 'nancy');
";

/// A publication of both tables, and a remote of nancy's. Gives what deploying said.
fn served(place: &Place, centre: &Centre, visits: &str) -> (Server, String) {
    centre.execute(TABLES);
    let tables = format!(
        "[[publication]]\nname = \"main\"\n\
         [[publication.table]]\nname = \"visit\"\npartition = {visits}\n\
         [[publication.table]]\nname = \"assignment\"\n\
         partition = {{ columns = [\"login\"], values = \"SELECT {{s.username}}\" }}\n"
    );
    configure(place, centre, "", &tables);
    let told = place.tidewater(&["deploy"]).done().stdout;
    add_user(place, "nancy");
    let server = place.serve(&[]);
    let account = ["--user", "nancy", "--publication", "main"];
    let sync = [
        &["sync", "nancy.db", "--server", server.url()][..],
        &account,
    ]
    .concat();
    place.tidewater_as(&password("nancy"), &sync).done();
    (server, told)
}

const NEW_VISIT: &str =
    "INSERT INTO visit VALUES (2, 'nancy'); INSERT INTO assignment VALUES (2, 'nancy')";

#[test]
fn a_new_row_and_what_refers_to_it_go_up_together_if_the_row_says_whose_it_is() {
    on_both_centres(|place, centre| {
        let visits = r#"{ columns = ["technician"], values = "SELECT {s.username}" }"#;
        let (_server, told) = served(place, centre, visits);
        assert!(!told.contains("no remote can insert"), "{told}");
        let remote = sqlite(&place.path("nancy.db"));
        remote.execute_batch(NEW_VISIT).unwrap();
        place.tidewater(&["sync", "nancy.db"]).done();
        let visits = "SELECT v.visit_id FROM visit v JOIN assignment USING (visit_id) ORDER BY 1";
        assert_eq!(centre.rows(visits), ["1", "2"]);
        // Somebody else's from now on.
        centre.execute("UPDATE visit SET technician = 'steve' WHERE visit_id = 2");
        place.tidewater(&["sync", "nancy.db"]).done();
        assert_eq!(
            crate::centre::sqlite_rows(&remote, "SELECT visit_id FROM visit"),
            ["1"]
        );
    });
}

#[test]
fn a_row_and_the_one_that_gives_it_to_somebody_go_up_together() {
    on_both_centres(|place, centre| {
        let query = "SELECT visit_id FROM assignment WHERE login = {s.username}";
        let visits = format!("{{ columns = [\"visit_id\"], values = \"{query}\" }}");
        let (_server, told) = served(place, centre, &visits);
        assert!(!told.contains("no remote can insert"), "{told}");
        let remote = sqlite(&place.path("nancy.db"));
        remote.execute_batch(NEW_VISIT).unwrap();
        place.tidewater(&["sync", "nancy.db"]).done();
        assert_eq!(centre.rows("SELECT count(*) FROM visit"), ["2"]);
        // Nobody gives her this one.
        remote
            .execute_batch("INSERT INTO visit VALUES (3, 'nancy')")
            .unwrap();
        place.tidewater(&["sync", "nancy.db"]).exits(6);
        // Now the centre does so by itself.
        match centre {
            Centre::Sqlite(_) => centre.execute(
                "CREATE TRIGGER assigned AFTER INSERT ON visit BEGIN
                     INSERT INTO assignment VALUES (NEW.visit_id, NEW.technician); END",
            ),
            Centre::Postgres(_) => centre.execute(
                "CREATE FUNCTION assign() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                     INSERT INTO assignment VALUES (NEW.visit_id, NEW.technician);
                     RETURN NULL; END $$;
                 CREATE TRIGGER assigned AFTER INSERT ON visit
                     FOR EACH ROW EXECUTE FUNCTION assign()",
            ),
        }
        place.tidewater(&["refused", "retry", "nancy.db"]).done();
        place.tidewater(&["sync", "nancy.db"]).done();
        assert_eq!(centre.rows("SELECT count(*) FROM assignment"), ["3"]);
    });
}

#[test]
fn a_partition_that_only_the_centre_can_give_is_warned_of() {
    on_both_centres(|place, centre| {
        centre.execute(TABLES);
        let query = "SELECT visit_id FROM assignment WHERE login = {s.username}";
        let tables = format!(
            "[[publication]]\nname = \"main\"\n[[publication.table]]\nname = \"visit\"\n\
             partition = {{ columns = [\"visit_id\"], values = \"{query}\" }}\n"
        );
        configure(place, centre, "", &tables);
        let told = place.tidewater(&["deploy"]).done().stdout;
        let warning = "visit: its partition query reads assignment, which refers to it";
        assert!(told.contains(warning), "{told}");
    });
}
