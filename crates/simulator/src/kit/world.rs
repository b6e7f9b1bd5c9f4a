//! The world of a user's configuration: what everybody in a simulation of it shares.

use std::cell::{Cell, Ref, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use rusqlite::Connection;
use tokio::io::DuplexStream;
use tokio::time::Instant;

use tidewater_remote::session::Now;

use super::BEGIN_MS;
use super::prepare::WorldKnowledge;
use super::tally::Tally;
use crate::application;
use crate::chronicle::Chronicle;
use crate::disks::CentreDisk;
use crate::host::Host;
use crate::network::{Traces, Weather};

/// What everybody in a simulation shares.
pub(super) struct World {
    pub(super) known: Arc<WorldKnowledge>,
    pub(super) chronicle: Rc<Chronicle>,
    pub(super) tally: Rc<RefCell<Tally>>,
    pub(super) numbers: Rc<Cell<i64>>,
    pub(super) began: Instant,
    pub(super) disk: CentreDisk,
    pub(super) hosts: Vec<Host>,
    pub(super) next_host: Cell<usize>,
    /// The judges' own connection, which only reads.
    pub(super) centre: RefCell<Connection>,
}

impl World {
    /// The time as remotes know it.
    pub(super) fn now(&self) -> Now {
        let elapsed_ms = self.chronicle.elapsed_ms();
        Now {
            ticks_ms: elapsed_ms,
            unix_ms: BEGIN_MS + i64::try_from(elapsed_ms).unwrap_or(i64::MAX),
        }
    }

    /// A connection to one server after the other.
    pub(super) fn dial(
        self: &Rc<Self>,
        weather: Weather,
        traces: &Rc<Traces>,
    ) -> Option<DuplexStream> {
        let next = self.next_host.get();
        self.next_host.set((next + 1) % self.hosts.len());
        let (world, random) = (Rc::downgrade(self), weather.random.clone());
        let again = move || {
            let fine = Weather::fine(random.clone());
            world.upgrade()?.dial(fine, &Rc::default())
        };
        self.hosts[next].dial(weather, traces, Rc::new(again), &self.chronicle)
    }

    /// The judges' connection to the centre.
    ///
    /// # Panics
    /// The centre cannot be opened after it was without power: a promise is broken.
    pub(super) fn centre(&self) -> Ref<'_, Connection> {
        let path = self.disk.path();
        if self.centre.borrow().path().map(Path::new) != Some(&path) {
            let connection = application::open(&path).expect("the centre outlives lost power");
            *self.centre.borrow_mut() = connection;
        }
        self.centre.borrow()
    }
}
