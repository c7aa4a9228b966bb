use super::*;

#[test]
fn micro_round_trips() {
    for endian in [Endian::Little, Endian::Big] {
        let entries = [
            MicroEntry { name: b"ROOT", value: 34, cd: 0 },
            MicroEntry { name: b"x".repeat(49).leak(), value: u64::MAX, cd: 3 },
        ];
        let block = MicroZap::encode(77, NormFlags(0), &entries, 512, endian).unwrap();
        let zap = MicroZap::decode(&block, endian).unwrap();
        assert_eq!(zap.salt, 77);
        assert_eq!(zap.entries().collect::<Vec<_>>(), entries);
        assert_eq!((zap.get(b"ROOT"), zap.get(b"ROO")), (Some(34), None));
        assert_eq!(BlockKind::of(&block, endian), Ok(BlockKind::Micro));
    }
    assert!(
        MicroZap::encode(1, NormFlags(0), &[MicroEntry { name: &[1; 50], value: 0, cd: 0 }], 512, Endian::Big)
            .is_none()
    );
}

#[test]
fn fat_header_round_trips_and_indexes() {
    let header = FatHeader {
        table: PointerTable { shift: 10, ..Default::default() },
        free_block: 3,
        leaves: 2,
        entries: 9,
        salt: 5,
        norm: NormFlags(0),
        flags: ZapFlags(0),
        block_shift: 14,
    };
    let mut block = header.encode(Endian::Little);
    block.extend((0..1024u64).flat_map(|i| (i + 100).to_le_bytes()));
    assert_eq!(FatHeader::decode(&block, Endian::Little).unwrap(), header);
    assert_eq!(header.embedded_pointer(&block, Endian::Little, header.index(u64::MAX)), Ok(1123));
    assert!(header.embedded_pointer(&block, Endian::Little, 1024).is_err());
    assert!(FatHeader::decode(&block[..8192], Endian::Little).is_err());
}

/// A leaf of one entry, encoded by hand.
fn leaf_block(next: u16) -> Vec<u8> {
    let mut b = vec![0u8; 512];
    b[0..8].copy_from_slice(&BlockKind::LEAF.to_le_bytes());
    b[24..28].copy_from_slice(&Leaf::MAGIC.to_le_bytes());
    b[48..80].fill(0xff);
    b[48..50].copy_from_slice(&0u16.to_le_bytes());
    b[80] = 252;
    b[81] = 8;
    b[82..84].copy_from_slice(&next.to_le_bytes());
    for (at, v) in [(84, 1u16), (86, 3), (88, 2), (90, 1)] {
        b[at..at + 2].copy_from_slice(&v.to_le_bytes());
    }
    for (chunk, bytes) in [(1, &b"ab\0"[..]), (2, &0x1234u64.to_be_bytes()[..])] {
        let at = 80 + 24 * chunk;
        b[at] = 251;
        b[at + 1..at + 1 + bytes.len()].copy_from_slice(bytes);
        b[at + 22..at + 24].fill(0xff);
    }
    b
}

#[test]
fn leaf_entry() {
    let block = leaf_block(0xffff);
    let leaf = Leaf::decode(&block, Endian::Little).unwrap();
    let found: Vec<_> = leaf.find(0).collect::<Result<_, _>>().unwrap();
    assert_eq!(found, leaf.entries().collect::<Result<Vec<_>, _>>().unwrap());
    assert_eq!(leaf.name(&found[0]).unwrap(), b"ab");
    assert_eq!(leaf.value_words(&found[0]).unwrap(), [0x1234]);
}

#[test]
fn chain_loops_end_in_an_error() {
    let block = leaf_block(0);
    let leaf = Leaf::decode(&block, Endian::Little).unwrap();
    assert!(leaf.find(0).any(|e| e.is_err()));
    assert!(leaf.entries().count() <= leaf.chunks() + 1);
}

#[test]
fn crc64_check_value() {
    // CRC-64/XZ of "123456789" is this polynomial with all bits inverted before and after.
    let all = ZapFlags(1);
    let h = hash_bytes(u64::MAX, all, b"123456789");
    assert_eq!(h, !0x995d_c9bb_df19_39fa & !0xffff);
    assert_eq!(hash_words(u64::MAX, all, &[u64::from_le_bytes(*b"12345678")]), hash_bytes(u64::MAX, all, b"12345678"));
    assert_eq!(hash_words(1, ZapFlags(7), &[0x1234_5678_9abc_def0]), 0x1234_5678_9abc_0000);
}

mod leaves {
    use super::super::*;
    use proptest::prelude::*;

