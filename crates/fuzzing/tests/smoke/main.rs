//! The smoke run of the fuzz targets, on stable and without cargo-fuzz: every committed
//! input, and some thousand deterministic changes of them, through each body.
//!
//! `TIDEWATER_CHANGES=1000000` makes more changes, `TIDEWATER_SEED=2` others.
//! `TIDEWATER_WRITE_SEEDS=1` writes the seeds into the corpora first; what fuzzers have
//! found is left there.

mod mutations;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use tidewater_fuzzing::{TARGETS, Target, seeds};

use mutations::Mutations;

/// The corpora together are for every clone of the repository to carry.
const MAX_CORPORA_BYTES: u64 = 1 << 20;

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

/// The inputs of a target, by name: its seeds, and what is committed.
fn corpus(name: &str) -> BTreeMap<String, Vec<u8>> {
    let mut inputs = BTreeMap::from_iter(seeds::of(name));
    let folder = fuzz().join("corpus").join(name);
    if std::env::var_os("TIDEWATER_WRITE_SEEDS").is_some() {
        fs::create_dir_all(&folder).unwrap();
        for (seed, bytes) in &inputs {
            fs::write(folder.join(seed), bytes).unwrap();
        }
    }
    let entries = fs::read_dir(&folder).unwrap_or_else(|_| panic!("{name} has no corpus"));
    for entry in entries {
        let path = entry.unwrap().path();
        let input = path.file_name().unwrap().to_string_lossy().into_owned();
        inputs.insert(input, fs::read(&path).unwrap());
    }
    inputs
}

/// Says which input a body panicked at, and what to do with it.
struct Attempt<'a> {
    target: &'a str,
    input: &'a str,
    bytes: &'a [u8],
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let hex: String = self
                .bytes
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            let Attempt { target, input, .. } = self;
            eprintln!("{target} broke at {input}; as hexadecimal, for its corpus: {hex}");
        }
    }
}

fn attempt(target: &Target, input: &str, bytes: &[u8]) {
    let _attempt = Attempt {
        target: target.name,
        input,
        bytes,
    };
    (target.run)(bytes);
}

/// Every input of the corpus, and so many changes of them.
fn smoke(name: &str, changes: u64) {
    let target = TARGETS.iter().find(|target| target.name == name).unwrap();
    let corpus = corpus(name);
    assert!(!corpus.is_empty(), "{name} has an empty corpus");
    for (input, bytes) in &corpus {
        attempt(target, input, bytes);
    }
    let inputs: Vec<Vec<u8>> = corpus.into_values().collect();
    let number = |name| {
        std::env::var(name)
            .ok()
            .map(|it| it.parse::<u64>().unwrap())
    };
    let mut mutations = Mutations::new(&inputs, number("TIDEWATER_SEED").unwrap_or(1));
    for change in 0..number("TIDEWATER_CHANGES").unwrap_or(changes) {
        let bytes = mutations.next();
        attempt(target, &format!("change {change}"), &bytes);
    }
}

#[test]
fn frames_hold_for_the_corpus_and_its_neighbours() {
    smoke("frames", 5_000);
}

#[test]
fn blocks_hold_for_the_corpus_and_its_neighbours() {
    smoke("blocks", 5_000);
}

#[test]
fn messages_hold_for_the_corpus_and_its_neighbours() {
    smoke("messages", 5_000);
}

#[test]
fn calls_hold_for_the_corpus_and_its_neighbours() {
    smoke("calls", 5_000);
}

#[test]
fn events_hold_for_the_corpus_and_its_neighbours() {
    smoke("events", 5_000);
}

#[test]
fn rows_hold_for_the_corpus_and_its_neighbours() {
    smoke("rows", 5_000);
}

#[test]
fn values_hold_for_the_corpus_and_its_neighbours() {
    smoke("values", 5_000);
}

#[test]
fn ranges_hold_for_the_corpus_and_its_neighbours() {
    smoke("ranges", 5_000);
}

#[test]
fn signed_blobs_hold_for_the_corpus_and_its_neighbours() {
    smoke("signed", 3_000);
}

#[test]
fn answers_of_handlers_hold_for_the_corpus_and_its_neighbours() {
    smoke("handlers", 3_000);
}

#[test]
fn proxy_headers_hold_for_the_corpus_and_its_neighbours() {
    smoke("proxied", 5_000);
}

#[test]
fn what_comes_to_a_relay_holds_for_the_corpus_and_its_neighbours() {
    smoke("relay", 5_000);
}

#[test]
fn bearer_tokens_hold_for_the_corpus_and_its_neighbours() {
    smoke("bearer", 3_000);
}

#[test]
fn configurations_hold_for_the_corpus_and_its_neighbours() {
    smoke("config", 3_000);
}

#[test]
fn scripts_hold_for_the_corpus_and_its_neighbours() {
    smoke("scripts", 5_000);
}

#[test]
fn every_target_has_its_program_and_a_corpus() {
    let programs = fs::read_to_string(fuzz().join("Cargo.toml")).unwrap();
    let mut bytes = 0;
    for target in TARGETS {
        let name = target.name;
        let program = fuzz().join(format!("fuzz_targets/{name}.rs"));
        let source = fs::read_to_string(program).unwrap();
        assert!(
            source.contains(&format!("tidewater_fuzzing::{name}(data)")),
            "{name}"
        );
        assert!(programs.contains(&format!("name = \"{name}\"\n")), "{name}");
        let corpus = fs::read_dir(fuzz().join("corpus").join(name)).unwrap();
        let sizes = corpus.map(|entry| entry.unwrap().metadata().unwrap().len());
        let size: u64 = sizes.sum();
        assert!(size > 0, "{name} has an empty corpus");
        bytes += size;
    }
    let targets = fs::read_dir(fuzz().join("fuzz_targets")).unwrap().count();
    assert_eq!(targets, TARGETS.len(), "a program without a target");
    assert!(bytes <= MAX_CORPORA_BYTES, "the corpora have {bytes} bytes");
}

#[test]
fn server_sessions_hold_for_the_corpus_and_its_neighbours() {
    smoke("server_session", 300);
}

#[test]
fn remote_sessions_hold_for_the_corpus_and_its_neighbours() {
    smoke("remote_session", 300);
}
