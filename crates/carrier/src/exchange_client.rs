//! What a client of connections in numbered requests says and hears, without any line: which
//! request may go when, under which number, and what an answer must be.
//!
//! Owns the numbers, and the bytes that wait for a request or for their reader. Leaves lines, how
//! often a request is repeated, and time to [`crate::exchange_stream`], and to simulations. The
//! specification is docs/protocol.md.

use bytes::{Buf, Bytes, BytesMut};

/// So much a request carries, and an answer.
pub const MAX_BODY_BYTES: usize = 512 << 10;

/// What may wait until the connection above reads it.
const MAX_UNREAD_BYTES: usize = 2 << 20;

/// The client's side of one connection.
#[derive(Debug, Default)]
pub struct ExchangeClient {
    to_send: BytesMut,
    to_hand_over: BytesMut,
    session: Option<String>,
    last_number: u64,
    /// How many have no answer.
    under_way: u64,
    near_end: NearEnd,
    /// The server has said all.
    is_over: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum NearEnd {
    #[default]
    Open,
    /// Nothing more comes.
    Closed,
    /// And the server knows.
    Told,
}

/// What is to go to the server. Until it is answered it goes as often as need be, as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExchangeRequest {
    /// From 1.
    pub number: u64,
    /// The connection; `None`: this begins one.
    pub session: Option<String>,
    /// What the connection says.
    pub body: Bytes,
    /// Whether it says nothing more.
    pub ends: bool,
}

/// What a server has answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExchangeReply {
    /// The connection.
    pub session: String,
    /// Of the request.
    pub number: Option<u64>,
    /// What the connection says.
    pub body: Bytes,
    /// Whether it says nothing more.
    pub is_last: bool,
}

/// It is the answer to something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotTheAnswer;

impl ExchangeClient {
    /// Whether more can be taken that is to be sent.
    pub fn takes(&self) -> bool {
        self.near_end == NearEnd::Open && self.to_send.len() < MAX_BODY_BYTES
    }

    /// Takes what is to be sent.
    pub fn take(&mut self, bytes: &[u8]) {
        self.to_send.extend_from_slice(bytes);
    }

    /// Nothing more is to be sent.
    pub fn close(&mut self) {
        if self.near_end == NearEnd::Open {
            self.near_end = NearEnd::Closed;
        }
    }

    /// The name of the connection, once it has one.
    pub fn session(&self) -> Option<&str> {
        self.session.as_deref()
    }

    /// The next request that may go, if there is one.
    pub fn next_request(&mut self) -> Option<ExchangeRequest> {
        // Before the first answer nobody knows whose request another one would be.
        let most = if self.session.is_some() { 2 } else { 1 };
        let has_news = !self.to_send.is_empty() || self.near_end == NearEnd::Closed;
        let listens = self.under_way == 0 && self.session.is_some();
        let has_room = self.to_hand_over.len() < MAX_UNREAD_BYTES;
        if self.is_over || !(has_news || listens) || !has_room || self.under_way >= most {
            return None;
        }
        let length = self.to_send.len().min(MAX_BODY_BYTES);
        let body = self.to_send.split_to(length).freeze();
        let ends = self.near_end != NearEnd::Open && self.to_send.is_empty();
        if ends {
            self.near_end = NearEnd::Told;
        }
        self.last_number += 1;
        self.under_way += 1;
        Some(ExchangeRequest {
            number: self.last_number,
            session: self.session.clone(),
            body,
            ends,
        })
    }

    /// Hears the answer to the oldest request that has none.
    ///
    /// # Errors
    /// It is the answer to something else: the connection is lost.
    pub fn handle_reply(&mut self, reply: ExchangeReply) -> Result<(), NotTheAnswer> {
        let oldest = self.last_number + 1 - self.under_way.min(self.last_number);
        let is_own = self.session.as_ref().is_none_or(|it| *it == reply.session);
        if self.under_way == 0 || !is_own || reply.number != Some(oldest) {
            return Err(NotTheAnswer);
        }
        self.under_way -= 1;
        self.session.get_or_insert(reply.session);
        self.to_hand_over.extend_from_slice(&reply.body);
        self.is_over |= reply.is_last;
        Ok(())
    }

