//! A market: a centre and devices that take from the same counters, number sales that meet, and
//! write what scripts and a handler decide about.
//!
//! Some seeds play one when their world has ended. It has the same network, disks, servers and
//! files. What each application has taken is remembered, and the sum of it judges.

mod clerk;
mod judge;
mod ledger;
mod provider;
mod scenario;
mod seller;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{LocalBoxFuture, ready, try_join, try_join_all};
use futures_util::stream::{FuturesUnordered, TryStreamExt};
use rusqlite::params;
use tokio::time::{sleep, timeout};

use tidewater_centre::Centre;
use tidewater_centre::records::ConflictFilter;

use self::judge::Account;
use self::ledger::{Differences, Ledger, add};
use self::scenario::{COUNTERS_EACH, DEVICES, SHELF, STOCK, USERS};
use self::seller::{Seller, SellerTurn};
use crate::application::is_busy;
use crate::backup;
use crate::calendar::BEGIN_MS;
use crate::chronicle::Chronicle;
use crate::disks::Device;
use crate::failure::SimulationFailure;
use crate::host::Host;
use crate::network::Weather;
use crate::plan::Plan;
use crate::random::SeededRandom;
use crate::site::{AMBUSH, Node, Site, settle};

const RESTORED: &str = "centre of a market restored";
const COPIED: &str = "file of a market copied, and both go on";
const KILLED: &str = "server of a market killed at a commit";
const REFUSED_SUM: &str = "sum of a market refused by a check";
const PARKED: &str = "sum of a market that a copy may send twice waits";
const REFUSED_FAMILY: &str = "sale of a market refused with its lines";
pub(in crate::market) const RENUMBERED: &str = "sale of a market given a new number";

/// Every kind of thing that happens in a market.
pub(crate) const KINDS: [&[&str]; 2] = [
    &[
        RESTORED,
        COPIED,
        KILLED,
        REFUSED_SUM,
        PARKED,
        REFUSED_FAMILY,
        RENUMBERED,
    ],
    clerk::KINDS,
];

/// After so long nothing of what went wrong is under way any more.
const HEALING: Duration = Duration::from_secs(200);

/// How often all files sync together, when nothing fails any more.
const ROUNDS: usize = 8;

/// Numbers that nobody has had begin here.
const FIRST_NUMBER: i64 = 100;

/// As many conflicts as there may be.
const ALL: u64 = 100_000;

/// What copies of the devices' files are called.
const COPIES: [(&str, &str); 3] = [("ann", "ann-2"), ("ben", "ben-2"), ("tab", "tab-2")];

/// What goes wrong in a market beside servers and lines. Of a change that its file has in two
/// copies, nobody can tell any more what a restored centre has of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// The centre becomes what it was.
    Restored,
    /// Files are copied, and both go on; an operator decides what may count twice.
    Copied,
    /// An operator settles what was refused.
    Settled,
}

/// The centre, and who takes from it.
struct Market {
    plan: Plan,
    trouble: Trouble,
    site: Rc<Site>,
    sellers: RefCell<Vec<Rc<Seller>>>,
    account: RefCell<Account>,
    last_number: Cell<i64>,
    /// Of each backup, what the centre's applications had taken then.
    backups: RefCell<Vec<Differences>>,
    restorations: Cell<u64>,
    is_over: Cell<bool>,
}

/// Plays a market from beginning to end.
pub(crate) async fn play(plan: Plan, chronicle: &Rc<Chronicle>) -> Result<(), SimulationFailure> {
    let mut random = SeededRandom::new(plan.seed ^ 0x6d61_726b_6574);
    chronicle.note("a market begins");
    let market = Rc::new(begin(plan, chronicle, &mut random).await?);
    let places = 0..market.site.hosts.len();
    let providers = places.map(|place| provider::provide(&market, place, random.fork()));
    let providers = try_join_all(providers.collect::<Vec<_>>());
    let lived = async {
        let lived = live(&market, &mut random).await;
        market.is_over.set(true);
        lived
    };
    let lived = try_join(lived, providers).await.map(drop);
    let mut stopped = Ok(());
    for host in &market.site.hosts {
        stopped = stopped.and(host.stop(chronicle).await);
    }
    lived.and(stopped)
}

