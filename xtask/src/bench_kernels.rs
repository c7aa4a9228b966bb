//! `cargo xtask bench kernels`: RAID-Z parity generation compared with OpenZFS's `raidz_test -B`, one core each, in
//! one run.
//!
//! `raidz_test` measures every implementation that the processor supports; its fastest one is used. Weir is measured
//! before and after it, and the better of the two medians is used. Both rates include data and parity bytes of rows
//! with eight data columns and a record of 128 KiB.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::judge;
use crate::process::{Outcome, cargo, must};

/// RAID-Z parity levels with the names of their kernels in `raidz_test`.
const PARITIES: [(&str, &str); 3] = [("1", "gen_p"), ("2", "gen_pq"), ("3", "gen_pqr")];
/// Data bytes per row.
const ROW_BYTES: &str = "131072";
/// `raidz_test` reports MiB; one MiB in MB.
const MIB_IN_MB: f64 = 1.048_576;

/// Runs both and prints the ratios.
pub fn run() -> Outcome {
    let tools = judge::tools().ok_or("bench kernels: no OpenZFS tools (cargo xtask judge --fetch)")?;
    let example = ["--release", "--quiet", "-p", "weir-codec", "--example", "kernels"];
    must("build kernels", &mut cargo(&[&["build"][..], &example].concat()))?;
    let mut ours = BTreeMap::new();
    measure_ours(&example, &mut ours)?;
    let theirs = measure_theirs(&tools)?;
    measure_ours(&example, &mut ours)?;
    println!("{:<24} {:>12} {:>12} {:>7} {:>7}", "8 columns, 128 KiB", "Weir", "OpenZFS", "ratio", "target");
    let mut short = Vec::new();
    for (parity, kernel) in PARITIES {
        let own = ours.get(parity).ok_or("bench kernels: Weir's rate is missing")?;
        let (peer, name) = theirs.get(kernel).ok_or("bench kernels: raidz_test did not report all rates")?;
        let ratio = own / peer;
        println!(
            "{:<24} {own:>7.0} MB/s {peer:>7.0} MB/s {ratio:>7.2} {:>7.2}  ({name})",
            format!("raidz{parity}"),
            1.0
        );
        if ratio < 1.0 {
            short.push(format!("raidz{parity}"));
        }
    }
    if short.is_empty() { Ok(()) } else { Err(format!("bench kernels: slower than OpenZFS: {}", short.join(", "))) }
}

/// Medians of Weir's kernels in MB/s by parity level; keeps the greater of two measurements.
fn measure_ours(example: &[&str], found: &mut BTreeMap<String, f64>) -> Outcome {
    let mut command = cargo(&[&["run"][..], example, &["--", "-H", "generate"]].concat());
    let out = command.output().map_err(|error| format!("kernels: could not start: {error}"))?;
    for line in String::from_utf8_lossy(&out.stdout).lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [name, _, median] = fields[..] else { continue };
        let parity =
            name.strip_prefix("raidz").and_then(|rest| rest.strip_suffix(" x 16K")).and_then(|rest| rest.get(..1));
        if let (Some(parity), Ok(median)) = (parity, median.parse::<f64>()) {
            let best = found.entry(parity.to_string()).or_insert(median);
            *best = best.max(median);
        }
    }
    Ok(())
}

/// Rate in MB/s and name of the fastest implementation, by kernel. Stops `raidz_test` when it begins with
/// reconstruction.
fn measure_theirs(tools: &Path) -> Result<BTreeMap<String, (f64, String)>, String> {
    let mut command = Command::new(tools.join("usr/bin/raidz_test"));
    command.arg("-B").env("LD_LIBRARY_PATH", tools.join("lib/x86_64-linux-gnu")).stdin(Stdio::null());
    let cannot = |error: std::io::Error| format!("raidz_test: {error}");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().map_err(cannot)?;
    let mut found: BTreeMap<String, (f64, String)> = BTreeMap::new();
    let lines = child.stdout.take().map(|stdout| BufReader::new(stdout).lines());
    for line in lines.into_iter().flatten() {
        let line = line.map_err(cannot)?;
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let [name, kernel, _, row, _, rate, _] = fields[..] else { continue };
        if kernel.starts_with("rec") {
            break;
        }
        let Ok(rate) = rate.parse::<f64>() else { continue };
        if row == ROW_BYTES {
            println!("{name} {kernel}: {:.0} MB/s", rate * MIB_IN_MB);
            let best = found.entry(kernel.to_string()).or_default();
            if rate * MIB_IN_MB > best.0 {
                *best = (rate * MIB_IN_MB, name.to_string());
            }
        }
    }
    // It may have exited already.
    let _ = child.kill();
    child.wait().map_err(cannot)?;
    Ok(found)
}