    fn entry() -> impl Strategy<Value = NewEntry> {
        let key = prop_oneof![
            proptest::collection::vec(1u8..=255, 1..80).prop_map(NewKey::Name),
            proptest::collection::vec(any::<u64>(), 1..6).prop_map(NewKey::Words),
        ];
        let sizes = prop_oneof![Just(1u8), Just(2), Just(4), Just(8)];
        (any::<u64>(), 0u32..4, key, sizes, proptest::collection::vec(any::<u64>(), 0..9)).prop_map(
            |(hash, cd, key, int_size, mut value)| {
                let mask = u64::MAX >> (64 - 8 * u32::from(int_size));
                value.iter_mut().for_each(|w| *w &= mask);
                NewEntry { hash, cd, key, int_size, value }
            },
        )
    }

    proptest! {
        #[test]
        fn encoded_leaves_decode(
            mut entries in proptest::collection::vec(entry(), 0..40),
            shift in 12u32..15, prefix in 0u64..4,
        ) {
            // All hashes begin with the leaf's two prefix bits.
            entries.iter_mut().for_each(|e| e.hash = e.hash >> 2 | prefix << 62);
            for endian in [Endian::Little, Endian::Big] {
                let Some(block) = encode_leaf(shift, prefix, 2, &entries, endian) else { continue };
                prop_assert_eq!(block.len(), 1 << shift);
                let leaf = Leaf::decode(&block, endian).unwrap();
                prop_assert_eq!(usize::from(leaf.header.entries), entries.len());
                prop_assert_eq!(leaf.entries().count(), entries.len());
                for entry in &entries {
                    prop_assert!(leaf.owns(entry.hash));
                    let same = leaf.find(entry.hash).map(Result::unwrap).any(|found| {
                        let key = match entry.key {
                            NewKey::Name(_) => NewKey::Name(leaf.name(&found).unwrap_or_default()),
                            NewKey::Words(_) => NewKey::Words(leaf.key_words(&found).unwrap_or_default()),
                        };
                        let value = leaf.value_words(&found).unwrap();
                        NewEntry { hash: found.hash, cd: found.cd, key, int_size: found.int_size, value } == *entry
                    });
                    prop_assert!(same, "{:?}", entry);
                }
            }
        }
    }

    #[test]
    fn chains_are_sorted_by_cd_and_full_leaves_rejected() {
        let make = |cd| NewEntry { hash: 7 << 40, cd, key: NewKey::Name(b"n".to_vec()), int_size: 8, value: vec![1] };
        let entries = [2, 0, 1].map(make);
        let block = encode_leaf(9, 0, 0, &entries, Endian::Big).unwrap();
        let leaf = Leaf::decode(&block, Endian::Big).unwrap();
        let cds: Vec<_> = leaf.find(7 << 40).map(|e| e.unwrap().cd).collect();
        assert_eq!(cds, [0, 1, 2]);
        assert!(encode_leaf(9, 0, 0, &vec![make(0); 7], Endian::Big).is_none());
    }
}

