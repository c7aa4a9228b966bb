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

/// A leaf of one entry, made by hand.
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
