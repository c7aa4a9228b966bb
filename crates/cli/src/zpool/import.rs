//! `zpool import`: lists the pools found, or imports one for this host.
//!
//! Between two commands a pool is open only in a process that serves it, so "imported" means that its labels say that
//! this machine uses it: every other command then opens it without `-f`, and another machine does not. With `-l` the
//! command asks for the keys of encrypted datasets, verifies them, and replays the intent logs that need them.

mod in_use;

use super::claim::imported;
use super::set;
use super::tree::{self, TreeStyle};
use super::wrapped::wrapped;
use crate::args::CommandLine;
use crate::cache_file::{self, CachePlace, CachedPool};
use crate::call::{Call, errln, outln};
use crate::colors::Colors;
use crate::daemon::{Daemon, OpeningGuard};
use crate::failure::Failure;
use crate::mounts::MountRequest;
use crate::options::{PoolDirs, pools_once};
use crate::pools::{go_to_daemon, search, usual_paths};
use crate::secrets::{KeyPrompt, ask_all};
use crate::turn::in_turn_of;
use crate::writable::{WritablePool, WriteIntent};
use crate::zfs::mount::mount_imported;
use clap::Parser;
use in_use::{refuse_imported, refuse_taken};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weir_admin::{FoundStates, OpenErrors, Problem, VdevFacts, VdevStatus, problem_of_found};
use weir_dsl::Dir;
use weir_engine::{Engine, PoolProperty};
use weir_format::{ObjsetKind, Txg};
use weir_machine::Request;
use weir_pool::assemble::state;
use weir_pool::dtls::{Dtls, all_by_labels};
use weir_pool::status::{States, VdevState, lacking, states};
use weir_pool::{Assembly, FoundPool, OpenOptions, PoolError, Rewind, VdevConfig, assemble, scan, uberblocks};

/// List the pools that can be imported, or import pools.
///
/// Without a pool and without -a, the command lists the pools that it finds. An imported pool belongs to this host:
/// other commands open it without -f, and other hosts do not.
#[derive(Debug, Parser)]
#[command(
    name = "zpool import",
    override_usage = "zpool import [-D] [-c FILE|-d DIR|DEVICE…]\n       zpool import [-aflFmnNstX] [-D] [-T TXG] [-o PROPERTY=VALUE]… [-R ROOT] [-c FILE|-d DIR|DEVICE…] [POOL|ID [NEWPOOL]]"
)]
pub struct ImportArgs {
    /// Import all pools
    #[arg(short)]
    all: bool,
    /// Import a pool that another host used
    #[arg(short)]
    force: bool,
    /// Ask for the keys of encrypted datasets, and replay their intent logs
    #[arg(short = 'l')]
    load_keys: bool,
    /// If the last txg is unreadable, go back to an earlier one
    #[arg(short = 'F')]
    rewind: bool,
    /// With -F: only show to which txg the pool would go back
    #[arg(short = 'n')]
    dry_run: bool,
    /// Discard intent logs on missing devices, and log records that cannot be replayed
    #[arg(short = 'm')]
    without_logs: bool,
    /// Go back to the pool's checkpoint: what was written since is lost
    #[arg(long = "rewind-to-checkpoint")]
    to_checkpoint: bool,
    /// Import destroyed pools
    #[arg(short = 'D')]
    destroyed: bool,
    /// Mount no file systems, where the daemon mounts them
    #[arg(short = 'N')]
    no_mount: bool,
    /// With -F: also to txgs before the last ones; has no effect: -F goes back as far as is necessary
    #[arg(short = 'X', requires = "rewind")]
    _extreme: bool,
    /// Go back to this txg at the latest. What was written since is lost, and blocks may have been overwritten
    #[arg(short = 'T', value_name = "TXG")]
    txg: Option<u64>,
    /// Cache file whose pools are imported; they are searched in the folders of its devices
    #[arg(short = 'c', value_name = "FILE", conflicts_with = "dirs")]
    cache_file: Option<PathBuf>,
    /// Accepted, has no effect: the devices are always searched
    #[arg(short = 's')]
    _scan: bool,
    /// The new name is temporary: it is not written to the pool, and lasts until the export
    #[arg(short = 't')]
    temporary: bool,
    /// Property of the pool; readonly=on: change no byte of it (without a daemon, only check whether it can be read). Or options of the
    /// mounts of its file systems: ro, rw, nodev, nosuid, noexec. May be repeated
    #[arg(short = 'o', value_name = "PROPERTY=VALUE|OPTION,…")]
    properties: Vec<String>,
    /// Mount the file systems below ROOT, until the export; without a daemon they are not mounted
    #[arg(short = 'R', value_name = "ROOT")]
    altroot: Option<String>,
    #[command(flatten)]
    places: PoolDirs,
    /// Pool by name or GUID, and its new name
    #[arg(value_name = "POOL NEWPOOL")]
    words: Vec<String>,
}

