//! Space of datasets, counted by visiting every block of every head and snapshot. The sums must equal the numbers on
//! disk, the properties of the datasets, and the numbers that zdb reads.

use crate::zdb;
use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::path::Path;
use weir_dmu::Zap;
use weir_dsl::props::Value;
use weir_dsl::{Dataset, Dir, PoolFacts};
use weir_format::dsl::pool as names;
use weir_format::{BlockPointer, DslDir, ObjectId, Txg};
use weir_machine::{Machine, Request};
use weir_pool::walk::{Claim, Prove, Root, Visit, VisitPosition, Walk};
use weir_pool::{OpenOptions, Pool};

/// A pointer to a block: where its first copy is (nowhere, if it is embedded), when it was born, and the object, level
/// and number under which it is found: one object may have the same block twice.
type Block = (u32, u64, u64, (u64, i8, u64));

/// Sizes in bytes: on the devices, compressed, as it was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Size {
    used: u64,
    compressed: u64,
    uncompressed: u64,
}

impl AddAssign for Size {
    fn add_assign(&mut self, other: Size) {
        self.used += other.used;
        self.compressed += other.compressed;
        self.uncompressed += other.uncompressed;
    }
}

impl Size {
    fn ratio(&self) -> u64 {
        (self.uncompressed * 100).checked_div(self.compressed).unwrap_or(100)
    }
}

type Blocks = BTreeMap<Block, Size>;

struct Visitor<'a> {
    pool: &'a Pool,
    blocks: Blocks,
}

impl Visit for Visitor<'_> {
    fn block(&mut self, at: &VisitPosition, pointer: &BlockPointer) -> bool {
        let metadata = pointer.level() > 0 || pointer.object_type().is_metadata();
        let compressed = if pointer.is_embedded() { 0 } else { pointer.psize_bytes() };
        let uncompressed = if metadata { compressed } else { pointer.lsize_bytes() };
        let (vdev, offset, used) = match pointer.is_embedded() {
            true => (u32::MAX, 0, 0),
            false => (pointer.dva(0).vdev, pointer.dva(0).offset_bytes, self.pool.blocks.dsize_bytes(pointer)),
        };
        let block = (vdev, offset, pointer.birth().0, (at.object, at.level, at.block));
        self.blocks.insert(block, Size { used, compressed, uncompressed });
        false
    }

    fn claim(&mut self, _: &VisitPosition, _: &BlockPointer, _: Claim) {}

    fn unreadable(&mut self, at: &VisitPosition, _: &BlockPointer, error: &weir_blocks::BlockError) {
        panic!("{at}: {error}");
    }
}

async fn contents(pool: &Pool, dataset: &Dataset) -> Blocks {
    let mut visitor = Visitor { pool, blocks: Blocks::new() };
    let walk = Walk {
        machine: pool.machine.clone(),
        blocks: pool.blocks.clone(),
        prove: Prove::Nothing,
        log_before: Txg(u64::MAX),
    };
    let root = Root { objset: dataset.objset(), pointer: dataset.phys.pointer, after: Txg(0), log: false };
    walk.run(vec![root], &mut visitor).await;
    visitor.blocks
}

fn sum(blocks: &Blocks, wanted: impl Fn(&Block) -> bool) -> Size {
    let mut out = Size::default();
    blocks.iter().filter(|(block, _)| wanted(block)).for_each(|(_, size)| out += *size);
    out
}

/// One directory, as it was counted.
struct Counted<'a> {
    dir: &'a Dir,
    /// Snapshots, the oldest first, and the head.
    line: Vec<(Dataset, Blocks)>,
    /// Blocks of a clone's origin.
    first: Blocks,
    /// Txg of the origin.
    origin: Txg,
}

