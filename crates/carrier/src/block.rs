//! Blocks: packed pieces of what a connection says, each of which is unpacked by itself.
//!
//! Owns the two bytes of the preface that say who packs what, the format of a block and its limits
//! (`docs/protocol.md`, "Compression"). No input or output: bytes come in and go out. What packs
//! and unpacks is borrowed from a small pool for one block, so that a connection that waits holds
//! nothing of it. When packing pays, is for the module `auto_packing` to say.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use flate2::{Compress, Decompress, FlushCompress, FlushDecompress, Status};
use zstd::bulk::{Compressor, Decompressor};

use crate::auto_packing::AutoPacking;
use crate::compression::{Compression, CompressionOptions};

/// The size of a block's header in bytes.
pub const BLOCK_HEADER_BYTES: usize = 7;

/// The most that a block holds, unpacked.
pub const MAX_BLOCK_BYTES: usize = 128 << 10;

/// The size of a connection's preface in bytes.
pub(crate) const PREFACE_BYTES: usize = 8;

/// What every preface begins with, whatever its version.
const MAGIC: &[u8] = b"TIDE";

/// Where in the preface the client says how it packs, and what it reads.
const CLIENT_PACKS: usize = 6;
const CLIENT_READS: usize = 7;

/// So much of what either side says first is never packed: how far a secret can be packed tells
/// something about it.
const NEVER_PACKED_BYTES: usize = 4 << 10;

/// Smaller pieces are not worth the trouble.
const LEAST_BYTES: usize = 64;

/// So many sets of tools are kept; whoever finds none makes some for the moment.
const KEPT_TOOLS: usize = 8;

/// How far is packed if nobody says how far.
const USUAL_DEFLATE_LEVEL: u8 = 6;
const USUAL_ZSTD_LEVEL: u8 = 3;

/// How a block is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// Not at all.
    Raw,
    /// As a zlib stream.
    Deflate,
    /// As a Zstandard frame.
    Zstd,
}

impl BlockKind {
    fn from_byte(byte: u8) -> Option<BlockKind> {
        match byte {
            0 => Some(BlockKind::Raw),
            1 => Some(BlockKind::Deflate),
            2 => Some(BlockKind::Zstd),
            _ => None,
        }
    }

    fn byte(self) -> u8 {
        match self {
            BlockKind::Raw => 0,
            BlockKind::Deflate => 1,
            BlockKind::Zstd => 2,
        }
    }

    /// How far something of this kind is packed.
    fn level(self, packing: CompressionOptions) -> i32 {
        let (usual, most) = match self {
            BlockKind::Deflate => (USUAL_DEFLATE_LEVEL, Compression::Deflate.levels()),
            BlockKind::Raw | BlockKind::Zstd => (USUAL_ZSTD_LEVEL, Compression::Zstd.levels()),
        };
        i32::from(packing.level.unwrap_or(usual).clamp(1, most))
    }
}

impl fmt::Display for BlockKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BlockKind::Raw => "nothing",
            BlockKind::Deflate => "deflate",
            BlockKind::Zstd => "zstd",
        })
    }
}

/// What can be read beside raw blocks: a set of kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadableKinds(u8);

impl ReadableKinds {
    const DEFLATE: u8 = 1;
    const ZSTD: u8 = 2;

    /// Everything that this version knows.
    pub const ALL: ReadableKinds = ReadableKinds(Self::DEFLATE | Self::ZSTD);

    /// What somebody with this setting wants to read.
    pub fn for_compression(compression: Compression) -> ReadableKinds {
        match compression {
            Compression::Auto => ReadableKinds::ALL,
            Compression::Off => ReadableKinds(0),
            Compression::Zstd => ReadableKinds(Self::ZSTD),
            Compression::Deflate => ReadableKinds(Self::DEFLATE),
        }
    }

    fn has(self, kind: BlockKind) -> bool {
        match kind {
            BlockKind::Raw => true,
            BlockKind::Deflate => self.0 & Self::DEFLATE != 0,
            BlockKind::Zstd => self.0 & Self::ZSTD != 0,
        }
    }
}

/// What the bytes 6 and 7 of a connection's preface say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackingTerms {
    /// The client sends blocks.
    pub client_packs: bool,
    /// The server sends blocks, of these kinds, or bytes as they are.
    pub client_reads: Option<ReadableKinds>,
}

impl PackingTerms {
    /// What a client with this setting says.
    pub fn for_compression(compression: Compression) -> PackingTerms {
        match compression {
            Compression::Off => PackingTerms::default(),
            other => PackingTerms {
                client_packs: true,
                client_reads: Some(ReadableKinds::for_compression(other)),
            },
        }
    }