/// Runs the command.
pub fn run(call: &Call, args: &ImportArgs) -> Result<u8, Failure> {
    if args.words.len() > 2 {
        return Err(ImportArgs::misused("too many arguments"));
    }
    if args.dry_run && !args.rewind && args.txg.is_none() {
        return Err(ImportArgs::misused("-n option must be used with -F or -T"));
    }
    if args.all && !args.words.is_empty() {
        return Err(ImportArgs::misused("too many arguments"));
    }
    if args.load_keys && args.no_mount {
        return Err(ImportArgs::misused("-l is incompatible with -N"));
    }
    if args.load_keys && !args.all && args.words.is_empty() {
        return Err(ImportArgs::misused("-l is only meaningful during an import"));
    }
    if args.temporary && args.words.len() < 2 {
        return Err(ImportArgs::misused("-t needs the pool and its temporary name"));
    }
    if call.process().is_none() {
        go_to_daemon(args.words.first().map_or("", String::as_str))?;
        if args.temporary {
            return Err(Failure::failed(format!("cannot import '{}': {NO_TEMPORARY_NAME}", args.words[0])));
        }
    }
    match args.words.first() {
        Some(pool) => take(call, args, pool, args.words.get(1).cloned()),
        None if args.all => take_all(call, args),
        None => list(call, args),
    }
}

/// Why a pool gets no temporary name where no process keeps it open.
pub const NO_TEMPORARY_NAME: &str =
    "a temporary name lasts while a process has the pool open\nstart 'weir daemon', which imports the pool then";

/// Lists the pools found.
fn list(call: &Call, args: &ImportArgs) -> Result<u8, Failure> {
    let (assembly, looked_at) = look(call, args)?;
    let mut shown = 0;
    let imported = imported_here(call);
    let is_closed = |pool: &&FoundPool| match call.process() {
        Some(process) => process.find(pool).is_none(),
        None => !imported.contains(&pool.config.guid) || pool.config.state != state::ACTIVE,
    };
    let wanted = |pool: &&FoundPool| (pool.config.state == state::DESTROYED) == args.destroyed;
    for pool in assembly.pools.values().filter(wanted).filter(is_closed) {
        call.print(format_args!("{}", describe(call, args, pool, &assembly)?));
        shown += 1;
    }
    if shown == 0 {
        let what = if args.destroyed { "no destroyed pools" } else { "no pools" };
        let hint = hint(args);
        let why = format!("{what} available to import; looked at {looked_at} file(s) or device(s){hint}");
        return Err(Failure::failed(why));
    }
    Ok(0)
}

/// GUIDs of the pools that are imported although no process has them open. The daemon has none: those in its cache file that it
/// has not opened wait for their devices.
fn imported_here(call: &Call) -> BTreeSet<u64> {
    if call.process().is_none() { imported() } else { BTreeSet::new() }
}

/// How pools are found that the search did not find.
fn hint(args: &ImportArgs) -> &'static str {
    if args.places.dirs.is_empty() && args.cache_file.is_none() { "\npools in files are found with -d DIR" } else { "" }
}

/// The pools of the cache file that `-c` names; `None` without it.
fn cached(call: &Call, args: &ImportArgs) -> Result<Option<Vec<CachedPool>>, Failure> {
    let Some(path) = &args.cache_file else { return Ok(None) };
    let pools = CachePlace::File(call.path(path)).file().map(|file| file.pools()).transpose();
    let pools = pools.map_err(|why| Failure::failed(format!("cannot read '{}': {why}", path.display())))?;
    Ok(Some(pools.unwrap_or_default()))
}

