//! What became of uploaded rows: collected for the result, recorded for people.

use tokio_postgres::error::DbError;

use tidewater_protocol::{Code, Datum, Op};

use super::incoming::Incoming;
use crate::columns::Unpublished;
use crate::engine::upload::{Conflict, Records, Refused};
use crate::error::CentreError;
use crate::orphans::{self, Orphans};
use crate::postgres::connection::is_stale_plan;
use crate::postgres::model::Compiled;
use crate::result::ResultBuilder;
use crate::row_json;
use crate::unpublished;
use crate::upload::{UploadResult, UploadTable};

/// Outcomes of one upload.
pub(super) struct Outcomes<'p> {
    publication: &'p Compiled,
    orphans: &'p Orphans,
    builder: ResultBuilder<'p>,
    records: Records,
}

/// An uploaded row, in the order of the published columns.
pub(super) struct Uploaded<'r, 'a> {
    pub(super) op: Op,
    pub(super) key: &'r [Datum<'a>],
    pub(super) old: Option<&'r [Datum<'a>]>,
    pub(super) new: Option<&'r [Datum<'a>]>,
}

impl<'p> Outcomes<'p> {
    pub(super) fn new(publication: &'p Compiled, orphans: &'p Orphans) -> Outcomes<'p> {
        Outcomes {
            publication,
            orphans,
            builder: ResultBuilder::new(&publication.schema, &publication.shapes),
            records: Records::default(),
        }
    }

    pub(super) fn applied(&mut self, op: Op, rows: u64) {
        self.builder.applied(op, rows);
    }

    /// Whether some rows of a table refer to refused ones.
    pub(super) fn has_orphans(&self, incoming: &Incoming<'_>) -> bool {
        self.orphans.are_in(incoming.index)
    }

    /// Refuses a row that refers to a refused one.
    pub(super) fn refuse_orphan(
        &mut self,
        incoming: &Incoming<'_>,
        uploaded: &Uploaded<'_, '_>,
    ) -> bool {
        let reason = self.why_orphan(incoming, uploaded.op, uploaded.key);
        if let Some(reason) = reason {
            self.refused(incoming, uploaded, orphans::CODE, reason);
        }
        reason.is_some()
    }

    /// See [`Orphans::reason`].
    pub(super) fn why_orphan(
        &self,
        incoming: &Incoming<'_>,
        op: Op,
        key: &[Datum<'_>],
    ) -> Option<&'static str> {
        let schema = &self.publication.schema;
        self.orphans.reason(schema, incoming.index, op, key)
    }

    /// See [`ResultBuilder::succeeded`].
    pub(super) fn succeeded(&mut self, incoming: &Incoming<'_>, key: &[Datum<'_>]) {
        self.builder.succeeded(incoming.index, key);
    }

    /// Refuses every row of a table that is not published.
    pub(super) fn refuse_unpublished(
        &mut self,
        table: &UploadTable,
        unpublished: &Unpublished,
    ) -> Result<(), CentreError> {
        unpublished::refuse(table, unpublished, &mut self.builder, &mut self.records)
    }

    /// Records what was changed in columns that are not published any more.
    pub(super) fn record_dropped(&mut self, incoming: &Incoming<'_>) -> Result<(), CentreError> {
        unpublished::record_dropped(incoming.upload(), &incoming.map, &mut self.records)
    }

    /// What is known so far.
    pub(super) fn builder(&self) -> &ResultBuilder<'p> {
        &self.builder
    }

    fn name(&self, incoming: &Incoming<'_>) -> String {
        self.publication.schema.tables[incoming.index].name.clone()
    }

    fn json(&self, incoming: &Incoming<'_>, row: &[Datum<'_>]) -> String {
        let table = &self.publication.schema.tables[incoming.index];
        row_json::row(table.columns.iter().map(|it| it.name.as_str()), row)
    }

    /// A change lost; against a row, or against its absence.
    pub(super) fn conflict(
        &mut self,
        incoming: &Incoming<'_>,
        uploaded: &Uploaded<'_, '_>,
        winner: Option<&[Datum<'_>]>,
    ) {
        match winner {
            Some(winner) => self.builder.conflict_row(incoming.index, winner),
            None => self.builder.conflict_gone(incoming.index, uploaded.key),
        }
        let json = |row: &[Datum<'_>]| self.json(incoming, row);
        let conflict = Conflict {
            table: self.name(incoming),
            key: row_json::key(uploaded.key),
            op: uploaded.op,
            pre_image: uploaded.old.map(json),
            uploaded: uploaded.new.map(json),
            winner: winner.map(json),
        };
        self.records.conflicts.push(conflict);
    }

    /// A change was refused.
    pub(super) fn refused(
        &mut self,
        incoming: &Incoming<'_>,
        uploaded: &Uploaded<'_, '_>,
        code: Code,
        reason: &str,
    ) {
        self.builder
            .refused(incoming.index, uploaded.key, uploaded.op, code, reason);
        let row = uploaded.new.or(uploaded.old).unwrap_or_default();
        self.records.refused.push(Refused {
            table: self.name(incoming),
            key: row_json::key(uploaded.key),
            op: uploaded.op,
            row: self.json(incoming, row),
            code,
            reason: reason.to_owned(),
        });
    }

    /// The result, and what is recorded for people.
    pub(super) fn finish(self) -> (UploadResult, Records) {
        (self.builder.finish(), self.records)
    }
}

/// Whether an error is about the rows of a statement. All others are about the
/// database or us, and end the attempt.
pub(super) fn is_data_error(error: &tokio_postgres::Error) -> bool {
    const NOT_THE_ROWS: [&str; 19] = [
        "08", "0A", "0L", "0P", "25", "26", "28", "2D", "34", "3B", "3D", "3F", "40", "42", "53",
        "55", "57", "58", "XX",
    ];
    error.as_db_error().is_some_and(|refusal| {
        let class = &refusal.code().code()[..2];
        if is_stale_plan(refusal) {
            return false;
        }
        match refusal.routine() {
            // Row security says 42501, as a missing privilege does; only it means one row.
            Some("ExecWithCheckOptions") => true,
            // RAISE in the application's own trigger, whatever state it chose; a
            // serialization failure asks for another try.
            Some("exec_stmt_raise") => class != "40",
            _ => !NOT_THE_ROWS.contains(&class),
        }
    })
}

/// Whether an error may be about rows: also of the classes that are about statements, which a
/// value can have as well (a text that is no `tsquery`, a name of no table), and a trigger of the
/// application. Which of both it is shows when the statement runs without rows.
pub(super) fn may_be_data_error(error: &tokio_postgres::Error) -> bool {
    is_data_error(error)
        || error.as_db_error().is_some_and(|refusal| {
            let state = refusal.code().code();
            match &state[..2] {
                "0A" | "3F" => !is_stale_plan(refusal),
                // Missing rights, locks that are not to be had and objects in use are not.
                "42" => state != "42501",
                "55" => !matches!(state, "55006" | "55P03"),
                _ => false,
            }
        })
}

/// Code and reason for a row that the database refused. Only the message and names
/// are used: the detail may have other rows' values.
pub(super) fn reason(refusal: &DbError) -> (Code, String) {
    let state = refusal.code().code();
    let code = match state {
        "23502" => Code::RowNotNull,
        "23503" => Code::RowForeignKey,
        "23505" | "23P01" => Code::RowKeyInUse,
        "23514" | "44000" => Code::RowCheck,
        _ if state.starts_with("22") => Code::RowBadValue,
        _ => Code::RowConstraint,
    };
    (code, refusal.message().to_owned())
}
