//! An operator of the market, who settles conflicts and refused rows through what his commands call.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use tidewater_centre::records::{ConflictFilter, ConflictRecord, RefusedFilter, RefusedRecord};
use tidewater_centre::{
    ConflictChoice, ConflictVersion, Judgement, RefusedChoice, RefusedRowAction, RowVerdict,
    SettleOutcome,
};

use super::Market;
use super::judge::{difference_in, difference_of};
use super::ledger::add;
use super::provider::{REASON, refuses};
use super::scenario::{COUNTERS, FAMILY};
use crate::failure::SimulationFailure;
use crate::random::SeededRandom;

const CLERK: &str = "clerk";

const SUM_CHOSEN: &str = "sum of a market that was parked settled";
const SCRIPTED: &str = "conflict of a market resolved through scripts";
const REPLAYED: &str = "sum of a market replayed";
const REFUSED_AGAIN: &str = "row of a market refused by its handler once more";
const EDITED: &str = "row of a market edited through a script or a handler";
const DISCARDED: &str = "sum of a market discarded";

/// Every kind of thing that he does.
pub(super) const KINDS: &[&str] = &[
    SUM_CHOSEN,
    SCRIPTED,
    REPLAYED,
    REFUSED_AGAIN,
    EDITED,
    DISCARDED,
];

/// He looks at so many.
const LISTED: u64 = 50;

/// Settles one conflict or one refused row, if there is any.
pub(super) async fn settle(
    market: &Market,
    random: &mut SeededRandom,
) -> Result<(), SimulationFailure> {
    let settled = match random.percent(50) {
        true => settle_conflict(market, random).await,
        false => settle_refused(market, random).await,
    };
    // He hears of it, and does something else.
    if let Err(SimulationFailure(what)) = settled {
        market
            .site
            .chronicle
            .note(&format!("{CLERK} fails: {what}"));
    }
    Ok(())
}

async fn settle_conflict(
    market: &Market,
    random: &mut SeededRandom,
) -> Result<(), SimulationFailure> {
    let centre = market.command().await?;
    let mut found = centre
        .find_conflicts(&ConflictFilter::newest(LISTED))
        .await?;
    // What a sum has become by rule is well; what others have made of a text may be otherwise.
    found.retain(|it| it.is_open() || it.table == "report" && it.settled.is_none());
    if random.percent(50) && found.iter().any(|it| it.table == "report") {
        found.retain(|it| it.table == "report");
    }
    let places: Vec<usize> = (0..found.len()).collect();
    let Some(record) = random.pick(&places).map(|it| &found[it]) else {
        return Ok(());
    };
    let version = match random.percent(60) {
        true => ConflictVersion::Uploaded,
        false => ConflictVersion::Centre,
    };
    let choice = ConflictChoice {
        conflict: record.id,
        version,
        force: random.percent(25),
        judgement: Judgement::default(),
        by: CLERK.into(),
        now_ms: market.now_ms(),
    };
    let chronicle = &market.site.chronicle;
    chronicle.note(&format!(
        "{CLERK}: {choice:?} of {} {}",
        record.table, record.key
    ));
    account_conflict(market, record, &choice.version);
    let outcome = centre.worker().await?.settle_conflict(choice).await?;
    chronicle.note(&format!("{CLERK}: {outcome:?}"));
    if matches!(outcome, SettleOutcome::Settled { .. }) {
        chronicle.fault(match record.table.as_str() {
            "report" => SCRIPTED,
            _ => SUM_CHOSEN,
        });
    }
    Ok(())
}

/// Whatever comes of it, it may have come about.
fn account_conflict(market: &Market, record: &ConflictRecord, version: &ConflictVersion) {
    let Some((counter, by)) = difference_in(record) else {
        return;
    };
    let mut account = market.account.borrow_mut();
    match version {
        ConflictVersion::Uploaded => {
            add(&mut account.chosen, counter, by);
            add(&mut account.twice, counter, by);
        }
        _ => add(&mut account.away, counter, by),
    }
}