/// Folders and devices to scan: those given, else, in the daemon, the usual places and those of its configuration. With a
/// cache file these are the folders of its devices (OpenZFS `discover_cached_paths`): since it was written, devices may have
/// been added, removed, or renamed within their folder.
fn places(call: &Call, args: &ImportArgs) -> Result<Vec<PathBuf>, Failure> {
    if let Some(pools) = cached(call, args)? {
        let places: BTreeSet<PathBuf> = pools.into_iter().flat_map(|pool| pool.paths).filter_map(folder_of).collect();
        return Ok(places.into_iter().collect());
    }
    match call.process().and_then(|process| process.daemon()) {
        Some(daemon) if args.places.dirs.is_empty() => {
            Ok(usual_paths(call).into_iter().chain(daemon.pool_dirs()).collect())
        }
        _ => search(call, &args.places.dirs),
    }
}

/// The folder of a device, if there is one; of a device that is no file (an object store's), the device itself.
fn folder_of(device: PathBuf) -> Option<PathBuf> {
    if !device.is_absolute() {
        return Some(device);
    }
    device.parent().filter(|folder| folder.is_dir()).map(Path::to_owned)
}

/// Scans the devices, and prints on standard error which cannot be read. With a cache file only its pools are found.
fn look(call: &Call, args: &ImportArgs) -> Result<(Assembly, usize), Failure> {
    let machine = call.machine()?;
    let scanned = machine.block_on(scan(machine, &places(call, args)?))?;
    let known: Option<BTreeSet<u64>> = cached(call, args)?.map(|pools| pools.iter().map(|pool| pool.guid).collect());
    if known.is_none() {
        for (path, fault) in &scanned.faults {
            errln!(call, "{}: {fault}", path.display());
        }
    }
    let looked_at = scanned.looked_at;
    let mut assembly = assemble(scanned);
    if let Some(known) = known {
        assembly.pools.retain(|_, pool| known.contains(&pool.config.guid));
    }
    for (device, why) in &assembly.unclear {
        errln!(call, "{}: {why}", device.name());
    }
    Ok((assembly, looked_at))
}

/// Whether root called the command.
fn is_root(call: &Call) -> bool {
    call.caller.ids.0 == 0
}

/// Imports all pools found that no other host uses.
fn take_all(call: &Call, args: &ImportArgs) -> Result<u8, Failure> {
    let (assembly, _) = look(call, args)?;
    let alive = assembly.pools.values().filter(|pool| (pool.config.state == state::DESTROYED) == args.destroyed);
    let alive = alive.filter(|pool| call.process().is_none_or(|process| process.find(pool).is_none()));
    let imported = imported_here(call);
    let alive = alive.filter(|pool| !imported.contains(&pool.config.guid) || pool.config.state != state::ACTIVE);
    let pools: Vec<String> = alive.map(|pool| pool.config.guid.to_string()).collect();
    drop(assembly);
    if pools.is_empty() && !is_root(call) {
        return Err(Failure::failed(
            "no pools available to import: devices that only root may open were not looked at",
        ));
    }
    let mut code = 0;
    for pool in pools {
        if let Err(failure) = take(call, args, &pool, None) {
            errln!(call, "{failure}");
            code = failure.code;
        }
    }
    Ok(code)
}

/// Begins to open a pool in the daemon, after an attempt that goes on has ended.
fn begin(call: &Call, daemon: &Daemon, guid: &str, name: &str, doing: &str) -> Result<OpeningGuard, Failure> {
    let failed = |why: &str| Failure::failed(format!("{doing}: {why}"));
    call.machine()?.block_on(daemon.until_opened(guid)).map_err(|why| failed(&why))?;
    if call.served_pool(guid).is_some() {
        return Err(failed("the daemon has imported it meanwhile"));
    }
    let number = guid.parse().map_err(|_| failed("its GUID is no number"))?;
    daemon.begin_opening(number, name).ok_or_else(|| failed("another command imports it now"))
}

