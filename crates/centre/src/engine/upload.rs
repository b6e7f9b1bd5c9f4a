//! Uploads: the number that one takes, the scope by which it is judged, its rows, its result, and
//! what people are told of it.
//!
//! This module has what an upload has beside its rows. The adapter sends the statements of [`take`]
//! beside whatever else it asks before the first row, and reads the answers by [`taken`]. An
//! [`Admission`] is made of these and of the scope as it is now.
//!
//! The modules below write the rows. In the order in which they run:
//!
//! 1. [`upload_list`] applies a list of uploads in one transaction, each undone alone if it has
//!    to be.
//! 2. [`batching`] applies uploads of several remotes by the same statements; an upload with a
//!    row that meets anything is set apart and goes through the steps below by itself.
//! 3. [`column_map`] matches the columns that the remote announces with those of the publication.
//! 4. [`incoming_rows`] finds the rows of a table in the chunks of the upload.
//! 5. [`handler_decisions`] replaces rows, and decides rows, as handlers have said.
//! 6. [`key_cascades`] knows what the upload itself does to rows by foreign keys that act;
//!    [`foreign_keys`] has the values by which rows refer to each other.
//! 7. [`scope_admission`] finds the scope by which the rows are judged.
//! 8. [`sent_before`] finds the changes that the centre may have already.
//! 9. [`given_rows`] reads which rows of the centre a script shows to the remote.
//! 10. [`row_decisions`] keeps what is decided of rows before they are written: it is asked of every
//!     row, and grows from round to round. [`earlier_refusals`] reads for it which parents were
//!     refused in earlier uploads.
//! 11. [`apply`](mod@apply) applies one upload ([`upload_run`]) in rounds, each in the order of
//!     [`step_order`]; another one begins when a later step says so.
//! 12. [`unpublished_rows`] refuses the rows for which the publication has nothing any more, and keeps
//!     the values of columns that have left.
//! 13. [`scripted`] runs the upload scripts of a table in place of the next two steps.
//! 14. [`write_rows`] writes the rows of one operation; [`ready_rows`] has those that are ready,
//!     [`row_meeting`] decides what becomes of one that meets a row of the centre,
//!     [`resolver_output`] writes what a resolver makes of a conflict, [`row_writers`] tells it who has
//!     written the centre's row. What may not be written by the scope before the upload is refused
//!     here.
//!     What it writes goes through [`upload_writer`]: [`set_writing`] writes many rows by one
//!     statement, [`row_writing`] row by row, [`central_rows`] reads and locks the rows of the centre
//!     that uploaded ones mean, [`script_statements`] runs scripts, and [`ending_rows`] has the rows
//!     that end the transaction. [`row_batch`] has what goes in and comes out.
//! 15. [`retry`] tries failed rows again; [`key_cycles`] finds those that need each other.
//! 16. [`apply`](mod@apply) refuses what has failed for the last time; [`missing_parent_reason`] words
//!     the reason when the database says that a parent is missing.
//! 17. [`dependent_refusals`] finds the rows that cannot take effect because others did not, for
//!     another round.
//! 18. [`authorization`] finds the rows that may not be written by the scope at the end, for another
//!     round.
//! 19. [`computed_values`] reads what the centre has made of the rows.
//! 20. [`outcomes`] collects what became of each row; [`result`] packs that for the remote, and
//!     [`row_json`] writes it for people.
//! 21. [`earlier_refusals`] closes the refusals that the upload answers.
//! 22. [`echo_filter`] notes the rows that the download of the same sync leaves out.
//!
//! A row that *failed* may be tried again; one that is *refused* is final ([`refusal_reason`]).
//!
//! [`operator_choice`] (a version of a conflict) and [`replay`] (a refused row) send what an operator
//! has chosen through the steps 10 to 20, by [`operator_change`]. [`row_keys`] and [`refusal_reason`]
//! have what all steps name rows and refusals by. The adapter implements [`upload_driver`].

