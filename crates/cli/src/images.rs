//! Images: how the files are made from which new remotes begin, once, or again and again while a
//! server runs.
//!
//! Owns the files of an image, and its own remote, with which the next build only fetches what has
//! changed. What a manifest says is `tidewater_server::images`' affair, and so is who may have them.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidewater_centre::Centre;
use tidewater_client::{Code, ImageContent, Remote, RemoteDatabase};
use tidewater_protocol::RemoteId;
use tidewater_protocol::image::Manifest;
use tidewater_server::config::{ImageRows, ImagesConfig, is_image_name};
use tidewater_server::images::{ImageOf, RegisteredRemote, describe, register};
use tidewater_server::{Config, Environment, RunningServer, Server, ServerError};
use tidewater_terminal::{Failure, output};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::instrument::WithSubscriber;
use tracing::subscriber::NoSubscriber;

use crate::remote_file;

/// The pause after a first failure, and the longest one.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// How long what is under way may take to end.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// Memory for the rows of an image on their way: what does not fit goes to temporary files.
const MEMORY_BYTES: u64 = 32 << 20;

/// What is in an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImageScope {
    /// Which rows.
    pub(crate) rows: ImageRows,
    /// Of which publication.
    pub(crate) publication: String,
}

/// Where the files of an image are.
#[derive(Clone)]
pub(crate) struct ImageFiles {
    manifest: PathBuf,
    name: String,
}

impl ImageFiles {
    /// Those of which the manifest is called so.
    pub(crate) fn for_manifest(manifest: &Path) -> Result<ImageFiles, Failure> {
        let name = manifest.file_name().and_then(|it| it.to_str());
        let name = name.and_then(|it| it.strip_suffix(".json"));
        let name = name.filter(|it| is_image_name(it));
        let name = name.ok_or_else(|| {
            Failure::usage(
                format!("{} cannot be a manifest", manifest.display()),
                "write --out FOLDER/NAME.json, with a name of letters, digits, - and _",
            )
        })?;
        Ok(ImageFiles {
            manifest: manifest.to_owned(),
            name: name.to_owned(),
        })
    }

    fn folder(&self) -> &Path {
        let folder = self.manifest.parent();
        let folder = folder.filter(|it| !it.as_os_str().is_empty());
        folder.unwrap_or(Path::new("."))
    }

    fn beside(&self, file: &str) -> PathBuf {
        self.manifest.with_file_name(file)
    }

    fn remote(&self) -> PathBuf {
        self.beside(&format!("{}.remote", self.name))
    }

    fn described(&self) -> Option<Manifest> {
        Manifest::from_json(&fs::read(&self.manifest).ok()?).ok()
    }

    /// When the image that is there was made, if it is of what is wanted.
    fn made_ms(&self, wanted: &ImageScope) -> Option<i64> {
        let manifest = self.described()?;
        let is_there = self.beside(&manifest.file).is_file();
        let database = remote_file::open(&self.remote()).ok()?;
        (is_there && holds(&database, wanted).ok()?).then_some(manifest.created_ms)
    }

    /// Removes all of an image that there can be no more, which nobody is to fetch either; gives the
    /// id of its own remote.
    fn remove_all(&self) -> Option<RemoteId> {
        let _ = fs::remove_file(&self.manifest);
        self.remove_others(["", ""]);
        let remote = self.remote();
        let id = remote_file::open(&remote)
            .ok()
            .and_then(|it| it.account().ok()?.remote_id);
        remove(&remote);
        id
    }

    /// Removes the images that are neither of these.
    fn remove_others(&self, kept: [&str; 2]) {
        let Ok(files) = fs::read_dir(self.folder()) else {
            return;
        };
        for file in files.flatten() {
            let name = file.file_name();
            let hash = name.to_str().and_then(|it| {
                let rest = it.strip_prefix(&self.name)?.strip_prefix('-')?;
                rest.strip_suffix(".db")
            });
            let is_hash = hash
                .is_some_and(|it| it.len() == 16 && it.bytes().all(|it| it.is_ascii_hexdigit()));
            if is_hash && kept.iter().all(|it| name != **it) {
                // It is removed the next time, if not now.
                let _ = fs::remove_file(file.path());
            }
        }
    }
}

