//! Programs of the office: they sign in without a file, provide procedures, and call.

mod backend;
mod caller;
mod provider;

use std::rc::Rc;

use futures_util::future::try_join_all;

use tidewater_protocol::message::{Argument, ArgumentValue, Call, Proof};
use tidewater_remote::session::SignInRequest;

use crate::failure::SimulationFailure;
use crate::line::{CallEnd, ServerLine};
use crate::network::Weather;
use crate::random::SeededRandom;
use crate::users::OFFICE;
use crate::users::PASSWORD;
use crate::world::World;

pub(crate) use backend::{Backend, BackendVerdict, KINDS as HANDLING, eased, is_eased, says};
pub(crate) use caller::call;

/// Every kind of thing that happens to programs.
pub(crate) const KINDS: &[&str] = &[provider::DIED_BEFORE, provider::DIED_AFTER, caller::CALLED];

/// Provides, on every server, until everything is over.
pub(crate) async fn provide(
    world: &Rc<World>,
    mut random: SeededRandom,
) -> Result<(), SimulationFailure> {
    let places = 0..world.hosts.len() + 1;
    let providers = places.map(|place| provider::work(world, place, random.fork()));
    try_join_all(providers).await.map(drop)
}

/// A connection over which the program is in; `None` if it does not get there.
async fn sign_in(
    world: &Rc<World>,
    place: Option<usize>,
    weather: Weather,
) -> Result<Option<ServerLine>, SimulationFailure> {
    let last_is_lost = weather.last_is_lost;
    let stream = match place {
        Some(place) => world.dial_at(place, weather),
        None => world.dial(weather, &Rc::default()),
    };
    let now = || world.now();
    let mut line = ServerLine::new(stream, last_is_lost, now());
    let proof = Proof::Password(PASSWORD.into());
    let signed_in = line
        .connection
        .sign_in(SignInRequest::for_program(OFFICE, proof));
    signed_in.expect("the password is short");
    while !line.connection.is_open() {
        if line.connection.has_ended() {
            return Ok(None);
        }
        line.wait(world.began, &now, None).await;
    }
    Ok(Some(line))
}

/// A call with arguments that are text.
fn call_with(procedure: &str, arguments: &[(&str, &str)]) -> Call {
    let arguments = arguments.iter();
    let arguments = arguments.map(|(name, text)| Argument::new(*name, ArgumentValue::from(*text)));
    Call {
        procedure: procedure.into(),
        arguments: arguments.collect(),
        ..Call::default()
    }
}

async fn call_over(
    line: &mut ServerLine,
    world: &World,
    call: &Call,
) -> Result<CallEnd, SimulationFailure> {
    let now = || world.now();
    line.call(world.began, &now, call, None).await
}
