//! What an operator is told whom the database does not let in, or keeps waiting.

use std::fs;

use tidewater_testing::postgres::Postgres;

use crate::centre::Centre;
use crate::program::Place;
use crate::shop::{SCHEMA, TABLES, configure};

/// PostgreSQL with the user teller, who needs a password, and keeper, who may not come in.
fn guarded() -> Postgres {
    let mut postgres = Postgres::start().expect("PostgreSQL starts");
    postgres.create_database("shop").unwrap();
    postgres
        .execute(
            "postgres",
            "CREATE ROLE teller LOGIN PASSWORD 'open sesame'; CREATE ROLE keeper LOGIN",
        )
        .unwrap();
    let path = postgres.data_directory().join("pg_hba.conf");
    let rules = fs::read_to_string(&path).unwrap();
    let guard = "host all teller 127.0.0.1/32 scram-sha-256\nhost all keeper 127.0.0.1/32 reject\n";
    fs::write(&path, format!("{guard}{rules}")).unwrap();
    postgres.restart().unwrap();
    postgres
}

#[test]
fn who_is_not_let_into_postgresql_is_told_what_to_put_right_and_where() {
    let postgres = guarded();
    let port = postgres.port();
    let at = |account: &str, rest: &str| format!("postgres://{account}@127.0.0.1:{port}/{rest}");
    let somewhere = format!("127.0.0.1:{port}, database \"shop\", user \"teller\"");
    let place = Place::new();
    for (url, code, parts) in [
        (
            at("teller:s3cret", "shop"),
            1,
            ["does not let us in", &somewhere, "check user and password"],
        ),
        (
            at("teller", "shop"),
            1,
            ["asks for a password", &somewhere, "${DB_PASSWORD}"],
        ),
        (
            at("teller:open%20sesame", "shopp"),
            1,
            [
                "\"shopp\" does not exist",
                "user \"teller\"",
                "create this one",
            ],
        ),
        (
            at("keeper", "shop"),
            1,
            ["does not let us in", "user \"keeper\"", "pg_hba.conf"],
        ),
        (
            at("teller:s3cret", "shop?sslmode=require"),
            1,
            ["does not support TLS", &somewhere, "sslmode=disable"],
        ),
        (
            at("teller:s3cret", "shop?sslmod=require"),
            1,
            ["unknown parameter \"sslmod\"", "known are", "sslmode"],
        ),
        (
            "postgres://teller:s3cret@127.0.0.1:1/shop".to_owned(),
            2,
            ["cannot be reached", "127.0.0.1:1", "host and port"],
        ),
    ] {
        place.write(
            "other.toml",
            &format!("[server]\nconsolidated = {url:?}\n{TABLES}"),
        );
        for command in [
            &["init", "--consolidated", &url][..],
            &["deploy", "-c", "other.toml"],
            &["serve", "-c", "other.toml"],
        ] {
            let run = place.tidewater(command).exits(code).tells(&parts);
            assert!(!run.stderr.contains("s3cret"), "{run:#?}");
            assert!(!run.stderr.contains("server.consolidated"), "{run:#?}");
        }
    }
    let url = at("teller:open%20sesame", "shop");
    let run = place.tidewater(&["init", "--consolidated", &url]);
    run.exits(1).tells(&["the database has no tables"]);
}

#[test]
fn a_deploy_that_a_lock_keeps_waiting_says_which_table_and_exits_with_2() {
    let (place, centre) = (Place::new(), Centre::postgres());
    centre.execute(SCHEMA);
    configure(&place, &centre, "", TABLES);
    let session = centre.session().expect("a session of PostgreSQL");
    session.execute("BEGIN; LOCK TABLE customer IN ROW EXCLUSIVE MODE");
    place.tidewater(&["deploy"]).exits(2).tells(&[
        "customer",
        "locked by another session",
        "nothing was changed",
        "run it again",
    ]);
    session.execute("ROLLBACK");
    place.tidewater(&["deploy"]).done();
}

#[test]
fn a_first_deploy_says_nothing_of_older_formats_or_running_servers() {
    let (place, centre) = (Place::new(), Centre::postgres());
    centre.execute(SCHEMA);
    centre.execute("CREATE INDEX customer_rep ON customer (rep_id)");
    configure(&place, &centre, "", TABLES);
    let first = place.tidewater(&["deploy"]).done();
    for word in ["migrate", "within a second"] {
        let all = format!("{}{}", first.stdout, first.stderr);
        assert!(!all.contains(word), "{word}: {all}");
    }
    assert!(first.stdout.contains("session_replication_role"));
    let second = place.tidewater(&["deploy"]).done();
    assert_eq!(second.stdout, "nothing to do\n");
    configure(
        &place,
        &centre,
        "",
        &TABLES.replace("\"download\"", "\"both\""),
    );
    let third = place.tidewater(&["deploy"]).done();
    assert!(third.stderr.contains("within a second"), "{third:?}");
}

#[test]
fn deploying_checks_where_the_server_is_to_listen() {
    let place = Place::new();
    let centre = Centre::sqlite(&place);
    centre.execute(SCHEMA);
    for (listen, hint) in [
        ("tcp://0.0.0.0:7439", "insecure = true"),
        ("tls://0.0.0.0:7439", "tidewater cert --out . --host NAME"),
    ] {
        configure(&place, &centre, &format!("listen = [{listen:?}]"), TABLES);
        for command in [&["deploy"][..], &["deploy", "--dry-run"], &["serve"]] {
            place.tidewater(command).exits(1).tells(&[listen, hint]);
        }
    }
}
