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
            assert_eq!(
                records[0].body().unwrap(),
                LogBody::Remove { directory: false, dir: ObjectId(34), name: b"gone" }
            );
            assert!(!block.continues(&BlockPointer::HOLE));
        }
    }
}

#[test]
fn invalid_lengths() {
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

fn acl() -> AclBody<'static> {
    let aces = &b"twelve bytes"[..];
    let fuids = vec![7, 1 << 33];
    let domains = vec![&b"S-1-5"[..], b"S-1-6"];
    AclBody { count: 1, domain_count: 2, fuid_count: 2, bytes: 12, flags: 5, aces, fuids, domains }
}

fn xvattr() -> Xvattr {
    Xvattr { bitmap: vec![1, 2, 3], attributes: 9, crtime: [10, 11], scan_stamp: [12; 32] }
}

/// Every kind of creation: with and without ACL and optional attributes, with domains of owner and group.
fn creations() -> Vec<LogBody<'static>> {
    let mut out = vec![];
    for kind in [CreateKind::File, CreateKind::Directory, CreateKind::XattrDirectory, CreateKind::Symlink] {
        for variant in 0..5 {
            let plain = matches!(kind, CreateKind::XattrDirectory | CreateKind::Symlink);
            let with_acl = variant & 1 != 0 && !plain;
            let with_attributes = variant & 2 != 0 && !plain;
            let domains = if variant == 4 && !plain { vec![&b"S-1-1"[..], b"S-1-2"] } else { vec![] };
            out.push(LogBody::Create(Box::new(CreateBody {
                kind,
                dir: ObjectId(34),
                object: ObjectId(129),
                dnode_slots: 1 + variant * 50,
                mode: 0o100_644,
                uid: if domains.is_empty() { 1000 } else { 1 << 32 },
                gid: if domains.is_empty() { 1000 } else { 2 << 32 },
                generation: 77,
                crtime: [1, 2],
                rdev: 0,
                attributes: with_attributes.then(xvattr),
                acl: with_acl.then(acl),
                domains,
                name: b"name",
                link: (kind == CreateKind::Symlink).then_some(&b"../target"[..]),
            })));
        }
    }
    out
}

fn bodies() -> Vec<LogBody<'static>> {
    let mut out = creations();
    let a = ObjectId(34);
    let b = ObjectId(35);
    for directory in [false, true] {
        out.push(LogBody::Remove { directory, dir: a, name: b"x" });
    }
    out.push(LogBody::Link { dir: a, object: b, name: b"a longer name" });
    for how in [RenameKind::Replace, RenameKind::Exchange, RenameKind::Whiteout([1, 2, 3, 4, 5, 6, 7, 8])] {
        out.push(LogBody::Rename { source_dir: a, target_dir: b, how, source: b"from", target: b"to" });
    }
    let pointer = BlockPointer::from_words([9; 16]);
    let block_offset = 0;
    for data in [None, Some(&b"thirteen byte"[..])] {
        let write = WriteBody { object: a, offset: 4096, length: 13, block_offset, pointer, data };
        out.push(LogBody::Write(write.clone()));
        out.push(LogBody::Write2(write));
    }
    out.push(LogBody::Truncate { object: a, offset: 1, length: u64::MAX });
    let mut extra = Encoder::new(Endian::Little);
    xvattr().encode(&mut extra);
    let extra: &'static [u8] = extra.finish().leak();
    let object = a;
    let times = [3, 4];
    for extra in [&[], extra] {
        let mask = 1;
        let mode = 2;
        let uid = 3;
        let gid = 4;
        let size = 5;
        out.push(LogBody::SetAttr { object, mask, mode, uid, gid, size, atime: times, mtime: times, extra });
    }
    out.push(LogBody::AclV0 { object, count: 1, aces: b"sixteen bytes ...".get(..16).unwrap() });
    out.push(LogBody::Acl { object, acl: acl() });
    for value in [&b""[..], b"a value"] {
        out.push(LogBody::SetSaXattr { object, name: b"user.a", value });
    }
    out.push(LogBody::CloneRange { object, offset: 0, length: 9, block_bytes: 512, pointers: vec![pointer; 3] });
    out
}

#[test]
fn records_round_trip() {
    let mut kinds = std::collections::BTreeSet::new();
    for endian in [Endian::Little, Endian::Big] {
        for (seq, body) in bodies().into_iter().enumerate() {
            let seq = seq as u64;
            let ignore_case = seq.is_multiple_of(2);
            let txg = Txg(5);
            let mut bytes = NewRecord { body: &body, ignore_case, txg, seq: 0 }.encode(endian);
            set_sequence(&mut bytes, seq, endian);
            assert_eq!(bytes.len() % 8, 0);
            let record = LogRecords::new(&bytes, endian).next().unwrap().unwrap();
            assert_eq!((record.ignore_case, record.txg, record.seq), (ignore_case, txg, seq));
            assert_eq!((record.length, record.tx_type), (bytes.len(), body.tx_type()));
            kinds.insert(record.tx_type);
            // The optional attributes were encoded little-endian.
            if endian == Endian::Little || !matches!(body, LogBody::SetAttr { .. }) {
                assert_eq!(record.body().unwrap(), body);
            }
        }
    }
    assert_eq!(kinds.len(), 24, "all but the commit: {kinds:?}");
}

#[test]
fn optional_attributes_of_a_setattr() {
    let body = bodies().into_iter().rfind(|b| matches!(b, LogBody::SetAttr { .. })).unwrap();
    let LogBody::SetAttr { extra, .. } = body else { unreachable!() };
    assert_eq!(Xvattr::decode(&mut Cursor::new(extra, Endian::Little, "t")).unwrap(), xvattr());
}