impl Counted<'_> {
    async fn count<'a>(pool: &'a Pool, rq: &Request, dir: &'a Dir) -> Counted<'a> {
        let head = pool.dsl.head(rq, dir).await.unwrap();
        let snapshots = pool.dsl.snapshots(rq, dir).await.unwrap().snapshots.clone();
        let mut line = Vec::new();
        for dataset in snapshots.into_iter().chain([head]) {
            let found = contents(pool, &dataset).await;
            line.push((dataset, found));
        }
        let mut origin = Txg(0);
        let mut first = Blocks::new();
        if dir.phys.origin.0 != 0 {
            let dataset = pool.dsl.dataset(rq, dir.phys.origin, "origin".into()).await.unwrap();
            origin = dataset.phys.creation_txg;
            // The origin of all datasets has no object set.
            if !dataset.phys.pointer.is_hole() {
                first = contents(pool, &dataset).await;
            }
        }
        Counted { dir, line, first, origin }
    }

    fn before(&self, n: usize) -> &Blocks {
        if n == 0 { &self.first } else { &self.line[n - 1].1 }
    }

    /// Unique bytes of snapshot `n`.
    fn unique(&self, n: usize) -> u64 {
        let after = self.line.get(n + 1).map(|(_, blocks)| blocks);
        let alone =
            |block: &Block| !self.before(n).contains_key(block) && !after.is_some_and(|a| a.contains_key(block));
        sum(&self.line[n].1, alone).used
    }

    /// Bytes of the head, and bytes that only snapshots have.
    fn own(&self) -> (Size, Size) {
        let newest = &self.line[self.line.len() - 1].1;
        let mut rest = Blocks::new();
        self.line.iter().for_each(|(_, blocks)| rest.extend(blocks));
        let born = |block: &Block| block.2 > self.origin.0;
        (sum(newest, born), sum(&rest, |block| born(block) && !newest.contains_key(block)))
    }

    /// The numbers that the pool keeps.
    fn assert_unchanged(&self) {
        for (n, (dataset, blocks)) in self.line.iter().enumerate() {
            let phys = &dataset.phys;
            let used = phys.referenced_bytes;
            let compressed = phys.compressed_bytes;
            let said = Size { used, compressed, uncompressed: phys.uncompressed_bytes };
            assert_eq!(said, sum(blocks, |_| true), "{} refers to", dataset.name);
            assert_eq!(phys.unique_bytes, self.unique(n), "{} has alone", dataset.name);
        }
        let [in_head, in_snapshots, ..] = self.dir.phys.used_breakdown;
        let (head, snapshots) = self.own();
        let name = &self.dir.name;
        assert_eq!((in_head, in_snapshots), (head.used, snapshots.used), "{name} uses for head and snapshots");
        assert_eq!(self.dir.phys.used_bytes, self.dir.phys.used_breakdown.iter().sum::<u64>(), "{name}");
    }
}

/// Sums of a directory and all directories below it.
#[derive(Clone, Copy, Debug, Default)]
struct Total {
    size: Size,
    children: u64,
    refreservation: u64,
}

fn said(phys: &DslDir) -> Size {
    Size { used: phys.used_bytes, compressed: phys.compressed_bytes, uncompressed: phys.uncompressed_bytes }
}

/// ZFS's own directories, of which there is nothing to count here.
async fn specials(pool: &Pool, rq: &Request, root: &Dir) -> Vec<DslDir> {
    let zap = Zap::open(rq, &pool.mos.set, root.phys.children).await.unwrap();
    let mut out = Vec::new();
    for entry in zap.all(rq, 1000).await.unwrap().into_iter().filter(|e| e.key.text().starts_with('$')) {
        let object = pool.mos.set.object(rq, ObjectId(entry.value.first().unwrap())).await.unwrap();
        out.push(DslDir::decode(object.dnode.bonus(), object.dnode.endian).unwrap());
    }
    out
}

async fn stored(pool: &Pool, rq: &Request, dir: &Dir, name: &str) -> u64 {
    match pool.dsl.stored(rq, dir).await.unwrap().get(name) {
        Some(Value::Number(n)) => *n,
        _ => 0,
    }
}

