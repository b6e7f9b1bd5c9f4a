//! Text of the page: escaped, and numbers as people read them.

/// Text from anywhere, for an element or an attribute. What no document may contain is shown as
/// a replacement.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in printable(text).chars() {
        match character {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

/// Text without control characters, which the library that draws lets through.
pub(super) fn printable(text: &str) -> String {
    let is_refused = |it: char| it.is_control() || matches!(it, '\u{FFFE}' | '\u{FFFF}');
    text.replace(is_refused, "\u{FFFD}")
}

/// A number with as many digits as tell something: `12,345`, `12.3`, `0.0123`.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    let digits = match size {
        _ if size == 0.0 || size >= 100.0 => 0,
        _ => (2 - size.log10().floor() as i32).clamp(0, 6) as usize,
    };
    let text = format!("{value:.digits$}");
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    let (whole, fraction) = text.split_once('.').map_or((text, ""), |it| it);
    let mut out = String::new();
    for (place, digit) in whole.chars().enumerate() {
        let left = whole.len() - place;
        if place > 0 && left % 3 == 0 && !out.ends_with('-') {
            out.push(',');
        }
        out.push(digit);
    }
    if !fraction.is_empty() {
        out.push('.');
        out.push_str(fraction);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_that_tell_something() {
        for (value, text) in [
            (0.0, "0"),
            (0.0123, "0.0123"),
            (1.5, "1.5"),
            (12.34, "12.3"),
            (100.0, "100"),
            (999.6, "1,000"),
            (1_234_567.0, "1,234,567"),
            (-200.0, "-200"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn nothing_of_a_text_is_markup() {
        assert_eq!(
            escaped("<a href='x'>&\"\u{1b}"),
            "&lt;a href=&#39;x&#39;&gt;&amp;&quot;\u{FFFD}"
        );
    }
}
