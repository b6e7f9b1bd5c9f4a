//! New remotes that begin from an image: fetched or copied, checked, and put in place as a whole.
//!
//! Owns where an image comes from. What is in it is `tidewater-remote`'s affair; whether it is one of
//! the centre's own, the server says at the first sync.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tidewater_carrier::{DialOptions, ServerUrl, ServerUrls, WebPage, WebSite, WebSiteRequest};
use tidewater_protocol::Code;
use tidewater_protocol::image::Manifest;
use tidewater_remote::database::{ImageStart, RemoteDatabase};

use crate::error::ClientError;
use crate::options::SyncOptions;

/// As much is asked for at once: what is lost when the line breaks.
const PIECE_BYTES: u64 = 1 << 20;

/// How often a piece is asked for.
const TRIES: u32 = 5;

/// Where a server exchanges a password or a token for a token of its own.
const SIGN_IN: &str = "/v1/sign-in";

/// From what a new remote begins, and for whom.
#[derive(Clone, Copy, Debug)]
pub struct ImageRequest<'i> {
    /// The file of the manifest, or its `http://` or `https://` address. The image itself is beside it.
    pub manifest: &'i str,
    /// The server, or several, with which the remote is going to sync. The user signs in for an image
    /// that is not everybody's only at the host and port of one of them.
    pub server: &'i str,
    /// The user; empty if a token tells.
    pub user: &'i str,
}

