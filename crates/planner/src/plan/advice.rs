//! Advice: sentences with their reason, and where a simulation can tell, with its figures.

use super::capacity::Capacity;
use super::description::{CACHE_DRIVE, Description};
use super::load::{Prediction, predict};
use super::risk::Risk;
use super::{PlanError, count};
use crate::hardware::drive::DriveSpec;
use crate::simulate::outcome::{Busy, Limit};
use crate::simulate::server::{PoolSpec, VdevLayout};
use crate::simulate::workload::Order;

/// Share of a pool in use above which free space is in small pieces.
const FULL_PERCENT: f64 = 80.0;
/// Yearly probability of loss that is worth a sentence.
const RISKY: f64 = 0.001;
/// A flush that takes longer than this makes a log device worth its slot, in microseconds.
const SLOW_FLUSH_US: f64 = 200.0;

/// How busy the limit was, from 0 to 1.
pub(super) fn share(limit: Limit, busy: &Busy) -> f64 {
    match limit {
        Limit::Disks => busy.disks,
        Limit::LogDevice => busy.log,
        Limit::CacheDevice => busy.cache,
        Limit::Processors => busy.processors,
        Limit::ServerLink => busy.link_to_server.max(busy.link_to_clients),
        Limit::ClientLink => busy.client_link,
        Limit::Latency => 0.0,
    }
}

fn flushes_slowly(drive: &DriveSpec) -> bool {
    match drive {
        DriveSpec::Rotating(_) => true,
        DriveSpec::Flash(flash) => flash.flush_us > SLOW_FLUSH_US,
    }
}

/// The prediction of a changed description beside that of now, as text.
fn compared(description: &Description, now: &Prediction, seed: u64, seconds: f64) -> Result<String, PlanError> {
    let changed = predict(description, seed, seconds)?.outcome;
    let before = &now.outcome;
    let after = &changed;
    Ok(format!(
        "by simulation {} instead of {} operations a second, 99 % within {} instead of {}",
        count(after.operations_per_second),
        count(before.operations_per_second),
        super::text::time_us(after.latency_us[3]),
        super::text::time_us(before.latency_us[3])
    ))
}

/// The sentences. `compares`: simulate changes too.
pub(super) fn advice(
    description: &Description,
    capacity: &Capacity,
    now: &Prediction,
    risk: &Risk,
    (seed, seconds, compares): (u64, f64, bool),
) -> Result<Vec<String>, PlanError> {
    let pool = description.pool_spec()?;
    let limit = now.outcome.limit;
    let mut out = Vec::new();
    out.push(match limit {
        Limit::Latency => {
            format!("Nothing is saturated; the clients wait for answers. Faster with {}.", limit.remedy())
        }
        _ => format!(
            "Faster with {}; the limit is {}, at work {:.0} % of the time.",
            limit.remedy(),
            limit.words(),
            share(limit, &now.outcome.busy) * 100.0
        ),
    });
    let simulated = |changed: Description| {
        if compares {
            compared(&changed, now, seed, seconds).map(|figures| format!(": {figures}"))
        } else {
            Ok(String::new())
        }
    };
    if description.writes_are_stable() && pool.log.is_none() && flushes_slowly(&pool.drive) {
        let mut changed = description.clone();
        changed.pool.log = Some(toml::Value::String("log-device".to_owned()));
        out.push(format!(
            "Log device: each write waits until the data disks have flushed it. A device with power-loss protection answers sooner{}.",
            simulated(changed)?
        ));
    }
    if pool.log.is_some() && !description.writes_are_stable() {
        out.push("Log device: this load does not use it, because no write waits until it is stable.".to_owned());
    }
    memory(description, now, &simulated, &mut out)?;
    records(description, &pool, capacity, &mut out)?;
    out.extend(safety(description, &pool, risk));
    Ok(out)
}

fn gb(bytes: u64) -> String {
    format!("{:.1} GB", bytes as f64 / 1e9)
}

fn memory(
    description: &Description,
    now: &Prediction,
    simulated: &dyn Fn(Description) -> Result<String, PlanError>,
    out: &mut Vec<String>,
) -> Result<(), PlanError> {
    let arc = description.arc_bytes();
    let files = description.working_set_bytes();
    if description.workload.read_percent == 0 {
        return Ok(());
    }
    if arc >= files {
        out.push(format!(
            "Memory: the ARC of {} holds the files of {}; more memory brings nothing for this load, nor does a cache device.",
            gb(arc),
            gb(files)
        ));
        return Ok(());
    }
    let cached = now.outcome.arc_share() * 100.0;
    if now.outcome.limit != Limit::Disks {
        out.push(format!(
            "Memory: the ARC of {} gave {cached:.0} % of the bytes read, and the disks are not the limit; more memory would bring little.",
            gb(arc)
        ));
        return Ok(());
    }
    let mut changed = description.clone();
    changed.server.arc_gb = None;
    changed.server.memory_gb *= 2.0;
    let figures = simulated(changed)?;
    out.push(format!(
        "Memory: the ARC of {} holds part of the files of {} and gave {cached:.0} % of the bytes read; twice the memory would hold more{figures}.",
        gb(arc),
        gb(files)
    ));
    if description.order()? == Order::Random && description.pool.cache_gb.is_none() {
        let mut changed = description.clone();
        let cache_gb = (files as f64 / 1e9).max(0.1);
        changed.pool.cache_gb = Some(cache_gb);
        out.push(format!(
            "Cache device: one of {cache_gb:.1} GB ({CACHE_DRIVE}) would hold all files once it is full{}.",
            simulated(changed)?
        ));
    }
    Ok(())
}

