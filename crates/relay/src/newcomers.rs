//! Whoever has dialed the relay and not proven yet to be a server: so many at once, and so many from
//! one network, so that nobody's silence keeps servers away.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// From everywhere.
const MOST: usize = 1_024;

/// From one address; of IPv6 from one /64, which is what one machine is given.
const MOST_OF_ONE: usize = 64;

/// See the module.
#[derive(Default)]
pub(crate) struct NewcomerCounts {
    of: Mutex<HashMap<IpAddr, usize>>,
}

/// A place, until it is dropped.
pub(crate) struct NewcomerSlot {
    newcomers: Arc<NewcomerCounts>,
    network: IpAddr,
}

impl NewcomerCounts {
    /// A place for whoever comes from an address, if there is one.
    pub(crate) fn enter(self: &Arc<NewcomerCounts>, address: IpAddr) -> Option<NewcomerSlot> {
        let network = network(address);
        let mut of = self.lock();
        let is_full = of.values().sum::<usize>() >= MOST;
        if is_full || of.get(&network).is_some_and(|&count| count >= MOST_OF_ONE) {
            return None;
        }
        *of.entry(network).or_default() += 1;
        Some(NewcomerSlot {
            newcomers: self.clone(),
            network,
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.of.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for NewcomerSlot {
    fn drop(&mut self) {
        let mut of = self.newcomers.lock();
        match of.get_mut(&self.network) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(of.remove(&self.network)),
        }
    }
}

/// An address, or the network that stands for it.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter_all(newcomers: &Arc<NewcomerCounts>, addresses: &[String]) -> Vec<NewcomerSlot> {
        let addresses = addresses.iter().map(|it| it.parse().unwrap());
        addresses.filter_map(|it| newcomers.enter(it)).collect()
    }

    #[test]
    fn one_network_does_not_take_the_places_of_others() {
        for crowd in [
            |_| "192.0.2.7".to_owned(),
            |number| format!("2001:db8::{number:x}"),
            |_| "::ffff:192.0.2.7".to_owned(),
        ] as [fn(usize) -> String; 3]
        {
            let newcomers = Arc::default();
            let crowd: Vec<String> = (0..2_500).map(crowd).collect();
            let entered = enter_all(&newcomers, &crowd);
            assert_eq!(entered.len(), MOST_OF_ONE);
            let others = ["192.0.2.8".to_owned(), "2001:db8:0:1::1".to_owned()];
            assert_eq!(enter_all(&newcomers, &others).len(), 2);
            // What they leave is free.
            drop(entered);
            assert_eq!(enter_all(&newcomers, &crowd[..1]).len(), 1);
            assert!(newcomers.lock().is_empty());
        }
    }

    #[test]
    fn there_are_only_so_many_places() {
        let newcomers = Arc::default();
        let crowd: Vec<String> = (0..2_500)
            .map(|number| format!("10.0.{}.{}", number / 250, number % 250))
            .collect();
        assert_eq!(enter_all(&newcomers, &crowd).len(), MOST);
    }
}
