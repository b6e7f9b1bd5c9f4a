//! New remotes that begin from an image: fetched or copied, checked, and put in place as a whole.
//!
//! Owns where an image comes from. What is in it is `tidewater-remote`'s affair; whether it is one of
//! the centre's own, the server says at the first sync.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use tidewater_carrier::{DialOptions, ServerUrl, WebAsked, WebPage, WebSite};
use tidewater_protocol::Code;
use tidewater_protocol::image::Manifest;
use tidewater_remote::database::{Database, ImageStart};

use crate::error::ClientError;
use crate::options::SyncOptions;

/// As much is asked for at once: what is lost when the line breaks.
const PIECE_BYTES: u64 = 1 << 20;

/// How often a piece is asked for.
const TRIES: u32 = 5;

/// Makes a new remote's file of an image whose manifest is in this file, or at this `http://` or
/// `https://` address, with the image itself beside it. Of the options, those count that say how
/// a server is reached. If it breaks off, the next call goes on where it was.
///
/// The first sync presents what the manifest says. If the server does not know that
/// ([`Code::ImageInvalid`]), the file is of no use.
///
/// # Errors
/// There is a file already, the image cannot be fetched, or is not as its manifest says.
pub fn begin_from_image(
    file: &Path,
    image: &str,
    options: &SyncOptions,
    go_on: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<(), ClientError> {
    if file.exists() {
        return Err(failed(
            Code::Usage,
            format!("{} is there already", file.display()),
            "only a new file begins from an image: name another one, or leave the image out",
        ));
    }
    let mut source = Source::find(image, options)?;
    let manifest = source.manifest(go_on)?;
    let part = with_end(file, "-tidewater-image");
    source.fetch(&manifest, &part, go_on)?;
    let prepared = prepare(&part, &manifest);
    if prepared.is_err() {
        let _ = std::fs::remove_file(&part);
    }
    prepared?;
    std::fs::rename(&part, file).map_err(|error| lost(&part, &error))
}

fn prepare(part: &Path, manifest: &Manifest) -> Result<(), ClientError> {
    let mut database = Database::open(part)?;
    database.begin_from_image(ImageStart {
        sha256: &manifest.sha256,
        publication: &manifest.publication,
        schema_hash: &manifest.schema_hash,
        checkpoint: &manifest.checkpoint,
    })?;
    Ok(())
}

/// Where an image is.
enum Source {
    /// The manifest's file.
    File(PathBuf),
    Web {
        site: WebSite,
        /// The path of the manifest.
        path: String,
    },
}

impl Source {
    fn find(image: &str, options: &SyncOptions) -> Result<Source, ClientError> {
        if !image.starts_with("http://") && !image.starts_with("https://") {
            return Ok(Source::File(image.into()));
        }
        let url: ServerUrl = image.parse()?;
        let dial = DialOptions {
            ca_file: options.ca_file.as_deref(),
            pin: options.pin,
            certificate: options.certificate.as_ref(),
            insecure: options.insecure,
            proxy: options.proxy.as_deref(),
            packing: options.packing,
            timeout: options.timeout,
        };
        let site = WebSite::new(&url, &dial)?;
        Ok(Source::Web {
            site,
            path: url.path,
        })
    }

    fn manifest(
        &mut self,
        go_on: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Manifest, ClientError> {
        let read = match self {
            Source::File(path) => {
                let document = std::fs::read(&*path).map_err(|error| lost(path, &error))?;
                Manifest::from_json(&document)
            }
            Source::Web { path, .. } => {
                let path = path.clone();
                Manifest::from_json(&self.ask(&path, None, go_on)?.body)
            }
        };
        read.map_err(|error| {
            failed(
                Code::ImageInvalid,
                format!("what is to describe the image is no manifest: {error}"),
                "name the manifest that was made with the image, NAME.json",
            )
        })
    }

    /// Fetches what is not there yet.
    fn fetch(
        &mut self,
        manifest: &Manifest,
        to: &Path,
        go_on: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<(), ClientError> {
        let broken = |error: io::Error| lost(to, &error);
        let mut part = open_part(to).map_err(broken)?;
        let mut hash = Sha256::new();
        let mut have = read_all(&mut part, manifest.bytes, &mut hash).map_err(broken)?;
        if let Source::File(path) = self {
            let from = path.with_file_name(&manifest.file);
            let mut from = File::open(&from).map_err(|error| lost(&from, &error))?;
            hash = Sha256::new();
            part.set_len(0)
                .and_then(|()| part.rewind())
                .map_err(broken)?;
            let mut all = io::Read::take(&mut from, manifest.bytes.saturating_add(1));
            io::copy(&mut all, &mut part).map_err(broken)?;
            part.rewind().map_err(broken)?;
            read_all(&mut part, u64::MAX, &mut hash).map_err(broken)?;
        } else {
            while have < manifest.bytes {
                let until = manifest.bytes.min(have + PIECE_BYTES);
                let piece = self.piece(&manifest.file, have, until, go_on)?;
                hash.update(&piece);
                part.write_all(&piece).map_err(broken)?;
                have = until;
                if go_on(have, manifest.bytes).is_break() {
                    return Err(cancelled());
                }
            }
        }
        part.sync_all().map_err(broken)?;
        if hash.finalize()[..] == manifest.sha256[..] {
            return Ok(());
        }
        let _ = std::fs::remove_file(to);
        Err(failed(
            Code::ImageInvalid,
            "the image is not the one that its manifest describes: it was damaged or changed"
                .into(),
            "fetch it again; nothing was made of it",
        ))
    }

    fn piece(
        &mut self,
        file: &str,
        from: u64,
        until: u64,
        go_on: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Vec<u8>, ClientError> {
        let Source::Web { path, .. } = self else {
            return Ok(Vec::new());
        };
        let folder = path.rfind('/').map_or("/", |at| &path[..=at]);
        let path = format!("{folder}{file}");
        let range = format!("bytes={from}-{}", until - 1);
        let page = self.ask(&path, Some(&range), go_on)?;
        let length = (until - from) as usize;
        match (page.status, page.body.len()) {
            (206, came) if came == length => Ok(page.body.to_vec()),
            // A small file, of a server that knows no ranges.
            (200, came) if came as u64 >= until => {
                Ok(page.body[from as usize..][..length].to_vec())
            }
            _ => Err(failed(
                Code::Unreachable,
                format!(
                    "the web server answers {} to a range of the image",
                    page.summary
                ),
                "see that it serves ranges",
            )),
        }
    }

    fn ask(
        &mut self,
        path: &str,
        range: Option<&str>,
        go_on: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<WebPage, ClientError> {
        let Source::Web { site, .. } = self else {
            return Err(cancelled());
        };
        let headers: Vec<_> = range.map(|it| ("range", it)).into_iter().collect();
        let asked = WebAsked {
            method: "GET",
            path,
            headers: &headers,
            body: &[],
        };
        let mut tries = 0;
        let page = loop {
            tries += 1;
            match site.ask(asked, &mut || go_on(0, 0)) {
                Ok(page) => break page,
                Err(error) => {
                    let error = ClientError::from(error);
                    if tries == TRIES || error.code() != Code::Unreachable {
                        return Err(error);
                    }
                }
            }
        };
        match page.status {
            200 | 206 => Ok(page),
            401 | 403 => Err(failed(
                Code::NotAllowed,
                format!(
                    "the web server does not give the image away: {}",
                    page.summary
                ),
                "see that the address is right, or sync without the image",
            )),
            404 => Err(failed(
                Code::ImageInvalid,
                format!("there is no image at {path}"),
                "see that the address is that of the manifest, NAME.json",
            )),
            _ => Err(failed(
                Code::Unreachable,
                format!("the web server answers {}", page.summary),
                "try again later, or sync without the image",
            )),
        }
    }
}

/// The part that is there, or a new one that only its owner may read.
fn open_part(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Hashes what is there, and leaves the file behind it; what is longer begins anew.
fn read_all(part: &mut File, most: u64, hash: &mut Sha256) -> io::Result<u64> {
    if part.metadata()?.len() > most {
        part.set_len(0)?;
    }
    part.seek(SeekFrom::Start(0))?;
    let mut buffer = vec![0; 1 << 20];
    let mut have = 0;
    loop {
        match part.read(&mut buffer)? {
            0 => return Ok(have),
            count => {
                hash.update(&buffer[..count]);
                have += count as u64;
            }
        }
    }
}

fn with_end(file: &Path, end: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(end);
    name.into()
}

fn cancelled() -> ClientError {
    failed(Code::Cancelled, "cancelled".into(), "")
}

fn lost(path: &Path, error: &io::Error) -> ClientError {
    failed(
        Code::Usage,
        format!("{}: {error}", path.display()),
        "see that the file is there, that its folder can be written and the disk is not full",
    )
}

fn failed(code: Code, message: String, hint: &'static str) -> ClientError {
    ClientError::Image {
        code,
        message,
        hint,
    }
}
