//! Everything that can be asked of a pool, asked once. Errors are answers; only their text is kept, in part.

use crate::forge::Marks;
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

/// Objects looked at in one file system, datasets in one pool, pages of a list.
const OBJECTS: usize = 100;
const DATASETS: usize = 30;
const PAGES: usize = 40;

/// What came of it.
#[derive(Default, Debug)]
pub struct Tally {
    pub opened: bool,
    pub answers: u64,
    pub errors: u64,
}

impl Tally {
    fn note<T, E: std::fmt::Display>(&mut self, answer: Result<T, E>) -> Option<T> {
        match answer {
            Ok(value) => {
                self.answers += 1;
                Some(value)
            }
            Err(error) => {
                assert!(!error.to_string().is_empty(), "an error says something");
                self.errors += 1;
                None
            }
        }
    }
}

/// Opens the pool and asks everything. With `open_first` the forging begins after the opening.
pub async fn drive(machine: &Machine, options: &OpenOptions, marks: &Marks, open_first: bool) -> Tally {
    let mut tally = Tally::default();
    marks.armed.store(!open_first, Ordering::Relaxed);
    let opened = Pool::open(machine, options).await;
    marks.armed.store(true, Ordering::Relaxed);
    let Some(pool) = tally.note(opened) else { return tally };
    tally.opened = true;
    let rq = Request::internal("hostile");
    let proof = prove(machine, &pool, &rq).await;
    tally.note(proof);
    tally.note(pool.dsl.history(&rq).await);
    let clones = ddt_brt_reader::clone_tables(&rq, &pool.mos.set, pool.tree.children.len() as u64).await;
    for table in tally.note(clones).unwrap_or_default() {
        tally.note(ddt_brt_reader::clone_entries(&rq, &pool.mos.set, &table).await);
    }
    for table in tally.note(ddt_brt_reader::dedup_tables(&rq, &pool.mos.set).await).unwrap_or_default() {
        let mut cookie = 0;
        for _ in 0..PAGES {
            let page = ddt_brt_reader::dedup_entries(&rq, &pool.mos.set, &table, cookie).await;
            let Some((page, next)) = tally.note(page) else { break };
            if page.is_empty() {
                break;
            }
            cookie = next;
        }
    }
    let datasets = tally.note(pool.datasets(&rq, true).await).unwrap_or_default();
    for info in datasets.iter().take(DATASETS) {
        dataset(&pool, &rq, &info.name, info.kind, &mut tally).await;
    }
    tally
}

/// What `zdb -bcc` does.
async fn prove(machine: &Machine, pool: &Pool, rq: &Request) -> Result<Report, weir_dmu::ObjectError> {
    let mut moved = std::collections::BTreeMap::new();
    for vdev in pool.tree.children.iter().filter(|v| v.kind == VdevKind::Indirect && v.indirect_object != 0) {
        moved.insert(vdev.id as u32, indirect::mapping(rq, &pool.mos, ObjectId(vdev.indirect_object)).await?.1);
    }
    let log_before = Txg(pool.uberblock.txg.0.saturating_add(1));
    let (machine, blocks) = (machine.clone(), pool.blocks.clone());
    let walk = Walk { machine, blocks, prove: Prove::Everything, log_before };
    let plan = Plan { walk, mos: &pool.mos, tops: &pool.tree.children, moved, space: true };
    let (roots, _) = roots::roots(rq, &pool.mos).await?;
    verify(rq, &plan, roots, &mut |_| ()).await
}

async fn dataset(pool: &Pool, rq: &Request, name: &str, kind: DatasetKind, tally: &mut Tally) {
    if let Some(found) = tally.note(pool.dataset(rq, name).await) {
        tally.note(pool.dsl.properties(rq, &found, &pool.facts()).await);
        tally.note(pool.dsl.written(rq, &found).await);
        tally.note(pool.dsl.bookmarks(rq, &found).await);
        tally.note(pool.dsl.holds(rq, &found).await);
        tally.note(pool.dsl.clones(rq, &found).await);
    }
    if let Some(set) = tally.note(pool.object_set(rq, name).await) {
        objects(rq, &set, tally).await;
    }
    if kind != DatasetKind::Volume
        && let Some(files) = tally.note(pool.file_system(rq, name).await)
    {
        tree(rq, &files, tally).await;
    }
}

