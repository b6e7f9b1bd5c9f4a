//! Images that a server keeps: made, renewed and given away by a real `tidewater serve`.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::thread;

use serde_json::Value;

use crate::centre::{Centre, on_both_centres, sqlite_rows};
use crate::program::{Place, Run, Server, free_url, sqlite, until};
use crate::shop::password;

const CONFIG: &str = r#"
[server]
listen = ["tcp://ADDRESS"]
http = "http://ADDRESS"
consolidated = "URL"

[images]
every = "EVERY"

[[images.image]]
name = "nobodys"
publication = "main"
everyone = true
public = true

[[images.image]]
name = "anns"
publication = "main"
partitions = ["seller=1"]

[[images.image]]
name = "strange"
publication = "main"
user = "stranger"

[[publication]]
name = "main"

[[publication.table]]
name = "part"
partition = "everyone"

[[publication.table]]
name = "visit"
partition = { columns = ["seller"], values = "SELECT seller FROM seller WHERE login = {s.username}" }
"#;

const SCHEMA: &str = "
CREATE TABLE part (part_id INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE seller (login TEXT NOT NULL PRIMARY KEY, seller INTEGER NOT NULL);
CREATE TABLE visit (visit_id INTEGER NOT NULL PRIMARY KEY, seller INTEGER NOT NULL, note TEXT NOT NULL);
INSERT INTO seller VALUES ('ann', 1), ('ben', 2);
INSERT INTO visit VALUES (1, 1, 'of ann'), (2, 2, 'of ben');
";

const PARTS: &str = "SELECT part_id, name FROM part ORDER BY part_id";

/// A server with images, at an address of its own.
struct Kept<'p> {
    place: &'p Place,
    address: String,
    server: Option<Server>,
}