/// Bytes that may still be written below a directory (`dsl_dir_space_available`).
fn available(pool: &Pool, totals: &BTreeMap<ObjectId, Total>, dir: &Dir, facts: &PoolFacts) -> u64 {
    let (parent, quota) = match pool.dsl.dir(dir.phys.parent) {
        Some(parent) => (available(pool, totals, parent, facts), u64::MAX),
        None => (u64::MAX, facts.usable_bytes),
    };
    let used = totals[&dir.id].size.used;
    let quota = if dir.phys.quota_bytes == 0 { quota } else { quota.min(dir.phys.quota_bytes) };
    quota.saturating_sub(used).min(parent.saturating_add(dir.phys.reserved_bytes.saturating_sub(used)))
}

async fn assert_property(pool: &Pool, rq: &Request, dataset: &Dataset, name: &str, expected: u64) {
    let shown = pool.dsl.property(rq, dataset, &pool.facts(), name).await.unwrap().map(|p| p.value);
    assert_eq!(shown, Some(Value::Number(expected)), "{name} of {}", dataset.name);
}

/// Demands that the properties of a directory's datasets show these sums.
async fn assert_properties(pool: &Pool, rq: &Request, counted: &Counted<'_>, totals: &BTreeMap<ObjectId, Total>) {
    let last = counted.line.len() - 1;
    for (n, (dataset, blocks)) in counted.line.iter().enumerate() {
        let all = sum(blocks, |_| true);
        let mut expected = vec![
            ("referenced", all.used),
            ("logicalreferenced", all.uncompressed),
            ("refcompressratio", all.ratio()),
            ("written", sum(blocks, |block| !counted.before(n).contains_key(block)).used),
        ];
        if n < last {
            expected.extend([("used", counted.unique(n)), ("compressratio", all.ratio())]);
        }
        for (name, value) in expected {
            assert_property(pool, rq, dataset, name, value).await;
        }
    }
    let dir = counted.dir;
    let total = &totals[&counted.dir.id];
    let (head, snapshots) = counted.own();
    let (dataset, blocks) = &counted.line[last];
    let refquota = match stored(pool, rq, dir, "refquota").await {
        0 => u64::MAX,
        quota => quota.saturating_sub(sum(blocks, |_| true).used),
    };
    let room = available(pool, totals, dir, &pool.facts()).saturating_add(total.refreservation).min(refquota);
    let expected = [
        ("used", total.size.used),
        ("usedbydataset", head.used),
        ("usedbysnapshots", snapshots.used),
        ("usedbychildren", total.children),
        ("usedbyrefreservation", total.refreservation),
        ("logicalused", total.size.uncompressed),
        ("compressratio", total.size.ratio()),
        ("available", room),
    ];
    for (name, value) in expected {
        assert_property(pool, rq, dataset, name, value).await;
    }
    for (since, old) in &counted.line[..last] {
        let name = format!("written@{}", since.name.split('@').nth(1).unwrap());
        let value = sum(blocks, |block| !old.contains_key(block)).used;
        assert_property(pool, rq, dataset, &name, value).await;
    }
}

