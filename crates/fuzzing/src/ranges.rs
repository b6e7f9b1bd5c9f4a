//! Ranges of keys: one order for all keys, and ranges and intervals that agree with a
//! look at every bound.

use std::cmp::Ordering;

use tidewater_protocol::compare::{
    CompareError, Intervals, Ranges, compare_keys, pack_key, row_checksum, sort_keys,
};
use tidewater_protocol::message::KeyInterval;
use tidewater_protocol::pack::unpack_values;
use tidewater_protocol::{ColumnType, Datum, RowShape};

use crate::input::{Input, all_same};

/// More keys than this say nothing new.
const MAX_KEYS: usize = 12;

/// What the table looks like, then packed keys, each after its length.
///
/// # Panics
/// A promise is broken.
pub fn ranges(data: &[u8]) {
    let mut input = Input::new(data);
    let shape = input.shape();
    let columns = shape.key_columns();
    let mut packed: Vec<Vec<u8>> = Vec::new();
    while !input.is_empty() && packed.len() < MAX_KEYS {
        packed.push(input.piece().to_vec());
    }
    let readable = packed
        .iter()
        .all(|key| unpack_values(key, &columns).is_ok());
    let mut sorted = packed.clone();
    assert_eq!(sort_keys(&columns, &mut sorted).is_ok(), readable);
    if !readable {
        let bounds = packed.iter().map(|key| &key[..]);
        return assert!(Ranges::at(&shape, bounds).is_err());
    }
    let keys: Vec<Vec<Datum<'_>>> = packed.iter().map(|key| read(key, &columns)).collect();
    order(&keys);
    for (key, packed) in keys.iter().zip(&packed) {
        let mut again = Vec::new();
        pack_key(&mut again, &columns, key);
        assert!(all_same(&read(&again, &columns), &read(packed, &columns)));
    }
    let bounds: Vec<Vec<Datum<'_>>> = sorted.iter().map(|key| read(key, &columns)).collect();
    let ascend = |keys: &[Vec<Datum<'_>>]| {
        let mut pairs = keys.windows(2);
        pairs.all(|pair| compare_keys(&pair[0], &pair[1]).is_lt())
    };
    assert!(ascend(&bounds));
    let unsorted = Ranges::at(&shape, packed.iter().map(|key| &key[..]));
    assert_eq!(unsorted.is_ok(), ascend(&keys));
    sums(&shape, &sorted, &bounds, &keys);
    intervals(&shape, &sorted, &bounds, &keys);
}

fn read<'a>(packed: &'a [u8], columns: &[ColumnType]) -> Vec<Datum<'a>> {
    unpack_values(packed, columns).expect("it is readable")
}

/// The order is total: what sorting and searching rest on.
fn order(keys: &[Vec<Datum<'_>>]) {
    for left in keys {
        assert_eq!(compare_keys(left, left), Ordering::Equal);
        for right in keys {
            let order = compare_keys(left, right);
            assert_eq!(compare_keys(right, left), order.reverse());
            for third in keys {
                if order.is_le() && compare_keys(right, third).is_le() {
                    assert!(
                        compare_keys(left, third).is_le(),
                        "{left:?} {right:?} {third:?}"
                    );
                }
            }
        }
    }
}

/// Every key counts in the range that a look at all bounds finds.
fn sums(shape: &RowShape, sorted: &[Vec<u8>], bounds: &[Vec<Datum<'_>>], keys: &[Vec<Datum<'_>>]) {
    let at = || Ranges::at(shape, sorted.iter().map(|key| &key[..])).expect("they ascend");
    let mut ranges = at();
    let mut rows = vec![0; bounds.len() + 1];
    for (index, key) in keys.iter().enumerate() {
        ranges.add_packed(key, &[index as u8]);
        let is_before = |bound: &&Vec<Datum<'_>>| compare_keys(bound, key).is_lt();
        rows[bounds.iter().filter(is_before).count()] += 1;
    }
    let found: Vec<u64> = ranges.sums().iter().map(|sum| sum.rows).collect();
    assert_eq!(found, rows);
    let all = (0..keys.len()).map(|index| row_checksum(&[index as u8]));
    let sum = |sums: &mut dyn Iterator<Item = u64>| sums.fold(0, u64::wrapping_add);
    let found = &mut ranges.sums().iter().map(|sum| sum.checksum);
    assert_eq!(sum(found), sum(&mut all.into_iter()));

    let wire = ranges.to_wire();
    assert!(ranges.differing(&wire).is_empty());
    let mut other = Ranges::like(shape, &wire).expect("they were just written");
    let (Some(missing), rest) = (keys.first(), keys.get(1..).unwrap_or_default()) else {
        return;
    };
    for (index, key) in rest.iter().enumerate() {
        other.add_packed(key, &[index as u8 + 1]);
    }
    let differing = other.differing(&wire);
    assert_eq!(differing.len(), 1, "one row is missing");
    let differing = Intervals::new(shape, &differing).expect("they ascend");
    assert!(differing.contains(missing));
}

/// Intervals hold what a look at each of them finds.
fn intervals(
    shape: &RowShape,
    sorted: &[Vec<u8>],
    bounds: &[Vec<Datum<'_>>],
    keys: &[Vec<Datum<'_>>],
) {
    let bound = |index: usize| sorted.get(index).cloned().unwrap_or_default();
    for open_start in [false, true] {
        // Bounds are starts and ends in turn; the end of the last may be open.
        let mut list = Vec::new();
        if open_start {
            list.push(KeyInterval {
                after: Vec::new(),
                until: bound(0),
            });
        }
        for index in (usize::from(open_start)..sorted.len()).step_by(2) {
            list.push(KeyInterval {
                after: bound(index),
                until: bound(index + 1),
            });
        }
        let read = Intervals::new(shape, &list).expect("they ascend");
        for key in keys {
            let before = bounds
                .iter()
                .filter(|bound| compare_keys(bound, key).is_lt());
            let inside = (before.count() + usize::from(open_start)) % 2 == 1;
            assert_eq!(read.contains(key), inside && !list.is_empty());
        }
        let reversed: Vec<_> = list.iter().rev().cloned().collect();
        if list.len() > 1 {
            let refused = Intervals::new(shape, &reversed).err();
            assert!(matches!(refused, Some(CompareError::Order)), "{refused:?}");
        }
    }
}
