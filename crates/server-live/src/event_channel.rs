//! The channel of events: what the other side publishes comes in, what it subscribed to goes out.

use std::convert::Infallible;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::time::sleep;

use tidewater_connection::ChannelInput;
use tidewater_protocol::message::{Argument, ArgumentValue, Call};
use tidewater_spaces::EventPieces;

use crate::event_requests::EventRequests;
use crate::outgoing_calls::OutgoingCalls;
use crate::socket_loop::ConnectionChannel;
use crate::spaces::{Notice, Refusal, SpaceMember};
use tidewater_centre::Caller;
use tidewater_server_identity::registry::Registration;
use tidewater_server_jobs::fault::Fault;

/// Shorter slices are joined before they are sent, up to so many bytes.
const JOINED_BYTES: usize = 64 << 10;

/// A slice that is not joined.
const LONG_BYTES: usize = 16 << 10;

/// The beginning of an event that needs no reservation of memory.
const FREE_BYTES: usize = 16 << 10;

/// Serves the channel until it is dropped.
///
/// # Errors
/// What came is no event, or the connection was too slow.
pub async fn run(
    requests: &EventRequests,
    member: &SpaceMember,
    caller: &Caller,
    channel: ConnectionChannel<'_>,
    stay: &Registration<'_>,
) -> Result<Infallible, Fault> {
    serve(member, channel, stay, Some((requests, caller))).await
}

/// The same, where there may be nobody who can be asked who may publish.
pub(crate) async fn serve(
    member: &SpaceMember,
    channel: ConnectionChannel<'_>,
    stay: &Registration<'_>,
    asking: Option<(&EventRequests, &Caller)>,
) -> Result<Infallible, Fault> {
    tokio::select! {
        biased;
        ended = take(member, channel, stay, asking) => ended,
        ended = give(member, channel) => ended,
    }
}

async fn take(
    member: &SpaceMember,
    channel: ConnectionChannel<'_>,
    stay: &Registration<'_>,
    asking: Option<(&EventRequests, &Caller)>,
) -> Result<Infallible, Fault> {
    let mut asked = 0;
    let mut pieces = EventPieces::default();
    let mut reservation = channel.budget().empty();
    loop {
        // What is produced is the other half's, which flushes it. Why nothing more comes, the syncs
        // hear, too: theirs is the last word.
        let Ok(incoming) = channel.incoming_without_flush().await else {
            return std::future::pending().await;
        };
        let ChannelInput::Rows(bytes) = incoming else {
            return Err(Fault::unexpected("something else than events"));
        };
        stay.keep();
        let credit = bytes.len();
        let generation = member.parts().0.generation();
        if std::mem::replace(&mut asked, generation) != generation
            && let Some((requests, caller)) = asking
        {
            Box::pin(requests.ask_publisher(member, caller)).await;
        }
        let mut is_crowded = false;
        pieces.take(bytes, member.event_bytes(), |chunk| {
            let published = member.publish(chunk)?;
            is_crowded |= published.is_crowded;
            Ok::<usize, Fault>(published.consumed)
        })?;
        let needs = pieces.bytes().saturating_sub(FREE_BYTES) as u64;
        let reserved = reservation.bytes();
        if needs > reserved && !reservation.grow(needs - reserved) {
            return Err(Fault::busy(2_000));
        }
        reservation.shrink(reserved.saturating_sub(needs));
        channel.consumed(credit);
        if is_crowded {
            // Receivers whose turn it is go first: of what they take nothing has to be dropped.
            tokio::task::yield_now().await;
        }
    }
}

async fn give(member: &SpaceMember, channel: ConnectionChannel<'_>) -> Result<Infallible, Fault> {
    let mut joined = BytesMut::new();
    let mut owes = false;
    loop {
        match member.try_next()? {
            Some(slice) if slice.len() < LONG_BYTES => {
                joined.extend_from_slice(&slice);
                owes = true;
                if joined.len() >= JOINED_BYTES {
                    send(channel, joined.split().freeze()).await;
                }
            }
            Some(slice) => {
                send(channel, joined.split().freeze()).await;
                send(channel, slice).await;
                owes = true;
            }
            None => {
                // What others have produced is theirs to send.
                if std::mem::take(&mut owes) {
                    send(channel, std::mem::take(&mut joined).freeze()).await;
                    channel.flush();
                }
                member.ready().await;
            }
        }
    }
}

/// Sends as credit and network allow, for as long as it takes: what waits for a slow receiver is
/// bounded, and a silent one is pinged.
async fn send(channel: ConnectionChannel<'_>, mut events: Bytes) {
    while !events.is_empty() {
        if !channel.send_some(&mut events) {
            channel.progress().await;
        }
    }
}

/// How often the other side is told something beside its events.
const TELL_EVERY: Duration = Duration::from_millis(100);

/// Tells the other side what it missed, what was refused, and what it is not subscribed to any
/// more. Never ends.
pub async fn tell(member: &SpaceMember, post: &OutgoingCalls) {
    loop {
        // What comes of a kind meanwhile is counted together.
        while post.asked().is_none() {
            sleep(TELL_EVERY).await;
        }
        post.tell(&call_of(member.notice().await));
        sleep(TELL_EVERY).await;
    }
}

fn call_of(notice: Notice) -> Call {
    let count = |events: u64| i64::try_from(events).unwrap_or(i64::MAX);
    let (procedure, arguments) = match notice {
        Notice::Missed { space, events } => (
            "tidewater.missed",
            vec![
                Argument::new("space", ArgumentValue::from(space)),
                Argument::new("count", ArgumentValue::from(count(events))),
            ],
        ),
        Notice::Refused { events, refusal } => (
            "tidewater.refused",
            vec![
                Argument::new("count", ArgumentValue::from(count(events))),
                Argument::new(
                    "code",
                    ArgumentValue::from(i64::from(refusal.code().number())),
                ),
                Argument::new("message", ArgumentValue::from(refusal.to_string())),
                Argument::new("hint", ArgumentValue::from(refusal.hint())),
            ],
        ),
        Notice::History { space } => (
            "tidewater.history",
            vec![Argument::new("space", ArgumentValue::from(space))],
        ),
        Notice::Unsubscribed { pattern } => {
            let (space, subject) = pattern.split();
            (
                "tidewater.unsubscribed",
                vec![
                    Argument::new("space", ArgumentValue::from(space)),
                    Argument::new("subject", ArgumentValue::from(subject)),
                ],
            )
        }
    };
    Call {
        procedure: procedure.into(),
        arguments,
        ..Call::default()
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Fault {
        Fault::new(refusal.code(), refusal.to_string(), refusal.hint())
    }
}

#[cfg(test)]
mod tests;
