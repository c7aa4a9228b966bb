//! `zfs load-key`, `unload-key`, `change-key`.
//!
//! A key stays loaded in the process that has the pool open (`weir serve`, `weir mount`), which then executes these
//! commands. Without such a process a key is only verified, because no process would keep it.

use super::target::{self, words};
use super::values::{self, When};
use crate::admin::ServedPool;
use crate::args::CommandLine;
use crate::call::{Call, errln, outln};
use crate::failure::Failure;
use crate::options::{DatasetDirs, Places, once};
use crate::pools::{self, PoolHandle, keys_of, search};
use crate::secrets::{EncryptionArgs, KeyPrompt, Root, roots, verified_key};
use crate::writable::{WritablePool, WriteIntent};
use clap::{Args, Parser};
use std::collections::BTreeSet;
use std::sync::Arc;
use weir_admin::below;
use weir_daemon::Sharing;
use weir_dsl::Dsl;
use weir_dsl::props::DatasetKind;
use weir_engine::{Engine, KeyChange, KeyError};
use weir_machine::{Protocol, Request};
use weir_pool::{OpenOptions, PoolError};

/// Encryption roots that `zfs load-key` and `zfs unload-key` act on.
#[derive(Args, Debug)]
pub struct RootSelection {
    /// Apply to all encryption roots below the dataset as well
    #[arg(short)]
    recursive: bool,
    /// Apply to all encryption roots of all pools
    #[arg(short)]
    all: bool,
    #[command(flatten)]
    places: DatasetDirs,
    /// Encryption root
    #[arg(value_name = "DATASET")]
    words: Vec<String>,
}

/// Load keys of encrypted datasets.
///
/// A process that has the pool open keeps the keys. Without such a process the command only verifies them.
#[derive(Debug, Parser)]
#[command(
    name = "zfs load-key",
    override_usage = "zfs load-key [-rn] [-L <keylocation>] [--dir DIR]… -a | FILESYSTEM|VOLUME"
)]
pub struct LoadKeyArgs {
    /// Verify the keys and load none
    #[arg(short = 'n')]
    dry_run: bool,
    /// Location of the key instead of the property keylocation: prompt or file:///PATH
    #[arg(short = 'L', value_name = "KEYLOCATION")]
    location: Option<String>,
    #[command(flatten)]
    roots: RootSelection,
}

/// Unload keys of encrypted datasets.
#[derive(Debug, Parser)]
#[command(name = "zfs unload-key", override_usage = "zfs unload-key [-r] [--dir DIR]… -a | FILESYSTEM|VOLUME")]
pub struct UnloadKeyArgs {
    #[command(flatten)]
    roots: RootSelection,
}

/// Change the key of an encryption root, or make a dataset inherit its parent's.
#[derive(Debug, Parser)]
#[command(
    name = "zfs change-key",
    override_usage = "zfs change-key [-l] [-o keyformat=…] [-o keylocation=…] [-o pbkdf2iters=…] [--dir DIR]… FILESYSTEM|VOLUME\n       zfs change-key -i [-l] [--dir DIR]… FILESYSTEM|VOLUME"
)]
pub struct ChangeKeyArgs {
    /// Load the present key first
    #[arg(short)]
    load: bool,
    /// Inherit the parent's key
    #[arg(short)]
    inherit: bool,
    /// Property of the new key: keyformat, keylocation or pbkdf2iters; may be repeated
    #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
    properties: Vec<String>,
    #[command(flatten)]
    places: Places,
    /// Encryption root
    #[arg(value_name = "DATASET")]
    words: Vec<String>,
}

fn loading(why: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("Key load error: {why}"))
}

/// Loading or unloading of keys.
#[derive(Clone, Copy)]
enum Work {
    Load,
    Unload,
}

