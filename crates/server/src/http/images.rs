//! The images that the server keeps, for whoever may have them: manifests and files, whole or in
//! ranges, so that a download goes on where it broke, and a CDN can hold what is public.
//!
//! Owns which files of the folder there are for others, and how they are sent. Who makes them is the
//! affair of whoever runs the server; whether a user may have what is in one, the centre says.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{self, FromRequestParts, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tokio::time::Instant;

use tidewater_carrier::cryptography::digest::{SHA256, digest};
use tidewater_centre::records::SubscriptionRequest;
use tidewater_protocol::Code;
use tidewater_protocol::image::{HASH_DIGITS, Manifest, hex};

use super::caller::IdentifiedCaller;
use super::problem::Problem;
use super::{Web, WebServices, text};
use tidewater_server_config::{ImageConfig, ImagesConfig};
use tidewater_server_identity::signing::ImageFor;
use tidewater_server_jobs::fault::Fault;
use tidewater_server_sync::images::{DownloadProbe, ProbedDownload};

/// Where they are.
pub(super) const PATH: &str = "/tidewater/images/{file}";

/// As much of a file is read at once.
const PIECE_BYTES: u64 = 64 << 10;

/// A manifest is shorter: clients take no longer one.
const MANIFEST_BYTES: u64 = 4 << 20;

/// So long it counts that a user may have an image: he fetches it in many pieces.
const MAY_FOR: Duration = Duration::from_secs(10);

/// So many users are remembered.
const REMEMBERED: usize = 10_000;

/// Who may have which image, as far as it was asked lately.
#[derive(Default)]
pub(super) struct AllowedImages(Mutex<HashMap<(String, String), Instant>>);

impl AllowedImages {
    fn known(&self) -> MutexGuard<'_, HashMap<(String, String), Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A file that there is for others.
#[derive(Debug, PartialEq, Eq)]
enum RequestedFile<'c> {
    Manifest(&'c ImageConfig),
    /// With what its name says of its content.
    Image(&'c ImageConfig, &'c str),
}

impl<'c> RequestedFile<'c> {
    /// Only names that a configured image's files have: nothing else of the folder is for others.
    fn of(name: &'c str, config: &'c ImagesConfig) -> Option<RequestedFile<'c>> {
        let called = |name: &str| config.images.iter().find(|it| it.name == name);
        if let Some(name) = name.strip_suffix(".json") {
            return called(name).map(RequestedFile::Manifest);
        }
        let (name, hash) = name.strip_suffix(".db")?.rsplit_once('-')?;
        let is_hash = |it: u8| it.is_ascii_digit() || (b'a'..=b'f').contains(&it);
        let is_hash = hash.len() == HASH_DIGITS && hash.bytes().all(is_hash);
        let image = called(name).filter(|_| is_hash)?;
        Some(RequestedFile::Image(image, hash))
    }
}

/// Sends a manifest, or an image or a range of it.
pub(super) async fn fetch(
    State(web): State<Web>,
    extract::Path(name): extract::Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let (mut parts, _) = request.into_parts();
    let nothing = || Problem::not_found("there is no such image");
    let services = web.services.clone();
    let config = services.images.as_ref().ok_or_else(nothing)?;
    let asked = RequestedFile::of(&name, config).ok_or_else(nothing)?;
    let (RequestedFile::Manifest(image) | RequestedFile::Image(image, _)) = asked;
    if !image.public {
        let who = IdentifiedCaller::from_request_parts(&mut parts, &web).await?;
        let path = config.folder.join(format!("{}.json", image.name));
        may_have(&web, image, &path, &who.caller.user).await?;
    }
    let path = config.folder.join(&name);
    let headers = &parts.headers;
    let mut response = match asked {
        RequestedFile::Manifest(_) => {
            let document = reading(move || read_manifest(&path)).await?;
            let etag = format!("\"{}\"", hex(digest(&SHA256, &document).as_ref()));
            let mut response = match is_known(headers, &etag)? {
                true => StatusCode::NOT_MODIFIED.into_response(),
                false => ([(header::CONTENT_TYPE, "application/json")], document).into_response(),
            };
            set(&mut response, header::ETAG, &etag);
            response
        }
        RequestedFile::Image(_, hash) => {
            let (file, length) = reading(move || open(&path)).await?;
            let etag = format!("\"{hash}\"");
            let mut response = match is_known(headers, &etag)? {
                true => StatusCode::NOT_MODIFIED.into_response(),
                false => {
                    let whole = parts.method != Method::GET || is_of_another(headers, &etag)?;
                    let range = text(headers, "range")?.filter(|_| !whole);
                    send(file, length, Part::of(range, length))
                }
            };
            set(&mut response, header::ETAG, &etag);
            response
        }
    };
    let kept = match (&asked, image.public) {
        // It has another content with the next build.
        (RequestedFile::Manifest(_), true) => "no-cache",
        (RequestedFile::Manifest(_), false) => "private, no-cache",
        (RequestedFile::Image(..), true) => "public, immutable, max-age=31536000",
        (RequestedFile::Image(..), false) => "private, immutable, max-age=31536000",
    };
    set(&mut response, header::CACHE_CONTROL, kept);
    Ok(response)
}

