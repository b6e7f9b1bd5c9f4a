//! What remotes make of rows while they are offline: numbers for keys, what they leave to the
//! centre, what they check; and what will not work there.

use tidewater_protocol::{CheckConstraint, ColumnType, IdentityColumn, Table};

use super::{CompiledTable, Result, named_columns, wrong};
use crate::engine::catalog::{RowNumbering, TableInfo};
use crate::publication::TableSpec;

/// The column that remotes have numbers for.
pub(super) fn identity(
    place: &str,
    spec: &TableSpec,
    table: &TableInfo,
    published: &[usize],
) -> Result<Option<IdentityColumn>> {
    let Some(identity) = &spec.identity else {
        return Ok(None);
    };
    let named = std::slice::from_ref(&identity.column);
    let index = named_columns(place, table, named, "identity")?[0];
    let (name, column) = (&identity.column, &table.columns[index]);
    if column.column_type != Ok(ColumnType::Integer) {
        return Err(wrong(
            format!(
                "{place}: the column {name:?} of `identity` is of the type {}, and numbers are \
                 integers",
                column.type_name
            ),
            "name an integer column, or leave `identity` out and let the application make keys \
             that are unique everywhere (see docs/keys.md)",
        ));
    }
    if !spec.direction.uploads() {
        return Err(wrong(
            format!("{place}: `identity` is for rows of remotes, and none come up"),
            "leave `identity` out, or direction = \"download\"",
        ));
    }
    let Some(column) = published.iter().position(|it| *it == index) else {
        return Err(wrong(
            format!("{place}: `columns` leaves out {name:?} of `identity`"),
            format!("add {name:?} to `columns`"),
        ));
    };
    let rowids = ["rowid", "_rowid_", "oid"];
    let is_taken = |name: &&str| {
        let mut columns = table.columns.iter();
        columns.any(|column| column.name.eq_ignore_ascii_case(name))
    };
    if rowids.iter().all(is_taken) {
        return Err(wrong(
            format!("{place} has columns of all three names of a row's number in SQLite"),
            "rename one of rowid, _rowid_ and oid, or leave `identity` out",
        ));
    }
    Ok(Some(IdentityColumn {
        column,
        block: identity.block,
        refill_below: identity.refill_below,
    }))
}

/// The columns that the centre fills.
pub(super) fn filled(place: &str, spec: &TableSpec, table: &TableInfo) -> Result<Vec<usize>> {
    let filled = named_columns(place, table, &spec.filled_by_centre, "filled_by_centre")?;
    match filled.iter().find(|it| table.key.contains(it)) {
        None => Ok(filled),
        Some(&key) => Err(wrong(
            format!(
                "{place}: `filled_by_centre` names {:?} of the primary key, without which no row \
                 is told from another",
                table.columns[key].name
            ),
            "for numbers, write identity = { column = \"...\" } instead (see docs/keys.md)",
        )),
    }
}

