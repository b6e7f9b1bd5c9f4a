//! From sample schemas that everybody knows to devices in two-way sync, with what `init` proposes and
//! the statements that the program prints, and no others.

use tidewater_testing::chinook;

use crate::centre::{Centre, on_both_centres, sqlite_rows};
use crate::program::{Place, Server, sqlite};
use crate::shop::{add_user, password};

const NORTHWIND: &str = include_str!("newcomer/northwind.sql");
const SAKILA: &str = include_str!("newcomer/sakila.sql");

/// Three devices in two-way sync.
struct Walk {
    names: Vec<String>,
    place: Place,
    centre: Centre,
    server: Server,
}

/// What `init` printed: the statements, and the query for sign-in names that ends them.
fn printed(script: &str) -> (String, String) {
    let script = script.trim_end();
    let (statements, query) = script.rsplit_once('\n').expect("several lines");
    assert!(query.starts_with("SELECT "), "{script}");
    (statements.to_owned(), query.to_owned())
}

impl Walk {
    /// Goes from tables with rows to three devices.
    fn go(place: Place, centre: Centre) -> Walk {
        let url = centre.url();
        let init = ["init", "--consolidated", &url, "--map-users"];
        let run = place.tidewater(&init).done();
        let text = place.read("tidewater.toml");
        assert!(!text.contains("# TODO:"), "{text}");
        let (statements, query) = printed(&run.stdout);
        centre.execute(&statements);
        let deployed = place.tidewater(&["deploy"]).done().stdout;
        // Warnings of missing indexes end with the statement that makes one.
        for line in deployed.lines() {
            if let Some((_, statement)) = line.split_once("Make one: ") {
                centre.execute(statement);
            }
        }
        let again = place.tidewater(&["deploy"]).done().stdout;
        assert!(again.contains("nothing to do"), "{again}");
        assert!(!again.contains("has no index"), "{again}");
        let mut names = centre.rows(&query);
        names.truncate(3);
        assert_eq!(names.len(), 3);
        for name in &names {
            add_user(&place, name);
        }
        let server = place.serve(&[]);
        for name in &names {
            place.first_sync(name, server.url(), "main", &[]).done();
        }
        Walk {
            names,
            place,
            centre,
            server,
        }
    }

    fn file(&self, at: usize) -> String {
        format!("{}.db", self.names[at])
    }

    fn rows(&self, at: usize, sql: &str) -> Vec<String> {
        sqlite_rows(&sqlite(&self.place.path(&self.file(at))), sql)
    }

    /// Changes a device as an application does, and syncs it.
    fn change(&self, at: usize, sql: &str) {
        let file = sqlite(&self.place.path(&self.file(at)));
        file.execute_batch("PRAGMA foreign_keys = ON").unwrap();
        file.execute_batch(sql).expect("valid SQL");
        self.place.tidewater(&["sync", &self.file(at)]).done();
    }

    /// Every device is equal to the centre by its own account, too.
    fn verify(self) {
        for at in 0..3 {
            self.place.tidewater(&["sync", &self.file(at)]).done();
            self.place
                .tidewater_as(&password(&self.names[at]), &["verify", &self.file(at)])
                .done();
        }
        let (code, log) = self.server.terminate();
        assert_eq!(code, 0, "{log}");
    }
}

