//! Which column a remote has numbers for, as it is configured.

use serde::Deserialize;

use tidewater_centre::IdentitySpec;

use crate::error::ConfigError;

#[derive(Deserialize)]
pub(super) struct RawIdentity {
    column: Option<String>,
    block: Option<u64>,
    refill_below: Option<u64>,
}

/// What a remote gets at once if nothing else is said.
const BLOCK: u64 = 1000;

/// A remote has so many numbers at most: the centre writes them down one after the other.
const MAX_BLOCK: u64 = 1_000_000;

impl RawIdentity {
    pub(super) fn read(self, place: &str) -> Result<IdentitySpec, ConfigError> {
        let hint = "write identity = { column = \"...\", block = 1000, refill_below = 200 }";
        let wrong = |what: String| ConfigError::new(format!("{place}: identity: {what}"), hint);
        let column = self.column.filter(|column| !column.is_empty());
        let column = column.ok_or_else(|| wrong("it names no column".into()))?;
        let block = self.block.unwrap_or(BLOCK);
        if !(1..=MAX_BLOCK).contains(&block) {
            return Err(wrong(format!(
                "block is {block}, and not from 1 to {MAX_BLOCK}"
            )));
        }
        let refill_below = self.refill_below.unwrap_or((block / 5).max(1));
        if !(1..=block).contains(&refill_below) {
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
}
