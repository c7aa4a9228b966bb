//! Workload for pools made by others, through the engine's own calls: in each of their file systems, in new datasets
//! beside them, and in clones of their snapshots.
//!
//! ```text
//!   each file system   weir-rw/: files, links, an attribute ─► FS@weir-rw ─► overwritten, removed, punched, copied
//!   each key           a child of its encryption root, POOL/…/weir-rw, written alike
//!   the pool           POOL/weir-rw written alike, a volume in it, clones of their snapshots that come and go
//! ```
//!
//! Everything that the workload makes is called [`OURS`]. The contents of a file follow from its number and the
//! generation, so that another process can check them later. Every other snapshot is destroyed again, the rest stays.

use std::collections::BTreeMap;
use std::sync::Arc;
use weir_files::{DirName, FilePosition};

use bytes::Bytes;
use weir_dmu::ObjectError;
use weir_dsl::sync_tasks::{DslError, FileSystemSpec, Kind, NewDataset, VolumeSpec};
use weir_engine::Engine;
use weir_files::{Cred, FileError, FileSystem, New, NewKind, RenameMode, SetAttributes, Space, WriteAt, XattrMode};
use weir_format::{ObjectId, ObjsetKind};
use weir_machine::Request;
use weir_pool::{Pool, PoolError};
use weir_volumes::VolumeError;

use crate::kill::content;

/// Name of everything that the workload makes: folder, dataset or snapshot.
pub const OURS: &str = "weir-rw";
/// Number of files in each folder.
const FILES: u64 = 12;
/// The file that has an attribute and a second name.
const LINKED: u64 = 2;
/// The file that gets a hole, and the one that is copied.
const PUNCHED: u64 = 5;
const COPIED: u64 = 8;
const HOLE: std::ops::Range<u64> = 4096..20_000;
const XATTR: &[u8] = b"user.weir";
/// A file of this name marks a file system that accepts no attributes.
const NO_XATTRS: &[u8] = b"no attributes";
const VOLUME_BYTES: u64 = 4 << 20;
const SECTOR_BYTES: u64 = 16 << 10;
/// Number of their snapshots that are cloned.
const CLONES: usize = 3;

/// State of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generation {
    /// The files were made.
    First,
    /// Files were overwritten, removed, renamed after that.
    Second,
}

/// Reason why a workload stops.
#[derive(Debug)]
pub enum Stop {
    /// The pool has no space, or a limit in its properties is reached.
    Full,
    /// Writing is refused for this reason.
    Left(String),
    /// Error of the engine.
    Failed(String),
}

impl From<FileError> for Stop {
    fn from(error: FileError) -> Stop {
        match error {
            FileError::NoSpace | FileError::Quota => Stop::Full,
            other => Stop::Failed(other.to_string()),
        }
    }
}

impl From<VolumeError> for Stop {
    fn from(error: VolumeError) -> Stop {
        match error {
            VolumeError::NoSpace { .. } => Stop::Full,
            other => Stop::Failed(other.to_string()),
        }
    }
}

impl From<PoolError> for Stop {
    fn from(error: PoolError) -> Stop {
        match error {
            PoolError::Object(ObjectError::NoSpace { .. } | ObjectError::Quota { .. })
            | PoolError::Dsl(
                DslError::Space { .. } | DslError::Object(ObjectError::NoSpace { .. } | ObjectError::Quota { .. }),
            ) => Stop::Full,
            // The root dataset of ztest is called a file system, but none was ever made in it.
            PoolError::Object(ObjectError::NoObject { object: ObjectId(1), .. }) => {
                Stop::Left("no file system was made in it".to_owned())
            }
            PoolError::File { source, .. } => Stop::from(*source),
            PoolError::Volume { source, .. } => Stop::from(*source),
            other => Stop::Failed(other.to_string()),
        }
    }
}

/// Results of a workload.
#[derive(Debug, Default)]
pub struct Done {
    /// File systems and snapshots with a folder of the workload, and its state; `None`: unfinished, because there was
    /// no space.
    pub written: BTreeMap<String, Option<Generation>>,
    /// The volume that was made, if there was space for it.
    pub volume: Option<String>,
    /// Objects that were left alone or given up, with the reason.
    pub left: Vec<String>,
    /// Whether copies share blocks.
    pub shares: bool,
}

/// A dataset of the original pool.
struct Member {
    name: String,
    kind: ObjsetKind,
    is_encrypted: bool,
    is_root_of_key: bool,
    snapshots: Vec<String>,
}