    /// What a preface says. Whoever sends none has sent bytes as they are.
    ///
    /// # Errors
    /// It packs in a way that there is not.
    pub fn read(preface: &[u8; PREFACE_BYTES]) -> Result<PackingTerms, BlockError> {
        if !preface.starts_with(MAGIC) {
            return Ok(PackingTerms::default());
        }
        let client_packs = match preface[CLIENT_PACKS] {
            0 => false,
            1 => true,
            other => return Err(BlockError::UnknownPacking(other)),
        };
        // Bits that are not known stand for kinds that we do not send.
        let client_reads = match preface[CLIENT_READS] {
            0 => None,
            bits => Some(ReadableKinds(bits)),
        };
        Ok(PackingTerms {
            client_packs,
            client_reads,
        })
    }

    /// Says it in a preface; `at` is where in it the bytes begin.
    pub fn write(self, bytes: &mut [u8], at: usize) {
        let reads = self.client_reads.map_or(0, |it| it.0);
        for (place, said) in [
            (CLIENT_PACKS, u8::from(self.client_packs)),
            (CLIENT_READS, reads),
        ] {
            let byte = place.checked_sub(at).and_then(|it| bytes.get_mut(it));
            if let Some(byte) = byte {
                *byte = said;
            }
        }
    }
}

/// What came is no block, or one that is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// The preface names a way of packing that this version does not know.
    #[error("the preface says that what follows is packed in a way that is not known: {0}")]
    UnknownPacking(u8),
    /// Not a kind of block.
    #[error("a block is of an unknown kind: {0}")]
    UnknownKind(u8),
    /// A kind that this side did not say it reads.
    #[error("a block is packed with {0}, which this side did not say it reads")]
    Unasked(BlockKind),
    /// Empty, over the limit, or not smaller for being packed.
    #[error(
        "a block announces {packed} bytes that hold {raw}, where {MAX_BLOCK_BYTES} is the limit"
    )]
    Lengths {
        /// What follows the header.
        packed: usize,
        /// What it is unpacked.
        raw: usize,
    },
    /// It cannot be unpacked, or not to what its header announces.
    #[error("a block packed with {kind} does not hold the {raw} bytes that it announces")]
    Broken {
        /// How it is packed.
        kind: BlockKind,
        /// What it announces.
        raw: usize,
    },
}

/// Makes blocks.
#[derive(Debug)]
pub struct BlockPacker {
    kind: BlockKind,
    level: i32,
    auto: Option<AutoPacking>,
    never_packed: usize,
}

impl BlockPacker {
    /// For somebody who reads these kinds.
    pub fn new(packing: CompressionOptions, readable: ReadableKinds) -> BlockPacker {
        let [first, second] = match packing.compression {
            Compression::Deflate => [BlockKind::Deflate, BlockKind::Zstd],
            _ => [BlockKind::Zstd, BlockKind::Deflate],
        };
        let kind = match packing.compression {
            Compression::Off => BlockKind::Raw,
            _ if readable.has(first) => first,
            _ if readable.has(second) => second,
            _ => BlockKind::Raw,
        };
        let is_auto = packing.compression == Compression::Auto && kind != BlockKind::Raw;
        BlockPacker {
            kind,
            level: kind.level(packing),
            auto: is_auto.then(AutoPacking::default),
            never_packed: NEVER_PACKED_BYTES,
        }
    }

    /// Appends one block to `out`. Gives how many of the bytes are in it: never none, if there are
    /// any. The clock tells how long packing took, counted from anywhere.
    pub fn pack(&mut self, bytes: &[u8], clock: fn() -> Duration, out: &mut BytesMut) -> usize {
        let bytes = &bytes[..bytes.len().min(MAX_BLOCK_BYTES)];
        if self.never_packed > 0 || self.kind == BlockKind::Raw || bytes.len() < LEAST_BYTES {
            let first = match self.never_packed {
                0 => bytes,
                left => &bytes[..bytes.len().min(left)],
            };
            self.never_packed = self.never_packed.saturating_sub(first.len());
            put_raw(first, out);
            return first.len();
        }
        let Some(auto) = &mut self.auto else {
            put_packed(self.kind, self.level, bytes, out);
            return bytes.len();
        };
        if !auto.packs() {
            auto.note_raw(bytes.len());
            put_raw(bytes, out);
            return bytes.len();
        }
        let began = clock();
        let packed = put_packed(self.kind, self.level, bytes, out);
        let took = clock().saturating_sub(began);
        auto.note_packed(bytes.len(), packed, took);
        bytes.len()
    }

    /// The line has taken so many bytes.
    pub fn note_write(&mut self, bytes: usize, clock: fn() -> Duration) {
        if let Some(auto) = &mut self.auto {
            auto.note_write(bytes, clock());
        }
    }

