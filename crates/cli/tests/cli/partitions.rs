//! The examples of docs/partitions.md, deployed as they stand there.

use crate::centre::Centre;
use crate::program::Place;

const MANUAL: &str = include_str!("../../../../docs/partitions.md");

/// The blocks of a language.
fn blocks(language: &str) -> Vec<&'static str> {
    let begin = format!("```{language}\n");
    let blocks = MANUAL.split(&begin).skip(1);
    blocks
        .map(|rest| rest.split("```").next().unwrap())
        .collect()
}

#[test]
fn every_example_of_partitions_can_be_deployed() {
    let examples = blocks("toml");
    assert!(examples.len() >= 5);
    for example in examples {
        let place = Place::new();
        let centre = Centre::sqlite(&place);
        centre.execute(blocks("sql")[0]);
        let config = format!(
            "[server]\nconsolidated = \"{}\"\n[[publication]]\nname = \"shop\"\n{example}",
            centre.url()
        );
        place.write("tidewater.toml", &config);
        let deployed = place.tidewater(&["deploy", "-c", "tidewater.toml"]).done();
        assert!(!deployed.stderr.contains("CREATE INDEX"), "{deployed:#?}");
    }
}
