//! Which column a remote has numbers for, as it is configured.

use tidewater_centre::IdentitySpec;

use crate::error::ConfigError;
use crate::section_reader::SectionReader;

/// Reads `identity` of a table.
///
/// # Errors
/// It names no column, or one of its numbers cannot be.
pub(super) fn read(mut section: SectionReader, place: &str) -> Result<IdentitySpec, ConfigError> {
    section.place(&format!("{place}: identity"));
    let hint = "write identity = { column = \"...\", block = 1000, refill_below = 200 }";
    let wrong = |what: String| ConfigError::new(format!("{place}: identity: {what}"), hint);
    let column = section.text("column")?.filter(|column| !column.is_empty());
    let column = column.ok_or_else(|| wrong("it names no column".into()))?;
    let block = section.number("block")?;
    let refill_below = section.optional_number("refill_below")?;
    let refill_below = refill_below.unwrap_or((block / 5).max(1));
    if refill_below > block {
        return Err(wrong(format!(
            "refill_below is {refill_below}, and not from 1 to the block's {block}"
        )));
    }
    Ok(IdentitySpec {
        column,
        block: block as u32,
        refill_below: refill_below as u32,
    })
}