    /// The line takes nothing more for the moment.
    pub fn note_full(&mut self, clock: fn() -> Duration) {
        if let Some(auto) = &mut self.auto {
            auto.note_full(clock());
        }
    }
}

fn put_header(kind: BlockKind, packed: usize, raw: usize, out: &mut [u8]) {
    out[0] = kind.byte();
    out[1..4].copy_from_slice(&(packed as u32).to_le_bytes()[..3]);
    out[4..7].copy_from_slice(&(raw as u32).to_le_bytes()[..3]);
}

fn put_raw(bytes: &[u8], out: &mut BytesMut) {
    if bytes.is_empty() {
        return;
    }
    let mut header = [0; BLOCK_HEADER_BYTES];
    put_header(BlockKind::Raw, bytes.len(), bytes.len(), &mut header);
    out.reserve(header.len() + bytes.len());
    out.put_slice(&header);
    out.put_slice(bytes);
}

/// Appends a block that is packed, or raw where that is no smaller. Gives the size of what is in
/// it.
fn put_packed(kind: BlockKind, level: i32, bytes: &[u8], out: &mut BytesMut) -> usize {
    let start = out.len();
    // There is no room for what is not smaller.
    out.resize(start + BLOCK_HEADER_BYTES + bytes.len() - 1, 0);
    let (header, room) = out[start..].split_at_mut(BLOCK_HEADER_BYTES);
    let packed = with_tools(|tools| tools.pack(kind, level, bytes, room));
    match packed {
        Some(packed) => {
            put_header(kind, packed, bytes.len(), header);
            out.truncate(start + BLOCK_HEADER_BYTES + packed);
            packed
        }
        None => {
            out.truncate(start);
            put_raw(bytes, out);
            bytes.len()
        }
    }
}

/// Reads blocks.
#[derive(Debug)]
pub struct BlockUnpacker {
    readable: ReadableKinds,
    reading: UnpackState,
}

#[derive(Debug)]
enum UnpackState {
    Header {
        bytes: [u8; BLOCK_HEADER_BYTES],
        have: usize,
    },
    /// So much of a raw block is still to come: it passes as it comes.
    Raw(usize),
    Packed {
        kind: BlockKind,
        packed: usize,
        raw: usize,
        /// What has come of it, unless it comes at once.
        came: BytesMut,
    },
}

impl UnpackState {
    const START: UnpackState = UnpackState::Header {
        bytes: [0; BLOCK_HEADER_BYTES],
        have: 0,
    };
}

impl BlockUnpacker {
    /// That takes these kinds.
    pub fn new(readable: ReadableKinds) -> BlockUnpacker {
        BlockUnpacker {
            readable,
            reading: UnpackState::START,
        }
    }

    /// Bytes of memory that the block needs which has begun to come.
    pub fn holds(&self) -> usize {
        match &self.reading {
            UnpackState::Packed { packed, raw, .. } => packed + raw,
            UnpackState::Header { .. } | UnpackState::Raw(_) => 0,
        }
    }

    /// Whether nothing of a block has come yet.
    pub fn is_between(&self) -> bool {
        matches!(&self.reading, UnpackState::Header { have: 0, .. })
    }

    /// Takes bytes until one block has come, or a piece of a raw one, and appends what it holds
    /// to `out`. Gives how many were taken: all, if nothing was appended.
    ///
    /// # Errors
    /// What came is no block, or one that is refused; nothing more can be read.
    pub fn unpack(&mut self, input: &[u8], out: &mut BytesMut) -> Result<usize, BlockError> {
        let mut rest = input;
        loop {
            match &mut self.reading {
                UnpackState::Header { bytes, have } => {
                    let count = rest.len().min(BLOCK_HEADER_BYTES - *have);
                    let (first, others) = rest.split_at(count);
                    bytes[*have..*have + count].copy_from_slice(first);
                    *have += count;
                    rest = others;
                    if *have < BLOCK_HEADER_BYTES {
                        return Ok(input.len());
                    }
                    self.reading = announced(bytes, self.readable)?;
                }
                UnpackState::Raw(left) => {
                    let (first, others) = rest.split_at(rest.len().min(*left));
                    out.put_slice(first);
                    *left -= first.len();
                    if *left == 0 {
                        self.reading = UnpackState::START;
                    }
                    return Ok(input.len() - others.len());
                }
                UnpackState::Packed {
                    kind,
                    packed,
                    raw,
                    came,
                } => {
                    let (first, others) = rest.split_at(rest.len().min(*packed - came.len()));
                    let whole = match came.is_empty() && first.len() == *packed {
                        true => first,
                        false => {
                            came.put_slice(first);
                            &came[..]
                        }
                    };
                    if whole.len() < *packed {
                        return Ok(input.len());
                    }
                    take_packed(*kind, whole, *raw, out)?;
                    self.reading = UnpackState::START;
                    return Ok(input.len() - others.len());
                }
            }
        }
    }
}

