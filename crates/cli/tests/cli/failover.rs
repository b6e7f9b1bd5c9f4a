//! What stands behind a server: a PostgreSQL whose standby takes over, and poolers.

use std::thread;

use tidewater_testing::postgres::Postgres;
use tidewater_testing::{PgBouncer, shared_postgres};

use crate::centre::Centre;
use crate::farm::{Progress, assert_equal, work};
use crate::kill::POSTGRES_AUDIT;
use crate::program::{Place, free_url};
use crate::shop::{SCHEMA, Shop, TABLES, add_user, configure, password};

#[test]
fn i1_a_standby_that_takes_over_has_all_that_was_acknowledged_and_syncs_go_on() {
    let mut primary = Postgres::start().unwrap();
    primary.create_database("shop").unwrap();
    let standby = primary.standby().unwrap();
    primary.commit_with_standby().unwrap();
    let hosts = [&primary, &standby].map(|it| format!("127.0.0.1:{}", it.port()));
    let centre = Centre::Postgres(format!(
        "postgres://postgres@{}/shop?target_session_attrs=read-write",
        hosts.join(",")
    ));
    let place = Place::new();
    centre.execute(SCHEMA);
    centre.execute(POSTGRES_AUDIT);
    configure(&place, &centre, "", TABLES);
    place.tidewater(&["deploy"]).done();
    let users = ["nancy", "steve", "margaret"];
    let server = place.serve_on(&free_url(), &[]);
    for user in users {
        add_user(&place, user);
        let file = format!("{user}.db");
        let account = ["--user", user, "--publication", "main"];
        let first = [&["sync", &file, "--server", server.url()][..], &account].concat();
        place.tidewater_as(&password(user), &first).done();
    }
    let progress = Progress::default();
    let ledger = thread::scope(|scope| {
        let (place, progress) = (&place, &progress);
        let work = |(number, user)| scope.spawn(move || work(place, user, number, progress));
        let workers: Vec<_> = users.into_iter().enumerate().map(work).collect();
        progress.wait();
        // In the middle of whatever they are doing.
        primary.kill().unwrap();
        standby.promote().unwrap();
        progress.wait();
        progress.end();
        let ledgers = workers.into_iter().map(|it| it.join().expect("it works"));
        ledgers.flatten().collect()
    });
    assert_equal(&place, &centre, &users, ledger);
    // Who comes later finds it, too.
    place.tidewater(&["status", "-c", "tidewater.toml"]).done();
}

/// A pooler of a mode before a database, which does not take options of sessions, or takes no
/// notice of them.
fn poolers(mode: &str) -> [PgBouncer; 2] {
    ["", "ignore_startup_parameters = options"].map(|more| {
        let more = format!("pool_mode = {mode}\n{more}");
        PgBouncer::start(shared_postgres().port(), &more).expect("PgBouncer starts")
    })
}

#[test]
fn syncs_go_through_a_pooler_that_gives_sessions() {
    for pooler in poolers("session") {
        let place = Place::new();
        let database = shared_postgres().fresh_database();
        // With these instead of our settings nothing would be found, or understood.
        let settings = "ALTER DATABASE {} SET DateStyle = 'German';
             ALTER DATABASE {} SET search_path = nowhere";
        let name = database.rsplit('/').next().unwrap();
        let settings = settings.replace("{}", name);
        let centre = Centre::Postgres(pooler.url(&database));
        shared_postgres().execute(name, SCHEMA).unwrap();
        shared_postgres().execute(name, &settings).unwrap();
        configure(&place, &centre, "", TABLES);
        place.tidewater(&["check"]).done();
        place.tidewater(&["deploy"]).done();
        for user in ["nancy", "steve"] {
            add_user(&place, user);
        }
        let server = place.serve(&[]);
        let shop = Shop {
            server,
            centre: Centre::Postgres(database),
            place,
        };
        let remote = shop.remote("nancy");
        remote.execute("INSERT INTO product VALUES (7, 'pin')");
        let report = shop.sync(&remote).done().json();
        assert_eq!(report["uploaded"]["inserts"], 1);
        let direct = "SELECT name FROM public.product WHERE product_id = 7";
        assert_eq!(shop.centre.rows(direct), ["pin"]);
    }
}

#[test]
fn a_pooler_that_shares_sessions_is_refused_with_what_to_do() {
    for mode in ["transaction", "statement"] {
        for pooler in poolers(mode) {
            let place = Place::new();
            let centre = Centre::Postgres(pooler.url(&shared_postgres().fresh_database()));
            configure(&place, &centre, "", TABLES);
            // What the one before has left in a session harms nobody.
            for command in [&["deploy"][..], &["check"], &["serve"], &["deploy"]] {
                place.tidewater(command).exits(1).tells(&[
                    "a pooler that shares sessions between transactions",
                    "pool_mode = session",
                ]);
            }
        }
    }
}
