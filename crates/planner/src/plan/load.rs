//! The load of a description, simulated: memory and files at a scale that this machine can hold.
//!
//! Terabytes of memory and files cannot be simulated, but hits depend on their ratio: both are divided by the same number. Dirty data is
//! limited separately, because short txgs cost more flushes for each byte. What was changed is part of the result.

use super::PlanError;
use super::description::Description;
use crate::hardware::drive::DriveSpec;
use crate::simulate::outcome::Outcome;
use crate::simulate::server::{PoolSpec, ServerSpec};
use crate::simulate::simulate;
use crate::simulate::workload::{Order, Workload};
use serde::Serialize;

const MIB: u64 = 1 << 20;
/// Bytes of the ARC in a simulation, at most and at least.
const ARC_BYTES: (u64, u64) = (256 * MIB, 16 * MIB);
/// Bytes of the cache device in a simulation at least: labels and a ring.
const CACHE_BYTES: u64 = 32 * MIB;
/// Bytes of dirty data in a simulation at most, if the files are scaled or parts of records are written, which are copied.
const DIRTY_BYTES: u64 = 256 * MIB;
/// Seconds of writing to all drives that the dirty data of other simulations may hold: a measurement has several txgs.
const DIRTY_SECONDS: f64 = 2.0;
/// Bytes of all files of a simulation at most.
const FILES_BYTES: u64 = 1024 * MIB;
/// Operations of a measurement at most, by an estimate of their rate.
const OPERATIONS: f64 = 150_000.0;
/// Operations of a file at least, so that random ones do not repeat the same few.
const OPERATIONS_OF_A_FILE: u64 = 16;
/// Shortest measurement in seconds.
const SHORTEST: f64 = 0.02;

/// A simulated load, and how the simulation differs from the description.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// The result.
    pub outcome: Outcome,
    /// ARC and files are divided by this number.
    pub scale: u64,
    /// ARC, dirty data and files of the simulation, in bytes.
    pub simulated_bytes: [u64; 3],
}

/// Upper bound of the bytes per second that the hardware could carry for a load.
fn rate_bound(spec: &ServerSpec, load: &Workload) -> f64 {
    let drives = (spec.pool.vdevs * spec.pool.layout.disks()) as f64;
    let media = drives * spec.pool.drive.read_rate();
    let processors = spec.processors as f64 * 1e9 / spec.costs.copy_ns_per_kib.max(1.0) * 1024.0;
    let link = spec.link.map_or(f64::MAX, |link| link.payload_rate(load.operation_bytes) * 2.0);
    let cached = load.reads() && spec.arc_bytes >= load.working_set_bytes();
    let source = if cached { processors } else { media.min(processors) };
    source.min(link)
}

/// Upper bound of the operations per second.
fn operations_bound(spec: &ServerSpec, load: &Workload) -> f64 {
    let by_rate = rate_bound(spec, load) / load.operation_bytes as f64;
    let processors = spec.processors as f64 * 1e9 / spec.costs.request_ns.max(1.0);
    let cached = load.reads() && spec.arc_bytes >= load.working_set_bytes();
    let at_once = match &spec.pool.drive {
        // A full queue shortens seeks and rotation to about a third.
        DriveSpec::Rotating(_) => 3.0,
        DriveSpec::Flash(flash) => f64::from(flash.channels),
    };
    let drives = (spec.pool.vdevs * spec.pool.layout.disks()) as f64;
    let positioned = load.order == Order::Random && load.read_percent == 100 && !cached;
    let media = if positioned { drives * spec.pool.drive.read_iops() * at_once } else { f64::MAX };
    by_rate.min(processors).min(media).min(paced(load))
}

/// Operations per second of clients that wait between an answer and the next request, if the server took no time.
fn paced(load: &Workload) -> f64 {
    let outstanding = (load.clients * load.threads * load.depth) as f64;
    if load.client_us > 0.0 { outstanding * 1e6 / load.client_us } else { f64::MAX }
}

/// The part of an ARC that can change a load on files of `files_bytes`: more than these with their metadata is of no use.
fn useful_arc_bytes(arc_bytes: u64, files_bytes: u64) -> u64 {
    arc_bytes.min(files_bytes.saturating_mul(2))
}

/// The number by which ARC and files are divided.
fn scale(arc_bytes: u64, files_bytes: u64, load: &Workload, pool: &PoolSpec) -> u64 {
    if !load.reads_records(pool.record_bytes) {
        return 1;
    }
    useful_arc_bytes(arc_bytes, files_bytes).div_ceil(ARC_BYTES.0).max(files_bytes.div_ceil(FILES_BYTES)).max(1)
}

/// Bytes of dirty data in a simulation at most.
fn most_dirty_bytes(pool: &PoolSpec, operation_bytes: u64, scale: u64) -> u64 {
    if scale > 1 || !operation_bytes.is_multiple_of(pool.record_bytes) {
        return DIRTY_BYTES;
    }
    let drives = (pool.vdevs * pool.layout.data_disks()) as f64;
    let written = drives * pool.drive.sustained_write_rate_at(pool.fill) * DIRTY_SECONDS;
    DIRTY_BYTES.max(written as u64)
}

