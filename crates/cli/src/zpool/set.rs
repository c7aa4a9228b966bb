//! `zpool set` and `zpool history`.

use super::create::{comment, stored};
use super::features::compatible;
use super::opened::OpenedPools;
use super::vdev_properties;
use crate::args::CommandLine;
use crate::cache_file::{self, CachePlace};
use crate::call::{Call, outln};
use crate::command_target::CommandTarget;
use crate::failure::Failure;
use crate::options::PoolDirs;
use crate::pools::search;
use crate::writable::{WritablePool, WriteIntent, refused};
use crate::zdb::stamp;
use clap::Parser;
use weir_admin::{Action, PoolChange};
use weir_engine::create::PoolValue;
use weir_format::{NvList, features};
use weir_machine::Request;
use weir_pool::PoolError;

/// Set a property of a pool or of a vdev.
#[derive(Debug, Parser)]
#[command(name = "zpool set", override_usage = "zpool set [-d DIR]… PROPERTY=VALUE POOL [VDEV]")]
pub struct SetArgs {
    #[command(flatten)]
    places: PoolDirs,
    /// Property with its value, the pool, and a vdev by name, path or GUID
    #[arg(value_name = "PROPERTY=VALUE POOL [VDEV]")]
    words: Vec<String>,
}

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

/// Runs `zpool set`.
pub fn run(call: &Call, args: &SetArgs) -> Result<u8, Failure> {
    if let [pair, pool, vdev] = args.words.as_slice() {
        let pair = pair.split_once('=').ok_or_else(|| SetArgs::misused("missing value in property=value argument"))?;
        return vdev_properties::set(call, &args.places, pair, pool, vdev);
    }
    let [pair, pool]: [String; 2] =
        args.words.clone().try_into().map_err(|_| SetArgs::misused("missing property=value or pool argument"))?;
    let doing = format!("cannot set property for '{pool}'");
    let (property, value) =
        pair.split_once('=').ok_or_else(|| SetArgs::misused("missing value in property=value argument"))?;
    if property == "cachefile" {
        let place = CachePlace::parse(value).map_err(|why| Failure::failed(format!("{doing}: {why}")))?;
        return set_place(call, &args.places, &pool, place);
    }
    let wanted = wanted(property, value).map_err(|why| Failure::failed(format!("{doing}: {why}")))?;
    CommandTarget::of_pool(call, &args.places, &pool)?
        .with(|target| target.attempt(Action::Pool(wanted))?.map_err(|refusal| refused(&doing, refusal)))?;
    Ok(0)
}

/// Sets the property `cachefile`, which is not stored in the pool.
fn set_place(call: &Call, places: &PoolDirs, pool: &str, place: CachePlace) -> Result<u8, Failure> {
    let search = search(call, &places.dirs)?;
    let intent = WriteIntent { search, pool: pool.to_owned(), ..WriteIntent::default() };
    let opened = WritablePool::of_call(call, &intent)?;
    match (opened.served_pool(), call.process().and_then(|process| process.daemon())) {
        (Some(served_pool), Some(daemon)) => daemon.set_place(served_pool, place)?,
        _ if place == CachePlace::None => cache_file::forget(call, pool),
        _ => cache_file::remember(call, &place, &opened.engine),
    }
    opened.close()?;
    Ok(0)
}

/// The change that `zpool set PROPERTY=VALUE POOL` makes.
///
/// # Errors
/// The reason why the property cannot have this value.
pub fn wanted(property: &str, value: &str) -> Result<PoolChange, String> {
    if let Some(feature) = property.strip_prefix("feature@") {
        if features::by_name(feature).is_none() {
            return Err(format!("invalid feature '{feature}'"));
        }
        return match value {
            "enabled" => Ok(PoolChange::EnableFeature { feature: feature.to_owned() }),
            _ => Err(format!("property '{property}' can only be set to 'enabled'")),
        };
    }
    match property {
        "comment" => Ok(PoolChange::SetComment { text: comment(value)? }),
        "compatibility" => {
            compatible(value).map_err(|why| format!("property '{property}': {why}"))?;
            Ok(PoolChange::SetCompatibility { sets: value.to_owned() })
        }
        user if user.contains(':') => {
            user_property(user, value)?;
            Ok(PoolChange::SetUser { property: user.to_owned(), text: value.to_owned() })
        }
        _ => match stored(property, value)? {
            (property, PoolValue::Number(number)) => Ok(PoolChange::SetNumber { property, number }),
            (name, PoolValue::Text(_)) => Err(format!("property '{name}' is readonly")),
        },
    }
}

