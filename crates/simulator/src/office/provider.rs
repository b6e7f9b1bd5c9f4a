//! A program that provides procedures, and now and then dies over a call.

use std::rc::Rc;
use std::time::Duration;

use prost::Message as _;
use tokio::time::{Instant, sleep};

use tidewater_protocol::message::{Answer, ArgumentValue, Call, CallFailed, CallKind};
use tidewater_protocol::{Code, ColumnType, Datum};

use super::{backend, call_over, call_with, sign_in};
use crate::application::{self, is_busy};
use crate::besides::JUDGED;
use crate::failure::SimulationFailure;
use crate::line::{CallEnd, ServerLine, ServerMessage};
use crate::network::Weather;
use crate::random::SeededRandom;
use crate::scenario::{FETCHED, REPEATED};
use crate::world::World;

pub(super) const DIED_BEFORE: &str = "provider died before it had done a call";
pub(super) const DIED_AFTER: &str = "provider died after it had done a call";

/// How often it looks whether everything is over.
const GLANCE: Duration = Duration::from_secs(5);

/// Longer than any server waits for a handler.
const DAWDLES: Duration = Duration::from_secs(6);

/// How often it tries to write where somebody else does.
const TRIES: usize = 5;

/// Provides as long as anything happens, over one connection after the other.
pub(super) async fn work(
    world: &Rc<World>,
    place: usize,
    mut random: SeededRandom,
) -> Result<(), SimulationFailure> {
    while !world.is_over() {
        let is_healed = world.is_healed();
        let weather = match is_healed {
            true => Weather::fine(random.fork()),
            // What it has answered once must not come as the answer to something else.
            false => Weather {
                replay_ms: None,
                ..Weather::any(&mut random, world.plan.faults / 2)
            },
        };
        let place = place % world.hosts.len();
        if let Some(line) = sign_in(world, Some(place), weather).await? {
            serve(world, line, is_healed, &mut random).await?;
        }
        sleep(Duration::from_millis(random.between(200, 2_000))).await;
    }
    Ok(())
}

/// As long as the connection and the program last; over a bad line no longer than there are any.
async fn serve(
    world: &Rc<World>,
    mut line: ServerLine,
    is_good: bool,
    random: &mut SeededRandom,
) -> Result<(), SimulationFailure> {
    let judged = world.plan.besides().is_judged.then_some(JUDGED);
    for name in [FETCHED, REPEATED].into_iter().chain(judged) {
        let provide = call_with("tidewater.provide", &[("name", name)]);
        if !matches!(
            call_over(&mut line, world, &provide).await?,
            CallEnd::Answered(_)
        ) {
            return Ok(());
        }
    }
    let now = || world.now();
    while !world.is_over() && line.connection.is_open() && world.is_healed() == is_good {
        let Some(said) = line.said.pop_front() else {
            let until = Instant::now() + GLANCE;
            line.wait(world.began, &now, Some(until)).await;
            continue;
        };
        let ServerMessage::Call { id, call } = said else {
            continue;
        };
        if call.procedure.starts_with("tidewater.") {
            continue;
        }
        if call.procedure == JUDGED && backend::dawdles(&world.chronicle, may_fail(world), random) {
            sleep(DAWDLES).await;
        }
        let may_die = world.plan.accidents > 0 && !world.is_healed();
        let restorations = world.restorations.get();
        sleep(Duration::from_millis(random.below(1_500))).await;
        if may_die && random.percent(10) {
            world.chronicle.fault(DIED_BEFORE);
            return Ok(());
        }
        line.listen();
        let mut said = line.said.iter();
        let is_cancelled =
            said.any(|it| matches!(it, ServerMessage::Cancel { id: it } if *it == id));
        // In a centre that has become another, nobody knows of the call.
        if is_cancelled || world.restorations.get() != restorations {
            continue;
        }
        let done = match call.procedure == JUDGED {
            true => judge(world, &call, random)?,
            false => perform(world, &call).await?.then(Answer::nothing),
        };
        if may_die && random.percent(10) {
            world.chronicle.fault(DIED_AFTER);
            return Ok(());
        }
        match done {
            Some(answer) => line.say(id, CallKind::Answer, answer.encode_to_vec(), None),
            None => {
                let failed = CallFailed::new(Code::ProcedureFailed, "somebody else writes", "");
                line.say(id, CallKind::Failed, failed.encode_to_vec(), None);
            }
        }
    }
    line.hang_up().await;
    Ok(())
}

/// Has the backend judge what it is asked.
fn judge(
    world: &World,
    call: &Call,
    random: &mut SeededRandom,
) -> Result<Option<Answer>, SimulationFailure> {
    let argument = call.arguments.first().and_then(|it| it.given.as_ref());
    let Some(ArgumentValue::Text(request) | ArgumentValue::Json(request)) = argument else {
        return Err(SimulationFailure(
            "a handler is asked without a request".into(),
        ));
    };
    let answer = backend::judge(
        &mut world.backend.borrow_mut(),
        request,
        (&world.chronicle, may_fail(world)),
        random,
    );
    Ok(Some(Answer::value(ColumnType::Json, &Datum::Text(&answer))))
}

/// Leaves the call's trace in the centre; whether it could.
async fn perform(world: &World, call: &Call) -> Result<bool, SimulationFailure> {
    let argument = call.arguments.first().and_then(|it| it.given.as_ref());
    let Some(ArgumentValue::Text(token)) = argument else {
        return Err(SimulationFailure(
            "a provider is asked without arguments".into(),
        ));
    };
    let restorations = world.restorations.get();
    for _ in 0..TRIES {
        let sql = "INSERT INTO called (procedure, token, login, audited)
                   SELECT ?1, ?2, ?3, coalesce(max(at), 0) FROM audit";
        let centre = application::open(&world.centre_path())?;
        match centre.execute(sql, (&call.procedure, token, &call.user)) {
            Ok(_) => return Ok(true),
            Err(error) if is_busy(&error) => {}
            Err(error) => return Err(error.into()),
        }
        drop(centre);
        sleep(Duration::from_millis(300)).await;
        if world.restorations.get() != restorations {
            break;
        }
    }
    Ok(false)
}

/// Whether the backend may answer otherwise than it should.
fn may_fail(world: &World) -> bool {
    !world.is_healed() && world.plan.faults > 0
}
