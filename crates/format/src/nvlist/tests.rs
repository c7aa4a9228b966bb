use super::*;
use proptest::prelude::*;

fn sample() -> NvList {
    let mut inner = NvList::new();
    inner.set("type", "disk");
    inner.set("guid", 7u64);
    let mut list = NvList::new();
    list.set("version", 5000u64);
    list.set("name", "tank");
    list.set("has", NvValue::Boolean);
    list.set("bytes", NvValue::ByteArray(vec![1, 2, 3, 255, 5]));
    list.set("u8s", NvValue::Uint8Array(vec![200, 1]));
    list.set("strings", NvValue::StringArray(vec![b"a".to_vec(), b"bcd".to_vec()]));
    list.set("vdev_tree", inner.clone());
    list.set("children", vec![inner.clone(), inner]);
    list.set("empty", NvValue::Uint64Array(vec![]));
    list
}

#[test]
fn round_trips_in_both_encodings() {
    let list = sample();
    assert_eq!(NvList::decode(&list.encode_xdr()).unwrap(), list);
    for endian in [Endian::Little, Endian::Big] {
        assert_eq!(NvList::decode(&list.encode_native(endian)).unwrap(), list);
    }
}

#[test]
fn xdr_golden_bytes() {
    let mut list = NvList::new();
    list.set("version", 28u64);
    let expected: &[u8] = &[
        1, 1, 0, 0, // XDR, written on a little-endian machine
        0, 0, 0, 0, 0, 0, 0, 1, // version, unique names
        0, 0, 0, 36, 0, 0, 0, 32, // encoded, decoded size
        0, 0, 0, 7, b'v', b'e', b'r', b's', b'i', b'o', b'n', 0, // name
        0, 0, 0, 8, 0, 0, 0, 1, // uint64, one
        0, 0, 0, 0, 0, 0, 0, 28, // value
        0, 0, 0, 0, 0, 0, 0, 0, // end
    ];
    assert_eq!(list.encode_xdr(), expected);
    assert_eq!(NvList::decode(expected).unwrap().get_u64("version"), Some(28));
}

#[test]
fn set_replaces_and_get_finds_the_first() {
    let mut list = NvList::new();
    list.set("a", 1u64);
    list.set("a", 2u64);
    assert_eq!((list.len(), list.get_u64("a")), (1, Some(2)));
    let mut multi = NvList { flags: 0, pairs: Vec::new() };
    multi.set("a", 1u64);
    multi.set("a", 2u64);
    assert_eq!((multi.len(), multi.get_u64("a")), (2, Some(1)));
    assert_eq!(multi.get_str("a"), None);
    assert_eq!(multi.require_str("b"), Err(DecodeError::Missing { what: "nvlist", field: "b" }));
}

#[test]
fn prints_like_zdb() {
    let text = sample().to_text(4);
    assert!(text.starts_with("    version: 5000\n    name: 'tank'\n    has\n    bytes[0]: 1\n"), "{text}");
    assert!(text.contains("    children[1]:\n        type: 'disk'\n        guid: 7\n"), "{text}");
}

#[test]
fn nesting_is_bounded() {
    let mut list = NvList::new();
    for _ in 0..100 {
        let mut outer = NvList::new();
        outer.set("x", list);
        list = outer;
    }
    assert!(NvList::decode(&list.encode_xdr()).is_err());
    assert!(NvList::decode(&list.encode_native(Endian::Little)).is_err());
}

#[test]
fn invalid_counts_do_not_allocate() {
    let mut list = NvList::new();
    list.set("a", NvValue::Uint64Array(vec![1]));
    let mut bytes = list.encode_xdr();
    let at = bytes.len() - 8 - 8 - 8;
    bytes[at..at + 8].copy_from_slice(&[0xff; 8]);
    assert!(NvList::decode(&bytes).is_err());
}

fn value() -> impl Strategy<Value = NvValue> {
    let s = || proptest::collection::vec(1u8..=255, 0..9);
    let leaf = prop_oneof![
        Just(NvValue::Boolean),
        any::<bool>().prop_map(NvValue::BooleanValue),
        any::<u8>().prop_map(NvValue::Byte),
        any::<i8>().prop_map(NvValue::Int8),
        any::<u8>().prop_map(NvValue::Uint8),
        any::<i16>().prop_map(NvValue::Int16),
        any::<u16>().prop_map(NvValue::Uint16),
        any::<i32>().prop_map(NvValue::Int32),
        any::<u32>().prop_map(NvValue::Uint32),
        any::<i64>().prop_map(NvValue::Int64),
        any::<u64>().prop_map(NvValue::Uint64),
        any::<i64>().prop_map(NvValue::HrTime),
        any::<u64>().prop_map(NvValue::Double),
        s().prop_map(NvValue::String),
        any::<Vec<u8>>().prop_map(NvValue::ByteArray),
        any::<Vec<bool>>().prop_map(NvValue::BooleanArray),
        any::<Vec<i8>>().prop_map(NvValue::Int8Array),
        any::<Vec<u8>>().prop_map(NvValue::Uint8Array),
        any::<Vec<i16>>().prop_map(NvValue::Int16Array),
        any::<Vec<u16>>().prop_map(NvValue::Uint16Array),
        any::<Vec<i32>>().prop_map(NvValue::Int32Array),
        any::<Vec<u32>>().prop_map(NvValue::Uint32Array),
        any::<Vec<i64>>().prop_map(NvValue::Int64Array),
        any::<Vec<u64>>().prop_map(NvValue::Uint64Array),
        proptest::collection::vec(s(), 0..4).prop_map(NvValue::StringArray),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let list = || {
            (0u32..4, proptest::collection::vec((proptest::collection::vec(1u8..=255, 0..6), inner.clone()), 0..4))
                .prop_map(|(flags, pairs)| NvList {
                    flags,
                    pairs: pairs.into_iter().map(|(name, value)| NvPair { name, value }).collect(),
                })
        };
        prop_oneof![
            list().prop_map(NvValue::List),
            proptest::collection::vec(list(), 0..3).prop_map(NvValue::ListArray)
        ]
    })
}

proptest! {
    #[test]
    fn any_list_round_trips(values in proptest::collection::vec(value(), 0..5)) {
        let mut list = NvList::new();
        for (i, v) in values.into_iter().enumerate() {
            list.set(&format!("n{i}"), v);
        }
        prop_assert_eq!(&NvList::decode(&list.encode_xdr()).unwrap(), &list);
        prop_assert_eq!(&NvList::decode(&list.encode_native(Endian::Little)).unwrap(), &list);
        prop_assert_eq!(&NvList::decode(&list.encode_native(Endian::Big)).unwrap(), &list);
    }
}
