//! Publications and their tables, from TOML values to what is published.

use serde::Deserialize;

use tidewater_centre::{
    ConflictDetection, ConflictSpec, HandledSpec, OnReject, OnUnseenChildren, ParameterSpec,
    PublicationSpec, ReplayPolicy, RuleBy, TableSpec, TrackingMode, UploadMode, UploadOrder,
    WriteScopeSpec, WritesSpec,
};
use tidewater_protocol::Direction;
use tidewater_protocol::message::SubscriptionParameter;

use super::acting;
use super::handler::{HandlerEvent, Handlers, RawUse, TableHandling};
use super::identity::RawIdentity;
use super::partition;
use super::value::{check_columns, choice};
use crate::error::ConfigError;
use crate::names::MAX_NAME_BYTES;

#[derive(Deserialize)]
pub(super) struct RawPublication {
    name: Option<String>,
    #[serde(default)]
    table: Vec<RawTable>,
    #[serde(default)]
    parameter: Vec<RawParameter>,
    act_as: Option<toml::Value>,
    upload: Option<String>,
    on_reject: Option<String>,
    upload_order: Option<String>,
    #[serde(default)]
    script_versions: Vec<String>,
    replay: Option<String>,
    handler: Option<RawUse>,
}

#[derive(Deserialize)]
struct RawParameter {
    name: Option<String>,
    allowed: Option<String>,
}

#[derive(Deserialize)]
struct RawTable {
    name: Option<String>,
    partition: Option<toml::Value>,
    direction: Option<String>,
    columns: Option<Vec<String>>,
    tracking: Option<String>,
    on_unseen_children: Option<String>,
    identity: Option<RawIdentity>,
    #[serde(default)]
    filled_by_centre: Vec<String>,
    write: Option<RawWrite>,
    #[serde(default)]
    read_only: Vec<String>,
    #[serde(default)]
    hand_over: bool,
    conflict: Option<RawConflict>,
    handler: Option<RawUse>,
    upload: Option<String>,
    download: Option<String>,
}

#[derive(Deserialize)]
struct RawConflict {
    detect: Option<String>,
    resolve: Option<RawResolve>,
    rank: Option<String>,
    centre_rank: Option<i64>,
}

/// One resolver, or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum RawResolve {
    One(String),
    Several(Vec<String>),
}

#[derive(Deserialize)]
struct RawWrite {
    columns: Option<Vec<String>>,
    values: Option<String>,
}

