//! Who looks at what is left at the end, and knows only the promises.
//!
//! What the databases hold is read as any application would read it, and compared with the
//! ledgers that the rig's own applications kept.

mod centre;
mod fates;
mod messages;
mod rows;

use std::sync::Arc;

use serde::Serialize;

use crate::device::Device;
use crate::ledger::Ledger;
use crate::stage::Stage;

pub(crate) use centre::JudgedCentre;

/// How much was looked at.
#[derive(Debug, Default, Serialize)]
pub(crate) struct CheckedCounts {
    /// Committed changes of devices, by what became of them.
    pub(crate) in_centre: u64,
    pub(crate) conflicts: u64,
    pub(crate) refused: u64,
    pub(crate) overwritten: u64,
    /// Committed changes of the centre's applications.
    pub(crate) of_centre: u64,
    /// Calls and events that devices have written down, and events that came to them.
    pub(crate) messages: u64,
    pub(crate) events: u64,
    /// Rows of remotes that were compared with the centre's.
    pub(crate) rows: u64,
}

/// Everything that is judged.
pub(crate) struct Judge<'a> {
    pub(crate) stage: &'a Arc<Stage>,
    pub(crate) centre: JudgedCentre,
    pub(crate) checked: CheckedCounts,
}

/// A device and what its application wrote down.
pub(crate) struct Witness {
    pub(crate) device: Device,
    pub(crate) ledger: Ledger,
}

impl Judge<'_> {
    fn finding(&self, what: String) {
        self.stage.finding(what);
    }
}
