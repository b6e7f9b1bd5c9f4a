//! `tidewater demo`: the main job from end to end, on one machine, with nothing
//! installed.
//!
//! Owns the story and how it is told. The tables and edits are [`world`]'s, what needs no
//! sync is [`live`]'s, the proof at the end is [`compare`]'s; everything else is what a user would have: a
//! configuration file, a server, remotes.

mod compare;
mod live;
mod world;

use std::fs;
use std::net::TcpListener;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use tokio::runtime::Runtime;

use tidewater_centre::Centre;
use tidewater_centre::records::{ProvenIdentity, UserRecord};
use tidewater_client::{Remote, Report};
use tidewater_protocol::Code;
use tidewater_server::{Config, Environment, RunningServer, Server, hash_password};
use tidewater_terminal::output::{self, TextTable};
use tidewater_terminal::{CommandOutcome, Failure, with_exit_codes};

use world::{TECHNICIANS, Technician};

/// Show five remotes and an SQLite centre in two-way sync
///
/// Makes a folder with a central database, a configuration and five remotes, starts a
/// server, edits on both sides, syncs, shows what moved; calls, publishes, and has a change
/// arrive by itself; and compares everything at the end, row for row. The folder stays; nothing
/// keeps running.
#[derive(Debug, clap::Args)]
#[command(after_help = with_exit_codes!("\
Examples:
  tidewater demo
  tidewater demo --directory /tmp/demo"))]
pub(crate) struct DemoArgs {
    /// The folder to make; one that an earlier demonstration made is replaced
    #[arg(long, value_name = "DIR", default_value = "tidewater-demo")]
    directory: PathBuf,
}

/// Tells the story.
pub(crate) fn run(args: &DemoArgs) -> Result<CommandOutcome, Failure> {
    let started_ms = Environment::real().clock.now_ms();
    let stage = Stage::build(&args.directory)?;
    let mut centre = open(&stage.centre_path())?;

    heading("First sync: every technician gets her regions, and the products");
    stage.sync_all()?;

    heading("A day's work: technicians offline, the office in the centre");
    for (index, technician) in TECHNICIANS.iter().enumerate() {
        let mut remote = open(&stage.remote_path(technician))?;
        let first_id = 100_000 * (index as i64 + 1);
        world::work_offline(&mut remote, technician.regions[0], first_id).map_err(database)?;
    }
    world::work_in_the_office(&mut centre).map_err(database)?;
    world::edit_contested(&centre, "changed by the office").map_err(database)?;
    let anna = open(&stage.remote_path(&TECHNICIANS[0]))?;
    world::edit_contested(&anna, "changed by anna").map_err(database)?;
    let dara = open(&stage.remote_path(&TECHNICIANS[3]))?;
    world::use_impossible_part(&dara).map_err(database)?;
    say("every remote:  3 orders with a part inserted, 20 updated, 2 deleted with their parts");
    say("the office:    a price changed, orders inserted and deleted, one moved north -> south");
    say("both at once:  anna and the office changed the note of order 10050");
    say("a mistake:     dara entered a quantity of -5, which the centre's CHECK forbids");

    heading("Second sync: up and down in one go");
    stage.sync_all()?;
    let note: String = anna
        .query_row(
            "SELECT note FROM work_order WHERE order_id = ?",
            [world::CONTESTED_ORDER],
            |row| row.get(0),
        )
        .map_err(database)?;
    say(&format!(
        "the conflict: first come, first served. anna's file now says {note:?};"
    ));
    say("              both versions are kept in the centre's conflicts table");
    for refused in Remote::open(stage.remote_path(&TECHNICIANS[3]))?.refused()? {
        say(&format!(
            "refused:      {} {}: {}",
            refused.table, refused.key, refused.reason
        ));
    }

    heading("dara corrects her mistake; a last sync brings everybody everybody's work");
    dara.execute("UPDATE part_used SET quantity = 5 WHERE quantity = -5", [])
        .map_err(database)?;
    stage.sync_all()?;

    heading("Connected: a price asked, an event heard, a change that comes by itself");
    live::show(&stage, &centre)?;

    heading("Comparison, row for row");
    let different = stage.compare(&centre)?;
    drop((anna, dara, centre));
    stage.stop();
    if different > 0 {
        return Err(Failure::new(
            Code::Internal,
            format!("{different} rows differ"),
            format!(
                "please report this with the folder {}",
                args.directory.display()
            ),
        ));
    }
    let elapsed_ms = Environment::real().clock.now_ms() - started_ms;
    let elapsed = output::duration(elapsed_ms.unsigned_abs());
    say(&format!("all equal, {elapsed} in all"));
    farewell(&args.directory)?;
    Ok(CommandOutcome::Complete)
}

