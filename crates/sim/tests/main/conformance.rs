//! The conformance test body for disks, and the machines that it runs on.

use futures_util::future::join_all;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weir_linux::{Backend, Production};
use weir_machine::{Access, Buf, Disk, DiskError, Machine, Op};
use weir_sim::{SimWorld, Timing};

const SIZE: u64 = 4 << 20;
const SECTOR: usize = 4096;

/// Bytes that depend on their offset and on the round in which they were written.
fn pattern(offset: u64, len: usize, round: u64) -> Vec<u8> {
    let mut rng = weir_sim::Rng::new(offset.wrapping_mul(31).wrapping_add(round));
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    bytes
}

/// Tests writes, reads, flushes, discards, range checks and rejections on a disk of [`SIZE`] zero bytes at `path`.
async fn body(machine: Machine, path: PathBuf) {
    let disk = machine.disks.open(&path, Access::ReadWrite).unwrap();
    let geometry = disk.geometry();
    assert_eq!(geometry.size_bytes, SIZE);
    // Whether a loop device is rotational depends on the kernel.
    assert!(geometry.sector_bytes.is_power_of_two() && (!geometry.rotational || path.starts_with("/dev")));
    reads_zeros_then_written_bytes(&disk).await;
    many_concurrent_operations(&machine, &disk).await;
    any_number_of_operations_in_one_poll(&machine, &disk).await;
    ranges_are_checked(&disk).await;
    dropped_waits_are_harmless(&disk).await;
    disk.discard(1 << 20, 1 << 20).await.unwrap();
    let adjacent = disk.read((1 << 20) - SECTOR as u64, SECTOR).await.unwrap();
    assert_eq!(adjacent.as_ref(), pattern((1 << 20) - SECTOR as u64, SECTOR, 3), "a discard affects only its range");
    read_only_rejects_changes(&machine, &path).await;
    small_and_large_writes_agree(&machine, &disk, &path).await;
    let missing = machine.disks.open(&path.with_extension("missing"), Access::ReadOnly).err().unwrap();
    assert!(matches!(missing, DiskError::Open { errno: 2, .. }), "{missing}");
    assert!(machine.disks.scan(path.parent().unwrap()).unwrap().contains(&path));
}

/// Repeatedly writes single sectors (through the page cache if direct I/O needs larger units) and whole pages
/// concurrently: each byte is that of the last write, and survives a flush.
async fn small_and_large_writes_agree(machine: &Machine, disk: &Arc<dyn Disk>, path: &Path) {
    let sector = disk.geometry().sector_bytes as usize;
    let base = 2u64 << 20;
    let len = 256usize << 10;
    let mut model = vec![0; len];
    disk.write(base, Buf::zeroed(len)).await.unwrap();
    for round in 0..6u64 {
        // Pieces of 1, 2 … 16 sectors, starting at another offset in each round.
        let mut writes = Vec::new();
        let mut at = round as usize * sector;
        let mut n = round as usize;
        while at + 16 * sector <= len {
            let piece = (1 + n % 16) * sector;
            let bytes = pattern(at as u64, piece, round);
            model[at..at + piece].copy_from_slice(&bytes);
            writes.push(disk.write(base + at as u64, Buf::copy_from(&bytes)));
            (at, n) = (at + piece, n + 1);
        }
        assert!(join_all(writes).await.iter().all(Result::is_ok));
        if round % 2 == 1 {
            disk.flush_for(round == 3).await.unwrap();
        }
        assert_eq!(disk.read(base, len).await.unwrap().as_ref(), model, "round {round}");
    }
    // Another handle, opened read-only, reads the same.
    let other = machine.disks.open(path, Access::ReadOnly).unwrap();
    assert_eq!(other.read(base, len).await.unwrap().as_ref(), model);
}

async fn reads_zeros_then_written_bytes(disk: &Arc<dyn Disk>) {
    let fresh = disk.read(0, SIZE as usize).await.unwrap();
    assert!(fresh.as_ref().iter().all(|b| *b == 0));
    drop(fresh);
    for (offset, len) in [(0, SECTOR), (64 << 10, 128 << 10), (SIZE - SECTOR as u64, SECTOR)] {
        disk.write(offset, Buf::copy_from(&pattern(offset, len, 1))).await.unwrap();
        let read = disk.read(offset, len).await.unwrap();
        assert_eq!(read.as_ref(), pattern(offset, len, 1), "{len} bytes at {offset}");
    }
    disk.flush().await.unwrap();
    let part = disk.read((64 << 10) + SECTOR as u64, SECTOR).await.unwrap();
    assert_eq!(part.as_ref(), &pattern(64 << 10, 128 << 10, 1)[SECTOR..2 * SECTOR]);
    assert!(disk.read(0, 0).await.unwrap().is_empty());
}

