//! `zfs mount`, `zfs unmount`, `zfs share` and `zfs unshare`: in the process that has the pool open.

use super::keys::{load_missing, unload_unmounted};
use super::target::{self, pool_of};
use crate::admin::ServedPool;
use crate::args::CommandLine;
use crate::automount::is_below;
use crate::call::{Call, outln};
use crate::failure::Failure;
use crate::json;
use crate::mounts::{MountError, MountRequest, failed, weir_mounts};
use crate::options::Places;
use crate::pools::{names, search};
use crate::reading::PoolReader;
use clap::Parser;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weir_admin::{DatasetsQuery, PoolQuery, Row};
use weir_daemon::{DatasetShares, Exports, MountRule, Sharing};
use weir_dsl::props::{DatasetKind, Value as PropertyValue};
use weir_machine::Request;

/// Mount file systems at their mount points, or list what is mounted.
#[derive(Debug, Parser)]
#[command(
    name = "zfs mount",
    override_usage = "zfs mount [-j]\n       zfs mount [-Oflv] [-o OPTION,…] [--dir DIR]… -a | [-R] FILESYSTEM…"
)]
pub struct MountArgs {
    /// Mount all file systems whose canmount is on
    #[arg(short)]
    all: bool,
    /// Mount also the file systems below whose canmount is on
    #[arg(short = 'R')]
    recursive: bool,
    /// List what is mounted as JSON
    #[arg(short = 'j', long)]
    json: bool,
    /// Mount over a directory that is not empty, also with overlay=off
    #[arg(short = 'O')]
    overlay: bool,
    /// Mount the named file system although it is redacted: redacted blocks are read as zeros
    #[arg(short = 'f')]
    force: bool,
    /// Load the keys of encrypted file systems that lack them
    #[arg(short = 'l')]
    load_keys: bool,
    /// Mount options: ro, rw, nodev, nosuid, noexec
    #[arg(short, value_name = "OPTION,…")]
    options: Vec<String>,
    /// Print each file system that is mounted
    #[arg(short)]
    verbose: bool,
    #[command(flatten)]
    places: Places,
    /// File system, or several with -R
    #[arg(value_name = "FILESYSTEM")]
    words: Vec<String>,
}

/// Unmount file systems.
#[derive(Debug, Parser)]
#[command(name = "zfs unmount", override_usage = "zfs unmount [-fu] [--dir DIR]… -a | FILESYSTEM|MOUNTPOINT")]
pub struct UnmountArgs {
    /// Unmount all file systems, except those with canmount=noauto
    #[arg(short)]
    all: bool,
    /// Detach a file system that is in use
    #[arg(short)]
    force: bool,
    /// Unload the keys of encryption roots that are unmounted
    #[arg(short = 'u')]
    unload_keys: bool,
    #[command(flatten)]
    places: Places,
    /// File system or mount point
    #[arg(value_name = "FILESYSTEM")]
    words: Vec<String>,
}

/// Share file systems as sharenfs and sharesmb say.
#[derive(Debug, Parser)]
#[command(name = "zfs share", override_usage = "zfs share [--dir DIR]… -a [POOL] | FILESYSTEM")]
pub struct ShareArgs {
    /// Share all file systems of the pool, or of all pools
    #[arg(short)]
    all: bool,
    #[command(flatten)]
    places: Places,
    /// File system, or with -a the pool
    #[arg(value_name = "FILESYSTEM")]
    words: Vec<String>,
}

/// Stop sharing file systems, until 'zfs share' or the end of the process.
#[derive(Debug, Parser)]
#[command(name = "zfs unshare", override_usage = "zfs unshare [--dir DIR]… -a [POOL] | FILESYSTEM")]
pub struct UnshareArgs {
    /// Unshare all file systems of the pool, or of all pools
    #[arg(short)]
    all: bool,
    #[command(flatten)]
    places: Places,
    /// File system, or with -a the pool
    #[arg(value_name = "FILESYSTEM")]
    words: Vec<String>,
}

/// A pool that this process serves, for these commands.
pub struct Target {
    served_pool: Arc<ServedPool>,
    front: Arc<Exports>,
    /// Properties of sharing and mounting, by name.
    shares: BTreeMap<String, DatasetShares>,
}

