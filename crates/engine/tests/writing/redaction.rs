//! Redaction bookmarks and redacted streams: lists compared with those of OpenZFS and with what was changed, streams received
//! on redacted datasets.

use crate::files::noise;
use crate::{goldens, real, work, zdb};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::path::Path;
use std::sync::Arc;
use weir_dsl::props::Value;
use weir_dsl::redaction::{RedactionReader, redaction_of};
use weir_dsl::sync_tasks::receive::{Receive, Resume};
use weir_dsl::sync_tasks::redact::MAX_SNAPSHOTS;
use weir_dsl::sync_tasks::{DslError, FileSystemSpec, Kind, NewDataset};
use weir_dsl::{Dsl, bookmarks};
use weir_engine::{Encryption, Engine, ImportOptions, Layout};
use weir_files::{Cred, FileSystem, New, NewKind, SetAttributes, WriteAt};
use weir_format::dsl::RedactionBlock;
use weir_format::features::Feature;
use weir_format::stream::{Record, feature};
use weir_format::{ObjectId, ObjsetKind};
use weir_machine::{Machine, Request};
use weir_pool::{OpenOptions, PoolError};
use weir_send::{Applier, Input, Output, ReceiveError, SendError, SendFlags, SendNames, SendPlan, StreamInput};

/// Size of a block in bytes.
const BLOCK: usize = 4096;

fn rq() -> Request {
    Request::internal("test")
}

struct Sink(Vec<u8>);

impl Output for Sink {
    fn put(&mut self, bytes: Vec<u8>) -> BoxFuture<'_, Result<(), SendError>> {
        self.0.extend(bytes);
        Box::pin(async { Ok(()) })
    }
}

struct Source<'a>(&'a [u8]);

impl Input for Source<'_> {
    fn get(&mut self, wanted: usize) -> BoxFuture<'_, Result<Vec<u8>, ReceiveError>> {
        let (piece, rest) = self.0.split_at(wanted.min(self.0.len()));
        self.0 = rest;
        let piece = piece.to_vec();
        Box::pin(async move { Ok(piece) })
    }
}

/// The list of a redaction bookmark, and the snapshots that it redacts for.
async fn list(dsl: &Dsl, name: &str) -> (Vec<RedactionBlock>, Vec<u64>) {
    let head = dsl.find(&rq(), name.split('#').next().unwrap()).await.unwrap();
    let all = bookmarks::bookmarks(dsl, &rq(), &head).await.unwrap();
    let found = all.into_iter().find(|named| named.name == name).unwrap().bookmark;
    let mut reader = RedactionReader::open(dsl, &rq(), &found).await.unwrap().unwrap();
    assert!(reader.header().is_complete(), "{name}");
    let snapshots = reader.header().snapshots.clone();
    let mut runs = Vec::new();
    while let Some(run) = reader.next(&rq()).await.unwrap() {
        runs.push(run);
    }
    (runs, snapshots)
}

async fn redact(engine: &Engine, snapshot: &str, bookmark: &str, by: &[&str]) -> Result<(), PoolError> {
    let by: Vec<String> = by.iter().map(|name| (*name).to_owned()).collect();
    engine.sends().redact(&rq(), snapshot, bookmark, &by).await
}

/// The count of a feature.
async fn count(engine: &Engine, feature: &Feature) -> u64 {
    let dsl = engine.synced().dsl(&rq()).await.unwrap();
    let mos = weir_pool::mos::Mos { set: dsl.mos().clone() };
    weir_pool::features::Features::read(&rq(), &mos).await.unwrap().count(feature.guid).unwrap_or(0)
}

async fn sent(engine: &Engine, from: Option<&str>, to: &str, redact: Option<&str>) -> Vec<u8> {
    let (held, dsl) = engine.sends().hold(&rq(), to).await.unwrap();
    let names = SendNames { from, redact };
    let options = (SendFlags::default(), held.features);
    let plan = SendPlan::new(&rq(), &dsl, (names, held.dataset.clone()), &held.set, options).await.unwrap();
    let mut sink = Sink(Vec::new());
    weir_send::make(&rq(), &held.set, &plan, &mut sink).await.unwrap();
    sink.0
}

