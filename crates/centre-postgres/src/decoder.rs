//! Rows of results and of COPY, unpacked to [`Datum`]s without an allocation a row.

use tokio_postgres::Row;

use tidewater_protocol::Datum;

use super::array::Raw;
use super::values::PostgresType;
use tidewater_centre::error::CentreError;

/// Unpacks rows of columns of the same kinds.
#[derive(Debug)]
pub(super) struct RowDecoder {
    kinds: Vec<PostgresType>,
    /// Long decimals are spelled out here, one for each column.
    scratch: Vec<String>,
}

impl RowDecoder {
    pub(super) fn new(kinds: impl IntoIterator<Item = PostgresType>) -> RowDecoder {
        let kinds: Vec<PostgresType> = kinds.into_iter().collect();
        let scratch = vec![String::new(); kinds.len()];
        RowDecoder { kinds, scratch }
    }

    /// The columns of a result's row from `first` on.
    pub(super) fn result<'a>(
        &'a mut self,
        row: &'a Row,
        first: usize,
        out: &mut Vec<Datum<'a>>,
    ) -> Result<(), CentreError> {
        out.clear();
        let columns = self.kinds.iter().zip(&mut self.scratch).enumerate();
        for (index, (kind, scratch)) in columns {
            let Raw(value) = row
                .try_get(first + index)
                .map_err(|error| unreadable(&error))?;
            out.push(datum(*kind, value, scratch)?);
        }
        Ok(())
    }

    /// A tuple of COPY BINARY behind its number of fields; gives its length, or `None`
    /// if the bytes end inside of it.
    pub(super) fn tuple<'a>(
        &'a mut self,
        bytes: &'a [u8],
        out: &mut Vec<Datum<'a>>,
    ) -> Result<Option<usize>, CentreError> {
        out.clear();
        let mut at = 0;
        for (kind, scratch) in self.kinds.iter().zip(&mut self.scratch) {
            let Some(length) = bytes.get(at..at + 4) else {
                return Ok(None);
            };
            let length = i32::from_be_bytes([length[0], length[1], length[2], length[3]]);
            at += 4;
            let Ok(length) = usize::try_from(length) else {
                out.push(Datum::Null);
                continue;
            };
            let Some(value) = bytes.get(at..at + length) else {
                return Ok(None);
            };
            at += length;
            out.push(datum(*kind, Some(value), scratch)?);
        }
        Ok(Some(at))
    }
}

fn datum<'a>(
    kind: PostgresType,
    value: Option<&'a [u8]>,
    scratch: &'a mut String,
) -> Result<Datum<'a>, CentreError> {
    match value {
        None => Ok(Datum::Null),
        Some(value) => kind.decode(value, scratch).map_err(|_| {
            unreadable(&format!(
                "a value of kind {kind:?} is beyond what remotes know"
            ))
        }),
    }
}

fn unreadable(reason: &dyn std::fmt::Display) -> CentreError {
    CentreError::Internal {
        message: format!("PostgreSQL sent a row that cannot be read: {reason}"),
    }
}

/// The emptied vector, for values that live for another while: the allocation is
/// kept from row to row.
pub(super) fn recycle<'b>(mut values: Vec<Datum<'_>>) -> Vec<Datum<'b>> {
    values.clear();
    values.into_iter().map(|_| Datum::Null).collect()
}