impl CompiledTable<'_> {
    /// What remotes check: the rules about published columns.
    pub(super) fn checks(&self, table: &TableInfo) -> Vec<CheckConstraint> {
        let is_published = |column: &usize| self.columns.contains(column);
        let rules = table.checks.iter();
        let rules = rules.filter(|rule| rule.columns.iter().all(is_published));
        let checks = rules.map(|rule| {
            let names = rule.columns.iter().map(|&it| &*table.columns[it].name);
            let names = names.collect::<Vec<_>>();
            CheckConstraint {
                name: match names[..] {
                    [name] => format!("{}.{name}: {}", table.name, rule.name),
                    _ => format!("{} ({}): {}", table.name, names.join(", "), rule.name),
                },
                condition: rule.condition.clone(),
            }
        });
        checks.collect()
    }

    /// What remotes will find refused.
    pub(super) fn offline_warnings(&self, table: &TableInfo, published: &Table) -> Vec<String> {
        if !published.direction.uploads() {
            return Vec::new();
        }
        let mut warnings = self.unwritten(table, published);
        warnings.extend(self.left_null(table));
        warnings.extend(self.unnumbered(table));
        warnings
    }

    /// Columns without which the centre refuses an insert.
    fn unwritten(&self, table: &TableInfo, published: &Table) -> Vec<String> {
        let title = &table.title;
        let mut warnings = Vec::new();
        for (index, column) in table.columns.iter().enumerate() {
            let has_value = column.nullable || column.has_default || column.is_generated;
            let is_left_out = [&self.filled, &self.writes.read_only, &table.key];
            if has_value || is_left_out.iter().any(|it| it.contains(&index)) {
                continue;
            }
            let name = &column.name;
            match (published.column(name), table.setting_trigger(name)) {
                (_, Some(trigger)) if trigger.is_known() => warnings.push(format!(
                    "{title:?}: the trigger {:?} ({}) sets the column {name:?}, which is NOT NULL \
                     and has no default. Write filled_by_centre = [{name:?}]: then remotes may \
                     leave it NULL",
                    trigger.name, trigger.function
                )),
                (_, Some(trigger)) => warnings.push(format!(
                    "{title:?}: the trigger {:?} may set the column {name:?}, which is NOT NULL and \
                     has no default. This is a guess: the text of its function {:?} names the \
                     column where it could get a value. If the function sets it in every row that \
                     comes without, write filled_by_centre = [{name:?}]: then remotes may leave it \
                     NULL. If not, nothing needs to be done",
                    trigger.name, trigger.function
                )),
                (None, None) => warnings.push(format!(
                    "{title:?}: the column {name:?} is not published, NOT NULL and without a \
                     default: inserts of remotes will be refused. Publish it, give it a default, \
                     or write direction = \"download\"; if a trigger sets it, write \
                     filled_by_centre = [{name:?}]"
                )),
                (Some(_), None) => {}
            }
        }
        warnings
    }

    /// Columns that take NULL, with a default that only the centre can compute.
    fn left_null(&self, table: &TableInfo) -> Option<String> {
        let others = [&self.filled, &self.writes.read_only, &table.key];
        let columns = self.columns.iter().filter(|index| {
            let column = &table.columns[**index];
            let has_default = column.has_default && column.default.is_none();
            let is_other = others.iter().any(|it| it.contains(index));
            has_default && column.nullable && !column.is_generated && !is_other
        });
        let names: Vec<&str> = columns.map(|&it| &*table.columns[it].name).collect();
        let title = &table.title;
        (!names.is_empty()).then(|| {
            format!(
                "{title:?}: remotes cannot compute the defaults of the columns {names:?}, which \
                 take NULL: a row that a remote inserts without them has NULL there, in the centre \
                 too. With filled_by_centre = {names:?} such a NULL becomes the default, also where \
                 somebody means NULL (see docs/keys.md)"
            )
        })
    }

    /// A key that the centre numbers, and remotes do not.
    fn unnumbered(&self, table: &TableInfo) -> Vec<String> {
        let title = &table.title;
        let numbered = table.key.iter().map(|&it| &table.columns[it]);
        let numbered = numbered.filter_map(|column| Some((column, column.numbering.as_ref()?)));
        let identity = self.identity.map(|it| self.columns[it.column]);
        if let Some(index) = identity {
            let column = &table.columns[index];
            let name = &column.name;
            return match &column.numbering {
                Some(RowNumbering::Sequence(_)) => Vec::new(),
                Some(RowNumbering::Highest(advice)) => vec![format!(
                    "{title:?}: the database numbers {name:?} after the highest number there is, \
                     and may take one that a remote has: {advice}"
                )],
                None => vec![format!(
                    "{title:?}: no sequence numbers {name:?}: whoever inserts in the centre has to \
                     take numbers that no remote has (see tidewater.identity_block)"
                )],
            };
        }
        let warned = numbered.filter_map(|(column, numbering)| {
            let RowNumbering::Sequence(what) = numbering else {
                return None;
            };
            let name = &column.name;
            Some(format!(
                "{title:?}: its key column {name:?} is {what}, and remotes know none of its \
                 numbers: two of them will insert the same. Write identity = {{ column = {name:?}, \
                 block = 1000, refill_below = 200 }}, or direction = \"download\" (see \
                 docs/keys.md)"
            ))
        });
        warned.collect()
    }
}
