//! First objects of a file system that OpenZFS creates, from `zdb` output of a golden pool.

use std::sync::Arc;
use weir_dmu::object_set::ObjectSet;
use weir_dmu::zap::{Zap, lookup_word};
use weir_format::ObjectId;
use weir_machine::Request;

/// Checks `SA_ATTRS`, `DELETE_QUEUE`, `ROOT` and the objects that they refer to.
pub async fn same_first_objects(rq: &Request, set: &Arc<ObjectSet>) {
    let word = |id: u64, name: &'static str| async move { lookup_word(rq, set, ObjectId(id), name).await.unwrap() };
    assert_eq!(word(1, "VERSION").await, Some(5));
    for name in ["normalization", "utf8only", "casesensitivity"] {
        assert_eq!(word(1, name).await, Some(0));
    }
    let attributes = word(1, "SA_ATTRS").await.unwrap();
    let registry = word(attributes, "REGISTRY").await.unwrap();
    let layouts = word(attributes, "LAYOUTS").await.unwrap();
    for (name, wanted) in [
        ("ZPL_SCANSTAMP", 0x2003_0012),
        ("ZPL_ATIME", 0x1000_0000),
        ("ZPL_DACL_ACES", 0x4_0013),
        ("ZPL_DXATTR", 0x3_0014),
        ("ZPL_PROJID", 0x800_0015),
        ("ZPL_ZNODE_ACL", 0x5803_000f),
    ] {
        assert_eq!(word(registry, name).await, Some(wanted), "{name}");
    }
    assert_eq!(Zap::open(rq, set, ObjectId(registry)).await.unwrap().all(rq, 99).await.unwrap().len(), 22);
    let layout = Zap::open(rq, set, ObjectId(layouts)).await.unwrap().all(rq, 9).await.unwrap();
    assert_eq!(layout[0].key.text(), "2");
    assert_eq!(layout[0].value.words, [5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 21, 16, 19]);
    let root = set.object(rq, ObjectId(word(1, "ROOT").await.unwrap())).await.unwrap();
    let bonus = &root.dnode.bonus()[..176];
    let at = |offset: usize| u64::from_le_bytes(bonus[offset..offset + 8].try_into().unwrap());
    assert_eq!(at(0), 0x18 << 48 | 0x402 << 32 | 0x2f_505a, "magic, layout 2, header of 8 bytes, 24 of ACL");
    assert_eq!((at(8), at(16), at(24), at(40 + 8)), (0o40755, 2, 12, root.id.0));
    assert_eq!(at(56), 0x8408_0000_0144, "pflags");
}
