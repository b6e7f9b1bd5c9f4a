//! Receiving what a remote compares: checksums of ranges of keys, checked against the
//! schema and bounded, for the adapters to find what differs.

use prost::Message;

use tidewater_centre::TableCompare;
use tidewater_protocol::compare::Ranges;
use tidewater_protocol::message::{CompareTable, KeyRange, TableBegin};
use tidewater_protocol::{Code, PublicationSchema};

use tidewater_server_jobs::fault::Fault;
use tidewater_server_jobs::memory::{MemoryBudget, Reservation};

/// What one sync may compare, encoded.
const COMPARE_BYTES: usize = 8 << 20;

/// A range in memory, here and at the worker, is up to so many times as large as on the
/// wire.
const BYTES_A_BYTE: u64 = 8;

/// What the Hello says of a subscription.
pub(crate) struct ComparedSubscription<'a> {
    pub(crate) schema: &'a PublicationSchema,
    /// It announced that it compares.
    pub(crate) compares: bool,
    /// Its schema is another: what it compares means nothing, and is dropped.
    pub(crate) schema_differs: bool,
}

/// What a remote says of a table that it compares.
struct AnnouncedCompare {
    begin: TableBegin,
    ranges: Vec<KeyRange>,
    untracked: bool,
}

/// Takes the tables that a remote compares.
pub(crate) struct CompareReader<'a> {
    expected: Vec<ComparedSubscription<'a>>,
    tables: Vec<Vec<AnnouncedCompare>>,
    bytes: usize,
    reservation: Reservation,
}

impl<'a> CompareReader<'a> {
    pub(crate) fn new(
        expected: Vec<ComparedSubscription<'a>>,
        budget: &MemoryBudget,
    ) -> CompareReader<'a> {
        CompareReader {
            tables: expected.iter().map(|_| Vec::new()).collect(),
            expected,
            bytes: 0,
            reservation: budget.empty(),
        }
    }

    /// A table, or more of it.
    pub(crate) fn table(&mut self, compare: CompareTable) -> Result<(), Fault> {
        let index = compare.subscription as usize;
        let expected = self.expected.get(index).filter(|it| it.compares);
        let expected = expected.ok_or_else(|| Fault::unexpected("a comparison"))?;
        let bytes = compare.encoded_len();
        self.bytes += bytes;
        if self.bytes > COMPARE_BYTES {
            return Err(Fault::new(
                Code::LimitExceeded,
                format!("the remote compares more than {COMPARE_BYTES} bytes of checksums at once"),
                "subscribe to fewer tables in one file, or to those with shorter keys",
            ));
        }
        if expected.schema_differs {
            return Ok(());
        }
        if !self.reservation.grow_anyway(bytes as u64 * BYTES_A_BYTE) {
            return Err(Fault::busy(2_000));
        }
        let begin = compare
            .table
            .ok_or_else(|| malformed("a comparison of no table".into()))?;
        let tables = &mut self.tables[index];
        match tables
            .iter_mut()
            .find(|known| known.begin.table == begin.table)
        {
            Some(known) => known.ranges.extend(compare.ranges),
            None => tables.push(AnnouncedCompare {
                begin: *begin,
                ranges: compare.ranges,
                untracked: compare.untracked,
            }),
        }
        Ok(())
    }

    /// Everything that each subscription compares, and the memory that it holds.
    pub(crate) fn finish(self) -> Result<(Vec<Vec<TableCompare>>, Reservation), Fault> {
        let subscriptions = self.expected.iter().zip(self.tables);
        let checked = subscriptions.map(|(expected, tables)| {
            let tables = tables.into_iter();
            let tables = tables.map(|it| check(expected.schema, it));
            tables.collect::<Result<Vec<_>, _>>()
        });
        Ok((checked.collect::<Result<_, _>>()?, self.reservation))
    }
}

/// Whether a table is compared as it is published, in ranges that make sense.
fn check(
    schema: &PublicationSchema,
    AnnouncedCompare {
        begin,
        ranges,
        untracked,
    }: AnnouncedCompare,
) -> Result<TableCompare, Fault> {
    let name = &begin.table;
    let published = schema.table(name);
    let published = published.filter(|table| {
        let header = TableBegin::for_table(table);
        (&header.columns, &header.key) == (&begin.columns, &begin.key)
    });
    let Some(published) = published else {
        return Err(malformed(format!(
            "a comparison of the table {name:?} as it is not in the schema that the remote names"
        )));
    };
    Ranges::like(&published.shape(), &ranges)
        .map_err(|error| malformed(format!("a comparison of {name:?} of which {error}")))?;
    Ok(TableCompare {
        table: begin.table.clone(),
        ranges: ranges.into(),
        untracked,
    })
}

fn malformed(what: String) -> Fault {
    Fault::peer(Code::MalformedMessage, format!("the remote sent {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_compared_is_taken_although_it_is_larger_than_all_memory() {
        let budget = MemoryBudget::new(100);
        let schema = PublicationSchema {
            name: "p".into(),
            tables: Vec::new(),
            transactional: false,
        };
        let table = TableBegin {
            table: "t".repeat(200),
            ..TableBegin::default()
        };
        let compares = || {
            let expected = ComparedSubscription {
                schema: &schema,
                compares: true,
                schema_differs: false,
            };
            let mut comparing = CompareReader::new(vec![expected], &budget.of_session());
            let taken = comparing.table(CompareTable {
                subscription: 0,
                table: Some(Box::new(table.clone())),
                ranges: Vec::new(),
                untracked: false,
            });
            taken.map(|()| comparing)
        };
        let first = compares().unwrap();
        assert_eq!(compares().err(), Some(Fault::busy(2_000)));
        drop(first);
        compares().unwrap();
        assert_eq!(budget.gauge().reserved_bytes(), 0);
    }
}
