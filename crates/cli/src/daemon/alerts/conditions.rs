//! Conditions of pools and jobs that an administrator should know of.

use super::lag;
use super::settings::{AlertSettings, Kind};
use crate::admin::ServedPool;
use crate::daemon::keeper::Daemon;
use crate::units::human_bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_admin::below;
use weir_dsl::Scope;
use weir_dsl::props::{self, Value};
use weir_machine::Request;
use weir_pool::config::{VdevConfig, VdevKind};
use weir_pool::properties::properties;
use weir_pool::scan_status::{Stage, last_scan};
use weir_pool::status::{SUSPENDED, VdevState};
use weir_pool::{OpenOptions, Pool, dtls};

/// Stored value of `sync=disabled` (`ZFS_SYNC_DISABLED`).
const SYNC_DISABLED: u64 = 2;
/// Seconds of a day.
const DAY: u64 = 86_400;
/// Seconds between two points of a pool's allocated bytes.
const FILL_INTERVAL: u64 = 3600;
/// Maximum number of points: a week.
const FILL_POINTS: usize = 7 * 24;
/// Minimum time that points cover before they say anything.
const FILL_MIN: u64 = DAY;
/// Seconds for which a slow operation counts.
const SLOW_TIME: u64 = 600;
/// Maximum number of datasets that one alert names.
const MAX_NAMES: usize = 8;

/// A condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Kind.
    pub kind: Kind,
    /// Pool, device or job.
    pub subject: String,
    /// Short text that changes only if the condition becomes another one: then the alert is sent again.
    pub state: String,
    /// One or two sentences with figures.
    pub text: String,
    /// Whether data, or its redundancy, is in danger.
    pub critical: bool,
}

impl Condition {
    /// Name of the alert.
    pub fn id(&self) -> String {
        format!("{}:{}", self.kind.word(), self.subject)
    }
}

/// Earlier figures of a pool, with which present ones are compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolPast {
    /// Seconds since 1970 and allocated bytes, the oldest first.
    pub allocated: Vec<(u64, u64)>,
    /// Number of slow operations by GUID of the device, and when it last grew, in seconds since 1970.
    #[serde(skip)]
    pub slow: BTreeMap<u64, (u64, Option<u64>)>,
}

impl PoolPast {
    /// Adds a point, if the last one is old enough.
    fn note(&mut self, now: u64, allocated: u64) {
        if self.allocated.last().is_some_and(|(time, _)| now < time.saturating_add(FILL_INTERVAL)) {
            return;
        }
        if self.allocated.len() >= FILL_POINTS {
            self.allocated.drain(..=self.allocated.len() - FILL_POINTS);
        }
        self.allocated.push((now, allocated));
        debug_assert!(self.allocated.len() <= FILL_POINTS, "the oldest point goes");
    }

    /// Days until `free` bytes are used at the rate of the points; `None` if they say nothing, or the pool does not grow.
    fn days_left(&self, free: u64) -> Option<f64> {
        let (first, last) = (self.allocated.first()?, self.allocated.last()?);
        let seconds = last.0.checked_sub(first.0).filter(|seconds| *seconds >= FILL_MIN)?;
        let grown = last.1.checked_sub(first.1).filter(|grown| *grown > 0)?;
        Some(free as f64 / grown as f64 * seconds as f64 / DAY as f64)
    }
}

/// All conditions now.
pub async fn gather(
    daemon: &Arc<Daemon>,
    settings: &AlertSettings,
    past: &mut BTreeMap<u64, PoolPast>,
    now: u64,
) -> Vec<Condition> {
    let mut out = Vec::new();
    let open = daemon.process.all();
    past.retain(|guid, _| open.iter().any(|pool| pool.guid() == *guid));
    for pool in &open {
        let past = past.entry(pool.guid()).or_default();
        let before = out.len();
        if let Err(error) = of_pool(pool, settings, past, now, &mut out).await {
            tracing::debug!("pool '{}': alerts: {error}", pool.engine.name());
            out.truncate(before);
            out.push(unread(pool, &error));
        }
    }
    for missing in daemon.remembered.all().into_iter().filter(|missing| !missing.why.is_empty()) {
        let name = missing.cached.name;
        let text = format!("pool '{name}' cannot be opened: {}", missing.why);
        out.push(Condition { kind: Kind::NotOpen, subject: name, state: "not open".into(), text, critical: true });
    }
    for status in daemon.jobs.all() {
        out.extend(lag::of_job(daemon, &status.job, now).await);
        let Some(Err(why)) = status.runs.first().map(|run| &run.result) else { continue };
        let text = format!("job '{}' failed: {why}", status.job.name);
        let state = "failed".into();
        out.push(Condition { kind: Kind::JobFailed, subject: status.job.name, state, text, critical: false });
    }
    out.retain(|condition| !settings.ignored.contains(&condition.kind));
    out
}

