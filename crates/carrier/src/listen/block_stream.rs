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

use crate::block::{
    BlockError, BlockPacker, BlockUnpacker, MAX_BLOCK_BYTES, PREFACE_BYTES, PackingTerms,
    ReadableKinds,
};
use crate::compression::CompressionOptions;
use crate::ticks::ticks;

/// How much is read at once.
const READ_BYTES: usize = 16 << 10;

/// Who keeps account of what goes over a connection.
pub trait ByteAccount {
    /// So much has come over the line.
    fn count_received(&mut self, bytes: usize);

    /// So much was given to the line.
    fn count_sent(&mut self, bytes: usize);

    /// A block needs so much memory now. Whether it may have it.
    fn hold(&mut self, bytes: usize) -> bool;
}

/// There is no memory for a block that comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no memory for a block")]
pub struct NoRoom;

/// What a connection says, whichever way the preface says that it is packed. The preface itself
/// is handed on.
pub struct BlockStream<S, L> {
    stream: S,
    account: L,
    packing: CompressionOptions,
    preface: [u8; PREFACE_BYTES],
    /// How much of the preface has come.
    came: usize,
    input: StreamInput,
    output: Option<Box<StreamOutput>>,
}

enum StreamInput {
    /// As it is.
    Plain,
    Blocks(BlockUnpacker),
    /// A block is on its way.
    Busy(Box<UnpackJob>),
    /// What is no block came: what follows is nothing.
    Broken,
}

struct UnpackJob {
    unpacker: BlockUnpacker,
    /// What was read and not yet unpacked, and what was unpacked and not yet handed on.
    input: BytesMut,
    unpacked: BytesMut,
    /// How large that is in memory.
    size: usize,
}

impl UnpackJob {
    fn new(unpacker: BlockUnpacker, input: BytesMut) -> Box<UnpackJob> {
        Box::new(UnpackJob {
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

struct StreamOutput {
    packer: BlockPacker,
    /// What is packed and not yet sent.
    bytes: BytesMut,
}

impl<S, L: ByteAccount> BlockStream<S, L> {
    /// Over a connection from its first byte on. Packs so, if the client reads it.
    pub fn new(stream: S, packing: CompressionOptions, ledger: L) -> BlockStream<S, L> {
        BlockStream {
            stream,
            account: ledger,
            packing,
            preface: [0; PREFACE_BYTES],
            came: 0,
            input: StreamInput::Plain,
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
        let terms = PackingTerms::read(&self.preface).map_err(|error| self.fail(error))?;
        if let Some(readable) = terms.client_reads {
            self.output = Some(Box::new(StreamOutput {
                packer: BlockPacker::new(self.packing, readable),
                bytes: BytesMut::new(),
            }));
        }
        if terms.client_packs {
            // This server reads all that there is, whatever it sends.
            let unpacker = BlockUnpacker::new(ReadableKinds::ALL);
            self.input = match &came[count..] {
                [] => StreamInput::Blocks(unpacker),
                rest => StreamInput::Busy(UnpackJob::new(unpacker, BytesMut::from(rest))),
            };
            buffer.set_filled(start + count);
        }
        Ok(())
    }

    fn fail(&mut self, error: BlockError) -> io::Error {
        self.input = StreamInput::Broken;
        self.account.hold(0);
        io::Error::new(ErrorKind::InvalidData, error)
    }
}

impl<S: AsyncRead + Unpin, L: ByteAccount> BlockStream<S, L> {
    fn poll_plain(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let start = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        self.account.count_received(buffer.filled().len() - start);
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
        self.account.count_received(piece.filled().len());
        Poll::Ready(Ok(BytesMut::from(piece.filled())))
    }
}

impl<S: AsyncRead + Unpin, L: ByteAccount + Unpin> AsyncRead for BlockStream<S, L> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            let mut unpacking = match std::mem::replace(&mut this.input, StreamInput::Plain) {
                StreamInput::Plain => return this.poll_plain(context, buffer),
                StreamInput::Broken => {
                    this.input = StreamInput::Broken;
                    return Pin::new(&mut this.stream).poll_read(context, buffer);
                }
                StreamInput::Blocks(unpacker) => match this.poll_piece(context) {
                    Poll::Ready(Ok(input)) if !input.is_empty() => UnpackJob::new(unpacker, input),
                    other => {
                        this.input = StreamInput::Blocks(unpacker);
                        return other.map_ok(|_| ());
                    }
                },
                StreamInput::Busy(unpacking) => unpacking,
            };
            if unpacking.unpacked.is_empty() && unpacking.input.is_empty() {
                match this.poll_piece(context) {
                    Poll::Ready(Ok(input)) if !input.is_empty() => unpacking.input = input,
                    other => {
                        this.input = StreamInput::Busy(unpacking);
                        return other.map_ok(|_| ());
                    }
                }
            }
            if unpacking.unpacked.is_empty() {
                let UnpackJob {
                    unpacker,
                    input,
                    unpacked,
                    size,
                } = &mut *unpacking;
                match unpacker.unpack(input, unpacked) {
                    Ok(taken) => input.advance(taken),
                    Err(error) => return Poll::Ready(Err(this.fail(error))),
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
                true => StreamInput::Blocks(unpacking.unpacker),
                false => StreamInput::Busy(unpacking),
            };
            if !this.account.hold(holds) {
                this.input = StreamInput::Broken;
                this.account.hold(0);
                return Poll::Ready(Err(io::Error::new(ErrorKind::OutOfMemory, NoRoom)));
            }
            if count > 0 || buffer.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<S: AsyncWrite + Unpin, L: ByteAccount> BlockStream<S, L> {
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
                    output.packer.note_write(count, ticks);
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    output.packer.note_full(ticks);
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin, L: ByteAccount + Unpin> AsyncWrite for BlockStream<S, L> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.output.is_none() {
            let count = ready!(Pin::new(&mut this.stream).poll_write(context, bytes))?;
            this.account.count_sent(count);
            return Poll::Ready(Ok(count));
        }
        // One block at a time, so that no more than that is kept.
        ready!(this.poll_output(context))?;
        let Some(output) = &mut this.output else {
            return Poll::Ready(Ok(0));
        };
        let taken = output.packer.pack(bytes, ticks, &mut output.bytes);
        this.account.count_sent(output.bytes.len());
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
