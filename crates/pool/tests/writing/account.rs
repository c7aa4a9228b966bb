//! What data sets use, counted by hand: every block of every head and snapshot is visited, and the sums must be the numbers
//! that the pool keeps.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use weir_format::{BlockPointer, Txg};
use weir_machine::{Machine, Request};
use weir_objects::Dataset;
use weir_pool::walk::{At, Claim, Prove, Root, Visit, Walk};
use weir_pool::{OpenOptions, Pool};

/// A pointer to a block: where its first copy is, when it was born, and the object, level and number under which it is
/// found: one object may have the same block twice.
type Block = (u32, u64, u64, (u64, i8, u64));

/// All blocks of one data set, and what they add up to.
#[derive(Default)]
struct Contents {
    blocks: BTreeMap<Block, u64>,
    compressed: u64,
    uncompressed: u64,
}

struct Visitor<'a> {
    pool: &'a Pool,
    contents: Contents,
}

impl Visit for Visitor<'_> {
    fn block(&mut self, at: &At, pointer: &BlockPointer) -> bool {
        let metadata = pointer.level() > 0 || pointer.object_type().is_metadata();
        let stored = if pointer.is_embedded() { 0 } else { pointer.psize_bytes() };
        self.contents.compressed += stored;
        self.contents.uncompressed += if metadata { stored } else { pointer.lsize_bytes() };
        if !pointer.is_embedded() {
            let place = pointer.dva(0);
            let block = (place.vdev, place.offset_bytes, pointer.birth().0, (at.object, at.level, at.block));
            self.contents.blocks.insert(block, self.pool.blocks.dsize_bytes(pointer));
        }
        false
    }

    fn claim(&mut self, _: &At, _: &BlockPointer, _: Claim) {}

    fn unreadable(&mut self, at: &At, _: &BlockPointer, error: &weir_blocks::BlockError) {
        panic!("{at}: {error}");
    }
}

async fn contents(pool: &Pool, dataset: &Dataset) -> Contents {
    let mut visitor = Visitor { pool, contents: Contents::default() };
    let walk = Walk {
        machine: pool.machine.clone(),
        blocks: pool.blocks.clone(),
        prove: Prove::Nothing,
        log_before: Txg(u64::MAX),
    };
    let root = Root { objset: dataset.objset(), pointer: dataset.phys.pointer, after: Txg(0), log: false };
    walk.run(vec![root], &mut visitor).await;
    visitor.contents
}

fn sum(blocks: &BTreeMap<Block, u64>, wanted: impl Fn(&Block) -> bool) -> u64 {
    blocks.iter().filter(|(block, _)| wanted(block)).map(|(_, size)| size).sum()
}

/// Demands that all data sets of the pool in `dir` say what they use.
pub async fn demand_exact(machine: &Machine, dir: &Path, name: &str) {
    let rq = &Request::internal("test");
    let pool = Pool::open(machine, &OpenOptions::new(vec![dir.to_owned()], name)).await.unwrap();
    for of in pool.dsl.dirs().into_iter().filter(|dir| dir.crypto_key().is_none()) {
        let head = pool.dsl.head(rq, of).await.unwrap();
        let snapshots = pool.dsl.snapshots(rq, of).await.unwrap();
        let mut line = Vec::new();
        for dataset in snapshots.snapshots.iter().chain([&head]) {
            let found = contents(&pool, dataset).await;
            let phys = &dataset.phys;
            let said = (phys.referenced_bytes, phys.compressed_bytes, phys.uncompressed_bytes);
            let counted = (sum(&found.blocks, |_| true), found.compressed, found.uncompressed);
            assert_eq!(said, counted, "{} refers to", dataset.name);
            line.push(found.blocks);
        }
        let (mut origin, mut first) = (Txg(0), BTreeMap::new());
        if of.phys.origin.0 != 0 {
            let dataset = pool.dsl.dataset(rq, of.phys.origin, "origin".into()).await.unwrap();
            origin = dataset.phys.creation_txg;
            // What all data sets begin with has no object set.
            if !dataset.phys.pointer.is_hole() {
                first = contents(&pool, &dataset).await.blocks;
            }
        }
        let none = BTreeMap::new();
        for (n, dataset) in snapshots.snapshots.iter().chain([&head]).enumerate() {
            let before = if n == 0 { &first } else { &line[n - 1] };
            let after = line.get(n + 1).unwrap_or(&none);
            let own = sum(&line[n], |block| !before.contains_key(block) && !after.contains_key(block));
            assert_eq!(dataset.phys.unique_bytes, own, "{} has alone", dataset.name);
        }
        let newest = &line[line.len() - 1];
        let of_head = sum(newest, |block| block.2 > origin.0);
        let mut rest: BTreeSet<(Block, u64)> = BTreeSet::new();
        line.iter().for_each(|blocks| rest.extend(blocks.iter().map(|(b, s)| (*b, *s))));
        let wanted = |(block, _): &&(Block, u64)| block.2 > origin.0 && !newest.contains_key(block);
        let of_snapshots: u64 = rest.iter().filter(wanted).map(|(_, size)| size).sum();
        let [in_head, in_snapshots, ..] = of.phys.used_breakdown;
        assert_eq!((in_head, in_snapshots), (of_head, of_snapshots), "{} uses for head and snapshots", of.name);
        assert_eq!(of.phys.used_bytes, of.phys.used_breakdown.iter().sum::<u64>(), "{}", of.name);
    }
}