async fn receive(engine: &Engine, bytes: &[u8], snapshot: &str, origin: Option<&str>) -> Result<(), PoolError> {
    let mut source = Source(bytes);
    let mut input = StreamInput::new(&mut source);
    let first = input.next().await.unwrap().unwrap();
    let Record::Begin(begin) = first.record else { panic!("a stream begins with BEGIN") };
    weir_send::check::check_features(&begin).unwrap();
    let wanted = Receive {
        snapshot: snapshot.to_owned(),
        to_guid: begin.to_guid,
        from_guid: begin.from_guid,
        creation_time_s: begin.creation_time_s,
        ignores_case: false,
        kind: ObjsetKind::Zfs,
        origin: origin.map(str::to_owned),
        force: true,
        properties: Default::default(),
        resume: Resume::Never,
        raw: None,
        features: weir_send::check::needed_features(&begin),
        redaction: weir_send::check::redaction_of(&begin, &first.payload).unwrap(),
    };
    let receives = engine.receives();
    let session = receives.begin(&rq(), wanted, Encryption::default()).await?;
    let mut applier = Applier::new(session.set.clone(), begin);
    loop {
        let one = input.next().await.unwrap().unwrap();
        if let Record::End { .. } = one.record {
            break;
        }
        applier.apply(&rq(), &one.record, one.payload).await.unwrap();
    }
    receives.end(session).await.map(drop)
}

/// A bookmark that Weir makes again has the list that OpenZFS made, and a stream with it is the same.
#[test]
fn a_redaction_bookmark_is_as_openzfs_made_it() {
    let Some(from) = goldens::goldens() else { return };
    let dir = goldens::unpack(&from, "snaps");
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let mut options = ImportOptions::new(OpenOptions::new(vec![dir.clone()], ""));
        options.force = true;
        let engine = Engine::import(&machine, &options).await.unwrap();
        redact(&engine, "g-snaps/redact@base", "again", &["g-snaps/redact-clone@r"]).await.unwrap();
        {
            let dsl = engine.synced().dsl(&rq()).await.unwrap();
            let expected = list(&dsl, "g-snaps/redact#rbm").await;
            assert_eq!((expected.1.len(), expected.0.is_empty()), (1, false), "the golden has a list");
            assert_eq!(list(&dsl, "g-snaps/redact#again").await, expected);
        }
        assert_eq!(count(&engine, Feature::REDACTION_BOOKMARKS).await, 2);
        redact(&engine, "g-snaps/redact@base", "gone", &["g-snaps/redact-clone@r"]).await.unwrap();
        engine.destroy_bookmarks(vec!["g-snaps/redact#gone".into()]).await.unwrap();
        let error = redact(&engine, "g-snaps/redact@base", "rbm", &["g-snaps/redact-clone@r"]).await.unwrap_err();
        assert!(matches!(error, PoolError::Dsl(DslError::Exists { .. })), "{error}");
        // The stream is the one that OpenZFS made, and is received.
        let expected = goldens::stream(&from, "snaps-redacted");
        assert!(sent(&engine, None, "g-snaps/redact@base", Some("again")).await == expected, "the stream differs");
        receive(&engine, &expected, "g-snaps/received@base", None).await.unwrap();
        {
            let dsl = engine.synced().dsl(&rq()).await.unwrap();
            let received = dsl.find(&rq(), "g-snaps/received").await.unwrap();
            let guids = redaction_of(&dsl, &rq(), &received).await.unwrap();
            assert_eq!(guids, Some(list(&dsl, "g-snaps/redact#rbm").await.1));
        }
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "g-snaps").await;
    });
    assert!(zdb::is_clean(&dir, "g-snaps"));
    zdb::assert_counted(&dir, "g-snaps");
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A pool with a file system `tank/a` of small blocks, its snapshot `base`, and clones.
struct World {
    engine: Arc<Engine>,
    /// Objects of the files f, g, h.
    files: [ObjectId; 3],
}

async fn open(engine: &Engine, name: &str) -> Arc<FileSystem> {
    engine.file_system(&rq(), name).await.unwrap()
}

async fn write(files: &FileSystem, file: ObjectId, block: usize, data: Bytes) {
    let at = WriteAt::Offset((block * BLOCK) as u64);
    files.contents().write(&rq(), &Cred::root(), file, at, data).await.unwrap();
}

