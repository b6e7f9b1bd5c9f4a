//! What the rules of a table say of a row, in words: parents, values, windows.

use tidewater_protocol::{ColumnType, Datum, Value};

use super::typed;
use crate::context::SyncContext;
use crate::engine::catalog::TableInfo;
use crate::engine::compile::{CompiledRule, CompiledTable};
use crate::engine::exact::unpack;
use crate::engine::inspect::InspectedCell;
use crate::engine::publication::RowRule;
use crate::engine::script::ScriptParameter;
use crate::engine::window::Window;
use crate::explain::{ExplainedParent, ExplainedWindow};
use crate::scope::RuleScope;

/// So many partitions are named.
const NAMED: usize = 20;

/// The row, what decides beside it, and what it refers to.
pub(super) struct InspectedRow {
    pub(super) cells: Vec<InspectedCell>,
    pub(super) values: Vec<Value>,
    /// So many of them are the row as downloads read it.
    pub(super) of_row: usize,
}

impl InspectedRow {
    /// The row as downloads read it.
    pub(super) fn row(&self, types: &[ColumnType]) -> Vec<Datum<'_>> {
        typed(types, &self.values[..self.of_row])
    }

    /// The rows above it along the route of a rule.
    pub(super) fn parents(
        &self,
        infos: &[TableInfo],
        compiled: &CompiledTable<'_>,
        number: usize,
    ) -> Vec<ExplainedParent> {
        let rule = &compiled.rules[number];
        let steps = rule.route.iter().enumerate().map(|(at, reach)| {
            let below = rule.table_at(compiled.table, at);
            let refers = reach.columns.iter().map(|&column| {
                let name = infos[below].columns[column].name.clone();
                (name, self.text(number, at, column))
            });
            let mut above = reach.parent_columns.iter();
            ExplainedParent {
                table: infos[reach.parent].title.clone(),
                refers: refers.collect(),
                is_there: above.all(|&column| *self.value(number, at + 1, column) != Value::Null),
            }
        });
        steps.collect()
    }

    fn value(&self, rule: usize, level: usize, column: usize) -> &Value {
        let behind = self.cells.iter().zip(&self.values).skip(self.of_row);
        let mut behind =
            behind.filter(|(it, _)| (it.rule, it.level, it.column) == (rule, level, column));
        behind.next().map_or(&Value::Null, |it| it.1)
    }

    fn text(&self, rule: usize, level: usize, column: usize) -> String {
        match self.value(rule, level, column) {
            Value::Null => "NULL".to_owned(),
            Value::Text(text) => text.clone(),
            Value::Integer(integer) => integer.to_string(),
            Value::Real(real) => real.to_string(),
            Value::Blob(bytes) => Datum::Bytes(bytes).to_string(),
        }
    }
}

/// The partitions that a user holds by a rule, the first of them.
pub(super) fn held_text(rule: &RowRule, held: &RuleScope) -> Vec<Vec<String>> {
    let partitions = held.partitions.iter().take(NAMED);
    let texts = partitions.filter_map(|packed| {
        let values = unpack(packed, &rule.types).ok()?;
        Some(values.iter().map(ToString::to_string).collect())
    });
    texts.collect()
}

/// What the query of a rule names and nobody has said here.
pub(in crate::engine) fn unknown_parameters(
    rule: &RowRule,
    context: &SyncContext,
    publication: &str,
) -> Vec<String> {
    let set = context.parameters.get(publication);
    let query = rule.query.iter();
    let named = query
        .flat_map(|it| &it.parameters)
        .filter_map(|it| match it {
            ScriptParameter::User(name) => Some(name),
            _ => None,
        });
    let unknown = named.filter(|name| set.is_none_or(|it| !it.contains_key(*name)));
    let mut unknown: Vec<String> = unknown.cloned().collect();
    unknown.sort();
    unknown.dedup();
    unknown
}

/// The windows of a rule, and whether the row is in them.
pub(super) fn windows(
    infos: &[TableInfo],
    (compiled, rule): (&CompiledTable<'_>, &CompiledRule),
    (served, held): (&RowRule, &RuleScope),
    row: Option<&[Datum<'_>]>,
) -> Vec<ExplainedWindow> {
    let windows = rule.windows.iter().zip(&served.windows).zip(&held.lows);
    let windows = windows.map(|((window, of), &low)| {
        let table = &infos[rule.table_at(compiled.table, window.level)];
        ExplainedWindow {
            column: match window.level {
                0 => table.columns[window.column].name.clone(),
                _ => format!("{}.{}", table.title, table.columns[window.column].name),
            },
            last: window.last.to_string(),
            from: match low {
                i64::MIN => "the beginning".to_owned(),
                low => of.datum(low).to_string(),
            },
            value: row.map(|row| row[of.column].to_string()),
            is_in: row.map(|row| Window::has(row[of.column], low)),
        }
    });
    windows.collect()
}
