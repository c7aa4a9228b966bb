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

/// State of a resilver after one pass of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pass {
    /// Virtual seconds since the new drive was attached.
    pub seconds: f64,
    /// Share of the allocated bytes that the resilver has gone over, from 0 to 1.
    pub examined_share: f64,
    /// The stated time left in seconds; `None` before a rate is known.
    pub left_s: Option<u64>,
}

/// The result of a simulated replacement.
#[derive(Clone, Debug, PartialEq)]
pub struct Replacement {
    /// Bytes that were written to the new drive.
    pub written_bytes: u64,
    /// Virtual seconds from the attachment of the new drive to the end of the resilver.
    pub seconds: f64,
    /// The passes in their order.
    pub passes: Vec<Pass>,
    /// The load before the failure and during the resilver.
    pub load: Option<(Outcome, Outcome)>,
}

/// Fills the pool with the files of `workload`, takes its last drive out of service, and replaces it by a blank one. With `with_load`,
/// the workload also runs before the failure and, from the beginning of the resilver on, again.
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
    let before = if with_load { Some(load(rng.fork()).await?) } else { None };
    let timer = server.world.timer();
    let begun_ns = timer.now_ns();
    let new = attach_blank_drive(&server, &engine).await?;
    let since = || (timer.now_ns() - begun_ns) as f64 / 1e9;
    let resilver = async {
        let passes = resilver(&engine, &since).await;
        (passes, since())
    };
    let during = async {
        match &before {
            Some(_) => load(rng.fork()).await.map(|outcome| Some((outcome, since()))),
            None => Ok(None),
        }
    };
    let ((passes, seconds), during) = join(resilver, during).await;
    let passes = passes?;
    let during = during?;
    if during.as_ref().is_some_and(|(_, end)| *end > seconds) {
        return Err(SimulationError::Refused("the resilver ended before the load".into()));
    }
    let load = before.zip(during.map(|(outcome, _)| outcome));
    Ok(Replacement { written_bytes: new.counters().written_bytes, seconds, passes, load })
}

/// Takes the last drive out of service, and attaches a blank one in its place.
async fn attach_blank_drive(server: &Server, engine: &Arc<Engine>) -> Result<Arc<ModelDisk>, SimulationError> {
    let last = server.spec.pool.layout.disks() * server.spec.pool.vdevs - 1;
    let (path, disk) = server.add_blank_drive(last + 1);
    let device = guid_of(engine, last)?;
    engine.vdevs().offline(device, OfflineMode::Kept).await?;
    let new = NewLeaf { path, is_file: true };
    engine.vdevs().attach(&AttachRequest { device, new, replaces: true, ashift: None, force: true }).await?;
    Ok(disk)
}

async fn resilver(engine: &Arc<Engine>, since: &(impl Fn() -> f64 + Sync)) -> Result<Vec<Pass>, SimulationError> {
    let mut passes = Vec::new();
    engine.scrubs().start_resilver_if_needed().await?;
    let mut note = |progress: &weir_engine::scrub::Progress| {
        let examined_share = progress.scan.examined_bytes as f64 / progress.scan.to_examine_bytes.max(1) as f64;
        passes.push(Pass { seconds: since(), examined_share, left_s: progress.left_s() });
        true
    };
    let scan = engine.scrubs().run(&ScanLimits::default(), &mut note).await?;
    if !scan.is_some_and(|scan| scan.is_resilver() && scan.is_finished()) {
        return Err(SimulationError::Refused("the simulated resilver did not end".into()));
    }
    Ok(passes)
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

    /// A mirror of drives that read and write 10 MB/s, and files of 128 MiB.
    fn slow_mirror() -> (ServerSpec, Workload) {
        let rate =
            FlashSpec { read_mb_s: 10.0, write_mb_s: 10.0, sustained_mb_s: 10.0, buffer_gb: 0.0, ..FlashSpec::DESKTOP };
        let mut pool = PoolSpec::new(DriveSpec::Flash(rate), VdevLayout::Mirror(2), 1);
        pool.drive_bytes = 512 << 20;
        let server = ServerSpec { arc_bytes: 32 << 20, dirty_bytes: 32 << 20, ..ServerSpec::new(pool) };
        (server, Workload { threads: 2, file_bytes: 64 << 20, ..Workload::sequential_read() })
    }

    #[test]
    fn a_resilver_writes_at_the_rate_of_the_drive_and_states_the_time_left() {
        let (server, files) = slow_mirror();
        let done = simulate_replacement(1, &server, &files, false).unwrap();
        // The first pass begins with the metadata, and before it two txgs take the drives; the last pass is short.
        let whole = &done.passes[..done.passes.len() - 1];
        let first = whole[0];
        let last = whole[whole.len() - 1];
        let bytes = done.written_bytes as f64 * (last.examined_share - first.examined_share);
        let rate = bytes / 1e6 / (last.seconds - first.seconds);
        assert!((8.0..=10.0).contains(&rate), "{rate} MB/s");
        // The first pass goes over a tenth of this small pool, and is slower than the others because it reads the metadata.
        let later = done.passes.iter().filter(|pass| pass.examined_share >= 0.2 && done.seconds - pass.seconds > 3.0);
        let mut compared = 0;
        for pass in later {
            let left = done.seconds - pass.seconds;
            let stated = pass.left_s.expect("a rate is known") as f64;
            assert!((stated - left).abs() <= 1.0 + left * 0.1, "{stated} s stated, {left} s left");
            compared += 1;
        }
        assert!(compared >= 3, "{:?}", done.passes);
    }

    #[test]
    fn a_load_goes_on_beside_a_resilver_and_one_that_outlasts_it_is_refused() {
        let (server, files) = slow_mirror();
        let load = Workload { order: Order::Random, ramp_seconds: 0.5, seconds: 4.0, ..files };
        let (before, during) = simulate_replacement(1, &server, &load, true).unwrap().load.unwrap();
        assert!(during.read_mb_s > 0.0 && during.read_mb_s <= before.read_mb_s, "{during:?} after {before:?}");
        let refused = |workload: &Workload, layout| {
            let mut server = server.clone();
            server.pool.layout = layout;
            matches!(simulate_replacement(1, &server, workload, true), Err(SimulationError::Refused(_)))
        };
        assert!(refused(&Workload { seconds: 1000.0, ..load.clone() }, VdevLayout::Mirror(2)));
        assert!(refused(&load, VdevLayout::Single));
    }
}