impl RawPublication {
    pub(super) fn read(
        self,
        index: usize,
        handlers: &mut Handlers,
    ) -> Result<PublicationSpec, ConfigError> {
        let name = self.name.filter(|name| !name.is_empty()).ok_or_else(|| {
            ConfigError::new(
                format!("[[publication]] number {} has no name", index + 1),
                "write name = \"...\" below it",
            )
        })?;
        if name.contains(',') {
            return Err(ConfigError::new(
                format!("publication {name:?}: a name must not contain a comma"),
                "choose another name",
            ));
        }
        if name.len() > MAX_NAME_BYTES || name.contains('\0') {
            return Err(ConfigError::new(
                format!("publication {name:?}: no remote can ask for a name like this"),
                format!("choose one of at most {MAX_NAME_BYTES} bytes, without zero bytes"),
            ));
        }
        if self.table.is_empty() {
            return Err(ConfigError::new(
                format!("publication {name:?} has no tables"),
                "write [[publication.table]] below it, with name and partition",
            ));
        }
        let missing = |table: &&RawTable| table.partition.is_none() && table.name.is_some();
        let undecided: Vec<&RawTable> = self.table.iter().filter(missing).collect();
        if undecided.len() > 1 {
            let names = undecided.iter().filter_map(|table| table.name.as_ref());
            let names: Vec<String> = names.map(|name| format!("{name:?}")).collect();
            let names = names.join(", ");
            return Err(ConfigError::new(
                format!("publication {name:?}, tables {names}: partition is missing"),
                partition::HINT,
            ));
        }
        let tables = self.table.into_iter().enumerate();
        let tables: Vec<TableSpec> = tables
            .map(|(index, table)| table.read(&name, index, handlers))
            .collect::<Result<_, _>>()?;
        for (index, table) in tables.iter().enumerate() {
            if tables[..index].iter().any(|t| t.name == table.name) {
                return Err(ConfigError::new(
                    format!("publication {name:?} has the table {:?} twice", table.name),
                    "remove one of the two",
                ));
            }
        }
        let mut parameters: Vec<ParameterSpec> = Vec::with_capacity(self.parameter.len());
        for (index, parameter) in self.parameter.into_iter().enumerate() {
            let parameter = parameter.read(&name, index)?;
            if parameters.iter().any(|it| it.name == parameter.name) {
                return Err(ConfigError::new(
                    format!(
                        "publication {name:?} has the parameter {:?} twice",
                        parameter.name
                    ),
                    "remove one of the two",
                ));
            }
            parameters.push(parameter);
        }
        let named = |key: &str| format!("publication {name:?}: {key}");
        let upload = match self.upload.as_deref() {
            None | Some("net") => UploadMode::Net,
            Some("transactional") => UploadMode::Transactional,
            Some(other) => {
                return Err(choice(&named("upload"), other, &["net", "transactional"]));
            }
        };
        let on_reject = match (self.on_reject.as_deref(), upload) {
            (None, UploadMode::Net) => OnReject::SetAside,
            (None, UploadMode::Transactional) | (Some("abort"), _) => OnReject::Abort,
            (Some("set_aside"), UploadMode::Net) => OnReject::SetAside,
            (Some("set_aside"), UploadMode::Transactional) => {
                return Err(ConfigError::new(
                    named("on_reject = \"set_aside\" contradicts upload = \"transactional\""),
                    "remove one of the two: a transaction takes effect as a whole or not at all",
                ));
            }
            (Some(other), _) => {
                return Err(choice(&named("on_reject"), other, &["set_aside", "abort"]));
            }
        };
        let replay = match self.replay.as_deref() {
            None | Some("auto") => ReplayPolicy::Auto,
            Some("no") => ReplayPolicy::No,
            Some(other) => return Err(choice(&named("replay"), other, &["auto", "no"])),
        };
        let upload_order = match self.upload_order.as_deref() {
            None | Some("rows first") => UploadOrder::RowsFirst,
            Some("deletes first") => UploadOrder::DeletesFirst,
            Some(other) => {
                let known = ["rows first", "deletes first"];
                return Err(choice(&named("upload_order"), other, &known));
            }
        };
        if let Some(used) = self.handler {
            let handler = handlers.used(&format!("publication {name:?}"), used)?;
            handlers.handling.publications.insert(name.clone(), handler);
        }
        Ok(PublicationSpec {
            upload,
            on_reject,
            replay,
            upload_order,
            script_versions: self.script_versions,
            act_as: acting::read(&name, self.act_as)?,
            name,
            tables,
            parameters,
            scripts: Vec::new(),
        })
    }
}

impl RawParameter {
    fn read(self, publication: &str, index: usize) -> Result<ParameterSpec, ConfigError> {
        let name = self.name.unwrap_or_default();
        if !SubscriptionParameter::is_name(&name) {
            let number = index + 1;
            return Err(ConfigError::new(
                format!(
                    "publication {publication:?}: [[publication.parameter]] number {number} has \
                     {name:?} for its name, which can be none"
                ),
                "write name = \"month\": letters, digits and underscores, without {u.}",
            ));
        }
        Ok(ParameterSpec {
            name,
            allowed: self.allowed,
        })
    }
}

