//! The program that judges claims: it refuses those that say so, and is there as long as the market.

use std::rc::Rc;
use std::time::Duration;

use prost::Message as _;
use serde_json::{Value as Json, json};
use tokio::time::{Instant, sleep};

use tidewater_protocol::message::{Answer, Argument, ArgumentValue, Call, CallKind, Proof};
use tidewater_protocol::{ColumnType, Datum};
use tidewater_remote::session::{Now, SignInRequest};

use super::Market;
use super::scenario::{DENIED, JUDGED, OFFICE};
use crate::calendar::BEGIN_MS;
use crate::failure::SimulationFailure;
use crate::line::{ServerLine, ServerMessage};
use crate::network::Weather;
use crate::random::SeededRandom;
use crate::users::PASSWORD;

/// How often it looks whether the market is over, and whether it is asked.
const GLANCE: Duration = Duration::from_secs(2);

/// Why a claim is refused.
pub(super) const REASON: &str = "not so";

/// Whether a claim is refused, by what it says.
pub(super) fn refuses(text: &str) -> bool {
    text.starts_with(DENIED)
}

/// Provides at one server's place as long as the market lasts, over one connection after the other.
pub(super) async fn provide(
    market: &Rc<Market>,
    place: usize,
    mut random: SeededRandom,
) -> Result<(), SimulationFailure> {
    while !market.is_over.get() {
        serve(market, place, &mut random).await;
        sleep(Duration::from_millis(random.between(200, 1_000))).await;
    }
    Ok(())
}

/// As long as the connection lasts.
async fn serve(market: &Rc<Market>, place: usize, random: &mut SeededRandom) {
    let site = &market.site;
    let stream = site.dial_at(place, Weather::fine(random.fork()));
    let began = site.began;
    let now = || {
        let elapsed = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        Now {
            ticks_ms: elapsed,
            unix_ms: BEGIN_MS + i64::try_from(elapsed).unwrap_or(i64::MAX),
        }
    };
    let mut line = ServerLine::new(stream, false, now());
    let proof = Proof::Password(PASSWORD.into());
    let signed_in = line
        .connection
        .sign_in(SignInRequest::for_program(OFFICE, proof));
    signed_in.expect("the password is short");
    let mut is_provided = false;
    while !market.is_over.get() && !line.connection.has_ended() {
        let until = Instant::now() + GLANCE;
        if let Err(error) = line.turn(began, &now, Some(until)).await {
            line.connection.handle_end(error);
        }
        line.listen();
        if line.connection.is_open() && !is_provided {
            is_provided = true;
            let call = Call {
                procedure: "tidewater.provide".into(),
                arguments: vec![Argument::new("name", ArgumentValue::from(JUDGED))],
                ..Call::default()
            };
            line.say(1, CallKind::Call, call.encode_to_vec(), None);
        }
        while let Some(said) = line.said.pop_front() {
            if let ServerMessage::Call { id, call } = said
                && call.procedure == JUDGED
            {
                let answer = judge(&call);
                line.say(id, CallKind::Answer, answer.encode_to_vec(), None);
            }
        }
    }
    line.hang_up().await;
}

/// Judges what it is asked.
fn judge(call: &Call) -> Answer {
    let argument = call.arguments.first().and_then(|it| it.given.as_ref());
    let request = match argument {
        Some(ArgumentValue::Text(request) | ArgumentValue::Json(request)) => request.as_str(),
        _ => "",
    };
    let request: Json = serde_json::from_str(request).unwrap_or_default();
    let rows = request["rows"].as_array().into_iter().flatten();
    let rows = rows.map(|row| {
        let key = &row["idempotency_key"];
        match refuses(row["new"]["text"].as_str().unwrap_or_default()) {
            true => json!({ "idempotency_key": key, "verdict": "refuse", "reason": REASON }),
            false => json!({ "idempotency_key": key, "verdict": "apply" }),
        }
    });
    let rows: Vec<Json> = rows.collect();
    let answer = json!({ "rows": rows }).to_string();
    Answer::value(ColumnType::Json, &Datum::Text(&answer))
}
