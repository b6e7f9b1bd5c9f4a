//! A hierarchy of two levels: headquarters, a branch whose SQLite file is the centre of its devices
//! and a remote of headquarters, and these devices.
//!
//! Some seeds play one when their world has ended. It has the same network, disks, servers and
//! files, and simpler tables: each row has one who edits it, or is everybody's, so that little has
//! to be remembered to know what must be where.

mod judge;
mod scenario;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{ready, try_join, try_join3};
use futures_util::stream::{FuturesUnordered, TryStreamExt};
use rusqlite::params;
use tokio::time::{sleep, timeout};

use self::judge::Ledger;
use self::scenario::{AUDIT, BRANCH, DENIED, SELLERS};
use crate::application::{self, is_busy};
use crate::chronicle::Chronicle;
use crate::disks::Device;
use crate::failure::SimulationFailure;
use crate::host::Host;
use crate::network::Weather;
use crate::plan::Plan;
use crate::random::SeededRandom;
use crate::site::{AMBUSH, Node, Site, settle, started_beside};

const BRANCH_KILLED: &str = "branch's server killed at a commit";
const BRANCH_DARK: &str = "branch without power";
const LINE_KILLED: &str = "branch's line killed at a write";
const WENT_UP: &str = "row of a device came to headquarters by its branch";
const WENT_DOWN: &str = "row of headquarters came to a device by its branch";
const PUT_ABOVE: &str = "till of devices changed at their branch or at headquarters";
const REFUSED_ABOVE: &str = "row that a branch had taken refused by headquarters";

/// Every kind of thing that happens in a hierarchy.
pub(crate) const KINDS: &[&str] = &[
    BRANCH_KILLED,
    BRANCH_DARK,
    LINE_KILLED,
    WENT_UP,
    WENT_DOWN,
    PUT_ABOVE,
    REFUSED_ABOVE,
];

/// After so long nothing of what went wrong is under way any more.
const HEALING: Duration = Duration::from_secs(200);

/// How often all files sync together, when nothing fails any more.
const ROUNDS: usize = 8;

/// What is put into a till at once: few amounts, so that equal values meet.
const PUT: [i64; 2] = [1, 3];

/// Keys of what devices and headquarters insert begin here.
const FIRST_KEY: i64 = 100;

/// A device of the branch.
struct Seller {
    name: &'static str,
    counter: i64,
    device: Rc<Device>,
    node: Node,
    ledger: RefCell<Ledger>,
}

/// Headquarters, the branch and its devices.
struct Hierarchy {
    plan: Plan,
    chronicle: Rc<Chronicle>,
    headquarters: Rc<Site>,
    branch: Rc<Site>,
    /// The branch's file as a remote of headquarters.
    line: Node,
    sellers: Vec<Seller>,
    last_key: Cell<i64>,
    /// What applications of headquarters and of the branch have put into tills.
    put: RefCell<BTreeMap<i64, i64>>,
}

/// Plays a hierarchy from beginning to end.
pub(crate) async fn play(plan: Plan, chronicle: &Rc<Chronicle>) -> Result<(), SimulationFailure> {
    let mut random = SeededRandom::new(plan.seed ^ 0x6272_616e_6368);
    chronicle.note("a hierarchy begins");
    let hierarchy = begin(plan, chronicle, &mut random).await?;
    let lived = live(&hierarchy, &mut random).await;
    let mut stopped = Ok(());
    for host in hierarchy
        .branch
        .hosts
        .iter()
        .chain(&hierarchy.headquarters.hosts)
    {
        stopped = stopped.and(host.stop(chronicle).await);
    }
    lived.and(stopped)
}

