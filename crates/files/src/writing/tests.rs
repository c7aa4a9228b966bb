//! Random operations compared with the in-memory model; behaviour that the model lacks is tested in `operations`
//! and `case`.

mod case;
mod operations;
mod replayed;

use super::*;
use crate::change::DirName;
use crate::change::{New, NewKind, RenameMode, SetAttributes, Space, WriteAt, XattrMode};
use crate::file_system::Identity;
use crate::metadata::index;
use crate::tree;
use crate::tree::memory::MemoryFiles;
use crate::{Attributes, Cred, FileKind, HoldKind};
use bytes::Bytes;
use proptest::prelude::*;
use weir_dmu::live::scratch;
use weir_dmu::sa::SaTable;
use weir_dmu::zap::{self, NewZap};
use weir_dmu::{ObjectSet, Zap};
use weir_format::znode::master;
use weir_format::{ObjectType, ObjsetKind, Txg};
use weir_sim::SimWorld;

const ROOT: ObjectId = ObjectId(34);
/// Space that the file systems say is available.
const AVAILABLE_BYTES: u64 = 1 << 30;

/// Creates the objects of an empty file system as `zfs_create_fs` does, except for the root's attributes.
async fn initial(rq: &Request, set: &Arc<ObjectSet>) {
    let tx = set.begin(rq, 0, SpaceReserve::Normal).await.unwrap();
    let zap_of = |kind| NewZap::new(kind);
    zap::create_at(rq, set, &tx, ObjectId(1), &zap_of(ObjectType::MASTER_NODE)).await.unwrap();
    let attributes = zap::create(rq, set, &tx, &zap_of(ObjectType::SA_MASTER_NODE)).await.unwrap();
    let queue = zap::create(rq, set, &tx, &zap_of(ObjectType::UNLINKED_SET)).await.unwrap();
    let mut root = zap_of(ObjectType::DIRECTORY_CONTENTS);
    root.bonus_type = ObjectType::SA;
    zap::create_at(rq, set, &tx, ROOT, &root).await.unwrap();
    for (name, word) in [
        (master::VERSION, 5),
        (master::SA_ATTRS, attributes.0),
        (master::UNLINKED_SET, queue.0),
        (master::ROOT, ROOT.0),
    ] {
        zap::put_word(rq, set, &tx, ObjectId(1), name, word).await.unwrap();
    }
    let mut table = SaTable::read(rq, set, attributes).await.unwrap();
    table.register_known(rq, set, &tx).await.unwrap();
}

/// An empty file system in memory with a world-writable root.
async fn empty(rq: &Request, machine: &Machine, settings: Settings) -> Arc<FileSystem> {
    logged(rq, machine, settings, |_| None).await
}

/// An empty file system with an intent log.
async fn logged(
    rq: &Request,
    machine: &Machine,
    settings: Settings,
    zil: impl FnOnce(&Arc<ObjectSet>) -> Option<Arc<Zil>>,
) -> Arc<FileSystem> {
    let set = scratch(machine, ObjsetKind::Zfs);
    initial(rq, &set).await;
    let opening = Opening { machine: machine.clone(), zil: zil(&set), settings };
    let identity = Identity { available_bytes: AVAILABLE_BYTES, ..Identity::default() };
    let fs = FileSystem::open_writable(rq, set, identity, opening).await.unwrap();
    let tx = fs.begin(rq, 0, SpaceReserve::Normal).await.unwrap();
    let mut root = fs.nodes().of(fs.object(rq, ROOT).await.unwrap());
    let birth = make::NewNodeAttrs {
        id: None,
        acl: acls::of_new(0o040_777, true, None, AclInherit::default(), AclMode::default()),
        uid: 0,
        gid: 0,
        rdev: 0,
        target: None,
        generation: None,
        time: fs.writing().unwrap().now(),
        slots: 1,
        xattr_dir: false,
    };
    let parent = root.clone();
    fs.names().init_attributes(rq, &tx, &mut root, &parent, &birth).await.unwrap();
    fs.nodes().store(rq, &tx, &root).await.unwrap();
    drop(tx);
    fs
}

fn in_world(settings: Settings, test: impl AsyncFnOnce(&Request, &Machine, Arc<FileSystem>) + Send + 'static) {
    let world = SimWorld::new(11);
    let machine = world.machine();
    let run = world.run(async move {
        let rq = Request::internal("test");
        let fs = empty(&rq, &machine, settings).await;
        test(&rq, &machine, fs).await;
    });
    run.unwrap();
}

