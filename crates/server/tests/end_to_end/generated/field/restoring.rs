//! The centre is backed up, and restored to what it was then.

use super::{Copy, Field, config, environment};
use crate::generated::ledger;
use crate::generated::session::Centre;
use crate::world::LiveServer;

impl<C: Centre> Field<C> {
    pub(super) fn back_up_centre(&mut self) {
        self.stop();
        self.copy = Some(Copy {
            backend: self.backend.copy(),
            kept_out: self.kept_out.clone(),
            detached: self.detached.clone(),
        });
        self.session = self.backend.session();
        for player in &mut self.players {
            player.ledger.begin_history(self.past.len());
        }
        self.start_server();
    }

    /// Stops the server, restores, deploys, serves.
    pub(super) fn restore_centre(&mut self) {
        let Some(copy) = self.copy.take() else {
            return;
        };
        self.stop();
        self.config = config(&self.case, &copy.backend);
        self.session = copy.backend.session();
        self.backend = copy.backend;
        self.kept_out = copy.kept_out;
        self.detached = copy.detached;
        let environment = environment(&self.clock);
        self.server = Some(LiveServer::deploy_in(&self.config, &[], environment));
        self.redirect();
        self.remember();
        self.begins = self.past.len() - 1;
        for number in 0..self.players.len() {
            ledger::unsettle(self, number);
        }
    }

    /// In good order, so that nobody uses the database any more.
    fn stop(&mut self) {
        self.commit();
        if let Some(server) = self.server.take() {
            server.shut_down();
        }
    }
}
