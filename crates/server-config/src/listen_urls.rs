//! The addresses of `[server]`: which are allowed. Listening is the server's affair.

use tidewater_carrier::ServerUrl;

use super::ServerConfig;
use crate::error::ConfigError;

impl ServerConfig {
    /// Reads every URL of `server.listen`.
    ///
    /// # Errors
    /// One of them is no URL, or the configuration does not allow it.
    pub fn listen_urls(&self) -> Result<Vec<ServerUrl>, ConfigError> {
        self.listen.iter().map(|url| read(url, self)).collect()
    }

    /// Reads the URL of the admin endpoint, if there is one.
    ///
    /// # Errors
    /// It is no URL, or the configuration does not allow it.
    pub fn admin_url(&self) -> Result<Option<ServerUrl>, ConfigError> {
        read_admin(self)
    }

    /// Reads the URL of the web protocol, if there is one.
    ///
    /// # Errors
    /// It is no URL, or the configuration does not allow it.
    pub fn http_url(&self) -> Result<Option<ServerUrl>, ConfigError> {
        read_http(self)
    }
}

/// The port of the admin endpoint, where its URL names none.
const ADMIN_PORT: u16 = 7440;

fn read_admin(config: &ServerConfig) -> Result<Option<ServerUrl>, ConfigError> {
    let Some(text) = &config.admin else {
        return Ok(None);
    };
    let wrong = |what: String, hint: &str| {
        let what = format!("server.admin: {what}");
        Err(ConfigError::new(what, hint))
    };
    let hint = "write admin = \"http://127.0.0.1:7440\"";
    let Some(rest) = text.trim().strip_prefix("http://") else {
        return wrong(format!("{text:?} does not begin with http://"), hint);
    };
    let Ok(mut url) = ServerUrl::to_listen(&format!("tcp://{rest}")) else {
        return wrong(format!("{text:?} is no http://host:port"), hint);
    };
    if !names_port(rest, &url) {
        url.port = ADMIN_PORT;
    }
    if url.is_exposed() && !config.insecure {
        return wrong(
            format!("{text} would tell everybody on the network how the server goes"),
            "listen on 127.0.0.1, behind something that asks who is there, or write \
             insecure = true under [server]",
        );
    }
    Ok(Some(url))
}

/// The port of the web protocol, where its URL names none.
const HTTP_PORT: u16 = 7441;

fn read_http(config: &ServerConfig) -> Result<Option<ServerUrl>, ConfigError> {
    let Some(text) = &config.http else {
        return Ok(None);
    };
    let wrong = |what: String, hint: &str| {
        let what = format!("server.http: {what}");
        Err(ConfigError::new(what, hint))
    };
    let hint = "write http = \"http://127.0.0.1:7441\" or \"https://0.0.0.0:7441\"";
    let trimmed = text.trim();
    let (scheme, rest) = match (
        trimmed.strip_prefix("http://"),
        trimmed.strip_prefix("https://"),
    ) {
        (Some(rest), _) => ("http", rest),
        (_, Some(rest)) => ("https", rest),
        _ => {
            return wrong(
                format!("{text:?} begins with neither http:// nor https://"),
                hint,
            );
        }
    };
    let Ok(mut url) = ServerUrl::to_listen(&format!("{scheme}://{rest}")) else {
        return wrong(format!("{text:?} is no http://host:port"), hint);
    };
    if !names_port(rest, &url) {
        url.port = HTTP_PORT;
    }
    if url.transport.is_encrypted() && config.tls.is_none() {
        return wrong(
            format!("{text} needs a certificate"),
            "write [server.tls] with certificate and key",
        );
    }
    if url.is_exposed() && !config.insecure {
        return wrong(
            format!("{text} would send passwords and everything else unencrypted"),
            "write https://, or insecure = true under [server]",
        );
    }
    Ok(Some(url))
}

/// Whether the port of a URL is written in it.
pub(crate) fn names_port(rest: &str, url: &ServerUrl) -> bool {
    let rest = rest.trim_end_matches('/');
    rest.ends_with(&format!(":{}", url.port))
}

fn read(url: &str, config: &ServerConfig) -> Result<ServerUrl, ConfigError> {
    let wrong =
        |what: String, hint: &str| Err(ConfigError::new(format!("server.listen: {what}"), hint));
    let url = match ServerUrl::to_listen(url) {
        Ok(url) => url,
        Err(error) => {
            let hint = "write tcp://127.0.0.1:7439 or tls://0.0.0.0:7439";
            return wrong(error.to_string(), hint);
        }
    };
    if url.transport.is_encrypted() && config.tls.is_none() {
        return wrong(
            format!("{url} needs a certificate"),
            "write [server.tls] with certificate and key; to try it out, make them: tidewater \
             cert --out . --host NAME",
        );
    }
    if url.is_exposed() && !config.insecure {
        return wrong(
            format!("{url} would send everything unencrypted"),
            "listen on tls://, wss:// or https://, or write insecure = true under [server]",
        );
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn server(text: &str) -> ServerConfig {
        Config::parse(&format!("[server]\nconsolidated = \"sqlite:x\"\n{text}"))
            .unwrap()
            .server
    }

    #[test]
    fn unencrypted_addresses_off_loopback_need_a_word() {
        let careful = server("");
        for url in ["tcp://127.0.0.1:1", "tcp://[::1]:1", "tcp://localhost:1"] {
            read(url, &careful).unwrap();
        }
        let error = read("tcp://0.0.0.0:1", &careful).unwrap_err();
        assert!(error.hint().contains("insecure = true"));
        read("tcp://0.0.0.0:1", &server("insecure = true")).unwrap();
        assert!(read("tls://0.0.0.0:1", &careful).is_err(), "no certificate");
    }

    #[test]
    fn the_admin_endpoint_is_plain_http_on_this_machine_unless_somebody_says_so() {
        let admin = |text: &str| server(text).admin_url();
        assert_eq!(admin("").unwrap(), None);
        let address = |text: &str| admin(text).unwrap().unwrap().address();
        assert_eq!(address("admin = \"http://127.0.0.1\""), "127.0.0.1:7440");
        assert_eq!(address("admin = \"http://[::1]:9/\""), "[::1]:9");
        assert_eq!(address("admin = \"http://localhost:0\""), "localhost:0");
        let exposed = "admin = \"http://0.0.0.0:7440\"";
        let error = admin(exposed).unwrap_err();
        assert!(error.hint().contains("insecure = true"));
        assert_eq!(
            address(&format!("{exposed}\ninsecure = true")),
            "0.0.0.0:7440"
        );
        for wrong in [
            "https://127.0.0.1:1",
            "127.0.0.1:1",
            "http://",
            "http://h:1/x",
        ] {
            let error = admin(&format!("admin = {wrong:?}")).unwrap_err();
            assert!(error.to_string().contains("server.admin"), "{error}");
            assert!(error.hint().contains("http://127.0.0.1:7440"));
        }
    }
}
