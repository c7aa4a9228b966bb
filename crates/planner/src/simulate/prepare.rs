//! Prepares a simulation before its load begins: makes files or a volume, writes their contents, and warms the caches.

use super::server::{POOL, Server, ServerSpec};
use super::workload::Workload;
use super::{SimulationError, Target, payload_slice};
use crate::hardware::contents::PAYLOAD_BYTES;
use bytes::Bytes;
use futures_util::future::join_all;
use std::sync::Arc;
use std::time::Duration;
use weir_dsl::sync_tasks::{Kind, NewDataset, VolumeSpec};
use weir_engine::Engine;
use weir_files::{Cred, New, NewKind};
use weir_machine::Request;
use weir_sim::Rng;

pub(super) async fn make_target(
    engine: &Arc<Engine>,
    rq: &Request,
    spec: &ServerSpec,
    workload: &Workload,
) -> Result<Target, SimulationError> {
    if workload.volume {
        let each = workload.file_bytes.next_multiple_of(spec.pool.record_bytes);
        let size_bytes = each * (workload.clients * workload.threads) as u64;
        let volume = VolumeSpec { size_bytes, block_bytes: spec.pool.record_bytes.min(128 << 10) as u32 };
        let name = format!("{POOL}/lun");
        engine.create_dataset(NewDataset { name, kind: Kind::Volume(volume), properties: Vec::new() }).await?;
    } else {
        let files = engine.file_system(rq, POOL).await?;
        for file in 0..workload.clients * workload.threads {
            let new = New::of(NewKind::Regular, 0o644);
            files.names().create(rq, &Cred::root(), files.root(), file_name(file).as_bytes(), &new).await?;
        }
    }
    open_target(engine, rq, workload).await
}

fn file_name(file: usize) -> String {
    format!("file{file:05}")
}

pub(super) async fn open_target(
    engine: &Arc<Engine>,
    rq: &Request,
    workload: &Workload,
) -> Result<Target, SimulationError> {
    let count = workload.clients * workload.threads;
    if workload.volume {
        let volume = engine.volume(rq, &format!("{POOL}/lun")).await?;
        let each = volume.size_bytes() / count as u64;
        return Ok(Target::Volume(volume, each));
    }
    let files = engine.file_system(rq, POOL).await?;
    let mut objects = Vec::new();
    for file in 0..count {
        objects.push(files.directories().lookup(rq, files.root(), file_name(file).as_bytes()).await?);
    }
    Ok(Target::Files(files, objects))
}

/// Writes all files from the beginning to the end, some at a time, without links.
pub(super) async fn fill(
    target: &Target,
    workload: &Workload,
    spec: &ServerSpec,
    payload: &Bytes,
) -> Result<(), SimulationError> {
    let piece = spec.pool.record_bytes.max(128 << 10).min(workload.file_bytes);
    let rq = Request::internal("fill");
    let one = async |file: usize| {
        for (n, offset) in (0..workload.file_bytes).step_by(piece as usize).enumerate() {
            let len = piece.min(workload.file_bytes - offset) as usize;
            let from = (n * 37 + file * 11) % ((PAYLOAD_BYTES - len) / 4096 + 1) * 4096;
            // The measurement numbers its writes upwards from 0; the preparation numbers its own downwards from the highest
            // number, so that no number is used twice.
            let number = (1 << 47) - ((file as u64) << 24) - n as u64;
            let data = payload_slice(payload, from..from + len, spec, number);
            target.write(&rq, file, offset, data, false).await?;
        }
        Ok::<_, SimulationError>(())
    };
    let files = 0..workload.clients * workload.threads;
    join_all(files.map(one)).await.into_iter().collect()
}

/// Overwrites records of all files in random order, one at a time.
pub(super) async fn overwrite(
    target: &Target,
    workload: &Workload,
    spec: &ServerSpec,
    payload: &Bytes,
    mut rng: Rng,
) -> Result<(), SimulationError> {
    let piece = spec.pool.record_bytes.min(workload.file_bytes);
    let files = (workload.clients * workload.threads) as u64;
    let records = workload.file_bytes / piece;
    let rq = Request::internal("overwrite");
    for n in 0..((files * records) as f64 * workload.overwrites) as u64 {
        let from = rng.below(((PAYLOAD_BYTES as u64 - piece) / 4096).max(1)) as usize * 4096;
        // Between the numbers of the preparation, from 2^47 downwards, and those of the measurement, from 0 upwards.
        let data = payload_slice(payload, from..from + piece as usize, spec, (1 << 45) + n);
        let file = rng.below(files);
        let record = rng.below(records);
        target.write(&rq, file as usize, record * piece, data, false).await?;
    }
    Ok(())
}

/// Reads all files once, so slowly that the cache device gets each block of them before it leaves the ARC, as it would in the hours
/// before a measurement. Meanwhile the feed has no limit; after it the engine's own holds again.
pub(super) async fn fill_cache_device(
    server: &Server,
    engine: &Engine,
    target: &Target,
    workload: &Workload,
) -> Result<(), SimulationError> {
    let l2arc = engine.cache.l2arc();
    let usual = l2arc.settings();
    let arc_bytes = server.spec.arc_bytes;
    // All of the ARC is looked through; blocks that were read ahead are taken, because the measurement may read them in another order.
    let step = Duration::from_millis(10);
    let mut filling = usual;
    (filling.write_max_bytes, filling.takes_prefetched) = (arc_bytes, true);
    (filling.interval, filling.busy_interval) = (step, step);
    l2arc.set_settings(filling);
    // The feed that waits for the usual interval ends before the first block is read.
    server.machine.clock.sleep(usual.interval + step).await;
    let part = (arc_bytes / 4).max(1 << 20);
    let files = workload.clients * workload.threads;
    let piece = server.spec.pool.record_bytes.max(128 << 10).min(workload.file_bytes);
    let rq = Request::internal("fill cache device");
    let mut unwritten = 0;
    for file in 0..files {
        for offset in (0..workload.file_bytes).step_by(piece as usize) {
            let len = piece.min(workload.file_bytes - offset);
            target.read(&rq, file, offset, len as usize).await?;
            unwritten += len;
            if unwritten >= part {
                unwritten = 0;
                feed_ended(server, engine).await;
            }
        }
    }
    feed_ended(server, engine).await;
    l2arc.set_settings(usual);
    Ok(())
}

/// Waits until a feed of the cache device has found nothing to write, or may not write more; at most five seconds, in which a device
/// that is smaller than the files is written again and again.
async fn feed_ended(server: &Server, engine: &Engine) {
    for _ in 0..100 {
        let before = engine.cache.l2arc().stats();
        server.machine.clock.sleep(Duration::from_millis(50)).await;
        let after = engine.cache.l2arc().stats();
        let found_nothing = after.feeds > before.feeds && after.written_blocks == before.written_blocks;
        if found_nothing || after.short_of_memory > before.short_of_memory {
            return;
        }
    }
}

/// Reads all files once.
pub(super) async fn read_all(target: &Target, workload: &Workload, record_bytes: u64) -> Result<(), SimulationError> {
    let piece = record_bytes.max(128 << 10).min(workload.file_bytes);
    let rq = Request::internal("warm");
    let one = async |file: usize| {
        for offset in (0..workload.file_bytes).step_by(piece as usize) {
            target.read(&rq, file, offset, piece.min(workload.file_bytes - offset) as usize).await?;
        }
        Ok::<_, SimulationError>(())
    };
    let files = 0..workload.clients * workload.threads;
    join_all(files.map(one)).await.into_iter().collect()
}