/// What stands on the stage: the folder, and the server that runs.
struct Stage {
    directory: PathBuf,
    runtime: Runtime,
    running: RunningServer,
    url: String,
}

impl Stage {
    fn build(directory: &Path) -> Result<Stage, Failure> {
        clear(directory)?;
        fs::create_dir_all(directory)
            .map_err(|error| Failure::file("make the folder", directory, &error))?;
        // The commands that the demonstration ends with start in another folder, perhaps.
        let directory = directory
            .canonicalize()
            .map_err(|error| Failure::file("find", directory, &error))?;
        let centre_path = directory.join("centre.db");
        let listen = format!("tcp://127.0.0.1:{}", free_port()?);
        let configuration_path = directory.join(CONFIGURATION);
        fs::write(
            &configuration_path,
            world::configuration(&listen, &centre_path),
        )
        .map_err(|error| Failure::file("write", &configuration_path, &error))?;
        world::create(&mut open(&centre_path)?).map_err(database)?;

        let config = Config::load(&configuration_path)?;
        let runtime = Runtime::new()
            .map_err(|error| Failure::new(Code::Internal, format!("cannot start: {error}"), ""))?;
        let environment = Environment::real();
        let running = runtime.block_on(async {
            let centre = tidewater_server::databases::connect(&config.server.consolidated).await?;
            prepare(&*centre, &config, &environment).await?;
            Server::start(config, centre, environment)
                .await
                .map_err(Failure::from)
        })?;
        heading("A server on an embedded SQLite centre");
        say(&format!(
            "listening on {listen}, serving {}",
            configuration_path.display()
        ));
        Ok(Stage {
            directory,
            runtime,
            running,
            url: listen,
        })
    }

    fn centre_path(&self) -> PathBuf {
        self.directory.join("centre.db")
    }

    fn remote_path(&self, technician: &Technician) -> PathBuf {
        self.directory.join(format!("{}.db", technician.login))
    }

    /// Syncs every remote once and prints what moved.
    fn sync_all(&self) -> Result<(), Failure> {
        let mut table = TextTable::new(&[
            "remote",
            ">inserted",
            ">updated",
            ">deleted",
            ">downloaded",
            ">removed",
            ">conflicts",
            ">refused",
            ">bytes",
            ">time",
        ]);
        for technician in &TECHNICIANS {
            let report = self.sync(technician)?;
            let counts = [
                report.uploaded.inserts,
                report.uploaded.updates,
                report.uploaded.deletes,
                report.downloaded.upserts,
                report.downloaded.removals,
                report.conflicts,
                report.refused,
            ];
            let mut row = vec![technician.login.to_owned()];
            row.extend(counts.map(|count| count.to_string()));
            row.push(output::bytes(report.bytes_sent + report.bytes_received));
            row.push(output::duration(report.duration_ms));
            table.row(row);
        }
        output::text(&table.render(2))
    }

    fn remote(&self, technician: &Technician) -> Result<Remote, Failure> {
        let mut remote = Remote::open(self.remote_path(technician))?;
        remote.subscribe(&self.url, technician.login, &["service"])?;
        remote.set_password(world::PASSWORD);
        Ok(remote)
    }

    /// A remote that has synced and stays connected.
    fn connect(&self, technician: &Technician) -> Result<Remote, Failure> {
        let mut remote = self.remote(technician)?;
        remote.set_keep_connected(true);
        remote.sync(&mut |_| ControlFlow::Continue(()))?;
        Ok(remote)
    }

    fn sync(&self, technician: &Technician) -> Result<Report, Failure> {
        let mut remote = self.remote(technician)?;
        let spinner = indicatif::ProgressBar::new_spinner();
        let report = remote.sync(&mut |progress| {
            let table = progress.table.as_deref().unwrap_or_default();
            let rows = progress.rows;
            spinner.set_message(format!("{}: {table} {rows}", technician.login));
            spinner.tick();
            ControlFlow::Continue(())
        });
        spinner.finish_and_clear();
        Ok(report?)
    }

