//! Rows that go up a second time, with the program: what a handler refused goes past the handler once
//! more (interleavings 35 and 36), and a row that met another one gets a new key.

use crate::desk::Desk;

/// A handler of a table that lives with it: it refuses notes without a text as long as the file
/// `strict` is there, and tells what it has taken.
const HANDLER: &str = r#"
import json, os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

notes, answered = {}, {}

def judge(row):
    key = row["idempotency_key"]
    if key not in answered:
        if os.path.exists("strict") and not row["new"]["body"]:
            answered[key] = {"verdict": "refuse", "reason": "a note has a text"}
        else:
            notes[row["new"]["id"]] = row["new"]
            answered[key] = {"verdict": "handled"}
    return {"idempotency_key": key, **answered[key]}

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if request["event"] == "upload":
            answer = {"rows": [judge(row) for row in request["rows"]]}
        else:
            answer = {"rows": list(notes.values()), "removed": [], "cursor": 1, "more": False}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler)
print("listening on", server.server_port, flush=True)
server.serve_forever()
"#;

const CONFIGURATION: &str = r#"
[server]
listen = ["tcp://127.0.0.1:7439"]
consolidated = "sqlite:shop.db"

[[publication]]
name = "main"

[[publication.table]]
name = "note"
partition = "everyone"
handler = "http://127.0.0.1:8080/"
upload = "handler"
download = "handler"
"#;

/// Interleaving 36.
#[test]
fn a_row_that_its_handler_refuses_is_never_settled_behind_its_back() {
    let desk = Desk::new();
    desk.place.write("handler.py", HANDLER);
    desk.place.write("strict", "");
    let handler = desk.start("PORT=8080 python3 handler.py");
    handler.prints("listening on");
    desk.place
        .write("tidewater.toml", &desk.text(CONFIGURATION));
    desk.run(
        "sqlite3 shop.db 'CREATE TABLE note (id INTEGER NOT NULL PRIMARY KEY, body TEXT NOT NULL)'
         tidewater deploy
         echo 'annas password' | tidewater user add anna --password-stdin",
    );
    let _server = desk.place.serve_as_configured();
    desk.run(
        "tidewater sync anna.db --server tcp://127.0.0.1:7439 --user anna --publication main
         sqlite3 anna.db \"INSERT INTO note VALUES (1, ''), (2, 'two')\"
         tidewater sync anna.db || test $? = 6",
    );
    let listed = desk.run("tidewater refused list anna.db");
    assert!(listed.contains("a note has a text"), "{listed}");
    let told = desk.run("tidewater refused replay --all 2>&1 || echo \"exit code $?\"");
    assert!(told.contains("a note has a text"), "{told}");
    assert!(told.contains("exit code"), "{told}");
    let there = "sqlite3 shop.db 'SELECT count(*) FROM note'; sqlite3 anna.db 'SELECT id FROM note ORDER BY id'";
    assert_eq!(desk.run(there), "0\n1\n2");
    assert!(desk.run("tidewater refused list --open").contains("[1]"));
    // With a text, the handler takes it, and gives it to everybody.
    let told = desk.run("tidewater refused edit 1 --set body=one 2>&1");
    assert!(told.contains("is edited"), "{told}");
    desk.run(
        "tidewater sync anna.db
         tidewater sync berta.db --server tcp://127.0.0.1:7439 --user anna --publication main",
    );
    let notes = "SELECT id || body FROM note ORDER BY id";
    for file in ["anna.db", "berta.db"] {
        let rows = desk.run(&format!("sqlite3 {file} \"{notes}\""));
        assert_eq!(rows, "1one\n2two", "{file}");
    }
    assert_eq!(desk.run("sqlite3 shop.db 'SELECT count(*) FROM note'"), "0");
    let listed = desk.run("tidewater refused list anna.db");
    assert!(listed.contains("edited"), "{listed}");
    // Without its handler nothing is written, and nothing is settled.
    desk.run(
        "sqlite3 anna.db \"INSERT INTO note VALUES (3, '')\"
         tidewater sync anna.db || test $? = 6",
    );
    drop(handler);
    let told = desk.run("tidewater refused replay --all 2>&1 || echo \"exit code $?\"");
    assert!(
        told.contains("is away") && told.contains("exit code"),
        "{told}"
    );
    assert_eq!(desk.run(there), "0\n1\n2\n3");
}

#[test]
fn an_order_that_met_another_is_given_a_new_key_with_its_lines() {
    let desk = Desk::new();
    let configuration = r#"
[server]
listen = ["tcp://127.0.0.1:7439"]
consolidated = "sqlite:shop.db"

[[publication]]
name = "main"

[[publication.table]]
name = "orders"
partition = "everyone"
identity = { column = "id" }

[[publication.table]]
name = "line"
partition = { follows = "orders" }

[[publication.table]]
name = "tag"
partition = "everyone"
"#;
    desk.place
        .write("tidewater.toml", &desk.text(configuration));
    desk.run(
        "sqlite3 shop.db '
         CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT NOT NULL);
         CREATE TABLE line (order_id INTEGER NOT NULL REFERENCES orders, product TEXT NOT NULL,
           PRIMARY KEY (order_id, product));
         CREATE INDEX line_order ON line (order_id);
         CREATE TABLE tag (name TEXT NOT NULL PRIMARY KEY, color TEXT)'
         tidewater deploy
         echo 'annas password' | tidewater user add anna --password-stdin",
    );
    let _server = desk.place.serve_as_configured();
    desk.run(
        "for file in anna berta; do
           tidewater sync $file.db --server tcp://127.0.0.1:7439 --user anna --publication main
         done
         sqlite3 anna.db \"INSERT INTO orders VALUES (7, 'Nora'); INSERT INTO line VALUES (7, 'apples');
           INSERT INTO tag VALUES ('new', 'red')\"
         sqlite3 berta.db \"INSERT INTO orders VALUES (7, 'Sven'); INSERT INTO line VALUES (7, 'bananas');
           INSERT INTO tag VALUES ('new', 'blue')\"
         tidewater sync anna.db
         tidewater sync berta.db || test $? = 6",
    );
    let lines =
        "SELECT customer || ' ' || product FROM line JOIN orders ON id = order_id ORDER BY 1";
    assert_eq!(
        desk.run(&format!("sqlite3 berta.db \"{lines}\"")),
        "Sven bananas"
    );
    let listed = desk.run("tidewater refused list berta.db");
    assert!(listed.contains("give this one a new key"), "{listed}");
    let told = desk.run("tidewater refused retry berta.db 1 --new-key 2>&1");
    assert!(told.contains("has the key ["), "{told}");
    let listed = desk.run("tidewater conflicts list berta.db");
    assert!(listed.contains("--new-key"), "{listed}");
    let told = desk.run("tidewater conflicts apply berta.db 1 --new-key=newer --json");
    assert!(told.contains(r#""key":["newer"]"#), "{told}");
    desk.run("tidewater sync berta.db; tidewater sync berta.db; tidewater sync anna.db");
    for file in ["anna.db", "berta.db", "shop.db"] {
        let rows = desk.run(&format!("sqlite3 {file} \"{lines}\""));
        assert_eq!(rows, "Nora apples\nSven bananas", "{file}");
        let tags = desk.run(&format!(
            "sqlite3 {file} 'SELECT name, color FROM tag ORDER BY name'"
        ));
        assert_eq!(tags, "new|red\nnewer|blue", "{file}");
    }
    let listed = desk.run("tidewater refused list --open");
    assert!(!listed.contains("[7]"), "{listed}");
}