impl Work {
    /// The failure because a dataset is not an encryption root (`zfs_crypto_load_key`, `zfs_crypto_unload_key`).
    fn refused(self, error: KeyError) -> Failure {
        match (self, error) {
            (Work::Load, error) => loading(error),
            (Work::Unload, KeyError::NotRoot { name, root }) => Failure::failed(format!(
                "Key unload error: Keys must be unloaded for encryption root of '{name}' ({root})."
            )),
            (Work::Unload, error) => Failure::failed(format!("Key unload error: {error}")),
        }
    }
}

/// Pools and encryption roots in them that the command `C` acts on.
fn meant<C: CommandLine>(
    call: &Call,
    selection: &RootSelection,
    work: Work,
) -> Result<Vec<(PoolHandle, Vec<Root>)>, Failure> {
    let search = search(call, &selection.places.dirs)?;
    let names = match selection.all {
        true if !selection.words.is_empty() => return Err(C::misused("cannot specify dataset with -a")),
        true => pools::names(call, &search)?,
        false => words::<C>(&selection.words, 1..=1, "missing dataset argument(s)")?,
    };
    let rq = Request::internal("load-key");
    let machine = call.machine()?;
    let mut out = Vec::new();
    for name in names {
        let pool = pools::open(call, &OpenOptions::new(search.clone(), target::pool_of(&name)))?;
        let found = match selection.all || selection.recursive {
            true => {
                let top = if selection.all { pool.name() } else { &name };
                let inside: Vec<&str> = below(&pool.dsl, top).into_iter().map(|dir| dir.name.as_str()).collect();
                machine.block_on(roots(&rq, &pool.dsl, |name| inside.contains(&name)))?
            }
            false => vec![machine.block_on(one(&rq, &pool.dsl, &name, work))?],
        };
        out.push((pool, found));
    }
    Ok(out)
}

/// The dataset of that name, which must be an encryption root.
async fn one(rq: &Request, dsl: &Dsl, name: &str, work: Work) -> Result<Root, Failure> {
    let absent = || Failure::failed(format!("cannot open '{name}': dataset does not exist"));
    let dir = dsl.dir_named(name).ok_or_else(absent)?;
    let root = weir_dsl::keys::encryption_root(dsl, rq, dir).await.map_err(PoolError::from)?;
    let name = name.to_owned();
    match root {
        None => Err(work.refused(KeyError::NotEncrypted { name })),
        Some(root) if root != name => Err(work.refused(KeyError::NotRoot { name, root })),
        Some(_) => {
            let found = roots(rq, dsl, |other| other == name).await?.pop();
            found.ok_or_else(|| work.refused(KeyError::NotEncrypted { name }))
        }
    }
}

/// Runs `zfs load-key`.
pub fn load(call: &Call, args: &LoadKeyArgs) -> Result<u8, Failure> {
    let machine = call.machine()?;
    let many = args.roots.all || args.roots.recursive;
    let mut tried = 0;
    let mut right = 0;
    let mut kept = true;
    for (pool, found) in meant::<LoadKeyArgs>(call, &args.roots, Work::Load)? {
        let name = pool.name().to_owned();
        // While a snapshot of an open pool exists, no txg of the pool syncs.
        let (closed, served_pool) = match pool {
            open @ PoolHandle::Open(_) => {
                drop(open);
                (None, call.served_pool(&name))
            }
            closed => (Some(closed), None),
        };
        kept &= closed.is_none() || found.is_empty();
        for mut root in found {
            root.location = args.location.clone().unwrap_or(root.location);
            // Of many, those that are loaded are passed over.
            if let Some(served_pool) = served_pool.as_ref().filter(|_| many)
                && machine.block_on(
                    served_pool.engine.encryption_keys().is_loaded(&Request::internal("load-key"), &root.name),
                )? == Some(true)
            {
                continue;
            }
            tried += 1;
            let done = machine.block_on(async {
                match (&closed, &served_pool) {
                    (Some(pool), _) => verified_key(KeyPrompt::Caller(call), &pool.dsl, &root).await.map(drop),
                    (None, Some(served_pool)) => load_one(call, &served_pool.engine, &root, args.dry_run).await,
                    (None, None) => Err(loading("no process has the pool open")),
                }
            });
            match done {
                Ok(()) => right += 1,
                Err(failure) => errln!(call, "{failure}"),
            }
        }
        // The datasets of the key become visible in the exports.
        served_pool.map_or(Ok(()), |served_pool| machine.block_on(served_pool.renew()))?;
    }
    // As OpenZFS's `load_unload_keys` prints it.
    if many || args.dry_run {
        let what = if args.dry_run || !kept { "verified" } else { "loaded" };
        outln!(call, "{right} / {tried} key(s) successfully {what}");
    }
    match (right < tried, args.dry_run || kept || tried == 0) {
        (true, _) => Ok(1),
        (false, true) => Ok(0),
        (false, false) => Err(Failure::failed(
            "The key is right, but no process has the pool open to keep it loaded: run this command while 'weir daemon' has \
             the pool imported; 'weir serve -l' and 'weir mount -l' ask for keys by themselves",
        )),
    }
}

