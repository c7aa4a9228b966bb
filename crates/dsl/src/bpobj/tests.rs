//! Lists of block pointers and deadlists against models.

use crate::bpobj::{self, EmptyList, Sums, Walk};
use crate::deadlist;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_dmu::live::scratch;
use weir_dmu::zap::{self, NewZap};
use weir_dmu::{ObjectSet, SpaceReserve, Tx};
use weir_format::dsl::pool;
use weir_format::{BlockPointer, ObjectId, ObjectType, ObjsetKind, Txg};
use weir_machine::Request;
use weir_sim::SimWorld;

struct World {
    rq: Request,
    mos: Arc<ObjectSet>,
    tx: Tx,
}

/// Runs `body` on a MOS that is on no disk and has an object directory.
fn on_scratch<F: Future<Output = ()> + Send + 'static>(body: impl FnOnce(World) -> F + Send + 'static) {
    let world = SimWorld::new(1);
    let machine = world.machine();
    let run = world.run(async move {
        let rq = Request::default();
        let mos = scratch(&machine, ObjsetKind::Meta);
        let tx = mos.begin(&rq, 0, SpaceReserve::Normal).await.unwrap();
        let directory = NewZap::new(ObjectType::OBJECT_DIRECTORY);
        zap::create_at(&rq, &mos, &tx, ObjectId(pool::DIRECTORY_OBJECT), &directory).await.unwrap();
        body(World { rq, mos, tx }).await;
    });
    run.unwrap();
}

/// The pointer with number `n`, born in `birth`.
fn pointer(n: u64, birth: u64) -> BlockPointer {
    let mut words = [0; 16];
    (words[0], words[1]) = (8, n * 8 + 1);
    // 4 KiB stored of 8 KiB, of a plain file.
    words[6] = 1 << 63 | 19 << 48 | 7 << 40 | 15 << 32 | 7 << 16 | 15;
    (words[10], words[11]) = (birth, 1);
    words[12..].fill(n);
    BlockPointer::from_words(words)
}

fn number(pointer: &BlockPointer) -> u64 {
    pointer.words()[1] / 8
}

fn dsize(pointer: &BlockPointer) -> u64 {
    pointer.asize_bytes() * 2
}

fn sums(count: usize) -> Sums {
    let n = count as u64;
    Sums { used_bytes: n * 8192, compressed_bytes: n * 4096, uncompressed_bytes: n * 8192 }
}

impl World {
    async fn contents(&self, list: ObjectId) -> Vec<u64> {
        let mut walk = Walk::new(list);
        let mut out = Vec::new();
        while let Some(pointers) = walk.next(&self.rq, &self.mos).await.unwrap() {
            assert!(pointers.iter().all(|p| p.checksum() == [0; 4] && p.fill() == 0));
            out.extend(pointers.iter().map(number));
        }
        out.sort_unstable();
        out
    }

    async fn push(&self, list: ObjectId, numbers: std::ops::Range<u64>) {
        let pointers: Vec<_> = numbers.map(|n| pointer(n, 9)).collect();
        let got = bpobj::push(&self.rq, &self.mos, &self.tx, list, &pointers, false, &dsize).await.unwrap();
        assert_eq!(got, sums(pointers.len()));
    }

    async fn objects(&self) -> Vec<ObjectId> {
        let mut out = Vec::new();
        let mut from = ObjectId(0);
        while let Some(id) = self.mos.dnodes().next_object(&self.rq, from).await.unwrap() {
            out.push(id);
            from = ObjectId(id.0 + 1);
        }
        out
    }
}

