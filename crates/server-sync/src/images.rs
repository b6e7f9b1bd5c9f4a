//! Images: files from which new remotes begin, described and signed.
//!
//! Owns what an image's manifest says. The file is made by whoever has the rows (see
//! `tidewater_remote::database::Database::write_image`), and served by any web server.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use tidewater_centre::engine::scripts::Versions;
use tidewater_centre::records::{
    ProvenIdentity, RemoteRecord, SessionRequest, UserClaims, UserRecord,
};
use tidewater_centre::script_notes::ScriptNotes;
use tidewater_centre::watermark::Watermark;
use tidewater_centre::{
    Centre, CentreError, Checkpoint, DownloadJob, DownloadOutcome, DownloadSink, DownloadStart,
    DownloadSubscription, GivenPartitions, MarkFrequency, SyncContext,
};

use prost::Message;

use tidewater_carrier::cryptography::digest::{Context, SHA256};
use tidewater_protocol::image::{HASH_DIGITS, Manifest, hex};
use tidewater_protocol::message::TableBegin;
use tidewater_protocol::{PublicationSchema, RemoteId};

use tidewater_server_config::{ImageRows, NO_IMAGE_HINT, image_obstacle};
use tidewater_server_identity::credential;
use tidewater_server_identity::registry::PROGRAM;
use tidewater_server_identity::signing::{CheckpointFor, ImageFor, SigningKeys};
use tidewater_server_jobs::environment::{Environment, random};
use tidewater_server_jobs::error::ServerError;

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
    let keyring = SigningKeys::new(centre.signing_keys().await?, now_ms);
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
    // Beside sessions it must not keep a thread of theirs.
    let path = file.to_owned();
    let hashed = tokio::task::spawn_blocking(move || hash(&path)).await;
    let hashed = hashed.unwrap_or_else(|error| Err(std::io::Error::other(error)));
    let (sha256, bytes) = hashed.map_err(|error| {
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
    let name = file.file_stem().and_then(|it| it.to_str());
    Ok(Manifest {
        file: file_name(name.unwrap_or("image"), &sha256),
        centre: of.centre.to_owned(),
        publication: of.publication.to_owned(),
        schema_hash,
        sha256,
        bytes,
        created_ms: now_ms,
        checkpoint: keyring.sign_image(subject, &anybodys(checkpoint, of.publication)?),
    })
}

/// What the file of an image is called: another content has another name, and can be kept for ever.
fn file_name(name: &str, sha256: &[u8; 32]) -> String {
    format!("{name}-{}.db", &hex(sha256)[..HASH_DIGITS])
}

/// What an image's checkpoint says: no serial was given to anybody with it.
fn anybodys(checkpoint: Checkpoint, publication: &str) -> Result<Checkpoint, ServerError> {
    let watermark = Watermark::read(&checkpoint.watermark).unwrap_or_default();
    if !watermark.cursors.is_empty() {
        return Err(ServerError::configuration(
            format!("{publication:?} has tables that handlers tell each user of"),
            NO_IMAGE_HINT,
        ));
    }
    // When the image was made says nothing of what a script has given its remote: no script gives
    // rows of it.
    let watermark = Watermark {
        last_download: None,
        ..watermark
    };
    Ok(Checkpoint {
        serial: 0,
        watermark: watermark.encode_to_vec(),
        rules: checkpoint.rules,
    })
}

/// Whether there can be images of a publication by its scripts as they are deployed.
///
/// # Errors
/// Scripts say which rows each user gets.
pub fn check_scripts(schema: &PublicationSchema, versions: &Versions) -> Result<(), ServerError> {
    let giving = versions.values().find_map(|scripts| {
        let mut tables = schema.tables.iter().enumerate();
        tables.find_map(|(index, table)| {
            let script = scripts.giving(index)?;
            Some((script, table))
        })
    });
    match giving {
        None => Ok(()),
        Some((script, table)) => {
            Err(image_obstacle(&schema.name, &script.place, &table.name).into())
        }
    }
}

/// A remote that was registered for an image.
#[derive(Debug)]
pub struct RegisteredRemote {
    /// Its id.
    pub id: RemoteId,
    /// What it signs in with.
    pub credential: Vec<u8>,
    /// The user who was added for it, if he was.
    new_user: Option<String>,
}

impl RegisteredRemote {
    /// Removes it again: nothing has come of its image.
    ///
    /// # Errors
    /// The database is away.
    pub async fn remove(&self, centre: &dyn Centre) -> Result<(), ServerError> {
        match &self.new_user {
            Some(user) => centre.remove_user(user).await?,
            None => centre.forget_remote(self.id).await?,
        };
        Ok(())
    }
}

/// Registers the remote of whose rows an image is made, as a user's. It
/// needs no password: whoever can do this has the database. Who stands for partitions is added if
/// need be: he holds nothing, and has nothing to sign in with.
///
/// # Errors
/// There is no such user, or the database is away.
pub async fn register(
    centre: &dyn Centre,
    rows: &ImageRows,
    environment: &Environment,
) -> Result<RegisteredRemote, ServerError> {
    let user = &*rows.user();
    let mut new_user = None;
    if let ImageRows::In(_) = rows {
        let nobody = UserRecord {
            name: user.to_owned(),
            password_hash: String::new(),
            disabled: false,
            created_ms: environment.clock.now_ms(),
            proven: ProvenIdentity::default(),
        };
        if centre.add_user(&nobody).await? {
            new_user = Some(user.to_owned());
        }
    }
    let no_randomness = |error: std::io::Error| {
        ServerError::configuration(
            format!("the system has no random numbers: {error}"),
            "try again",
        )
    };
    let mut worker = centre.worker().await?;
    let asked = SessionRequest {
        user: user.to_owned(),
        remote_id: None,
        subscriptions: Vec::new(),
    };
    let states = worker.session_states(vec![asked]).await?;
    if states.first().and_then(|it| it.user.as_ref()).is_none() {
        return Err(ServerError::configuration(
            format!("there is no user {user:?}"),
            "an image holds what a user holds: add one (tidewater user add NAME)",
        ));
    }
    let randomness = &*environment.randomness;
    let id = RemoteId::from_random(random(randomness).map_err(no_randomness)?);
    let (credential, hash) = credential::generate(randomness).map_err(no_randomness)?;
    let now_ms = environment.clock.now_ms();
    let remote = RemoteRecord {
        id,
        user: user.to_owned(),
        revoked: false,
        credential_hash: hash,
        previous_credential_hash: Vec::new(),
        rotated_ms: now_ms,
        created_ms: now_ms,
        last_sync_ms: 0,
        unverified: 0,
        device_name: String::new(),
    };
    worker.save_remote(&remote).await?;
    Ok(RegisteredRemote {
        id,
        credential,
        new_user,
    })
}

/// What is asked of a download that is not read.
pub struct ProbedDownload {
    /// The user.
    pub user: String,
    /// What is known of the user.
    pub claims: UserClaims,
    /// See [`SyncContext::given`].
    pub given: Option<Arc<GivenPartitions>>,
    /// The publication.
    pub schema: Arc<PublicationSchema>,
    /// The hash of the schema that the image has, if that is another one.
    pub before: Option<Vec<u8>>,
    /// Its checkpoint.
    pub image: Option<Checkpoint>,
}

impl ProbedDownload {
    /// What is read to find out.
    pub fn job(self, now_ms: i64) -> DownloadJob {
        let subscription = DownloadSubscription {
            publication: self.schema.name.clone(),
            schema: self.schema,
            before: self.before,
            from_image: self.image.is_some(),
            checkpoint: self.image,
            requests: Vec::new(),
            compares: Vec::new(),
            kept: None,
            part_of: None,
            own: None,
            gained: Vec::new(),
            refused_from: 0,
            settled_after: 0,
            given: Vec::new(),
        };
        DownloadJob {
            context: SyncContext {
                user: self.user,
                remote_id: PROGRAM,
                now_ms,
                parameters: Arc::default(),
                claims: self.claims,
                scripts: ScriptNotes::default(),
                given: self.given,
            },
            subscriptions: vec![subscription],
            marks: MarkFrequency::default(),
            only_opens: true,
        }
    }
}

/// Takes what is told when a download begins.
#[derive(Default)]
pub struct DownloadProbe {
    /// See [`DownloadStart::covers_image`].
    pub covers_image: bool,
}

impl DownloadSink for DownloadProbe {
    fn begin(&mut self, _: usize, start: DownloadStart) {
        self.covers_image = start.covers_image;
    }

    fn table(&mut self, _: TableBegin) {}

    fn rows(&mut self, _: Vec<u8>) -> Result<(), CentreError> {
        Err(CentreError::Cancelled)
    }

    fn end(&mut self, _: usize, _: DownloadOutcome) {}
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