mod apply;
mod authorization;
mod batching;
mod central_rows;
mod claiming;
pub mod column_map;
mod computed_values;
mod dependent_refusals;
mod earlier_refusals;
mod echo_filter;
mod ending_rows;
mod foreign_keys;
mod given_rows;
mod handler_decisions;
pub mod incoming_rows;
mod key_cascades;
mod key_cycles;
pub mod missing_parent_reason;
mod operator_change;
mod operator_choice;
mod outcomes;
mod ready_rows;
pub mod refusal_reason;
mod replay;
mod resolver_output;
mod result;
mod retry;
pub mod row_batch;
mod row_decisions;
pub(crate) mod row_json;
mod row_keys;
mod row_meeting;
mod row_writers;
mod row_writing;
mod scope_admission;
mod script_events;
mod script_statements;
mod scripted;
mod sent_before;
mod set_writing;
mod step_order;
mod unpublished_rows;
pub mod upload_driver;
mod upload_list;
mod upload_run;
pub mod upload_writer;
mod write_rows;

pub use crate::engine::upload::upload_list::apply;
pub use operator_choice::settle_conflict;
pub use replay::settle_refused;

use std::collections::HashMap;
use std::sync::Arc;

use prost::Message;

use tidewater_protocol::{Code, Op, RemoteId, UploadId, Value};

use super::connection::{DatabaseConnection, StatementResult, SystemStatement};
use super::publication::{Publication, RowRule};
use super::scope::RuleDifference;
use super::sql::system::conflicts::{self, ConflictRow};
use super::sql::system::given_back;
use super::sql::system::refusals::{self, RefusedAttempt};
use super::sql::system::subscriptions::{self, StoredUploadResult, SubscriptionKey, UploadNumber};
use crate::engine::membership::Membership;
use crate::engine::sql::served_table::TableAdapter;
use crate::error::CentreError;
use crate::records::ConflictOutcome;
use crate::scope::{Checkpoint, Scope};
use crate::upload::{GainedPartitions, SyncUpload, UploadOutcome, UploadResult, decode_result};

type Result<T> = std::result::Result<T, CentreError>;

/// The reason for which changes of a table are refused that is only downloaded.
pub const DOWNLOAD_ONLY: &str = "this table takes no changes from remotes";

/// So many records are written at once, and so many bytes, but for the last one.
const RECORDS_AT_ONCE: usize = 500;
const BYTES_AT_ONCE: usize = 4 << 20;

/// Takes the numbers of uploads; [`taken`] reads the answers. Whoever comes second finds his used.
pub fn take(uploads: &[&SyncUpload]) -> [SystemStatement; 2] {
    let numbers = uploads.iter().map(|upload| UploadNumber {
        subscription: subscription(upload),
        sequence: upload.sequence,
        upload_id: upload.upload_id,
    });
    [
        subscriptions::insert(uploads.iter().map(|upload| subscription(upload))),
        subscriptions::take_numbers(numbers),
    ]
}

fn subscription(upload: &SyncUpload) -> SubscriptionKey<'_> {
    SubscriptionKey {
        remote_id: upload.context.remote_id,
        publication: &upload.publication,
    }
}

/// The serials of a subscription's scopes.
pub struct Serials {
    /// The last scope that was handed out.
    last: u64,
    /// The one that the remote held when it was.
    previous: u64,
    /// The one whose lost partitions have taken their last upload.
    graced: u64,
}

impl Serials {
    /// Of nobody.
    fn none() -> Serials {
        Serials {
            last: 0,
            previous: 0,
            graced: 0,
        }
    }
}