async fn begin(
    plan: Plan,
    chronicle: &Rc<Chronicle>,
    random: &mut SeededRandom,
) -> Result<Hierarchy, SimulationFailure> {
    let servers = random.between(1, 2);
    let above = scenario::headquarters()?;
    let headquarters = Rc::new(Site::new(
        "headquarters",
        servers,
        &above,
        chronicle,
        random,
    ));
    headquarters
        .look()?
        .execute_batch(&scenario::headquarters_schema())?;
    headquarters.serve(&[BRANCH]).await?;
    let servers = random.between(1, 2);
    let below = scenario::branch()?;
    let branch = Rc::new(Site::new("branch", servers, &below, chronicle, random));
    let site = branch.clone();
    let line_path = move || started_beside(&site.disk.path());
    let in_requests = random.percent(40);
    let line = Node::new(
        ("the branch", BRANCH),
        &headquarters,
        in_requests,
        Box::new(line_path),
    )?;
    settle(&line, random).await?;
    branch.look()?.execute_batch(AUDIT)?;
    let count = random.between(2, SELLERS.len() as u64) as usize;
    let sellers = &SELLERS[..count];
    let names: Vec<&str> = sellers.iter().map(|(name, _)| *name).collect();
    branch.serve(&names).await?;
    let sellers = sellers
        .iter()
        .map(|(name, counter)| -> Result<_, SimulationFailure> {
            let device = Rc::new(Device::new(name, random.fork()));
            let of = device.clone();
            let path = move || {
                of.restart();
                of.path()
            };
            let in_requests = random.percent(40);
            Ok(Seller {
                name,
                counter: *counter,
                node: Node::new((name, name), &branch, in_requests, Box::new(path))?,
                device,
                ledger: RefCell::default(),
            })
        });
    let sellers = sellers.collect::<Result<Vec<_>, _>>()?;
    Ok(Hierarchy {
        plan,
        chronicle: chronicle.clone(),
        headquarters,
        branch,
        line,
        sellers,
        last_key: Cell::new(FIRST_KEY),
        put: RefCell::default(),
    })
}

async fn live(hierarchy: &Hierarchy, random: &mut SeededRandom) -> Result<(), SimulationFailure> {
    let steps = hierarchy.plan.steps;
    let lives = hierarchy.sellers.iter().map(|seller| {
        let (own, other) = (random.fork(), random.fork());
        try_join(
            hierarchy.sell(seller, own, steps),
            hierarchy.sync_often(&seller.node, Some(&seller.device), other, steps),
        )
    });
    // Not in their order: whoever finds something first ends it.
    let lives: FuturesUnordered<_> = lives.collect();
    let lives = lives.try_for_each(|_| ready(Ok(())));
    let line = hierarchy.sync_often(&hierarchy.line, None, random.fork(), 2 * steps);
    let office = hierarchy.edit_above(random.fork(), hierarchy.plan.centre_steps);
    let operated = hierarchy.operate(random.fork(), hierarchy.plan.accidents);
    try_join(try_join3(lives, line, office), operated).await?;
    hierarchy.chronicle.note("the hierarchy heals");
    sleep(HEALING).await;
    for site in [&hierarchy.headquarters, &hierarchy.branch] {
        site.disk.calm(&hierarchy.chronicle);
        site.restart(random).await?;
    }
    for seller in &hierarchy.sellers {
        seller.device.calm(&hierarchy.chronicle);
    }
    hierarchy.come_to_rest(random).await?;
    hierarchy.judge()
}

impl Hierarchy {
    fn new_key(&self) -> i64 {
        self.last_key.set(self.last_key.get() + 1);
        self.last_key.get()
    }

    /// Syncs so many times, in any weather.
    async fn sync_often(
        &self,
        node: &Node,
        on: Option<&Device>,
        mut random: SeededRandom,
        times: u64,
    ) -> Result<(), SimulationFailure> {
        for _ in 0..times {
            sleep(Duration::from_millis(random.below(4_000))).await;
            let weather = Weather::any(&mut random, self.plan.faults);
            node.sync(weather, &mut random).await?;
            if let Some(device) = on {
                device.calm(&self.chronicle);
            }
        }
        Ok(())
    }

