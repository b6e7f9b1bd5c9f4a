//! What others say of users: how it is kept, and what it is in queries.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::administering::user;
use crate::fixture::Fixture;
use crate::remote::{TestRemote, update};
use crate::world::{DeployedCentre, NOW_MS, partitioned};
use tidewater_centre::engine::callable_procedure::CallableProcedure;
use tidewater_centre::procedure_spec::ProcedureSpec;
use tidewater_centre::records::{ProvenIdentity, UserClaims};
use tidewater_centre::{CallOutcome, Caller, Cancel, ProcedureCall, Returns};

const DDL: &str = "CREATE TABLE site (id INTEGER NOT NULL PRIMARY KEY, region TEXT, note TEXT);
     INSERT INTO site VALUES (1, 'north', 'a'), (2, 'south', 'b'), (3, NULL, 'c');";

async fn world<F: Fixture>() -> DeployedCentre<F> {
    let table = partitioned("site", &["region"], "SELECT {ml s.claims.region}");
    let mut world = DeployedCentre::new(DDL, vec![table]).await;
    world.deploy().await.unwrap();
    world
}

pub(crate) fn claims(pairs: &[(&str, &str)]) -> UserClaims {
    let pairs = pairs.iter();
    let pairs = pairs.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    UserClaims::new(pairs.collect::<BTreeMap<_, _>>())
}

fn said(pairs: &[(&str, &str)]) -> ProvenIdentity {
    ProvenIdentity {
        at_ms: NOW_MS,
        by: "https://login.example.com".into(),
        claims: claims(pairs),
    }
}

pub async fn what_is_said_of_a_user_is_kept_and_replaced<F: Fixture>() {
    let world = world::<F>().await;
    let mut worker = world.centre.worker().await.unwrap();
    let first = said(&[("region", "no\"rth"), ("unit", "1")]);
    assert!(!worker.prove_user("nancy", &first, false).await.unwrap());
    assert!(world.centre.users().await.unwrap().is_empty());
    assert!(worker.prove_user("nancy", &first, true).await.unwrap());
    let users = world.centre.users().await.unwrap();
    assert_eq!((users.len(), users[0].name.as_str()), (1, "nancy"));
    assert_eq!((users[0].created_ms, &users[0].proven), (NOW_MS, &first));
    assert!(users[0].password_hash.is_empty() && !users[0].disabled);
    // All of it is another one, and nothing else.
    let anna = user("anna");
    assert!(world.centre.add_user(&anna).await.unwrap());
    assert!(world.centre.set_disabled("anna", true).await.unwrap());
    let next = said(&[]);
    assert!(worker.prove_user("anna", &next, true).await.unwrap());
    assert!(worker.prove_user("nancy", &next, false).await.unwrap());
    let users = world.centre.users().await.unwrap();
    assert_eq!((&users[0].proven, &users[1].proven), (&next, &next));
    assert!(users[0].disabled, "whatever others say");
    assert_eq!(users[0].password_hash, anna.password_hash);
}

pub async fn a_password_is_replaced_where_nobody_else_has<F: Fixture>() {
    let world = world::<F>().await;
    let mut worker = world.centre.worker().await.unwrap();
    let anna = user("anna");
    assert!(world.centre.add_user(&anna).await.unwrap());
    let before = anna.password_hash.as_str();
    assert!(
        worker
            .replace_password("anna", before, "next")
            .await
            .unwrap()
    );
    for (user, before) in [("anna", before), ("nobody", "next"), ("nobody", "")] {
        assert!(
            !worker
                .replace_password(user, before, "third")
                .await
                .unwrap()
        );
    }
    let users = world.centre.users().await.unwrap();
    assert_eq!((users.len(), users[0].password_hash.as_str()), (1, "next"));
}

pub async fn a_scope_is_what_others_say_and_nothing_without_it<F: Fixture>() {
    let world = world::<F>().await;
    let mut nancy = TestRemote::synced(&world, "nancy").await;
    assert!(nancy.rows("site").is_empty());
    for value in ["north' OR '1'='1", "", "NORTH", "{s.username}"] {
        nancy.claims = claims(&[("region", value)]);
        nancy.download().await;
        assert!(nancy.rows("site").is_empty(), "{value}");
    }
    nancy.claims = claims(&[("region", "north")]);
    nancy.download().await;
    assert_eq!(nancy.rows("site"), ["1|north|a"]);
    let up = nancy
        .upload(&[update("site", "1|north|a", "1|north|mine")])
        .await;
    assert_eq!(
        up,
        ["0 inserted, 1 updated, 0 deleted, 0 conflicts, 0 refused"]
    );
    nancy.download().await;
    nancy.claims = claims(&[("region", "south")]);
    nancy.download().await;
    assert_eq!(nancy.rows("site"), ["2|south|b"]);
}

pub async fn a_call_knows_what_others_say_of_its_caller<F: Fixture>() {
    let world = world::<F>().await;
    let spec = ProcedureSpec {
        name: "note".into(),
        sql: Some("SELECT note FROM site WHERE region = {s.claims.region}".into()),
        arguments: Vec::new(),
        returns: Returns::Value,
        allow: Some("SELECT 1 WHERE {s.claims.unit} = '1'".into()),
        read_only: true,
    };
    let procedures = world.centre.procedures(&[spec]).await.unwrap();
    let procedure = &procedures[0];
    assert!(procedure.names_claims());
    let of = |pairs: &[(&str, &str)]| call(procedure, claims(pairs));
    let calls = vec![
        of(&[("region", "north"), ("unit", "1")]),
        of(&[("region", "south"), ("unit", "1")]),
        of(&[("unit", "1")]),
        of(&[("region", "north")]),
    ];
    let mut worker = world.centre.worker().await.unwrap();
    let outcomes = worker.call(calls, NOW_MS).await.unwrap();
    let rows: Vec<usize> = outcomes
        .iter()
        .map(|outcome| match outcome {
            CallOutcome::Answer(answer) => answer.rows.len(),
            CallOutcome::NotAllowed => 9,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(rows, [1, 1, 0, 9]);
}

fn call(procedure: &Arc<CallableProcedure>, claims: UserClaims) -> ProcedureCall {
    ProcedureCall {
        procedure: procedure.clone(),
        caller: Caller {
            user: "nancy".into(),
            remote_id: None,
        },
        claims,
        arguments: Vec::new(),
        once: None,
        timeout: Duration::from_secs(600),
        max_bytes: 1 << 20,
        sink: None,
        cancel: Cancel::default(),
    }
}
