//! How a server is reached: what all commands that connect have in common.

use clap::Args;
use tidewater_carrier::ServerUrls;
use tidewater_client::ClientError;
use tidewater_terminal::Failure;

#[derive(Debug, Clone, Args)]
pub(crate) struct NetworkArgs {
    /// Allow tcp://, ws:// and http:// off loopback: everything can be read on the way
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Go through this HTTP proxy, http://[NAME:PASSWORD@]HOST:PORT, or through none [default: what
    /// HTTPS_PROXY, HTTP_PROXY or ALL_PROXY name, but for the hosts of NO_PROXY]
    #[arg(long, value_name = "URL|none")]
    pub(crate) proxy: Option<String>,
}

impl NetworkArgs {
    /// Reads addresses. They are checked before anything is remembered; the driver checks again.
    pub(crate) fn addresses(&self, text: &str) -> Result<ServerUrls, Failure> {
        let urls: ServerUrls = text.parse().map_err(ClientError::from)?;
        match urls.exposed() {
            Some(server) if !self.insecure => Err(Failure::usage(
                format!("{server} would send everything unencrypted over the network"),
                "use tls://, wss:// or https://, or allow it with --insecure",
            )),
            _ => Ok(urls),
        }
    }
}
