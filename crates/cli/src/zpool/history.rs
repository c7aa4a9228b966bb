//! `zpool history`: the commands that changed pools, and their internal events.

use crate::call::{Call, outln};
use crate::failure::Failure;
use crate::options::PoolDirs;
use crate::reading::{PoolReader, Reached};
use crate::times::stamp;
use crate::zfs::identity;
use clap::Parser;
use weir_admin::{HistoryQuery, HistoryRow, InternalEvent, PoolQuery, Row};
use weir_dsl::QuotaPrincipal;
use weir_format::znode::Fuid;

/// Show the commands that changed pools.
#[derive(Debug, Parser)]
#[command(name = "zpool history", override_usage = "zpool history [-il] [-d DIR]… [POOL]…")]
pub struct HistoryArgs {
    /// Show also the pool's internal events
    #[arg(short)]
    internal: bool,
    /// Show also user and host of each command
    #[arg(short)]
    long: bool,
    #[command(flatten)]
    places: PoolDirs,
    /// Pools; default: all
    #[arg(value_name = "POOL")]
    pools: Vec<String>,
}

/// Runs the command.
pub fn run(call: &Call, args: &HistoryArgs) -> Result<u8, Failure> {
    let reader = PoolReader::new(call, &args.places.dirs)?;
    let mut found = reader.find(&args.pools)?;
    let users = identity::names(QuotaPrincipal::User);
    let query = PoolQuery::History(HistoryQuery { internal: args.internal });
    for pool in found.pools.clone() {
        let mut heading = Some(format!("History for '{}':", pool.name));
        let mut take = |row| {
            if let Row::History(record) = row {
                heading.take().into_iter().for_each(|heading| outln!(call, "{heading}"));
                outln!(call, "{}", shown(&record, args.long, &users));
            }
        };
        let reached = reader.read_found(&mut found, &pool, &query, &mut take)?;
        if !matches!(reached, Reached::Unopened(_)) {
            heading.into_iter().for_each(|heading| outln!(call, "{heading}"));
        }
        match reached {
            Reached::Unopened(_) => {}
            Reached::Refused(refusal) => found.unread(&pool, &refusal.why),
            Reached::End => outln!(call),
        }
    }
    Ok(found.close(call))
}

/// Text of a record; with user, host and zone if `long`, as far as it has them. `names` is this host's list of users.
fn shown(record: &HistoryRow, long: bool, names: &str) -> String {
    let time = stamp(record.time_s);
    let who = |uid: u64| match identity::name(Fuid(uid), false, names) {
        name if name == uid.to_string() => format!("user {uid} "),
        name => format!("user {uid} ({name}) "),
    };
    let origin = || {
        let user = record.uid.map(who).unwrap_or_default();
        let host = record.host.as_ref().map(|host| format!("on {host}")).unwrap_or_default();
        let zone = record.zone.as_ref().map(|zone| format!(":{zone}")).unwrap_or_default();
        format!(" [{user}{host}{zone}]")
    };
    let tail = if long { origin() } else { String::new() };
    let command = record.command.as_deref().unwrap_or_default();
    let text = record.event.as_ref().map_or_else(|| command.to_owned(), text_of);
    format!("{time} {text}{tail}")
}

/// Text of an internal event.
fn text_of(event: &InternalEvent) -> String {
    let name = event.name.as_deref().unwrap_or("unknown");
    let number = event.dataset_id.map(|id| format!(" ({id})")).unwrap_or_default();
    let of = event.dataset.as_ref().map(|name| format!(" {name}{number}")).unwrap_or_default();
    let details = if event.details.is_empty() { String::new() } else { format!(" {}", event.details) };
    format!("[txg:{}] {name}{of}{details}", event.txg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_shown_as_openzfs_shows_them() {
        let command = HistoryRow {
            time_s: 1_700_000_000,
            command: Some("zpool create p x".into()),
            event: None,
            uid: Some(0),
            host: Some("here".into()),
            zone: Some("linux".into()),
        };
        let shown = |record: &HistoryRow, long| shown(record, long, "root:x:0:0:root:/root:/bin/sh\n");
        assert_eq!(shown(&command, false), "2023-11-14.22:13:20 zpool create p x");
        assert!(shown(&command, true).ends_with("x [user 0 (root) on here:linux]"));
        let stranger = HistoryRow { uid: Some(7), zone: None, ..command };
        assert!(shown(&stranger, true).ends_with("x [user 7 on here]"));
        let event = |details: &str| InternalEvent {
            name: Some("snapshot".into()),
            txg: 12,
            dataset: Some("p/a@s".into()),
            dataset_id: Some(77),
            details: details.into(),
        };
        let of = |details| HistoryRow {
            time_s: 0,
            command: None,
            event: Some(event(details)),
            uid: None,
            host: None,
            zone: None,
        };
        assert_eq!(shown(&of(""), false), "1970-01-01.00:00:00 [txg:12] snapshot p/a@s (77)");
        assert!(shown(&of("x=1"), false).ends_with("] snapshot p/a@s (77) x=1"));
        assert!(shown(&of(""), true).ends_with(" snapshot p/a@s (77) []"));
    }
}
