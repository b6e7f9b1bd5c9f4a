//! The configuration file: any text is understood, or refused with what to do.

use tidewater_centre::RuleBy;
use tidewater_server::{Config, ConfigError};

/// The text of a configuration file.
///
/// # Panics
/// A promise is broken.
pub fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let variable = |name: &str| (name == "SET").then(|| "a value".to_owned());
    let config = match Config::parse_with(text, &variable) {
        Ok(config) => config,
        Err(error) => return explained(&error),
    };
    if let Err(error) = config.check_listen() {
        explained(&error);
    }
    // A name is given once, and a partition has columns.
    for (index, publication) in config.publications.iter().enumerate() {
        let others = &config.publications[..index];
        assert!(others.iter().all(|other| other.name != publication.name));
        for table in &publication.tables {
            assert!(!table.partition.is_empty());
            for rule in &table.partition {
                if let RuleBy::Columns { columns, values } = &rule.by {
                    assert!(!columns.is_empty() && !values.is_empty());
                }
            }
        }
    }
    let limits = &config.server.limits;
    assert!(limits.connections > 0);
    assert!(limits.upload_workers != Some(0) && limits.download_workers != Some(0));
    assert!(!config.server.listen.is_empty() && !config.server.consolidated.is_empty());
    // What is logged of it tells no password.
    let again = Config::parse_with(text, &variable).expect("it was just read");
    assert_eq!(format!("{config:?}"), format!("{again:?}"));
}

fn explained(error: &ConfigError) {
    assert!(!error.to_string().trim().is_empty());
    assert!(!error.hint().trim().is_empty(), "{error}");
}
