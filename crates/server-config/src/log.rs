//! `[log]`: how the server logs.

use crate::error::ConfigError;
use crate::section_reader::SectionReader;

/// `[log]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// How lines are written.
    pub format: LogFormat,
    /// What is logged: a level, or directives such as `info,tidewater_server=debug`.
    pub level: String,
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl LogConfig {
    pub(super) fn read(mut section: SectionReader) -> Result<LogConfig, ConfigError> {
        let format = section.choice("format", &[LogFormat::Text, LogFormat::Json])?;
        let level = section.text("level")?.unwrap_or_default();
        if level.trim().is_empty() {
            return Err(ConfigError::new(
                "log.level is empty",
                "write error, warn, info, debug or trace, or leave the key out",
            ));
        }
        Ok(LogConfig { format, level })
    }
}
