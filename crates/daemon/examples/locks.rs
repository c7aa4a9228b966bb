//! The locks of the hot paths: how often an operation takes each, how often and how long it waits for other threads, and how
//! long the lock is held. `cargo xtask bench locks` runs this.
//!
//! The pool is one file in a temporary folder. Each row runs for a fixed time with 1, 2 and 16 threads, each of which drives
//! its own operations. An NFS call is a message that the server answers, with the duplicate request cache and the rules of the
//! export, without a connection.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a benchmark measures real time")]
#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]

use bytes::Bytes;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use weir_daemon::{ExportRules, Exports, Hosts, IdentityMap, OpenPool, Sharing, Squash};
use weir_dsl::sync_tasks::{FileSystemSpec, Kind, NewDataset};
use weir_engine::{CreateOptions, Engine, Layout, NewLeaf, NewTopLevelVdev};
use weir_files::{Attributes, Cred, FileSystem, New, NewKind, WriteAt};
use weir_machine::lock::stats::{LockCounts, snapshot};
use weir_machine::{Machine, Operation, Protocol, Request};
use weir_nfs::wire::{Decoder, Encoder};
use weir_nfs::{Peer, Secrets, Server};
use weir_pool::config::Class;

const TIME: Duration = Duration::from_secs(2);
const THREADS: [usize; 3] = [1, 2, 16];
const DEVICE_BYTES: u64 = 4 << 30;
const ARC_BYTES: u64 = 64 << 20;
/// A file of which all is in the ARC, and one that is much larger.
const HOT_BYTES: u64 = 24 << 20;
const COLD_BYTES: u64 = 512 << 20;
const PIECE_BYTES: u64 = 4 << 10;
/// The range of a thread's own file that it writes.
const OWN_BYTES: u64 = 8 << 20;
/// RPC programs.
const MOUNT: u32 = 100_005;
const NFS: u32 = 100_003;

/// Operation of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Row {
    Hit,
    Miss,
    WriteOwn,
    WriteShared,
    Fsync,
    Lookup,
    NfsGetAttr,
    NfsRead,
    NfsWrite,
    NfsCommit,
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
            Row::NfsGetAttr => "NFS GETATTR",
            Row::NfsRead => "NFS READ of 4 KiB, ARC hit",
            Row::NfsWrite => "NFS WRITE of 4 KiB, unstable, a file per thread",
            Row::NfsCommit => "NFS WRITE of 4 KiB and COMMIT, a file per thread",
        }
    }
}

/// The place of a piece in a file, in no order.
fn place(number: u64, bytes: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (bytes / PIECE_BYTES) * PIECE_BYTES
}

struct Bench {
    machine: Machine,
    engine: Arc<Engine>,
    files: Arc<FileSystem>,
    hot: Attributes,
    cold: Attributes,
    nfs: Nfs,
}

/// The pool as an NFS server serves it.
struct Nfs {
    server: Server,
    peer: Peer,
    /// Handle of the root of the file system.
    root: Vec<u8>,
}

/// Number of the next call, so that none is a duplicate.
static XID: AtomicU32 = AtomicU32::new(1);

impl Nfs {
    async fn serve(rq: &Request, machine: &Machine, engine: &Arc<Engine>) -> Nfs {
        let pool = OpenPool::Engine(engine.clone());
        let exports = Exports::open(rq, &pool).await.unwrap();
        let identity = IdentityMap { squash: Squash::None, ..IdentityMap::default() };
        let rules = ExportRules { writers: Hosts::all(), identity };
        exports.share(rq, Sharing::Everything(rules)).await.unwrap();
        let server = Server::of_pools(exports.files.clone()).with_clock(&machine.clock);
        let secrets = Secrets { handles: [7; 32], verifier: [1; 8] };
        server.add_pool((pool.guid(), "locks"), secrets, pool.accounts());
        let peer = Peer::new(IpAddr::from([127, 0, 0, 1]));
        let mut nfs = Nfs { server, peer, root: Vec::new() };
        let mut path = Encoder::default();
        path.opaque(b"/locks/files");
        let reply = nfs.call(MOUNT, 1, path).await;
        nfs.root = handle(&reply);
        nfs
    }

    /// The results of a call as root, from the status on; a status other than OK ends the benchmark.
    async fn call(&self, program: u32, procedure: u32, arguments: Encoder) -> Vec<u8> {
        let mut call = Encoder::default();
        for word in [XID.fetch_add(1, Ordering::Relaxed), 0, 2, program, 3, procedure] {
            call.u32(word);
        }
        let mut user = Encoder::default();
        user.u32(0).opaque(b"bench").u32(0).u32(0).u32(0);
        call.u32(1).opaque(&user.bytes).u32(0).u32(0);
        call.bytes.extend_from_slice(&arguments.bytes);
        let reply = self.server.answer(&self.peer, &Bytes::from(call.bytes)).await.unwrap().body();
        let results = reply.get(24..).unwrap().to_vec();
        assert_eq!(Decoder::new(&results).u32(), Some(0), "procedure {procedure}");
        results
    }

    /// The handle of a file of the root directory.
    async fn look_up(&self, name: &str) -> Vec<u8> {
        let mut arguments = Encoder::default();
        arguments.opaque(&self.root).opaque(name.as_bytes());
        handle(&self.call(NFS, 3, arguments).await)
    }
}

