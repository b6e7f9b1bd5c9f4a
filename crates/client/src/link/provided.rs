//! What the program does for others on a link: providing, and answering.

use std::sync::Arc;

use prost::Message as _;

use tidewater_protocol::Code;
use tidewater_protocol::frame::Message;
use tidewater_protocol::message::{Answer, CallFailed, CallKind};

use super::Link;
use super::state::SharedLink;
use crate::provider::{Handler, ProvidedCall, Reply};
use crate::request::{CallError, Request};

impl Link {
    /// Provides a procedure as long as the connection lasts. `handler` may run several times at
    /// once.
    ///
    /// # Errors
    /// The server has no such procedure, or somebody else is to provide it.
    pub fn provide(
        &self,
        name: &str,
        handler: impl Fn(&ProvidedCall) -> Result<Answer, CallFailed> + Send + Sync + 'static,
    ) -> Result<(), CallError> {
        self.provide_with(name, Arc::new(handler))
    }

    pub(super) fn provide_with(&self, name: &str, handler: Handler) -> Result<(), CallError> {
        self.shared.providers.add(name, handler);
        let provide = Request::new("tidewater.provide").with("name", Some(name.into()));
        self.call(&provide).map(|_| ()).inspect_err(|_| {
            self.shared.providers.remove(name);
        })
    }

    /// Provides a procedure no longer. What was begun is finished.
    ///
    /// # Errors
    /// There is no connection any more.
    pub fn withdraw(&self, name: &str) -> Result<(), CallError> {
        let withdraw = Request::new("tidewater.withdraw").with("name", Some(name.into()));
        let withdrawn = self.call(&withdraw).map(|_| ());
        self.shared.providers.remove(name);
        withdrawn
    }
}

impl SharedLink {
    /// Where a provider's answer to a call of the server's goes, as long as the link is there.
    pub(super) fn reply(self: &Arc<Self>, id: u64) -> Reply {
        let link = Arc::downgrade(self);
        Box::new(move |outcome| {
            if let Some(link) = link.upgrade() {
                link.answer(id, outcome);
            }
        })
    }

    /// Sends what came of a call of the server's.
    fn answer(self: &Arc<Self>, id: u64, outcome: Result<Answer, CallFailed>) {
        let mut state = self.state();
        let (kind, payload) = match &outcome {
            Ok(answer) => (CallKind::Answer, answer.encode_to_vec()),
            Err(failed) => (CallKind::Failed, failed.encode_to_vec()),
        };
        let message = |kind: CallKind, payload: Vec<u8>| Message {
            id,
            deadline_ms: 0,
            flags: kind as u8,
            payload: payload.into(),
        };
        if state.send(message(kind, payload)).is_err() {
            let failed = CallFailed::new(
                Code::AnswerTooLarge,
                "the provider's answer is larger than a message can be",
                "have it answer with less",
            );
            let _ = state.send(message(CallKind::Failed, failed.encode_to_vec()));
        }
        self.flush(state);
    }
}
