//! Project quotas: accounting, enforcement, inheritance of projects, and their replay.

use crate::world::{HOME, Shape, assert_pool_clean, create, import, noise, world};
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_dsl::{QuotaKind, QuotaPrincipal};
use weir_engine::{Engine, Layout};
use weir_files::DirName;
use weir_files::{Cred, FileError, FileFlags, FileSystem, New, NewKind, RenameMode, SetFlags, WriteAt, XattrMode};
use weir_format::ObjectId;
use weir_format::znode::Fuid;
use weir_machine::Request;

/// A name in a directory.
fn entry(dir: ObjectId, name: &[u8]) -> DirName<'_, ObjectId> {
    DirName { dir, name }
}

const SHAPE: Shape = Shape { layout: Layout::Single, devices: 1, log: false };
const MIB: u64 = 1 << 20;

fn rq() -> Request {
    Request::internal("test")
}

async fn make(files: &FileSystem, dir: ObjectId, name: &str, kind: NewKind) -> ObjectId {
    let new = New::of(kind, 0o755);
    files.names().create(&rq(), &Cred::root(), dir, name.as_bytes(), &new).await.unwrap().object
}

async fn set(files: &FileSystem, file: ObjectId, project: u32, inherit: bool) -> Result<(), FileError> {
    let set = SetFlags { project: Some(project), inherit_project: Some(inherit), ..SetFlags::default() };
    files.attrs().set_flags(&rq(), &Cred::root(), file, &set).await.map(drop)
}

/// Project of a file, and whether new files inherit it.
async fn project(files: &FileSystem, file: ObjectId) -> (Option<u64>, bool) {
    let found = files.attrs().get(&rq(), file).await.unwrap();
    (found.project, found.flags.has(FileFlags::PROJINHERIT))
}

/// Compares the accounting of projects with sums over all files.
async fn assert_counted(engine: &Engine, files: &Arc<FileSystem>) -> BTreeMap<Fuid, (u64, u64)> {
    engine.sync().await.unwrap();
    let set = files.objects();
    let mut id = ObjectId(0);
    let rq = rq();
    let mut counted = BTreeMap::<Fuid, (u64, u64)>::new();
    while let Some(next) = set.dnodes().next_object(&rq, ObjectId(id.0 + 1)).await.unwrap() {
        id = next;
        let Ok(found) = files.attrs().get(&rq, id).await else { continue };
        let bytes = set.object(&rq, id).await.unwrap().dnode.used_bytes() + 512;
        let sum = counted.entry(Fuid(found.project.unwrap_or(0))).or_default();
        *sum = (sum.0 + bytes, sum.1 + 1);
    }
    let accounts = set.accounting().accounts(&rq, QuotaPrincipal::Project).await.unwrap().into_iter();
    let accounts = accounts.map(|(id, a)| (id, (a.used_bytes, a.used_objects))).filter(|(_, sums)| *sums != (0, 0));
    assert_eq!(accounts.collect::<BTreeMap<_, _>>(), counted);
    counted
}

/// Checks `df` below a directory of a project that exceeds its quota of 1 MiB: it shows what the quota leaves.
async fn assert_usage(engine: &Engine, files: &Arc<FileSystem>, [top, b, a, inner, file]: [ObjectId; 5]) {
    let rq = rq();
    let limit = async |kind, limit| {
        engine.properties().set_quota(HOME.into(), QuotaPrincipal::Project, kind, Some(7), limit).await.unwrap();
    };
    let left = files.quotas().usage(&rq, inner).await.unwrap();
    assert_eq!((left.referenced_bytes, left.available_bytes), (MIB, 0), "the quota is exceeded");
    let above = files.quotas().usage(&rq, b).await.unwrap();
    let unbound = files.quotas().usage(&rq, top).await.unwrap();
    assert!(above == unbound && above.available_bytes > MIB, "{above:?}");
    assert_eq!(left.objects_available, above.objects_available, "objects have no limit");
    limit(QuotaKind::Bytes, 3 * MIB).await;
    limit(QuotaKind::Objects, 100).await;
    let left = files.quotas().usage(&rq, a).await.unwrap();
    let used = assert_counted(engine, files).await[&Fuid(7)];
    assert_eq!((left.referenced_bytes, left.available_bytes), (used.0, 3 * MIB - used.0));
    assert_eq!((left.objects_used, left.objects_available), (used.1, 100 - used.1));
    assert_eq!(files.quotas().usage(&rq, file).await.unwrap(), left, "files have the flag as well");
    limit(QuotaKind::Objects, 0).await;
    limit(QuotaKind::Bytes, MIB).await;
}

