//! Whether and how what a connection says is packed: what people set.

use std::fmt;
use std::str::FromStr;

use crate::block::BlockKind;

/// How what is sent is packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Where it makes a connection faster, with the best that the other side can read. Not on one
    /// machine.
    #[default]
    Auto,
    /// Not at all.
    Off,
    /// With Zstandard.
    Zstd,
    /// With deflate.
    Deflate,
}

/// How what is sent is packed, and how far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompressionOptions {
    /// With what.
    pub compression: Compression,
    /// How far, from 1 (fast) to the most of [`Compression::levels`] (small). `None`: as is usual.
    pub level: Option<u8>,
}

/// Not a setting of compression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is auto, off, zstd and deflate")]
pub struct NoCompression;

impl Compression {
    /// Every setting.
    pub const ALL: [Compression; 4] = [
        Compression::Auto,
        Compression::Off,
        Compression::Zstd,
        Compression::Deflate,
    ];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Compression::Auto => "auto",
            Compression::Off => "off",
            Compression::Zstd => "zstd",
            Compression::Deflate => "deflate",
        }
    }

    /// How far it can go.
    pub fn levels(self) -> u8 {
        match self {
            Compression::Deflate => DEFLATE_LEVELS,
            _ => ZSTD_LEVELS,
        }
    }
}

impl FromStr for Compression {
    type Err = NoCompression;

    fn from_str(text: &str) -> Result<Compression, NoCompression> {
        let found = Compression::ALL.into_iter().find(|it| it.name() == text);
        found.ok_or(NoCompression)
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The levels of each, and the usual one. Above 19 Zstandard wants windows that no block fills.
const ZSTD_LEVELS: u8 = 19;
const ZSTD_USUAL: u8 = 3;
const DEFLATE_LEVELS: u8 = 9;
const DEFLATE_USUAL: u8 = 6;

impl CompressionOptions {
    /// How far something of this kind is packed.
    pub(crate) fn level_for(self, kind: BlockKind) -> i32 {
        let (usual, most) = match kind {
            BlockKind::Deflate => (DEFLATE_USUAL, DEFLATE_LEVELS),
            BlockKind::Raw | BlockKind::Zstd => (ZSTD_USUAL, ZSTD_LEVELS),
        };
        i32::from(self.level.unwrap_or(usual).clamp(1, most))
    }
}
