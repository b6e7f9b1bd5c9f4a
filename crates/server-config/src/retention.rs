//! `[retention]`: how long things are kept.

use std::time::Duration;

use tidewater_centre::records::RetentionTimes;

use crate::error::ConfigError;
use crate::section_reader::SectionReader;

/// `[retention]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionConfig {
    /// How long things are kept.
    pub keep: RetentionTimes,
    /// How often what is older is dropped.
    pub interval: Duration,
}

/// What counts where nothing is said.
impl Default for RetentionConfig {
    fn default() -> Self {
        let section = SectionReader::empty("retention");
        RetentionConfig::read(section).expect("the defaults of the grammar are durations")
    }
}

impl RetentionConfig {
    pub(super) fn read(mut section: SectionReader) -> Result<RetentionConfig, ConfigError> {
        let mut ms = |key| {
            let kept = section.duration(key)?;
            Ok::<i64, ConfigError>(i64::try_from(kept.as_millis()).unwrap_or(i64::MAX))
        };
        let keep = RetentionTimes {
            log_ms: ms("log")?,
            history_ms: ms("history")?,
            conflicts_ms: ms("conflicts")?,
        };
        let interval = section.duration("interval")?;
        Ok(RetentionConfig { keep, interval })
    }
}
