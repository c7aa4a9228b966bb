//! Raw streams, received without the key, with the power cut at any moment: the received snapshots that were acknowledged are
//! there, a stream that was interrupted is continued, and with the key the contents are the sender's.

use crate::drive::number;
use crate::world::{Home, Shape, create, import, make_home, verify_pool, world};
use futures_util::future::BoxFuture;
use std::collections::BTreeMap;
use weir_blocks::alloc::DEFER;
use weir_codec::crypt::Suite;
use weir_dsl::resume::{ResumeState, resume_state};
use weir_dsl::sync_tasks::receive::{Receive, Resume};
use weir_dsl::sync_tasks::receive_redacted::StreamRedaction;
use weir_dsl::{Dsl, RawKey, StreamForms};
use weir_engine::{Encryption, Engine, Layout, NewLeaf, NewTopLevelVdev};
use weir_files::{Cred, New, NewKind, WriteAt};
use weir_files::{FileSystem, Identity};
use weir_format::stream::{Begin, Record, feature};
use weir_format::{NvList, ObjectId, ObjsetKind};
use weir_machine::{Machine, Request};
use weir_pool::config::Class;
use weir_pool::features::Features;
use weir_pool::{OpenOptions, Pool};
use weir_send::plan::{KEY_DATA, RESUME_OBJECT, RESUME_OFFSET};
use weir_send::{Applier, Input, Output, ReceiveError, SendError, SendFlags, SendNames, SendPlan, StreamInput};
use weir_sim::{Replay, Rng, SimWorld, Timing};

/// Folder of the sender's device, which the search for the receiver's pool does not find.
const SENDER: &str = "/sender";
const SENT: &str = "tank/secret";
const RECEIVED: &str = "tank/copy";
/// The snapshots, and the earlier one that each is sent relative to.
const SNAPSHOTS: [(&str, Option<&str>); 2] = [("1", None), ("2", Some("1"))];
const FILES: u64 = 9;

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
        Box::pin(async move { Ok(piece.to_vec()) })
    }
}

/// Contents of a snapshot's files by name.
type Contents = BTreeMap<String, Vec<u8>>;

/// Writes, truncates and removes files.
async fn change_files(engine: &Engine, rng: &mut Rng, contents: &mut Contents) {
    let files = engine.file_system(&rq(), SENT).await.unwrap();
    let root = Cred::root();
    for _ in 0..FILES {
        let name = format!("f{}", rng.below(FILES));
        if rng.below(4) == 0 && contents.remove(&name).is_some() {
            files.names().remove(&rq(), &root, files.root(), name.as_bytes()).await.unwrap();
            continue;
        }
        let object = match files.directories().lookup(&rq(), files.root(), name.as_bytes()).await {
            Ok(object) => object,
            Err(_) => {
                let new = New::of(NewKind::Regular, 0o644);
                files.names().create(&rq(), &root, files.root(), name.as_bytes(), &new).await.unwrap().object
            }
        };
        // Long files have indirect blocks, and holes below them.
        let at = rng.below(2) * rng.below(900_000);
        let mut data = vec![0; 1 + rng.below(60_000) as usize];
        data.iter_mut().step_by(3).for_each(|byte| *byte = rng.below(256) as u8);
        let known = contents.entry(name).or_default();
        let end = at as usize + data.len();
        known.resize(known.len().max(end), 0);
        known[at as usize..end].copy_from_slice(&data);
        files.contents().write(&rq(), &root, object, WriteAt::Offset(at), data.into()).await.unwrap();
    }
}

/// Makes the sender's pool; returns the contents of its snapshots.
async fn make_sender(machine: &Machine, shape: Shape, seed: u64) -> Vec<Contents> {
    let mut options = crate::world::options(shape);
    let leaves = vec![NewLeaf { path: format!("{SENDER}/d0").into(), is_file: true }];
    options.tops = vec![NewTopLevelVdev { class: Class::Normal, layout: Layout::Single, leaves }];
    let engine = Engine::create(machine, &options).await.unwrap();
    make_home(&engine, machine, SENT, Home::Files { record_bytes: 4 << 10 }, shape.suite).await;
    let mut rng = Rng::new(seed);
    let mut contents = Contents::new();
    let mut all = Vec::new();
    for (snapshot, _) in SNAPSHOTS {
        for _ in 0..3 {
            change_files(&engine, &mut rng, &mut contents).await;
            engine.sync().await.unwrap();
        }
        engine.snapshot(vec![format!("{SENT}@{snapshot}")], Vec::new()).await.unwrap();
        all.push(contents.clone());
    }
    engine.export().await.unwrap();
    all
}

