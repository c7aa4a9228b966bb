//! The settings on the sheet.

use crate::facts::Facts;
use crate::read::Host;
use serde::Serialize;

/// The program or device that a setting belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Applies {
    /// The kernel of this machine: can be applied.
    Kernel,
    /// Weir: options of its programs, keys of its configuration.
    Weir,
    /// The client.
    Client,
    /// An adapter: a command to run by hand.
    Adapter,
}

/// One setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Item {
    /// Key: for the kernel, as `sysctl` names it, or `disk.NAME.timeout`.
    pub key: String,
    /// The program or device that it belongs to.
    pub applies: Applies,
    /// Value now, if it can be read.
    pub current: Option<String>,
    /// Value of an unchanged system.
    pub default: String,
    /// Recommended value for this machine.
    pub recommended: String,
    /// Reason for the recommendation.
    pub why: String,
    /// The command or line that sets it, for what is not applied.
    pub how: Option<String>,
}

/// Rates from which a link counts as fast, in bits per second.
const FAST_LINK: u64 = 10_000_000_000;

/// Seconds for a command of a disk: longer than the disk tries by itself, shorter than Weir waits for it.
const GOOD_TIMEOUTS: std::ops::Range<u64> = 10..60;

/// All settings, in the order of the sheet.
pub fn items(host: &impl Host, facts: &Facts) -> Vec<Item> {
    let rate = facts.interfaces.iter().filter(|i| !i.is_loopback).filter_map(crate::Interface::rate).max();
    let is_fast = rate.is_some_and(|rate| rate >= FAST_LINK);
    let mut all = kernel(host, is_fast);
    all.extend(facts.disks.iter().map(|disk| Item {
        key: format!("disk.{}.timeout", disk.name),
        applies: Applies::Kernel,
        current: Some(disk.timeout_seconds.to_string()),
        default: "30".into(),
        recommended: if GOOD_TIMEOUTS.contains(&disk.timeout_seconds) { disk.timeout_seconds } else { 30 }.to_string(),
        why: "seconds until the kernel gives up a command; at least as long as the disk tries by itself (7 s with TLER), \
              less than --deadman (60 s), after which Weir goes on without the disk"
            .into(),
        how: None,
    }));
    all.extend(by_hand(is_fast));
    all.extend(facts.interfaces.iter().filter(|i| !i.is_loopback && i.interrupts.is_some()).map(|interface| Item {
        key: format!("adapter.{}.coalescing", interface.name),
        applies: Applies::Adapter,
        current: None,
        default: "adaptive".into(),
        recommended: "adaptive".into(),
        why: "fewer interrupts cost latency: for small synchronous requests try rx-usecs 0 and compare".into(),
        how: Some(format!("ethtool -c {0}; ethtool -C {0} adaptive-rx off rx-usecs 0", interface.name)),
    }));
    all
}

/// Settings below /proc/sys.
fn kernel(host: &impl Host, is_fast: bool) -> Vec<Item> {
    // Key, default of Linux 6.1, recommended for a slow and for a fast link, why.
    const KERNEL: [(&str, &str, &str, &str, &str); 7] = [
        ("net.core.rmem_max", "212992", "4194304", "16777216", "largest receive buffer that a program may ask for"),
        ("net.core.wmem_max", "212992", "4194304", "16777216", "largest send buffer that a program may ask for"),
        (
            "net.ipv4.tcp_rmem",
            "4096 131072 6291456",
            "4096 131072 6291456",
            "4096 131072 33554432",
            "receive buffer of a connection: at least, at first, at most",
        ),
        (
            "net.ipv4.tcp_wmem",
            "4096 16384 4194304",
            "4096 16384 4194304",
            "4096 65536 33554432",
            "send buffer of a connection: at least, at first, at most",
        ),
        ("net.core.netdev_max_backlog", "1000", "1000", "30000", "packets that wait for a processor"),
        (SLOW_START, "1", "0", "0", "1 begins slowly again after each pause, such as between files"),
        ("net.ipv4.tcp_mtu_probing", "0", "1", "1", "1 finds the packet size of the path where ICMP is filtered"),
    ];
    let item = |(key, default, slow, fast, why): (&str, &str, &str, &str, &str)| {
        let current = path_of(key).and_then(|path| host.file(&path)).map(|text| normal(&text));
        let enough = if is_fast { fast } else { slow };
        let recommended = match &current {
            Some(current) if key != SLOW_START => at_least(current, enough),
            _ => enough.to_owned(),
        };
        Item {
            key: key.into(),
            applies: Applies::Kernel,
            default: default.into(),
            recommended,
            why: why.into(),
            how: None,
            current,
        }
    };
    KERNEL.into_iter().map(item).collect()
}

