//! The locks of the hot paths: how often an operation takes each, how often and how long it waits for other threads, and how
//! long the lock is held. `cargo xtask bench locks` runs this.
//!
//! The pool is one file in a temporary folder. Each row runs for a fixed time with 1, 2 and 16 threads, each of which drives
//! its own operations.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a benchmark measures real time")]
#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]

use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use weir_dsl::sync_tasks::{FileSystemSpec, Kind, NewDataset};
use weir_engine::{CreateOptions, Engine, Layout, NewLeaf, NewTopLevelVdev};
use weir_files::{Cred, FileSystem, New, NewKind, WriteAt};
use weir_format::ObjectId;
use weir_machine::lock::stats::{LockCounts, snapshot};
use weir_machine::{Machine, Operation, Protocol, Request};
use weir_pool::config::Class;

const TIME: Duration = Duration::from_secs(2);
const THREADS: [usize; 3] = [1, 2, 16];
const DEVICE_BYTES: u64 = 4 << 30;
const ARC_BYTES: u64 = 64 << 20;
/// A file of which all is in the ARC, and one that is much larger.
const HOT_BYTES: u64 = 24 << 20;
const COLD_BYTES: u64 = 512 << 20;
const PIECE_BYTES: u64 = 4 << 10;

/// Operation of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Row {
    Hit,
    Miss,
    WriteOwn,
    WriteShared,
    Fsync,
    Lookup,
}

impl Row {
    fn name(self) -> &'static str {
        match self {
            Row::Hit => "read 4 KiB, ARC hit",
            Row::Miss => "read 4 KiB, ARC miss",
            Row::WriteOwn => "write 4 KiB, a file per thread",
            Row::WriteShared => "write 4 KiB, one file",
            Row::Fsync => "write 4 KiB and fsync, a file per thread",
            Row::Lookup => "look up a name and read attributes",
        }
    }
}

struct Bench {
    machine: Machine,
    engine: Arc<Engine>,
    files: Arc<FileSystem>,
    hot: ObjectId,
    cold: ObjectId,
}

async fn file(files: &FileSystem, rq: &Request, name: &str, bytes: u64) -> ObjectId {
    let new = New { exclusive: false, ..New::of(NewKind::Regular, 0o644) };
    let made = files.names().create(rq, &Cred::root(), files.root(), name.as_bytes(), &new).await.unwrap().object;
    let mut state = 7u64;
    for offset in (0..bytes).step_by(1 << 20) {
        let piece: Vec<u8> = (0..1u64 << 17)
            .flat_map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                state.to_le_bytes()
            })
            .collect();
        files.contents().write(rq, &Cred::root(), made, WriteAt::Offset(offset), Bytes::from(piece)).await.unwrap();
    }
    made
}

impl Bench {
    fn new(folder: &std::path::Path) -> Bench {
        let machine = weir_linux::machine().unwrap();
        let path = folder.join("disk.img");
        std::fs::File::create(&path).unwrap().set_len(DEVICE_BYTES).unwrap();
        let leaves = vec![NewLeaf { path, is_file: true }];
        let top = NewTopLevelVdev { class: Class::Normal, layout: Layout::Single, leaves };
        let mut options = CreateOptions::new("locks", vec![top]);
        options.arc_bytes = ARC_BYTES;
        machine.clone().block_on(async move {
            let rq = &Request::internal("bench");
            let engine = Engine::create(&machine, &options).await.unwrap();
            let kind = Kind::FileSystem(FileSystemSpec::default());
            let new = NewDataset { name: "locks/files".into(), kind, properties: Vec::new() };
            engine.create_dataset(new).await.unwrap();
            let files = engine.file_system(rq, "locks/files").await.unwrap();
            let hot = file(&files, rq, "hot", HOT_BYTES).await;
            let cold = file(&files, rq, "cold", COLD_BYTES).await;
            engine.sync().await.unwrap();
            Bench { machine, engine, files, hot, cold }
        })
    }