#[derive(Clone, Debug)]
enum Step {
    Create(usize, u8, u8),
    Link(usize, usize, u8),
    Remove(usize, u8, bool),
    Rename(usize, u8, usize, u8, u8),
    Write(usize, u64, usize, u8),
    Append(usize, usize),
    Size(usize, u64),
    Mode(usize, u32),
    Allocate(usize, u64, u64, u8),
    SetXattr(usize, u8, usize),
    RemoveXattr(usize, u8),
    Hold(usize),
    Release(usize),
    Close,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let node = 0usize..64;
    let name = 0u8..6;
    let at = 0u64..5000;
    let step = prop_oneof![
        8 => (node.clone(), name.clone(), 0u8..8).prop_map(|(dir, name, kind)| Step::Create(dir, name, kind)),
        2 => (node.clone(), node.clone(), name.clone()).prop_map(|(file, dir, name)| Step::Link(file, dir, name)),
        4 => (node.clone(), name.clone(), any::<bool>()).prop_map(|(dir, name, is_dir)| Step::Remove(dir, name, is_dir)),
        5 => (node.clone(), name.clone(), node.clone(), name.clone(), 0u8..3)
            .prop_map(|(a, an, b, bn, mode)| Step::Rename(a, an, b, bn, mode)),
        6 => (node.clone(), at.clone(), 1usize..3000, any::<u8>()).prop_map(|(f, at, len, b)| Step::Write(f, at, len, b)),
        1 => (node.clone(), 1usize..900).prop_map(|(f, len)| Step::Append(f, len)),
        2 => (node.clone(), at.clone()).prop_map(|(f, size)| Step::Size(f, size)),
        1 => (node.clone(), 0u32..0o10000).prop_map(|(f, mode)| Step::Mode(f, mode)),
        2 => (node.clone(), at.clone(), 1u64..4000, 0u8..5).prop_map(|(f, at, len, how)| Step::Allocate(f, at, len, how)),
        3 => (node.clone(), 0u8..4, prop_oneof![0usize..200, Just(3000usize), Just(40_000)])
            .prop_map(|(f, name, len)| Step::SetXattr(f, name, len)),
        1 => (node.clone(), 0u8..4).prop_map(|(f, name)| Step::RemoveXattr(f, name)),
        1 => node.clone().prop_map(Step::Hold),
        1 => node.prop_map(Step::Release),
        1 => Just(Step::Close),
    ];
    proptest::collection::vec(step, 1..60)
}

fn name_of(n: u8) -> Vec<u8> {
    // Long names make a directory outgrow its micro ZAP.
    if n < 4 { vec![b'a' + n] } else { vec![b'a' + n; 60] }
}

fn kind_of(n: u8) -> NewKind {
    match n {
        0..=2 => NewKind::Directory,
        3 => NewKind::Symlink(b"some/where".to_vec()),
        4 => NewKind::CharDevice(5, 1),
        _ => NewKind::Regular,
    }
}

/// A file and its counterpart in the model.
type Pair = (ObjectId, ObjectId);

struct Play<'a> {
    rq: &'a Request,
    fs: Arc<FileSystem>,
    model: MemoryFiles,
    pairs: Vec<Pair>,
    held: Vec<Pair>,
}

fn same<T>(step: &Step, real: &Result<T, FileError>, model: &Result<T, FileError>) -> bool {
    let errno = |r: &Result<T, FileError>| r.as_ref().err().map(FileError::errno);
    assert_eq!(errno(real), errno(model), "{step:?}: {:?} and {:?}", real.as_ref().err(), model.as_ref().err());
    real.is_ok()
}

