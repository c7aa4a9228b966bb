//! Golden pools on simulated disks under seeded faults.
//!
//! Within redundancy every file must be returned byte by byte, whatever happens to a tolerable number of disks: absent,
//! corrupted, with unreadable sectors, failing sometimes, slow. Beyond redundancy the result is an error, but never a
//! wrong byte, a panic or an endless wait (the simulator detects deadlocks). In all cases a pool that is opened
//! read-only is not written: no simulated disk receives a write, flush or discard, and real images keep their hashes.
//!
//! The expected contents are those of the goldens' manifests: OpenZFS wrote those files and hashed them.
//! `WEIR_SIM_SEEDS` is the number of seeds for each pool (3 if unset).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops")]

use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use weir_dsl::Dsl;
use weir_format::ObjectId;
use weir_machine::{Machine, Request};
use weir_pool::{OpenOptions, Pool};
use weir_sim::{Fault, Rng, SimDisk, SimWorld, Timing, run_twice};

/// Larger files are left out, because they consist mostly of holes.
const LARGEST_BYTES: u64 = 24 << 20;

/// A golden pool, unpacked.
struct Golden {
    folder: tempfile::TempDir,
    pool: String,
    devices: Vec<String>,
    image_hashes: Vec<String>,
    /// Dataset, object, size, SHA-256.
    files: Vec<(String, u64, u64, String)>,
}

impl Golden {
    /// Unpacks a golden pool; `None`, with a line that says so, if the goldens are absent.
    fn unpack(name: &str) -> Option<Golden> {
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden");
        let from = std::env::var_os("WEIR_GOLDEN").map_or(top, PathBuf::from);
        let Ok(text) = std::fs::read(from.join(format!("{name}.json"))) else {
            eprintln!("skipped: no golden {name} in {} (WEIR_GOLDEN)", from.display());
            return None;
        };
        let about: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let archive = from.join(format!("{name}.tar.zst"));
        let unpack = "zstd -dc \"$0\" | tar -xSf - -C \"$1\"";
        let status = Command::new("sh").args(["-c", unpack]).arg(archive).arg(folder.path()).status().unwrap();
        assert!(status.success(), "unpacking {name}");
        let devices: Vec<String> =
            about["devices"].as_array().unwrap().iter().map(|d| d["file"].as_str().unwrap().to_owned()).collect();
        let hash_of = |device: &String| about["image_sha256"][device].as_str().unwrap_or_default().to_owned();
        let mut files = Vec::new();
        for dataset in about["manifest"]["datasets"].as_array().unwrap() {
            for file in dataset["files"].as_array().into_iter().flatten() {
                let (Some(hash), Some(ino)) = (file["sha256"].as_str(), file["ino"].as_u64()) else { continue };
                let size = file["size"].as_u64().unwrap();
                if file["type"] == "file" && size <= LARGEST_BYTES {
                    files.push((dataset["name"].as_str().unwrap().to_owned(), ino, size, hash.to_owned()));
                }
            }
        }
        assert!(files.len() > 20, "{name} has files to read");
        let image_hashes = devices.iter().map(hash_of).collect();
        Some(Golden { pool: about["pool"].as_str().unwrap().into(), folder, devices, image_hashes, files })
    }

    fn mount(&self, world: &SimWorld, timing: Timing) -> Vec<Arc<SimDisk>> {
        let image = |device: &String| self.folder.path().join(device);
        self.devices.iter().map(|d| world.add_image(Path::new("/sim").join(d), &image(d), timing).unwrap()).collect()
    }
}

/// Results of reading the files of a pool.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    whole: usize,
    errors: Vec<String>,
}

/// Reads every file of the pool in `folder` and compares its hash. A wrong byte fails the test.
async fn read_all(machine: &Machine, folder: &Path, golden: &Golden) -> Result<Outcome, String> {
    let options = OpenOptions::new(vec![folder.into()], golden.pool.clone());
    let pool = Pool::open(machine, &options).await.map_err(|e| e.to_string())?;
    read_files(&pool, golden).await
}