    /// What has come, for the connection above.
    pub fn came(&self) -> &[u8] {
        &self.to_hand_over
    }

    /// So much of what has come was handed over.
    pub fn drop_handed_over(&mut self, count: usize) {
        self.to_hand_over.advance(count);
    }

    /// Whether all is said and handed over.
    pub fn is_done(&self) -> bool {
        self.is_over && self.to_hand_over.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(number: u64, body: &'static [u8]) -> ExchangeReply {
        ExchangeReply {
            session: "s".into(),
            number: Some(number),
            body: Bytes::from_static(body),
            is_last: false,
        }
    }

    #[test]
    fn the_second_request_waits_for_the_name_and_the_third_for_an_answer() {
        let mut requests = ExchangeClient::default();
        assert_eq!(requests.next_request(), None);
        requests.take(b"a");
        let first = requests.next_request().unwrap();
        assert_eq!(
            (first.number, first.session, &first.body[..]),
            (1, None, &b"a"[..])
        );
        requests.take(b"b");
        assert_eq!(requests.next_request(), None);
        requests.handle_reply(reply(1, b"x")).unwrap();
        let second = requests.next_request().unwrap();
        assert_eq!((second.number, second.session.as_deref()), (2, Some("s")));
        requests.take(b"c");
        assert_eq!(requests.next_request().map(|it| it.number), Some(3));
        requests.take(b"d");
        assert_eq!(requests.next_request(), None);
        requests.handle_reply(reply(2, b"y")).unwrap();
        assert_eq!(requests.next_request().map(|it| it.number), Some(4));
        assert_eq!(requests.came(), b"xy");
    }

    #[test]
    fn while_nothing_is_to_be_sent_one_request_listens() {
        let mut requests = ExchangeClient::default();
        requests.take(b"a");
        requests.next_request().unwrap();
        requests.handle_reply(reply(1, b"")).unwrap();
        let listening = requests.next_request().unwrap();
        assert!(listening.body.is_empty() && !listening.ends);
        assert_eq!(requests.next_request(), None);
    }

    #[test]
    fn the_end_is_told_once_and_behind_what_is_to_be_sent() {
        let mut requests = ExchangeClient::default();
        requests.take(&vec![7; MAX_BODY_BYTES + 1]);
        requests.close();
        let first = requests.next_request().unwrap();
        assert!(first.body.len() == MAX_BODY_BYTES && !first.ends);
        requests.handle_reply(reply(1, b"")).unwrap();
        let last = requests.next_request().unwrap();
        assert!(last.body.len() == 1 && last.ends);
        assert_eq!(requests.next_request(), None);
        let end = ExchangeReply {
            is_last: true,
            ..reply(2, b"z")
        };
        requests.handle_reply(end).unwrap();
        assert!(!requests.is_done());
        requests.drop_handed_over(1);
        assert!(requests.is_done());
        assert_eq!(requests.next_request(), None);
    }

    #[test]
    fn an_answer_to_something_else_is_none() {
        let mut requests = ExchangeClient::default();
        assert_eq!(requests.handle_reply(reply(0, b"")), Err(NotTheAnswer));
        requests.take(b"a");
        requests.next_request().unwrap();
        assert_eq!(requests.handle_reply(reply(2, b"")), Err(NotTheAnswer));
        requests.handle_reply(reply(1, b"")).unwrap();
        requests.next_request().unwrap();
        let of_another = ExchangeReply {
            session: "t".into(),
            ..reply(2, b"")
        };
        assert_eq!(requests.handle_reply(of_another), Err(NotTheAnswer));
    }
}
