//! Calls of procedures: their transactions, their flights, and what an error means for them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{FutureExt, OptionFuture, join, join3};
use futures_util::{StreamExt, pin_mut};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error};

use super::arguments::of_call;
use super::connection::{MAX_STATEMENTS, PostgresConnection};
use super::decoder::{RowDecoder, recycle};
use super::interrupt::Interruption;
use super::system_statement::all_at_once;
use crate::caller::WHO;
use crate::driver_error::{centre_error, chain, is_locked, is_stale_plan, statement_failed};
use crate::prepared_procedure::{NOT_ALLOWED, PreparedProcedure};
use tidewater_centre::engine::call::answer::AnswerCollector;
use tidewater_centre::engine::call::driver::{CallDriver, CallFailure, CallResult};
use tidewater_centre::error::CentreError;
use tidewater_centre::{CallAnswer, CallOutcome, ProcedureCall};

impl PostgresConnection {
    /// The procedure of a call, prepared.
    async fn prepare_call(
        &mut self,
        call: &ProcedureCall,
    ) -> Result<Arc<PreparedProcedure>, CallFailure> {
        let procedure = &call.procedure;
        let address = Arc::as_ptr(procedure) as usize;
        if let Some(prepared) = self.procedures.get(&address) {
            return Ok(prepared.clone());
        }
        let prepared = PreparedProcedure::prepare(self.client(), procedure).await;
        let prepared = Arc::new(prepared.map_err(|error| self.call_failure(call, &error))?);
        if self.procedures.len() >= MAX_STATEMENTS {
            self.procedures.clear();
        }
        self.procedures.insert(address, prepared.clone());
        Ok(prepared)
    }

    /// Has this hold for the transactions that follow. Nothing can interrupt it, so that no call runs
    /// as another one should.
    async fn set_for_calls(
        &mut self,
        read_only: bool,
        timeout: Duration,
    ) -> Result<(), CentreError> {
        let Some(set) = self.set(read_only, Some(timeout)) else {
            return Ok(());
        };
        self.interruption().drain().await;
        let set = self.client().batch_execute(&set).await;
        if set.is_err() {
            self.forget_settings();
        }
        set.map_err(statement_failed("setting how long a call may take"))
    }

    /// Begins or ends the transaction of a call.
    async fn execute_for_call(
        &mut self,
        call: &ProcedureCall,
        sql: &str,
    ) -> Result<(), CallFailure> {
        let done = self.client().batch_execute(sql).await;
        done.map_err(|error| self.call_failure(call, &error))
    }

    /// What an error means for a call.
    fn call_failure(&mut self, call: &ProcedureCall, error: &Error) -> CallFailure {
        let failure = centre_error("running a call", error);
        if matches!(failure, CentreError::Unavailable { .. }) {
            return failure.into();
        }
        let Some(refusal) = error.as_db_error() else {
            let (code, message) = (String::new(), chain(error));
            return CallFailure::Final(CallOutcome::Failed { code, message });
        };
        let message = refusal.message().to_owned();
        // Somebody makes room, or mends the disk.
        if failure.is_out_of_resources() {
            return CentreError::Unavailable { message }.into();
        }
        let others = self.interruption().has_fired();
        match refusal.code().code() {
            // query_canceled: by us, by its time, or by mistake.
            "57014" if others && !call.cancel.is_set() => {
                CallFailure::Retry(CallOutcome::Interrupted)
            }
            "57014" => CallFailure::Final(CallOutcome::Interrupted),
            // serialization_failure, deadlock_detected
            "40001" | "40P01" => CallFailure::Retry(CallOutcome::Busy { message }),
            state if is_locked(state) => CallFailure::Final(CallOutcome::Busy { message }),
            code => {
                let code = code.to_owned();
                let failed = CallOutcome::Failed { code, message };
                if !is_stale_plan(refusal) {
                    return CallFailure::Final(failed);
                }
                self.forget_statements();
                CallFailure::Retry(failed)
            }
        }
    }
}

impl CallDriver for PostgresConnection {
    async fn begin_call(&mut self, call: &ProcedureCall) -> Result<(), CallFailure> {
        let interruption = self.interruption();
        interruption.forget_fired();
        self.prepare_call(call).await?;
        self.set_for_calls(false, call.timeout).await?;
        interruption.begin(std::iter::once(call.cancel.clone()));
        self.execute_for_call(call, "BEGIN").await
    }

    async fn run_call(&mut self, call: &ProcedureCall) -> CallResult {
        // What was prepared was not forgotten since.
        let prepared = self.prepare_call(call).await?;
        let who = self.prepare(WHO, &[]).await?;
        let remote = call.caller.remote_id.map(|it| it.to_string());
        let remote = remote.unwrap_or_default();
        let who_is: [&(dyn ToSql + Sync); 2] = [&call.caller.user, &remote];
        let interruption = self.interruption();
        let sent = SentCall {
            client: self.client(),
            interruption: &interruption,
            call,
            prepared: &prepared,
        };
        let said = sent.client.query_one(&who, &who_is);
        let (said, outcome) = join(said, sent.outcome()).await;
        let outcome = said.and(outcome);
        outcome.map_err(|error| self.call_failure(call, &error))
    }

    async fn commit_call(&mut self, call: &ProcedureCall) -> Result<(), CallFailure> {
        self.execute_for_call(call, "COMMIT").await
    }

