//! `zpool import`: the pools that the given folders hold. Only the list: nothing here imports, for every other command
//! opens its pool itself, read-only.

use super::tree;
use crate::args::Spec;
use crate::failure::Failure;
use crate::pools::search_paths;
use std::ffi::OsString;
use weir_machine::Machine;
use weir_pool::assemble::state;
use weir_pool::status::{VdevState, lacking, states};
use weir_pool::{Assembly, FoundPool, assemble, scan};

const SPEC: Spec =
    Spec {
        command: "zpool import", letters: "d:Ds", long: &[], usage: "zpool import [-D] [-d DIR | DEVICE]… [POOL]"
    };

/// Runs the command.
pub fn run(line: Vec<OsString>) -> Result<u8, Failure> {
    let args = SPEC.parse(line)?;
    let paths = search_paths(args.values('d'))?;
    let machine = Machine::production()?;
    let scanned = machine.block_on(scan(&machine, &paths))?;
    for (path, fault) in &scanned.faults {
        eprintln!("{}: {fault}", path.display());
    }
    let looked_at = scanned.looked_at;
    let assembly = assemble(scanned);
    for (device, why) in &assembly.unclear {
        eprintln!("{}: {why}", device.name());
    }
    let wanted = args.word(0);
    let mut shown = 0;
    for pool in assembly.pools.values() {
        let named = wanted.as_ref().is_none_or(|w| *w == pool.config.name || *w == pool.config.guid.to_string());
        if named && (pool.config.state == state::DESTROYED) == args.has('D') {
            print!("{}", describe(pool, &assembly)?);
            shown += 1;
        }
    }
    match (shown, wanted) {
        (0, Some(name)) => Err(Failure::failed(format!("cannot import '{name}': no such pool available"))),
        (0, None) => {
            Err(Failure::failed(format!("no pools available to import; looked at {looked_at} file(s) or device(s)")))
        }
        _ => Ok(0),
    }
}

fn describe(pool: &FoundPool, assembly: &Assembly) -> Result<String, Failure> {
    let tree = pool.label_tree()?;
    let (health, all) = states(&tree, &|guid| pool.devices.contains_key(&guid));
    let missing = lacking(&tree, &all);
    let mut out = format!("   pool: {}\n     id: {}\n  state: {health}", pool.config.name, pool.config.guid);
    if pool.config.state == state::DESTROYED {
        out.push_str(" (DESTROYED)");
    }
    out.push('\n');
    let (status, action) = advice(pool, health, &missing);
    if let Some(status) = status {
        out.push_str(&format!(" status: {status}\n"));
    }
    out.push_str(&format!(" action: {action}\n"));
    if let Some(comment) = &pool.config.comment {
        out.push_str(&format!("comment: {comment}\n"));
    }
    out.push_str(" config:\n\n");
    let text = tree::text(&tree::lines(&pool.config.name, health, &tree, &all), &[], |_| Vec::new());
    // The heading has no place in this list.
    out.push_str(text.split_once('\n').map_or("", |(_, rest)| rest));
    for (heading, wanted) in [("cache", state::L2CACHE), ("spares", state::SPARE)] {
        let aux = assembly.aux.values().filter(|d| d.config().and_then(|c| c.get_u64("state")) == Some(wanted));
        let aux: Vec<String> = aux.map(|d| format!("\t  {}\n", d.name())).collect();
        if !aux.is_empty() && assembly.pools.len() == 1 {
            out.push_str(&format!("\t{heading}\n{}", aux.concat()));
        }
    }
    out.push('\n');
    Ok(out)
}

/// What is the matter, if anything, and what can be done.
fn advice(pool: &FoundPool, health: VdevState, missing: &[String]) -> (Option<String>, String) {
    let open = "it can be opened read-only by its name or its number".to_owned();
    if !missing.is_empty() {
        let status = format!("devices are missing beyond redundancy: {}", missing.join("; "));
        return (Some(status), "it cannot be opened: bring the missing devices back".into());
    }
    if health != VdevState::Online {
        return (Some("devices are missing; redundancy stands in for them".into()), open);
    }
    if pool.config.state == state::ACTIVE {
        let host = pool.config.hostname.as_deref().unwrap_or("another machine");
        return (Some(format!("it was last in use by '{host}' and was not exported")), open);
    }
    (None, open)
}
