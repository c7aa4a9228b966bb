//! Network interfaces of the clients of a pool, and the counters of host and process for a sample.
//!
//! The kernel counts the bytes of an interface, of all programs and with all headers. The payload is that of the pool's accounts, by
//! client; the interface of a client is the one to which the kernel routes its address. A client whose name is no address (a user of
//! a mount) has none.

use crate::network;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_analytics::{HostTotals, InterfaceTotals, Sample};

/// Name of the loopback interface.
const LOOPBACK: &str = "lo";
/// Samples after which the routes are read again.
const ROUNDS: u32 = 60;
/// Routes that are read at most.
const MAX_ROUTES: usize = 4096;
/// Clients whose interface is remembered at most; beyond them, all are looked up again.
const MAX_CLIENTS: usize = 4096;
/// Nanoseconds of a tick of processor time in `/proc`, which Linux has 100 of in a second.
const TICK_NS: u64 = 10_000_000;
/// Flag of an IPv6 route to an address of the host itself (`RTF_LOCAL`).
const IS_LOCAL: u32 = 0x8000_0000;
/// Flag of an IPv6 route that refuses packets (`RTF_REJECT`).
const IS_REFUSED: u32 = 0x200;

/// A route: addresses whose first bits are those of `network`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Route {
    network: IpAddr,
    prefix_bits: u32,
    metric: u32,
    interface: String,
}

/// Routes of the process's network namespace, and the interfaces of clients that were looked up.
#[derive(Debug, Default)]
pub(crate) struct Interfaces {
    routes: Vec<Route>,
    own: BTreeSet<IpAddr>,
    found: BTreeMap<String, Option<String>>,
    rounds: u32,
}

fn bits(address: IpAddr) -> (u128, u32) {
    match address {
        IpAddr::V4(v4) => (u128::from(v4.to_bits()) << 96, 32),
        IpAddr::V6(v6) => (v6.to_bits(), 128),
    }
}

/// Routes in the text of `/proc/net/route`: interface, destination, gateway, flags, references, use, metric, mask.
fn v4_routes(text: &str) -> Vec<Route> {
    let route = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[interface, destination, _, _, _, _, metric, mask, ..] = words.as_slice() else { return None };
        let address = u32::from_str_radix(destination, 16).ok()?.to_ne_bytes();
        let prefix_bits = u32::from_str_radix(mask, 16).ok()?.count_ones();
        let network = Ipv4Addr::from(address).into();
        Some(Route { network, prefix_bits, metric: metric.parse().ok()?, interface: interface.to_owned() })
    };
    text.lines().filter_map(route).take(MAX_ROUTES).collect()
}

/// Routes in the text of `/proc/net/ipv6_route`: destination, its prefix, source, its prefix, gateway, metric, references, use, flags,
/// interface.
fn v6_routes(text: &str) -> Vec<Route> {
    let route = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[destination, prefix, _, _, _, metric, _, _, flags, interface] = words.as_slice() else { return None };
        let flags = u32::from_str_radix(flags, 16).ok().filter(|flags| flags & IS_REFUSED == 0)?;
        let network = Ipv6Addr::from(u128::from_str_radix(destination, 16).ok()?).into();
        let prefix_bits = u32::from_str_radix(prefix, 16).ok().filter(|bits| *bits <= 128)?;
        let interface = if flags & IS_LOCAL == 0 { interface } else { LOOPBACK }.to_owned();
        Some(Route { network, prefix_bits, metric: u32::from_str_radix(metric, 16).ok()?, interface })
    };
    text.lines().filter_map(route).take(MAX_ROUTES).collect()
}

/// IPv4 addresses of the host itself in the text of `/proc/net/fib_trie`: a line with the address, then one with `/32 host LOCAL`.
///
/// Source: Linux' `net/ipv4/fib_trie.c` (`fib_trie_seq_show`).
pub fn local_v4(text: &str) -> impl Iterator<Item = IpAddr> {
    text.lines().zip(text.lines().skip(1)).filter_map(|(line, next)| {
        let address: Ipv4Addr = line.trim().strip_prefix("|-- ")?.parse().ok()?;
        (next.trim() == "/32 host LOCAL").then_some(IpAddr::from(address))
    })
}

impl Interfaces {
    fn parsed(v4: &str, v6: &str, trie: &str) -> Self {
        let routes = v4_routes(v4).into_iter().chain(v6_routes(v6)).collect();
        Interfaces { routes, own: local_v4(trie).take(MAX_ROUTES).collect(), found: BTreeMap::new(), rounds: 0 }
    }

