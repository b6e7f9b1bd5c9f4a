//! What happens to the device that a remote is on.

use std::rc::Rc;

use super::{SimulatedRemote, open};
use crate::backup;
use crate::defects;
use crate::disks::Device;
use crate::failure::SimulationFailure;
use crate::judge::{has_table, is_untracked};
use crate::liar::{self, LIED};
use crate::random::SeededRandom;
use crate::tables::EDITED;

const CLOCK: &str = "clock of a remote jumped";
const RESTORED: &str = "remote restored to an older copy";
const COPIED: &str = "remote copied, both went on";
pub(super) const REBUILT: &str = "table made anew by a tool";

/// Every kind of accident of a device.
pub(crate) const KINDS: &[&str] = &[CLOCK, RESTORED, COPIED, LIED, REBUILT];

/// What a remote is called whose file is a copy of another's.
pub(super) fn name_of_copy(name: &str) -> String {
    format!("{name}c")
}

/// Clocks jump up to so far, either way: ten years.
const JUMP_MS: u64 = 10 * 365 * 24 * 60 * 60 * 1_000;

impl SimulatedRemote {
    /// Something happens; it may be that there are two from then on.
    pub(super) fn accident(
        &self,
        random: &mut SeededRandom,
    ) -> Result<Option<Rc<SimulatedRemote>>, SimulationFailure> {
        match random.below(9) {
            // What has never synced is adopted first.
            _ if self.adopts().is_some() => self.jump(random),
            8 => self.replace(random)?,
            0 => self.jump(random),
            6 | 7 => self.rebuild(random)?,
            5 => self.lie()?,
            1 | 2 if self.copy.borrow().is_some() => self.restore()?,
            // One copy is enough.
            3 if self.authors.len() == 1 && self.twin.borrow().is_none() => {
                return self.split(random).map(Some);
            }
            _ => self.copy()?,
        }
        Ok(None)
    }

    /// A tool makes a table anew; what is written from then on nobody writes down.
    pub(super) fn rebuild(&self, random: &mut SeededRandom) -> Result<(), SimulationFailure> {
        if self.adopts().is_some() {
            return Ok(());
        }
        let tables: Vec<usize> = (0..EDITED.len()).collect();
        let index = random.pick(&tables).unwrap_or_default();
        let table = &EDITED[index];
        let application = self.application.borrow();
        let remote = application.connection();
        if has_table(remote, table.name)? && !is_untracked(remote, table.name)? {
            self.last_tracked.borrow_mut().look(remote, index)?;
        }
        if application.rebuild(table, random)? {
            defects::rebuilt(remote);
            self.world.chronicle.fault(REBUILT);
            let (name, table) = (&self.name, table.name);
            self.world.chronicle.note(&format!("{name}: {table}"));
        }
        Ok(())
    }

    /// The user claims partitions of others.
    fn lie(&self) -> Result<(), SimulationFailure> {
        let application = self.application.borrow();
        if liar::claim_everything(application.connection())? {
            defects::lied(application.connection(), &self.world.centre_connection())?;
            self.world.chronicle.fault(LIED);
        }
        Ok(())
    }

    fn jump(&self, random: &mut SeededRandom) {
        let ahead = random.below(2 * JUMP_MS) as i64 - JUMP_MS as i64;
        self.clock_ms.set(ahead);
        self.world.chronicle.fault(CLOCK);
    }

    /// Copies the file as it is now.
    fn copy(&self) -> Result<(), SimulationFailure> {
        let application = self.application.borrow();
        backup::copy(application.connection(), &self.device.path_of_copy())?;
        let ledger = self.ledger.borrow().clone();
        let (asked, wishes) = (self.asked.borrow().clone(), self.wishes.borrow().clone());
        *self.copy.borrow_mut() = Some((ledger, asked, wishes, self.contests()));
        Ok(())
    }

    /// The file becomes what it was. What was written since is lost, as the user wanted; what
    /// was pending then is pending again.
    fn restore(&self) -> Result<(), SimulationFailure> {
        let Some((ledger, asked, wishes, contests)) = self.copy.borrow().clone() else {
            return Ok(());
        };
        // Nothing of the old handles may touch the file any more.
        drop(self.database.borrow_mut().take());
        self.application.borrow_mut().close()?;
        self.device.restore_copy();
        *self.database.borrow_mut() = Some(open(&self.device.path(), self.world.plan)?);
        let path = self.device.application_path();
        self.application.borrow_mut().reconnect(&path)?;
        self.ledger.borrow_mut().restore(ledger);
        *self.asked.borrow_mut() = asked;
        *self.wishes.borrow_mut() = wishes;
        self.world.doubt(self.contests().since(&contests));
        *self.contests.borrow_mut() = contests;
        self.may_repeat()?;
        self.restored.set(self.restored.get() + 1);
        self.forget_sequences();
        self.world.chronicle.fault(RESTORED);
        self.judge()
    }

    /// A copy of the file goes on as another remote, which does not know it yet.
    fn split(&self, random: &mut SeededRandom) -> Result<Rc<SimulatedRemote>, SimulationFailure> {
        let name = name_of_copy(&self.name);
        let device = Device::new(&name, random.fork());
        let path = device.application_path();
        backup::copy(self.application.borrow().connection(), &path)?;
        let authors = vec![self.name.clone(), name];
        let twin = SimulatedRemote::at(&self.world, authors, self.user, device, random.fork())?;
        *twin.ledger.borrow_mut() = self.ledger.borrow().clone();
        *twin.asked.borrow_mut() = self.asked.borrow().clone();
        *twin.wishes.borrow_mut() = self.wishes.borrow().clone();
        *twin.contests.borrow_mut() = self.contests();
        let twin = Rc::new(twin);
        *self.twin.borrow_mut() = Some(twin.clone());
        self.may_repeat()?;
        self.world.chronicle.fault(COPIED);
        Ok(twin)
    }

    /// What the file holds is there twice, and may take effect twice.
    fn may_repeat(&self) -> Result<(), SimulationFailure> {
        self.world
            .may_repeat(self.application.borrow().connection())
    }
}