fn at(name: &str) -> impl FnOnce(Stop) -> Stop + '_ {
    move |stop| match stop {
        Stop::Full => Stop::Full,
        Stop::Left(why) => Stop::Left(format!("{name}: {why}")),
        Stop::Failed(why) => Stop::Failed(format!("{name}: {why}")),
    }
}

/// Version of a file in a generation.
fn version(generation: Generation, n: u64) -> Option<u64> {
    match (generation, n % 3) {
        (Generation::First, _) | (Generation::Second, 2) => Some(n + 1),
        (Generation::Second, 0) => Some(n + 1000),
        (Generation::Second, _) => None,
    }
}

/// Contents of the files of a generation, by name.
fn state(generation: Generation) -> BTreeMap<String, Option<Vec<u8>>> {
    let mut files: BTreeMap<_, _> =
        (0..FILES).map(|n| (format!("file {n}"), version(generation, n).map(|v| content(v).to_vec()))).collect();
    let file = |n: u64| content(n + 1).to_vec();
    files.insert("second name".into(), Some(file(LINKED)));
    let mut punched = file(PUNCHED);
    let end = punched.len().min(HOLE.end as usize);
    if let (Generation::Second, Some(hole)) = (generation, punched.get_mut(HOLE.start as usize..end)) {
        hole.fill(0);
    }
    files.insert(format!("file {PUNCHED}"), Some(punched));
    files.insert("copy".into(), (generation == Generation::Second).then(|| file(COPIED)));
    files
}

fn attribute() -> Vec<u8> {
    content(77).iter().copied().cycle().take(3000).collect()
}

/// Makes the folder with its files.
async fn first(files: &FileSystem, rq: &Request) -> Result<(), Stop> {
    let root = &Cred::root();
    let folder = files
        .names()
        .create(rq, root, files.root(), OURS.as_bytes(), &New::of(NewKind::Directory, 0o755))
        .await?
        .object;
    for n in 0..FILES {
        let name = format!("file {n}");
        let file =
            files.names().create(rq, root, folder, name.as_bytes(), &New::of(NewKind::Regular, 0o644)).await?.object;
        files.contents().write(rq, root, file, WriteAt::Offset(0), content(n + 1)).await?;
        if n % 4 == 0 {
            files.sync(rq, Some(file)).await?;
        }
        if n == LINKED {
            files.names().link(rq, root, file, folder, b"second name").await?;
            match files.xattrs().set(rq, root, file, XATTR, &attribute(), XattrMode::Any).await {
                // This file is checked later.
                Err(FileError::Unsupported { .. }) => {
                    files.names().create(rq, root, folder, NO_XATTRS, &New::of(NewKind::Regular, 0o644)).await?;
                }
                set => set?,
            }
        }
    }
    files
        .names()
        .create(rq, root, folder, b"link", &New::of(NewKind::Symlink(b"../elsewhere".to_vec()), 0o777))
        .await?;
    Ok(files.sync(rq, None).await?)
}

/// Overwrites, removes, renames, punches and copies. A copy is written where blocks may not be shared.
async fn second(files: &FileSystem, rq: &Request, shares: bool) -> Result<(), Stop> {
    let root = &Cred::root();
    let folder = files.directories().lookup(rq, files.root(), OURS.as_bytes()).await?;
    for n in 0..FILES {
        let name = format!("file {n}");
        match version(Generation::Second, n) {
            None => files.names().remove(rq, root, folder, name.as_bytes()).await?,
            Some(version) if version != n + 1 => {
                let file = files.directories().lookup(rq, folder, name.as_bytes()).await?;
                files.attrs().set(rq, root, file, &SetAttributes::size(0)).await?;
                files.contents().write(rq, root, file, WriteAt::Offset(0), content(version)).await?;
            }
            Some(_) => {}
        }
    }
    files
        .names()
        .rename(
            rq,
            root,
            DirName { dir: folder, name: b"link" },
            DirName { dir: folder, name: b"renamed" },
            RenameMode::NoReplace,
        )
        .await?;
    let punched = files.directories().lookup(rq, folder, format!("file {PUNCHED}").as_bytes()).await?;
    files.contents().allocate(rq, root, punched, HOLE, Space::Punch).await?;
    let copied = files.directories().lookup(rq, folder, format!("file {COPIED}").as_bytes()).await?;
    let copy = files.names().create(rq, root, folder, b"copy", &New::of(NewKind::Regular, 0o600)).await?.object;
    let (mut done, len) = (0, content(COPIED + 1).len() as u64);
    while done < len {
        if !shares {
            files.contents().write(rq, root, copy, WriteAt::Offset(0), content(COPIED + 1)).await?;
            break;
        }
        done += files
            .contents()
            .copy_range(
                rq,
                root,
                files,
                FilePosition { file: copied, offset: done },
                FilePosition { file: copy, offset: done },
                len - done,
            )
            .await?
            .max(1);
    }
    Ok(files.sync(rq, None).await?)
}

