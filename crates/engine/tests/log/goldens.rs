//! Logs that OpenZFS wrote, replayed into dirty data that is never written. The pool is opened some txgs before its last
//! one, and after the replay its files equal those that OpenZFS shows in the last txg.

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use weir_dmu::live::{Policy, UnlimitedTxAdmission};
use weir_dmu::{ObjectError, ObjectSet, Opening, TxgTracker};
use weir_files::writing::{AccessTimes, Opening as FilesOpening, Settings};
use weir_files::{Cred, FileSystem, Identity, WriteAt};
use weir_format::zil::{LogBody, LogRecord, ZilHeader};
use weir_format::{BlockPointer, ObjectId, Txg};
use weir_machine::{Machine, Request};
use weir_pool::{OpenOptions, Pool, Rewind};
use weir_zil::{self, GiveUp, LogOpening, LogStore, Replayer, Zil};

fn folder() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden");
    let folder = std::env::var_os("WEIR_GOLDEN").map_or(beside, PathBuf::from);
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!("skipped: no golden pools at {} (set WEIR_GOLDEN)", folder.display());
    None
}

fn unpack(folder: &Path, name: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let archive = folder.join(format!("{name}.tar.zst"));
    let unpack = "zstd -dc \"$0\" | tar -xSf - -C \"$1\"";
    let status = Command::new("sh").args(["-c", unpack]).arg(archive).arg(dir.path()).status().unwrap();
    assert!(status.success(), "unpacking {name}");
    dir
}

/// Log store of the replay, which writes no log.
struct Nowhere;

impl LogStore for Nowhere {
    fn allocate(&self, _: u64, _: Txg, _: [u64; 4]) -> BoxFuture<'_, Result<BlockPointer, ObjectError>> {
        async { Err(ObjectError::NoSpace { bytes: 0 }) }.boxed()
    }
    fn write<'a>(
        &'a self,
        _: &'a Request,
        _: &'a BlockPointer,
        _: Vec<u8>,
        _: weir_machine::accounts::Shares,
    ) -> BoxFuture<'a, Result<(), ObjectError>> {
        async { Err(ObjectError::NoSpace { bytes: 0 }) }.boxed()
    }
    fn flush<'a>(&'a self, _: &'a Request, _: Option<&'a BTreeSet<u32>>) -> BoxFuture<'a, Result<(), ObjectError>> {
        async { Ok(()) }.boxed()
    }
}

/// Replayer of the file system that copies cloned ranges instead of cloning them.
struct Copying {
    files: Arc<FileSystem>,
    kinds: std::sync::Mutex<BTreeMap<&'static str, u64>>,
}

impl Replayer for Copying {
    fn replay<'a>(
        &'a self,
        rq: &'a Request,
        record: &'a LogRecord<'a>,
        body: &'a LogBody<'a>,
        data: Option<Bytes>,
    ) -> BoxFuture<'a, Result<(), ObjectError>> {
        async move {
            *self.kinds.lock().unwrap().entry(record.tx_type.name()).or_default() += 1;
            let LogBody::CloneRange { object, offset, length, pointers, .. } = body else {
                return self.files.replay().replay(rq, record, body, data).await;
            };
            let set = self.files.objects();
            let mut bytes = Vec::new();
            for pointer in pointers {
                bytes.extend_from_slice(&set.cache().blocks().read(rq, pointer, set.options()).await.unwrap());
            }
            bytes.truncate(*length as usize);
            let root = Cred::root();
            self.files
                .contents()
                .write(rq, &root, *object, WriteAt::Offset(*offset), Bytes::from(bytes))
                .await
                .unwrap();
            Ok(())
        }
        .boxed()
    }
}

/// Marks txgs as synced without writing them: all changes stay in dirty data.
async fn pretend(txgs: Arc<TxgTracker>, zil: Arc<Zil>) {
    loop {
        txgs.sync_requested().await;
        let txg = txgs.quiesce().await;
        zil.sync(txg).await;
        txgs.synced(txg);
        zil.synced(txg);
    }
}

async fn log_of(pool: &Pool, machine: &Machine, set: &Arc<ObjectSet>, txgs: &Arc<TxgTracker>) -> Arc<Zil> {
    let first = Txg(pool.uberblock.txg.0 + 1);
    let rq = Request::internal("claim");
    let header = set.root().header.zil.clone();
    let claim = weir_zil::claim(&rq, set.cache().blocks(), set.options(), &header, first).await.unwrap();
    let header: ZilHeader = claim.map_or(header, |claim| claim.header);
    let zil = Zil::new(LogOpening {
        accounts: Arc::default(),
        machine: machine.clone(),
        set: set.id(),
        txgs: txgs.clone(),
        store: Arc::new(Nowhere),
        data: Arc::new(Arc::downgrade(set)),
        policy: weir_zil::Policy { sa_xattr: true, ..weir_zil::Policy::default() },
        header,
    });
    machine.tasks.spawn(pretend(txgs.clone(), zil.clone()));
    zil
}

fn settings() -> Settings {
    Settings {
        read_only: false,
        record_bytes: 128 << 10,
        dnode_slots: 1,
        xattr_in_sa: true,
        xattrs: true,
        acl_type: weir_files::writing::AclType::Posix,
        acl_mode: Default::default(),
        acl_inherit: Default::default(),
        access_times: AccessTimes::Off,
        ..Settings::default()
    }
}