/// Demands that the used bytes of all datasets of the pool in `dir` are right on disk and in their properties.
pub async fn assert_exact(machine: &Machine, dir: &Path, name: &str) {
    let rq = &Request::internal("test");
    let pool = Pool::open(machine, &OpenOptions::new(vec![dir.to_owned()], name)).await.unwrap();
    let mut totals: BTreeMap<ObjectId, Total> = BTreeMap::new();
    let mut all = Vec::new();
    // The children first.
    for of in pool.dsl.dirs().into_iter().rev() {
        let mut total = Total::default();
        let own = if of.phys.parent.0 == 0 { specials(&pool, rq, of).await } else { Vec::new() };
        let children = of.children.iter().filter_map(|id| Some((totals.get(id)?.size, pool.dsl.dir(*id)?)));
        let reserved = children.map(|(size, child)| (size, child.phys.reserved_bytes));
        for (size, reserved) in reserved.chain(own.iter().map(|phys| (said(phys), phys.reserved_bytes))) {
            total.size += Size { used: 0, ..size };
            total.children += size.used.max(reserved);
        }
        if of.crypto_key().is_some() {
            // Its blocks cannot be identified by their contents.
            totals.insert(of.id, Total { size: said(&of.phys), ..total });
            continue;
        }
        let counted = Counted::count(&pool, rq, of).await;
        counted.assert_unchanged();
        let (head, snapshots) = counted.own();
        total.refreservation =
            stored(&pool, rq, of, "refreservation").await.saturating_sub(counted.unique(counted.line.len() - 1));
        total.size += head;
        total.size += snapshots;
        total.size.used += total.children + total.refreservation;
        totals.insert(of.id, total);
        all.push(counted);
    }
    // Older pools keep no such sums.
    if pool.config.version >= 5000 {
        for counted in &all {
            assert_properties(&pool, rq, counted, &totals).await;
        }
    }
}

/// Demands that zdb reads the numbers that the properties show.
pub async fn assert_as_zdb(machine: &Machine, dir: &Path, name: &str) {
    let Some(tools) = zdb::tools() else { return };
    let (code, text) = zdb::zdb(&tools, dir, &["-Pdddd", name]);
    assert_eq!(code, 0, "zdb -Pdddd {name}");
    let theirs = numbers(&text);
    let rq = &Request::internal("test");
    let pool = Pool::open(machine, &OpenOptions::new(vec![dir.to_owned()], name)).await.unwrap();
    let dirs = pool.dsl.dirs();
    assert!(!dirs.is_empty() && pool.mos.named(rq, names::ROOT_DATASET).await.unwrap().is_some());
    for of in dirs {
        let line = pool.dsl.snapshots(rq, of).await.unwrap().snapshots.clone();
        let head = pool.dsl.head(rq, of).await.unwrap();
        let zdb = |id: ObjectId, name: &str| {
            *theirs.get(&(id.0, name.to_owned())).unwrap_or_else(|| panic!("zdb tells no {name} of object {id}"))
        };
        for dataset in line.iter().chain([&head]) {
            assert_property(&pool, rq, dataset, "referenced", zdb(dataset.id, "used_bytes")).await;
            assert_property(&pool, rq, dataset, "logicalreferenced", zdb(dataset.id, "uncompressed_bytes")).await;
            assert_eq!(dataset.phys.unique_bytes, zdb(dataset.id, "unique"), "{}", dataset.name);
        }
        let part = |name: &str| zdb(of.id, &format!("used_breakdown[{name}]"));
        let expected = [
            ("used", zdb(of.id, "used_bytes")),
            ("logicalused", zdb(of.id, "uncompressed_bytes")),
            ("usedbydataset", part("HEAD")),
            ("usedbysnapshots", part("SNAP")),
            ("usedbychildren", part("CHILD") + part("CHILD_RSRV")),
            ("usedbyrefreservation", part("REFRSRV")),
        ];
        for (name, value) in expected {
            assert_property(&pool, rq, &head, name, value).await;
        }
    }
}

/// The numbers in zdb's listing of the MOS, by object and name.
fn numbers(text: &str) -> BTreeMap<(u64, String), u64> {
    let mut out = BTreeMap::new();
    let mut object = 0;
    let mut header = false;
    for line in text.lines() {
        if line.starts_with("Dataset ") && !line.starts_with("Dataset mos ") {
            break;
        }
        if header {
            object = line.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0);
        }
        header = line.trim_start().starts_with("Object  lvl");
        if let Some((name, value)) = line.trim().split_once(" = ")
            && let Ok(value) = value.parse()
        {
            out.insert((object, name.to_owned()), value);
        }
    }
    out
}
