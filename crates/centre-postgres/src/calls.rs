//! Calls of procedures: preparing their statements, running them, and reading their answers.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::future::{BoxFuture, FutureExt, OptionFuture, join, join3, join4};
use futures_util::{StreamExt, pin_mut};
use tokio_postgres::types::{Format, IsNull, Kind as TypeKind, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, Column, Error, Statement};

use tidewater_protocol::frame::ROWS_PAYLOAD_BYTES;
use tidewater_protocol::pack::too_long;
use tidewater_protocol::{ColumnType, Op, RowShape, RowsWriter, Value, ValueRef};

use super::connection::{MAX_STATEMENTS, PostgresConnection};
use super::decoder::{RowDecoder, recycle};
use super::interrupt::Interruption;
use super::quote::ident;
use super::system_statement::all_at_once;
use super::values::PostgresType;
use crate::caller::WHO;
use crate::driver_error::{centre_error, chain, is_locked, is_stale_plan, statement_failed};
use crate::prepared_procedure::{CallStatement, PreparedProcedure};
use tidewater_centre::engine::callable_procedure::{CallableProcedure, StatementCheck};
use tidewater_centre::engine::procedure::{CallRun, CallRunner};
use tidewater_centre::engine::scope_query::wrong;
use tidewater_centre::engine::script::Script;
use tidewater_centre::engine::scripts;
use tidewater_centre::error::CentreError;
use tidewater_centre::{AnswerColumn, CallAnswer, CallOutcome, ProcedureCall, Returns};

/// Fails with this setting's name if the query yields nothing: what follows in the transaction is
/// not run then.
const NOT_ALLOWED: &str = "tidewater.not_allowed";

/// See [`CallRunner`].
pub(super) struct PostgresCalls<'c> {
    connection: &'c mut PostgresConnection,
    interruption: Arc<Interruption>,
    /// How often something had been interrupted when the call began.
    fired: u64,
}

impl<'c> PostgresCalls<'c> {
    pub(super) fn new(connection: &'c mut PostgresConnection) -> PostgresCalls<'c> {
        let interruption = connection.interruption();
        PostgresCalls {
            connection,
            interruption,
            fired: 0,
        }
    }

    /// The procedure of a call, prepared.
    async fn prepare(
        &mut self,
        call: &ProcedureCall,
    ) -> Result<Result<Arc<PreparedProcedure>, CallRun>, CentreError> {
        let procedure = &call.procedure;
        let address = Arc::as_ptr(procedure) as usize;
        if let Some(prepared) = self.connection.procedures.get(&address) {
            return Ok(Ok(prepared.clone()));
        }
        match prepare(self.connection.client(), procedure).await {
            Ok(prepared) => {
                let prepared = Arc::new(prepared);
                if self.connection.procedures.len() >= MAX_STATEMENTS {
                    self.connection.procedures.clear();
                }
                self.connection.procedures.insert(address, prepared.clone());
                Ok(Ok(prepared))
            }
            Err(error) => Ok(Err(self.ran(call, &error)?)),
        }
    }

    /// Has this hold for the transactions that follow. Nothing can interrupt it, so that no call runs
    /// as another one should.
    async fn set(&mut self, read_only: bool, timeout: Duration) -> Result<(), CentreError> {
        let Some(set) = self.connection.set(read_only, Some(timeout)) else {
            return Ok(());
        };
        self.interruption.drain().await;
        let set = self.connection.client().batch_execute(&set).await;
        if set.is_err() {
            self.connection.forget_settings();
        }
        set.map_err(statement_failed("setting how long a call may take"))
    }

    /// What a failure means for a call.
    ///
    /// # Errors
    /// The database is away.
    fn ran(&mut self, call: &ProcedureCall, error: &Error) -> Result<CallRun, CentreError> {
        let ran = ran(call, self.fired < self.interruption.fired(), error)?;
        if matches!(ran, CallRun::Again(_)) && error.as_db_error().is_some_and(is_stale_plan) {
            self.connection.forget_statements();
        }
        Ok(ran)
    }
}

impl CallRunner for PostgresCalls<'_> {
    type Connection = PostgresConnection;

    fn connection(&mut self) -> &mut PostgresConnection {
        self.connection
    }