/// Exercises two project trees, renames and links between them, and their quotas.
async fn exercise(engine: &Engine, files: &Arc<FileSystem>) {
    let rq = rq();
    let root = Cred::root();
    let top = files.root();
    // The root directory has no project attribute: setting one changes the attribute layout.
    assert_eq!(project(files, top).await, (None, false));
    set(files, top, 5, false).await.unwrap();
    assert_eq!(project(files, top).await, (Some(5), false));
    let a = make(files, top, "a", NewKind::Directory).await;
    assert_eq!(project(files, a).await, (Some(0), false), "not inherited");
    set(files, a, 7, true).await.unwrap();
    let inner = make(files, a, "inner", NewKind::Directory).await;
    let file = make(files, inner, "file", NewKind::Regular).await;
    let link = make(files, inner, "link", NewKind::Symlink(b"file".to_vec())).await;
    assert_eq!(project(files, file).await, (Some(7), true));
    assert_eq!(project(files, link).await, (Some(7), false), "a symlink inherits the project without the flag");
    files.xattrs().set(&rq, &root, file, b"user.x", &[3; 40_000], XattrMode::Any).await.unwrap();
    files.contents().write(&rq, &root, file, WriteAt::Offset(0), noise(MIB as usize, 5)).await.unwrap();
    let counted = assert_counted(engine, files).await;
    assert!(counted[&Fuid(7)].0 > MIB && counted[&Fuid(7)].1 >= 4, "{counted:?}");
    // Links and renames between project trees are refused.
    let b = make(files, top, "b", NewKind::Directory).await;
    let other = make(files, b, "other", NewKind::Regular).await;
    assert_eq!(files.names().link(&rq, &root, other, a, b"more").await, Err(FileError::CrossDevice));
    let moved = files.names().rename(&rq, &root, entry(b, b"other"), entry(a, b"other"), RenameMode::Replace).await;
    assert_eq!(moved, Err(FileError::CrossDevice));
    files
        .names()
        .rename(&rq, &root, entry(inner, b"file"), entry(inner, b"renamed"), RenameMode::Replace)
        .await
        .unwrap();
    set(files, other, 7, false).await.unwrap();
    files.names().rename(&rq, &root, entry(b, b"other"), entry(a, b"other"), RenameMode::Replace).await.unwrap();
    assert_eq!(project(files, other).await, (Some(7), true), "the renamed file has the flag");
    // Limits.
    let limit = async |kind, limit| {
        engine.properties().set_quota(HOME.into(), QuotaPrincipal::Project, kind, Some(7), limit).await.unwrap();
    };
    limit(QuotaKind::Bytes, MIB).await;
    let wrote = files.contents().write(&rq, &root, file, WriteAt::End, noise(1000, 5)).await;
    assert_eq!(wrote.map(drop), Err(FileError::Quota));
    let made = files.names().create(&rq, &root, inner, b"new", &New::of(NewKind::Regular, 0o600)).await;
    assert_eq!(made.map(drop), Err(FileError::Quota));
    let lone = make(files, b, "lone", NewKind::Regular).await;
    assert_eq!(set(files, lone, 7, false).await, Err(FileError::Quota));
    assert_usage(engine, files, [top, b, a, inner, file]).await;
    // A file that moves to another project frees space in the quota.
    set(files, file, 9, false).await.unwrap();
    let counted = assert_counted(engine, files).await;
    assert!(counted[&Fuid(9)].0 > MIB && counted[&Fuid(7)].0 < MIB, "its attribute files moved with it: {counted:?}");
    set(files, lone, 7, false).await.unwrap();
    // The default quota of projects without their own quota.
    engine.properties().set_quota(HOME.into(), QuotaPrincipal::Project, QuotaKind::Objects, None, 2).await.unwrap();
    assert_eq!(files.quotas().usage(&rq, inner).await.unwrap().objects_available, 0);
    let made = files.names().create(&rq, &root, inner, b"new", &New::of(NewKind::Regular, 0o600)).await;
    assert_eq!(made.map(drop), Err(FileError::Quota));
    engine
        .properties()
        .set_quota(HOME.into(), QuotaPrincipal::Project, QuotaKind::Objects, Some(7), 1000)
        .await
        .unwrap();
    make(files, inner, "new", NewKind::Regular).await;
    engine.properties().set_quota(HOME.into(), QuotaPrincipal::Project, QuotaKind::Objects, None, 0).await.unwrap();
    let bound = files.objects().accounting().bound_accounts(&rq, QuotaPrincipal::Project).await.unwrap();
    assert_eq!((bound[&Fuid(9)].quota_objects, bound[&Fuid(7)].quota_objects), (0, 1000));
    // Projects can be set only on files and directories, and only by the owner.
    assert!(matches!(set(files, link, 8, false).await, Err(FileError::Unsupported { .. })));
    let stranger = Cred::new(1000, 1000, &[]);
    let flags = SetFlags { project: Some(1), ..SetFlags::default() };
    let done = files.attrs().set_flags(&rq, &stranger, lone, &flags).await;
    assert!(matches!(done, Err(FileError::NotPermitted { .. })));
}

