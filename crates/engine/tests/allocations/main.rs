//! Allocations of a request: its account makes none, so a request of a client costs no more than one without an account.
#![allow(clippy::unwrap_used, reason = "a failed setup step fails the test")]

use allocation_counter::measure;
use bytes::Bytes;
use std::cell::Cell;
use std::sync::Arc;
use weir_dsl::sync_tasks::{FileSystemSpec, Kind, NewDataset};
use weir_engine::{CreateOptions, Engine, Layout, NewLeaf, NewTopLevelVdev};
use weir_files::{Cred, FileSystem, New, NewKind, WriteAt};
use weir_format::ObjectId;
use weir_machine::{Accounts, Operation, Protocol, Request, Source, Stage, Target};
use weir_pool::config::Class;
use weir_sim::{SimWorld, Timing};

/// Size of a file in bytes, all of which is in the ARC or dirty.
const FILE_BYTES: u64 = 1 << 20;
const PIECE_BYTES: usize = 4096;

#[test]
fn an_account_of_a_request_allocates_nothing() {
    let accounts = &Accounts::default();
    let client = accounts.client(Protocol::Nfs3, "10.0.0.1");
    let objects = &Cell::new(0);
    let request = || {
        let rq = accounts.begin(&client, Operation::Read);
        // More files than a thread has places for.
        let object = objects.replace(objects.get() + 1) % 999 + 1;
        rq.set_target(Target { dataset: 54, object, ..Target::default() });
        Source::ALL.iter().for_each(|source| rq.answer(*source, 4096));
        Stage::ALL.iter().for_each(|stage| rq.spent(*stage, 100));
        rq.wrote(1);
        rq.record_device(30, 10);
        accounts.record(&rq);
    };
    // The first request of a thread gives it registers of its own.
    assert!(measure(request).count_total > 0, "allocations are counted");
    assert_eq!(measure(|| (0..10_000).for_each(|_| request())).count_total, 0);
}

struct Pool {
    engine: Arc<Engine>,
    files: Arc<FileSystem>,
    file: ObjectId,
}

impl Pool {
    async fn new(engine: Arc<Engine>) -> Pool {
        let rq = &Request::internal("test");
        let kind = Kind::FileSystem(FileSystemSpec::default());
        engine.create_dataset(NewDataset { name: "tank/home".into(), kind, properties: Vec::new() }).await.unwrap();
        let files = engine.file_system(rq, "tank/home").await.unwrap();
        let new = New::of(NewKind::Regular, 0o600);
        let made = files.names().create(rq, &Cred::root(), files.root(), b"file", &new).await.unwrap();
        let data = Bytes::from(vec![7; FILE_BYTES as usize]);
        files.contents().write(rq, &Cred::root(), made.object, WriteAt::Offset(0), data).await.unwrap();
        engine.sync().await.unwrap();
        Pool { engine, files, file: made.object }
    }

    async fn read(&self, rq: &Request, offset: u64) {
        drop(self.files.contents().read_segments(rq, self.file, offset, PIECE_BYTES).await.unwrap());
    }

    async fn write(&self, rq: &Request, offset: u64, data: &Bytes) {
        let place = WriteAt::Offset(offset);
        self.files.contents().write(rq, &Cred::root(), self.file, place, data.clone()).await.unwrap();
    }

    /// Allocations of reads that the ARC answers, or of writes, by requests of a client or by others.
    fn count(&self, is_accounted: bool, is_write: bool) -> u64 {
        let accounts = self.engine.cache.accounts();
        let client = &accounts.client(Protocol::Nbd, "client");
        let data = &Bytes::from(vec![8; PIECE_BYTES]);
        let request = |offset| async move {
            let rq = if is_accounted { accounts.begin(client, Operation::Read) } else { Request::internal("test") };
            if is_write {
                self.write(&rq, offset, data).await
            } else {
                self.read(&rq, offset).await
            }
            accounts.record(&rq);
        };
        let offsets = || (0..FILE_BYTES).step_by(PIECE_BYTES);
        let all = || {
            for offset in offsets() {
                // Nothing waits: the blocks are in memory and the limit of dirty data is far.
                futures_util::FutureExt::now_or_never(request(offset)).unwrap();
            }
        };
        all();
        measure(all).count_total
    }
}

#[test]
fn a_request_of_a_client_allocates_no_more_than_one_without_an_account() {
    let world = SimWorld::new(1);
    world.add_disk("/sim/d0", 128 << 20, 512, Timing::Nvme);
    let leaf = NewLeaf { path: "/sim/d0".into(), is_file: true };
    let top = NewTopLevelVdev { class: Class::Normal, layout: Layout::Single, leaves: vec![leaf] };
    let machine = world.machine();
    let run = world.run(async move {
        let pool = Pool::new(Engine::create(&machine, &CreateOptions::new("tank", vec![top])).await.unwrap()).await;
        for is_write in [false, true] {
            // A table that grows now and then is not of one request.
            let of_one = |is_accounted| pool.count(is_accounted, is_write) / (FILE_BYTES / PIECE_BYTES as u64);
            let [plain, accounted] = [false, true].map(of_one);
            assert!(plain > 0, "the bytes of an answer are in a list");
            assert_eq!(accounted, plain, "allocations of a request, and of one without an account");
        }
        pool.engine.export().await.unwrap();
    });
    run.unwrap();
}