/// Loads the keys that file systems of these names need and lack, and returns what failed, one line for each encryption root.
///
/// # Errors
/// If the pool cannot be read.
pub fn load_missing(
    call: &Call,
    served_pool: &Arc<ServedPool>,
    names: &BTreeSet<&str>,
) -> Result<Vec<String>, Failure> {
    let rq = Request::internal("load-key");
    let engine = &served_pool.engine;
    let mut failures = Vec::new();
    served_pool.machine.block_on(async {
        let wanted = {
            // While a snapshot of an open pool exists, no txg of the pool syncs.
            let dsl = engine.synced().dsl(&rq).await?;
            let mut needed = BTreeSet::new();
            for dir in names.iter().filter_map(|name| dsl.dir_named(name)) {
                needed.extend(weir_dsl::keys::encryption_root(&dsl, &rq, dir).await.map_err(PoolError::from)?);
            }
            roots(&rq, &dsl, |name| needed.contains(name)).await?
        };
        for root in wanted {
            if engine.encryption_keys().is_loaded(&rq, &root.name).await? != Some(true)
                && let Err(failure) = load_one(call, engine, &root, false).await
            {
                failures.push(format!("{}: {failure}", root.name));
            }
        }
        Ok::<(), Failure>(())
    })?;
    // The datasets of the keys become visible in the exports.
    served_pool.machine.block_on(served_pool.renew())?;
    Ok(failures)
}

/// Unloads the keys of the encryption roots among file systems that were unmounted (`zfs unmount -u`).
///
/// # Errors
/// If a key is in use, or the pool cannot be read.
pub fn unload_unmounted(served_pool: &Arc<ServedPool>, names: &BTreeSet<String>) -> Result<(), Failure> {
    let rq = &Request::internal("unload-key");
    let keys = served_pool.engine.encryption_keys();
    served_pool.machine.block_on(async {
        let found = roots(rq, &*served_pool.engine.synced().dsl(rq).await?, |name| names.contains(name)).await?;
        for Root { name, .. } in found {
            if keys.is_loaded(rq, &name).await? == Some(true) {
                let unloading = |error: PoolError| Failure::failed(format!("Key unload error: {error}"));
                keys.unload(rq, &name).await.map_err(unloading)?;
            }
        }
        Ok::<(), Failure>(())
    })?;
    served_pool.machine.block_on(served_pool.renew())
}

/// Loads a key in the process that has the pool open; with `only_check`, it is only proven.
async fn load_one(call: &Call, engine: &Engine, root: &Root, only_check: bool) -> Result<(), Failure> {
    let rq = &Request::internal("load-key");
    let name = root.name.clone();
    if !only_check && engine.encryption_keys().is_loaded(rq, &name).await? == Some(true) {
        return Err(loading(KeyError::Loaded { name }));
    }
    let key = root.key(KeyPrompt::Caller(call)).map_err(loading)?.take();
    let done = if only_check {
        engine.encryption_keys().check(rq, &name, key).await
    } else {
        engine.encryption_keys().load(rq, &name, key).await
    };
    done.map_err(loading)
}

