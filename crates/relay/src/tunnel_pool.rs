//! The tunnels of all servers: who is registered, which of their tunnels are idle, and which one a
//! device gets.
//!
//! Whoever serves a tunnel (`servers`) offers it here as long as it is idle; whoever serves a device
//! (`devices`) asks for one.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout_at};

use tidewater_carrier::listen::{ByteStream, IdleTunnel, RegistrationRefusal};

use crate::config::ServerProofs;

/// How long a device waits for a tunnel of a server that has none left: it opens new ones.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long a device is passed from tunnel to tunnel when servers do not take it.
const TRIES: Duration = Duration::from_secs(8);

/// A tunnel that waits for a device, by the one who keeps it.
type TunnelOffer = oneshot::Sender<oneshot::Sender<OfferedTunnel>>;

/// A tunnel, and that it is counted.
type OfferedTunnel = (IdleTunnel, TunnelSlot);

/// All names that there can be, and the tunnels of their servers.
pub(crate) struct TunnelPool {
    names: Mutex<HashMap<String, NamedFarm>>,
    /// Idle tunnels at the same time, of all.
    most: usize,
}

#[derive(Default)]
struct NamedFarm {
    proof: ServerProofs,
    /// Whose turn it is comes first.
    farm: VecDeque<FarmServer>,
    /// When there was a server last.
    seen: Option<Instant>,
    more: Arc<Notify>,
}

/// A server.
struct FarmServer {
    instance: u64,
    idle: VecDeque<TunnelOffer>,
    /// Idle or not.
    lines: usize,
}

/// Why a device gets no tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoTunnel {
    /// The configuration has no such name.
    #[error("no server has this name")]
    Unknown,
    /// No server of this name is there.
    #[error("no server of this name is registered")]
    Unregistered,
    /// Servers are there, and have no tunnel.
    #[error("the servers of this name have no idle line")]
    Late,
}

/// How a name stands.
pub(crate) struct FarmStatus {
    pub(crate) name: String,
    pub(crate) servers: usize,
    pub(crate) idle: usize,
    pub(crate) taken: usize,
}

impl TunnelPool {
    pub(crate) fn new(names: &HashMap<String, ServerProofs>, most: usize) -> Arc<TunnelPool> {
        let names = names.iter().map(|(name, proof)| {
            let proof = proof.clone();
            let of = NamedFarm {
                proof,
                ..NamedFarm::default()
            };
            (name.clone(), of)
        });
        Arc::new(TunnelPool {
            names: Mutex::new(names.collect()),
            most,
        })
    }

    fn names(&self) -> MutexGuard<'_, HashMap<String, NamedFarm>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on there can be these names, with these proofs. Who has been registered for a name
    /// that there is no more keeps the tunnels that devices have.
    pub(crate) fn rename(&self, names: &HashMap<String, ServerProofs>) {
        let mut known = self.names();
        known.retain(|name, _| names.contains_key(name));
        for (name, proof) in names {
            known.entry(name.clone()).or_default().proof = proof.clone();
        }
    }

    /// Whether a token with this hash proves somebody to be a server of this name.
    ///
    /// # Errors
    /// There can be none.
    pub(crate) fn is_proof(
        &self,
        name: &str,
        hash: Option<&str>,
    ) -> Result<bool, RegistrationRefusal> {
        let names = self.names();
        let known = names.get(name).ok_or(RegistrationRefusal::Name)?;
        Ok(hash.is_some_and(|it| known.proof.tokens.contains(it)))
    }