/// More concurrent operations than any queue holds; each completion belongs to its own operation.
async fn many_concurrent_operations(machine: &Machine, disk: &Arc<dyn Disk>) {
    let offsets = || (0..SIZE).step_by(SECTOR);
    let written = join_all(offsets().map(|at| disk.write(at, Buf::copy_from(&pattern(at, SECTOR, 3))))).await;
    assert!(written.iter().all(Result::is_ok));
    let readers: Vec<_> = (0..4)
        .map(|lane| {
            let disk = disk.clone();
            machine.tasks.spawn(async move {
                let reads = offsets().filter(|at| at / 4096 % 4 == lane);
                join_all(reads.map(|at| {
                    let disk = disk.clone();
                    async move { (at, disk.read(at, SECTOR).await) }
                }))
                .await
            })
        })
        .collect();
    for reader in readers {
        for (at, read) in reader.await.unwrap() {
            assert_eq!(read.unwrap().as_ref(), pattern(at, SECTOR, 3), "at {at}");
        }
    }
}

/// Operations that a task starts in one poll may be batched, but are all submitted, whatever their number, also if
/// several tasks run concurrently.
async fn any_number_of_operations_in_one_poll(machine: &Machine, disk: &Arc<dyn Disk>) {
    for count in [1u64, 2, 15, 16, 17, 31, 33, 257] {
        let tasks: Vec<_> = (0..2)
            .map(|_| {
                let disk = disk.clone();
                machine.tasks.spawn(async move {
                    let all = (0..count).map(|n| disk.read(n * SECTOR as u64, SECTOR));
                    join_all(all).await.into_iter().filter(Result::is_ok).count()
                })
            })
            .collect();
        for task in tasks {
            assert_eq!(task.await.unwrap() as u64, count);
        }
    }
}

async fn ranges_are_checked(disk: &Arc<dyn Disk>) {
    for (offset, len) in [(SIZE, SECTOR), (SIZE - SECTOR as u64, 2 * SECTOR), (u64::MAX - 4095, SECTOR)] {
        let error = disk.read(offset, len).await.unwrap_err();
        assert!(matches!(error, DiskError::OutOfRange { op: Op::Read, size_bytes: SIZE, .. }), "{error}");
        assert!(disk.write(offset, Buf::zeroed(len)).await.is_err());
    }
}

async fn dropped_waits_are_harmless(disk: &Arc<dyn Disk>) {
    for round in 0..50u64 {
        let at = round * SECTOR as u64;
        let mut read = Box::pin(disk.read(at, 16 * SECTOR));
        // Poll once, so that the read is in flight, then drop it.
        let _ = futures_util::poll!(read.as_mut());
        drop(read);
    }
    let read = disk.read(0, SECTOR).await.unwrap();
    assert_eq!(read.as_ref(), pattern(0, SECTOR, 3));
}

async fn read_only_rejects_changes(machine: &Machine, path: &Path) {
    let disk = machine.disks.open(path, Access::ReadOnly).unwrap();
    let rejected =
        |result: Result<(), DiskError>| assert!(matches!(result, Err(DiskError::Refused { .. })), "{result:?}");
    rejected(disk.write(0, Buf::zeroed(SECTOR)).await.map(drop));
    rejected(disk.discard(0, SECTOR as u64).await);
    rejected(disk.flush().await);
    assert_eq!(disk.read(0, SECTOR).await.unwrap().as_ref(), pattern(0, SECTOR, 3));
}

/// The real machines, each with a name for messages. A machine that cannot be built here is skipped with a message.
fn real_machines() -> Vec<(String, Machine)> {
    let mut machines = Vec::new();
    for backend in [Backend::Uring, Backend::Threads] {
        for direct in [true, false] {
            let name = format!("{backend:?}, {}", if direct { "direct" } else { "buffered" });
            match Production::default().backend(backend).direct(direct).build() {
                Ok(machine) => machines.push((name, machine)),
                Err(error) => eprintln!("skipped: {name}: {error}"),
            }
        }
    }
    machines
}

fn file_of(bytes: u64) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("disk");
    std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
    (folder, path)
}

