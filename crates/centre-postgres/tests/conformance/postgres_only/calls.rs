//! What a failure of PostgreSQL means for a call.

use tidewater_centre::{CallOutcome, CentreError, Returns};
use tidewater_centre_conformance::procedures::{call, procedures, spec, world};
use tidewater_centre_conformance::world::NOW_MS;
use tidewater_protocol::Value;

use crate::fixture::PostgresFixture;

#[tokio::test]
async fn a_call_that_the_database_has_no_room_for_may_succeed_later() {
    let world = world::<PostgresFixture>().await;
    world
        .execute(
            "CREATE FUNCTION raise(state text) RETURNS integer LANGUAGE plpgsql AS $$
             BEGIN RAISE EXCEPTION 'it says %', state USING ERRCODE = state; END $$",
        )
        .await;
    let sql = "SELECT raise({a.t})";
    let [raise] = procedures(&world, [spec("raise", sql, &["t"], Returns::Value)]).await;
    // Each on a connection of its own: whoever hears that the database is away takes another.
    for state in ["53100", "53200", "58030"] {
        let mut worker = world.worker().await;
        let calls = vec![call(&raise, &[Value::Text(state.into())])];
        let error = worker.call(calls, NOW_MS).await.unwrap_err();
        assert!(
            matches!(&error, CentreError::Unavailable { message } if message.contains(state)),
            "{error}"
        );
    }
    let mut worker = world.worker().await;
    let calls = vec![call(&raise, &[Value::Text("54001".into())])];
    let outcomes = worker.call(calls, NOW_MS).await.unwrap();
    assert!(
        matches!(&outcomes[..], [CallOutcome::Failed { code, .. }] if code == "54001"),
        "{outcomes:?}"
    );
}