/// Returns how the folder differs from its generation.
pub async fn differences(files: &FileSystem, rq: &Request, generation: Generation) -> Vec<String> {
    let folder = match files.directories().lookup(rq, files.root(), OURS.as_bytes()).await {
        Ok(folder) => folder,
        Err(error) => return vec![format!("{OURS}: {error}")],
    };
    let mut out = Vec::new();
    for (name, wanted) in state(generation) {
        if let Err(why) = file_is(files, rq, (folder, &name), wanted.as_deref()).await {
            out.push(format!("{OURS}/{name}: {why}"));
        }
    }
    let link = if generation == Generation::First { "link" } else { "renamed" };
    let target = match files.directories().lookup(rq, folder, link.as_bytes()).await {
        Ok(object) => files.contents().read_link(rq, object).await,
        Err(error) => Err(error),
    };
    if !target.as_ref().is_ok_and(|target| target[..] == b"../elsewhere"[..]) {
        out.push(format!("{OURS}/{link}: {target:?}"));
    }
    out
}

async fn file_is(
    files: &FileSystem,
    rq: &Request,
    (folder, name): (ObjectId, &str),
    wanted: Option<&[u8]>,
) -> Result<(), String> {
    let said = |error: FileError| error.to_string();
    let object = match (files.directories().lookup(rq, folder, name.as_bytes()).await, wanted) {
        (Err(FileError::NotFound), None) => return Ok(()),
        (Ok(_), None) => return Err("is there".into()),
        (object, Some(_)) => object.map_err(said)?,
        (Err(error), None) => return Err(error.to_string()),
    };
    let wanted = wanted.unwrap_or_default();
    let found = files.contents().read(rq, object, 0, wanted.len() + 1).await.map_err(said)?;
    if found[..] != *wanted {
        return Err(format!("{} bytes, other than the {} written", found.len(), wanted.len()));
    }
    if name == format!("file {LINKED}") {
        let takes_none = files.directories().lookup(rq, folder, NO_XATTRS).await.is_ok();
        let value = files.xattrs().get(rq, object, XATTR).await.map_err(said)?;
        if value.map(|value| value.to_vec()) != (!takes_none).then(attribute) {
            return Err("another attribute".into());
        }
    }
    Ok(())
}

fn sector(n: u64) -> Bytes {
    Bytes::from(content(n).iter().copied().cycle().take(SECTOR_BYTES as usize).collect::<Vec<u8>>())
}

/// Sectors of the volume that were written, with their contents.
pub fn sectors() -> impl Iterator<Item = (u64, Bytes)> {
    (0..40).map(|n| (n * 2 * SECTOR_BYTES, sector(if n < 10 { n + 500 } else { n + 1 })))
}

/// Whether copies in a pool may share blocks and OpenZFS's zdb at hand (2.3) still read it: the first shared block
/// brings `feature@block_cloning_endian` into use where a newer OpenZFS enabled it, and that zdb stops at the table.
pub fn may_share(pool: &Pool) -> bool {
    pool.features.count("com.truenas:block_cloning_endian") != Some(0)
}

/// Runs the workload, and leaves the pool open. `shares`: copies share blocks.
///
/// # Errors
/// Errors of the engine, except for want of space.
pub async fn work(engine: &Engine, shares: bool) -> Result<Done, String> {
    let rq = &Request::internal("workload");
    let mut done = Done { shares, ..Done::default() };
    let members = members(engine, rq).await.map_err(|error| error.to_string())?;
    for member in &members {
        let outcome = theirs(engine, rq, member, &mut done).await;
        booked(&member.name, outcome, &mut done)?;
    }
    let pool = engine.name();
    let beside: Vec<String> = members.iter().filter(|m| m.is_root_of_key).map(|m| m.name.clone()).collect();
    for parent in std::iter::once(pool.clone()).chain(beside) {
        let name = format!("{parent}/{OURS}");
        let outcome = ours(engine, rq, &name, &mut done).await;
        booked(&name, outcome, &mut done)?;
    }
    let name = format!("{pool}/{OURS}/volume");
    let outcome = volume(engine, rq, &name).await;
    done.volume = outcome.is_ok().then(|| name.clone());
    booked(&name, outcome, &mut done)?;
    let name = format!("{pool}/{OURS}/clone");
    for origin in origins(&members) {
        let outcome = clone(engine, rq, origin, &name, done.shares).await.map_err(at(origin));
        booked(&name, outcome, &mut done)?;
    }
    engine.sync().await.map_err(|error| error.to_string())?;
    Ok(done)
}

