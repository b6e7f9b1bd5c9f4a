//! Whether and how what a connection says is packed: what people set.

use std::fmt;
use std::str::FromStr;

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

/// The levels of each. Above 19 Zstandard wants windows that no block fills.
const ZSTD_LEVELS: u8 = 19;
const DEFLATE_LEVELS: u8 = 9;