    /// Compares every remote with the centre; returns how many rows differ.
    fn compare(&self, centre: &Connection) -> Result<usize, Failure> {
        let mut table = TextTable::new(&["remote", "regions", ">equal rows", ">different"]);
        let mut different = Vec::new();
        for technician in &TECHNICIANS {
            let remote = open(&self.remote_path(technician))?;
            let comparison = compare::compare(centre, &remote, technician).map_err(database)?;
            table.row([
                technician.login.to_owned(),
                technician.regions.join(", "),
                comparison.equal.to_string(),
                comparison.different.len().to_string(),
            ]);
            different.extend(comparison.different);
        }
        output::text(&table.render(2))?;
        different.iter().take(20).for_each(|row| say(row));
        Ok(different.len())
    }

    fn stop(self) {
        self.runtime.block_on(self.running.shutdown());
    }
}

/// What `tidewater deploy` and `tidewater user add` do.
async fn prepare(
    centre: &dyn Centre,
    config: &Config,
    environment: &Environment,
) -> Result<(), Failure> {
    let now_ms = environment.clock.now_ms();
    centre.deploy(&config.publications, false, now_ms).await?;
    let password_hash = hash_password(environment, world::PASSWORD)?;
    for technician in &TECHNICIANS {
        let user = UserRecord {
            name: technician.login.into(),
            password_hash: password_hash.clone(),
            disabled: false,
            created_ms: now_ms,
            proven: ProvenIdentity::default(),
        };
        centre.add_user(&user).await?;
    }
    Ok(())
}

const CONFIGURATION: &str = "tidewater.toml";

/// Makes way: removes the folder of an earlier demonstration, and nothing else.
fn clear(directory: &Path) -> Result<(), Failure> {
    if !directory.exists() {
        return Ok(());
    }
    let configuration = fs::read_to_string(directory.join(CONFIGURATION)).unwrap_or_default();
    let is_empty = fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_none());
    if !is_empty && !configuration.starts_with("# The configuration of the demonstration.") {
        return Err(Failure::usage(
            format!(
                "{} exists, and no demonstration made it",
                directory.display()
            ),
            "name another folder with --directory",
        ));
    }
    fs::remove_dir_all(directory).map_err(|error| Failure::file("remove", directory, &error))
}

/// The default port if nobody has it, so that the URLs look as in the documents.
fn free_port() -> Result<u16, Failure> {
    let listener = TcpListener::bind(("127.0.0.1", tidewater_carrier::DEFAULT_PORT))
        .or_else(|_| TcpListener::bind(("127.0.0.1", 0)));
    let address = listener.and_then(|listener| listener.local_addr());
    let address = address.map_err(|error| {
        Failure::new(
            Code::Internal,
            format!("no free port on 127.0.0.1: {error}"),
            "",
        )
    })?;
    Ok(address.port())
}

fn open(path: &Path) -> Result<Connection, Failure> {
    Connection::open(path).map_err(database)
}

fn database(error: rusqlite::Error) -> Failure {
    Failure::new(
        Code::RemoteDatabase,
        format!("the demonstration's own SQL failed: {error}"),
        "",
    )
}

fn heading(text: &str) {
    say_line(&format!("\n{text}\n"));
}

fn say(text: &str) {
    say_line(&format!("  {}\n", output::printable(text)));
}

/// Nobody is left to tell when standard output is gone; the syncs still matter.
fn say_line(text: &str) {
    let _ = output::text(text);
}

/// Where everything is, and what to try next.
fn farewell(directory: &Path) -> Result<(), Failure> {
    let folder = directory.display();
    let program = std::env::current_exe();
    let program = program.map_or("tidewater".to_owned(), |path| path.display().to_string());
    output::text(&format!(
        "\nEverything is in {folder}: centre.db, tidewater.toml, and a file for each of \
         anna, bela, chen, dara and eli (password: {}).\n\
         Try next, the first two in terminals of their own:\n\n\
         \x20 {program} serve -c {folder}/tidewater.toml\n\
         \x20 {program} live {folder}/anna.db\n\
         \x20 {program} status {folder}/anna.db\n",
        world::PASSWORD,
    ))
}
