//! Where a download waits until all of it is there.
//!
//! Owns the store of bytes, nothing of what they mean. Small downloads stay in memory;
//! larger ones go to a file beside the database, which exists only while its sync runs. One that may
//! be gone on with goes to a file that stays should the sync break ([`DownloadStore`]).

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest, Sha256};

/// How much of a download stays in memory; also the size of writes to the file.
const MEMORY_BYTES: usize = 256 << 10;

/// In so many bytes a part of a download says which one it is.
const BEGINNING_BYTES: u64 = 512;

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

/// Where what comes of downloads is kept.
pub trait DownloadStore: Send {
    /// What is kept of the download of a publication, from its beginning. `None` if nothing can be
    /// kept: another sync of the same file does.
    ///
    /// # Errors
    /// The storage failed.
    fn open(&mut self, publication: &str) -> io::Result<Option<Box<dyn KeptSpool>>>;
}

/// A spool that outlives its sync, unless it is removed.
pub trait KeptSpool: Spool {
    /// Only so many bytes stay; what is appended follows them.
    ///
    /// # Errors
    /// The storage failed or is full.
    fn cut(&mut self, bytes: u64) -> io::Result<()>;

    /// What is there stays, however little it is.
    ///
    /// # Errors
    /// The storage failed or is full.
    fn keep(&mut self) -> io::Result<()>;

    /// Nothing stays.
    fn remove(&mut self);
}

/// Keeps nothing.
#[derive(Debug, Default)]
pub struct NoDownloadStore;

impl DownloadStore for NoDownloadStore {
    fn open(&mut self, _: &str) -> io::Result<Option<Box<dyn KeptSpool>>> {
        Ok(None)
    }
}

/// Keeps in memory: for tests. Copies share what they keep.
#[derive(Clone, Debug, Default)]
pub struct MemoryDownloadStore(Arc<Mutex<HashMap<String, Vec<u8>>>>);

/// See [`MemoryDownloadStore`].
struct MemoryKeptSpool {
    all: MemoryDownloadStore,
    publication: String,
    at: usize,
}

impl DownloadStore for MemoryDownloadStore {
    fn open(&mut self, publication: &str) -> io::Result<Option<Box<dyn KeptSpool>>> {
        Ok(Some(Box::new(MemoryKeptSpool {
            all: self.clone(),
            publication: publication.to_owned(),
            at: 0,
        })))
    }
}

impl MemoryKeptSpool {
    fn with<R>(&mut self, work: impl FnOnce(&mut Vec<u8>, &mut usize) -> R) -> R {
        let mut all = self.all.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = all.entry(self.publication.clone()).or_default();
        work(bytes, &mut self.at)
    }
}

impl Spool for MemoryKeptSpool {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.with(|all, _| all.extend_from_slice(bytes));
        Ok(())
    }

    fn rewind(&mut self) -> io::Result<()> {
        self.at = 0;
        Ok(())
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(self.with(|all, at| {
            let rest = all.get(*at..).unwrap_or_default();
            let count = rest.len().min(buffer.len());
            buffer[..count].copy_from_slice(&rest[..count]);
            *at += count;
            count
        }))
    }
}

impl KeptSpool for MemoryKeptSpool {
    fn cut(&mut self, bytes: u64) -> io::Result<()> {
        self.with(|all, _| all.truncate(bytes as usize));
        Ok(())
    }

    fn keep(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn remove(&mut self) {
        self.with(|all, at| {
            all.clear();
            *at = 0;
        });
    }
}

/// Keeps in files beside a database: `<path>-tidewater-part-` and a number made of the
/// publication's name.
#[derive(Debug)]
pub struct FileDownloadStore {
    path: PathBuf,
}

impl FileDownloadStore {
    /// For the database at `path`.
    pub fn beside(path: &Path) -> FileDownloadStore {
        FileDownloadStore {
            path: path.to_owned(),
        }
    }

    /// What is kept in files: the beginning of each, by which one download is told from another, and
    /// its length.
    pub fn kept(&self) -> HashMap<PathBuf, (Vec<u8>, u64)> {
        let prefix = self.prefix();
        let folder = prefix.parent().filter(|it| !it.as_os_str().is_empty());
        let Some(prefix) = prefix.file_name().map(|it| it.as_encoded_bytes()) else {
            return HashMap::new();
        };
        // What cannot be seen is not gone on with.
        let entries = std::fs::read_dir(folder.unwrap_or(Path::new("."))).into_iter();
        let entries = entries.flatten().flatten();
        let parts = entries.filter(|it| it.file_name().as_encoded_bytes().starts_with(prefix));
        let look = |path: PathBuf| {
            let file = File::open(&path).ok()?;
            let bytes = file.metadata().ok()?.len();
            let mut begins = Vec::with_capacity(BEGINNING_BYTES as usize);
            file.take(BEGINNING_BYTES).read_to_end(&mut begins).ok()?;
            Some((path, (begins, bytes)))
        };
        parts.filter_map(|it| look(it.path())).collect()
    }