async fn read_files(pool: &Pool, golden: &Golden) -> Result<Outcome, String> {
    let rq = Request::internal("test");
    let dsl = Dsl::open(&rq, pool.mos.set.clone(), pool.name()).await.map_err(|e| e.to_string())?;
    let mut outcome = Outcome::default();
    for (dataset, object, size, hash) in &golden.files {
        match hash_file(&rq, &dsl, dataset, ObjectId(*object), *size).await {
            Ok(found) => {
                assert_eq!(&found, hash, "object {object} of {dataset}: wrong bytes");
                outcome.whole += 1;
            }
            Err(error) => outcome.errors.push(format!("{dataset} {object}: {error}")),
        }
    }
    Ok(outcome)
}

async fn hash_file(rq: &Request, dsl: &Dsl, dataset: &str, id: ObjectId, size: u64) -> Result<String, String> {
    let text = |e: weir_dmu::ObjectError| e.to_string();
    let dataset = dsl.find(rq, dataset).await.map_err(text)?;
    let set = dsl.open_set(rq, &dataset, None).await.map_err(text)?;
    let object = set.object(rq, id).await.map_err(text)?;
    let mut sha = Sha256::new();
    let mut offset = 0;
    while offset < size {
        let bytes = set.reader().read(rq, &object, offset, 1 << 20, size).await.map_err(text)?;
        assert!(!bytes.is_empty(), "a read before the end gives bytes");
        offset += bytes.len() as u64;
        sha.update(&bytes);
    }
    Ok(hex(&sha.finalize()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Injects one to three faults into a disk.
fn hurt(disk: &SimDisk, rng: &mut Rng) {
    let size = disk.geometry().size_bytes;
    for _ in 0..1 + rng.below(3) {
        let offset = rng.below(size);
        let len = 1 + rng.below(size / 4);
        let fault = match rng.below(6) {
            0 => Fault::Gone,
            1 => Fault::Rot { offset: 0, len: size, bits: 1 + rng.below(30_000) as u32 },
            2 => Fault::Rot { offset, len: len.min(size - offset), bits: 5_000 },
            3 => Fault::Unreadable { offset, len },
            4 => Fault::FailNth { nth: rng.below(300), errno: 5 },
            _ => Fault::Slow { factor: 50 },
        };
        disk.lay(fault);
    }
}

fn seeds() -> u64 {
    std::env::var("WEIR_SIM_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(3)
}

fn untouched(disks: &[Arc<SimDisk>]) {
    for disk in disks {
        let stats = disk.stats();
        assert_eq!(stats.changes(), 0, "{} was written to: {stats:?}", disk.path().display());
    }
}

/// Up to `parity` disks have faults; every file is returned.
fn within(name: &str, parity: usize) {
    let Some(golden) = Golden::unpack(name) else { return };
    for seed in 0..seeds() {
        let world = SimWorld::new(seed);
        let timing = if seed % 2 == 0 { Timing::Chaos } else { Timing::Nvme };
        let disks = golden.mount(&world, timing);
        let mut rng = world.rng();
        let mut hurt_ones: Vec<_> = disks.clone();
        rng.shuffle(&mut hurt_ones);
        hurt_ones.truncate(parity);
        hurt_ones.iter().for_each(|disk| hurt(disk, &mut rng));
        let machine = world.machine();
        let outcome = world.run(read_all(&machine, Path::new("/sim"), &golden)).unwrap();
        let outcome = outcome.unwrap_or_else(|e| panic!("{name}, seed {seed}: {e}"));
        assert_eq!(outcome.errors, Vec::<String>::new(), "{name}, seed {seed}");
        assert_eq!(outcome.whole, golden.files.len());
        untouched(&disks);
        world.power_failure();
    }
}

/// More disks have faults than the pool tolerates: errors, but nothing worse.
fn beyond(name: &str, parity: usize) {
    let Some(golden) = Golden::unpack(name) else { return };
    let mut failed = 0;
    for seed in 100..100 + seeds() {
        let world = SimWorld::new(seed);
        let disks = golden.mount(&world, Timing::Chaos);
        let machine = world.machine();
        let options = OpenOptions::new(vec!["/sim".into()], golden.pool.clone());
        let pool = world.run(Pool::open(&machine, &options)).unwrap().unwrap();
        let mut rng = world.rng();
        let mut hurt_ones: Vec<_> = disks.clone();
        rng.shuffle(&mut hurt_ones);
        for disk in &hurt_ones[..parity + 1] {
            let size = disk.geometry().size_bytes;
            disk.lay(match seed % 3 {
                0 => Fault::Gone,
                1 => Fault::Rot { offset: 4 << 20, len: size - (8 << 20), bits: 60_000 },
                _ => Fault::Unreadable { offset: 4 << 20, len: size - (8 << 20) },
            });
        }
        match world.run(read_files(&pool, &golden)).unwrap() {
            Ok(outcome) => failed += outcome.errors.len(),
            Err(_) => failed += 1,
        }
        untouched(&disks);
        drop(pool);
        world.power_failure();
    }
    assert!(failed > 0, "{name}: the faults were felt");
}

#[test]
fn a_mirror_bears_one_bad_disk() {
    within("mirror2-a12", 1);
}

#[test]
fn raidz1_bears_one_bad_disk() {
    within("raidz1-3-a9", 1);
}

#[test]
fn raidz2_bears_two_bad_disks() {
    within("raidz2-5-a12", 2);
}

#[test]
fn raidz3_bears_three_bad_disks() {
    within("raidz3-7-a9", 3);
}

#[test]
fn draid1_bears_one_bad_disk() {
    within("draid1", 1);
}

#[test]
fn beyond_redundancy_there_are_errors_and_nothing_worse() {
    for (name, parity) in [("mirror2-a12", 1), ("raidz1-3-a9", 1), ("raidz2-5-a12", 2)] {
        beyond(name, parity);
    }
}

#[test]
fn a_pool_without_too_many_of_its_disks_is_refused() {
    let Some(golden) = Golden::unpack("raidz1-3-a9") else { return };
    let world = SimWorld::new(1);
    let disks = golden.mount(&world, Timing::Nvme);
    for disk in &disks[..2] {
        disk.lay(Fault::Gone);
    }
    let machine = world.machine();
    let refused = world.run(read_all(&machine, Path::new("/sim"), &golden)).unwrap();
    assert!(refused.is_err(), "{refused:?}");
    disks.iter().for_each(|disk| disk.lift_all());
    let whole = world.run(read_all(&machine, Path::new("/sim"), &golden)).unwrap().unwrap();
    assert_eq!(whole.whole, golden.files.len());
}

#[test]
fn the_engine_goes_the_same_way_twice() {
    let Some(golden) = Golden::unpack("mirror2-a12") else { return };
    let outcome = run_twice(11, |world| {
        let disks = golden.mount(world, Timing::Chaos);
        disks[1].lay(Fault::Rot { offset: 0, len: 64 << 20, bits: 20_000 });
        let machine = world.machine();
        world.run(read_all(&machine, Path::new("/sim"), &golden)).unwrap().unwrap()
    });
    assert_eq!(outcome.unwrap().whole, golden.files.len());
}

#[test]
fn reading_leaves_real_images_as_they_are() {
    let Some(golden) = Golden::unpack("raidz2-5-a12") else { return };
    let machine = weir_linux::machine().unwrap();
    let outcome = machine.block_on(read_all(&machine, golden.folder.path(), &golden)).unwrap();
    assert_eq!((outcome.whole, outcome.errors), (golden.files.len(), vec![]));
    for (device, hash) in golden.devices.iter().zip(&golden.image_hashes) {
        let bytes = std::fs::read(golden.folder.path().join(device)).unwrap();
        assert_eq!(&hex(&Sha256::digest(&bytes)), hash, "{device}");
    }
}