fn set(response: &mut Response, name: header::HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

/// Whether the user holds all that is in the image as its manifest describes it. What an older file
/// is called is known only to those who were told then, and they might have had it.
async fn may_have(
    web: &Web,
    image: &ImageConfig,
    manifest: &Path,
    user: &str,
) -> Result<(), Problem> {
    let key = (user.to_owned(), image.name.clone());
    let asked = web.allowed.known().get(&key).copied();
    if asked.is_some_and(|it| it.elapsed() < MAY_FOR) {
        return Ok(());
    }
    let since = Instant::now();
    let path = manifest.to_owned();
    let document = reading(move || read_manifest(&path)).await?;
    let manifest = Manifest::from_json(&document);
    let manifest = manifest.map_err(|error| Problem::internal(&error))?;
    if !covers(&web.services, &manifest, user).await? {
        return Err(Fault::new(
            Code::NotAllowed,
            "the image holds rows of partitions that you do not hold, or is of an earlier time",
            "sync without the image: you get what is yours by rows",
        )
        .into());
    }
    let mut known = web.allowed.known();
    if known.len() >= REMEMBERED {
        known.clear();
    }
    known.insert(key, since);
    Ok(())
}

/// Whether all that an image holds would come to the user by rows as well.
async fn covers(services: &WebServices, manifest: &Manifest, user: &str) -> Result<bool, Fault> {
    let now_ms = services.environment.clock.now_ms();
    let keyring = services
        .signer
        .keyring(&[&manifest.checkpoint], now_ms)
        .await;
    let subject = ImageFor {
        sha256: &manifest.sha256,
        publication: &manifest.publication,
        schema_hash: &manifest.schema_hash,
    };
    let Some(checkpoint) = keyring.open_image(subject, &manifest.checkpoint) else {
        return Ok(false);
    };
    let asked = SubscriptionRequest {
        publication: manifest.publication.clone(),
        watermark: Some(checkpoint.watermark.clone()),
        formers: Vec::new(),
    };
    let state = services.sign_in.look_up(user, None, vec![asked]).await?;
    let served = services.publications.as_of(state.deployment).await;
    let published = served.published(&manifest.publication)?;
    let is_same = manifest.schema_hash == published.hash;
    let opening = ProbedDownload {
        user: user.to_owned(),
        claims: state.user.map(|it| it.proven.claims).unwrap_or_default(),
        given: None,
        schema: published.schema.clone(),
        before: (!is_same).then(|| manifest.schema_hash.to_vec()),
        image: Some(checkpoint),
    };
    let job = opening.job(now_ms);
    let reading = services.lanes.sessions.ask_once("", job, |worker, job| {
        Box::pin(async move {
            let mut opened = DownloadProbe::default();
            worker.download_one(job.clone(), &mut opened).await?;
            Ok(opened.covers_image)
        })
    });
    reading.await
}

/// Does something with the folder where it may take a while.
async fn reading<T: Send + 'static>(
    read: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Problem> {
    let done = tokio::task::spawn_blocking(read).await;
    done.unwrap_or_else(|error| Err(io::Error::other(error)))
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                Problem::not_found("the image is not there: not yet, or not any more")
            }
            _ => Problem::internal(&error),
        })
}

fn read_manifest(path: &PathBuf) -> io::Result<Bytes> {
    let (file, length) = open(path)?;
    if length > MANIFEST_BYTES {
        return Err(io::Error::other("the manifest is too long"));
    }
    let mut document = vec![0; usize::try_from(length).unwrap_or_default()];
    file.read_exact_at(&mut document, 0)?;
    Ok(document.into())
}

fn open(path: &PathBuf) -> io::Result<(File, u64)> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    Ok((file, length))
}

/// Whether whoever asks has it already.
fn is_known(headers: &HeaderMap, etag: &str) -> Result<bool, Problem> {
    let known = text(headers, "if-none-match")?.unwrap_or_default();
    let mut known = known.split(',').map(str::trim);
    Ok(known.any(|it| it == "*" || it.trim_start_matches("W/") == etag))
}

/// Whether the range that is asked for is one of something else.
fn is_of_another(headers: &HeaderMap, etag: &str) -> Result<bool, Problem> {
    Ok(text(headers, "if-range")?.is_some_and(|it| it != etag))
}

/// As much of a file as is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Whole,
    /// From here, so many bytes.
    Range(u64, u64),
    /// It has nothing there.
    Nothing,
}