async fn begin(
    plan: Plan,
    chronicle: &Rc<Chronicle>,
    random: &mut SeededRandom,
) -> Result<Market, SimulationFailure> {
    let trouble = match random.below(3) {
        0 => Trouble::Restored,
        1 => Trouble::Copied,
        _ => Trouble::Settled,
    };
    chronicle.note(&format!("its trouble: {trouble:?}"));
    let servers = random.between(1, 2);
    let config = scenario::config()?;
    let site = Rc::new(Site::new("market", servers, &config, chronicle, random));
    site.look()?.execute_batch(scenario::SCHEMA)?;
    site.serve(&USERS).await?;
    let count = random.between(2, DEVICES.len() as u64) as usize;
    let sellers = DEVICES[..count].iter().map(|&(name, user)| {
        let device = Rc::new(Device::new(name, random.fork()));
        let in_requests = random.percent(40);
        let node = Node::new((name, user), &site, in_requests, path_of(&device))?;
        Ok(Rc::new(Seller::new(name, device, node)))
    });
    let sellers = sellers.collect::<Result<Vec<_>, SimulationFailure>>()?;
    Ok(Market {
        plan,
        trouble,
        site,
        sellers: RefCell::new(sellers),
        account: RefCell::default(),
        last_number: Cell::new(FIRST_NUMBER),
        backups: RefCell::default(),
        restorations: Cell::default(),
        is_over: Cell::default(),
    })
}

/// Where the process that syncs finds a device's file.
fn path_of(device: &Rc<Device>) -> Box<dyn Fn() -> std::path::PathBuf> {
    let device = device.clone();
    Box::new(move || {
        device.restart();
        device.path()
    })
}

async fn live(market: &Market, random: &mut SeededRandom) -> Result<(), SimulationFailure> {
    let steps = market.plan.steps;
    let sellers = market.sellers.borrow().clone();
    let mut lives: Vec<LocalBoxFuture<'_, Result<(), SimulationFailure>>> = Vec::new();
    for seller in &sellers {
        let (own, other) = (random.fork(), random.fork());
        lives.push(Box::pin(market.trade(seller.clone(), own, other, steps)));
    }
    if market.trouble == Trouble::Copied {
        for seller in sellers {
            if random.percent(60) {
                let random = random.fork();
                lives.push(Box::pin(market.copy_and_trade(seller, random, steps)));
            }
        }
    }
    lives.push(Box::pin(
        market.take_in_centre(random.fork(), 2 * market.plan.centre_steps),
    ));
    lives.push(Box::pin(market.operate(random.fork())));
    if market.trouble != Trouble::Restored {
        lives.push(Box::pin(market.settle_often(random.fork(), steps)));
    }
    // Not in their order: whoever finds something first ends it.
    let lives: FuturesUnordered<_> = lives.into_iter().collect();
    lives.try_for_each(|()| ready(Ok(()))).await?;
    market.site.chronicle.note("the market heals");
    sleep(HEALING).await;
    market.site.disk.calm(&market.site.chronicle);
    market.site.restart(random).await?;
    for seller in &*market.sellers.borrow() {
        seller.device.calm(&market.site.chronicle);
    }
    if market.trouble == Trouble::Settled {
        market.settle_what_is_left(random).await?;
    }
    market.come_to_rest(random).await?;
    market.judge().await
}

impl Market {
    fn new_number(&self) -> i64 {
        self.last_number.set(self.last_number.get() + 1);
        self.last_number.get()
    }

    fn now_ms(&self) -> i64 {
        let elapsed = self.site.began.elapsed().as_millis();
        BEGIN_MS + i64::try_from(elapsed).unwrap_or(i64::MAX)
    }

    /// The centre as a command opens it.
    async fn command(&self) -> Result<Arc<dyn Centre>, SimulationFailure> {
        let host = self.site.hosts.first();
        let host = host.ok_or_else(|| SimulationFailure("a market without servers".into()))?;
        host.command(self.site.disk.path()).await
    }

