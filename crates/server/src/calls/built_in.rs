//! The procedures that every server has.

use std::sync::Arc;

use tidewater_protocol::message::{Answer, Argument, Call, CallFailed, Given};
use tidewater_protocol::{Code, ColumnType, Datum};

use super::post::{MAX_ANSWER_BYTES, Post};
use crate::registry::Stay;
use crate::server::Shared;
use crate::spaces::{Member, Refusal};

/// Names of procedures that begin so are the server's.
pub(crate) const PREFIX: &str = "tidewater.";

/// Gives back what it was given.
const ECHO: &str = "tidewater.echo";

/// A procedure is provided on this connection from now on, or no longer.
const PROVIDE: &str = "tidewater.provide";
const WITHDRAW: &str = "tidewater.withdraw";

/// The remote is told from now on when something has changed.
const LIVE: &str = "tidewater.live";

/// What the server says to live remotes when it shuts down.
pub(super) fn leaving() -> Call {
    Call {
        procedure: "tidewater.leaving".into(),
        ..Call::default()
    }
}

/// The connection gets the events of a pattern (`subject`) of a space from now on, or no longer.
const SUBSCRIBE: &str = "tidewater.subscribe";
const UNSUBSCRIBE: &str = "tidewater.unsubscribe";

/// Does a call of one of them, which takes no time.
pub(super) fn run(
    server: &Shared,
    post: &Arc<Post>,
    stay: &Stay<'_>,
    member: &Member,
    call: &Call,
) -> Result<Answer, CallFailed> {
    match call.procedure.as_str() {
        LIVE if post.who().remote_id.is_none() => Err(CallFailed::new(
            Code::NotAllowed,
            "a program without a file has nothing to sync",
            "subscribe to events instead",
        )),
        LIVE => {
            server.wakes.enter(stay.number(), post);
            Ok(Answer::nothing())
        }
        ECHO => Ok(echo(only(call, "value")?)),
        PROVIDE => {
            let name = text(call, "name")?;
            server.calls.provide(name, post).map(|()| Answer::nothing())
        }
        WITHDRAW => {
            server.calls.withdraw(text(call, "name")?, post);
            Ok(Answer::nothing())
        }
        SUBSCRIBE => {
            let [space, subject] = texts(call, ["space", "subject"])?;
            member.subscribe(space, subject)?;
            Ok(Answer::nothing())
        }
        UNSUBSCRIBE => {
            let [space, subject] = texts(call, ["space", "subject"])?;
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
pub(crate) fn over_http(call: &Call) -> Result<Answer, CallFailed> {
    match call.procedure.as_str() {
        ECHO => Ok(echo(only(call, "value")?)),
        name => Err(CallFailed::new(
            Code::NoSuchProcedure,
            format!("there is no procedure {name:?} over HTTP"),
            "see /openapi.json for what there is",
        )),
    }
}

fn echo(given: Option<&Given>) -> Answer {
    let (column_type, datum) = match given {
        None => (ColumnType::Text, Datum::Null),
        Some(Given::Boolean(boolean)) => (ColumnType::Boolean, Datum::Boolean(*boolean)),
        Some(Given::Integer(integer)) => (ColumnType::Integer, Datum::Integer(*integer)),
        Some(Given::Real(real)) => (ColumnType::Real, Datum::Real(*real)),
        Some(Given::Text(text)) => (ColumnType::Text, Datum::Text(text)),
        Some(Given::Bytes(bytes)) => (ColumnType::Bytes, Datum::Bytes(bytes)),
        Some(Given::Json(text)) => (ColumnType::Json, Datum::Text(text)),
    };
    Answer::value(column_type, &datum)
}

/// The value of the one argument.
fn only<'c>(call: &'c Call, name: &str) -> Result<Option<&'c Given>, CallFailed> {
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
        Some(Given::Text(text)) => Ok(text),
        _ => Err(CallFailed::argument(name, "is no text")),
    }
}

/// The values of these arguments, which are all that there are.
fn texts<'c, const N: usize>(call: &'c Call, names: [&str; N]) -> Result<[&'c str; N], CallFailed> {
    let unknown = |it: &&Argument| !names.contains(&it.name.as_str());
    if let Some(argument) = call.arguments.iter().find(unknown) {
        let what = "is not one of the procedure's";
        return Err(CallFailed::argument(&argument.name, what));
    }
    let mut values = [""; N];
    for (value, name) in values.iter_mut().zip(names) {
        let mut given = call.arguments.iter().filter(|it| it.name == name);
        *value = match (given.next().map(|it| &it.given), given.next()) {
            (None, _) => return Err(CallFailed::argument(name, "is missing")),
            (Some(Some(Given::Text(text))), None) => text,
            (Some(_), None) => return Err(CallFailed::argument(name, "is no text")),
            (Some(_), Some(_)) => return Err(CallFailed::argument(name, "is given twice")),
        };
    }
    Ok(values)
}

impl From<Refusal> for CallFailed {
    fn from(refusal: Refusal) -> CallFailed {
        CallFailed::new(refusal.code(), refusal.to_string(), refusal.hint())
    }
}

pub(super) fn too_large() -> CallFailed {
    CallFailed::new(
        Code::AnswerTooLarge,
        format!("the answer has more than {MAX_ANSWER_BYTES} bytes"),
        "ask for less at once; tables are for syncing",
    )
}
