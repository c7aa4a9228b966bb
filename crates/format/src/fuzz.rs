//! Fuzz targets: one function per family of decoders. For any input each returns without panicking, in time and
//! memory bounded by the input's length. For structures that can be encoded it also checks that decoding the encoded
//! value gives the same value.
//!
//! Three callers run the same bodies: the unit test below on seeded random bytes and on mutations of well-formed
//! ones, `cargo xtask fuzz` on seeds of golden pools and mutations of them, and its long form, guided by coverage
//! (`weir_conformance::fuzz` collects the seeds). The first byte of an input selects the byte order (see [`TARGETS`]).

use crate::cursor::{Cursor, Endian};
use crate::kinds::ChecksumKind;
use crate::*;

/// A fuzz target: its name and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All fuzz targets. The first byte of the input selects byte order (bit 0) and variant (the other bits); the rest is
/// decoded.
pub const TARGETS: &[Target] = &[
    ("acl", acl_target),
    ("blkptr", blkptr_target),
    ("ddt", ddt_target),
    ("dnode", dnode_target),
    ("dsl", dsl_target),
    ("gang", gang_target),
    ("label", label_target),
    ("l2arc", l2arc_target),
    ("nvlist", nvlist_target),
    ("objset", objset_target),
    ("records", records_target),
    ("sa", sa_target),
    ("space_map", space_map_target),
    ("stream", stream_target),
    ("uberblock", uberblock_target),
    ("zap_fat", zap_fat_target),
    ("zap_leaf", zap_leaf_target),
    ("zap_micro", zap_micro_target),
    ("zil", zil_target),
    ("znode", znode_target),
];

/// Splits an input into byte order, variant and the bytes to decode.
fn split(data: &[u8]) -> (Endian, u8, &[u8]) {
    let Some((first, rest)) = data.split_first() else { return (Endian::Little, 0, &[]) };
    (if first & 1 == 0 { Endian::Little } else { Endian::Big }, first >> 1, rest)
}

fn acl_target(data: &[u8]) {
    let (endian, variant, bytes) = split(data);
    let _ = acl::decode_aces(bytes, endian, u64::from(variant) << 4, variant & 1 == 0);
    let mut c = Cursor::new(bytes, endian, "fuzz");
    if let Ok(list) = acl::EmbeddedAcl::decode(&mut c) {
        let _ = list.aces(None, endian);
        let _ = list.aces(bytes.get(88..), endian);
    }
}

fn blkptr_target(data: &[u8]) {
    let (endian, _, bytes) = split(data);
    let mut c = Cursor::new(bytes, endian, "fuzz");
    while let Ok(bp) = BlockPointer::decode(&mut c) {
        let _ = format!("{bp:?} {}", bp.display());
        let _ = (bp.embedded(), bp.checksum_kind(), bp.compression(), bp.object_type().name(), bp.is_gang());
        let _ = (bp.crypt_iv(), bp.crypt_mac(), bp.crypt_salt(), bp.fill(), bp.birth(), bp.asize_bytes());
        let again = bp.encode(endian);
        assert_eq!(BlockPointer::decode(&mut Cursor::new(&again, endian, "fuzz")), Ok(bp));
    }
}

fn ddt_target(data: &[u8]) {
    let (endian, _, bytes) = split(data);
    if let Ok(values) = ddt::DdtPhys::decode(bytes, endian) {
        assert_eq!(ddt::DdtPhys::encode(&values, endian), bytes);
    }
    let _ = ddt::log_entries(bytes, endian);
    let _ = ddt::DdtLogHeader::decode(bytes, endian);
    let _ = ddt::StoredValue::decode(bytes);
    let _ = brt::BrtVdev::decode(bytes, endian);
    let _ = indirect::MappingHeader::decode(bytes, endian);
    let mut c = Cursor::new(bytes, endian, "fuzz");
    while let Ok(entry) = indirect::MappingEntry::decode(&mut c) {
        let _ = entry.source_end_bytes();
    }
}

fn dnode_target(data: &[u8]) {
    let (endian, _, bytes) = split(data);
    if let Ok(Some(dnode)) = Dnode::decode(bytes, endian) {
        let _ = (dnode.bonus(), dnode.used_bytes(), dnode.slots());
        let again = dnode.encode();
        assert_eq!(Dnode::decode(&again, endian), Ok(Some(dnode)));
    }
}