/// What a web server has answered.
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn header(&self, name: &str) -> &str {
        let mut lines = self.head.lines().filter_map(|it| it.split_once(": "));
        lines.find(|it| it.0 == name).map_or("", |it| it.1)
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

fn ask(address: &str, asked: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let mut stream = TcpStream::connect(address).expect("somebody listens");
    let headers: String = headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    let request = format!(
        "{asked} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|it| it == b"\r\n\r\n").unwrap();
    let head = String::from_utf8_lossy(&answer[..end]).replace("\r\n", "\n");
    let status = head.split(' ').nth(1).and_then(|it| it.parse().ok());
    Answer {
        status: status.unwrap_or(0),
        head,
        body: answer[end + 4..].to_vec(),
    }
}

impl<'p> Kept<'p> {
    fn open(place: &'p Place, centre: &Centre) -> Kept<'p> {
        centre.execute(SCHEMA);
        // Several pieces of what is fetched at once.
        let long = "x".repeat(1_000);
        for first in (0..4_000).step_by(1_000) {
            let rows = (first..first + 1_000).map(|it| format!("({it}, '{it} {long}')"));
            let rows = rows.collect::<Vec<_>>().join(", ");
            centre.execute(&format!("INSERT INTO part VALUES {rows}"));
        }
        let mut kept = Kept {
            place,
            address: free_url().replace("tcp://", ""),
            server: None,
        };
        kept.configure(centre, "1h");
        place.tidewater(&["deploy"]).done();
        for user in ["north", "ann", "ben"] {
            place
                .tidewater_as(&password(user), &["user", "add", user])
                .done();
        }
        kept.serve();
        kept
    }

    fn configure(&self, centre: &Centre, every: &str) {
        let config = CONFIG.replace("URL", &centre.url());
        let config = config.replace("ADDRESS", &self.address);
        self.place
            .write("tidewater.toml", &config.replace("EVERY", every));
    }

    fn serve(&mut self) {
        self.server = None;
        self.server = Some(self.place.serve_as_configured());
        until("the images are there", || {
            ["nobodys", "anns"].iter().all(|it| {
                let manifest = self.place.path(&format!("images/{it}.json"));
                manifest.exists()
            })
        });
    }

    fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        let asked = format!("GET /tidewater/images/{path}");
        ask(&self.address, &asked, headers, "")
    }

    fn manifest(&self, name: &str) -> Value {
        serde_json::from_str(&self.place.read(&format!("images/{name}.json"))).unwrap()
    }

    /// The name of an image's file.
    fn file(&self, name: &str) -> String {
        self.manifest(name)["file"].as_str().unwrap().to_owned()
    }

    /// The token of a user, as a header.
    fn token(&self, user: &str) -> String {
        let body = serde_json::json!({ "user": user, "password": password(user) });
        let answer = ask(&self.address, "POST /v1/sign-in", &[], &body.to_string());
        format!("Bearer {}", answer.json()["token"].as_str().unwrap())
    }

    /// A first sync from an image at this host and port.
    fn begin(&self, user: &str, name: &str, at: &str) -> Run {
        let file = format!("{user}.db");
        let image = format!("http://{at}/tidewater/images/{name}.json");
        let server = format!("tcp://{}", self.address);
        let sync = ["sync", &file, "--image", &image, "--server", &server];
        let sync = [&sync[..], &["--user", user, "--publication", "main"]].concat();
        self.place.tidewater_as(&password(user), &sync)
    }

    fn rows(&self, user: &str, sql: &str) -> Vec<String> {
        sqlite_rows(&sqlite(&self.place.path(&format!("{user}.db"))), sql)
    }
}

#[test]
fn images_are_given_away_whole_and_in_ranges_and_told_apart_by_etags() {
    on_both_centres(|place, centre| {
        let kept = Kept::open(place, centre);
        let manifest = kept.get("nobodys.json", &[]);
        assert_eq!(manifest.status, 200);
        assert_eq!(manifest.header("cache-control"), "no-cache");
        assert_eq!(manifest.json(), kept.manifest("nobodys"));
        let etag = manifest.header("etag");
        let known = kept.get("nobodys.json", &[("if-none-match", etag)]);
        assert_eq!((known.status, known.body.len()), (304, 0));
        assert_eq!(known.header("etag"), etag);

        let file = kept.file("nobodys");
        let all = fs::read(place.path("images").join(&file)).unwrap();
        assert!(all.len() > 3 << 20);
        let whole = kept.get(&file, &[]);
        assert_eq!(whole.status, 200);
        assert!(whole.body == all);
        assert_eq!(
            whole.header("cache-control"),
            "public, immutable, max-age=31536000"
        );
        assert_eq!(whole.header("accept-ranges"), "bytes");
        let etag = whole.header("etag");
        let list = format!("\"other\", W/{etag}");
        for known in [etag, &list, "*"] {
            assert_eq!(kept.get(&file, &[("if-none-match", known)]).status, 304);
        }
        let length = all.len();
        for (range, from, until) in [
            ("bytes=0-99".to_owned(), 0, 100),
            (format!("bytes={}-", length - 7), length - 7, length),
            ("bytes=-1000".to_owned(), length - 1_000, length),
            ("bytes=1000-2000000".to_owned(), 1_000, 2_000_001),
        ] {
            let part = kept.get(&file, &[("range", &range), ("if-range", etag)]);
            assert_eq!(part.status, 206, "{range}");
            assert!(part.body == all[from..until], "{range}");
            let told = format!("bytes {from}-{}/{length}", until - 1);
            assert_eq!(part.header("content-range"), told);
        }
        let behind = kept.get(&file, &[("range", &format!("bytes={length}-"))]);
        assert_eq!(behind.status, 416);
        assert_eq!(behind.header("content-range"), format!("bytes */{length}"));
        // A range of what it was before is none of what it is now.
        let other = kept.get(&file, &[("range", "bytes=0-99"), ("if-range", "\"x\"")]);
        assert_eq!((other.status, other.body.len()), (200, length));
        let asked = format!("HEAD /tidewater/images/{file}");
        let head = ask(&kept.address, &asked, &[], "");
        assert_eq!((head.status, head.body.len()), (200, 0));
        assert_eq!(head.header("content-length"), length.to_string());

        // Nothing else of the folder, or outside, is there.
        assert!(place.path("images/nobodys.remote").exists());
        for path in [
            "nobodys.remote",
            "nobodys.remote-wal",
            "nobodys.db",
            "nobodys-0123456789abcdef.db",
            "other.json",
            "../tidewater.toml",
            "..%2Ftidewater.toml",
            "%2e%2e/tidewater.toml",
            "",
        ] {
            assert_eq!(kept.get(path, &[]).status, 404, "{path}");
        }
        // What cannot be made is told by its name, and others are made all the same.
        let server = kept.server.as_ref().unwrap();
        server.logs("image=\"strange\"");
        server.logs(r#"there is no user \"stranger\""#);
        assert!(!server.log().contains("shutting down"));
    });
}

#[test]
fn what_is_not_public_is_for_those_who_hold_it() {
    on_both_centres(|place, centre| {
        let kept = Kept::open(place, centre);
        let file = kept.file("anns");
        for path in ["anns.json", &file] {
            let stranger = kept.get(path, &[]);
            assert_eq!(stranger.status, 401);
            assert_eq!(stranger.header("www-authenticate"), "Bearer");
            let wrong = kept.get(path, &[("authorization", "Bearer nonsense")]);
            assert_eq!(wrong.status, 401);
            let other = kept.get(path, &[("authorization", &kept.token("ben"))]);
            assert_eq!(other.status, 403);
            assert_eq!(other.json()["code"], "not_allowed");
            let own = kept.get(path, &[("authorization", &kept.token("ann"))]);
            assert_eq!(own.status, 200);
            assert!(own.header("cache-control").starts_with("private, "));
        }
        // Who holds no partition has no right to them, and who holds more has.
        let token = kept.token("north");
        assert_eq!(
            kept.get("anns.json", &[("authorization", &token)]).status,
            403
        );

        let run = kept.begin("ann", "anns", &kept.address).done();
        assert!(run.stdout.contains("0 rows,"), "{run:#?}");
        assert_eq!(kept.rows("ann", PARTS), centre.rows(PARTS));
        assert_eq!(kept.rows("ann", "SELECT note FROM visit"), ["of ann"]);
        kept.begin("ben", "anns", &kept.address)
            .exits(3)
            .tells(&["403"]);
        assert!(!place.path("ben.db").exists());
        // Nobody else is told who he is, whatever he asks.
        let (elsewhere, heard) = curious();
        kept.begin("ann2", "anns", &elsewhere)
            .exits(3)
            .tells(&["not at the address of the server"]);
        assert_eq!(heard.load(Ordering::Relaxed), 1);
        // Once he holds the partition, he may.
        centre.execute("UPDATE seller SET seller = 1 WHERE login = 'ben'");
        let run = kept.begin("ben", "anns", &kept.address).done();
        assert!(run.stdout.contains("0 rows,"), "{run:#?}");
        assert_eq!(kept.rows("ben", "SELECT note FROM visit"), ["of ann"]);
    });
}

#[test]
fn an_image_is_made_anew_and_a_download_that_breaks_goes_on() {
    on_both_centres(|place, centre| {
        let mut kept = Kept::open(place, centre);
        let first = kept.file("nobodys");
        let line = Line::open(&kept.address);
        line.left.store(5 << 19, Ordering::Relaxed);
        kept.begin("ann", "nobodys", &line.address).exits(2);
        let part = place.path("ann.db-tidewater-image");
        let have = fs::metadata(&part).unwrap().len();
        assert_eq!(have, 2 << 20);
        line.left.store(i64::MAX, Ordering::Relaxed);
        line.came.store(0, Ordering::Relaxed);
        kept.begin("ann", "nobodys", &line.address).done();
        let whole = fs::metadata(place.path("images").join(&first))
            .unwrap()
            .len();
        let came = line.came.load(Ordering::Relaxed);
        assert!(came > whole - have && came < whole - have + (1 << 16));
        assert_eq!(kept.rows("ann", PARTS), centre.rows(PARTS));
        assert!(!part.exists());

        // It stays as it is as long as it is fresh, also over a start.
        centre.execute("UPDATE part SET name = 'changed' WHERE part_id = 7");
        kept.serve();
        kept.server.as_ref().unwrap().logs("image=\"strange\"");
        assert_eq!(kept.file("nobodys"), first);
        kept.configure(centre, "1s");
        kept.serve();
        until("there is a newer image", || kept.file("nobodys") != first);
        // From now on it stays.
        kept.configure(centre, "1h");
        kept.serve();
        let image = sqlite(&place.path("images").join(kept.file("nobodys")));
        let changed = "SELECT name FROM part WHERE part_id = 7";
        assert_eq!(sqlite_rows(&image, changed), ["changed"]);
        let run = kept.begin("ben", "nobodys", &kept.address).done();
        // What he holds besides.
        assert!(run.stdout.contains("1 row,"), "{run:#?}");
        assert_eq!(kept.rows("ben", PARTS), centre.rows(PARTS));
        let (code, log) = kept.server.take().unwrap().terminate();
        assert_eq!(code, 0, "{log}");
    });
}

#[test]
fn images_are_of_just_the_partitions_that_are_named() {
    on_both_centres(|place, centre| {
        let kept = Kept::open(place, centre);
        let build = |rows: &[&str], name: &str| {
            let out = format!("built/{name}.json");
            let build = ["image", "build", "--publication", "main", "--json"];
            place.tidewater(&[&build[..], &["--out", &out], rows].concat())
        };
        let visits = |name: &str, rows: &[&str]| {
            let built = build(rows, name).done().json();
            let image = place.path("built").join(built["file"].as_str().unwrap());
            let length = fs::metadata(&image).unwrap().len();
            assert_eq!(built["bytes"], length);
            assert_eq!(built["publication"], "main");
            let image = sqlite(&image);
            assert_eq!(sqlite_rows(&image, "SELECT count(*) FROM part"), ["4000"]);
            sqlite_rows(&image, "SELECT note FROM visit ORDER BY visit_id")
        };
        assert_eq!(visits("two", &["--partition", "seller=2"]), ["of ben"]);
        let both = ["--partition", "seller=1", "--partition", "seller=2"];
        assert_eq!(visits("both", &both), ["of ann", "of ben"]);
        assert!(visits("none", &["--everyone"]).is_empty());
        assert_eq!(visits("of-ann", &["--user", "ann"]), ["of ann"]);
        // Of another one under the same name, nothing of the one before is left.
        assert_eq!(visits("two", &["--partition", "seller=1"]), ["of ann"]);
        centre.execute("INSERT INTO visit VALUES (3, 1, 'new'), (4, 2, 'new')");
        assert_eq!(
            visits("two", &["--partition", "seller=1"]),
            ["of ann", "new"]
        );

        build(&["--partition", "colour=1"], "none")
            .exits(1)
            .tells(&["no partitions by \"colour\"", "seller"]);
        build(&["--partition", "seller=x"], "none")
            .exits(1)
            .tells(&["\"x\" is no value of \"seller\""]);
        build(&["--partition", "seller"], "none").exits(1);
        build(&["--user", "ann", "--everyone"], "none").exits(1);
        build(&[], "none").exits(1);

        // Who begins from the file is as any other.
        let image = place.path("built/two.json").display().to_string();
        let server = format!("tcp://{}", kept.address);
        let sync = ["sync", "ann.db", "--image", &image, "--server", &server];
        let sync = [&sync[..], &["--user", "ann", "--publication", "main"]].concat();
        let run = place.tidewater_as(&password("ann"), &sync).done();
        assert!(run.stdout.contains("0 rows,"), "{run:#?}");
        place.tidewater(&["verify", "ann.db"]).done();
    });
}

/// Scripts forbid an image only if they say who gets which rows; then that is said, and nothing stays
/// behind.
#[test]
fn only_scripts_that_say_who_gets_which_rows_forbid_an_image() {
    on_both_centres(|place, centre| {
        centre.execute(SCHEMA);
        centre.execute("CREATE TABLE done (line TEXT)");
        let config = CONFIG
            .replace("ADDRESS", "127.0.0.1:0")
            .replace("URL", &centre.url())
            .replace("EVERY", "1h");
        place.write("tidewater.toml", &config);
        let script = |of: &str, event: &str, sql: &str| {
            let folder = place.path("scripts/default").join(of);
            fs::create_dir_all(&folder).expect("a folder can be made");
            fs::write(folder.join(event), sql).expect("a script can be written");
        };
        let log = "INSERT INTO done (line) VALUES ({s.username})";
        script("connection", "begin_synchronization.sql", log);
        place.tidewater(&["deploy"]).done();
        let build = || {
            let build = ["image", "build", "--publication", "main", "--everyone"];
            place.tidewater(&[&build[..], &["--out", "built/all.json"]].concat())
        };
        let remotes = || place.tidewater(&["remote", "list", "--json"]).done().stdout;
        build().done();
        assert!(!centre.rows("SELECT 1 FROM done").is_empty());
        assert!(remotes().contains("image: everyone"));

        script(
            "part",
            "download_cursor.sql",
            "SELECT part_id, name FROM part WHERE name = {s.username}",
        );
        let reason = "download_cursor.sql says which rows of \"part\" each user gets";
        for command in ["check", "deploy"] {
            let told = place.tidewater(&[command]).done();
            let told = format!("{}{}", told.stdout, told.stderr);
            assert!(told.contains(reason), "{told}");
        }
        build().exits(1).tells(&[reason]);
        assert!(!remotes().contains("image: everyone"), "{}", remotes());
        let left = fs::read_dir(place.path("built")).expect("the folder is there");
        assert_eq!(left.count(), 0, "nobody is to fetch the one before");

        // Of a first build that fails nothing stays behind, either.
        fs::remove_file(place.path("scripts/default/part/download_cursor.sql")).unwrap();
        let refuse = "SELECT 4000 AS authentication_status";
        script("connection", "authenticate_parameters.sql", refuse);
        place.tidewater(&["deploy"]).done();
        let run = build();
        assert_ne!(run.code, 0);
        assert!(!remotes().contains("image: everyone"), "{}", remotes());
    });
}

/// A web server that asks everybody who he is, and counts what it is asked.
fn curious() -> (String, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let heard = Arc::<AtomicU64>::default();
    let hears = heard.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = [0; 4_096];
            let _ = stream.read(&mut request);
            hears.fetch_add(1, Ordering::Relaxed);
            let answer = "HTTP/1.1 401 Unauthorized\r\nwww-authenticate: Bearer\r\n\
                          content-length: 0\r\nconnection: close\r\n\r\n";
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    (address, heard)
}

/// A line to a server that breaks after so many bytes.
struct Line {
    address: String,
    left: Arc<AtomicI64>,
    came: Arc<AtomicU64>,
}

impl Line {
    fn open(server: &str) -> Line {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let line = Line {
            address: listener.local_addr().unwrap().to_string(),
            left: Arc::default(),
            came: Arc::default(),
        };
        let (left, came, server) = (line.left.clone(), line.came.clone(), server.to_owned());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut down, mut from) = (stream.unwrap(), TcpStream::connect(&server).unwrap());
                let (mut up, mut to) = (down.try_clone().unwrap(), from.try_clone().unwrap());
                thread::spawn(move || std::io::copy(&mut up, &mut to));
                let (left, came) = (left.clone(), came.clone());
                thread::spawn(move || {
                    let mut bytes = [0; 16 << 10];
                    while let Ok(count @ 1..) = from.read(&mut bytes) {
                        let before = left.fetch_sub(count as i64, Ordering::Relaxed);
                        if before < count as i64 || down.write_all(&bytes[..count]).is_err() {
                            break;
                        }
                        came.fetch_add(count as u64, Ordering::Relaxed);
                    }
                    let _ = down.shutdown(std::net::Shutdown::Both);
                    let _ = from.shutdown(std::net::Shutdown::Both);
                });
            }
        });
        line
    }
}
