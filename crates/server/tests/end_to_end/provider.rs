//! A program that provides a procedure, and ends each call when a test says so.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use tidewater_client::{Answer, ColumnType, Datum, Link, ProvidedCall};

use crate::events::link_to;
use crate::world::LiveServer;

/// Answers with how many calls it has done.
pub(crate) struct Provider {
    pub(crate) link: Link,
    /// It is at a call.
    pub(crate) begun: Receiver<()>,
    /// To drop it is to end all calls.
    pub(crate) go_on: Sender<()>,
    pub(crate) done: Arc<AtomicUsize>,
}

impl Provider {
    pub(crate) fn at(server: &LiveServer, user: &str, procedure: &str) -> Provider {
        let link = link_to(server, user);
        let (begin, begun) = channel();
        let (go_on, may) = channel();
        let (begin, may) = (Mutex::new(begin), Mutex::new(may));
        let done = Arc::new(AtomicUsize::new(0));
        let counted = done.clone();
        let handler = move |_: &ProvidedCall| {
            let begin = begin.lock().expect("nobody panics").clone();
            // A test that has ended does not listen.
            let _ = begin.send(());
            let _ = may.lock().expect("nobody panics").recv();
            let done = counted.fetch_add(1, Ordering::SeqCst) + 1;
            Ok(Answer::value(
                ColumnType::Integer,
                &Datum::Integer(done as i64),
            ))
        };
        link.provide(procedure, handler).expect("it may provide it");
        Provider {
            link,
            begun,
            go_on,
            done,
        }
    }

    pub(crate) fn finish_one(&self) {
        self.go_on.send(()).expect("it is there");
    }
}
