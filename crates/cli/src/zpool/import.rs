//! `zpool import`: the pools that the given folders hold; with a pool's name, that pool is taken over by this machine.
//!
//! Between two commands a pool is open only in a process that serves it, so "imported" means that its labels say that
//! this machine uses it: every other command then opens it without `-f`, and another machine does not. With `-l` the
//! keys of encrypted datasets are asked for and proven, and the intent logs that wait for them are replayed.

use super::tree;
use crate::args::{Args, Spec};
use crate::call::{Call, errln, outln};
use crate::failure::Failure;
use crate::pools::search;
use crate::secrets::{KeyPrompt, ask_all};
use crate::writable::{WritablePool, WriteIntent};
use std::ffi::OsString;
use weir_dsl::Dir;
use weir_engine::Engine;
use weir_format::ObjsetKind;
use weir_machine::Request;
use weir_pool::assemble::state;
use weir_pool::dtls::all_by_labels;
use weir_pool::status::{VdevState, lacking, states};
use weir_pool::{Assembly, FoundPool, OpenOptions, PoolError, Rewind, assemble, scan, uberblocks};

const SPEC: Spec = Spec {
    command: "zpool import",
    letters: "ad:DfFlmnNo:R:s",
    long: &[],
    usage: "zpool import [-D] [-d DIR|DEVICE]…\n       zpool import [-aflFmnN] [-D] [-o PROPERTY=VALUE]… [-R ROOT] [-d \
            DIR|DEVICE]… [POOL|ID [NEWPOOL]]",
};

/// Runs the command.
pub fn run(call: &Call, line: Vec<OsString>) -> Result<u8, Failure> {
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
    if args.has('l') && args.has('N') {
        return Err(SPEC.misused("-l is incompatible with -N"));
    }
    if args.has('l') && !args.has('a') && args.words.is_empty() {
        return Err(SPEC.misused("-l is only meaningful during an import"));
    }
    match args.word(0) {
        Some(pool) => take(call, &args, &pool, args.word(1)),
        None if args.has('a') => take_all(call, &args),
        None => list(call, &args),
    }
}

/// Lists what there is.
fn list(call: &Call, args: &Args) -> Result<u8, Failure> {
    let (assembly, looked_at) = look(call, args)?;
    let mut shown = 0;
    for pool in assembly.pools.values().filter(|pool| (pool.config.state == state::DESTROYED) == args.has('D')) {
        call.print(format_args!("{}", describe(pool, &assembly)?));
        shown += 1;
    }
    if shown == 0 {
        let why = format!("no pools available to import; looked at {looked_at} file(s) or device(s)");
        return Err(Failure::failed(why));
    }
    Ok(0)
}

/// Looks around, and says what cannot be read.
fn look(call: &Call, args: &Args) -> Result<(Assembly, usize), Failure> {
    let machine = call.machine()?;
    let scanned = machine.block_on(scan(machine, &search(call, args.values('d'))?))?;
    for (path, fault) in &scanned.faults {
        errln!(call, "{}: {fault}", path.display());
    }
    let looked_at = scanned.looked_at;
    let assembly = assemble(scanned);
    for (device, why) in &assembly.unclear {
        errln!(call, "{}: {why}", device.name());
    }
    Ok((assembly, looked_at))
}

/// Takes all pools over that are there and not another machine's.
fn take_all(call: &Call, args: &Args) -> Result<u8, Failure> {
    let (assembly, _) = look(call, args)?;
    let alive = assembly.pools.values().filter(|pool| (pool.config.state == state::DESTROYED) == args.has('D'));
    let pools: Vec<String> = alive.map(|pool| pool.config.guid.to_string()).collect();
    drop(assembly);
    let mut code = 0;
    for pool in pools {
        if let Err(failure) = take(call, args, &pool, None) {
            errln!(call, "{failure}");
            code = failure.code;
        }
    }
    Ok(code)
}

/// Takes one pool over.
fn take(call: &Call, args: &Args, pool: &str, new_name: Option<String>) -> Result<u8, Failure> {
    let doing = format!("cannot import '{pool}'");
    let (assembly, _) = look(call, args)?;
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
    let search = search(call, args.values('d'))?;
    if args.has('n') || read_only {
        let rewind = if args.has('F') { Rewind::Auto } else { Rewind::No };
        let options = OpenOptions { rewind, ..OpenOptions::new(search, guid) };
        let opened = crate::pools::open(call, &options)?;
        if args.has('n') {
            outln!(call, "Would be able to return {} to its state as of txg {}.", opened.name(), opened.uberblock.txg);
        }
        return Ok(0);
    }
    let force = args.has('f') || args.has('D');
    let mut open = OpenOptions::new(search.clone(), guid.clone());
    if args.has('F') {
        open.rewind = Rewind::Auto;
    }
    let all_keys = !args.has('l') || ask_all(KeyPrompt::Caller(call), call.machine()?, &mut open)?;
    let rewind = args.has('F');
    let without_logs = args.has('m');
    let keys = open.keys;
    let intent = WriteIntent { search, pool: guid, keys, force, rewind, without_logs, new_name, limits: None };
    let writable = WritablePool::open(call.machine()?.clone(), &intent)?.stays();
    let replayed = writable.machine.block_on(replay(&writable.engine, without_logs));
    writable.close()?;
    replayed?;
    Ok(u8::from(!all_keys))
}

/// Replays the logs of the encrypted datasets whose keys are here, since no later command has the keys. With `all` also
/// those of the datasets that are not encrypted: only this command gives up what cannot be replayed (`-m`).
async fn replay(engine: &Engine, all: bool) -> Result<(), Failure> {
    let rq = &Request::internal("import");
    let opened: Vec<(String, ObjsetKind)> = {
        let dsl = engine.dsl(rq).await?;
        let mut opened = Vec::new();
        let is_due = |dir: &&Dir| engine.keys.of(Some(dir)).is_some() || all && dir.crypto_key().is_none();
        for dir in dsl.dirs().into_iter().filter(is_due) {
            opened.push((dir.name.clone(), dsl.kind(rq, dir).await.map_err(PoolError::from)?));
        }
        opened
    };
    for (name, kind) in opened {
        match kind {
            ObjsetKind::Zfs => drop(engine.file_system(rq, &name).await?),
            ObjsetKind::Zvol => drop(engine.volume(rq, &name).await?),
            _ => {}
        }
    }
    Ok(())
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
    let newest = uberblocks::ranked(pool, None).first().map(|uberblock| uberblock.txg).unwrap_or_default();
    let dtls = all_by_labels(&tree, &pool.devices, newest);
    let (health, all) = states(&tree, &|guid| pool.devices.contains_key(&guid), &dtls);
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
    let text = tree::text(&tree::lines(&pool.config.name, health, &tree, &all, &dtls), &[], |_| Vec::new());
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

/// Returns the status of a pool and the action, if anything is wrong.
fn advice(pool: &FoundPool, health: VdevState, missing: &[String]) -> (Option<String>, String) {
    let open = "it can be imported by its name or its number".to_owned();
    if !missing.is_empty() {
        let status = format!("devices are missing beyond redundancy: {}", missing.join("; "));
        return (Some(status), "it cannot be opened: bring the missing devices back".into());
    }
    if health != VdevState::Online {
        return (Some("devices are missing or miss writes; the others have what they lack".into()), open);
    }
    if pool.config.state == state::ACTIVE {
        let host = pool.config.hostname.as_deref().unwrap_or("another machine");
        return (Some(format!("it was last in use by '{host}' and was not exported")), open);
    }
    (None, open)
}
