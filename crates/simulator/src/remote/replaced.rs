//! A device is replaced: the new one has a file with tables already, which is adopted.

use tidewater_remote::database::AdoptionRule;

use super::{SimulatedRemote, open, subscribe};
use crate::failure::SimulationFailure;
use crate::judge::{self, AdoptionFile, has_table};
use crate::random::SeededRandom;
use crate::tables::BALANCES;

const REPLACED: &str = "device of a remote replaced";
const MINE: &str = "file adopted with its own rows";
const CENTRE: &str = "file adopted with the centre's rows";
const CAME_TO_NOTHING: &str = "adoption that came to nothing";

/// Every kind of thing that happens to files that are adopted.
pub(crate) const KINDS: &[&str] = &[REPLACED, MINE, CENTRE, CAME_TO_NOTHING];

impl SimulatedRemote {
    /// The device is gone with all that was only there, and its user knows that. Another one takes
    /// its place, with a file that has never synced.
    pub(super) fn replace(&self, random: &mut SeededRandom) -> Result<(), SimulationFailure> {
        drop(self.database.borrow_mut().take());
        self.application.borrow_mut().close()?;
        self.device.wipe();
        let path = self.device.application_path();
        *self.database.borrow_mut() = Some(open(&self.device.path(), self.world.plan)?);
        self.application.borrow_mut().reconnect(&path)?;
        self.ledger.take();
        self.asked.take();
        self.wishes.take();
        self.world.doubt(self.contests.take());
        self.last_tracked.take();
        self.sequences.take();
        self.copy.take();
        if self.twin.borrow().is_some() {
            let mut in_two_files = self.world.in_two_files.borrow_mut();
            in_two_files.insert(self.name.clone());
        }
        self.told_alone.set(false);
        self.was_refused.set(false);
        self.reopened.set(self.world.restorations.get());
        self.restorations.set(self.world.restorations.get());
        self.world.chronicle.fault(REPLACED);
        subscribe(&self.database, self.user)?;
        self.bring(random)?;
        self.ask(random)?;
        self.judge()
    }

    /// The application brings tables along into a file that has none.
    pub(super) fn bring(&self, random: &mut SeededRandom) -> Result<(), SimulationFailure> {
        let regions = self.world.regions(self.user)?;
        let rows = self
            .application
            .borrow_mut()
            .bring(&self.world.keys, &regions)?;
        let adopt = match random.percent(60) {
            true => AdoptionRule::Mine,
            false => AdoptionRule::Centre,
        };
        self.world.may_be_adopted(&rows);
        let name = &self.name;
        self.world
            .chronicle
            .note(&format!("{name} brings {rows:?}, to be adopted: {adopt:?}"));
        *self.adopting.borrow_mut() = Some(AdoptionFile { adopt, rows });
        Ok(())
    }

    /// How tables that are there already are to be adopted.
    pub(super) fn adopts(&self) -> Option<AdoptionRule> {
        self.adopting.borrow().as_ref().map(|it| it.adopt)
    }

    /// A sync did not get to its end.
    pub(super) fn came_to_nothing(&self) {
        if self.adopts().is_some() {
            self.world.chronicle.fault(CAME_TO_NOTHING);
        }
    }

    /// Looks whether the tables have been adopted: what is to go up is the user's change from now
    /// on.
    pub(super) fn notice_adoption(&self) -> Result<(), SimulationFailure> {
        let application = self.application.borrow();
        let remote = application.connection();
        let Some(adopting) = self.adopting.take() else {
            return Ok(());
        };
        let broken = |found| SimulationFailure(format!("{}: {found}", self.name));
        if !has_table(remote, BALANCES[0].name)? {
            let changed = adopting.changed(remote)?;
            *self.adopting.borrow_mut() = Some(adopting);
            return changed.map_or(Ok(()), |found| Err(broken(found)));
        }
        let adopted = adopting.adopted(remote, &self.authors)?.map_err(broken)?;
        self.world.chronicle.fault(match adopting.adopt {
            AdoptionRule::Mine => MINE,
            AdoptionRule::Centre => CENTRE,
        });
        self.seen.borrow_mut().add(adopted.replaced);
        let since = judge::audited(&self.world.centre_connection())?;
        let mut ledger = self.ledger.borrow_mut();
        ledger.adopted(adopted.known_here);
        Ok(ledger.committed(&adopted.touched, since, remote)?)
    }
}
