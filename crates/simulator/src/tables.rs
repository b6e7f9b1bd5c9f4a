//! The published tables: their columns and keys, and which rows of them a user holds.

use rusqlite::types::{FromSqlError, Value, ValueRef};
use rusqlite::{Connection, OptionalExtension};

use crate::calendar::low_day;

/// What the values of a table's key look like. Whoever talks about rows numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Integer,
    Uuid,
    /// With two digits behind the point.
    Decimal,
}

impl Key {
    /// The key of a row.
    pub(crate) fn value(self, number: i64) -> Value {
        match self {
            Key::Integer => number.into(),
            Key::Uuid => format!("{number:08x}-0000-4000-8000-00000000abcd").into(),
            Key::Decimal => format!("{number}.00").into(),
        }
    }

    /// The number of a row.
    ///
    /// # Errors
    /// It is the key of no row.
    pub(crate) fn number(self, value: ValueRef<'_>) -> Result<i64, FromSqlError> {
        let text = match value {
            ValueRef::Integer(number) if self == Key::Integer => return Ok(number),
            value => value.as_str()?,
        };
        self.parse(text).ok_or(FromSqlError::InvalidType)
    }

    fn parse(self, text: &str) -> Option<i64> {
        let number = match self {
            Key::Integer => text.parse(),
            Key::Uuid => i64::from_str_radix(text.get(..8)?, 16),
            Key::Decimal => text.strip_suffix(".00")?.parse(),
        };
        number.ok()
    }

    /// The key of a row as it is told to people.
    pub(crate) fn json(self, number: i64) -> String {
        match self.value(number) {
            Value::Text(text) => format!("[\"{text}\"]"),
            _ => format!("[{number}]"),
        }
    }

    /// The number of a row of which people were told.
    pub(crate) fn number_in(self, json: &str) -> Option<i64> {
        self.parse(json.trim_matches(['[', ']', '"']))
    }

    /// What an application may take for the key of a row: it is to hear at once that it is none.
    pub(crate) fn misspelt(self, number: i64) -> Value {
        match self {
            Key::Integer => Value::Null,
            Key::Uuid => format!("{number:08X}-0000-4000-8000-00000000ABCD").into(),
            Key::Decimal => format!("{number}.0").into(),
        }
    }
}

/// A published table.
pub(crate) struct SyncedTable {
    pub(crate) name: &'static str,
    pub(crate) key_is: Key,
    /// All published columns, the key first.
    pub(crate) columns: &'static [&'static str],
    /// The column that every change gives a text of its own.
    pub(crate) text: &'static str,
    /// Which rows of the centre a user holds.
    pub(crate) held: HoldingRule,
    /// A column with the key of another table, and that table.
    pub(crate) parent: Option<(&'static str, &'static str)>,
}

impl SyncedTable {
    pub(crate) fn key(&self) -> &'static str {
        self.columns[0]
    }

    /// Whether rows have a code: in the centre, one row only.
    pub(crate) fn has_code(&self) -> bool {
        self.columns.contains(&"code")
    }

    /// The columns that say where a row belongs.
    pub(crate) fn places(&self) -> Vec<&'static str> {
        let columns = self.columns[1..].iter().copied();
        columns
            .filter(|it| *it != self.text && *it != "stamp")
            .collect()
    }

    /// The column that refers to a parent, and the parent.
    pub(crate) fn reference(&self) -> Option<(&'static str, &'static SyncedTable)> {
        let (column, parent) = self.parent?;
        let parent = EDITED.iter().find(|it| it.name == parent)?;
        Some((column, parent))
    }

    /// Which of [`EDITED`] go when a row of this one goes.
    pub(crate) fn children(&self) -> impl Iterator<Item = usize> {
        let is_child = |it: &SyncedTable| it.parent.is_some_and(|(_, parent)| parent == self.name);
        (0..EDITED.len()).filter(move |&index| is_child(&EDITED[index]))
    }
}

/// Which rows a user holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldingRule {
    All,
    /// Those of his regions.
    Mine,
    /// And those whose code he likes.
    MineOrLiked,
    /// Those of the days of the window.
    Recent,
    /// Those whose parents he holds.
    OfParent,
    /// Those of the one of his regions that his remote asks for.
    Asked,
}

/// Who holds rows, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holder<'a> {
    pub(crate) user: &'a str,
    pub(crate) now_ms: i64,
    /// What his remote has set the parameter to.
    pub(crate) asked: Option<&'a str>,
}

