//! Cache devices of a pool, in the simulator: fed, read, found again, taken away and put back, failing, and without a delay for
//! any txg.

use crate::work;
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use weir_cache::l2arc::{CacheState, L2Settings, L2Stats};
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::{FileSystemSpec, Kind, NewDataset};
use weir_engine::offline::OfflineMode;
use weir_engine::{CreateOptions, Engine, ImportOptions, Layout, NewLeaf, NewTopLevelVdev, VdevAddRequest};
use weir_files::{Cred, FileSystem, New, NewKind, WriteAt};
use weir_format::{CompressionKind, ObjectId};
use weir_machine::{Machine, Request, Source};
use weir_pool::OpenOptions;
use weir_pool::config::Class;
use weir_sim::{Fault, SimDisk, SimWorld, Timing};

const SEARCH: &str = "/sim";
const ARC_BYTES: u64 = 4 << 20;
const RECORD_BYTES: usize = 64 << 10;
const RECORDS: usize = 128;

struct Lab {
    world: SimWorld,
    cache: Arc<SimDisk>,
    options: CreateOptions,
}

fn leaf(disk: &SimDisk) -> NewLeaf {
    NewLeaf { path: disk.path().to_owned(), is_file: true }
}

impl Lab {
    fn new(seed: u64) -> Lab {
        let world = SimWorld::new(seed);
        let disk = world.add_disk(format!("{SEARCH}/d0"), 128 << 20, 4096, Timing::SataSsd);
        let cache = world.add_disk(format!("{SEARCH}/c0"), 1100 << 20, 4096, Timing::Nvme);
        let top = NewTopLevelVdev { class: Class::Normal, layout: Layout::Single, leaves: vec![leaf(&disk)] };
        let mut options = CreateOptions::new("tank", vec![top]);
        options.arc_bytes = ARC_BYTES;
        options.force = true;
        options.caches = vec![leaf(&cache)];
        Lab { world, cache, options }
    }
}

async fn import(machine: &Machine) -> Arc<Engine> {
    let mut options = ImportOptions::new(OpenOptions::new(vec![Path::new(SEARCH).to_owned()], "tank"));
    options.open.arc_bytes = ARC_BYTES;
    set_up(Engine::import(machine, &options).await.unwrap())
}

fn set_up(engine: Arc<Engine>) -> Arc<Engine> {
    engine.cache.l2arc().set_settings(L2Settings { takes_prefetched: true, ..L2Settings::default() });
    engine
}

/// A record of a file: every other one can be compressed.
fn record(seed: u64, n: usize) -> Vec<u8> {
    let mut state = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(n as u64) | 1;
    let mask = if n.is_multiple_of(2) { u64::MAX } else { 0x0000_00ff_0000_00ff };
    let words = (0..RECORD_BYTES / 8).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state & mask).to_le_bytes()
    });
    words.collect()
}

async fn file_system(engine: &Arc<Engine>, name: &str, compression: CompressionKind) -> Arc<FileSystem> {
    let properties = [("recordsize", RECORD_BYTES as u64), ("compression", u64::from(compression.to_u8()))];
    let properties = properties.map(|(name, value)| (name.to_owned(), Value::Number(value))).to_vec();
    let kind = Kind::FileSystem(FileSystemSpec::default());
    engine.create_dataset(NewDataset { name: name.into(), kind, properties }).await.unwrap();
    engine.file_system(&Request::internal("test"), name).await.unwrap()
}

async fn write_file(files: &Arc<FileSystem>, seed: u64) -> ObjectId {
    let rq = Request::internal("test");
    let new = New::of(NewKind::Regular, 0o600);
    let made = files.names().create(&rq, &Cred::root(), files.root(), b"file", &new).await.unwrap().object;
    for n in 0..RECORDS {
        let at = WriteAt::Offset((n * RECORD_BYTES) as u64);
        files.contents().write(&rq, &Cred::root(), made, at, Bytes::from(record(seed, n))).await.unwrap();
    }
    made
}

/// Reads a file and compares it; returns the bytes that a cache device answered.
async fn read_file(engine: &Engine, name: &str, seed: u64) -> u64 {
    let rq = Request::internal("test");
    let files = engine.file_system(&rq, name).await.unwrap();
    let file = files.directories().lookup(&rq, files.root(), b"file").await.unwrap();
    for n in 0..RECORDS {
        let read = files.contents().read(&rq, file, (n * RECORD_BYTES) as u64, RECORD_BYTES).await.unwrap();
        assert!(read[..] == record(seed, n)[..], "{name}: record {n}");
        engine.machine.clock.sleep(Duration::from_millis(15)).await;
    }
    rq.read_bytes(Source::L2arc)
}

