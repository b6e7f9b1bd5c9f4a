//! Partitioned tables on PostgreSQL: their leaves, and how these come and go.

use super::Dialect;
use super::name;
use super::random::Random;
use super::schema::{LEAVES, Leaves, Table};
use super::spelling::literal;

impl Table {
    /// What stands behind the table's definition.
    pub(super) fn partition_by(&self) -> String {
        match self.leaves {
            Leaves::None => String::new(),
            Leaves::Hash(column) => format!(" PARTITION BY HASH ({})", self.names(&[column])),
            Leaves::List(column) => format!(" PARTITION BY LIST ({})", self.names(&[column])),
        }
    }

    /// The statements that make all leaves.
    pub(super) fn create_leaves(&self) -> String {
        if self.leaves == Leaves::None {
            return String::new();
        }
        let mut sql = String::new();
        for leaf in 0..LEAVES {
            let below = match self.leaves {
                Leaves::Hash(_) if leaf == LEAVES - 1 => self.partition_by(),
                _ => String::new(),
            };
            sql += &format!(
                "CREATE TABLE {} PARTITION OF {} {}{below};\n",
                self.leaf(leaf),
                self.sql_name(Dialect::Postgres),
                self.bounds(leaf)
            );
            for part in 0..2 {
                if !below.is_empty() {
                    sql += &format!(
                        "CREATE TABLE \"leaf_{}_{leaf}_{part}\" PARTITION OF {} \
                         FOR VALUES WITH (MODULUS 2, REMAINDER {part});\n",
                        self.id,
                        self.leaf(leaf)
                    );
                }
            }
        }
        sql
    }

    /// A leaf's name in a statement.
    pub fn leaf(&self, leaf: usize) -> String {
        name(&format!("leaf_{}_{leaf}", self.id))
    }

    /// Which rows it has.
    fn bounds(&self, leaf: usize) -> String {
        match self.leaves {
            Leaves::List(_) if leaf == LEAVES - 1 => "DEFAULT".into(),
            Leaves::List(column) => {
                format!("FOR VALUES IN ({})", self.listed(column)[leaf])
            }
            _ => format!("FOR VALUES WITH (MODULUS {LEAVES}, REMAINDER {leaf})"),
        }
    }

    /// Different values of a column, always the same ones.
    fn listed(&self, column: usize) -> Vec<String> {
        let column_type = self.columns[column].column_type;
        let mut values: Vec<String> = Vec::new();
        let mut random = Random::seeded(self.id as u64);
        while values.len() < LEAVES - 1 {
            let value = column_type.sample(Dialect::Postgres, &mut random);
            let value = literal(Dialect::Postgres, column_type, &value);
            if !values.contains(&value) {
                values.push(value);
            }
        }
        values
    }

    /// The statement by which a leaf leaves.
    pub fn detach(&self, leaf: usize) -> String {
        let table = self.sql_name(Dialect::Postgres);
        format!("ALTER TABLE {table} DETACH PARTITION {}", self.leaf(leaf))
    }

    /// The statement by which it comes back.
    pub fn attach(&self, leaf: usize) -> String {
        format!(
            "ALTER TABLE {} ATTACH PARTITION {} {}",
            self.sql_name(Dialect::Postgres),
            self.leaf(leaf),
            self.bounds(leaf)
        )
    }
}
