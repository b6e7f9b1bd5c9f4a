//! `[[publication.table]]`: a table of a publication, as it is configured.

use tidewater_centre::{
    ConflictDetection, ConflictSpec, HandledSpec, OnUnseenChildren, RuleBy, TableSpec,
    TrackingMode, WriteScopeSpec, WritesSpec,
};
use tidewater_protocol::Direction;

use super::handler::{HandlerEvent, HandlerReader, HandlerUse, TableAssignment};
use super::names::check_columns;
use super::{identity, partition};
use crate::error::ConfigError;
use crate::section_reader::SectionReader;

/// Reads a table of a publication, which is its table of this index.
///
/// # Errors
/// It says too little, or what cannot be.
pub(super) fn read(
    mut section: SectionReader,
    (publication, index): (&str, usize),
    handlers: &mut HandlerReader,
) -> Result<TableSpec, ConfigError> {
    let name = section
        .text("name")?
        .filter(|name| !name.is_empty())
        .ok_or_else(|| {
            ConfigError::new(
                format!(
                    "publication {publication:?}: [[publication.table]] number {} has no name",
                    index + 1
                ),
                "write name = \"...\" below it",
            )
        })?;
    let place = format!("publication {publication:?}, table {name:?}");
    section.place(&place);
    let directions = [Direction::Both, Direction::Download, Direction::Upload];
    let direction = section.choice("direction", &directions)?;
    let is_tracked = section.has("tracking");
    let tracking = [TrackingMode::Log, TrackingMode::Row, TrackingMode::Off];
    let tracking = section.choice("tracking", &tracking)?;
    let is_tracked = is_tracked && tracking != TrackingMode::Off;
    let unseen = [OnUnseenChildren::Conflict, OnUnseenChildren::Cascade];
    let on_unseen_children = section.choice("on_unseen_children", &unseen)?;
    let columns = section.optional_texts("columns")?;
    if columns.as_ref().is_some_and(Vec::is_empty) {
        return Err(ConfigError::new(
            format!("{place}: columns is empty"),
            "name the published columns, or leave the key out to publish all",
        ));
    }
    check_columns(&format!("{place}: columns"), columns.iter().flatten())?;
    let filled = format!("{place}: filled_by_centre");
    let filled_by_centre = section.texts("filled_by_centre")?;
    check_columns(&filled, &filled_by_centre)?;
    let identity = section.section("identity")?;
    let identity = identity.map(|it| identity::read(it, &place)).transpose()?;
    let read_only = section.texts("read_only")?;
    check_columns(&format!("{place}: read_only"), &read_only)?;
    let write = section.section("write")?;
    let write = write.map(|it| read_write_scope(it, &place)).transpose()?;
    let conflict = section.section("conflict")?;
    let has_conflict = conflict.is_some();
    let conflict = conflict.map(|it| read_conflict(it, &place)).transpose()?;
    let conflict = conflict.unwrap_or_default();
    let handled = HandlerShare {
        handler: HandlerUse::read(&mut section)?,
        keeps_uploads: section.choice("upload", &[false, true])?,
        downloads: section.choice("download", &[false, true])?,
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
    let partition = partition::read(&place, section.value("partition")?)?;
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
        identity,
        filled_by_centre,
        writes: WritesSpec {
            scope: write,
            read_only,
            hand_over: section.flag("hand_over")?,
        },
        conflict,
        partition,
        name,
        direction,
        columns,
        tracking,
        on_unseen_children,
    })
}

/// What a table says of its handler.
struct HandlerShare {
    handler: Option<HandlerUse>,
    keeps_uploads: bool,
    downloads: bool,
    resolves: bool,
    direction: Direction,
}

impl HandlerShare {
    fn read(
        self,
        place: &str,
        (publication, table): (&str, &str),
        handlers: &mut HandlerReader,
    ) -> Result<HandledSpec, ConfigError> {
        let (keeps_uploads, downloads) = (self.keeps_uploads, self.downloads);
        let wrong =
            |what: &str, hint: &str| ConfigError::new(format!("{place}: {what}"), hint.to_owned());
        if keeps_uploads && !self.direction.uploads() || downloads && !self.direction.downloads() {
            return Err(wrong(
                "upload and download by a handler are about what direction leaves out",
                "leave out direction, or what it leaves out",
            ));
        }
        let Some(used) = self.handler else {
            return match keeps_uploads || downloads || self.resolves {
                false => Ok(HandledSpec::default()),
                true => Err(wrong(
                    "something is a handler's affair, and there is none",
                    "write handler = \"https://HOST/PATH\" below the table",
                )),
            };
        };
        let handler = handlers.assign(place, used)?;
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
        let handling = TableAssignment {
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

fn read_conflict(mut section: SectionReader, place: &str) -> Result<ConflictSpec, ConfigError> {
    section.place(&format!("{place}: conflict"));
    Ok(ConflictSpec {
        detect: section.choice(
            "detect",
            &[ConflictDetection::Row, ConflictDetection::Column],
        )?,
        resolve: section.one_or_more_texts("resolve")?.unwrap_or_default(),
        rank: section.text("rank")?,
        centre_rank: section.optional_integer("centre_rank")?,
    })
}

fn read_write_scope(
    mut section: SectionReader,
    place: &str,
) -> Result<WriteScopeSpec, ConfigError> {
    let wrong = || {
        ConfigError::new(
            format!("{place}: write needs columns and values"),
            "write = { columns = [\"technician\"], values = \"SELECT {s.username}\" } lets each \
             user write the rows whose columns have one of the values that the query yields",
        )
    };
    let columns = section.texts("columns")?;
    let values = section.text("values")?.filter(|it| !it.trim().is_empty());
    let values = values.filter(|_| !columns.is_empty()).ok_or_else(wrong)?;
    check_columns(&format!("{place}: write.columns"), &columns)?;
    Ok(WriteScopeSpec { columns, values })
}
