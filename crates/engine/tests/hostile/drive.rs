//! Runs every query on a pool once. Errors are valid results; they are only counted.

use crate::corruption::Marks;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weir_dmu::{ObjectSet, ddt_brt_reader};
use weir_dsl::QuotaPrincipal;
use weir_dsl::props::DatasetKind;
use weir_files::{FileKind, FileSystem, Seek};
use weir_format::{ObjectId, Txg};
use weir_machine::{Machine, Request};
use weir_pool::verify::{Plan, Report, verify};
use weir_pool::walk::{Prove, Walk};
use weir_pool::{OpenOptions, Pool, VdevKind, indirect, roots};
use weir_zil::LogWalk;

/// Maximum objects of a file system, datasets of a pool and pages of a list that are queried.
const OBJECTS: usize = 100;
const DATASETS: usize = 30;
const PAGES: usize = 40;

/// Counts of results and errors.
#[derive(Default, Debug)]
pub struct AnswerCounters {
    pub opened: bool,
    pub answers: u64,
    pub errors: u64,
}

impl AnswerCounters {
    fn note<T, E: std::fmt::Display>(&mut self, answer: Result<T, E>) -> Option<T> {
        match answer {
            Ok(value) => {
                self.answers += 1;
                Some(value)
            }
            Err(error) => {
                assert!(!error.to_string().is_empty(), "an error has a message");
                self.errors += 1;
                None
            }
        }
    }
}

/// Opens the pool and runs every query. With `open_first` the corruption begins after the opening.
pub async fn drive(machine: &Machine, options: &OpenOptions, marks: &Marks, open_first: bool) -> AnswerCounters {
    let mut counters = AnswerCounters::default();
    marks.armed.store(!open_first, Ordering::Relaxed);
    let opened = Pool::open(machine, options).await;
    marks.armed.store(true, Ordering::Relaxed);
    let Some(pool) = counters.note(opened) else { return counters };
    counters.opened = true;
    let rq = Request::internal("hostile");
    let report = verify_blocks(machine, &pool, &rq).await;
    counters.note(report);
    counters.note(weir_dsl::history::history(&pool.dsl, &rq).await);
    let clones = ddt_brt_reader::clone_tables(&rq, &pool.mos.set, pool.tree.children.len() as u64).await;
    for table in counters.note(clones).unwrap_or_default() {
        counters.note(ddt_brt_reader::clone_entries(&rq, &pool.mos.set, &table).await);
    }
    for table in counters.note(ddt_brt_reader::dedup_tables(&rq, &pool.mos.set).await).unwrap_or_default() {
        let mut cookie = 0;
        for _ in 0..PAGES {
            let page = ddt_brt_reader::dedup_entries(&rq, &pool.mos.set, &table, cookie).await;
            let Some((page, next)) = counters.note(page) else { break };
            if page.is_empty() {
                break;
            }
            cookie = next;
        }
    }
    let datasets = counters.note(pool.datasets(&rq, true).await).unwrap_or_default();
    for info in datasets.iter().take(DATASETS) {
        dataset(&pool, &rq, &info.name, info.kind, &mut counters).await;
    }
    counters
}

/// Traverses and verifies all blocks, like `zdb -bcc`.
async fn verify_blocks(machine: &Machine, pool: &Pool, rq: &Request) -> Result<Report, weir_dmu::ObjectError> {
    let mut moved = std::collections::BTreeMap::new();
    for vdev in pool.tree.children.iter().filter(|v| v.kind == VdevKind::Indirect && v.indirect_object != 0) {
        moved.insert(vdev.id as u32, indirect::mapping(rq, &pool.mos, ObjectId(vdev.indirect_object)).await?.1);
    }
    let log_before = Txg(pool.uberblock.txg.0.saturating_add(1));
    let machine = machine.clone();
    let blocks = pool.blocks.clone();
    let walk = Walk { machine, blocks, prove: Prove::Everything, log_before };
    let plan = Plan { walk, mos: &pool.mos, tops: &pool.tree.children, moved, space: true, max_segments: u64::MAX };
    let (roots, _) = roots::roots(rq, &pool.mos).await?;
    verify(rq, &plan, roots, &mut |_| ()).await
}

