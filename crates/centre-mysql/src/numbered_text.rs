//! Parameters by their numbers, which the database does not have.
//!
//! The engine writes `?1`, `?2`, as often and in whatever order it likes; the database takes `?` alone,
//! in the order in which they stand.

use mysql_async::{Params, Value as Native};

use tidewater_centre::engine::sql::lexing::SqlLexing;

/// A text as the database takes it, and which parameter stands at each place.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NumberedText {
    /// The text.
    pub(crate) sql: String,
    /// For each place the parameter, from 0 on.
    places: Vec<usize>,
}

impl NumberedText {
    /// Reads a text with numbered parameters. Those in quotes and comments are none.
    pub(crate) fn read(lexing: SqlLexing, text: &str) -> NumberedText {
        let mut sql = String::with_capacity(text.len());
        let mut places = Vec::new();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let length = lexing.length_of_opaque(rest).unwrap_or(first.len_utf8());
            let (piece, behind) = rest.split_at(length);
            sql.push_str(piece);
            rest = behind;
            if first != '?' {
                continue;
            }
            let digits = rest.find(|it: char| !it.is_ascii_digit());
            let (number, behind) = rest.split_at(digits.unwrap_or(rest.len()));
            if let Some(place) = number
                .parse::<usize>()
                .ok()
                .and_then(|it| it.checked_sub(1))
            {
                places.push(place);
                rest = behind;
            }
        }
        NumberedText { sql, places }
    }

    /// The parameters in the order of their places; `value` gives one by its number, from 0 on.
    pub(crate) fn parameters(&self, value: impl Fn(usize) -> Native) -> Params {
        match self.places.is_empty() {
            true => Params::Empty,
            false => Params::Positional(self.places.iter().map(|&it| value(it)).collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::MysqlDialect;
    use tidewater_centre::engine::sql::sql_dialect::SqlDialect as _;

    fn read(text: &str) -> (String, Vec<usize>) {
        let read = NumberedText::read(MysqlDialect.lexing(), text);
        (read.sql, read.places)
    }

    #[test]
    fn parameters_stand_where_they_are_used() {
        let expected = ("a = ? OR b = ? OR c = ?".to_owned(), vec![1, 0, 1]);
        assert_eq!(read("a = ?2 OR b = ?1 OR c = ?2"), expected);
        assert_eq!(read("x = ?12"), ("x = ?".to_owned(), vec![11]));
    }

    #[test]
    fn quotes_and_comments_have_no_parameters() {
        let text = "SELECT '?1', \"?1\", `?1` /* ?1 */ -- ?1\n# it's ?1\n, 'é?'";
        assert_eq!(read(text), (text.to_owned(), Vec::new()));
    }
}