/// The server and the load of a simulation of at most `seconds` virtual seconds, and the scale.
///
/// # Errors
/// [`PlanError::Value`].
pub fn specs(description: &Description, seconds: f64) -> Result<(ServerSpec, Workload, u64), PlanError> {
    let section = &description.workload;
    let mut pool = description.pool_spec()?;
    let operation_bytes = (section.operation_kib * 1024.0) as u64;
    let mut load = Workload {
        clients: section.clients,
        threads: section.threads,
        depth: section.depth,
        operation_bytes,
        read_percent: section.read_percent,
        order: description.order()?,
        file_bytes: (section.file_mib * MIB as f64) as u64,
        stable: section.stable,
        volume: section.volume,
        warm: true,
        client_gbit: section.client_gbit,
        client_us: section.client_us,
        ..Workload::sequential_read()
    };
    let arc_bytes = description.arc_bytes();
    let scale = scale(arc_bytes, load.working_set_bytes(), &load, &pool);
    let useful = useful_arc_bytes(arc_bytes, load.working_set_bytes());
    let least = load.file_bytes.min(operation_bytes * OPERATIONS_OF_A_FILE);
    load.file_bytes = (load.file_bytes / scale).max(least) / operation_bytes * operation_bytes;
    if let Some(cache) = &mut pool.cache {
        cache.bytes = (cache.bytes / scale).max(CACHE_BYTES);
    }
    let dirty_bytes = description.dirty_bytes().min(most_dirty_bytes(&pool, operation_bytes, scale));
    let server = ServerSpec {
        pool,
        arc_bytes: (useful / scale).clamp(ARC_BYTES.1, ARC_BYTES.0),
        dirty_bytes,
        processors: description.server.processors,
        write_processors: None,
        clients_first: false,
        costs: description.costs,
        link: description.link,
    };
    let length = seconds.min(OPERATIONS / operations_bound(&server, &load).max(1.0));
    load.seconds = length.max(SHORTEST);
    load.ramp_seconds = load.seconds / 2.0;
    Ok((server, load, scale))
}

/// Simulates the load of a description for at most `seconds` virtual seconds.
///
/// # Errors
/// [`PlanError`]: the description, or the engine on the modelled drives.
pub fn predict(description: &Description, seed: u64, seconds: f64) -> Result<Prediction, PlanError> {
    let (server, load, scale) = specs(description, seconds)?;
    let usable = super::capacity::computed(&server.pool).computed_bytes;
    let wanted = description.working_set_bytes();
    if wanted > usable {
        let why = format!("the files need {} GB, and the pool has {}", wanted / 1_000_000_000, usable / 1_000_000_000);
        return Err(PlanError::Value { key: "workload.file_mib".into(), why });
    }
    let outcome = simulate(seed, &server, &load)?;
    let simulated_bytes = [server.arc_bytes, server.dirty_bytes, load.working_set_bytes()];
    Ok(Prediction { outcome, scale, simulated_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(workload: &str, memory_gb: u64) -> Description {
        let pool = "[pool]\ndrive = \"hdd-7k\"\ndrive_tb = 10\nlayout = \"raidz2\"\nwidth = 6\n";
        Description::parse(&format!("{pool}[server]\nmemory_gb = {memory_gb}\n[workload]\n{workload}")).unwrap()
    }

    #[test]
    fn the_scale_keeps_the_ratio_of_memory_and_files() {
        let (server, load, scale) = specs(&described("file_mib = 100000\norder = \"random\"", 34), 5.0).unwrap();
        let ratio = server.arc_bytes as f64 / load.working_set_bytes() as f64;
        let wanted = 32e9 / (100_000.0 * 1048576.0);
        assert!((ratio / wanted - 1.0).abs() < 0.01, "{ratio} {wanted} {scale}");
        assert!(server.arc_bytes <= ARC_BYTES.0 && load.working_set_bytes() <= FILES_BYTES, "{server:?} {load:?}");
    }

    #[test]
    fn a_cache_device_is_divided_as_the_files() {
        let pool = "[pool]\ndrive = \"hdd-7k\"\ndrive_tb = 1\nlayout = \"mirror\"\ncache_gb = 8\n";
        let load = "[workload]\nfile_mib = 4000\norder = \"random\"";
        let description = Description::parse(&format!("{pool}{load}")).unwrap();
        let (server, _, scale) = specs(&description, 0.2).unwrap();
        assert_eq!((server.pool.cache.unwrap().bytes, scale > 1), (8_000_000_000 / scale, true));
    }

    #[test]
    fn files_that_fit_into_memory_fit_into_the_simulated_memory() {
        let (server, load, scale) = specs(&described("file_mib = 4000", 34), 5.0).unwrap();
        assert!(scale > 1 && server.arc_bytes > load.working_set_bytes() * 5 / 4, "{server:?} {load:?}");
    }

    #[test]
    fn clients_that_wait_are_simulated_for_long_enough() {
        let load =
            "read_percent = 70\norder = \"random\"\noperation_kib = 16\nfile_mib = 100\ndepth = 4\nclient_us = 24000";
        let (_, load, _) = specs(&described(load, 34), 13.0).unwrap();
        let operations = load.seconds * paced(&load);
        assert!(operations > 1000.0, "{operations} in {} s", load.seconds);
    }

    #[test]
    fn writes_to_raidz_are_simulated_for_several_txgs() {
        let (server, load, scale) = specs(&described("file_mib = 100000\nread_percent = 0", 64), 5.0).unwrap();
        assert_eq!((scale, load.seconds), (1, 5.0));
        // A sync begins at a fifth of the dirty data.
        let txgs = rate_bound(&server, &load) * load.seconds / (server.dirty_bytes as f64 / 5.0);
        assert!(server.dirty_bytes > DIRTY_BYTES && txgs > 5.0, "{txgs} of {}", server.dirty_bytes);
        let mixed = described("file_mib = 100000\nread_percent = 70\norder = \"random\"", 64);
        let (server, load, scale) = specs(&mixed, 5.0).unwrap();
        assert!(scale > 1 && load.seconds >= 5.0 && server.dirty_bytes == DIRTY_BYTES, "{scale} {load:?}");
    }
}
