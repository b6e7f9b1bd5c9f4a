//! The real program in a folder of its own, with the servers that it runs.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::shop::password;

/// A folder in which the program runs; it goes with the test.
pub(crate) struct Place {
    folder: TempDir,
}

/// What a finished run left behind.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Place {
    pub(crate) fn new() -> Place {
        let folder = tempfile::tempdir().expect("a temporary folder");
        Place { folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("the folder can be written");
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).expect("the file can be read")
    }

    /// The program with these arguments, ready to run here.
    #[track_caller]
    pub(crate) fn command<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        require_separate_program(arguments.first().map(AsRef::as_ref));
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidewater"));
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env_remove("TIDEWATER_PASSWORD")
            .stdin(Stdio::null());
        command
    }

    /// Runs the program to its end.
    pub(crate) fn tidewater(&self, arguments: &[&str]) -> Run {
        Run::of(&mut self.command(arguments))
    }

    /// Runs the program to its end with text on its standard input.
    pub(crate) fn tidewater_with_input(&self, arguments: &[&str], input: &str) -> Run {
        fed(&mut self.command(arguments), input.as_bytes())
    }

    /// Runs the program to its end, with the password in the environment and bytes on its standard
    /// input.
    pub(crate) fn tidewater_fed(&self, password: &str, arguments: &[&str], input: &[u8]) -> Run {
        let mut command = self.command(arguments);
        fed(command.env("TIDEWATER_PASSWORD", password), input)
    }

    /// Runs the program to its end, with the password in the environment.
    pub(crate) fn tidewater_as(&self, password: &str, arguments: &[&str]) -> Run {
        Run::of(self.command(arguments).env("TIDEWATER_PASSWORD", password))
    }

    /// A user, with his password so far, takes another one.
    pub(crate) fn change_password(
        &self,
        (user, password): (&str, &str),
        url: &str,
        new_password: &str,
    ) -> Run {
        let mut command = self.command(&["change-password", "--server", url, "--user", user]);
        command.env("TIDEWATER_PASSWORD", password);
        Run::of(command.env("TIDEWATER_NEW_PASSWORD", new_password))
    }

    /// The first sync of a user's file, which has his name.
    pub(crate) fn first_sync(
        &self,
        user: &str,
        url: &str,
        publication: &str,
        more: &[&str],
    ) -> Run {
        self.first_sync_as((user, &password(user)), url, publication, more)
    }

    /// The first sync of a user's file, with a name and a password.
    pub(crate) fn first_sync_as(
        &self,
        (user, password): (&str, &str),
        url: &str,
        publication: &str,
        more: &[&str],
    ) -> Run {
        let file = format!("{user}.db");
        let mut arguments = vec!["sync", &file, "--server", url, "--user", user];
        arguments.extend(["--publication", publication]);
        arguments.extend(more);
        self.tidewater_as(password, &arguments)
    }

    /// Starts `tidewater serve`; returns when it listens.
    pub(crate) fn serve(&self, arguments: &[&str]) -> Server {
        self.serve_on("tcp://127.0.0.1:0", arguments)
    }

    /// Starts `tidewater serve` where the configuration says; returns when it listens.
    pub(crate) fn serve_as_configured(&self) -> Server {
        Server::start(self.command(&["serve"]))
    }

    /// Starts `tidewater relay`, which listens for devices at one address; returns when it listens.
    pub(crate) fn relay(&self, config: &str) -> Server {
        Server::start(self.command(&["relay", "-c", config]))
    }

    /// Starts `tidewater serve` on an address; returns when it listens.
    pub(crate) fn serve_on(&self, url: &str, arguments: &[&str]) -> Server {
        let mut all = vec!["serve", "--listen", url];
        all.extend(arguments);
        Server::start(self.command(&all))
    }
}

/// Cargo builds the programs of other packages only where it is told to.
#[track_caller]
fn require_separate_program(command: Option<&OsStr>) {
    let command = command.and_then(OsStr::to_str).unwrap_or_default();
    if ["bench", "simulate"].contains(&command) {
        let own = Path::new(env!("CARGO_BIN_EXE_tidewater"));
        let program = own.with_file_name(format!("tidewater-{command}"));
        assert!(
            program.is_file(),
            "{} has not been built: cargo build --workspace --bins",
            program.display()
        );
    }
}

fn fed(command: &mut Command, input: &[u8]) -> Run {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("standard input is piped");
    // A program that refuses its arguments does not read.
    let _ = stdin.write_all(input);
    drop(stdin);
    let output = child.wait_with_output().expect("the program ends");
    Run::from(output)
}

impl Run {
    pub(crate) fn of(command: &mut Command) -> Run {
        command.output().expect("the program runs").into()
    }