    async fn read(&mut self, calls: &[&ProcedureCall]) -> Result<Vec<CallRun>, CentreError> {
        self.fired = self.interruption.fired();
        let mut prepared = Vec::with_capacity(calls.len());
        for call in calls {
            prepared.push(self.prepare(call).await?);
        }
        if let Some(first) = calls.first() {
            self.set(true, first.timeout).await?;
        }
        // How long the others may take is set on the way.
        let sets = calls
            .iter()
            .map(|call| self.connection.set(true, Some(call.timeout)));
        let sets: Vec<Option<String>> = sets.collect();
        let sent = calls.iter().zip(&prepared).filter(|(_, it)| it.is_ok());
        self.interruption
            .begin(sent.map(|(call, _)| call.cancel.clone()));
        let client = self.connection.client();
        let interruption = &self.interruption;
        let runs = calls.iter().zip(&prepared).zip(&sets);
        let runs: Vec<BoxFuture<'_, _>> = runs
            .map(|((call, prepared), set)| {
                async move {
                    let set = OptionFuture::from(set.as_ref().map(|it| client.batch_execute(it)));
                    let Ok(prepared) = prepared else {
                        return (set.await.transpose(), None);
                    };
                    let (set, read) = join(set, read(client, prepared, call, interruption)).await;
                    interruption.answered();
                    (set.transpose(), Some(read))
                }
                .boxed()
            })
            .collect();
        let answers = all_at_once(runs).await;
        let mut all = Vec::with_capacity(calls.len());
        for ((call, prepared), (set, read)) in calls.iter().zip(prepared).zip(answers) {
            if let Err(error) = set {
                self.connection.forget_settings();
                all.push(self.ran(call, &error)?);
                continue;
            }
            all.push(match (prepared, read) {
                (Err(ran), _) => ran,
                (Ok(_), Some(Ok(outcome))) => CallRun::Done(outcome),
                (Ok(_), Some(Err(error))) => self.ran(call, &error)?,
                (Ok(_), None) => CallRun::Again(CallOutcome::Interrupted),
            });
        }
        Ok(all)
    }

    async fn begin(&mut self, call: &ProcedureCall) -> Result<Option<CallRun>, CentreError> {
        self.fired = self.interruption.fired();
        if let Err(ran) = self.prepare(call).await? {
            return Ok(Some(ran));
        }
        self.set(false, call.timeout).await?;
        self.interruption
            .begin(std::iter::once(call.cancel.clone()));
        match self.connection.client().batch_execute("BEGIN").await {
            Ok(()) => Ok(None),
            Err(error) => Ok(Some(self.ran(call, &error)?)),
        }
    }

    async fn run(&mut self, call: &ProcedureCall) -> Result<CallRun, CentreError> {
        // What was prepared was not forgotten since.
        let prepared = match self.prepare(call).await? {
            Ok(prepared) => prepared,
            Err(ran) => return Ok(ran),
        };
        let who = self.connection.prepare(WHO, &[]).await?;
        let caller = &call.caller;
        let remote = caller.remote_id.map(|it| it.to_string());
        let remote = remote.unwrap_or_default();
        let who_is: [&(dyn ToSql + Sync); 2] = [&caller.user, &remote];
        let client = self.connection.client();
        let (said, allowed, answered) = join3(
            client.query_one(&who, &who_is),
            allowed(client, &prepared, call),
            answer(client, &prepared, call, &self.interruption),
        )
        .await;
        let outcome = said.and_then(|_| decide(allowed, answered));
        match outcome {
            Ok(outcome) => Ok(CallRun::Done(outcome)),
            Err(error) => self.ran(call, &error),
        }
    }

    async fn commit(
        &mut self,
        call: &ProcedureCall,
        outcome: CallOutcome,
    ) -> Result<CallRun, CentreError> {
        let committed = self.connection.client().batch_execute("COMMIT").await;
        match committed {
            Ok(()) => Ok(CallRun::Done(outcome)),
            Err(error) => {
                let ran = self.ran(call, &error)?;
                self.undo().await?;
                Ok(ran)
            }
        }
    }

