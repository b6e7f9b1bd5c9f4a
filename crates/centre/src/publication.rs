//! Publications as an operator writes them down, the tables as `init` lists them,
//! and what deploying reports.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use tidewater_protocol::{Direction, PublicationSchema, pack};

use crate::engine::scripts::{CONNECTION, Versions};
use crate::error::CentreError;

/// A publication of the configuration. With its deployment it is recorded as JSON, and servers
/// serve what is recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublicationSpec {
    /// Its name.
    pub name: String,
    /// Its tables, in the order of the configuration.
    pub tables: Vec<TableSpec>,
    /// What its remotes may set.
    #[serde(default)]
    pub parameters: Vec<ParameterSpec>,
    /// As whom the database sees its remotes; as the server's own role if `None`.
    #[serde(default)]
    pub act_as: Option<ActAs>,
    /// What an upload is.
    #[serde(default)]
    pub upload: UploadMode,
    /// What becomes of an upload of which a row is refused.
    #[serde(default)]
    pub on_reject: OnReject,
    /// Whether remotes try refused rows again by themselves after a deployment, or when partitions
    /// came to them.
    #[serde(default)]
    pub replay: ReplayPolicy,
    /// What upload scripts do first.
    #[serde(default)]
    pub upload_order: UploadOrder,
    /// The script versions that it serves; all that there are, if none is named.
    #[serde(default)]
    pub script_versions: Vec<String>,
    /// What takes the place of what is generated.
    #[serde(default)]
    pub scripts: Vec<ScriptSpec>,
}

/// What an upload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UploadMode {
    /// The net changes of all transactions since the last one.
    #[default]
    Net,
    /// A transaction of the application's, which takes effect as a whole or not at all.
    Transactional,
}

/// What becomes of an upload of which a row is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnReject {
    /// The row is set aside, and the others go in.
    #[default]
    SetAside,
    /// Nothing of it takes effect: all rows are refused.
    Abort,
}

/// In which order upload scripts are run. Where a publication has none for a remote's version, deletes
/// go first: they free keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UploadOrder {
    /// Inserts and updates of all tables, then deletes of all tables in the reverse order.
    #[default]
    RowsFirst,
    /// Deletes first.
    DeletesFirst,
}

/// Whether remotes try refused rows again by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReplayPolicy {
    /// After a deployment, and when partitions came to them.
    #[default]
    Auto,
    /// Only when somebody says so.
    No,
}

/// SQL that stands at an event of a sync.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScriptSpec {
    /// The version that it belongs to.
    pub version: String,
    /// The name of its table on remotes; of the connection as a whole if `None`.
    pub table: Option<String>,
    /// The event's name.
    pub event: String,
    /// The file that it was read from, for people.
    pub file: String,
    /// The SQL.
    pub sql: String,
}

impl ScriptSpec {
    /// The script in `FOLDER/VERSION/OF/EVENT.sql`: `of` is the table, or [`CONNECTION`].
    pub fn at(folder: &str, [version, of, event]: [&str; 3], sql: impl Into<String>) -> ScriptSpec {
        ScriptSpec {
            version: version.to_owned(),
            table: (of != CONNECTION).then(|| of.to_owned()),
            event: event.to_owned(),
            file: format!("{folder}/{version}/{of}/{event}.sql"),
            sql: sql.into(),
        }
    }
}

/// The role of the database under which the application's tables are read and written for a remote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ActAs {
    /// The same for everybody.
    Role(String),
    /// What a query yields for the user.
    Query(String),
}

/// A parameter of remotes that not everybody may set to anything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParameterSpec {
    /// Its name: `month` of `{u.month}`.
    pub name: String,
    /// A query for the values that it may have; any if `None`. It may name parameters itself.
    pub allowed: Option<String>,
}

