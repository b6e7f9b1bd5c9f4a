//! Who breaks servers, PostgreSQL and the network, one thing after the other and at random
//! moments. What happens to single connections and to remotes is drawn elsewhere.

use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;

use crate::chance::Chance;
use crate::cluster::{Cluster, Death};
use crate::network::Network;
use crate::providers::Post;
use crate::stage::Stage;
use crate::standing::Standing;

#[derive(Debug, Clone, Copy)]
enum ServerAccident {
    ServerKilled,
    ServersKilled,
    ServerShutDown,
    PrimaryCrash(Death),
    StandbyCrash,
    FailOver(Death),
    NetworkCut,
    NetworkDown,
    DatabaseCut,
    ProviderKilled,
    ProvidersKilled,
    NatsKilled,
    BalancerKilled,
    RelayKilled,
}

/// The deck from which accidents are dealt: all have happened before one of them comes a
/// second time, the frequent ones aside.
const DECK: [ServerAccident; 24] = [
    ServerAccident::ServerKilled,
    ServerAccident::ServerKilled,
    ServerAccident::ServerKilled,
    ServerAccident::ServerKilled,
    ServerAccident::ServerKilled,
    ServerAccident::ServersKilled,
    ServerAccident::ServerShutDown,
    ServerAccident::PrimaryCrash(Death::Immediate),
    ServerAccident::PrimaryCrash(Death::FirstProcess),
    ServerAccident::StandbyCrash,
    ServerAccident::FailOver(Death::Immediate),
    ServerAccident::FailOver(Death::FirstProcess),
    ServerAccident::NetworkCut,
    ServerAccident::NetworkCut,
    ServerAccident::NetworkDown,
    ServerAccident::DatabaseCut,
    ServerAccident::ProviderKilled,
    ServerAccident::ProviderKilled,
    ServerAccident::ProvidersKilled,
    ServerAccident::NatsKilled,
    ServerAccident::BalancerKilled,
    ServerAccident::BalancerKilled,
    ServerAccident::RelayKilled,
    ServerAccident::RelayKilled,
];

pub(crate) struct Accidents<'a> {
    pub(crate) stage: &'a Stage,
    pub(crate) chance: Chance,
    pub(crate) cluster: &'a mut Cluster,
    pub(crate) servers: &'a [Arc<Standing>],
    pub(crate) networks: &'a [Network],
    pub(crate) providers: &'a [Arc<Standing>],
    pub(crate) balancer: &'a Standing,
    pub(crate) relay: &'a Standing,
    pub(crate) post: &'a mut Post,
}

impl Accidents<'_> {
    /// Lets accidents happen for so long, and at least until each has happened.
    pub(crate) fn happen_for(&mut self, time: Duration) -> anyhow::Result<()> {
        let end = self.stage.elapsed() + time;
        // The first deck is dealt fast; later there is time to get something done in between.
        let mut longest_pause = 2_500;
        let mut all_have_happened = false;
        loop {
            let mut deck = DECK;
            self.chance.shuffle(&mut deck);
            for accident in deck {
                let pause = Duration::from_millis(self.chance.between(200, longest_pause));
                std::thread::sleep(pause);
                let is_over = all_have_happened && self.stage.elapsed() > end;
                if is_over || !self.stage.breaks() {
                    return Ok(());
                }
                self.happen(accident)?;
            }
            longest_pause = 10_000;
            all_have_happened = true;
        }
    }

    fn happen(&mut self, accident: ServerAccident) -> anyhow::Result<()> {
        let away = Duration::from_millis(self.chance.of_any_size(12));
        match accident {
            ServerAccident::ServerKilled => {
                self.end_one_of(self.servers, Signal::KILL, away, "server killed")
            }
            ServerAccident::ServerShutDown => {
                self.end_one_of(self.servers, Signal::TERM, away, "server shut down")
            }
            ServerAccident::ServersKilled => {
                self.stage.fault("all servers killed");
                for server in self.servers {
                    server.kill(away);
                }
            }
            ServerAccident::PrimaryCrash(death) => {
                self.stage.fault(match death {
                    Death::Immediate => "PostgreSQL shut down immediately",
                    Death::FirstProcess => "PostgreSQL's first process killed",
                });
                self.cluster.crash(death)?;
            }
            ServerAccident::StandbyCrash => {
                self.stage.fault("standby crashed");
                self.cluster.crash_standby(away)?;
            }
            ServerAccident::FailOver(death) => {
                self.stage.fault("PostgreSQL failed over");
                self.cluster.fail_over(death)?;
            }
            ServerAccident::NetworkCut => {
                self.stage.fault("all connections of remotes cut");
                self.networks.iter().for_each(Network::cut_all);
            }
            ServerAccident::NetworkDown => {
                self.stage.fault("network down");
                self.set_network_down(true);
                self.networks.iter().for_each(Network::cut_all);
                std::thread::sleep(away);
                self.set_network_down(false);
            }
            ServerAccident::DatabaseCut => {
                self.stage.fault("all connections of PostgreSQL cut");
                self.cluster.address().cut_all();
            }
            ServerAccident::ProviderKilled => self.end_one_of(
                self.providers,
                Signal::KILL,
                Duration::ZERO,
                "provider killed",
            ),
            ServerAccident::ProvidersKilled => {
                self.stage.fault("all providers killed");
                for provider in self.providers {
                    provider.kill(Duration::ZERO);
                }
            }
            ServerAccident::NatsKilled => {
                self.stage.fault("NATS killed");
                self.post.crash(away)?;
            }
            ServerAccident::BalancerKilled => {
                self.end(self.balancer, Signal::KILL, away, "HAProxy killed")
            }
            ServerAccident::RelayKilled => self.end(self.relay, Signal::KILL, away, "relay killed"),
        }
        Ok(())
    }

    fn end_one_of(&mut self, all: &[Arc<Standing>], signal: Signal, away: Duration, what: &str) {
        let index = self.chance.below(all.len() as u64) as usize;
        self.end(&all[index], signal, away, what);
    }

    fn end(&self, standing: &Standing, signal: Signal, away: Duration, what: &str) {
        if standing.signal(signal, away) {
            self.stage.fault(what);
        }
    }

    fn set_network_down(&self, is_down: bool) {
        for network in self.networks {
            network.set_down(is_down);
        }
    }
}