/// Compares all reachable files with those that OpenZFS found after its replay.
async fn compare(files: &FileSystem, expected: &[serde_json::Value], place: &str) -> usize {
    let rq = Request::internal("test");
    let mut found: BTreeMap<String, ObjectId> = BTreeMap::from([("/".to_owned(), files.root())]);
    let mut todo = vec![(String::new(), files.root())];
    while let Some((path, dir)) = todo.pop() {
        for entry in files.directories().read_dir(&rq, dir, 0, 100_000).await.unwrap() {
            let path = format!("{path}/{}", String::from_utf8_lossy(&entry.name));
            let kind = files.attrs().get(&rq, entry.object).await.unwrap().kind;
            if kind == weir_files::FileKind::Directory {
                todo.push((path.clone(), entry.object));
            }
            found.insert(path, entry.object);
        }
    }
    let mut wrong = Vec::new();
    let mut contents = 0;
    let mut not_text = 0;
    for file in expected {
        let Some(path) = file["path"].as_str() else {
            not_text += 1;
            continue;
        };
        // Only the number of files is compared in directories with many files.
        if let Some(count) = file["mass"]["count"].as_u64() {
            let inside = |of: &str| of.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
            let before = found.len();
            found.retain(|of, _| !inside(of));
            if (before - found.len()) as u64 != count {
                wrong.push(format!("{path}: {} files instead of {count}", before - found.len()));
            }
        }
        let Some(object) = found.remove(path) else {
            wrong.push(format!("{path} is missing"));
            continue;
        };
        let attributes = files.attrs().get(&rq, object).await.unwrap();
        let size = file["size"].as_u64().unwrap();
        if object.0 != file["ino"].as_u64().unwrap() || attributes.size_bytes != size {
            wrong.push(format!("{path}: object {object}, {} bytes; should be {file}", attributes.size_bytes));
        }
        if let Some(hash) = file["sha256"].as_str().filter(|_| size < 64 << 20) {
            let bytes = files.contents().read(&rq, object, 0, size as usize).await.unwrap();
            let hex: String = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
            if hex != hash {
                wrong.push(format!("{path}: other contents"));
            }
            contents += 1;
        }
    }
    // OpenZFS does not log the first link of an unnamed file; it waits for the txg instead.
    wrong.retain(|what| !what.starts_with("/z-tmpfile is missing") && !what.starts_with("/: object 34, 15 bytes"));
    let before = found.len();
    found.retain(|path, _| !path.contains('\u{fffd}'));
    if before - found.len() != not_text {
        wrong.push(format!("{} names that are not UTF-8 instead of {not_text}", before - found.len()));
    }
    wrong.extend(found.into_keys().map(|path| format!("{path} should not be there")));
    assert!(wrong.is_empty(), "{place}: {wrong:#?}");
    contents
}

/// Opens a pool at an earlier txg and replays the log of that txg to its end, at least `at_least` records. The file system
/// must then equal the one of the last txg.
fn replay(name: &str, dataset_name: &str, txg: u64, at_least: u64) {
    let Some(folder) = folder() else { return };
    let dir = unpack(&folder, name);
    let text = std::fs::read(folder.join(format!("{name}.json"))).unwrap();
    let manifest: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let mut options = OpenOptions::new(vec![dir.path().to_owned()], format!("g-{name}"));
        options.rewind = Rewind::Before(Txg(txg));
        let pool = Pool::open(&machine, &options).await.unwrap();
        assert_eq!(pool.uberblock.txg, Txg(txg));
        let rq = Request::internal("test");
        let datasets = manifest["manifest_after_replay"]["datasets"].as_array().unwrap();
        let dataset = datasets.iter().find(|d| d["name"] == dataset_name).unwrap();
        let old = pool.object_set(&rq, dataset_name).await.unwrap();
        let txgs = TxgTracker::new(pool.uberblock.txg);
        let gate = Arc::new(UnlimitedTxAdmission(txgs.clone()));
        let opening = Opening { id: old.id(), ..Opening::default() };
        let cache = old.cache().clone();
        let pointer = old.pointer();
        let set = ObjectSet::open_live(&rq, cache, pointer, opening, gate, Policy::default()).await.unwrap();
        let zil = log_of(&pool, &machine, &set, &txgs).await;
        let opening = FilesOpening { machine: machine.clone(), zil: Some(zil.clone()), settings: settings() };
        let identity = Identity {
            name: dataset_name.to_owned(),
            fsid: 1,
            is_snapshot: false,
            referenced_bytes: 0,
            available_bytes: 0,
            long_names: false,
            snapdir: weir_files::Snapdir::Hidden,
        };
        let files = FileSystem::open_writable(&rq, set.clone(), identity, opening).await.unwrap();
        let copying = Copying { files: files.clone(), kinds: Default::default() };
        let replayed = zil.replay(&rq, &set, &copying, GiveUp::IfLost).await.unwrap();
        let contents = compare(&files, dataset["files"].as_array().unwrap(), dataset_name).await;
        let kinds = std::mem::take(&mut *copying.kinds.lock().unwrap());
        println!("{dataset_name} from {txg}: {replayed:?}, {contents} files with contents, {kinds:?}");
        assert!(replayed.done >= at_least);
    });
}

#[test]
fn openzfs_logs_are_replayed() {
    replay("zil-main", "g-zil-main/xsa", 108, 4);
    replay("zil-main", "g-zil-main/xsa", 107, 9);
    replay("zil-main", "g-zil-main/xsa", 105, 59);
    replay("zil-main", "g-zil-main/thru", 101, 46);
}
