//! What a server starts with, of what its configuration and the files that it names say.

use std::sync::Arc;

use tidewater_carrier::ServerUrl;

use super::certificate::Certificate;
use crate::auth::external::Ways;
use crate::config::Config;
use crate::environment::Environment;
use crate::error::ServerError;
use crate::handlers::Handlers;
use crate::listener::{self, Address};
use crate::relay::Relays;
use crate::wake::Target;

/// See the module.
pub(super) struct Prepared {
    pub(super) addresses: Vec<Address>,
    pub(super) admin: Option<ServerUrl>,
    pub(super) certificate: Arc<Certificate>,
    /// Relays, and what is spoken over their lines.
    pub(super) relays: Option<(Relays, Address)>,
    pub(super) ways: Ways,
    pub(super) handlers: Handlers,
    pub(super) targets: Vec<Target>,
}

impl Prepared {
    /// Reads all that is named.
    ///
    /// # Errors
    /// Something of it cannot be used.
    pub(super) fn of(config: &Config, environment: &Environment) -> Result<Prepared, ServerError> {
        let relayed = |relay| -> Result<_, ServerError> {
            let relays = Relays::load(relay, &*environment.randomness)?;
            Ok((relays, listener::relayed(&config.server)?))
        };
        Ok(Prepared {
            addresses: listener::addresses(&config.server)?,
            admin: config.server.admin_url()?,
            certificate: Certificate::load(config)?,
            relays: config.relay.as_ref().map(relayed).transpose()?,
            ways: Ways::new(&config.sign_in)?,
            handlers: Handlers::new(config)?,
            targets: config
                .wakes
                .iter()
                .map(Target::new)
                .collect::<Result<_, _>>()?,
        })
    }
}
