//! Who holds which partitions: reading and running the queries that say so.

use std::sync::Arc;

use futures_util::future::try_join_all;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Statement};

use tidewater_protocol::Datum;

use super::array::Array;
use super::connection::PostgresConnection;
use super::decoder::RowDecoder;
use super::publication::{Publication, TableRule};
use crate::driver_error::statement_failed;
use tidewater_centre::SyncContext;
use tidewater_centre::engine::exact::unpack;
use tidewater_centre::engine::scope::{ScopePurpose, ScopeQuestion, ScopeQuestions, failed};
use tidewater_centre::error::CentreError;
use tidewater_centre::scope::{Partitions, Scope};

/// The queries of somebody's scopes in some publications, prepared.
pub(super) struct ScopeQueries<'p> {
    publications: Vec<&'p Publication>,
    questions: ScopeQuestions<'p>,
    statements: Vec<Statement>,
}

impl<'p> ScopeQueries<'p> {
    /// Prepares the queries.
    pub(super) async fn prepare(
        connection: &mut PostgresConnection,
        context: &SyncContext,
        publications: &[&'p Publication],
        purpose: ScopePurpose,
    ) -> Result<ScopeQueries<'p>, CentreError> {
        let questions = ScopeQuestions::new(context, publications, purpose);
        let mut statements = Vec::with_capacity(questions.list.len());
        for question in &questions.list {
            let types = vec![Type::TEXT; question.parameters.len()];
            statements.push(connection.prepare(question.sql, &types).await?);
        }
        Ok(ScopeQueries {
            publications: publications.to_vec(),
            questions,
            statements,
        })
    }

    /// Runs the queries, all in one flight.
    pub(super) async fn run(&self, client: &Client) -> Result<Vec<Arc<Partitions>>, CentreError> {
        let asked = self.questions.list.iter().zip(&self.statements);
        try_join_all(asked.map(|(question, it)| self.answer(client, question, it))).await
    }

    async fn answer(
        &self,
        client: &Client,
        question: &ScopeQuestion<'_>,
        statement: &Statement,
    ) -> Result<Arc<Partitions>, CentreError> {
        let rule = question.rule;
        let table = &self.publications[question.publication].tables[rule.table];
        let parameters = question.parameters.iter();
        let parameters: Vec<_> = parameters.map(|it| it as &(dyn ToSql + Sync)).collect();
        let rows = client.query(statement, &parameters).await;
        let rows = rows.map_err(|error| {
            let error = statement_failed("running a values query")(error);
            failed(question, &table.title, error)
        })?;
        if question.ranks.is_some() {
            let rank = rows.first().and_then(|row| row.get(0));
            return Ok(Arc::new(ScopeQuestions::ranked(rank)));
        }
        if question.permits.is_some() {
            return Ok(Arc::new(ScopeQuestions::permitted(!rows.is_empty())));
        }
        let mut partitions = Partitions::new();
        let columns = table.asked(question.which, question.window);
        let mut decoder = RowDecoder::new(columns.iter().map(|it| it.kind));
        for row in &rows {
            let mut values = Vec::with_capacity(columns.len());
            decoder.result(row, 0, &mut values)?;
            rule.take(question.window, &mut partitions, &values);
        }
        Ok(Arc::new(partitions))
    }

    /// The scope in a publication, out of the results of [`Self::run`].
    pub(super) fn scope(
        &self,
        publication: usize,
        answers: &[Arc<Partitions>],
    ) -> Result<Scope, CentreError> {
        self.questions.scope(publication, answers)
    }
}

/// The types of a rule's partition columns.
pub(super) fn partition_types(rule: &TableRule) -> Vec<tidewater_protocol::ColumnType> {
    let columns = rule.columns.iter();
    columns.map(|it| it.kind.column_type(it.scale)).collect()
}

/// Partitions as array parameters, one array for each partition column.
pub(super) fn partition_arrays<'a>(
    rule: &TableRule,
    partitions: impl Iterator<Item = &'a [u8]>,
) -> Result<Vec<Array>, CentreError> {
    let types = partition_types(rule);
    let columns = rule.columns.iter();
    let mut arrays: Vec<Array> = columns.map(|it| Array::new(it.kind)).collect();
    for packed in partitions {
        let values = unpack(packed, &types)?;
        for (array, value) in arrays.iter_mut().zip(&values) {
            // A signed value that no longer fits its column's type is in no row.
            let position = array.position();
            if array.push(value).is_err() {
                array.truncate(position);
                let _ = array.push(&Datum::Null);
            }
        }
    }
    Ok(arrays)
}