/// A table of a publication, as configured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableSpec {
    /// Its name in the centre, with or without a schema.
    pub name: String,
    /// Which of its rows a remote holds: those that any of these rules gives it.
    pub partition: Vec<RuleSpec>,
    /// Which way its rows travel.
    #[serde(with = "direction")]
    pub direction: Direction,
    /// The published columns; all of them if `None`.
    pub columns: Option<Vec<String>>,
    /// How its changes are noticed.
    pub tracking: TrackingMode,
    /// The column that remotes have numbers for.
    pub identity: Option<IdentitySpec>,
    /// Columns that the centre fills where a remote leaves them NULL.
    pub filled_by_centre: Vec<String>,
    /// What a delete of a remote does to children that it has never seen.
    pub on_unseen_children: OnUnseenChildren,
    /// What remotes may write of what they hold.
    pub writes: WritesSpec,
    /// What becomes of rows that two sides have changed.
    #[serde(default)]
    pub conflict: ConflictSpec,
    /// What handlers of the server have to say about its rows.
    #[serde(default)]
    pub handled: HandledSpec,
}

/// What handlers of the server have to say about rows of a table. Who they are, is the server's
/// affair: it is recorded that they are asked, so that no server lets rows pass that they have not
/// seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HandledSpec {
    /// What becomes of uploaded ones.
    pub upload: bool,
    /// They are the only ones who keep them: nothing is written to the table.
    pub keeps_uploads: bool,
    /// What is new: nothing is read from the table.
    pub download: bool,
}

/// What becomes of rows that two sides have changed.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ConflictSpec {
    /// What a conflict is.
    pub detect: ConflictDetection,
    /// How it is resolved: `later(changed_at)`; in favour of the centre if empty.
    pub resolve: Vec<String>,
    /// For the resolver `rank`: the query that yields the rank of the user, a whole number, or
    /// `{s.claims.NAME}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<String>,
    /// For the resolver `rank`: the rank of what no upload has written; above all if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub centre_rank: Option<i64>,
}

/// What a conflict is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConflictDetection {
    /// Two sides have changed the same row.
    #[default]
    Row,
    /// They have changed the same column of it.
    Column,
}

/// What remotes may write of the rows of a table that they hold.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WritesSpec {
    /// Which of these rows; all of them if `None`.
    pub scope: Option<WriteScopeSpec>,
    /// The columns that they do not write.
    pub read_only: Vec<String>,
    /// Whether they may change a row so that it is not theirs any more.
    pub hand_over: bool,
}

/// The rows of a table that remotes may write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteScopeSpec {
    /// They are told by these columns of the table.
    pub columns: Vec<String>,
    /// As in [`RuleBy::Columns`].
    pub values: String,
}

/// A column that each remote has a store of numbers for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdentitySpec {
    /// Its name.
    pub column: String,
    /// How many numbers a remote gets at once.
    pub block: u32,
    /// It gets more when it has fewer than this left.
    pub refill_below: u32,
}

/// What becomes of a delete from a remote if published rows refer to the row by a foreign key that
/// acts on deletes, and the upload says nothing of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnUnseenChildren {
    /// It is a conflict: the row stays, and so does its family.
    #[default]
    Conflict,
    /// The foreign key acts, as it would for any application.
    Cascade,
}

/// So many columns of a table can be published if remotes change it: a remote reads the
/// pre-image of a row and the row itself in one query, and SQLite's have 2,000 columns at most.
pub const MAX_CHANGED_COLUMNS: usize = 990;

impl TableSpec {
    /// How many of its columns can be published at most.
    pub fn max_columns(&self) -> usize {
        match self.direction.uploads() {
            true => MAX_CHANGED_COLUMNS,
            false => pack::MAX_COLUMNS,
        }
    }
}

/// A rule by which a remote holds rows of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleSpec {
    /// Whose rows they are.
    pub by: RuleBy,
    /// Only those in this window.
    pub window: Option<WindowSpec>,
}

