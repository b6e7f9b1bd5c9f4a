//! Whether rows are in a scope: as they were, or as they are to be.

use std::collections::HashSet;
use std::sync::Arc;

use tidewater_protocol::pack::pack_values;
use tidewater_protocol::{ColumnType, Datum, Table};

use crate::engine::exact::{FEW_COLUMNS, exact};
use crate::engine::publication::RowRule;
use crate::engine::window::Window;
use crate::scope::RuleScope;

/// Tells whether rows are in a table's part of a scope.
pub struct Membership<'a> {
    rules: Vec<RuleMembership<'a>>,
    /// By which rows may be written, if not all of them.
    written: Option<RuleMembership<'a>>,
    /// Whether all rows are.
    has_all: bool,
    /// The packed keys of the rows that are given, if not all are.
    given: Option<(&'a Table, Arc<HashSet<Vec<u8>>>)>,
}

/// Why somebody may not write a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// It is not his.
    OutOfScope,
    /// It is, and only to be read.
    ReadOnly,
}

impl Barrier {
    /// The same for people.
    pub fn reason(self) -> &'static str {
        match self {
            Barrier::OutOfScope => "this row is not in your partitions",
            Barrier::ReadOnly => "this row may be read, but not written by you",
        }
    }
}

/// Tells whether rows are in scope by one rule.
struct RuleMembership<'a> {
    rule: &'a RowRule,
    scope: &'a RuleScope,
    /// Where its windows begin; empty if they do not count.
    lows: &'a [i64],
    packed: Vec<u8>,
    /// The partition of the row before: rows come in runs.
    last: Vec<u8>,
}

impl<'a> Membership<'a> {
    /// By the rules of the table, each with what is in scope by it.
    pub fn new(rules: &'a [RowRule], scope: &'a [RuleScope]) -> Membership<'a> {
        let rules = rules.iter().zip(scope);
        let rules = rules.map(|(rule, scope)| RuleMembership::new(rule, scope));
        Membership {
            rules: rules.collect(),
            written: None,
            has_all: false,
            given: None,
        }
    }

    /// All rows are, and may be written.
    pub fn of_all() -> Membership<'a> {
        Membership {
            rules: Vec::new(),
            written: None,
            has_all: true,
            given: None,
        }
    }

    /// The same, where only those rows may be written that this rule gives.
    pub fn written_by(mut self, rule: Option<&'a RowRule>, scope: &'a RuleScope) -> Membership<'a> {
        self.written = rule.map(|rule| RuleMembership::new(rule, scope));
        self
    }

    /// The same, where of the rows that the centre has only those count that have these keys.
    pub fn given(mut self, table: &'a Table, keys: Arc<HashSet<Vec<u8>>>) -> Membership<'a> {
        self.given = Some((table, keys));
        self
    }

    fn is_given(&self, row: &[Datum<'_>]) -> bool {
        self.given.as_ref().is_none_or(|(table, keys)| {
            let key: Vec<Datum<'_>> = table.key.iter().map(|&it| row[it]).collect();
            let types: Vec<ColumnType> = table.key_columns().map(|it| it.column_type).collect();
            let mut packed = Vec::new();
            pack_values(&mut packed, &types, &key);
            keys.contains(&packed)
        })
    }

    /// The same, whether or not rows are in the windows.
    pub fn of_any_age(mut self) -> Membership<'a> {
        let rules = self.rules.iter_mut().chain(&mut self.written);
        rules.for_each(|rule| rule.lows = &[]);
        self
    }

    /// Why a row, as it is read, may not be written.
    pub fn barrier(&mut self, row: &[Datum<'_>]) -> Option<Barrier> {
        match self.is_given(row) {
            true => self.barrier_to(row, false),
            false => Some(Barrier::OutOfScope),
        }
    }

    /// Why a row that a remote makes may not be written. Of one that leaves it to the centre whose
    /// it is, that cannot be told.
    pub fn barrier_to_new(&mut self, row: &[Datum<'_>]) -> Option<Barrier> {
        self.barrier_to(row, true)
    }

    fn barrier_to(&mut self, row: &[Datum<'_>], is_new: bool) -> Option<Barrier> {
        if self.has_all {
            return None;
        }
        let leaves_open = |rule: &RuleMembership<'_>| is_new && rule.is_to_be_filled(row);
        let mut held = self.rules.iter_mut();
        if !held.any(|rule| leaves_open(rule) || rule.has(row)) {
            return Some(Barrier::OutOfScope);
        }
        let mut written = self.written.iter_mut();
        let may_write = written.all(|rule| leaves_open(rule) || rule.has(row));
        (!may_write).then_some(Barrier::ReadOnly)
    }

    /// Whether a row, as it is read, is in scope. A row with a NULL among its partition values is
    /// in no partition. Of one that has the published columns only it cannot be told whether it is
    /// in scope by others that it follows: then it may be.
    pub fn has(&mut self, row: &[Datum<'_>]) -> bool {
        self.has_all || self.is_given(row) && self.rule(row).is_some()
    }

    /// The first rule by which it is.
    pub fn rule(&mut self, row: &[Datum<'_>]) -> Option<usize> {
        self.rules.iter_mut().position(|rule| rule.has(row))
    }
}

impl<'a> RuleMembership<'a> {
    fn new(rule: &'a RowRule, scope: &'a RuleScope) -> RuleMembership<'a> {
        RuleMembership {
            rule,
            scope,
            lows: &scope.lows,
            packed: Vec::new(),
            last: Vec::new(),
        }
    }

    /// Whether the centre says whose it is.
    fn is_to_be_filled(&self, row: &[Datum<'_>]) -> bool {
        self.rule.filled.iter().any(|&it| row[it] == Datum::Null)
    }

    fn has(&mut self, row: &[Datum<'_>]) -> bool {
        if self.rule.follows && self.rule.columns.iter().any(|&it| it >= row.len()) {
            return true;
        }
        let windows = self.rule.windows.iter().zip(self.lows);
        let mut windows = windows.map(|(window, &low)| Window::has(row[window.column], low));
        windows.all(|is_in| is_in) && (self.rule.query.is_none() || self.is_in_partition(row))
    }

    fn is_in_partition(&mut self, row: &[Datum<'_>]) -> bool {
        let types = &self.rule.types;
        let values = self.rule.columns.iter().zip(types);
        let mut values = values.map(|(&index, &column_type)| exact(column_type, row[index]));
        self.packed.clear();
        if types.len() <= FEW_COLUMNS {
            let mut few = [Datum::Null; FEW_COLUMNS];
            few.iter_mut()
                .zip(values)
                .for_each(|(to, value)| *to = value);
            pack_values(&mut self.packed, types, &few[..types.len()]);
        } else {
            let values: Vec<Datum<'_>> = values.by_ref().collect();
            pack_values(&mut self.packed, types, &values);
        }
        if !self.last.is_empty() && self.packed == self.last {
            return true;
        }
        let has = self.scope.partitions.contains(&self.packed);
        if has {
            std::mem::swap(&mut self.last, &mut self.packed);
        }
        has
    }
}