/// The handle that follows the status of a MOUNT or a LOOKUP.
fn handle(results: &[u8]) -> Vec<u8> {
    let mut input = Decoder::new(results);
    input.u32().unwrap();
    input.opaque(64).unwrap().to_vec()
}

async fn file(files: &FileSystem, rq: &Request, name: &str, bytes: u64) -> Attributes {
    let new = New { exclusive: false, ..New::of(NewKind::Regular, 0o644) };
    let made = files.names().create(rq, &Cred::root(), files.root(), name.as_bytes(), &new).await.unwrap();
    let mut state = 7u64;
    for offset in (0..bytes).step_by(1 << 20) {
        let piece: Vec<u8> = (0..1u64 << 17)
            .flat_map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                state.to_le_bytes()
            })
            .collect();
        files
            .contents()
            .write(rq, &Cred::root(), made.object, WriteAt::Offset(offset), Bytes::from(piece))
            .await
            .unwrap();
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
            let nfs = Nfs::serve(rq, &machine, &engine).await;
            Bench { machine, engine, files, hot, cold, nfs }
        })
    }

    /// One call of a thread.
    async fn call(&self, row: Row, handle: &[u8], number: u64, data: &[u8]) {
        let offset = place(number, if row == Row::NfsRead { HOT_BYTES } else { OWN_BYTES });
        let mut arguments = Encoder::default();
        arguments.opaque(handle);
        let procedure = match row {
            Row::NfsRead => {
                arguments.u64(offset).u32(PIECE_BYTES as u32);
                6
            }
            Row::NfsWrite | Row::NfsCommit => {
                arguments.u64(offset).u32(PIECE_BYTES as u32).u32(0).opaque(data);
                7
            }
            _ => 1,
        };
        drop(std::hint::black_box(self.nfs.call(NFS, procedure, arguments).await));
        if row == Row::NfsCommit {
            let mut arguments = Encoder::default();
            arguments.opaque(handle).u64(0).u32(0);
            self.nfs.call(NFS, 21, arguments).await;
        }
    }

    /// One operation of a thread.
    async fn once(&self, row: Row, own: &Attributes, number: u64, data: &[u8]) {
        let accounts = self.engine.cache.accounts();
        let client = accounts.client(Protocol::Nbd, "bench");
        let rq = &accounts.begin(&client, Operation::Read);
        let write = |file: &Attributes, bytes| {
            let file = file.object;
            let data = Bytes::copy_from_slice(data);
            let place = WriteAt::Offset(place(number, bytes));
            async move {
                self.files.contents().write(rq, &Cred::root(), file, place, data).await.unwrap();
            }
        };
        match row {
            Row::Hit | Row::Miss => {
                let (file, bytes) = if row == Row::Hit { (&self.hot, HOT_BYTES) } else { (&self.cold, COLD_BYTES) };
                let contents = self.files.contents();
                let read =
                    contents.read_segments(rq, file.object, place(number, bytes), PIECE_BYTES as usize).await.unwrap();
                drop(std::hint::black_box(read));
            }
            Row::WriteOwn => write(own, OWN_BYTES).await,
            Row::WriteShared => write(&self.hot, HOT_BYTES).await,
            Row::Fsync => {
                write(own, OWN_BYTES).await;
                self.files.sync(rq, Some(own.object)).await.unwrap();
            }
            _ => {
                let object = self.files.directories().lookup(rq, self.files.root(), b"hot").await.unwrap();
                std::hint::black_box(self.files.attrs().get(rq, object).await.unwrap());
            }
        }
        accounts.record(rq);
    }

    /// Runs a row; returns the operations and the counts of the locks meanwhile.
    fn run(&self, row: Row, threads: usize) -> (u64, BTreeMap<&'static str, LockCounts>) {
        let own: Vec<(Attributes, Vec<u8>)> = self.machine.block_on(async {
            let rq = &Request::internal("bench");
            let mut own = Vec::new();
            for thread in 0..threads {
                let name = format!("own {thread}");
                let object = file(&self.files, rq, &name, 0).await;
                let name = if row == Row::NfsRead { "hot" } else { &name };
                own.push((object, self.nfs.look_up(name).await));
            }
            for offset in (0..HOT_BYTES).step_by(1 << 20) {
                self.files.contents().read_segments(rq, self.hot.object, offset, 1 << 20).await.unwrap();
            }
            own
        });
        let before: BTreeMap<_, _> = snapshot().into_iter().collect();
        let operations = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for (thread, (own, handle)) in own.iter().enumerate() {
                let operations = &operations;
                scope.spawn(move || {
                    let data = vec![thread as u8; PIECE_BYTES as usize];
                    let begun = Instant::now();
                    let mut done = 0;
                    while begun.elapsed() < TIME {
                        let number = (thread as u64) << 40 | done;
                        match row {
                            Row::NfsGetAttr | Row::NfsRead | Row::NfsWrite | Row::NfsCommit => {
                                self.machine.block_on(self.call(row, handle, number, &data));
                            }
                            _ => self.machine.block_on(self.once(row, own, number, &data)),
                        }
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
    let rows = [Row::Hit, Row::Miss, Row::WriteOwn, Row::WriteShared, Row::Fsync, Row::Lookup];
    let calls = [Row::NfsGetAttr, Row::NfsRead, Row::NfsWrite, Row::NfsCommit];
    for row in rows.into_iter().chain(calls) {
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
