//! `tidewater key`: the keys that sign tokens and checkpoints.

use clap::{Args, Subcommand};
use serde::Serialize;
use tidewater_centre::records::SigningKey;
use tidewater_server::KEY_SIGNS_AFTER_MS;
use tidewater_terminal::output::{self, TextTable};
use tidewater_terminal::{CommandOutcome, ConfigArgs, Failure, with_exit_codes};

use crate::centre::OpenCentre;
use crate::clock::now_ms;

const HELP: &str = with_exit_codes!(
    "\
Examples:
  tidewater key rotate          # a new key signs; the old ones still verify
  tidewater key list
  tidewater key retire 1        # it leaked: what it signed counts for nothing any more"
);

/// Rotate the keys that sign what remotes keep for the server
///
/// Session tokens and checkpoints are signed, so that a remote cannot change them. Running
/// servers learn of every change within seconds; none is restarted.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct KeyArgs {
    #[command(subcommand)]
    action: KeyAction,
}

#[derive(Debug, Subcommand)]
enum KeyAction {
    /// Make a new key
    ///
    /// It begins to sign ten seconds later, when all servers know it. What the old ones
    /// signed stays valid until they are retired: by `tidewater key retire`, or by
    /// themselves when nothing that they signed is of use any more (retention.log after the
    /// rotation).
    #[command(after_help = HELP)]
    Rotate(KeyOptions),
    /// List the keys, newest first
    #[command(after_help = HELP)]
    List(KeyOptions),
    /// Void everything that an old key signed
    ///
    /// For a key that leaked: rotate first, then retire it. Remotes with a token of it sign
    /// in with their credentials; those with a checkpoint of it compare everything that
    /// they hold once. No change is lost.
    #[command(after_help = HELP)]
    Retire(Retirement),
}

#[derive(Debug, Args)]
struct KeyOptions {
    #[command(flatten)]
    config: ConfigArgs,
    /// Print {"keys":[{"id","created_ms","state","signs_from_ms","retires_ms"}]}
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Retirement {
    /// The key's number, as `tidewater key list` shows it
    id: u32,
    #[command(flatten)]
    options: KeyOptions,
}

impl KeyArgs {
    pub(crate) fn wants_json(&self) -> bool {
        match &self.action {
            KeyAction::Rotate(options) | KeyAction::List(options) => options.json,
            KeyAction::Retire(args) => args.options.json,
        }
    }
}

pub(crate) fn run(args: &KeyArgs) -> Result<CommandOutcome, Failure> {
    match &args.action {
        KeyAction::Rotate(options) => {
            let centre = OpenCentre::open(&options.config)?;
            let key = centre.add_signing_key()?;
            output::note(&format!(
                "key {} signs in {} seconds; the others go on to verify",
                key.id,
                KEY_SIGNS_AFTER_MS / 1_000
            ));
            show(&centre, options.json)
        }
        KeyAction::List(options) => show(&OpenCentre::open(&options.config)?, options.json),
        KeyAction::Retire(args) => retire(args),
    }
}

fn retire(args: &Retirement) -> Result<CommandOutcome, Failure> {
    let centre = OpenCentre::open(&args.options.config)?;
    let keys = centre.signing_keys()?;
    if !keys.iter().any(|key| key.id == args.id) {
        return Err(Failure::usage(
            format!("there is no key {}", args.id),
            "see: tidewater key list",
        ));
    }
    let is_newest = keys.first().is_some_and(|key| key.id == args.id);
    if is_newest || !centre.retire_signing_key(args.id)? {
        return Err(Failure::usage(
            format!(
                "key {} is the newest; nothing would be left to sign",
                args.id
            ),
            "make another one first: tidewater key rotate",
        ));
    }
    output::note(&format!("key {} retired", args.id));
    show(&centre, args.options.json)
}

fn show(centre: &OpenCentre, as_json: bool) -> Result<CommandOutcome, Failure> {
    let keys = centre.signing_keys()?;
    let listed = listed(&keys, now_ms(), centre.log_retention_ms());
    if as_json {
        output::json(&ListedKeys { keys: listed })?;
        return Ok(CommandOutcome::Complete);
    }
    let mut table = TextTable::new(&[">key", "made", "state", "retires"]);
    for key in listed {
        let retires = key.retires_ms.map(output::moment);
        table.row([
            key.id.to_string(),
            output::moment(key.created_ms),
            key.state.to_owned(),
            retires.unwrap_or_default(),
        ]);
    }
    output::text(&table.render(0))?;
    Ok(CommandOutcome::Complete)
}

/// What each key does now. `keys` are newest first.
fn listed(keys: &[SigningKey], now_ms: i64, retention_ms: i64) -> Vec<ListedKey> {
    let signs_from = |key: &SigningKey| key.created_ms.saturating_add(KEY_SIGNS_AFTER_MS);
    let oldest = keys.len().saturating_sub(1);
    let signing = keys.iter().position(|key| signs_from(key) <= now_ms);
    let signing = signing.unwrap_or(oldest);
    let keys_of = keys.iter().enumerate();
    let list = keys_of.map(|(index, key)| ListedKey {
        id: key.id,
        created_ms: key.created_ms,
        state: match index.cmp(&signing) {
            std::cmp::Ordering::Less => "signs soon",
            std::cmp::Ordering::Equal => "signs",
            std::cmp::Ordering::Greater => "verifies",
        },
        signs_from_ms: signs_from(key),
        // When its successor is older than any watermark that is still of use.
        retires_ms: index
            .checked_sub(1)
            .and_then(|newer| keys.get(newer))
            .map(|newer| newer.created_ms.saturating_add(retention_ms)),
    });
    list.collect()
}

#[derive(Serialize)]
struct ListedKeys {
    keys: Vec<ListedKey>,
}

#[derive(Serialize, Debug, PartialEq)]
struct ListedKey {
    id: u32,
    created_ms: i64,
    state: &'static str,
    signs_from_ms: i64,
    retires_ms: Option<i64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_three_keys_one_signs_and_each_older_one_knows_its_end() {
        let key = |id, created_ms| SigningKey {
            id,
            secret: Vec::new(),
            created_ms,
        };
        let keys = [key(3, 100_000), key(2, 50_000), key(1, 0)];
        let states = |now_ms| {
            let list = listed(&keys, now_ms, 1_000);
            list.into_iter().map(|key| key.state).collect::<Vec<_>>()
        };
        assert_eq!(states(100_001), ["signs soon", "signs", "verifies"]);
        assert_eq!(states(110_000), ["signs", "verifies", "verifies"]);
        assert_eq!(states(-1), ["signs soon", "signs soon", "signs"]);
        let ends: Vec<_> = listed(&keys, 0, 1_000)
            .into_iter()
            .map(|key| key.retires_ms)
            .collect();
        assert_eq!(ends, [None, Some(101_000), Some(51_000)]);
    }
}
