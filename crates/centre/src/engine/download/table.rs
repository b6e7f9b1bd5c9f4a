//! One table as it is read for a subscription.

use tidewater_protocol::{Code, Datum, Op, RowShape, RowsReader, UnpackedRow, Value};

use super::catching_up::{Filler, is_filled_in};
use super::output::Output;
use super::plan::{RulePlan, TablePlan};
use super::resuming::ReadPosition;
use super::snapshot::DownloadSnapshot;
use super::snapshot_driver::SnapshotDriver;
use super::{KeyOrder, RuleRows, TablePlace, WindowBound};
use crate::download::GivenTable;
use crate::engine::comparing::RangeSums;
use crate::engine::exact::{pack_exact, pack_row, types_of};
use crate::engine::membership::Membership;
use crate::engine::publication::RowRule;
use crate::engine::scripts::{CompiledScript, ScriptEnvironment, ScriptTimer};
use crate::engine::upload::column_map::ColumnMap;
use crate::error::CentreError;
use crate::packed_rows::{RowsChunk, TableRequest};
use crate::scope::RuleScope;
use crate::upload::OwnUpload;

type Result<T> = std::result::Result<T, CentreError>;

/// A script yields a row of NULLs where it is too late to obey.
fn late_null(scripting: &ScriptEnvironment<'_>, table: usize) -> CentreError {
    let script = scripting.scripts.of_table(table, "download_delete_cursor");
    CentreError::Script {
        file: script.map(|it| it.place.clone()).unwrap_or_default(),
        message:
            "it yields NULL for the whole key, by which the remote loses all rows of the table, \
                  behind too many keys: yield that row first, or alone"
                .to_owned(),
        database_code: None,
    }
}

/// One table as it is read.
pub(super) struct TableReading<'a, 'o, D: SnapshotDriver> {
    pub(super) snapshot: &'a mut DownloadSnapshot<D>,
    pub(super) place: TablePlace,
    pub(super) shape: &'a RowShape,
    /// The table's rules.
    pub(super) rules: &'a [RowRule],
    /// What is in scope by them.
    pub(super) scope: &'a [RuleScope],
    pub(super) output: &'a mut Output<'o>,
}

fn slices(partitions: &[Vec<u8>]) -> Vec<&[u8]> {
    partitions.iter().map(Vec::as_slice).collect()
}

