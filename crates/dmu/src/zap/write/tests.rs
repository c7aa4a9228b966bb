//! Compares ZAPs with a model: after each operation they have the entries of a map, and their parts are consistent.

use super::*;
use crate::live::scratch;
use crate::zap::ZapLayout;
use proptest::prelude::*;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use weir_format::zap::{FatHeader, Leaf};
use weir_format::{Cursor, ObjsetKind};
use weir_sim::SimWorld;

type Model = BTreeMap<Key, Value>;

/// Runs `body` on an object set that is on no disk.
fn on_scratch<F: Future<Output = ()> + Send + 'static>(body: impl FnOnce(Arc<ObjectSet>, Tx) -> F + Send + 'static) {
    let world = SimWorld::new(1);
    let machine = world.machine();
    let run = world.run(async move {
        let set = scratch(&machine, ObjsetKind::Zfs);
        let tx = set.begin(&Request::default(), 0, crate::SpaceReserve::Normal).await.unwrap();
        body(set, tx).await;
    });
    run.unwrap();
}

#[derive(Clone, Debug)]
enum Step {
    Insert(Key, Value),
    Put(Key, Value),
    Remove(Key),
    Add(Key, i64),
}

async fn apply(set: &Arc<ObjectSet>, tx: &Tx, id: ObjectId, model: &mut Model, step: Step) {
    let rq = &Request::default();
    match step {
        Step::Insert(key, value) => {
            let got = insert(rq, set, tx, id, &key, &value).await;
            let name = key.text();
            match model.entry(key) {
                Entry::Occupied(_) => assert_eq!(got, Err(ObjectError::NameExists { name })),
                Entry::Vacant(place) => {
                    got.unwrap();
                    place.insert(value);
                }
            }
        }
        Step::Put(key, value) => {
            assert_eq!(put(rq, set, tx, id, &key, &value).await.unwrap(), model.insert(key, value).is_some());
        }
        Step::Remove(key) => {
            assert_eq!(remove(rq, set, tx, id, &key).await.unwrap(), model.remove(&key).is_some());
        }
        Step::Add(key, delta) => {
            let old = model.get(&key).and_then(Value::first).unwrap_or(0);
            let new = old.wrapping_add_signed(delta);
            assert_eq!(add(rq, set, tx, id, &key, delta).await.unwrap(), new);
            match (new, delta) {
                (_, 0) => {}
                (0, _) => drop(model.remove(&key)),
                (new, _) => drop(model.insert(key, Value::word(new))),
            }
        }
    }
}

/// Demands that the ZAP has the model's entries, by look-up and by walk, and that its own counts are right.
async fn check(set: &Arc<ObjectSet>, id: ObjectId, model: &Model) {
    let rq = &Request::default();
    let zap = Zap::open(rq, set, id).await.unwrap();
    for (key, value) in model {
        let found = match key {
            Key::Name(name) => zap.lookup(rq, name, Match::Exact).await.unwrap(),
            Key::Words(words) => zap.lookup_words(rq, words).await.unwrap(),
        };
        assert_eq!(found.as_ref(), Some(value), "{}", key.text());
    }
    let all = zap.all(rq, 1 << 24).await.unwrap();
    let walked: Model = all.into_iter().map(|e| (e.key, e.value)).collect();
    assert_eq!(&walked, model);
    match zap.layout().unwrap() {
        ZapLayout::Micro { entries, .. } => assert_eq!(entries, model.len()),
        ZapLayout::Fat(header) => {
            assert_eq!(header.entries, model.len() as u64);
            check_fat(set, id, &header).await;
        }
    }
}

/// Demands that each leaf has one range of pointers, that of its prefix, and that counts and block numbers agree.
async fn check_fat(set: &Arc<ObjectSet>, id: ObjectId, header: &FatHeader) {
    let rq = &Request::default();
    let object = set.object(rq, id).await.unwrap();
    let first = set.reader().read_block(rq, &object, 0).await.unwrap().unwrap();
    let mut used: BTreeSet<u64> = (header.table.first_block..header.table.first_block + header.table.blocks).collect();
    let mut index = 0;
    let mut leaves = 0;
    let mut entries = 0;
    while index < header.table_len() {
        let mut seen = BTreeSet::new();
        let number = pointer(set, &object, &first, header, index).await;
        let block = set.reader().read_block(rq, &object, number).await.unwrap().unwrap();
        let leaf = Leaf::decode(&block, Endian::Little).unwrap();
        let count = 1 << (header.table.shift - u32::from(leaf.header.prefix_len));
        assert_eq!(index / count, leaf.header.prefix);
        for at in index..index + count {
            assert_eq!(pointer(set, &object, &first, header, at).await, number);
        }
        for entry in leaf.entries().map(Result::unwrap) {
            assert!(leaf.owns(entry.hash) && seen.insert((entry.hash, entry.cd)));
        }
        assert_eq!(usize::from(leaf.header.entries), seen.len());
        assert!(used.insert(number), "block {number} is used twice");
        (index, leaves, entries) = (index + count, leaves + 1, entries + seen.len() as u64);
    }
    assert_eq!((header.leaves, header.entries), (leaves, entries));
    assert!(used.last().unwrap() < &header.free_block);
}

