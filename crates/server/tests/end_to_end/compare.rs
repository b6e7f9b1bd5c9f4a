//! Remotes compared with the centre, row for row.

use std::collections::{BTreeSet, HashSet};

use crate::backend::Backend;
use crate::device::Device;
use crate::scenario::{Column, Table};
use crate::world::World;

/// How many differing rows a failure prints.
const SHOWN: usize = 8;

/// Every remote equals the centre restricted to its partitions.
#[track_caller]
pub(crate) fn assert_converged<B: Backend>(world: &World<B>, devices: &[&Device]) {
    for device in devices {
        compare(world, device, &HashSet::new());
    }
}

/// Every remote equals the centre restricted to its partitions, but for the rows that the
/// centre refused from it, and the parents that these refer to: those stay as long as they do.
#[track_caller]
pub(crate) fn assert_converged_but_refused<B: Backend>(
    world: &World<B>,
    devices: &mut [&mut Device],
) {
    for device in devices {
        let mut aside = HashSet::new();
        for refused in device.refused() {
            // Keys of one integer, as JSON arrays.
            let key = refused.key.replace(['[', ']'], "");
            let table = world.scenario.tables.iter();
            for table in table.filter(|it| it.name == refused.table) {
                for parent in table.parents {
                    let sql = format!(
                        "SELECT {} FROM {} WHERE {} = {key}",
                        parent.column, table.name, parent.child_key
                    );
                    let keys = device.rows(&sql).into_iter();
                    aside.extend(keys.map(|key| (parent.table.to_owned(), key)));
                }
            }
            aside.insert((refused.table, key));
        }
        compare(world, device, &aside);
    }
}

#[track_caller]
fn compare<B: Backend>(world: &World<B>, device: &Device, aside: &HashSet<(String, String)>) {
    for table in world.scenario.tables {
        let counts = |row: &String| {
            let key = row.split('|').next().unwrap_or_default();
            !aside.contains(&(table.name.to_owned(), key.to_owned()))
        };
        let mut centre = world.rows(&centre_query::<B>(table, &device.user));
        let mut remote = device.rows(&remote_query(table));
        centre.retain(counts);
        remote.retain(counts);
        centre.sort_unstable();
        remote.sort_unstable();
        if centre != remote {
            let centre: BTreeSet<&String> = centre.iter().collect();
            let remote: BTreeSet<&String> = remote.iter().collect();
            panic!(
                "{} of {} differs from the centre\nonly in the centre: {:#?}\nonly on the remote: {:#?}",
                table.name,
                device.user,
                centre.difference(&remote).take(SHOWN).collect::<Vec<_>>(),
                remote.difference(&centre).take(SHOWN).collect::<Vec<_>>(),
            );
        }
    }
}

fn centre_query<B: Backend>(table: &Table, user: &str) -> String {
    let columns = table.columns.iter().map(|column| match column {
        Column::Plain(name) => (*name).to_owned(),
        Column::Decimal(name, scale) => B::decimal(name, *scale),
        Column::Timestamp(name) => B::timestamp(name),
    });
    let columns = columns.collect::<Vec<_>>().join(", ");
    let scope = table.scope.replace("{user}", user);
    format!("SELECT {columns} FROM {} WHERE {scope}", table.name)
}

fn remote_query(table: &Table) -> String {
    let columns = table.columns.iter().map(|column| match column {
        Column::Plain(name) | Column::Decimal(name, _) | Column::Timestamp(name) => *name,
    });
    let columns = columns.collect::<Vec<_>>().join(", ");
    format!("SELECT {columns} FROM {}", table.name)
}
