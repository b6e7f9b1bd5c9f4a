//! A fleet of remotes, each caught by a schema change in another situation; and the proof
//! that nothing of theirs is lost by it.

use std::collections::BTreeSet;

use tidewater_client::SyncDirection;
use tidewater_protocol::message::Control;
use tidewater_testing::proxy::{Accident, Place, Way};

use crate::backend::Backend;
use crate::device::Device;
use crate::scenario::Scenario;
use crate::world::World;

/// The publication before every change.
pub(super) const BEFORE: &str = r#"
[[publication]]
name = "main"

[[publication.table]]
name = "kind"
partition = "everyone"

[[publication.table]]
name = "item"
partition = { columns = ["region"], values = "SELECT region FROM assignment WHERE login = {s.username}" }
"#;

/// The columns of the table that changes.
pub(super) const ITEM: &[(&str, &str)] = &[
    ("item_id", "INTEGER NOT NULL"),
    ("region", "INTEGER NOT NULL"),
    ("area", "INTEGER NOT NULL"),
    ("note", "VARCHAR(40)"),
    ("amount", "INTEGER"),
    ("price", "NUMERIC(10,2)"),
];

/// The end of its definition.
pub(super) const KEY: &str = "PRIMARY KEY (item_id)";

/// The table that changes, with other columns.
pub(super) fn create(name: &str, columns: &[(&str, &str)], tail: &str) -> String {
    let columns: Vec<String> = columns
        .iter()
        .map(|(column, definition)| format!("{column} {definition}"))
        .collect();
    format!("CREATE TABLE {name} ({}, {tail});", columns.join(", "))
}

/// How SQLite changes what ALTER TABLE cannot: a new table with these columns takes the
/// place of the old one. `values` are expressions over the old columns.
pub(super) fn rebuilt(columns: &[(&str, &str)], tail: &str, values: &str) -> String {
    format!(
        "{} INSERT INTO item_new SELECT {values} FROM item; DROP TABLE item;
         ALTER TABLE item_new RENAME TO item;",
        create("item_new", columns, tail)
    )
}

/// Where a remote stands when the schema changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Situation {
    /// It has nothing to say.
    Idle,
    /// It has changes that no sync has seen.
    Pending,
    /// The centre has taken its upload, and the answer was lost.
    Unanswered,
    /// Its upload was lost on the way, and there are newer changes.
    Undelivered,
    /// The centre has refused a row of it.
    Refused,
    /// The centre has refused a row of the table that changes.
    RefusedThere,
    /// A row has arrived that it could not take, because it had changed it.
    Stale,
    /// It has slept through an earlier change as well.
    TwoBehind,
}

const SITUATIONS: [Situation; 8] = [
    Situation::Idle,
    Situation::Pending,
    Situation::Unanswered,
    Situation::Undelivered,
    Situation::Refused,
    Situation::RefusedThere,
    Situation::Stale,
    Situation::TwoBehind,
];

/// A centre with a remote in every situation.
pub(super) struct Fleet<B> {
    pub(super) world: World<B>,
    ships: Vec<Ship>,
    /// What the table that changes is called now.
    pub(super) item: &'static str,
    /// What the centre had before the change.
    before: String,
}

struct Ship {
    device: Device,
    situation: Situation,
    /// Its keys begin here.
    base: u32,
}

/// What is expected of the changes that remotes had made before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// All of them reach the centre.
    Kept,
    /// Those of the table `item` may be refused, and stay with their values.
    RefusedOrKept,
}

fn rows(base: u32) -> String {
    let row = |number: u32| {
        let id = base + number;
        format!("({id}, 1, {number}, 'old {id}', {number}, 1.25)")
    };
    let items: Vec<String> = (1..=6).map(row).collect();
    let kinds = (1..=2).map(|number| format!("({}, 'kind {number}')", base + number));
    format!(
        "INSERT INTO item VALUES {}; INSERT INTO kind VALUES {};",
        items.join(", "),
        kinds.collect::<Vec<_>>().join(", ")
    )
}

