//! Measuring process of the resilver benchmark: makes a pool on the images of a folder, fills it, and replaces its last disk by a
//! blank file beside them.
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use super::write_child::{PIECE_BYTES, make_with, noise};
use super::{Measured, SELF, cpu_seconds, peak_bytes};
use crate::{JudgeError, io, wrong};
use std::path::Path;
use std::time::Instant;
use weir_engine::scrub::ScanLimits;
use weir_engine::{AttachRequest, Engine, NewLeaf, OfflineMode};
use weir_pool::VdevConfig;

fn failed(error: impl ToString) -> JudgeError {
    wrong("resilver-bench-child", error.to_string())
}

/// Replaces a disk of a pool with this layout, record size in bytes and payload in MiB. The bytes are those that the resilver wrote
/// to the new disk.
///
/// # Errors
/// Errors of the engine; the resilver did not end.
pub fn measure(layout: &str, record: u64, mib: u64, folder: &Path) -> Result<Measured, JudgeError> {
    let blank = folder.join("blank.disk");
    let size = std::fs::metadata(folder.join("d0.img")).map_err(io(folder.display()))?.len();
    // Its blocks are allocated by an earlier run, as those of the images.
    if !std::fs::metadata(&blank).is_ok_and(|found| found.len() == size) {
        std::fs::write(&blank, noise(3, size as usize)).map_err(io(blank.display()))?;
    }
    let machine = weir_linux::machine().map_err(failed)?;
    machine.block_on(async {
        let target = make_with(&machine, folder, layout, &[("recordsize", record)]).await?;
        target.sequential(&noise(7, 8 * PIECE_BYTES), mib << 20).await?;
        let engine = &target.engine;
        engine.sync().await.map_err(failed)?;
        let device = last_leaf(engine)?;
        let begun = Instant::now();
        let cpu_begun = cpu_seconds(SELF);
        engine.vdevs().offline(device, OfflineMode::Kept).await.map_err(failed)?;
        let new = NewLeaf { path: blank.clone(), is_file: true };
        let request = AttachRequest { device, new, replaces: true, ashift: None, force: true };
        engine.vdevs().attach(&request).await.map_err(failed)?;
        let scrubs = engine.scrubs();
        scrubs.start_resilver_if_needed().await.map_err(failed)?;
        let scan = scrubs.run(&ScanLimits::default(), &mut |_| true).await.map_err(failed)?;
        let (seconds, cpu_seconds) = (begun.elapsed().as_secs_f64(), cpu_seconds(SELF) - cpu_begun);
        let done = scan.filter(|scan| scan.is_resilver() && scan.is_finished() && scan.scan.errors == 0);
        let Some(done) = done else { return Err(failed("the resilver did not end without errors")) };
        let (bytes, peak_bytes) = (done.scan.processed_bytes, peak_bytes(SELF));
        engine.export().await.map_err(failed)?;
        Ok(Measured { bytes, operations: 1, seconds, peak_bytes, cpu_seconds })
    })
}

fn last_leaf(engine: &Engine) -> Result<u64, JudgeError> {
    let root = VdevConfig::parse(&engine.shown().config.root).map_err(failed)?;
    root.leaves().last().map(|leaf| leaf.guid).ok_or_else(|| failed("the pool has no disk"))
}