/// Whether an image's own remote is of what is wanted.
fn holds(database: &RemoteDatabase, wanted: &ImageScope) -> Result<bool, Failure> {
    let subscriptions = database.subscriptions()?;
    let mut publications = subscriptions.iter().map(|it| &it.publication);
    let same = publications.all(|it| *it == wanted.publication);
    Ok(same && database.account()?.user == wanted.rows.user())
}

/// Why an image was not made.
pub(crate) struct BuildFailure {
    pub(crate) failure: Failure,
    /// It is so until something else is deployed: there can be no such image.
    is_lasting: bool,
}

impl<E: Into<Failure>> From<E> for BuildFailure {
    fn from(error: E) -> BuildFailure {
        BuildFailure {
            failure: error.into(),
            is_lasting: false,
        }
    }
}

/// Makes an image, or brings it up to date.
///
/// # Errors
/// It cannot be made; one that was there before stays, unless there can be none any more. Of a first
/// one nothing stays behind.
pub(crate) async fn build(
    config: &Config,
    environment: &Environment,
    wanted: &ImageScope,
    place: &ImageFiles,
    stop: &Arc<AtomicBool>,
) -> Result<Manifest, BuildFailure> {
    fs::create_dir_all(place.folder())
        .map_err(|error| Failure::file("create the folder", place.folder(), &error))?;
    let allowed = config
        .check_image(&wanted.publication)
        .map_err(ServerError::from);
    // Its own: what a server that runs serves is not touched.
    let centre = &tidewater_server::databases::connect(&config.server.consolidated).await?;
    let alone = for_nobody_else(config, &wanted.rows);
    let server = Server::start(alone, centre.clone(), environment.clone());
    // What it says of its own is of no interest beside the log of a server that runs.
    let running = server.with_subscriber(NoSubscriber::default()).await?;
    let address = running.addresses.first().cloned().unwrap_or_default();
    let part = place.beside(&format!("{}.part", place.name));
    let making = ImageBuild {
        wanted,
        place,
        server: &address,
        part: &part,
        stop,
    };
    let allowed = allowed.and_then(|()| running.check_image(&wanted.publication));
    let mut registered = None;
    let made = match allowed {
        Ok(()) => {
            making
                .made(&running, centre, environment, &mut registered)
                .await
        }
        Err(error) => Err(BuildFailure {
            failure: error.into(),
            is_lasting: true,
        }),
    };
    running
        .shutdown()
        .with_subscriber(NoSubscriber::default())
        .await;
    let built = match made {
        Ok(content) => write(&**centre, environment, place, (content, &part)).await,
        Err(failure) => Err(failure),
    };
    if let Err(failure) = &built {
        let tidied = tidy(&**centre, place, failure.is_lasting, registered).await;
        if let Err(error) = tidied {
            tracing::warn!(%error, "the remote of an image that failed stays behind");
        }
    }
    built
}

/// Removes what a build leaves behind that failed: the remote that was registered for it, and all of
/// an image that there can be no more.
async fn tidy(
    centre: &dyn Centre,
    place: &ImageFiles,
    is_lasting: bool,
    registered: Option<RegisteredRemote>,
) -> Result<(), ServerError> {
    if let Some(registered) = registered {
        registered.remove(centre).await?;
        remove(&place.remote());
    }
    if is_lasting && let Some(id) = place.remove_all() {
        centre.forget_remote(id).await?;
    }
    Ok(())
}

/// Describes what was made, and puts it where it is fetched.
async fn write(
    centre: &dyn Centre,
    environment: &Environment,
    place: &ImageFiles,
    (content, part): (ImageContent, &Path),
) -> Result<Manifest, BuildFailure> {
    let of = ImageOf {
        remote_id: content.remote_id,
        centre: &content.centre,
        publication: &content.publication,
        schema_hash: &content.schema_hash,
        checkpoint: &content.checkpoint,
    };
    let manifest = describe(centre, of, part, environment.clock.now_ms()).await?;
    let before = place.described();
    let image = place.beside(&manifest.file);
    fs::rename(part, &image).map_err(|error| Failure::file("write", &image, &error))?;
    let new = place.beside(&format!("{}.json.part", place.name));
    fs::write(&new, manifest.to_json())
        .and_then(|()| fs::rename(&new, &place.manifest))
        .map_err(|error| Failure::file("write", &place.manifest, &error))?;
    // Whoever has read the manifest before still fetches that image.
    let before = before.map_or_else(String::new, |it| it.file);
    place.remove_others([&manifest.file, &before]);
    Ok(manifest)
}

