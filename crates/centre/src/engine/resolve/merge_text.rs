//! Merging texts by lines, three-way: the edits of both sides, as far as no two of them overlap.
//!
//! Edits that touch are both made: a line that one side changes and the line behind it that the other
//! changes, or adds, are two lines. A line is what stands between two line feeds, so a text without a
//! line feed at its end has a last line like any other.

use std::ops::Range;

use diffy::{DiffOptions, Line};

/// The lines of a text that one side has replaced: an empty range is a place between two lines.
#[derive(Debug, PartialEq, Eq)]
struct LineEdit {
    old: Range<usize>,
    /// The new lines, each with its line feed.
    new: String,
}

/// The text with what both sides have made of it; `None` where both have changed the same lines
/// differently.
pub(super) fn merge_text(old: &str, one: &str, other: &str) -> Option<String> {
    let [old, one, other] = [old, one, other].map(|text| format!("{text}\n"));
    let (one, other) = (line_edits(&old, &one), line_edits(&old, &other));
    let lines: Vec<&str> = old.split_inclusive('\n').collect();
    let mut merged = String::with_capacity(old.len());
    let mut done = 0;
    for edit in in_order(one, other)? {
        merged.extend(lines.get(done..edit.old.start)?.iter().copied());
        merged.push_str(&edit.new);
        done = edit.old.end;
    }
    merged.extend(lines.get(done..)?.iter().copied());
    // Every text has one line feed too many.
    merged.pop();
    Some(merged)
}

/// What one side has done to a text.
fn line_edits(old: &str, new: &str) -> Vec<LineEdit> {
    let patch = DiffOptions::new().set_context_len(0).create_patch(old, new);
    let edits = patch.hunks().iter().map(|hunk| {
        let (start, length) = (hunk.old_range().start(), hunk.old_range().len());
        // Lines are counted from 1; of a place between two lines the one before it is told.
        let start = if length > 0 { start - 1 } else { start };
        let new = hunk.lines().iter().filter_map(|line| match line {
            Line::Insert(line) => Some(*line),
            _ => None,
        });
        LineEdit {
            old: start..start + length,
            new: new.collect(),
        }
    });
    edits.collect()
}

/// The edits of both sides, each that both have made once; `None` if two of them overlap.
fn in_order(one: Vec<LineEdit>, other: Vec<LineEdit>) -> Option<Vec<LineEdit>> {
    let (mut one, mut other) = (one.into_iter().peekable(), other.into_iter().peekable());
    let mut all = Vec::new();
    loop {
        let next = match (one.peek(), other.peek()) {
            (None, None) => return Some(all),
            (Some(a), Some(b)) if a == b => {
                other.next();
                one.next()
            }
            (Some(a), Some(b)) if is_before(a, b) => one.next(),
            (Some(a), Some(b)) if is_before(b, a) => other.next(),
            (Some(_), Some(_)) => return None,
            (Some(_), None) => one.next(),
            (None, Some(_)) => other.next(),
        };
        all.extend(next);
    }
}

/// Whether an edit ends before another begins. Of two that only add at one place, none is the first.
fn is_before(edit: &LineEdit, other: &LineEdit) -> bool {
    edit.old.end <= other.old.start && edit.old != other.old
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn edits_that_touch_are_both_made_and_those_that_overlap_are_not() {
        for (old, one, other, merged) in [
            ("a\nb", "A\nb", "a\nB", Some("A\nB")),
            ("a\nb\n", "A\nb\n", "a\nB\n", Some("A\nB\n")),
            ("a\nb", "a\nB", "a\nb\nc", Some("a\nB\nc")),
            ("a\nb\n", "a\nB\n", "a\nb\nc\n", Some("a\nB\nc\n")),
            ("a", "a\n", "A", Some("A\n")),
            ("a\nb", "x\na\nb", "A\nb", Some("x\nA\nb")),
            ("a\nb", "b", "a\nx\nb", Some("x\nb")),
            ("a\nb\nc", "a\nc", "a\nb\nC", Some("a\nC")),
            ("a\r\nb", "A\r\nb", "a\r\nB", Some("A\r\nB")),
            ("a\nb", "X\nb", "X\nb\nc", Some("X\nb\nc")),
            ("a", "a\nb", "a\nb", Some("a\nb")),
            ("", "x", "", Some("x")),
            ("a", "A", "B", None),
            ("a", "a\nb", "a\nc", None),
            ("a\nb\nc", "a\nc", "a\nX\nc", None),
            ("a\nb", "X", "a\nB", None),
            ("", "x", "y", None),
        ] {
            let told = format!("{old:?}: {one:?} and {other:?}");
            assert_eq!(merge_text(old, one, other).as_deref(), merged, "{told}");
            assert_eq!(merge_text(old, other, one).as_deref(), merged, "{told}");
        }
    }

    fn text() -> impl Strategy<Value = String> {
        "[ab\n]{0,12}"
    }

    proptest! {
        #[test]
        fn what_one_side_alone_has_done_is_there(old in text(), new in text(), other in text()) {
            let merged = merge_text(&old, &new, &old);
            prop_assert_eq!(merged.as_ref(), Some(&new));
            let merged = merge_text(&old, &old, &new);
            prop_assert_eq!(merged.as_ref(), Some(&new));
            let merged = merge_text(&old, &new, &new);
            prop_assert_eq!(merged.as_ref(), Some(&new));
            prop_assert_eq!(merge_text(&old, &new, &other), merge_text(&old, &other, &new));
        }
    }
}
