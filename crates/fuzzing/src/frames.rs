//! Frames: however the bytes are cut, the same comes out, and it comes back.

use bytes::BytesMut;

use tidewater_protocol::frame::{
    Frame, FrameError, HEADER_BYTES, MAX_PAYLOAD_BYTES, put_control, put_message, put_rows,
    take_frame, take_preface,
};

use crate::input::Input;

/// The first byte says how finely the others are cut; they are what a peer sends.
///
/// # Panics
/// A promise is broken.
pub fn frames(data: &[u8]) {
    let mut input = Input::new(data);
    let piece = usize::from(input.byte()) + 1;
    let with_preface = piece % 2 == 0;
    let wire = input.rest();
    let whole = read(wire, wire.len().max(1), with_preface);
    let pieces = read(wire, piece, with_preface);
    assert_eq!(whole, pieces, "what is read depends on how it is cut");
    for frame in &whole.0 {
        comes_back(frame);
    }
}

/// What came of the bytes: frames, and how they ended.
type Read = (Vec<Frame>, Result<(), FrameError>);

fn read(wire: &[u8], piece: usize, with_preface: bool) -> Read {
    let mut buffer = BytesMut::new();
    let mut frames = Vec::new();
    let mut awaits_preface = with_preface;
    let mut result = Ok(());
    'wire: for piece in wire.chunks(piece) {
        buffer.extend_from_slice(piece);
        if awaits_preface {
            match take_preface(&mut buffer) {
                Ok(Some(_)) => awaits_preface = false,
                Ok(None) => continue,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        loop {
            match take_frame(&mut buffer) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => {
                    result = Err(error);
                    break 'wire;
                }
            }
        }
        // A header may announce what it likes: one frame is made room for, at most
        // doubled as buffers grow.
        let most = 2 * (HEADER_BYTES + MAX_PAYLOAD_BYTES) + 2 * wire.len();
        assert!(buffer.capacity() <= most, "{}", buffer.capacity());
    }
    (frames, result)
}

fn comes_back(frame: &Frame) {
    let mut out = BytesMut::new();
    match frame {
        Frame::Rows { channel, bytes } if !bytes.is_empty() => put_rows(&mut out, *channel, bytes),
        Frame::Control {
            channel,
            control: Some(control),
        } => {
            // Decoding skips what this version does not know: it never grows.
            put_control(&mut out, *channel, control.clone()).expect("it fitted when it came");
        }
        Frame::Message { channel, message } => {
            put_message(&mut out, *channel, message).expect("it fitted when it came");
        }
        // An empty piece of rows is not sent; of a message that is not known nothing is
        // kept.
        _ => return,
    }
    let mut again = out.clone();
    let read = take_frame(&mut again).expect("it is a frame");
    assert_eq!(read.as_ref(), Some(frame));
    assert!(again.is_empty());
    let mut half = out.split_to(out.len() - 1);
    assert_eq!(take_frame(&mut half), Ok(None), "a part of a frame is none");
}