    async fn undo_call(&mut self, _: &ProcedureCall) -> Result<(), CentreError> {
        // The call is over: what was to end it does not hit this.
        self.interruption().drain().await;
        let undone = self.client().batch_execute("ROLLBACK").await;
        undone.map_err(statement_failed("undoing a call"))
    }

    /// All calls go in one flight, on a connection that lets them only read.
    async fn read_calls(
        &mut self,
        calls: &[&ProcedureCall],
    ) -> Result<Vec<CallResult>, CentreError> {
        let interruption = &self.interruption();
        interruption.forget_fired();
        let mut prepared = Vec::with_capacity(calls.len());
        for call in calls {
            prepared.push(self.prepare_call(call).await);
        }
        if let Some(first) = calls.first() {
            self.set_for_calls(true, first.timeout).await?;
        }
        // How long the others may take is set on the way.
        let sets = calls.iter().map(|call| self.set(true, Some(call.timeout)));
        let sets: Vec<Option<String>> = sets.collect();
        let sent = calls.iter().zip(&prepared).filter(|(_, it)| it.is_ok());
        interruption.begin(sent.map(|(call, _)| call.cancel.clone()));
        let client = self.client();
        let runs = calls.iter().zip(&prepared).zip(&sets);
        let runs = runs.map(|((call, prepared), set)| {
            async move {
                let set = OptionFuture::from(set.as_ref().map(|it| client.batch_execute(it)));
                let sent = prepared.as_ref().ok().map(|prepared| SentCall {
                    client,
                    interruption,
                    call,
                    prepared,
                });
                let read = OptionFuture::from(sent.as_ref().map(SentCall::read));
                let (set, read) = join(set, read).await;
                if read.is_some() {
                    interruption.answered();
                }
                (set, read)
            }
            .boxed()
        });
        let answers = all_at_once(runs.collect()).await;
        let answers = calls.iter().zip(prepared).zip(answers);
        let results = answers.map(|((call, prepared), answer)| match (prepared, answer) {
            (_, (Some(Err(error)), _)) => {
                self.forget_settings();
                Err(self.call_failure(call, &error))
            }
            (Err(failure), _) => Err(failure),
            (Ok(_), (_, Some(read))) => read.map_err(|error| self.call_failure(call, &error)),
            (Ok(_), (_, None)) => Err(CallFailure::Retry(CallOutcome::Interrupted)),
        });
        Ok(results.collect())
    }
}

/// A call on its way to the database.
struct SentCall<'s> {
    client: &'s Client,
    interruption: &'s Arc<Interruption>,
    call: &'s ProcedureCall,
    prepared: &'s PreparedProcedure,
}

impl SentCall<'_> {
    /// Reads in a transaction of its own.
    async fn read(&self) -> Result<CallOutcome, Error> {
        // A statement alone is a transaction.
        if self.prepared.allow.is_none() {
            return self.answer().await;
        }
        let (begun, outcome, ended) = join3(
            self.client.batch_execute("BEGIN"),
            self.outcome(),
            self.client.batch_execute("COMMIT"),
        )
        .await;
        begun?;
        let outcome = outcome?;
        ended?;
        Ok(outcome)
    }

    /// What the call comes to in the transaction that is open: whether it is allowed, and only then
    /// what it answers.
    async fn outcome(&self) -> Result<CallOutcome, Error> {
        let (allowed, answered) = join(self.allowed(), self.answer()).await;
        match allowed? {
            true => answered,
            false => Ok(CallOutcome::NotAllowed),
        }
    }

    /// Whether the call is allowed. If not, the transaction is none any more, and what was sent behind
    /// is not run.
    async fn allowed(&self) -> Result<bool, Error> {
        let (Some(statement), Some(script)) = (&self.prepared.allow, self.call.procedure.allow())
        else {
            return Ok(true);
        };
        let parameters = of_call(self.call, script, statement);
        match self.client.execute_raw(statement, parameters).await {
            Err(error) if is_denial(&error) => Ok(false),
            asked => asked.map(|_| true),
        }
    }

    /// Runs the statement of the call and reads what it answers. It is ended as soon as nothing more
    /// is wanted.
    async fn answer(&self) -> Result<CallOutcome, Error> {
        let (Some(run), Some(step)) = (&self.prepared.statement, self.call.steps().last()) else {
            return Ok(CallOutcome::Answer(CallAnswer::default()));
        };
        let parameters = of_call(self.call, step.script, &run.statement);
        let rows = self.client.query_raw(&run.statement, parameters).await?;
        pin_mut!(rows);
        let mut decoder = RowDecoder::new(run.kinds.iter().copied());
        let mut answer = AnswerCollector::new(self.call, step.purpose, &run.shape);
        let mut values = Vec::new();
        while let Some(row) = rows.next().await {
            let row = match row {
                // We have ended it.
                Err(_) if answer.has_ended() => break,
                row => row?,
            };
            if !answer.wants_row() {
                continue;
            }
            let mut datums = recycle(values);
            if let Err(error) = decoder.result(&row, 0, &mut datums) {
                return Ok(CallOutcome::Failed {
                    code: "22000".into(),
                    message: error.to_string(),
                });
            }
            answer.push(&datums);
            values = recycle(datums);
            if answer.has_ended() {
                self.interruption.end_running();
            }
        }
        Ok(answer.finish())
    }
}

fn is_denial(error: &Error) -> bool {
    // undefined_object
    let is = |it: &tokio_postgres::error::DbError| {
        it.code().code() == "42704" && it.message().contains(NOT_ALLOWED)
    };
    error.as_db_error().is_some_and(is)
}
