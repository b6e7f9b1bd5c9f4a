//! `[[publication]]`: what remotes subscribe to, as it is configured. Its tables are `table`'s
//! affair.

use tidewater_centre::{
    OnReject, ParameterSpec, PublicationSpec, ReplayPolicy, TableSpec, UploadMode, UploadOrder,
};
use tidewater_protocol::message::SubscriptionParameter;

use super::handler::{HandlerReader, HandlerUse};
use super::{acting, partition, table};
use crate::error::ConfigError;
use crate::names::MAX_NAME_BYTES;
use crate::section_reader::SectionReader;

/// Reads a publication, which is the one of this index in the file.
///
/// # Errors
/// It says too little, or what cannot be.
pub(super) fn read(
    mut section: SectionReader,
    index: usize,
    handlers: &mut HandlerReader,
) -> Result<PublicationSpec, ConfigError> {
    let name = section
        .text("name")?
        .filter(|name| !name.is_empty())
        .ok_or_else(|| {
            ConfigError::new(
                format!("[[publication]] number {} has no name", index + 1),
                "write name = \"...\" below it",
            )
        })?;
    if name.contains(',') {
        return Err(ConfigError::new(
            format!("publication {name:?}: a name must not contain a comma"),
            "choose another name",
        ));
    }
    if name.len() > MAX_NAME_BYTES || name.contains('\0') {
        return Err(ConfigError::new(
            format!("publication {name:?}: no remote can ask for a name like this"),
            format!("choose one of at most {MAX_NAME_BYTES} bytes, without zero bytes"),
        ));
    }
    let tables = section.sections("table")?;
    if tables.is_empty() {
        return Err(ConfigError::new(
            format!("publication {name:?} has no tables"),
            "write [[publication.table]] below it, with name and partition",
        ));
    }
    let undecided = tables
        .iter()
        .filter(|it| it.has("name") && !it.has("partition"));
    let undecided: Vec<String> = undecided.filter_map(SectionReader::quoted_name).collect();
    if undecided.len() > 1 {
        let names = undecided.join(", ");
        return Err(ConfigError::new(
            format!("publication {name:?}, tables {names}: partition is missing"),
            partition::HINT,
        ));
    }
    let tables = tables.into_iter().enumerate();
    let tables: Vec<TableSpec> = tables
        .map(|(index, section)| table::read(section, (&name, index), handlers))
        .collect::<Result<_, _>>()?;
    for (index, table) in tables.iter().enumerate() {
        if tables[..index].iter().any(|t| t.name == table.name) {
            return Err(ConfigError::new(
                format!("publication {name:?} has the table {:?} twice", table.name),
                "remove one of the two",
            ));
        }
    }
    let mut parameters: Vec<ParameterSpec> = Vec::new();
    for (index, parameter) in section.sections("parameter")?.into_iter().enumerate() {
        let parameter = read_parameter(parameter, &name, index)?;
        if parameters.iter().any(|it| it.name == parameter.name) {
            return Err(ConfigError::new(
                format!(
                    "publication {name:?} has the parameter {:?} twice",
                    parameter.name
                ),
                "remove one of the two",
            ));
        }
        parameters.push(parameter);
    }
    let named = |key: &str| format!("publication {name:?}: {key}");
    section.place(&format!("publication {name:?}"));
    let modes = [UploadMode::Net, UploadMode::Transactional];
    let upload = section.choice("upload", &modes)?;
    let on_reject = [OnReject::SetAside, OnReject::Abort];
    let on_reject = match (section.optional_choice("on_reject", &on_reject)?, upload) {
        (None, UploadMode::Net) => OnReject::SetAside,
        (None, UploadMode::Transactional) => OnReject::Abort,
        (Some(OnReject::SetAside), UploadMode::Transactional) => {
            return Err(ConfigError::new(
                named("on_reject = \"set_aside\" contradicts upload = \"transactional\""),
                "remove one of the two: a transaction takes effect as a whole or not at all",
            ));
        }
        (Some(on_reject), _) => on_reject,
    };
    let orders = [UploadOrder::RowsFirst, UploadOrder::DeletesFirst];
    if let Some(used) = HandlerUse::read(&mut section)? {
        let handler = handlers.assign(&format!("publication {name:?}"), used)?;
        handlers.handling.publications.insert(name.clone(), handler);
    }
    Ok(PublicationSpec {
        upload,
        on_reject,
        replay: section.choice("replay", &[ReplayPolicy::Auto, ReplayPolicy::No])?,
        upload_order: section.choice("upload_order", &orders)?,
        script_versions: section.texts("script_versions")?,
        act_as: acting::read(&name, section.value("act_as")?)?,
        name,
        tables,
        parameters,
        scripts: Vec::new(),
    })
}

fn read_parameter(
    mut section: SectionReader,
    publication: &str,
    index: usize,
) -> Result<ParameterSpec, ConfigError> {
    let name = section.text("name")?.unwrap_or_default();
    if !SubscriptionParameter::is_name(&name) {
        let number = index + 1;
        return Err(ConfigError::new(
            format!(
                "publication {publication:?}: [[publication.parameter]] number {number} has \
                     {name:?} for its name, which can be none"
            ),
            "write name = \"month\": letters, digits and underscores, without {u.}",
        ));
    }
    Ok(ParameterSpec {
        name,
        allowed: section.text("allowed")?,
    })
}
