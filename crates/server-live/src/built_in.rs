//! The procedures that every server has.

use std::sync::Arc;
use std::time::Duration;

use tidewater_protocol::event::EventPosition;
use tidewater_protocol::message::{Answer, Argument, ArgumentValue, Call, CallFailed};
use tidewater_protocol::{Code, ColumnType, Datum};

use crate::calls::{self, Calls};
use crate::event_requests::{After, EventRequests, PUBLISH};
use crate::outgoing_calls::OutgoingCalls;
use crate::spaces::{Refusal, SpaceMember, User};
use crate::wake::Wakes;
use tidewater_centre::Caller;
use tidewater_server_identity::registry::Registration;

/// Gives back what it was given.
const ECHO: &str = "tidewater.echo";

/// A procedure is provided on this connection from now on, or no longer.
const PROVIDE: &str = "tidewater.provide";
const WITHDRAW: &str = "tidewater.withdraw";

/// The remote is told from now on when something has changed.
const LIVE: &str = "tidewater.live";

/// What the server says to live remotes when it shuts down: where to go, and after which pause.
pub(crate) fn leaving(servers: &[String], pause: Duration) -> Call {
    let pause = i64::try_from(pause.as_millis()).unwrap_or(i64::MAX);
    Call {
        procedure: "tidewater.leaving".into(),
        arguments: vec![
            Argument::new("servers", ArgumentValue::from(servers.join(" "))),
            Argument::new("pause_ms", ArgumentValue::from(pause)),
        ],
        ..Call::default()
    }
}

/// The connection gets the events of a pattern (`subject`) of a space from now on, or no longer. Of a
/// durable space, it may say `after` what: a position, or "first" for all that is kept.
const SUBSCRIBE: &str = "tidewater.subscribe";
const UNSUBSCRIBE: &str = "tidewater.unsubscribe";

/// What is kept of a pattern of a durable space is read, from behind a position.
const EVENTS: &str = "tidewater.events";

/// Whether one of them may have to wait for the centre.
pub(crate) fn waits(call: &Call) -> bool {
    matches!(call.procedure.as_str(), SUBSCRIBE | PUBLISH | EVENTS)
}

/// Does a call that may have to wait for the centre.
pub async fn run_waiting(
    events: &EventRequests,
    member: &SpaceMember,
    caller: &Caller,
    call: &Call,
) -> Result<Answer, CallFailed> {
    match call.procedure.as_str() {
        SUBSCRIBE => {
            let [space, subject, after] = given(call, ["space", "subject", "after"])?;
            let (space, subject) = (as_text("space", space)?, as_text("subject", subject)?);
            let after = as_after(after)?;
            let at = events
                .subscribe(member, caller, space, subject, after)
                .await?;
            Ok(of_position(at))
        }
        _ => of_events(events, member.user(), caller, call).await,
    }
}

/// Publishes, or reads what is kept.
async fn of_events(
    requests: &EventRequests,
    user: &User,
    caller: &Caller,
    call: &Call,
) -> Result<Answer, CallFailed> {
    if call.procedure == PUBLISH {
        let [space, events] = given(call, ["space", "events"])?;
        let space = as_text("space", space)?;
        let Some(ArgumentValue::Bytes(events)) = events else {
            return Err(CallFailed::argument("events", "is not packed events"));
        };
        let key = calls::key(call)?;
        let at = requests.publish(user, caller, space, events, key).await?;
        return Ok(of_position(at));
    }
    let [space, subject, after, limit] = given(call, ["space", "subject", "after", "limit"])?;
    let pattern = (as_text("space", space)?, as_text("subject", subject)?);
    let after = as_after(after)?.unwrap_or(After::Beginning);
    let limit = match limit {
        None => None,
        Some(ArgumentValue::Integer(limit)) if *limit > 0 => Some(limit.unsigned_abs()),
        Some(_) => return Err(CallFailed::argument("limit", "is no number of events")),
    };
    requests.events(user, caller, pattern, after, limit).await
}

/// Does a call of one of the others, which takes no time.
pub(crate) fn run(
    (calls, wakes): (&Calls, &Wakes),
    post: &Arc<OutgoingCalls>,
    stay: &Registration<'_>,
    member: &SpaceMember,
    call: &Call,
) -> Result<Answer, CallFailed> {
    match call.procedure.as_str() {
        LIVE if post.who().remote_id.is_none() => Err(CallFailed::new(
            Code::NotAllowed,
            "a program without a file has nothing to sync",
            "subscribe to events instead",
        )),
        LIVE => {
            wakes.enter(stay.number(), post);
            Ok(Answer::nothing())
        }
        ECHO => Ok(echo(only(call, "value")?)),
        PROVIDE => {
            let name = text(call, "name")?;
            calls.provide(name, post).map(|()| Answer::nothing())
        }
        WITHDRAW => {
            calls.withdraw(text(call, "name")?, post);
            Ok(Answer::nothing())
        }
        UNSUBSCRIBE => {
            let [space, subject] = given(call, ["space", "subject"])?;
            let (space, subject) = (as_text("space", space)?, as_text("subject", subject)?);
            member.unsubscribe(space, subject)?;
            Ok(Answer::nothing())
        }
        name => Err(CallFailed::new(
            Code::NoSuchProcedure,
            format!("the server has no procedure {name:?}"),
            "update the older of the two, the server or who calls it",
        )),
    }
}

