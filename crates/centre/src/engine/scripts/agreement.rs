//! What the scripts of a version are together, and beside what else is configured of their tables.

use std::collections::BTreeMap;

use tidewater_protocol::PublicationSchema;

use super::{CompiledScript, RESOLVING, ScriptForm, ScriptTransaction, Scripts};
use crate::context::DEFAULT;
use crate::engine::scope_query::wrong;
use crate::engine::script::ScriptParameter;
use crate::error::CentreError;
use crate::publication::{PublicationSpec, RuleSpec, ScriptSpec, TableSpec};

type Result<T> = std::result::Result<T, CentreError>;

/// Refuses a script that does what a handler of the same table is asked about.
pub(super) fn beside_handlers(
    compiled: &CompiledScript,
    script: &ScriptSpec,
    spec: &PublicationSpec,
) -> Result<()> {
    let Some(name) = &script.table else {
        return Ok(());
    };
    // Remotes have tables without their schema.
    let mut tables = spec.tables.iter();
    let table = tables.find(|it| it.name.rsplit('.').next() == Some(name));
    let Some(table) = table else {
        return Ok(());
    };
    let resolves = table
        .conflict
        .resolve
        .iter()
        .any(|it| it.trim() == "handler");
    let event = compiled.event;
    let is_of_rows = !matches!(event.form, ScriptForm::Once);
    let handler = match event.transaction {
        ScriptTransaction::Upload if table.handled.upload => "asked about uploaded rows",
        ScriptTransaction::Upload if resolves => "asked about conflicts",
        ScriptTransaction::Download if table.handled.download => "asked what is new",
        _ => return Ok(()),
    };
    match is_of_rows {
        false => Ok(()),
        true => Err(wrong(
            &compiled.place,
            &format!("is a script of {name:?}, whose handler is {handler}"),
            "remove the script, or leave out the handler's event",
        )),
    }
}

/// What a script means here that it does not mean on other servers.
pub(super) fn differing(compiled: &CompiledScript) -> impl Iterator<Item = &'static str> + use<> {
    let names = |name: &str| {
        let statements = compiled.statements.iter();
        let mut parameters = statements.flat_map(|it| &it.script.parameters);
        parameters.any(|it| matches!(it, ScriptParameter::System(of) if *of == name))
    };
    let sets = |name: &str| {
        let mut sets = compiled.statements.iter().flat_map(|it| &it.sets);
        sets.any(|it| matches!(it, Some(ScriptParameter::System(of)) if *of == name))
    };
    let event = compiled.event.name;
    let told = [
        (
            names("error_code"),
            "names {s.error_code}, which is here the name of a code of this server, such as \
             foreign_key; the code of the database is {s.database_code}",
        ),
        (
            event == "handle_error" && !sets("action_code"),
            "sets no action_code: a row that the database refuses is refused alone here (1000), \
             where other servers end the sync (3000)",
        ),
        (
            sets("generation_number"),
            "sets generation_number, which has no effect: there are no downloads by file here, and \
             it is always 1",
        ),
        (
            names("hashed_password"),
            "names {s.hashed_password}, which is here the SHA-256 hash of the password in UTF-8",
        ),
    ];
    told.into_iter().filter(|it| it.0).map(|it| it.1)
}

/// Whether the conflicts of a table are to be resolved by scripts.
pub(super) fn resolves_by_script(spec: &PublicationSpec, table: &str) -> bool {
    let mut tables = spec.tables.iter();
    // Remotes have tables without their schema.
    let table = tables.find(|it| it.name.rsplit('.').next() == Some(table));
    let mut resolvers = table.iter().flat_map(|it| &it.conflict.resolve);
    resolvers.any(|it| it.trim() == "script")
}

/// Updates by scripts that nothing compares with what the centre has by now.
pub(super) fn overwriting(
    version: &str,
    scripts: &Scripts,
    schema: &PublicationSchema,
) -> Vec<String> {
    let tables = schema.tables.iter().zip(&scripts.tables);
    let found = tables.filter(|(table, of_table)| {
        let has = |event: &str| of_table.contains_key(event);
        let fetches = has("upload_fetch") || has("upload_fetch_column_conflict");
        let is_old = |it: &ScriptParameter| match it {
            ScriptParameter::Old(name) => table
                .column(name)
                .is_some_and(|it| !table.key.contains(&it)),
            _ => false,
        };
        let compares = of_table.get("upload_update").is_some_and(|it| {
            let mut statements = it.statements.iter();
            statements.any(|it| {
                let reads_old = !it.set.is_empty() && it.script.sql.contains("old_");
                reads_old || it.script.parameters.iter().any(is_old)
            })
        });
        has("upload_update") && !fetches && !compares
    });
    let found = found.map(|(table, _)| {
        format!(
            "script version {version:?}, table {:?} has upload_update, and nothing that finds \
             conflicts: an update is written over what others have changed meanwhile, and nobody is \
             told; add upload_fetch, or have the statement compare with {{o.COLUMN}}",
            table.name
        )
    });
    found.collect()
}

