//! Readings of the four documents, made live: each from the page's data, which are the answers of the API, under a load over NBD.

use super::network::{Client, SERVER, in_namespace, run};
use super::{Site, has, number, until};
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A client of NBD that has one request in flight. Arguments: host, port, export, its own address, `read` or `write`, bytes of a
/// request, number of requests, seconds between two requests, requests between two pauses (0 for no pause) and seconds of a pause.
/// The client prints the bytes that it transferred.
const LOAD: &str = r#"
import os, socket, struct, sys, time
host, port, name, own, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3].encode(), sys.argv[4], sys.argv[5]
size, count, wait, every, pause = int(sys.argv[6]), int(sys.argv[7]), float(sys.argv[8]), int(sys.argv[9]), float(sys.argv[10])
peer = socket.create_connection((host, port), source_address=(own, 0))
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
def take(n):
    data = bytearray()
    while len(data) < n:
        part = peer.recv(n - len(data))
        if not part: sys.exit(1)
        data += part
    return bytes(data)
take(18)
peer.sendall(struct.pack(">I", 3))
body = struct.pack(">I", len(name)) + name + struct.pack(">H", 0)
peer.sendall(b"IHAVEOPT" + struct.pack(">II", 7, len(body)) + body)
while True:
    magic, option, answer, length = struct.unpack(">QIII", take(20))
    take(length)
    if answer == 1: break
    assert answer == 3, answer
data = os.urandom(size)
total = 0
due = time.monotonic()
for n in range(count):
    if every and n and n % every == 0: due += pause
    due += wait
    time.sleep(max(0, due - time.monotonic()))
    place = n * size % (16 << 20)
    write = kind == "write"
    peer.sendall(struct.pack(">IHHQQI", 0x25609513, 0, 1 if write else 0, n, place, size) + (data if write else b""))
    assert struct.unpack(">IIQ", take(16))[1] == 0
    if not write: take(size)
    total += size
print(total)
"#;

/// A load of one client.
#[derive(Clone, Copy)]
pub struct Load<'a> {
    pub export: &'a str,
    pub own: &'a str,
    pub kind: &'a str,
    pub size: u64,
    pub count: u64,
    pub wait_s: f64,
    /// Requests between two pauses, and seconds of a pause.
    pub pauses: (u64, f64),
}

/// One client that reads as fast as it can.
pub const READER: Load<'_> = Load {
    export: "tank/vol",
    own: "127.0.0.1",
    kind: "read",
    size: 128 << 10,
    count: 128,
    wait_s: 0.0,
    pauses: (0, 0.0),
};

impl Load<'_> {
    fn words(&self, site: &Site, host: &str) -> Vec<String> {
        let uri = site.said("nbd://");
        let port = uri.trim_start_matches("nbd://").split(['/', ':']).nth(1).unwrap().to_owned();
        let Load { export, own, kind, size, count, wait_s, pauses: (every, pause_s) } = self;
        let mut words: Vec<String> = ["python3", "-c", LOAD, host, &port, export, own, kind].map(str::to_owned).into();
        words.extend([size.to_string(), count.to_string(), wait_s.to_string(), every.to_string(), pause_s.to_string()]);
        words
    }

    pub fn start(&self, site: &Site) -> Child {
        let words = self.words(site, "127.0.0.1");
        Command::new(&words[0]).args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap()
    }

    /// Runs it to its end. Returns the bytes that the client counted.
    fn run(&self, site: &Site) -> u64 {
        ended(self.start(site))
    }
}

fn ended(load: Child) -> u64 {
    let out = load.wait_with_output().unwrap();
    assert!(out.status.success());
    String::from_utf8(out.stdout).unwrap().trim().parse().unwrap()
}

fn get(site: &Site, path: &str) -> Value {
    let (code, body) = site.http().get(path);
    assert_eq!(code, 200, "{path}: {body}");
    serde_json::from_str(&body).unwrap()
}

/// Sums of the series over a time, each rate times the length of its interval.
struct Reading(BTreeMap<String, f64>);

