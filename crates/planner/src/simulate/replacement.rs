//! A drive of a modelled pool fails, and a new one takes its place: how fast the resilver fills it, what a load loses meanwhile, and
//! how good the time left is that the pool states.

use super::outcome::Outcome;
use super::prepare::{fill, make_target, open_target};
use super::server::{POOL, Server, ServerSpec, disk_path};
use super::workload::Workload;
use super::{SimulationError, check, measure, new_server};
use crate::hardware::disk::ModelDisk;
use futures_util::future::join;
use std::sync::Arc;
use weir_engine::scrub::ScanLimits;
use weir_engine::{AttachRequest, Engine, NewLeaf, OfflineMode};
use weir_machine::Request;
use weir_pool::{PoolError, VdevConfig};
use weir_sim::Rng;

/// State of a resilver at a record of its progress.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record {
    /// Virtual seconds since the new drive was attached.
    pub seconds: f64,
    /// Share of the allocated bytes that the resilver has gone over, from 0 to 1.
    pub examined_share: f64,
    /// The stated time left in seconds; `None` before a rate is known.
    pub left_s: Option<u64>,
}

/// Outcomes of a load on a pool of which a drive is replaced.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadOutcomes {
    /// With all drives.
    pub healthy: Outcome,
    /// Without the drive that failed.
    pub degraded: Outcome,
    /// During the resilver of the new drive.
    pub resilvering: Outcome,
}

/// The result of a simulated replacement.
#[derive(Clone, Debug, PartialEq)]
pub struct Replacement {
    /// Bytes that were written to the new drive.
    pub written_bytes: u64,
    /// Seconds that the new drive would have taken to write the same bytes at the same places at its sequential rate.
    pub sequential_seconds: f64,
    /// Virtual seconds from the attachment of the new drive to the end of the resilver.
    pub seconds: f64,
    /// The records in their order.
    pub records: Vec<Record>,
    /// The load, if there is one.
    pub load: Option<LoadOutcomes>,
}

/// Fills the pool with the files of `workload`, takes its last drive out of service, and replaces it by a blank one. With `with_load`,
/// the workload also runs before the failure, after it, and from the beginning of the resilver on.
///
/// # Errors
/// [`SimulationError::Refused`]: the layout has no redundancy, the description cannot be simulated, or the resilver ended before the
/// load; errors of the engine.
pub fn simulate_replacement(
    seed: u64,
    spec: &ServerSpec,
    workload: &Workload,
    with_load: bool,
) -> Result<Replacement, SimulationError> {
    check(spec, workload)?;
    if spec.pool.layout.redundancy() == 0 {
        return Err(SimulationError::Refused("a drive without redundancy cannot be replaced".into()));
    }
    let (server, rng) = new_server(seed, spec);
    let world = server.world.clone();
    let done = world.run(run(server, workload.clone(), with_load, rng));
    // Tasks of the engine hold the world, which holds them: they are dropped here.
    world.power_failure();
    done?
}

async fn run(
    server: Arc<Server>,
    workload: Workload,
    with_load: bool,
    mut rng: Rng,
) -> Result<Replacement, SimulationError> {
    let payload = server.work.payload.bytes().clone();
    let rq = Request::internal("prepare");
    let engine = server.create_pool().await?;
    let target = make_target(&engine, &rq, &server.spec, &workload).await?;
    fill(&target, &workload, &server.spec, &payload).await?;
    drop(target);
    engine.sync().await?;
    let engine = server.reopen(engine).await?;
    let load = async |rng| {
        let target = open_target(&engine, &rq, &workload).await?;
        measure(server.clone(), target, workload.clone(), payload.clone(), rng).await
    };
    let mut before = None;
    let healthy = if with_load { Some(load(rng.fork()).await?) } else { None };
    let failed = take_out_last_drive(&server, &engine).await?;
    if let Some(healthy) = healthy {
        before = Some((healthy, load(rng.fork()).await?));
    }
    let timer = server.world.timer();
    let begun_ns = timer.now_ns();
    let new = attach_blank_drive(&server, &engine, failed).await?;
    let since = || (timer.now_ns() - begun_ns) as f64 / 1e9;
    let resilver = async {
        let records = resilver(&engine, &since).await;
        (records, since())
    };
    let during = async {
        match &before {
            Some(_) => load(rng.fork()).await.map(|outcome| Some((outcome, since()))),
            None => Ok(None),
        }
    };
    let ((records, seconds), during) = join(resilver, during).await;
    let records = records?;
    let during = during?;
    if during.as_ref().is_some_and(|(_, end)| *end > seconds) {
        return Err(SimulationError::Refused("the resilver ended before the load".into()));
    }
    let load = before.zip(during).map(|((healthy, degraded), (resilvering, _))| LoadOutcomes {
        healthy,
        degraded,
        resilvering,
    });
    let written_bytes = new.counters().written_bytes;
    let sequential_seconds = new.sequential_write_ns() / 1e9;
    Ok(Replacement { written_bytes, sequential_seconds, seconds, records, load })
}