    /// One operation of a thread.
    async fn once(&self, row: Row, own: ObjectId, number: u64, data: &[u8]) {
        let accounts = self.engine.cache.accounts();
        let client = accounts.client(Protocol::Nbd, "bench");
        let rq = &accounts.begin(&client, Operation::Read);
        let at = |bytes: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (bytes / PIECE_BYTES) * PIECE_BYTES;
        let write = |file, bytes| {
            let data = Bytes::copy_from_slice(data);
            let place = WriteAt::Offset(at(bytes));
            async move { self.files.contents().write(rq, &Cred::root(), file, place, data).await.unwrap() }
        };
        match row {
            Row::Hit | Row::Miss => {
                let (file, bytes) = if row == Row::Hit { (self.hot, HOT_BYTES) } else { (self.cold, COLD_BYTES) };
                let contents = self.files.contents();
                let read = contents.read_segments(rq, file, at(bytes), PIECE_BYTES as usize).await.unwrap();
                drop(std::hint::black_box(read));
            }
            Row::WriteOwn => drop(write(own, 8 << 20).await),
            Row::WriteShared => drop(write(self.hot, HOT_BYTES).await),
            Row::Fsync => {
                drop(write(own, 8 << 20).await);
                self.files.sync(rq, Some(own)).await.unwrap();
            }
            Row::Lookup => {
                let object = self.files.directories().lookup(rq, self.files.root(), b"hot").await.unwrap();
                drop(std::hint::black_box(self.files.attrs().get(rq, object).await.unwrap()));
            }
        }
        accounts.record(rq);
    }

    /// Runs a row; returns the operations and the counts of the locks meanwhile.
    fn run(&self, row: Row, threads: usize) -> (u64, BTreeMap<&'static str, LockCounts>) {
        let own: Vec<ObjectId> = self.machine.block_on(async {
            let rq = &Request::internal("bench");
            let mut own = Vec::new();
            for thread in 0..threads {
                own.push(file(&self.files, rq, &format!("own {thread}"), 0).await);
            }
            for offset in (0..HOT_BYTES).step_by(1 << 20) {
                self.files.contents().read_segments(rq, self.hot, offset, 1 << 20).await.unwrap();
            }
            own
        });
        let before: BTreeMap<_, _> = snapshot().into_iter().collect();
        let operations = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for (thread, own) in own.iter().enumerate() {
                let operations = &operations;
                scope.spawn(move || {
                    let data = vec![thread as u8; PIECE_BYTES as usize];
                    let begun = Instant::now();
                    let mut done = 0;
                    while begun.elapsed() < TIME {
                        self.machine.block_on(self.once(row, *own, (thread as u64) << 40 | done, &data));
                        done += 1;
                    }
                    operations.fetch_add(done, Ordering::Relaxed);
                });
            }
        });
        let less = |(name, now): (&'static str, LockCounts)| {
            let old = before.get(name).copied().unwrap_or_default();
            let counts = LockCounts {
                taken: now.taken - old.taken,
                waited: now.waited - old.waited,
                wait_ns: now.wait_ns - old.wait_ns,
                held_ns: now.held_ns - old.held_ns,
            };
            (name, counts)
        };
        (operations.into_inner(), snapshot().into_iter().map(less).collect())
    }
}

fn main() {
    let folder = std::env::temp_dir().join(format!("weir-locks-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let bench = Bench::new(&folder);
    println!(
        "| operation | threads | operations/s | lock | taken per operation | waited | wait per operation | held |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for row in [Row::Hit, Row::Miss, Row::WriteOwn, Row::WriteShared, Row::Fsync, Row::Lookup] {
        for threads in THREADS {
            let (operations, locks) = bench.run(row, threads);
            let each = operations.max(1) as f64;
            println!("| {} | {threads} | {:.0} | | | | | |", row.name(), each / TIME.as_secs_f64());
            for (name, counts) in locks {
                // Locks that fewer than one in a hundred operations take belong to the background.
                if (counts.taken as f64) < each / 100.0 {
                    continue;
                }
                println!(
                    "| | | | {name} | {:.2} | {:.2} % | {:.0} ns | {:.0} ns |",
                    counts.taken as f64 / each,
                    counts.waited as f64 * 100.0 / counts.taken as f64,
                    counts.wait_ns as f64 / each,
                    counts.held_ns as f64 / counts.taken as f64,
                );
            }
        }
    }
    bench.machine.block_on(bench.engine.stop()).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}