impl World {
    async fn new(machine: &Machine, dir: &Path) -> World {
        let mut options = real::pool_of(dir, Layout::Single, 1);
        options.root_properties = vec![("recordsize".into(), Value::Number(BLOCK as u64))];
        let engine = Engine::create(machine, &options).await.unwrap();
        let kind = Kind::FileSystem(FileSystemSpec::default());
        let new = NewDataset { name: "tank/a".into(), kind, properties: Vec::new() };
        engine.create_dataset(new).await.unwrap();
        let a = open(&engine, "tank/a").await;
        let mut files = [ObjectId(0); 3];
        for ((name, blocks), file) in [("f", 64), ("g", 8), ("h", 8)].into_iter().zip(&mut files) {
            let new = New::of(NewKind::Regular, 0o644);
            let made = a.names().create(&rq(), &Cred::root(), a.root(), name.as_bytes(), &new).await.unwrap();
            *file = made.object;
            write(&a, *file, 0, noise(blocks * BLOCK, blocks as u64)).await;
        }
        let world = World { engine, files };
        world.snapshot("tank/a@base").await;
        world
    }

    async fn snapshot(&self, name: &str) {
        self.engine.snapshot(vec![name.to_owned()], Vec::new()).await.unwrap();
    }

    /// A clone with changes, and a snapshot `s` of it.
    async fn clone(&self, name: &str, changes: impl AsyncFnOnce(&FileSystem)) {
        self.engine.clone_snapshot("tank/a@base".into(), name.to_owned(), Vec::new()).await.unwrap();
        let files = open(&self.engine, name).await;
        changes(&files).await;
        drop(files);
        self.snapshot(&format!("{name}@s")).await;
    }

    /// Two clones: both overwrite some blocks of f and remove g; one truncates f, the other changes h.
    async fn make_clones(&self) {
        let [f, _, h] = self.files;
        self.clone("tank/b", async |files| {
            write(files, f, 3, noise(7 * BLOCK, 100)).await;
            let root = Cred::root();
            files.attrs().set(&rq(), &root, f, &SetAttributes::size((40 * BLOCK) as u64)).await.unwrap();
            files.names().remove(&rq(), &root, files.root(), b"g").await.unwrap();
        })
        .await;
        self.clone("tank/c", async |files| {
            write(files, f, 5, noise(2 * BLOCK, 101)).await;
            write(files, f, 50, noise(2 * BLOCK, 102)).await;
            write(files, h, 1, noise(BLOCK, 103)).await;
            files.names().remove(&rq(), &Cred::root(), files.root(), b"g").await.unwrap();
        })
        .await;
    }

    async fn list(&self, name: &str) -> Vec<(u64, u64, u64)> {
        let dsl = self.engine.synced().dsl(&rq()).await.unwrap();
        let (runs, _) = list(&dsl, name).await;
        assert!(runs.iter().all(|run| run.block_bytes as usize == BLOCK));
        runs.iter().map(|run| (run.object.0, run.block, run.count)).collect()
    }

    async fn sent(&self, from: Option<&str>, to: &str, redact: Option<&str>) -> Vec<u8> {
        sent(&self.engine, from, to, redact).await
    }

    async fn receive(&self, bytes: &[u8], snapshot: &str, origin: Option<&str>) -> Result<(), PoolError> {
        receive(&self.engine, bytes, snapshot, origin).await
    }

    /// The contents of a file of a snapshot.
    async fn contents(&self, snapshot: &str, file: ObjectId) -> Bytes {
        let files = open(&self.engine, snapshot).await;
        files.contents().read(&rq(), file, 0, 64 * BLOCK).await.unwrap()
    }

    async fn redacted_for(&self, name: &str) -> Option<Vec<u64>> {
        let dsl = self.engine.synced().dsl(&rq()).await.unwrap();
        redaction_of(&dsl, &rq(), &dsl.find(&rq(), name).await.unwrap()).await.unwrap()
    }
}