impl Reading {
    /// From after `from_ms` to now, once nothing is dirty and a second has passed.
    fn since(site: &Site, from_ms: u64) -> Reading {
        until(|| (number(&site.sample()["txg"], "dirty_bytes") == 0).then_some(()));
        let still_ms = number(&site.sample(), "time_ms");
        until(|| {
            let history = get(site, "/api/v1/pools/tank/history?resolution=second");
            let times: Vec<u64> = history["time_ms"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap()).collect();
            if times.last() < Some(&still_ms) {
                return None;
            }
            let names = get(site, "/api/v1/series");
            let sum = |column: &Value| {
                let all = times.iter().zip(&times[1..]).zip(&column.as_array().unwrap()[1..]);
                let wanted = all.filter(|((_, time), _)| **time > from_ms);
                wanted
                    .map(|((before, time), rate)| rate.as_f64().unwrap_or(0.0) * (time - before) as f64 / 1000.0)
                    .sum()
            };
            let columns = names.as_array().unwrap().iter().zip(history["values"].as_array().unwrap());
            Some(Reading(
                columns.map(|(name, column)| (name["name"].as_str().unwrap().to_owned(), sum(column))).collect(),
            ))
        })
    }

    fn of(&self, name: &str) -> f64 {
        *self.0.get(name).unwrap_or_else(|| panic!("no series {name}"))
    }
}

/// The time of the last sample, after at least one of the history. A server that has just begun does not know the pool yet.
fn now(site: &Site) -> u64 {
    until(|| {
        let (_, body) = site.http().get("/api/v1/pools/tank/history?resolution=second");
        let history: Value = serde_json::from_str(&body).unwrap();
        history["time_ms"].as_array()?.last()?.as_u64()
    })
}

fn near(one: f64, other: f64, share: f64) -> bool {
    (one - other).abs() <= share * other.abs()
}

const INSIDE: &str = "WEIR_SEEDS_NAMESPACE";

/// S1: bytes of the network with headers above the data of clients, and the devices below. The counters are those of the kernel.
#[test]
fn s1_the_network_beside_the_devices() {
    if std::env::var_os(INSIDE).is_some() {
        return inside();
    }
    in_namespace(INSIDE, "seeds::s1_the_network_beside_the_devices", &["ip", "nsenter", "python3"]);
}

fn inside() {
    let client = Client::new();
    let volume = ["-V", "32M", "-o", "compression=off", "-o", "primarycache=metadata", "tank/vol"];
    let site = Site::of(&["mirror"], 2, &volume, &["--listen", SERVER, "--rw", "10.9.1.0/24"]);
    let load = |kind: &str| {
        let load = Load { kind, own: "10.9.1.2", ..READER };
        let words = load.words(&site, SERVER);
        assert!(client.run(&words.iter().map(String::as_str).collect::<Vec<_>>()));
        (load.size * load.count) as f64
    };
    let from_ms = now(&site);
    let written = load("write");
    let writing = Reading::since(&site, from_ms);
    assert!(near(writing.of("net.payload_received"), written, 0.02), "{:?} of {written}", writing.0);
    let ratio = writing.of("net.received") / written;
    assert!((1.0..1.2).contains(&ratio), "with headers: {ratio} of {written} bytes");
    assert!(writing.of("devices.written") >= 2.0 * written, "a mirror writes twice: {:?}", writing.0);

    let from_ms = now(&site);
    let read = load("read");
    let reading = Reading::since(&site, from_ms);
    assert!(near(reading.of("net.payload_sent"), read, 0.02), "{:?} of {read}", reading.0);
    let [network, devices] = ["net.sent", "devices.read"].map(|series| reading.of(series) / read);
    assert!((1.0..1.2).contains(&network), "with headers: {network} of {read} bytes");
    assert!(devices >= 0.95, "without data in the ARC, the devices are read: {devices}");
    println!("S1: network {network:.3}, devices {devices:.3} of the data");

    // Nothing else uses this interface, and it is still.
    let srv = |sample: &Value| {
        let all = sample["host"]["interfaces"].as_array().unwrap();
        all.iter().find(|one| one["name"] == "srv").unwrap().clone()
    };
    let text = std::fs::read_to_string("/proc/net/dev").unwrap();
    let line = text.lines().find_map(|line| line.trim().strip_prefix("srv:")).unwrap();
    let kernel: Vec<u64> = line.split_whitespace().map(|n| n.parse().unwrap()).collect();
    let shown = srv(&site.sample());
    for (name, kernel) in [("received_bytes", kernel[0]), ("sent_bytes", kernel[8])] {
        assert!(near(number(&shown, name) as f64, kernel as f64, 0.02), "{kernel}: {shown}");
    }
    assert_eq!(shown["has_clients"], true);
}