/// Whose rows a rule gives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleBy {
    /// Everybody's.
    Everyone,
    /// Those whose partition columns have one of the values that a query yields.
    Columns {
        /// The partition columns.
        columns: Vec<String>,
        /// A query with one result column for each partition column; `{s.username}`
        /// and the other parameters stand for facts of the sync.
        values: String,
    },
    /// Those that refer to a row which the rules of another table give.
    Follows {
        /// The table of the publication.
        table: String,
        /// The columns of the foreign key by which it is referred to, where there are several.
        by: Option<Vec<String>>,
    },
}

/// The newest rows of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowSpec {
    /// By this column: a date, a timestamp or a number.
    pub column: String,
    /// How many they are.
    pub last: WindowLength,
}

/// How far a window reaches back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WindowLength {
    /// From so long ago on.
    Time(u32, WindowUnit),
    /// From the highest value less this on.
    Number(u64),
}

/// A unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WindowUnit {
    /// Full hours.
    Hours,
    /// Days of UTC, as all that follow.
    Days,
    /// Seven days.
    Weeks,
    /// Months of the calendar.
    Months,
    /// Years of the calendar.
    Years,
}

impl RuleSpec {
    /// Gives everybody all rows.
    pub fn everyone() -> RuleSpec {
        RuleBy::Everyone.into()
    }

    /// Gives the rows whose columns have one of the values that a query yields.
    pub fn columns(columns: &[&str], values: &str) -> RuleSpec {
        let columns = columns.iter().map(|&column| column.into()).collect();
        let values = values.into();
        RuleBy::Columns { columns, values }.into()
    }

    /// Gives the rows that refer to one of another table, by the one foreign key to it.
    pub fn follows(table: &str) -> RuleSpec {
        let table = table.into();
        RuleBy::Follows { table, by: None }.into()
    }
}

impl From<RuleBy> for RuleSpec {
    fn from(by: RuleBy) -> RuleSpec {
        RuleSpec { by, window: None }
    }
}

impl std::str::FromStr for WindowLength {
    type Err = ();

    /// Reads `90 days`, `1 year`, `36 hours`.
    fn from_str(text: &str) -> Result<WindowLength, ()> {
        let (amount, unit) = text.trim().split_once(' ').ok_or(())?;
        let unit = match unit.trim().trim_end_matches('s') {
            "hour" => WindowUnit::Hours,
            "day" => WindowUnit::Days,
            "week" => WindowUnit::Weeks,
            "month" => WindowUnit::Months,
            "year" => WindowUnit::Years,
            _ => return Err(()),
        };
        let amount: u32 = amount.parse().map_err(|_| ())?;
        // Ten thousand years are more than any date.
        match amount > 0 && amount <= 100_000_000 {
            true => Ok(WindowLength::Time(amount, unit)),
            false => Err(()),
        }
    }
}

impl std::fmt::Display for WindowLength {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            WindowLength::Number(number) => write!(f, "{number}"),
            WindowLength::Time(amount, unit) => {
                write!(f, "{amount} {}", format!("{unit:?}").to_lowercase())
            }
        }
    }
}

/// How changes of a table in the centre are noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TrackingMode {
    /// Statement-level triggers and a change log.
    #[default]
    Log,
    /// Row-level triggers that also fire in a replication worker.
    Row,
    /// Not at all: downloads send the remote's partitions whole.
    Off,
}

/// A direction as it is recorded.
mod direction {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use tidewater_protocol::Direction;

    pub(super) fn serialize<S: Serializer>(
        direction: &Direction,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match direction {
            Direction::Both => "both",
            Direction::Download => "download",
            Direction::Upload => "upload",
        })
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Direction, D::Error> {
        match String::deserialize(deserializer)?.as_str() {
            "both" => Ok(Direction::Both),
            "download" => Ok(Direction::Download),
            "upload" => Ok(Direction::Upload),
            other => Err(D::Error::custom(format!("no direction: {other:?}"))),
        }
    }
}