fn judged(name: &str, test: impl AsyncFnOnce(&Machine, &Path)) {
    let dir = real::folder(name);
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        test(&machine, &dir).await;
        work::assert_pool_clean(&machine, &dir, "tank").await;
    });
    assert!(zdb::is_clean(&dir, "tank"));
    zdb::assert_counted(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_redaction_list_has_the_blocks_that_all_snapshots_changed() {
    judged("redaction-lists", async |machine, dir| {
        let world = World::new(machine, dir).await;
        world.make_clones().await;
        let [f, g, h] = world.files.map(|file| file.0);
        redact(&world.engine, "tank/a@base", "b", &["tank/b@s"]).await.unwrap();
        assert_eq!(world.list("tank/a#b").await, [(f, 3, 7), (f, 40, 24), (g, 0, 8)]);
        redact(&world.engine, "tank/a@base", "c", &["tank/c@s"]).await.unwrap();
        assert_eq!(world.list("tank/a#c").await, [(f, 5, 2), (f, 50, 2), (g, 0, 8), (h, 1, 1)]);
        redact(&world.engine, "tank/a@base", "both", &["tank/b@s", "tank/c@s"]).await.unwrap();
        assert_eq!(world.list("tank/a#both").await, [(f, 5, 2), (f, 50, 2), (g, 0, 8)]);
        // As many snapshots as the bonus area has room for, and one more.
        let mut many = Vec::new();
        for n in 0..=MAX_SNAPSHOTS {
            many.push(format!("tank/c@{n}"));
            world.snapshot(&many[n]).await;
        }
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        redact(&world.engine, "tank/a@base", "many", &many[1..]).await.unwrap();
        assert_eq!(world.list("tank/a#many").await, world.list("tank/a#c").await);
        let error = redact(&world.engine, "tank/a@base", "more", &many).await.unwrap_err();
        assert!(error.to_string().contains("too many redaction snapshots"), "{error}");
        for (by, why) in [("tank/a@base", "must be descendent"), ("tank/b", "must be descendent")] {
            let error = redact(&world.engine, "tank/a@base", "wrong", &[by]).await.unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        }
        let error = redact(&world.engine, "tank/a@base", "a#b", &["tank/b@s"]).await.unwrap_err();
        assert!(error.to_string().contains("must not contain '#'"), "{error}");
        world.engine.destroy_bookmarks(vec!["tank/a#b".into()]).await.unwrap();
        assert_eq!(count(&world.engine, Feature::REDACTION_BOOKMARKS).await, 3);
        world.engine.export().await.unwrap();
    });
}

/// Blocks of f, filled with zeros where they are redacted.
fn without(data: &Bytes, redacted: &[std::ops::Range<usize>]) -> Vec<u8> {
    let mut out = data.to_vec();
    for range in redacted {
        out[range.start * BLOCK..range.end * BLOCK].fill(0);
    }
    out
}

#[test]
fn redacted_streams_are_received_and_take_what_brings_their_blocks() {
    judged("redacted-streams", async |machine, dir| {
        let world = World::new(machine, dir).await;
        world.make_clones().await;
        let [f, g, h] = world.files;
        world.clone("tank/d", async |files| write(files, f, 0, noise(BLOCK, 104)).await).await;
        redact(&world.engine, "tank/a@base", "both", &["tank/b@s", "tank/c@s"]).await.unwrap();
        let base = world.contents("tank/a@base", f).await;
        let bytes = world.sent(None, "tank/a@base", Some("both")).await;
        world.receive(&bytes, "tank/r@base", None).await.unwrap();
        let guids = world.redacted_for("tank/r").await.unwrap();
        assert_eq!(world.redacted_for("tank/r@base").await, Some(guids.clone()));
        assert_eq!((guids.len(), count(&world.engine, Feature::REDACTED_DATASETS).await), (2, 2));
        // Clients cannot open it, unless that is allowed.
        let error = world.engine.file_system(&rq(), "tank/r").await.map(drop).unwrap_err();
        assert!(error.to_string().contains("it is redacted"), "{error}");
        world.engine.allow_redacted(&rq(), "tank/r").await.unwrap();
        assert!(world.contents("tank/r@base", f).await == without(&base, &[5..7, 50..52]));
        assert_eq!(world.contents("tank/r@base", g).await, vec![0; 8 * BLOCK]);
        // The snapshots that it is redacted for bring the blocks that it lacks; others do not.
        let bytes = world.sent(Some("tank/a@base"), "tank/c@s", None).await;
        world.receive(&bytes, "tank/rc@s", Some("tank/r@base")).await.unwrap();
        assert_eq!(world.redacted_for("tank/rc").await, None);
        assert!(world.contents("tank/rc@s", f).await == world.contents("tank/c@s", f).await);
        assert!(world.contents("tank/rc@s", h).await == world.contents("tank/c@s", h).await);
        let bytes = world.sent(Some("tank/a@base"), "tank/d@s", None).await;
        let error = world.receive(&bytes, "tank/rd@s", Some("tank/r@base")).await.unwrap_err();
        assert!(error.to_string().contains("the origin is redacted"), "{error}");
        // From the redaction bookmark, a stream has the blocks as well.
        let bytes = world.sent(Some("tank/a#both"), "tank/d@s", None).await;
        world.receive(&bytes, "tank/rd@s", Some("tank/r@base")).await.unwrap();
        assert!(world.contents("tank/rd@s", f).await == world.contents("tank/d@s", f).await);
        assert!(world.contents("tank/rd@s", g).await == world.contents("tank/d@s", g).await);
        // A redacted dataset that is sent stays one.
        let bytes = world.sent(None, "tank/r@base", None).await;
        world.receive(&bytes, "tank/r2@base", None).await.unwrap();
        assert_eq!(world.redacted_for("tank/r2").await, Some(guids));
        let error = redact(&world.engine, "tank/r@base", "x", &["tank/rc@s"]).await.unwrap_err();
        assert!(error.to_string().contains("attempted to redact redacted dataset"), "{error}");
        // The bookmark of a redacted snapshot keeps its snapshots.
        let pair = ("tank/r#mark".to_owned(), "tank/r@base".to_owned());
        world.engine.bookmark(vec![pair]).await.unwrap();
        assert!(world.list("tank/r#mark").await.is_empty());
        world.engine.export().await.unwrap();
    });
}

/// Relative to a redaction bookmark, a redacted stream leaves out what both lists have, and brings what the first has alone.
#[test]
fn redactions_change_from_snapshot_to_snapshot() {
    judged("redacted-incrementals", async |machine, dir| {
        let world = World::new(machine, dir).await;
        world.make_clones().await;
        let [f, ..] = world.files;
        redact(&world.engine, "tank/a@base", "b", &["tank/b@s"]).await.unwrap();
        let bytes = world.sent(None, "tank/a@base", Some("b")).await;
        world.receive(&bytes, "tank/r@base", None).await.unwrap();
        world.engine.allow_redacted(&rq(), "tank/r").await.unwrap();
        let a = open(&world.engine, "tank/a").await;
        write(&a, f, 4, noise(BLOCK, 110)).await;
        write(&a, f, 20, noise(BLOCK, 111)).await;
        drop(a);
        world.snapshot("tank/a@two").await;
        world.engine.clone_snapshot("tank/a@two".into(), "tank/e".into(), Vec::new()).await.unwrap();
        let e = open(&world.engine, "tank/e").await;
        write(&e, f, 8, noise(4 * BLOCK, 112)).await;
        drop(e);
        world.snapshot("tank/e@s").await;
        redact(&world.engine, "tank/a@two", "e", &["tank/e@s"]).await.unwrap();
        let bytes = world.sent(Some("tank/a#b"), "tank/a@two", Some("e")).await;
        let records = weir_format::stream::StreamReader::new(&bytes, weir_format::stream::Unchecked).unwrap();
        let redacted: Vec<(u64, u64)> = records
            .filter_map(|item| match item.unwrap().record {
                Record::Redact { offset, length, .. } => Some((offset / BLOCK as u64, length / BLOCK as u64)),
                Record::Begin(begin) => {
                    assert!(begin.features & feature::REDACTED != 0);
                    None
                }
                _ => None,
            })
            .collect();
        // Blocks 8 and 9 are redacted at the receiver already.
        assert_eq!(redacted, [(10, 2)]);
        world.receive(&bytes, "tank/r@two", None).await.unwrap();
        let two = world.contents("tank/a@two", f).await;
        assert!(world.contents("tank/r@two", f).await == without(&two, std::slice::from_ref(&(8..12))));
        // From the bookmark of the snapshot itself come the blocks that are redacted, and nothing else.
        let bytes = world.sent(Some("tank/a#e"), "tank/a@two", None).await;
        let items = weir_format::stream::StreamReader::new(&bytes, weir_format::stream::Unchecked).unwrap();
        let writes = items.filter(|item| matches!(item.as_ref().unwrap().record, Record::Write(_))).count();
        assert_eq!(writes, 4);
        world.engine.export().await.unwrap();
    });
}