fn last_drive(server: &Server) -> usize {
    server.spec.pool.layout.disks() * server.spec.pool.vdevs - 1
}

/// Takes the last drive out of service. Returns its GUID.
async fn take_out_last_drive(server: &Server, engine: &Arc<Engine>) -> Result<u64, SimulationError> {
    let device = guid_of(engine, last_drive(server))?;
    engine.vdevs().offline(device, OfflineMode::Kept).await?;
    Ok(device)
}

/// Attaches a blank drive in the place of a device.
async fn attach_blank_drive(
    server: &Server,
    engine: &Arc<Engine>,
    device: u64,
) -> Result<Arc<ModelDisk>, SimulationError> {
    let (path, disk) = server.add_blank_drive(last_drive(server) + 1);
    let new = NewLeaf { path, is_file: true };
    engine.vdevs().attach(&AttachRequest { device, new, replaces: true, ashift: None, force: true }).await?;
    Ok(disk)
}

async fn resilver(engine: &Arc<Engine>, since: &(impl Fn() -> f64 + Sync)) -> Result<Vec<Record>, SimulationError> {
    let mut records = Vec::new();
    engine.scrubs().start_resilver_if_needed().await?;
    let mut note = |progress: &weir_engine::scrub::Progress| {
        let examined_share = progress.scan.examined_bytes as f64 / progress.scan.to_examine_bytes.max(1) as f64;
        records.push(Record { seconds: since(), examined_share, left_s: progress.left_s });
        true
    };
    let scan = engine.scrubs().run(&ScanLimits::default(), &mut note).await?;
    if !scan.is_some_and(|scan| scan.is_resilver() && scan.is_finished()) {
        return Err(SimulationError::Refused("the simulated resilver did not end".into()));
    }
    Ok(records)
}

fn guid_of(engine: &Engine, disk: usize) -> Result<u64, PoolError> {
    let bad = |source| PoolError::Decode { what: "the vdev tree".into(), source };
    let root = VdevConfig::parse(&engine.shown().config.root).map_err(bad)?;
    let name = disk_path(disk).display().to_string();
    let leaf = root.leaves().into_iter().find(|leaf| leaf.name() == name).map(|leaf| leaf.guid);
    leaf.ok_or_else(|| PoolError::Refused { what: format!("the modelled pool {POOL} has no drive {name}") })
}

#[cfg(test)]
mod tests {
    use super::super::server::{PoolSpec, VdevLayout};
    use super::super::workload::Order;
    use super::*;
    use crate::hardware::drive::DriveSpec;
    use crate::hardware::flash::FlashSpec;
    use std::time::Duration;
    use weir_pool::OpenOptions;
    use weir_pool::scan_status::{Scan, last_scan};

