//! The rate of a resilver, simulated: a drive of a vdev with data fails, and a new one takes its place.
//!
//! The vdev holds files that were written one after the other, and nothing else uses the pool: of a pool whose data was written and
//! freed at random, or that clients use, a resilver takes longer.

use super::PlanError;
use crate::hardware::contents::{PAYLOAD_BYTES, Payload};
use crate::hardware::disk::ModelDisk;
use crate::simulate::SimulationError;
use crate::simulate::server::{POOL, PoolSpec, Server, ServerSpec, VdevLayout, disk_path};
use futures_util::future::join_all;
use serde::Serialize;
use weir_engine::scrub::ScanLimits;
use weir_engine::{AttachRequest, Engine, NewLeaf, OfflineMode};
use weir_files::{Cred, New, NewKind, WriteAt};
use weir_machine::Request;
use weir_pool::{PoolError, VdevConfig};
use weir_sim::Rng;

/// Data of the simulated vdev for each drive, in bytes.
const DRIVE_DATA_BYTES: u64 = 96 << 20;
/// Bytes of a file.
const FILE_BYTES: u64 = 32 << 20;
/// Bytes of a write.
const WRITE_BYTES: u64 = 1 << 20;

/// A simulated resilver.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Resilver {
    /// Bytes that were written to the new drive.
    pub written_bytes: u64,
    /// Virtual seconds.
    pub seconds: f64,
    /// Bytes that the new drive of the described pool receives.
    pub drive_bytes: u64,
    /// Hours for these at the same rate.
    pub hours: f64,
}

/// Simulates the resilver of a drive. `None`: the layout has no redundancy.
///
/// # Errors
/// Those of the engine.
pub fn simulated(spec: &ServerSpec, used_bytes: u64, seed: u64) -> Result<Option<Resilver>, PlanError> {
    if spec.pool.layout.redundancy() == 0 {
        return Ok(None);
    }
    let pool = PoolSpec { vdevs: 1, log: None, fill: 0.0, ..spec.pool.clone() };
    let small = ServerSpec { pool, arc_bytes: 64 << 20, dirty_bytes: 128 << 20, link: None, ..spec.clone() };
    let server = Server::new(seed, small, Payload::random(&mut Rng::new(seed)));
    let world = server.world.clone();
    let done = world.run(run(&server));
    world.power_failure();
    let (written_bytes, seconds) = done.map_err(SimulationError::from)??;
    let layout = spec.pool.layout;
    // Data and its parity or copies are spread evenly.
    let share = match layout {
        VdevLayout::Raidz(..) => {
            let block = super::capacity::sizing(layout).asize_bytes(128 << 10, 0) as f64 / f64::from(128 << 10);
            block / layout.disks() as f64
        }
        VdevLayout::Single | VdevLayout::Mirror(_) => 1.0,
    };
    let drive_bytes = (used_bytes as f64 * share / spec.pool.vdevs as f64) as u64;
    let hours = drive_bytes as f64 / (written_bytes as f64 / seconds) / 3600.0;
    Ok(Some(Resilver { written_bytes, seconds, drive_bytes, hours }))
}

async fn run(server: &Server) -> Result<(u64, f64), SimulationError> {
    let engine = server.create_pool().await?;
    fill(server, &engine).await?;
    let last = server.spec.pool.layout.disks() - 1;
    let new = disk_path(last + 1);
    let pool = &server.spec.pool;
    let parity = pool.layout.parity_share();
    let timer = server.world.timer();
    let disk = ModelDisk::new(&pool.drive, pool.drive_bytes, 0.0, timer.clone(), server.work.clone(), parity);
    server.disks.add(&new, disk.clone());
    let device = guid_of(&engine, last)?;
    engine.vdevs().offline(device, OfflineMode::Kept).await?;
    let begun_ns = timer.now_ns();
    let new = NewLeaf { path: new, is_file: true };
    engine.vdevs().attach(&AttachRequest { device, new, replaces: true, ashift: None, force: true }).await?;
    engine.scrubs().start_resilver_if_needed().await?;
    let scan = engine.scrubs().run(&ScanLimits::default(), &mut |_| true).await?;
    let seconds = (timer.now_ns() - begun_ns) as f64 / 1e9;
    if !scan.is_some_and(|scan| scan.is_resilver() && scan.is_finished()) {
        return Err(SimulationError::Refused("the simulated resilver did not end".into()));
    }
    Ok((disk.counters().written_bytes, seconds))
}

async fn fill(server: &Server, engine: &std::sync::Arc<Engine>) -> Result<(), SimulationError> {
    let rq = Request::internal("fill");
    let files = engine.file_system(&rq, POOL).await?;
    let bytes = DRIVE_DATA_BYTES * server.spec.pool.layout.data_disks() as u64;
    let payload = server.work.payload.bytes();
    let write = async |file: u64| {
        let name = format!("file{file}");
        let new = New::of(NewKind::Regular, 0o644);
        files.names().create(&rq, &Cred::root(), files.root(), name.as_bytes(), &new).await?;
        let object = files.directories().lookup(&rq, files.root(), name.as_bytes()).await?;
        for (n, offset) in (0..FILE_BYTES).step_by(WRITE_BYTES as usize).enumerate() {
            let from = (n * 37 + file as usize * 11) * 4096 % (PAYLOAD_BYTES - WRITE_BYTES as usize);
            let data = payload.slice(from..from + WRITE_BYTES as usize);
            files.contents().write(&rq, &Cred::root(), object, WriteAt::Offset(offset), data).await?;
        }
        Ok::<_, SimulationError>(())
    };
    for group in (0..bytes / FILE_BYTES).collect::<Vec<_>>().chunks(4) {
        join_all(group.iter().map(|file| write(*file))).await.into_iter().collect::<Result<Vec<()>, _>>()?;
    }
    engine.sync().await?;
    Ok(())
}

fn guid_of(engine: &Engine, disk: usize) -> Result<u64, PoolError> {
    let bad = |source| PoolError::Decode { what: "the vdev tree".into(), source };
    let root = VdevConfig::parse(&engine.shown().config.root).map_err(bad)?;
    let name = disk_path(disk).display().to_string();
    let leaf = root.leaves().into_iter().find(|leaf| leaf.name() == name).map(|leaf| leaf.guid);
    leaf.ok_or_else(|| PoolError::Refused { what: format!("the modelled pool has no drive {name}") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::drive::DriveSpec;

    #[test]
    fn a_new_drive_receives_its_share_not_faster_than_it_writes() {
        let padded = 44.0 / 32.0 / 4.0;
        for (layout, share) in [(VdevLayout::Mirror(2), 1.0), (VdevLayout::Raidz(1, 4), padded)] {
            let spec = ServerSpec::new(PoolSpec::new(DriveSpec::named("ssd-enterprise").unwrap(), layout, 2));
            let resilver = simulated(&spec, 1_000_000_000_000, 1).unwrap().unwrap();
            assert_eq!(resilver.drive_bytes, (1e12 * share / 2.0) as u64);
            // Each drive of the simulated vdev holds 96 MiB of data and of its parity or copies; padding is not written.
            let written = resilver.written_bytes as f64 / DRIVE_DATA_BYTES as f64;
            assert!((0.9..1.3).contains(&written), "{written}");
            let rate = resilver.written_bytes as f64 / 1e6 / resilver.seconds;
            assert!((50.0..500.0).contains(&rate), "{rate}");
        }
        let single = ServerSpec::new(PoolSpec::new(DriveSpec::named("nvme").unwrap(), VdevLayout::Single, 1));
        assert_eq!(simulated(&single, 1 << 40, 1).unwrap(), None);
    }
}
