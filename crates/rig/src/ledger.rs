//! What applications have committed, written down apart from all databases.

use crate::world::JudgedTable;

/// One change of one row.
#[derive(Debug, Clone)]
pub(crate) struct Edit {
    pub(crate) table: JudgedTable,
    pub(crate) key: i64,
    pub(crate) is_delete: bool,
    /// Nobody else ever changes this row.
    pub(crate) is_own: bool,
    /// A text that no other change has; the row has it from then on.
    pub(crate) tag: String,
}

/// The changes of one application, in its order.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Those whose commit was acknowledged, or which were found committed afterwards.
    pub(crate) committed: Vec<Edit>,
    /// Those whose commit was never answered; the journal in their database knows.
    pub(crate) doubtful: Vec<Edit>,
}

/// The changes of one transaction, before its commit.
#[derive(Debug)]
pub(crate) struct Draft<'a> {
    who: &'a str,
    next_tag: &'a mut u64,
    pub(crate) edits: Vec<Edit>,
}

impl<'a> Draft<'a> {
    pub(crate) fn new(who: &'a str, next_tag: &'a mut u64) -> Draft<'a> {
        Draft {
            who,
            next_tag,
            edits: Vec::new(),
        }
    }

    /// Writes down an insert or update; gives its tag.
    pub(crate) fn write(&mut self, table: JudgedTable, key: i64) -> String {
        self.add(table, key, false, false)
    }

    /// The same of a row that nobody else ever changes.
    pub(crate) fn write_own(&mut self, table: JudgedTable, key: i64) -> String {
        self.add(table, key, false, true)
    }

    pub(crate) fn delete(&mut self, table: JudgedTable, key: i64) {
        self.add(table, key, true, false);
    }

    fn add(&mut self, table: JudgedTable, key: i64, is_delete: bool, is_own: bool) -> String {
        *self.next_tag += 1;
        let tag = format!("{}.{}", self.who, self.next_tag);
        self.edits.push(Edit {
            table,
            key,
            is_delete,
            is_own,
            tag: tag.clone(),
        });
        tag
    }
}