/// Finds out which versions no sync may have, and tells of those that the configuration has not
/// chosen. Which version it has, a remote says itself: where the scripts of one say who gets the
/// rows of a table, write what it uploads, or let it in, a version without them would get round
/// them. `default`, that of a remote that names none, is one like the others, also without a script.
pub(super) fn leave_unserved(
    versions: &mut BTreeMap<String, Scripts>,
    spec: &PublicationSpec,
    schema: &PublicationSchema,
) -> Vec<String> {
    if versions.is_empty() && spec.script_versions.is_empty() {
        return Vec::new();
    }
    versions.entry(DEFAULT.to_owned()).or_default();
    let is_chosen = !spec.script_versions.is_empty();
    let lacks = |version: &String, scripts: &Scripts| match is_chosen {
        true if spec.script_versions.contains(version) => None,
        true => Some("script_versions does not name it".to_owned()),
        false => versions
            .iter()
            .find_map(|(other, of_other)| lacking(scripts, (other.as_str(), of_other), schema)),
    };
    let unserved: Vec<(String, String)> = versions
        .iter()
        .filter_map(|(version, scripts)| Some((version.clone(), lacks(version, scripts)?)))
        .collect();
    let mut warnings = Vec::new();
    for (version, why) in unserved {
        if !is_chosen {
            let none = if version == DEFAULT { ", or none," } else { "" };
            warnings.push(format!(
                "script version {version:?} is not served, and a remote that names it{none} is \
                 refused: {why}; write it for {version:?}, too, or list the versions that are to \
                 be served with script_versions at publication {:?}, {version:?} among them if \
                 what is generated is right for it",
                spec.name
            ));
        }
        if let Some(scripts) = versions.get_mut(&version) {
            scripts.unserved = Some(why);
        }
    }
    warnings
}

/// What another version has and a version lacks, so that the one would be a way round the other.
fn lacking(
    scripts: &Scripts,
    (other, of_other): (&str, &Scripts),
    schema: &PublicationSchema,
) -> Option<String> {
    const LETS_IN: &str = "authenticate_parameters";
    if of_other.connection.contains_key(LETS_IN) && !scripts.connection.contains_key(LETS_IN) {
        return Some(format!("it has no {LETS_IN}, and {other:?} has one"));
    }
    let mut tables = schema.tables.iter().enumerate();
    tables.find_map(|(index, table)| {
        let lacks = |has: fn(&Scripts, usize) -> bool| has(of_other, index) && !has(scripts, index);
        let what = if lacks(Scripts::downloads) {
            "download_cursor"
        } else if lacks(Scripts::writes) {
            "scripts for uploaded rows"
        } else {
            return None;
        };
        let name = &table.name;
        Some(format!("it has no {what} of {name:?}, and {other:?} has"))
    })
}

/// Checks what the scripts of a version are together.
pub(super) fn together(
    version: &str,
    scripts: &Scripts,
    spec: &PublicationSpec,
    schema: &PublicationSchema,
) -> Result<()> {
    for (table, of_table) in schema.tables.iter().zip(&scripts.tables) {
        let has = |event: &str| of_table.contains_key(event);
        let place = format!("script version {version:?}, table {:?}", table.name);
        let twice = [("upload_fetch", "upload_fetch_column_conflict")];
        if let Some((one, other)) = twice.iter().find(|(one, other)| has(one) && has(other)) {
            let what = format!("has both {one} and {other}, which contradict each other");
            return Err(wrong(&place, &what, "keep one of them"));
        }
        let resolving: Vec<&CompiledScript> =
            RESOLVING.iter().filter_map(|it| of_table.get(it)).collect();
        if resolving
            .iter()
            .any(|it| it.is_of_sets() != resolving[0].is_of_sets())
        {
            let what = "has scripts that resolve conflicts, some for each row and some for all";
            return Err(wrong(
                &place,
                what,
                "write all of them with {rows}, or none",
            ));
        }
        let is_told = resolves_by_script(spec, &table.name);
        if is_told && resolving.is_empty() {
            let what = "resolves conflicts by script, and has none";
            let hint = format!(
                "write {}",
                RESOLVING.map(|it| format!("{it}.sql")).join(", or ")
            );
            return Err(wrong(&place, what, hint));
        }
        if has("download_delete_cursor") && !has("download_cursor") {
            let what = "has download_delete_cursor without download_cursor";
            return Err(wrong(
                &place,
                what,
                "add download_cursor, or remove the other",
            ));
        }
        // Remotes have tables without their schema.
        let own = |it: &&TableSpec| it.name.rsplit('.').next() == Some(&*table.name);
        let rules = spec.tables.iter().find(own).map(|it| &it.partition);
        let everyones = rules.is_some_and(|it| it[..] == [RuleSpec::everyone()]);
        if has("download_cursor") && !everyones {
            let what =
                "has download_cursor, which says who gets which rows, and a partition beside";
            return Err(wrong(&place, what, "write partition = \"everyone\""));
        }
        if has("download_cursor") && !table.direction.downloads() {
            let what = "has download_cursor, and is only uploaded";
            return Err(wrong(
                &place,
                what,
                "change `direction`, or remove the script",
            ));
        }
    }
    Ok(())
}
