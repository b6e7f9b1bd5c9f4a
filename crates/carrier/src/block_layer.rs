//! Compression over a dialed layer: [`crate::block`] between what is said and what is sent.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use bytes::{Buf, BytesMut};

use crate::block::{
    BlockError, BlockPacker, BlockUnpacker, PREFACE_BYTES, PackingTerms, ReadableKinds,
};
use crate::compression::{Compression, CompressionOptions};
use crate::layer::{Layer, is_patience};
use crate::ticks::ticks;

/// Blocks over another layer, or bytes as they are. Counts both.
#[derive(Debug)]
pub(crate) struct BlockLayer {
    below: Box<dyn Layer>,
    terms: PackingTerms,
    /// How much of the preface was written.
    said: usize,
    /// What is packed and not yet sent.
    output: BytesMut,
    blocks: Option<Box<BlockCodec>>,
    sent: u64,
    received: u64,
}

#[derive(Debug)]
struct BlockCodec {
    packer: BlockPacker,
    unpacker: BlockUnpacker,
    /// What was read and not yet unpacked, and what was unpacked and not yet taken.
    input: BytesMut,
    unpacked: BytesMut,
}

impl BlockLayer {
    pub(crate) fn new(packing: CompressionOptions, below: Box<dyn Layer>) -> BlockLayer {
        let terms = PackingTerms::for_compression(packing.compression);
        let blocks = (packing.compression != Compression::Off).then(|| {
            Box::new(BlockCodec {
                // Servers read everything.
                packer: BlockPacker::new(packing, ReadableKinds::ALL),
                unpacker: BlockUnpacker::new(ReadableKinds::for_compression(packing.compression)),
                input: BytesMut::new(),
                unpacked: BytesMut::new(),
            })
        });
        BlockLayer {
            below,
            terms,
            said: 0,
            output: BytesMut::new(),
            blocks,
            sent: 0,
            received: 0,
        }
    }

    /// Takes what there still is of the preface.
    fn say_terms(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(PREFACE_BYTES - self.said);
        let at = self.output.len();
        self.output.extend_from_slice(&bytes[..count]);
        self.terms.write(&mut self.output[at..], self.said);
        self.said += count;
        count
    }

    fn write_output(&mut self, any: &mut bool) -> io::Result<()> {
        *any |= self.below.write_own()?;
        while !self.output.is_empty() && !self.below.owes() {
            match self.below.write(&self.output) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.output.advance(count);
                    if let Some(blocks) = &mut self.blocks {
                        blocks.packer.note_write(count, ticks);
                    }
                    *any = true;
                }
                Err(error) => return Err(error),
            }
            *any |= self.below.write_own()?;
        }
        Ok(())
    }
}

impl Read for BlockLayer {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(blocks) = &mut self.blocks else {
            let count = self.below.read(buffer)?;
            self.received += count as u64;
            return Ok(count);
        };
        loop {
            if !blocks.unpacked.is_empty() {
                let count = blocks.unpacked.len().min(buffer.len());
                blocks.unpacked.copy_to_slice(&mut buffer[..count]);
                return Ok(count);
            }
            if !blocks.input.is_empty() {
                let taken = blocks.unpacker.unpack(&blocks.input, &mut blocks.unpacked);
                let taken = taken.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
                blocks.input.advance(taken);
                continue;
            }
            // There is nothing here: what was may go.
            blocks.unpacked = BytesMut::new();
            let count = self.below.read(buffer)?;
            if count == 0 {
                return Ok(0);
            }
            self.received += count as u64;
            blocks.input = BytesMut::from(&buffer[..count]);
        }
    }
}

impl Write for BlockLayer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.owes() {
            return Err(ErrorKind::WouldBlock.into());
        }
        let mut taken = 0;
        if self.said < PREFACE_BYTES {
            if self.blocks.is_none() && bytes.len() >= PREFACE_BYTES {
                // It says of itself that what follows is as it is.
                self.said = PREFACE_BYTES;
            } else {
                taken = self.say_terms(bytes);
            }
        }
        let rest = &bytes[taken..];
        match &mut self.blocks {
            Some(blocks) if !rest.is_empty() => {
                // What is behind the part that is never packed leaves with it.
                let mut rest = rest;
                for _ in 0..2 {
                    let count = blocks.packer.pack(rest, ticks, &mut self.output);
                    taken += count;
                    rest = &rest[count..];
                    if rest.is_empty() {
                        break;
                    }
                }
            }
            None if taken == 0 => {
                let count = self.below.write(bytes)?;
                self.sent += count as u64;
                return Ok(count);
            }
            _ => {}
        }
        self.sent += self.output.len() as u64;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_own().map(|_| ())
    }
}

impl Layer for BlockLayer {
    fn is_opening(&self) -> bool {
        self.below.is_opening()
    }

    fn is_resumed(&self) -> bool {
        self.below.is_resumed()
    }

    fn owes(&self) -> bool {
        !self.output.is_empty() || self.below.owes()
    }

    fn holds(&self) -> bool {
        let blocks = self.blocks.as_ref();
        blocks.is_some_and(|it| !it.unpacked.is_empty() || !it.input.is_empty())
            || self.below.holds()
    }

    fn write_own(&mut self) -> io::Result<bool> {
        let mut any = false;
        let written = self.write_output(&mut any);
        if self.output.is_empty() {
            // The next message may be long in coming.
            self.output = BytesMut::new();
        }
        match written {
            Ok(()) => Ok(any),
            Err(error) if is_patience(&error) => {
                if let Some(blocks) = &mut self.blocks {
                    blocks.packer.note_full(ticks);
                }
                any.then_some(true).ok_or(error)
            }
            Err(error) => Err(error),
        }
    }

    fn traffic(&self) -> [u64; 2] {
        [self.sent, self.received]
    }

    fn close(&mut self) -> io::Result<()> {
        // A courtesy: whoever has something to say sends it before.
        let _ = self.write_own();
        self.below.close()
    }

    fn socket(&self) -> &TcpStream {
        self.below.socket()
    }
}

/// What is wrong with the blocks that came, if that is why reading failed.
pub(crate) fn objection(error: &io::Error) -> Option<&BlockError> {
    error.get_ref()?.downcast_ref()
}
