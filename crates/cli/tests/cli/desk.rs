//! A folder in which the examples of a document are run, on ports that are free.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::program::{Place, free_url};

/// How often it is looked for what is printed, and how many times: long enough for whatever has to
/// happen.
const GLANCE: Duration = Duration::from_millis(20);
const GLANCES: usize = 3_000;

/// A folder in which the examples work.
pub(crate) struct Desk {
    pub(crate) place: Place,
    /// What stands in the manual, and what is used in its place.
    instead: Vec<(&'static str, String)>,
}

/// A block that runs. To drop it is to end it, with whatever it has left behind.
pub(crate) struct Started<'a> {
    desk: &'a Desk,
    shell: Child,
    output: String,
}

impl Desk {
    pub(crate) fn new() -> Desk {
        let port = |url: String| url.rsplit(':').next().unwrap_or_default().to_owned();
        let handler = port(free_url());
        Desk {
            place: Place::new(),
            instead: vec![
                (":7439", format!(":{}", port(free_url()))),
                (":7441", format!(":{}", port(free_url()))),
                (":8080", format!(":{handler}")),
                ("PORT=8080", format!("PORT={handler}")),
            ],
        }
    }

    /// A text of the manual, as it is used here.
    pub(crate) fn text(&self, text: &str) -> String {
        let instead = self.instead.iter();
        instead.fold(text.to_owned(), |text, (manual, here)| {
            text.replace(manual, here)
        })
    }

    /// Runs a block as a shell would, and gives what it prints.
    pub(crate) fn run(&self, block: &str) -> String {
        let mut started = self.shell("output", block, Stdio::inherit());
        let run = started.shell.wait().expect("it ends");
        assert!(run.success(), "{block}");
        self.place.read("output").trim().to_owned()
    }

    /// Starts a block, as in a terminal of its own.
    pub(crate) fn start(&self, block: &str) -> Started<'_> {
        let errors = File::create(self.place.path("errors")).unwrap();
        self.shell("terminal", block, errors.into())
    }

    fn shell(&self, output: &str, block: &str, errors: Stdio) -> Started<'_> {
        let program = std::path::Path::new(env!("CARGO_BIN_EXE_tidewater"));
        let known = std::env::var("PATH").unwrap_or_default();
        let folder = program.parent().unwrap().display();
        // What a block leaves in the background would hold a pipe open.
        let file = File::create(self.place.path(output)).unwrap();
        let shell = Command::new("sh")
            .args(["-e", "-c", &self.text(block)])
            .process_group(0)
            .current_dir(self.place.path(""))
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors)
            .env("PATH", format!("{folder}:{known}"))
            .env("TIDEWATER_PASSWORD", "annas password")
            .spawn()
            .expect("sh runs");
        Started {
            desk: self,
            shell,
            output: output.to_owned(),
        }
    }
}

impl Started<'_> {
    /// Waits until it has printed this, or said it on standard error.
    #[track_caller]
    pub(crate) fn prints(&self, text: &str) {
        for _ in 0..GLANCES {
            let files = [self.output.as_str(), "errors"];
            let mut printed = files.map(|it| self.desk.place.read(it)).into_iter();
            if printed.any(|it| it.contains(text)) {
                return;
            }
            thread::sleep(GLANCE);
        }
        panic!(
            "{text:?} is not in {:?}",
            self.desk.place.read(&self.output)
        );
    }
}

impl Drop for Started<'_> {
    fn drop(&mut self) {
        let group = format!("-{}", self.shell.id());
        let killed = Command::new("kill")
            .args(["-KILL", "--", &group])
            .stderr(Stdio::null())
            .status();
        killed.expect("kill runs");
        let _ = self.shell.wait();
    }
}
