//! Syncing on the caller's thread, over whatever carries the connection: one sync, in as many
//! sessions and connections as it takes.

use std::ops::ControlFlow;
use std::path::Path;
use std::thread;
use std::time::Duration;

use tidewater_carrier::ServerUrl;
use tidewater_protocol::Code;
use tidewater_remote::database::{Account, Database};
use tidewater_remote::session::{Outcome, ProofKind, SessionOptions};
use tidewater_remote::spool::FileSpool;
use tidewater_remote::{Progress, Report, SyncError};

use crate::clock::{Clock, random_seed};
use crate::error::ClientError;
use crate::line::Line;
use crate::options::SyncOptions;

/// How many sessions one sync may need in vain: token refused, credential refused, new identity,
/// centre restored, compare asked for, publications changed.
pub(crate) const MAX_VAIN_SESSIONS: usize = 6;

/// One sync.
struct Syncing<'a> {
    options: &'a SyncOptions,
    clock: &'a Clock,
    account: Account,
    line: Option<Line<'a>>,
    total: Report,
}

/// Syncs, and gives the database back.
///
/// # Errors
/// See [`ClientError`].
pub(crate) fn sync(
    database: Database,
    options: &SyncOptions,
    progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
) -> (Database, Result<Report, ClientError>) {
    let clock = Clock::start();
    let account = match database.account() {
        Ok(account) => account,
        Err(error) => return (database, Err(error.into())),
    };
    let mut syncing = Syncing {
        options,
        clock: &clock,
        account,
        line: None,
        total: Report::default(),
    };
    let (database, result) = syncing.run(database, progress);
    syncing.hang_up();
    let Syncing { mut total, .. } = syncing;
    total.duration_ms = clock.now().ticks_ms;
    let result = result.and_then(|()| Ok(total.tell_stale(&database)?));
    (database, result.map(|()| total))
}

impl<'a> Syncing<'a> {
    fn run(
        &mut self,
        mut database: Database,
        progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> (Database, Result<(), ClientError>) {
        let mut first_proof = ProofKind::Token;
        let mut in_vain = 0;
        while in_vain < MAX_VAIN_SESSIONS {
            in_vain += 1;
            let prepared = self
                .line(progress)
                .and_then(|line| Ok((line, random_seed()?)));
            let (mut line, seed) = match prepared {
                Ok(prepared) => prepared,
                Err(error) => return (database, Err(error)),
            };
            let options = self.session_options(&database, first_proof);
            line.connection.sync(database, options, seed);
            let driven = line.run(progress);
            let ended = line.connection.end_sync();
            self.line = Some(line);
            let outcome;
            (database, outcome) = ended.expect("the sync has ended, and its work is handed back");
            if let Err(error) = driven {
                return (database, Err(error.into()));
            }
            match outcome {
                Outcome::Done(report) => {
                    self.total.add(report);
                    return (database, Ok(()));
                }
                Outcome::More(report) => {
                    self.total.add(report);
                    first_proof = ProofKind::Token;
                    in_vain = 0;
                }
                Outcome::Again(proof) => first_proof = proof,
                // What is published has changed under it: the next session goes by that.
                Outcome::Failed(error) if error.code() == Code::Redeployed => {
                    self.hang_up();
                    if in_vain == MAX_VAIN_SESSIONS {
                        return (database, Err(error.into()));
                    }
                    thread::sleep(Duration::from_millis(error.retry_after_ms().unwrap_or(0)));
                    first_proof = ProofKind::Token;
                }
                Outcome::Failed(error) => return (database, Err(error.into())),
                _ => break,
            }
        }
        let error = SyncError::Protocol {
            code: Code::UnexpectedMessage,
            what: "it sent the remote away again and again".into(),
        };
        (database, Err(error.into()))
    }

    /// The connection that there is, if another session can go over it, or a new one.
    fn line(
        &mut self,
        progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<Line<'a>, ClientError> {
        if let Some(line) = self.line.take_if(|line| line.connection.can_sync()) {
            return Ok(line);
        }
        self.hang_up();
        let server = self.options.server.as_deref();
        let server = server.unwrap_or(&self.account.server);
        if server.is_empty() {
            return Err(SyncError::Usage {
                what: "the remote does not know its server yet".into(),
                hint: "name a server, a user and a publication at the first sync".into(),
            }
            .into());
        }
        let url: ServerUrl = server.parse()?;
        let remembered = self.account.ca.as_deref().map(Path::new);
        let ca_file = self.options.ca_file.as_deref().or(remembered);
        let connecting = Progress::default();
        let go_on = &mut || progress(&connecting);
        Line::dial(&url, ca_file, self.options, self.clock, go_on)
    }

    fn session_options(&self, database: &Database, first_proof: ProofKind) -> SessionOptions {
        let options = self.options;
        SessionOptions {
            direction: options.direction,
            verify: options.verify,
            password: options.password.clone(),
            server: options.server.clone(),
            other_centre: options.other_centre,
            adopt: options.adopt,
            first_proof,
            spool: Box::new(FileSpool::beside(database.path())),
        }
    }

    fn hang_up(&mut self) {
        if let Some(line) = self.line.take() {
            let (sent, received) = line.hang_up();
            self.total.bytes_sent += sent;
            self.total.bytes_received += received;
        }
    }
}
