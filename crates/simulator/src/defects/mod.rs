//! Judging the judges: simulations of a product that something is wrong with.
//!
//! What the defects are is [`list`]'s, how each is made the other files'. The product knows nothing
//! of them. [`crate::hunt`] looks for seeds in which a judge sees them.

mod centre;
mod connections;
mod contests;
mod download_sinks;
mod file;
mod list;
mod live;
mod market;
mod requests;
mod statements;
mod uploads;

pub(crate) use centre::meddle;
pub(crate) use contests::key_as_heard;
pub(crate) use file::{Meddler, adopt, lied, prepare, rebuilt};
pub use list::Defect;
pub(crate) use list::with;
pub(crate) use live::{advances_early, before_outbox, configured};
pub(crate) use market::{FileNumbers, show_lines};
pub(crate) use requests::Numbers;
pub(crate) use statements::{leave_out, leave_out_serving};

/// Nothing is left of another world.
pub(crate) fn begin_world() {
    connections::note_all();
    centre::forget_all();
}