    /// Fails the test with everything that was printed, unless the exit code is as expected.
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Run {
        assert_eq!(self.code, code, "{self:#?}");
        self
    }

    /// Everything was done.
    #[track_caller]
    pub(crate) fn done(self) -> Run {
        self.exits(0)
    }

    /// The one JSON object on standard output.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        let object: Value =
            serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:#?}"));
        assert!(object.is_object(), "{self:#?}");
        object
    }

    /// Standard error says all of this, in the form of an error.
    #[track_caller]
    pub(crate) fn tells(self, parts: &[&str]) -> Run {
        assert!(self.stderr.starts_with("error: "), "{self:#?}");
        for part in parts {
            assert!(self.stderr.contains(part), "{part:?} is not in {self:#?}");
        }
        self
    }
}

impl From<std::process::Output> for Run {
    fn from(output: std::process::Output) -> Run {
        Run {
            // Ended by a signal: no code that any test expects.
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// A running `tidewater serve` or `tidewater relay`; dropping it ends it.
pub(crate) struct Server {
    child: Child,
    stdout: BufReader<ChildStdout>,
    log: Option<JoinHandle<()>>,
    logged: Arc<Mutex<String>>,
    /// Where it listens, in the order of its `--listen` options.
    pub(crate) urls: Vec<String>,
}

impl Server {
    fn start(mut command: Command) -> Server {
        // A configuration without the option names one address here.
        let listeners = command
            .get_args()
            .filter(|it| *it == "--listen")
            .count()
            .max(1);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let stdout = child.stdout.take().expect("standard output is piped");
        let stderr = child.stderr.take().expect("standard error is piped");
        let logged = Arc::<Mutex<String>>::default();
        let into = logged.clone();
        let mut server = Server {
            child,
            stdout: BufReader::new(stdout),
            log: Some(std::thread::spawn(move || read_all(stderr, &into))),
            logged,
            urls: Vec::new(),
        };
        for _ in 0..listeners {
            let mut line = String::new();
            let read = server.stdout.read_line(&mut line);
            match line.trim_end().strip_prefix("listening on ") {
                Some(url) if read.is_ok() => server.urls.push(url.to_owned()),
                _ => panic!("the server did not start: {line:?}\n{}", server.stop()),
            }
        }
        server
    }

    /// The address of the first listener.
    pub(crate) fn url(&self) -> &str {
        &self.urls[0]
    }

    /// Waits until its log says this: a line is read a moment after it is written.
    pub(crate) fn logs(&self, part: &str) {
        let logged = || self.logged.lock().expect("nobody panics").contains(part);
        until(part, logged);
    }

    /// The process's number.
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// What it has logged so far.
    pub(crate) fn log(&self) -> String {
        self.logged.lock().expect("nobody panics").clone()
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let kill = Command::new("kill")
            .args([&format!("-{name}"), &pid])
            .status();
        assert!(
            kill.is_ok_and(|status| status.success()),
            "kill -{name} {pid}"
        );
    }

    /// Asks the server to end, as a service manager does, and returns its log.
    pub(crate) fn terminate(mut self) -> (i32, String) {
        self.signal("TERM");
        let status = self.child.wait().expect("the server ends");
        (status.code().unwrap_or(-1), self.stop())
    }

    /// Ends the process, however it stands, and returns its log.
    fn stop(&mut self) -> String {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(log) = self.log.take() {
            let _ = log.join();
        }
        self.logged.lock().expect("nobody panics").clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let log = self.stop();
        if std::thread::panicking() {
            eprintln!("--- the server's log\n{log}");
        }
    }
}

/// Tries until it is so; half a minute is for a machine that is busy.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let mut tries = 0..1_500;
    while !is_so() {
        assert!(tries.next().is_some(), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn read_all(stderr: ChildStderr, into: &Mutex<String>) {
    let mut stderr = BufReader::new(stderr);
    let mut line = Vec::new();
    while stderr
        .read_until(b'\n', &mut line)
        .is_ok_and(|read| read > 0)
    {
        let text = String::from_utf8_lossy(&line);
        into.lock().expect("nobody panics").push_str(&text);
        line.clear();
    }
}

/// An address that no other test gets, for a server that comes back to it.
pub(crate) fn free_url() -> String {
    let port = tidewater_testing::claim_port().expect("a port is free");
    format!("tcp://127.0.0.1:{port}")
}

/// A connection of an application to an SQLite file.
pub(crate) fn sqlite(path: &Path) -> rusqlite::Connection {
    let connection = rusqlite::Connection::open(path).expect("the file opens");
    connection
        .busy_timeout(std::time::Duration::from_secs(10))
        .expect("a timeout can be set");
    connection
        .pragma_update(None, "foreign_keys", true)
        .expect("foreign keys can be switched on");
    connection
}