/// Records want of space; all other errors end the workload.
fn booked(name: &str, outcome: Result<(), Stop>, done: &mut Done) -> Result<(), String> {
    match outcome {
        Ok(()) => Ok(()),
        Err(Stop::Full) => {
            done.left.push(format!("{name}: no room"));
            Ok(())
        }
        Err(Stop::Left(why)) => {
            done.left.push(format!("{name}: {why}"));
            Ok(())
        }
        Err(Stop::Failed(why)) => Err(format!("{name}: {why}")),
    }
}

async fn members(engine: &Engine, rq: &Request) -> Result<Vec<Member>, PoolError> {
    let dsl = engine.synced().dsl(rq).await?;
    let mut out = Vec::new();
    // Names with a dollar or percent sign are internal to OpenZFS.
    for dir in dsl.dirs().into_iter().filter(|dir| !dir.name.contains(['$', '%'])) {
        let root = weir_dsl::keys::encryption_root(&dsl, rq, dir).await?;
        let snapshots = dsl.snapshots(rq, dir).await?;
        out.push(Member {
            name: dir.name.clone(),
            kind: dsl.kind(rq, dir).await?,
            is_encrypted: root.is_some(),
            is_root_of_key: root.is_some_and(|root| root == dir.name) && engine.keys.of(Some(dir)).is_some(),
            snapshots: snapshots.snapshots.iter().map(|snapshot| snapshot.name.clone()).collect(),
        });
    }
    Ok(out)
}

/// Snapshots of file systems to clone: the first ones, with and without encryption.
fn origins(members: &[Member]) -> Vec<&str> {
    let of = |encrypted: bool| {
        let wanted = move |m: &&Member| m.kind == ObjsetKind::Zfs && m.is_encrypted == encrypted;
        members.iter().filter(wanted).filter_map(|m| m.snapshots.first().map(String::as_str)).take(CLONES)
    };
    of(false).chain(of(true)).collect()
}

/// Opens one of their datasets, which replays its log; writes in it if it is a file system.
async fn theirs(engine: &Engine, rq: &Request, member: &Member, done: &mut Done) -> Result<(), Stop> {
    let name = &member.name;
    match member.kind {
        ObjsetKind::Zfs => {}
        ObjsetKind::Zvol => return engine.volume(rq, name).await.map(drop).map_err(Stop::from),
        // OpenZFS's test programs keep data there that only they understand.
        other => return Err(Stop::Left(format!("holds {}", other.name()))),
    }
    let files = engine.file_system(rq, name).await?;
    demand_writable(&files)?;
    fill(engine, rq, &files, done).await?;
    let snapshot = format!("{name}@{OURS}");
    engine.snapshot(vec![snapshot.clone()], Vec::new()).await?;
    done.written.insert(snapshot.clone(), Some(Generation::First));
    second(&files, rq, done.shares).await?;
    done.written.insert(name.clone(), Some(Generation::Second));
    if done.written.len().is_multiple_of(4) {
        engine.destroy_snapshots(vec![snapshot.clone()], false).await?;
        done.written.remove(&snapshot);
    }
    Ok(())
}

fn demand_writable(files: &FileSystem) -> Result<(), Stop> {
    match files.is_writable() {
        true => Ok(()),
        false => Err(Stop::Left(format!("read-only, a file system of version {}", files.version()))),
    }
}

/// The first generation; it counts as unfinished if there was no space.
async fn fill(engine: &Engine, rq: &Request, files: &Arc<FileSystem>, done: &mut Done) -> Result<(), Stop> {
    done.written.insert(files.name().to_owned(), None);
    first(files, rq).await?;
    // Blocks that were synced can be shared by copies.
    Ok(engine.sync().await?)
}

/// Makes a new file system.
async fn ours(engine: &Engine, rq: &Request, name: &str, done: &mut Done) -> Result<(), Stop> {
    let kind = Kind::FileSystem(FileSystemSpec::default());
    engine.create_dataset(NewDataset { name: name.to_owned(), kind, properties: Vec::new() }).await?;
    let files = engine.file_system(rq, name).await?;
    fill(engine, rq, &files, done).await?;
    second(&files, rq, done.shares).await?;
    done.written.insert(name.to_owned(), Some(Generation::Second));
    Ok(())
}