/// Imports one pool.
fn take(call: &Call, args: &ImportArgs, pool: &str, new_name: Option<String>) -> Result<u8, Failure> {
    let doing = format!("cannot import '{pool}'");
    let (assembly, _) = look(call, args)?;
    let named = |p: &&FoundPool| p.config.name == pool || p.config.guid.to_string() == pool;
    let destroyed = |p: &&FoundPool| p.config.state == state::DESTROYED;
    let is_closed = |p: &&FoundPool| call.process().is_none_or(|process| process.find(p).is_none());
    let mut found = assembly.pools.values().filter(named).filter(|p| destroyed(p) == args.destroyed).filter(is_closed);
    let Some(one) = found.next() else {
        if call.served_pool(pool).is_some() {
            return Err(Failure::failed(format!("{doing}: it is already imported")));
        }
        let what = if args.destroyed { "no such destroyed pool available" } else { "no such pool available" };
        return Err(Failure::failed(format!("{doing}: {what}{}", hint(args))));
    };
    if found.next().is_some() {
        return Err(Failure::failed(format!("{doing}: more than one matching pool\nimport by numeric ID instead")));
    }
    refuse_imported(call, args, one, new_name.is_some(), &doing)?;
    let guid = one.config.guid.to_string();
    let name = new_name.clone().unwrap_or_else(|| one.config.name.clone());
    if new_name.is_some() {
        weir_engine::create::check_pool_name(&name).map_err(|error| Failure::failed(format!("{doing}: {error}")))?;
    }
    drop(assembly);
    refuse_taken(call, (pool, &guid), &name, &doing)?;
    let Wanted { read_only, place, altroot, properties, mounts } = wanted_properties(args, &doing)?;
    let search = places(call, args)?;
    let daemon = call.process().and_then(|process| process.daemon());
    if args.dry_run || read_only && daemon.is_none() {
        return look_only(call, args, pool, OpenOptions::new(search, guid));
    }
    let force = args.force || args.destroyed;
    let mut open = OpenOptions::new(search.clone(), guid.clone());
    open.rewind = rewind(args);
    let all_keys = !args.load_keys || ask_all(KeyPrompt::Caller(call), call.machine()?, &mut open)?;
    let rewind = rewind(args);
    let without_logs = args.without_logs;
    let keys = open.keys;
    let _opening = daemon.as_ref().map(|daemon| begin(call, daemon, &guid, &name, &doing)).transpose()?;
    let limits = daemon.as_ref().map(|daemon| daemon.limits_of_pool());
    let to_checkpoint = args.to_checkpoint;
    let is_temporary = args.temporary;
    let intent = WriteIntent {
        search,
        pool: guid,
        keys,
        force,
        rewind,
        to_checkpoint,
        without_logs,
        new_name,
        is_temporary,
        limits,
        read_only,
        accepts_read_only: true,
    };
    let opened = in_turn_of(call, || WritablePool::open(call.machine()?.clone(), &intent));
    let writable = opened.map_err(|failure| failure.naming(&intent.pool, pool))?.stays();
    say_txg(call, args, pool, &writable);
    let writable = with_properties(writable, properties, &doing)?;
    let replayed = writable.machine.block_on(replay(&writable.engine, without_logs));
    let logged = writable.engine.log_command(call.line(), call.caller.ids.0);
    let place = match is_temporary {
        // As OpenZFS: the cache file has no pool under a name that is not its own.
        true => Some(CachePlace::None),
        false => place,
    };
    let mounts = if args.no_mount { ImportMounts::None } else { mounts };
    keep(call, daemon, writable, (place, altroot.as_deref()), mounts)?;
    replayed?;
    logged?;
    Ok(u8::from(!all_keys))
}

/// Opens a pool only to read it, and says as of which txg: a trial run (`-n`), or an import that only the daemon can make.
fn look_only(call: &Call, args: &ImportArgs, pool: &str, options: OpenOptions) -> Result<u8, Failure> {
    let options = OpenOptions { rewind: rewind(args), checkpoint: args.to_checkpoint, ..options };
    let opened = crate::pools::open(call, &options)?;
    let txg = opened.uberblock.txg;
    match args.dry_run {
        true => outln!(call, "Would be able to return {} to its state as of txg {txg}.", opened.name()),
        false => errln!(call, "{pool} can be read as of txg {txg}, and was not imported: that takes 'weir daemon'"),
    }
    Ok(0)
}

/// Says so if a pool went back further than to the txg that was given. The import itself has synced one txg after its state.
fn say_txg(call: &Call, args: &ImportArgs, pool: &str, opened: &WritablePool) {
    let synced = opened.engine.txgs().last_synced();
    if let Some(wanted) = args.txg.filter(|wanted| synced.0 <= *wanted) {
        errln!(call, "{pool} has the state of an earlier txg than {wanted}: none nearer to it can be opened");
    }
}

