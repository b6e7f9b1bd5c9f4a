//! The handlers of `examples/handlers`, each in its language, run as programs of their own.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tidewater_protocol::Code;

use crate::backend::Sqlite;
use crate::scenario::Scenario;
use crate::signing_in::Stranger;
use crate::world::{LiveServer, World};

/// A handler that runs until this is dropped.
struct Program {
    child: Child,
    url: String,
    _folder: tempfile::TempDir,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn example(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/handlers");
    root.join(name)
}

impl Program {
    /// Starts one, which says where it listens.
    fn start(command: impl FnOnce(&Path) -> Command) -> Program {
        let folder = tempfile::tempdir().unwrap();
        let mut command = command(folder.path());
        let command = command
            .env("PORT", "0")
            .env("HANDLER_SECRETS", "the new one,the old one");
        let started = command.stdout(Stdio::piped()).spawn();
        let mut child = started.unwrap_or_else(|error| {
            panic!("{command:?}: {error}: scripts/test.sh installs what is missing")
        });
        let mut line = String::new();
        let output = child.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listening on ");
        Program {
            url: url.unwrap_or_else(|| panic!("{line}")).to_owned(),
            child,
            _folder: folder,
        }
    }
}

fn config(handler: &Program, secret: &str) -> String {
    let handler = format!("{{ url = {:?}, secret = {secret:?} }}", handler.url);
    format!(
        r#"
[sign_in]
passwords = "handler"
create_users = true
handler = {handler}

[[publication]]
name = "main"
handler = {handler}

[[publication.table]]
name = "orders"
partition = "everyone"
handler = {handler}
conflict = {{ resolve = "handler" }}

[[publication.table]]
name = "note"
partition = "everyone"
handler = {handler}
upload = "handler"
download = "handler"
"#
    )
}

fn signed_in(server: &LiveServer) -> (Stranger, rusqlite::Connection) {
    let mut stranger = Stranger::named("anna", server);
    stranger.remote.set_password("annas password");
    stranger.try_sync().unwrap();
    let application = rusqlite::Connection::open(&stranger.path).unwrap();
    (stranger, application)
}

fn rows(application: &rusqlite::Connection, sql: &str) -> Vec<String> {
    let mut statement = application.prepare(sql).unwrap();
    let rows = statement.query_map([], |row| row.get(0)).unwrap();
    rows.map(Result::unwrap).collect()
}

/// What examples/handlers/README.md says that all of them do.
fn does_what_it_says(program: &Program) {
    let scenario = Scenario {
        schema: "CREATE TABLE orders (id INTEGER NOT NULL PRIMARY KEY, quantity INTEGER NOT NULL);
                 CREATE TABLE note (id INTEGER NOT NULL PRIMARY KEY, text TEXT NOT NULL);
                 INSERT INTO orders VALUES (1, 10);"
            .to_owned(),
        publication: "[[publication]]\nname = \"main\"\n[[publication.table]]\nname = \"orders\"\n\
                      partition = \"everyone\"\n",
        tables: &[],
        users: &[],
        limits: "",
    };
    let mut world = World::<Sqlite>::open(scenario);
    world.republish(&config(program, "the old one"));
    let (mut anna, application) = signed_in(&world.server);
    let (mut other, others) = signed_in(&world.server);
    application
        .execute_batch(
            "INSERT INTO orders VALUES (2, 0), (3, 500), (4, 4);
             INSERT INTO note VALUES (1, 'one'), (2, 'two');
             UPDATE orders SET quantity = 30 WHERE id = 1;",
        )
        .unwrap();
    world.execute("UPDATE orders SET quantity = 20 WHERE id = 1");
    anna.try_sync().unwrap();
    let orders = ["1|30", "3|100", "4|4"];
    assert_eq!(
        world.rows("SELECT id, quantity FROM orders ORDER BY id"),
        orders
    );
    let refused = anna.remote.refused().unwrap();
    assert_eq!(refused.len(), 1);
    assert_eq!(refused[0].reason, "an order has a quantity of at least 1");
    assert_eq!(world.rows("SELECT id FROM note"), [""; 0]);
    other.try_sync().unwrap();
    let notes = "SELECT id || ' ' || text FROM note ORDER BY id";
    assert_eq!(rows(&others, notes), ["1 one", "2 two"]);
    let changes = "UPDATE note SET text = 'more' WHERE id = 1; DELETE FROM note WHERE id = 2";
    others.execute_batch(changes).unwrap();
    other.try_sync().unwrap();
    anna.try_sync().unwrap();
    assert_eq!(rows(&application, notes), ["1 more"]);

    let mut stranger = Stranger::named("anna", &world.server);
    stranger.remote.set_password("another");
    assert_eq!(stranger.try_sync().unwrap_err().code(), Code::WrongPassword);
    // Whoever does not know a secret is told nothing.
    world.republish(&config(program, "no secret of its"));
    let mut stranger = Stranger::named("anna", &world.server);
    stranger.remote.set_password("annas password");
    assert_eq!(stranger.try_sync().unwrap_err().code(), Code::HandlerFailed);
}

#[test]
fn the_handler_in_python_does_what_it_says() {
    does_what_it_says(&Program::start(|_| {
        let mut command = Command::new("python3");
        command.arg(example("python/handler.py"));
        command
    }));
}

#[test]
fn the_handler_in_javascript_does_what_it_says() {
    does_what_it_says(&Program::start(|_| {
        let mut command = Command::new("node");
        command.arg(example("javascript/handler.mjs"));
        command
    }));
}

#[test]
fn the_handler_in_go_does_what_it_says() {
    does_what_it_says(&Program::start(|folder| {
        let program = folder.join("handler");
        let built = Command::new("go")
            .args(["build", "-o"])
            .arg(&program)
            .current_dir(example("go"))
            .env("GOTOOLCHAIN", "local")
            .status();
        let built = built.expect("there is Go: scripts/test.sh installs it");
        assert!(built.success());
        Command::new(program)
    }));
}