#[test]
fn a_newcomer_walks_from_a_trading_company_to_three_devices() {
    on_both_centres(|_, centre| {
        let (is_postgres, computed) = match centre {
            Centre::Postgres(_) => (true, "md5(random()::text)"),
            Centre::Sqlite(_) => (false, "abs(random())"),
        };
        let place = Place::new();
        let centre = match is_postgres {
            true => centre.clone(),
            false => Centre::sqlite(&place),
        };
        centre.execute(&NORTHWIND.replace("{computed}", computed));
        let walk = Walk::go(place, centre);
        // Two people have the same first name, and nobody gets the other's rows.
        assert_eq!(walk.names, ["andrew", "nancy.1", "nancy.3"]);
        let orders = "SELECT order_id, employee_id FROM orders ORDER BY 1";
        assert_eq!(walk.rows(0, orders), ["10249|2"]);
        assert_eq!(walk.rows(1, orders), ["10248|1"]);
        assert_eq!(walk.rows(2, orders), ["10250|3"]);
        let details = "SELECT order_id FROM order_details";
        assert_eq!(walk.rows(1, details), ["10248"]);
        assert_eq!(walk.rows(1, "SELECT first_name FROM employees"), ["Nancy"]);
        let all = "SELECT customer_id FROM customers ORDER BY 1";
        assert_eq!(walk.rows(1, all), ["ALFKI", "BERGS"]);

        // Two devices insert orders without a word about keys, and the centre fills what it has to.
        for (at, customer) in [(0, "ANDRE"), (1, "NANCY")] {
            let employee = walk.rows(at, "SELECT employee_id FROM employees")[0].clone();
            walk.change(
                at,
                &format!(
                    "BEGIN; INSERT INTO customers VALUES ('{customer}', 'New', NULL);
                     INSERT INTO orders (customer_id, employee_id) VALUES ('{customer}', {employee});
                     INSERT INTO order_details SELECT order_id, 2, 5.00, 1 FROM orders
                       WHERE customer_id = '{customer}'; COMMIT"
                ),
            );
        }
        let new = "SELECT count(*), count(DISTINCT o.order_id), count(DISTINCT o.entry_code)
                   FROM orders o JOIN order_details d ON d.order_id = o.order_id
                   WHERE customer_id IN ('ANDRE', 'NANCY')";
        assert_eq!(walk.centre.rows(new), ["2|2|2"]);
        if is_postgres {
            // The key changes, and so does what refers to it, also where the device does not see it.
            walk.change(
                1,
                "UPDATE customers SET customer_id = 'FUTTE' WHERE customer_id = 'ALFKI'",
            );
            let renamed = "SELECT order_id FROM orders WHERE customer_id = 'FUTTE' ORDER BY 1";
            assert_eq!(walk.centre.rows(renamed), ["10248", "10250"]);
        } else {
            let text = walk.place.read("tidewater.toml");
            assert!(
                text.contains("REFERENCES customers (customer_id) ON UPDATE CASCADE"),
                "{text}"
            );
        }
        // Who inserts in the centre meets none of the devices' numbers.
        if is_postgres {
            walk.centre.execute(
                "INSERT INTO orders (customer_id, employee_id) VALUES ('BERGS', 2), ('BERGS', 3)",
            );
        }
        walk.verify();
    });
}

#[test]
fn a_newcomer_walks_from_a_music_shop_to_three_devices() {
    let (place, centre) = (Place::new(), Centre::postgres());
    let Centre::Postgres(url) = &centre else {
        unreachable!("it is PostgreSQL");
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let client = tidewater_testing::postgres::connect(url).await.unwrap();
        client
            .batch_execute(chinook::postgres_schema())
            .await
            .unwrap();
        chinook::load_postgres(&client).await.unwrap();
    });
    centre.execute("ALTER TABLE employee DROP COLUMN login");
    music_shop(place, centre);

    let place = Place::new();
    let centre = Centre::sqlite(&place);
    // SQLite drops no column that has to be unique.
    let schema = chinook::sqlite_schema().replace("login TEXT UNIQUE", "login TEXT");
    centre.execute(&schema);
    chinook::load_sqlite(&sqlite(&place.path("centre.db"))).unwrap();
    centre.execute("ALTER TABLE employee DROP COLUMN login");
    music_shop(place, centre);
}

fn music_shop(place: Place, centre: Centre) {
    let walk = Walk::go(place, centre);
    for at in 0..3 {
        let name = &walk.names[at];
        let expected = walk.centre.rows(&format!(
            "SELECT count(*) FROM invoice_line l JOIN invoice i ON i.invoice_id = l.invoice_id
             JOIN customer c ON c.customer_id = i.customer_id
             JOIN employee_login e ON e.employee_id = c.support_rep_id WHERE e.login = '{name}'"
        ));
        let lines = "SELECT count(*) FROM invoice_line";
        assert_eq!(walk.rows(at, lines), expected, "{name}");
        let tracks = "SELECT count(*) FROM track";
        assert_eq!(walk.rows(at, tracks), walk.centre.rows(tracks));
    }
    walk.verify();
}

