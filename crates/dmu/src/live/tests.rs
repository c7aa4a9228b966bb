use super::*;
use crate::error::ObjectError;
use crate::object_set::ObjectSet;
use crate::read::Seek;
use crate::txg::TxgTracker;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_format::{ChecksumKind, CompressionKind, ObjectId, ObjectType, ObjsetId, ObjsetKind, Txg};
use weir_machine::{Request, Source};
use weir_sim::SimWorld;

#[derive(Clone, Debug)]
enum Step {
    Write(u64, Vec<u8>),
    Punch(u64, u64),
    Truncate(u64),
    /// The open txg closes: the following steps are in another one.
    Close,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let at = 0u64..6000;
    let step = prop_oneof![
        4 => (at.clone(), proptest::collection::vec(1u8.., 1..1500)).prop_map(|(at, bytes)| Step::Write(at, bytes)),
        2 => (at.clone(), 0u64..3000).prop_map(|(at, len)| Step::Punch(at, len)),
        1 => at.prop_map(Step::Truncate),
        1 => Just(Step::Close),
    ];
    proptest::collection::vec(step, 1..24)
}

/// Plays `steps`; returns the set's bytes, and where data begins at or after each block.
async fn play(set: &Arc<ObjectSet>, txgs: &Arc<TxgTracker>, steps: &[Step]) -> Result<(), ObjectError> {
    const END: u64 = 8192;
    let rq = &Request::internal("test");
    let tx = set.begin(rq, 0, SpaceReserve::Normal).await?;
    let id = set.changes().create(rq, &tx, &NewObject::new(ObjectType::PLAIN_FILE_CONTENTS, 512)).await?;
    drop(tx);
    let mut model = vec![0u8; END as usize];
    for step in steps {
        let tx = set.begin(rq, 0, SpaceReserve::Normal).await?;
        match step {
            Step::Write(at, bytes) => {
                set.writes().write(rq, &tx, id, *at, bytes).await?;
                model[*at as usize..*at as usize + bytes.len()].copy_from_slice(bytes);
            }
            Step::Punch(at, len) => {
                set.frees().punch(rq, &tx, id, *at, *len).await?;
                model[*at as usize..(*at + *len).min(END) as usize].fill(0);
            }
            Step::Truncate(at) => {
                set.frees().punch(rq, &tx, id, *at, u64::MAX).await?;
                model[*at as usize..].fill(0);
            }
            Step::Close => {
                drop(tx);
                txgs.quiesce().await;
                continue;
            }
        }
        let object = set.object(rq, id).await?;
        let reading = &Request::internal("test");
        assert_eq!(set.reader().read(reading, &object, 0, END as usize, END).await?, model);
        let sources = [Source::Dirty, Source::Hole].map(|source| reading.answered_bytes(source));
        assert_eq!(sources.iter().sum::<u64>(), END, "bytes by source: dirty, holes {sources:?}");
        let mut at = 0;
        while let Some(data) = set.reader().seek(rq, &object, at, END, Seek::Data).await? {
            assert!(model[at as usize..data as usize].iter().all(|b| *b == 0), "data before {data}");
            at = set.reader().seek(rq, &object, data, END, Seek::Hole).await?.unwrap_or(END);
        }
        assert!(model[at as usize..].iter().all(|b| *b == 0), "data after {at}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn unsynced_changes_read_like_an_array_of_bytes(steps in steps()) {
        let world = SimWorld::new(7);
        let machine = world.machine();
        let set = scratch(&machine, ObjsetKind::Zfs);
        let txgs = set.live().unwrap().admission.txgs().clone();
        world.run(async move { play(&set, &txgs, &steps).await.unwrap() }).unwrap();
    }
}

#[test]
fn objects_come_and_go() {
    let world = SimWorld::new(7);
    let machine = world.machine();
    let set = scratch(&machine, ObjsetKind::Zfs);
    let run = world.run(async move {
        let rq = &Request::internal("test");
        let tx = set.begin(rq, 0, SpaceReserve::Half).await.unwrap();
        assert_eq!(tx.txg(), Txg(4));
        let new = NewObject::new(ObjectType::MASTER_NODE, 512);
        set.changes().create_at(rq, &tx, ObjectId(1), &new).await.unwrap();
        assert!(matches!(set.changes().create_at(rq, &tx, ObjectId(1), &new).await, Err(ObjectError::Exists { .. })));
        let large = NewObject { slots: 2, ..new.clone() }.bonus(ObjectType::SA, vec![7; 700]);
        let a = set.changes().create(rq, &tx, &large).await.unwrap();
        let b = set.changes().create(rq, &tx, &new).await.unwrap();
        assert_eq!((a, b), (ObjectId(2), ObjectId(4)));
        let object = set.object(rq, a).await.unwrap();
        assert_eq!((object.dnode.bonus().len(), object.dnode.block_pointers.len()), (700, 1));
        set.changes().set_bonus(rq, &tx, a, ObjectType::SA, &[1, 2]).await.unwrap();
        assert_eq!(set.object(rq, a).await.unwrap().dnode.bonus(), [1, 2]);
        set.changes().set_spill(rq, &tx, a, Some(vec![5; 512].into())).await.unwrap();
        let object = set.object(rq, a).await.unwrap();
        assert_eq!(set.reader().read_spill(rq, &object).await.unwrap().unwrap().0[..], [5; 512]);
        set.frees().remove(rq, &tx, b).await.unwrap();
        assert!(set.object(rq, b).await.is_err_and(|e| e.is_absent()));
        assert!(set.frees().remove(rq, &tx, b).await.is_err());
        set.writes().write(rq, &tx, a, 0, b"ab").await.unwrap();
        set.changes().set_block_bytes(rq, &tx, a, 1024).await.unwrap();
        let object = set.object(rq, a).await.unwrap();
        assert_eq!(set.reader().read(rq, &object, 0, 4096, 3).await.unwrap()[..], *b"ab\0");
        set.writes().write(rq, &tx, a, 1024, b"c").await.unwrap();
        assert!(set.changes().set_block_bytes(rq, &tx, a, 2048).await.is_err(), "two blocks");
    });
    run.unwrap();
}

/// A live object set on a simulated disk, and the results of its syncs.
struct OnDisk {
    set: Arc<ObjectSet>,
    txgs: Arc<TxgTracker>,
    cache: Arc<weir_cache::Cache>,
    alive: std::collections::BTreeSet<[u64; 16]>,
}

fn on_disk(world: &SimWorld, policy: Policy) -> OnDisk {
    use weir_blocks::vdev::VdevSpec;
    use weir_blocks::{Blocks, Class, Tree, VdevGrid};
    world.add_disk("/d", 40 << 20, 512, weir_sim::Timing::Nvme);
    let machine = world.machine();
    let disk = machine.disks.open("/d".as_ref(), weir_machine::Access::ReadWrite).unwrap();
    let top = VdevSpec { ashift: 9, ..VdevSpec::leaf(0, 1, "d", Some(disk)) };
    let tree = Tree::new(vec![top], &machine.clock).unwrap();
    tree.set_writable(true);
    let blocks = Arc::new(Blocks::new(&machine, tree, weir_codec::Salt::none()));
    let grid = VdevGrid { vdev: 0, class: Class::Normal, metaslab_shift: 22, metaslab_count: 8, non_allocating: false };
    blocks.add_vdev(&grid).unwrap();
    for i in 0..8 {
        blocks.metaslabs().set_free(0, i, std::slice::from_ref(&(i << 22..(i + 1) << 22))).unwrap();
    }
    let cache = weir_cache::Cache::new(machine, blocks, 1 << 20);
    let txgs = TxgTracker::new(Txg(3));
    let admission = Arc::new(UnlimitedTxAdmission(txgs.clone()));
    let set = ObjectSet::make(cache.clone(), ObjsetId(54), ObjsetKind::Zfs, admission, policy);
    OnDisk { set, txgs, cache, alive: Default::default() }
}

impl OnDisk {
    /// Closes the open txg, syncs it, frees the blocks that it killed, and opens the result from its pointer alone.
    async fn sync(&mut self, rq: &Request) -> Arc<ObjectSet> {
        let txg = self.txgs.quiesce().await;
        self.sync_txg(rq, txg).await
    }

    /// Syncs a closed txg.
    async fn sync_txg(&mut self, rq: &Request, txg: Txg) -> Arc<ObjectSet> {
        let blocks = self.cache.blocks().clone();
        if let Some(outcome) = self.set.syncing().sync(rq, txg).await.unwrap() {
            // Two embedded blocks may be equal to the last bit.
            for killed in outcome.killed.iter().filter(|k| !k.pointer.is_embedded()) {
                assert!(self.alive.remove(killed.pointer.words()), "{killed:?} was not alive");
                blocks.free(rq, &killed.pointer, txg).await.unwrap();
            }
            for born in outcome.born.iter().filter(|p| !p.is_embedded()) {
                assert!(self.alive.insert(*born.words()), "{born:?} was born twice");
            }
        }
        blocks.take_changes(txg);
        blocks.synced(txg, true);
        self.txgs.synced(txg);
        assert!(!self.set.syncing().is_dirty(txg));
        let cache = weir_cache::Cache::new(self.cache.machine().clone(), blocks, 1 << 20);
        let opening = crate::Opening { id: ObjsetId(54), ..crate::Opening::default() };
        ObjectSet::open(rq, cache, self.set.pointer(), opening).await.unwrap()
    }
}

impl OnDisk {
    /// Checks the used bytes of the dnodes.
    async fn count(&self, rq: &Request, synced: &Arc<ObjectSet>, files: impl Iterator<Item = &ObjectId>) {
        let blocks = self.cache.blocks();
        let of = |words: &[u64; 16]| blocks.dsize_bytes(&weir_format::BlockPointer::from_words(*words));
        let used: u64 = self.alive.iter().map(of).sum();
        let mut counted = blocks.dsize_bytes(&synced.pointer()) + synced.meta().map_or(0, |m| m.dnode.used_bytes());
        for id in files {
            counted += synced.object(rq, *id).await.unwrap().dnode.used_bytes();
        }
        assert_eq!(used, counted);
    }
}

/// Changes a few objects at random, syncs sometimes, and compares the result on disk with a model.
async fn live_and_sync(mut pool: OnDisk, mut rng: weir_sim::Rng) {
    const END: u64 = 600 << 10;
    let rq = &Request::internal("test");
    let mut files: BTreeMap<ObjectId, Vec<u8>> = BTreeMap::new();
    for _ in 0..rng.below(12) + 3 {
        for _ in 0..rng.below(12) {
            let tx = pool.set.begin(rq, 0, SpaceReserve::Normal).await.unwrap();
            if files.len() < 3 || rng.below(12) == 0 {
                let shift = 9 + rng.below(3) as u32;
                let small =
                    NewObject { indirect_shift: 10, ..NewObject::new(ObjectType::PLAIN_FILE_CONTENTS, 1 << shift) };
                let small = small.bonus(ObjectType::SA, vec![1; 100]);
                files.insert(pool.set.changes().create(rq, &tx, &small).await.unwrap(), vec![0; END as usize]);
            }
            let nth = rng.below(files.len() as u64) as usize;
            let (id, model) = files.iter_mut().nth(nth).unwrap();
            let (id, at) = (*id, rng.below(END - 9000));
            let len = rng.below(9000);
            match rng.below(9) {
                0 => {
                    pool.set.frees().remove(rq, &tx, id).await.unwrap();
                    files.remove(&id);
                }
                1 => {
                    pool.set.frees().punch(rq, &tx, id, at, u64::MAX).await.unwrap();
                    model[at as usize..].fill(0);
                }
                2 => {
                    pool.set.frees().punch(rq, &tx, id, at, len * 9).await.unwrap();
                    model[at as usize..(at + len * 9).min(END) as usize].fill(0);
                }
                3 => {
                    let spill = (rng.below(2) == 0).then(|| vec![3; 512].into());
                    pool.set.changes().set_spill(rq, &tx, id, spill).await.unwrap();
                }
                // The bytes that it has.
                4 => {
                    let bytes = &model[at as usize..(at + len) as usize];
                    pool.set.writes().write(rq, &tx, id, at, bytes).await.unwrap();
                }
                _ => {
                    let at = if rng.below(2) == 0 { at / 32 } else { at };
                    let bytes: Vec<u8> = (0..len).map(|_| rng.below(255) as u8 + 1).collect();
                    pool.set.writes().write(rq, &tx, id, at, &bytes).await.unwrap();
                    model[at as usize..(at + len) as usize].copy_from_slice(&bytes);
                }
            }
        }
        let synced = pool.sync(rq).await;
        assert_eq!(synced.objects_used(), files.len() as u64);
        for set in [&pool.set, &synced] {
            for (id, model) in &files {
                let object = set.object(rq, *id).await.unwrap();
                assert_eq!(
                    set.reader().read(rq, &object, 0, END as usize, END).await.unwrap()[..],
                    model[..],
                    "object {id}"
                );
            }
        }
        for id in files.keys() {
            demand_levels(rq, &synced, &synced.object(rq, *id).await.unwrap()).await;
        }
        if let Some(meta) = synced.meta() {
            demand_levels(rq, &synced, &meta).await;
        }
        pool.count(rq, &synced, files.keys()).await;
    }
    let tx = pool.set.begin(rq, 0, SpaceReserve::NetFree).await.unwrap();
    for id in files.keys() {
        pool.set.frees().remove(rq, &tx, *id).await.unwrap();
    }
    drop(tx);
    pool.sync(rq).await;
    assert_eq!(pool.alive.len(), 1, "the header alone is left");
}

/// Demands that each pointer of an object, including holes with a birth, has the level, size and type of its position.
async fn demand_levels(rq: &Request, set: &Arc<ObjectSet>, object: &crate::object::Object) {
    let dnode = &object.dnode;
    let mut stack: Vec<(u8, u64, weir_format::BlockPointer)> =
        (0..).zip(&dnode.block_pointers).map(|(n, top)| (dnode.levels - 1, n, *top)).collect();
    while let Some((level, number, pointer)) = stack.pop() {
        if pointer.is_null() {
            continue;
        }
        let lsize_bytes = if level == 0 { object.block_bytes() } else { 1 << dnode.indirect_shift };
        let found = (pointer.level(), pointer.lsize_bytes(), pointer.object_type());
        assert_eq!(found, (level, lsize_bytes, dnode.object_type), "object {} block {number}: {pointer:?}", object.id);
        if level == 0 || pointer.is_hole() {
            continue;
        }
        let place = set.place(object.id, level, number);
        let bytes = set.cache().read(rq, &pointer, &set.options_at(place)).await.unwrap();
        let count = bytes.len() / weir_format::BlockPointer::SIZE;
        let below: Vec<_> = (0..count).map(|i| crate::read::pointer_in(&bytes, &pointer, i).unwrap()).collect();
        assert!(below.iter().any(|p| !p.is_hole()), "an indirect block of holes alone");
        stack.extend((0..).zip(below).map(|(i, p)| (level - 1, number * count as u64 + i, p)));
    }
}

#[test]
fn a_tree_of_holes_grows_without_holes_of_a_lower_level() {
    let world = SimWorld::new(3);
    let mut pool = on_disk(&world, Policy::default());
    let run = world.run(async move {
        let rq = &Request::internal("test");
        let tx = pool.set.begin(rq, 0, SpaceReserve::Normal).await.unwrap();
        let new = NewObject { indirect_shift: 17, ..NewObject::new(ObjectType::PLAIN_FILE_CONTENTS, 8192) };
        let id = pool.set.changes().create(rq, &tx, &new).await.unwrap();
        pool.set.writes().write(rq, &tx, id, 0, &[1; 8192]).await.unwrap();
        drop(tx);
        pool.sync(rq).await;
        let tx = pool.set.begin(rq, 0, SpaceReserve::Normal).await.unwrap();
        pool.set.frees().punch(rq, &tx, id, 0, u64::MAX).await.unwrap();
        drop(tx);
        pool.sync(rq).await;
        let tx = pool.set.begin(rq, 0, SpaceReserve::Normal).await.unwrap();
        pool.set.writes().write(rq, &tx, id, 418_508, &[2; 28_021]).await.unwrap();
        pool.set.frees().punch(rq, &tx, id, 81_610, u64::MAX).await.unwrap();
        let txg = tx.txg();
        drop(tx);
        let synced = pool.sync(rq).await;
        let object = synced.object(rq, id).await.unwrap();
        assert_eq!(object.dnode.levels, 2);
        demand_levels(rq, &synced, &object).await;
        let top = object.dnode.block_pointers[0];
        assert_eq!((top.is_hole(), top.logical_birth()), (true, txg), "the hole keeps a birth");
        // A part of the hole that an indirect block replaces keeps the birth, too.
        let tx = pool.set.begin(rq, 0, SpaceReserve::Normal).await.unwrap();
        pool.set.writes().write(rq, &tx, id, 3 * 8192, &[3; 8192]).await.unwrap();
        drop(tx);
        let synced = pool.sync(rq).await;
        let object = synced.object(rq, id).await.unwrap();
        demand_levels(rq, &synced, &object).await;
        let top = object.dnode.block_pointers[0];
        let bytes = synced.cache().read(rq, &top, &synced.options_at(synced.place(id, 1, 0))).await.unwrap();
        let births: Vec<Txg> =
            [0, 2, 900].map(|i| crate::read::pointer_in(&bytes, &top, i).unwrap().logical_birth()).into();
        assert_eq!(births, [txg; 3]);
    });
    run.unwrap();
}

#[test]
fn a_bonus_area_grows_into_the_place_of_a_spill_block() {
    let world = SimWorld::new(3);
    let mut pool = on_disk(&world, Policy::default());
    let run = world.run(async move {
        let rq = &Request::internal("test");
        let tx = pool.set.begin(rq, 0, SpaceReserve::Normal).await.unwrap();
        let new = NewObject::new(ObjectType::PLAIN_FILE_CONTENTS, 512).bonus(ObjectType::SA, vec![1; 150]);
        let id = pool.set.changes().create(rq, &tx, &new).await.unwrap();
        pool.set.changes().set_spill(rq, &tx, id, Some(vec![5; 512].into())).await.unwrap();
        assert!(pool.set.changes().set_bonus(rq, &tx, id, ObjectType::SA, &[2; 192]).await.is_ok());
        drop(tx);
        pool.sync(rq).await;
        for close in [false, true] {
            let tx = pool.set.begin(rq, 0, SpaceReserve::Normal).await.unwrap();
            assert!(pool.set.changes().set_bonus(rq, &tx, id, ObjectType::SA, &[3; 193]).await.is_err());
            pool.set.changes().set_spill(rq, &tx, id, None).await.unwrap();
            pool.set.changes().set_bonus(rq, &tx, id, ObjectType::SA, &[4; 320]).await.unwrap();
            drop(tx);
            if close {
                let synced = pool.sync(rq).await;
                assert_eq!(synced.object(rq, id).await.unwrap().dnode.bonus(), [4; 320]);
            }
            assert_eq!(pool.set.object(rq, id).await.unwrap().dnode.bonus(), [4; 320]);
            let tx = pool.set.begin(rq, 0, SpaceReserve::Normal).await.unwrap();
            pool.set.changes().set_bonus(rq, &tx, id, ObjectType::SA, &[2; 192]).await.unwrap();
            pool.set.changes().set_spill(rq, &tx, id, Some(vec![6; 512].into())).await.unwrap();
        }
        let synced = pool.sync(rq).await;
        let object = synced.object(rq, id).await.unwrap();
        assert_eq!(object.dnode.bonus(), [2; 192]);
        assert_eq!(synced.reader().read_spill(rq, &object).await.unwrap().unwrap().0[..], [6; 512]);
    });
    run.unwrap();
}

#[test]
fn what_is_synced_is_what_was_there() {
    for seed in 0..12 {
        let world = SimWorld::new(seed);
        // Every other one leaves out writes of what is there.
        let checksum = if seed.is_multiple_of(2) { ChecksumKind::Fletcher4 } else { ChecksumKind::Sha256 };
        let pool = on_disk(&world, Policy { checksum, ..Policy::default() });
        world.run(live_and_sync(pool, weir_sim::Rng::new(seed))).unwrap();
    }
}

#[test]
fn a_block_that_equals_the_one_that_it_replaces_is_not_written() {
    const BLOCKS: u64 = 5;
    let lz4 = CompressionKind::Lz4;
    let cases = [
        (ChecksumKind::Sha256, lz4, 1, true),
        (ChecksumKind::Blake3, CompressionKind::Zle, 2, true),
        (ChecksumKind::Fletcher4, lz4, 1, false),
        (ChecksumKind::Sha256, CompressionKind::Off, 1, false),
    ];
    for (checksum, compression, copies, stays) in cases {
        let world = SimWorld::new(8);
        let mut pool = on_disk(&world, Policy { checksum, compression, copies, ..Policy::default() });
        let run = world.run(async move {
            let rq = &Request::internal("test");
            let new = &NewObject::new(ObjectType::PLAIN_FILE_CONTENTS, 1024);
            let id = ObjectId(1);
            let mut rng = weir_sim::Rng::new(1);
            let data: Vec<u8> = (0..BLOCKS * 1024).map(|_| rng.below(256) as u8).collect();
            let tx = pool.set.begin(rq, 0, SpaceReserve::Normal).await.unwrap();
            pool.set.changes().create_at(rq, &tx, id, new).await.unwrap();
            pool.set.writes().write(rq, &tx, id, 0, &data).await.unwrap();
            drop(tx);
            let pointers = async |set: &Arc<ObjectSet>| {
                let object = set.object(rq, id).await.unwrap();
                let mut out = Vec::new();
                for n in 0..BLOCKS {
                    out.push(set.pointers().at(rq, &object, 0, n).await.unwrap());
                }
                out
            };
            let before = pointers(&pool.sync(rq).await).await;
            // The second block differs; the third is freed, and written again in the same txg.
            let mut changed = data.clone();
            changed[1024] ^= 1;
            let tx = pool.set.begin(rq, 0, SpaceReserve::Normal).await.unwrap();
            pool.set.frees().punch(rq, &tx, id, 2048, 1024).await.unwrap();
            pool.set.writes().write(rq, &tx, id, 0, &changed).await.unwrap();
            let placed = pool.set.writes().place_block(rq, &tx, id, 0).await.unwrap();
            assert_eq!(placed == before[0], stays, "a block that the intent log refers to");
            drop(tx);
            let synced = pool.sync(rq).await;
            let after = pointers(&synced).await;
            let same: Vec<bool> = before.iter().zip(&after).map(|(old, new)| old == new).collect();
            assert_eq!(same, [stays, false, stays, stays, stays], "{checksum:?} {compression:?}");
            let object = synced.object(rq, id).await.unwrap();
            assert_eq!(synced.reader().read(rq, &object, 0, changed.len(), u64::MAX).await.unwrap()[..], changed[..]);
            pool.count(rq, &synced, std::iter::once(&id)).await;
            // A closed txg that has not synced replaces the fourth block, the open one writes the old bytes again: the log must not
            // refer to the old block, whose space may be used anew before the open txg has synced.
            let tx = pool.set.begin(rq, 0, SpaceReserve::Normal).await.unwrap();
            pool.set.writes().write(rq, &tx, id, 3072, &[7; 1024]).await.unwrap();
            drop(tx);
            let closed = pool.txgs.quiesce().await;
            let tx = pool.set.begin(rq, 0, SpaceReserve::Normal).await.unwrap();
            pool.set.writes().write(rq, &tx, id, 3072, &changed[3072..4096]).await.unwrap();
            let placed = pool.set.writes().place_block(rq, &tx, id, 3).await.unwrap();
            assert_ne!(placed, after[3]);
            drop(tx);
            pool.sync_txg(rq, closed).await;
            let synced = pool.sync(rq).await;
            let object = synced.object(rq, id).await.unwrap();
            assert_eq!(synced.reader().read(rq, &object, 0, changed.len(), u64::MAX).await.unwrap()[..], changed[..]);
        });
        run.unwrap();
    }
}

#[test]
fn numbers_of_objects_that_sync_while_their_block_is_read_are_taken() {
    let world = SimWorld::new(5);
    let mut pool = on_disk(&world, Policy::default());
    let run = world.run(async move {
        let rq = &Request::internal("test");
        let new = &NewObject::new(ObjectType::PLAIN_FILE_CONTENTS, 512);
        let tx = pool.set.begin(rq, 0, SpaceReserve::Normal).await.unwrap();
        pool.set.changes().create_at(rq, &tx, ObjectId(1), new).await.unwrap();
        drop(tx);
        pool.sync(rq).await;
        let tx = pool.set.begin(rq, 0, SpaceReserve::Normal).await.unwrap();
        pool.set.changes().create_at(rq, &tx, ObjectId(2), new).await.unwrap();
        drop(tx);
        let txg = pool.txgs.quiesce().await;
        pool.cache.clear();
        let tx = pool.set.begin(rq, 0, SpaceReserve::Normal).await.unwrap();
        // A reader, the creation of an object and the sync wait for one read of the block of dnodes; the creation goes on last.
        let mut read = std::pin::pin!(pool.set.dnodes().in_block(rq, 0));
        assert!(futures_util::poll!(&mut read).is_pending());
        let mut create = std::pin::pin!(pool.set.changes().create(rq, &tx, new));
        assert!(futures_util::poll!(&mut create).is_pending());
        let (read, synced) = futures_util::future::join(read, pool.set.syncing().sync(rq, txg)).await;
        assert_eq!(read.unwrap().len(), 1, "object 2 is not in the block that was read");
        assert!(synced.unwrap().is_some());
        pool.txgs.synced(txg);
        assert_eq!(create.await.unwrap(), ObjectId(3));
    });
    run.unwrap();
}
