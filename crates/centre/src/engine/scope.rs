//! Which partitions a user holds now, and what became of a scope that a remote presents.

pub mod asking;
mod difference;

use std::collections::HashMap;
use std::sync::Arc;

use tidewater_protocol::{ColumnType, Datum, RemoteId, Value};

use super::compile::WhichRule;
use super::connection::{StatementResult, SystemStatement};
use super::exact::{pack_exact, unpack};
use super::publication::{Publication, RowRule};
use super::script::ScriptParameter;
use super::sql::system::subscriptions;
use super::window::{self, Window};
use crate::context::{DEFAULT, GivenPartitions, SyncContext, VERSION};
use crate::engine::scope_query::ScopeQuery;
use crate::engine::sql::served_table::TableAdapter;
use crate::engine::upload::row_json;
use crate::error::CentreError;
use crate::scope::{Partitions, RuleScope, Scope};

pub use self::difference::{RuleDifference, ScopeDifferences, keep};

type Result<T> = std::result::Result<T, CentreError>;

/// A query to be run for somebody.
pub struct ScopeQuestion<'p> {
    /// The query.
    pub sql: &'p str,
    /// Its parameters, in order; `None` for those that the remote has not set.
    pub parameters: Vec<Option<String>>,
    /// The publication's place in the list.
    pub publication: usize,
    /// A rule that has the query.
    pub rule: &'p RowRule,
    /// Which of the rules of its table that is.
    pub which: WhichRule,
    /// The window of the rule of which this is the highest value; otherwise partitions are asked
    /// for.
    pub window: Option<usize>,
    /// The parameter of the remote whose value is allowed if there is a row; then it is no rule's.
    pub permits: Option<&'p str>,
    /// The table of which it tells the user's rank; then it is no rule's.
    pub ranks: Option<&'p str>,
}

/// The queries that tell somebody's scopes in some publications; equal ones are run once.
pub struct ScopeQuestions<'p> {
    /// The different queries.
    pub list: Vec<ScopeQuestion<'p>>,
    /// For each publication and rule: which of them.
    of_rule: Vec<Vec<RuleQuestions<'p>>>,
    /// For each publication and table: which of them tells what may be written.
    of_writes: Vec<Vec<Option<usize>>>,
    /// For each publication: those whose answers must not be empty.
    permits: Vec<Vec<PermitQuestion<'p>>>,
    /// For each publication and table: which of them tells the user's rank.
    of_ranks: Vec<Vec<Option<usize>>>,
    /// See [`SyncContext::given`].
    given: Option<Arc<GivenPartitions>>,
    now_ms: i64,
}

/// Which question tells whether a parameter may be what it is.
struct PermitQuestion<'p> {
    question: usize,
    publication: &'p str,
    parameter: &'p str,
    value: String,
}

/// Which questions tell the scope of a rule.
struct RuleQuestions<'p> {
    rule: &'p RowRule,
    partitions: Option<usize>,
    /// For the highest value of a column of numbers.
    windows: Vec<(Option<usize>, &'p Window)>,
}

/// What a scope is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScopePurpose {
    /// What is held.
    Reading,
    /// The same, and what of that may be written.
    Writing,
}

/// What makes two questions one: the query, its parameters, the types of its results.
type Words<'p> = (&'p str, Vec<Option<String>>, &'p [ColumnType]);

/// The questions so far.
struct QuestionCollector<'p, 'c> {
    context: &'c SyncContext,
    list: Vec<ScopeQuestion<'p>>,
    seen: HashMap<Words<'p>, usize>,
}