impl Play<'_> {
    fn pair(&self, n: usize) -> Pair {
        self.pairs[n % self.pairs.len()]
    }

    async fn step(&mut self, step: &Step) {
        let rq = self.rq;
        let fs = self.fs.clone();
        let cred = &Cred::root();
        let model: &dyn tree::Files = &self.model;
        match step {
            Step::Create(dir, name, kind) => {
                let dir = self.pair(*dir);
                let name = name_of(*name);
                let new = New::of(kind_of(*kind), 0o640);
                let real = fs.names().create(rq, cred, dir.0, &name, &new).await;
                let other = model.create(rq, cred, dir.1, &name, &new).await;
                if same(step, &real, &other) {
                    self.pairs.push((real.unwrap().object, other.unwrap().object));
                }
            }
            Step::Link(file, dir, name) => {
                let file = self.pair(*file);
                let dir = self.pair(*dir);
                let name = name_of(*name);
                let real = fs.names().link(rq, cred, file.0, dir.0, &name).await;
                same(step, &real, &model.link(rq, cred, file.1, dir.1, &name).await);
            }
            Step::Remove(dir, name, true) => {
                let dir = self.pair(*dir);
                let name = name_of(*name);
                let real = fs.names().remove_dir(rq, cred, dir.0, &name).await;
                same(step, &real, &model.remove_dir(rq, cred, dir.1, &name).await);
            }
            Step::Remove(dir, name, false) => {
                let dir = self.pair(*dir);
                let name = name_of(*name);
                let real = fs.names().remove(rq, cred, dir.0, &name).await;
                same(step, &real, &model.remove(rq, cred, dir.1, &name).await);
            }
            Step::Rename(from, name, to, new, mode) => {
                let from = self.pair(*from);
                let to = self.pair(*to);
                let name = name_of(*name);
                let new = name_of(*new);
                let mode = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange][usize::from(*mode)];
                let real = fs
                    .names()
                    .rename(rq, cred, DirName { dir: from.0, name: &name }, DirName { dir: to.0, name: &new }, mode)
                    .await;
                same(
                    step,
                    &real,
                    &model
                        .rename(rq, cred, DirName { dir: from.1, name: &name }, DirName { dir: to.1, name: &new }, mode)
                        .await,
                );
            }
            _ => self.step_of_file(step).await,
        }
    }

    async fn step_of_file(&mut self, step: &Step) {
        let rq = self.rq;
        let fs = self.fs.clone();
        let cred = &Cred::root();
        let model: &dyn tree::Files = &self.model;
        let write = async |file: Pair, at, data: Bytes| {
            let real = fs.contents().write(rq, cred, file.0, at, data.clone()).await;
            same(step, &real.map(drop), &model.write(rq, cred, file.1, at, data).await.map(drop));
        };
        match step {
            Step::Write(file, at, len, byte) => {
                let data: Vec<u8> = (0..*len).map(|n| byte.wrapping_add(n as u8)).collect();
                write(self.pair(*file), WriteAt::Offset(*at), data.into()).await;
            }
            Step::Append(file, len) => write(self.pair(*file), WriteAt::End, vec![7; *len].into()).await,
            Step::Size(file, size) => {
                let file = self.pair(*file);
                let set = SetAttributes::size(*size);
                let real = fs.attrs().set(rq, cred, file.0, &set).await;
                same(step, &real, &model.set_attributes(rq, cred, file.1, &set).await);
            }
            Step::Mode(file, mode) => {
                let file = self.pair(*file);
                let set = SetAttributes::mode(*mode);
                let real = fs.attrs().set(rq, cred, file.0, &set).await;
                same(step, &real, &model.set_attributes(rq, cred, file.1, &set).await);
            }
            Step::Allocate(file, at, len, how) => {
                let file = self.pair(*file);
                let range = *at..*at + *len;
                let keep_size = how % 2 == 0;
                let space = match how {
                    0 | 1 => Space::Reserve { keep_size },
                    2 | 3 => Space::Zero { keep_size },
                    4 => Space::Rewrite,
                    _ => Space::Punch,
                };
                let real = fs.contents().allocate(rq, cred, file.0, range.clone(), space).await;
                same(step, &real, &model.allocate(rq, cred, file.1, range, space).await);
            }
            Step::SetXattr(file, name, len) => {
                let file = self.pair(*file);
                let value = vec![*name; *len];
                let name = format!("trusted.{name}");
                let real = fs.xattrs().set(rq, cred, file.0, name.as_bytes(), &value, XattrMode::Any).await;
                let other = model.set_xattr(rq, cred, file.1, name.as_bytes(), &value, XattrMode::Any).await;
                same(step, &real, &other);
            }
            Step::RemoveXattr(file, name) => {
                let file = self.pair(*file);
                let name = format!("trusted.{name}");
                let real = fs.xattrs().remove(rq, cred, file.0, name.as_bytes()).await;
                same(step, &real, &model.remove_xattr(rq, cred, file.1, name.as_bytes()).await);
            }
            Step::Hold(n) => {
                let pair = self.pair(*n);
                fs.holds().hold(pair.0, HoldKind::Open);
                model.hold(pair.1, HoldKind::Open);
                self.held.push(pair);
            }
            Step::Release(n) if !self.held.is_empty() => {
                let pair = self.held.remove(n % self.held.len());
                fs.holds().release(rq, pair.0, HoldKind::Open).await.unwrap();
                model.release(rq, pair.1, HoldKind::Open).await.unwrap();
            }
            Step::Close => {
                // Later steps belong to the next txg.
                fs.objects().txgs().unwrap().quiesce().await;
            }
            _ => {}
        }
    }

    /// Compares everything visible; drops removed files.
    async fn compare(&mut self, step: &Step) {
        let mut alive = Vec::new();
        for pair in std::mem::take(&mut self.pairs) {
            let real = self.fs.attrs().get(self.rq, pair.0).await;
            let Ok(model) = tree::Files::attributes(&self.model, self.rq, pair.1).await else {
                assert!(real.is_err(), "{step:?}: {pair:?} should be gone: {real:?}");
                continue;
            };
            alive.push(pair);
            let real = real.unwrap_or_else(|e| panic!("{step:?}: {pair:?}: {e}"));
            let shown = |a: &Attributes| (a.kind, a.mode, a.uid, a.gid, a.links, a.size_bytes, a.device);
            assert_eq!(shown(&real), shown(&model), "{step:?}: {pair:?}");
            match real.kind {
                FileKind::Directory => self.compare_dir(step, pair).await,
                FileKind::Regular => {
                    let bytes = self.fs.contents().read(self.rq, pair.0, 0, 1 << 20).await.unwrap();
                    let other = tree::Files::read(&self.model, self.rq, pair.1, 0, 1 << 20).await.unwrap().concat();
                    assert!(bytes == other, "{step:?}: contents of {pair:?}");
                }
                FileKind::Symlink => {
                    let target = self.fs.contents().read_link(self.rq, pair.0).await.unwrap();
                    assert_eq!(target, tree::Files::read_link(&self.model, self.rq, pair.1).await.unwrap());
                }
                _ => {}
            }
            let names = self.fs.xattrs().names(self.rq, pair.0).await.unwrap();
            assert_eq!(names, tree::Files::xattr_names(&self.model, self.rq, pair.1).await.unwrap(), "{step:?}");
            for name in names {
                let value = self.fs.xattrs().get(self.rq, pair.0, &name).await.unwrap();
                assert_eq!(value, tree::Files::xattr(&self.model, self.rq, pair.1, &name).await.unwrap(), "{step:?}");
            }
        }
        self.pairs = alive;
    }

    async fn compare_dir(&self, step: &Step, pair: Pair) {
        let mut real = self.fs.directories().read_dir(self.rq, pair.0, 0, 1000).await.unwrap();
        let model = tree::Files::read_dir(&self.model, self.rq, pair.1, 0, 1000).await.unwrap();
        real.sort_by(|a, b| a.name.cmp(&b.name));
        let names = |list: &[crate::DirEntry]| list.iter().map(|e| (e.name.clone(), e.kind)).collect::<Vec<_>>();
        assert_eq!(names(&real), names(&model), "{step:?}: {pair:?}");
    }
}