/// What the subscriptions say, in the order of the uploads; `None` if the number does not follow,
/// see [`last`].
pub fn taken(answers: &[StatementResult], uploads: &[&SyncUpload]) -> Result<Vec<Option<Serials>>> {
    let mut taken = HashMap::new();
    for row in answers.last().iter().flat_map(|taken| &taken.rows) {
        let id: (UploadId, RemoteId) = (row.get(0)?, row.get(1)?);
        let serials = Serials {
            last: row.get(2)?,
            previous: row.get(3)?,
            graced: row.get(4)?,
        };
        taken.insert(id, serials);
    }
    let ids = uploads.iter();
    let ids = ids.map(|upload| (upload.upload_id, upload.context.remote_id));
    // The same upload twice in a list is taken once.
    Ok(ids.map(|id| taken.remove(&id)).collect())
}

/// What becomes of an upload whose number does not follow.
pub async fn last(
    connection: &mut impl DatabaseConnection,
    upload: &SyncUpload,
) -> Result<UploadOutcome> {
    let select = subscriptions::read_upload(upload.context.remote_id, &upload.publication);
    let answer = connection
        .run_one("looking for the last upload", select)
        .await?;
    let Some(row) = answer.rows.first() else {
        return Ok(UploadOutcome::OutOfSequence);
    };
    let (sequence, id): (u64, Option<UploadId>) = (row.get(0)?, row.get(1)?);
    let is_same = sequence == upload.sequence && id == Some(upload.upload_id);
    let result: Option<Vec<u8>> = row.get(2)?;
    Ok(match result.filter(|_| is_same) {
        Some(result) => UploadOutcome::AlreadyApplied {
            result: decode_result(&result)?,
        },
        None => UploadOutcome::OutOfSequence,
    })
}

/// Notes that an upload has come back which a restored centre has forgotten; false if another copy
/// of the remote's file was faster: then none of its rows counts.
pub async fn note_given_back(
    connection: &mut impl DatabaseConnection,
    upload: &SyncUpload,
) -> Result<bool> {
    let statements = [
        subscriptions::note_given_back(upload.context.remote_id, &upload.publication),
        given_back::insert(upload.upload_id, upload.context.now_ms),
    ];
    let what = "noting an upload that was given back";
    let answers = connection.flight(what, &statements).await?;
    Ok(answers.last().is_some_and(|noted| noted.changed > 0))
}

/// What is known of an upload once its number is taken.
pub struct Admission {
    /// What the remote may write.
    pub scope: Scope,
    /// Becomes the subscription's graced serial.
    graced: u64,
    /// Become the result's.
    gained: Vec<GainedPartitions>,
    held: Option<u64>,
    /// Whether no scope counts.
    is_operators: bool,
    /// What scripts that say who gets which rows give of those that the upload meets.
    given: given_rows::GivenRows,
}

impl Admission {
    /// An operator may write every row.
    fn of_operator() -> Admission {
        Admission {
            scope: Scope::default(),
            graced: 0,
            gained: Vec::new(),
            held: None,
            is_operators: true,
            given: given_rows::GivenRows::default(),
        }
    }

    /// Finds what the remote may write: the scope as it is now, and what the checkpoint that it
    /// presents says it held, if that still counts. `differences` says how these differ by rule,
    /// where it is known what was held.
    pub fn new(
        rules: &[RowRule],
        checkpoint: Option<&Checkpoint>,
        serials: &Serials,
        differences: Vec<Option<RuleDifference>>,
        mut scope: Scope,
    ) -> Admission {
        let (mut gained, mut lost) = (Vec::new(), Vec::new());
        for (rule, difference) in rules.iter().zip(differences) {
            let difference = difference.unwrap_or_default();
            if !difference.gained.is_empty() {
                gained.push(GainedPartitions {
                    rule: rule.id,
                    partitions: difference.gained,
                });
            }
            lost.push(difference.lost);
        }
        let graced = add_signed(&mut scope, checkpoint, serials, lost);
        Admission {
            scope,
            graced,
            gained,
            held: checkpoint.map(|checkpoint| checkpoint.serial),
            is_operators: false,
            given: given_rows::GivenRows::default(),
        }
    }

