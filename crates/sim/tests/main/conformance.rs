//! The body, and the machines it runs on.

use futures_util::future::join_all;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weir_machine::{Access, Backend, Buf, Disk, DiskError, Machine, Op, Production};
use weir_sim::{SimWorld, Timing};

const SIZE: u64 = 4 << 20;
const SECTOR: usize = 4096;

/// Bytes that tell where they belong and when they were written.
fn pattern(offset: u64, len: usize, round: u64) -> Vec<u8> {
    let mut rng = weir_sim::Rng::new(offset.wrapping_mul(31).wrapping_add(round));
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    bytes
}

/// Writes, reads, flushes, discards, ranges and refusals on a disk of [`SIZE`] zero bytes at `path`.
async fn body(machine: Machine, path: PathBuf) {
    let disk = machine.disks.open(&path, Access::ReadWrite).unwrap();
    let geometry = disk.geometry();
    assert_eq!(geometry.size_bytes, SIZE);
    // What a loop device says of itself depends on the kernel.
    assert!(geometry.sector_bytes.is_power_of_two() && (!geometry.rotational || path.starts_with("/dev")));
    zeros_then_what_was_written(&disk).await;
    many_at_once(&machine, &disk).await;
    as_many_in_one_turn_as_somebody_likes(&machine, &disk).await;
    ranges_are_checked(&disk).await;
    a_dropped_wait_harms_nobody(&disk).await;
    disk.discard(1 << 20, 1 << 20).await.unwrap();
    let beside = disk.read((1 << 20) - SECTOR as u64, SECTOR).await.unwrap();
    assert_eq!(beside.as_ref(), pattern((1 << 20) - SECTOR as u64, SECTOR, 3), "a discard keeps to its range");
    read_only_refuses(&machine, &path).await;
    small_and_large_writes_agree(&machine, &disk, &path).await;
    let missing = machine.disks.open(&path.with_extension("missing"), Access::ReadOnly).err().unwrap();
    assert!(matches!(missing, DiskError::Open { errno: 2, .. }), "{missing}");
    assert!(machine.disks.scan(path.parent().unwrap()).unwrap().contains(&path));
}

/// Writes of single sectors, which go through the page cache where direct ones must be larger, beside writes of whole
/// pages, all at once and again and again: each byte is that of the last write, and survives a flush.
async fn small_and_large_writes_agree(machine: &Machine, disk: &Arc<dyn Disk>, path: &Path) {
    let sector = disk.geometry().sector_bytes as usize;
    let (base, len) = (2u64 << 20, 256usize << 10);
    let mut model = vec![0; len];
    disk.write(base, Buf::zeroed(len)).await.unwrap();
    for round in 0..6u64 {
        // Pieces of 1, 2 … 16 sectors, in turn from another place on.
        let (mut writes, mut at, mut n) = (Vec::new(), round as usize * sector, round as usize);
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
    // Another handle, perhaps opened otherwise, sees the same.
    let other = machine.disks.open(path, Access::ReadOnly).unwrap();
    assert_eq!(other.read(base, len).await.unwrap().as_ref(), model);
}

async fn zeros_then_what_was_written(disk: &Arc<dyn Disk>) {
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

/// More operations at once than any queue holds; each answer belongs to its own question.
async fn many_at_once(machine: &Machine, disk: &Arc<dyn Disk>) {
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

/// What a task starts in one turn may be kept back for a moment, but is begun, however much or little it is, also by
/// several tasks at once and while others keep the disk awake or let it sleep.
async fn as_many_in_one_turn_as_somebody_likes(machine: &Machine, disk: &Arc<dyn Disk>) {
    for count in [1u64, 2, 15, 16, 17, 31, 33, 257] {
        let turns: Vec<_> = (0..2)
            .map(|_| {
                let disk = disk.clone();
                machine.tasks.spawn(async move {
                    let all = (0..count).map(|n| disk.read(n * SECTOR as u64, SECTOR));
                    join_all(all).await.into_iter().filter(Result::is_ok).count()
                })
            })
            .collect();
        for turn in turns {
            assert_eq!(turn.await.unwrap() as u64, count);
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

async fn a_dropped_wait_harms_nobody(disk: &Arc<dyn Disk>) {
    for round in 0..50u64 {
        let at = round * SECTOR as u64;
        let mut read = Box::pin(disk.read(at, 16 * SECTOR));
        // Polled once, so that it is under way, then given up.
        let _ = futures_util::poll!(read.as_mut());
        drop(read);
    }
    let read = disk.read(0, SECTOR).await.unwrap();
    assert_eq!(read.as_ref(), pattern(0, SECTOR, 3));
}

async fn read_only_refuses(machine: &Machine, path: &Path) {
    let disk = machine.disks.open(path, Access::ReadOnly).unwrap();
    let refused =
        |result: Result<(), DiskError>| assert!(matches!(result, Err(DiskError::Refused { .. })), "{result:?}");
    refused(disk.write(0, Buf::zeroed(SECTOR)).await.map(drop));
    refused(disk.discard(0, SECTOR as u64).await);
    refused(disk.flush().await);
    assert_eq!(disk.read(0, SECTOR).await.unwrap().as_ref(), pattern(0, SECTOR, 3));
}

/// Each real machine, with a name for messages. One that cannot be had here is told and left out.
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
        // Driven by this thread, and as one task among others.
        let (_folder, path) = file_of(SIZE);
        machine.block_on(body(machine.clone(), path));
        let (_folder, path) = file_of(SIZE);
        machine.block_on(machine.tasks.spawn(body(machine.clone(), path))).unwrap();
    }
}

/// Who drives a future hears whoever wakes it, whether operations of its own are under way or not, and leaves none
/// without an answer.
#[test]
fn a_thread_that_drives_hears_others() {
    for (name, machine) in real_machines() {
        let (_folder, path) = file_of(SIZE);
        let disk = machine.disks.open(&path, Access::ReadWrite).unwrap();
        let ended = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        for round in 0..400u64 {
            let (told, hear) = futures_channel::oneshot::channel();
            let clock = machine.clock.clone();
            let other = machine.tasks.spawn(async move {
                clock.sleep(std::time::Duration::from_micros(round * 7 % 300)).await;
                told.send(round).unwrap();
            });
            let submit = |at: u64| {
                let ended = ended.clone();
                let done = Box::new(move |answer: Result<weir_machine::Bufs, DiskError>| {
                    assert!(answer.is_ok());
                    ended.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                });
                let (bufs, len) = (weir_machine::Bufs::from_iter([disk.buffer(SECTOR)]), SECTOR as u64);
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
                assert_eq!(hear.await, Ok(round), "{name}");
                other.await.unwrap();
            });
        }
        let submitted = (0..400).map(|round| round % 40).sum();
        while ended.load(std::sync::atomic::Ordering::SeqCst) < submitted {
            std::thread::yield_now();
        }
    }
}

/// On a block device as well, if `WEIR_BLOCK_DEVICE` names one of exactly 4 MiB whose contents may be destroyed.
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
            assert!(again.is_err(), "{name}: nobody else writes to a device that is in use");
            disk.write(0, Buf::copy_from(&[7; 4096])).await.unwrap();
            assert!(disk.discard(1, 100).await.is_err(), "{name}: not whole sectors");
        });
    }
}

