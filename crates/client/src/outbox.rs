//! What is done after a sync, over its connection: the calls and events of the outbox, and what comes
//! into the inbox.

use std::ops::ControlFlow;
use std::time::Duration;

use tidewater_protocol::Code;
use tidewater_protocol::message::Answer;
use tidewater_remote::database::{
    EventInterest, InboxProgress, OutboxOutcome, OutboxRun, RemoteDatabase,
};
use tidewater_remote::{RefusedInterest, Report, SyncDirection, SyncError, SyncProgress};

use crate::clock::DriverClock;
use crate::error::ClientError;
use crate::link::Link;
use crate::request::{CallError, Request};

/// The calls after one sync.
pub(crate) struct OutboxCalls<'a> {
    pub(crate) database: &'a mut RemoteDatabase,
    pub(crate) link: &'a Link,
    pub(crate) progress: &'a mut dyn FnMut(&SyncProgress) -> ControlFlow<()>,
    pub(crate) clock: DriverClock,
}

impl OutboxCalls<'_> {
    /// Executes the outbox if changes go up, then fills the inbox if they come down. That a
    /// connection is lost is no error here: the sync is committed, and the next one goes on.
    ///
    /// # Errors
    /// The caller wants no more, or the file cannot be written.
    pub(crate) fn run(
        &mut self,
        direction: SyncDirection,
        report: &mut Report,
    ) -> Result<(), ClientError> {
        let mut is_there = true;
        if direction != SyncDirection::DownloadOnly {
            let mut emptying = OutboxRun::default();
            let emptied = self.empty(&mut emptying);
            let (counts, inbox) = emptying.counts();
            report.outbox.answered += counts.answered;
            report.outbox.failed += counts.failed;
            report.inbox += inbox;
            is_there = emptied?;
        }
        report.outbox.pending = self.database.waiting_in_outbox()?;
        if is_there && direction != SyncDirection::UploadOnly {
            for mut interest in self.database.interests()? {
                if !self.fetch(&mut interest, report)? {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Whether the connection is still there.
    fn empty(&mut self, emptying: &mut OutboxRun) -> Result<bool, ClientError> {
        let mut outcome = None;
        loop {
            let now = self.clock.now().unix_ms;
            let Some(next) = self.database.next_of_outbox(emptying, outcome, now)? else {
                return Ok(true);
            };
            let mut request = Request::from_call(next.call);
            if let Some(within_ms) = next.within_ms {
                request = request.within(Duration::from_millis(within_ms));
            }
            outcome = Some(match self.call(&request)? {
                Ok(answer) => OutboxOutcome::Answered(answer),
                Err(CallError::Failed(failed)) => OutboxOutcome::Failed(failed),
                Err(CallError::Lost(error)) => {
                    let lost = OutboxOutcome::Lost {
                        code: error.code(),
                        reason: error.to_string(),
                    };
                    self.database.next_of_outbox(emptying, Some(lost), now)?;
                    return Ok(false);
                }
            });
        }
    }

    /// Gets all new events of an interest. Whether the connection is still there.
    fn fetch(
        &mut self,
        interest: &mut EventInterest,
        report: &mut Report,
    ) -> Result<bool, ClientError> {
        loop {
            let answer = match self.call(&Request::from_call(interest.call()))? {
                Ok(answer) => answer,
                Err(CallError::Lost(_)) => return Ok(false),
                Err(CallError::Failed(failed)) => {
                    let code = failed.code().map_or("unknown", Code::name);
                    let reason = failed.message.as_str();
                    self.refuse(interest, code, reason, report)?;
                    return Ok(true);
                }
            };
            match self.take(interest, &answer, report)? {
                Some(InboxProgress::More(count)) => report.inbox += count,
                Some(InboxProgress::All | InboxProgress::Others) | None => return Ok(true),
            }
        }
    }

    fn take(
        &mut self,
        interest: &mut EventInterest,
        answer: &Answer,
        report: &mut Report,
    ) -> Result<Option<InboxProgress>, ClientError> {
        let now = self.clock.now().unix_ms;
        let took = self.database.take_events(interest, answer, now)?;
        if took.is_none() {
            let code = Code::MalformedMessage.name();
            let reason = "the server's answer cannot be read";
            self.refuse(interest, code, reason, report)?;
        }
        Ok(took)
    }

    /// Notes that what the application is interested in cannot be had. The report has it once: what
    /// the file says already is no news.
    fn refuse(
        &mut self,
        interest: &EventInterest,
        code: &str,
        reason: &str,
        report: &mut Report,
    ) -> Result<(), ClientError> {
        let now = self.clock.now().unix_ms;
        if self.database.refuse_interest(interest, code, reason, now)? {
            report.refused_interests.push(RefusedInterest {
                space: interest.space.clone(),
                subject: interest.subject.clone(),
                reason: reason.to_owned(),
            });
        }
        Ok(())
    }

    fn call(&mut self, request: &Request) -> Result<Result<Answer, CallError>, ClientError> {
        let mut stopped = false;
        let progress = &mut self.progress;
        let called = self.link.call_while(request, &mut || {
            let asked = progress(&SyncProgress::calling());
            stopped |= asked.is_break();
            asked
        });
        match stopped {
            // What was sent stays so: the next sync asks what came of it.
            true => Err(SyncError::Cancelled.into()),
            false => Ok(called),
        }
    }
}