async fn pointer(set: &Arc<ObjectSet>, object: &Arc<Object>, first: &[u8], header: &FatHeader, index: u64) -> u64 {
    if header.is_embedded() {
        return header.embedded_pointer(first, Endian::Little, index).unwrap();
    }
    let (block, at) = header.external_pointer(index);
    let bytes = set.reader().read_block(&Request::default(), object, block).await.unwrap().unwrap();
    let mut cursor = Cursor::new(&bytes, Endian::Little, "table");
    cursor.skip(at).unwrap();
    cursor.u64().unwrap()
}

fn name() -> impl Strategy<Value = Key> {
    prop_oneof![
        8 => (0u8..40).prop_map(|n| Key::from(format!("file {n}").as_str())),
        1 => (0u8..4, 45usize..255).prop_map(|(n, len)| Key::Name(vec![b'a' + n; len])),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        6 => any::<u64>().prop_map(Value::word),
        1 => proptest::collection::vec(any::<u8>(), 0..600).prop_map(|b| Value::of_bytes(&b)),
        1 => proptest::collection::vec(any::<u64>(), 0..40).prop_map(|words| Value { int_size: 8, words }),
    ]
}

fn step(value: impl Strategy<Value = Value> + Clone + 'static) -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (name(), value.clone()).prop_map(|(k, v)| Step::Insert(k, v)),
        2 => (name(), value).prop_map(|(k, v)| Step::Put(k, v)),
        3 => name().prop_map(Step::Remove),
        1 => (name(), -2i64..3).prop_map(|(k, d)| Step::Add(k, d)),
    ]
}