/// What is deployed, as a server serves it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeployedPublications {
    /// Another number with every deployment.
    pub number: i64,
    /// Tells how the catalog describes the published tables: a table that is altered gives
    /// another one.
    pub version: String,
    /// The publications as remotes are told of them.
    pub schemas: Vec<Arc<PublicationSchema>>,
    /// The publications whose remotes try refused rows again only when somebody says so.
    pub no_replay: Vec<String>,
    /// Their scripts.
    pub scripts: Vec<Versions>,
}

/// A table that exists in the centre, as `tidewater init` lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedTable {
    /// The name to write into the configuration, schema-qualified where needed.
    pub name: String,
    /// The name in SQL, quoted where needed.
    pub sql_name: String,
    /// Its columns.
    pub columns: Vec<ListedColumn>,
    /// The primary key's columns; empty if it has none.
    pub primary_key: Vec<String>,
    /// Its foreign keys.
    pub references: Vec<ListedReference>,
    /// The columns that a trigger sets and that nothing else does.
    pub set_by_triggers: Vec<TriggeredColumn>,
    /// Why it cannot be published, if so.
    pub obstacle: Option<String>,
}

/// A foreign key of a [`ListedTable`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedReference {
    /// The columns that refer.
    pub columns: Vec<String>,
    /// The table that is referred to.
    pub parent: String,
    /// Its columns that are referred to.
    pub parent_columns: Vec<String>,
    /// Whether rows go with the one that they refer to.
    pub cascades: bool,
    /// Whether rows follow when the key changes of the one that they refer to.
    pub follows_key: bool,
    /// The statement after which they do, if the database has one.
    pub cascading: Option<String>,
}

/// A column of a [`ListedTable`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedColumn {
    /// Its name.
    pub name: String,
    /// Its type, as the database spells it.
    pub type_name: String,
    /// Whether it may be NULL.
    pub nullable: bool,
    /// Whether its values are whole numbers.
    pub is_integer: bool,
    /// Whether its values are text.
    pub is_text: bool,
    /// Whether the database gives it a value where an insert does not.
    pub has_default: bool,
    /// Whether remotes compute the same default.
    pub has_default_on_remotes: bool,
    /// Whether the database computes all of its values.
    pub is_generated: bool,
    /// What numbers the rows that are inserted without a value.
    pub numbering: ListedNumbering,
}

/// What numbers the rows of a [`ListedTable`] in the centre.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListedNumbering {
    /// Nothing does.
    #[default]
    None,
    /// They get the number after the highest one.
    Highest,
    /// A sequence, which can be moved on.
    Sequence,
}

/// A column that takes no NULL, has no default, and gets its value of a trigger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TriggeredColumn {
    /// Its name.
    pub column: String,
    /// The trigger's name.
    pub trigger: String,
    /// Whether the trigger is known to set it, and that is not guessed from its text.
    pub is_known: bool,
}

