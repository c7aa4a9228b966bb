//! Network interfaces and processors of the machine, from `/proc/net/dev`, `/proc/stat` and `/sys/class/net`.
//!
//! Rates are those between two looks of the page, whose time the text has.

use super::lights::{Light, LightState};
use crate::network::{self, InterfaceCounters};
use std::collections::BTreeMap;
use std::time::Duration;
use weir_machine::Nanos;

/// Share of processor time, in percent, from which on it is a warning.
const BUSY_PERCENT: u64 = 90;
/// Share of a link's speed, in percent, from which on it is a warning.
const LINK_PERCENT: u64 = 80;

/// Counters of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Interface {
    received_bytes: u64,
    sent_bytes: u64,
    /// Errors and dropped packets.
    faults: u64,
    /// Speed in bytes per second; 0 if it is not known.
    speed: u64,
}

/// Counters of the machine at an instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostCounters {
    at: Nanos,
    interfaces: BTreeMap<String, Interface>,
    /// Ticks of processors: not idle, and all.
    busy: u64,
    total: u64,
}

impl HostCounters {
    /// The counters now.
    pub fn read(at: Nanos) -> Self {
        let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let mut interfaces = interfaces(network::read());
        for (name, interface) in &mut interfaces {
            let speed = text(&format!("/sys/class/net/{name}/speed"));
            // A link that is down has the speed -1.
            interface.speed = speed.trim().parse::<u64>().unwrap_or(0).saturating_mul(125_000);
        }
        let (busy, total) = ticks(&text("/proc/stat"));
        HostCounters { at, interfaces, busy, total }
    }

    /// Time from these counters to `now`.
    pub fn age(&self, now: &HostCounters) -> Duration {
        now.at.since(self.at)
    }

    /// The lights Net and CPU, of the time since `before`.
    pub fn lights(&self, before: Option<&HostCounters>) -> [Light; 2] {
        let Some(before) = before.filter(|before| before.at < self.at) else {
            let first = "counted from the next look on";
            return [Light::new("Net", LightState::Unknown, first), Light::new("CPU", LightState::Unknown, first)];
        };
        let ms = (self.at.since(before.at).as_millis() as u64).max(1);
        [self.net(before, ms), self.cpu(before, ms)]
    }

    fn net(&self, before: &HostCounters, ms: u64) -> Light {
        let mut state = LightState::Good;
        let mut faulty = Vec::new();
        let mut busiest: Option<(&str, u64, u64)> = None;
        for (name, now) in &self.interfaces {
            let was = before.interfaces.get(name).copied().unwrap_or(*now);
            let rate = |now: u64, was: u64| now.saturating_sub(was).saturating_mul(1000) / ms;
            let most = rate(now.received_bytes, was.received_bytes).max(rate(now.sent_bytes, was.sent_bytes));
            let faults = now.faults.saturating_sub(was.faults);
            if faults > 0 {
                faulty.push(format!("{name}: {faults} errors or drops"));
                state = LightState::Warning;
            }
            if now.speed > 0 && most.saturating_mul(100) / now.speed >= LINK_PERCENT {
                state = LightState::Warning;
            }
            if busiest.is_none_or(|(_, other, _)| most > other) {
                busiest = Some((name, most, now.speed));
            }
        }
        let Some((name, most, speed)) = busiest else {
            return Light::new("Net", LightState::Unknown, "no interface but loopback");
        };
        let share = most.saturating_mul(100).checked_div(speed);
        let of = share.map(|percent| format!(", {percent} % of the link")).unwrap_or_default();
        let rate = format!("{name} {:.1} MB/s{of}, in {:.1} s", most as f64 / 1e6, ms as f64 / 1000.0);
        Light::new("Net", state, faulty.into_iter().chain([rate]).collect::<Vec<_>>().join("; "))
    }