    fn prefix(&self) -> PathBuf {
        let mut name = self.path.as_os_str().to_owned();
        name.push("-tidewater-part-");
        name.into()
    }

    fn path(&self, publication: &str) -> PathBuf {
        let hash = Sha256::digest(publication.as_bytes());
        let mut name = self.prefix().into_os_string();
        name.push(
            hash[..4]
                .iter()
                .map(|it| format!("{it:02x}"))
                .collect::<String>(),
        );
        name.into()
    }
}

impl DownloadStore for FileDownloadStore {
    fn open(&mut self, publication: &str) -> io::Result<Option<Box<dyn KeptSpool>>> {
        let path = self.path(publication);
        let file = match OpenOptions::new().read(true).write(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            opened => match lock(opened?)? {
                None => return Ok(None),
                locked => locked,
            },
        };
        Ok(Some(Box::new(FileKeptSpool {
            path,
            bytes: GrowingBytes {
                memory: MemorySpool::default(),
                file,
            },
        })))
    }
}

/// A file that nobody else has; `None` if somebody does.
fn lock(file: File) -> io::Result<Option<File>> {
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(std::fs::TryLockError::WouldBlock) => Ok(None),
        Err(std::fs::TryLockError::Error(error)) => Err(error),
    }
}

/// What is in memory until it is worth a file.
#[derive(Debug, Default)]
struct GrowingBytes {
    memory: MemorySpool,
    file: Option<File>,
}

impl GrowingBytes {
    /// Appends bytes; `make` makes the file if one is needed.
    fn append(&mut self, bytes: &[u8], make: impl FnOnce() -> io::Result<File>) -> io::Result<()> {
        self.memory.append(bytes)?;
        if self.memory.bytes.len() >= MEMORY_BYTES {
            if self.file.is_none() {
                self.file = Some(make()?);
            }
            self.spill()?;
        }
        Ok(())
    }

    /// Has the file hold all, if there is one.
    fn spill(&mut self) -> io::Result<()> {
        if let Some(file) = &mut self.file {
            file.write_all(&self.memory.bytes)?;
            self.memory.bytes.clear();
        }
        Ok(())
    }

    fn rewind(&mut self) -> io::Result<()> {
        self.spill()?;
        match &mut self.file {
            Some(file) => file.rewind(),
            None => self.memory.rewind(),
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.file {
            Some(file) => file.read(buffer),
            None => self.memory.read(buffer),
        }
    }
}

/// See [`FileDownloadStore`].
#[derive(Debug)]
struct FileKeptSpool {
    path: PathBuf,
    bytes: GrowingBytes,
}

impl FileKeptSpool {
    /// An empty file under the name, which nobody else has.
    fn make(path: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        for_its_owner(&mut options);
        let file = lock(options.open(path)?)?.ok_or_else(|| {
            let what = "another sync of the same file keeps its download there";
            io::Error::new(io::ErrorKind::WouldBlock, what)
        })?;
        file.set_len(0)?;
        Ok(file)
    }
}

/// Nobody else reads it.
#[cfg_attr(not(unix), allow(unused_variables))]
fn for_its_owner(options: &mut OpenOptions) {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
}

impl Spool for FileKeptSpool {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.bytes.append(bytes, || FileKeptSpool::make(&self.path))
    }

    fn rewind(&mut self) -> io::Result<()> {
        self.bytes.rewind()
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.bytes.read(buffer)
    }
}

impl KeptSpool for FileKeptSpool {
    fn cut(&mut self, bytes: u64) -> io::Result<()> {
        // Some of what stays may not be in the file yet.
        self.bytes.spill()?;
        match &mut self.bytes.file {
            Some(file) => {
                file.set_len(bytes)?;
                file.seek(SeekFrom::Start(bytes))?;
            }
            None => self.bytes.memory.bytes.truncate(bytes as usize),
        }
        Ok(())
    }

    fn keep(&mut self) -> io::Result<()> {
        if self.bytes.file.is_none() {
            self.bytes.file = Some(FileKeptSpool::make(&self.path)?);
        }
        self.bytes.spill()
    }