fn run(new: NewZap, steps: Vec<Step>) {
    on_scratch(|set, tx| async move {
        let id = create(&Request::default(), &set, &tx, &new).await.unwrap();
        let mut model = Model::new();
        for step in steps {
            apply(&set, &tx, id, &mut model, step).await;
        }
        check(&set, id, &model).await;
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_zap_is_a_map(steps in proptest::collection::vec(step(value().boxed()), 1..150)) {
        run(NewZap::new(ObjectType::ZAP_OTHER), steps);
    }

    #[test]
    fn a_zap_of_words_is_a_map(steps in proptest::collection::vec(step(any::<u64>().prop_map(Value::word).boxed()), 1..200)) {
        run(NewZap::new(ObjectType::ZAP_OTHER), steps);
    }

    /// With leaves of 512 bytes, twelve entries split them and grow the table.
    #[test]
    fn a_zap_of_small_leaves_is_a_map(steps in proptest::collection::vec(
        ((0u64..200).prop_map(|n| Key::Words(vec![n])), any::<u64>(), 0u8..8), 1..400
    )) {
        let steps = steps.into_iter().map(|(key, word, what)| match what {
            0..=3 => Step::Insert(key, Value::word(word)),
            4 => Step::Put(key, Value { int_size: 4, words: vec![word & 0xffff_ffff; 9] }),
            _ => Step::Remove(key),
        });
        let new = NewZap::fat(ObjectType::ZAP_OTHER, ZapFlags(3), 9, 12);
        run(new, steps.collect());
    }
}

#[test]
fn many_names_grow_the_table_and_leave_it_small_again() {
    on_scratch(|set, tx| async move {
        let rq = &Request::default();
        let id = create(rq, &set, &tx, &NewZap::fat(ObjectType::ZAP_OTHER, ZapFlags(1), 11, 12)).await.unwrap();
        let key = |n: u64| Key::from(format!("name {n}").as_str());
        let mut model = Model::new();
        for n in 0..6000 {
            insert(rq, &set, &tx, id, &key(n), &Value::word(n)).await.unwrap();
            model.insert(key(n), Value::word(n));
        }
        check(&set, id, &model).await;
        let ZapLayout::Fat(header) = Zap::open(rq, &set, id).await.unwrap().layout().unwrap() else {
            panic!("not fat")
        };
        assert!(!header.is_embedded() && header.table.blocks > 1 && header.leaves > 200);
        for n in 0..6000 {
            assert!(remove(rq, &set, &tx, id, &key(n)).await.unwrap());
            model.remove(&key(n));
            if n % 1000 == 7 {
                check(&set, id, &model).await;
            }
        }
        check(&set, id, &model).await;
        let ZapLayout::Fat(header) = Zap::open(rq, &set, id).await.unwrap().layout().unwrap() else {
            panic!("not fat")
        };
        assert_eq!((header.leaves, header.entries), (1, 0));
    });
}

#[test]
fn who_began_to_read_before_a_change_finds_what_is_there_after() {
    on_scratch(|set, tx| async move {
        let rq = &Request::default();
        let new = NewZap::fat(ObjectType::ZAP_OTHER, ZapFlags(1), 9, 12);
        let id = create(rq, &set, &tx, &new).await.unwrap();
        let name = |n: u64| format!("{n}").into_bytes();
        let mut readers = Vec::new();
        for n in 0..800 {
            if n % 100 == 0 {
                readers.push(Zap::open(rq, &set, id).await.unwrap());
            }
            insert(rq, &set, &tx, id, &Key::Name(name(n)), &Value::word(n)).await.unwrap();
        }
        for (removed, reader) in (0..800).step_by(100).zip(&readers) {
            for n in 0..800 {
                let found = reader.lookup(rq, &name(n), Match::Exact).await.unwrap().and_then(|v| v.first());
                assert_eq!(found, (n >= removed).then_some(n));
            }
            let all = reader.all(rq, 1000).await.unwrap();
            assert!(all.is_sorted_by_key(|e| e.cookie) && all.len() as u64 == 800 - removed);
            for n in removed..removed + 100 {
                assert!(remove(rq, &set, &tx, id, &Key::Name(name(n))).await.unwrap());
            }
        }
    });
}

#[test]
fn a_micro_zap_grows_by_sectors_and_turns_fat_beyond_its_limit() {
    on_scratch(|set, tx| async move {
        let rq = &Request::default();
        let id = create(rq, &set, &tx, &NewZap::new(ObjectType::DIRECTORY_CONTENTS)).await.unwrap();
        let mut model = Model::new();
        for n in 0..2048u64 {
            let key = Key::from(format!("{n:040}").as_str());
            insert(rq, &set, &tx, id, &key, &Value::word(n)).await.unwrap();
            model.insert(key, Value::word(n));
            let layout = Zap::open(rq, &set, id).await.unwrap().layout().unwrap();
            match (n, layout) {
                (0..=2046, ZapLayout::Micro { block_bytes, entries }) => {
                    assert_eq!((entries as u64, block_bytes), (n + 1, (entries + 1).next_multiple_of(8) * 64));
                }
                (2047, ZapLayout::Fat(header)) => assert_eq!((header.block_shift, header.entries), (14, 2048)),
                (n, layout) => panic!("{n}: {layout:?}"),
            }
        }
        check(&set, id, &model).await;
    });
}

#[test]
fn names_that_are_the_same_when_folded_stand_beside_each_other() {
    on_scratch(|set, tx| async move {
        let rq = &Request::default();
        let fold = NormFlags(NormFlags::TO_UPPER);
        for long in ["", "with a tail that makes the name too long for a micro ZAP's slot"] {
            let new = NewZap { norm: fold, ..NewZap::new(ObjectType::DIRECTORY_CONTENTS) };
            let id = create(rq, &set, &tx, &new).await.unwrap();
            for (n, name) in ["readme", "README", "Readme"].iter().enumerate() {
                put_word(rq, &set, &tx, id, &format!("{name}{long}"), n as u64).await.unwrap();
            }
            assert_eq!(lookup_word(rq, &set, id, &format!("Readme{long}")).await.unwrap(), Some(2));
            // Of several matching entries, the one with the lowest differentiator.
            let wanted = format!("ReadMe{long}").into_bytes();
            for n in 0..3 {
                let zap = Zap::open(rq, &set, id).await.unwrap();
                let found = zap.lookup(rq, &wanted, Match::Normalized).await.unwrap().and_then(|v| v.first());
                assert_eq!(found, Some(n));
                assert!(remove_match(rq, &set, &tx, id, &wanted, Match::Normalized).await.unwrap());
            }
            assert!(!remove_match(rq, &set, &tx, id, &wanted, Match::Normalized).await.unwrap());
        }
    });
}

#[test]
fn what_a_zap_cannot_hold_is_refused_and_changes_nothing() {
    on_scratch(|set, tx| async move {
        let rq = &Request::default();
        let id = create(rq, &set, &tx, &NewZap::new(ObjectType::ZAP_OTHER)).await.unwrap();
        let long = |len| Key::Name(vec![b'x'; len]);
        let too_long = |got: Result<bool, _>| matches!(got, Err(ObjectError::TooLong { .. }));
        assert!(too_long(put(rq, &set, &tx, id, &long(256), &Value::word(1)).await));
        assert!(too_long(put(rq, &set, &tx, id, &long(9), &Value::of_bytes(&[1; 8193])).await));
        assert!(put(rq, &set, &tx, id, &long(0), &Value::word(1)).await.is_err());
        assert!(put(rq, &set, &tx, id, &Key::Words(vec![1]), &Value::word(1)).await.is_err());
        check(&set, id, &Model::new()).await;
        let model = Model::from([(long(255), Value::of_bytes(&[7; 8192]))]);
        for (key, value) in &model {
            assert!(!put(rq, &set, &tx, id, key, value).await.unwrap());
        }
        check(&set, id, &model).await;
        add_int(rq, &set, &tx, id, 0x1f).await.unwrap();
        assert!(add_int(rq, &set, &tx, id, 0x1f).await.is_err());
        assert_eq!(lookup_word(rq, &set, id, "1f").await.unwrap(), Some(0x1f));
        assert!(remove_int(rq, &set, &tx, id, 0x1f).await.unwrap());
        check(&set, id, &model).await;
    });
}