    async fn undo(&mut self) -> Result<(), CentreError> {
        // The call is over: what was to end it does not hit this.
        self.interruption.drain().await;
        let undone = self.connection.client().batch_execute("ROLLBACK").await;
        undone.map_err(statement_failed("undoing a call"))
    }
}

/// Reads in a transaction of its own. The connection lets it only read.
async fn read(
    client: &Client,
    prepared: &PreparedProcedure,
    call: &ProcedureCall,
    interruption: &Arc<Interruption>,
) -> Result<CallOutcome, Error> {
    // A statement alone is a transaction.
    if prepared.allow.is_none() {
        return answer(client, prepared, call, interruption).await;
    }
    let (begun, allowed, answered, ended) = join4(
        client.batch_execute("BEGIN"),
        allowed(client, prepared, call),
        answer(client, prepared, call, interruption),
        client.batch_execute("COMMIT"),
    )
    .await;
    begun?;
    let outcome = decide(allowed, answered)?;
    ended?;
    Ok(outcome)
}

/// What counts: whether it was allowed, and only then what it came to.
fn decide(
    allowed: Result<bool, Error>,
    answered: Result<CallOutcome, Error>,
) -> Result<CallOutcome, Error> {
    match allowed? {
        true => answered,
        false => Ok(CallOutcome::NotAllowed),
    }
}

/// Whether a call is allowed. If not, the transaction is none any more.
async fn allowed(
    client: &Client,
    prepared: &PreparedProcedure,
    call: &ProcedureCall,
) -> Result<bool, Error> {
    let (Some(statement), Some(script)) = (&prepared.allow, call.procedure.allow()) else {
        return Ok(true);
    };
    let parameters = arguments(call, script, statement);
    let asked = client.query_raw(statement, parameters).await;
    let drained = async {
        let rows = asked?;
        pin_mut!(rows);
        while let Some(row) = rows.next().await {
            row?;
        }
        Ok(true)
    };
    match drained.await {
        Err(error) if is_denial(&error) => Ok(false),
        other => other,
    }
}

fn is_denial(error: &Error) -> bool {
    // undefined_object
    let is = |it: &tokio_postgres::error::DbError| {
        it.code().code() == "42704" && it.message().contains(NOT_ALLOWED)
    };
    error.as_db_error().is_some_and(is)
}

/// Runs the statement of a call and reads what it answers. After too many bytes it is ended.
async fn answer(
    client: &Client,
    prepared: &PreparedProcedure,
    call: &ProcedureCall,
    interruption: &Arc<Interruption>,
) -> Result<CallOutcome, Error> {
    let mut read = CallAnswer {
        columns: Arc::new([]),
        rows: Vec::new(),
        count: 0,
    };
    let (Some(run), Some(script)) = (&prepared.statement, call.procedure.statements().first())
    else {
        return Ok(CallOutcome::Answer(read));
    };
    let returns = call.procedure.returns();
    let parameters = arguments(call, script, &run.statement);
    let rows = client.query_raw(&run.statement, parameters).await?;
    pin_mut!(rows);
    let mut decoder = RowDecoder::new(run.kinds.iter().copied());
    let mut writer = RowsWriter::new(&run.shape);
    let mut values = Vec::new();
    let (mut count, mut held, mut bytes, mut ends) = (0u64, 0, 0, None);
    while let Some(row) = rows.next().await {
        let row = match row {
            // We have ended it.
            Err(_) if ends.is_some() => break,
            row => row?,
        };
        count += 1;
        let is_left_out = match returns {
            Returns::Nothing => true,
            Returns::Value | Returns::Row => count > 1,
            Returns::Rows => false,
        };
        if is_left_out || ends.is_some() {
            continue;
        }
        let mut datums = recycle(values);
        if let Err(error) = decoder.result(&row, 0, &mut datums) {
            return Ok(CallOutcome::Failed {
                code: "22000".into(),
                message: error.to_string(),
            });
        }
        let before = writer.len();
        writer.row(Op::Upsert, &datums);
        held += 1;
        bytes += writer.len() - before;
        if bytes > call.max_bytes || too_long(&datums).is_some() {
            ends = Some(CallOutcome::TooLarge);
        }
        values = recycle(datums);
        if ends.is_none() && writer.len() >= ROWS_PAYLOAD_BYTES {
            let rows = writer.take();
            match call.streams_to() {
                Some(sink) => {
                    (bytes, held) = (bytes - rows.len(), 0);
                    ends = sink.take(&run.columns, rows).ends();
                }
                None => read.rows.push(Bytes::from(rows)),
            }
        }
        if ends.is_some() {
            interruption.end_running();
        }
    }
    if let Some(ends) = ends {
        return Ok(ends);
    }
    if matches!(returns, Returns::Value | Returns::Row) && count > 1 {
        return Ok(CallOutcome::SeveralRows);
    }
    if returns != Returns::Nothing {
        read.columns = run.columns.clone();
        read.count = held;
        if !writer.is_empty() {
            read.rows.push(Bytes::from(writer.take()));
        }
    }
    Ok(CallOutcome::Answer(read))
}