fn l2(engine: &Engine) -> L2Stats {
    engine.cache.l2arc().stats()
}

fn cache_guid(engine: &Engine) -> u64 {
    engine.shown().config.aux.caches[0].get_u64("guid").unwrap()
}

#[test]
fn a_working_set_larger_than_the_arc_is_read_from_the_cache_device() {
    let lab = Lab::new(1);
    let machine = lab.world.machine();
    let run = lab.world.run(async {
        let engine = set_up(Engine::create(&machine, &lab.options).await.unwrap());
        for (seed, kind) in [CompressionKind::Lz4, CompressionKind::Zstd].into_iter().enumerate() {
            let name = format!("tank/{seed}");
            let files = file_system(&engine, &name, kind).await;
            write_file(&files, seed as u64).await;
        }
        engine.sync().await.unwrap();
        for pass in 0..3 {
            let mut served = 0;
            for seed in 0..2 {
                served += read_file(&engine, &format!("tank/{seed}"), seed).await;
            }
            machine.clock.sleep(Duration::from_secs(2)).await;
            assert!(pass < 2 || served > (RECORDS * RECORD_BYTES) as u64, "pass {pass}: {served} {:?}", l2(&engine));
        }
        // Requests and counters agree, and nothing was wrong.
        let stats = l2(&engine);
        assert!(stats.checksum_errors == 0 && stats.io_errors == 0 && stats.written_blocks > 0, "{stats:?}");
        let read = engine.cache.stats();
        assert!(stats.hits + stats.misses <= read.misses + read.prefetches, "{stats:?} {read:?}");
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, Path::new(SEARCH), "tank").await;

        // The next import finds what was written.
        let engine = import(&machine).await;
        machine.clock.sleep(Duration::from_secs(1)).await;
        assert!(l2(&engine).rebuilt_blocks > 100, "{:?}", l2(&engine));
        assert!(read_file(&engine, "tank/0", 0).await > 0, "{:?}", l2(&engine));
        // A file whose blocks were freed takes its copies along; the new blocks are right.
        let files = engine.file_system(&Request::internal("test"), "tank/0").await.unwrap();
        let rq = Request::internal("test");
        let stored = l2(&engine).psize_bytes;
        files.names().remove(&rq, &Cred::root(), files.root(), b"file").await.unwrap();
        for _ in 0..4 {
            engine.sync().await.unwrap();
        }
        assert!(l2(&engine).psize_bytes < stored, "{stored} {:?}", l2(&engine));
        write_file(&files, 7).await;
        engine.sync().await.unwrap();
        for _ in 0..2 {
            read_file(&engine, "tank/0", 7).await;
        }
        engine.stop().await.unwrap();
    });
    run.unwrap();
}

#[test]
fn cache_devices_come_and_go_while_the_pool_is_used() {
    let mut lab = Lab::new(2);
    let caches = std::mem::take(&mut lab.options.caches);
    let machine = lab.world.machine();
    let run = lab.world.run(async {
        let engine = set_up(Engine::create(&machine, &lab.options).await.unwrap());
        let files = file_system(&engine, "tank/0", CompressionKind::Lz4).await;
        write_file(&files, 0).await;
        engine.sync().await.unwrap();
        assert_eq!((read_file(&engine, "tank/0", 0).await, l2(&engine).devices.len()), (0, 0));
        let more = VdevAddRequest { caches, force: true, ..VdevAddRequest::default() };
        engine.devices().add(&more).await.unwrap();
        let guid = cache_guid(&engine);
        let warm = async || {
            for _ in 0..2 {
                read_file(&engine, "tank/0", 0).await;
                machine.clock.sleep(Duration::from_secs(2)).await;
            }
            read_file(&engine, "tank/0", 0).await
        };
        assert!(warm().await > 0, "{:?}", l2(&engine));
        // Offline: nothing is read, also after an import; online: it is found again.
        engine.vdevs().offline(guid, OfflineMode::Kept).await.unwrap();
        assert_eq!((read_file(&engine, "tank/0", 0).await, l2(&engine).memory_bytes), (0, 0));
        engine.stop().await.unwrap();
        let engine = import(&machine).await;
        assert_eq!(l2(&engine).devices.len(), 0);
        engine.vdevs().online(guid).await.unwrap();
        machine.clock.sleep(Duration::from_secs(1)).await;
        assert!(read_file(&engine, "tank/0", 0).await > 0, "{:?}", l2(&engine));
        engine.spares().remove_aux(guid).await.unwrap();
        assert_eq!((l2(&engine).devices.len(), read_file(&engine, "tank/0", 0).await), (0, 0));
        assert!(engine.shown().config.aux.caches.is_empty());
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, Path::new(SEARCH), "tank").await;
    });
    run.unwrap();
}