impl RawTable {
    fn read(
        self,
        publication: &str,
        index: usize,
        handlers: &mut Handlers,
    ) -> Result<TableSpec, ConfigError> {
        let name = self.name.filter(|name| !name.is_empty()).ok_or_else(|| {
            ConfigError::new(
                format!(
                    "publication {publication:?}: [[publication.table]] number {} has no name",
                    index + 1
                ),
                "write name = \"...\" below it",
            )
        })?;
        let place = format!("publication {publication:?}, table {name:?}");
        let direction = match self.direction.as_deref() {
            None | Some("both") => Direction::Both,
            Some("download") => Direction::Download,
            Some("upload") => Direction::Upload,
            Some(other) => {
                let key = format!("{place}: direction");
                return Err(choice(&key, other, &["both", "download", "upload"]));
            }
        };
        let tracking = match self.tracking.as_deref() {
            None | Some("log") => TrackingMode::Log,
            Some("row") => TrackingMode::Row,
            Some("off") => TrackingMode::Off,
            Some(other) => {
                let key = format!("{place}: tracking");
                return Err(choice(&key, other, &["log", "row", "off"]));
            }
        };
        let is_tracked = self.tracking.is_some() && tracking != TrackingMode::Off;
        let on_unseen_children = match self.on_unseen_children.as_deref() {
            None | Some("conflict") => OnUnseenChildren::Conflict,
            Some("cascade") => OnUnseenChildren::Cascade,
            Some(other) => {
                let key = format!("{place}: on_unseen_children");
                return Err(choice(&key, other, &["conflict", "cascade"]));
            }
        };
        if self.columns.as_ref().is_some_and(Vec::is_empty) {
            return Err(ConfigError::new(
                format!("{place}: columns is empty"),
                "name the published columns, or leave the key out to publish all",
            ));
        }
        check_columns(&format!("{place}: columns"), self.columns.iter().flatten())?;
        let filled = format!("{place}: filled_by_centre");
        check_columns(&filled, &self.filled_by_centre)?;
        let identity = self.identity.map(|identity| identity.read(&place));
        check_columns(&format!("{place}: read_only"), &self.read_only)?;
        let write = self.write.map(|write| write.read(&place));
        let has_conflict = self.conflict.is_some();
        let conflict = self.conflict.map(|conflict| conflict.read(&place));
        let conflict = conflict.transpose()?.unwrap_or_default();
        let by_handler = [("upload", self.upload), ("download", self.download)];
        let handled = RawHandling {
            handler: self.handler,
            by_handler,
            resolves: conflict.resolve.iter().any(|it| it.trim() == "handler"),
            direction,
        };
        let handled = handled.read(&place, (publication, &name), handlers)?;
        if handled.keeps_uploads && has_conflict {
            return Err(ConfigError::new(
                format!(
                    "{place}: conflict says what becomes of rows that two sides have changed, and \
                     upload = \"handler\" says that the handler keeps what is uploaded: the server \
                     compares it with nothing"
                ),
                "remove conflict: the handler decides about each row; or remove upload, and the \
                 server writes the rows to the table",
            ));
        }
        let partition = partition::read(&place, self.partition)?;
        let is_everyones = partition.iter().all(|it| it.by == RuleBy::Everyone);
        if handled.download && !is_everyones {
            return Err(ConfigError::new(
                format!("{place}: a handler tells what is new, and partition says whose it is"),
                "write partition = \"everyone\": the handler is told the user and what is known \
                 of him, and answers with what is his",
            ));
        }
        if handled.download && is_tracked {
            return Err(ConfigError::new(
                format!(
                    "{place}: tracking says how changes of the table are noted, and download = \
                     \"handler\" says that the handler tells what is new: nothing is read from the \
                     table"
                ),
                "remove tracking",
            ));
        }
        // Nothing of it is read from the consolidated database.
        let tracking = match handled.download {
            true => TrackingMode::Off,
            false => tracking,
        };
        Ok(TableSpec {
            handled,
            identity: identity.transpose()?,
            filled_by_centre: self.filled_by_centre,
            writes: WritesSpec {
                scope: write.transpose()?,
                read_only: self.read_only,
                hand_over: self.hand_over,
            },
            conflict,
            partition,
            name,
            direction,
            columns: self.columns,
            tracking,
            on_unseen_children,
        })
    }
}

