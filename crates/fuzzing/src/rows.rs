//! Packed rows: what was read is packed again to the same row, and where the bytes end
//! changes nothing of what comes before.

use tidewater_protocol::{Op, RowShape, RowsReader, RowsWriter, UnpackError, UnpackedRow};

use crate::input::{Input, all_same};

/// The first bytes say what the table looks like and where the rows are cut; the others
/// are packed rows.
///
/// # Panics
/// A promise is broken.
pub fn rows(data: &[u8]) {
    let mut input = Input::new(data);
    let shape = input.shape();
    let cut = usize::from(input.byte());
    let packed = input.rest();
    let mut reader = RowsReader::new(&shape, packed);
    let mut row = UnpackedRow::default();
    let mut begin = 0;
    let mut begins = Vec::new();
    let ending = loop {
        match reader.next(&mut row) {
            Ok(true) => {
                assert!(reader.consumed() > begin, "a row of no bytes");
                begins.push(begin);
                begin = reader.consumed();
                comes_back(&shape, &row);
            }
            Ok(false) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    assert_eq!(
        reader.consumed(),
        begin,
        "a row that is not read takes nothing"
    );
    if !packed.is_empty() {
        cut_short(&shape, packed, cut % packed.len(), &begins, ending);
    }
}

/// Of a prefix the same rows come, as far as they are in it.
fn cut_short(
    shape: &RowShape,
    packed: &[u8],
    cut: usize,
    begins: &[usize],
    ending: Result<(), UnpackError>,
) {
    let mut reader = RowsReader::new(shape, &packed[..cut]);
    let mut row = UnpackedRow::default();
    for &begin in begins {
        assert_eq!(reader.consumed(), begin);
        match reader.next(&mut row) {
            Ok(true) => {}
            Ok(false) => return assert_eq!(cut, begin),
            Err(error) => return assert_eq!(error, UnpackError::Truncated),
        }
    }
    match reader.next(&mut row) {
        Ok(true) => panic!("a prefix has more rows than the whole"),
        Ok(false) => assert_eq!(reader.consumed(), cut),
        Err(UnpackError::Truncated) => assert!(ending.is_err() || reader.consumed() < cut),
        Err(error) => assert_eq!(Err(error), ending),
    }
}

fn comes_back(shape: &RowShape, row: &UnpackedRow<'_>) {
    let Some(packed) = pack(shape, row) else {
        return;
    };
    let mut reader = RowsReader::new(shape, &packed);
    let mut again = UnpackedRow::default();
    assert_eq!(reader.next(&mut again), Ok(true));
    assert_eq!(reader.consumed(), packed.len());
    assert_eq!(row.op, again.op);
    // In any other row stands what the one before has left there.
    if row.op == Some(Op::Refused) {
        assert_eq!(row.refused_op, again.refused_op);
        assert_eq!((row.code, row.reason), (again.code, again.reason));
    }
    for (before, after) in [
        (&row.old, &again.old),
        (&row.new, &again.new),
        (&row.key, &again.key),
    ] {
        assert!(all_same(before, after), "{before:?} became {after:?}");
    }
    assert_eq!(pack(shape, &again), Some(packed), "one row, two spellings");
}

/// `None` for a refusal of an operation that this version does not know.
fn pack(shape: &RowShape, row: &UnpackedRow<'_>) -> Option<Vec<u8>> {
    let mut writer = RowsWriter::new(shape);
    let op = row.op.expect("a row that was read has an operation");
    match op {
        Op::Insert | Op::Upsert | Op::ConflictRow | Op::Made | Op::Merged => {
            writer.row(op, &row.new)
        }
        Op::Update => writer.update(&row.old, &row.new),
        Op::Delete => writer.delete(&row.old),
        Op::Request | Op::Remove | Op::ConflictGone => writer.key(op, &row.key),
        Op::Refused => writer.refused(&row.key, row.refused_op?, row.code, row.reason),
    }
    assert_eq!(writer.rows(), 1);
    Some(writer.take())
}
