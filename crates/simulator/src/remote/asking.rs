//! What a remote asks for: its application sets the parameter, at any time.

use std::time::Duration;

use tidewater_remote::RemoteError;
use tidewater_remote::database::RemoteDatabase;

use super::SimulatedRemote;
use crate::failure::SimulationFailure;
use crate::judge;
use crate::random::SeededRandom;
use crate::tables::{ASKED, REGIONS, asked};

const CHANGED: &str = "parameter of a remote changed";
const DROPPED: &str = "parameter of a remote dropped";
const WITH_PENDING: &str = "parameter of a remote changed with something pending";
pub(super) const ASKED_IN_SYNC: &str =
    "parameter of a remote changed in a sync that came to nothing";
const NOT_ALLOWED: &str = "parameter of a remote not allowed";

/// Every kind of thing that happens to what a remote asks for.
pub(crate) const KINDS: &[&str] = &[CHANGED, DROPPED, WITH_PENDING, ASKED_IN_SYNC, NOT_ALLOWED];

impl SimulatedRemote {
    /// The application asks for something else: mostly for what its user may have, now and then
    /// for nothing, or for what he may not.
    pub(super) fn ask(&self, random: &mut SeededRandom) -> Result<(), SimulationFailure> {
        let own = self.world.regions(self.user)?;
        let anywhere = random.between(1, REGIONS) as i64;
        let own = random.pick(&own).unwrap_or(anywhere);
        let value = match random.below(20) {
            0..=2 => None,
            3 => Some(anywhere.to_string()),
            // Another spelling of what may be asked for is another value.
            4 => Some(format!("0{own}")),
            _ => Some(own.to_string()),
        };
        self.ask_for(value)
    }

    /// The centre does not let the remote have what it asks for. The application asks for
    /// something else, or leaves it for later.
    pub(super) fn not_allowed(&self, random: &mut SeededRandom) -> Result<(), SimulationFailure> {
        self.world.chronicle.fault(NOT_ALLOWED);
        match random.percent(50) {
            true => self.ask(random),
            false => Ok(()),
        }
    }

    /// Asks for what its user may have, if it does not.
    pub(super) fn ask_for_own(&self) -> Result<(), SimulationFailure> {
        let asked = asked(self.application.borrow().connection())?;
        let own = self.world.regions(self.user)?;
        let may_have = |asked: &String| own.iter().any(|it| it.to_string() == *asked);
        match asked.as_ref().is_none_or(may_have) {
            true => Ok(()),
            false => self.ask_for(own.first().map(i64::to_string)),
        }
    }

    /// Sets the parameter, or drops it, unless somebody else writes.
    fn ask_for(&self, value: Option<String>) -> Result<(), SimulationFailure> {
        let application = self.application.borrow();
        let remote = application.connection();
        if asked(remote)? == value {
            return Ok(());
        }
        let is_pending = judge::is_pending_where_asked(remote)?;
        let set = || -> Result<(), RemoteError> {
            let mut database = RemoteDatabase::open(&self.device.application_path())?;
            database.wait_for_writers(Duration::ZERO)?;
            database.set_parameter(None, ASKED, value.as_deref())
        };
        match set() {
            Ok(()) => {}
            Err(RemoteError::Locked { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let told = asked(remote)?;
        if told != value {
            return Err(SimulationFailure(format!(
                "{value:?} was asked for, the file says {told:?}"
            )));
        }
        let chronicle = &self.world.chronicle;
        chronicle.note(&format!("{} asks for {value:?}", self.name));
        chronicle.fault(match value {
            Some(_) => CHANGED,
            None => DROPPED,
        });
        if is_pending {
            chronicle.fault(WITH_PENDING);
        }
        self.asked.borrow_mut().change(value);
        Ok(())
    }
}