fn dsl_target(data: &[u8]) {
    let (endian, _, bytes) = split(data);
    if let Ok(dataset) = dsl::DslDataset::decode(bytes, endian) {
        assert_eq!(dsl::DslDataset::decode(&dataset.encode(endian), endian), Ok(dataset));
    }
    if let Ok(dir) = dsl::DslDir::decode(bytes, endian) {
        assert_eq!(dsl::DslDir::decode(&dir.encode(endian), endian), Ok(dir));
    }
    let _ = dsl::Bpobj::decode(bytes, endian);
    let _ = dsl::Deadlist::decode(bytes, endian);
    if let Ok(list) = dsl::RedactionList::decode(bytes, endian) {
        assert_eq!(dsl::RedactionList::decode(&list.encode(endian), endian), Ok(list));
    }
    if let Ok(run) = dsl::RedactionBlock::decode(&mut Cursor::new(bytes, endian, "redacted blocks")) {
        assert_eq!(dsl::RedactionBlock::from_words(run.to_words()), run);
    }
    let words: Vec<u64> = bytes.chunks_exact(8).map(|c| c.iter().fold(0, |v, b| v << 8 | u64::from(*b))).collect();
    let _ = (dsl::Bookmark::from_words(&words), dsl::ScanPhys::from_words(&words));
    if let Some(rebuild) = dsl::RebuildPhys::from_words(&words) {
        assert_eq!(dsl::RebuildPhys::from_words(&rebuild.to_words()), Some(rebuild));
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = (dsl::split_property(text), dsl::Deadlist::key(text));
    }
}

fn gang_target(data: &[u8]) {
    let (_, _, bytes) = split(data);
    if let Ok(pointers) = gang::decode(bytes) {
        let _ = pointers.iter().fold(0, |sum, p| sum ^ gang::verifier(p)[1]);
    }
}

fn label_target(data: &[u8]) {
    let (_, variant, bytes) = split(data);
    let _ = label::decode_config(bytes.get(label::CONFIG).unwrap_or(bytes));
    let _ = label::BootEnv::decode(bytes.get(label::BOOT_ENV).unwrap_or(bytes));
    let _ = label::SelfChecksum::at_end_of(bytes);
    let ashift = u64::from(variant);
    for slot in 0..=label::uberblock_slots(ashift) {
        let Some(range) = label::uberblock_range(slot, ashift) else { break };
        let _ = bytes.get(range).map(Uberblock::decode);
    }
    let _ = label::label_offset(usize::from(variant), bytes.len() as u64);
}

fn l2arc_target(data: &[u8]) {
    let (_, _, bytes) = split(data);
    if let Ok(header) = l2arc::L2Header::decode(bytes) {
        let again = l2arc::L2Header::decode(&header.encode(bytes.len()));
        assert_eq!(again, Ok(l2arc::L2Header { endian: Endian::Little, ..header }));
    }
    if let Ok((previous, entries)) = l2arc::decode_log(bytes, usize::MAX) {
        let again = l2arc::decode_log(&l2arc::encode_log(&previous, &entries), entries.len());
        assert_eq!(again, Ok((previous, entries)));
    }
}

fn nvlist_target(data: &[u8]) {
    let (_, _, bytes) = split(data);
    if let Ok(list) = NvList::decode(bytes) {
        let _ = list.to_text(4);
        assert_eq!(NvList::decode(&list.encode_xdr()).as_ref(), Ok(&list));
        if bytes.len() < 16 << 10 {
            assert_eq!(NvList::decode(&list.encode_native(Endian::Big)), Ok(list));
        }
    }
    let _ = znode::decode_fuid_table(bytes);
}

fn objset_target(data: &[u8]) {
    let (endian, _, bytes) = split(data);
    if let Ok(set) = Objset::decode(bytes, endian) {
        let again = Objset::decode(&set.encode(Objset::SIZE_V3, endian), endian);
        assert_eq!(again.map(|s| s.meta_dnode), Ok(set.meta_dnode));
    }
}

fn records_target(data: &[u8]) {
    let (endian, variant, bytes) = split(data);
    let _ = records::history_records(bytes);
    if let Ok(header) = records::HistoryHeader::decode(bytes, endian) {
        let _ = header.physical(header.begin);
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = records::ErrorName::parse(text, variant & 1 == 0);
    }
}

fn sa_target(data: &[u8]) {
    let (endian, _, bytes) = split(data);
    let layout: Vec<u16> = (0..23).collect();
    let length = |n: u16| sa::ZPL_ATTRIBUTES.get(usize::from(n)).map(|a| a.1);
    let _ = sa::attributes(bytes, endian, &layout, length);
    if let Ok(header) = sa::SaHeader::decode(bytes, endian) {
        assert_eq!(sa::SaHeader::decode(&header.encode(endian), endian), Ok(header));
    }
}