    /// What of a table the remote may write.
    fn writable<'a, T: TableAdapter>(
        &'a self,
        publication: &'a Publication<T>,
        table: usize,
    ) -> Membership<'a> {
        if self.is_operators {
            return Membership::of_all();
        }
        let written = publication.writes[table].rule.as_ref();
        self.held(publication, table)
            .written_by(written, &self.scope.writes[table])
            .of_any_age()
    }

    /// What of a table the remote holds.
    fn held<'a, T: TableAdapter>(
        &'a self,
        publication: &'a Publication<T>,
        table: usize,
    ) -> Membership<'a> {
        if self.is_operators {
            return Membership::of_all();
        }
        let rules = publication.rules_of(table);
        Membership::new(&publication.rules[rules.clone()], &self.scope.rules[rules])
    }

    /// This is the admission at the end of an upload that began under another one: what had to be
    /// graced then is graced.
    pub(crate) fn follow(&mut self, before: &Admission) {
        self.graced = self.graced.max(before.graced);
    }

    /// Completes the result of the upload; for [`subscriptions::store_results`].
    fn complete(&self, upload: &SyncUpload, result: &mut UploadResult) -> Vec<Value> {
        result.gained.clone_from(&self.gained);
        result.held = self.held;
        subscriptions::stored_result(&StoredUploadResult {
            subscription: subscription(upload),
            result: result.encode_to_vec(),
            graced: self.graced,
            now_ms: upload.context.now_ms,
        })
    }
}

/// Adds the partitions of the signed scope that the remote has lost since, so that changes which
/// it made while it held them are not lost with them: once, and only if the scope is the last that
/// was handed out, or the one before. That one counts until the last is presented: the answer
/// with the last may have been lost. Gives the serial that is graced from now on.
fn add_signed(
    scope: &mut Scope,
    checkpoint: Option<&Checkpoint>,
    serials: &Serials,
    lost: Vec<Vec<Vec<u8>>>,
) -> u64 {
    let Some(&Checkpoint { serial, .. }) = checkpoint else {
        return serials.graced;
    };
    // Who presents the newest scope has it: the one before is spent.
    let graced = match serial == serials.last {
        true => serials.graced.max(serials.previous),
        false => serials.graced,
    };
    let is_issued = serial == serials.last || serial == serials.previous;
    if !is_issued || serial <= graced {
        return graced;
    }
    let mut is_needed = false;
    for (lost, now) in lost.into_iter().zip(&mut scope.rules) {
        if !lost.is_empty() {
            is_needed = true;
            Arc::make_mut(&mut now.partitions).extend(lost);
        }
    }
    if is_needed { serial } else { graced }
}

/// What an upload leaves for people.
#[derive(Default)]
pub struct UploadRecords {
    /// Changes that met those of others.
    pub conflicts: Vec<UploadConflict>,
    /// Changes that were refused.
    pub refused: Vec<UploadRefusal>,
    /// Values of columns that are not published any more. They are listed with the refused rows,
    /// but the rows that they were in are taken, or not, like any other.
    pub dropped_values: Vec<UploadRefusal>,
}

/// A change that met one of somebody else's.
pub struct UploadConflict {
    /// Its table.
    pub table: String,
    /// A JSON array.
    pub key: String,
    /// What was to be done.
    pub op: Op,
    /// JSON objects, these three.
    pub pre_image: Option<String>,
    /// The new image, a JSON object.
    pub uploaded: Option<String>,
    /// The row that the centre has now, a JSON object.
    pub winner: Option<String>,
    /// The one that it had, if that is another one; a JSON object.
    pub replaced: Option<String>,
    /// What the conflict has come to.
    pub outcome: ConflictOutcome,
}