    /// The interface to which an address is routed.
    fn route(&self, address: IpAddr) -> Option<&str> {
        let address = address.to_canonical();
        if address.is_loopback() || self.own.contains(&address) {
            return Some(LOOPBACK);
        }
        let (wanted, width) = bits(address);
        let leads = |route: &&Route| {
            let (network, of) = bits(route.network);
            let differing = (network ^ wanted).checked_shr(128 - route.prefix_bits.min(128)).unwrap_or(0);
            of == width && differing == 0
        };
        let best = |route: &&Route| (route.prefix_bits, std::cmp::Reverse(route.metric));
        Some(self.routes.iter().filter(leads).max_by_key(best)?.interface.as_str())
    }

    fn of_client(&mut self, client: &str) -> Option<String> {
        if let Some(found) = self.found.get(client) {
            return found.clone();
        }
        let interface = client.parse().ok().and_then(|address| self.route(address)).map(str::to_owned);
        if self.found.len() >= MAX_CLIENTS {
            self.found.clear();
        }
        self.found.insert(client.to_owned(), interface.clone());
        debug_assert!(self.found.len() <= MAX_CLIENTS);
        interface
    }

    /// Puts the counters of the host into samples that were taken just before.
    pub fn complete(&mut self, samples: &mut [Sample]) {
        let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        if self.rounds == 0 {
            *self = Interfaces::parsed(
                &text("/proc/net/route"),
                &text("/proc/net/ipv6_route"),
                &text("/proc/net/fib_trie"),
            );
        }
        self.rounds = (self.rounds + 1) % ROUNDS;
        let counters = network::read();
        let processor_ns = processor_ns(&text("/proc/self/stat"));
        for sample in samples {
            let of = |(name, counters): (&String, &network::InterfaceCounters)| InterfaceTotals {
                name: name.clone(),
                received_bytes: counters.received.bytes,
                sent_bytes: counters.sent.bytes,
                ..InterfaceTotals::default()
            };
            let mut interfaces: Vec<InterfaceTotals> = counters.iter().map(of).collect();
            for row in sample.clients.iter().filter(|row| row.requests > 0) {
                let Some(name) = self.of_client(&row.client) else { continue };
                let Some(interface) = interfaces.iter_mut().find(|interface| interface.name == name) else { continue };
                interface.has_clients = true;
                interface.payload_received_bytes += row.written_bytes;
                interface.payload_sent_bytes += row.read_bytes;
            }
            sample.host = Some(HostTotals { interfaces, processor_ns });
        }
    }
}

/// Processor time of the process in the text of `/proc/self/stat`: its fields 14 and 15, in user mode and in the kernel.
fn processor_ns(text: &str) -> u64 {
    // The name of the program in field 2 may have any characters.
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = [11, 12].map(|at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0));
    ticks.iter().sum::<u64>().saturating_mul(TICK_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_have_the_interface_of_the_longest_route() {
        let v4 = "Iface\tDestination\tGateway\n\
            eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
            eth1\t0001090A\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n\
            eth2\t0001090A\t00000000\t0001\t0\t0\t50\t00FFFFFF\t0\t0\t0\nbad\n";
        let zeros = "0".repeat(32);
        let v6 = format!(
            "fd000000000000000000000000000000 08 {zeros} 00 {zeros} 00000100 00000001 00000000 00000001 eth1\n\
             fd000000000000000000000000000001 80 {zeros} 00 {zeros} 00000000 00000002 00000000 80200001 eth1\n\
             {zeros} 00 {zeros} 00 {zeros} ffffffff 00000001 00000000 00200200 lo\n"
        );
        let trie = "Main:\n  |-- 10.9.1.0\n     /24 link UNICAST\nLocal:\n  |-- 10.9.1.1\n     /32 host LOCAL\n";
        let mut interfaces = Interfaces::parsed(v4, &v6, trie);
        let mut of = |client: &str| interfaces.of_client(client);
        assert_eq!(of("10.9.1.2").as_deref(), Some("eth2"), "the lower metric");
        assert_eq!(of("192.0.2.7").as_deref(), Some("eth0"));
        assert_eq!(of("::ffff:10.9.1.2").as_deref(), Some("eth2"));
        assert_eq!([of("10.9.1.1"), of("127.0.0.9"), of("::1"), of("fd00::1")].map(|of| of.unwrap()), ["lo"; 4]);
        assert_eq!(of("fd00::2").as_deref(), Some("eth1"));
        assert_eq!([of("2001:db8::1"), of("uid 0"), of("")], [None, None, None]);
    }

    #[test]
    fn processor_time_is_that_of_both_modes() {
        let text = "7 (a b) c) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0";
        assert_eq!([processor_ns(text), processor_ns("")], [2_000_000_000, 0]);
    }
}