#[test]
fn nested_lists_are_taken_to_the_last_pointer() {
    on_scratch(|w| async move {
        let World { rq, mos, tx } = &w;
        let before = w.objects().await;
        let mut none = EmptyList::default();
        let top = bpobj::create(rq, mos, tx, false).await.unwrap();
        assert!(bpobj::is_empty(rq, mos, top).await.unwrap());
        w.push(top, 0..10).await;
        // Short lists are copied, long ones become sub-lists: a block holds 1024 pointers.
        let mut all = 10;
        for (direct, below) in [(5, 0), (2000, 0), (3, 1500), (1100, 1200), (0, 0), (0, 1030)] {
            let list = bpobj::create(rq, mos, tx, false).await.unwrap();
            w.push(list, all..all + direct).await;
            all += direct;
            if below > 0 {
                let inner = bpobj::create(rq, mos, tx, false).await.unwrap();
                w.push(inner, all..all + below).await;
                all += below;
                bpobj::add_sub(rq, mos, tx, list, inner, &mut none).await.unwrap();
            }
            bpobj::add_sub(rq, mos, tx, top, list, &mut none).await.unwrap();
            assert_eq!(bpobj::space(rq, mos, top).await.unwrap(), sums(all as usize));
        }
        assert_eq!(w.contents(top).await, (0..all).collect::<Vec<_>>());
        let range = bpobj::space_range(rq, mos, top, Txg(8), Txg(9), &dsize).await.unwrap();
        assert_eq!(range, sums(all as usize));
        let mut taken = Vec::new();
        loop {
            let some = bpobj::take(rq, mos, tx, top, 700, &dsize).await.unwrap();
            if some.is_empty() {
                break;
            }
            taken.extend(some.iter().map(number));
            assert_eq!(bpobj::space(rq, mos, top).await.unwrap(), sums(all as usize - taken.len()));
        }
        taken.sort_unstable();
        assert_eq!(taken, (0..all).collect::<Vec<_>>());
        assert!(bpobj::is_empty(rq, mos, top).await.unwrap());
        bpobj::destroy(rq, mos, tx, top, &mut none).await.unwrap();
        assert_eq!(w.objects().await, before);
    });
}

#[test]
fn embedded_pointers_keep_their_size_and_frees_count_negative() {
    on_scratch(|w| async move {
        let World { rq, mos, tx } = &w;
        let list = bpobj::create(rq, mos, tx, true).await.unwrap();
        let mut words = [5; 16];
        words[6] = 1 << 63 | 19 << 48 | 1 << 39 | 2 << 32 | 59 << 25 | 99;
        let embedded = BlockPointer::from_words(words);
        let got = bpobj::push(rq, mos, tx, list, &[embedded], false, &|_| 0).await.unwrap();
        assert_eq!(got, Sums { used_bytes: 0, compressed_bytes: 0, uncompressed_bytes: 100 });
        bpobj::push(rq, mos, tx, list, &[pointer(1, 4)], false, &dsize).await.unwrap();
        bpobj::push(rq, mos, tx, list, &[pointer(1, 4)], true, &dsize).await.unwrap();
        assert_eq!(bpobj::space(rq, mos, list).await.unwrap(), got);
        let taken = bpobj::take(rq, mos, tx, list, 9, &dsize).await.unwrap();
        assert_eq!(taken.iter().map(BlockPointer::is_free_marked).collect::<Vec<_>>(), [true, false, false]);
        assert_eq!((taken[2].lsize_bytes(), taken[2].words()[0], taken[2].logical_birth()), (100, 0, Txg(5)));
        let plain = bpobj::create(rq, mos, tx, false).await.unwrap();
        assert!(bpobj::push(rq, mos, tx, plain, &[pointer(1, 4)], true, &dsize).await.is_err());
    });
}

/// Operation on a deadlist whose snapshots are in txgs 10, 20, 30 …
#[derive(Clone, Debug)]
enum Step {
    Die(Vec<u64>),
    Snapshot,
    RemoveKey(usize),
    MergeClone(usize, Vec<u64>),
    Move(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let births = || proptest::collection::vec(1u64..80, 0..6);
    prop_oneof![
        4 => births().prop_map(Step::Die),
        3 => Just(Step::Snapshot),
        2 => any::<usize>().prop_map(Step::RemoveKey),
        2 => (any::<usize>(), births()).prop_map(|(n, b)| Step::MergeClone(n, b)),
        1 => any::<usize>().prop_map(Step::Move),
    ]
}

/// Key → numbers of the pointers below it.
type Model = BTreeMap<u64, Vec<u64>>;

struct Dead {
    w: World,
    list: ObjectId,
    model: Model,
    empty: EmptyList,
    next: u64,
    moved: usize,
    target: ObjectId,
}

impl Dead {
    fn die(&mut self, model: &mut Model, births: &[u64]) -> Vec<BlockPointer> {
        let mut out = Vec::new();
        for birth in births {
            self.next += 1;
            model.range_mut(..birth).next_back().unwrap().1.push(self.next);
            out.push(pointer(self.next, *birth));
        }
        out
    }

    fn key(&self, n: usize) -> u64 {
        *self.model.keys().nth(n % self.model.len()).unwrap()
    }

