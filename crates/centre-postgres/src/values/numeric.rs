//! The binary format of `numeric` (PostgreSQL's `numeric_send`): digits to the base
//! of 10,000, the weight of the first, a sign, and how many decimal digits are shown
//! behind the point.

use std::fmt::Write;

use tidewater_protocol::decimal::{Decimal, MAX_EXACT_DIGITS};

use super::UnfitValue;

const NEGATIVE: u16 = 0x4000;
const NAN: u16 = 0xC000;
const INFINITY: u16 = 0xD000;
const NEGATIVE_INFINITY: u16 = 0xF000;

const POWERS: [u64; 4] = [1, 10, 100, 1_000];

/// Appends a decimal with its length.
pub(super) fn encode(decimal: Decimal<'_>, out: &mut Vec<u8>) -> Result<(), UnfitValue> {
    if let Decimal::Exact { unscaled, scale } = decimal
        && let Ok(digits) = u64::try_from(unscaled.unsigned_abs())
        && let pad = POWERS[usize::from((4 - scale % 4) % 4)]
        && let Some(mut rest) = digits.checked_mul(pad)
    {
        let mut groups = [0u16; 5];
        let mut count = 0;
        while rest > 0 {
            groups[count] = (rest % 10_000) as u16;
            rest /= 10_000;
            count += 1;
        }
        groups[..count].reverse();
        let weight = count as i32 - i32::from(scale.div_ceil(4)) - 1;
        return put(out, &groups[..count], weight, unscaled < 0, scale);
    }
    match decimal {
        Decimal::Text("NaN") => special(out, NAN),
        Decimal::Text("Infinity") => special(out, INFINITY),
        Decimal::Text("-Infinity") => special(out, NEGATIVE_INFINITY),
        long => {
            let mut text = String::new();
            long.push_to(&mut text);
            encode_text(&text, out)?;
        }
    }
    Ok(())
}

/// Digits of any number, by way of their text.
fn encode_text(text: &str, out: &mut Vec<u8>) -> Result<(), UnfitValue> {
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let scale = u16::try_from(fraction.len()).map_err(|_| UnfitValue)?;
    let mut digits = Vec::with_capacity(text.len() + 8);
    digits.resize((4 - whole.len() % 4) % 4, b'0');
    digits.extend_from_slice(whole.as_bytes());
    let weight = i32::try_from(digits.len() / 4).map_err(|_| UnfitValue)? - 1;
    digits.extend_from_slice(fraction.as_bytes());
    digits.resize(digits.len().next_multiple_of(4), b'0');
    let mut groups = Vec::with_capacity(digits.len() / 4);
    for group in digits.chunks(4) {
        let mut number = 0u16;
        for digit in group {
            let digit = digit.checked_sub(b'0').filter(|&digit| digit < 10);
            number = number * 10 + u16::from(digit.ok_or(UnfitValue)?);
        }
        groups.push(number);
    }
    put(out, &groups, weight, negative, scale)
}

fn special(out: &mut Vec<u8>, sign: u16) {
    out.extend_from_slice(&8i32.to_be_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&sign.to_be_bytes());
    out.extend_from_slice(&[0; 2]);
}

fn put(
    out: &mut Vec<u8>,
    mut groups: &[u16],
    mut weight: i32,
    negative: bool,
    scale: u16,
) -> Result<(), UnfitValue> {
    while let [0, rest @ ..] = groups {
        groups = rest;
        weight -= 1;
    }
    while let [rest @ .., 0] = groups {
        groups = rest;
    }
    if groups.is_empty() {
        weight = 0;
    }
    let weight = i16::try_from(weight).map_err(|_| UnfitValue)?;
    let count = i16::try_from(groups.len()).map_err(|_| UnfitValue)?;
    let sign = if negative && count > 0 { NEGATIVE } else { 0 };
    out.extend_from_slice(&(8 + 2 * i32::from(count)).to_be_bytes());
    out.extend_from_slice(&count.to_be_bytes());
    out.extend_from_slice(&weight.to_be_bytes());
    out.extend_from_slice(&sign.to_be_bytes());
    out.extend_from_slice(&scale.to_be_bytes());
    for group in groups {
        out.extend_from_slice(&group.to_be_bytes());
    }
    Ok(())
}