/// Checks the name and the length of the value of a user property (`zpool_prop_user`).
fn user_property(name: &str, value: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ":+-._".contains(c);
    if name.len() > 255 || !name.chars().all(allowed) || name.starts_with('-') {
        return Err(format!("invalid property '{name}'"));
    }
    if value.len() > 8191 {
        return Err(format!("property value of '{name}' is too long"));
    }
    Ok(())
}

/// Runs `zpool history`.
pub fn history(call: &Call, args: &HistoryArgs) -> Result<u8, Failure> {
    let machine = call.machine()?;
    let is_wanted = |name: &String| args.pools.is_empty() || args.pools.contains(name);
    for served in call.served_pools().iter().filter(|served| is_wanted(&served.engine.name())) {
        // The lines of the last commands may await their txg (`spa_history_get`). A suspended pool shows what it has.
        let _synced = machine.block_on(served.engine.sync());
    }
    let mut opened = OpenedPools::open(call, &args.places, &args.pools)?;
    opened.each(|pool| {
        outln!(call, "History for '{}':", pool.name());
        let records = machine
            .block_on(weir_dsl::history::history(&pool.dsl, &Request::internal("history")))
            .map_err(PoolError::from)?;
        for record in &records {
            if let Some(text) = shown(record, args.internal, args.long) {
                outln!(call, "{text}");
            }
        }
        outln!(call);
        Ok(())
    });
    Ok(opened.close(call))
}

/// Text of a record: commands always, internal events with `-i`, user and host with `-l`.
fn shown(record: &NvList, internal: bool, long: bool) -> Option<String> {
    let seconds = record.get_u64("history time").unwrap_or(0);
    let time = stamp(seconds);
    let who = || {
        let uid = record.get_u64("history who").unwrap_or(0);
        let host = record.get_str("history hostname").unwrap_or("unknown");
        format!(" [user {uid} on {host}]")
    };
    let tail = if long { who() } else { String::new() };
    if let Some(command) = record.get_str("history command") {
        return Some(format!("{time} {command}{tail}"));
    }
    if !internal {
        return None;
    }
    let txg = record.get_u64("history txg").unwrap_or(0);
    let name = record.get_str("internal_name").unwrap_or("unknown");
    let number = record.get_u64("dsid").map(|id| format!(" ({id})")).unwrap_or_default();
    let of = record.get_str("dsname").map(|name| format!(" {name}{number}")).unwrap_or_default();
    let text = record.get_str("history internal str").filter(|text| !text.is_empty());
    let text = text.map(|text| format!(" {text}")).unwrap_or_default();
    Some(format!("{time} [txg:{txg}] {name}{of}{text}{tail}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_shown_as_openzfs_shows_them() {
        let mut record = NvList::new();
        record.set("history time", 1_700_000_000u64);
        record.set("history command", "zpool create p x");
        record.set("history who", 0u64);
        record.set("history hostname", "here");
        assert_eq!(shown(&record, false, false).unwrap(), "2023-11-14.22:13:20 zpool create p x");
        assert!(shown(&record, false, true).unwrap().ends_with("x [user 0 on here]"));
        let mut record = NvList::new();
        record.set("internal_name", "snapshot");
        record.set("history txg", 12u64);
        record.set("dsname", "p/a@s");
        record.set("dsid", 77u64);
        assert_eq!(shown(&record, false, false), None);
        assert_eq!(shown(&record, true, false).unwrap(), "1970-01-01.00:00:00 [txg:12] snapshot p/a@s (77)");
        record.set("history internal str", "x=1");
        assert!(shown(&record, true, false).unwrap().ends_with("] snapshot p/a@s (77) x=1"));
    }
}
