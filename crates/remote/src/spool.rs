//! Where a download waits until all of it is there.
//!
//! Owns the store of bytes, nothing of what they mean. Small downloads stay in memory;
//! larger ones go to a file beside the database, which exists only while its sync runs.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

/// How much of a download stays in memory; also the size of writes to the file.
const MEMORY_BYTES: usize = 256 << 10;

/// Bytes that are first written, then read once from their beginning.
pub trait Spool: Send {
    /// Appends bytes.
    ///
    /// # Errors
    /// The storage failed or is full.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Ends writing and goes to the beginning.
    ///
    /// # Errors
    /// The storage failed or is full.
    fn rewind(&mut self) -> io::Result<()>;

    /// Reads the next bytes; 0 at the end.
    ///
    /// # Errors
    /// The storage failed.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize>;
}

/// A spool in memory only.
#[derive(Debug, Default)]
pub struct MemorySpool {
    bytes: Vec<u8>,
    at: usize,
}

impl Spool for MemorySpool {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn rewind(&mut self) -> io::Result<()> {
        self.at = 0;
        Ok(())
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = &self.bytes[self.at..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.at += count;
        Ok(count)
    }
}

/// A spool that moves to a file when it grows.
#[derive(Debug)]
pub struct FileSpool {
    path: PathBuf,
    memory: MemorySpool,
    file: Option<SpoolFile>,
}

impl FileSpool {
    /// A spool for the database at `path`. Its file, if one is needed, is
    /// `<path>-tidewater-download`.
    pub fn beside(path: &Path) -> FileSpool {
        let mut name = path.as_os_str().to_owned();
        name.push("-tidewater-download");
        FileSpool {
            path: name.into(),
            memory: MemorySpool::default(),
            file: None,
        }
    }

    fn spill(&mut self) -> io::Result<()> {
        if self.file.is_none() {
            self.file = Some(SpoolFile::create(&self.path)?);
        }
        if let Some(spool) = &mut self.file {
            spool.file.write_all(&self.memory.bytes)?;
            self.memory.bytes.clear();
        }
        Ok(())
    }
}

impl Spool for FileSpool {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.memory.append(bytes)?;
        if self.memory.bytes.len() >= MEMORY_BYTES {
            self.spill()?;
        }
        Ok(())
    }

    fn rewind(&mut self) -> io::Result<()> {
        if self.file.is_some() {
            self.spill()?;
        }
        match &mut self.file {
            Some(spool) => spool.file.rewind(),
            None => self.memory.rewind(),
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.file {
            Some(spool) => spool.file.read(buffer),
            None => self.memory.read(buffer),
        }
    }
}

/// A file without a name where the system allows that, so that not even a killed process
/// leaves one behind, and two syncs of one database do not write into each other's.
#[derive(Debug)]
struct SpoolFile {
    file: File,
    /// The file's name, while it has one.
    remove: Option<PathBuf>,
}

impl SpoolFile {
    fn create(path: &Path) -> io::Result<SpoolFile> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = match options.open(path) {
            // Left by a process that was killed before it could take the name away.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                std::fs::remove_file(path)?;
                options.open(path)?
            }
            other => other?,
        };
        let nameless = cfg!(unix) && std::fs::remove_file(path).is_ok();
        Ok(SpoolFile {
            file,
            remove: (!nameless).then(|| path.to_owned()),
        })
    }
}

impl Drop for SpoolFile {
    fn drop(&mut self) {
        if let Some(path) = &self.remove {
            // Where the name cannot be removed now, the next spool of this database does it.
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(spool: &mut dyn Spool) -> Vec<u8> {
        let mut all = Vec::new();
        let mut buffer = [0; 1000];
        loop {
            match spool.read(&mut buffer).unwrap() {
                0 => return all,
                count => all.extend_from_slice(&buffer[..count]),
            }
        }
    }

    #[test]
    fn what_goes_in_comes_out_whatever_its_size() {
        let folder = tempfile::tempdir().unwrap();
        for size in [0, 1, MEMORY_BYTES - 1, MEMORY_BYTES, 3 * MEMORY_BYTES + 7] {
            let mut spool = FileSpool::beside(&folder.path().join("remote.db"));
            let bytes: Vec<u8> = (0..size).map(|index| (index % 251) as u8).collect();
            for piece in bytes.chunks(70_000) {
                spool.append(piece).unwrap();
            }
            spool.rewind().unwrap();
            assert_eq!(read_all(&mut spool), bytes);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_file_left_by_a_killed_process_is_in_nobodys_way() {
        let folder = tempfile::tempdir().unwrap();
        let left = folder.path().join("remote.db-tidewater-download");
        std::fs::write(&left, b"old bytes").unwrap();
        let mut spool = FileSpool::beside(&folder.path().join("remote.db"));
        let bytes = vec![7; MEMORY_BYTES];
        spool.append(&bytes).unwrap();
        spool.rewind().unwrap();
        assert_eq!(read_all(&mut spool), bytes);
        drop(spool);
        assert!(!left.exists());
    }

    #[test]
    fn two_spools_of_one_database_do_not_mix() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("remote.db");
        let (mut first, mut second) = (FileSpool::beside(&path), FileSpool::beside(&path));
        first.append(&vec![1; MEMORY_BYTES]).unwrap();
        second.append(&vec![2; MEMORY_BYTES]).unwrap();
        first.rewind().unwrap();
        second.rewind().unwrap();
        assert_eq!(read_all(&mut first), vec![1; MEMORY_BYTES]);
        assert_eq!(read_all(&mut second), vec![2; MEMORY_BYTES]);
    }
}