    /// A mirror of drives that read and write 40 MB/s, and two files of 256 MiB.
    fn slow_mirror() -> (ServerSpec, Workload) {
        let rate =
            FlashSpec { read_mb_s: 40.0, write_mb_s: 40.0, sustained_mb_s: 40.0, buffer_gb: 0.0, ..FlashSpec::DESKTOP };
        let mut pool = PoolSpec::new(DriveSpec::Flash(rate), VdevLayout::Mirror(2), 1);
        pool.drive_bytes = 1 << 30;
        let server = ServerSpec { arc_bytes: 32 << 20, dirty_bytes: 32 << 20, ..ServerSpec::new(pool) };
        (server, Workload { threads: 2, file_bytes: 256 << 20, ..Workload::sequential_read() })
    }

    #[test]
    fn a_resilver_writes_at_the_rate_of_the_drive_and_states_the_time_left() {
        let (server, files) = slow_mirror();
        let done = simulate_replacement(1, &server, &files, false).unwrap();
        let ratio = done.sequential_seconds / done.seconds;
        assert!((0.8..=1.0).contains(&ratio), "{ratio} of the drive's rate: {done:?}");
        let rate = done.written_bytes as f64 / 1e6 / done.sequential_seconds;
        assert!((39.6..=40.4).contains(&rate), "{rate} MB/s");
        check_times_left(&done, 0.2);
    }

    fn check_times_left(done: &Replacement, deviation: f64) {
        let later =
            done.records.iter().filter(|record| record.examined_share >= 0.1 && done.seconds - record.seconds > 3.0);
        let mut compared = 0;
        for record in later {
            let left = done.seconds - record.seconds;
            let stated = record.left_s.expect("a rate is known") as f64;
            assert!((stated - left).abs() <= 1.0 + left * deviation, "{stated} s stated, {left} s left: {done:?}");
            compared += 1;
        }
        assert!(compared >= 3, "{:?}", done.records);
    }

    /// The blocks of a half-full pool are on most of the tracks. The resilver reads outer tracks first, and the disk reads them faster than
    /// inner ones.
    #[test]
    fn the_time_left_of_disks_with_platters_takes_their_inner_tracks_into_account() {
        let mut pool = PoolSpec::new(DriveSpec::named("hdd-7k").unwrap(), VdevLayout::Mirror(2), 1);
        pool.drive_bytes = 4 << 30;
        let server = ServerSpec { arc_bytes: 64 << 20, dirty_bytes: 64 << 20, ..ServerSpec::new(pool) };
        let files = Workload { threads: 4, file_bytes: 512 << 20, ..Workload::sequential_read() };
        let done = simulate_replacement(1, &server, &files, false).unwrap();
        check_times_left(&done, 0.15);
    }

    /// A scan reads little at a time while clients use the devices.
    #[test]
    fn a_load_keeps_most_of_its_throughput_beside_a_resilver_and_one_that_outlasts_it_is_refused() {
        let (server, files) = slow_mirror();
        let load = Workload { order: Order::Random, ramp_seconds: 0.5, seconds: 4.0, ..files };
        let load_outcomes = simulate_replacement(1, &server, &load, true).unwrap().load.unwrap();
        let LoadOutcomes { healthy, degraded, resilvering } = load_outcomes;
        assert!(degraded.read_mb_s <= healthy.read_mb_s, "{degraded:?} after {healthy:?}");
        let kept = resilvering.read_mb_s / degraded.read_mb_s;
        assert!((0.7..=1.0).contains(&kept), "{kept} of {degraded:?}: {resilvering:?}");
        let refused = |workload: &Workload, layout| {
            let mut server = server.clone();
            server.pool.layout = layout;
            matches!(simulate_replacement(1, &server, workload, true), Err(SimulationError::Refused(_)))
        };
        assert!(refused(&Workload { file_bytes: 32 << 20, seconds: 30.0, ..load.clone() }, VdevLayout::Mirror(2)));
        assert!(refused(&load, VdevLayout::Single));
    }