/// The intent log, the accounting and the objects themselves.
async fn objects(rq: &Request, set: &Arc<ObjectSet>, tally: &mut Tally) {
    let mut log = LogWalk::new(set);
    for _ in 0..PAGES {
        let Some(Some(block)) = tally.note(log.next(rq).await) else { break };
        for record in tally.note(block.records()).unwrap_or_default() {
            tally.note(record.body());
        }
    }
    for who in [QuotaPrincipal::User, QuotaPrincipal::Group, QuotaPrincipal::Project] {
        tally.note(set.accounts(rq, who).await);
    }
    tally.note(set.domains(rq).await);
    let mut next = ObjectId(1);
    for _ in 0..OBJECTS {
        let Some(Some(id)) = tally.note(set.next_object(rq, next).await) else { break };
        assert!(id >= next, "objects are listed forwards");
        if let Some(object) = tally.note(set.object(rq, id).await) {
            tally.note(set.read(rq, &object, 0, 1 << 16, u64::MAX).await);
            tally.note(set.read_spill(rq, &object).await);
        }
        next = ObjectId(id.0.saturating_add(1));
    }
}

async fn tree(rq: &Request, files: &Arc<FileSystem>, tally: &mut Tally) {
    tally.note(files.usage(rq, files.root()).await);
    let mut seen = BTreeSet::new();
    let mut stack = vec![files.root()];
    while let Some(id) = stack.pop() {
        if !seen.insert(id) || seen.len() > OBJECTS {
            continue;
        }
        let kind = tally.note(files.attributes(rq, id).await).map(|a| (a.kind, a.size_bytes));
        for name in tally.note(files.xattr_names(rq, id).await).unwrap_or_default() {
            tally.note(files.xattr(rq, id, &name).await);
        }
        tally.note(files.acl(rq, id).await);
        tally.note(files.parent(rq, id).await);
        match kind {
            Some((FileKind::Directory, _)) => stack.extend(listing(rq, files, id, tally).await),
            Some((FileKind::Symlink, _)) => drop(tally.note(files.read_link(rq, id).await)),
            Some((FileKind::Regular, size)) => contents(rq, files, id, size, tally).await,
            _ => {}
        }
    }
}

async fn listing(rq: &Request, files: &Arc<FileSystem>, dir: ObjectId, tally: &mut Tally) -> Vec<ObjectId> {
    let (mut out, mut cookie) = (Vec::new(), 0);
    for _ in 0..PAGES {
        let Some(page) = tally.note(files.read_dir(rq, dir, cookie, 100).await) else { break };
        for (index, entry) in page.iter().enumerate() {
            cookie = entry.cookie;
            if index < 10 {
                tally.note(files.lookup(rq, dir, &entry.name).await);
            }
            out.push(entry.object);
        }
        if page.len() < 100 {
            break;
        }
    }
    out
}

async fn contents(rq: &Request, files: &Arc<FileSystem>, id: ObjectId, size: u64, tally: &mut Tally) {
    for offset in [0, size / 2, size.saturating_sub(5000), u64::MAX - 5] {
        if let Some(bytes) = tally.note(files.read(rq, id, offset, 1 << 17).await) {
            assert!(bytes.len() <= 1 << 17, "no more than asked for");
        }
    }
    for (offset, what) in [(0, Seek::Data), (0, Seek::Hole), (size / 2, Seek::Data), (size / 2, Seek::Hole)] {
        tally.note(files.seek(rq, id, offset, what).await);
    }
}

/// Options for the pool below `folder`.
pub fn options(folder: &Path, pool: &str, keys: &[(String, Vec<u8>)]) -> OpenOptions {
    let mut options = OpenOptions::new(vec![folder.into()], pool);
    options.keys = keys.to_vec();
    // What is read again is to be forged again.
    options.arc_bytes = 256 << 10;
    options
}
