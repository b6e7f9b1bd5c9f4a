//! Blocks: however the bytes are cut, the same comes out, never more than a block may hold; and
//! what is packed comes back.

use std::time::Duration;

use bytes::BytesMut;

use tidewater_carrier::block::{
    BlockError, BlockPacker, BlockUnpacker, MAX_BLOCK_BYTES, ReadableKinds,
};
use tidewater_carrier::{Compression, CompressionOptions};

use crate::input::Input;

/// The first byte says how the others are packed, or that they are blocks of a peer's; the second
/// how finely they are cut.
///
/// # Panics
/// A promise is broken.
pub fn blocks(data: &[u8]) {
    let mut input = Input::new(data);
    let how = input.byte();
    let piece = usize::from(input.byte()) + 1;
    let bytes = input.rest();
    let compression = Compression::ALL[usize::from(how % 4)];
    let readable = ReadableKinds::for_compression(Compression::ALL[usize::from(how / 4 % 4)]);
    let whole = read(bytes, bytes.len().max(1), readable);
    let pieces = read(bytes, piece, readable);
    assert_eq!(whole, pieces, "what is read depends on how it is cut");
    comes_back(bytes, compression, readable, piece);
}

fn read(wire: &[u8], piece: usize, readable: ReadableKinds) -> (Vec<u8>, Option<BlockError>) {
    let mut unpacker = BlockUnpacker::new(readable);
    let mut all = Vec::new();
    for mut piece in wire.chunks(piece) {
        while !piece.is_empty() {
            let mut out = BytesMut::new();
            let taken = match unpacker.unpack(piece, &mut out) {
                Ok(taken) => taken,
                Err(error) => return (all, Some(error)),
            };
            assert!(taken == piece.len() || !out.is_empty(), "it goes on");
            assert!(out.capacity() <= 2 * MAX_BLOCK_BYTES);
            assert!(unpacker.holds() <= 2 * MAX_BLOCK_BYTES);
            all.extend_from_slice(&out);
            piece = &piece[taken..];
        }
    }
    (all, None)
}

fn comes_back(said: &[u8], compression: Compression, readable: ReadableKinds, piece: usize) {
    let packing = CompressionOptions {
        compression,
        level: Some(1),
    };
    let mut packer = BlockPacker::new(packing, readable);
    let mut wire = BytesMut::new();
    let mut rest = said;
    while !rest.is_empty() {
        let count = packer.pack(rest, || Duration::ZERO, &mut wire);
        assert!(count > 0, "it goes on");
        rest = &rest[count..];
    }
    let (back, error) = read(&wire, piece, readable);
    assert_eq!(error, None);
    assert!(back == said, "what was packed comes back");
}
