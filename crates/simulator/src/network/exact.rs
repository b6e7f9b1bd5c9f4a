//! A judge of what connections in requests carry: each byte arrives once, in its order, whatever
//! becomes of the requests, and a request that comes again has the same answer.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};

/// What a client has said, in all of its requests.
pub(super) type Spoken = Arc<Mutex<Vec<u8>>>;

/// What came of one connection at a server.
#[derive(Debug)]
pub(super) struct Exact {
    spoken: Spoken,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// How much has arrived of what the client has said.
    arrived: usize,
    /// What the server has said.
    said: Vec<u8>,
    /// How much of it the client has heard.
    heard: usize,
    /// What the server has answered to each request.
    answers: BTreeMap<u64, Bytes>,
    found: Option<String>,
}

impl Exact {
    pub(super) fn new(spoken: Spoken) -> Arc<Exact> {
        let state = Mutex::default();
        Arc::new(Exact { spoken, state })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn arrives(&self, piece: &[u8]) {
        let spoken = self.spoken.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.state();
        let at = state.arrived;
        if !spoken[at.min(spoken.len())..].starts_with(piece) {
            let length = piece.len();
            state.found.get_or_insert(format!(
                "I1: {length} bytes arrive in requests behind {at} that were not said there"
            ));
        }
        state.arrived += piece.len();
    }

    /// The client has heard more.
    pub(super) fn hears(&self, piece: &[u8]) {
        let mut state = self.state();
        let at = state.heard;
        if !state.said[at.min(state.said.len())..].starts_with(piece) {
            let length = piece.len();
            state.found.get_or_insert(format!(
                "I1: {length} bytes are heard in answers behind {at} that were not said there"
            ));
        }
        state.heard += piece.len();
    }

    /// The server answers a request, perhaps once more.
    pub(super) fn answers(&self, number: u64, body: &Bytes) {
        let mut state = self.state();
        let first = state.answers.entry(number).or_insert_with(|| body.clone());
        if first != body {
            state.found.get_or_insert(format!(
                "I1: request {number} is answered otherwise when it comes again"
            ));
        }
    }

    /// What is wrong.
    pub(super) fn found(&self) -> Option<String> {
        self.state().found.clone()
    }
}

/// The stream of a connection as its server has it.
pub(super) struct WatchedStream {
    pub(super) stream: DuplexStream,
    pub(super) exact: Arc<Exact>,
}

impl AsyncRead for WatchedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.exact.arrives(&buffer.filled()[before..]);
        read
    }
}

impl AsyncWrite for WatchedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(count)) = &written {
            self.exact.state().said.extend_from_slice(&bytes[..*count]);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