/// Allocated objects except those of every file system.
async fn objects(rq: &Request, fs: &FileSystem) -> Vec<ObjectId> {
    let mut out = Vec::new();
    let mut at = ObjectId(35);
    for _ in 0..400 {
        if fs.objects().object(rq, at).await.is_ok_and(|o| o.dnode.bonus_type == ObjectType::SA) {
            out.push(at);
        }
        at = ObjectId(at.0 + 1);
    }
    out
}

async fn play(rq: &Request, machine: &Machine, settings: Settings, steps: &[Step]) {
    let fs = empty(rq, machine, settings).await;
    let mut model = MemoryFiles::new(1);
    model.writable = true;
    model.change(ROOT.0, |root| (root.mode, root.links) = (0o777, 2));
    let mut play = Play { rq, fs, model, pairs: vec![(ROOT, ROOT)], held: Vec::new() };
    for step in steps {
        play.step(step).await;
        play.compare(step).await;
    }
    for pair in std::mem::take(&mut play.held) {
        play.fs.holds().release(rq, pair.0, HoldKind::Open).await.unwrap();
        tree::Files::release(&play.model, rq, pair.1, HoldKind::Open).await.unwrap();
    }
    play.compare(&Step::Close).await;
    // No leaked objects: each is a file of the model or contains attributes of one.
    let mut known: Vec<ObjectId> = play.pairs.iter().map(|pair| pair.0).collect();
    for pair in &play.pairs {
        let node = play.fs.nodes().load(rq, pair.0).await.unwrap();
        let dir = ObjectId(node.word(index::XATTR));
        if dir.0 != 0 {
            let all = Zap::open(rq, play.fs.objects(), dir).await.unwrap().all(rq, 100).await.unwrap();
            known.push(dir);
            known.extend(all.iter().map(|e| weir_format::znode::DirEntry::from_word(e.value.first().unwrap()).object));
        }
    }
    for object in objects(rq, &play.fs).await {
        assert!(known.contains(&object), "object {object} is leaked");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn random_histories_agree_with_the_model(steps in steps(), record in 0u32..4, in_sa: bool) {
        let world = SimWorld::new(5);
        let machine = world.machine();
        let settings = Settings {
            record_bytes: 512 << record,
            xattr_in_sa: in_sa,
            projects: record % 2 == 0,
            ..Settings::default()
        };
        let run = world.run(async move {
            play(&Request::internal("test"), &machine, settings, &steps).await;
        });
        run.unwrap();
    }
}