    /// Runs a test on a pool whose new drive is about to be resilvered.
    fn with_blank_drive<F: Future<Output = ()>>(test: impl FnOnce(Arc<Engine>, Arc<ModelDisk>) -> F) {
        let (spec, files) = slow_mirror();
        let (server, _) = new_server(1, &spec);
        let world = server.world.clone();
        let done = world.run(async {
            let engine = server.create_pool().await.unwrap();
            let target = make_target(&engine, &Request::internal("test"), &spec, &files).await.unwrap();
            fill(&target, &files, &spec, server.work.payload.bytes()).await.unwrap();
            drop(target);
            engine.sync().await.unwrap();
            let failed = take_out_last_drive(&server, &engine).await.unwrap();
            let new = attach_blank_drive(&server, &engine, failed).await.unwrap();
            engine.scrubs().start_resilver_if_needed().await.unwrap();
            test(engine, new).await;
        });
        world.power_failure();
        done.unwrap();
    }

    const RECORDED: ScanLimits = ScanLimits {
        time: Duration::from_secs(2),
        bytes: u64::MAX,
        recorded: Duration::from_secs(1),
        sorted_blocks: 1 << 18,
    };

    #[test]
    fn a_resilver_that_is_interrupted_goes_on_where_it_was() {
        with_blank_drive(async |engine, new| {
            let clock = &engine.machine.clock;
            let begun = clock.now();
            let progress = engine.scrubs().run(&RECORDED, &mut |_| false).await.unwrap().unwrap();
            let took = clock.now().since(begun);
            assert!(progress.is_open() && took < Duration::from_secs(4), "{took:?}: {progress:?}");
            let written = new.counters().written_bytes;
            assert!(written < 200 << 20, "{written} bytes");
            while !engine.scrubs().run(&RECORDED, &mut |_| true).await.unwrap().unwrap().is_finished() {}
            let written = new.counters().written_bytes;
            assert!((512 << 20..540 << 20).contains(&written), "{written} bytes of 512 MiB");
        });
    }

    #[test]
    fn the_state_of_a_resilver_has_counts_that_are_not_recorded_yet() {
        with_blank_drive(async |engine, new| {
            let rq = &Request::internal("test");
            let limits = ScanLimits { recorded: Duration::from_secs(3600), ..RECORDED };
            let look = async {
                engine.machine.clock.sleep(Duration::from_secs(4)).await;
                let recorded = engine.scrubs().progress(rq).await.unwrap().unwrap();
                let live = engine.scrubs().live_progress(rq).await.unwrap().unwrap();
                let pool = engine.synced().view(&OpenOptions::new(Vec::new(), POOL)).await.unwrap();
                let shown = last_scan(&pool, rq).await.unwrap().unwrap();
                (recorded, live, shown, new.counters().written_bytes)
            };
            let (_, (recorded, live, shown, written)) = join(engine.scrubs().run(&limits, &mut |_| true), look).await;
            assert_eq!((recorded.scan.examined_bytes, recorded.active_s), (0, 0));
            let Scan { examined, found, processed, active_s, to_examine, .. } = shown;
            let of_live = (live.scan.examined_bytes, live.scan.processed_bytes, live.active_s);
            assert_eq!((examined, processed, active_s), of_live);
            assert!(written > 40 << 20 && processed.abs_diff(written) < 8 << 20, "{shown:?}, {written} bytes written");
            assert!(examined > processed && found > to_examine / 10 * 9 && active_s >= 3, "{shown:?}");
        });
    }

    #[test]
    fn a_pool_is_exported_without_delay_while_a_resilver_reads() {
        with_blank_drive(async |engine, new| {
            let clock = &engine.machine.clock;
            let limits = ScanLimits { recorded: Duration::from_secs(3600), ..RECORDED };
            let export = async {
                clock.sleep(Duration::from_secs(3)).await;
                let begun = clock.now();
                engine.export().await.unwrap();
                (clock.now().since(begun), new.counters().written_bytes)
            };
            let (scan, (took, written)) = join(engine.scrubs().run(&limits, &mut |_| true), export).await;
            assert!(scan.is_err() && took < Duration::from_secs(3), "{took:?}: {scan:?}");
            assert_eq!(new.counters().written_bytes, written, "a device is written to after the export");
        });
    }
}
