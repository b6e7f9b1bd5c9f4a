//! The supervisor's side of the gates: drivers that it starts or waits for, and leads.

use std::fs::File;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::error::BadInput;
use crate::gate::{Ear, GateStep, Mouth, Setup, StepReport, ToDriver, ToSupervisor, VERSION, talk};
use crate::processes::GLANCE;
use crate::program::own_program;
use crate::server::last_words;

/// How long a driver may be silent; it says every second that it is there.
const SILENCE: Duration = Duration::from_secs(60);
/// How long a driver of this machine may take to say its first word.
const FIRST_WORD: Duration = Duration::from_secs(30);
/// How long drivers may take to end.
const FAREWELL: Duration = Duration::from_secs(20);
/// How often somebody who waits looks around.
const TICK: Duration = Duration::from_millis(50);

/// Whoever runs a scenario: what it tells, and how it is stopped.
pub struct Watcher<'a> {
    /// Is told what is being done.
    pub note: &'a dyn Fn(&str),
    /// Whether the user wants to stop.
    pub interrupted: &'a dyn Fn() -> bool,
}

impl Watcher<'_> {
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(!(self.interrupted)(), "interrupted");
        Ok(())
    }
}

/// The drivers.
pub(crate) struct Drivers {
    drivers: Vec<Driver>,
    events: Receiver<(usize, Event)>,
}

struct Driver {
    name: String,
    mouth: Mouth,
    started: Option<DriverProcess>,
    heard: Instant,
}

/// What comes from a driver.
enum Event {
    Heard(ToSupervisor),
    Gone(String),
}

/// The gate to which drivers come.
pub(crate) struct Entrance {
    listener: TcpListener,
    address: SocketAddr,
}

impl Entrance {
    pub(crate) fn open(address: SocketAddr) -> anyhow::Result<Entrance> {
        let listener = TcpListener::bind(address).map_err(|error| {
            BadInput::error(
                format!("drivers cannot be awaited at {address}: {error}"),
                "choose another address: --listen HOST:PORT",
            )
        })?;
        listener.set_nonblocking(true)?;
        Ok(Entrance {
            address: listener.local_addr()?,
            listener,
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn ip(&self) -> IpAddr {
        self.address.ip()
    }

    /// Starts drivers of this machine, and waits until they are there.
    pub(crate) fn start(
        self,
        count: u32,
        files: &Path,
        setup: &Setup,
        watcher: &Watcher<'_>,
    ) -> anyhow::Result<Drivers> {
        let mut children = Children(Vec::new());
        for number in 0..count {
            let log = files.join(format!("driver {}.log", number + 1));
            let child = own_program()?
                .args(["drive", "--name"])
                .arg(format!("driver {}", number + 1))
                .arg("--supervisor")
                .arg(self.address.to_string())
                .arg("--files")
                .arg(files)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                // What it has to say, it says to the supervisor, as long as it can.
                .stderr(File::create(&log)?)
                .spawn()
                .context("cannot start a driver")?;
            children.0.push(Some(DriverProcess { child, log }));
        }
        let until = Instant::now() + FIRST_WORD;
        self.admit(count, children, setup, watcher, Some(until))
    }

    /// Waits for drivers from anywhere.
    pub(crate) fn wait(
        self,
        count: u32,
        setup: &Setup,
        watcher: &Watcher<'_>,
    ) -> anyhow::Result<Drivers> {
        self.admit(count, Children(Vec::new()), setup, watcher, None)
    }

    fn admit(
        self,
        count: u32,
        mut children: Children,
        setup: &Setup,
        watcher: &Watcher<'_>,
        until: Option<Instant>,
    ) -> anyhow::Result<Drivers> {
        let (sender, events) = mpsc::channel();
        let mut drivers: Vec<Driver> = Vec::new();
        while drivers.len() < count as usize {
            watcher.check()?;
            children.check()?;
            if until.is_some_and(|until| Instant::now() > until) {
                bail!("the drivers do not come to the gate");
            }
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    std::thread::sleep(GLANCE);
                    continue;
                }
                Err(error) => return Err(error).context("drivers cannot be awaited"),
            };
            stream.set_nonblocking(false)?;
            stream.set_read_timeout(Some(FIRST_WORD))?;
            let (mouth, mut ear) = talk(stream)?;
            // Whoever else has found the port is sent away.
            let Ok(Some(ToSupervisor::Hello { version, name, .. })) = ear.hear() else {
                (watcher.note)("somebody who is no driver came to the gate");
                continue;
            };
            if version != VERSION {
                bail!("{name} is of another version: take the same tidewater everywhere");
            }
            ear.wait_for_ever()?;
            let number = drivers.len();
            let setup = Setup {
                driver: number as u32,
                drivers: count,
                ..setup.clone()
            };
            mouth.say(&ToDriver::Setup(setup))?;
            let started = children.take(&name);
            let name = name.escape_debug().to_string();
            if started.is_none() {
                (watcher.note)(&format!("{name} is there ({} of {count})", number + 1));
            }
            listen(number, ear, sender.clone());
            drivers.push(Driver {
                name,
                mouth,
                started,
                heard: Instant::now(),
            });
        }
        Ok(Drivers { drivers, events })
    }
}

fn listen(number: usize, mut ear: Ear, events: Sender<(usize, Event)>) {
    std::thread::spawn(move || {
        let gone = loop {
            match ear.hear() {
                Ok(Some(word)) => {
                    if events.send((number, Event::Heard(word))).is_err() {
                        return;
                    }
                }
                Ok(None) => break "it has hung up".to_owned(),
                Err(error) => break format!("{error:#}"),
            }
        };
        // Nobody waits any more when the bench is over.
        let _ = events.send((number, Event::Gone(gone)));
    });
}

/// Drivers of this machine that are not at the gate yet; they end with it.
struct Children(Vec<Option<DriverProcess>>);

/// A driver of this machine.
struct DriverProcess {
    child: Child,
    /// What it says when it dies.
    log: PathBuf,
}

impl Children {
    fn check(&mut self) -> anyhow::Result<()> {
        for (number, child) in self.0.iter_mut().enumerate() {
            if let Some(started) = child
                && let Some(status) = started.child.try_wait()?
            {
                let words = last_words(&started.log);
                bail!(
                    "driver {} died before it began: {status}; {words}",
                    number + 1
                );
            }
        }
        Ok(())
    }