#[test]
fn simulated_disks_conform() {
    for seed in 0..10 {
        for timing in [Timing::Chaos, Timing::SataSsd, Timing::Nvme] {
            let world = SimWorld::new(seed);
            world.add_disk("/sim/disk", SIZE, 512, timing);
            world.run(body(world.machine(), "/sim/disk".into())).unwrap();
        }
    }
}

#[test]
fn real_disks_conform() {
    for (name, machine) in real_machines() {
        eprintln!("{name}");
        // Once driven by this thread, and once as a spawned task.
        let (_folder, path) = file_of(SIZE);
        machine.block_on(body(machine.clone(), path));
        let (_folder, path) = file_of(SIZE);
        machine.block_on(machine.tasks.spawn(body(machine.clone(), path))).unwrap();
    }
}

/// A thread in `block_on` is woken by other threads whether or not it has operations in flight, and completes all its
/// operations.
#[test]
fn a_thread_in_block_on_is_woken_by_other_threads() {
    for (name, machine) in real_machines() {
        let (_folder, path) = file_of(SIZE);
        let disk = machine.disks.open(&path, Access::ReadWrite).unwrap();
        let ended = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        for round in 0..400u64 {
            let (sender, receiver) = futures_channel::oneshot::channel();
            let clock = machine.clock.clone();
            let other = machine.tasks.spawn(async move {
                clock.sleep(std::time::Duration::from_micros(round * 7 % 300)).await;
                sender.send(round).unwrap();
            });
            let submit = |at: u64| {
                let ended = ended.clone();
                let done = Box::new(move |result: Result<weir_machine::Bufs, DiskError>| {
                    assert!(result.is_ok());
                    ended.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                });
                let bufs = weir_machine::Bufs::from_iter([disk.buffer(SECTOR)]);
                let len = SECTOR as u64;
                disk.submit(weir_machine::Io {
                    op: Op::Read,
                    offset: at,
                    len,
                    bufs,
                    parts: <_>::default(),
                    here: false,
                    done,
                });
            };
            machine.block_on(async {
                (0..round % 40).for_each(|n| submit(n * SECTOR as u64));
                assert_eq!(receiver.await, Ok(round), "{name}");
                other.await.unwrap();
            });
        }
        let submitted = (0..400).map(|round| round % 40).sum();
        while ended.load(std::sync::atomic::Ordering::SeqCst) < submitted {
            std::thread::yield_now();
        }
    }
}

/// Runs on the block device named by `WEIR_BLOCK_DEVICE`, if set: exactly 4 MiB, contents are destroyed.
#[test]
fn block_devices_conform() {
    let Some(path) = std::env::var_os("WEIR_BLOCK_DEVICE").map(PathBuf::from) else {
        return eprintln!("skipped: no WEIR_BLOCK_DEVICE");
    };
    for (name, machine) in real_machines() {
        eprintln!("{name}");
        machine.block_on(async {
            let disk = machine.disks.open(&path, Access::ReadWrite).unwrap();
            disk.write(0, Buf::zeroed(SIZE as usize)).await.unwrap();
        });
        machine.block_on(body(machine.clone(), path.clone()));
        machine.block_on(async {
            let disk = machine.disks.open(&path, Access::ReadWrite).unwrap();
            let again = machine.disks.open(&path, Access::ReadWrite);
            assert!(again.is_err(), "{name}: a second exclusive open fails");
            disk.write(0, Buf::copy_from(&[7; 4096])).await.unwrap();
            assert!(disk.discard(1, 100).await.is_err(), "{name}: not a multiple of the sector size");
        });
    }
}

/// A discard frees the file's blocks.
#[test]
fn a_discarded_range_of_a_file_is_a_hole() {
    use std::os::unix::fs::MetadataExt;
    for (name, machine) in real_machines() {
        let (_folder, path) = file_of(SIZE);
        machine.block_on(async {
            let disk = machine.disks.open(&path, Access::ReadWrite).unwrap();
            disk.write(0, Buf::copy_from(&pattern(0, SIZE as usize, 1))).await.unwrap();
            disk.flush().await.unwrap();
            let before = std::fs::metadata(&path).unwrap().blocks();
            disk.discard(1 << 20, 2 << 20).await.unwrap();
            disk.flush().await.unwrap();
            let after = std::fs::metadata(&path).unwrap();
            assert!(after.blocks() + 4000 <= before, "{name}: {before} blocks, then {}", after.blocks());
            assert_eq!(after.len(), SIZE, "{name}");
            assert_eq!(disk.read(1 << 20, 2 << 20).await.unwrap().as_ref(), vec![0; 2 << 20], "{name}");
        });
    }
}