/// Tables that remotes may upload to and that decide, in a partition query, what a user
/// holds: a user could give herself partitions. One warning for each.
pub fn self_service_warnings(publications: &[PublicationSpec]) -> Vec<String> {
    let tables = || {
        publications
            .iter()
            .flat_map(|publication| &publication.tables)
    };
    let mut warnings = Vec::new();
    for table in tables().filter(|table| table.direction.uploads()) {
        let deciding = tables().find(|other| {
            let mut rules = other.partition.iter();
            rules.any(|rule| match &rule.by {
                RuleBy::Columns { values, .. } => reads(values, &table.name),
                _ => false,
            })
        });
        if let Some(other) = deciding {
            let warning = format!(
                "{}: remotes may upload to it, and the partition query of {} reads it: a user can \
                 change which rows of {} are sent to her. Consider direction = \"download\"",
                table.name, other.name, other.name
            );
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
        let writable = tables().find(|other| {
            let scope = other.writes.scope.as_ref();
            scope.is_some_and(|scope| reads(&scope.values, &table.name))
        });
        if let Some(other) = writable {
            let warning = format!(
                "{}: remotes may upload to it, and the write query of {} reads it: a user can \
                 change which rows of {} she may write. Consider direction = \"download\"",
                table.name, other.name, other.name
            );
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
    }
    warnings
}

/// Tables that are partitioned by their own key, with values out of a table that refers to
/// them and that remotes do not write: what a remote inserts is nobody's. One warning for each.
pub fn circle_warnings(publications: &[PublicationSpec], live: &[ListedTable]) -> Vec<String> {
    let mut warnings = Vec::new();
    let tables = publications
        .iter()
        .flat_map(|publication| &publication.tables);
    for table in tables.filter(|table| table.direction.uploads()) {
        // A row that another rule gives can be inserted by that.
        let [
            RuleSpec {
                by: RuleBy::Columns { columns, values },
                ..
            },
        ] = &table.partition[..]
        else {
            continue;
        };
        let own = live.iter().find(|it| bare(&it.name) == bare(&table.name));
        let by_key = own.is_some_and(|own| columns.iter().any(|it| own.primary_key.contains(it)));
        let refers = |other: &&ListedTable| {
            let mut references = other.references.iter();
            bare(&other.name) != bare(&table.name)
                && references.any(|it| bare(&it.parent) == bare(&table.name))
        };
        let is_written = |other: &ListedTable| {
            let mut tables = publications.iter().flat_map(|it| &it.tables);
            tables.any(|it| it.direction.uploads() && bare(&it.name) == bare(&other.name))
        };
        let circle = live
            .iter()
            .filter(refers)
            .find(|it| reads(values, &it.name) && !is_written(it));
        if let (true, Some(other)) = (by_key, circle) {
            let warning = format!(
                "{}: its partition query reads {}, which refers to it and takes nothing from \
                 remotes: no remote can insert a row, unless a trigger of the centre names it in {}. \
                 Partition by a column that the row is made with, or let remotes write {}, too (see \
                 docs/keys.md)",
                table.name, other.name, other.name, other.name
            );
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
    }
    warnings
}

/// A table's name without its schema.
fn bare(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// Whether a query seems to read a table.
fn reads(query: &str, table: &str) -> bool {
    let is_word = |character: char| character.is_alphanumeric() || character == '_';
    query
        .split(|character| !is_word(character))
        .any(|word| word.eq_ignore_ascii_case(bare(table)))
}

/// Whether remotes can have tables and columns of these names.
pub fn check_names(schema: &PublicationSchema) -> Result<(), CentreError> {
    match schema.unusable_name() {
        None => Ok(()),
        Some(what) => Err(CentreError::Configuration {
            message: format!("publication {:?}: {what}", schema.name),
            hint: "remotes are SQLite files; rename it, or leave it out (columns = [...])".into(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_decides_partitions_and_takes_uploads_is_warned_of() {
        let table = |name: &str, values: Option<&str>, direction| TableSpec {
            name: name.into(),
            partition: vec![match values {
                Some(values) => RuleSpec::columns(&["region"], values),
                None => RuleSpec::everyone(),
            }],
            direction,
            columns: None,
            tracking: TrackingMode::Log,
            identity: None,
            filled_by_centre: Vec::new(),
            on_unseen_children: OnUnseenChildren::Conflict,
            writes: WritesSpec::default(),
            conflict: ConflictSpec::default(),
            handled: HandledSpec::default(),
        };
        let query = "SELECT region FROM hr.Assignment WHERE login = {s.username}";
        let warnings = |direction| {
            self_service_warnings(&[PublicationSpec {
                name: "p".into(),
                tables: vec![
                    table("customer", Some(query), Direction::Both),
                    table("hr.assignment", None, direction),
                    table("assign", None, Direction::Both),
                ],
                parameters: Vec::new(),
                upload: UploadMode::Net,
                on_reject: OnReject::SetAside,
                upload_order: UploadOrder::RowsFirst,
                script_versions: Vec::new(),
                replay: ReplayPolicy::Auto,
                act_as: None,
                scripts: Vec::new(),
            }])
        };
        assert!(warnings(Direction::Download).is_empty());
        let found = warnings(Direction::Both);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("hr.assignment: remotes may upload to it"));
    }
}