/// The configuration of a server that only the image's own remote knows.
fn for_nobody_else(config: &Config, rows: &ImageRows) -> Config {
    let mut alone = config.clone();
    alone.server.listen = vec!["tcp://127.0.0.1:0".into()];
    alone.server.admin = None;
    alone.server.http = None;
    alone.server.tls = None;
    alone.server.proxies = Default::default();
    alone.server.drain_delay = Default::default();
    alone.live = Default::default();
    alone.sign_in = Default::default();
    alone.wakes = Vec::new();
    alone.relay = None;
    alone.upstream = None;
    alone.images = None;
    // On this machine others can reach it, too, and it gives what is not theirs.
    alone.only = Some(rows.user());
    alone.given = match rows {
        ImageRows::Of(_) => None,
        ImageRows::In(given) => Some(Arc::new(given.clone())),
    };
    let limits = &mut alone.server.limits;
    limits.session_workers = 1;
    limits.upload_workers = Some(1);
    limits.download_workers = Some(1);
    limits.call_workers = Some(1);
    limits.memory_bytes = limits.memory_bytes.min(MEMORY_BYTES);
    alone
}

/// An image that is being made.
struct ImageBuild<'m> {
    wanted: &'m ImageScope,
    place: &'m ImageFiles,
    /// The server that only it knows.
    server: &'m str,
    /// The file that is written.
    part: &'m Path,
    stop: &'m Arc<AtomicBool>,
}

impl ImageBuild<'_> {
    /// What the image's own remote holds, once it is up to date.
    async fn made(
        &self,
        running: &RunningServer,
        centre: &Arc<dyn Centre>,
        environment: &Environment,
        registered: &mut Option<RegisteredRemote>,
    ) -> Result<ImageContent, BuildFailure> {
        if let ImageRows::In(_) = &self.wanted.rows {
            let publication = &self.wanted.publication;
            running.check_given(&**centre, publication).await?;
        }
        Ok(self.synced(centre, environment, registered).await?)
    }

    /// Brings the image's own remote up to date, and writes the image.
    async fn synced(
        &self,
        centre: &Arc<dyn Centre>,
        environment: &Environment,
        registered: &mut Option<RegisteredRemote>,
    ) -> Result<ImageContent, Failure> {
        let path = self.place.remote();
        let mut anew = !holds(&RemoteDatabase::open(&path)?, self.wanted)?;
        if anew {
            remove(&path);
        }
        loop {
            let is_new = Remote::open(&path)?.account()?.remote_id.is_none();
            let identity = match is_new {
                true => {
                    let new = register(&**centre, &self.wanted.rows, environment).await?;
                    let identity = (new.id, new.credential.clone());
                    *registered = Some(new);
                    Some(identity)
                }
                false => None,
            };
            let (remote, part) = (path.clone(), self.part.to_owned());
            let (server, wanted) = (self.server.to_owned(), self.wanted.clone());
            let stop = self.stop.clone();
            let syncing = tokio::task::spawn_blocking(move || -> Result<_, Failure> {
                let mut remote = Remote::open(&remote)?;
                remote.subscribe(&server, &wanted.rows.user(), &[&wanted.publication])?;
                if let Some((id, credential)) = identity {
                    let database = remote.database()?;
                    database.store_sign_in(None, id, None, Some(&credential), "")?;
                }
                remote.sync(&mut |_| match stop.load(Ordering::Relaxed) {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                })?;
                let _ = fs::remove_file(&part);
                Ok(remote.database()?.write_image(&part)?)
            });
            let result = syncing.await.map_err(|error| {
                Failure::new(Code::Internal, format!("cannot build: {error}"), "")
            })?;
            let unknown = [Code::CredentialInvalid, Code::AnotherCentre];
            match result {
                // The database is another one by now, or has forgotten the remote.
                Err(failure) if unknown.contains(&failure.code) && !anew => {
                    anew = true;
                    remove(&path);
                }
                result => return result,
            }
        }
    }
}

/// Removes an image's own remote.
fn remove(remote: &Path) {
    for end in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(format!("{}{end}", remote.display()));
    }
}

