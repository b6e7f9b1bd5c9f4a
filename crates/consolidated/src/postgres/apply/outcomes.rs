//! What became of uploaded rows: collected for the result, recorded for people.

use tokio_postgres::error::DbError;

use tidewater_protocol::{Code, Datum, Op};

use super::incoming::Incoming;
use crate::columns::Unpublished;
use crate::error::CentreError;
use crate::orphans::{self, Orphans};
use crate::postgres::connection::{Connection, is_stale_plan, refused};
use crate::postgres::model::Compiled;
use crate::result::ResultBuilder;
use crate::row_json;
use crate::unpublished::{self, UnpublishedRow};
use crate::upload::{SyncUpload, UploadResult, UploadTable};

/// Outcomes of one upload.
pub(super) struct Outcomes<'p> {
    publication: &'p Compiled,
    orphans: &'p Orphans,
    builder: ResultBuilder<'p>,
    conflicts: Records,
    refused: Records,
}

/// Rows of the tables for conflicts and refused rows, column by column.
#[derive(Default)]
struct Records {
    tables: Vec<String>,
    keys: Vec<String>,
    operations: Vec<String>,
    /// Conflicts: pre-image, uploaded, winner. Refused rows: row, code, reason.
    texts: [Vec<Option<String>>; 3],
}

/// One of them.
struct Record {
    table: String,
    key: String,
    op: Op,
    texts: [Option<String>; 3],
}

impl Record {
    /// A row that is refused because its table, or a column of it, is not published.
    fn unpublished(table: &UploadTable, row: UnpublishedRow, reason: &str) -> Record {
        Record {
            table: table.begin.table.clone(),
            key: row.key,
            op: row.op,
            texts: [
                Some(row.row),
                Some(unpublished::CODE.name().to_owned()),
                Some(reason.to_owned()),
            ],
        }
    }
}

impl Records {
    fn push(&mut self, record: Record) {
        // text has no NUL in PostgreSQL; what a remote calls a table may have.
        self.tables.push(record.table.replace('\0', "\u{fffd}"));
        self.keys.push(record.key);
        self.operations.push(operation(record.op).to_owned());
        for (column, text) in self.texts.iter_mut().zip(record.texts) {
            column.push(text.map(|text| text.replace('\0', "\u{fffd}")));
        }
    }
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
            conflicts: Records::default(),
            refused: Records::default(),
        }
    }

    pub(super) fn applied(&mut self, op: Op, rows: u64) {
        self.builder.applied(op, rows);
    }

    /// What is recorded of a row with these images of it.
    fn images(
        &self,
        incoming: &Incoming<'_>,
        uploaded: &Uploaded<'_, '_>,
        rows: [Option<&[Datum<'_>]>; 3],
    ) -> Record {
        let texts = rows.map(|row| row.map(|row| self.json(incoming, row)));
        self.described(incoming, uploaded, texts)
    }

    fn described(
        &self,
        incoming: &Incoming<'_>,
        uploaded: &Uploaded<'_, '_>,
        texts: [Option<String>; 3],
    ) -> Record {
        Record {
            table: self.publication.schema.tables[incoming.index].name.clone(),
            key: row_json::key(uploaded.key),
            op: uploaded.op,
            texts,
        }
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
        let refused = &mut self.refused;
        unpublished::refuse(table, unpublished, &mut self.builder, |row| {
            refused.push(Record::unpublished(table, row, &unpublished.reason));
        })
    }

    /// Records what was changed in columns that are not published any more.
    pub(super) fn record_dropped(&mut self, incoming: &Incoming<'_>) -> Result<(), CentreError> {
        let refused = &mut self.refused;
        let table = incoming.upload();
        unpublished::record_dropped(table, &incoming.map, |row, reason| {
            refused.push(Record::unpublished(table, row, reason));
        })
    }

    /// What is known so far.
    pub(super) fn builder(&self) -> &ResultBuilder<'p> {
        &self.builder
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
        let rows = [uploaded.old, uploaded.new, winner];
        self.conflicts.push(self.images(incoming, uploaded, rows));
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
        let texts = [
            Some(self.json(incoming, row)),
            Some(code.name().to_owned()),
            Some(reason.to_owned()),
        ];
        self.refused.push(self.described(incoming, uploaded, texts));
    }

    /// Records conflicts and refused rows, and gives the result.
    pub(super) async fn record(
        self,
        connection: &mut Connection,
        upload: &SyncUpload,
    ) -> Result<UploadResult, CentreError> {
        for (records, insert) in [
            (&self.conflicts, INSERT_CONFLICTS),
            (&self.refused, INSERT_REFUSED),
        ] {
            if records.tables.is_empty() {
                continue;
            }
            let statement = connection.prepare(insert, &[]).await?;
            let [a, b, c] = &records.texts;
            connection
                .client()
                .execute(
                    &statement,
                    &[
                        &upload.now_ms,
                        &upload.remote_id.0.as_slice(),
                        &upload.user,
                        &upload.publication,
                        &records.tables,
                        &records.keys,
                        &records.operations,
                        a,
                        b,
                        c,
                    ],
                )
                .await
                .map_err(refused("recording conflicts and refused rows"))?;
        }
        Ok(self.builder.finish())
    }
}

/// What all of these statements get: the upload, and the records as arrays.
macro_rules! records {
    ($($statement:literal)+) => {
        concat!(
            "
WITH uploader (at_ms, remote_id, user_name, publication) AS (
  SELECT $1::int8, $2::bytea, $3::text, $4::text),
record AS (
  SELECT * FROM unnest($5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[]) AS i (table_name, row_key, operation, a, b, c))",
            $($statement,)+
        )
    };
}

const INSERT_CONFLICTS: &str = records!(
    "
INSERT INTO tidewater.conflict (at_ms, remote_id, user_name, publication, table_name, row_key,
  operation, pre_image, uploaded, winner)
SELECT u.*, table_name, row_key, operation, a, b, c FROM uploader AS u, record"
);

const INSERT_REFUSED: &str = records!(
    "
INSERT INTO tidewater.refused (at_ms, remote_id, user_name, publication, table_name, row_key,
  operation, uploaded, code, reason)
SELECT u.*, table_name, row_key, operation, a, b, c FROM uploader AS u, record"
);

fn operation(op: Op) -> &'static str {
    match op {
        Op::Insert => "insert",
        Op::Update => "update",
        _ => "delete",
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