/// The raw stream of a snapshot, or the rest of it, from the sender's pool, which is opened read-only without the key.
async fn sent(machine: &Machine, (to, from): (&str, Option<&str>), rest: Option<&ResumeState>) -> Vec<u8> {
    let pool = Pool::open(machine, &OpenOptions::new(vec![SENDER.into()], "tank")).await.unwrap();
    let dsl = Dsl::open(&rq(), pool.mos.set.clone(), pool.name()).await.unwrap();
    let dataset = dsl.find(&rq(), &format!("{SENT}@{to}")).await.unwrap();
    let set = dsl.open_set(&rq(), &dataset, None).await.unwrap();
    let features = weir_engine::sends::pool_features(&Features::read(&rq(), &pool.mos).await.unwrap());
    let flags = SendFlags { raw: true, ..SendFlags::default() };
    let from = from.map(|from| format!("{SENT}@{from}"));
    let names = SendNames { from: from.as_deref(), redact: None };
    let mut plan = SendPlan::new(&rq(), &dsl, (names, dataset), &set, (flags, features)).await.unwrap();
    if let Some(rest) = rest {
        plan = plan.continued(rest.object, rest.offset);
    }
    let mut sink = Sink(Vec::new());
    weir_send::make(&rq(), &set, &plan, &mut sink).await.unwrap();
    sink.0
}

fn receiving(begin: &Begin, list: &[u8], snapshot: &str) -> Receive {
    let list = NvList::decode(list).unwrap();
    let raw = RawKey::from_list(list.get_list(KEY_DATA).unwrap()).unwrap();
    let resume = match begin.features & feature::RESUMING {
        0 => Resume::Save {
            sent_name: format!("{SENT}@{snapshot}"),
            forms: StreamForms { raw: true, compressed: true, ..StreamForms::default() },
        },
        _ => Resume::Continue {
            object: ObjectId(list.get_u64(RESUME_OBJECT).unwrap()),
            offset: list.get_u64(RESUME_OFFSET).unwrap(),
        },
    };
    Receive {
        snapshot: format!("{RECEIVED}@{snapshot}"),
        to_guid: begin.to_guid,
        from_guid: begin.from_guid,
        creation_time_s: begin.creation_time_s,
        ignores_case: false,
        kind: ObjsetKind::Zfs,
        origin: None,
        force: false,
        properties: Default::default(),
        resume,
        raw: Some(raw),
        features: weir_send::check::needed_features(begin),
        redaction: StreamRedaction::default(),
    }
}

/// Receives a stream; with `most`, it is interrupted after this number of records.
async fn receive(engine: &Engine, bytes: &[u8], snapshot: &str, most: Option<usize>) {
    let mut source = Source(bytes);
    let mut input = StreamInput::new(&mut source);
    let first = input.next().await.unwrap().unwrap();
    let Record::Begin(begin) = first.record else { panic!("a stream begins with BEGIN") };
    let wanted = receiving(&begin, &first.payload, snapshot);
    let receives = engine.receives();
    let session = receives.begin(&rq(), wanted, Encryption::default()).await.unwrap();
    let mut applier = Applier::new(session.set.clone(), begin).noting(session.points.clone(), 0);
    for n in 0.. {
        if most == Some(n) {
            return receives.suspend(session).await.unwrap();
        }
        if n % 40 == 39 {
            engine.sync().await.unwrap();
        }
        let one = input.next().await.unwrap().unwrap();
        if let Record::End { .. } = one.record {
            break;
        }
        applier.apply(&rq(), &one.record, one.payload).await.unwrap();
    }
    assert!(receives.end(session).await.unwrap().is_empty(), "no property is refused");
}

/// The snapshots that are received, and the state of an interrupted stream.
async fn state(engine: &Engine) -> (Vec<String>, Option<ResumeState>) {
    let dsl = engine.synced().dsl(&rq()).await.unwrap();
    let Some(dir) = dsl.dir_named(RECEIVED) else { return (Vec::new(), None) };
    let list = dsl.snapshots(&rq(), dir).await.unwrap();
    let names = list.snapshots.iter().filter_map(|s| s.snapshot_name().map(str::to_owned)).collect();
    let head = dsl.head(&rq(), dir).await.unwrap();
    (names, resume_state(&dsl, &rq(), dir, &head).await.unwrap().map(|(state, _)| state))
}

/// Receives what is missing.
async fn complete(machine: &Machine, engine: &Engine) {
    for (snapshot, from) in SNAPSHOTS {
        let (there, partial) = state(engine).await;
        if !there.iter().any(|name| name == snapshot) {
            let bytes = sent(machine, (snapshot, from), partial.as_ref()).await;
            receive(engine, &bytes, snapshot, None).await;
        }
    }
}