/// What a failure means for a call; others may have been interrupted since it began.
fn ran(call: &ProcedureCall, others: bool, error: &Error) -> Result<CallRun, CentreError> {
    let failure = centre_error("running a call", error);
    if matches!(failure, CentreError::Unavailable { .. }) {
        return Err(failure);
    }
    let Some(refusal) = error.as_db_error() else {
        return Ok(CallRun::Done(CallOutcome::Failed {
            code: String::new(),
            message: chain(error),
        }));
    };
    let message = refusal.message().to_owned();
    // Somebody makes room, or mends the disk.
    if failure.is_out_of_resources() {
        return Err(CentreError::Unavailable { message });
    }
    let state = refusal.code().code();
    Ok(match state {
        // query_canceled: by us, by its time, or by mistake.
        "57014" if others && !call.cancel.is_set() => CallRun::Again(CallOutcome::Interrupted),
        "57014" => CallRun::Done(CallOutcome::Interrupted),
        // serialization_failure, deadlock_detected
        "40001" | "40P01" => CallRun::Again(CallOutcome::Busy { message }),
        _ if is_locked(state) => CallRun::Done(CallOutcome::Busy { message }),
        code => {
            let failed = CallOutcome::Failed {
                code: code.to_owned(),
                message,
            };
            match is_stale_plan(refusal) {
                true => CallRun::Again(failed),
                false => CallRun::Done(failed),
            }
        }
    })
}

// ---------------------------------------------------------------------------
// Preparing

async fn prepare(
    client: &Client,
    procedure: &Arc<CallableProcedure>,
) -> Result<PreparedProcedure, Error> {
    let statement = match procedure.statements().first() {
        None => None,
        Some(script) => Some(prepare_statement(client, procedure, script).await?),
    };
    let allow = match procedure.allow() {
        None => None,
        Some(script) => Some(prepare_typed(client, procedure, script, &guard(script)).await?),
    };
    Ok(PreparedProcedure {
        _procedure: procedure.clone(),
        statement,
        allow,
    })
}

/// The statement that fails if a query yields nothing. The planner cannot know the setting, so it is
/// asked for only then.
fn guard(query: &Script) -> String {
    format!(
        "SELECT CASE WHEN EXISTS (\n{}\n) THEN '' \
         ELSE pg_catalog.current_setting('{NOT_ALLOWED}') END",
        query.sql
    )
}

/// Prepares a script's statement under the declared types of its arguments; if it needs others,
/// PostgreSQL says which.
async fn prepare_typed(
    client: &Client,
    procedure: &CallableProcedure,
    script: &Script,
    sql: &str,
) -> Result<Statement, Error> {
    let declared = script.parameters.iter();
    let declared: Vec<Type> = declared
        .map(|it| parameter(procedure.type_of(it)))
        .collect();
    let first = match client.prepare_typed(sql, &declared).await {
        Ok(statement) => return Ok(statement),
        Err(error) => error,
    };
    // undefined_function, datatype_mismatch, ambiguous_function, cannot_coerce
    match first.code().map(|it| it.code()) {
        Some("42883" | "42804" | "42725" | "42846") => {
            let second = client.prepare_typed(sql, &[]).await;
            second.map_err(|_| first)
        }
        _ => Err(first),
    }
}