    async fn apply(&mut self, step: &Step) {
        let World { rq, mos, tx } = &self.w;
        match step {
            Step::Die(births) => {
                let mut model = std::mem::take(&mut self.model);
                let pointers = self.die(&mut model, births);
                self.model = model;
                let World { rq, mos, tx } = &self.w;
                let got = deadlist::insert(rq, mos, tx, self.list, &pointers, &dsize, &mut self.empty).await;
                assert_eq!(got.unwrap(), sums(pointers.len()));
            }
            Step::Snapshot => {
                let key = self.model.keys().last().unwrap() + 10;
                deadlist::add_key(rq, mos, tx, self.list, Txg(key), &mut self.empty).await.unwrap();
                self.model.insert(key, Vec::new());
            }
            Step::RemoveKey(n) if self.model.len() > 1 && self.key(*n) != 0 => {
                let key = self.key(*n);
                deadlist::remove_key(rq, mos, tx, self.list, Txg(key), &mut self.empty).await.unwrap();
                let gone = self.model.remove(&key).unwrap();
                self.model.range_mut(..key).next_back().unwrap().1.extend(gone);
            }
            Step::MergeClone(n, births) => {
                let until = self.key(*n) + 1;
                let clone = deadlist::clone_until(rq, mos, tx, self.list, Txg(until), &mut self.empty).await.unwrap();
                let mut model: Model = self.model.keys().filter(|k| **k < until).map(|k| (*k, Vec::new())).collect();
                let pointers = self.die(&mut model, births);
                let World { rq, mos, tx } = &self.w;
                deadlist::insert(rq, mos, tx, clone, &pointers, &dsize, &mut self.empty).await.unwrap();
                deadlist::merge(rq, mos, tx, self.list, clone, &dsize, &mut self.empty).await.unwrap();
                assert_eq!(deadlist::space(rq, mos, clone).await.unwrap(), Sums::default());
                deadlist::destroy(rq, mos, tx, clone, &mut self.empty).await.unwrap();
                for (key, numbers) in model {
                    self.model.get_mut(&key).unwrap().extend(numbers);
                }
            }
            Step::Move(n) if self.key(*n) != 0 => {
                let key = self.key(*n);
                deadlist::move_bpobj(rq, mos, tx, self.list, self.target, Txg(key), &mut self.empty).await.unwrap();
                self.moved += self.model.split_off(&key).values().map(Vec::len).sum::<usize>();
            }
            _ => {}
        }
    }

    async fn check(&self) {
        let World { rq, mos, .. } = &self.w;
        let lists = deadlist::lists(rq, mos, self.list).await.unwrap();
        assert_eq!(lists.keys().map(|k| k.0).collect::<Vec<_>>(), self.model.keys().copied().collect::<Vec<_>>());
        let mut shared = 0;
        for (key, list) in &lists {
            let mut expected = self.model[&key.0].clone();
            expected.sort_unstable();
            assert_eq!(self.w.contents(*list).await, expected);
            shared += i64::from(self.empty.object == Some(*list));
            let above = lists.range(Txg(key.0 + 1)..).next().map_or(Txg(u64::MAX), |(key, _)| *key);
            let got = deadlist::space_range(rq, mos, self.list, *key, above, &dsize).await.unwrap();
            assert_eq!(got, sums(expected.len()));
        }
        let all = self.model.values().map(Vec::len).sum();
        assert_eq!(deadlist::space(rq, mos, self.list).await.unwrap(), sums(all));
        assert_eq!(bpobj::space(rq, mos, self.target).await.unwrap(), sums(self.moved));
        if self.empty.enabled {
            assert_eq!(self.empty.references, shared);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_deadlist_keeps_blocks_under_their_births(steps in proptest::collection::vec(step(), 1..25), enabled: bool) {
        on_scratch(move |w| async move {
            let before = w.objects().await.len();
            let World { rq, mos, tx } = &w;
            let list = deadlist::create(rq, mos, tx).await.unwrap();
            let target = bpobj::create(rq, mos, tx, false).await.unwrap();
            let mut empty = EmptyList { enabled, ..EmptyList::default() };
            deadlist::add_key(rq, mos, tx, list, Txg(0), &mut empty).await.unwrap();
            let model = Model::from([(0, Vec::new())]);
            let mut dead = Dead { w, list, model, empty, next: 0, moved: 0, target };
            for step in &steps {
                dead.apply(step).await;
                dead.check().await;
            }
            // No object is left.
            let World { rq, mos, tx } = &dead.w;
            deadlist::destroy(rq, mos, tx, dead.list, &mut dead.empty).await.unwrap();
            while !bpobj::take(rq, mos, tx, dead.target, 100, &dsize).await.unwrap().is_empty() {}
            bpobj::destroy(rq, mos, tx, dead.target, &mut dead.empty).await.unwrap();
            assert_eq!(dead.empty.references, 0);
            dead.empty.discard(rq, mos, tx).await.unwrap();
            assert_eq!(dead.w.objects().await.len(), before);
        });
    }
}