/// Makes a new remote's file of an image. Of the options, those count that say how a server is
/// reached, and how the user proves himself. If it breaks off, the next call goes on where it was.
///
/// The first sync presents what the manifest says. If the server does not know that
/// ([`Code::ImageInvalid`]), the file is of no use.
///
/// # Errors
/// There is a file already, the image cannot be fetched, or is not as its manifest says.
pub fn begin_from_image(
    file: &Path,
    wanted: ImageRequest<'_>,
    options: &SyncOptions,
    go_on: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<(), ClientError> {
    check_new(file)?;
    let mut source = ImageSource::find(wanted, options)?;
    let manifest = source.manifest(go_on)?;
    let part = with_end(file, "-tidewater-image");
    // Until the file is in place: whoever else fetches it would write into it.
    let mut lock = lock_part(&part)?;
    // It may have come while we waited, and then what is locked is the file itself.
    check_new(file)?;
    source.fetch(&manifest, &part, &mut lock, go_on)?;
    // Nor is a log beside it that is another file's.
    remove_logs(&part);
    let prepared = prepare(&part, &manifest).and_then(|()| put_in_place(&part, file));
    if prepared.is_err() {
        let _ = std::fs::remove_file(&part);
        remove_logs(&part);
    }
    prepared
}

/// What SQLite keeps beside a file, and takes for its own.
const LOGS: [&str; 3] = ["-wal", "-shm", "-journal"];

/// Whether there is neither the file nor what would be taken for its own.
fn check_new(file: &Path) -> Result<(), ClientError> {
    let logs = ["-wal", "-journal"].map(|end| with_end(file, end));
    let mut all = std::iter::once(file).chain(logs.iter().map(PathBuf::as_path));
    match all.find(|it| it.symlink_metadata().is_ok()) {
        None => Ok(()),
        Some(it) => Err(failed(
            Code::Usage,
            format!("{} is there already", it.display()),
            "only a new file begins from an image: name another one, or leave the image out; what a \
             file that is gone has left beside it is to be removed first",
        )),
    }
}

fn remove_logs(part: &Path) {
    for end in LOGS {
        let _ = std::fs::remove_file(with_end(part, end));
    }
}

/// The file takes its name, unless another one has it by now: nobody's rows are replaced.
fn put_in_place(part: &Path, file: &Path) -> Result<(), ClientError> {
    check_new(file)?;
    match std::fs::hard_link(part, file) {
        Ok(()) => {
            // It has two names for a moment, or longer if this fails.
            let _ = std::fs::remove_file(part);
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(check_new(file).err().unwrap_or_else(|| lost(file, &error)))
        }
        // A file system that knows no second names.
        Err(_) => std::fs::rename(part, file).map_err(|error| lost(part, &error)),
    }
}

/// The part that is there, or a new one, which nobody else fetches meanwhile.
fn lock_part(path: &Path) -> Result<File, ClientError> {
    let part = open_part(path).map_err(|error| lost(path, &error))?;
    match part.try_lock() {
        Ok(()) => Ok(part),
        Err(std::fs::TryLockError::WouldBlock) => Err(failed(
            Code::Usage,
            format!("somebody else fetches {} already", path.display()),
            "wait for the other sync of this file",
        )),
        Err(std::fs::TryLockError::Error(error)) => Err(lost(path, &error)),
    }
}

fn prepare(part: &Path, manifest: &Manifest) -> Result<(), ClientError> {
    let mut database = RemoteDatabase::open(part)?;
    database.begin_from_image(ImageStart {
        sha256: &manifest.sha256,
        publication: &manifest.publication,
        schema_hash: &manifest.schema_hash,
        checkpoint: &manifest.checkpoint,
    })?;
    Ok(())
}

/// Where an image is.
enum ImageSource {
    /// The manifest's file.
    File(PathBuf),
    Web {
        site: Box<WebSite>,
        /// The path of the manifest.
        path: String,
        pass: SiteSignIn,
        /// What the server has given for it.
        token: Option<String>,
    },
}

/// What a user who is asked who he is has to say there.
enum SiteSignIn {
    /// It is not a server of his.
    Elsewhere,
    /// What he signs in with; `None`: nothing that can be said here.
    Proof(Option<String>),
}

impl SiteSignIn {
    fn for_url(
        url: &ServerUrl,
        wanted: ImageRequest<'_>,
        options: &SyncOptions,
    ) -> Result<SiteSignIn, ClientError> {
        let servers: ServerUrls = wanted.server.parse()?;
        let is_it = |it: &ServerUrl| {
            it.host.eq_ignore_ascii_case(&url.host)
                && it.port == url.port
                // What he says to the server is not to be read on the way here, either.
                && (url.transport.is_encrypted() || !it.transport.is_encrypted())
        };
        if !servers.urls().iter().any(is_it) {
            return Ok(SiteSignIn::Elsewhere);
        }
        let proof = match (&options.bearer, &options.password) {
            (Some(bearer), _) => Some(json!({ "token": bearer.read()? })),
            (None, Some(password)) => Some(json!({ "user": wanted.user, "password": password })),
            (None, None) => None,
        };
        Ok(SiteSignIn::Proof(proof.map(|it| it.to_string())))
    }
}

impl ImageSource {
    fn find(wanted: ImageRequest<'_>, options: &SyncOptions) -> Result<ImageSource, ClientError> {
        let image = wanted.manifest;
        if !image.starts_with("http://") && !image.starts_with("https://") {
            return Ok(ImageSource::File(image.into()));
        }
        let url: ServerUrl = image.parse()?;
        let dial = DialOptions {
            ca_file: options.ca_file.as_deref(),
            pin: options.pin,
            certificate: options.certificate.as_ref(),
            insecure: options.insecure,
            proxy: options.proxy.as_deref(),
            compression: options.compression,
            timeout: options.timeout,
        };
        let site = Box::new(WebSite::new(&url, &dial)?);
        Ok(ImageSource::Web {
            site,
            pass: SiteSignIn::for_url(&url, wanted, options)?,
            path: url.path,
            token: None,
        })
    }

    fn manifest(
        &mut self,
        go_on: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Manifest, ClientError> {
        let read = match self {
            ImageSource::File(path) => {
                let document = std::fs::read(&*path).map_err(|error| lost(path, &error))?;
                Manifest::from_json(&document)
            }
            ImageSource::Web { path, .. } => {
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
        mut part: &mut File,
        go_on: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<(), ClientError> {
        let broken = |error: io::Error| lost(to, &error);
        let mut hash = Sha256::new();
        let mut have = read_all(part, manifest.bytes, &mut hash).map_err(broken)?;
        if let ImageSource::File(path) = self {
            let from = path.with_file_name(&manifest.file);
            let mut from = File::open(&from).map_err(|error| lost(&from, &error))?;
            hash = Sha256::new();
            part.set_len(0)
                .and_then(|()| part.rewind())
                .map_err(broken)?;
            let mut all = io::Read::take(&mut from, manifest.bytes.saturating_add(1));
            io::copy(&mut all, &mut part).map_err(broken)?;
            part.rewind().map_err(broken)?;
            read_all(part, u64::MAX, &mut hash).map_err(broken)?;
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
        let ImageSource::Web { path, .. } = self else {
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

    /// Asks; who asks says who he is if he is asked that.
    fn ask(
        &mut self,
        path: &str,
        range: Option<&str>,
        go_on: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<WebPage, ClientError> {
        let ImageSource::Web {
            site, pass, token, ..
        } = self
        else {
            return Err(cancelled());
        };
        let range = range.map(|it| ("range", it));
        let mut signs_in = true;
        let page = loop {
            let bearer = token.as_ref().map(|it| format!("Bearer {it}"));
            let bearer = bearer.as_ref().map(|it| ("authorization", it.as_str()));
            let headers: Vec<_> = range.into_iter().chain(bearer).collect();
            let asked = WebSiteRequest {
                method: "GET",
                path,
                headers: &headers,
                body: &[],
            };
            let page = persistently(site, asked, go_on)?;
            if page.status != 401 || !signs_in {
                break page;
            }
            signs_in = false;
            *token = Some(sign_in(site, pass, go_on)?);
        };
        match page.status {
            200 | 206 => Ok(page),
            401 | 403 => Err(failed(
                Code::NotAllowed,
                format!(
                    "the web server does not give the image away: {}",
                    page.summary
                ),
                "see that the address is right and that the user holds all that is in the image, or \
                 sync without the image",
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

/// Asks again where nothing was answered.
fn persistently(
    site: &mut WebSite,
    asked: WebSiteRequest<'_>,
    go_on: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<WebPage, ClientError> {
    let mut tries = 0;
    loop {
        tries += 1;
        match site.ask(asked, &mut || go_on(0, 0)) {
            Ok(page) => return Ok(page),
            Err(error) => {
                let error = ClientError::from(error);
                if tries == TRIES || error.code() != Code::Unreachable {
                    return Err(error);
                }
            }
        }
    }
}

/// The token that the server gives for what the user has to say.
fn sign_in(
    site: &mut WebSite,
    pass: &SiteSignIn,
    go_on: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<String, ClientError> {
    let not_allowed = |what: &str, hint| failed(Code::NotAllowed, what.into(), hint);
    let body = match pass {
        SiteSignIn::Proof(Some(body)) => body,
        SiteSignIn::Proof(None) => {
            return Err(not_allowed(
                "the image is not for everybody, and there is neither a password nor a token to \
                 sign in with",
                "give one of them, or sync without the image",
            ));
        }
        SiteSignIn::Elsewhere => {
            return Err(not_allowed(
                "the image is not for everybody, and it is not at the address of the server: \
                 nothing of the user is said there",
                "name it at the host and port of the server, encrypted where that is, or fetch its \
                 files yourself",
            ));
        }
    };
    let asked = WebSiteRequest {
        method: "POST",
        path: SIGN_IN,
        headers: &[("content-type", "application/json")],
        body: body.as_bytes(),
    };
    let page = persistently(site, asked, go_on)?;
    let answer: Value = serde_json::from_slice(&page.body).unwrap_or_default();
    let token = answer.get("token").and_then(Value::as_str);
    let token = token.filter(|it| it.bytes().all(|it| it.is_ascii_graphic()));
    match (page.status, token) {
        (200, Some(token)) => Ok(token.to_owned()),
        (401, _) => Err(failed(
            Code::WrongPassword,
            "the server does not let the user in, who is to fetch the image".into(),
            "check user and password, or the token",
        )),
        _ => Err(failed(
            Code::Unreachable,
            format!("the server answers {} to the sign-in", page.summary),
            "try again later, or sync without the image",
        )),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_takes_the_place_of_nothing_that_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let (part, file) = (folder.path().join("part"), folder.path().join("a.db"));
        std::fs::write(&part, "image").unwrap();
        // Of a file that is gone; SQLite would take it for the new one's.
        let log = folder.path().join("a.db-wal");
        std::fs::write(&log, "log").unwrap();
        assert!(put_in_place(&part, &file).is_err());
        std::fs::remove_file(&log).unwrap();
        std::fs::write(&file, "rows").unwrap();
        assert!(put_in_place(&part, &file).is_err());
        assert_eq!(std::fs::read(&file).unwrap(), b"rows");
        std::fs::remove_file(&file).unwrap();
        put_in_place(&part, &file).unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"image");
        assert!(!part.exists());
    }

    #[test]
    fn one_alone_fetches_an_image_into_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let part = folder.path().join("part");
        let first = lock_part(&part).unwrap();
        assert!(lock_part(&part).is_err());
        drop(first);
        lock_part(&part).unwrap();
    }
}