/// The condition of a pool that cannot be read: its devices are away, so that it is suspended, or its metadata is damaged.
fn unread(pool: &ServedPool, error: &str) -> Condition {
    let name = pool.engine.name();
    let (state, text) = match pool.engine.devices().suspended_because() {
        Some(why) => (SUSPENDED, format!("pool '{name}' is suspended: {why}")),
        None => ("unreadable", format!("pool '{name}' cannot be read: {error}")),
    };
    Condition { kind: Kind::Pool, subject: name, state: state.to_owned(), text, critical: true }
}

async fn of_pool(
    served: &Arc<ServedPool>,
    settings: &AlertSettings,
    past: &mut PoolPast,
    now: u64,
    out: &mut Vec<Condition>,
) -> Result<(), String> {
    let failed = |error: weir_pool::PoolError| error.to_string();
    let rq = &Request::internal("alerts");
    let options = OpenOptions::new(served.device_paths(), served.guid().to_string());
    let view = served.engine.synced().view(&options).await.map_err(failed)?;
    let pool: &Pool = &view;
    let name = pool.name().to_owned();
    let health = pool.health();
    if let Some(problem) = weir_admin::problem_of(pool).await.map_err(failed)? {
        let state = format!("{health} {problem:?}");
        add(
            out,
            Kind::Pool,
            &name,
            state,
            format!("pool '{name}' is {health}: {} {}", problem.status(), problem.action()),
            health != "ONLINE",
        );
    }
    for top in without_redundancy(pool) {
        let text = format!("pool '{name}': {top} has no redundancy left; the next failure of a device loses data");
        add(out, Kind::NoRedundancy, &format!("{name}/{top}"), "none left".into(), text, true);
    }
    let all = properties(rq, pool, None).await.map_err(failed)?;
    let number = |wanted: &str| -> Option<u64> {
        all.iter().find(|property| property.name == wanted)?.value.text(true).trim_end_matches('%').parse().ok()
    };
    if let (Some(percent), Some(free), Some(allocated)) = (number("capacity"), number("free"), number("allocated")) {
        if percent >= settings.capacity_percent {
            let limit = settings.capacity_percent;
            let text =
                format!("pool '{name}' is {percent} % full, {} are free; the limit is {limit} %", human_bytes(free));
            add(out, Kind::Capacity, &name, "full".into(), text, percent >= 95);
        }
        past.note(now, allocated);
        if let Some(days) = past.days_left(free).filter(|days| *days < settings.fill_days as f64) {
            let text = format!("pool '{name}' is full in {days:.1} days if it fills on at the rate of the last days");
            add(out, Kind::Filling, &name, "filling".into(), text, false);
        }
    }
    for leaf in served.engine.cache.blocks().tree().health() {
        let slow = leaf.counts.slow;
        let (before, grew_at) = past.slow.get(&leaf.guid).copied().unwrap_or((slow, None));
        let grew_at = if slow > before { Some(now) } else { grew_at };
        past.slow.insert(leaf.guid, (slow, grew_at));
        if grew_at.is_some_and(|time| now < time.saturating_add(SLOW_TIME)) {
            let text = format!("pool '{name}': operations of {} take longer than slow_io ({slow} so far)", leaf.name);
            add(out, Kind::SlowDevice, &format!("{name}/{}", leaf.name), "slow".into(), text, false);
        }
    }
    if let Some(days) = settings.scrub_days
        && let Some(text) = scrub_overdue(rq, pool, days, now).await.map_err(failed)?
    {
        add(out, Kind::ScrubOverdue, &name, "overdue".into(), format!("pool '{name}': {text}"), false);
    }
    drop(view);
    let names = without_sync(served, rq).await?;
    if !names.is_empty() {
        let more = names.len().saturating_sub(MAX_NAMES);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let shown = names.iter().take(MAX_NAMES).map(String::as_str).collect::<Vec<_>>().join(", ");
        let text = format!("sync=disabled on {shown}{more}: a crash loses what clients believe to be stable");
        // Another dataset is news.
        add(out, Kind::SyncDisabled, &name, names.join(","), text, false);
    }
    Ok(())
}

