//! A remote: a real file, an application that edits it, and syncs over the simulated
//! network.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::time::{sleep, sleep_until, timeout};

use tidewater_protocol::RemoteId;
use tidewater_remote::database::Database;
use tidewater_remote::session::{
    Now, Outcome, ProofKind, Session, SessionOptions, SyncDirection, Verify,
};
use tidewater_remote::spool::MemorySpool;

use crate::application::{self, Application};
use crate::judge::{self, Ledger, Parties};
use crate::network::Weather;
use crate::random::Random;
use crate::world::{Failed, PASSWORD, World};

/// How long a remote bears silence.
const SILENCE_MS: u64 = 30_000;

/// How often a server may send a remote away at once.
const ROUNDS: usize = 6;

/// How often a remote may have to come back before it has synced, when nothing fails any
/// more.
const PATIENCE: usize = 24;

/// A remote database and all that belongs to it.
pub(crate) struct Remote {
    world: Rc<World>,
    pub(crate) name: String,
    pub(crate) user: &'static str,
    database: RefCell<Option<Database>>,
    application: RefCell<Application>,
    ledger: RefCell<Ledger>,
    /// The last acknowledged upload that the file has told of, of an identity.
    sequences: RefCell<BTreeMap<RemoteId, u64>>,
}

impl Remote {
    /// One that has never synced.
    pub(crate) fn new(
        world: &Rc<World>,
        name: String,
        user: &'static str,
        random: Random,
    ) -> Result<Remote, Failed> {
        let path: PathBuf = world.folder().join(format!("{name}.db"));
        let mut database = Database::open(&path)?;
        database.subscribe("tcp://127.0.0.1:7439", user, &["main"])?;
        let connection = application::open(&path)?;
        let application = Application::new(connection, name.clone(), random, true);
        Ok(Remote {
            world: world.clone(),
            name,
            user,
            database: RefCell::new(Some(database)),
            application: RefCell::new(application),
            ledger: RefCell::default(),
            sequences: RefCell::default(),
        })
    }

    /// Edits and syncs so many times.
    pub(crate) async fn live(&self, mut random: Random, steps: u64) -> Result<(), Failed> {
        for _ in 0..steps {
            sleep(Duration::from_millis(random.below(3_000))).await;
            if random.percent(60) {
                let weather = Weather::any(&mut random, self.world.plan.faults);
                self.sync(&mut random, weather).await?;
            } else {
                self.edit()?;
            }
        }
        Ok(())
    }

    /// Edits while it syncs, as applications do.
    pub(crate) async fn disturb(&self, mut random: Random, steps: u64) -> Result<(), Failed> {
        for _ in 0..steps {
            sleep(Duration::from_millis(random.below(4_000))).await;
            self.edit()?;
        }
        Ok(())
    }

    fn edit(&self) -> Result<(), Failed> {
        let regions = self.world.regions(self.user)?;
        let mut application = self.application.borrow_mut();
        let touched = application.edit(&self.world.keys, &regions)?;
        if !touched.is_empty() {
            let name = &self.name;
            self.world
                .chronicle
                .note(&format!("{name} edits {touched:?}"));
        }
        drop(application);
        let since = judge::audited(&self.world.centre_connection())?;
        self.ledger.borrow_mut().committed(&touched, since);
        self.judge()
    }

    /// A sync: as many connections as it takes, the first in this weather. How long to wait
    /// before the next attempt, if it failed.
    async fn sync(&self, random: &mut Random, weather: Weather) -> Result<Option<u64>, Failed> {
        let mut first_proof = ProofKind::Token;
        let mut weather = Some(weather);
        for _ in 0..ROUNDS {
            let fine = Weather::fine(random.fork());
            let weather = weather.take().unwrap_or(fine);
            let outcome = self.connection(random, weather, first_proof).await?;
            self.judge()?;
            match outcome {
                Outcome::Done(_) => return Ok(None),
                Outcome::Again(proof) => first_proof = proof,
                Outcome::Failed(error) => return Ok(Some(error.retry_after_ms().unwrap_or(1_000))),
                other => return Err(Failed(format!("an outcome that is not known: {other:?}"))),
            }
        }
        Ok(Some(1_000))
    }

    async fn connection(
        &self,
        random: &mut Random,
        weather: Weather,
        first_proof: ProofKind,
    ) -> Result<Outcome, Failed> {
        let options = SessionOptions {
            direction: SyncDirection::Both,
            verify: Verify::default(),
            password: Some(PASSWORD.into()),
            server: None,
            first_proof,
            client: "simulator".into(),
            silence_ms: SILENCE_MS,
            spool: Box::new(MemorySpool::default()),
        };
        let mut seed = [0; 32];
        random.fill(&mut seed);
        let database = self.database.borrow_mut().take();
        let database = database.ok_or_else(|| Failed("a remote syncs twice at once".into()))?;
        let mut session = Session::new(database, options, seed, self.now());
        match self.world.dial(weather) {
            Some(stream) => self.pump(&mut session, stream, random).await,
            None => session.handle_end(None),
        }
        let (database, outcome) = session.finish();
        *self.database.borrow_mut() = Some(database);
        self.world.chronicle.session();
        let name = &self.name;
        self.world
            .chronicle
            .note(&format!("{name}: {}", summary(&outcome)));
        Ok(outcome)
    }

