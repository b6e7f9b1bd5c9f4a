//! Compression over what comes: [`crate::block`] between what is sent and what is said.
//!
//! A connection that waits holds nothing here: buffers are there from the first byte of a block
//! until its last is handed on.

use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::block::{BlockError, MAX_BLOCK_BYTES, PREFACE_BYTES, Packer, Readable, Terms, Unpacker};
use crate::compression::Packing;
use crate::ticks::ticks;

/// How much is read at once.
const READ_BYTES: usize = 16 << 10;

/// Who keeps account of what goes over a connection.
pub trait Ledger {
    /// So much has come over the line.
    fn received(&mut self, bytes: usize);

    /// So much was given to the line.
    fn sent(&mut self, bytes: usize);

    /// A block needs so much memory now. Whether it may have it.
    fn hold(&mut self, bytes: usize) -> bool;
}

/// There is no memory for a block that comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no memory for a block")]
pub struct NoRoom;

/// What a connection says, whichever way the preface says that it is packed. The preface itself
/// is handed on.
pub struct Packed<S, L> {
    stream: S,
    ledger: L,
    packing: Packing,
    preface: [u8; PREFACE_BYTES],
    /// How much of the preface has come.
    came: usize,
    input: Input,
    output: Option<Box<Output>>,
}

enum Input {
    /// As it is.
    Plain,
    Blocks(Unpacker),
    /// A block is on its way.
    Busy(Box<Unpacking>),
    /// What is no block came: what follows is nothing.
    Broken,
}

struct Unpacking {
    unpacker: Unpacker,
    /// What was read and not yet unpacked, and what was unpacked and not yet handed on.
    input: BytesMut,
    unpacked: BytesMut,
    /// How large that is in memory.
    size: usize,
}

impl Unpacking {
    fn new(unpacker: Unpacker, input: BytesMut) -> Box<Unpacking> {
        Box::new(Unpacking {
            unpacker,
            input,
            unpacked: BytesMut::new(),
            size: 0,
        })
    }

    /// Whether nothing of a block is here.
    fn is_done(&self) -> bool {
        self.unpacked.is_empty() && self.input.is_empty() && self.unpacker.is_between()
    }
}

struct Output {
    packer: Packer,
    /// What is packed and not yet sent.
    bytes: BytesMut,
}

impl<S, L: Ledger> Packed<S, L> {
    /// Over a connection from its first byte on. Packs so, if the client reads it.
    pub fn new(stream: S, packing: Packing, ledger: L) -> Packed<S, L> {
        Packed {
            stream,
            ledger,
            packing,
            preface: [0; PREFACE_BYTES],
            came: 0,
            input: Input::Plain,
            output: None,
        }
    }

    /// The connection as it is, with what has not been read of it.
    pub fn into_inner(self) -> S {
        self.stream
    }

    /// Looks for the preface in what has come. What is behind it is packed, if it says so.
    fn look_for_preface(&mut self, buffer: &mut ReadBuf<'_>, start: usize) -> io::Result<()> {
        let came = &buffer.filled()[start..];
        let count = came.len().min(PREFACE_BYTES - self.came);
        self.preface[self.came..self.came + count].copy_from_slice(&came[..count]);
        self.came += count;
        if self.came < PREFACE_BYTES {
            return Ok(());
        }
        let terms = Terms::read(&self.preface).map_err(|error| self.broken(error))?;
        if let Some(readable) = terms.client_reads {
            self.output = Some(Box::new(Output {
                packer: Packer::new(self.packing, readable),
                bytes: BytesMut::new(),
            }));
        }
        if terms.client_packs {
            // This server reads all that there is, whatever it sends.
            let unpacker = Unpacker::new(Readable::ALL);
            self.input = match &came[count..] {
                [] => Input::Blocks(unpacker),
                rest => Input::Busy(Unpacking::new(unpacker, BytesMut::from(rest))),
            };
            buffer.set_filled(start + count);
        }
        Ok(())
    }

    fn broken(&mut self, error: BlockError) -> io::Error {
        self.input = Input::Broken;
        self.ledger.hold(0);
        io::Error::new(ErrorKind::InvalidData, error)
    }
}

impl<S: AsyncRead + Unpin, L: Ledger> Packed<S, L> {
    fn poll_plain(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let start = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        self.ledger.received(buffer.filled().len() - start);
        if self.came < PREFACE_BYTES {
            self.look_for_preface(buffer, start)?;
        }
        Poll::Ready(Ok(()))
    }