/// Images that are kept fresh until this is ended.
pub(crate) struct FreshImages {
    stop: Arc<AtomicBool>,
    ended: Arc<Notify>,
    task: JoinHandle<()>,
}

impl FreshImages {
    /// Ends it: what is under way is cancelled, and the images that are there stay.
    pub(crate) async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.ended.notify_one();
        // It ends by itself, within a moment.
        let _ = timeout(ENDS_WITHIN, self.task).await;
    }
}

/// Keeps the images fresh that a configuration names, one after the other.
pub(crate) fn keep(config: Config, environment: Environment) -> Option<FreshImages> {
    let images = config.images.clone()?;
    let stop = Arc::new(AtomicBool::new(false));
    let ended = Arc::new(Notify::new());
    let keeper = Keeper {
        config,
        environment,
        stop: stop.clone(),
        ended: ended.clone(),
    };
    let task = tokio::spawn(keeper.keep(images));
    Some(FreshImages { stop, ended, task })
}

struct Keeper {
    config: Config,
    environment: Environment,
    stop: Arc<AtomicBool>,
    ended: Arc<Notify>,
}

/// One image, and when it is to be made.
struct Fresh {
    wanted: ImageScope,
    place: ImageFiles,
    due: Instant,
    /// After the next failure.
    pause: Duration,
    /// Why there can be no such image, as it was said last.
    refused: Option<String>,
}

impl Keeper {
    async fn keep(self, images: ImagesConfig) {
        let now = Instant::now();
        let all = images.images.iter().map(|image| {
            let wanted = ImageScope {
                rows: image.rows.clone(),
                publication: image.publication.clone(),
            };
            let place = ImageFiles {
                manifest: images.folder.join(format!("{}.json", image.name)),
                name: image.name.clone(),
            };
            let rest = self.rest(&wanted, &place, images.every);
            Fresh {
                wanted,
                place,
                due: now + rest,
                pause: FIRST_PAUSE,
                refused: None,
            }
        });
        let mut all: Vec<Fresh> = all.collect();
        while let Some(next) = all.iter_mut().min_by_key(|it| it.due) {
            tokio::select! {
                () = sleep_until(next.due) => {}
                () = self.ended.notified() => return,
            }
            let rest = self.renew(next, images.every).await;
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            next.due = Instant::now() + rest;
        }
    }

    /// How long the image that is there is fresh enough.
    fn rest(&self, wanted: &ImageScope, place: &ImageFiles, every: Duration) -> Duration {
        let Some(made_ms) = place.made_ms(wanted) else {
            return Duration::ZERO;
        };
        // One of the future was made by another clock.
        let age = u64::try_from(self.environment.clock.now_ms() - made_ms);
        let age = age.map_or(every, Duration::from_millis);
        every.saturating_sub(age)
    }

    /// Makes an image; how long it is good for then.
    async fn renew(&self, image: &mut Fresh, every: Duration) -> Duration {
        let Fresh { wanted, place, .. } = &*image;
        let name = &place.name;
        match build(&self.config, &self.environment, wanted, place, &self.stop).await {
            Ok(manifest) => {
                let bytes = output::bytes(manifest.bytes);
                tracing::info!(image = name, file = manifest.file, bytes, "image built");
                image.pause = FIRST_PAUSE;
                image.refused = None;
                every
            }
            // One that was cancelled because the server stops is no failure.
            Err(_) if self.stop.load(Ordering::Relaxed) => every,
            Err(BuildFailure {
                failure,
                is_lasting: true,
            }) => {
                if image.refused.as_ref() != Some(&failure.message) {
                    tracing::error!(
                        image = name,
                        error = failure.message,
                        hint = failure.hint,
                        "the server goes on without this image"
                    );
                    image.refused = Some(failure.message);
                }
                every
            }
            Err(BuildFailure { failure, .. }) => {
                let rest = image.pause.min(every);
                tracing::error!(
                    image = name,
                    error = failure.message,
                    hint = failure.hint,
                    "the image cannot be built; the one before stays, and it is tried again in {}",
                    output::duration(u64::try_from(rest.as_millis()).unwrap_or(u64::MAX))
                );
                image.pause = (image.pause * 2).min(LONGEST_PAUSE);
                rest
            }
        }
    }
}
