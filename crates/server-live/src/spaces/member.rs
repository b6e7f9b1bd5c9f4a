//! One connection's part in the spaces.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use tidewater_protocol::event::EventError;

use super::hub::{Hub, PublishOutcome, Routes};
use super::inbox::{Notice, Peer};
use super::refusal::{Refusal, User};

/// A connection that has joined; dropped, it is gone, with its subscriptions and all that waits
/// for it.
pub struct SpaceMember {
    hub: Arc<Hub>,
    peer: Arc<Peer>,
    routes: Mutex<Routes>,
}

impl SpaceMember {
    /// A connection of a user joins.
    pub fn join(hub: &Arc<Hub>, user: &str) -> SpaceMember {
        SpaceMember {
            hub: hub.clone(),
            peer: hub.enter(user),
            routes: Mutex::default(),
        }
    }

    pub(crate) fn parts(&self) -> (&Arc<Hub>, &Arc<Peer>) {
        (&self.hub, &self.peer)
    }

    /// Who it is.
    pub fn user(&self) -> &User {
        &self.peer.user
    }

    /// The size of the largest event that it may publish.
    pub fn event_bytes(&self) -> usize {
        self.hub.event_bytes
    }

    /// Subscribes to a pattern of a space, without its name: from now on its events wait here.
    ///
    /// # Errors
    /// There is no such space, it is no pattern, or this user may not.
    #[cfg(test)]
    pub fn subscribe(&self, space: &str, pattern: &str) -> Result<(), Refusal> {
        self.hub.subscribe(&self.peer, space, pattern)
    }

    /// Takes a subscription away; whether there was one. Events that wait stay.
    ///
    /// # Errors
    /// It is no pattern.
    pub fn unsubscribe(&self, space: &str, pattern: &str) -> Result<bool, Refusal> {
        self.hub.unsubscribe(&self.peer, space, pattern)
    }

    /// Passes the whole events at the beginning of a chunk on to all who subscribed, but not to
    /// this connection itself. What this user may not publish is left out and counted.
    ///
    /// # Errors
    /// What is there cannot be an event; those before it were passed on.
    pub fn publish(&self, chunk: &Bytes) -> Result<PublishOutcome, EventError> {
        let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        let published = self.hub.publish(Some(&self.peer), &mut routes, chunk)?;
        self.hub.counts.published(published.events);
        Ok(published)
    }

    /// The next slice of packed events, if any wait.
    ///
    /// # Errors
    /// The connection was too slow and is to be cut off.
    pub fn try_next(&self) -> Result<Option<Bytes>, Refusal> {
        self.peer.pop(&self.hub.waiting)
    }

    /// Ends when [`Self::try_next`] may have something. Safe to drop; one caller at a time.
    pub async fn ready(&self) {
        self.peer.ready().await;
    }

    /// The next slice of packed events. Safe to drop; one caller at a time.
    ///
    /// # Errors
    /// The connection was too slow and is to be cut off.
    pub async fn next(&self) -> Result<Bytes, Refusal> {
        loop {
            if let Some(slice) = self.try_next()? {
                return Ok(slice);
            }
            self.ready().await;
        }
    }

    /// The next thing that the other side is to be told beside events. Safe to drop; one caller
    /// at a time.
    pub async fn notice(&self) -> Notice {
        self.peer.notice().await
    }
}

impl Drop for SpaceMember {
    fn drop(&mut self) {
        self.hub.leave(&self.peer);
    }
}
