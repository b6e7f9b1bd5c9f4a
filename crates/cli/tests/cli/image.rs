//! Images: what `docs/images.md` shows, from a folder and from a web server.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::PathBuf;

use crate::centre::{on_both_centres, sqlite_rows};
use crate::manual::blocks;
use crate::program::{Place, sqlite};
use crate::shop::password;

const MANUAL: &str = include_str!("../../../../docs/images.md");

const CONFIG: &str = r#"
[server]
listen = ["tcp://127.0.0.1:0"]
consolidated = "URL"

[[publication]]
name = "main"

[[publication.table]]
name = "part"
partition = "everyone"
"#;

const PARTS: &str = "SELECT part_id, name FROM part ORDER BY part_id";

/// Serves a folder, in ranges.
fn serve(folder: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let request = lines.next().unwrap().unwrap();
            let mut range = None;
            for line in lines.map(Result::unwrap).take_while(|it| !it.is_empty()) {
                if let Some(asked) = line.strip_prefix("range: bytes=") {
                    let (from, to) = asked.split_once('-').unwrap();
                    range = Some((from.parse::<usize>().unwrap(), to.parse::<usize>().unwrap()));
                }
            }
            let path = request.split(' ').nth(1).unwrap().trim_start_matches('/');
            let answer = match (fs::read(folder.join(path)), range) {
                (Err(_), _) => b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_vec(),
                (Ok(all), None) => {
                    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", all.len());
                    [head.into_bytes(), all].concat()
                }
                (Ok(all), Some((from, to))) => {
                    let piece = &all[from..=to];
                    let head = format!(
                        "HTTP/1.1 206 Partial Content\r\ncontent-length: {}\r\n\r\n",
                        piece.len()
                    );
                    [head.as_bytes(), piece].concat()
                }
            };
            // One request for each connection: whoever asks has to dial again.
            let _ = stream.write_all(&answer);
        }
    });
    address
}

/// The image that a manifest describes.
fn image_of(place: &Place, manifest: &str) -> PathBuf {
    let manifest: serde_json::Value = serde_json::from_str(&place.read(manifest)).unwrap();
    place
        .path("images")
        .join(manifest["file"].as_str().unwrap())
}

#[test]
fn the_examples_of_the_manual_on_images_work() {
    on_both_centres(|place, centre| {
        centre.execute(
            "CREATE TABLE part (part_id INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL)",
        );
        for first in (0..20_000).step_by(1_000) {
            let rows =
                (first..first + 1_000).map(|it| format!("({it}, 'a part of the number {it}')"));
            let rows = rows.collect::<Vec<_>>().join(", ");
            centre.execute(&format!("INSERT INTO part VALUES {rows}"));
        }
        place.write("tidewater.toml", &CONFIG.replace("URL", &centre.url()));
        place.tidewater(&["deploy"]).done();
        for user in ["north", "nancy"] {
            place
                .tidewater_as(&password(user), &["user", "add", user])
                .done();
        }
        let [build, begin] = &blocks(MANUAL, "sh")[..] else {
            panic!("two commands");
        };
        let build: Vec<&str> = build.split_whitespace().skip(1).collect();
        place.tidewater(&build).done();
        let older = image_of(place, "images/north.json");
        centre.execute("UPDATE part SET name = 'changed' WHERE part_id = 7");
        let server = place.serve(&[]);
        let begin = begin.replace("tcp://127.0.0.1:7439", server.url());
        let begin: Vec<&str> = begin.split_whitespace().skip(1).collect();
        let run = place.tidewater_as(&password("nancy"), &begin).done();
        assert!(run.stdout.contains("1 row,"), "{run:#?}");
        let rows = |file: &str| sqlite_rows(&sqlite(&place.path(file)), PARTS);
        assert_eq!(rows("new.db"), centre.rows(PARTS));
        place.tidewater(&["verify", "new.db"]).done();
        // Its changes go up as ever.
        sqlite(&place.path("new.db"))
            .execute_batch("INSERT INTO part VALUES (99999, 'mine')")
            .unwrap();
        place.tidewater(&["sync", "new.db"]).done();
        assert_eq!(rows("new.db"), centre.rows(PARTS));

        // Built again, only what has changed is fetched, and the image before is there for a while.
        place.tidewater(&build).done();
        let newer = image_of(place, "images/north.json");
        assert!(older.exists() && newer.exists() && older != newer);
        let web = serve(place.path("images"));
        let over_the_web = |name: &str, manifest: &str| {
            let manifest = format!("{web}/{manifest}");
            let sync = ["sync", name, "--image", &manifest, "--server", server.url()];
            let sync = [&sync[..], &["--user", "nancy", "--publication", "main"]].concat();
            place.tidewater_as(&password("nancy"), &sync)
        };
        // A part that has come before is gone on with.
        let all = fs::read(&newer).unwrap();
        fs::write(place.path("web.db-tidewater-image"), &all[..all.len() / 2]).unwrap();
        over_the_web("web.db", "north.json").done();
        assert_eq!(rows("web.db"), centre.rows(PARTS));
        assert!(!place.path("web.db-tidewater-image").exists());

        // What is damaged, or signed by nobody, makes no file.
        over_the_web("none.db", "none.json").exits(4);
        let manifest = place.read("images/north.json");
        let signature = manifest.find("\"checkpoint\": \"").unwrap() + 40;
        let mut forged = manifest.clone().into_bytes();
        forged[signature] = if forged[signature] == b'A' {
            b'B'
        } else {
            b'A'
        };
        fs::write(place.path("images/forged.json"), forged).unwrap();
        over_the_web("none.db", "forged.json")
            .exits(4)
            .tells(&["image"]);
        let mut damaged = all.clone();
        damaged[all.len() / 2] ^= 1;
        fs::write(&newer, damaged).unwrap();
        over_the_web("none.db", "north.json")
            .exits(4)
            .tells(&["damaged"]);
        fs::write(&newer, &all[..all.len() - 1]).unwrap();
        let run = place.tidewater_as(
            &password("nancy"),
            &[&begin[..1], &["none.db"], &begin[2..]].concat(),
        );
        run.exits(4).tells(&["damaged"]);
        assert!(!place.path("none.db").exists());
        // Others go on.
        place.tidewater(&["sync", "new.db"]).done();
    });
}
