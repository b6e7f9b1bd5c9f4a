//! The trigger functions that come with PostgreSQL: which columns of a new row they set.
//!
//! The source of the table are PostgreSQL's chapters "Text Search Functions", "Trigger Functions"
//! and the pages of `lo` and `spi` (autoinc, insert_username, moddatetime, refint; timetravel until
//! version 11). Any other function is only known by its text.

use tidewater_centre::engine::catalog::{SetColumns, SettingTrigger};

/// A trigger that runs before an insert. `arguments` end in NUL each.
pub(super) fn setting_trigger(
    name: String,
    function: String,
    is_compiled: bool,
    arguments: &[u8],
    text: String,
) -> SettingTrigger {
    let arguments = arguments.split(|it| *it == 0);
    let mut arguments: Vec<String> = arguments
        .map(|it| String::from_utf8_lossy(it).into_owned())
        .collect();
    arguments.pop();
    // Anybody may call a function of his own like one of these.
    let known = is_compiled
        .then(|| set_columns(&function, &arguments))
        .flatten();
    let sets = known.map(SetColumns::Known).unwrap_or_else(|| {
        // A function may be told its column.
        let arguments = arguments.iter().map(|it| format!(" '{it}'"));
        SetColumns::Unknown(text + &arguments.collect::<String>())
    });
    SettingTrigger {
        name,
        function,
        sets,
    }
}

/// The columns that a known function sets; `None` for any other.
fn set_columns(function: &str, arguments: &[String]) -> Option<Vec<String>> {
    let set: Vec<&String> = match function {
        // The column, and what its text comes from.
        "tsvector_update_trigger" | "tsvector_update_trigger_column" => {
            arguments.iter().take(1).collect()
        }
        // The column alone.
        "insert_username" | "moddatetime" => arguments.iter().take(1).collect(),
        // Columns, each with its sequence.
        "autoinc" => arguments.iter().step_by(2).collect(),
        // When a row begins and ends, and who inserted it; updates and deletes set the others.
        "timetravel" => arguments.iter().take(3).collect(),
        // They judge or follow a row, and do not change it.
        "suppress_redundant_updates_trigger"
        | "lo_manage"
        | "check_primary_key"
        | "check_foreign_key" => Vec::new(),
        _ => return None,
    };
    Some(set.into_iter().cloned().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sets(function: &str, is_compiled: bool, arguments: &[u8]) -> SetColumns {
        let text = "NEW.x := 1".to_owned();
        setting_trigger("t".into(), function.into(), is_compiled, arguments, text).sets
    }

    #[test]
    fn the_first_argument_of_a_text_search_trigger_is_what_it_sets() {
        let arguments = b"fulltext\0pg_catalog.english\0title\0description\0";
        let known =
            |columns: &[&str]| SetColumns::Known(columns.iter().map(|&it| it.to_owned()).collect());
        assert_eq!(
            sets("tsvector_update_trigger", true, arguments),
            known(&["fulltext"])
        );
        assert_eq!(sets("autoinc", true, b"a\0s\0b\0r\0"), known(&["a", "b"]));
        assert_eq!(
            sets("timetravel", true, b"f\0t\0i\0u\0d\0"),
            known(&["f", "t", "i"])
        );
        assert_eq!(sets("lo_manage", true, b"picture\0"), known(&[]));
    }

    #[test]
    fn a_function_of_the_users_own_is_known_by_its_text_whatever_it_is_called() {
        assert_eq!(
            sets("moddatetime", false, b"changed\0"),
            SetColumns::Unknown("NEW.x := 1 'changed'".into())
        );
        assert_eq!(
            sets("stamp", true, b""),
            SetColumns::Unknown("NEW.x := 1".into())
        );
    }
}