/// Reads a decimal; one of more than 38 digits is spelled out in `scratch`.
pub(super) fn decode<'a>(bytes: &[u8], scratch: &'a mut String) -> Result<Decimal<'a>, UnfitValue> {
    let header: [u8; 8] = bytes
        .get(..8)
        .and_then(|it| it.try_into().ok())
        .ok_or(UnfitValue)?;
    let [c0, c1, w0, w1, s0, s1, d0, d1] = header;
    let count = usize::from(u16::from_be_bytes([c0, c1]));
    let weight = i32::from(i16::from_be_bytes([w0, w1]));
    let sign = u16::from_be_bytes([s0, s1]);
    let scale = u16::from_be_bytes([d0, d1]);
    let groups = bytes.get(8..8 + 2 * count).ok_or(UnfitValue)?;
    let group = |pair: &[u8]| u64::from(u16::from_be_bytes([pair[0], pair[1]]));
    match sign {
        NAN => return Ok(Decimal::Text("NaN")),
        INFINITY => return Ok(Decimal::Text("Infinity")),
        NEGATIVE_INFINITY => return Ok(Decimal::Text("-Infinity")),
        _ => {}
    }
    let negative = sign == NEGATIVE;
    // Decimal digits behind the point that the groups hold.
    let held = 4 * (count as i32 - 1 - weight);
    let shift = i32::from(scale) - held;
    // Remotes spell out what has more digits than that.
    let is_short = usize::from(scale) <= MAX_EXACT_DIGITS;
    if is_short && count <= 4 && (-3..=3).contains(&shift) {
        let digits = groups
            .chunks_exact(2)
            .fold(0, |sum, pair| sum * 10_000 + group(pair));
        let power = POWERS[shift.unsigned_abs() as usize];
        let unscaled = if shift >= 0 {
            digits * power
        } else {
            digits / power
        };
        return Ok(exact(unscaled.into(), negative, scale));
    }
    let whole_digits = 4 * (weight + 1).max(0);
    if count <= 9 && whole_digits + i32::from(scale) <= 38 {
        let digits = groups
            .chunks_exact(2)
            .fold(0u128, |sum, pair| sum * 10_000 + u128::from(group(pair)));
        let power = 10u128.pow(shift.unsigned_abs());
        let unscaled = if shift >= 0 {
            digits * power
        } else {
            digits / power
        };
        return Ok(exact(unscaled, negative, scale));
    }
    spell(groups, weight, negative, usize::from(scale), scratch);
    Decimal::parse(scratch)
        .map(|(decimal, _)| decimal)
        .ok_or(UnfitValue)
}

fn exact(unscaled: u128, negative: bool, scale: u16) -> Decimal<'static> {
    let unscaled = unscaled as i128;
    Decimal::Exact {
        unscaled: if negative { -unscaled } else { unscaled },
        scale,
    }
}

fn spell(groups: &[u8], weight: i32, negative: bool, scale: usize, text: &mut String) {
    text.clear();
    if negative {
        text.push('-');
    }
    let group = |index: i32| -> u16 {
        let pair = usize::try_from(index)
            .ok()
            .and_then(|at| groups.get(2 * at..2 * at + 2));
        pair.map_or(0, |pair| u16::from_be_bytes([pair[0], pair[1]]))
    };
    // Writing to a String cannot fail.
    let _ = write!(text, "{}", if weight >= 0 { group(0) } else { 0 });
    for index in 1..=weight {
        let _ = write!(text, "{:04}", group(index));
    }
    if scale > 0 {
        text.push('.');
        let point = text.len();
        let mut index = weight + 1;
        while text.len() - point < scale {
            let _ = write!(text, "{:04}", group(index));
            index += 1;
        }
        text.truncate(point + scale);
    }
}
