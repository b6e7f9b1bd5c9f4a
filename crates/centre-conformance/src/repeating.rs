//! Calls under a key, which take effect once.

use tidewater_centre::records::RetentionTimes;
use tidewater_centre::{Caller, OnceKeyState, ProcedureCall, Returns, Worker};

use crate::fixture::Fixture;
use crate::procedures::{call, failed, integer, procedures, run, run_one, spec, under, world};
use crate::remote::fresh_id;
use crate::world::NOW_MS;

pub async fn a_call_under_a_key_takes_effect_once<F: Fixture>() {
    let world = world::<F>().await;
    let sell = "UPDATE item SET stock = stock - {a.count} WHERE id = {a.item} RETURNING stock";
    let [sell] = procedures(
        &world,
        [spec("sell", sell, &["item", "count"], Returns::Value)],
    )
    .await;
    let mut worker = world.worker().await;
    let (first, other) = (fresh_id(), fresh_id());
    let of_item = |item, count| call(&sell, &[integer(item), integer(count)]);
    // The answer of the first one is lost on the way.
    worker
        .call(vec![under(first, of_item(1, 3))], NOW_MS)
        .await
        .unwrap();
    let mut another = world.worker().await;
    let calls = vec![
        under(first, of_item(1, 3)),
        under(other, of_item(1, 3)),
        under(first, of_item(1, 3)),
    ];
    assert_eq!(run(&mut *another, calls).await, ["7", "4", "7"]);
    // A failure is an outcome like others, also when the same would succeed by now.
    let (failing, shapeless) = (fresh_id(), fresh_id());
    let check = failed(false, F::DIALECT);
    let calls = || {
        vec![
            under(failing, of_item(1, 5)),
            under(shapeless, of_item(7, 1)),
        ]
    };
    let told = [&*check, ""];
    assert_eq!(run(&mut *another, calls()).await, told);
    world
        .execute("UPDATE item SET stock = 50 WHERE id = 1")
        .await;
    world
        .execute("INSERT INTO item VALUES (7, 'milk', 1, 9)")
        .await;
    assert_eq!(run(&mut *worker, calls()).await, told);
    // Another user has keys of her own.
    let of_berta = ProcedureCall {
        caller: Caller {
            user: "berta".into(),
            remote_id: None,
        },
        ..under(first, of_item(1, 1))
    };
    assert_eq!(run_one(&mut *worker, of_berta).await, "49");
}

pub async fn of_one_call_at_two_connections_one_takes_effect<F: Fixture>() {
    let world = world::<F>().await;
    let sell = "UPDATE item SET stock = stock - 1 WHERE id = 1 RETURNING stock";
    let [sell] = procedures(&world, [spec("sell", sell, &[], Returns::Value)]).await;
    let (mut one, mut other) = (world.worker().await, world.worker().await);
    for round in 0..10 {
        let key = fresh_id();
        let calls = || vec![under(key, call(&sell, &[]))];
        let told = tokio::join!(run(&mut *one, calls()), run(&mut *other, calls()));
        let expected = vec![(9 - round).to_string()];
        assert_eq!(told, (expected.clone(), expected));
    }
}

pub async fn what_programs_do_once_is_begun_and_finished_once<F: Fixture>() {
    let world = world::<F>().await;
    let mut worker = world.worker().await;
    let key = fresh_id();
    let begun = worker.begin_once("anna", key, "price", NOW_MS).await;
    assert_eq!(begun.unwrap(), OnceKeyState::New);
    let begun = worker.begin_once("anna", key, "price", NOW_MS + 1).await;
    assert_eq!(
        begun.unwrap(),
        OnceKeyState::Unfinished { begun_ms: NOW_MS }
    );
    worker.forget_once("anna", key).await.unwrap();
    let begun = worker.begin_once("anna", key, "price", NOW_MS).await;
    assert_eq!(begun.unwrap(), OnceKeyState::New);
    worker
        .finish_once("anna", key, b"done".to_vec())
        .await
        .unwrap();
    worker
        .finish_once("anna", key, b"again".to_vec())
        .await
        .unwrap();
    let mut another = world.worker().await;
    another.forget_once("anna", key).await.unwrap();
    let begun = another.begin_once("anna", key, "price", NOW_MS).await;
    assert_eq!(begun.unwrap(), OnceKeyState::Done(b"done".to_vec()));
    let berta = another.begin_once("berta", key, "price", NOW_MS).await;
    assert_eq!(berta.unwrap(), OnceKeyState::New);
    // A key stands for one thing only.
    let sell = "UPDATE item SET stock = stock - 1 WHERE id = 1 RETURNING stock";
    let [sell] = procedures(&world, [spec("sell", sell, &[], Returns::Value)]).await;
    let told = run_one(&mut *worker, under(key, call(&sell, &[]))).await;
    assert_eq!(told, "key taken");
    let key = fresh_id();
    let told = run_one(&mut *worker, under(key, call(&sell, &[]))).await;
    assert_eq!(told, "9");
    let [give] = procedures(
        &world,
        [spec(
            "give",
            "UPDATE item SET stock = stock + 1 WHERE id = 1",
            &[],
            Returns::Nothing,
        )],
    )
    .await;
    let told = run_one(&mut *worker, under(key, call(&give, &[]))).await;
    assert_eq!(told, "key taken");
    let begun = worker.begin_once("anna", key, "price", NOW_MS).await;
    assert_eq!(begun.unwrap(), OnceKeyState::KeyTaken);
    let key = fresh_id();
    let begun = worker.begin_once("anna", key, "price", NOW_MS).await;
    assert_eq!(begun.unwrap(), OnceKeyState::New);
    let begun = worker.begin_once("anna", key, "label", NOW_MS).await;
    assert_eq!(begun.unwrap(), OnceKeyState::KeyTaken);
}

/// Whoever finds a key taken, and looks at what is known of it when it was given back meanwhile.
pub async fn a_key_that_is_given_back_is_free_at_once<F: Fixture>() {
    let world = world::<F>().await;
    let (mut one, mut other) = (world.worker().await, world.worker().await);
    let key = fresh_id();
    let begin_often = async |worker: &mut dyn Worker| {
        for _ in 0..200 {
            match worker.begin_once("anna", key, "price", NOW_MS).await {
                Ok(OnceKeyState::New) => worker.forget_once("anna", key).await.unwrap(),
                begun => assert_eq!(
                    begun.unwrap(),
                    OnceKeyState::Unfinished { begun_ms: NOW_MS }
                ),
            }
        }
    };
    tokio::join!(begin_often(&mut *one), begin_often(&mut *other));
}

pub async fn keys_are_forgotten_in_time<F: Fixture>() {
    let world = world::<F>().await;
    let mut worker = world.worker().await;
    let (old, new) = (fresh_id(), fresh_id());
    let day_ms = 24 * 60 * 60 * 1000;
    worker
        .begin_once("anna", old, "price", NOW_MS - 2 * day_ms)
        .await
        .unwrap();
    worker
        .begin_once("anna", new, "price", NOW_MS)
        .await
        .unwrap();
    let retention = RetentionTimes {
        log_ms: day_ms,
        history_ms: day_ms,
        conflicts_ms: day_ms,
    };
    world.centre.prune(retention, NOW_MS).await.unwrap();
    let begun = worker
        .begin_once("anna", new, "price", NOW_MS)
        .await
        .unwrap();
    assert_eq!(begun, OnceKeyState::Unfinished { begun_ms: NOW_MS });
    let begun = worker
        .begin_once("anna", old, "price", NOW_MS)
        .await
        .unwrap();
    assert_eq!(begun, OnceKeyState::New);
}