#[test]
fn project_quotas_are_enforced_and_replayed() {
    let world = world(12, SHAPE);
    let machine = world.machine();
    let first = world.run(async {
        let (engine, files) = create(&machine, SHAPE).await.unwrap();
        exercise(&engine, &files).await;
        // The first commit of all makes the log.
        make(&files, files.root(), "first", NewKind::Fifo).await;
        files.sync(&rq(), None).await.unwrap();
        engine.sync().await.unwrap();
        // Changes that only the log holds.
        let synced = engine.txgs().last_synced();
        let lone = files
            .directories()
            .lookup(&rq(), files.directories().lookup(&rq(), files.root(), b"b").await.unwrap(), b"lone")
            .await
            .unwrap();
        set(&files, lone, 4_000_000_000, true).await.unwrap();
        let flags = SetFlags { append_only: Some(true), no_dump: Some(true), ..SetFlags::default() };
        files.attrs().set_flags(&rq(), &Cred::root(), files.root(), &flags).await.unwrap();
        set(&files, files.root(), 11, true).await.unwrap();
        make(&files, files.root(), "inheriting", NewKind::Directory).await;
        files.sync(&rq(), None).await.unwrap();
        assert_eq!(engine.txgs().last_synced(), synced, "the log alone makes it stable");
    });
    first.unwrap();
    world.power_failure();
    let machine = world.machine();
    let second = world.run(async {
        let engine = import(&machine).await.unwrap();
        let files = engine.file_system(&rq(), HOME).await.unwrap();
        let b = files.directories().lookup(&rq(), files.root(), b"b").await.unwrap();
        let lone = files.directories().lookup(&rq(), b, b"lone").await.unwrap();
        assert_eq!(project(&files, lone).await, (Some(4_000_000_000), true));
        let inheriting = files.directories().lookup(&rq(), files.root(), b"inheriting").await.unwrap();
        assert_eq!(project(&files, inheriting).await, (Some(11), true));
        let root = files.attrs().get(&rq(), files.root()).await.unwrap();
        assert!(root.flags.has(FileFlags::APPENDONLY | FileFlags::NODUMP | FileFlags::PROJID));
        let gone = files.names().remove_dir(&rq(), &Cred::root(), files.root(), b"inheriting").await;
        assert!(matches!(gone, Err(FileError::NotPermitted { .. })), "append-only directory: {gone:?}");
        assert_counted(&engine, &files).await;
        engine.export().await.unwrap();
        assert_pool_clean(&machine, "after replay").await;
    });
    second.unwrap();
}