mod edits {
    use super::super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u8, Vec<u64>),
        Replace(u8, Vec<u64>),
        Remove(u8),
        Split,
    }

    fn step() -> impl Strategy<Value = Step> {
        let value = || proptest::collection::vec(any::<u64>(), 0..12);
        prop_oneof![
            4 => (any::<u8>(), value()).prop_map(|(n, v)| Step::Insert(n, v)),
            2 => (any::<u8>(), value()).prop_map(|(n, v)| Step::Replace(n, v)),
            2 => any::<u8>().prop_map(Step::Remove),
            1 => Just(Step::Split),
        ]
    }

    /// Few hashes, so that many names collide.
    fn hash(name: u8) -> u64 {
        u64::from(name % 8) << 61 | u64::from(name % 3) << 40
    }

    fn name(n: u8) -> Vec<u8> {
        format!("{n}").repeat(1 + usize::from(n) % 30).into_bytes()
    }

    fn find(leaf: &LeafEdit, n: u8) -> Option<(LeafEntry, Slot)> {
        leaf.find(hash(n), |leaf, entry| Ok(leaf.name(entry)? == name(n))).unwrap()
    }

    type Model = BTreeMap<u8, Vec<u64>>;

    fn check(leaf: &LeafEdit, model: &Model) {
        let read = leaf.leaf().unwrap();
        assert_eq!(usize::from(read.header.entries), model.len());
        let mut keys = std::collections::BTreeSet::new();
        let mut chunks = 0;
        for (n, value) in model {
            let (entry, _) = find(leaf, *n).unwrap();
            assert!(read.owns(entry.hash));
            assert_eq!(&read.value_words(&entry).unwrap(), value);
            assert!(keys.insert((entry.hash, entry.cd)), "two entries with the same hash and cd");
            chunks += NewEntry {
                hash: 0,
                cd: 0,
                key: NewKey::Name(name(*n)),
                int_size: entry.int_size,
                value: value.clone(),
            }
            .chunks();
        }
        assert_eq!(usize::from(read.header.free_chunks) + chunks, leaf.capacity());
    }

    fn apply(leaf: &mut LeafEdit, model: &mut Model, step: &Step) {
        match step {
            Step::Insert(n, value) if !model.contains_key(n) && leaf.leaf().unwrap().owns(hash(*n)) => {
                let key = NewKey::Name(name(*n));
                let new = NewEntry { hash: hash(*n), cd: NewEntry::ANY_CD, key, int_size: 8, value: value.clone() };
                let room = usize::from(leaf.leaf().unwrap().header.free_chunks) >= new.chunks();
                let got = leaf.insert(&new).unwrap();
                assert_eq!(got.is_some(), room);
                if room {
                    model.insert(*n, value.clone());
                }
            }
            Step::Replace(n, value) => {
                let found = find(leaf, *n);
                assert_eq!(found.is_some(), model.contains_key(n));
                if found.is_some_and(|(_, slot)| leaf.replace(slot, 8, value).unwrap()) {
                    model.insert(*n, value.clone());
                }
            }
            Step::Remove(n) => match find(leaf, *n) {
                Some((_, slot)) => {
                    leaf.remove(slot).unwrap();
                    assert!(model.remove(n).is_some());
                }
                None => assert!(!model.contains_key(n)),
            },
            Step::Split if leaf.leaf().unwrap().header.prefix_len < 3 => {
                let len = leaf.leaf().unwrap().header.prefix_len;
                let upper = leaf.split().unwrap();
                let above = |n: &u8| hash(*n) >> (63 - len) & 1 == 1;
                let (high, low): (Model, Model) = std::mem::take(model).into_iter().partition(|(n, _)| above(n));
                check(&upper, &high);
                *model = low;
            }
            _ => {}
        }
        check(leaf, model);
    }

    proptest! {
        #[test]
        fn a_leaf_is_a_map(steps in proptest::collection::vec(step(), 1..120), shift in 9u32..13, big: bool) {
            let endian = if big { Endian::Big } else { Endian::Little };
            let mut leaf = LeafEdit::new(shift, 0, 0, true, endian).unwrap();
            let mut model = Model::new();
            for step in &steps {
                apply(&mut leaf, &mut model, step);
            }
            // The map is the same in the other byte order.
            let other = if big { Endian::Little } else { Endian::Big };
            let turned = byteswapped(&leaf.into_block(), endian, other).unwrap();
            check(&LeafEdit::open(turned, other).unwrap(), &model);
        }

        #[test]
        fn a_micro_zap_is_a_map(steps in proptest::collection::vec((0u8..24, any::<u64>(), 0u8..3), 1..80), big: bool) {
            let endian = if big { Endian::Big } else { Endian::Little };
            let mut block = MicroZap::encode(5, NormFlags(0), &[], 512, endian).unwrap();
            let mut model: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
            for (n, value, what) in steps {
                let name = format!("{n:0>width$}", width = 2 + usize::from(n) * 2).into_bytes();
                let zap = MicroZap::decode(&block, endian).unwrap();
                let found = zap.find(&name);
                prop_assert_eq!(found.map(|(_, entry)| entry.value), model.get(&name).copied());
                let entry = MicroEntry { name: &name, value, cd: 0 };
                prop_assert!(entry.fits());
                let slot = match (what, found, zap.free_slot()) {
                    (0, Some((at, _)), _) => {
                        model.remove(&name);
                        Some((at, [0; 64]))
                    }
                    (0, None, _) => None,
                    (_, Some((at, _)), _) | (_, None, Some(at)) => {
                        model.insert(name.clone(), value);
                        Some((at, entry.encode(endian)))
                    }
                    (_, None, None) => {
                        block.resize(block.len() + 512, 0);
                        None
                    }
                };
                if let Some((at, slot)) = slot {
                    block[at..at + 64].copy_from_slice(&slot);
                }
            }
            let other = if big { Endian::Little } else { Endian::Big };
            let turned = byteswapped(&block, endian, other).unwrap();
            for (block, endian) in [(block, endian), (turned, other)] {
                let zap = MicroZap::decode(&block, endian).unwrap();
                let found: BTreeMap<Vec<u8>, u64> = zap.entries().map(|e| (e.name.to_vec(), e.value)).collect();
                prop_assert_eq!(&found, &model);
            }
        }
    }

    #[test]
    fn empty_siblings_merge() {
        let mut leaf = LeafEdit::new(9, 0, 0, false, Endian::Little).unwrap();
        let whole = leaf.clone();
        let upper = leaf.split().unwrap();
        assert_eq!(upper.leaf().unwrap().header.prefix, 1);
        leaf.widen().unwrap();
        assert_eq!(leaf, whole);
        assert!(leaf.widen().is_err());
    }
}
