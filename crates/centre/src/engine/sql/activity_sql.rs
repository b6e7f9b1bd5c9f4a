//! How a database tells what else goes on in it.

/// What a database tells of its sessions, as neutral texts; `None` for what it cannot tell.
#[derive(Clone, Copy, Debug, Default)]
pub struct ActivitySql {
    /// Yields how many other sessions there are of programs that call themselves as this one does.
    pub other_sessions: Option<&'static str>,
    /// Yields when the oldest transaction that is open began, in milliseconds since 1970, NULL if none
    /// is, and how many sessions wait for a lock.
    pub load: Option<&'static str>,
    /// Yields the transactions for which syncs wait, or have waited and would again, because they
    /// have not ended: the fields of
    /// [`BlockingTransaction`](crate::records::BlockingTransaction), in their order.
    pub blockers: Option<&'static str>,
    /// Where a role may not see when the transactions of others began: the right to.
    pub sight: Option<SightOfTransactions>,
}

/// The right to see when the transactions of other roles began.
#[derive(Clone, Copy, Debug)]
pub struct SightOfTransactions {
    /// Yields whether the server's role has it.
    pub asks: &'static str,
    /// What gives it, for people.
    pub grant: &'static str,
}
