//! What an operator hears of procedures and spaces that the database cannot run.

use crate::program::Place;
use crate::shop::{TABLES, configure, prepared};

#[test]
fn deploy_tells_what_no_server_would_start_with_where_it_stands() {
    let place = Place::new();
    let centre = prepared(&place);
    let procedure = |sql: &str, allow: &str| {
        format!(
            "{TABLES}\n[[procedure]]\nname = \"count\"\nsql = \"{sql}\"\nreturns = \"value\"\n\
             allow = \"{allow}\"\n"
        )
    };
    let space = |allow: &str| {
        format!(
            "{TABLES}\n[[space]]\nname = \"news\"\npublish = \"everyone\"\n\
             subscribe = {{ patterns = [\">\"], allow = \"{allow}\" }}\n"
        )
    };
    for (text, expected) in [
        (
            procedure("SELECT count(*) FROM prodct", "everyone"),
            ["procedure \"count\" is refused by SQLite", "prodct"],
        ),
        (
            procedure("SELECT {a.item}", "everyone"),
            ["procedure \"count\"", "item"],
        ),
        (
            procedure("SELECT 1", "SELECT 1 WHERE {s.usrname} = 'x'"),
            ["procedure \"count\"", "usrname"],
        ),
        (
            space("SELECT 1 FROM stff"),
            ["space \"news\": subscribe: ", "stff"],
        ),
        (
            space("SELECT {s.usrname}"),
            ["space \"news\": subscribe", "usrname"],
        ),
    ] {
        configure(&place, &centre, "", &text);
        let file = place.read("tidewater.toml");
        let named = |line: &str| ["name = \"count\"", "name = \"news\""].contains(&line);
        let line = file.lines().position(named).unwrap() + 1;
        let line = format!("line {line}: ");
        for arguments in [&["deploy", "--dry-run"][..], &["deploy"], &["serve"]] {
            let told = place.tidewater(arguments).exits(1);
            told.tells(&[&line, expected[0], expected[1]]);
        }
    }
    configure(&place, &centre, "", &procedure("SELECT 1", "everyone"));
    place.tidewater(&["deploy", "--dry-run"]).done();
}
