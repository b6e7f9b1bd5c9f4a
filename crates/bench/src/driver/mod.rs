//! A driver: a process with a share of the remotes, led by the supervisor.
//!
//! One thread hears the supervisor, one says every second that the driver is there, and one does
//! the step. The first of them waits for whatever comes: that the supervisor is gone is noticed
//! in the middle of a step, too.

mod edits;
mod line;
mod remotes;

use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use anyhow::{Context, bail};
use tempfile::TempDir;

pub(crate) use self::edits::edit;
pub(crate) use self::remotes::{employee, room, user};

use self::remotes::Share;
use crate::error::BadInput;
use crate::gate::{self, GateStep, Setup, StepReport, ToDriver, ToSupervisor, VERSION};
use crate::options::FilesPlace;
use crate::processes;

/// How often a driver says that it is there.
const ALIVE_EVERY: Duration = Duration::from_secs(1);

/// How long syncs may take to break off.
const BREAKING_OFF: Duration = Duration::from_secs(10);

/// What a driver can be told.
#[derive(Clone, Debug)]
pub struct DriveOptions {
    /// The supervisor's `host:port`.
    pub supervisor: String,
    /// Where remotes have their files.
    pub files: FilesPlace,
    /// What the driver calls itself.
    pub name: Option<String>,
}

/// What the first thread waits for.
enum Event {
    Heard(ToDriver),
    Gone(String),
    /// All remotes wait for the gate.
    Ready,
    Done(anyhow::Result<StepReport>),
}

/// Drives remotes until the supervisor says goodbye.
///
/// # Errors
/// The supervisor cannot be reached or has gone away, or a remote failed.
pub fn drive(options: &DriveOptions) -> anyhow::Result<()> {
    let folder = folder(&options.files)?;
    let stream = TcpStream::connect(&options.supervisor).map_err(|error| {
        BadInput::error(
            format!("there is no supervisor at {}: {error}", options.supervisor),
            "start `tidewater bench supervise` first, and name its host and port",
        )
    })?;
    let host = options.supervisor.to_socket_addrs()?.next();
    let host = host.context("the supervisor has no address")?.ip();
    let (mouth, mut ear) = gate::talk(stream)?;
    let name = options.name.clone();
    mouth.say(&ToSupervisor::Hello {
        version: VERSION,
        name: name.unwrap_or_else(|| format!("process {}", std::process::id())),
        open_files: processes::raise_open_files(u64::MAX),
    })?;

    let (events, waiting) = mpsc::channel();
    let heard = events.clone();
    std::thread::spawn(move || {
        let gone = loop {
            match ear.hear() {
                Ok(Some(word)) => drop(heard.send(Event::Heard(word))),
                Ok(None) => break "it has hung up".to_owned(),
                Err(error) => break format!("{error:#}"),
            }
        };
        // Nobody waits any more when the driver ends.
        let _ = heard.send(Event::Gone(gone));
    });
    let alive = mouth.clone();
    std::thread::spawn(move || {
        while alive.say(&ToSupervisor::Alive).is_ok() {
            std::thread::sleep(ALIVE_EVERY);
        }
    });
    let driver = Driver {
        mouth,
        folder,
        host,
        events,
        waiting,
    };
    driver.run()
}

/// See the module.
struct Driver {
    mouth: gate::Mouth,
    folder: TempDir,
    /// The machine of supervisor and server.
    host: std::net::IpAddr,
    events: Sender<Event>,
    waiting: Receiver<Event>,
}

impl Driver {
    fn run(self) -> anyhow::Result<()> {
        let ToDriver::Setup(setup) = self.hear()? else {
            bail!("the supervisor began with another word than Setup");
        };
        let share = Arc::new(self.share(&setup)?);
        loop {
            match self.hear()? {
                ToDriver::Prepare(step) => match self.step(&share, step) {
                    Ok(report) => self.mouth.say(&ToSupervisor::Done(report))?,
                    Err(error) => {
                        let message = format!("{error:#}");
                        let input = error.downcast_ref::<BadInput>();
                        let hint = input.map(|input| input.hint.clone());
                        // If it does not hear this, it hears that the connection ends.
                        let _ = self.mouth.say(&ToSupervisor::Failed { message, hint });
                        return Err(error);
                    }
                },
                ToDriver::Bye => return Ok(()),
                ToDriver::Setup(_) | ToDriver::Go => {
                    bail!("the supervisor said something out of turn")
                }
            }
        }
    }

    fn share(&self, setup: &Setup) -> anyhow::Result<Share> {
        let port = setup.server_ports.iter().cycle().nth(setup.driver as usize);
        let port = port.context("there is no server")?;
        let server = std::net::SocketAddr::from((self.host, *port));
        Share::new(self.folder.path().to_owned(), setup.clone(), server)
    }

    /// The supervisor's next word.
    fn hear(&self) -> anyhow::Result<ToDriver> {
        match self.waiting.recv()? {
            Event::Heard(word) => Ok(word),
            Event::Gone(why) => Err(gone(&why)),
            Event::Ready | Event::Done(_) => bail!("a step goes on after its end"),
        }
    }

    /// Does a step in a thread of its own, and hears the supervisor meanwhile.
    fn step(&self, share: &Arc<Share>, step: GateStep) -> anyhow::Result<StepReport> {
        let gate = Arc::new(remotes::Gate::default());
        let (events, share, own_gate) = (self.events.clone(), share.clone(), gate.clone());
        std::thread::spawn(move || {
            let ready = || drop(events.send(Event::Ready));
            let done = share.step(&step, &own_gate, &ready);
            // Nobody waits any more when the driver ends.
            let _ = events.send(Event::Done(done));
        });
        loop {
            match self.waiting.recv()? {
                Event::Ready => self.mouth.say(&ToSupervisor::Ready)?,
                Event::Heard(ToDriver::Go) => gate.open(),
                Event::Done(report) => return report,
                Event::Heard(_) => bail!("the supervisor said something out of turn"),
                Event::Gone(why) => {
                    gate.close();
                    // Nothing is to write into the folder any more when it is removed.
                    while let Ok(event) = self.waiting.recv_timeout(BREAKING_OFF) {
                        if matches!(event, Event::Done(_)) {
                            break;
                        }
                    }
                    return Err(gone(&why));
                }
            }
        }
    }
}

fn gone(why: &str) -> anyhow::Error {
    anyhow::anyhow!("the supervisor has gone away ({why}); this driver ends")
}

/// A temporary folder for the remotes' files.
pub(crate) fn folder(files: &FilesPlace) -> anyhow::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("tidewater-bench-");
    let folder = match files {
        FilesPlace::Folder(folder) => folder.clone(),
        FilesPlace::Memory => {
            let memory = PathBuf::from("/dev/shm");
            if memory.is_dir() {
                memory
            } else {
                std::env::temp_dir()
            }
        }
    };
    builder.tempdir_in(&folder).map_err(|error| {
        BadInput::error(
            format!("no files can be made in {}: {error}", folder.display()),
            "name a folder that there is and that can be written: --files FOLDER",
        )
    })
}