    /// What somebody with a device does with it, while it syncs now and then.
    async fn trade(
        &self,
        seller: Rc<Seller>,
        mut acting: SeededRandom,
        mut syncing: SeededRandom,
        times: u64,
    ) -> Result<(), SimulationFailure> {
        let act = async {
            for _ in 0..3 * times {
                sleep(Duration::from_millis(acting.below(2_500))).await;
                if self.plan.accidents > 0 && acting.percent(5) {
                    seller.device.threaten(&mut acting);
                }
                let doing = SellerTurn {
                    trouble: self.trouble,
                    number: self.new_number(),
                    chronicle: &self.site.chronicle,
                };
                seller.act(&doing, &mut acting)?;
            }
            Ok(())
        };
        let sync = async {
            for _ in 0..times {
                sleep(Duration::from_millis(syncing.below(5_000))).await;
                let weather = Weather::any(&mut syncing, self.plan.faults);
                seller.node.sync(weather, &mut syncing).await?;
                seller.device.calm(&self.site.chronicle);
            }
            Ok(())
        };
        try_join(act, sync).await.map(drop)
    }

    /// Copies a device's file onto another device, where somebody goes on with it.
    async fn copy_and_trade(
        &self,
        from: Rc<Seller>,
        mut random: SeededRandom,
        times: u64,
    ) -> Result<(), SimulationFailure> {
        sleep(Duration::from_millis(random.below(3_000 * times))).await;
        for _ in 0..10 {
            if let Some(copy) = self.copy(&from, &mut random)? {
                self.sellers.borrow_mut().push(copy.clone());
                let (own, other) = (random.fork(), random.fork());
                return self.trade(copy, own, other, times.div_ceil(2)).await;
            }
            sleep(Duration::from_secs(1)).await;
        }
        Ok(())
    }

    /// `None` if the file has never synced, or somebody has it locked.
    fn copy(
        &self,
        from: &Seller,
        random: &mut SeededRandom,
    ) -> Result<Option<Rc<Seller>>, SimulationFailure> {
        let mut names = COPIES.into_iter();
        let Some((_, name)) = names.find(|it| it.0 == from.name) else {
            return Ok(None);
        };
        let copied = from.look().and_then(|original| {
            backup::copy(&original, &from.device.path_of_copy())?;
            Ok((
                judge::outstanding(&original)?,
                judge::pending_inserts(&original)?,
                judge::entries(&original, true)?,
            ))
        });
        let Ok((pending, inserted, entries)) = copied else {
            return Ok(None);
        };
        let device = Rc::new(Device::new(name, random.fork()));
        device.put(&from.device.bytes_of_copy());
        let node = Node::of_copy(name, &self.site, random.percent(40), path_of(&device))?;
        let copy = Rc::new(Seller::new(name, device, node));
        *copy.twin.borrow_mut() = Some(from.device.clone());
        *from.twin.borrow_mut() = Some(copy.device.clone());
        let mut account = self.account.borrow_mut();
        for (counter, by) in pending {
            add(&mut account.twice, counter, by);
        }
        account.inserted_in_copies.extend(inserted);
        account.entries_in_copies.extend(entries);
        self.site.chronicle.fault(COPIED);
        Ok(Some(copy))
    }

