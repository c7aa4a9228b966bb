//! Upper bounds of a run, measured before it: the client itself, memory, the disks below the target, and the link.

use crate::clock::Stopwatch;
use crate::environment::{Disk, facts, mount_of};
use crate::error::LabError;
use crate::fio::{Fio, Monitor};
use crate::load::{Engine, Load, Stability};
use crate::plan::{Plan, StepLoad, StepPlan};
use crate::result::{Ceiling, Round};
use crate::target::{Target, is_local_nbd};
use crate::text;
use std::path::Path;

/// Seconds of each measurement.
const SECONDS: u64 = 1;

/// Number of copies of memory.
const MEMORY_COPIES: usize = 8;

/// Most block sizes for which the client is measured.
const MAX_CLIENT_LOADS: usize = 4;

/// Kinds of file systems whose data crosses a network.
const NETWORK_KINDS: [&str; 5] = ["nfs", "nfs4", "cifs", "smb3", "9p"];

/// Measures the ceilings for the steps of a plan; `None` if the monitor stopped it. Ceilings that cannot be measured, such as those of
/// a disk that may not be read, are absent.
///
/// # Errors
/// If fio fails.
pub fn measure(
    plan: &Plan,
    target: &Target,
    disk: Option<&Disk>,
    version: &str,
    folder: &Path,
    monitor: &mut dyn Monitor,
) -> Result<Option<Vec<Ceiling>>, LabError> {
    let Some(mut found) = clients(plan, target, version, folder, monitor)? else { return Ok(None) };
    if plan.steps.iter().any(|step| matches!(step.load, StepLoad::Fio(_))) {
        found.push(memory());
    }
    let Some(disk) = disk.filter(|_| plan.steps.iter().any(|step| step.claims_disks)) else { return Ok(Some(found)) };
    let raw = Target::Device(disk.path());
    // Only root may read a disk; without it the ceiling stays unknown.
    let Ok(fio) = Fio::find(&raw) else { return Ok(Some(found)) };
    let size_bytes = raw.room_bytes().ok().flatten().unwrap_or_default();
    for (load, what) in
        [(Load::sequential(1 << 20, 100), "sequential read"), (Load::random(4096, 100), "random read 4K")]
    {
        let depth = if load.random_percent > 0 { 32 } else { 8 };
        let load = Load { depth, size_bytes, seconds: SECONDS, ..load };
        let source = format!("raw reads of /dev/{} at depth {depth}, before the run", disk.name);
        let Some(round) = fio.run("ceiling disk", &load, &raw, folder, monitor)? else { return Ok(None) };
        found.push(ceiling("disk", what, &round, &source));
    }
    Ok(Some(found))
}

/// Ceilings of the client; `None` if the monitor stopped it.
fn clients(
    plan: &Plan,
    target: &Target,
    version: &str,
    folder: &Path,
    monitor: &mut dyn Monitor,
) -> Result<Option<Vec<Ceiling>>, LabError> {
    let mut found = Vec::new();
    for load in client_loads(plan) {
        let (round, source) = match target.carrier() {
            Some(carrier) if !carrier.has_ceiling() => continue,
            Some(carrier) => (carrier.ceiling(&load, monitor)?, carrier.ceiling_source()),
            None => {
                let (version, engine) = (version.to_owned(), Engine::Null);
                let fio = Fio { version, engine, is_direct: false, stability: Stability::Dsync };
                let source = "fio's engine null: the same load without any I/O";
                (fio.run("ceiling client", &load, target, folder, monitor)?, source)
            }
        };
        let Some(round) = round else { return Ok(None) };
        found.push(ceiling("client", &client_load(load.largest_block(), load.writes()), &round, source));
    }
    Ok(Some(found))
}

/// The load that a ceiling of the client is for: its block size and direction.
#[must_use]
pub fn client_load(block_bytes: u64, writes: bool) -> String {
    format!("{} {}", text::block(block_bytes), if writes { "write" } else { "read" })
}