async fn settle_refused(
    market: &Market,
    random: &mut SeededRandom,
) -> Result<(), SimulationFailure> {
    let centre = market.command().await?;
    let open = RefusedFilter {
        open: true,
        limit: LISTED,
        ..RefusedFilter::default()
    };
    let mut found = centre.find_refused(&open).await?;
    // Families are their users' to decide about.
    found.retain(|it| FAMILY.iter().all(|of| of.0 != it.table));
    let is_sum = |it: &RefusedRecord| COUNTERS.iter().any(|of| of.table == it.table);
    if random.percent(60) && found.iter().any(is_sum) {
        found.retain(is_sum);
    }
    let places: Vec<usize> = (0..found.len()).collect();
    let Some(record) = random.pick(&places).map(|it| &found[it]) else {
        return Ok(());
    };
    let is_counter = COUNTERS.iter().any(|it| it.table == record.table);
    let action = match random.below(10) {
        0..=5 => RefusedRowAction::Replay,
        6 | 7 if !is_counter => {
            let text = format!("by {CLERK} {}", market.new_number());
            RefusedRowAction::Edit(json!({ "text": text }).to_string())
        }
        6 | 7 => RefusedRowAction::Replay,
        _ => RefusedRowAction::Discard("no".into()),
    };
    let mut choice = RefusedChoice {
        refused: record.id,
        action,
        force: random.percent(30),
        judgement: Judgement::default(),
        by: CLERK.into(),
        now_ms: market.now_ms(),
    };
    let chronicle = &market.site.chronicle;
    chronicle.note(&format!(
        "{CLERK}: {choice:?} of {} {}",
        record.table, record.key
    ));
    account_refused(market, record, &choice.action);
    let mut worker = centre.worker().await?;
    let mut outcome = worker.settle_refused(choice.clone()).await?;
    if let SettleOutcome::Unjudged { .. } = outcome {
        choice.judgement = judge(record, &choice.action);
        outcome = worker.settle_refused(choice.clone()).await?;
        if matches!(&outcome, SettleOutcome::Refused { reason, .. } if reason == REASON) {
            chronicle.fault(REFUSED_AGAIN);
        }
    }
    chronicle.note(&format!("{CLERK}: {outcome:?}"));
    if matches!(outcome, SettleOutcome::Settled { .. }) {
        match choice.action {
            RefusedRowAction::Edit(_) => chronicle.fault(EDITED),
            RefusedRowAction::Replay if is_counter => chronicle.fault(REPLAYED),
            RefusedRowAction::Discard(_) if is_counter => chronicle.fault(DISCARDED),
            _ => {}
        }
    }
    Ok(())
}

/// Whatever comes of it, it may have come about.
fn account_refused(market: &Market, record: &RefusedRecord, action: &RefusedRowAction) {
    let of = (record.table.as_str(), record.key.as_str());
    let images = (record.pre_image.as_deref(), Some(record.row.as_str()));
    let Some((counter, by)) = difference_of(of, images.0, images.1) else {
        return;
    };
    let mut account = market.account.borrow_mut();
    match action {
        // Its device may send it once more before it has heard of that.
        RefusedRowAction::Replay => add(&mut account.twice, counter, by),
        _ => add(&mut account.away, counter, by),
    }
}

/// What the handler says of a row that he sends.
fn judge(record: &RefusedRecord, action: &RefusedRowAction) -> Judgement {
    let row = match action {
        RefusedRowAction::Edit(row) => row,
        _ => &record.row,
    };
    let row: Json = serde_json::from_str(row).unwrap_or_default();
    let is_refused = refuses(row["text"].as_str().unwrap_or_default());
    let verdict = is_refused.then(|| (0, RowVerdict::Refuse(REASON.into())));
    let of_table: BTreeMap<u64, RowVerdict> = verdict.into_iter().collect();
    Judgement {
        verdicts: BTreeMap::from([(0, of_table)]),
        ..Judgement::default()
    }
}
