//! The members of a partitioned table as they were at one moment.

use tokio_postgres::Row;

/// All partitions: what above, what, and since when.
pub(super) const PARTITIONS: &str = "
SELECT i.inhparent, i.inhrelid, i.xmin::text FROM pg_catalog.pg_inherits i
JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid WHERE c.relispartition";

/// The members of a partitioned table as they were at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Members(Vec<PartitionMember>);

/// A partition of some level. Detached and attached again it is another one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PartitionMember {
    oid: u32,
    /// The transaction that attached it.
    since: String,
}

impl Members {
    /// Finds everything below a table in the rows of [`PARTITIONS`].
    pub(super) fn below(root: u32, rows: &[Row]) -> Members {
        let mut members = Vec::new();
        let mut parents = vec![root];
        while let Some(parent) = parents.pop() {
            for row in rows.iter().filter(|row| row.get::<_, u32>(0) == parent) {
                let oid = row.get(1);
                parents.push(oid);
                let since = row.get(2);
                members.push(PartitionMember { oid, since });
            }
        }
        members.sort();
        Members(members)
    }

    pub(super) fn oids(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|member| member.oid)
    }

    /// As the registry has them, and as [`live_members`] gives them.
    pub(super) fn text(&self) -> String {
        let members = self.0.iter().map(|it| format!("{}:{}", it.oid, it.since));
        members.collect::<Vec<_>>().join(",")
    }

    /// Reads what [`Self::text`] wrote.
    pub(super) fn parse(text: &str) -> Members {
        let member = |text: &str| {
            let (oid, since) = text.split_once(':')?;
            Some(PartitionMember {
                oid: oid.parse().ok()?,
                since: since.to_owned(),
            })
        };
        Members(text.split(',').filter_map(member).collect())
    }

    /// Those that the others do not have.
    pub(super) fn without(&self, others: &Members) -> Members {
        let members = self.0.iter().filter(|it| !others.0.contains(it));
        Members(members.cloned().collect())
    }

    /// Those that both have.
    pub(super) fn kept(&self, others: &Members) -> Members {
        let members = self.0.iter().filter(|it| others.0.contains(it));
        Members(members.cloned().collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