    fn now(&self) -> Now {
        self.world.now()
    }

    async fn pump(&self, session: &mut Session, stream: DuplexStream, random: &mut Random) {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut output = Bytes::new();
        let mut buffer = [0; 2_048];
        loop {
            while session.wants_work() {
                session.handle_work(self.now());
                // Others do something in between.
                sleep(Duration::from_millis(random.below(3))).await;
            }
            if output.is_empty()
                && let Some(bytes) = session.poll_transmit(self.now())
            {
                output = bytes;
            }
            if session.is_finished() {
                break;
            }
            let deadline = session.poll_timeout().unwrap_or(u64::MAX);
            let deadline = self.world.instant(deadline);
            tokio::select! {
                biased;
                read = reader.read(&mut buffer) => match read {
                    Ok(count) if count > 0 => session.handle_bytes(&buffer[..count], self.now()),
                    Ok(_) => session.handle_end(None),
                    Err(error) => session.handle_end(Some(error)),
                },
                written = writer.write(&output), if !output.is_empty() => match written {
                    Ok(count) => {
                        output.advance(count);
                        session.handle_sent(self.now());
                    }
                    Err(error) => session.handle_end(Some(error)),
                },
                () = sleep_until(deadline) => session.handle_timeout(self.now()),
            }
        }
        let mut rest = output.to_vec();
        while let Some(bytes) = session.poll_transmit(self.now()) {
            rest.extend_from_slice(&bytes);
        }
        // A courtesy: the server may have closed first.
        let farewell = async {
            let _ = writer.write_all(&rest).await;
            let _ = writer.shutdown().await;
        };
        let _ = timeout(Duration::from_secs(10), farewell).await;
    }

    /// Syncs until nothing is left to do.
    pub(crate) async fn settle(&self, random: &mut Random) -> Result<(), Failed> {
        let mut rest = 0;
        for _ in 0..PATIENCE {
            let weather = Weather::fine(random.fork());
            match self.sync(random, weather).await? {
                Some(after_ms) => sleep(Duration::from_millis(after_ms)).await,
                None if self.is_settled()? => rest += 1,
                None => rest = 0,
            }
            if rest == 2 {
                return Ok(());
            }
        }
        Err(Failed(format!("I6: {} does not come to rest", self.name)))
    }

    /// Whether nothing waits to be uploaded or asked for.
    fn is_settled(&self) -> Result<bool, Failed> {
        let database = self.database.borrow();
        let status = database.as_ref().map(Database::status).transpose()?;
        let subscriptions = status.iter().flat_map(|it| &it.subscriptions);
        let (mut stale, mut refused, mut pending) = (0, 0, 0);
        for table in subscriptions.flat_map(|it| &it.tables) {
            stale += table.stale;
            refused += table.refused;
            pending += table.pending;
        }
        // Of a refused change its row, and what that refers to, may be asked for until
        // somebody decides about the change.
        Ok(pending == 0 && stale <= 2 * refused)
    }

    /// What must hold at any moment.
    pub(crate) fn judge(&self) -> Result<(), Failed> {
        let application = self.application.borrow();
        let remote = application.connection();
        let held = self.world.ever_held(self.user);
        let centre = self.world.centre_connection();
        let parties = Parties {
            remote,
            centre: &centre,
        };
        for found in [
            judge::torn_download(remote)?,
            judge::row_out_of_scope(remote, &self.name, &held)?,
            self.ledger.borrow_mut().check(&parties)?,
            self.sequence_went_back()?,
        ] {
            found.map_or(Ok(()), |found| {
                Err(Failed(format!("{}: {found}", self.name)))
            })?;
        }
        Ok(())
    }

    /// What must hold when everybody has synced and nobody writes.
    pub(crate) fn judge_at_rest(&self) -> Result<(), Failed> {
        let application = self.application.borrow();
        let centre = self.world.centre_connection();
        let parties = Parties {
            remote: application.connection(),
            centre: &centre,
        };
        let held = self.world.ever_held(self.user);
        for found in [
            judge::difference(&parties, self.user)?,
            judge::upload_out_of_scope(&centre, &self.name, &held)?,
        ] {
            found.map_or(Ok(()), |found| {
                Err(Failed(format!("{}: {found}", self.name)))
            })?;
        }
        Ok(())
    }

    fn sequence_went_back(&self) -> Result<Option<String>, Failed> {
        let database = self.database.borrow();
        let Some(database) = database.as_ref() else {
            return Ok(None);
        };
        let Some(id) = database.account()?.remote_id else {
            return Ok(None);
        };
        let mut sequences = self.sequences.borrow_mut();
        let last = sequences.entry(id).or_default();
        for subscription in database.subscriptions()? {
            if subscription.sequence < *last {
                let now = subscription.sequence;
                return Ok(Some(format!("the sequence went back from {last} to {now}")));
            }
            *last = subscription.sequence;
        }
        Ok(None)
    }
}

fn summary(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Done(report) => format!("{report:?}"),
        Outcome::Again(proof) => format!("again with {proof:?}"),
        Outcome::Failed(error) => format!("{} {error}", error.code().name()),
        other => format!("{other:?}"),
    }
}