/// Gives an imported pool to the daemon, or closes and remembers it where there is none. `place` is where it is remembered, if that
/// is given, and its alternate root.
fn keep(
    call: &Call,
    daemon: Option<Arc<Daemon>>,
    writable: WritablePool,
    (place, altroot): (Option<CachePlace>, Option<&str>),
    mounts: ImportMounts,
) -> Result<(), Failure> {
    let Some(daemon) = daemon else {
        cache_file::remember(call, &place.unwrap_or_default(), &writable.engine);
        return writable.close();
    };
    altroot.iter().for_each(|root| writable.engine.set_altroot(root));
    let place = place.unwrap_or_else(|| CachePlace::usual_with(altroot));
    let name = writable.engine.name();
    let unrecorded = call.machine()?.block_on(daemon.adopt(writable, place, mounts == ImportMounts::ByProperties))?;
    unrecorded.iter().for_each(|why| errln!(call, "{why}"));
    let ImportMounts::With(request) = mounts else { return Ok(()) };
    mount_imported(call, &name, request)
}

/// Sets the properties of an imported pool. As in OpenZFS, it does not stay open if one cannot be set.
fn with_properties(
    writable: WritablePool,
    properties: Vec<PoolProperty>,
    doing: &str,
) -> Result<WritablePool, Failure> {
    for property in properties {
        if let Err(error) = writable.machine.block_on(writable.engine.properties().set_on_pool(property)) {
            writable.close()?;
            return Err(Failure::failed(format!("{doing}: {error}")));
        }
    }
    Ok(writable)
}

/// To which txg the pool goes back.
fn rewind(args: &ImportArgs) -> Rewind {
    match (args.txg, args.rewind) {
        (Some(txg), _) => Rewind::Before(Txg(txg)),
        (None, true) => Rewind::Auto,
        (None, false) => Rewind::No,
    }
}

