//! Downloads that lines break: how long to wait before one is gone on with, and when to give up.
//!
//! Owns the count of tries that brought nothing. What is kept of a download is in its files
//! ([`FileDownloadStore`]), which a session leaves cut to what can be relied on.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use tidewater_remote::database::RemoteDatabase;
use tidewater_remote::spool::FileDownloadStore;

use crate::error::ClientError;
use crate::retry_pause::pause;

/// A line that has brought something is tried again so soon.
const LINE_WAS_THERE: Duration = Duration::from_millis(50);

/// After so many tries in a row that brought nothing new the sync ends.
const TRIES_IN_VAIN: u32 = 8;

/// What was kept of the downloads of a file when their line broke last. What earlier syncs have left
/// counts as brought by the first connection that breaks: nobody looks for it before.
#[derive(Default)]
pub(crate) struct BrokenDownload {
    /// By file: its beginning, and its length.
    parts: HashMap<PathBuf, (Vec<u8>, u64)>,
    /// Tries in a row that brought nothing new.
    in_vain: u32,
}

impl BrokenDownload {
    /// A line has broken. Whether there is anything to go on with.
    pub(crate) fn look(&mut self, database: &RemoteDatabase) -> bool {
        self.count(FileDownloadStore::beside(database.path()).kept())
    }

    /// A download that began anew has not got on, however much it has brought.
    fn count(&mut self, parts: HashMap<PathBuf, (Vec<u8>, u64)>) -> bool {
        let is_more = parts.iter().any(|(path, (begins, bytes))| {
            let before = self.parts.get(path);
            before.is_none_or(|(began, before)| begins.starts_with(began) && bytes > before)
        });
        self.in_vain = if is_more { 0 } else { self.in_vain + 1 };
        // A file that is gone is remembered: were it there once more, it would be nothing new.
        self.parts.extend(parts);
        !self.parts.is_empty()
    }

    /// How long to wait before the next try; `None`: it is enough.
    pub(crate) fn pause(&self) -> Option<Duration> {
        match self.in_vain {
            0 => Some(LINE_WAS_THERE),
            TRIES_IN_VAIN.. => None,
            times => Some(pause(times - 1)),
        }
    }

    /// Why the sync ends.
    pub(crate) fn given_up(&self, last: ClientError) -> ClientError {
        ClientError::Broken {
            tries: self.in_vain,
            bytes_kept: self.parts.values().map(|it| it.1).sum(),
            last: Box::new(last.in_sync()),
        }
    }
}

#[cfg(test)]
mod tests {
    use tidewater_connection::device::DeviceError;
    use tidewater_protocol::Code;

    use super::*;

    fn part(begins: &[u8], bytes: u64) -> HashMap<PathBuf, (Vec<u8>, u64)> {
        HashMap::from([("part".into(), (begins.to_vec(), bytes))])
    }

    #[test]
    fn tries_that_bring_nothing_new_are_made_less_and_less_often_and_then_no_more() {
        let mut broken = BrokenDownload::default();
        assert!(
            !broken.count(HashMap::new()),
            "there is nothing to go on with"
        );
        assert!(broken.count(part(b"one", 10)));
        assert_eq!(broken.pause(), Some(LINE_WAS_THERE));
        let mut longest = Duration::ZERO;
        for _ in 1..TRIES_IN_VAIN {
            assert!(broken.count(part(b"one", 10)));
            // Half of it is chance.
            let pause = broken.pause().unwrap();
            assert!(pause >= longest, "{pause:?} after {longest:?}");
            longest = pause;
        }
        assert!(broken.count(part(b"one", 10)));
        assert_eq!(broken.pause(), None);
        let lost = DeviceError::ConnectionLost {
            during: "the download",
            source: None,
        };
        let error = broken.given_up(lost.into());
        assert_eq!(error.code(), Code::ConnectionLost);
        assert!(error.to_string().contains("8 times"), "{error}");
        assert!(error.hint().contains("goes on"), "{}", error.hint());
        // Whatever comes has it begin to count anew.
        broken.count(part(b"one", 11));
        assert_eq!(broken.pause(), Some(LINE_WAS_THERE));
    }

    #[test]
    fn a_download_that_begins_anew_brings_nothing_new() {
        let mut broken = BrokenDownload::default();
        broken.count(part(b"one", 10));
        for (tries, (begins, bytes)) in (1..).zip([(b"two", 11), (b"six", 12), (b"ten", 13)]) {
            assert!(broken.count(part(begins, bytes)));
            assert_eq!(broken.in_vain, tries);
        }
        assert!(broken.count(HashMap::new()));
        assert!(broken.count(part(b"ten", 13)));
        assert_eq!(broken.in_vain, 5);
        broken.count(part(b"ten", 14));
        assert_eq!(broken.in_vain, 0);
    }
}
