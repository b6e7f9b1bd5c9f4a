//! The examples of docs/partitions.md, deployed as they stand there.

use crate::centre::Centre;
use crate::manual::blocks;
use crate::program::Place;

const MANUAL: &str = include_str!("../../../../docs/partitions.md");

/// What the database finds wrong is told with the line of the table, errors as warnings.
#[test]
fn what_is_wrong_with_a_partition_is_told_with_its_line() {
    let place = Place::new();
    let centre = Centre::sqlite(&place);
    centre.execute(
        "CREATE TABLE doc (id INTEGER NOT NULL PRIMARY KEY, owner TEXT);
         CREATE TABLE line (id INTEGER NOT NULL PRIMARY KEY, doc_id INTEGER);",
    );
    let begin = format!(
        "[server]\nconsolidated = \"{}\"\n[[publication]]\nname = \"shop\"\n\
         [[publication.table]]\nname = \"doc\"\n",
        centre.url()
    );
    let follows = "partition = \"everyone\"\n[[publication.table]]\nname = \"line\"\n\
                   partition = { follows = \"doc\" }\n";
    place.write("tidewater.toml", &format!("{begin}{follows}"));
    let told = place.tidewater(&["deploy"]).exits(1);
    told.tells(&[
        "line 9: publication \"shop\": table \"line\" follows \"doc\"",
        "foreign key",
    ]);
    let unknown = "partition = { columns = [\"ownr\"], values = \"SELECT 'x'\" }\n";
    place.write("tidewater.toml", &format!("{begin}{unknown}"));
    let told = place.tidewater(&["deploy"]).exits(1);
    told.tells(&[
        "line 6: publication \"shop\": table \"doc\" has no column \"ownr\"",
        "\"owner\"",
    ]);
}

#[test]
fn every_example_of_partitions_can_be_deployed() {
    let examples = blocks(MANUAL, "toml");
    assert!(examples.len() >= 5);
    for example in examples {
        let place = Place::new();
        let centre = Centre::sqlite(&place);
        centre.execute(&blocks(MANUAL, "sql")[0]);
        let config = format!(
            "[server]\nconsolidated = \"{}\"\n[[publication]]\nname = \"shop\"\n{example}",
            centre.url()
        );
        place.write("tidewater.toml", &config);
        let deployed = place.tidewater(&["deploy", "-c", "tidewater.toml"]).done();
        assert!(!deployed.stderr.contains("CREATE INDEX"), "{deployed:#?}");
    }
}
