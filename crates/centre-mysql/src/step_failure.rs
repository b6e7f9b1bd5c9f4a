//! Why a step of a flight has failed.

use mysql_async::Error;

use tidewater_centre::engine::row_fault::RowFault;
use tidewater_centre::error::CentreError;

use crate::driver_error::centre_error;
use crate::rows::refusal;

/// Why a step has failed, and what that is of a row, if it may be one.
pub(crate) struct StepFailure {
    pub(crate) error: CentreError,
    pub(crate) fault: Option<Box<RowFault>>,
}

impl From<CentreError> for StepFailure {
    fn from(error: CentreError) -> StepFailure {
        StepFailure { error, fault: None }
    }
}

/// An error of a step as ours, with what it is of the row of this number.
pub(crate) fn step_failed(what: &str, row: usize) -> impl Fn(Error) -> StepFailure + Copy + '_ {
    move |error| StepFailure {
        fault: refusal::fault(&error, row),
        error: centre_error(what, &error),
    }
}
