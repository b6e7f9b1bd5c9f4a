//! A program that calls and publishes, each thing under a key, until it is told what came of it.

use std::rc::Rc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::time::sleep;

use tidewater_protocol::Code;
use tidewater_protocol::event::put_event;
use tidewater_protocol::message::{Argument, ArgumentValue, Call};

use super::{call_over, call_with, sign_in};
use crate::application::{What, Wish, new_key};
use crate::failure::SimulationFailure;
use crate::line::CallEnd;
use crate::network::Weather;
use crate::random::SeededRandom;
use crate::scenario::FETCHED;
use crate::users::OFFICE;
use crate::world::World;

pub(super) const CALLED: &str = "call of a program answered";

/// Calls so many times, one thing after the other. What is done, by the tokens.
pub(crate) async fn call(
    world: &Rc<World>,
    mut random: SeededRandom,
    times: u64,
) -> Result<Vec<Wish>, SimulationFailure> {
    let mut done = Vec::new();
    for number in 1..=times {
        sleep(Duration::from_millis(random.below(6_000))).await;
        let token = format!("wish {OFFICE} {number}");
        let (mut call, what) = match random.below(3) {
            0 => (call_with("note", &[("token", &token)]), What::Call),
            1 => (call_with(FETCHED, &[("token", &token)]), What::Fetched),
            _ => (publish(&token), What::Event),
        };
        call.key = Bytes::copy_from_slice(&new_key(&mut random));
        if until_told(world, &call, &mut random).await? {
            world.chronicle.fault(CALLED);
            done.push(Wish {
                token,
                what,
                expires: false,
            });
        }
    }
    Ok(done)
}

fn publish(token: &str) -> Call {
    let mut events = BytesMut::new();
    let packed = put_event(&mut events, "field/all.news", None, token.as_bytes());
    debug_assert!(packed.is_ok(), "everything that is said here is short");
    let mut call = call_with("tidewater.publish", &[("space", "field")]);
    let events = ArgumentValue::Bytes(events.freeze());
    call.arguments.push(Argument::new("events", events));
    call
}

/// Whether it is done.
async fn until_told(
    world: &Rc<World>,
    call: &Call,
    random: &mut SeededRandom,
) -> Result<bool, SimulationFailure> {
    loop {
        let weather = Weather::any(random, world.plan.faults);
        if let Some(mut line) = sign_in(world, None, weather).await? {
            let called = call_over(&mut line, world, call).await?;
            line.hang_up().await;
            match called {
                CallEnd::Answered(_) => return Ok(true),
                CallEnd::Failed(failed) if !failed.code().is_some_and(Code::is_transient) => {
                    let note = format!("{OFFICE}: {} fails: {failed}", call.procedure);
                    world.chronicle.note(&note);
                    return Ok(false);
                }
                CallEnd::Failed(_) | CallEnd::Lost => {}
            }
        }
        sleep(Duration::from_millis(random.between(200, 3_000))).await;
    }
}
