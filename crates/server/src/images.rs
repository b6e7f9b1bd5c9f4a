//! Images: files from which new remotes begin, described and signed.
//!
//! Owns what an image's manifest says. The file is made by whoever has the rows (see
//! `tidewater_remote::database::Database::write_image`), and served by [`crate::http`].

use std::fs::File;
use std::io::Read;
use std::path::Path;

use prost::Message;
use ring::digest::{Context, SHA256};

use tidewater_centre::engine::watermark::Watermark;
use tidewater_centre::{Centre, Checkpoint};
use tidewater_protocol::RemoteId;
use tidewater_protocol::image::Manifest;

use crate::auth::signing::{CheckpointFor, ImageFor, Keyring};
use crate::error::ServerError;

/// How much is read at once.
const READ_BYTES: usize = 1 << 20;

/// Of whose rows an image was made.
#[derive(Clone, Copy, Debug)]
pub struct ImageOf<'a> {
    /// The remote that it was.
    pub remote_id: RemoteId,
    /// The name of its centre.
    pub centre: &'a str,
    /// The publication.
    pub publication: &'a str,
    /// The hash of the publication's schema.
    pub schema_hash: &'a [u8],
    /// The remote's checkpoint.
    pub checkpoint: &'a [u8],
}

/// Describes the file of an image, and signs that.
///
/// # Errors
/// The remote's checkpoint is not what a server of this centre has signed, what it holds are not
/// only rows of partitions, or the file cannot be read.
pub async fn describe(
    centre: &dyn Centre,
    of: ImageOf<'_>,
    file: &Path,
    now_ms: i64,
) -> Result<Manifest, ServerError> {
    let keyring = Keyring::new(centre.signing_keys().await?, now_ms);
    let genuine = keyring.as_ref().and_then(|keyring| {
        let schema_hash: [u8; 32] = of.schema_hash.try_into().ok()?;
        let subject = CheckpointFor {
            remote_id: of.remote_id,
            publication: of.publication,
            schema_hash: &schema_hash,
        };
        let checkpoint = keyring.open_checkpoint(subject, of.checkpoint)?;
        Some((keyring, schema_hash, checkpoint))
    });
    let (keyring, schema_hash, checkpoint) = genuine.ok_or_else(|| {
        ServerError::configuration(
            format!(
                "what the image of {:?} is made of is not this centre's",
                of.publication
            ),
            "remove the image's own remote beside it (NAME.remote), and build it anew",
        )
    })?;
    let (sha256, bytes) = hash(file).map_err(|error| {
        ServerError::configuration(
            format!("the image {} cannot be read: {error}", file.display()),
            "see that the folder can be written and the disk is not full",
        )
    })?;
    let subject = ImageFor {
        sha256: &sha256,
        publication: of.publication,
        schema_hash: &schema_hash,
    };
    Ok(Manifest {
        centre: of.centre.to_owned(),
        publication: of.publication.to_owned(),
        schema_hash,
        sha256,
        bytes,
        created_ms: now_ms,
        checkpoint: keyring.sign_image(subject, &anybodys(checkpoint, of.publication)?),
    })
}

/// What an image's checkpoint says: no serial was given to anybody with it.
fn anybodys(checkpoint: Checkpoint, publication: &str) -> Result<Checkpoint, ServerError> {
    let watermark = Watermark::read(&checkpoint.watermark).unwrap_or_default();
    if !watermark.cursors.is_empty() || watermark.last_download.is_some() {
        return Err(ServerError::configuration(
            format!("{publication:?} has tables that handlers or scripts tell each user of"),
            "make images of publications without scripts and without handlers for downloads",
        ));
    }
    Ok(Checkpoint {
        serial: 0,
        watermark: watermark.encode_to_vec(),
        rules: checkpoint.rules,
    })
}

/// The SHA-256 of a file, and its size.
fn hash(file: &Path) -> std::io::Result<([u8; 32], u64)> {
    let mut file = File::open(file)?;
    let mut context = Context::new(&SHA256);
    let mut buffer = vec![0; READ_BYTES];
    let mut bytes = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            count => {
                context.update(&buffer[..count]);
                bytes += count as u64;
            }
        }
    }
    let mut hash = [0; 32];
    hash.copy_from_slice(context.finish().as_ref());
    Ok((hash, bytes))
}