    /// Reads a piece, which has a buffer only once it is there. Empty at the end.
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<io::Result<BytesMut>> {
        let mut piece = [MaybeUninit::uninit(); READ_BYTES];
        let mut piece = ReadBuf::uninit(&mut piece);
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut piece))?;
        self.ledger.received(piece.filled().len());
        Poll::Ready(Ok(BytesMut::from(piece.filled())))
    }
}

impl<S: AsyncRead + Unpin, L: Ledger + Unpin> AsyncRead for Packed<S, L> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            let mut unpacking = match std::mem::replace(&mut this.input, Input::Plain) {
                Input::Plain => return this.poll_plain(context, buffer),
                Input::Broken => {
                    this.input = Input::Broken;
                    return Pin::new(&mut this.stream).poll_read(context, buffer);
                }
                Input::Blocks(unpacker) => match this.poll_piece(context) {
                    Poll::Ready(Ok(input)) if !input.is_empty() => Unpacking::new(unpacker, input),
                    other => {
                        this.input = Input::Blocks(unpacker);
                        return other.map_ok(|_| ());
                    }
                },
                Input::Busy(unpacking) => unpacking,
            };
            if unpacking.unpacked.is_empty() && unpacking.input.is_empty() {
                match this.poll_piece(context) {
                    Poll::Ready(Ok(input)) if !input.is_empty() => unpacking.input = input,
                    other => {
                        this.input = Input::Busy(unpacking);
                        return other.map_ok(|_| ());
                    }
                }
            }
            if unpacking.unpacked.is_empty() {
                let Unpacking {
                    unpacker,
                    input,
                    unpacked,
                    size,
                } = &mut *unpacking;
                match unpacker.unpack(input, unpacked) {
                    Ok(taken) => input.advance(taken),
                    Err(error) => return Poll::Ready(Err(this.broken(error))),
                }
                *size = unpacked.len();
            }
            let count = unpacking.unpacked.len().min(buffer.remaining());
            buffer.put_slice(&unpacking.unpacked[..count]);
            unpacking.unpacked.advance(count);
            if unpacking.unpacked.is_empty() {
                unpacking.unpacked = BytesMut::new();
                unpacking.size = 0;
            }
            let holds = unpacking.unpacker.holds() + unpacking.size;
            this.input = match unpacking.is_done() {
                true => Input::Blocks(unpacking.unpacker),
                false => Input::Busy(unpacking),
            };
            if !this.ledger.hold(holds) {
                this.input = Input::Broken;
                this.ledger.hold(0);
                return Poll::Ready(Err(io::Error::new(ErrorKind::OutOfMemory, NoRoom)));
            }
            if count > 0 || buffer.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<S: AsyncWrite + Unpin, L: Ledger> Packed<S, L> {
    /// Sends what is packed.
    fn poll_output(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(output) = &mut self.output else {
            return Poll::Ready(Ok(()));
        };
        while !output.bytes.is_empty() {
            match Pin::new(&mut self.stream).poll_write(context, &output.bytes) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(count)) => {
                    output.bytes.advance(count);
                    output.packer.wrote(count, ticks);
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    output.packer.waits(ticks);
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin, L: Ledger + Unpin> AsyncWrite for Packed<S, L> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.output.is_none() {
            let count = ready!(Pin::new(&mut this.stream).poll_write(context, bytes))?;
            this.ledger.sent(count);
            return Poll::Ready(Ok(count));
        }
        // One block at a time, so that no more than that is kept.
        ready!(this.poll_output(context))?;
        let Some(output) = &mut this.output else {
            return Poll::Ready(Ok(0));
        };
        let taken = output.packer.pack(bytes, ticks, &mut output.bytes);
        this.ledger.sent(output.bytes.len());
        debug_assert!(output.bytes.len() <= 2 * MAX_BLOCK_BYTES);
        match this.poll_output(context) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            // It leaves with what follows, or at the flush.
            _ => Poll::Ready(Ok(taken)),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_output(context))?;
        if let Some(output) = &mut this.output {
            // The next message may be long in coming.
            output.bytes = BytesMut::new();
        }
        Pin::new(&mut this.stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_output(context))?;
        Pin::new(&mut this.stream).poll_shutdown(context)
    }
}
