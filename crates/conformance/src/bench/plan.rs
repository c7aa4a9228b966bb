//! Benchmark of the planner: twelve loads on a pool in a file of this machine, predicted after a calibration, and measured.
//!
//! ```text
//!   weir bench device, weir plan calibrate ─► description ─┐
//!   weir bench grid: 8 KiB at depth 1 and 16, 128 KiB at depth 4 ─┴─► weir plan check ─► deviations
//! ```
//!
//! The median of the deviations has a target; the greatest is printed. On a machine with other load the disk and the processors are not
//! those that were calibrated.

use super::write;
use crate::process::weir;
use crate::report::{Report, line};
use crate::site::Site;
use crate::{JudgeError, io, wrong};
use serde_json::Value;
use std::path::Path;

const POOL: &str = "b-plan";
/// Largest median deviation.
const MEDIAN: f64 = 0.15;
/// The ARC, and the data of the loads, in MiB: most reads come from the disk.
const ARC_MIB: u64 = 128;
const DATA_MIB: u64 = 768;
/// Limit of dirty data: the planner simulates no more.
const DIRTY_MIB: u64 = 256;
/// Record sizes in KiB, with the depths of the loads.
const RECORDS: [(u64, &str); 2] = [(8, "1,16"), (128, "4")];

/// Runs the benchmark: `--rounds N` (of each load; default 3).
///
/// # Errors
/// Errors if fio is missing, or a command fails.
pub fn run(arguments: &[String], report: &mut Report) -> Result<(), JudgeError> {
    let rounds = match arguments {
        [] => 3,
        [flag, number] if flag == "--rounds" => {
            number.parse::<u64>().map_err(|_| wrong("plan-bench", "--rounds takes a number"))?
        }
        _ => return Err(wrong("plan-bench", "takes --rounds N")),
    };
    weir()?;
    let home = super::folder().join("write");
    let image = write::images(&home, &write::ROOMY)?.swap_remove(0);
    let site = Site::local()?;
    let description = calibrated(&site, &image)?;
    let mut deviations = Vec::new();
    for (record_kib, depths) in RECORDS {
        // Each record size has a pool of its own: the data of both would leave little free space for new blocks.
        site.ok(&format!("zpool create -f {POOL} {}", image.display()))?;
        let dataset = format!("{POOL}/r{record_kib}");
        site.ok(&format!("zfs create -o recordsize={record_kib}K -o compression=off -o atime=off {dataset}"))?;
        let result = site.path(&format!("grid{record_kib}"));
        site.ok(&format!(
            "bench grid {dataset} -d {} --blocks {record_kib}K --depths {depths} --size {DATA_MIB}M --time 5s --rounds {rounds} \
             --arc-max {ARC_MIB}M --dirty-max {DIRTY_MIB}M --no-ceilings -o {}",
            image.display(),
            result.display()
        ))?;
        let plan = site.path(&format!("server{record_kib}.toml"));
        let text = description.replace("RECORD", &record_kib.to_string());
        std::fs::write(&plan, text).map_err(io(plan.display()))?;
        deviations.extend(checked(&site, &plan, &result)?);
        site.ok(&format!("zpool destroy {POOL}"))?;
    }
    deviations.sort_by(f64::total_cmp);
    let count = deviations.len();
    let median = weir_lab::statistics::median(&deviations).ok_or_else(|| wrong("plan-bench", "no loads"))?;
    let worst = deviations.last().copied().unwrap_or_default();
    let about = format!(
        "{count} loads: median deviation {:.0} %, at most {:.0} %; greatest {:.0} %",
        median * 100.0,
        MEDIAN * 100.0,
        worst * 100.0
    );
    if median <= MEDIAN {
        report.pass("plan", &about)
    } else {
        report.fail("plan", &[about])
    }
    Ok(())
}

/// The description of this machine; `RECORD` stands for the record size.
fn calibrated(site: &Site, image: &Path) -> Result<String, JudgeError> {
    let device = site.path("device");
    // The file is that of the pool, so that both use the same part of the disk.
    site.ok(&format!(
        "bench device {} --overwrite --size 1536M --time 5s --sustained 10s --no-ceilings -o {}",
        image.display(),
        device.display()
    ))?;
    let printed = site.ok(&format!("plan calibrate --in-process --device {}", device.display()))?;
    line(printed.trim_end());
    let (drive, costs) = printed.split_once("[costs]").ok_or_else(|| wrong("plan calibrate", "it printed no costs"))?;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let drive_tb = write::ROOMY.image_mib as f64 * f64::from(1 << 20) / 1e12;
    let arc_gb = ARC_MIB as f64 * f64::from(1 << 20) / 1e9;
    Ok(format!(
        "[server]\nprocessors = {processors}\nmemory_gb = 8\narc_gb = {arc_gb}\n\
         [pool]\n{drive}drive_tb = {drive_tb}\nlayout = \"single\"\nrecord_kib = RECORD\n[costs]{costs}"
    ))
}

/// Prints each load beside its prediction; returns the deviations without their signs.
fn checked(site: &Site, plan: &Path, result: &Path) -> Result<Vec<f64>, JudgeError> {
    let printed = site.ok(&format!("plan check -j {} {}", plan.display(), result.display()))?;
    let value: Value = serde_json::from_str(&printed)
        .map_err(|source| JudgeError::Manifest { golden: "weir plan check".to_string(), source })?;
    let loads = value["loads"].as_array().cloned().unwrap_or_default();
    let figure = |load: &Value, key: &str| load[key].as_f64().unwrap_or(f64::NAN);
    for load in &loads {
        line(&format!(
            "{:<44} measured {:>8.0}/s  predicted {:>8.0}/s  {:>+5.0} %  {}",
            load["name"].as_str().unwrap_or_default(),
            figure(load, "measured"),
            figure(load, "predicted"),
            figure(load, "deviation") * 100.0,
            load["limit"].as_str().unwrap_or_default()
        ));
    }
    Ok(loads.iter().map(|load| figure(load, "deviation").abs()).collect())
}
