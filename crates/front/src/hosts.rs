//! Sets of hosts: single addresses and networks.

use std::net::IpAddr;
use thiserror::Error;

/// A word that is neither an address nor a network.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("'{0}' is not an address or network (192.0.2.7, 192.0.2.0/24, 2001:db8::/32)")]
pub struct InvalidHost(String);

/// A set of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts(Vec<(IpAddr, u8)>);

impl Hosts {
    /// Only this machine.
    pub fn loopback() -> Self {
        Hosts(vec![(IpAddr::from([127, 0, 0, 0]), 8), (IpAddr::from([0u16, 0, 0, 0, 0, 0, 0, 1]), 128)])
    }

    /// Every address.
    pub fn all() -> Self {
        Hosts(vec![(IpAddr::from([0, 0, 0, 0]), 0), (IpAddr::from([0u16; 8]), 0)])
    }

    /// The empty set.
    pub fn none() -> Self {
        Hosts(Vec::new())
    }

    /// Adds addresses and networks, separated by commas; a leading `@` as in `sharenfs` is ignored.
    ///
    /// # Errors
    /// The first word that is neither an address nor a network.
    pub fn add(&mut self, text: &str) -> Result<(), InvalidHost> {
        for word in text.split(',').filter(|word| !word.is_empty()) {
            self.0.push(network(word).ok_or_else(|| InvalidHost(word.to_owned()))?);
        }
        Ok(())
    }

    /// Adds an address or network, given as the first `bits` bits of an address. IPv4-mapped IPv6 addresses are IPv4.
    pub fn add_network(&mut self, address: IpAddr, bits: u8) {
        let canonical = address.to_canonical();
        let is_mapped = address.is_ipv6() && canonical.is_ipv4();
        self.0.push(match bits.checked_sub(96).filter(|_| is_mapped) {
            Some(bits) => (canonical, bits),
            None => (address, bits),
        });
    }

    /// Adds the addresses of another set.
    pub fn extend(&mut self, other: Hosts) {
        self.0.extend(other.0);
    }

    /// Whether an address is in the set. An IPv4-mapped IPv6 address is treated as IPv4.
    pub fn has(&self, address: IpAddr) -> bool {
        self.longest_prefix(address).is_some()
    }

    /// The longest prefix in bits of those in the set that an address has; `None` if it is not in the set.
    pub fn longest_prefix(&self, address: IpAddr) -> Option<u8> {
        let address = address.to_canonical();
        let own = self.0.iter().filter(|(network, bits)| has_same_prefix(*network, address, *bits));
        own.map(|(_, bits)| *bits).max()
    }
}

fn network(word: &str) -> Option<(IpAddr, u8)> {
    let word = word.strip_prefix('@').unwrap_or(word);
    let (address, bits) = match word.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (word, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let max_bits = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.map_or(Some(max_bits), |bits| bits.parse().ok().filter(|bits| *bits <= max_bits))?;
    Some((address, bits))
}

/// Whether two addresses of one family have the same prefix of `bits` bits.
fn has_same_prefix(one: IpAddr, other: IpAddr, bits: u8) -> bool {
    let differing = match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => u128::from(one.to_bits() ^ other.to_bits()) << 96,
        (IpAddr::V6(one), IpAddr::V6(other)) => one.to_bits() ^ other.to_bits(),
        _ => return false,
    };
    u32::from(bits) <= differing.leading_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_contain_exactly_their_addresses() {
        let mut hosts = Hosts::none();
        hosts.add("192.0.2.7,@10.1.0.0/16,2001:db8::/32").unwrap();
        let has = |text: &str| hosts.has(text.parse().unwrap());
        assert!(has("192.0.2.7") && has("10.1.255.3") && has("2001:db8:7::1") && has("::ffff:10.1.2.3"));
        assert!(!has("192.0.2.8") && !has("10.2.0.0") && !has("2001:db9::1") && !has("127.0.0.1"));
        let mut all = Hosts::none();
        all.add("0.0.0.0/0").unwrap();
        assert!(Hosts::all().has("203.0.113.9".parse().unwrap()) && Hosts::all().has("::1".parse().unwrap()));
        assert!(all.has("203.0.113.9".parse().unwrap()) && !all.has("::1".parse().unwrap()));
        let loopback = Hosts::loopback();
        assert!(loopback.has("127.3.4.5".parse().unwrap()) && loopback.has("::1".parse().unwrap()));
        assert!(!loopback.has("128.0.0.1".parse().unwrap()));
    }

    #[test]
    fn invalid_words_are_reported() {
        for word in ["host", "1.2.3.4/33", "::/129", "1.2.3", "1.2.3.4/-1", "1.2.3.4/"] {
            assert_eq!(Hosts::none().add(word), Err(InvalidHost(word.into())));
        }
    }
}
