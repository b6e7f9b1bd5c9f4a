//! A user who writes into his own file what he would like to hold.
//!
//! The checkpoint lies on the device, and says which partitions it has. A signature over it
//! is all that keeps somebody from adding others.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension};

use tidewater_centre::Checkpoint;
use tidewater_centre::scope::{HeldPartitions, Partitions};
use tidewater_protocol::pack::pack_values;
use tidewater_protocol::{ColumnType, Datum};

use crate::tables::REGIONS;

/// What it is called among the faults.
pub(crate) const LIED: &str = "checkpoint claims partitions of others";

/// Layout and number of the key before the content of a checkpoint, the signature after it.
const BEFORE: usize = 5;
const AFTER: usize = 32;

/// Claims all regions of the tables that have any; false if there is no checkpoint.
pub(crate) fn claim_everything(remote: &Connection) -> rusqlite::Result<bool> {
    let sql = "SELECT checkpoint FROM tidewater_subscription";
    let signed: Option<Option<Vec<u8>>> = remote.query_row(sql, [], |row| row.get(0)).optional()?;
    let Some(claimed) = signed.flatten().and_then(|signed| claim(&signed)) else {
        return Ok(false);
    };
    let sql = "UPDATE tidewater_subscription SET checkpoint = ?1";
    Ok(remote.execute(sql, [claimed])? > 0)
}

/// What a signed checkpoint says.
pub(crate) fn body(signed: &[u8]) -> Option<&[u8]> {
    signed.get(BEFORE..signed.len().checked_sub(AFTER)?)
}

fn claim(signed: &[u8]) -> Option<Vec<u8>> {
    let (before, rest) = signed.split_at_checked(BEFORE)?;
    let (body, after) = rest.split_at_checked(rest.len().checked_sub(AFTER)?)?;
    let mut checkpoint = Checkpoint::decode(body)?;
    claim_all(&mut checkpoint);
    Some([before, &checkpoint.encode(), after].concat())
}

/// Adds all regions to what a checkpoint says is held.
pub(crate) fn claim_all(checkpoint: &mut Checkpoint) {
    let regions: Partitions = (1..=REGIONS).map(packed).collect();
    // Codes are none.
    let of_regions = |held: &&mut Partitions| !held.is_empty() && held.is_subset(&regions);
    for held in sets(checkpoint).filter(of_regions) {
        held.extend(regions.iter().cloned());
    }
}

/// The partitions that a checkpoint says are held, by rule: they are few.
pub(crate) fn sets(checkpoint: &mut Checkpoint) -> impl Iterator<Item = &mut Partitions> {
    let rules = checkpoint.rules.iter_mut();
    rules.filter_map(|rule| match &mut rule.partitions {
        HeldPartitions::Listed(partitions) => Some(Arc::make_mut(partitions)),
        HeldPartitions::Digest(_) => None,
    })
}

/// A region as a checkpoint has it.
pub(crate) fn packed(region: u64) -> Vec<u8> {
    let mut packed = Vec::new();
    let region = Datum::Integer(region as i64);
    pack_values(&mut packed, &[ColumnType::Integer], &[region]);
    packed
}
