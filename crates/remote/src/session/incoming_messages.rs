//! What may come from the server, and when.
//!
//! Owns the order of the server's messages and the checksums over rows. Leaves what messages
//! mean to the session, and what rows mean to the applier.

use tidewater_protocol::message::{Control, ResultBegin};

use super::error::SyncError;
use crate::database::SubscriptionState;

/// What the server's messages are checked against. A `Welcome` settles it.
#[derive(Debug, Default)]
struct ExpectedMessages {
    /// The subscriptions whose uploads get a result, in order.
    results: Vec<usize>,
    /// How many downloads come.
    downloads: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IncomingState {
    /// Nothing of substance has come.
    AwaitWelcome,
    /// Between results and downloads.
    Between,
    /// Inside of a result.
    Result,
    /// Inside of a download.
    Download,
    /// Everything has come.
    Ended,
}

/// Follows what the server sends.
#[derive(Debug)]
pub(super) struct IncomingMessages {
    state: IncomingState,
    agreed: ExpectedMessages,
    /// Results that have ended.
    results: usize,
    /// Downloads that have ended.
    downloads: usize,
    /// Whether a table has begun inside of the result or download.
    in_table: bool,
    checksum: crc32fast::Hasher,
}

impl IncomingMessages {
    pub(super) fn new() -> IncomingMessages {
        IncomingMessages {
            state: IncomingState::AwaitWelcome,
            agreed: ExpectedMessages::default(),
            results: 0,
            downloads: 0,
            in_table: false,
            checksum: crc32fast::Hasher::new(),
        }
    }

    pub(super) fn is_welcomed(&self) -> bool {
        self.state != IncomingState::AwaitWelcome
    }

    /// What is going on, for messages to people.
    pub(super) fn during(&self) -> &'static str {
        match self.state {
            IncomingState::AwaitWelcome => "before the server let us in",
            IncomingState::Between if self.downloads == 0 => "while the server was at work",
            IncomingState::Between | IncomingState::Download => "during the download",
            IncomingState::Result => "while the server told the result of the upload",
            IncomingState::Ended => "after the download",
        }
    }

    /// The server let us in: so many results and downloads must follow.
    pub(super) fn begin_results(&mut self, results: Vec<usize>, downloads: usize) {
        debug_assert_eq!(self.state, IncomingState::AwaitWelcome);
        self.state = IncomingState::Between;
        self.agreed = ExpectedMessages { results, downloads };
    }

    /// A message that frames rows. `may_result` tells for a subscription whether its
    /// upload is over, `requested` whether the download was asked for.
    pub(super) fn check_control(
        &mut self,
        control: &Control,
        subscriptions: &[SubscriptionState],
        may_result: impl Fn(usize) -> bool,
        requested: bool,
    ) -> Result<(), SyncError> {
        match (self.state, control) {
            (IncomingState::Between, Control::ResultBegin(begin))
                if self.results < self.agreed.results.len() =>
            {
                let index = self.agreed.results[self.results];
                check_result(begin, index, &subscriptions[index])?;
                if !may_result(index) {
                    return Err(SyncError::unexpected(
                        "the result of an upload came before its end",
                    ));
                }
                self.enter(IncomingState::Result);
                Ok(())
            }
            (IncomingState::Between, Control::DownloadBegin(begin))
                if self.results == self.agreed.results.len()
                    && self.downloads < self.agreed.downloads
                    && requested =>
            {
                if begin.subscription as usize != self.downloads {
                    return Err(SyncError::unexpected(format!(
                        "the download of subscription {} came in the place of {}",
                        begin.subscription, self.downloads
                    )));
                }
                self.enter(IncomingState::Download);
                Ok(())
            }
            (IncomingState::Result | IncomingState::Download, Control::TableBegin(_)) => {
                self.in_table = true;
                Ok(())
            }
            (IncomingState::Download, Control::DownloadMark(mark)) => {
                self.check(mark.checksum, "the download")
            }
            (IncomingState::Result, Control::ResultEnd(end)) => {
                self.results += 1;
                self.leave(end.checksum, "the result of the upload")
            }
            (IncomingState::Download, Control::DownloadEnd(end)) => {
                self.downloads += 1;
                self.leave(end.checksum, "the download")
            }
            (IncomingState::Between, Control::SyncEnd(_))
                if self.results == self.agreed.results.len()
                    && self.downloads == self.agreed.downloads
                    && requested =>
            {
                self.state = IncomingState::Ended;
                Ok(())
            }
            _ => Err(SyncError::unexpected(format!(
                "a {} came {}, where it does not belong",
                control.name(),
                self.during()
            ))),
        }
    }

    /// A piece of rows.
    pub(super) fn check_rows(&mut self, bytes: &[u8]) -> Result<(), SyncError> {
        if !self.in_table {
            return Err(SyncError::unexpected(format!(
                "rows came {} without a table",
                self.during()
            )));
        }
        self.checksum.update(bytes);
        Ok(())
    }

    fn enter(&mut self, state: IncomingState) {
        self.state = state;
        self.in_table = false;
        self.checksum.reset();
    }

    fn leave(&mut self, checksum: u32, what: &str) -> Result<(), SyncError> {
        self.state = IncomingState::Between;
        self.in_table = false;
        self.check(checksum, what)
    }

    fn check(&self, checksum: u32, what: &str) -> Result<(), SyncError> {
        if self.checksum.clone().finalize() == checksum {
            Ok(())
        } else {
            Err(SyncError::checksum(format!(
                "the checksum of {what} does not agree with what arrived"
            )))
        }
    }
}

fn check_result(
    begin: &ResultBegin,
    index: usize,
    subscription: &SubscriptionState,
) -> Result<(), SyncError> {
    let sent = subscription.next_upload().map(|id| id.to_vec());
    let fits = begin.subscription as usize == index
        && begin.sequence == subscription.sequence + 1
        && Some(&begin.upload_id) == sent.as_ref();
    if fits {
        Ok(())
    } else {
        Err(SyncError::unexpected(format!(
            "the result of another upload came (subscription {}, number {}) in the place of \
             subscription {index}, number {}",
            begin.subscription,
            begin.sequence,
            subscription.sequence + 1
        )))
    }
}