    fn remove(&mut self) {
        if std::mem::take(&mut self.bytes).file.is_some() {
            // Where it cannot be removed now, it is overwritten by the next download.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Drop for FileKeptSpool {
    fn drop(&mut self) {
        // What cannot be written is not kept: it has no mark that agrees.
        let _ = self.bytes.spill();
    }
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
    bytes: GrowingBytes,
    /// The name of its file, where the system does not allow it to have none.
    remove: Option<PathBuf>,
}

impl FileSpool {
    /// A spool for the database at `path`. Its file, if one is needed, is
    /// `<path>-tidewater-download`.
    pub fn beside(path: &Path) -> FileSpool {
        let mut name = path.as_os_str().to_owned();
        name.push("-tidewater-download");
        FileSpool {
            path: name.into(),
            bytes: GrowingBytes::default(),
            remove: None,
        }
    }
}

impl Spool for FileSpool {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (path, remove) = (&self.path, &mut self.remove);
        self.bytes.append(bytes, || nameless(path, remove))
    }

    fn rewind(&mut self) -> io::Result<()> {
        self.bytes.rewind()
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.bytes.read(buffer)
    }
}

impl Drop for FileSpool {
    fn drop(&mut self) {
        if let Some(path) = &self.remove {
            // Where the name cannot be removed now, the next spool of this database does it.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A file without a name where the system allows that, so that not even a killed process
/// leaves one behind, and two syncs of one database do not write into each other's.
fn nameless(path: &Path, remove: &mut Option<PathBuf>) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    for_its_owner(&mut options);
    let file = match options.open(path) {
        // Left by a process that was killed before it could take the name away.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            std::fs::remove_file(path)?;
            options.open(path)?
        }
        other => other?,
    };
    let is_nameless = cfg!(unix) && std::fs::remove_file(path).is_ok();
    *remove = (!is_nameless).then(|| path.to_owned());
    Ok(file)
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

    #[test]
    fn what_is_kept_outlives_its_spool_until_it_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let mut keep = FileDownloadStore::beside(&folder.path().join("remote.db"));
        let bytes: Vec<u8> = (0..2 * MEMORY_BYTES).map(|it| (it % 251) as u8).collect();
        let mut spool = keep.open("sales").unwrap().unwrap();
        for piece in bytes.chunks(70_000) {
            spool.append(piece).unwrap();
        }
        // Nobody else may have it meanwhile; another publication's is another one.
        assert!(keep.open("sales").unwrap().is_none());
        let mut other = keep.open("stock").unwrap().unwrap();
        assert_eq!(read_all(&mut *other), [0; 0]);
        drop(spool);
        let lengths =
            |keep: &FileDownloadStore| keep.kept().into_values().map(|it| it.1).sum::<u64>();
        assert_eq!(lengths(&keep), bytes.len() as u64);
        let mut spool = keep.open("sales").unwrap().unwrap();
        assert_eq!(read_all(&mut *spool), bytes);
        spool.cut(100_000).unwrap();
        spool.append(b"more").unwrap();
        spool.rewind().unwrap();
        assert_eq!(read_all(&mut *spool), [&bytes[..100_000], b"more"].concat());
        spool.cut(0).unwrap();
        spool.append(&bytes).unwrap();
        spool.append(b"and little more").unwrap();
        spool.cut(bytes.len() as u64 + 3).unwrap();
        spool.rewind().unwrap();
        assert_eq!(read_all(&mut *spool), [&bytes, &b"and"[..]].concat());
        spool.remove();
        drop(spool);
        assert_eq!(lengths(&keep), 0);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn little_is_kept_if_it_is_to_stay() {
        let folder = tempfile::tempdir().unwrap();
        let mut keep = FileDownloadStore::beside(&folder.path().join("remote.db"));
        let mut spool = keep.open("sales").unwrap().unwrap();
        spool.append(b"some rows, and more").unwrap();
        spool.cut(9).unwrap();
        spool.keep().unwrap();
        drop(spool);
        let mut spool = keep.open("sales").unwrap().unwrap();
        assert_eq!(read_all(&mut *spool), b"some rows");
    }

    #[test]
    fn little_is_kept_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let mut keep = FileDownloadStore::beside(&folder.path().join("remote.db"));
        let mut spool = keep.open("sales").unwrap().unwrap();
        spool.append(b"some rows").unwrap();
        spool.rewind().unwrap();
        assert_eq!(read_all(&mut *spool), b"some rows");
        drop(spool);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
