//! What the relay counts, as `/metrics` shows it. Documented in `docs/relay.md`.

use std::fmt;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::tunnel_pool::TunnelPool;

type NameLabel = [(&'static str, String); 1];
type StateLabel = [(&'static str, String); 2];

/// See the module.
pub(crate) struct RelayMetrics {
    registry: Registry,
    lines: Family<StateLabel, Gauge>,
    servers: Family<NameLabel, Gauge>,
    connections: Gauge,
    relayed: Counter,
    refused: Family<[(&'static str, &'static str); 1], Counter>,
    moved: Counter,
}

impl RelayMetrics {
    pub(crate) fn new() -> RelayMetrics {
        let mut registry = Registry::with_prefix("tidewater_relay");
        let lines = Family::<StateLabel, Gauge>::default();
        registry.register(
            "lines",
            "Lines of servers, by name and state",
            lines.clone(),
        );
        let servers = Family::<NameLabel, Gauge>::default();
        registry.register(
            "servers",
            "Servers that are registered, by name",
            servers.clone(),
        );
        let connections = Gauge::default();
        let help = "Connections of devices, now";
        registry.register("connections", help, connections.clone());
        let relayed = Counter::default();
        let help = "Connections of devices that got a line";
        registry.register("relayed", help, relayed.clone());
        let refused = Family::default();
        let help = "Devices and servers that were refused, by reason";
        registry.register("refused", help, refused.clone());
        let moved = Counter::default();
        let help = "What went through connections that have ended, both ways";
        registry.register("bytes", help, moved.clone());
        RelayMetrics {
            registry,
            lines,
            servers,
            connections,
            relayed,
            refused,
            moved,
        }
    }

    pub(crate) fn refused(&self, reason: &'static str) {
        self.refused.get_or_create(&[("reason", reason)]).inc();
    }

    pub(crate) fn relayed(&self) {
        self.relayed.inc();
    }

    pub(crate) fn moved(&self, bytes: u64) {
        self.moved.inc_by(bytes);
    }

    /// All of it as text.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn render(
        &self,
        lines: &TunnelPool,
        connections: usize,
    ) -> Result<String, fmt::Error> {
        self.connections.set(small(connections));
        for standing in lines.standing() {
            let name = standing.name;
            let set = |state: &str, count| {
                let of = [("name", name.clone()), ("state", state.to_owned())];
                self.lines.get_or_create(&of).set(small(count));
            };
            set("idle", standing.idle);
            set("taken", standing.taken);
            let servers = self.servers.get_or_create(&[("name", name.clone())]);
            servers.set(small(standing.servers));
        }
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

fn small(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
