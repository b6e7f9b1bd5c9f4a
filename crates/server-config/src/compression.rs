//! How what is sent is packed, as `[server]` and `[upstream]` say it.

use tidewater_carrier::{Compression, CompressionOptions, NoCompression};

use crate::error::ConfigError;
use crate::section_reader::SectionReader;

/// Reads `compression` and `compression_level` of a section.
///
/// # Errors
/// One of them is none.
pub(super) fn read_compression(
    section: &mut SectionReader,
) -> Result<CompressionOptions, ConfigError> {
    let compression = match section.text("compression")? {
        None => Compression::default(),
        Some(text) => text.parse().map_err(|error: NoCompression| {
            ConfigError::new(
                format!("{} is {text:?}: {error}", section.key_name("compression")),
                "write compression = \"auto\"",
            )
        })?,
    };
    let most = compression.levels();
    let level = section.optional_number("compression_level")?;
    let level = level.map(|level| match u8::try_from(level) {
        Ok(known) if known <= most => Ok(known),
        _ => Err(ConfigError::new(
            format!("{} is {level}", section.key_name("compression_level")),
            format!("write a number from 1 (fast) to {most} (small), or leave the key out"),
        )),
    });
    let level = level.transpose()?;
    Ok(CompressionOptions { compression, level })
}