    /// What somebody with a device does with it.
    async fn sell(
        &self,
        seller: &Seller,
        mut random: SeededRandom,
        times: u64,
    ) -> Result<(), SimulationFailure> {
        for _ in 0..2 * times {
            sleep(Duration::from_millis(random.below(3_000))).await;
            if self.plan.accidents > 0 && random.percent(10) {
                seller.device.threaten(&mut random);
            }
            let mut ledger = seller.ledger.borrow().clone();
            match self.edit(seller, &mut ledger, &mut random) {
                Ok(what) => {
                    let name = seller.name;
                    self.chronicle.note(&format!("{name} {what}"));
                    *seller.ledger.borrow_mut() = ledger;
                }
                Err(error) if is_busy(&error) => {}
                // The file has never synced.
                Err(rusqlite::Error::SqliteFailure(_, Some(what)))
                    if what.starts_with("no such table") => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn edit(
        &self,
        seller: &Seller,
        ledger: &mut Ledger,
        random: &mut SeededRandom,
    ) -> rusqlite::Result<String> {
        seller.device.restart();
        let connection = application::open(&seller.device.application_path())?;
        let (name, key) = (seller.name, self.new_key());
        match random.below(13) {
            10.. => {
                let till = random.between(1, 2) as i64;
                let amount = random.pick(&PUT).unwrap_or(1);
                let sql = "UPDATE till SET amount = amount + ?2 WHERE till_id = ?1";
                if connection.execute(sql, params![till, amount])? > 0 {
                    *ledger.put.entry(till).or_default() += amount;
                }
                Ok(format!("puts {amount} into till {till}"))
            }
            0..=2 => {
                let note = match random.percent(15) {
                    true => format!("{DENIED} {name} {key}"),
                    false => format!("{name} {key}"),
                };
                let sql = "INSERT INTO item VALUES (?1, 1, ?2, ?3)";
                connection.execute(sql, params![key, name, note])?;
                ledger.items.insert(key, note.clone());
                Ok(format!("inserts {note}"))
            }
            3 | 4 => {
                let own = ledger.items.iter();
                let own = own.filter(|(_, text)| !text.starts_with(DENIED));
                let own: Vec<i64> = own.map(|(id, _)| *id).collect();
                let Some(item) = random.pick(&own) else {
                    return Ok("has nothing to edit".into());
                };
                let note = format!("{name} {key}");
                let sql = "UPDATE item SET note = ?2 WHERE item_id = ?1";
                let changed = connection.execute(sql, params![item, note])?;
                if changed > 0 {
                    ledger.items.insert(item, note.clone());
                }
                Ok(format!("has {changed} item {item} be {note}"))
            }
            5..=7 => {
                let sql = "UPDATE counter SET count = count + 1 WHERE counter_id = ?1";
                let changed = connection.execute(sql, [seller.counter])?;
                ledger.counted += i64::from(changed > 0);
                Ok(format!("counts to {}", ledger.counted))
            }
            _ => {
                let price = random.between(1, 3) as i64;
                let sql = "UPDATE price SET note = ?2 WHERE price_id = ?1";
                let note = format!("{name} {key}");
                connection.execute(sql, params![price, note])?;
                Ok(format!("has price {price} be {note}"))
            }
        }
    }

    /// What headquarters does with its rows.
    async fn edit_above(
        &self,
        mut random: SeededRandom,
        times: u64,
    ) -> Result<(), SimulationFailure> {
        for _ in 0..times {
            sleep(Duration::from_millis(random.below(3_000))).await;
            let connection = self.headquarters.look()?;
            let key = self.new_key();
            let price = random.between(1, 5) as i64;
            let seller = random.pick(&["ann", "ben", "eve"]).unwrap_or_default();
            let note = format!("office {key}");
            let insert = "INSERT INTO item VALUES (?1, 1, ?2, ?3)";
            let put = "INSERT OR REPLACE INTO price VALUES (?1, ?2)";
            if random.percent(40) {
                self.put_into_till(&mut random)?;
                continue;
            }
            let edited = match random.below(4) {
                0 => connection.execute(insert, params![key, seller, note]),
                1 => connection.execute("DELETE FROM price WHERE price_id = ?1", [price]),
                _ => connection.execute(put, params![price, note]),
            };
            match edited {
                Ok(_) => self.chronicle.note(&format!("headquarters edits {note}")),
                Err(error) if is_busy(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// An application of headquarters or of the branch puts as much into a till as devices do.
    fn put_into_till(&self, random: &mut SeededRandom) -> Result<(), SimulationFailure> {
        let site = match random.percent(50) {
            true => &self.headquarters,
            false => &self.branch,
        };
        let till = random.between(1, 2) as i64;
        let amount = random.pick(&PUT).unwrap_or(1);
        let sql = "UPDATE till SET amount = amount + ?2 WHERE till_id = ?1";
        match site.look()?.execute(sql, params![till, amount]) {
            Ok(0) => {}
            Ok(_) => {
                *self.put.borrow_mut().entry(till).or_default() += amount;
                self.chronicle.fault(PUT_ABOVE);
            }
            Err(error) if is_busy(&error) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// What happens to servers and disks.
    async fn operate(&self, mut random: SeededRandom, times: u64) -> Result<(), SimulationFailure> {
        for _ in 0..times {
            sleep(Duration::from_millis(random.below(6_000))).await;
            match random.below(5) {
                0 => {
                    self.headquarters.ambush(&mut random).await?;
                }
                1 => {
                    if self.branch.ambush(&mut random).await? {
                        self.chronicle.fault(BRANCH_KILLED);
                    }
                }
                2 => {
                    self.branch.disk.lose_power();
                    self.chronicle.fault(BRANCH_DARK);
                }
                3 => {
                    if let Some(process) = self.line.process() {
                        self.branch.disk.kill(process.number(), random.below(40));
                        if timeout(AMBUSH, process.ended()).await.is_ok() {
                            self.chronicle.fault(LINE_KILLED);
                        }
                    }
                }
                _ => {
                    let any = self.branch.hosts.first().and_then(Host::life);
                    if let Some(life) = any {
                        self.branch.disk.threaten(life.number(), &mut random);
                        let _ = timeout(AMBUSH, life.ended()).await;
                    }
                }
            }
            for site in [&self.headquarters, &self.branch] {
                site.disk.calm(&self.chronicle);
                site.restart(&mut random).await?;
            }
        }
        Ok(())
    }

    /// Everybody syncs until nobody's sync changes anything at either level.
    async fn come_to_rest(&self, random: &mut SeededRandom) -> Result<(), SimulationFailure> {
        let mut before = None;
        for _ in 0..ROUNDS {
            for seller in &self.sellers {
                settle(&seller.node, random).await?;
            }
            settle(&self.line, random).await?;
            for seller in &self.sellers {
                settle(&seller.node, random).await?;
            }
            let mut pending = self.line.waiting()?.0;
            for seller in &self.sellers {
                pending += seller.node.waiting()?.0;
            }
            let prices = "SELECT group_concat(price_id || ' ' || note) || (
                SELECT group_concat(till_id || ' ' || amount) FROM till) FROM price";
            let audited = "SELECT count(*) FROM audit";
            let headquarters = self.headquarters.look()?;
            let now: (Option<String>, i64) = (
                headquarters.query_row(prices, [], |row| row.get(0))?,
                headquarters.query_row(audited, [], |row| row.get(0))?,
            );
            if pending == 0 && before.as_ref() == Some(&now) {
                return Ok(());
            }
            before = Some(now);
        }
        Err(SimulationFailure(format!(
            "I6: a hierarchy does not come to rest in {ROUNDS} rounds"
        )))
    }

    fn judge(&self) -> Result<(), SimulationFailure> {
        let (headquarters, branch) = (self.headquarters.look()?, self.branch.look()?);
        let mut found = judge::applied_twice(&headquarters)?;
        found = found.or(judge::went_back(&branch, "the branch")?);
        found = found.or(judge::branch_differs(&headquarters, &branch)?);
        let mut put = self.put.borrow().clone();
        for seller in &self.sellers {
            for (till, amount) in &seller.ledger.borrow().put {
                *put.entry(*till).or_default() += amount;
            }
        }
        found = found.or(judge::counted_otherwise(&headquarters, &put)?);
        for seller in &self.sellers {
            let device = application::open(&seller.device.application_path())?;
            let ledger = seller.ledger.borrow();
            let who = (seller.name, seller.counter);
            found = found.or(judge::lost(&headquarters, &branch, who, &ledger)?);
            found = found.or(judge::device_differs(&branch, &device, seller.name)?);
            for text in ledger.items.values() {
                self.chronicle.fault(match text.starts_with(DENIED) {
                    true => REFUSED_ABOVE,
                    false => WENT_UP,
                });
            }
            let sql = "SELECT count(*) FROM item WHERE note LIKE 'office %'";
            let came: i64 = device.query_row(sql, [], |row| row.get(0))?;
            (0..came).for_each(|_| self.chronicle.fault(WENT_DOWN));
        }
        found.map_or(Ok(()), |found| Err(SimulationFailure(found)))
    }
}