    /// What applications of the centre do: they take as much as devices do.
    async fn take_in_centre(
        &self,
        mut random: SeededRandom,
        times: u64,
    ) -> Result<(), SimulationFailure> {
        for _ in 0..times {
            sleep(Duration::from_millis(random.below(3_000))).await;
            let counter = random.pick(&[STOCK, STOCK, SHELF]).unwrap_or(STOCK);
            let row = random.between(1, COUNTERS_EACH as u64) as i64;
            // Where files are copied or the centre is restored, a value never comes again.
            let fills_up = self.trouble == Trouble::Settled && random.percent(35);
            let amount = match fills_up {
                true => -10,
                false => random.pick(&[1, 3]).unwrap_or(1),
            };
            let (table, value, key) = (counter.table, counter.value, counter.key);
            let sql = format!(
                "UPDATE {table} SET {value} = {value} - ?2 WHERE {key} = ?1 AND {value} >= ?2"
            );
            match self.site.look()?.execute(&sql, params![row, amount]) {
                Ok(0) => {}
                Ok(_) => {
                    self.site
                        .chronicle
                        .note(&format!("the centre takes {amount} from {table} {row}"));
                    let mut account = self.account.borrow_mut();
                    add(&mut account.centre, (table, row), -amount);
                }
                Err(error) if is_busy(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    async fn settle_often(
        &self,
        mut random: SeededRandom,
        times: u64,
    ) -> Result<(), SimulationFailure> {
        for _ in 0..times {
            sleep(Duration::from_millis(random.below(6_000))).await;
            clerk::settle(self, &mut random).await?;
        }
        Ok(())
    }

    /// Shelves are filled up, and the operator goes through what was refused before.
    async fn settle_what_is_left(
        &self,
        random: &mut SeededRandom,
    ) -> Result<(), SimulationFailure> {
        let sellers = self.sellers.borrow().clone();
        for seller in &sellers {
            settle(&seller.node, random).await?;
        }
        let amount = random.between(0, 20) as i64;
        let sql = "UPDATE shelf SET quantity = quantity + ?1";
        self.site.look()?.execute(sql, [amount])?;
        for row in 1..=COUNTERS_EACH {
            let centre = &mut self.account.borrow_mut().centre;
            add(centre, (SHELF.table, row), amount);
        }
        for _ in 0..random.below(12) {
            clerk::settle(self, random).await?;
        }
        Ok(())
    }

    /// What happens to servers and disks.
    async fn operate(&self, mut random: SeededRandom) -> Result<(), SimulationFailure> {
        let backups = match self.trouble {
            Trouble::Restored => 2,
            _ => 0,
        };
        for _ in 0..self.plan.accidents + backups {
            sleep(Duration::from_millis(random.below(6_000))).await;
            match random.below(4) {
                0 | 1 if self.trouble == Trouble::Restored => {
                    self.back_up()?;
                    sleep(Duration::from_millis(random.below(8_000))).await;
                    self.restore(&mut random).await?;
                }
                0..=2 if self.plan.accidents > 0 => {
                    let met = self.site.ambush(&mut random).await?;
                    self.note_killed(met);
                }
                _ if self.plan.accidents > 0 => {
                    if let Some(life) = self.site.hosts.first().and_then(Host::life) {
                        self.site.disk.threaten(life.number(), &mut random);
                        let _ = timeout(AMBUSH, life.ended()).await;
                    }
                }
                _ => {}
            }
            self.site.disk.calm(&self.site.chronicle);
            self.site.restart(&mut random).await?;
        }
        Ok(())
    }

    fn note_killed(&self, met_a_commit: bool) {
        if met_a_commit {
            self.site.chronicle.fault(KILLED);
        }
    }

    fn back_up(&self) -> Result<(), SimulationFailure> {
        let mut backups = self.backups.borrow_mut();
        let number = backups.len() as u64 + 1;
        backup::copy(&self.site.look()?, &self.site.disk.backup(number))?;
        backups.push(self.account.borrow().centre.clone());
        Ok(())
    }

    /// The centre becomes one of its backups: all servers stop, and serve the copy.
    async fn restore(&self, random: &mut SeededRandom) -> Result<(), SimulationFailure> {
        for host in &self.site.hosts {
            if random.percent(50) {
                host.kill();
            }
            host.stop(&self.site.chronicle).await?;
        }
        let count = self.backups.borrow().len() as u64;
        let number = random.between(1, count);
        self.restorations.set(self.restorations.get() + 1);
        self.site.disk.restore(number, self.restorations.get());
        let centre = self.site.look()?;
        // As in the original.
        centre.pragma_update(None, "journal_mode", "wal")?;
        drop(centre);
        let taken = self.backups.borrow()[number as usize - 1].clone();
        self.account.borrow_mut().centre = taken;
        self.site.chronicle.fault(RESTORED);
        for host in &self.site.hosts {
            host.start(self.site.disk.path()).await?;
        }
        Ok(())
    }

    /// Everybody syncs until nobody's sync changes anything.
    async fn come_to_rest(&self, random: &mut SeededRandom) -> Result<(), SimulationFailure> {
        let sellers = self.sellers.borrow().clone();
        let mut before = None;
        for _ in 0..ROUNDS {
            let mut pending = 0;
            for seller in &sellers {
                settle(&seller.node, random).await?;
                pending += seller.node.waiting()?.0;
            }
            let now = judge::digest(&self.site.look()?)?;
            if pending == 0 && before.as_ref() == Some(&now) {
                return Ok(());
            }
            before = Some(now);
        }
        Err(SimulationFailure(format!(
            "I6: a market does not come to rest in {ROUNDS} rounds"
        )))
    }

    async fn judge(&self) -> Result<(), SimulationFailure> {
        let command = self.command().await?;
        let conflicts = command.find_conflicts(&ConflictFilter::newest(ALL)).await?;
        let centre = self.site.look()?;
        let sellers = self.sellers.borrow().clone();
        let ledgers = sellers.iter().map(|it| it.ledger.borrow().clone());
        let ledgers: Vec<Ledger> = ledgers.collect();
        let waiting = sellers.iter().map(|it| it.outstanding());
        let waiting = waiting.collect::<rusqlite::Result<Vec<Differences>>>()?;
        let refused = command.refused().await?;
        let remotes = sellers.iter().map(|it| it.look());
        let remotes = remotes.collect::<rusqlite::Result<Vec<_>>>()?;
        let mut excused = Vec::new();
        for remote in &remotes {
            let (counters, entries) = judge::kept_as_values(remote)?;
            self.account.borrow_mut().kept_as_values.extend(counters);
            excused.push(entries);
        }
        for (seller, remote) in sellers.iter().zip(&remotes) {
            for row in judge::listed(remote)? {
                let name = seller.name;
                self.site
                    .chronicle
                    .note(&format!("{name} has refused: {row}"));
            }
        }
        for it in &conflicts {
            let (table, key, user) = (&it.table, &it.key, &it.user);
            let (old, new) = (&it.pre_image, &it.uploaded);
            let (winner, outcome, settled) = (&it.winner, it.outcome, &it.settled);
            self.site.chronicle.note(&format!(
                "conflict: {table} {key} of {user}: {old:?}, {new:?}, {winner:?}, {outcome:?}, {settled:?}"
            ));
        }
        let account = self.account.borrow();
        let mut found =
            judge::counted_otherwise(&centre, &ledgers, &waiting, &conflicts, &account)?;
        found = found.or(judge::mixed(&centre, "the centre", &BTreeSet::new())?);
        found = found.or(judge::lost(
            &centre,
            &remotes,
            &ledgers,
            &account.entries_in_copies,
        )?);
        found = found.or(judge::unnumbered(&centre, &ledgers)?);
        found = found.or(judge::went_past(&centre)?);
        for ((seller, remote), excused) in sellers.iter().zip(&remotes).zip(&excused) {
            found = found.or(judge::mixed(remote, seller.name, excused)?);
            found = found.or(judge::device_differs(&centre, remote, seller.name)?);
        }
        let chronicle = &self.site.chronicle;
        if conflicts.iter().any(|it| it.is_open()) {
            chronicle.fault(PARKED);
        }
        for refused in &refused {
            let (table, key, row) = (&refused.table, &refused.key, &refused.row);
            let (user, code) = (&refused.user, &refused.code);
            chronicle.note(&format!("refused: {table} {key} of {user}: {row}, {code}"));
            match refused.table.as_str() {
                "shelf" => chronicle.fault(REFUSED_SUM),
                "sale_line" => chronicle.fault(REFUSED_FAMILY),
                _ => {}
            }
        }
        found.map_or(Ok(()), |found| Err(SimulationFailure(found)))
    }
}
