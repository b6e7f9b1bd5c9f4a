//! `tidewater image`: files from which new remotes begin.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand};
use tidewater_centre::Centre;
use tidewater_client::{Code, ImageContent, Remote};
use tidewater_protocol::image::Manifest;
use tidewater_server::images::{ImageOf, describe, register};
use tidewater_server::{Config, Environment, Server};
use tokio::runtime::Builder;

use crate::Done;
use crate::args::{ConfigArgs, with_exit_codes};
use crate::centre;
use crate::failure::Failure;
use crate::output;
use crate::service::cannot_start;

/// Make images: SQLite files from which new remotes begin
#[derive(Debug, Args)]
#[command(after_help = with_exit_codes!("\
Examples:
  tidewater image build --user north --publication main --out images/north.json"))]
pub(crate) struct ImageArgs {
    #[command(subcommand)]
    command: ImageCommand,
}

#[derive(Debug, Subcommand)]
enum ImageCommand {
    Build(BuildArgs),
}

/// Make an image of what a user holds, or bring it up to date
///
/// Writes three files: the manifest, NAME.json; the image beside it, NAME-HASH.db, an SQLite file
/// with the publication's tables; and NAME.remote, the image's own remote, with which the next build
/// only fetches what has changed. Serve manifest and image with any web server or CDN, or copy them; a
/// new remote begins with tidewater sync --image. Only NAME.remote holds a secret.
///
/// Whoever has an image has the rows in it. For rows that everybody gets, name a user who holds no
/// partition; for a partition, one who holds that alone.
#[derive(Debug, Args)]
#[command(after_help = with_exit_codes!("\
Examples:
  tidewater image build --user north --publication main --out images/north.json
  tidewater sync new.db --image https://cdn.example.com/images/north.json --server ... --user ..."))]
struct BuildArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Whose rows
    #[arg(long, value_name = "NAME")]
    user: String,
    /// Of which publication
    #[arg(long, value_name = "NAME")]
    publication: String,
    /// The manifest, NAME.json; the folder is made if need be
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

pub(crate) fn run(args: &ImageArgs) -> Result<Done, Failure> {
    let ImageCommand::Build(args) = &args.command;
    let place = Place::of(&args.out)?;
    let config = centre::load(&args.config)?;
    let runtime = Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| cannot_start(&error))?;
    let built = runtime.block_on(build(config, &args.user, &args.publication, &place));
    runtime.shutdown_background();
    let manifest = built?;
    output::text(&format!(
        "{} of {:?}, {}\n",
        manifest.file,
        manifest.publication,
        output::bytes(manifest.bytes)
    ))?;
    Ok(Done::Fully)
}

/// Where the files of an image are.
struct Place {
    manifest: PathBuf,
    name: String,
}

impl Place {
    fn of(manifest: &Path) -> Result<Place, Failure> {
        let name = manifest.file_name().and_then(|it| it.to_str());
        let name = name.and_then(|it| it.strip_suffix(".json"));
        let fits = |it: u8| it.is_ascii_alphanumeric() || b"-_".contains(&it);
        let name = name.filter(|it| !it.is_empty() && it.bytes().all(fits));
        let name = name.ok_or_else(|| {
            Failure::usage(
                format!("{} cannot be a manifest", manifest.display()),
                "write --out FOLDER/NAME.json, with a name of letters, digits, - and _",
            )
        })?;
        let folder = manifest.parent().filter(|it| !it.as_os_str().is_empty());
        if let Some(folder) = folder {
            fs::create_dir_all(folder)
                .map_err(|error| Failure::file("create the folder", folder, &error))?;
        }
        Ok(Place {
            manifest: manifest.to_owned(),
            name: name.to_owned(),
        })
    }

    fn beside(&self, file: &str) -> PathBuf {
        self.manifest.with_file_name(file)
    }

    fn remote(&self) -> PathBuf {
        self.beside(&format!("{}.remote", self.name))
    }

    /// Removes the images that are neither of these.
    fn remove_others(&self, kept: [&str; 2]) {
        let folder = self
            .manifest
            .parent()
            .filter(|it| !it.as_os_str().is_empty());
        let Ok(files) = fs::read_dir(folder.unwrap_or(Path::new("."))) else {
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

async fn build(
    config: Config,
    user: &str,
    publication: &str,
    place: &Place,
) -> Result<Manifest, Failure> {
    let environment = Environment::real();
    let centre = tidewater_server::databases::connect(&config.server.consolidated).await?;
    // A server for nobody else.
    let mut alone = config;
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
    let running = Server::start(alone, centre.clone(), environment.clone()).await?;
    let server = running.addresses.first().cloned().unwrap_or_default();
    let part = place.beside(&format!("{}.part", place.name));
    let made = synced(
        &centre,
        &environment,
        (user, publication),
        place,
        &server,
        &part,
    )
    .await;
    running.shutdown().await;
    let content = made?;
    let of = ImageOf {
        remote_id: content.remote_id,
        centre: &content.centre,
        publication: &content.publication,
        schema_hash: &content.schema_hash,
        checkpoint: &content.checkpoint,
    };
    let manifest = describe(&*centre, of, &part, environment.clock.now_ms()).await?;
    let before = fs::read(&place.manifest).ok();
    let before = before.and_then(|it| Manifest::from_json(&it).ok());
    let image = place.beside(&manifest.file);
    fs::rename(&part, &image).map_err(|error| Failure::file("write", &image, &error))?;
    let new = place.beside(&format!("{}.json.part", place.name));
    fs::write(&new, manifest.to_json())
        .and_then(|()| fs::rename(&new, &place.manifest))
        .map_err(|error| Failure::file("write", &place.manifest, &error))?;
    // Whoever has read the manifest before still fetches that image.
    let before = before.map_or_else(String::new, |it| it.file);
    place.remove_others([&manifest.file, &before]);
    Ok(manifest)
}

/// Brings the image's own remote up to date, and writes the image.
async fn synced(
    centre: &Arc<dyn Centre>,
    environment: &Environment,
    (user, publication): (&str, &str),
    place: &Place,
    server: &str,
    part: &Path,
) -> Result<ImageContent, Failure> {
    let path = place.remote();
    let mut anew = false;
    loop {
        let is_new = Remote::open(&path)?.account()?.remote_id.is_none();
        let identity = match is_new {
            true => Some(register(&**centre, user, environment).await?),
            false => None,
        };
        let (path, part) = (path.clone(), part.to_owned());
        let remote = path.clone();
        let (server, user, publication) =
            (server.to_owned(), user.to_owned(), publication.to_owned());
        let syncing = tokio::task::spawn_blocking(move || -> Result<_, Failure> {
            let mut remote = Remote::open(&path)?;
            remote.subscribe(&server, &user, &[&publication])?;
            if let Some((id, credential)) = identity {
                let database = remote.database()?;
                database.store_sign_in(None, id, None, Some(&credential), "")?;
            }
            remote.sync(&mut |_| ControlFlow::Continue(()))?;
            let _ = fs::remove_file(&part);
            Ok(remote.database()?.write_image(&part)?)
        });
        let result = syncing
            .await
            .map_err(|error| Failure::new(Code::Internal, format!("cannot build: {error}"), ""))?;
        let unknown = [Code::CredentialInvalid, Code::AnotherCentre];
        match result {
            // The database is another one by now, or has forgotten the remote.
            Err(failure) if unknown.contains(&failure.code) && !anew => {
                anew = true;
                for end in ["", "-wal", "-shm"] {
                    let _ = fs::remove_file(format!("{}{end}", remote.display()));
                }
            }
            result => return result,
        }
    }
}