    /// A place for one more tunnel of a server. It is counted as long as the place is there.
    ///
    /// # Errors
    /// There are too many, or there can be none of this name.
    pub(crate) fn enter(
        self: &Arc<TunnelPool>,
        name: &str,
        instance: u64,
    ) -> Result<TunnelSlot, RegistrationRefusal> {
        let mut names = self.names();
        let idle = names.values().map(NamedFarm::idle).sum::<usize>();
        // Who has many keeps no other name away: each has its part of them.
        let part = self.most / names.len().max(1);
        let own = names.get(name).map_or(0, NamedFarm::idle);
        if idle >= self.most && own >= part.max(1) {
            return Err(RegistrationRefusal::Full);
        }
        let known = names.get_mut(name).ok_or(RegistrationRefusal::Name)?;
        match known.farm.iter_mut().find(|it| it.instance == instance) {
            Some(member) => member.lines += 1,
            None => {
                known.farm.push_back(FarmServer {
                    instance,
                    idle: VecDeque::new(),
                    lines: 1,
                });
                let servers = known.farm.len();
                tracing::info!(name, servers, "a server is registered");
            }
        }
        Ok(TunnelSlot {
            lines: self.clone(),
            name: name.to_owned(),
            instance,
        })
    }

    /// Offers the tunnel at a place to devices.
    pub(crate) fn offer(
        &self,
        place: &TunnelSlot,
    ) -> oneshot::Receiver<oneshot::Sender<OfferedTunnel>> {
        let (offer, asked) = oneshot::channel();
        let mut names = self.names();
        let known = names.get_mut(&place.name);
        if let Some(known) = known {
            let mut farm = known.farm.iter_mut();
            if let Some(member) = farm.find(|it| it.instance == place.instance) {
                member.idle.retain(|it| !it.is_closed());
                member.idle.push_back(offer);
            }
            known.more.notify_waiters();
        }
        asked
    }

    /// Gives a device that begins with these bytes a tunnel to a server of this name: one after the
    /// other, or always the same by the device's address, as long as that is there. Who does not
    /// take the device is passed by.
    ///
    /// # Errors
    /// There is none.
    pub(crate) async fn give(
        &self,
        name: &str,
        client: IpAddr,
        stays: bool,
        begins: &[u8],
    ) -> Result<(Box<dyn ByteStream>, TunnelSlot), NoTunnel> {
        let began = Instant::now();
        let more = self.more(name)?;
        while began.elapsed() < TRIES {
            // What is offered from now on is told.
            let mut news = pin!(more.notified());
            news.as_mut().enable();
            let by = (stays && began.elapsed() < PATIENCE / 2).then_some(client);
            match self.choose(name, by)? {
                Some(offer) => {
                    if let Ok(given) = hand_over(offer, client, begins).await {
                        return Ok(given);
                    }
                }
                None => {
                    let patience = match by {
                        Some(_) => PATIENCE / 2,
                        None => PATIENCE,
                    };
                    let waited = timeout_at(began + patience, news).await;
                    if waited.is_err() && by.is_none() {
                        return Err(NoTunnel::Late);
                    }
                }
            }
        }
        Err(NoTunnel::Late)
    }

    /// Hears of each tunnel that is offered.
    fn more(&self, name: &str) -> Result<Arc<Notify>, NoTunnel> {
        let names = self.names();
        let known = names.get(name).ok_or(NoTunnel::Unknown)?;
        Ok(known.more.clone())
    }

    /// An idle tunnel, or `None` if it is worth to wait for one.
    fn choose(&self, name: &str, by: Option<IpAddr>) -> Result<Option<TunnelOffer>, NoTunnel> {
        let mut names = self.names();
        let known = names.get_mut(name).ok_or(NoTunnel::Unknown)?;
        for member in &mut known.farm {
            member.idle.retain(|it| !it.is_closed());
        }
        let mut farm = known.farm.iter().enumerate();
        let chosen = match by {
            Some(address) => farm.max_by_key(|(_, it)| weight(it.instance, address)),
            None => farm.find(|(_, it)| !it.idle.is_empty()),
        };
        let at = chosen.map(|(at, _)| at);
        if let Some(mut member) = at.and_then(|at| known.farm.remove(at)) {
            let offer = member.idle.pop_front();
            // The others come first now.
            known.farm.push_back(member);
            if offer.is_some() {
                return Ok(offer);
            }
        }
        let was_there = known.seen.is_some_and(|it| it.elapsed() < PATIENCE);
        match !known.farm.is_empty() || was_there {
            true => Ok(None),
            false => Err(NoTunnel::Unregistered),
        }
    }

