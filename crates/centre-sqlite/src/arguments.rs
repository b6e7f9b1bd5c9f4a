//! The parameters of statements that an operator wrote.

use rusqlite::types::Value as Native;

use tidewater_protocol::{ColumnType, Value};

use super::values;
use tidewater_centre::engine::scripts::ScriptStatement;

/// The parameters of a script's statement. A time of the server's own is spelled as SQLite's
/// functions spell theirs, to be compared with them.
pub(super) fn of_script(statement: &ScriptStatement, values: &[Value]) -> Vec<Native> {
    let typed = statement.typed().zip(values);
    let natives = typed.map(|((column_type, is_own_time), value)| match value {
        Value::Text(text) if is_own_time => {
            let seconds = text.get(..19).unwrap_or(text);
            Native::Text(seconds.replace('T', " "))
        }
        value => bound(column_type, value),
    });
    natives.collect()
}

/// A value as a parameter.
pub(super) fn bound(column_type: ColumnType, value: &Value) -> Native {
    let (datum, _) = column_type.datum(value.as_ref());
    // A decimal that no number is, is compared and kept as text.
    values::bind(column_type, false, &datum).unwrap_or_else(|_| values::native(value.as_ref()))
}
