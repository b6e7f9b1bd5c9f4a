//! The parameters in operators' SQL: what stands outside of quotes and comments is
//! replaced, and nothing else is touched.

use tidewater_centre::engine::script::Script;
use tidewater_centre::engine::sql::lexing::SqlLexing;

/// Stands for a parameter in what was rendered; no SQL has it.
const MARK: char = '\u{1}';

/// All quotes and comments that some database has.
const EVERYTHING: SqlLexing = SqlLexing {
    has_backticks: true,
    has_brackets: true,
    has_escape_strings: true,
    has_dollar_quotes: true,
    has_hash_comments: true,
    nests_comments: true,
    ends_comments_at_returns: true,
};

/// The text of a script.
///
/// # Panics
/// A promise is broken.
pub fn scripts(data: &[u8]) {
    let Ok(source) = std::str::from_utf8(data) else {
        return;
    };
    if source.contains(MARK) {
        return;
    }
    for lexing in [SqlLexing::STANDARD, EVERYTHING] {
        script(source, lexing);
    }
}

fn script(source: &str, lexing: SqlLexing) {
    let render = |number: usize| format!("{MARK}{number}{MARK}");
    let script = match Script::parse(source, lexing, render) {
        Ok(script) => script,
        Err(error) => {
            assert!(!error.to_string().is_empty() && !error.hint().is_empty());
            return;
        }
    };
    let parameters = &script.parameters;
    for (index, name) in parameters.iter().enumerate() {
        assert!(
            !parameters[..index].contains(name),
            "{name} has two numbers"
        );
    }
    // What was rendered is left alone by a second look, and asks for nothing more.
    let again = Script::parse(&script.sql, lexing, render).expect("nothing is left to replace");
    assert_eq!((&again.sql, again.parameters.len()), (&script.sql, 0));
    only_parameters_differ(source, &script);
}

/// Source and result are the same but for a brace each where a mark stands.
fn only_parameters_differ(source: &str, script: &Script) {
    let mut source = source;
    let mut numbers_seen = 0;
    for (index, part) in script.sql.split(MARK).enumerate() {
        if index % 2 == 0 {
            let rest = source.strip_prefix(part);
            source = rest.unwrap_or_else(|| panic!("{part:?} does not stand in {source:?}"));
            continue;
        }
        let number: usize = part.parse().expect("a number stands between marks");
        assert!((1..=script.parameters.len()).contains(&number));
        numbers_seen = numbers_seen.max(number);
        let (inside, rest) = source
            .strip_prefix('{')
            .and_then(|rest| rest.split_once('}'))
            .expect("a parameter stands in braces");
        let name = script.parameters[number - 1].to_string();
        assert!(inside.trim_end().ends_with(&name));
        source = rest;
    }
    assert_eq!(source, "", "the end of the script is missing");
    assert_eq!(numbers_seen, script.parameters.len());
}