impl<'p> QuestionCollector<'p, '_> {
    /// The number of a question, which may be asked already.
    fn ask<T: TableAdapter>(
        &mut self,
        (number, publication): (usize, &'p Publication<T>),
        (which, rule): (WhichRule, &'p RowRule),
        window: Option<usize>,
    ) -> Option<usize> {
        let query = match window {
            None => rule.query.as_ref()?,
            Some(window) => rule.windows[window].highest.as_ref()?,
        };
        Some(self.ask_query(
            (query, rule.asked_types(window)),
            (number, publication),
            (which, rule),
            window,
        ))
    }

    /// The same of a query whose results are of these types.
    fn ask_query<T: TableAdapter>(
        &mut self,
        (query, types): (&'p ScopeQuery, &'p [ColumnType]),
        (number, publication): (usize, &'p Publication<T>),
        (which, rule): (WhichRule, &'p RowRule),
        window: Option<usize>,
    ) -> usize {
        let parameters = values_of(query, self.context, &publication.schema.name);
        let same = (query.sql.as_str(), parameters.clone(), types);
        let list = &mut self.list;
        *self.seen.entry(same).or_insert_with(|| {
            list.push(ScopeQuestion {
                sql: &query.sql,
                parameters,
                publication: number,
                rule,
                which,
                window,
                permits: None,
                ranks: None,
            });
            list.len() - 1
        })
    }

    /// The questions which rank the user has, by table.
    fn ranks<T: TableAdapter>(&mut self, place: (usize, &'p Publication<T>)) -> Vec<Option<usize>> {
        let publication = place.1;
        let tables = publication.schema.tables.iter();
        let asked = publication.ranks.iter().zip(tables).map(|(query, table)| {
            let any = (WhichRule::Held(0), publication.rules.first()?);
            let question = self.ask_query((query.as_ref()?, &[]), place, any, None);
            self.list[question].ranks = Some(&table.name);
            Some(question)
        });
        asked.collect()
    }

    /// The questions whether what the remote has set is allowed.
    fn permits<T: TableAdapter>(
        &mut self,
        place: (usize, &'p Publication<T>),
    ) -> Vec<PermitQuestion<'p>> {
        let publication = place.1;
        let set = self.context.parameters.get(&publication.schema.name);
        let asked = publication.permits.iter().filter_map(|permit| {
            let value = match set.and_then(|it| it.get(&permit.parameter)) {
                Some(value) => value,
                // Who names no version has one.
                None if permit.parameter == VERSION => DEFAULT,
                None => return None,
            };
            let any = (WhichRule::Held(0), publication.rules.first()?);
            let question = self.ask_query((&permit.query, &[]), place, any, None);
            self.list[question].permits = Some(&permit.parameter);
            Some(PermitQuestion {
                question,
                publication: &publication.schema.name,
                parameter: &permit.parameter,
                value: value.chars().take(60).collect(),
            })
        });
        asked.collect()
    }
}

/// The values of a query's parameters in a sync of a publication.
pub fn values_of(
    query: &ScopeQuery,
    context: &SyncContext,
    publication: &str,
) -> Vec<Option<String>> {
    let parameters = query.parameters.iter();
    let values = parameters.map(|it| value_of(it, context, publication));
    values.collect()
}

/// What a parameter is in a sync of a publication.
fn value_of(
    parameter: &ScriptParameter,
    context: &SyncContext,
    publication: &str,
) -> Option<String> {
    match parameter {
        ScriptParameter::System("username") => Some(context.user.clone()),
        ScriptParameter::System("remote_id") => Some(context.remote_id.to_string()),
        ScriptParameter::System(_) => Some(publication.to_owned()),
        ScriptParameter::Claim(name) => context.claims.named(name).map(str::to_owned),
        ScriptParameter::User(name) if name == VERSION => Some(
            context
                .script_version(publication)
                .unwrap_or(DEFAULT)
                .to_owned(),
        ),
        ScriptParameter::User(name) => context.parameters.get(publication)?.get(name).cloned(),
        // Only calls and rows have them.
        ScriptParameter::Argument(_)
        | ScriptParameter::New(_)
        | ScriptParameter::Old(_)
        | ScriptParameter::Mark(_) => None,
    }
}

impl<'p> ScopeQuestions<'p> {
    /// What has to be asked for some publications.
    pub fn new<T: TableAdapter>(
        context: &SyncContext,
        publications: &[&'p Publication<T>],
        purpose: ScopePurpose,
    ) -> ScopeQuestions<'p> {
        let mut asking = QuestionCollector {
            context,
            list: Vec::new(),
            seen: HashMap::new(),
        };
        let mut of_rule = Vec::with_capacity(publications.len());
        let mut of_writes = Vec::with_capacity(publications.len());
        let mut permits = Vec::with_capacity(publications.len());
        let mut of_ranks = Vec::with_capacity(publications.len());
        for (number, &publication) in publications.iter().enumerate() {
            let place = (number, publication);
            let rules = publication.rules.iter().enumerate().map(|(index, rule)| {
                let local = index - publication.rules_of(rule.table).start;
                let of_table = (WhichRule::Held(local), rule);
                let partitions = asking.ask(place, of_table, None);
                let windows = rule.windows.iter().enumerate();
                let windows = windows.map(|(at, it)| (asking.ask(place, of_table, Some(at)), it));
                RuleQuestions {
                    rule,
                    partitions,
                    windows: windows.collect(),
                }
            });
            of_rule.push(rules.collect());
            let writes = publication.writes.iter();
            let writes = writes
                .filter(|_| purpose == ScopePurpose::Writing)
                .map(|writes| {
                    let rule = writes.rule.as_ref()?;
                    asking.ask(place, (WhichRule::Written, rule), None)
                });
            of_writes.push(writes.collect());
            permits.push(asking.permits(place));
            of_ranks.push(match purpose {
                ScopePurpose::Writing => asking.ranks(place),
                ScopePurpose::Reading => Vec::new(),
            });
        }
        ScopeQuestions {
            list: asking.list,
            of_rule,
            of_writes,
            permits,
            of_ranks,
            given: context.given.clone(),
            now_ms: context.now_ms,
        }
    }

    /// How a question that permits something is answered.
    pub fn permitted(allowed: bool) -> Partitions {
        allowed.then(Vec::new).into_iter().collect()
    }

    /// How a question for a rank is answered, which is told as text.
    pub fn ranked(rank: Option<String>) -> Partitions {
        rank.map(String::into_bytes).into_iter().collect()
    }

    /// The scope of a publication, out of what each question was answered with: partitions, or the
    /// highest value of a window's column as the only one.
    ///
    /// # Errors
    /// An answer is none, or a parameter is what the user may not ask for.
    pub fn scope(&self, publication: usize, answers: &[Arc<Partitions>]) -> Result<Scope> {
        let mut permits = self.permits[publication].iter();
        if let Some(denied) = permits.find(|it| answers[it.question].is_empty()) {
            return Err(CentreError::NotAllowed {
                publication: denied.publication.to_owned(),
                parameter: denied.parameter.to_owned(),
                value: denied.value.clone(),
            });
        }
        let asked = &self.of_rule[publication];
        if let Some(given) = &self.given {
            check_given(given, asked.iter().map(|it| it.rule))?;
        }
        let rules = asked.iter().map(|asked| {
            let partitions = match &self.given {
                None => asked.partitions.map(|it| answers[it].clone()),
                Some(given) => Some(Arc::new(asked.rule.given(given)?)),
            };
            let lows = asked.windows.iter().map(|(highest, window)| {
                let highest = highest.and_then(|it| answers[it].first());
                let types = std::slice::from_ref(&window.column_type);
                let highest = highest.map(|it| unpack(it, types)).transpose()?;
                let highest = highest.and_then(|it| window::position(*it.first()?));
                Ok(window.low(self.now_ms, highest))
            });
            Ok(RuleScope {
                partitions: partitions.unwrap_or_default(),
                lows: lows.collect::<Result<_>>()?,
            })
        });
        let writes = self.of_writes[publication].iter().map(|asked| RuleScope {
            partitions: asked.map(|it| answers[it].clone()).unwrap_or_default(),
            lows: Vec::new(),
        });
        let ranks = self.of_ranks[publication].iter().map(|asked| {
            let rank = answers[(*asked)?].first()?;
            std::str::from_utf8(rank).ok()?.parse().ok()
        });
        Ok(Scope {
            rules: rules.collect::<Result<_>>()?,
            writes: writes.collect(),
            ranks: ranks.collect(),
        })
    }
}

/// Whether there are partitions by all the columns that are named.
fn check_given<'p>(
    given: &GivenPartitions,
    rules: impl Iterator<Item = &'p RowRule> + Clone,
) -> Result<()> {
    let mut names = rules
        .flat_map(|it| it.names.iter().map(String::as_str))
        .collect::<Vec<_>>();
    names.sort_unstable();
    names.dedup();
    let mut asked = given.values.iter();
    match asked.find(|(name, _)| !names.contains(&name.as_str())) {
        None => Ok(()),
        Some((name, _)) => Err(CentreError::Configuration {
            message: format!("the publication has no partitions by {name:?}"),
            hint: match names.is_empty() {
                true => "it gives everybody the same rows: name no partition".into(),
                false => format!("it has partitions by: {}", names.join(", ")),
            },
        }),
    }
}

impl RowRule {
    /// Those of the given partitions that are its own: each value of each of its columns with each
    /// of the others.
    fn given(&self, given: &GivenPartitions) -> Result<Partitions> {
        let mut rows: Vec<Vec<Value>> = vec![Vec::new()];
        for (name, &column_type) in self.names.iter().zip(&self.types) {
            let values = given.values_of(name).map(|text| {
                let value = row_json::from_text(column_type, text);
                value.ok_or_else(|| CentreError::Configuration {
                    message: format!(
                        "{text:?} is no value of {name:?}, a column of {column_type:?}"
                    ),
                    hint: "write it as rows have it on remotes".into(),
                })
            });
            let values: Vec<Value> = values.collect::<Result<_>>()?;
            let longer = rows.iter().flat_map(|row| {
                let with = |value: &Value| [&row[..], std::slice::from_ref(value)].concat();
                values.iter().map(with)
            });
            rows = longer.collect();
        }
        let mut partitions = Partitions::new();
        if self.query.is_some() {
            for row in &rows {
                let values = self.types.iter().zip(row);
                let values: Vec<Datum<'_>> = values
                    .map(|(column_type, value)| column_type.datum(value.as_ref()).0)
                    .collect();
                self.take(None, &mut partitions, &values);
            }
        }
        Ok(partitions)
    }

    /// Adds what a row of a question's result says. NULL is in no partition.
    pub fn take(&self, window: Option<usize>, partitions: &mut Partitions, values: &[Datum<'_>]) {
        if !values.contains(&Datum::Null) {
            partitions.insert(pack_exact(self.asked_types(window), values));
        }
    }

    /// The types of the columns that a question yields.
    pub fn asked_types(&self, window: Option<usize>) -> &[ColumnType] {
        match window {
            None => &self.types,
            Some(window) => std::slice::from_ref(&self.windows[window].column_type),
        }
    }
}

/// What it means that a question about a table fails: its own fault and not that of the list in
/// which it is run.
pub fn failed(question: &ScopeQuestion<'_>, table: &str, error: CentreError) -> CentreError {
    let query = match (question.permits, question.ranks) {
        (_, Some(table)) => format!("the rank query of {table:?}"),
        (None, None) => format!("the values query of {table:?}"),
        (Some(parameter), None) => format!("the allowed query of the parameter {parameter:?}"),
    };
    match error {
        CentreError::StatementFailed {
            retry: false,
            message,
            ..
        } => CentreError::Configuration {
            message: format!("{query} fails: {message}"),
            hint: "correct the query, or the data that it reads".into(),
        },
        other => other,
    }
}

/// What a presented serial is to its subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SerialValidity {
    /// It stays.
    Known,
    /// It stays, and that the remote has it is news: the one before does not count any more.
    Arrived,
    /// It is none of the last two, or is spent: changes could not be taken under it.
    Replaced,
    /// It is from before the remote gave back what the restored centre had forgotten, and so is
    /// the file: an older copy of the one that was told what became of that.
    Outdated,
}

/// The serials of a subscription's scopes: the last one issued, the one that the remote held then,
/// the one that has taken its last upload, and the last one when the remote gave back.
pub type Serials = (u64, u64, u64, Option<u64>);

impl SerialValidity {
    /// Asks which serials were issued.
    pub fn ask(remote_id: RemoteId, publication: &str) -> SystemStatement {
        subscriptions::read_serials(remote_id, publication)
    }

    /// `issued` is `None` if there is no such subscription.
    pub fn from_serials(presented: Option<u64>, issued: Option<Serials>) -> SerialValidity {
        let (Some(serial), Some((last, previous, graced, given_back))) = (presented, issued) else {
            return SerialValidity::Replaced;
        };
        if given_back.is_some_and(|it| serial <= it || serial > last) {
            return SerialValidity::Outdated;
        }
        match (serial == last || serial == previous) && serial > graced {
            true if serial == last && graced < previous => SerialValidity::Arrived,
            true => SerialValidity::Known,
            false => SerialValidity::Replaced,
        }
    }
}

/// A subscription whose scope changed, or has arrived.
#[derive(Clone, Debug)]
pub struct ScopeChange {
    /// The remote.
    pub remote_id: RemoteId,
    /// The publication.
    pub publication: String,
    /// The serial of the scope that the remote holds.
    pub presented: Option<u64>,
    /// It is the newest, presented for the first time, and stays.
    pub arrived: bool,
    /// What keeps its partitions in the centre; see [`keep`].
    pub kept: Vec<SystemStatement>,
}

impl ScopeChange {
    /// Notes what became of a scope. Of the newest, when it arrives, changes under the one before
    /// are not taken any more; until it is presented the one before counts, for the answer with
    /// the newest may have been lost. A new one gets the next number; the one that the remote holds
    /// stays known, also when the answers between it and the new one were lost.
    pub fn note(&self) -> Vec<SystemStatement> {
        let (id, publication) = (self.remote_id, &self.publication);
        let note = match self.arrived {
            // Nothing, if a newer scope was issued meanwhile, or another sync was first.
            true => subscriptions::grace_previous_scope(id, publication, self.presented),
            false => subscriptions::issue_scope(id, publication, self.presented),
        };
        self.kept.iter().cloned().chain([note]).collect()
    }

    /// The serial that counts from now on, by the answers to [`Self::note`].
    pub fn noted(&self, answers: &[StatementResult]) -> Result<u64> {
        let row = answers.last().and_then(|note| note.rows.first());
        match (self.presented.filter(|_| self.arrived), row) {
            (Some(serial), _) => Ok(serial),
            (None, Some(row)) => row.get(0),
            (None, None) => Err(CentreError::Internal {
                message: "a new scope has got no number".into(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_the_last_two_scopes_each_counts_until_it_is_spent() {
        let standing = |presented, last, previous, graced, given_back| {
            SerialValidity::from_serials(
                Some(presented),
                Some((last, previous, graced, given_back)),
            )
        };
        assert_eq!(standing(5, 5, 4, 0, None), SerialValidity::Arrived);
        assert_eq!(standing(5, 5, 4, 4, None), SerialValidity::Known);
        assert_eq!(standing(4, 5, 4, 0, None), SerialValidity::Known);
        assert_eq!(standing(4, 5, 4, 4, None), SerialValidity::Replaced);
        assert_eq!(standing(3, 5, 4, 0, None), SerialValidity::Replaced);
        assert_eq!(standing(6, 5, 4, 0, None), SerialValidity::Replaced);
        // Whoever gave back has to have a newer one, and it must have been issued.
        assert_eq!(standing(4, 5, 4, 0, Some(4)), SerialValidity::Outdated);
        assert_eq!(standing(9, 5, 4, 0, Some(4)), SerialValidity::Outdated);
        assert_eq!(standing(5, 5, 4, 4, Some(4)), SerialValidity::Known);
        assert_eq!(
            SerialValidity::from_serials(None, Some((1, 0, 0, None))),
            SerialValidity::Replaced
        );
        assert_eq!(
            SerialValidity::from_serials(Some(1), None),
            SerialValidity::Replaced
        );
    }
}