    /// How every name stands.
    pub(crate) fn standing(&self) -> Vec<FarmStatus> {
        let names = self.names();
        let standing = names.iter().map(|(name, it)| {
            let (idle, lines) = (it.idle(), it.farm.iter().map(|it| it.lines).sum::<usize>());
            FarmStatus {
                name: name.clone(),
                servers: it.farm.len(),
                idle,
                taken: lines.saturating_sub(idle),
            }
        });
        let mut standing: Vec<FarmStatus> = standing.collect();
        standing.sort_by(|one, other| one.name.cmp(&other.name));
        standing
    }
}

impl NamedFarm {
    fn idle(&self) -> usize {
        let offers = self.farm.iter().flat_map(|it| &it.idle);
        offers.filter(|it| !it.is_closed()).count()
    }
}

/// Asks the one who keeps a tunnel for it, and gives it to the device.
async fn hand_over(
    offer: TunnelOffer,
    client: IpAddr,
    begins: &[u8],
) -> io::Result<(Box<dyn ByteStream>, TunnelSlot)> {
    let gone = || io::Error::from(io::ErrorKind::NotConnected);
    let (reply, given) = oneshot::channel();
    offer.send(reply).map_err(|_| gone())?;
    let (line, place) = given.await.map_err(|_| gone())?;
    Ok((line.give(client, begins).await?, place))
}

/// How much a server is one for an address: the one with the most serves it, at every relay.
fn weight(instance: u64, address: IpAddr) -> u64 {
    let bits = match address.to_canonical() {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    };
    // The mixing of SplitMix64.
    [(bits >> 64) as u64, bits as u64]
        .into_iter()
        .fold(instance, |mixed, part| {
            let mut mixed = (mixed ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        })
}

/// That a tunnel of a server is there, idle or not.
pub(crate) struct TunnelSlot {
    lines: Arc<TunnelPool>,
    name: String,
    instance: u64,
}

impl Drop for TunnelSlot {
    fn drop(&mut self) {
        let mut names = self.lines.names();
        let Some(known) = names.get_mut(&self.name) else {
            return;
        };
        let mut farm = known.farm.iter_mut();
        if let Some(member) = farm.find(|it| it.instance == self.instance) {
            member.lines -= 1;
        }
        let before = known.farm.len();
        known.farm.retain(|it| it.lines > 0);
        let servers = known.farm.len();
        if servers < before {
            tracing::info!(name = self.name, servers, "a server has no line any more");
        }
        known.seen = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tunnel that a device could have, as long as what is given back is there.
    fn idle(
        lines: &Arc<TunnelPool>,
        name: &str,
    ) -> Result<
        (
            TunnelSlot,
            oneshot::Receiver<oneshot::Sender<OfferedTunnel>>,
        ),
        RegistrationRefusal,
    > {
        let place = lines.enter(name, 1)?;
        let asked = lines.offer(&place);
        Ok((place, asked))
    }

    #[test]
    fn a_name_that_takes_all_lines_keeps_no_other_away() {
        let names = ["a", "b"].map(|it| (it.to_owned(), ServerProofs::default()));
        let lines = TunnelPool::new(&names.into(), 4);
        let _of_a: Vec<_> = (0..4).map(|_| idle(&lines, "a").unwrap()).collect();
        assert_eq!(idle(&lines, "a").err(), Some(RegistrationRefusal::Full));
        let _of_b: Vec<_> = (0..2).map(|_| idle(&lines, "b").unwrap()).collect();
        assert_eq!(idle(&lines, "b").err(), Some(RegistrationRefusal::Full));
        assert_eq!(idle(&lines, "c").err(), Some(RegistrationRefusal::Name));
    }
}