    fn take(&mut self, name: &str) -> Option<DriverProcess> {
        let number: usize = name.strip_prefix("driver ")?.parse().ok()?;
        self.0.get_mut(number.checked_sub(1)?)?.take()
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for started in self.0.iter_mut().flatten() {
            // It may have ended already.
            let _ = started.child.kill();
            let _ = started.child.wait();
        }
    }
}

/// What happens between two gates of a step.
pub(crate) trait Between {
    /// All remotes wait at the gate.
    fn ready(&mut self) -> anyhow::Result<()>;

    /// Looked at now and then while they are at it.
    fn check(&mut self) -> anyhow::Result<()>;
}

impl Drivers {
    pub(crate) fn count(&self) -> usize {
        self.drivers.len()
    }

    /// Leads all drivers through a step.
    pub(crate) fn step(
        &mut self,
        step: &GateStep,
        between: &mut dyn Between,
        watcher: &Watcher<'_>,
    ) -> anyhow::Result<Vec<StepReport>> {
        self.say(&ToDriver::Prepare(step.clone()))?;
        self.hear_all(between, watcher, |word| match word {
            ToSupervisor::Ready => Some(()),
            _ => None,
        })?;
        between.ready()?;
        self.say(&ToDriver::Go)?;
        self.hear_all(between, watcher, |word| match word {
            ToSupervisor::Done(report) => Some(report),
            _ => None,
        })
    }

    fn say(&mut self, word: &ToDriver) -> anyhow::Result<()> {
        for driver in &mut self.drivers {
            let said = driver.mouth.say(word);
            said.with_context(|| format!("{} has gone away", driver.name))?;
        }
        Ok(())
    }

    /// Waits until every driver has said what is expected of it.
    fn hear_all<T>(
        &mut self,
        between: &mut dyn Between,
        watcher: &Watcher<'_>,
        expected: impl Fn(ToSupervisor) -> Option<T>,
    ) -> anyhow::Result<Vec<T>> {
        let mut said: Vec<Option<T>> = self.drivers.iter().map(|_| None).collect();
        while said.iter().any(Option::is_none) {
            watcher.check()?;
            between.check()?;
            let (number, event) = match self.events.recv_timeout(TICK) {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout) => {
                    self.check_silence()?;
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => bail!("all drivers have gone away"),
            };
            let driver = &mut self.drivers[number];
            driver.heard = Instant::now();
            match event {
                Event::Heard(ToSupervisor::Alive) => {}
                Event::Heard(ToSupervisor::Failed { message, hint }) => {
                    let message = format!("{} failed: {message}", driver.name);
                    return Err(match hint {
                        Some(hint) => BadInput::error(message, hint),
                        None => anyhow::anyhow!(message),
                    });
                }
                Event::Heard(word) => match expected(word) {
                    Some(word) => said[number] = Some(word),
                    None => bail!("{} said something out of turn", driver.name),
                },
                Event::Gone(why) => bail!(driver.obituary(&why)),
            }
        }
        Ok(said.into_iter().flatten().collect())
    }

    fn check_silence(&self) -> anyhow::Result<()> {
        let silent = self.drivers.iter().find(|it| it.heard.elapsed() > SILENCE);
        match silent {
            Some(driver) => bail!(
                "{} has said nothing for {} seconds",
                driver.name,
                SILENCE.as_secs()
            ),
            None => Ok(()),
        }
    }

    /// Says goodbye, and waits until those of this machine have ended.
    pub(crate) fn dismiss(mut self) -> anyhow::Result<()> {
        self.say(&ToDriver::Bye)?;
        let until = Instant::now() + FAREWELL;
        for driver in &mut self.drivers {
            let Some(started) = &mut driver.started else {
                continue;
            };
            while started.child.try_wait()?.is_none() && Instant::now() < until {
                std::thread::sleep(GLANCE);
            }
        }
        Ok(())
    }
}

impl Drop for Drivers {
    fn drop(&mut self) {
        for driver in &mut self.drivers {
            // Without a goodbye, a driver takes this for the supervisor's end, and ends too.
            driver.mouth.hang_up();
            if let Some(DriverProcess { child, .. }) = &mut driver.started {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

impl Driver {
    fn obituary(&mut self, why: &str) -> String {
        let Some(started) = &mut self.started else {
            return format!("{} has gone away: {why}", self.name);
        };
        // It has closed its connection because it ends; how, is known in a moment.
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            match started.child.try_wait() {
                Ok(Some(status)) => {
                    let words = last_words(&started.log);
                    return format!("{} died: {status}; {words}", self.name);
                }
                Ok(None) => std::thread::sleep(GLANCE),
                Err(_) => break,
            }
        }
        format!("{} has gone away: {why}", self.name)
    }
}