/// Compares the received snapshots with the sender's, with the key.
async fn compare(engine: &Engine, expected: &[Contents]) {
    engine.encryption_keys().load(&rq(), RECEIVED, vec![7; 32]).await.unwrap();
    for ((snapshot, _), expected) in SNAPSHOTS.iter().zip(expected) {
        let name = format!("{RECEIVED}@{snapshot}");
        let (held, _) = engine.sends().hold(&rq(), &name).await.unwrap();
        let identity = Identity { name: name.clone(), is_snapshot: true, ..Identity::default() };
        let files = FileSystem::open(&rq(), held.set.clone(), identity).await.unwrap();
        let entries = files.directories().read_dir(&rq(), files.root(), 0, 1000).await.unwrap();
        assert_eq!(entries.len(), expected.len(), "files of {name}");
        for (file, contents) in expected {
            let object = files.directories().lookup(&rq(), files.root(), file.as_bytes()).await.unwrap();
            let found = files.contents().read(&rq(), object, 0, 2 << 20).await.unwrap();
            assert!(found == contents[..], "{name}: {file} has other contents");
        }
    }
    // The head can be changed.
    let files = engine.file_system(&rq(), RECEIVED).await.unwrap();
    let new = New::of(NewKind::Regular, 0o644);
    files.names().create(&rq(), &Cred::root(), files.root(), b"new", &new).await.unwrap();
}

/// Receives both streams, each in two parts. Returns the moment at which the pool exists, and those at which the snapshots were
/// acknowledged.
async fn history(machine: Machine, world: SimWorld, shape: Shape, parts: u64) -> (u64, Vec<u64>) {
    let engine = create(&machine, shape).await.unwrap();
    let created = world.recorded();
    let mut promised = Vec::new();
    for (snapshot, from) in SNAPSHOTS {
        let bytes = sent(&machine, (snapshot, from), None).await;
        let most = 20 + parts as usize;
        receive(&engine, &bytes, snapshot, Some(most)).await;
        let rest = sent(&machine, (snapshot, from), state(&engine).await.1.as_ref()).await;
        receive(&engine, &rest, snapshot, None).await;
        promised.push(world.recorded());
    }
    engine.export().await.unwrap();
    (created, promised)
}

/// Cuts one history; returns the number of cuts that left a stream to continue.
fn run(seed: u64, cuts: u64) -> u64 {
    let suites = [Suite::Aes256Gcm, Suite::Aes128Ccm];
    let (layout, devices) = [(Layout::Single, 1), (Layout::Raidz(1), 3), (Layout::Mirror, 2)][(seed % 3) as usize];
    let suite = Some(suites[(seed % 2) as usize]);
    let shape =
        Shape { suite, layout, devices, log: false, dedup: seed == 3, scattered: seed % 4 == 3, ..Shape::of(seed) };
    let world = world(seed, shape);
    world.add_disk(format!("{SENDER}/d0"), 64 << 20, 512, Timing::SataSsd);
    let machine = world.machine();
    let sender = Shape { layout: Layout::Single, devices: 1, ..shape };
    let expected = world.run(async move { make_sender(&machine, sender, seed).await }).unwrap();
    let start = world.record();
    let (first, promised) =
        world.run(history(world.machine(), world.clone(), shape, Rng::new(seed).below(60))).unwrap();
    let recording = world.recording(start);
    let last = recording.len();
    let mut replay = Replay::new(&recording);
    let mut partial = 0;
    for n in 0..cuts {
        let moment = first + (n + 1) * (last - first) / cuts;
        replay.advance(moment);
        let cut = replay.cut(seed * 1000 + n).world();
        let (machine, expected) = (cut.machine(), expected.clone());
        let promises = promised.iter().filter(|promise| **promise <= moment).count();
        let judged = cut.run(async move {
            let verified = verify_pool(&machine).await;
            assert!(verified.is_ok(), "{verified:?}");
            let engine = import(&machine, shape, &[]).await.unwrap();
            let (there, state) = state(&engine).await;
            assert!(there.len() >= promises, "{there:?} of {promises} acknowledged snapshots");
            complete(&machine, &engine).await;
            // What was freed on the way is freed.
            for _ in 0..DEFER {
                engine.sync().await.unwrap();
            }
            compare(&engine, &expected).await;
            engine.export().await.unwrap();
            let verified = verify_pool(&machine).await;
            assert!(verified.is_ok(), "at the end: {verified:?}");
            state.is_some()
        });
        partial += u64::from(judged.unwrap_or_else(|e| panic!("seed {seed}, moment {moment}: {e}")));
    }
    partial
}

#[test]
fn raw_streams_survive_power_cuts() {
    let cuts = (number("WEIR_SIM_CUTS", 48) / 500).max(6);
    let partial: u64 = (1..4).map(|seed| run(seed, cuts)).sum();
    assert!(partial > 0, "no cut left a stream to continue");
}