/// Name of a mounted file system that uses the key of an encryption root, if there is one. A mount of the whole pool does not
/// count: it goes on without the file system.
async fn mounted_with(rq: &Request, served_pool: &ServedPool, root: &str) -> Result<Option<String>, PoolError> {
    let dsl = served_pool.engine.synced().dsl(rq).await?;
    for (name, _) in served_pool.mounts.list() {
        let Some(dir) = dsl.dir_named(&name) else { continue };
        if weir_dsl::keys::encryption_root(&dsl, rq, dir).await?.as_deref() == Some(root) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// Name of a file system that is shared with clients and uses the key of an encryption root, if there is one. OpenZFS shares what
/// is mounted. So where the process mounts by itself, a file system that is not mounted was unmounted by the administrator, and
/// its clients may lose it; where nothing is mounted, `zfs unshare` has to come first.
async fn shared_with(rq: &Request, served_pool: &ServedPool, root: &str) -> Result<Option<String>, PoolError> {
    let Some(front) = served_pool.front().filter(|front| front.shares.sharing() == Sharing::ByProperties) else {
        return Ok(None);
    };
    let dsl = served_pool.engine.synced().dsl(rq).await?;
    let all = front.shares.all();
    let mounts_by_itself = served_pool.automounts().is_some();
    for state in front.shares.states(served_pool.guid()) {
        let is_of_files = matches!(state.protocol, Protocol::Nfs3 | Protocol::Smb) && state.is_served;
        let is_unmounted =
            mounts_by_itself && all.get(&state.dataset).is_some_and(|shares| shares.mount.is_automatic());
        let Some(dir) = dsl.dir_named(&state.dataset).filter(|_| is_of_files && !is_unmounted) else { continue };
        if weir_dsl::keys::encryption_root(&dsl, rq, dir).await?.as_deref() == Some(root) {
            return Ok(Some(state.dataset));
        }
    }
    Ok(None)
}

/// Runs `zfs unload-key`.
pub fn unload(call: &Call, args: &UnloadKeyArgs) -> Result<u8, Failure> {
    let machine = call.machine()?;
    let many = args.roots.all || args.roots.recursive;
    let rq = &Request::internal("unload-key");
    let mut tried = 0_u64;
    let mut unloaded = 0_u64;
    for (pool, found) in meant::<UnloadKeyArgs>(call, &args.roots, Work::Unload)? {
        let served_pool = matches!(pool, PoolHandle::Open(_)).then(|| call.served_pool(pool.name())).flatten();
        drop(pool);
        for Root { name, .. } in found {
            let loaded = match &served_pool {
                Some(served_pool) => {
                    machine.block_on(served_pool.engine.encryption_keys().is_loaded(rq, &name))? == Some(true)
                }
                None => false,
            };
            // With -a and -r, datasets whose key is not loaded are skipped.
            if many && !loaded {
                continue;
            }
            tried += 1;
            let done = match &served_pool {
                Some(served_pool) if loaded => machine.block_on(async {
                    let mounted = mounted_with(rq, served_pool, &name).await?;
                    if let Some(mounted) = mounted {
                        errln!(call, "'{mounted}' is mounted: zfs unmount {mounted}");
                        return Err(KeyError::Busy { name: name.clone() }.into());
                    }
                    if let Some(shared) = shared_with(rq, served_pool, &name).await? {
                        errln!(call, "'{shared}' is shared: zfs unshare {shared}");
                        return Err(KeyError::Busy { name: name.clone() }.into());
                    }
                    served_pool.engine.encryption_keys().unload(rq, &name).await
                }),
                Some(served_pool) => machine.block_on(served_pool.engine.encryption_keys().unload(rq, &name)),
                None => Err(KeyError::Unloaded { name }.into()),
            };
            match done {
                Ok(()) => unloaded += 1,
                Err(error) => errln!(call, "Key unload error: {error}"),
            }
        }
        served_pool.map_or(Ok(()), |served_pool| machine.block_on(served_pool.renew()))?;
    }
    if many && tried != 0 {
        outln!(call, "{unloaded} / {tried} key(s) successfully unloaded");
    }
    debug_assert!(unloaded <= tried, "what was not tried is not unloaded");
    Ok(u8::from(unloaded < tried))
}

/// Runs `zfs change-key`.
pub fn change(call: &Call, args: &ChangeKeyArgs) -> Result<u8, Failure> {
    let name = words::<ChangeKeyArgs>(&args.words, 1..=1, "missing dataset argument")?.remove(0);
    let parse = |text: &String| values::parse(text, DatasetKind::Filesystem, When::Creation);
    once(&args.properties).map_err(Failure::failed)?;
    let parsed: Result<Vec<_>, String> = args.properties.iter().map(parse).collect();
    let mut properties = parsed.map_err(|why| ChangeKeyArgs::misused(&why))?;
    let wanted = EncryptionArgs::take_of_key(&mut properties);
    if !properties.is_empty() {
        let only = "Only keyformat, keylocation and pbkdf2iters may be set with this command.";
        return Err(Failure::failed(format!("Key change error: {only}")));
    }
    if args.inherit && wanted != EncryptionArgs::default() {
        return Err(ChangeKeyArgs::misused("Properties not allowed for inheriting"));
    }
    let search = search(call, &args.places.dirs)?;
    let pool = target::pool_of(&name).to_owned();
    let keys = keys_of(call, &search, &args.places.keys)?;
    let intent = WriteIntent { search, pool, keys, ..WriteIntent::default() };
    let machine = call.machine()?;
    let changing = |why: &dyn std::fmt::Display| Failure::failed(format!("Key change error: {why}"));
    WritablePool::of_call(call, &intent)?.with(async |engine| {
        if args.load {
            let above = name.rsplit_once('/').map(|(above, _)| above).filter(|_| args.inherit);
            for dataset in [Some(name.as_str()), above].into_iter().flatten() {
                load_root_of(call, engine, dataset).await?;
            }
        }
        let rq = &Request::internal("change-key");
        match engine.encryption_keys().is_loaded(rq, &name).await? {
            None => return Err(changing(&KeyError::NotEncrypted { name: name.clone() })),
            Some(false) => return Err(changing(&KeyError::NotLoaded)),
            Some(true) => {}
        }
        let change = if args.inherit {
            KeyChange::Inherit
        } else {
            let found = roots(rq, &*engine.synced().dsl(rq).await?, |other| other == name).await?.pop();
            let root =
                wanted.or(found).root(KeyPrompt::Caller(call), machine, &name).await.map_err(|why| changing(&why))?;
            KeyChange::New(root.ok_or_else(|| changing(&KeyError::NoFormat))?)
        };
        engine.encryption_keys().change(name.clone(), change).await.map_err(|why| changing(&why))?;
        Ok(engine.log_command(call.note(), call.caller.ids.0)?)
    })?;
    Ok(0)
}

/// Loads the key of a dataset's encryption root, if it is not loaded.
async fn load_root_of(call: &Call, engine: &Engine, dataset: &str) -> Result<(), Failure> {
    let rq = &Request::internal("change-key");
    let root = {
        let dsl = engine.synced().dsl(rq).await?;
        let Some(dir) = dsl.dir_named(dataset) else { return Ok(()) };
        match weir_dsl::keys::encryption_root(&dsl, rq, dir).await.map_err(PoolError::from)? {
            Some(root) => one(rq, &dsl, &root, Work::Load).await?,
            None => return Ok(()),
        }
    };
    match engine.encryption_keys().is_loaded(rq, &root.name).await? {
        Some(true) => Ok(()),
        _ => load_one(call, engine, &root, false).await,
    }
}
