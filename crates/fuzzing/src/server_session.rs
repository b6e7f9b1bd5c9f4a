//! The server's session: whatever a remote sends, the server answers or closes the door,
//! shows nothing of other users, changes nothing of theirs, and goes on.

use std::cell::RefCell;

use bytes::BytesMut;

use tidewater_protocol::frame::{Frame, PREFACE, take_frame};
use tidewater_protocol::message::{Control, TableBegin};
use tidewater_protocol::{Datum, RowsReader, UnpackedRow};

use crate::house::House;
use crate::input::Input;
use crate::mend::Mender;
use crate::panics;

thread_local! {
    static HOUSE: RefCell<Option<(House, Mender)>> = const { RefCell::new(None) };
}

/// The first byte says how the others are sent: as they are, or mended (what is genuine put
/// in where they say so, sums and counts made right); with a preface; with an end.
///
/// # Panics
/// A promise is broken.
pub fn server_session(data: &[u8]) {
    serve(data);
}

/// What the server says to the bytes.
fn serve(data: &[u8]) -> Vec<u8> {
    panics::watch();
    let heard = HOUSE.with_borrow_mut(|slot| {
        let (house, mender) = slot.get_or_insert_with(|| {
            let mut house = House::start();
            let mender = Mender::new(&mut house);
            (house, mender)
        });
        house.reset();
        let mut input = Input::new(data);
        let (flags, piece) = (input.byte(), usize::from(input.byte()) * 16 + 1);
        let mut wire = Vec::new();
        if flags & 1 == 0 {
            wire.extend_from_slice(&PREFACE);
        }
        match flags & 2 == 0 {
            true => wire.extend_from_slice(&mender.mend_up(input.rest())),
            false => wire.extend_from_slice(input.rest()),
        }
        let heard = house.converse(&wire, piece, flags & 4 == 0);
        shows_only_what_is_adas(&heard);
        house.judge();
        heard
    });
    panics::check();
    heard
}

/// All that the server says is frames, and no row in them is of another region than Ada's; or that it
/// does not speak HTTP, to whoever does.
fn shows_only_what_is_adas(heard: &[u8]) {
    if heard.starts_with(b"HTTP/1.1 400 Bad Request\r\n") {
        return;
    }
    let mut rest = BytesMut::from(heard);
    let mut table: Option<(TableBegin, Vec<u8>)> = None;
    loop {
        match take_frame(&mut rest) {
            Ok(Some(Frame::Rows { bytes, .. })) => {
                let (_, rows) = table.as_mut().expect("rows without a table");
                rows.extend_from_slice(&bytes);
            }
            Ok(Some(Frame::Control { control, .. })) => match control {
                // Others may come among the rows of a table.
                Some(Control::Ping(_) | Control::Pong(_) | Control::Credit(_)) => {}
                Some(control) => {
                    if let Some((begin, rows)) = table.take() {
                        rows_are_adas(&begin, &rows, true);
                    }
                    if let Control::TableBegin(begin) = control {
                        table = Some((begin, Vec::new()));
                    }
                }
                None => panic!("the server says what its own version does not know"),
            },
            Ok(Some(Frame::Message { .. })) => panic!("nobody sends messages yet"),
            // It may have been cut off in the middle.
            Ok(None) => break,
            Err(error) => panic!("the server does not speak the protocol: {error}"),
        }
    }
    if let Some((begin, rows)) = table {
        rows_are_adas(&begin, &rows, false);
    }
}

fn rows_are_adas(begin: &TableBegin, rows: &[u8], whole: bool) {
    // Results of uploads may be about tables and columns that only the remote has.
    let Some(shape) = begin.shape() else { return };
    let region = begin.columns.iter().position(|it| it.name == "region");
    let mut reader = RowsReader::new(&shape, rows);
    let mut row = UnpackedRow::default();
    while let Ok(true) = reader.next(&mut row) {
        let region = region.and_then(|region| row.new.get(region));
        if let Some(Datum::Integer(region)) = region {
            assert!([1, 2].contains(region), "I5: a row of region {region}");
        }
    }
    assert!(
        !whole || reader.consumed() == rows.len(),
        "rows that nobody can read"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeds;

    fn controls(heard: &[u8]) -> Vec<Control> {
        let mut rest = BytesMut::from(heard);
        let mut controls = Vec::new();
        while let Ok(Some(frame)) = take_frame(&mut rest) {
            if let Frame::Control {
                control: Some(control),
                ..
            } = frame
            {
                controls.push(control);
            }
        }
        controls
    }

    #[test]
    fn the_seeds_are_served_to_their_end_again_and_again() {
        let seeds = seeds::of("server_session");
        let recorded: Vec<_> = seeds
            .iter()
            .filter(|(name, _)| name.ends_with("-0-4"))
            .collect();
        assert_eq!(recorded.len(), 4);
        // Each begins from the same state: twice is as good as once.
        for (name, bytes) in recorded.iter().chain(&recorded) {
            let controls = controls(&serve(bytes));
            let ends = controls.iter().any(|it| matches!(it, Control::SyncEnd(_)));
            assert!(ends, "{name}: {controls:?}");
            let results = controls.iter().filter_map(|it| match it {
                Control::ResultEnd(end) => Some((end.inserts, end.refused)),
                _ => None,
            });
            let expected: &[_] = match name.split('-').next() {
                Some("changed") => &[(3, 1)],
                Some("forgotten") => &[(3, 0)],
                _ => &[],
            };
            assert_eq!(results.collect::<Vec<_>>(), expected, "{name}");
        }
    }
}