fn records(
    description: &Description,
    pool: &PoolSpec,
    capacity: &Capacity,
    out: &mut Vec<String>,
) -> Result<(), PlanError> {
    let operation = (description.workload.operation_kib * 1024.0) as u64;
    let kib = |bytes: u64| bytes as f64 / 1024.0;
    if description.order()? == Order::Random && operation < pool.record_bytes {
        let factor = pool.record_bytes as f64 / operation as f64;
        out.push(format!(
            "Record size: a random operation of {} KiB reads a record of {} KiB, and a write stores it anew: {factor:.0} times the bytes. With record_kib = {} it would not.",
            kib(operation),
            kib(pool.record_bytes),
            kib(operation.next_power_of_two().max(4096))
        ));
    }
    let [data, allocated] = capacity.sectors_record;
    if let VdevLayout::Raidz(parity, width) = pool.layout {
        let ideal = (width - usize::from(parity)) as f64 / width as f64;
        let own = data as f64 / allocated as f64;
        if own < 0.9 * ideal {
            out.push(format!(
                "Space: a record of {} KiB takes {allocated} sectors for {data} of data, {:.1} %, because of parity and padding; \
                 {width} drives with {parity} of parity suggest {:.1} %. Larger records, compression off or mirrors waste less.",
                kib(pool.record_bytes),
                own * 100.0,
                ideal * 100.0
            ));
        }
    }
    Ok(())
}

fn safety(description: &Description, pool: &PoolSpec, risk: &Risk) -> Vec<String> {
    let mut out = Vec::new();
    if pool.layout.redundancy() == 0 {
        out.push("Redundancy: none. The failure of one drive loses the pool.".to_owned());
    } else if risk.pool > RISKY {
        out.push(format!(
            "Redundancy: {:.2} % of such pools are lost in a year. One more drive of redundancy, or a hot spare instead of {} days of waiting, reduces that.",
            risk.pool * 100.0,
            description.failures.replacement_days
        ));
    }
    if risk.blocks > 10.0 * RISKY {
        out.push(format!(
            "Redundancy: in {:.1} % of such pools a resilver in a year finds sectors that it cannot read, and files are lost. One more drive of redundancy would repair them.",
            risk.blocks * 100.0
        ));
    }
    if description.pool.fill_percent > FULL_PERCENT {
        out.push(format!(
            "Space: {} % is in use. Above {FULL_PERCENT} % free space is in small pieces and writes become slow; the simulation begins with free space in one piece.",
            description.pool.fill_percent
        ));
    }
    if let DriveSpec::Flash(flash) = &pool.drive
        && description.workload.read_percent < 100
        && flash.sustained_mb_s < 0.8 * flash.write_mb_s
    {
        out.push(format!(
            "Long writes: after about {:.0} GB to each drive its write buffer is full, and it takes {:.0} MB/s instead of {:.0}.",
            flash.buffer_gb, flash.sustained_mb_s, flash.write_mb_s
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_device_makes_stable_writes_to_disks_faster() {
        let described = |log: &str| {
            let pool = "[pool]\ndrive = \"hdd-7k\"\ndrive_tb = 1\nlayout = \"single\"\n";
            let load = "[workload]\nread_percent = 0\nstable = true\nfile_mib = 8\n";
            Description::parse(&format!("{pool}{log}{load}")).unwrap()
        };
        let without = described("");
        let now = predict(&without, 1, 0.2).unwrap();
        let with = predict(&described("log = \"log-device\"\n"), 1, 0.2).unwrap();
        let [before, after] = [&now, &with].map(|one| one.outcome.operations_per_second);
        assert!(after > 3.0 * before, "{before} {after}");
        let pool = without.pool_spec().unwrap();
        let capacity = super::super::capacity::computed(&pool);
        let risk = super::super::risk::risk(pool.layout, 1, 1 << 40, 0.0, without.failures);
        let sentences = advice(&without, &capacity, &now, &risk, (1, 0.2, true)).unwrap();
        let log = sentences.iter().find(|sentence| sentence.starts_with("Log device: each write waits")).unwrap();
        assert!(log.contains(&format!("by simulation {} instead of {}", count(after), count(before))), "{log}");
        assert!(sentences.iter().any(|sentence| sentence.starts_with("Redundancy: none.")), "{sentences:?}");
    }
}