/// Does a call that comes alone, without a connection of its own.
pub fn over_http(call: &Call) -> Result<Answer, CallFailed> {
    match call.procedure.as_str() {
        ECHO => Ok(echo(only(call, "value")?)),
        name => Err(CallFailed::new(
            Code::NoSuchProcedure,
            format!("there is no procedure {name:?} over HTTP"),
            "see /openapi.json for what there is",
        )),
    }
}

fn echo(given: Option<&ArgumentValue>) -> Answer {
    let (column_type, datum) = match given {
        None => (ColumnType::Text, Datum::Null),
        Some(ArgumentValue::Boolean(boolean)) => (ColumnType::Boolean, Datum::Boolean(*boolean)),
        Some(ArgumentValue::Integer(integer)) => (ColumnType::Integer, Datum::Integer(*integer)),
        Some(ArgumentValue::Real(real)) => (ColumnType::Real, Datum::Real(*real)),
        Some(ArgumentValue::Text(text)) => (ColumnType::Text, Datum::Text(text)),
        Some(ArgumentValue::Bytes(bytes)) => (ColumnType::Bytes, Datum::Bytes(bytes)),
        Some(ArgumentValue::Json(text)) => (ColumnType::Json, Datum::Text(text)),
    };
    Answer::value(column_type, &datum)
}

/// The value of the one argument.
fn only<'c>(call: &'c Call, name: &str) -> Result<Option<&'c ArgumentValue>, CallFailed> {
    match &call.arguments[..] {
        [Argument { name: one, given }] if one == name => Ok(given.as_ref()),
        [] => Err(CallFailed::argument(name, "is missing")),
        [one] => Err(CallFailed::argument(
            &one.name,
            "is not one of the procedure's",
        )),
        [_, other, ..] => Err(CallFailed::argument(
            &other.name,
            "is one too many: the procedure takes one",
        )),
    }
}

fn text<'c>(call: &'c Call, name: &str) -> Result<&'c str, CallFailed> {
    match only(call, name)? {
        Some(ArgumentValue::Text(text)) => Ok(text),
        _ => Err(CallFailed::argument(name, "is no text")),
    }
}

/// The values of these arguments, which are all that there may be.
fn given<'c, const N: usize>(
    call: &'c Call,
    names: [&str; N],
) -> Result<[Option<&'c ArgumentValue>; N], CallFailed> {
    let mut values = [None; N];
    let mut seen = [false; N];
    for argument in &call.arguments {
        let name = &argument.name;
        let Some(place) = names.iter().position(|it| it == name) else {
            return Err(CallFailed::argument(name, "is not one of the procedure's"));
        };
        if std::mem::replace(&mut seen[place], true) {
            return Err(CallFailed::argument(name, "is given twice"));
        }
        values[place] = argument.given.as_ref();
    }
    Ok(values)
}

fn as_text<'c>(name: &str, given: Option<&'c ArgumentValue>) -> Result<&'c str, CallFailed> {
    match given {
        None => Err(CallFailed::argument(name, "is missing")),
        Some(ArgumentValue::Text(text)) => Ok(text),
        Some(_) => Err(CallFailed::argument(name, "is no text")),
    }
}

fn as_after(given: Option<&ArgumentValue>) -> Result<Option<After>, CallFailed> {
    let after = match given {
        None => return Ok(None),
        Some(ArgumentValue::Text(text)) if text == "first" => Some(After::Beginning),
        Some(ArgumentValue::Bytes(bytes)) => EventPosition::from_bytes(bytes).map(After::Position),
        Some(_) => None,
    };
    after.map(Some).ok_or_else(|| {
        CallFailed::argument(
            "after",
            "is no position: 16 bytes as an event brings them, or \"first\"",
        )
    })
}

fn of_position(position: Option<EventPosition>) -> Answer {
    match position {
        None => Answer::nothing(),
        Some(position) => Answer::value(ColumnType::Bytes, &Datum::Bytes(&position.to_bytes())),
    }
}

impl From<Refusal> for CallFailed {
    fn from(refusal: Refusal) -> CallFailed {
        CallFailed::new(refusal.code(), refusal.to_string(), refusal.hint())
    }
}
