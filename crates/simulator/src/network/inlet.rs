//! A server's end of connections in requests: what its HTTP does around the product's numbers and
//! answers, which [`Exchanges`] knows.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use tokio::task::{spawn_local, yield_now};

use tidewater_carrier::exchange_client::{ExchangeReply, ExchangeRequest};
use tidewater_carrier::listen::PeerCertificates;
use tidewater_server::Signal;
use tidewater_server::fuzzing::{Carry, Exchanges};

use super::Address;
use super::exact::{Exact, Spoken, WatchedStream};
use crate::chronicle::Chronicle;
use crate::defects::Numbers;
use crate::server_life::Life;

/// Where a process takes requests.
#[derive(Clone)]
pub(crate) struct Inlet(Rc<Inner>);

struct Inner {
    exchanges: Exchanges,
    address: Address,
    life: Arc<Life>,
    is_closed: Signal<bool>,
    is_swept: Cell<bool>,
    /// How many requests are being answered.
    asked: Cell<usize>,
    judged: RefCell<BTreeMap<String, Arc<Exact>>>,
    numbers: Numbers,
}

/// What a server says to a request.
pub(super) enum InletReply {
    Reply(ExchangeReply, Arc<Exact>),
    /// It takes nobody any more: a balancer looks for another one.
    Unavailable,
    /// There is no such connection, or the number does not follow.
    Refused,
}

impl Inlet {
    pub(crate) fn new(exchanges: Exchanges, address: Address, life: Arc<Life>) -> Inlet {
        Inlet(Rc::new(Inner {
            exchanges,
            address,
            life,
            is_closed: Signal::new(false),
            is_swept: Cell::default(),
            asked: Cell::default(),
            judged: RefCell::default(),
            numbers: Numbers::default(),
        }))
    }

    /// Whether a balancer finds it.
    pub(crate) fn is_open(&self) -> bool {
        !self.0.life.is_dead() && !self.0.is_closed.get()
    }

    /// One request; whoever asks may go, and what it has begun is done. `name`: of the connection,
    /// if it begins one. `None` if the process dies.
    pub(super) async fn ask(
        &self,
        request: ExchangeRequest,
        name: String,
        spoken: &Spoken,
        chronicle: &Rc<Chronicle>,
    ) -> Option<InletReply> {
        let (inner, shown) = (&self.0, PeerCertificates::default());
        let known = request.session.as_deref();
        let found = inner.exchanges.find(known, request.number, &shown);
        let Ok(found) = found else {
            return Some(InletReply::Refused);
        };
        let (name, session) = match (request.session, found) {
            (Some(name), Some(session)) => (name, session),
            _ => {
                if !inner.address.is_open() {
                    return Some(InletReply::Unavailable);
                }
                let (session, stream) = inner.exchanges.begin(name.clone(), shown);
                let exact = Exact::new(spoken.clone());
                inner
                    .judged
                    .borrow_mut()
                    .insert(name.clone(), exact.clone());
                inner.address.enter(WatchedStream { stream, exact });
                self.sweep();
                (name, session)
            }
        };
        let exact = inner.judged.borrow().get(&name).cloned()?;
        let number = inner.numbers.heard(&name, request.number);
        let (number, is_forgotten) = (number.taken_for, number.is_forgotten);
        let (inlet, chronicle) = (self.clone(), chronicle.clone());
        let task = async move {
            let inner = &inlet.0;
            let asked = inner
                .exchanges
                .request(session, number, request.body, request.ends);
            inner.asked.set(inner.asked.get() + 1);
            let answer = tokio::select! {
                biased;
                () = inner.life.ended() => None,
                _ = inner.is_closed.wait_for(|it| it) => None,
                answer = asked => Some(answer),
            };
            inner.asked.set(inner.asked.get() - 1);
            let Ok(carry) = answer? else {
                return Some(InletReply::Refused);
            };
            let carry = match is_forgotten {
                true => Carry::default(),
                false => carry,
            };
            let reply = ExchangeReply {
                session: name,
                number: Some(request.number),
                body: carry.bytes.clone(),
                is_last: carry.is_last,
            };
            exact.answers(request.number, &reply.body);
            if let Some(found) = exact.found() {
                chronicle.failed(found);
            }
            Some(InletReply::Reply(reply, exact))
        };
        spawn_local(task).await.ok().flatten()
    }

    /// From the first connection on, those of which no more requests come are given up.
    fn sweep(&self) {
        if self.0.is_swept.replace(true) {
            return;
        }
        let inlet = self.clone();
        spawn_local(async move {
            tokio::select! {
                biased;
                () = inlet.0.life.ended() => {}
                _ = inlet.0.is_closed.wait_for(|it| it) => {}
                () = inlet.0.exchanges.sweep() => {}
            }
            inlet.0.exchanges.clear();
        });
    }

    /// The process has ended, and what it kept is gone.
    pub(crate) async fn close(&self) {
        self.0.is_closed.set(true);
        self.0.exchanges.clear();
        while self.0.asked.get() > 0 {
            yield_now().await;
        }
    }
}
