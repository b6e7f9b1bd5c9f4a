//! `tidewater image`: files from which new remotes begin.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{Args, Subcommand};
use serde::Serialize;
use tidewater_protocol::image::{Manifest, hex};
use tidewater_server::config::ImageRows;
use tidewater_server::{Config, Environment};
use tidewater_terminal::{CommandOutcome, ConfigArgs, Failure, output, with_exit_codes};
use tokio::runtime::Builder;

use crate::images::{self, ImageFiles, ImageScope};

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

/// Make an image of what a user holds, or of partitions, or bring it up to date
///
/// Writes three files: the manifest, NAME.json; the image beside it, NAME-HASH.db, an SQLite file
/// with the publication's tables; and NAME.remote, the image's own remote, with which the next build
/// only fetches what has changed. Serve manifest and image with any web server or CDN, or copy them; a
/// new remote begins with tidewater sync --image. Only NAME.remote holds a secret.
///
/// Whoever has an image has the rows in it. Partitions are named by their columns and values, and
/// --everyone is without any of them.
#[derive(Debug, Args)]
#[command(after_help = with_exit_codes!("\
Examples:
  tidewater image build --user north --publication main --out images/north.json
  tidewater image build --partition region=7 --publication main --out images/region-7.json
  tidewater image build --everyone --publication main --out images/all.json
  tidewater sync new.db --image https://cdn.example.com/images/north.json --server ... --user ...

The object of --json:
  {\"file\",\"publication\",\"bytes\":n,\"sha256\",\"created_ms\":n}"))]
struct BuildArgs {
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    rows: RowsArgs,
    /// Of which publication
    #[arg(long, value_name = "NAME")]
    publication: String,
    /// The manifest, NAME.json; the folder is made if need be
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Print one JSON object, see below
    #[arg(long)]
    json: bool,
}

/// Which rows are in it.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct RowsArgs {
    /// What this user holds
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// The partitions with this value of a column, and what everybody gets; repeatable
    #[arg(long = "partition", value_name = "COLUMN=VALUE")]
    partitions: Vec<String>,
    /// What everybody gets
    #[arg(long)]
    everyone: bool,
}

impl RowsArgs {
    fn rows(&self) -> Result<ImageRows, Failure> {
        match &self.user {
            Some(user) => Ok(ImageRows::Of(user.clone())),
            None => ImageRows::from_partitions(&self.partitions).map_err(|wrong| {
                Failure::usage(
                    format!("{wrong:?} is no partition"),
                    "write --partition COLUMN=VALUE",
                )
            }),
        }
    }
}

impl ImageArgs {
    pub(crate) fn wants_json(&self) -> bool {
        let ImageCommand::Build(args) = &self.command;
        args.json
    }
}

/// What of a manifest is told.
#[derive(Serialize)]
struct Built<'m> {
    file: &'m str,
    publication: &'m str,
    bytes: u64,
    sha256: String,
    created_ms: i64,
}

pub(crate) fn run(args: &ImageArgs) -> Result<CommandOutcome, Failure> {
    let ImageCommand::Build(args) = &args.command;
    let place = ImageFiles::for_manifest(&args.out)?;
    let config = args.config.load()?;
    let runtime = Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::start(&error))?;
    let wanted = ImageScope {
        rows: args.rows.rows()?,
        publication: args.publication.clone(),
    };
    let built = runtime.block_on(build(&config, &wanted, &place));
    runtime.shutdown_background();
    let manifest = built?;
    if args.json {
        output::json(&Built {
            file: &manifest.file,
            publication: &manifest.publication,
            bytes: manifest.bytes,
            sha256: hex(&manifest.sha256),
            created_ms: manifest.created_ms,
        })?;
    } else {
        output::text(&format!(
            "{} of {:?}, {}\n",
            manifest.file,
            manifest.publication,
            output::bytes(manifest.bytes)
        ))?;
    }
    Ok(CommandOutcome::Complete)
}

async fn build(
    config: &Config,
    wanted: &ImageScope,
    place: &ImageFiles,
) -> Result<Manifest, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let built = images::build(config, &Environment::real(), wanted, place, &stop).await;
    built.map_err(|it| it.failure)
}