fn space_map_target(data: &[u8]) {
    let (endian, variant, bytes) = split(data);
    let _ = space_map::SpaceMapHeader::decode(bytes, endian);
    let _ = space_map::SpaceEntries::new(bytes, endian, variant.into()).count();
}

fn stream_target(data: &[u8]) {
    let (_, _, bytes) = split(data);
    if let Ok(reader) = stream::StreamReader::new(bytes, stream::Unchecked) {
        let endian = reader.endian();
        for item in reader.flatten() {
            let again = item.record.encode(endian, item.stored);
            assert_eq!(stream::Record::decode(&again, endian).map(|r| r.0), Ok(item.record));
        }
    }
}

fn uberblock_target(data: &[u8]) {
    let (_, _, bytes) = split(data);
    if let Ok(ub) = Uberblock::decode(bytes) {
        let _ = (ub.rank(), ub.mmp.map(|m| (m.write_interval_ms(), m.sequence(), m.fail_intervals())));
        assert_eq!(Uberblock::decode(&ub.encode()), Ok(ub));
    }
}

fn zap_fat_target(data: &[u8]) {
    let (endian, _, bytes) = split(data);
    let _ = zap::BlockKind::of(bytes, endian);
    if let Ok(header) = zap::FatHeader::decode(bytes, endian) {
        let index = header.index(u64::MAX);
        let _ = (header.embedded_pointer(bytes, endian, index), header.external_pointer(index), header.table_len());
    }
}

fn zap_leaf_target(data: &[u8]) {
    let (endian, variant, bytes) = split(data);
    if let Ok(leaf) = zap::Leaf::decode(bytes, endian) {
        for entry in leaf.entries().flatten() {
            let _ = (leaf.name(&entry), leaf.key_words(&entry), leaf.value_words(&entry), leaf.owns(entry.hash));
        }
        let _ = leaf.find(u64::from(variant) << 56).count();
    }
    edit_leaf(endian, u64::from(variant) << 56, bytes);
    if let Ok(other) = zap::byteswapped(bytes, Endian::Little, Endian::Big) {
        assert_eq!(zap::byteswapped(&other, Endian::Big, Endian::Little).as_deref(), Ok(bytes));
    }
}

/// Applies every kind of edit to a leaf; errors from inconsistent bytes are ignored.
fn edit_leaf(endian: Endian, hash: u64, bytes: &[u8]) {
    let Ok(mut leaf) = zap::LeafEdit::open(bytes.to_vec(), endian) else { return };
    let key = zap::NewKey::Name(b"fuzz".to_vec());
    let entry = zap::NewEntry { hash, cd: zap::NewEntry::ANY_CD, key, int_size: 2, value: vec![7; 30] };
    let _ = leaf.insert(&entry);
    if let Ok(Some((_, slot))) = leaf.find(hash, |_, _| Ok(true)) {
        let _ = (leaf.replace(slot, 8, &[1, 2, 3]), leaf.remove(slot));
    }
    let _ = (leaf.split(), leaf.widen());
}

fn zap_micro_target(data: &[u8]) {
    let (endian, _, bytes) = split(data);
    if let Ok(zap) = zap::MicroZap::decode(bytes, endian) {
        let _ = zap.entries().fold(0, |sum, e| sum ^ zap::hash_bytes(zap.salt, zap::ZapFlags(0), e.name));
        let free = zap.free_slot();
        for entry in zap.entries() {
            let found = zap.find(entry.name).map(|(at, _)| at);
            assert!(found.is_some_and(|at| at + zap::MicroZap::SLOT <= bytes.len() && Some(at) != free));
            assert!(!entry.fits() || bytes.windows(64).any(|slot| slot[..12] == entry.encode(endian)[..12]));
        }
    }
}

fn zil_target(data: &[u8]) {
    let (endian, variant, bytes) = split(data);
    let kind = if variant & 1 == 0 { ChecksumKind::Zilog2 } else { ChecksumKind::Zilog };
    if let Ok(block) = zil::ZilBlock::decode(bytes, kind, endian) {
        for record in block.records().flatten() {
            let Ok(body) = record.body() else { continue };
            match &body {
                zil::LogBody::Write(write) => assert_eq!(record.pointers().as_deref(), Ok(&[write.pointer][..])),
                zil::LogBody::CloneRange { pointers, .. } => assert_eq!(record.pointers().as_ref(), Ok(pointers)),
                _ => assert_eq!(record.pointers(), Ok(Vec::new())),
            }
            // The first encoding pads lengths to a multiple of eight.
            let ignore_case = record.ignore_case;
            let txg = record.txg;
            let seq = record.seq;
            let once = zil::NewRecord { body: &body, ignore_case, txg, seq }.encode(endian);
            let again = zil::LogRecords::new(&once, endian).next().and_then(Result::ok).expect("an encoded record");
            let body = again.body().expect("an encoded body");
            assert_eq!((again.tx_type, again.length), (record.tx_type, once.len()));
            assert_eq!(zil::NewRecord { body: &body, ignore_case, txg, seq }.encode(endian), once);
        }
    }
}

