use super::*;
use proptest::prelude::*;

#[test]
fn property_suffixes() {
    assert_eq!(split_property("compression"), ("compression", PropSuffix::Local));
    assert_eq!(split_property("compression$recvd"), ("compression", PropSuffix::Received));
    assert_eq!(split_property("quota$inherit"), ("quota", PropSuffix::Inherit));
    assert_eq!(split_property("$hasrecvd"), ("", PropSuffix::HasReceived));
    assert_eq!(split_property("a:b$c"), ("a:b$c", PropSuffix::Local));
}

#[test]
fn bpobj_sizes() {
    let full =
        Bpobj { pointers: 1, bytes: 2, sizes: Some((3, 4)), sub_objects: Some((ObjectId(5), 6)), freed: Some(7) };
    let bytes = full.encode(Endian::Big);
    for len in [Bpobj::SIZE_V0, Bpobj::SIZE_V1, Bpobj::SIZE_V2, Bpobj::SIZE_V3] {
        let part = Bpobj::decode(&bytes[..len], Endian::Big).unwrap();
        assert_eq!(part.encode(Endian::Big), &bytes[..len]);
    }
    assert!(Bpobj::decode(&bytes[..8], Endian::Big).is_err());
}

proptest! {
    #[test]
    fn bytes_round_trip(bytes in proptest::collection::vec(any::<u8>(), 320)) {
        for endian in [Endian::Little, Endian::Big] {
            let dataset = DslDataset::decode(&bytes, endian).unwrap();
            let again = dataset.encode(endian);
            prop_assert_eq!(&again[..280], &bytes[..280]);
            let dir = DslDir::decode(&bytes, endian).unwrap();
            let again = dir.encode(endian);
            prop_assert_eq!(again.len(), DslDir::SIZE);
            prop_assert_eq!(&again[..152], &bytes[..152]);
            prop_assert_eq!(&Deadlist::decode(&bytes, endian).unwrap().encode(endian)[..24], &bytes[..24]);
        }
    }

    #[test]
    fn bookmarks_round_trip(words in proptest::collection::vec(any::<u64>(), 12)) {
        prop_assert_eq!(&Bookmark::from_words(&words).unwrap().to_words()[..], &words[..]);
        prop_assert!(Bookmark::from_words(&words[..3]).is_some());
        prop_assert!(Bookmark::from_words(&words[..2]).is_none());
    }
}