#[test]
fn files_of_odd_size_are_read_to_their_last_byte() {
    for (name, machine) in real_machines() {
        let (_folder, path) = file_of(0);
        let bytes = pattern(0, 1_000_003, 9);
        std::fs::write(&path, &bytes).unwrap();
        machine.block_on(async {
            let disk = machine.disks.open(&path, Access::ReadOnly).unwrap();
            assert_eq!(disk.geometry().size_bytes, 1_000_003);
            for (offset, len) in [(0, 1_000_003), (999_424, 579), (512, 1536), (1, 1), (4096, 65_536), (1_000_003, 0)] {
                let read = disk.read(offset, len).await.unwrap();
                assert_eq!(read.as_ref(), &bytes[offset as usize..offset as usize + len], "{name}: {len} at {offset}");
            }
            assert!(disk.read(999_936, 512).await.is_err(), "{name}: past the end");
        });
    }
}

#[test]
fn a_file_that_shrinks_gives_an_error_and_no_stale_bytes() {
    for (name, machine) in real_machines() {
        let (_folder, path) = file_of(SIZE);
        machine.block_on(async {
            let disk = machine.disks.open(&path, Access::ReadOnly).unwrap();
            std::fs::File::options().write(true).open(&path).unwrap().set_len(SIZE / 2).unwrap();
            let error = disk.read(SIZE / 2 - 4096, 8192).await.unwrap_err();
            assert!(matches!(error, DiskError::Short { done: 4096, .. }), "{name}: {error}");
            let error = disk.read(SIZE - 4096, 4096).await.unwrap_err();
            assert!(matches!(error, DiskError::Short { done: 0, .. }), "{name}: {error}");
        });
    }
}

#[test]
fn paths_that_are_no_disks_are_rejected_without_blocking() {
    for (name, machine) in real_machines() {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        for path in [folder.path(), Path::new("/dev/null")] {
            let error = machine.disks.open(path, Access::ReadOnly).err().unwrap();
            assert!(matches!(error, DiskError::Open { .. }), "{name}: {error}");
        }
        assert!(machine.disks.scan(folder.path()).unwrap().is_empty());
        assert!(machine.disks.scan(&folder.path().join("missing")).is_err());
    }
}

#[test]
fn buffers_are_recycled_by_real_disks() {
    for (name, machine) in real_machines() {
        let (_folder, path) = file_of(SIZE);
        machine.block_on(async {
            let disk = machine.disks.open(&path, Access::ReadOnly).unwrap();
            let first = disk.read(0, 1 << 20).await.unwrap();
            let address = first.as_ref().as_ptr() as usize;
            drop(first.into_bytes());
            let second = disk.read(0, 1 << 20).await.unwrap();
            assert_eq!(second.as_ref().as_ptr() as usize, address, "{name}");
            assert!(second.as_ref().iter().all(|b| *b == 0), "{name}");
        });
    }
}

#[test]
fn one_write_takes_several_parts_in_order_whatever_their_alignment() {
    for (name, machine) in real_machines() {
        let (_folder, path) = file_of(SIZE);
        let disk = machine.disks.open(&path, Access::ReadWrite).unwrap();
        let whole = bytes::Bytes::from(pattern(0, SIZE as usize, 3));
        let mut aligned = disk.buffer(3 * SECTOR);
        aligned.as_mut().copy_from_slice(&whole[SECTOR..4 * SECTOR]);
        // Parts with arbitrary addresses and lengths; only their total is a multiple of the sector size.
        let odd = |from: usize, to: usize| bytes::Bytes::from([vec![0; from % 7], whole[from..to].to_vec()].concat());
        let odd = |from: usize, to: usize| odd(from, to).slice(from % 7..);
        let parts =
            [odd(0, SECTOR), aligned.into_bytes(), odd(4 * SECTOR, 4 * SECTOR + 5), odd(4 * SECTOR + 5, 6 * SECTOR)];
        let (done, answer) = futures_channel::oneshot::channel();
        let done = Box::new(move |result| drop(done.send(result)));
        let offset = 0;
        let len = 6 * SECTOR as u64;
        let parts = weir_machine::Parts::from_iter(parts);
        let bufs = weir_machine::Bufs::new();
        disk.submit(weir_machine::Io { op: Op::Write, offset, len, bufs, parts, here: false, done });
        assert!(machine.block_on(answer).unwrap().is_ok(), "{name}");
        let read = machine.block_on(disk.read(0, 6 * SECTOR)).unwrap();
        assert!(read.as_ref() == &whole[..6 * SECTOR], "{name}");
    }
}