/// The only setting of the kernel whose recommended value may be below the current one: it is 0 or 1.
const SLOW_START: &str = "net.ipv4.tcp_slow_start_after_idle";

/// The larger of each pair of numbers: larger buffers take memory only while they are used.
fn at_least(current: &str, enough: &str) -> String {
    let numbers = |text: &str| text.split(' ').map(str::parse).collect::<Result<Vec<u64>, _>>();
    match (numbers(current), numbers(enough)) {
        (Ok(current), Ok(enough)) if current.len() == enough.len() => {
            let larger: Vec<String> =
                current.iter().zip(&enough).map(|(current, enough)| current.max(enough).to_string()).collect();
            larger.join(" ")
        }
        _ => enough.to_owned(),
    }
}

/// Settings that are written elsewhere.
fn by_hand(is_fast: bool) -> Vec<Item> {
    let item = |applies, key: &str, default: &str, recommended: &str, why: &str, how: &str| Item {
        key: key.into(),
        applies,
        current: None,
        default: default.into(),
        recommended: recommended.into(),
        why: why.into(),
        how: Some(how.into()),
    };
    let mount = format!("rsize=1048576,wsize=1048576,hard{}", if is_fast { ",nconnect=4" } else { "" });
    let nconnect = match is_fast {
        true => "one processor serves a connection at a time and cannot fill a fast link: nconnect=4 uses four",
        false => "one connection fills a link below 10 Gbit/s; nconnect=4 is for faster ones",
    };
    vec![
        item(
            Applies::Weir,
            "weir.arc_max",
            "half of the memory",
            "half of the memory, more on a machine for Weir alone",
            "memory from which reads are answered without a disk",
            "weir.toml: arc_max = \"SIZE\"; weir serve --arc-max SIZE",
        ),
        item(
            Applies::Weir,
            "weir.dirty_max",
            "a tenth of the memory, at most 4 GiB",
            "a tenth of the memory",
            "bursts up to this size are taken at the speed of the network; longer ones at the speed of the pool",
            "weir.toml: dirty_max = \"SIZE\"; weir serve --dirty-max SIZE",
        ),
        item(
            Applies::Weir,
            "nfs.transfer",
            "1 MiB, 64 calls at a time on each connection",
            "1 MiB, 64 calls",
            "fixed: what a Linux client asks for",
            "nothing to set",
        ),
        item(
            Applies::Weir,
            "l2arc.prefetch",
            "off",
            "off",
            "cache devices get no blocks that were read ahead and not used, so that sequential reads do not wear them",
            "nothing to set; WEIR_L2ARC_NOPREFETCH=0 in the environment of the daemon writes them, too",
        ),
        item(
            Applies::Client,
            "nfs.mount",
            "rsize=1048576,wsize=1048576,hard",
            &mount,
            nconnect,
            &format!("mount -t nfs -o vers=3,{mount} SERVER:/POOL /mnt"),
        ),
        item(
            Applies::Client,
            "nfs.read_ahead",
            "128 KiB",
            "16 MiB",
            "Linux reads too little ahead on NFS mounts for one stream to fill a fast link",
            "echo 16384 > /sys/class/bdi/$(mountpoint -d /mnt)/read_ahead_kb",
        ),
        item(
            Applies::Adapter,
            "network.bridge",
            "none",
            "none",
            "a bridge of two adapters connects a client directly without a switch; it costs processor time",
            "ip link add br0 type bridge; ip link set DEVICE master br0; ip link set br0 up",
        ),
    ]
}

/// File of a key that can be applied.
pub(super) fn path_of(key: &str) -> Option<String> {
    let is_plain =
        |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
    let words: Vec<&str> = key.split('.').collect();
    if !words.iter().all(|word| is_plain(word)) {
        return None;
    }
    match words.as_slice() {
        ["net", "core" | "ipv4" | "ipv6", _] => Some(format!("/proc/sys/{}", words.join("/"))),
        ["disk", disk, "timeout"] => Some(format!("/sys/block/{disk}/device/timeout")),
        _ => None,
    }
}

