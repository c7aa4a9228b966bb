//! `zdb -b`, `-bc`, `-bcc`: walks all blocks of the pool, verifies their checksums, and compares them with the space
//! maps.

use super::ZdbArgs;
use crate::failure::Failure;
use crate::units::{human, human_bytes, percent, ratio};
use std::io::{IsTerminal, Write};
use std::time::Duration;
use weir_admin::DedupStatus;
use weir_machine::{Clock, Machine, Nanos, Request};
use weir_pool::block_stats::{self, LEVELS, ROWS, TOTAL};
use weir_pool::config::{Class, VdevConfig, VdevKind};
use weir_pool::dedup_simulation::simulate;
use weir_pool::space_map_loader::RUN_SEGMENTS;
use weir_pool::verify::{Plan, Progress, Report, verify};
use weir_pool::walk::{Prove, Walk};
use weir_pool::{Pool, indirect, roots};

/// Maximum number of leaks and damaged blocks that are listed; all are counted.
const LISTED: usize = 50;

/// Exit code when space and blocks disagree.
const LEAKED: u8 = 2;
/// Exit code when blocks cannot be read.
const DAMAGED: u8 = 3;

/// Runs the verification that the options request.
pub fn run(machine: &Machine, pool: &Pool, args: &ZdbArgs) -> Result<u8, Failure> {
    let prove = match args.checksum {
        0 => Prove::Nothing,
        1 => Prove::Metadata,
        _ => Prove::Everything,
    };
    let space = !args.no_leak_tracking;
    println!("\nTraversing all blocks {}...\n", aim(prove, space));
    let mut line = ProgressLine::new(machine.clock.clone());
    let report = machine
        .block_on(check(machine, pool, prove, space, &mut |progress| line.show(progress)))
        .map_err(|error| Failure::failed(error.to_string()))?;
    line.clear();
    print!("{}", devices(pool));
    print!("{}", findings(&report));
    print!("{}", summary(pool, &report));
    if args.block_stats > 1 {
        print!("{}", table(&report, args.block_stats > 2));
    }
    Ok(if report.unreadable_count > 0 {
        DAMAGED
    } else if report.is_clean() {
        0
    } else {
        LEAKED
    })
}

/// `-S`: what deduplication of all data would save, and the size of its tables.
pub fn simulate_dedup(machine: &Machine, pool: &Pool) -> Result<(), Failure> {
    let rq = Request::internal("zdb");
    let mut line = ProgressLine::new(machine.clock.clone());
    let total_bytes = pool.capacity.allocated_bytes;
    let mut show = |met_bytes| line.show(Progress { met_bytes, total_bytes, passes: 1, ..Progress::default() });
    let simulation = machine.block_on(simulate(&rq, pool, &mut show));
    line.clear();
    let simulation = simulation.map_err(|error| Failure::failed(format!("{}: {error}", pool.name())))?;
    let tables = DedupStatus::from(&simulation.tables);
    println!("Simulated DDT histogram:\n{}", crate::zpool::dedup_text(&tables, false));
    let [once, all] = tables.total();
    let [dedup, compress, copies] = [
        (all.deflated_bytes, once.deflated_bytes),
        (all.logical_bytes, all.physical_bytes),
        (all.deflated_bytes, all.physical_bytes),
    ]
    .map(|(of, to)| if to == 0 { 1.0 } else { of as f64 / to as f64 });
    let product = dedup * compress / copies;
    println!(
        "dedup = {dedup:.2}, compress = {compress:.2}, copies = {copies:.2}, dedup * compress / copies = {product:.2}\n"
    );
    match simulation.unreadable {
        0 => Ok(()),
        count => {
            Err(Failure::failed(format!("{count} blocks of pointers cannot be read: what is below them is missing")))
        }
    }
}

fn aim(prove: Prove, space: bool) -> String {
    let checksums = match prove {
        Prove::Nothing | Prove::Lacking => "",
        Prove::Metadata => "metadata checksums ",
        Prove::Everything => "checksums ",
    };
    match (prove, space) {
        (Prove::Nothing, false) => String::new(),
        (Prove::Nothing, true) => "to verify nothing leaked ".into(),
        (_, false) => format!("to verify {checksums}"),
        (_, true) => format!("to verify {checksums}and verify nothing leaked "),
    }
}

async fn check(
    machine: &Machine,
    pool: &Pool,
    prove: Prove,
    space: bool,
    show: &mut (dyn FnMut(Progress) + Send),
) -> Result<Report, weir_dmu::ObjectError> {
    let rq = Request::internal("zdb");
    let mut moved = std::collections::BTreeMap::new();
    for vdev in pool.tree.children.iter().filter(|v| v.kind == VdevKind::Indirect && v.indirect_object != 0) {
        let id = weir_format::ObjectId(vdev.indirect_object);
        moved.insert(vdev.id as u32, indirect::mapping(&rq, &pool.mos, id).await?.1);
    }
    let log_before = weir_format::Txg(pool.uberblock.txg.0.saturating_add(1));
    let walk = Walk { machine: machine.clone(), blocks: pool.blocks.clone(), prove, log_before };
    let plan = Plan { walk, mos: &pool.mos, tops: &pool.tree.children, moved, space, max_segments: RUN_SEGMENTS };
    let (roots, bad) = roots::roots(&rq, &pool.mos).await?;
    let mut report = verify(&rq, &plan, roots, show).await?;
    report.unreadable_count += bad;
    Ok(report)
}

