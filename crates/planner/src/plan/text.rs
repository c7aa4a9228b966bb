//! Plans, comparisons and series as text.

use super::advice::share;
use super::description::Description;
use super::sweep::Series;
use super::{Plan, count};
use crate::simulate::server::PoolSpec;
use std::fmt::Write;

/// Columns of a bar.
const BAR: usize = 40;

/// A time of `us` microseconds with its unit.
pub fn time_us(us: f64) -> String {
    match us {
        us if us < 1000.0 => format!("{us:.0} µs"),
        us if us < 1_000_000.0 => format!("{:.2} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}

/// Hours, or a smaller or larger unit that suits.
fn time_h(hours: f64) -> String {
    match hours {
        hours if hours < 1.0 => format!("{:.1} minutes", hours * 60.0),
        hours if hours < 72.0 => format!("{hours:.1} hours"),
        hours => format!("{:.1} days", hours / 24.0),
    }
}

fn tb(bytes: u64) -> String {
    if bytes < 1_000_000_000_000 {
        return format!("{:.1} GB", bytes as f64 / 1e9);
    }
    format!("{:.2} TB", bytes as f64 / 1e12)
}

fn mib(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / 1048576.0)
}

/// A probability in percent with two significant digits.
fn percent(probability: f64) -> String {
    let value = probability * 100.0;
    match value {
        0.0 => "0 %".to_owned(),
        value if value >= 0.01 => format!("{value:.2} %"),
        value => format!("{value:.1e} %"),
    }
}

/// The pool in words.
pub(super) fn pool_words(description: &Description, pool: &PoolSpec) -> String {
    let section = &description.pool;
    let drive = section.drive.as_str().unwrap_or("drive");
    let log = if pool.log.is_some() { " and a log device" } else { "" };
    let cache = section.cache_gb.map_or(String::new(), |gb| format!(" and a cache device of {gb:.0} GB"));
    format!(
        "{} × {} of {} × {} of {} TB{log}{cache}",
        pool.vdevs,
        section.layout,
        pool.layout.disks(),
        drive,
        section.drive_tb
    )
}

/// The text of a plan.
pub fn plan(plan: &Plan) -> String {
    let mut out = String::new();
    let mut line = |text: String| _ = writeln!(out, "{text}");
    let title = if plan.name.is_empty() { plan.pool.clone() } else { format!("{}: {}", plan.name, plan.pool) };
    line(title);
    load(plan, &mut line);
    space(plan, &mut line);
    copies(plan, &mut line);
    risk(plan, &mut line);
    bill(plan, &mut line);
    line(String::new());
    line("Advice".to_owned());
    for sentence in &plan.advice {
        line(format!("  - {sentence}"));
    }
    out
}

fn load(plan: &Plan, line: &mut dyn FnMut(String)) {
    let prediction = &plan.prediction;
    let outcome = &prediction.outcome;
    line(String::new());
    line(format!("Load, by simulation of {:.2} s", outcome.seconds));
    line(format!("  throughput  {:.1} MB/s read, {:.1} MB/s written", outcome.read_mb_s, outcome.write_mb_s));
    line(format!("  operations  {} a second", count(outcome.operations_per_second)));
    let [mean, median, p95, p99] = outcome.latency_us.map(time_us);
    line(format!("  latency     mean {mean}, median {median}, 95 % within {p95}, 99 % within {p99}"));
    let percent = match share(outcome.limit, &outcome.busy) {
        0.0 => String::new(),
        share => format!(", at work {:.0} % of the time", share * 100.0),
    };
    line(format!("  limit       {}{percent}", outcome.limit.words()));
    let busy = &outcome.busy;
    line(format!(
        "  at work     disks {:.0} %, log {:.0} %, processors {:.0} %, server's link {:.0} %, a client's link {:.0} %",
        busy.disks * 100.0,
        busy.log * 100.0,
        busy.processors * 100.0,
        busy.link_to_server.max(busy.link_to_clients) * 100.0,
        busy.client_link * 100.0
    ));
    if outcome.read_mb_s > 0.0 {
        line(format!("  from ARC    {:.0} % of the bytes read", outcome.arc_share() * 100.0));
        if outcome.l2arc_share() > 0.0 || busy.cache > 0.0 {
            let [share, busy] = [outcome.l2arc_share(), busy.cache].map(|share| share * 100.0);
            line(format!(
                "  from L2ARC  {share:.0} % of the bytes read; the cache device is at work {busy:.0} % of the time"
            ));
        }
    }
    let [arc, dirty, files] = prediction.simulated_bytes.map(mib);
    let scale = match prediction.scale {
        1 => "ARC and files are not scaled".to_owned(),
        scale => format!("ARC and files are divided by {scale}"),
    };
    line(format!("  scale       {scale}: ARC {arc}, files {files}; dirty data at most {dirty}"));
}

fn space(plan: &Plan, line: &mut dyn FnMut(String)) {
    let capacity = &plan.capacity;
    let [data, allocated] = capacity.sectors_128k;
    line(String::new());
    line("Usable space".to_owned());
    line(format!(
        "  rule        {} = (drives − parity) × size; raw {}",
        tb(capacity.rule_bytes),
        tb(capacity.raw_bytes)
    ));
    line(format!(
        "  exact       {} = {:.2} TiB: USED and AVAIL of zfs list together, of the pool that the engine makes",
        tb(capacity.usable_bytes),
        capacity.usable_bytes as f64 / (1u64 << 40) as f64
    ));
    let [all, bytes] = capacity.metaslabs;
    let [vdevs, count] = capacity.data_metaslabs;
    let log = if count < all { ", one more for the log of each" } else { "" };
    line(format!(
        "  arithmetic  {}: {vdevs} vdevs × {count} metaslabs of {} MiB{log} × {}/512 ({data} of {allocated} sectors of a 128 KiB block) = {}, slop {}",
        tb(capacity.computed_bytes),
        bytes >> 20,
        capacity.deflate_512ths,
        tb(capacity.deflated_bytes),
        tb(capacity.slop_bytes)
    ));
    let [data, allocated] = capacity.sectors_record;
    line(format!(
        "  records     {} of data in records of this size ({data} of {allocated} sectors), less at most {} of indirect blocks",
        tb(capacity.record_data_bytes),
        tb(capacity.metadata_bytes)
    ));
}

fn copies(plan: &Plan, line: &mut dyn FnMut(String)) {
    if plan.copies.is_none() && plan.resilver.is_none() {
        return;
    }
    line(String::new());
    line("Hours".to_owned());
    if let Some(copies) = &plan.copies {
        let [rate, hours] = copies.read;
        line(format!("  backup      {} for {}, read by one client at {rate:.0} MB/s", time_h(hours), tb(copies.bytes)));
        let [rate, hours] = copies.write;
        line(format!(
            "  full copy   {} for {}, written by one client at {rate:.0} MB/s",
            time_h(hours),
            tb(copies.bytes)
        ));
    }
    if let Some(resilver) = &plan.resilver {
        line(format!(
            "  resilver    {} for {} on the new drive at {:.0} MB/s, of an idle pool written in order (simulated: {} in {:.1} s)",
            time_h(resilver.hours),
            tb(resilver.drive_bytes),
            resilver.written_bytes as f64 / 1e6 / resilver.seconds,
            mib(resilver.written_bytes),
            resilver.seconds
        ));
    }
}

fn risk(plan: &Plan, line: &mut dyn FnMut(String)) {
    let Some(risk) = &plan.risk else { return };
    let failures = &risk.failures;
    line(String::new());
    line("Risk in a year".to_owned());
    line(format!("  pool lost   {}", percent(risk.pool)));
    line(format!(
        "  files lost  {}; a resilver without redundancy meets an unreadable sector with {}",
        percent(risk.blocks),
        percent(risk.unreadable)
    ));
    line(format!(
        "  assumed     {} % of drives fail in a year, {:.0e} of bits are unreadable, {} days until a new drive is in",
        failures.annual_failure_percent, failures.unrecoverable_read_per_bit, failures.replacement_days
    ));
    line(format!(
        "  formula     n λ · Π (n − i) λ T for each vdev, i up to its redundancy; λ = {:.4} a year, T = {:.1} h; failures independent",
        risk.lambda, risk.exposed_hours
    ));
}

fn bill(plan: &Plan, line: &mut dyn FnMut(String)) {
    let Some(bill) = &plan.bill else { return };
    let noise = bill.noise_db.map_or(String::new(), |db| format!(", {db:.1} dB(A)"));
    let currency = if bill.currency.is_empty() { String::new() } else { format!(" {}", bill.currency) };
    line(String::new());
    line("Prices, from your list".to_owned());
    line(format!("  sum         {:.2}{currency}, {:.1} W, {} slots{noise}", bill.price, bill.watts, bill.slots));
    let [price, watts, slots] = bill.per_tb;
    line(format!("  per TB      {price:.2}{currency}, {watts:.2} W, {slots:.2} slots"));
    let [price, watts, slots] = bill.per_1000_iops;
    line(format!("  per 1,000 operations a second  {price:.2}{currency}, {watts:.2} W, {slots:.2} slots"));
}

/// Plans side by side.
pub fn comparison(plans: &[Plan]) -> String {
    let mut rows: Vec<Vec<String>> = vec![
        ["plan", "usable", "MB/s", "operations/s", "median", "99 %", "limit", "resilver", "pool lost", "price/TB"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for plan in plans {
        let outcome = &plan.prediction.outcome;
        let missing = || "-".to_owned();
        rows.push(vec![
            plan.name.clone(),
            tb(plan.capacity.usable_bytes),
            format!("{:.1}", outcome.mb_s()),
            count(outcome.operations_per_second),
            time_us(outcome.latency_us[1]),
            time_us(outcome.latency_us[3]),
            limit_word(outcome.limit).to_owned(),
            plan.resilver.map_or_else(missing, |resilver| time_h(resilver.hours)),
            plan.risk.as_ref().map_or_else(missing, |risk| percent(risk.pool)),
            plan.bill.as_ref().map_or_else(missing, |bill| format!("{:.2}", bill.per_tb[0])),
        ]);
    }
    table(&rows)
}

pub(super) fn limit_word(limit: crate::simulate::outcome::Limit) -> &'static str {
    use crate::simulate::outcome::Limit;
    match limit {
        Limit::Disks => "disks",
        Limit::LogDevice => "log device",
        Limit::CacheDevice => "cache device",
        Limit::Processors => "processors",
        Limit::ServerLink => "server's link",
        Limit::ClientLink => "clients' links",
        Limit::Latency => "latency",
    }
}

/// Columns as wide as their widest cell; the first one and words to the left.
pub(super) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut out = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| {
            let space = " ".repeat(width - cell.chars().count());
            format!("{cell}{space}")
        });
        out.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        out.push('\n');
    }
    out
}

