//! The one form of values that are equal, packed: what sets of partitions and keys are made of.

use tidewater_protocol::decimal::Decimal;
use tidewater_protocol::pack::{pack_values, unpack_values};
use tidewater_protocol::{ColumnType, Datum, RowShape};

use crate::error::CentreError;

/// Partitions of this many columns are looked up without an allocation.
pub(super) const FEW_COLUMNS: usize = 4;

/// The one form of a value that every equal value has too.
pub fn canonical(datum: Datum<'_>) -> Datum<'_> {
    match datum {
        // Adding zero turns minus zero into zero.
        Datum::Real(real) => Datum::Real(real + 0.0),
        other => other,
    }
}

/// A decimal without zeros at the end.
pub fn shortest(decimal: Decimal<'_>) -> Decimal<'_> {
    let Decimal::Exact {
        mut unscaled,
        mut scale,
    } = decimal
    else {
        return decimal;
    };
    while scale > 0 && unscaled % 10 == 0 {
        unscaled /= 10;
        scale -= 1;
    }
    Decimal::Exact { unscaled, scale }
}

pub(super) fn exact<'a>(column_type: ColumnType, value: Datum<'a>) -> Datum<'a> {
    match (column_type, value) {
        (ColumnType::Decimal { scale: None }, Datum::Decimal(decimal)) => {
            Datum::Decimal(shortest(decimal))
        }
        _ => canonical(value),
    }
}

/// Packs values so that equal ones pack to equal bytes.
pub fn pack_exact(columns: &[ColumnType], values: &[Datum<'_>]) -> Vec<u8> {
    let exact: Vec<_> = columns
        .iter()
        .zip(values)
        .map(|(&column, &value)| exact(column, value))
        .collect();
    let mut packed = Vec::new();
    pack_values(&mut packed, columns, &exact);
    packed
}

/// Packs the values of a row as remotes get them.
pub fn pack_row(columns: &[ColumnType], values: &[Datum<'_>]) -> Vec<u8> {
    let values: Vec<_> = values.iter().map(|value| canonical(*value)).collect();
    let mut packed = Vec::new();
    pack_values(&mut packed, columns, &values);
    packed
}

/// Unpacks what was packed here.
///
/// # Errors
/// It was not.
pub fn unpack<'p>(packed: &'p [u8], types: &[ColumnType]) -> Result<Vec<Datum<'p>>, CentreError> {
    unpack_values(packed, types).map_err(|error| CentreError::Internal {
        message: format!("packed values cannot be read: {error}"),
    })
}

/// The types of some columns of a table.
pub fn types_of(shape: &RowShape, columns: &[usize]) -> Vec<ColumnType> {
    columns.iter().map(|&index| shape.columns[index]).collect()
}
