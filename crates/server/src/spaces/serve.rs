//! The channel of events: what the other side publishes comes in, what it subscribed to goes out.

use std::convert::Infallible;

use bytes::{Bytes, BytesMut};

use tidewater_connection::Incoming;
use tidewater_protocol::event::EventError;

use super::member::Member;
use super::pieces::Pieces;
use super::refusal::Refusal;
use crate::fault::Fault;
use crate::wire::Channel;

/// Shorter slices are joined before they are sent, up to so many bytes.
const JOINED_BYTES: usize = 64 << 10;

/// A slice that is not joined.
const LONG_BYTES: usize = 16 << 10;

/// The beginning of an event that needs no reservation of memory.
const FREE_BYTES: usize = 16 << 10;

/// Serves the channel until the connection ends.
///
/// # Errors
/// Always: why it ended.
pub(crate) async fn run(member: &Member, channel: Channel<'_>) -> Result<Infallible, Fault> {
    tokio::select! {
        biased;
        ended = take(member, channel) => ended,
        ended = give(member, channel) => ended,
    }
}

async fn take(member: &Member, channel: Channel<'_>) -> Result<Infallible, Fault> {
    let mut pieces = Pieces::default();
    let mut reservation = channel.budget().empty();
    loop {
        // What is produced is the other half's, which flushes it.
        let Incoming::Rows(bytes) = channel.incoming_without_flush().await? else {
            return Err(Fault::unexpected("something else than events"));
        };
        let credit = bytes.len();
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

async fn give(member: &Member, channel: Channel<'_>) -> Result<Infallible, Fault> {
    let mut joined = BytesMut::new();
    loop {
        match member.try_next()? {
            Some(slice) if slice.len() < LONG_BYTES => {
                joined.extend_from_slice(&slice);
                if joined.len() >= JOINED_BYTES {
                    send(channel, joined.split().freeze()).await;
                }
            }
            Some(slice) => {
                send(channel, joined.split().freeze()).await;
                send(channel, slice).await;
            }
            None => {
                send(channel, std::mem::take(&mut joined).freeze()).await;
                channel.flush();
                member.ready().await;
            }
        }
    }
}

/// Sends as credit and network allow, for as long as it takes: what waits for a slow receiver is
/// bounded, and a silent one is pinged.
async fn send(channel: Channel<'_>, mut events: Bytes) {
    while !events.is_empty() {
        if !channel.send_some(&mut events) {
            channel.progress().await;
        }
    }
}

impl From<EventError> for Fault {
    fn from(error: EventError) -> Fault {
        Fault::peer(error.code(), error.to_string())
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Fault {
        Fault::new(refusal.code(), refusal.to_string(), refusal.hint())
    }
}