fn add(out: &mut Vec<Condition>, kind: Kind, subject: &str, state: String, text: String, critical: bool) {
    out.push(Condition { kind, subject: subject.to_owned(), state, text, critical });
}

/// Top-level vdevs that have redundancy by their kind, and cannot lose one more device.
fn without_redundancy(pool: &Pool) -> Vec<String> {
    let lacking = pool.dtls();
    let of_leaf = |leaf: &VdevConfig| {
        let is_there = pool.states.get(&leaf.guid).is_none_or(|state| state.is_usable());
        if is_there { lacking.get(&leaf.guid).cloned().unwrap_or_default() } else { weir_blocks::Dtl::all() }
    };
    let is_short = |top: &&VdevConfig| {
        let redundant = matches!(top.kind, VdevKind::Mirror | VdevKind::Raidz { .. } | VdevKind::Draid { .. });
        let degraded = pool.states.get(&top.guid) == Some(&VdevState::Degraded);
        redundant && degraded && top.leaves().iter().any(|leaf| dtls::is_required(top, leaf.guid, &of_leaf))
    };
    pool.tree.children.iter().filter(is_short).map(VdevConfig::name).collect()
}

/// Why a scrub is overdue, if it is.
async fn scrub_overdue(rq: &Request, pool: &Pool, days: u64, now: u64) -> Result<Option<String>, weir_pool::PoolError> {
    let last = last_scan(pool, rq).await?.filter(|scan| !scan.resilver);
    let limit = days.saturating_mul(DAY);
    let text = match last {
        Some(scan) if scan.stage == Stage::Running => None,
        Some(scan) if scan.stage == Stage::Finished => {
            let age = now.saturating_sub(scan.end_s);
            (age > limit).then(|| format!("the last scrub ended {} days ago; the limit is {days} days", age / DAY))
        }
        _ => {
            let created = pool.dataset(rq, pool.name()).await?.phys.creation_time_s;
            let age = now.saturating_sub(created);
            (age > limit).then(|| format!("no scrub was completed since it was created {} days ago", age / DAY))
        }
    };
    Ok(text)
}

/// Datasets with `sync=disabled` of their own.
async fn without_sync(served: &Arc<ServedPool>, rq: &Request) -> Result<Vec<String>, String> {
    let failed = |error: &dyn std::fmt::Display| error.to_string();
    let dsl = served.engine.synced().dsl_in(rq, Scope::All).await.map_err(|error| failed(&error))?;
    let mut names = Vec::new();
    for dir in below(&dsl, &served.engine.name()) {
        let stored = dsl.stored(rq, dir).await.map_err(|error| failed(&error))?;
        if let Some((Value::Number(SYNC_DISABLED), _)) = props::stored_value(&stored, "sync") {
            names.push(dir.name.clone());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_that_grows_is_full_one_day() {
        let mut past = PoolPast::default();
        assert_eq!(past.days_left(100), None);
        for hour in 0..48 {
            past.note(hour * FILL_INTERVAL, hour * 10);
            past.note(hour * FILL_INTERVAL + 60, u64::MAX);
        }
        assert_eq!(past.allocated.len(), 48, "points are an hour apart");
        // 240 bytes a day.
        assert!((past.days_left(2400).unwrap() - 10.0).abs() < 0.01);
        for hour in 48..1000 {
            past.note(hour * FILL_INTERVAL, 470);
        }
        assert_eq!((past.allocated.len(), past.days_left(1)), (FILL_POINTS, None), "it has stopped to grow");
        let shrunk = PoolPast { allocated: vec![(0, 9), (2 * DAY, 3)], ..PoolPast::default() };
        assert_eq!(shrunk.days_left(1), None);
        let backwards = PoolPast { allocated: vec![(2 * DAY, 3), (0, 9)], ..PoolPast::default() };
        assert_eq!(backwards.days_left(1), None);
    }
}
