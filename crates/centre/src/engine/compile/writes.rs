//! What remotes may write of a table, compiled: which rows, which columns, and whether they may give
//! rows away.

use super::rules::{CompiledRule, deciding_columns};
use super::{named_columns, wrong};
use crate::engine::catalog::TableInfo;
use crate::error::CentreError;
use crate::publication::{TableSpec, WriteScopeSpec};

type Result<T> = std::result::Result<T, CentreError>;

/// What remotes may write.
#[derive(Clone, Debug, Default)]
pub struct CompiledWrites {
    /// By which rows are written, if not all that are held; by columns of the table's own.
    pub rule: Option<CompiledRule>,
    /// The columns that remotes do not write, as indexes into the catalog's.
    pub read_only: Vec<usize>,
    /// Whether a row may be changed so that its remote does not hold it any more.
    pub hand_over: bool,
}

impl CompiledWrites {
    pub(super) fn new(
        place: &str,
        spec: &TableSpec,
        table: &TableInfo,
        published: &[usize],
        rules: &[CompiledRule],
    ) -> Result<CompiledWrites> {
        let writes = &spec.writes;
        let keys = [
            ("write", writes.scope.is_some()),
            ("read_only", !writes.read_only.is_empty()),
            ("hand_over", writes.hand_over),
        ];
        let said = keys.into_iter().find(|(_, is_said)| *is_said);
        if let Some((key, _)) = said.filter(|_| !spec.direction.uploads()) {
            return Err(wrong(
                format!("{place}: `{key}` is about what remotes write, and they only download it"),
                format!("leave out `{key}`, or `direction`"),
            ));
        }
        let scope = writes.scope.as_ref();
        let rule = scope.map(|scope| written(place, spec, table, published, scope));
        let rule = rule.transpose()?;
        let is_divided = |rule: &CompiledRule| rule.values.is_some();
        if writes.hand_over && rule.is_none() && !rules.iter().any(is_divided) {
            return Err(wrong(
                format!("{place}: `hand_over` means nothing, as every row is everyone's"),
                "leave it out, or say with `partition` or `write` whose rows they are",
            ));
        }
        let read_only = named_columns(place, table, &writes.read_only, "read_only")?;
        for &column in &read_only {
            check_read_only(place, table, published, (rules, rule.as_ref()), column)?;
        }
        Ok(CompiledWrites {
            rule,
            read_only,
            hand_over: writes.hand_over,
        })
    }

    /// What the operator may not have thought of.
    pub(super) fn warnings(&self, place: &str, table: &TableInfo) -> Vec<String> {
        let columns = self.read_only.iter().map(|&column| &table.columns[column]);
        let empty = columns.filter(|it| !it.nullable && !it.has_default && !it.is_generated);
        let warnings = empty.map(|column| {
            format!(
                "{place}: remotes leave out the read-only column {:?}, which must not be NULL and \
                 has no default: unless a trigger fills it, every row that they insert is refused. \
                 Give it a default",
                column.name
            )
        });
        warnings.collect()
    }
}

/// The rule by which rows are written.
fn written(
    place: &str,
    spec: &TableSpec,
    table: &TableInfo,
    published: &[usize],
    scope: &WriteScopeSpec,
) -> Result<CompiledRule> {
    let columns = deciding_columns(place, spec, table, &scope.columns, "write")?;
    if let Some(&column) = columns.iter().find(|column| !published.contains(column)) {
        let name = &table.columns[column].name;
        return Err(wrong(
            format!("{place}: `columns` leaves out {name:?}, which tells who may write a row"),
            format!("add {name:?} to `columns`"),
        ));
    }
    Ok(CompiledRule {
        route: Vec::new(),
        columns,
        values: Some(scope.values.clone()),
        windows: Vec::new(),
    })
}

/// Checks that the centre can do with what a remote sends of a row without a column.
fn check_read_only(
    place: &str,
    table: &TableInfo,
    published: &[usize],
    (rules, written): (&[CompiledRule], Option<&CompiledRule>),
    column: usize,
) -> Result<()> {
    let name = &table.columns[column].name;
    let own = rules.iter().filter(|rule| rule.route.is_empty());
    let mut deciding = own.chain(written).flat_map(|rule| &rule.columns);
    let referring = rules.iter().filter_map(|rule| rule.route.first());
    let mut referring = referring.flat_map(|reach| &reach.columns);
    let (what, hint) = if table.key.contains(&column) {
        (
            "belongs to the primary key, without which there is no row",
            "leave it out of `read_only`",
        )
    } else if deciding.any(|it| *it == column) || referring.any(|it| *it == column) {
        (
            "tells whose a row is, so whoever inserts one has to say it",
            "leave it out of `read_only`: without hand_over = true nobody can give it a value that \
             is not his; or say in `write` which rows may be written",
        )
    } else if !published.contains(&column) {
        (
            "is not published, and so is written by no remote",
            "leave it out of `read_only`, or add it to `columns`",
        )
    } else {
        return Ok(());
    };
    Err(wrong(
        format!("{place}: the read-only column {name:?} {what}"),
        hint,
    ))
}
