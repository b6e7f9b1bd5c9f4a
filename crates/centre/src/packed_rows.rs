//! Packed rows, in memory or in a file of the spool, and the keys of rows that a remote asks for.

use std::fs::File;
use std::io;
use std::sync::Arc;

use bytes::Bytes;

use tidewater_protocol::message::TableBegin;

/// A piece of packed rows, in memory or in a spool file.
#[derive(Clone, Debug)]
pub enum RowsChunk {
    /// In memory.
    Memory(Bytes),
    /// In a file.
    File {
        /// The file.
        file: Arc<File>,
        /// Where the piece begins.
        offset: u64,
        /// Its length in bytes.
        length: usize,
    },
}

impl RowsChunk {
    /// How many bytes it has.
    pub fn length(&self) -> usize {
        match self {
            RowsChunk::Memory(bytes) => bytes.len(),
            RowsChunk::File { length, .. } => *length,
        }
    }

    /// The packed rows.
    ///
    /// # Errors
    /// The spool file cannot be read.
    pub fn read(&self) -> io::Result<Bytes> {
        match self {
            RowsChunk::Memory(bytes) => Ok(bytes.clone()),
            RowsChunk::File {
                file,
                offset,
                length,
            } => {
                use std::os::unix::fs::FileExt;
                let mut buffer = vec![0; *length];
                file.read_exact_at(&mut buffer, *offset)?;
                Ok(buffer.into())
            }
        }
    }
}

/// Keys of one table that a remote wants again.
#[derive(Clone, Debug)]
pub struct TableRequest {
    /// Table and columns as the remote announced them.
    pub begin: TableBegin,
    /// Packed rows of operation Request, whole and well-formed.
    pub rows: Bytes,
}
