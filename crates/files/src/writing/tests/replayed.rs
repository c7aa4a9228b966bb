//! The log of an operation history, replayed on an empty file system, produces the same files.

use super::*;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::collections::{BTreeMap, BTreeSet};
use weir_dmu::ObjectError;
use weir_format::zil::{ZilBlock, ZilHeader};
use weir_format::{BlockPointer, ChecksumKind, Endian, Txg};
use weir_zil::{LogOpening, LogStore, Policy, Replayer, SyncMode};

/// Log blocks in memory by the number in their pointers.
#[derive(Default)]
struct Blocks {
    next: Mutex<u64>,
    written: Mutex<BTreeMap<u64, Vec<u8>>>,
}

impl LogStore for Blocks {
    fn allocate(
        &self,
        size_bytes: u64,
        txg: Txg,
        checksum: [u64; 4],
    ) -> BoxFuture<'_, Result<BlockPointer, ObjectError>> {
        let number = {
            let mut next = self.next.lock();
            *next += 1;
            *next
        };
        let sectors = size_bytes / 512;
        let mut words = [0; 16];
        (words[0], words[1]) = (sectors, number * 1024);
        let no_compression = 2 << 32;
        let zilog2 = 9 << 40;
        let intent_log = 9 << 48;
        let little = 1 << 63;
        words[6] = (sectors - 1) | (sectors - 1) << 16 | no_compression | zilog2 | intent_log | little;
        words[10] = txg.0;
        words[12..].copy_from_slice(&checksum);
        async move { Ok(BlockPointer::from_words(words)) }.boxed()
    }

    fn write<'a>(
        &'a self,
        _: &'a Request,
        pointer: &'a BlockPointer,
        bytes: Vec<u8>,
        _: weir_machine::accounts::Shares,
    ) -> BoxFuture<'a, Result<(), ObjectError>> {
        self.written.lock().insert(pointer.words()[1], bytes);
        async { Ok(()) }.boxed()
    }

    fn flush<'a>(&'a self, _: &'a Request, _: Option<&'a BTreeSet<u32>>) -> BoxFuture<'a, Result<(), ObjectError>> {
        async { Ok(()) }.boxed()
    }
}

/// Everything visible in a file system, by path.
async fn seen(rq: &Request, fs: &FileSystem) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    let mut todo = vec![(String::new(), ROOT)];
    while let Some((path, id)) = todo.pop() {
        let a = fs.attrs().get(rq, id).await.unwrap();
        let mut what = format!(
            "{:?} {:o} {}:{} links {} size {} object {} of {} made {} device {:?}",
            a.kind, a.mode, a.uid, a.gid, a.links, a.size_bytes, a.object, a.generation, a.crtime_ns, a.device
        );
        match a.kind {
            FileKind::Directory => {
                for entry in fs.directories().read_dir(rq, id, 0, 1000).await.unwrap() {
                    todo.push((format!("{path}/{}", String::from_utf8_lossy(&entry.name)), entry.object));
                }
            }
            FileKind::Regular => what += &format!(" {:?}", fs.contents().read(rq, id, 0, 1 << 20).await.unwrap()),
            FileKind::Symlink => what += &format!(" {:?}", fs.contents().read_link(rq, id).await.unwrap()),
            _ => {}
        }
        for name in fs.xattrs().names(rq, id).await.unwrap() {
            what += &format!(" {name:?}={:?}", fs.xattrs().get(rq, id, &name).await.unwrap());
        }
        out.insert(path, what);
    }
    // The root was not created by a record.
    out.remove("");
    out
}

