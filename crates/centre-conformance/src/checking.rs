//! Statements of operators that the database does not take, or that do not yield what they have to:
//! every database has the same words for it.

use tidewater_centre::{CentreError, ProcedureSpec, Returns};
use tidewater_testing::generate::Dialect;

use crate::fixture::Fixture;
use crate::procedures;
use crate::world::{DeployedCentre, partitioned};

const DDL: &str = "
    CREATE TABLE crew (login TEXT NOT NULL PRIMARY KEY, tech INTEGER NOT NULL);
    CREATE TABLE job (id INTEGER NOT NULL PRIMARY KEY, tech INTEGER NOT NULL, note TEXT)";

const OWN: &str = "SELECT tech FROM crew WHERE login = {s.username}";

/// Both databases have a parameter that is written so.
const OF_THE_DATABASE: &str = "SELECT tech FROM crew WHERE login = {s.username} AND tech <> $2";

async fn world<F: Fixture>() -> DeployedCentre<F> {
    DeployedCentre::<F>::new(DDL, vec![partitioned("job", &["tech"], OWN)]).await
}

fn told(error: &CentreError) -> String {
    format!("{error} / {}", error.hint())
}

fn check(told: &str, parts: &[&str]) {
    for part in parts {
        assert!(told.contains(part), "{part:?} is not in: {told}");
    }
}

pub async fn a_query_that_the_database_does_not_take_is_told_with_its_place<F: Fixture>() {
    let mut world = world::<F>().await;
    let query = "table \"job\": the values query";
    for (values, parts) in [
        (
            "SELECT login FROM crew",
            &[
                "yields ",
                " for the partition column \"tech\", which is ",
                "convert it in the query: CAST(... AS ",
            ][..],
        ),
        (
            "SELECT tech, login FROM crew",
            &[
                "yields 2 columns, but there are 1 partition columns",
                "select values for tech",
            ],
        ),
        (
            "SELECT tech FROM crw",
            &["is refused by ", "crw", "make the table first"],
        ),
        ("SELECT tech FRM crew", &["is refused by "]),
        (
            OF_THE_DATABASE,
            &["has parameters of ", "'s own", "write {s.username}"],
        ),
    ] {
        world.specs[0].tables = vec![partitioned("job", &["tech"], values)];
        let error = world.deploy().await.unwrap_err();
        check(&told(&error), parts);
        check(&told(&error), &[query]);
    }
    // A number is no text where nothing converts it by itself.
    world.specs[0].tables = vec![partitioned("job", &["note"], OWN)];
    let deployed = world.deploy().await;
    match F::DIALECT {
        Dialect::Postgres | Dialect::Mysql => assert!(deployed.is_ok(), "{deployed:?}"),
        Dialect::Sqlite => check(
            &told(&deployed.unwrap_err()),
            &["yields INTEGER for the partition column \"note\", which is TEXT"],
        ),
    }
}

pub async fn a_procedure_that_the_database_does_not_take_is_told_with_its_place<F: Fixture>() {
    let world = world::<F>().await;
    let spec = |sql: &str| procedures::spec("crews", sql, &[], Returns::Rows);
    let allowed = |allow: &str| ProcedureSpec {
        allow: Some(allow.into()),
        ..spec(OWN)
    };
    for (spec, parts) in [
        (
            spec("SELECT tech FROM crw"),
            &["procedure \"crews\" is refused by ", "crw"][..],
        ),
        (
            spec(OF_THE_DATABASE),
            &["procedure \"crews\" has parameters of "],
        ),
        (
            allowed("SELECT tech FROM crw"),
            &["procedure \"crews\": the allow query is refused by "],
        ),
        (
            allowed("DELETE FROM crew"),
            &["procedure \"crews\": the allow query ", "write a SELECT"],
        ),
        (
            allowed(OF_THE_DATABASE),
            &["procedure \"crews\": the allow query has parameters of "],
        ),
    ] {
        let error = world.centre.procedures(&[spec]).await.unwrap_err();
        check(&told(&error), parts);
    }
    let allowed = allowed("SELECT 1 FROM crew WHERE login = {s.username} -- whoever is one");
    procedures::procedures(&world, [allowed]).await;
}