impl Part {
    /// By the header `Range`. What is none, or several, counts as if nothing was said.
    fn of(range: Option<&str>, length: u64) -> Part {
        let read = || {
            let (unit, range) = range?.split_once('=')?;
            let (first, last) = range.trim().split_once('-')?;
            let is_number = |it: &str| it.bytes().all(|it| it.is_ascii_digit());
            if !unit.trim().eq_ignore_ascii_case("bytes") || !is_number(first) || !is_number(last) {
                return None;
            }
            // What is larger than any file counts as the largest number.
            let number = |it: &str| it.parse().unwrap_or(u64::MAX);
            match (first, last) {
                ("", "") => None,
                ("", last) => Some((length.saturating_sub(number(last)), length)),
                (first, "") => Some((number(first), length)),
                (first, last) if number(last) < number(first) => None,
                (first, last) => Some((number(first), number(last).saturating_add(1))),
            }
        };
        match read() {
            None => Part::Whole,
            Some((from, until)) if from < until.min(length) => {
                Part::Range(from, until.min(length) - from)
            }
            Some(_) => Part::Nothing,
        }
    }
}

fn send(file: File, length: u64, part: Part) -> Response {
    let (from, count, status) = match part {
        Part::Whole => (0, length, StatusCode::OK),
        Part::Range(from, count) => (from, count, StatusCode::PARTIAL_CONTENT),
        Part::Nothing => {
            let mut response = Problem::out_of_range(length).into_response();
            let range = format!("bytes */{length}");
            set(&mut response, header::CONTENT_RANGE, &range);
            return response;
        }
    };
    let mut response = (status, body(file, from, count)).into_response();
    set(
        &mut response,
        header::CONTENT_TYPE,
        "application/vnd.sqlite3",
    );
    set(&mut response, header::ACCEPT_RANGES, "bytes");
    set(&mut response, header::CONTENT_LENGTH, &count.to_string());
    if status == StatusCode::PARTIAL_CONTENT {
        let range = format!("bytes {from}-{}/{length}", from + count - 1);
        set(&mut response, header::CONTENT_RANGE, &range);
    }
    response
}

/// Bytes of a file, each piece read when the one before is on its way.
fn body(file: File, from: u64, count: u64) -> Body {
    let file = Arc::new(file);
    let until = from + count;
    let pieces = stream::unfold(from, move |at| {
        let file = file.clone();
        async move {
            if at == until {
                return None;
            }
            let length = PIECE_BYTES.min(until - at);
            let read = tokio::task::spawn_blocking(move || {
                let mut piece = vec![0; length as usize];
                file.read_exact_at(&mut piece, at)?;
                Ok::<_, io::Error>(Bytes::from(piece))
            });
            let piece = read.await.map_err(io::Error::other).flatten();
            Some((piece, at + length))
        }
    });
    Body::from_stream(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_http_has_them_and_nonsense_counts_as_nothing_said() {
        for (range, part) in [
            ("bytes=0-9", Part::Range(0, 10)),
            ("bytes=0-0", Part::Range(0, 1)),
            ("Bytes = 5-6", Part::Range(5, 2)),
            ("bytes=90-", Part::Range(90, 10)),
            ("bytes=90-1000", Part::Range(90, 10)),
            ("bytes=0-99999999999999999999999", Part::Range(0, 100)),
            ("bytes=-7", Part::Range(93, 7)),
            ("bytes=-1000", Part::Range(0, 100)),
            ("bytes=-0", Part::Nothing),
            ("bytes=100-", Part::Nothing),
            ("bytes=100-200", Part::Nothing),
            ("bytes=99999999999999999999999-", Part::Nothing),
            ("bytes=9-5", Part::Whole),
            ("bytes=-", Part::Whole),
            ("bytes=1-2,4-5", Part::Whole),
            ("bytes=+1-2", Part::Whole),
            ("bytes=a-b", Part::Whole),
            ("rows=1-2", Part::Whole),
            ("bytes", Part::Whole),
            ("", Part::Whole),
        ] {
            assert_eq!(Part::of(Some(range), 100), part, "{range}");
        }
        assert_eq!(Part::of(None, 100), Part::Whole);
        assert_eq!(Part::of(Some("bytes=0-"), 0), Part::Nothing);
    }

    #[test]
    fn only_files_of_configured_images_are_there_for_others() {
        let image = |name: &str| ImageConfig {
            name: name.into(),
            publication: "main".into(),
            rows: tidewater_server_config::ImageRows::Of("north".into()),
            public: true,
        };
        let config = ImagesConfig {
            folder: "images".into(),
            every: Duration::from_secs(1),
            images: vec![image("north"), image("north-0123456789abcdef")],
        };
        let asked = |name: &str| RequestedFile::of(name, &config).is_some();
        assert!(asked("north.json"));
        assert!(asked("north-0123456789abcdef.db"));
        assert!(asked("north-0123456789abcdef-0123456789abcdef.db"));
        for name in [
            "north.remote",
            "north.remote-wal",
            "north.db",
            "north.part",
            "north.json.part",
            "south.json",
            "north-0123456789abcde.db",
            "north-0123456789ABCDEF.db",
            "north-0123456789abcdef.db-wal",
            "south-0123456789abcdef.db",
            "../north.json",
            "x/../north.json",
            "..",
            ".json",
            "",
        ] {
            assert!(!asked(name), "{name}");
        }
    }
}
