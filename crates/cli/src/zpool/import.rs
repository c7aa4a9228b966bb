//! `zpool import`: the pools that the given folders hold; with a pool's name, that pool is taken over by this machine.
//!
//! No pool is held open between two commands, so "imported" means that its labels say that this machine uses it: every
//! other command then opens it without `-f`, and another machine does not.

use super::tree;
use crate::args::{Args, Spec};
use crate::failure::Failure;
use crate::pools::search_paths;
use crate::written::{Wish, Written};
use std::ffi::OsString;
use weir_machine::Machine;
use weir_pool::assemble::state;
use weir_pool::status::{VdevState, lacking, states};
use weir_pool::{Assembly, FoundPool, OpenOptions, Rewind, assemble, scan};

const SPEC: Spec = Spec {
    command: "zpool import",
    letters: "ad:DfFmnNo:R:s",
    long: &[],
    usage: "zpool import [-D] [-d DIR|DEVICE]…\n       zpool import [-afFnN] [-D] [-o PROPERTY=VALUE]… [-R ROOT] [-d \
            DIR|DEVICE]… [POOL|ID [NEWPOOL]]",
};

/// Runs the command.
pub fn run(line: Vec<OsString>) -> Result<u8, Failure> {
    let args = SPEC.parse(line)?;
    if args.words.len() > 2 {
        return Err(SPEC.misused("too many arguments"));
    }
    if args.has('n') && !args.has('F') {
        return Err(SPEC.misused("-n option must be used with -F"));
    }
    if args.has('a') && !args.words.is_empty() {
        return Err(SPEC.misused("too many arguments"));
    }
    match args.word(0) {
        Some(pool) => take(&args, &pool, args.word(1)),
        None if args.has('a') => take_all(&args),
        None => list(&args),
    }
}

/// Lists what there is.
fn list(args: &Args) -> Result<u8, Failure> {
    let machine = Machine::production()?;
    let (assembly, looked_at) = look(&machine, args)?;
    let mut shown = 0;
    for pool in assembly.pools.values().filter(|pool| (pool.config.state == state::DESTROYED) == args.has('D')) {
        print!("{}", describe(pool, &assembly)?);
        shown += 1;
    }
    if shown == 0 {
        let why = format!("no pools available to import; looked at {looked_at} file(s) or device(s)");
        return Err(Failure::failed(why));
    }
    Ok(0)
}

/// Looks around, and says what cannot be read.
fn look(machine: &Machine, args: &Args) -> Result<(Assembly, usize), Failure> {
    let scanned = machine.block_on(scan(machine, &search_paths(args.values('d'))?))?;
    for (path, fault) in &scanned.faults {
        eprintln!("{}: {fault}", path.display());
    }
    let looked_at = scanned.looked_at;
    let assembly = assemble(scanned);
    for (device, why) in &assembly.unclear {
        eprintln!("{}: {why}", device.name());
    }
    Ok((assembly, looked_at))
}

/// Takes all pools over that are there and not another machine's.
fn take_all(args: &Args) -> Result<u8, Failure> {
    let machine = Machine::production()?;
    let (assembly, _) = look(&machine, args)?;
    let alive = assembly.pools.values().filter(|pool| (pool.config.state == state::DESTROYED) == args.has('D'));
    let pools: Vec<String> = alive.map(|pool| pool.config.guid.to_string()).collect();
    drop(assembly);
    let mut code = 0;
    for pool in pools {
        if let Err(failure) = take(args, &pool, None) {
            eprintln!("{failure}");
            code = failure.code;
        }
    }
    Ok(code)
}

/// Takes one pool over.
fn take(args: &Args, pool: &str, new_name: Option<String>) -> Result<u8, Failure> {
    let doing = format!("cannot import '{pool}'");
    let machine = Machine::production()?;
    let (assembly, _) = look(&machine, args)?;
    let named = |p: &&FoundPool| p.config.name == pool || p.config.guid.to_string() == pool;
    let destroyed = |p: &&FoundPool| p.config.state == state::DESTROYED;
    let mut found = assembly.pools.values().filter(named).filter(|p| destroyed(p) == args.has('D'));
    let Some(one) = found.next() else {
        return Err(Failure::failed(format!("{doing}: no such pool available")));
    };
    if found.next().is_some() {
        return Err(Failure::failed(format!("{doing}: more than one matching pool\nimport by numeric ID instead")));
    }
    let guid = one.config.guid.to_string();
    drop(assembly);
    let read_only = read_only(args)?;
    let search = search_paths(args.values('d'))?;
    if args.has('n') || read_only {
        let rewind = if args.has('F') { Rewind::Auto } else { Rewind::No };
        let options = OpenOptions { rewind, ..OpenOptions::new(search, guid) };
        let opened = crate::pools::open(&machine, &options)?;
        if args.has('n') {
            println!("Would be able to return {} to its state as of txg {}.", opened.name(), opened.uberblock.txg);
        }
        return Ok(0);
    }
    let force = args.has('f') || args.has('D');
    let wish = Wish { search, pool: guid, force, rewind: args.has('F'), new_name, ..Wish::default() };
    Written::open(machine, &wish)?.stays().close()?;
    Ok(0)
}

/// Whether `-o` asks for no more than a look; other properties of an import are of a session, and there is none.
fn read_only(args: &Args) -> Result<bool, Failure> {
    let mut read_only = false;
    for text in args.values('o') {
        let text = text.to_string_lossy();
        match text.split_once('=') {
            Some(("readonly", "on")) => read_only = true,
            Some(("readonly", "off") | ("cachefile" | "altroot", _)) => {}
            _ => return Err(SPEC.misused(&format!("property '{text}' can not be set at import time"))),
        }
    }
    Ok(read_only)
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
    let open = "it can be imported by its name or its number".to_owned();
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
