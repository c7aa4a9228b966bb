//! Pools that `zpool import` refuses because they are in use, or because their names or GUIDs are taken.

use super::{ImportArgs, imported_here};
use crate::call::{Call, DIRS_VARIABLE};
use crate::failure::Failure;
use weir_pool::FoundPool;
use weir_pool::assemble::state;

/// Refuses a pool that is imported on this machine: it needs no import, and it goes back to an earlier state only after an export.
pub(super) fn refuse_imported(
    call: &Call,
    args: &ImportArgs,
    one: &FoundPool,
    is_renamed: bool,
    doing: &str,
) -> Result<(), Failure> {
    // What repairs a pool, or takes it back from another host, is allowed.
    let is_plain = !(args.rewind || args.txg.is_some() || args.to_checkpoint || args.without_logs || args.force);
    let is_plain = is_plain && !args.load_keys && args.properties.is_empty() && !is_renamed;
    let is_imported = one.config.state == state::ACTIVE && imported_here(call).contains(&one.config.guid);
    if (is_imported || is_in_use_without_import(call, args, one)) && !args.force && !args.dry_run {
        let how = match (args.txg.is_some() || args.to_checkpoint, is_renamed) {
            (true, _) => Some("export it before it goes back to an earlier state; if it cannot be exported, use -f"),
            (false, true) => Some("export it before it gets another name; if it cannot be exported, use -f"),
            (false, false) => None,
        };
        if let Some(how) = how {
            return Err(Failure::failed(format!("{doing}: it is imported\n{how}")));
        }
    }
    if is_plain && is_imported {
        let how = "use the form 'zpool import <pool | id> <newpool>' to give it a new name";
        return Err(Failure::failed(format!("{doing}: a pool with that name already exists\n{how}")));
    }
    Ok(())
}

/// Whether commands use a pool of this machine in the folders of `WEIR_POOL_DIRS` that was not exported: there they need no import.
fn is_in_use_without_import(call: &Call, args: &ImportArgs, one: &FoundPool) -> bool {
    let is_of_this_host = one.config.hostid.is_none_or(|id| id == crate::writable::host().id);
    let has_no_place = args.places.dirs.is_empty() && args.cache_file.is_none() && call.process().is_none();
    has_no_place && std::env::var_os(DIRS_VARIABLE).is_some() && one.config.state == state::ACTIVE && is_of_this_host
}

/// Refuses a pool, called `pool` by the user, if one with its GUID, or with the name that it is to have, is imported.
pub(super) fn refuse_taken(call: &Call, (pool, guid): (&str, &str), name: &str, doing: &str) -> Result<(), Failure> {
    if let Some(open) = call.served_pool(guid) {
        let why = format!("a pool with the same GUID is already imported as '{}': one is a copy", open.engine.name());
        return Err(Failure::failed(format!("{doing}: {why}")));
    }
    if call.served_pool(name).is_some() {
        let which = if name == pool { "that name".to_owned() } else { format!("the name '{name}'") };
        let how = format!("use the form 'zpool import {guid} <newpool>' to give it a new name");
        return Err(Failure::failed(format!("{doing}: a pool with {which} already exists\n{how}")));
    }
    Ok(())
}
