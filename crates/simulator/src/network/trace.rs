//! The connections of a remote that a server may still hear of when the remote does not.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use super::TWO_SERVERS;
use crate::chronicle::Chronicle;

/// The connections of one remote.
#[derive(Debug, Default)]
pub(crate) struct Traces {
    last: Cell<u64>,
    /// Those that only the network and a server still know, with the server's place.
    outliving: RefCell<BTreeMap<u64, usize>>,
}

/// One connection, until no byte of it travels any more.
#[derive(Debug)]
pub(crate) struct Trace {
    number: u64,
    place: usize,
    traces: Rc<Traces>,
}

impl Traces {
    /// A new connection to the server at this place.
    pub(crate) fn begin(self: &Rc<Self>, place: usize, chronicle: &Chronicle) -> Rc<Trace> {
        let number = self.last.get() + 1;
        self.last.set(number);
        if self.outliving.borrow().values().any(|it| *it != place) {
            chronicle.fault(TWO_SERVERS);
        }
        let traces = self.clone();
        Rc::new(Trace {
            number,
            place,
            traces,
        })
    }
}

impl Trace {
    /// The remote is told the end, or gives up; the server is not told.
    pub(super) fn outlives(&self) {
        let mut outliving = self.traces.outliving.borrow_mut();
        outliving.insert(self.number, self.place);
    }

    /// The server has ended it.
    pub(super) fn ended(&self) {
        self.traces.outliving.borrow_mut().remove(&self.number);
    }

    /// Whether the remote has a newer connection.
    pub(super) fn is_overtaken(&self) -> bool {
        self.number < self.traces.last.get()
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.ended();
    }
}