impl Target {
    /// Mounts a file system at a directory, as [`crate::mounts::Mounts::mount_in`].
    ///
    /// # Errors
    /// Why it is not mounted.
    pub fn mount_at(&self, shares: &DatasetShares, place: &Path, request: MountRequest) -> Result<bool, MountError> {
        let request = MountRequest { overlay: true, ..request };
        let machine = &self.served_pool.machine;
        self.served_pool.mounts.mount_in(&self.front, machine, shares, place.to_path_buf(), request, true)
    }

    /// The file system of this name.
    ///
    /// # Errors
    /// If there is none.
    pub fn file_system(&self, name: &str, doing: &str) -> Result<&DatasetShares, Failure> {
        let found = self.shares.get(name).ok_or_else(|| failed(doing, "dataset does not exist"))?;
        match found.kind {
            DatasetKind::Filesystem => Ok(found),
            _ => Err(failed(doing, "operation not applicable to datasets of this type")),
        }
    }

    /// The file systems below a name, parents before children.
    fn below<'a>(&'a self, top: &'a str) -> impl Iterator<Item = &'a DatasetShares> {
        self.shares.values().filter(move |shares| {
            let rest = shares.dataset.strip_prefix(top);
            shares.kind == DatasetKind::Filesystem && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }
}

/// Runs `work` on the pool of a name in the process that serves it.
///
/// # Errors
/// If no process serves it; errors of `work`.
pub fn with_pool<T>(
    call: &Call,
    places: &Places,
    name: &str,
    doing: &str,
    work: impl FnOnce(&Target) -> Result<T, Failure>,
) -> Result<T, Failure> {
    target::open_to_mount(call, places, name)?.with_pool(|pool| {
        let served = pool.served_pool().and_then(|served_pool| Some((served_pool.clone(), served_pool.front()?)));
        let Some((served_pool, front)) = served else {
            let pool = pool_of(name);
            let why = format!(
                "no process serves pool '{pool}': start 'weir serve --shared {pool}', or mount the whole pool with \
                 'weir mount {pool} DIR'"
            );
            return Err(failed(doing, &why));
        };
        let shares = pool.machine.block_on(front.dataset_shares(&Request::internal("shares")))?;
        work(&Target { served_pool, front, shares })
    })
}

/// The one name that a command takes.
fn one<C: CommandLine>(words: &[String], missing: &str) -> Result<String, Failure> {
    match words {
        [name] => Ok(name.clone()),
        [] => Err(C::misused(missing)),
        _ => Err(C::misused("too many arguments")),
    }
}

/// The file systems that a command names; with `-a` and without a name, all pools.
fn tops<C: CommandLine>(call: &Call, places: &Places, words: &[String], all: bool) -> Result<Vec<String>, Failure> {
    match words {
        [] if all && call.process().is_some() => {
            Ok(call.served_pools().iter().map(|served| served.engine.name()).collect())
        }
        [] if all => names(call, &search(call, &places.dirs)?),
        [protocol] if all && ["nfs", "smb"].contains(&protocol.as_str()) => {
            Err(C::misused("NFS and SMB are shared together, each as its property says"))
        }
        words => Ok(vec![one::<C>(words, "missing filesystem argument")?]),
    }
}

/// Runs `zfs mount`.
pub fn mount(call: &Call, args: &MountArgs) -> Result<u8, Failure> {
    if args.json && (args.all || !args.words.is_empty()) {
        return Err(MountArgs::misused("-j lists what is mounted: it goes with nothing else"));
    }
    match (args.words.as_slice(), args.all) {
        ([], false) if args.recursive => return Err(MountArgs::misused("no dataset provided")),
        ([], false) => return list(call, args),
        ([], true) | ([_], false) => {}
        (_, true) => return Err(MountArgs::misused("too many arguments")),
        (_, false) if args.recursive => {}
        (_, false) => return Err(MountArgs::misused("too many arguments")),
    }
    let request = MountRequest::of_options(&args.options).map_err(|why| MountArgs::misused(&why))?;
    let request = MountRequest { overlay: args.overlay, ..request };
    if args.all && call.process().is_some() {
        return mount_all(call, &call.served_pools(), args, request);
    }
    let tops = if args.all { names(call, &search(call, &args.places.dirs)?)? } else { args.words.clone() };
    for name in tops {
        mount_one(call, args, &name, request)?;
    }
    Ok(0)
}

/// Name and mount point of a file system.
type Place = (String, PathBuf);

/// Lists what is mounted: the mounts of the kernel, and the file systems that the mounts of their parents contain.
fn list(call: &Call, args: &MountArgs) -> Result<u8, Failure> {
    let text = std::fs::read_to_string("/proc/self/mounts")
        .map_err(|error| Failure::failed(format!("cannot list mounts: /proc/self/mounts: {error}")))?;
    let own = weir_mounts(&text);
    let contained = match own.is_empty() {
        true => Vec::new(),
        // A user who may not ask the process that mounts sees the kernel's list.
        false => mounted_file_systems(call, &args.places, &own).unwrap_or_default(),
    };
    let all = with_contained(own, contained);
    if args.json {
        let entry = |(source, path): (String, PathBuf)| {
            let of = json!({ "filesystem": source, "mountpoint": path.display().to_string() });
            (source, of)
        };
        let mut answer = json::frame("zfs mount");
        answer.insert("datasets".into(), Value::Object(all.into_iter().map(entry).collect()));
        json::print(call, answer);
        return Ok(0);
    }
    for (source, path) in all {
        outln!(call, "{source:<30}  {}", path.display());
    }
    Ok(0)
}

/// The file systems that are mounted, of the pools of these mounts, with their mount points, parents before children.
fn mounted_file_systems(call: &Call, places: &Places, own: &[Place]) -> Result<Vec<Place>, Failure> {
    let reader = PoolReader::new(call, &places.dirs)?;
    let pools: BTreeSet<&str> = own.iter().map(|(source, _)| pool_of(source)).collect();
    let mut mounted = Vec::new();
    for pool in pools {
        let query = PoolQuery::Datasets(DatasetsQuery {
            names: Vec::new(),
            kinds: vec![DatasetKind::Filesystem],
            depth: None,
            follows_pool: false,
            altroot: String::new(),
            properties: Some(vec!["mounted".to_owned(), "mountpoint".to_owned()]),
            sort_keys: Vec::new(),
        });
        let mut take = |row| {
            let Row::Dataset(row) = row else { return };
            let values: Vec<&PropertyValue> = row.properties.iter().flatten().map(|property| &property.value).collect();
            if let [PropertyValue::Number(1), PropertyValue::Text(path)] = values.as_slice() {
                mounted.push((row.name.clone(), PathBuf::from(path)));
            }
        };
        // A pool that cannot be read, and a mount for SMB, whose source names none, hides no mount of another pool.
        let _unread = reader.read(pool, query, &mut take);
    }
    mounted.sort();
    Ok(mounted)
}

/// Adds to the kernel's mounts the file systems that the mounts of their parents contain: each at its mount point, which is its
/// place below the parent. Pure.
fn with_contained(own: Vec<Place>, mounted: Vec<Place>) -> Vec<Place> {
    let mut all = own;
    for (name, path) in mounted {
        let is_listed = all.iter().any(|(source, place)| *source == name && *place == path);
        let is_contained = name.rsplit_once('/').is_some_and(|(parent, leaf)| {
            all.iter().any(|(source, place)| source == parent && place.join(leaf) == path)
        });
        if is_contained && !is_listed {
            all.push((name, path));
        }
    }
    all
}

/// Mounts the file systems of a pool that this process has just imported.
///
/// # Errors
/// The file systems that are not mounted.
pub fn mount_imported(call: &Call, pool: &str, request: MountRequest) -> Result<(), Failure> {
    let args = MountArgs::try_parse_from(["zfs mount", "-a"]).map_err(|error| Failure::failed(error.to_string()))?;
    let pools: Vec<_> = call.served_pool(pool).into_iter().collect();
    mount_all(call, &pools, &args, request).map(drop)
}

/// Mounts the file systems of pools of this process whose `canmount` is on, by their mount points: outer ones first.
fn mount_all(call: &Call, pools: &[Arc<ServedPool>], args: &MountArgs, request: MountRequest) -> Result<u8, Failure> {
    let mut failures = Vec::new();
    let mut chosen: Vec<(PathBuf, Arc<ServedPool>, DatasetShares)> = Vec::new();
    for served_pool in pools {
        let Some(front) = served_pool.front() else { continue };
        let shares = served_pool.machine.block_on(front.dataset_shares(&Request::internal("shares")))?;
        let of_pool: Vec<DatasetShares> = shares
            .into_values()
            .filter(|shares| shares.kind == DatasetKind::Filesystem && shares.mount.is_automatic())
            .collect();
        if args.load_keys {
            let names: BTreeSet<&str> = of_pool.iter().map(|shares| shares.dataset.as_str()).collect();
            failures.extend(load_missing(call, served_pool, &names)?);
        }
        let path = |shares: &DatasetShares| PathBuf::from(shares.mount.path().unwrap_or_default());
        chosen.extend(of_pool.into_iter().map(|shares| (path(&shares), served_pool.clone(), shares)));
    }
    chosen.sort_by(|(a, _, left), (b, _, right)| (a, &left.dataset).cmp(&(b, &right.dataset)));
    for (_, served_pool, shares) in chosen {
        let Some(front) = served_pool.front() else { continue };
        match served_pool.mounts.mount(&front, &served_pool.machine, &shares, request) {
            Ok(true) => {
                front.share_mounted(shares.id, request.read_only);
                if args.verbose {
                    outln!(call, "mounted {}", shares.dataset);
                }
            }
            // As OpenZFS: those whose keys are not loaded are passed over.
            Ok(false) | Err(MountError::NoKey) => {}
            Err(why) => failures.push(format!("cannot mount '{}': {why}", shares.dataset)),
        }
    }
    if failures.is_empty() { Ok(0) } else { Err(Failure::failed(failures.join("\n"))) }
}

/// Mounts a file system, or with `-a` those of a pool.
fn mount_one(call: &Call, args: &MountArgs, name: &str, request: MountRequest) -> Result<u8, Failure> {
    let doing = format!("cannot mount '{name}'");
    with_pool(call, &args.places, name, &doing, |target| {
        target.file_system(name, &doing)?;
        let is_chosen = |shares: &&DatasetShares| match shares.dataset == name {
            true if !args.all => true,
            _ => (args.all || args.recursive) && shares.mount.is_automatic(),
        };
        let was_mounted: BTreeSet<u64> = target.served_pool.mounts.by_id().into_keys().collect();
        let chosen = target.below(name).filter(is_chosen).cloned();
        let chosen = if args.force { allowed(target, name, &doing, chosen)? } else { chosen.collect() };
        let mut failures = Vec::new();
        if args.load_keys {
            let names: BTreeSet<&str> = chosen.iter().map(|shares| shares.dataset.as_str()).collect();
            failures.extend(load_missing(call, &target.served_pool, &names)?);
        }
        for shares in &chosen {
            let mounts = &target.served_pool.mounts;
            // Mounting all skips what is mounted, and goes on after a failure.
            match mounts.mount(&target.front, &target.served_pool.machine, shares, request) {
                Ok(true) => {
                    target.front.share_mounted(shares.id, request.read_only);
                    if args.verbose {
                        outln!(call, "mounted {}", shares.dataset);
                    }
                }
                Ok(false) if args.all || args.recursive => {}
                Err(MountError::NoKey) if args.all || args.recursive && shares.dataset != name => {}
                // With its key.
                Ok(false) if args.load_keys && failures.is_empty() && !was_mounted.contains(&shares.id) => {}
                Ok(false) => failures.push(format!("{doing}: filesystem already mounted")),
                Err(why) => failures.push(format!("cannot mount '{}': {why}", shares.dataset)),
            }
        }
        if failures.is_empty() { Ok(0) } else { Err(Failure::failed(failures.join("\n"))) }
    })
}

/// Allows that the redacted file system `name` among these is opened.
fn allowed(
    target: &Target,
    name: &str,
    doing: &str,
    chosen: impl Iterator<Item = DatasetShares>,
) -> Result<Vec<DatasetShares>, Failure> {
    let mut out: Vec<DatasetShares> = chosen.collect();
    for shares in out.iter_mut().filter(|shares| shares.dataset == name) {
        if matches!(shares.mount, MountRule::Redacted(_)) {
            let served_pool = &target.served_pool;
            let rq = Request::internal("mount");
            let allow = served_pool.engine.allow_redacted(&rq, name);
            served_pool.machine.block_on(allow).map_err(|error| failed(doing, &error.to_string()))?;
            shares.mount = shares.mount.clone().allowed();
        }
    }
    Ok(out)
}

/// Runs `zfs unmount`.
pub fn unmount(call: &Call, args: &UnmountArgs) -> Result<u8, Failure> {
    match (args.words.as_slice(), args.all) {
        ([], true) if call.process().is_some() => unmount_all(call, args),
        ([], true) => {
            for name in names(call, &search(call, &args.places.dirs)?)? {
                // The process that serves the pool unmounts those of all its pools.
                with_pool(call, &args.places, &name, &format!("cannot unmount '{name}'"), |_| Ok(()))?;
            }
            Ok(0)
        }
        ([], false) => Err(UnmountArgs::misused("missing filesystem argument")),
        ([given], false) => unmount_one(call, args, given.clone()),
        _ => Err(UnmountArgs::misused("too many arguments")),
    }
}

/// Unmounts the file systems of all pools of this process, those with the innermost mount points first.
fn unmount_all(call: &Call, args: &UnmountArgs) -> Result<u8, Failure> {
    let mut chosen: Vec<(PathBuf, Arc<ServedPool>, u64, String)> = Vec::new();
    for served_pool in call.served_pools() {
        let Some(front) = served_pool.front() else { continue };
        let shares = served_pool.machine.block_on(front.dataset_shares(&Request::internal("shares")))?;
        // As OpenZFS: what was mounted by a command is unmounted by one.
        // A parent stays with it, because it would take what is below along.
        let mounted = served_pool.mounts.by_id();
        let is_automatic = |id: &u64| shares.values().any(|of| of.id == *id && of.mount.is_automatic());
        let (taken, stays): (Vec<_>, Vec<_>) = mounted.into_iter().partition(|(id, _)| is_automatic(id));
        let has_below = |name: &str| stays.iter().any(|(_, (other, _))| is_below(other, name));
        let taken = taken.into_iter().filter(|(_, (name, _))| !has_below(name));
        chosen.extend(taken.map(|(id, (name, path))| (PathBuf::from(path), served_pool.clone(), id, name)));
    }
    chosen.sort_by(|(a, _, _, left), (b, _, _, right)| (b, right).cmp(&(a, left)));
    loop {
        let before = chosen.len();
        let mut failures = Vec::new();
        let mut left = Vec::new();
        for (path, served_pool, id, name) in chosen {
            match served_pool.mounts.unmount_alone(id, args.force) {
                Ok(()) if args.unload_keys => unload_unmounted(&served_pool, &BTreeSet::from([name]))?,
                Ok(()) => {}
                Err(why) => {
                    failures.push(format!("cannot unmount {why}"));
                    left.push((path, served_pool, id, name));
                }
            }
        }
        match (left.is_empty(), left.len() < before) {
            (true, _) => return Ok(0),
            // One that was mounted over others had to go first.
            (false, true) => chosen = left,
            (false, false) => return Err(Failure::failed(failures.join("\n"))),
        }
    }
}

/// Unmounts a file system, with those below it.
fn unmount_one(call: &Call, args: &UnmountArgs, given: String) -> Result<u8, Failure> {
    let doing = format!("cannot unmount '{given}'");
    let name = if given.starts_with('/') { dataset_at(call, &args.places, &given, &doing)? } else { given };
    with_pool(call, &args.places, &name, &doing, |target| {
        target.file_system(&name, &doing)?;
        let mounts = &target.served_pool.mounts;
        let below = mounts.by_id().into_values().map(|(mounted, _)| mounted).filter(|mounted| is_below(mounted, &name));
        let ended: BTreeSet<String> = below.collect();
        match mounts.unmount(&name, args.force) {
            Ok(true) if args.unload_keys => unload_unmounted(&target.served_pool, &ended).map(|()| 0),
            Ok(true) => Ok(0),
            Ok(false) => Err(failed(&doing, "not currently mounted")),
            Err(why) => Err(Failure::failed(format!("cannot unmount {why}"))),
        }
    })
}

/// The dataset that is mounted at a path, also one that the mount of its parent contains.
fn dataset_at(call: &Call, places: &Places, path: &str, doing: &str) -> Result<String, Failure> {
    let path = call.path(path);
    if let Some(name) = call.served_pools().iter().find_map(|served_pool| served_pool.mounts.at(&path)) {
        return Ok(name);
    }
    let text = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let own = weir_mounts(&text);
    let contained = mounted_file_systems(call, places, &own).unwrap_or_default();
    let mounted = with_contained(own, contained).into_iter().find(|(_, mounted)| mounted == Path::new(&path));
    mounted.map(|(source, _)| source).ok_or_else(|| failed(doing, "not a ZFS mountpoint"))
}

/// Runs `zfs share`.
pub fn share(call: &Call, args: &ShareArgs) -> Result<u8, Failure> {
    for name in tops::<ShareArgs>(call, &args.places, &args.words, args.all)? {
        share_one(call, args, &name)?;
    }
    Ok(0)
}

/// Shares a file system, or those of a pool.
fn share_one(call: &Call, args: &ShareArgs, name: &str) -> Result<u8, Failure> {
    let doing = format!("cannot share '{name}'");
    with_pool(call, &args.places, name, &doing, |target| {
        target.file_system(name, &doing)?;
        if target.front.shares.sharing() != Sharing::ByProperties {
            let why = "the process that serves the pool does not follow the properties: start it with --shared";
            return Err(failed(&doing, why));
        }
        let chosen: Vec<&DatasetShares> = match args.all {
            true => target.below(name).filter(|shares| shares.mount.is_automatic()).collect(),
            false => vec![target.file_system(name, &doing)?],
        };
        for shares in chosen {
            let is_off = shares.nfs.is_off() && shares.smb.is_off();
            match &shares.mount {
                _ if is_off && args.all => continue,
                _ if is_off => return Err(failed(&doing, "sharenfs and sharesmb are off: set one of them")),
                _ if target.front.shares.is_shared(shares) && !args.all => {
                    return Err(failed(&doing, "filesystem already shared"));
                }
                MountRule::At(_) | MountRule::OnCommand(_) => target.front.share_one(shares.id, true),
                MountRule::Legacy => return Err(failed(&doing, "legacy mountpoint: set mountpoint to a path")),
                MountRule::Never(why) => return Err(failed(&doing, why)),
                MountRule::Redacted(_) => return Err(failed(&doing, "the file system is redacted")),
            }
        }
        Ok(0)
    })
}

/// Runs `zfs unshare`.
pub fn unshare(call: &Call, args: &UnshareArgs) -> Result<u8, Failure> {
    for name in tops::<UnshareArgs>(call, &args.places, &args.words, args.all)? {
        unshare_one(call, args, &name)?;
    }
    Ok(0)
}

/// Unshares a file system, or those of a pool.
fn unshare_one(call: &Call, args: &UnshareArgs, name: &str) -> Result<u8, Failure> {
    let doing = format!("cannot unshare '{name}'");
    with_pool(call, &args.places, name, &doing, |target| {
        if target.front.shares.sharing() != Sharing::ByProperties {
            let why = "everything in the pool is shared, because the process that serves it was started so";
            return Err(failed(&doing, why));
        }
        if !args.all && !target.front.shares.is_shared(target.file_system(name, &doing)?) {
            return Err(failed(&doing, "not currently shared"));
        }
        let is_chosen = |shares: &&DatasetShares| args.all || shares.dataset == name;
        target.below(name).filter(is_chosen).for_each(|shares| target.front.share_one(shares.id, false));
        Ok(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_in_the_mount_of_their_parent_are_listed_at_their_place() {
        let own = |list: &[(&str, &str)]| -> Vec<(String, PathBuf)> {
            list.iter().map(|(name, path)| ((*name).to_owned(), PathBuf::from(path))).collect()
        };
        let mounted = own(&[("t", "/t"), ("t/a", "/t/a"), ("t/a/b", "/t/a/b"), ("t/c", "/srv"), ("u/x", "/u/x")]);
        // Another process has mounted a pool of the same name.
        let all = with_contained(own(&[("t", "/other"), ("t", "/t"), ("t/c", "/srv")]), mounted);
        let expected = [("t", "/other"), ("t", "/t"), ("t/c", "/srv"), ("t/a", "/t/a"), ("t/a/b", "/t/a/b")];
        assert_eq!(all, own(&expected));
    }
}