/// A change that was refused.
pub struct UploadRefusal {
    /// Its table.
    pub table: String,
    /// A JSON array.
    pub key: String,
    /// What was to be done.
    pub op: Op,
    /// A JSON object: the new image, of a delete the old one.
    pub row: String,
    /// The old image of an update or a delete, a JSON object.
    pub pre_image: Option<String>,
    /// Why.
    pub code: Code,
    /// The same for people.
    pub reason: String,
    /// Table and key of the refused row that it refers to, if that is why.
    pub parent: Option<(String, String)>,
}

impl UploadRecords {
    /// Keeps them.
    pub async fn store(
        &self,
        connection: &mut impl DatabaseConnection,
        upload: &SyncUpload,
    ) -> Result<()> {
        store_all(&self.conflicts, upload, connection).await?;
        // Of a row that is refused, too, operators read the record that comes last.
        store_all(&self.dropped_values, upload, connection).await?;
        store_all(&self.refused, upload, connection).await
    }
}

/// What is kept for people.
trait RecordedImage: Sync {
    /// The statement that keeps some.
    fn insert(rows: Vec<Vec<Value>>) -> SystemStatement;

    /// A row of it.
    fn row(&self, upload: &SyncUpload) -> Vec<Value>;
}

/// Writes records, as many at once as a statement may carry.
async fn store_all<R: RecordedImage>(
    records: &[R],
    upload: &SyncUpload,
    connection: &mut impl DatabaseConnection,
) -> Result<()> {
    let what = "recording conflicts and refused rows";
    let mut rest = records;
    while !rest.is_empty() {
        let (mut rows, mut bytes) = (Vec::new(), 0);
        while let Some((record, after)) = rest.split_first() {
            if rows.len() == RECORDS_AT_ONCE || bytes >= BYTES_AT_ONCE {
                break;
            }
            let row = record.row(upload);
            bytes += row.iter().map(text_bytes).sum::<usize>();
            rows.push(row);
            rest = after;
        }
        connection.flight(what, &[R::insert(rows)]).await?;
    }
    Ok(())
}

fn text_bytes(value: &Value) -> usize {
    match value {
        Value::Text(text) => text.len(),
        _ => 0,
    }
}

impl RecordedImage for UploadConflict {
    fn insert(rows: Vec<Vec<Value>>) -> SystemStatement {
        conflicts::insert(rows)
    }

    fn row(&self, upload: &SyncUpload) -> Vec<Value> {
        let row = ConflictRow {
            now_ms: upload.context.now_ms,
            remote_id: upload.context.remote_id,
            user: &upload.context.user,
            publication: &upload.publication,
            table: &text(&self.table),
            key: &self.key,
            operation: operation(self.op),
            pre_image: self.pre_image.as_deref(),
            uploaded: self.uploaded.as_deref(),
            winner: self.winner.as_deref(),
            replaced: self.replaced.as_deref(),
            outcome: self.outcome,
            sync_notes: operator_change::sync_notes(&upload.context, &upload.publication),
        };
        row.values()
    }
}

impl RecordedImage for UploadRefusal {
    fn insert(rows: Vec<Vec<Value>>) -> SystemStatement {
        refusals::insert(rows)
    }

    fn row(&self, upload: &SyncUpload) -> Vec<Value> {
        let parent = self.parent.as_ref();
        let row = RefusedAttempt {
            now_ms: upload.context.now_ms,
            remote_id: upload.context.remote_id,
            user: &upload.context.user,
            publication: &upload.publication,
            table: &text(&self.table),
            key: &self.key,
            operation: operation(self.op),
            uploaded: &self.row,
            code: self.code.name(),
            reason: &text(&self.reason),
            sequence: upload.sequence,
            pre_image: self.pre_image.as_deref(),
            parent: parent.map(|(table, key)| (text(table), &**key)),
            sync_notes: operator_change::sync_notes(&upload.context, &upload.publication),
        };
        row.values()
    }
}

/// Not every database has text with a NUL in it; what a remote calls a table may have one.
fn text(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

fn operation(op: Op) -> &'static str {
    match op {
        Op::Insert => "insert",
        Op::Update => "update",
        _ => "delete",
    }
}
