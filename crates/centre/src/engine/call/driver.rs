//! What the engine asks of a database for calls.

use crate::engine::connection::DatabaseConnection;
use crate::error::CentreError;
use crate::procedure::{CallOutcome, ProcedureCall};

/// What a call came to, if no failure of the database ended it.
pub type CallResult = Result<CallOutcome, CallFailure>;

/// What a failure of the database means for a call.
#[derive(Debug)]
pub enum CallFailure {
    /// The call has come to this.
    Final(CallOutcome),
    /// It has come to this; but it was others that undid it, and the same call may succeed when it is
    /// run again.
    Retry(CallOutcome),
    /// It is no matter of this call: the database is away, or the like.
    Centre(CentreError),
}

impl From<CentreError> for CallFailure {
    fn from(error: CentreError) -> CallFailure {
        CallFailure::Centre(error)
    }
}

/// A connection that runs calls, whose transactions the engine begins and ends.
///
/// Of each call it asks for [`begin_call`](Self::begin_call), then [`run_call`](Self::run_call), and in
/// the end for either [`commit_call`](Self::commit_call) or [`undo_call`](Self::undo_call). After
/// [`CallFailure::Centre`] it asks for nothing more: whoever owns the connection ends what is open.
pub trait CallDriver: DatabaseConnection {
    /// Begins a call's transaction; that of a procedure which only reads cannot write.
    fn begin_call(
        &mut self,
        call: &ProcedureCall,
    ) -> impl Future<Output = Result<(), CallFailure>> + Send;

    /// Runs the [`steps`](ProcedureCall::steps) of a call in its transaction, for at most its time and
    /// until it is cancelled. If the procedure writes, triggers are told first who calls.
    fn run_call(&mut self, call: &ProcedureCall) -> impl Future<Output = CallResult> + Send;

    /// Commits the transaction of a call.
    fn commit_call(
        &mut self,
        call: &ProcedureCall,
    ) -> impl Future<Output = Result<(), CallFailure>> + Send;

    /// Undoes the transaction of a call, if it is still open.
    fn undo_call(
        &mut self,
        call: &ProcedureCall,
    ) -> impl Future<Output = Result<(), CentreError>> + Send;

    /// Runs calls that only read, each in a transaction of its own. Where statements can be sent before
    /// the ones before them are answered, those of all calls go at once.
    fn read_calls(
        &mut self,
        calls: &[&ProcedureCall],
    ) -> impl Future<Output = Result<Vec<CallResult>, CentreError>> + Send {
        async move {
            let mut results = Vec::with_capacity(calls.len());
            for call in calls {
                if call.cancel.is_set() {
                    results.push(Ok(CallOutcome::Interrupted));
                    continue;
                }
                let result = match self.begin_call(call).await {
                    Ok(()) => self.run_call(call).await,
                    Err(failure) => Err(failure),
                };
                self.undo_call(call).await?;
                match result {
                    Err(CallFailure::Centre(error)) => return Err(error),
                    result => results.push(result),
                }
            }
            Ok(results)
        }
    }
}
