//! The user that a server runs as when the tests run as root, which no server wants to.

use std::fs;

use anyhow::Context;

/// A user of the system.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Account {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Account {
    /// The server's own user, or else the one that owns nothing.
    pub(crate) fn unprivileged(own: &str) -> anyhow::Result<Self> {
        let users = fs::read_to_string("/etc/passwd")
            .context("the server does not run as root, and there is no list of other users")?;
        [own, "nobody"]
            .iter()
            .find_map(|name| Self::named(&users, name))
            .with_context(|| {
                format!("the server does not run as root, and there is no user {own} or nobody")
            })
    }

    fn named(users: &str, name: &str) -> Option<Self> {
        users.lines().find_map(|line| {
            let mut fields = line.split(':');
            if fields.next() != Some(name) {
                return None;
            }
            let uid = fields.nth(1)?.parse().ok()?;
            let gid = fields.next()?.parse().ok()?;
            Some(Self { uid, gid })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn account_is_read_from_the_list_of_users() {
        let users = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65533::/:/bin/false\n";
        let account = Account::named(users, "nobody").unwrap();
        assert_eq!((account.uid, account.gid), (65534, 65533));
        assert!(Account::named(users, "postgres").is_none());
    }
}