fn amplification(layout: &str, disks: usize) -> (Reading, f64) {
    let volume = ["-V", "32M", "-o", "compression=off", "-o", "volblocksize=16K", "tank/vol"];
    let site = Site::of(&[layout], disks, &volume, &[]);
    let from_ms = now(&site);
    let written = Load { kind: "write", size: 32 << 10, count: 512, ..READER }.run(&site) as f64;
    (Reading::since(&site, from_ms), written)
}

/// S3 and S4: bytes on devices for each byte that clients wrote, with its parts, which make up the whole.
#[test]
fn s3_and_s4_amplification_with_its_parts() {
    if !has("python3") {
        return println!("skipped: python3 is not installed");
    }
    let parts = |reading: &Reading| {
        let redundancy = ["first_copy", "copies", "parity", "padding"].map(|part| format!("data.{part}"));
        let others = ["metadata", "intent_log", "labels"].map(str::to_owned);
        let all = redundancy.into_iter().chain(others);
        all.map(|part| reading.of(&format!("devices.written.{part}"))).collect::<Vec<f64>>()
    };
    let (mirror, written) = amplification("mirror", 2);
    let (raidz, _) = amplification("raidz2", 6);
    for (name, reading) in [("S3, mirror", &mirror), ("S4, RAID-Z2 of six", &raidz)] {
        let parts = parts(reading);
        assert!(near(reading.of("written"), written, 0.02), "{name}: {:?}", reading.0);
        assert!(near(parts.iter().sum(), reading.of("devices.written"), 0.02), "{name}: {parts:?}");
        assert!(near(parts[0], written, 0.05), "{name}: the first copy of what was written: {parts:?}");
        let shares: Vec<String> = parts.iter().map(|part| format!("{:.3}", part / written)).collect();
        println!(
            "{name}: {:.2} bytes for each of clients: {}",
            reading.of("devices.written") / written,
            shares.join(" + ")
        );
    }
    let [of_mirror, of_raidz] = [parts(&mirror), parts(&raidz)];
    assert!(near(of_mirror[1], of_mirror[0], 0.02) && of_mirror[2] == 0.0, "{of_mirror:?}");
    // Four of six columns are data.
    assert!(near(of_raidz[2], of_raidz[0] / 2.0, 0.02) && of_raidz[1] == 0.0, "{of_raidz:?}");
    assert!(of_mirror[4] > 0.0 && of_raidz[4] > 0.0, "metadata");
}

/// N5: each of six users has a rate of its own, and each byte of a user is in one second.
#[test]
fn n5_rates_per_client() {
    if !has("python3") {
        return println!("skipped: python3 is not installed");
    }
    let site = Site::new();
    let mut live = site.http().open("/api/v1/live");
    live.event().unwrap();
    let names: Vec<String> = (1..=6).map(|n| format!("127.0.0.1{n}")).collect();
    // The sixth reads six times as much in the same time as the first.
    let loads = names.iter().zip(1..).map(|(own, n)| Load { own, count: 40 * n, wait_s: 0.1 / n as f64, ..READER });
    let running: Vec<Child> = loads.map(|load| load.start(&site)).collect();
    let counted: Vec<u64> = running.into_iter().map(ended).collect();
    let mut seen: BTreeMap<String, Vec<(u64, f64)>> = BTreeMap::new();
    until(|| {
        let seconds: Value = serde_json::from_str(&live.event()?).unwrap();
        for second in seconds.as_array().unwrap() {
            for row in second["clients"].as_array().unwrap().iter().filter(|row| row["protocol"] == "nbd") {
                let of = seen.entry(row["client"].as_str().unwrap().to_owned()).or_default();
                of.push((number(row, "read_bytes"), second["seconds"].as_f64().unwrap()));
            }
        }
        let sums: Vec<u64> =
            names.iter().map(|name| seen.get(name).map_or(0, |all| all.iter().map(|one| one.0).sum())).collect();
        (sums == counted).then_some(())
    });
    assert_eq!(seen.len(), 6, "{seen:?}");
    let rate = |name: &String| {
        let all = &seen[name];
        all.iter().map(|one| one.0).sum::<u64>() as f64 / all.iter().map(|one| one.1).sum::<f64>()
    };
    let rates: Vec<f64> = names.iter().map(rate).collect();
    assert!(rates.is_sorted() && rates[5] > 2.0 * rates[0], "{rates:?}");
    println!("N5: {:?} kB/s", rates.iter().map(|rate| (rate / 1000.0).round()).collect::<Vec<_>>());
}