fn znode_target(data: &[u8]) {
    let (endian, _, bytes) = split(data);
    if let Ok(z) = znode::Znode::decode(bytes, endian) {
        let _ = z.inline_target(bytes);
        let _ = z.acl.aces(None, endian);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small seeded generator, so that failures are reproducible.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ z >> 31
        }

        fn bytes(&mut self, len: usize) -> Vec<u8> {
            (0..len).map(|_| self.next() as u8).collect()
        }
    }

    /// Well-formed structures to mutate, so that inputs pass the checks of magic numbers.
    fn seeds() -> Vec<Vec<u8>> {
        let mut list = NvList::new();
        list.set("pool_guid", 7u64);
        list.set("children", vec![NvList::new(), NvList::new()]);
        list.set("names", NvValue::StringArray(vec![b"a".to_vec(), b"b".to_vec()]));
        let mut leaf = vec![0; 512];
        leaf[..8].copy_from_slice(&zap::BlockKind::LEAF.to_le_bytes());
        leaf[24..28].copy_from_slice(&zap::Leaf::MAGIC.to_le_bytes());
        for chunk in 0..16 {
            leaf[80 + 24 * chunk] = if chunk % 3 == 0 { 252 } else { 251 };
            leaf[81 + 24 * chunk] = 8;
        }
        let mut uberblock = Uberblock::MAGIC.to_le_bytes().to_vec();
        uberblock.resize(1024, 5);
        let mut dnode = vec![0; 512];
        dnode[..8].copy_from_slice(&[19, 17, 2, 1, 44, 0, 0, 4]);
        let begin = stream::Record::Object(Default::default()).encode(Endian::Little, [0; 4]);
        let mut sends = vec![0; 8];
        sends.extend(stream::Begin::MAGIC.to_le_bytes());
        sends.resize(stream::RECORD_BYTES, 0);
        sends.extend(begin);
        let mut chain = zil::ZilChain { next: BlockPointer::HOLE, used_bytes: 600, endian: Endian::Little }.encode();
        for kind in 0..12u64 {
            for word in [kind * 2 + 1, 32 + 8 * kind, 1, 2] {
                chain.extend(word.to_le_bytes());
            }
            chain.resize(chain.len() + 8 * kind as usize, 1);
        }
        let mut sa = sa::SaHeader { layout: 2, header_bytes: 16, lengths: vec![5; 5] }.encode(Endian::Little);
        sa.resize(320, 1);
        let gang = gang::encode(&[BlockPointer::from_words([3; 16])], 512, Endian::Little).unwrap();
        let mut xdr = vec![list.encode_xdr(), list.encode_native(Endian::Little), list.encode_native(Endian::Big)];
        xdr.extend([leaf, uberblock, dnode, sends, chain, sa, gang]);
        xdr.push(zap::MicroZap::encode(1, zap::NormFlags(0), &[], 512, Endian::Little).unwrap());
        xdr.into_iter().map(|s| [vec![0], s].concat()).collect()
    }

    #[test]
    fn no_target_panics() {
        let seeds = seeds();
        for (i, (name, target)) in TARGETS.iter().enumerate() {
            let mut random = Random(i as u64);
            for round in 0..600 {
                let mut input = if round % 3 == 0 {
                    let len = random.next() as usize % 1400;
                    random.bytes(len)
                } else {
                    seeds[round % seeds.len()].clone()
                };
                if round >= seeds.len() * 3 {
                    for _ in 0..random.next() % 8 {
                        let at = random.next() as usize % input.len().max(1);
                        if let Some(b) = input.get_mut(at) {
                            *b = if random.next() & 1 == 0 {
                                random.next() as u8
                            } else {
                                *b ^ 1 << (random.next() % 8)
                            };
                        }
                    }
                }
                let outcome = std::panic::catch_unwind(|| target(&input));
                assert!(outcome.is_ok(), "target {name}, round {round}: {input:?}");
            }
        }
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = TARGETS.iter().map(|t| t.0).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), TARGETS.len());
    }
}