async fn prepare_statement(
    client: &Client,
    procedure: &CallableProcedure,
    script: &Script,
) -> Result<CallStatement, Error> {
    let plain = prepare_typed(client, procedure, script, &script.sql).await?;
    let names: Vec<String> = plain
        .columns()
        .iter()
        .map(|it| it.name().to_owned())
        .collect();
    let statement = match plain.columns().iter().all(|it| is_legible(it.type_())) {
        true => plain,
        false => {
            let sql = legible(&script.sql, plain.columns());
            prepare_typed(client, procedure, script, &sql).await?
        }
    };
    let kinds = statement
        .columns()
        .iter()
        .map(|it| PostgresType::from_oid(it.type_().oid()));
    let kinds: Vec<PostgresType> = kinds.collect();
    let columns = statement.columns().iter().zip(&kinds).zip(names);
    let columns = columns.map(|((column, kind), name)| AnswerColumn {
        name,
        column_type: kind.column_type(scale(column)),
    });
    let columns: Arc<[AnswerColumn]> = columns.collect();
    Ok(CallStatement {
        shape: RowShape {
            columns: columns.iter().map(|it| it.column_type).collect(),
            key: Vec::new(),
        },
        statement,
        columns,
        kinds,
    })
}

/// Whether the values of a type are read as they are sent.
fn is_legible(of: &Type) -> bool {
    PostgresType::from_oid(of.oid()) != PostgresType::Other
        || matches!(of.kind(), TypeKind::Enum(_))
        || matches!(
            *of,
            Type::NAME | Type::XML | Type::UNKNOWN | Type::VOID | Type::CHAR
        )
}

/// The statement with what cannot be read as it is sent as text.
fn legible(sql: &str, columns: &[Column]) -> String {
    let names = (1..=columns.len()).map(|at| ident(&format!("c{at}")));
    let names: Vec<String> = names.collect();
    let read = columns
        .iter()
        .zip(&names)
        .map(|(column, name)| match is_legible(column.type_()) {
            true => name.clone(),
            false => format!("{name}::text"),
        });
    let read: Vec<String> = read.collect();
    format!(
        "WITH tidewater_answer ({}) AS (\n{sql}\n) SELECT {} FROM tidewater_answer",
        names.join(", "),
        read.join(", ")
    )
}

/// The digits behind the point of a column that has a fixed number of them.
fn scale(column: &Column) -> Option<u16> {
    let modifier = column.type_modifier();
    if *column.type_() != Type::NUMERIC || modifier < 4 {
        return None;
    }
    // 11 bits with a sign.
    let scale = (modifier - 4) & 0x7ff;
    (scale < 0x400).then_some(scale as u16)
}

/// The type of a parameter that an argument is declared as.
fn parameter(column_type: ColumnType) -> Type {
    match column_type {
        ColumnType::Integer => Type::INT8,
        ColumnType::Decimal { .. } => Type::NUMERIC,
        ColumnType::Real => Type::FLOAT8,
        ColumnType::Boolean => Type::BOOL,
        ColumnType::Text | ColumnType::Opaque => Type::TEXT,
        ColumnType::Bytes => Type::BYTEA,
        ColumnType::Date => Type::DATE,
        ColumnType::Time => Type::TIME,
        ColumnType::Timestamp => Type::TIMESTAMP,
        ColumnType::TimestampTz => Type::TIMESTAMPTZ,
        ColumnType::Uuid => Type::UUID,
        ColumnType::Json => Type::JSON,
    }
}

/// See [`check_call`](tidewater_centre::engine::change_tracking::ChangeTracking::check_call).
pub(super) async fn check(
    connection: &mut PostgresConnection,
    named: &str,
    procedure: &CallableProcedure,
    script: &Script,
) -> Result<StatementCheck, CentreError> {
    let client = connection.client();
    let prepared = async {
        let statement = prepare_statement(client, procedure, script).await?;
        if procedure.allow() == Some(script) {
            prepare_typed(client, procedure, script, &guard(script)).await?;
        }
        Ok(statement)
    };
    match prepared.await {
        Ok(CallStatement { columns, .. }) => Ok(StatementCheck {
            columns: columns.iter().map(|it| it.name.clone()).collect(),
            writes: None,
        }),
        Err(error) => Err(refused_by_database(named, error)),
    }
}

