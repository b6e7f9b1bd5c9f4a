//! Triggers of the application that may set columns of rows that are inserted.
//!
//! Owns what is known and what is guessed of them. Which functions an adapter knows is the
//! adapter's affair.

use super::TableInfo;

/// A trigger that may change a row before it is inserted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingTrigger {
    /// Its name.
    pub name: String,
    /// The function that it runs.
    pub function: String,
    /// The columns that it sets.
    pub sets: SetColumns,
}

/// The columns that a trigger sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetColumns {
    /// These, as the documentation of its function says.
    Known(Vec<String>),
    /// Nobody knows: this is the text of the function.
    Unknown(String),
}

impl SettingTrigger {
    /// Whether the columns that it sets are known, and not guessed from its text.
    pub fn is_known(&self) -> bool {
        matches!(self.sets, SetColumns::Known(_))
    }

    /// Whether it sets a column, as far as can be told.
    fn sets(&self, column: &str) -> bool {
        match &self.sets {
            SetColumns::Known(columns) => columns.iter().any(|it| it == column),
            SetColumns::Unknown(text) => seems_to_set(text, column),
        }
    }
}

impl TableInfo {
    /// The trigger that sets a column: one of which that is known, or else one whose text seems to
    /// say so.
    pub fn setting_trigger(&self, column: &str) -> Option<&SettingTrigger> {
        let found = self.setting_triggers.iter().filter(|it| it.sets(column));
        found
            .clone()
            .find(|it| it.is_known())
            .or(found.clone().next())
    }
}

/// Whether the text of a trigger's function names a column of the new row in a place where it may
/// get a value: `NEW.column := ...`, `NEW.column = ...`, `SELECT ... INTO NEW.column`, or as a text
/// in quotes, which functions that are told their column have.
fn seems_to_set(text: &str, column: &str) -> bool {
    let is_word = |it: char| it.is_alphanumeric() || it == '_';
    let (text, column) = (text.to_lowercase(), column.to_lowercase());
    let mut from = 0;
    while let Some(at) = text[from..].find(&column) {
        let (begin, end) = (from + at, from + at + column.len());
        from = end;
        let (before, after) = (&text[..begin], &text[end..]);
        if after.starts_with(is_word) || before.ends_with(is_word) {
            continue;
        }
        let is_quoted = before.ends_with('\'') && after.starts_with('\'');
        let before = before.trim_end_matches('"');
        let after = after.trim_start_matches('"').trim_start();
        let is_assigned = after.starts_with(":=") || after.starts_with('=');
        let is_target = |rest: &str| {
            let rest = rest.trim_end();
            is_assigned || rest.ends_with("into") || rest.ends_with(',')
        };
        if is_quoted || before.strip_suffix("new.").is_some_and(is_target) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_that_a_function_only_reads_is_not_guessed_to_be_set() {
        for text in [
            "BEGIN NEW.total := NEW.price * NEW.count; RETURN NEW; END",
            "begin new.\"total\" = 1; return new; end",
            "SELECT sum(price) INTO NEW.total FROM line",
            "SELECT max(a), min(b) INTO NEW.highest, NEW.total FROM line",
            "NEW := jsonb_populate_record(NEW, jsonb_build_object('total', 1))",
        ] {
            assert!(seems_to_set(text, "total"), "{text}");
        }
        for text in [
            "IF NEW.total > 5 THEN RAISE EXCEPTION 'too much'; END IF",
            "NEW.subtotal := 1; NEW.total_net := 2",
            "PERFORM total(NEW.price)",
        ] {
            assert!(!seems_to_set(text, "total"), "{text}");
        }
    }

    #[test]
    fn what_is_known_goes_before_what_is_guessed() {
        let trigger = |name: &str, sets| SettingTrigger {
            name: name.into(),
            function: "f".into(),
            sets,
        };
        let guessed = trigger("a", SetColumns::Unknown("NEW.total := 1".into()));
        let known = trigger("b", SetColumns::Known(vec!["total".into()]));
        assert!(guessed.sets("total") && !guessed.is_known());
        assert!(known.sets("total") && !known.sets("Total"));
    }
}