#[test]
fn a_cache_device_that_hangs_delays_no_txg() {
    for at_import in [false, true] {
        let lab = Lab::new(3);
        let machine = lab.world.machine();
        let run = lab.world.run(async {
            let engine = set_up(Engine::create(&machine, &lab.options).await.unwrap());
            let files = file_system(&engine, "tank/0", CompressionKind::Lz4).await;
            write_file(&files, 0).await;
            engine.sync().await.unwrap();
            for _ in 0..2 {
                read_file(&engine, "tank/0", 0).await;
            }
            let engine = match at_import {
                true => {
                    engine.stop().await.unwrap();
                    let engine = import(&machine).await;
                    lab.cache.lay(Fault::Hang);
                    engine
                }
                false => {
                    lab.cache.lay(Fault::Hang);
                    engine
                }
            };
            let deadline = l2_deadline(&engine);
            for n in 0..5 {
                let begun = machine.clock.now();
                work::write_object(&engine, "tank", 4, n).await.unwrap();
                engine.sync().await.unwrap();
                let took = machine.clock.now().since(begun);
                assert!(took < Duration::from_millis(500) + deadline * u32::from(n == 0), "{n}: {took:?}");
                machine.clock.sleep(Duration::from_secs(1)).await;
            }
            assert_eq!(read_file(&engine, "tank/0", 0).await, 0);
            assert_eq!(l2(&engine).devices[0].state, CacheState::Hung, "{:?}", l2(&engine));
            // It is cleared once it answers again.
            lab.cache.lift_all();
            engine.devices().clear(Some(cache_guid(&engine))).await.unwrap();
            machine.clock.sleep(Duration::from_secs(1)).await;
            assert_eq!(l2(&engine).devices[0].state, CacheState::Active, "{:?}", l2(&engine));
            lab.cache.lay(Fault::Hang);
            let begun = machine.clock.now();
            engine.export().await.unwrap();
            assert!(machine.clock.now().since(begun) < Duration::from_secs(1) + deadline);
            lab.cache.lift_all();
        });
        run.unwrap();
    }
}

fn l2_deadline(engine: &Engine) -> Duration {
    engine.cache.l2arc().settings().deadline
}

/// Blocks of an encrypted dataset are on the cache device as they are in the pool, and not read without the key.
#[test]
fn blocks_of_encrypted_datasets_stay_encrypted() {
    let lab = Lab::new(4);
    let machine = lab.world.machine();
    let cache = lab.cache.clone();
    let run = lab.world.run(async {
        let engine = set_up(Engine::create(&machine, &lab.options).await.unwrap());
        let files = file_system(&engine, "tank/0", CompressionKind::Off).await;
        write_file(&files, 0).await;
        let (key, object) = crate::encrypted::write_encrypted(&engine, "tank/secret", 200).await;
        engine.sync().await.unwrap();
        let rq = Request::internal("test");
        for _ in 0..3 {
            let set = engine.open_set(&rq, "tank/secret", Some(key.clone())).await.unwrap();
            let object = set.object(&rq, ObjectId(object)).await.unwrap();
            for block in 0..200 {
                let read = set.reader().read_block(&rq, &object, block).await.unwrap().unwrap();
                assert!(read[..] == work::contents(3, block)[..], "block {block}");
            }
            read_file(&engine, "tank/0", 0).await;
            machine.clock.sleep(Duration::from_secs(2)).await;
        }
        assert!(rq.read_bytes(Source::L2arc) > 50 << 14, "{:?}", l2(&engine));
        assert_eq!(l2(&engine).checksum_errors, 0);
        // No block of the encrypted dataset is on the device in the clear; those of the other one are.
        let device = cache.peek(4 << 20, 64 << 20);
        let has = |bytes: &[u8]| device.chunks_exact(4096).any(|sector| sector[..64] == bytes[..64]);
        assert!((0..RECORDS).any(|n| has(&record(0, n))), "unencrypted blocks are there");
        assert!(!(0..200).step_by(2).any(|block| has(&work::contents(3, block))));
        engine.export().await.unwrap();
    });
    run.unwrap();
}
