//! Exact decimals: parsing, canonical text, scale.

/// An exact decimal number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decimal<'a> {
    /// `unscaled / 10^scale`, for everything of up to 38 digits.
    Exact {
        /// The digits, without the point.
        unscaled: i128,
        /// How many of them stand behind the point.
        scale: u16,
    },
    /// Longer numbers, and `NaN`, `Infinity`, `-Infinity`: their canonical text.
    Text(&'a str),
}

/// The largest number of digits that [`Decimal::Exact`] holds.
pub const MAX_EXACT_DIGITS: usize = 38;

const SPECIALS: [&str; 3] = ["NaN", "Infinity", "-Infinity"];

impl<'a> Decimal<'a> {
    /// A whole number.
    pub fn from_integer(integer: i64) -> Decimal<'static> {
        Decimal::Exact {
            unscaled: i128::from(integer),
            scale: 0,
        }
    }

    /// Reads a decimal number; the second part of the result tells whether the
    /// text was canonical (as far as that can be told without the column's scale):
    /// no plus sign, exponent or leading zeros, no negative zero.
    pub fn parse(text: &'a str) -> Option<(Decimal<'a>, bool)> {
        for special in SPECIALS {
            if text.eq_ignore_ascii_case(special) {
                return Some((Decimal::Text(special), text == special));
            }
        }
        let (negative, unsigned, mut canonical) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..], true),
            b'+' => (false, &text[1..], false),
            _ => (false, text, true),
        };
        let (mantissa, exponent) = match unsigned.find(['e', 'E']) {
            Some(at) => {
                canonical = false;
                (&unsigned[..at], unsigned[at + 1..].parse::<i32>().ok()?)
            }
            None => (unsigned, 0),
        };
        let (whole, fraction) = match mantissa.find('.') {
            Some(at) => {
                let fraction = &mantissa[at + 1..];
                canonical &= !fraction.is_empty();
                (&mantissa[..at], fraction)
            }
            None => (mantissa, ""),
        };
        let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if (whole.is_empty() && fraction.is_empty()) || !all_digits(whole) || !all_digits(fraction)
        {
            return None;
        }
        canonical &= !whole.is_empty() && (whole == "0" || !whole.starts_with('0'));
        let significant = whole.trim_start_matches('0').len() + fraction.len();
        if significant > MAX_EXACT_DIGITS {
            // Too long to be normalized here: only the canonical spelling is understood.
            return (canonical && fraction.len() <= usize::from(u16::MAX))
                .then_some((Decimal::Text(text), true));
        }
        // Most numbers fit into 64 bits, whose arithmetic is several times faster.
        let digits = whole.bytes().chain(fraction.bytes());
        let mut unscaled: i128 = if whole.len() + fraction.len() <= 18 {
            let short = digits.fold(0, |number: i64, digit| {
                number * 10 + i64::from(digit - b'0')
            });
            i128::from(short)
        } else {
            digits.fold(0, |number, digit| number * 10 + i128::from(digit - b'0'))
        };
        let mut scale = fraction.len() as i64 - i64::from(exponent);
        if scale < 0 {
            let exponent = u32::try_from(scale.unsigned_abs()).ok()?;
            unscaled = unscaled.checked_mul(power_of_ten(exponent)?)?;
            scale = 0;
        }
        if unscaled.unsigned_abs() >= 10u128.pow(MAX_EXACT_DIGITS as u32) {
            return None;
        }
        let scale = u16::try_from(scale).ok()?;
        // Spelled out, it has more digits than that: one number has one form only.
        if usize::from(scale) > MAX_EXACT_DIGITS {
            return None;
        }
        canonical &= !(negative && unscaled == 0);
        let unscaled = if negative { -unscaled } else { unscaled };
        Some((Decimal::Exact { unscaled, scale }, canonical))
    }

    /// The same number with `scale` digits behind the point, where that loses
    /// nothing; the second part of the result tells whether the form changed or
    /// should have changed. A number with more digits than the scale is left as it
    /// is: how to round it is the centre's business.
    pub fn with_scale(self, scale: Option<u16>) -> (Decimal<'a>, bool) {
        let (
            Decimal::Exact {
                unscaled,
                scale: own,
            },
            Some(wanted),
        ) = (self, scale)
        else {
            return (self, false);
        };
        if own == wanted {
            return (self, false);
        }
        if own < wanted {
            // Longer than that it would be read back as text: one number has one form only.
            let grown = power_of_ten(u32::from(wanted - own))
                .filter(|_| usize::from(wanted) <= MAX_EXACT_DIGITS)
                .and_then(|factor| unscaled.checked_mul(factor))
                .filter(|grown| grown.unsigned_abs() < 10u128.pow(MAX_EXACT_DIGITS as u32));
            return match grown {
                Some(unscaled) => (
                    Decimal::Exact {
                        unscaled,
                        scale: wanted,
                    },
                    true,
                ),
                None => (self, true),
            };
        }
        match power_of_ten(u32::from(own - wanted)) {
            Some(divisor) if unscaled % divisor == 0 => {
                let unscaled = unscaled / divisor;
                (
                    Decimal::Exact {
                        unscaled,
                        scale: wanted,
                    },
                    true,
                )
            }
            _ => (self, true),
        }
    }

    /// Appends the canonical text.
    pub fn push_to(&self, text: &mut String) {
        let (unscaled, scale) = match *self {
            Decimal::Text(own) => return text.push_str(own),
            Decimal::Exact { unscaled, scale } => (unscaled, usize::from(scale)),
        };
        let mut digits = [0u8; 40];
        let mut start = digits.len();
        let mut rest = unscaled.unsigned_abs();
        // Division of 128-bit numbers is slow; most numbers fit into 64 bits.
        while rest > u128::from(u64::MAX) {
            start -= 1;
            digits[start] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        let mut rest = rest as u64;
        while rest > 0 {
            start -= 1;
            digits[start] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        let digits = &digits[start..];
        if unscaled < 0 {
            text.push('-');
        }
        let whole = digits.len().saturating_sub(scale);
        if whole == 0 {
            text.push('0');
        }
        text.extend(digits[..whole].iter().map(|&digit| digit as char));
        if scale > 0 {
            text.push('.');
            text.extend(std::iter::repeat_n('0', scale - (digits.len() - whole)));
            text.extend(digits[whole..].iter().map(|&digit| digit as char));
        }
    }
}

/// `10^exponent`, where it fits.
pub fn power_of_ten(exponent: u32) -> Option<i128> {
    10i128.checked_pow(exponent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(decimal: Decimal<'_>) -> String {
        let mut text = String::new();
        decimal.push_to(&mut text);
        text
    }

    #[test]
    fn text_and_number_go_both_ways() {
        for canonical in [
            "0",
            "7",
            "-7",
            "0.5",
            "-0.05",
            "123456789.120000",
            "0.000",
            "99999999999999999999999999999999999999",
            "-170141183460469231731687303715884105.72",
            "123456789012345678901234567890123456789012345.5",
            "NaN",
            "Infinity",
            "-Infinity",
        ] {
            let (decimal, is_canonical) = Decimal::parse(canonical).unwrap();
            assert!(is_canonical, "{canonical}");
            assert_eq!(text(decimal), canonical);
        }
    }

    #[test]
    fn exponents_and_signs_are_understood_but_not_canonical() {
        for (spelled, canonical) in [
            ("+1.5", "1.5"),
            ("01.5", "1.5"),
            (".5", "0.5"),
            ("5.", "5"),
            ("1e3", "1000"),
            ("1.25E1", "12.5"),
            ("1e-2", "0.01"),
            ("-0.0", "0.0"),
        ] {
            let (decimal, is_canonical) = Decimal::parse(spelled).unwrap();
            assert!(!is_canonical, "{spelled}");
            assert_eq!(text(decimal), canonical);
        }
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for spelled in [
            "",
            "-",
            ".",
            "1.2.3",
            "1,5",
            "abc",
            "1e",
            "1e999999999",
            "0x10",
            " 1",
        ] {
            assert_eq!(Decimal::parse(spelled), None, "{spelled}");
        }
    }

    #[test]
    fn a_number_has_one_form_however_small_its_exponent_makes_it() {
        for exponent in [1, 37, 38, 39, 40, 152, 153] {
            let spelled = format!("1e-{exponent}");
            let Some((decimal, _)) = Decimal::parse(&spelled) else {
                assert!(exponent > MAX_EXACT_DIGITS, "{spelled}");
                continue;
            };
            let canonical = text(decimal);
            assert_eq!(
                Decimal::parse(&canonical),
                Some((decimal, true)),
                "{spelled}"
            );
        }
    }

    #[test]
    fn a_number_has_one_form_however_many_digits_its_column_has() {
        for spelled in ["0.0", "0.054", "-7", "1e-38"] {
            for scale in [37, 38, 39, 40, 41, 76, 77, 1_000] {
                let (decimal, _) = Decimal::parse(spelled).unwrap();
                let (scaled, _) = decimal.with_scale(Some(scale));
                let canonical = text(scaled);
                let again = Decimal::parse(&canonical).unwrap();
                assert_eq!(again, (scaled, true), "{spelled} with {scale} digits");
            }
        }
    }

    #[test]
    fn an_exponent_at_either_end_of_its_range_is_no_decimal() {
        for spelled in ["1e-2147483648", "1e2147483647", "0e-2147483648"] {
            assert_eq!(Decimal::parse(spelled), None, "{spelled}");
        }
    }

    #[test]
    fn scale_is_adjusted_only_without_loss() {
        let scaled = |spelled: &'static str, scale| {
            let (decimal, changed) = Decimal::parse(spelled).unwrap().0.with_scale(Some(scale));
            (text(decimal), changed)
        };
        assert_eq!(scaled("1.5", 2), ("1.50".into(), true));
        assert_eq!(scaled("1.50", 2), ("1.50".into(), false));
        assert_eq!(scaled("1.500", 2), ("1.50".into(), true));
        assert_eq!(scaled("1.505", 2), ("1.505".into(), true));
    }
}
