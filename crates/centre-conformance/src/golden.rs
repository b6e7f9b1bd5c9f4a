//! Golden texts: every statement on the server's own tables, and the tables, as a database spells
//! them.

use std::fmt::Write as _;
use std::path::Path;

use tidewater_centre::engine::sql::system_dialect::SystemDialect;
use tidewater_centre::engine::sql::{system, tables};

/// Writes the golden file instead of comparing with it, if it is 1.
const WRITE: &str = "TIDEWATER_WRITE_GOLDEN";

/// Compares how a database spells everything with a golden file.
///
/// # Panics
/// They differ.
pub fn check_spelling(dialect: &dyn SystemDialect, golden: &Path) {
    let spelled = spell_all(dialect);
    if std::env::var(WRITE).is_ok_and(|it| it == "1") {
        let folder = golden.parent().expect("a golden file is in a folder");
        std::fs::create_dir_all(folder).expect("the folder of the golden file");
        std::fs::write(golden, spelled).expect("the golden file is written");
        return;
    }
    let expected = std::fs::read_to_string(golden).unwrap_or_default();
    let mut lines = expected.lines().zip(spelled.lines());
    let differing = lines.find(|(expected, spelled)| expected != spelled);
    assert!(
        expected == spelled,
        "{} has other texts, the first at {differing:?}; look at what {WRITE}=1 makes of it",
        golden.display()
    );
}

fn spell_all(dialect: &dyn SystemDialect) -> String {
    let mut all = String::new();
    let journal = &tables::DEPLOYMENT_STEP;
    for table in tables::ALL.iter().copied().chain([journal]) {
        for statement in dialect.create_table(table) {
            all.push_str(&statement);
            all.push_str(";\n");
        }
        all.push('\n');
    }
    for (group, statements) in system::ALL {
        for (name, statement) in *statements {
            // Where lines are broken says nothing.
            let spelled = dialect.spell(*statement);
            let words: Vec<&str> = spelled.split_whitespace().collect();
            let _ = writeln!(all, "-- {group}::{name}\n{};\n", words.join(" "));
        }
    }
    all
}
