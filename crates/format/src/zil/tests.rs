use super::*;
use crate::encoder::Encoder;
use crate::ids::ObjectId;

fn remove_record(e: &mut Encoder) {
    let name = b"gone\0\0\0\0";
    e.words(&[TxType::Remove.to_u64() | 1 << 63, 32 + 8 + name.len() as u64, 9, 4, 34]);
    e.bytes(name);
}

fn block(kind: ChecksumKind, endian: Endian) -> Vec<u8> {
    let mut records = Encoder::new(endian);
    remove_record(&mut records);
    let records = records.finish();
    let head = if kind == ChecksumKind::Zilog2 { ZilChain::SIZE } else { 0 };
    let chain = ZilChain { next: BlockPointer::HOLE, used_bytes: (head + records.len()) as u64, endian }.encode();
    let mut out = vec![];
    if kind == ChecksumKind::Zilog2 {
        out.extend(&chain);
    }
    out.extend(records);
    if kind == ChecksumKind::Zilog2 {
        out.resize(4096, 0);
    } else {
        out.resize(4096 - ZilChain::SIZE, 0);
        out.extend(&chain);
    }
    out
}

#[test]
fn both_block_forms() {
    for kind in [ChecksumKind::Zilog, ChecksumKind::Zilog2] {
        for endian in [Endian::Little, Endian::Big] {
            let bytes = block(kind, endian);
            let block = ZilBlock::decode(&bytes, kind, endian).unwrap();
            let records: Vec<_> = block.records().collect::<Result<_, _>>().unwrap();
            assert_eq!(records.len(), 1);
            assert!(records[0].ignore_case);
            assert_eq!((records[0].txg, records[0].seq), (Txg(9), 4));
            assert_eq!(records[0].body().unwrap(), LogBody::Remove { dir: ObjectId(34), name: b"gone" });
            assert!(!block.continues(&BlockPointer::HOLE));
        }
    }
}

#[test]
fn forged_lengths() {
    let mut bytes = block(ChecksumKind::Zilog2, Endian::Little);
    bytes[ZilChain::SIZE + 8..ZilChain::SIZE + 16].fill(0);
    let zil = ZilBlock::decode(&bytes, ChecksumKind::Zilog2, Endian::Little).unwrap();
    assert!(matches!(zil.records().collect::<Vec<_>>()[..], [Err(_)]));
    bytes[136..144].fill(0xff);
    assert!(ZilBlock::decode(&bytes, ChecksumKind::Zilog2, Endian::Little).is_err());
    assert!(ZilBlock::decode(&[], ChecksumKind::Zilog, Endian::Little).is_err());
}

#[test]
fn header_round_trips() {
    let header = ZilHeader {
        claim_txg: Txg(1),
        replay_seq: 2,
        log: BlockPointer::from_words([3; 16]),
        claim_block_seq: 4,
        flags: 2,
        claim_record_seq: 5,
    };
    let mut e = Encoder::new(Endian::Big);
    header.encode(&mut e);
    let bytes = e.finish();
    assert_eq!(bytes.len(), ZilHeader::SIZE);
    assert_eq!(ZilHeader::decode(&mut Cursor::new(&bytes, Endian::Big, "t")).unwrap(), header);
}