/// A series as a table with a bar for each rate.
pub fn series(series: &Series) -> String {
    let by_size = series.key == "workload.operation_kib";
    let rate = |at: usize| {
        let point = &series.points[at];
        if by_size { point.mb_s } else { point.operations_per_second }
    };
    let most = (0..series.points.len()).map(rate).fold(f64::MIN_POSITIVE, f64::max);
    let mut rows = vec![
        [
            series.key.as_str(),
            "MB/s",
            "operations/s",
            "median",
            "99 %",
            "limit",
            if by_size { "MB/s" } else { "operations/s" },
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    for (at, point) in series.points.iter().enumerate() {
        let bar = "█".repeat((rate(at) / most * BAR as f64).round() as usize);
        rows.push(vec![
            point.value.clone(),
            format!("{:.1}", point.mb_s),
            count(point.operations_per_second),
            time_us(point.latency_us[0]),
            time_us(point.latency_us[1]),
            limit_word(point.limit).to_owned(),
            if series.knee == Some(at) { format!("{bar} ← knee") } else { bar },
        ]);
    }
    let knee = match series.knee {
        Some(at) => format!(
            "Knee at {} = {}: the next step gives less than half of the gain that is proportional to it.\n",
            series.key, series.points[at].value
        ),
        None => "No knee: each step gives at least half of the gain that is proportional to it, or the values do not grow.\n"
            .to_owned(),
    };
    table(&rows) + &knee
}