/// What a discard gives back to the file system, a file no longer takes.
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
fn what_is_no_disk_is_refused_and_not_waited_for() {
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
            let place = first.as_ref().as_ptr() as usize;
            drop(first.into_bytes());
            let second = disk.read(0, 1 << 20).await.unwrap();
            assert_eq!(second.as_ref().as_ptr() as usize, place, "{name}");
            assert!(second.as_ref().iter().all(|b| *b == 0), "{name}");
        });
    }
}

#[test]
fn one_write_takes_several_parts_in_their_order_wherever_they_lie() {
    for (name, machine) in real_machines() {
        let (_folder, path) = file_of(SIZE);
        let disk = machine.disks.open(&path, Access::ReadWrite).unwrap();
        let whole = bytes::Bytes::from(pattern(0, SIZE as usize, 3));
        let mut aligned = disk.buffer(3 * SECTOR);
        aligned.as_mut().copy_from_slice(&whole[SECTOR..4 * SECTOR]);
        // At addresses and of lengths of every kind, whole sectors only together.
        let odd = |from: usize, to: usize| bytes::Bytes::from([vec![0; from % 7], whole[from..to].to_vec()].concat());
        let odd = |from: usize, to: usize| odd(from, to).slice(from % 7..);
        let parts =
            [odd(0, SECTOR), aligned.into_bytes(), odd(4 * SECTOR, 4 * SECTOR + 5), odd(4 * SECTOR + 5, 6 * SECTOR)];
        let (done, answer) = futures_channel::oneshot::channel();
        let done = Box::new(move |result| drop(done.send(result)));
        let (offset, len, parts) = (0, 6 * SECTOR as u64, weir_machine::Parts::from_iter(parts));
        let bufs = weir_machine::Bufs::new();
        disk.submit(weir_machine::Io { op: Op::Write, offset, len, bufs, parts, here: false, done });
        assert!(machine.block_on(answer).unwrap().is_ok(), "{name}");
        let read = machine.block_on(disk.read(0, 6 * SECTOR)).unwrap();
        assert!(read.as_ref() == &whole[..6 * SECTOR], "{name}");
    }
}

#[test]
fn one_read_fills_several_buffers_in_their_order() {
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
        let refused = machine.block_on(disk.read_into(SIZE - SECTOR as u64, beyond)).unwrap_err();
        assert!(matches!(refused, DiskError::OutOfRange { .. }), "{name}: {refused}");
    }
}

/// What may be done on the submitter's thread is answered when `submit` returns.
#[test]
fn a_thread_that_waits_drives_the_disk_itself() {
    for (name, machine) in real_machines() {
        let (_folder, path) = file_of(SIZE);
        let disk = machine.disks.open(&path, Access::ReadWrite).unwrap();
        let here = std::thread::current().id();
        for op in [Op::Write, Op::Flush] {
            let (told, hear) = std::sync::mpsc::channel();
            let parts: weir_machine::Parts =
                (op == Op::Write).then(|| pattern(0, SECTOR, 5).into()).into_iter().collect();
            let done = Box::new(move |answer: Result<weir_machine::Bufs, DiskError>| {
                told.send((answer.is_ok(), std::thread::current().id())).unwrap();
            });
            let (len, bufs) = (parts.iter().map(|part| part.len() as u64).sum(), weir_machine::Bufs::new());
            disk.submit(weir_machine::Io { op, offset: 0, len, bufs, parts, here: true, done });
            assert_eq!(hear.try_recv(), Ok((true, here)), "{name}: {op:?}");
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
            let (offset, bufs) = (*at, weir_machine::Bufs::from_iter([disk.buffer(SECTOR)]));
            let done = Box::new(move |result| drop(done.send(result)));
            let (len, parts) = (SECTOR as u64, weir_machine::Parts::new());
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
