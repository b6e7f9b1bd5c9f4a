//! Statements that read rows of publications: those of partitions, those that changed, those of keys.

use super::column::SqlColumn as _;
use super::served_table::{ServedTable, TableAdapter, TableRule};
use super::sql_dialect::SqlDialect;
use crate::engine::flight::RowSource;

/// Reads something of all rows that a rule can give, up to further conditions, each begun with AND.
pub fn rows_of_rule<T: TableAdapter>(table: &ServedTable<T>, rule: usize, outputs: &str) -> String {
    let from = &table.rules[rule].from;
    match &table.has_no_key {
        None => format!("SELECT {outputs} FROM {from} WHERE true"),
        Some(has_no_key) => format!("SELECT {outputs} FROM {from} WHERE NOT {has_no_key}"),
    }
}

/// Counts those of them that have no key, up to further conditions.
pub fn keyless_rows<T: TableAdapter>(
    table: &ServedTable<T>,
    rule: usize,
    has_no_key: &str,
) -> String {
    let from = &table.rules[rule].from;
    format!("SELECT count(*) FROM {from} WHERE {has_no_key}")
}

/// Reads something of the row that has these values for its key.
pub fn row_of_key<T: TableAdapter>(
    table: &ServedTable<T>,
    outputs: &str,
    key: &[String],
) -> String {
    let same = table.key_columns().zip(key);
    let same =
        same.map(|(column, value)| column.equals(&format!("t.{}", column.sql_name()), value));
    format!(
        "SELECT {outputs} FROM {} WHERE {}",
        table.from,
        same.collect::<Vec<_>>().join(" AND ")
    )
}

/// Yields rows if the change log of a rule has new entries in some partitions, at most one for each.
pub fn new_entries<T: TableAdapter>(
    dialect: &dyn SqlDialect,
    rule: &TableRule<T>,
    source: &RowSource,
    unseen: &str,
) -> String {
    let entry = format!(
        "SELECT 1 AS one FROM {} l WHERE {}{unseen} LIMIT 1",
        rule.log_table(),
        is_in_source(rule, source)
    );
    format!(
        "SELECT e.one FROM {}",
        dialect.for_each(&source.relation, &entry, "e")
    )
}

/// The condition that an entry `l` of a rule's log is of a partition, up to what follows.
pub fn is_in_source<T: TableAdapter>(rule: &TableRule<T>, source: &RowSource) -> String {
    let columns = rule.columns.iter().zip(&rule.log_columns.partition);
    let conditions = columns.zip(&source.columns);
    let conditions =
        conditions.map(|((column, name), value)| format!("l.{name} = {} AND ", column.held(value)));
    conditions.collect()
}

/// The keys that a change log has.
pub struct ChangedKeys<'s, T: TableAdapter> {
    /// The table.
    pub table: &'s ServedTable<T>,
    /// The rule of which the log is.
    pub rule: &'s TableRule<T>,
    /// The partitions, if it has some.
    pub source: &'s RowSource,
    /// The condition that an entry `l` is new.
    pub unseen: &'s str,
    /// Only those behind this key, if there is one.
    pub after: &'s [String],
    /// Whether they come in their order.
    pub in_order: bool,
}

impl<T: TableAdapter> ChangedKeys<'_, T> {
    fn names(&self) -> Vec<String> {
        (0..self.table.key.len())
            .map(|at| format!("k{at}"))
            .collect()
    }

    /// The keys, each once, as columns `k0`, `k1` and so on.
    fn distinct(&self, dialect: &dyn SqlDialect) -> String {
        let (rule, names) = (self.rule, self.names());
        let keys = rule.log_columns.key.iter().zip(&names);
        let keys = keys.map(|(column, name)| format!("l.{column} AS {name}"));
        let mut condition = is_in_source(rule, self.source);
        condition.push_str(self.unseen);
        if self.table.has_no_key.is_some() {
            for name in &rule.log_columns.key {
                condition.push_str(&format!(" AND l.{name} IS NOT NULL"));
            }
        }
        let entries = format!(
            "SELECT {} FROM {} l WHERE {condition}",
            keys.collect::<Vec<_>>().join(", "),
            rule.log_table()
        );
        let names = names.join(", ");
        let mut sql = format!(
            "SELECT DISTINCT {names} FROM {}",
            dialect.for_each(&self.source.relation, &entries, "e")
        );
        if !self.after.is_empty() {
            sql.push_str(&format!(" WHERE ({names}) > ({})", self.after.join(", ")));
        }
        if self.in_order {
            sql.push_str(&format!(" ORDER BY {names}"));
        }
        sql
    }

    fn outputs(&self) -> String {
        let outputs = self.table.key_columns().zip(self.names());
        let outputs = outputs.map(|(column, name)| column.logged_output(&format!("l.{name}")));
        outputs.collect::<Vec<_>>().join(", ")
    }

    /// The query for the keys.
    pub fn keys_sql(&self, dialect: &dyn SqlDialect) -> String {
        format!(
            "SELECT {} FROM ({}) AS l",
            self.outputs(),
            self.distinct(dialect)
        )
    }

    /// The query for the keys, each with the row that is there now or with NULLs.
    pub fn rows_sql(&self, dialect: &dyn SqlDialect) -> String {
        let names = self.names();
        let joined = self.table.key_columns().zip(&names);
        let joined = joined.map(|(column, name)| {
            column.equals_logged(&format!("t.{}", column.sql_name()), &format!("l.{name}"))
        });
        let joined = joined.collect::<Vec<_>>().join(" AND ");
        let (outputs, join) =
            dialect.left_look_up(&self.table.outputs(), &self.table.joined(), &joined);
        let mut sql = format!(
            "SELECT {}, {outputs} FROM ({}) AS l {join}",
            self.outputs(),
            self.distinct(dialect)
        );
        if self.in_order {
            // Nothing has to be sorted for it once more.
            let names = names.iter().map(|name| format!("l.{name}"));
            sql.push_str(&format!(
                " ORDER BY {}",
                names.collect::<Vec<_>>().join(", ")
            ));
        }
        sql
    }
}

/// Reads the rows of keys, each behind the number of its key.
pub fn by_keys<T: TableAdapter>(
    dialect: &dyn SqlDialect,
    table: &ServedTable<T>,
    source: &RowSource,
) -> String {
    let same = table.key_columns().zip(&source.columns);
    let same =
        same.map(|(column, value)| column.equals(&format!("t.{}", column.sql_name()), value));
    let row = format!(
        "SELECT {} FROM {} WHERE {}",
        table.outputs(),
        table.joined(),
        same.collect::<Vec<_>>().join(" AND ")
    );
    format!(
        "SELECT {}, j.* FROM {}",
        source.number,
        dialect.for_each(&source.relation, &row, "j")
    )
}