/// Whether a value can be written to this setting of the kernel: one to three numbers, or for the name of an algorithm one word
/// (`bbr`, `fq_codel`).
pub fn is_valid(key: &str, value: &str) -> bool {
    let takes_word = key.ends_with("_congestion_control") || key.ends_with("_qdisc");
    let words: Vec<&str> = value.split(' ').collect();
    let is_number = |word: &&str| word.parse::<u64>().is_ok();
    let is_word = |word: &&str| {
        !word.is_empty() && word.len() <= 32 && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    };
    match words.as_slice() {
        [word] if takes_word => is_word(word),
        words => words.len() <= 3 && words.iter().all(is_number),
    }
}

/// The value of a file with single spaces: the kernel separates by tabs.
pub(super) fn normal(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_lead_only_to_settings() {
        assert_eq!(path_of("net.core.rmem_max").as_deref(), Some("/proc/sys/net/core/rmem_max"));
        assert_eq!(path_of("disk.sda.timeout").as_deref(), Some("/sys/block/sda/device/timeout"));
        for key in
            ["kernel.core_pattern", "net.core", "net.core.a/../../x", "disk...timeout", "net.ipv4.conf.all.x", ""]
        {
            assert_eq!(path_of(key), None, "{key}");
        }
        let wrong = |path: String| !crate::read::is_setting(std::path::Path::new(&path));
        assert!(!path_of("net.ipv4.tcp_rmem").is_some_and(wrong));
    }

    /// A machine whose settings are these, and otherwise has none.
    struct Settings(&'static [(&'static str, &'static str)]);

    impl Host for Settings {
        fn run(&self, _: &str, _: &[&str]) -> Result<Option<String>, crate::read::NotInstalled> {
            Err(crate::read::NotInstalled)
        }

        fn file(&self, path: &str) -> Option<String> {
            self.0.iter().find(|(key, _)| path_of(key).as_deref() == Some(path)).map(|(_, value)| (*value).to_owned())
        }

        fn names(&self, _: &str) -> Vec<String> {
            Vec::new()
        }
    }

    #[test]
    fn no_recommendation_is_below_the_current_value_without_a_reason() {
        let host = Settings(&[
            ("net.ipv4.tcp_rmem", "4096\t131072\t33554432"),
            ("net.ipv4.tcp_wmem", "4096\t16384\t1048576"),
            ("net.core.rmem_max", "212992"),
            ("net.ipv4.tcp_mtu_probing", "2"),
            (SLOW_START, "1"),
        ]);
        let mut facts = Facts::default();
        facts.disks = [45, 180]
            .map(|timeout_seconds| crate::facts::Disk { name: format!("sd{timeout_seconds}"), timeout_seconds })
            .to_vec();
        let all = items(&host, &facts);
        let of = |key: &str| all.iter().find(|item| item.key == key).unwrap().recommended.clone();
        assert_eq!(of("net.ipv4.tcp_rmem"), "4096 131072 33554432", "it stays");
        assert_eq!(of("net.ipv4.tcp_wmem"), "4096 16384 4194304", "the last number alone grows");
        assert_eq!(of("net.core.rmem_max"), "4194304");
        assert_eq!(of("net.ipv4.tcp_mtu_probing"), "2");
        assert_eq!(of(SLOW_START), "0", "a switch");
        assert_eq!((of("disk.sd45.timeout"), of("disk.sd180.timeout")), ("45".into(), "30".into()));
        assert!(!of("nfs.mount").contains("nconnect"), "no fast link");
    }

    #[test]
    fn values_are_numbers_or_one_word() {
        let number = |value: &&str| is_valid("net.core.rmem_max", value);
        assert!(["1", "4096 16384 4194304"].iter().all(number));
        assert!(["", "1\n2", "a b", "1 2 3 4", "x;y", "1  2", "notnum", "bbr"].iter().all(|value| !number(value)));
        let word = |value: &&str| is_valid("net.ipv4.tcp_congestion_control", value);
        assert!(word(&"bbr") && !word(&"x;y") && is_valid("net.core.default_qdisc", "fq_codel"));
    }
}
