use super::*;
use proptest::prelude::*;

#[test]
fn a_tiny_stream() {
    for endian in [Endian::Little, Endian::Big] {
        let begin = Record::Begin(Begin {
            header_type: 1,
            features: feature::LZ4 | feature::RAW,
            creation_time_s: 5,
            objset_type: 2,
            flags: 4,
            to_guid: 7,
            from_guid: 0,
            to_name: b"tank@a".to_vec(),
            payload_len: 4,
        });
        let write = Record::Write(WriteRecord { logical_bytes: 512, ..Default::default() });
        let end = Record::End { checksum: [0; 4], to_guid: 7 };
        let mut bytes = begin.encode(endian, [0; 4]);
        bytes.extend([0; 4]);
        bytes.extend(write.encode(endian, [0; 4]));
        bytes.extend([9; 512]);
        bytes.extend(end.encode(endian, [0; 4]));
        assert_eq!(bytes.len(), 3 * RECORD_BYTES + 516);
        let items: Vec<_> = StreamReader::new(&bytes, Unchecked).unwrap().collect::<Result<_, _>>().unwrap();
        assert_eq!(items.iter().map(|i| i.record.clone()).collect::<Vec<_>>(), [begin, write, end]);
        assert_eq!(items[1].payload, [9; 512]);
        assert!(items.iter().all(StreamItem::checksum_holds));
        let cut = StreamReader::new(&bytes[..bytes.len() - 1], Unchecked).unwrap();
        assert!(cut.last().unwrap().is_err());
    }
}

#[test]
fn invalid_payload_lengths() {
    let write = Record::Write(WriteRecord { logical_bytes: u64::MAX, ..Default::default() });
    assert!(write.payload_len().is_err());
    assert!(StreamReader::new(&[0; 400], Unchecked).is_err());
}

#[test]
fn names_are_nul_terminated() {
    let begin = Begin {
        header_type: 1,
        features: 0,
        creation_time_s: 5,
        objset_type: 2,
        flags: 0,
        to_guid: 7,
        from_guid: 0,
        to_name: vec![7; 300],
        payload_len: 0,
    };
    let mut bytes = Record::Begin(begin).encode(Endian::Little, [0; 4]);
    assert!(matches!(Record::decode(&bytes, Endian::Little), Ok((Record::Begin(b), _)) if b.to_name == [7; 255]));
    let end = bytes.len() - bytes.iter().rev().position(|byte| *byte == 7).unwrap();
    bytes[end] = 7;
    assert!(matches!(Record::decode(&bytes, Endian::Little), Err(DecodeError::Field { .. })));
}

proptest! {
    #[test]
    fn records_round_trip(kind in 1u32..11, bytes in proptest::collection::vec(any::<u8>(), RECORD_BYTES)) {
        for endian in [Endian::Little, Endian::Big] {
            let mut bytes = bytes.clone();
            bytes[..4].copy_from_slice(&match endian {
                Endian::Little => kind.to_le_bytes(),
                Endian::Big => kind.to_be_bytes(),
            });
            let (record, stored) = Record::decode(&bytes, endian).unwrap();
            prop_assert_eq!(record.kind(), kind);
            let again = record.encode(endian, stored);
            prop_assert_eq!(again.len(), RECORD_BYTES);
            prop_assert_eq!(Record::decode(&again, endian).unwrap(), (record, stored));
        }
    }
}
