//! What a server starts with, of what its configuration and the files that it names say.

use std::sync::Arc;

use tidewater_carrier::ServerUrl;

use super::certificate::Certificate;
use crate::listener::{self, Address};
use crate::relay::Relays;
use tidewater_server_config::Config;
use tidewater_server_identity::external::IdentityProviders;
use tidewater_server_jobs::environment::Environment;
use tidewater_server_jobs::error::ServerError;
use tidewater_server_live::wake::WakeTarget;
use tidewater_server_sync::handlers::Handlers;

/// See the module.
pub(super) struct PreparedServer {
    pub(super) addresses: Vec<Address>,
    pub(super) admin: Option<ServerUrl>,
    pub(super) certificate: Arc<Certificate>,
    /// Relays, and what is spoken over their lines.
    pub(super) relays: Option<(Relays, Address)>,
    pub(super) providers: IdentityProviders,
    pub(super) handlers: Handlers,
    pub(super) targets: Vec<WakeTarget>,
}

impl PreparedServer {
    /// Reads all that is named.
    ///
    /// # Errors
    /// Something of it cannot be used.
    pub(super) fn of(
        config: &Config,
        environment: &Environment,
    ) -> Result<PreparedServer, ServerError> {
        let relayed = |relay| -> Result<_, ServerError> {
            let relays = Relays::load(relay, &*environment.randomness)?;
            Ok((relays, listener::relayed(&config.server)?))
        };
        Ok(PreparedServer {
            addresses: listener::addresses(&config.server)?,
            admin: config.server.admin_url()?,
            certificate: Certificate::load(config)?,
            relays: config.relay.as_ref().map(relayed).transpose()?,
            providers: IdentityProviders::new(&config.sign_in)?,
            handlers: Handlers::new(config)?,
            targets: config
                .wakes
                .iter()
                .map(WakeTarget::new)
                .collect::<Result<_, _>>()?,
        })
    }
}