impl<B: Backend> Fleet<B> {
    /// Every remote has synced, and then got into its situation.
    pub(super) fn open() -> Fleet<B> {
        let mut schema = format!(
            "CREATE TABLE assignment (login TEXT NOT NULL, region INTEGER NOT NULL,
                 PRIMARY KEY (login, region));
             INSERT INTO assignment VALUES ('ada', 1), ('ada', 2);
             CREATE TABLE kind (kind_id INTEGER NOT NULL PRIMARY KEY,
                 name TEXT NOT NULL CHECK (trim(name) <> ''));
             {}",
            create("item", ITEM, KEY)
        );
        for index in 0..SITUATIONS.len() as u32 {
            schema += &rows((index + 1) * 100);
        }
        let world = World::<B>::open(Scenario {
            schema,
            publication: BEFORE,
            tables: &[],
            users: &["ada"],
            limits: "",
        });
        let mut fleet = Fleet {
            world,
            ships: Vec::new(),
            item: "item",
            before: String::new(),
        };
        for (index, &situation) in SITUATIONS.iter().enumerate() {
            let device = fleet.world.synced("ada");
            let base = (index as u32 + 1) * 100;
            if situation == Situation::TwoBehind {
                device.edit(&edits(base));
            }
            fleet.ships.push(Ship {
                device,
                situation,
                base,
            });
        }
        // The change that one sleeps through.
        fleet
            .world
            .execute("ALTER TABLE kind ADD COLUMN colour TEXT; UPDATE kind SET colour = 'red'");
        fleet.deploy(BEFORE);
        for ship in &mut fleet.ships {
            ship.get_into_situation(&fleet.world);
        }
        // Meanwhile others work.
        let others = fleet.ships.iter().map(|ship| ship.base + 6);
        let others: Vec<String> = others.map(|id| id.to_string()).collect();
        fleet.world.execute(&format!(
            "UPDATE item SET note = 'theirs' WHERE item_id IN ({})",
            others.join(", ")
        ));
        fleet.before = fleet.centre();
        fleet
    }

    /// All rows of the centre, and the changes that lost against them.
    fn centre(&self) -> String {
        let mut rows = self.world.rows("SELECT * FROM kind");
        rows.extend(self.world.rows(&format!("SELECT * FROM {}", self.item)));
        let conflicts = self.world.server.conflicts().into_iter();
        rows.extend(conflicts.filter_map(|conflict| conflict.uploaded));
        rows.join("\n")
    }

    /// Deploys a publication and serves it.
    pub(super) fn deploy(&mut self, publication: &str) {
        self.world.republish(publication);
        for ship in &self.ships {
            ship.device.network.redirect(self.world.server.address);
        }
    }

    /// Everybody uploads, and downloads nothing.
    pub(super) fn upload_alone(&mut self) {
        for ship in &mut self.ships {
            ship.device.sync_only(SyncDirection::UploadOnly);
        }
    }

    /// Everybody syncs until there is nothing left to say; then nothing is lost, and the
    /// tables (with these columns) are what they are in the centre.
    #[track_caller]
    pub(super) fn assert_arrives(&mut self, fate: Fate, tables: &[(&str, &str)]) {
        for ship in &mut self.ships {
            for _ in 0..3 {
                ship.device.sync();
            }
        }
        for ship in &mut self.ships {
            // What the last of them did reaches the first.
            ship.device.sync();
        }
        let centre = format!("{}\n{}", self.before, self.centre());
        for ship in &mut self.ships {
            ship.assert_nothing_lost(fate, &centre);
            for (table, columns) in tables {
                ship.assert_equal(&self.world, table, columns);
            }
        }
    }

    /// The remotes' files.
    pub(super) fn devices(&mut self) -> impl Iterator<Item = &mut Device> {
        self.ships.iter_mut().map(|ship| &mut ship.device)
    }
}

/// One of every operation; every new value tells whose it is.
fn edits(base: u32) -> String {
    format!(
        "UPDATE item SET note = 'updated {base}' WHERE item_id = {base} + 1;
         DELETE FROM item WHERE item_id = {base} + 2;
         INSERT INTO item (item_id, region, area, note, amount, price)
             VALUES ({base} + 9, 2, 9, 'inserted {base}', 9, '9.25');
         UPDATE item SET amount = {base} + 7000 WHERE item_id = {base} + 3;
         UPDATE item SET amount = {base} + 8000, note = 'both {base}' WHERE item_id = {base} + 4;
         UPDATE item SET region = 2 WHERE item_id = {base} + 5;
         UPDATE kind SET name = 'renamed {base}' WHERE kind_id = {base} + 1;
         INSERT INTO kind (kind_id, name) VALUES ({base} + 9, 'new {base}');"
    )
}