impl<'a, D: SnapshotDriver> TableReading<'a, '_, D> {
    /// Sends what is planned for a table: removals before rows, so that a row that moved
    /// between partitions stays. Without `has_changes` the change logs have nothing new. With
    /// `in_units` the gained partitions follow: see [`TableReading::in_units`].
    pub(super) async fn planned(
        &mut self,
        what: &TablePlan,
        own: Option<&OwnUpload>,
        has_changes: bool,
        in_units: bool,
    ) -> Result<()> {
        match what {
            TablePlan::Nothing | TablePlan::Given { .. } | TablePlan::Scripted { .. } => Ok(()),
            TablePlan::Whole => {
                // An empty table, too, replaces what the remote has.
                self.output.announce();
                for rule in 0..self.rules.len() {
                    let whole = self.whole(rule);
                    self.come(&whole).await?;
                }
                Ok(())
            }
            TablePlan::Changes(plans) | TablePlan::Rest { since: plans, .. } => {
                for (rule, plan) in plans.iter().enumerate() {
                    self.lost(rule, plan).await?;
                }
                for (rule, plan) in plans.iter().enumerate() {
                    if !in_units {
                        self.gained(rule, plan).await?;
                    }
                    self.wider(rule, plan).await?;
                }
                match has_changes {
                    true => self.changes(plans, own).await,
                    false => Ok(()),
                }
            }
        }
    }

    /// Sends what a handler has told.
    pub(super) fn given(&mut self, given: &GivenTable, whole: bool) -> Result<()> {
        let output = &mut *self.output;
        if whole {
            output.announce();
        }
        read_given(self.shape, &given.chunks, &mut |row| match row.op {
            Some(Op::Upsert) => output.upsert(&row.new),
            _ if whole => Ok(()),
            _ => output.remove(&row.key),
        })
    }

    /// Compares what a handler has told of all rows, and sends those where the remote differs.
    pub(super) fn compare_given(
        &mut self,
        mut comparison: RangeSums<'_>,
        all: &[RowsChunk],
        follows: bool,
    ) -> Result<()> {
        let output = &mut *self.output;
        read_given(self.shape, all, &mut |row| {
            let is_there = row.op == Some(Op::Upsert);
            match is_there && comparison.add(&row.new) {
                true => output.sink.comparing(),
                false => Ok(()),
            }
        })?;
        let Some(differences) = comparison.outcome() else {
            return Ok(());
        };
        let selection = differences.selection()?;
        if let Some(begin) = &mut output.begin {
            differences.announce(begin, follows);
        }
        output.announce();
        read_given(self.shape, all, &mut |row| match row.op == Some(Op::Upsert)
            && selection.has(&row.new)
        {
            true => output.upsert(&row.new),
            false => Ok(()),
        })
    }

    /// Sends once more all that the scripts yield for a remote that has nothing, to one that has
    /// their changes, and had changed the table while nothing tracked it.
    pub(super) async fn untracked_by_script(
        &mut self,
        scripting: &ScriptEnvironment<'_>,
        name: &str,
    ) -> Result<()> {
        let scripts = &scripting.scripts;
        let of_table = |event| scripts.of_table(self.place.table, event);
        let output = &mut *self.output;
        if let Some(begin) = &mut output.begin {
            begin.replace = true;
            begin.follows_changes = true;
            begin.deletes_unknown = of_table("download_delete_cursor").is_none();
        }
        output.announce();
        let cursor = of_table("download_cursor").into_iter();
        for (script, statement) in cursor.flat_map(CompiledScript::each) {
            let values = scripting.lookup_values(statement, name, &[]);
            let mut take = |row: &[Datum<'_>]| output.upsert(row);
            let query = self
                .snapshot
                .script(self.place, (script, statement), &values, &mut take);
            query.await?;
        }
        Ok(())
    }

    /// Sends what scripts yield: first the keys of rows that go.
    pub(super) async fn by_script(
        &mut self,
        scripting: &ScriptEnvironment<'_>,
        name: &str,
        whole: bool,
        own: Option<&OwnUpload>,
    ) -> Result<()> {
        let table = self.place.table;
        let (shape, output) = (self.shape, &mut *self.output);
        if whole {
            output.announce();
        }
        let statements = |event| {
            let script = scripting.scripts.of_table(table, event);
            script.into_iter().flat_map(CompiledScript::each)
        };
        let mut was_said = false;
        for (script, statement) in statements("download_delete_cursor").filter(|_| !whole) {
            let timed = ScriptTimer::begin();
            let values = scripting.values(statement, name);
            let mut take = |key: &[Datum<'_>]| {
                if key.iter().any(|it| *it != Datum::Null) {
                    return output.remove(key);
                }
                // The remote loses all of its rows. That has to be said before any other.
                match &mut output.begin {
                    Some(begin) => begin.replace = true,
                    None if was_said => {}
                    None => return Err(late_null(scripting, table)),
                }
                was_said = true;
                Ok(())
            };
            let query = self
                .snapshot
                .script(self.place, (script, statement), &values, &mut take);
            query.await?;
            timed.end(scripting, "download_delete_cursor", name);
        }
        if was_said {
            output.announce();
        }
        // What replaces all that the remote has must have its own rows, too.
        let own = own.filter(|_| !whole && !was_said);
        let key_types = types_of(shape, &shape.key);
        for (script, statement) in statements("download_cursor") {
            let timed = ScriptTimer::begin();
            // What is sent whole is so as for a remote that has nothing.
            let values = match whole {
                true => scripting.lookup_values(statement, name, &[]),
                false => scripting.values(statement, name),
            };
            let mut take = |row: &[Datum<'_>]| {
                let key: Vec<Datum<'_>> = shape.key.iter().map(|&it| row[it]).collect();
                let key = (table, pack_exact(&key_types, &key));
                let uploaded = own.and_then(|own| own.rows.get(&key)?.as_ref());
                match uploaded.is_some_and(|it| *it == pack_row(&shape.columns, row)) {
                    true => {
                        output.leave_out();
                        Ok(())
                    }
                    false => output.upsert(row),
                }
            };
            let query = self
                .snapshot
                .script(self.place, (script, statement), &values, &mut take);
            query.await?;
            timed.end(scripting, "download_cursor", name);
        }
        Ok(())
    }

    /// All rows that a rule gives.
    fn whole(&self, rule: usize) -> RuleRows<'a> {
        RuleRows {
            rule,
            partitions: self.scope[rule]
                .partitions
                .iter()
                .map(Vec::as_slice)
                .collect(),
            bounds: self.windows(rule),
            leaves: false,
            order: None,
        }
    }

    /// Sends all rows, or those of the partitions that were `gained` by each rule, from a position on,
    /// with marks.
    pub(super) async fn in_units(
        &mut self,
        from: &ReadPosition,
        gained: Option<Vec<&'a [Vec<u8>]>>,
    ) -> Result<()> {
        self.output.whole_rows = from.rows;
        if from.is_inside() {
            // What follows is behind the changes.
            self.output.flush(1)?;
        } else {
            self.output.mark_if_due(|| from.clone())?;
            self.output.announce();
        }
        for rule in from.unit().0..self.rules.len() {
            let mut whole = self.whole(rule);
            if let Some(gained) = &gained {
                if gained[rule].is_empty() {
                    continue;
                }
                whole.partitions = slices(gained[rule]);
            }
            let has_partitions = self.rules[rule].query.is_some();
            for unit in from.units_left(&whole, has_partitions, self.shape)? {
                if !unit.goes_on {
                    self.output.mark_if_due(|| unit.position.clone())?;
                }
                self.come_in(&unit.part, Some(&unit.position)).await?;
            }
        }
        Ok(())
    }

    /// The windows of a rule as they are now.
    fn windows(&self, rule: usize) -> Vec<WindowBound> {
        let lows = self.scope[rule].lows.iter().enumerate();
        let bounds = lows.map(|(window, &from)| WindowBound {
            window,
            from,
            to: None,
        });
        bounds.collect()
    }

    /// Sends rows that are in scope; each by the first rule that gives it.
    async fn come(&mut self, part: &RuleRows<'_>) -> Result<()> {
        self.come_in(part, None).await
    }

    /// The same of a unit: with marks, if it has an order.
    async fn come_in(&mut self, part: &RuleRows<'_>, unit: Option<&ReadPosition>) -> Result<()> {
        let mut membership = Membership::new(self.rules, self.scope);
        let (output, shape) = (&mut *self.output, self.shape);
        let unit = unit.filter(|_| part.order.is_some());
        let mut take = |row: &[Datum<'_>]| match membership.rule(row) {
            Some(rule) if rule == part.rule => {
                output.upsert(row)?;
                output.whole_rows += 1;
                match unit {
                    Some(unit) => output.mark_if_due(|| unit.behind(shape, row)),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        };
        self.snapshot.rows(self.place, part, &mut take).await
    }

    /// Removes rows that are not in scope any more.
    async fn go(&mut self, part: &RuleRows<'_>) -> Result<()> {
        let mut membership = Membership::new(self.rules, self.scope);
        let (output, key) = (&mut *self.output, &self.shape.key);
        let mut take = |row: &[Datum<'_>]| match membership.has(row) {
            true => Ok(()),
            false => {
                let key: Vec<Datum<'_>> = key.iter().map(|&column| row[column]).collect();
                output.remove(&key)
            }
        };
        self.snapshot.rows(self.place, part, &mut take).await
    }

    /// Removes what left by a rule: with partitions, and because a window moved on.
    async fn lost(&mut self, rule: usize, plan: &RulePlan) -> Result<()> {
        if !plan.lost.is_empty() {
            let part = RuleRows {
                rule,
                partitions: slices(&plan.lost),
                bounds: Vec::new(),
                leaves: true,
                order: None,
            };
            self.go(&part).await?;
        }
        for (window, moved) in plan.moved.iter().enumerate() {
            if moved.start < moved.end {
                let part = RuleRows {
                    rule,
                    partitions: slices(&plan.kept),
                    bounds: vec![WindowBound {
                        window,
                        from: moved.start,
                        to: Some(moved.end),
                    }],
                    leaves: true,
                    order: None,
                };
                self.go(&part).await?;
            }
        }
        Ok(())
    }

    /// Sends what came by a rule with partitions.
    async fn gained(&mut self, rule: usize, plan: &RulePlan) -> Result<()> {
        if !plan.gained.is_empty() {
            let part = RuleRows {
                rule,
                partitions: slices(&plan.gained),
                bounds: self.windows(rule),
                leaves: false,
                order: None,
            };
            self.come(&part).await?;
        }
        Ok(())
    }

    /// Sends what came by a rule because a window is wider than it was.
    async fn wider(&mut self, rule: usize, plan: &RulePlan) -> Result<()> {
        for (window, moved) in plan.moved.iter().enumerate() {
            if moved.end < moved.start {
                let mut bounds = self.windows(rule);
                bounds[window].to = Some(moved.start);
                let part = RuleRows {
                    rule,
                    partitions: slices(&plan.kept),
                    bounds,
                    leaves: false,
                    order: None,
                };
                self.come(&part).await?;
            }
        }
        Ok(())
    }

    /// Sends the rows in which new columns have what no remote fills in.
    pub(super) async fn new_columns(&mut self, added: &[(usize, Filler)]) -> Result<()> {
        for rule in 0..self.rules.len() {
            let part = self.whole(rule);
            let mut membership = Membership::new(self.rules, self.scope);
            let output = &mut *self.output;
            let mut take = |row: &[Datum<'_>]| match membership.rule(row) {
                Some(first) if first == rule && !is_filled_in(added, row) => output.upsert(row),
                _ => Ok(()),
            };
            self.snapshot.rows(self.place, &part, &mut take).await?;
        }
        Ok(())
    }

    /// Sends what changed since the watermark.
    async fn changes(&mut self, plans: &[RulePlan], own: Option<&OwnUpload>) -> Result<()> {
        let asked = plans.iter().zip(self.rules);
        let asked = asked.map(|(plan, rule)| rule.query.as_ref().map(|_| plan.concerned()));
        self.changes_in(&asked.collect::<Vec<_>>(), own, None).await
    }

    /// The same from a position on, with marks.
    pub(super) async fn changes_in_units(
        &mut self,
        from: &ReadPosition,
        plans: &[RulePlan],
        own: Option<&OwnUpload>,
    ) -> Result<()> {
        for rule in from.unit().0..self.rules.len() {
            let has_partitions = self.rules[rule].query.is_some();
            let all = RuleRows {
                rule,
                partitions: plans[rule].concerned(),
                bounds: Vec::new(),
                leaves: false,
                order: None,
            };
            for unit in from.units_left(&all, has_partitions, self.shape)? {
                if !unit.goes_on {
                    self.output.mark_if_due(|| unit.position.clone())?;
                }
                let mut asked = vec![Some(Vec::new()); self.rules.len()];
                asked[rule] = has_partitions.then_some(unit.part.partitions);
                let order = unit.part.order.as_ref();
                let unit = order.map(|it| (&unit.position, it));
                self.changes_in(&asked, own, unit).await?;
            }
        }
        Ok(())
    }

    /// Sends what changed in some partitions; of a unit with marks.
    async fn changes_in(
        &mut self,
        asked: &[Option<Vec<&[u8]>>],
        own: Option<&OwnUpload>,
        unit: Option<(&ReadPosition, &KeyOrder<'_>)>,
    ) -> Result<()> {
        let mut membership = Membership::new(self.rules, self.scope);
        let output = &mut *self.output;
        let (table, shape) = (self.place.table, self.shape);
        let key_types = types_of(shape, &shape.key);
        let own = own.filter(|own| !own.rows.is_empty());
        let mut take = |key: &[Datum<'_>], row: Option<&[Datum<'_>]>| {
            let there = row.filter(|row| membership.has(row));
            if let Some(own) = own {
                let key = (table, pack_exact(&key_types, key));
                let is_own = match (own.rows.get(&key), there, row) {
                    (Some(None), None, None) => true,
                    (Some(Some(uploaded)), Some(row), _) => {
                        let published = &row[..shape.columns.len()];
                        *uploaded == pack_row(&shape.columns, published)
                    }
                    _ => false,
                };
                if is_own {
                    output.leave_out();
                    return Ok(());
                }
            }
            match there {
                Some(row) => output.upsert(row)?,
                None => output.remove(key)?,
            }
            match unit {
                Some((unit, _)) => output.mark_if_due(|| unit.behind_key(shape, key)),
                None => Ok(()),
            }
        };
        let order = unit.map(|it| it.1);
        let changes = self.snapshot.changes(self.place, asked, order, &mut take);
        changes.await
    }

    /// Sends the rows of keys that the remote asked for.
    pub(super) async fn answer(&mut self, map: &ColumnMap, request: &TableRequest) -> Result<()> {
        let keys = keys_of(map, request)?;
        let mut membership = Membership::new(self.rules, self.scope);
        let output = &mut *self.output;
        let mut take = |key: &[Datum<'_>], row: Option<&[Datum<'_>]>| match row
            .filter(|row| membership.has(row))
        {
            Some(row) => output.upsert(row),
            None => output.remove(key),
        };
        self.snapshot.by_keys(self.place, &keys, &mut take).await
    }

    /// The same of a table whose rows a script gives: those that it gives, whenever they were
    /// changed. What the remote has of a table of which it gives nothing, stays.
    pub(super) async fn answer_by_script(
        &mut self,
        scripting: &ScriptEnvironment<'_>,
        name: &str,
        (map, request): (&ColumnMap, &TableRequest),
    ) -> Result<()> {
        let Some((script, by_key)) = scripting.scripts.by_key(self.place.table) else {
            return Ok(());
        };
        for key in keys_of(map, request)? {
            let asked: Vec<Value> = key.iter().map(Datum::to_value).collect();
            let values = scripting.lookup_values(by_key, name, &asked);
            let output = &mut *self.output;
            let mut is_given = false;
            let mut take = |row: &[Datum<'_>]| {
                is_given = true;
                output.upsert(row)
            };
            let query = self
                .snapshot
                .script(self.place, (script, by_key), &values, &mut take);
            query.await?;
            if !is_given {
                self.output.remove(&key)?;
            }
        }
        Ok(())
    }

    /// Compares a table, and sends the rows where it differs.
    pub(super) async fn compare(
        &mut self,
        mut comparison: RangeSums<'_>,
        follows: bool,
    ) -> Result<()> {
        let mut membership = Membership::new(self.rules, self.scope);
        let columns = self.shape.columns.len();
        for rule in 0..self.rules.len() {
            let part = self.whole(rule);
            let sink = &mut *self.output.sink;
            let mut take = |kept: &[Datum<'_>], row: Option<&[Datum<'_>]>| {
                let gives = row.and_then(|row| membership.rule(row));
                match gives == Some(rule) && comparison.add(&kept[..columns]) {
                    true => sink.comparing(),
                    false => Ok(()),
                }
            };
            self.snapshot
                .kept_rows(self.place, &part, &mut take)
                .await?;
        }
        let mut keyless_rows = 0;
        for rule in 0..self.rules.len() {
            let part = self.whole(rule);
            keyless_rows += self.snapshot.keyless_rows(self.place, &part).await?;
        }
        if let Some(begin) = self.output.begin.as_mut().filter(|_| keyless_rows > 0) {
            begin.keyless_rows = keyless_rows;
        }
        let Some(differences) = comparison.outcome() else {
            // Otherwise nothing need be said of a table that is equal.
            if keyless_rows > 0 {
                self.output.announce();
            }
            return Ok(());
        };
        let selection = differences.selection()?;
        if let Some(begin) = &mut self.output.begin {
            differences.announce(begin, follows);
        }
        self.output.announce();
        for rule in 0..self.rules.len() {
            let part = self.whole(rule);
            let output = &mut *self.output;
            let mut take = |kept: &[Datum<'_>], row: Option<&[Datum<'_>]>| match row {
                Some(row) if membership.rule(row) == Some(rule) && selection.has(kept) => {
                    output.upsert(row)
                }
                _ => Ok(()),
            };
            self.snapshot
                .kept_rows(self.place, &part, &mut take)
                .await?;
        }
        Ok(())
    }
}

/// Reads what a handler has told.
fn read_given(
    shape: &RowShape,
    chunks: &[RowsChunk],
    take: &mut dyn FnMut(&UnpackedRow<'_>) -> Result<()>,
) -> Result<()> {
    for chunk in chunks {
        let bytes = chunk.read().map_err(|error| CentreError::Internal {
            message: format!("a spool file cannot be read: {error}"),
        })?;
        let mut reader = RowsReader::new(shape, &bytes);
        let mut row = UnpackedRow::default();
        let unreadable = |error: tidewater_protocol::UnpackError| CentreError::Internal {
            message: format!("what a handler has told cannot be read: {error}"),
        };
        while reader.next(&mut row).map_err(unreadable)? {
            take(&row)?;
        }
    }
    Ok(())
}

/// The keys that a remote asks for.
fn keys_of<'r>(map: &'r ColumnMap, request: &'r TableRequest) -> Result<Vec<Vec<Datum<'r>>>> {
    let mut keys = Vec::new();
    let mut reader = RowsReader::new(&map.shape, &request.rows);
    let mut row = UnpackedRow::default();
    while reader.next(&mut row).map_err(malformed)? {
        keys.push(row.key.clone());
    }
    Ok(keys)
}

fn malformed(error: tidewater_protocol::UnpackError) -> CentreError {
    CentreError::Peer {
        message: format!("rows that cannot be read: {error}"),
        code: Code::MalformedMessage,
    }
}