const CAST_HINT: &str = "say the type of a parameter that PostgreSQL takes for another, such as \
                         CAST({s.username} AS text), and see that the function is there";

/// What is wrong with a statement that the operator wrote.
pub(super) fn refused_by_database(named: &str, error: Error) -> CentreError {
    let Some(refusal) = error.as_db_error() else {
        return statement_failed("checking a statement")(error);
    };
    let hint = match refusal.hint() {
        Some(hint) if !hint.contains("explicit type casts") => hint.to_owned(),
        Some(_) => CAST_HINT.into(),
        // A function or operator that is not there, or of which there are several; a type that is
        // not known.
        None if ["42883", "42725", "42P18"].contains(&refusal.code().code()) => CAST_HINT.into(),
        None => "the statement must run in the schema public".into(),
    };
    let what = format!("is refused by PostgreSQL: {}", refusal.message());
    wrong(named, &what, hint)
}

/// See [`check_safe_time`](tidewater_centre::engine::change_tracking::ChangeTracking::check_safe_time): when the
/// transactions of other roles began is hidden from most.
pub(super) async fn check_safe_time(
    connection: &mut PostgresConnection,
) -> Result<(), CentreError> {
    const SEES: &str = "SELECT pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE')";
    let answer = connection.client().query_one(SEES, &[]).await;
    let answer = answer.map_err(statement_failed("looking what the server's role may see"))?;
    if answer.get(0) {
        return Ok(());
    }
    let what = "needs to see when other sessions' transactions began, which this role may not: rows \
                that are committed late would be missing on remotes";
    let hint = "GRANT pg_read_all_stats TO the role of the consolidated URL";
    Err(wrong("download_cursor", what, hint))
}

// ---------------------------------------------------------------------------
// Arguments

/// A value as it is sent.
#[derive(Debug)]
pub(super) enum EncodedArgument {
    Null,
    Binary(Vec<u8>),
    Text(String),
}

/// The parameters of a script's statement.
pub(super) fn of_script(
    statement: &scripts::ScriptStatement,
    values: &[Value],
    prepared: &Statement,
) -> Vec<EncodedArgument> {
    let typed = statement.types.iter().zip(values).zip(prepared.params());
    let arguments = typed.map(|((column_type, value), of)| argument(*column_type, value, of));
    arguments.collect()
}

/// The parameters of a script for a call.
fn arguments(call: &ProcedureCall, script: &Script, statement: &Statement) -> Vec<EncodedArgument> {
    let values = call.parameters(script).into_iter().zip(statement.params());
    let arguments = values.map(|((column_type, value), of)| argument(column_type, &value, of));
    arguments.collect()
}

/// A value in the binary form of the type that PostgreSQL wants, or as text that it makes one of.
fn argument(column_type: ColumnType, value: &Value, of: &Type) -> EncodedArgument {
    if *value == Value::Null {
        return EncodedArgument::Null;
    }
    let (datum, _) = column_type.datum(value.as_ref());
    let kind = PostgresType::from_oid(of.oid());
    let mut encoded = Vec::new();
    if kind != PostgresType::Other && kind.encode(&datum, &mut encoded).is_ok() {
        // Without the length.
        return EncodedArgument::Binary(encoded.split_off(4));
    }
    EncodedArgument::Text(match datum.stored(&mut String::new()) {
        ValueRef::Blob(bytes) => {
            let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
            format!("\\x{}", digits.collect::<String>())
        }
        ValueRef::Text(text) => text.to_owned(),
        ValueRef::Integer(integer) => integer.to_string(),
        ValueRef::Real(real) => real.to_string(),
        ValueRef::Null => return EncodedArgument::Null,
    })
}

impl ToSql for EncodedArgument {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            EncodedArgument::Null => return Ok(IsNull::Yes),
            EncodedArgument::Binary(bytes) => out.extend_from_slice(bytes),
            EncodedArgument::Text(text) => out.extend_from_slice(text.as_bytes()),
        }
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        match self {
            EncodedArgument::Text(_) => Format::Text,
            _ => Format::Binary,
        }
    }

    to_sql_checked!();
}