/// A file system with an existing log chain, so that no commit waits for a txg.
async fn with_log(rq: &Request, machine: &Machine, settings: Settings, blocks: &Arc<Blocks>) -> Arc<FileSystem> {
    let store = blocks.clone();
    let zil = |set: &Arc<ObjectSet>| {
        Some(Zil::new(LogOpening {
            accounts: Arc::default(),
            machine: machine.clone(),
            set: set.id(),
            txgs: set.txgs().unwrap(),
            store,
            data: Arc::new(Arc::downgrade(set)),
            policy: Policy { sync: SyncMode::Standard, sa_xattr: true, ..Policy::default() },
            header: ZilHeader::default(),
        }))
    };
    let fs = logged(rq, machine, settings, zil).await;
    fs.names().create(rq, &Cred::root(), ROOT, b"first", &New::of(NewKind::Regular, 0)).await.unwrap();
    let groups = fs.objects().txgs().unwrap();
    let zil = fs.writing().unwrap().zil.clone().unwrap();
    let commit = fs.sync(rq, None);
    let sync = async {
        groups.sync_requested().await;
        let txg = groups.quiesce().await;
        zil.sync(txg).await;
        groups.synced(txg);
        zil.synced(txg);
    };
    let (done, ()) = futures_util::future::join(commit, sync).await;
    done.unwrap();
    blocks.written.lock().clear();
    fs
}

async fn replayed(rq: &Request, machine: &Machine, settings: Settings, steps: &[Step]) {
    let blocks = Arc::new(Blocks::default());
    let fs = with_log(rq, machine, settings, &blocks).await;
    let again = with_log(rq, machine, settings, &Arc::default()).await;
    let model = MemoryFiles::new(1);
    let mut play = Play { rq, fs: fs.clone(), model, pairs: vec![(ROOT, ROOT)], held: Vec::new() };
    play.model.writable = true;
    play.model.change(ROOT.0, |root| (root.mode, root.links) = (0o777, 2));
    play.model.add(ROOT.0, b"first", FileKind::Regular, 0, b"");
    for step in steps {
        play.step(step).await;
        play.compare(step).await;
    }
    fs.sync(rq, None).await.unwrap();
    let written = std::mem::take(&mut *blocks.written.lock());
    for bytes in written.values() {
        let block = ZilBlock::decode(bytes, ChecksumKind::Zilog2, Endian::Little).unwrap();
        for record in block.records() {
            let record = record.unwrap();
            let body = record.body().unwrap();
            again.replay().replay(rq, &record, &body, None).await.unwrap_or_else(|e| panic!("{body:?}: {e}"));
        }
    }
    let is = seen(rq, &again).await;
    let was = seen(rq, &fs).await;
    assert_eq!(is.keys().collect::<Vec<_>>(), was.keys().collect::<Vec<_>>());
    for (path, what) in &was {
        assert_eq!(is.get(path), Some(what), "{path}");
    }
}

fn replays(settings: Settings, steps: Vec<Step>) {
    let world = SimWorld::new(5);
    let machine = world.machine();
    let run = world.run(async move {
        replayed(&Request::internal("test"), &machine, settings, &steps).await;
    });
    run.unwrap();
}

/// An existing name takes precedence over an unlinked file, as in Linux.
#[test]
fn unlinked_files_cannot_be_linked() {
    let steps = [Step::Create(0, 0, 3), Step::Hold(13), Step::Remove(6, 0, false), Step::Create(20, 5, 0)];
    replays(Settings::default(), steps.into_iter().chain([Step::Link(28, 3, 5), Step::Link(28, 3, 4)]).collect());
}

/// Attributes stored as files of an unlinked file cannot be replayed: the file no longer exists then.
#[test]
fn attributes_of_unlinked_files_are_not_logged() {
    let settings = Settings { xattr_in_sa: false, ..Settings::default() };
    // An open file, with or without an attribute, is unlinked; then attributes are set and removed.
    for first in [None, Some(Step::SetXattr(29, 1, 700))] {
        let begun = [Step::Create(0, 0, 0), Step::Create(20, 4, 3), Step::Hold(2)];
        let ended = [Step::Remove(42, 4, false), Step::SetXattr(29, 0, 1), Step::RemoveXattr(29, 0)];
        replays(settings, begun.into_iter().chain(first).chain(ended).collect());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn replay_reproduces_random_histories(steps in steps(), record in 0u32..4, in_sa: bool) {
        let settings = Settings { record_bytes: 512 << record, xattr_in_sa: in_sa, ..Settings::default() };
        // The log cannot represent an empty attribute.
        let says = |step: &Step| !matches!(step, Step::SetXattr(_, _, 0));
        replays(settings, steps.into_iter().filter(says).collect());
    }
}