    fn cpu(&self, before: &HostCounters, ms: u64) -> Light {
        let total = self.total.saturating_sub(before.total);
        if total == 0 {
            return Light::new("CPU", LightState::Unknown, "not counted");
        }
        let percent = self.busy.saturating_sub(before.busy).saturating_mul(100) / total;
        let state = if percent >= BUSY_PERCENT { LightState::Warning } else { LightState::Good };
        Light::new("CPU", state, format!("{percent} % busy, in {:.1} s", ms as f64 / 1000.0))
    }
}

/// Interfaces but loopback, without their speeds. A name that is no name of a directory in `/sys/class/net` is left out.
fn interfaces(all: BTreeMap<String, InterfaceCounters>) -> BTreeMap<String, Interface> {
    let is_shown = |name: &str| name != "lo" && !name.contains(['/', '.']);
    let shown =
        all.into_iter().filter(|(name, _)| is_shown(name)).map(|(name, InterfaceCounters { received, sent })| {
            let faults = [received.errors, received.drops, sent.errors, sent.drops];
            let faults = faults.into_iter().fold(0, u64::saturating_add);
            (name, Interface { received_bytes: received.bytes, sent_bytes: sent.bytes, faults, speed: 0 })
        });
    shown.collect()
}

/// Ticks of all processors: not idle, and all.
fn ticks(text: &str) -> (u64, u64) {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
    // user, nice, system, idle, iowait, irq, softirq, steal; guests are part of user and nice.
    let numbers: Vec<u64> = line.split_whitespace().take(8).map_while(|number| number.parse().ok()).collect();
    let total = numbers.iter().fold(0u64, |sum, number| sum.saturating_add(*number));
    let idle = numbers.iter().skip(3).take(2).fold(0u64, |sum, number| sum.saturating_add(*number));
    (total.saturating_sub(idle), total)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEV: &str = "Inter-|   Receive\n face |bytes\n    lo: 9 9 9 9 0 0 0 0 9 9 9 9 0 0 0 0\n  eth0: 1000 5 0 0 0 0 0 0 500 3 0 0 0 0 0 0\n  bad: 1 2\n";

    #[test]
    fn counters_are_parsed_and_rates_have_their_time() {
        let found = interfaces(network::parse(DEV));
        assert_eq!(found.keys().collect::<Vec<_>>(), ["eth0"]);
        assert_eq!((found["eth0"].received_bytes, found["eth0"].sent_bytes), (1000, 500));
        assert_eq!(ticks("cpu  10 0 20 60 10 0 0 0 5 5\ncpu0 1\n"), (30, 100));
        assert_eq!(ticks("nothing"), (0, 0));
        let mut before = HostCounters { at: Nanos(0), interfaces: found, busy: 30, total: 100 };
        before.interfaces.get_mut("eth0").unwrap().speed = 125_000_000;
        let mut now = HostCounters { at: Nanos(2_000_000_000), busy: 125, total: 200, ..before.clone() };
        now.interfaces.get_mut("eth0").unwrap().received_bytes += 220_000_000;
        let [net, cpu] = now.lights(Some(&before));
        assert_eq!(net, Light::new("Net", LightState::Warning, "eth0 110.0 MB/s, 88 % of the link, in 2.0 s"));
        assert_eq!(cpu, Light::new("CPU", LightState::Warning, "95 % busy, in 2.0 s"));
        now.interfaces.get_mut("eth0").unwrap().received_bytes = 1000;
        assert_eq!(now.lights(Some(&before))[0].state, LightState::Good);
        now.interfaces.get_mut("eth0").unwrap().faults = 3;
        assert!(now.lights(Some(&before))[0].text.starts_with("eth0: 3 errors or drops; eth0 0.0 MB/s"));
        assert_eq!(now.lights(None).map(|light| light.state), [LightState::Unknown; 2]);
        assert_eq!(now.lights(Some(&now)).map(|light| light.state), [LightState::Unknown; 2]);
    }
}