/// Progress of the walk, on a terminal only.
struct ProgressLine {
    clock: Clock,
    start: Nanos,
    last: Nanos,
    shown: bool,
}

impl ProgressLine {
    fn new(clock: Clock) -> Self {
        let now = clock.now();
        ProgressLine { clock, start: now, last: now, shown: false }
    }

    fn show(&mut self, p: Progress) {
        const EVERY: Duration = Duration::from_millis(200);
        let now = self.clock.now();
        if now.since(self.last) < EVERY || !std::io::stderr().is_terminal() {
            return;
        }
        self.last = now;
        let seconds = now.since(self.start).as_secs_f64();
        let rate = p.met_bytes as f64 / seconds.max(1e-3);
        let left = p.total_bytes.saturating_sub(p.met_bytes) as f64 / rate.max(1.0);
        self.shown = true;
        let done = if p.total_bytes > 0 {
            format!(" ({:.0}%, {:.0} s left)", percent(p.met_bytes, p.total_bytes).min(100.0), left)
        } else {
            String::new()
        };
        // Only the first pass counts bytes.
        let done = match p.pass {
            0 | 1 => done,
            pass => format!(", space maps in pass {pass} of {}", p.passes),
        };
        let rate = human_bytes(rate as u64);
        let mut err = std::io::stderr().lock();
        // An error of a closed terminal is ignored.
        let _ = write!(err, "\r\x1b[K{} in {} blocks, {rate}/s{done}", human_bytes(p.met_bytes), p.blocks);
        if p.bad > 0 {
            let _ = write!(err, ", {} bad", p.bad);
        }
        let _ = err.flush();
    }

    fn clear(&self) {
        if self.shown {
            eprint!("\r\x1b[K");
        }
    }
}

/// Devices with read or checksum errors. Errors that redundancy repaired are shown but do not change the exit code.
fn devices(pool: &Pool) -> String {
    let mut out = String::new();
    for leaf in pool.blocks.tree().health() {
        let read = leaf.counts.read_errors;
        let checksum = leaf.counts.checksum_errors;
        if read + checksum > 0 {
            out += &format!("damaged copies: {} gave {checksum} wrong and {read} no answers\n", leaf.name);
        }
    }
    out
}

/// Findings, one line each.
fn findings(report: &Report) -> String {
    let mut out = String::new();
    for (at, error) in report.unreadable.iter().take(LISTED) {
        out += &format!("unreadable: {at} {error}\n");
    }
    if report.unreadable_count > 0 {
        out += &format!("{} blocks cannot be read\n", report.unreadable_count);
    }
    for clash in report.clashes.iter().take(LISTED) {
        let (vdev, offset, len) = clash.claim;
        let bytes = clash.bytes;
        out += &format!("allocated twice or free: {} at {vdev}:{offset:x}:{len:x}, {bytes} bytes\n", clash.at);
    }
    if report.clash_count > 0 {
        out += &format!("{} blocks use space that is free or another block's\n", report.clash_count);
    }
    let Some(space) = &report.space else { return out };
    for fault in space.faults.iter().take(LISTED) {
        out += &format!("{fault}\n");
    }
    for (vdev, offset, len) in report.leaks().take(LISTED) {
        out += &format!("leaked space: vdev {vdev}, offset {offset:#x}, size {len}\n");
    }
    let found = report.found_bytes();
    let allocated = report.allocated_bytes();
    out += &if report.space_agrees() && found == allocated {
        "\n\tNo leaks (block sum matches space maps exactly)\n".to_owned()
    } else {
        let leaked = allocated as i128 - found as i128;
        format!("block traversal size {found} != alloc {allocated} (leaked {leaked})\n")
    };
    out
}