/// G2: a load that pauses at equal times has the period of its dips.
#[test]
fn g2_a_dip_that_repeats_has_its_period() {
    if !has("python3") {
        return println!("skipped: python3 is not installed");
    }
    let site = Site::new();
    let from_ms = now(&site);
    // Four seconds of load, then two without.
    let mut load = Load { size: 64 << 10, count: 2000, wait_s: 0.04, pauses: (100, 2.0), ..READER }.start(&site);
    let started = Instant::now();
    let found = loop {
        let dips = get(&site, &format!("/api/v1/pools/tank/dips?resolution=second&from={from_ms}"));
        let read = dips.as_array().unwrap().iter().find(|one| one["series"] == "read").unwrap().clone();
        if read["period_ms"].is_u64() {
            break read;
        }
        assert!(started.elapsed() < Duration::from_secs(110), "no period: {dips}");
        std::thread::sleep(Duration::from_secs(1));
    };
    let _gone = load.kill();
    let _code = load.wait();
    let period = number(&found, "period_ms");
    println!("G2: a dip every {period} ms: {} of them", found["dips"].as_array().unwrap().len());
    assert!(period.abs_diff(6000) < 600, "{found}");
    let dips = found["dips"].as_array().unwrap();
    assert!(dips.len() >= 5 && dips.iter().all(|dip| dip["least"].as_f64() < found["median"].as_f64()), "{found}");
}

/// A17: processor time of a byte that is written, without and with dedup.
#[test]
fn a17_the_processor_cost_of_dedup() {
    if !has("nbdcopy") {
        return println!("skipped: nbdcopy is not installed");
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    std::fs::write(file.path(), (0..16 << 20).map(|_| random()).collect::<Vec<u8>>()).unwrap();
    let cost = |dedup: &str| {
        let option = format!("dedup={dedup}");
        let volume = ["-V", "32M", "-o", "compression=off", "-o", "volblocksize=4K", "-o", &option, "tank/vol"];
        let site = Site::of(&[], 1, &volume, &[]);
        let from_ms = now(&site);
        assert!(run("nbdcopy", &["--flush", file.path().to_str().unwrap(), &site.said("nbd://")]));
        let reading = Reading::since(&site, from_ms);
        assert!(near(reading.of("written"), f64::from(16 << 20), 0.02), "{:?}", reading.0);
        reading.of("process.processors") / reading.of("written")
    };
    // Other programs on the machine raise the processor time of a byte: the test compares the least of up to three rounds.
    let mut plain = f64::MAX;
    let mut dedup = f64::MAX;
    for _ in 0..3 {
        plain = plain.min(cost("off"));
        dedup = dedup.min(cost("on"));
        if dedup > 1.1 * plain {
            break;
        }
    }
    println!(
        "A17: {:.1} and {:.1} ns of a processor for each byte: {:.2} times",
        1e9 * plain,
        1e9 * dedup,
        dedup / plain
    );
    assert!(dedup > 1.1 * plain, "{plain} {dedup}");
}

/// N14: what a synchronous write waits for is the intent log, and that is the difference to one that is not.
#[test]
fn n14_the_price_of_sync() {
    if !has("python3") {
        return println!("skipped: python3 is not installed");
    }
    const COUNT: u64 = 300;
    let site = Site::new();
    let mean = |sync: &str| {
        site.ok(&["zfs", "set", &format!("sync={sync}"), "tank/vol"]);
        let from_ms = now(&site);
        Load { kind: "write", size: 4096, count: COUNT, ..READER }.run(&site);
        let reading = Reading::since(&site, from_ms);
        assert!(near(reading.of("requests"), COUNT as f64, 0.05), "{:?}", reading.0);
        ["requests.time", "stage.log_commit"].map(|series| reading.of(series) / COUNT as f64)
    };
    let [disabled, no_commit] = mean("disabled");
    let [always, commit] = mean("always");
    println!(
        "N14: {:.0} and {:.0} us for a write, {:.0} us of them log commit",
        1e6 * disabled,
        1e6 * always,
        1e6 * commit
    );
    assert_eq!(no_commit, 0.0);
    assert!(always > disabled && commit > 0.0);
    // The machine may be busier in one of the two times.
    let explained = commit / (always - disabled);
    assert!((0.3..2.5).contains(&explained), "{explained} of the difference");
}
