//! Why a step of a flight has failed, and what that is of rows.

use tokio_postgres::Error;

use tidewater_protocol::Code;

use crate::driver_error::centre_error;
use crate::rows::refusal;
use tidewater_centre::engine::row_fault::{RefusalReason, RowFault};
use tidewater_centre::error::CentreError;

/// Why a step has failed.
pub(crate) struct StepFailure {
    pub(crate) error: CentreError,
    pub(crate) fault: Option<Box<RowFault>>,
}

impl From<CentreError> for StepFailure {
    fn from(error: CentreError) -> StepFailure {
        StepFailure { error, fault: None }
    }
}

impl StepFailure {
    /// A value of the rows of a set is none of its column.
    pub(crate) fn unfit(column: &str) -> StepFailure {
        let reason = format!("the value of {column} is none of its column's");
        StepFailure {
            error: CentreError::Internal {
                message: reason.clone(),
            },
            fault: Some(Box::new(RowFault {
                refusal: RefusalReason::new(Code::RowBadValue, reason),
                is_certain: true,
                is_denied: false,
                has_ended: false,
                row: 0,
            })),
        }
    }
}

/// An error of a step as ours, with what it is of rows.
pub(crate) fn step_failed(what: &str) -> impl Fn(Error) -> StepFailure + '_ {
    move |error| StepFailure {
        fault: refusal::fault(&error).map(Box::new),
        error: centre_error(what, &error),
    }
}
