//! What became of uploaded rows: collected for the result, recorded for people.

use tokio_postgres::error::DbError;

use tidewater_protocol::{Code, Datum, Op, PublicationSchema};

use super::admit::Order;
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
    order: Order,
    /// Changes that were in effect already; without a winner.
    needless: Records,
    /// Changes that took effect; only with what they wrote.
    written: Records,
}

/// Rows of the tables for conflicts and refused rows, column by column.
#[derive(Default)]
struct Records {
    central_names: Vec<String>,
    tables: Vec<String>,
    keys: Vec<String>,
    operations: Vec<String>,
    /// Conflicts: pre-image, uploaded, winner. Refused rows: row, code, reason.
    texts: [Vec<Option<String>>; 3],
}

/// One of them.
struct Record {
    /// Empty for a table that is not published.
    central_name: String,
    table: String,
    key: String,
    op: Op,
    texts: [Option<String>; 3],
}

impl Record {
    /// A row that is refused because its table, or a column of it, is not published.
    fn unpublished(table: &UploadTable, row: UnpublishedRow, reason: &str) -> Record {
        Record {
            central_name: String::new(),
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
        self.central_names.push(record.central_name);
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
    pub(super) fn new(
        publication: &'p Compiled,
        orphans: &'p Orphans,
        order: Order,
    ) -> Outcomes<'p> {
        Outcomes {
            publication,
            orphans,
            builder: ResultBuilder::new(&publication.schema, &publication.shapes),
            conflicts: Records::default(),
            refused: Records::default(),
            order,
            needless: Records::default(),
            written: Records::default(),
        }
    }

    pub(super) fn applied(&mut self, op: Op, rows: u64) {
        self.builder.applied(op, rows);
    }

    /// What else is told than what became of the rows.
    pub(super) fn order(&self) -> Order {
        self.order
    }

    /// A change has taken effect.
    pub(super) fn written(&mut self, incoming: &Incoming<'_>, uploaded: &Uploaded<'_, '_>) {
        if self.order != Order::Free {
            let rows = [None, None, uploaded.new];
            self.written.push(self.images(incoming, uploaded, rows));
        }
    }

    /// A change found its row as it was to become.
    pub(super) fn needless(&mut self, incoming: &Incoming<'_>, uploaded: &Uploaded<'_, '_>) {
        if self.order == Order::Late && uploaded.old != uploaded.new {
            let rows = [uploaded.old, uploaded.new, None];
            self.needless.push(self.images(incoming, uploaded, rows));
        }
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
            central_name: incoming.table.sql_name.clone(),
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
        let schema = &self.publication.schema;
        let is_orphan = self
            .orphans
            .has(schema, incoming.index, uploaded.op, uploaded.key);
        if is_orphan {
            self.refused(incoming, uploaded, orphans::CODE, orphans::REASON);
        }
        is_orphan
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

    /// The published schema.
    pub(super) fn schema(&self) -> &'p PublicationSchema {
        &self.publication.schema
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
        let ended = match self.order {
            Order::Late => TELL_LOST,
            _ => FORGET,
        };
        for (records, insert) in [
            (&self.conflicts, INSERT_CONFLICTS),
            (&self.refused, INSERT_REFUSED),
            (&self.written, ended),
            (&self.needless, REMEMBER_NEEDLESS),
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
                        &records.central_names,
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
  SELECT * FROM unnest($5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[],
    $11::text[]) AS i (table_name, row_key, operation, a, b, c, central_name))",
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

/// The last one of a remote counts.
const REMEMBER_NEEDLESS: &str = records!(
    ",
forgotten AS (
  DELETE FROM tidewater.needless_change AS n USING uploader AS u, record AS r
  WHERE n.row_key = r.row_key AND n.central_name = r.central_name AND n.remote_id = u.remote_id)
INSERT INTO tidewater.needless_change (at_ms, remote_id, user_name, publication, central_name,
  table_name, row_key, operation, pre_image, uploaded)
SELECT u.*, central_name, table_name, row_key, operation, a, b FROM uploader AS u, record"
);

/// What was in effect until these rows were written, and is older.
const FORGET: &str = records!(
    "
DELETE FROM tidewater.needless_change AS n USING record AS r
WHERE n.row_key = r.row_key AND n.central_name = r.central_name"
);

/// What was in effect until these rows were written, and is newer.
const TELL_LOST: &str = records!(
    ",
ended AS (
  DELETE FROM tidewater.needless_change AS n USING record AS r
  WHERE n.row_key = r.row_key AND n.central_name = r.central_name RETURNING n.*, r.c AS winner)
INSERT INTO tidewater.conflict (at_ms, remote_id, user_name, publication, table_name, row_key,
  operation, pre_image, uploaded, winner)
SELECT u.at_ms, e.remote_id, e.user_name, e.publication, table_name, row_key, operation,
  pre_image, uploaded, winner
FROM ended AS e, uploader AS u WHERE e.remote_id <> u.remote_id"
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