#[test]
fn a_rental_shop_has_its_sign_in_names_and_its_trigger_is_known() {
    let (place, centre) = (Place::new(), Centre::postgres());
    centre.execute(SAKILA);
    let url = centre.url();
    let run = place.tidewater(&["init", "--consolidated", &url]).done();
    let (statements, query) = printed(&run.stdout);
    assert!(!statements.contains("CREATE TABLE"), "{statements}");
    assert_eq!(query, "SELECT username FROM staff ORDER BY 1;");
    let text = place.read("tidewater.toml");
    assert!(!text.contains("# TODO:"), "{text}");
    let parsed: toml::Table = text.parse().unwrap();
    let tables = parsed["publication"][0]["table"].as_array().unwrap();
    let table = |name: &str| {
        let mut tables = tables.iter();
        tables.find(|it| it["name"].as_str() == Some(name)).unwrap()
    };
    let values = |column: &str| {
        toml::Value::try_from(toml::toml! {
            columns = [column]
            values = "SELECT staff_id FROM staff WHERE username = {s.username}"
        })
        .unwrap()
    };
    assert_eq!(table("staff")["partition"], values("staff_id"));
    assert_eq!(table("store")["partition"], values("manager_staff_id"));
    assert_eq!(table("rental")["partition"], values("staff_id"));
    assert_eq!(
        table("customer")["partition"]["follows"].as_str(),
        Some("store")
    );
    assert_eq!(
        table("inventory")["partition"]["follows"].as_str(),
        Some("store")
    );
    assert_eq!(table("film")["partition"].as_str(), Some("everyone"));
    assert_eq!(
        table("film")["identity"]["column"].as_str(),
        Some("film_id")
    );
    let filled = table("film")["filled_by_centre"].as_array().unwrap();
    assert_eq!(filled[..], ["fulltext".into()]);
    // What is guessed is left to the operator, and called a guess.
    assert!(table("rental").get("filled_by_centre").is_none());
    assert!(text.contains("# filled_by_centre = [\"total\"]    # a guess: the trigger add_up"));
    let columns = table("staff")["columns"].as_array().unwrap();
    assert!(!columns.contains(&"password".into()), "{columns:?}");

    let deployed = place.tidewater(&["deploy"]).done().stdout;
    assert!(deployed.contains("This is a guess"), "{deployed}");
    assert!(!deployed.contains("\"title\""), "{deployed}");
    // Without it, the trigger is named as what it is.
    let without = text.replace("filled_by_centre = [\"fulltext\"]\n", "");
    place.write("tidewater.toml", &without);
    let planned = place.tidewater(&["deploy", "--dry-run"]).done().stdout;
    let known = "the trigger \"film_fulltext_trigger\" (tsvector_update_trigger) sets the column \
                 \"fulltext\"";
    assert!(planned.contains(known), "{planned}");
    assert!(!planned.contains("\"title\""), "{planned}");
}

#[test]
fn nothing_is_made_in_the_database_unasked_and_a_second_init_finds_the_names() {
    on_both_centres(|place, centre| {
        let schema = "CREATE TABLE technician (technician_id INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL);
             CREATE TABLE visit (visit_id INTEGER NOT NULL PRIMARY KEY,
               technician_id INTEGER NOT NULL REFERENCES technician);
             INSERT INTO technician VALUES (1, 'Ada'), (2, 'Bob');";
        centre.execute(schema);
        let url = centre.url();
        let run = place.tidewater(&["init", "--consolidated", &url]).done();
        assert!(run.stderr.contains("--map-users"), "{run:#?}");
        let (statements, query) = printed(&run.stdout);
        let made = "SELECT count(*) FROM technician_login";
        centre.execute(&statements);
        assert_eq!(centre.rows(made), ["2"]);
        assert_eq!(centre.rows(&query), ["ada", "bob"]);
        let again = ["init", "--consolidated", &url, "--force", "--map-users"];
        let run = place.tidewater(&again).done();
        assert!(!run.stdout.contains("CREATE TABLE"), "{run:#?}");
        assert!(
            run.stderr.contains("left out: technician_login"),
            "{run:#?}"
        );
        place.tidewater(&["deploy"]).done();
        // Somebody else can be those who sign in, but no table without a key.
        centre.execute("CREATE TABLE nobody (a INTEGER, b INTEGER)");
        place
            .tidewater(&[
                "init",
                "--consolidated",
                &url,
                "--force",
                "--people",
                "nobody",
            ])
            .exits(1)
            .tells(&["\"nobody\" cannot be the table of those who sign in"]);
    });
}