async fn dataset(pool: &Pool, rq: &Request, name: &str, kind: DatasetKind, counters: &mut AnswerCounters) {
    if let Some(found) = counters.note(pool.dataset(rq, name).await) {
        counters.note(pool.dsl.properties(rq, &found, &pool.facts()).await);
        counters.note(weir_dsl::space::written(&pool.dsl, rq, &found).await);
        counters.note(weir_dsl::bookmarks::bookmarks(&pool.dsl, rq, &found).await);
        counters.note(pool.dsl.holds(rq, &found).await);
        counters.note(pool.dsl.clones(rq, &found).await);
    }
    if let Some(set) = counters.note(pool.object_set(rq, name).await) {
        objects(rq, &set, counters).await;
    }
    if kind != DatasetKind::Volume
        && let Some(files) = counters.note(pool.file_system(rq, name).await)
    {
        tree(rq, &files, counters).await;
    }
}

/// Queries the intent log, the space accounting and the objects of a dataset.
async fn objects(rq: &Request, set: &Arc<ObjectSet>, counters: &mut AnswerCounters) {
    let mut log = LogWalk::new(set);
    for _ in 0..PAGES {
        let Some(Some(block)) = counters.note(log.next(rq).await) else { break };
        for record in counters.note(block.records()).unwrap_or_default() {
            counters.note(record.body());
        }
    }
    for principal in [QuotaPrincipal::User, QuotaPrincipal::Group, QuotaPrincipal::Project] {
        counters.note(set.accounting().accounts(rq, principal).await);
    }
    counters.note(set.accounting().domains(rq).await);
    let mut next = ObjectId(1);
    for _ in 0..OBJECTS {
        let Some(Some(id)) = counters.note(set.dnodes().next_object(rq, next).await) else { break };
        assert!(id >= next, "objects are listed in ascending order");
        if let Some(object) = counters.note(set.object(rq, id).await) {
            counters.note(set.reader().read(rq, &object, 0, 1 << 16, u64::MAX).await);
            counters.note(set.reader().read_spill(rq, &object).await);
        }
        next = ObjectId(id.0.saturating_add(1));
    }
}

async fn tree(rq: &Request, files: &Arc<FileSystem>, counters: &mut AnswerCounters) {
    counters.note(files.quotas().usage(rq, files.root()).await);
    let mut seen = BTreeSet::new();
    let mut stack = vec![files.root()];
    while let Some(id) = stack.pop() {
        if !seen.insert(id) || seen.len() > OBJECTS {
            continue;
        }
        let kind = counters.note(files.attrs().get(rq, id).await).map(|a| (a.kind, a.size_bytes));
        for name in counters.note(files.xattrs().names(rq, id).await).unwrap_or_default() {
            counters.note(files.xattrs().get(rq, id, &name).await);
        }
        counters.note(files.acls().get(rq, id).await);
        counters.note(files.attrs().parent(rq, id).await);
        match kind {
            Some((FileKind::Directory, _)) => stack.extend(listing(rq, files, id, counters).await),
            Some((FileKind::Symlink, _)) => drop(counters.note(files.contents().read_link(rq, id).await)),
            Some((FileKind::Regular, size)) => contents(rq, files, id, size, counters).await,
            _ => {}
        }
    }
}

async fn listing(rq: &Request, files: &Arc<FileSystem>, dir: ObjectId, counters: &mut AnswerCounters) -> Vec<ObjectId> {
    let mut out = Vec::new();
    let mut cookie = 0;
    for _ in 0..PAGES {
        let Some(page) = counters.note(files.directories().read_dir(rq, dir, cookie, 100).await) else { break };
        for (index, entry) in page.iter().enumerate() {
            cookie = entry.cookie;
            if index < 10 {
                counters.note(files.directories().lookup(rq, dir, &entry.name).await);
            }
            out.push(entry.object);
        }
        if page.len() < 100 {
            break;
        }
    }
    out
}

async fn contents(rq: &Request, files: &Arc<FileSystem>, id: ObjectId, size: u64, counters: &mut AnswerCounters) {
    for offset in [0, size / 2, size.saturating_sub(5000), u64::MAX - 5] {
        if let Some(bytes) = counters.note(files.contents().read(rq, id, offset, 1 << 17).await) {
            assert!(bytes.len() <= 1 << 17, "no more than requested");
        }
    }
    for (offset, target) in [(0, Seek::Data), (0, Seek::Hole), (size / 2, Seek::Data), (size / 2, Seek::Hole)] {
        counters.note(files.contents().seek(rq, id, offset, target).await);
    }
}

/// Options for the pool below `folder`.
pub fn options(folder: &Path, pool: &str, keys: &[(String, Vec<u8>)]) -> OpenOptions {
    let mut options = OpenOptions::new(vec![folder.into()], pool);
    options.keys = keys.to_vec();
    // A small ARC, so that blocks are read and corrupted again.
    options.arc_bytes = 256 << 10;
    options
}
