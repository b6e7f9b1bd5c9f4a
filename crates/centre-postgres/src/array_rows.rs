//! Rows of values as the parameters of a statement.

use tidewater_protocol::Datum;

use super::array::Array;
use super::values::PostgresType;
use tidewater_centre::engine::flight::{RowParameters, RowSource};

/// Rows of values as parameters: an array for each column.
#[derive(Debug)]
pub(crate) struct ArrayRows {
    pub(super) arrays: Vec<Array>,
    count: usize,
    /// Where the arrays ended before the last row.
    before: Vec<(i32, usize)>,
}

impl RowParameters for ArrayRows {
    type Kind = PostgresType;

    fn new(kinds: &[PostgresType]) -> ArrayRows {
        ArrayRows {
            arrays: kinds.iter().map(|&kind| Array::new(kind)).collect(),
            count: 0,
            before: Vec::with_capacity(kinds.len()),
        }
    }

    fn push(&mut self, row: &[Datum<'_>]) -> bool {
        self.before.clear();
        self.before.extend(self.arrays.iter().map(Array::position));
        let mut values = self.arrays.iter_mut().zip(row);
        let fits = values.all(|(array, value)| array.push(value).is_ok());
        match fits {
            true => self.count += 1,
            false => {
                for (array, &before) in self.arrays.iter_mut().zip(&self.before) {
                    array.truncate(before);
                }
            }
        }
        fits
    }

    fn count(&self) -> usize {
        self.count
    }

    fn source(kinds: &[PostgresType], first: usize) -> RowSource {
        let parameters = kinds.iter().zip(first..);
        let parameters = parameters.map(|(&kind, number)| Array::parameter(kind, number));
        let names = (1..=kinds.len()).map(|at| format!("c{at}, "));
        RowSource {
            relation: format!(
                "unnest({}) WITH ORDINALITY AS v({}n)",
                parameters.collect::<Vec<_>>().join(", "),
                names.collect::<String>()
            ),
            number: "v.n".into(),
            columns: (1..=kinds.len()).map(|at| format!("v.c{at}")).collect(),
        }
    }
}