#[test]
fn one_read_fills_several_buffers_in_order() {
    for (name, machine) in real_machines() {
        let (_folder, path) = file_of(0);
        std::fs::write(&path, pattern(0, SIZE as usize, 3)).unwrap();
        let disk = machine.disks.open(&path, Access::ReadOnly).unwrap();
        let whole = pattern(0, SIZE as usize, 3);
        let mut parted = disk.buffer(4 * SECTOR);
        let front = parted.split_to(SECTOR);
        let bufs = weir_machine::Bufs::from_iter([disk.buffer(3 * SECTOR), parted, front, disk.buffer(SECTOR)]);
        let read = machine.block_on(disk.read_into(5 * SECTOR as u64, bufs)).unwrap();
        let mut at = 5 * SECTOR;
        for buf in &read {
            assert_eq!(buf.as_ref(), &whole[at..at + buf.len()], "{name}: at {at}");
            at += buf.len();
        }
        assert_eq!(at, 13 * SECTOR, "{name}");
        let beyond = weir_machine::Bufs::from_iter([disk.buffer(SECTOR), disk.buffer(SECTOR)]);
        let rejected = machine.block_on(disk.read_into(SIZE - SECTOR as u64, beyond)).unwrap_err();
        assert!(matches!(rejected, DiskError::OutOfRange { .. }), "{name}: {rejected}");
    }
}

/// An operation that may run on the submitter's thread is complete when `submit` returns.
#[test]
fn operations_may_run_on_the_submitting_thread() {
    for (name, machine) in real_machines() {
        let (_folder, path) = file_of(SIZE);
        let disk = machine.disks.open(&path, Access::ReadWrite).unwrap();
        let here = std::thread::current().id();
        for op in [Op::Write, Op::Flush] {
            let (sender, receiver) = std::sync::mpsc::channel();
            let parts: weir_machine::Parts =
                (op == Op::Write).then(|| pattern(0, SECTOR, 5).into()).into_iter().collect();
            let done = Box::new(move |result: Result<weir_machine::Bufs, DiskError>| {
                sender.send((result.is_ok(), std::thread::current().id())).unwrap();
            });
            let len = parts.iter().map(|part| part.len() as u64).sum();
            let bufs = weir_machine::Bufs::new();
            disk.submit(weir_machine::Io { op, offset: 0, len, bufs, parts, here: true, done });
            assert_eq!(receiver.try_recv(), Ok((true, here)), "{name}: {op:?}");
        }
        let read = machine.block_on(disk.read(0, SECTOR)).unwrap();
        assert_eq!(read.as_ref(), pattern(0, SECTOR, 5), "{name}");
    }
}

#[test]
fn operations_outlive_the_thread_that_submitted_them() {
    for (name, machine) in real_machines() {
        let (_folder, path) = file_of(0);
        std::fs::write(&path, pattern(0, SIZE as usize, 2)).unwrap();
        let disk = machine.disks.open(&path, Access::ReadOnly).unwrap();
        let offsets: Vec<u64> = (0..SIZE).step_by(SECTOR).collect();
        let submit = |at: &u64| {
            let (done, answer) = futures_channel::oneshot::channel();
            let offset = *at;
            let bufs = weir_machine::Bufs::from_iter([disk.buffer(SECTOR)]);
            let done = Box::new(move |result| drop(done.send(result)));
            let len = SECTOR as u64;
            let parts = weir_machine::Parts::new();
            disk.submit(weir_machine::Io { op: Op::Read, offset, len, bufs, parts, here: false, done });
            answer
        };
        let answers: Vec<_> = std::thread::scope(|scope| {
            let lanes: Vec<_> = offsets
                .chunks(64)
                .map(|lane| scope.spawn(move || lane.iter().map(submit).collect::<Vec<_>>()))
                .collect();
            lanes.into_iter().flat_map(|lane| lane.join().unwrap()).collect()
        });
        let whole = pattern(0, SIZE as usize, 2);
        for (at, answer) in offsets.iter().zip(machine.block_on(join_all(answers))) {
            let read = answer.unwrap().unwrap();
            assert_eq!(read[0].as_ref(), &whole[*at as usize..*at as usize + SECTOR], "{name}: at {at}");
        }
    }
}