/// Replays the logs of the encrypted datasets whose keys are loaded, because no later command has the keys. With `all`
/// also the logs of datasets that are not encrypted, because only this command discards log records that cannot be
/// replayed (`-m`).
async fn replay(engine: &Engine, all: bool) -> Result<(), Failure> {
    if engine.is_read_only() {
        return Ok(());
    }
    let rq = &Request::internal("import");
    let opened: Vec<(String, ObjsetKind)> = {
        let dsl = engine.synced().dsl(rq).await?;
        let mut opened = Vec::new();
        let is_due = |dir: &&Dir| engine.keys.of(Some(dir)).is_some() || all && dir.crypto_key().is_none();
        for dir in dsl.visible_dirs().into_iter().filter(is_due) {
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

/// Properties of an import (`-o`).
struct Wanted {
    read_only: bool,
    /// Where the pool is remembered, if that is given.
    place: Option<CachePlace>,
    /// Directory below which its file systems are mounted.
    altroot: Option<String>,
    /// Properties that the pool gets; none in a pool that is not written to, as in OpenZFS.
    properties: Vec<PoolProperty>,
    /// How its file systems are mounted.
    mounts: ImportMounts,
}

/// How the daemon mounts the file systems of a pool that it imports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ImportMounts {
    None,
    ByProperties,
    /// As their properties say, with the options of `-o`.
    With(MountRequest),
}

fn wanted_properties(args: &ImportArgs, doing: &str) -> Result<Wanted, Failure> {
    let wrong = |why: String| Failure::failed(format!("{doing}: {why}"));
    pools_once(&args.properties).map_err(wrong)?;
    let mut read_only = false;
    let mut place = None;
    let mut altroot = args.altroot.clone();
    let mut properties = Vec::new();
    let mut options = Vec::new();
    for text in &args.properties {
        match text.split_once('=') {
            Some(("readonly", "on")) => read_only = true,
            Some(("cachefile", value)) => {
                place = Some(CachePlace::parse(value).map_err(wrong)?);
            }
            Some(("readonly", "off")) => {}
            Some(("altroot", root)) => altroot = Some(root.to_owned()),
            Some((name @ ("ashift" | "bootfs"), _)) => {
                return Err(wrong(format!("property '{name}' cannot be set at import time")));
            }
            Some((name, value)) => properties.push(set::stored(name, value).map_err(wrong)?),
            None => options.push(text.clone()),
        }
    }
    let mounts = match options.as_slice() {
        [] => ImportMounts::ByProperties,
        options => ImportMounts::With(MountRequest::of_options(options).map_err(wrong)?),
    };
    if let Some(root) = altroot.as_ref().filter(|root| !root.starts_with('/')) {
        return Err(wrong(format!("invalid alternate root '{root}': must be an absolute path")));
    }
    if read_only {
        properties.clear();
    }
    Ok(Wanted { read_only, place, altroot, properties, mounts })
}

/// The vdevs of a pool with their DTLs, their states and the pool's.
type FoundVdevs = (VdevConfig, Dtls, VdevState, States);

/// The vdevs of a pool by its labels. If these say that devices are missing beyond redundancy, the pool is opened: only its
/// MOS knows which of its vdevs are logs, and it can be imported without those.
fn vdevs_of(call: &Call, args: &ImportArgs, pool: &FoundPool) -> Result<FoundVdevs, Failure> {
    let tree = pool.label_tree()?;
    let newest = uberblocks::ranked(pool, None).first().map(|uberblock| uberblock.txg).unwrap_or_default();
    let dtls = all_by_labels(&tree, &pool.devices, newest);
    let (health, all) = states(&tree, &|guid| pool.devices.contains_key(&guid), &dtls);
    if !lacking(&tree, &all).is_empty() && pool.config.state != state::DESTROYED {
        let options = OpenOptions::new(places(call, args)?, pool.config.guid.to_string());
        if let Ok(opened) = crate::pools::open(call, &options) {
            return Ok((opened.tree.clone(), opened.dtls(), opened.state, opened.states.clone()));
        }
    }
    Ok((tree, dtls, health, all))
}

fn describe(call: &Call, args: &ImportArgs, pool: &FoundPool, assembly: &Assembly) -> Result<String, Failure> {
    let (tree, dtls, health, all) = vdevs_of(call, args, pool)?;
    let missing = lacking(&tree, &all);
    let mut out = format!("   pool: {}\n     id: {}\n  state: {health}", pool.config.name, pool.config.guid);
    if pool.config.state == state::DESTROYED {
        out.push_str(" (DESTROYED)");
    }
    out.push('\n');
    let open_errors = OpenErrors::of(call.machine()?, &tree, &all);
    let unopened = open_errors.kinds();
    let states = FoundStates { health, all: &all, unopened, misses_writes: !dtls.is_empty() };
    let problem = problem_of_found(pool, &tree, &states, crate::writable::host().id);
    if let Some(problem) = problem {
        let status = match missing.is_empty() {
            true => problem.status(),
            false => format!("{} They are: {}.", problem.status(), missing.join("; ")),
        };
        out.push_str(&wrapped(" status", &status));
    }
    out.push_str(&wrapped(" action", &action(pool, problem, !missing.is_empty())));
    problem.and_then(Problem::page).into_iter().for_each(|page| out.push_str(&format!("    see: {page}\n")));
    if let Some(comment) = &pool.config.comment {
        out.push_str(&format!("comment: {comment}\n"));
    }
    out.push_str(" config:\n\n");
    let facts = VdevFacts { states: &all, dtls: &dtls, open_errors: &open_errors };
    let vdevs = VdevStatus::of_found(&pool.config.name, health, &tree, facts);
    let rows = tree::lines(&vdevs, TreeStyle::default(), &|_| Vec::new());
    let text = tree::text(&rows, &[], Colors::default(), |_| Vec::new());
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

/// How to import a pool.
fn action(pool: &FoundPool, problem: Option<Problem>, is_beyond: bool) -> String {
    let by = "by its name or its number";
    let destroyed = if pool.config.state == state::DESTROYED { " with '-D'" } else { "" };
    match problem {
        Some(problem) if is_beyond => format!("The pool cannot be imported. {}", problem.action()),
        Some(Problem::BadLog) => {
            format!(
                "The pool can be imported {by}; '-m' gives up what cannot be replayed. {}",
                Problem::BadLog.action()
            )
        }
        Some(Problem::InUseElsewhere) => {
            let host = pool.config.hostname.as_deref().unwrap_or("another machine");
            format!("It was last in use by '{host}'. If that has ended, the pool can be imported with '-f', {by}.")
        }
        Some(_) => format!("The pool can be imported{destroyed} {by} in spite of that."),
        None if pool.config.state == state::ACTIVE => {
            format!("The pool can be imported {by}; it was not exported.")
        }
        None => format!("The pool can be imported{destroyed} {by}."),
    }
}