/// What a table says of its handler.
struct RawHandling {
    handler: Option<RawUse>,
    /// `upload` and `download`.
    by_handler: [(&'static str, Option<String>); 2],
    resolves: bool,
    direction: Direction,
}

impl RawHandling {
    fn read(
        self,
        place: &str,
        (publication, table): (&str, &str),
        handlers: &mut Handlers,
    ) -> Result<HandledSpec, ConfigError> {
        let mut by_handler = [false; 2];
        for ((key, value), by_handler) in self.by_handler.into_iter().zip(&mut by_handler) {
            match value.as_deref() {
                None | Some("centre") => {}
                Some("handler") => *by_handler = true,
                Some(other) => {
                    let key = format!("{place}: {key}");
                    return Err(choice(&key, other, &["centre", "handler"]));
                }
            }
        }
        let [keeps_uploads, downloads] = by_handler;
        let wrong =
            |what: &str, hint: &str| ConfigError::new(format!("{place}: {what}"), hint.to_owned());
        if keeps_uploads && !self.direction.uploads() || downloads && !self.direction.downloads() {
            return Err(wrong(
                "upload and download by a handler are about what direction leaves out",
                "leave out direction, or what it leaves out",
            ));
        }
        let Some(used) = self.handler else {
            return match by_handler.contains(&true) || self.resolves {
                false => Ok(HandledSpec::default()),
                true => Err(wrong(
                    "something is a handler's affair, and there is none",
                    "write handler = \"https://HOST/PATH\" below the table",
                )),
            };
        };
        let handler = handlers.used(place, used)?;
        let wants = |event| handlers.wants(&handler, event);
        let uploads = self.direction.uploads() && wants(HandlerEvent::Upload);
        for (is_asked, event) in [
            (keeps_uploads, HandlerEvent::Upload),
            (self.resolves, HandlerEvent::ResolveConflict),
            (downloads, HandlerEvent::Download),
        ] {
            if is_asked && !wants(event) {
                let event = event.name();
                return Err(wrong(
                    &format!("{event} is a handler's affair, and is not among its events"),
                    &format!("add {event:?} to the events of the handler"),
                ));
            }
        }
        if !uploads && !self.resolves && !downloads {
            return Err(wrong(
                "the handler is asked about nothing",
                "remotes only download the table, or the handler's events leave out \"upload\": \
                 remove handler, or write download = \"handler\"",
            ));
        }
        // Remotes have tables without their schema.
        let plain = table.rsplit('.').next().unwrap_or_default();
        let handling = TableHandling {
            handler,
            upload: uploads,
            keeps_uploads,
            resolve: self.resolves,
            download: downloads,
        };
        let key = (publication.to_owned(), plain.to_owned());
        handlers.handling.tables.insert(key, handling);
        Ok(HandledSpec {
            upload: uploads,
            keeps_uploads,
            download: downloads,
        })
    }
}

impl RawConflict {
    fn read(self, place: &str) -> Result<ConflictSpec, ConfigError> {
        let detect = match self.detect.as_deref() {
            None | Some("row") => ConflictDetection::Row,
            Some("column") => ConflictDetection::Column,
            Some(other) => {
                let key = format!("{place}: conflict.detect");
                return Err(choice(&key, other, &["row", "column"]));
            }
        };
        let resolve = match self.resolve {
            None => Vec::new(),
            Some(RawResolve::One(one)) => vec![one],
            Some(RawResolve::Several(several)) => several,
        };
        Ok(ConflictSpec {
            detect,
            resolve,
            rank: self.rank,
            centre_rank: self.centre_rank,
        })
    }
}

impl RawWrite {
    fn read(self, place: &str) -> Result<WriteScopeSpec, ConfigError> {
        let wrong = || {
            ConfigError::new(
                format!("{place}: write needs columns and values"),
                "write = { columns = [\"technician\"], values = \"SELECT {s.username}\" } lets each \
                 user write the rows whose columns have one of the values that the query yields",
            )
        };
        let columns = self.columns.filter(|it| !it.is_empty());
        let values = self.values.filter(|it| !it.trim().is_empty());
        let (columns, values) = columns.zip(values).ok_or_else(wrong)?;
        check_columns(&format!("{place}: write.columns"), &columns)?;
        Ok(WriteScopeSpec { columns, values })
    }
}