impl Ship {
    fn get_into_situation<B: Backend>(&mut self, world: &World<B>) {
        let (device, base) = (&mut self.device, self.base);
        match self.situation {
            Situation::Idle => {
                device.sync();
            }
            // It stays at sea.
            Situation::TwoBehind => {}
            Situation::Pending => {
                device.sync();
                device.edit(&edits(base));
            }
            Situation::Unanswered => {
                device.sync();
                device.edit(&edits(base));
                let answer = |control: &Control| matches!(control, Control::ResultEnd(_));
                let place = Place::message(Way::Down, answer);
                device.network.plan(place, Accident::CutInside);
                device.try_sync().expect_err("no answer comes");
                assert!(device.network.finish_plan());
            }
            Situation::Undelivered => {
                device.sync();
                device.edit(&edits(base));
                let sent = |control: &Control| matches!(control, Control::UploadEnd(_));
                let place = Place::message(Way::Up, sent);
                device.network.plan(place, Accident::CutInside);
                device.try_sync().expect_err("nothing arrives");
                assert!(device.network.finish_plan());
                device.edit(&format!(
                    "UPDATE item SET note = 'newer {base}' WHERE item_id = {base} + 6"
                ));
            }
            Situation::Refused => {
                device.sync();
                device.edit(&edits(base));
                device.edit(&format!("INSERT INTO kind VALUES ({base} + 8, '', NULL)"));
                assert_eq!(device.sync().refused, 1);
            }
            Situation::RefusedThere => {
                device.sync();
                device.edit(&edits(base));
                // Of a region that nobody has.
                device.edit(&format!(
                    "INSERT INTO item (item_id, region, area, note, amount, price)
                         VALUES ({base} + 8, 7, 8, 'refused {base}', 8, '8.25')"
                ));
                assert_eq!(device.sync().refused, 1);
            }
            Situation::Stale => {
                device.sync();
                device.edit(&edits(base));
                world.execute(&format!(
                    "UPDATE item SET note = 'theirs too' WHERE item_id = {base} + 4"
                ));
                device.remote.set_direction(SyncDirection::DownloadOnly);
                device.sync();
                assert_eq!(device.value("SELECT count(*) FROM tidewater_stale"), "1");
                device.remote.set_direction(SyncDirection::Both);
            }
        }
    }

    /// Whether a refusal was there before the change.
    fn was_refused(&self, key: &str) -> bool {
        let key = key.trim_matches(['[', ']']).split(',').next();
        self.situation == Situation::RefusedThere && key == Some(&(self.base + 8).to_string())
    }

    fn refused(&mut self) -> Vec<(String, String, String)> {
        let refused = self.device.refused().into_iter();
        let refused = refused.map(|it| (it.table, it.key, it.values.unwrap_or_default()));
        refused.collect()
    }

    /// Every value that was written here is in the centre, or listed as refused.
    #[track_caller]
    fn assert_nothing_lost(&mut self, fate: Fate, centre: &str) {
        let (situation, base) = (self.situation, self.base);
        let refused = self.refused();
        let expected = usize::from(situation == Situation::Refused);
        let unexpected = refused
            .iter()
            .filter(|it| it.0 != "kind" && !self.was_refused(&it.1));
        if fate == Fate::Kept {
            assert_eq!(unexpected.count(), 0, "{situation:?}: {refused:?}");
        }
        let kinds = refused.iter().filter(|it| it.0 == "kind").count();
        assert_eq!(kinds, expected, "{situation:?}: {refused:?}");
        assert_eq!(self.device.pending(), 0, "{situation:?} has changes left");
        if situation == Situation::Idle {
            return;
        }
        // The values of a refused change are in its row, or beside it where the row or the
        // column had to go.
        let mut kept: Vec<String> = refused.iter().map(|it| it.2.clone()).collect();
        let tables = self
            .device
            .rows("SELECT name FROM sqlite_schema WHERE type = 'table'");
        for (table, key, _) in refused.iter().filter(|it| tables.contains(&it.0)) {
            let key = key.trim_matches(['[', ']']).split(',').next();
            let key = key.unwrap_or_default();
            let column = if table == "kind" {
                "kind_id"
            } else {
                "item_id"
            };
            let row = format!("SELECT * FROM {table} WHERE {column} = {key}");
            kept.extend(self.device.rows(&row));
        }
        let everywhere = format!("{centre}\nrefused here:\n{}", kept.join("\n"));
        let marks = [
            format!("updated {base}"),
            format!("inserted {base}"),
            format!("{}", base + 7000),
            format!("both {base}"),
            format!("{}", base + 8000),
            format!("renamed {base}"),
            format!("new {base}"),
        ];
        let there = (situation == Situation::RefusedThere).then(|| format!("refused {base}"));
        for mark in marks.into_iter().chain(there) {
            assert!(
                everywhere.contains(&mark),
                "{situation:?}: {mark:?} is lost:\n{everywhere}"
            );
        }
    }

    #[track_caller]
    fn assert_equal<B: Backend>(&mut self, world: &World<B>, table: &str, columns: &str) {
        let aside: BTreeSet<String> = self
            .refused()
            .into_iter()
            .filter(|it| it.0 == table)
            .map(|it| it.1.replace(['[', ']', '"'], "").replace(',', "|"))
            .collect();
        let sorted = |rows: Vec<String>| {
            let mut rows: Vec<String> = rows
                .into_iter()
                .filter(|row| !aside.contains(row.split('|').next().unwrap_or_default()))
                .collect();
            rows.sort_unstable();
            rows
        };
        let sql = format!("SELECT {columns} FROM {table}");
        let there = sorted(world.rows(&sql));
        let here = sorted(self.device.rows(&sql));
        assert_eq!(here, there, "{:?}: {table} differs", self.situation);
    }
}