impl SyncedTable {
    /// The condition for the rows that somebody holds; his name is `?1`.
    pub(crate) fn held_by(&self, holder: Holder<'_>) -> String {
        let mine = "region IN (SELECT region FROM assignment WHERE login = ?1)";
        match (self.held, self.reference()) {
            (HoldingRule::Mine, _) => mine.into(),
            (HoldingRule::MineOrLiked, _) => {
                format!("({mine} OR code IN (SELECT code FROM liking WHERE login = ?1))")
            }
            (HoldingRule::Recent, _) => {
                format!("?1 IS NOT NULL AND day >= '{}'", low_day(holder.now_ms))
            }
            (HoldingRule::Asked, _) => match holder.asked {
                Some(region) => format!("?1 IS NOT NULL AND CAST(region AS TEXT) = '{region}'"),
                None => "?1 IS NULL".into(),
            },
            (HoldingRule::OfParent, Some((column, parent))) => format!(
                "{column} IN (SELECT {} FROM {} WHERE {})",
                parent.key(),
                parent.name,
                parent.held_by(holder)
            ),
            (HoldingRule::All | HoldingRule::OfParent, _) => "?1 IS NOT NULL".into(),
        }
    }
}

/// What remotes edit.
pub(crate) const EDITED: &[SyncedTable] = &[
    SyncedTable {
        name: "customer",
        key_is: Key::Integer,
        columns: &["customer_id", "region", "code", "name"],
        text: "name",
        held: HoldingRule::Mine,
        parent: None,
    },
    SyncedTable {
        name: "invoice",
        key_is: Key::Integer,
        columns: &["invoice_id", "region", "customer_id", "note", "stamp"],
        text: "note",
        held: HoldingRule::Mine,
        parent: Some(("customer_id", "customer")),
    },
    SyncedTable {
        name: "product",
        key_is: Key::Integer,
        columns: &["product_id", "code", "name"],
        text: "name",
        held: HoldingRule::All,
        parent: None,
    },
    // Others may hold the row that has the code already.
    SyncedTable {
        name: "site",
        key_is: Key::Uuid,
        columns: &["site_id", "region", "code", "name"],
        text: "name",
        held: HoldingRule::MineOrLiked,
        parent: None,
    },
    // Goes with its parent wherever that goes.
    SyncedTable {
        name: "visit",
        key_is: Key::Decimal,
        columns: &["visit_id", "customer_id", "note"],
        text: "note",
        held: HoldingRule::OfParent,
        parent: Some(("customer_id", "customer")),
    },
    // And its children with it.
    SyncedTable {
        name: "measure",
        key_is: Key::Integer,
        columns: &["measure_id", "visit_id", "note"],
        text: "note",
        held: HoldingRule::OfParent,
        parent: Some(("visit_id", "visit")),
    },
    // Goes when its day is too long ago.
    SyncedTable {
        name: "reading",
        key_is: Key::Integer,
        columns: &["reading_id", "day", "note"],
        text: "note",
        held: HoldingRule::Recent,
        parent: None,
    },
    // Comes and goes with what its remote asks for.
    SyncedTable {
        name: "stock",
        key_is: Key::Integer,
        columns: &["stock_id", "region", "note"],
        text: "note",
        held: HoldingRule::Asked,
        parent: None,
    },
];

/// What only comes down: every transaction of the centre keeps the sum of the balances of both.
pub(crate) const BALANCES: &[SyncedTable] = &[balances("account"), balances("reserve")];

const fn balances(name: &'static str) -> SyncedTable {
    SyncedTable {
        name,
        key_is: Key::Integer,
        columns: &["account_id", "balance"],
        text: "balance",
        held: HoldingRule::All,
        parent: None,
    }
}

/// The sum of the balances in every snapshot.
pub(crate) const BALANCE: i64 = 1_000;

/// Regions that there are.
pub(crate) const REGIONS: u64 = 4;

/// The parameter by which a remote asks for one of its user's regions.
pub(crate) const ASKED: &str = "region";

/// What a remote's file asks for at its next sync.
pub(crate) fn asked(remote: &Connection) -> rusqlite::Result<Option<String>> {
    remote
        .prepare_cached("SELECT value FROM tidewater_parameter WHERE name = ?1")?
        .query_row([ASKED], |row| row.get(0))
        .optional()
}

/// Texts that begin so are refused by a constraint of the centre.
pub(crate) const REFUSED: &str = "refused";

/// Texts that begin so are refused by a trigger of the centre.
pub(crate) const DENIED: &str = "denied";