/// What a header says, if that is allowed.
fn announced(
    header: &[u8; BLOCK_HEADER_BYTES],
    readable: ReadableKinds,
) -> Result<UnpackState, BlockError> {
    let [kind, p0, p1, p2, r0, r1, r2] = *header;
    let packed = u32::from_le_bytes([p0, p1, p2, 0]) as usize;
    let raw = u32::from_le_bytes([r0, r1, r2, 0]) as usize;
    let kind = BlockKind::from_byte(kind).ok_or(BlockError::UnknownKind(kind))?;
    if !readable.has(kind) {
        return Err(BlockError::Unasked(kind));
    }
    let fits = match kind {
        BlockKind::Raw => packed == raw,
        BlockKind::Deflate | BlockKind::Zstd => 0 < packed && packed < raw,
    };
    if !fits || raw == 0 || raw > MAX_BLOCK_BYTES {
        return Err(BlockError::Lengths { packed, raw });
    }
    Ok(match kind {
        BlockKind::Raw => UnpackState::Raw(raw),
        BlockKind::Deflate | BlockKind::Zstd => UnpackState::Packed {
            kind,
            packed,
            raw,
            came: BytesMut::new(),
        },
    })
}

fn take_packed(
    kind: BlockKind,
    packed: &[u8],
    raw: usize,
    out: &mut BytesMut,
) -> Result<(), BlockError> {
    let start = out.len();
    // Into so much room and no more, whatever is in it.
    out.resize(start + raw, 0);
    let unpacked = with_tools(|tools| tools.unpack(kind, packed, &mut out[start..]));
    match unpacked {
        Some(count) if count == raw => Ok(()),
        _ => {
            out.truncate(start);
            Err(BlockError::Broken { kind, raw })
        }
    }
}

/// What packs and unpacks, each made when it is needed first.
#[derive(Default)]
struct Codecs {
    zstd: Option<(i32, Compressor<'static>)>,
    unzstd: Option<Decompressor<'static>>,
    deflate: Option<(i32, Compress)>,
    inflate: Option<Decompress>,
}

static TOOLS: Mutex<Vec<Codecs>> = Mutex::new(Vec::new());

fn with_tools<T>(work: impl FnOnce(&mut Codecs) -> T) -> T {
    let pool = || TOOLS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut tools = pool().pop().unwrap_or_default();
    let result = work(&mut tools);
    let mut pool = pool();
    if pool.len() < KEPT_TOOLS {
        pool.push(tools);
    }
    result
}

impl Codecs {
    /// Gives the size of what was packed, if there was room for it.
    fn pack(
        &mut self,
        kind: BlockKind,
        level: i32,
        bytes: &[u8],
        room: &mut [u8],
    ) -> Option<usize> {
        match kind {
            BlockKind::Raw => None,
            BlockKind::Zstd => {
                if !matches!(&self.zstd, Some((at, _)) if *at == level) {
                    self.zstd = Some((level, Compressor::new(level).ok()?));
                }
                let (_, zstd) = self.zstd.as_mut()?;
                zstd.compress_to_buffer(bytes, room).ok()
            }
            BlockKind::Deflate => {
                if !matches!(&self.deflate, Some((at, _)) if *at == level) {
                    let how = flate2::Compression::new(level.unsigned_abs());
                    self.deflate = Some((level, Compress::new(how, true)));
                }
                let (_, deflate) = self.deflate.as_mut()?;
                deflate.reset();
                match deflate.compress(bytes, room, FlushCompress::Finish) {
                    Ok(Status::StreamEnd) => usize::try_from(deflate.total_out()).ok(),
                    _ => None,
                }
            }
        }
    }

    /// Gives the size of what was unpacked, if that is all and there was room for it.
    fn unpack(&mut self, kind: BlockKind, packed: &[u8], room: &mut [u8]) -> Option<usize> {
        match kind {
            BlockKind::Raw => None,
            BlockKind::Zstd => {
                if self.unzstd.is_none() {
                    self.unzstd = Some(Decompressor::new().ok()?);
                }
                let unzstd = self.unzstd.as_mut()?;
                unzstd.decompress_to_buffer(packed, room).ok()
            }
            BlockKind::Deflate => {
                let inflate = self.inflate.get_or_insert_with(|| Decompress::new(true));
                inflate.reset(true);
                let status = inflate.decompress(packed, room, FlushDecompress::Finish);
                let is_all = usize::try_from(inflate.total_in()) == Ok(packed.len());
                match status {
                    Ok(Status::StreamEnd) if is_all => usize::try_from(inflate.total_out()).ok(),
                    _ => None,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
