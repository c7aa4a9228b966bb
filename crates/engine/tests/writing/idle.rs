//! Datasets that were used once do not stay open.

use crate::real::{folder, pool_of};
use crate::{work, zdb};
use bytes::Bytes;
use weir_dsl::sync_tasks::{FileSystemSpec, Kind, NewDataset};
use weir_engine::open_datasets::MAX_IDLE;
use weir_engine::{Engine, Layout};
use weir_files::{Cred, FileSystem, HoldKind, New, NewKind, WriteAt};
use weir_format::ObjectId;
use weir_machine::Request;

const DATASETS: usize = MAX_IDLE + 60;
/// The dataset of which a file is open.
const HELD: usize = 3;
/// The dataset that a client refers to.
const REFERRED: usize = 4;

fn name(number: usize) -> String {
    format!("tank/d{number}")
}

fn body(number: usize) -> Bytes {
    Bytes::from(vec![number as u8; 5000 + number])
}

/// Makes a file; one in three is synced through the intent log.
async fn touch(files: &FileSystem, rq: &Request, number: usize) -> ObjectId {
    let root = Cred::root();
    let new = New::of(NewKind::Regular, 0o644);
    let made = files.names().create(rq, &root, files.root(), b"file", &new).await.unwrap().object;
    files.contents().write(rq, &root, made, WriteAt::Offset(0), body(number)).await.unwrap();
    if number.is_multiple_of(3) {
        files.sync(rq, Some(made)).await.unwrap();
    }
    made
}

async fn check(files: &FileSystem, rq: &Request, number: usize) {
    let file = files.directories().lookup(rq, files.root(), b"file").await.unwrap();
    let wanted = body(number);
    let found = files.contents().read(rq, file, 0, wanted.len() + 1).await.unwrap();
    assert!(found == wanted, "dataset {number}");
}

#[test]
fn datasets_that_were_touched_once_are_closed() {
    let dir = folder("idle-datasets");
    let machine = weir_linux::machine().unwrap();
    let options = pool_of(&dir, Layout::Single, 1);
    let rq = &Request::internal("test");
    machine.block_on(async {
        let engine = Engine::create(&machine, &options).await.unwrap();
        let mut kept = None;
        for number in 0..DATASETS {
            let kind = Kind::FileSystem(FileSystemSpec::default());
            let new = NewDataset { name: name(number), kind, properties: Vec::new() };
            engine.create_dataset(new).await.unwrap();
            let files = engine.file_system(rq, &name(number)).await.unwrap();
            let file = touch(&files, rq, number).await;
            match number {
                HELD => files.holds().hold(file, HoldKind::Open),
                REFERRED => kept = Some(files),
                _ => {}
            }
        }
        for _ in 0..3 {
            engine.sync().await.unwrap();
        }
        // A log that has blocks needs a txg to end its chain, and a later one to free it.
        let open = engine.sets.all();
        assert!(open.len() <= MAX_IDLE, "{} of {DATASETS} datasets are open", open.len());
        let names = |wanted: usize| engine.sets.all().into_iter().any(|open| {
            matches!(&open.contents, Some(weir_engine::open_datasets::OpenDataset::Files(files)) if files.name() == name(wanted))
        });
        assert!(names(HELD) && names(REFERRED), "a dataset in use was closed");
        assert!(engine.destroy_dataset(name(HELD)).await.is_err(), "a client has a file open");
        // They open again, and are as they were.
        for number in 0..DATASETS {
            check(&engine.file_system(rq, &name(number)).await.unwrap(), rq, number).await;
        }
        check(&kept.take().unwrap(), rq, REFERRED).await;
        let held = engine.file_system(rq, &name(HELD)).await.unwrap();
        let file = held.directories().lookup(rq, held.root(), b"file").await.unwrap();
        held.holds().release(rq, file, HoldKind::Open).await.unwrap();
        drop(held);
        engine.destroy_dataset(name(HELD)).await.unwrap();
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
    });
    zdb::assert_clean(&dir, "tank");
}
