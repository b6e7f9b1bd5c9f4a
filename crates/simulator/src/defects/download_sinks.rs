//! What takes a download and does not pass all of it on.

use std::collections::HashSet;

use tidewater_centre::{
    CentreError, Checkpoint, DownloadOutcome, DownloadSink, DownloadStart, RemoteHolding,
    ToldSettled,
};
use tidewater_protocol::message::TableBegin;
use tidewater_protocol::pack::pack_values;
use tidewater_protocol::{Datum, Op, UnpackedRow};

use super::list::{Defect, current, is_on};
use super::uploads::rewritten;

/// Leaves something out of a download.
pub(super) struct Filter<'a> {
    pub(super) sink: &'a mut dyn DownloadSink,
    /// The keys that the same sync uploaded.
    pub(super) own: HashSet<Vec<u8>>,
    /// The regions that the user has.
    pub(super) regions: Vec<i64>,
    pub(super) table: Option<TableBegin>,
    /// The download goes on with an earlier one, and comes to what had not come yet.
    pub(super) resumed: bool,
    /// Rows, and removals.
    pub(super) left_out: [u64; 2],
    /// Withheld until another one is known.
    pub(super) outcome: Option<(usize, DownloadOutcome)>,
}

pub(super) fn leaves_out() -> bool {
    matches!(
        current(),
        Some(
            Defect::RemovalNotSent
                | Defect::RowSkipped
                | Defect::ResumedUnchanged
                | Defect::OwnRowsNotSent
                | Defect::SecondRuleForgotten
        )
    )
}

impl DownloadSink for Filter<'_> {
    fn begin(&mut self, index: usize, start: DownloadStart) {
        self.resumed = start.resumed;
        self.sink.begin(index, start);
    }

    fn settled(&mut self, told: ToldSettled) {
        if !is_on(Defect::SettledNotTold) {
            self.sink.settled(told);
        }
    }

    fn table(&mut self, begin: TableBegin) {
        self.table = Some(begin.clone());
        self.sink.table(begin);
    }

    fn rows(&mut self, rows: Vec<u8>) -> Result<(), CentreError> {
        let (Some(begin), true) = (&self.table, leaves_out()) else {
            return self.sink.rows(rows);
        };
        let (own, left_out) = (&self.own, &mut self.left_out);
        let resumed = self.resumed;
        let region = begin.columns.iter().position(|it| it.name == "region");
        let region = region.filter(|_| begin.table == "site");
        let is_mine = |row: &UnpackedRow<'_>| match region.and_then(|it| row.new.get(it)) {
            Some(Datum::Integer(region)) => self.regions.contains(region),
            _ => true,
        };
        let types = begin.shape().map(|shape| shape.key_columns());
        let rows = rewritten(begin, &rows, &mut |row, number| {
            let is_left_out = match (current(), row.op) {
                (Some(Defect::RemovalNotSent), Some(Op::Remove)) => true,
                (Some(Defect::RowSkipped), Some(Op::Upsert)) => number == 0,
                (Some(Defect::ResumedUnchanged), _) => resumed && !begin.replace,
                (Some(Defect::OwnRowsNotSent), Some(Op::Upsert)) => {
                    let mut key = Vec::new();
                    pack_values(&mut key, types.as_deref().unwrap_or_default(), &row.key);
                    own.contains(&key)
                }
                (Some(Defect::SecondRuleForgotten), Some(Op::Upsert)) => !is_mine(row),
                _ => false,
            };
            left_out[usize::from(row.op != Some(Op::Upsert))] += u64::from(is_left_out);
            (!is_left_out).then_some(())
        });
        match rows.is_empty() {
            true => Ok(()),
            false => self.sink.rows(rows),
        }
    }

    fn mark(&mut self, mark: Vec<u8>, rows: u64) {
        self.sink.mark(mark, rows);
    }

    fn comparing(&mut self) -> Result<(), CentreError> {
        self.sink.comparing()
    }

    fn holds(&mut self, index: usize, holding: RemoteHolding) {
        self.sink.holds(index, holding);
    }

    fn end(&mut self, index: usize, outcome: DownloadOutcome) {
        let [upserts, removals] = std::mem::take(&mut self.left_out);
        let outcome = DownloadOutcome {
            upserts: outcome.upserts - upserts,
            removals: outcome.removals - removals,
            ..outcome
        };
        match is_on(Defect::WatermarkAfterReads) {
            true => self.outcome = Some((index, outcome)),
            false => self.sink.end(index, outcome),
        }
    }
}

/// Only wants to know the checkpoint.
pub(super) struct Later(pub(super) Option<Checkpoint>);

impl DownloadSink for Later {
    fn begin(&mut self, _: usize, _: DownloadStart) {}

    fn table(&mut self, _: TableBegin) {}

    fn rows(&mut self, _: Vec<u8>) -> Result<(), CentreError> {
        Ok(())
    }

    fn end(&mut self, _: usize, outcome: DownloadOutcome) {
        self.0 = outcome.checkpoint;
    }
}
