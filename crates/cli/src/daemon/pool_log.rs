//! Log lines about an open pool: errors of devices, vdevs and pools that change their state, exports that come and go.
//!
//! The engine keeps its events in memory; a task reads them every second and logs those that an administrator must know
//! of. Repeated errors of one device within a second are one line with their number. Exports are compared when a command has
//! changed the pool.

use crate::admin::ServedPool;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use weir_daemon::service::exported_names;
use weir_format::NvList;

/// Interval in which events are read.
const INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of exports that one line names.
const MAX_NAMES: usize = 16;

/// Starts the task that logs the events of a pool until the pool is closed.
pub fn start(pool: &Arc<ServedPool>) {
    let pool = pool.clone();
    let machine = pool.machine.clone();
    // Detached: it ends with the pool's events.
    drop(machine.tasks.spawn(async move {
        let name = pool.engine.name();
        let mut last = 0;
        let mut renewals = pool.renewals();
        let mut exports = exports_of(&pool);
        log_exports(&name, "shared", &exports);
        loop {
            let news = pool.engine.events.after(last);
            last = news.events.last().map_or(last, |event| event.eid);
            let lists = news.events.iter().map(|event| &event.list);
            lines(lists).into_iter().for_each(|line| tracing::warn!("pool '{name}': {line}"));
            if renewals != pool.renewals() {
                renewals = pool.renewals();
                let now = exports_of(&pool);
                log_exports(&name, "shared", &now.difference(&exports).cloned().collect());
                log_exports(&name, "no longer shared", &exports.difference(&now).cloned().collect());
                exports = now;
            }
            if pool.engine.events.is_ended() {
                return;
            }
            pool.machine.clock.sleep(INTERVAL).await;
        }
    }));
}

fn exports_of(pool: &ServedPool) -> BTreeSet<String> {
    pool.front().map(|exports| exported_names(&exports)).unwrap_or_default().into_iter().collect()
}

fn log_exports(pool: &str, what: &str, names: &BTreeSet<String>) {
    if !names.is_empty() {
        tracing::info!("pool '{pool}': {what}: {}", listed(names));
    }
}

/// Names separated by commas, the first [`MAX_NAMES`] and the number of the others.
fn listed(names: &BTreeSet<String>) -> String {
    let shown: Vec<&str> = names.iter().take(MAX_NAMES).map(String::as_str).collect();
    let more = names.len().saturating_sub(MAX_NAMES);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", shown.join(", "))
}

/// Lines about events, equal ones joined.
fn lines<'a>(events: impl Iterator<Item = &'a NvList>) -> Vec<String> {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    events.filter_map(line).for_each(|line| *counts.entry(line).or_default() += 1);
    let joined = |(line, count): (String, u64)| if count > 1 { format!("{line} ({count} times)") } else { line };
    counts.into_iter().map(joined).collect()
}

/// One event as a line; `None` if it is of no concern to the log.
fn line(event: &NvList) -> Option<String> {
    let class = event.get_str("class")?;
    let short = class.rsplit('.').next().unwrap_or(class);
    if !class.starts_with("ereport.") && short != "statechange" {
        return None;
    }
    let device = event.get_str("vdev_path").map(|path| format!(" {path}")).unwrap_or_default();
    let state = event.get_u64("vdev_state").filter(|_| short == "statechange").map(state_name);
    let state = state.map(|state| format!(" to {state}")).unwrap_or_default();
    Some(format!("{short}{device}{state}"))
}

/// State of a vdev (OpenZFS `include/sys/fs/zfs.h`, `vdev_state_t`).
fn state_name(state: u64) -> &'static str {
    match state {
        1 => "CLOSED",
        2 => "OFFLINE",
        3 => "REMOVED",
        4 => "UNAVAIL",
        5 => "FAULTED",
        6 => "DEGRADED",
        7 => "ONLINE",
        _ => "UNKNOWN",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_and_changes_of_state_are_lines_and_the_rest_is_not() {
        let event = |class: &str, path: Option<&str>, state: Option<u64>| {
            let mut list = NvList::new();
            list.set("class", class);
            path.into_iter().for_each(|path| list.set("vdev_path", path));
            state.into_iter().for_each(|state| list.set("vdev_state", state));
            list
        };
        let events = [
            event("ereport.fs.zfs.io", Some("/d0"), Some(7)),
            event("ereport.fs.zfs.io", Some("/d0"), Some(7)),
            event("ereport.fs.zfs.io_failure", None, None),
            event("resource.fs.zfs.statechange", Some("/d1"), Some(5)),
            event("sysevent.fs.zfs.history_event", None, None),
        ];
        let names: BTreeSet<String> = (0..20).map(|i| format!("p/{i:02}")).collect();
        assert!(listed(&names).starts_with("p/00, p/01") && listed(&names).ends_with("p/15 and 4 more"));
        assert_eq!(lines(events.iter()), ["io /d0 (2 times)", "io_failure", "statechange /d1 to FAULTED"]);
    }
}
