//! What the program prints: JSON objects, tables for people, errors.
//!
//! Owns the rule that standard output carries results only (with `--json` exactly one
//! object) and everything else goes to standard error. What is printed is decided by
//! the commands.

use std::io::{self, Write};

use serde::Serialize;
use tidewater_protocol::Code;
use tidewater_protocol::datetime::push_timestamp;

use crate::failure::{Failure, describe};

/// The object that `--json` prints instead of a result.
#[derive(Serialize)]
struct ErrorObject<'a> {
    error: ErrorFields<'a>,
}

#[derive(Serialize)]
struct ErrorFields<'a> {
    code: &'a str,
    message: &'a str,
    hint: &'a str,
    retry_after_ms: Option<u64>,
}

/// Prints one JSON object on a line of its own.
pub fn json(object: &impl Serialize) -> Result<(), Failure> {
    json_to_reader(object).map(drop)
}

/// The same, of a command that goes on for as long as there is somebody who reads: whether there is.
pub fn json_to_reader(object: &impl Serialize) -> Result<bool, Failure> {
    let mut line = serde_json::to_string(object)
        .map_err(|error| Failure::new(Code::Internal, format!("cannot write JSON: {error}"), ""))?;
    line.push('\n');
    text_to_reader(&line)
}

/// Prints text for people or programs as it stands.
pub fn text(text: &str) -> Result<(), Failure> {
    text_to_reader(text).map(drop)
}

/// The same, and whether there is still somebody who reads.
pub fn text_to_reader(text: &str) -> Result<bool, Failure> {
    let mut stdout = io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        // Whoever read has seen enough (`tidewater user list | head -1`).
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::usage(
            format!("cannot write to standard output: {}", describe(&error)),
            "",
        )),
        Ok(()) => Ok(true),
    }
}

/// Prints a remark to standard error. There is nobody to tell when that fails.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Prints an error as the command's user asked to read it.
pub fn failure(failure: &Failure, as_json: bool) {
    let mut lines = format!("error: {}", printable_lines(&failure.message));
    if !failure.hint.is_empty() {
        lines.push_str(&format!("\n  hint: {}", printable_lines(&failure.hint)));
    }
    note(&lines);
    if as_json {
        let object = ErrorObject {
            error: ErrorFields {
                code: failure.code.name(),
                message: &failure.message,
                hint: &failure.hint,
                retry_after_ms: failure.retry_after_ms,
            },
        };
        // The exit code tells the failure also when nobody reads standard output.
        let _ = json(&object);
    }
}

/// The text with control characters made visible: what comes from a database or a
/// server must not move the cursor or colour the terminal.
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() {
            out.extend(character.escape_default());
        } else {
            out.push(character);
        }
    }
    out
}

/// Like [`printable`], but keeps the text's own lines, indented.
fn printable_lines(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(printable).collect();
    lines.join("\n        ")
}

/// Rows of text in aligned columns.
pub struct TextTable {
    columns: Vec<TextColumn>,
    rows: Vec<Vec<String>>,
}

struct TextColumn {
    title: &'static str,
    right: bool,
}

impl TextTable {
    /// A table of these columns; a title that begins with `>` has its values aligned to
    /// the right.
    pub fn new(titles: &[&'static str]) -> TextTable {
        let columns = titles.iter().map(|title| TextColumn {
            title: title.trim_start_matches('>'),
            right: title.starts_with('>'),
        });
        TextTable {
            columns: columns.collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; missing cells stay empty.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells = cells.into_iter().map(|cell| printable(&cell));
        self.rows.push(cells.collect());
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The lines, each indented by `indent` spaces.
    pub fn render(&self, indent: usize) -> String {
        let titles: Vec<String> = self.columns.iter().map(|it| it.title.to_owned()).collect();
        let lines = || std::iter::once(&titles).chain(&self.rows);
        let width = |index: usize| {
            let widths = lines().map(|line| line.get(index).map_or(0, |it| it.chars().count()));
            widths.max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let mut out = String::new();
        for line in lines() {
            let mut rendered = " ".repeat(indent);
            for (index, column) in self.columns.iter().enumerate() {
                let cell = line.get(index).map_or("", String::as_str);
                let gap = " ".repeat(widths[index] - cell.chars().count());
                if index > 0 {
                    rendered.push_str("  ");
                }
                let (before, after) = if column.right {
                    (&*gap, "")
                } else {
                    ("", &*gap)
                };
                rendered.push_str(before);
                rendered.push_str(cell);
                rendered.push_str(after);
            }
            out.push_str(rendered.trim_end());
            out.push('\n');
        }
        out
    }
}

/// `1 row`, `2 rows`.
pub fn counted(count: u64, singular: &str, plural: &str) -> String {
    let noun = if count == 1 { singular } else { plural };
    format!("{count} {noun}")
}

/// Bytes in a unit that is easy to read: `340 B`, `1.5 KiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A duration in a unit that is easy to read: `35 ms`, `1.5 s`.
pub fn duration(milliseconds: u64) -> String {
    if milliseconds < 1_000 {
        format!("{milliseconds} ms")
    } else if milliseconds < 120_000 {
        format!("{:.1} s", milliseconds as f64 / 1_000.0)
    } else {
        format!("{} min", milliseconds / 60_000)
    }
}

/// A moment in UTC, to the second; a dash for never.
pub fn moment(milliseconds_since_1970: i64) -> String {
    if milliseconds_since_1970 == 0 {
        return "-".into();
    }
    let mut text = String::new();
    push_timestamp(milliseconds_since_1970.saturating_mul(1_000), &mut text);
    let seconds = text.split('.').next().unwrap_or_default();
    format!("{} UTC", seconds.replace('T', " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_numbers_stand_right() {
        let mut table = TextTable::new(&["table", ">rows"]);
        table.row(["customer".into(), "5".into()]);
        table.row(["été".into(), "1200".into()]);
        let expected = "  table     rows\n  customer     5\n  été       1200\n";
        assert_eq!(table.render(2), expected);
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(printable("a\u{1b}[31mb\n"), "a\\u{1b}[31mb\\n");
    }

    #[test]
    fn figures_are_easy_to_read() {
        assert_eq!(bytes(1_023), "1023 B");
        assert_eq!(bytes(1_536), "1.5 KiB");
        assert_eq!(duration(999), "999 ms");
        assert_eq!(duration(1_500), "1.5 s");
        assert_eq!(moment(0), "-");
        assert_eq!(moment(1_704_067_200_123), "2024-01-01 00:00:00 UTC");
    }
}