fn summary(pool: &Pool, report: &Report) -> String {
    let t = report.counts.total();
    let average = |bytes: u64| bytes.checked_div(t.count).unwrap_or(0);
    let mut out = String::from("\n");
    let mut line = |name: &str, value: u64, rest: String| out += &format!("\t{name:<18}{value:>14}{rest}\n");
    let squeezed = |bytes: u64| format!("     compression: {:>6.2}", ratio(t.lsize_bytes, bytes));
    let avg = |bytes: u64| format!("      avg: {:>6}", average(bytes));
    line("bp count:", t.count, String::new());
    line("ganged count:", t.gangs, String::new());
    line("bp logical:", t.lsize_bytes, avg(t.lsize_bytes));
    line("bp physical:", t.psize_bytes, avg(t.psize_bytes) + &squeezed(t.psize_bytes));
    line("bp allocated:", t.asize_bytes, avg(t.asize_bytes) + &squeezed(t.asize_bytes));
    let (bytes, count) = report.deduped;
    let dedup = dedup_ratio(bytes, t.asize_bytes);
    line("bp deduped:", bytes, format!("    ref>1: {count:>6}   deduplication: {dedup:>6.2}"));
    let (bytes, count) = report.cloned;
    line("bp cloned:", bytes, format!("    count: {count:>6}"));
    for (class, name) in [
        (Class::Normal, "Normal class:"),
        (Class::Special, "Special class"),
        (Class::Dedup, "Dedup class"),
        (Class::Log, "Log class"),
    ] {
        let vdevs = pool.space.vdevs.iter().filter(|v| v.concrete && v.class == class);
        // zdb creates metaslabs for removed vdevs too, so their size is a part of their class.
        let removed = pool.tree.children.iter().filter(|v| v.kind == VdevKind::Indirect && v.class == class);
        let removed: u64 = removed.map(metaslab_bytes).sum();
        let size = vdevs.clone().map(|v| v.space_bytes()).sum::<u64>() + removed;
        // As of the last flush of each metaslab, without the log space maps, as zdb counts it.
        let used: u64 = vdevs.clone().map(|v| v.map_bytes()).sum();
        // The metaslabs that are reserved for the intent log are a class of their own.
        let embedded = || vdevs.clone().filter_map(|v| v.embedded_log());
        let log_size: u64 = embedded().map(|metaslab| metaslab.size_bytes).sum();
        let log_used: u64 = embedded().map(|metaslab| metaslab.allocated_bytes).sum();
        let mut class_line = |name: &str, used: u64, size: u64| {
            if size > 0 {
                line(name, used, format!("     used: {:>5.2}%", percent(used, size)));
            }
        };
        class_line(name, used - log_used, size - log_size);
        class_line(
            if class == Class::Normal { "Embedded log class" } else { "Special embedded log" },
            log_used,
            log_size,
        );
    }
    if let Some(space) = report.space.as_ref().filter(|s| s.checkpoint_bytes > 0) {
        line("Checkpoint keeps:", space.checkpoint_bytes, String::new());
    }
    out += "\n";
    for (kind, count) in report.counts.embedded.iter().enumerate().filter(|(_, n)| **n > 0) {
        out += &format!("\tadditional, non-pointer bps of type {kind}: {count:>10}\n");
    }
    if t.ditto_same_vdev > 0 {
        out += &format!("\tDittoed blocks on same vdev: {}\n", t.ditto_same_vdev);
    }
    if t.ditto_same_metaslab > 0 {
        out += &format!("\tDittoed blocks in same metaslab: {}\n", t.ditto_same_metaslab);
    }
    out
}

/// Bytes of the metaslabs that fit into a vdev.
fn metaslab_bytes(vdev: &VdevConfig) -> u64 {
    let shift = vdev.metaslab_shift.min(63) as u32;
    if shift == 0 { 0 } else { vdev.asize_bytes >> shift << shift }
}

/// Ratio that deduplication saved, as zdb computes it: saved bytes relative to those of all pointers, plus 1.
fn dedup_ratio(saved_bytes: u64, pointed_bytes: u64) -> f64 {
    percent(saved_bytes, pointed_bytes) / 100.0 + 1.0
}

/// The table by type, and by level with `levels`.
fn table(report: &Report, levels: bool) -> String {
    let mut out = String::from("\nBlocks\tLSIZE\tPSIZE\tASIZE\t  avg\t comp\t%Total\tType\n");
    let total = report.counts.total().asize_bytes;
    for row in (0..ROWS).filter(|r| *r != TOTAL).chain([TOTAL]) {
        let sum = report.counts.cell(row, None);
        if sum.count == 0 {
            continue;
        }
        let mut line = |c: block_stats::Cell, name: String| {
            let share = percent(c.asize_bytes, total);
            let average = c.asize_bytes.checked_div(c.count).unwrap_or(0);
            out += &format!(
                "{:>6}\t{:>5}\t{:>5}\t{:>5}\t{:>5}\t{:>5.2}\t{share:>6.2}\t{name}\n",
                human(c.count),
                human(c.lsize_bytes),
                human(c.psize_bytes),
                human(c.asize_bytes),
                human(average),
                ratio(c.lsize_bytes, c.psize_bytes),
            );
        };
        let name = block_stats::row_name(row);
        let used: Vec<usize> = (0..LEVELS).rev().filter(|l| report.counts.cell(row, Some(*l)).count > 0).collect();
        if levels && used.len() > 1 {
            for level in used {
                line(report.counts.cell(row, Some(level)), format!("    L{level} {name}"));
            }
        }
        line(sum, name.to_owned());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dedup_ratio_is_saved_bytes_in_proportion_to_all_plus_1() {
        assert!((dedup_ratio(10, 100) - 1.1).abs() < 1e-9);
        assert!((dedup_ratio(0, 0) - 1.0).abs() < 1e-9);
    }
}