async fn volume(engine: &Engine, rq: &Request, name: &str) -> Result<(), Stop> {
    let kind = Kind::Volume(VolumeSpec { size_bytes: VOLUME_BYTES, block_bytes: SECTOR_BYTES as u32 });
    engine.create_dataset(NewDataset { name: name.to_owned(), kind, properties: Vec::new() }).await?;
    let volume = engine.volume(rq, name).await?;
    for n in 0..40 {
        volume.write(rq, n * 2 * SECTOR_BYTES, sector(n + 1), n % 8 == 0).await?;
    }
    volume.flush(rq).await?;
    engine.snapshot(vec![format!("{name}@{OURS}")], Vec::new()).await?;
    for n in 0..10 {
        volume.write(rq, n * 2 * SECTOR_BYTES, sector(n + 500), false).await?;
    }
    Ok(volume.flush(rq).await?)
}

/// Writes a clone of one of their snapshots, and destroys it.
async fn clone(engine: &Engine, rq: &Request, origin: &str, name: &str, shares: bool) -> Result<(), Stop> {
    match engine.clone_snapshot(origin.to_owned(), name.to_owned(), Vec::new()).await {
        Err(PoolError::Dsl(error @ DslError::Busy { .. })) => return Err(Stop::Left(error.to_string())),
        cloned => cloned?,
    }
    let written = written_clone(engine, rq, name, shares).await;
    engine.destroy_dataset(name.to_owned()).await?;
    written
}

async fn written_clone(engine: &Engine, rq: &Request, name: &str, shares: bool) -> Result<(), Stop> {
    let files = engine.file_system(rq, name).await?;
    demand_writable(&files)?;
    first(&files, rq).await?;
    thin_folder(&files, rq, files.root()).await?;
    engine.sync().await?;
    second(&files, rq, shares).await
}

/// Maximum number of files that are removed from a file system.
const MAX_REMOVED: usize = 200;

/// Removes every other plain file of a folder, and of the folders in it.
async fn thin_folder(files: &FileSystem, rq: &Request, top: ObjectId) -> Result<(), Stop> {
    let mut folders = vec![top];
    let mut plain = Vec::new();
    while let Some(folder) = folders.pop()
        && plain.len() < 2 * MAX_REMOVED
    {
        for entry in files.directories().read_dir(rq, folder, 0, 2 * MAX_REMOVED).await? {
            match files.attrs().get(rq, entry.object).await?.kind {
                weir_files::FileKind::Directory if entry.name[..] != *OURS.as_bytes() => folders.push(entry.object),
                weir_files::FileKind::Regular => plain.push((folder, entry.name)),
                _ => {}
            }
        }
    }
    for (folder, name) in plain.into_iter().step_by(2).take(MAX_REMOVED) {
        match files.names().remove(rq, &Cred::root(), folder, &name).await {
            // Some have flags that forbid it.
            Ok(()) | Err(FileError::NotPermitted { .. }) => {}
            Err(error) => return Err(Stop::from(error)),
        }
    }
    Ok(())
}

/// Removes much of a pool's contents: files, then snapshots and datasets without dependents, every other one.
///
/// # Errors
/// Errors of the engine.
pub async fn thin(engine: &Engine) -> Result<(), String> {
    let rq = &Request::internal("workload");
    let said = |name: &str, stop: Stop| match stop {
        Stop::Full => format!("{name}: no room to remove anything"),
        Stop::Left(why) | Stop::Failed(why) => format!("{name}: {why}"),
    };
    let members = members(engine, rq).await.map_err(|error| error.to_string())?;
    for member in members.iter().filter(|member| member.kind == ObjsetKind::Zfs) {
        let files = engine.file_system(rq, &member.name).await.map_err(|error| error.to_string())?;
        if files.is_writable() {
            thin_folder(&files, rq, files.root()).await.map_err(|stop| said(&member.name, stop))?;
        }
    }
    engine.sync().await.map_err(|error| error.to_string())?;
    for name in members.iter().flat_map(|member| &member.snapshots).step_by(2) {
        removed(engine.destroy_snapshots(vec![name.clone()], false).await).map_err(|why| format!("{name}: {why}"))?;
    }
    for member in members.iter().skip(1).step_by(2) {
        removed(engine.destroy_dataset(member.name.clone()).await).map_err(|why| format!("{}: {why}", member.name))?;
    }
    engine.sync().await.map_err(|error| error.to_string())
}

/// Datasets with dependents stay.
fn removed(outcome: Result<(), PoolError>) -> Result<(), String> {
    match outcome {
        Ok(())
        | Err(PoolError::Dsl(DslError::HasDependents { .. } | DslError::Busy { .. } | DslError::Held { .. })) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}