/// Ceilings that need no measurement: the links to a target behind a network.
#[must_use]
pub fn links(target: &Target) -> Vec<Ceiling> {
    let is_remote = match target {
        Target::Nbd(uri) => !is_local_nbd(uri),
        Target::Network(network) => !network.is_local(),
        _ => target.path().and_then(mount_of).is_some_and(|mount| NETWORK_KINDS.contains(&mount.kind.as_str())),
    };
    if !is_remote {
        return Vec::new();
    }
    let facts = facts(target);
    let speeds = facts.iter().filter_map(|(key, value)| {
        Some((key.strip_prefix("link.")?.strip_suffix(".mbit_per_s")?, value.parse().ok()?))
    });
    speeds
        .map(|(name, mbit): (&str, f64)| {
            let mtu = facts.get(&format!("link.{name}.mtu")).and_then(|mtu| mtu.parse().ok()).unwrap_or(1500.0);
            // A frame of Ethernet has 38 bytes around its payload (preamble, header, sum, gap), IP and TCP with time stamps have 52 within it.
            let payload = (mtu - 52.0) / (mtu + 38.0);
            Ceiling {
                part: "link".to_owned(),
                load: String::new(),
                bytes_per_s: Some(mbit * 125_000.0 * payload),
                operations_per_s: None,
                source: format!("{name}: {mbit} Mbit/s, MTU {mtu}, less the headers of Ethernet, IP and TCP"),
            }
        })
        .collect()
}

fn ceiling(part: &str, load: &str, round: &Round, source: &str) -> Ceiling {
    Ceiling {
        part: part.to_owned(),
        load: load.to_owned(),
        bytes_per_s: Some(round.bytes_per_s()),
        operations_per_s: Some(round.operations_per_s()),
        source: source.to_owned(),
    }
}

/// The loads with the most operations in flight, one for each block size and direction.
fn client_loads(plan: &Plan) -> Vec<Load> {
    let mut loads: Vec<Load> = Vec::new();
    for step in &plan.steps {
        let StepLoad::Fio(load) = &step.load else { continue };
        let load = Load {
            seconds: SECONDS,
            ramp_seconds: 0,
            sync: false,
            size_bytes: load.size_bytes.max(1 << 30),
            ..load.clone()
        };
        let same = loads
            .iter()
            .position(|have| have.largest_block() == load.largest_block() && have.writes() == load.writes());
        match same {
            Some(place) if loads[place].depth * loads[place].workers < load.depth * load.workers => loads[place] = load,
            Some(_) => {}
            None if loads.len() < MAX_CLIENT_LOADS => loads.push(load),
            None => {}
        }
    }
    loads
}

/// Copies memory on one processor; the fastest of some copies counts, since other work of the machine makes them slower only.
fn memory() -> Ceiling {
    let source = vec![1_u8; 64 << 20];
    let mut copy = vec![0_u8; source.len()];
    // The first copy maps the pages.
    copy.copy_from_slice(&source);
    let mut seconds = f64::INFINITY;
    for _ in 0..MEMORY_COPIES {
        let watch = Stopwatch::start();
        copy.copy_from_slice(std::hint::black_box(&source));
        std::hint::black_box(&mut copy);
        seconds = seconds.min(watch.seconds());
    }
    Ceiling {
        part: "memory".to_owned(),
        load: String::new(),
        bytes_per_s: Some(source.len() as f64 / seconds.max(1e-9)),
        operations_per_s: None,
        source: format!("64 MiB copied on one processor, the fastest of {MEMORY_COPIES} times"),
    }
}

/// The rate that rules of thumb for kinds of disks give for a step; `None` if the kind of the target's disk is unknown.
#[must_use]
pub fn rule_of_thumb(step: &StepPlan, disk: Option<&Disk>) -> Option<String> {
    let StepLoad::Fio(load) = &step.load else { return None };
    let disk = disk?;
    // A virtual disk says that it rotates, whatever is below it.
    if !["sd", "nvme"].iter().any(|kind| disk.name.starts_with(kind)) {
        return None;
    }
    let is_random = load.random_percent > 0;
    let text = match (disk.is_rotational()?, disk.name.starts_with("nvme"), is_random) {
        (true, _, true) => "100 to 200 operations a second for a disk of 7,200 rpm",
        (true, _, false) => "200 to 300 MB/s on the outer tracks of a disk of 7,200 rpm, 50 to 80 MB/s if fragmented",
        (false, true, true) => "about 100,000 operations a second for NVMe",
        (false, false, true) => "5,000 (desktop) to 80,000 (enterprise) operations a second, sustained, for a SATA SSD",
        (false, ..) => return None,
    };
    Some(text.to_owned())
}
