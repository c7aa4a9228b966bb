//! Fuzz targets for the structures that this crate decodes itself. Each must return for any input, in time and memory
//! bounded by the input's length.

use crate::acl::{Ace, decode};
use crate::metadata::{AttrIds, Metadata, StoredAcl};
use crate::writing::posix_acl::List;
use crate::writing::sa_attrs::{SaAttrs, encode, layout};
use crate::writing::{AttrRegistry, owner_of};
use crate::xattr::{linux_name, list_of, stored_names, value_of};
use bytes::Bytes;
use weir_dmu::sa::SaTable;
use weir_format::{Endian, ObjectId, ObjectType};

/// Name and body of a fuzz target.
pub type Target = (&'static str, fn(&[u8]));

/// All fuzz targets of this crate.
pub const TARGETS: &[Target] = &[
    ("file_acl", file_acl_target),
    ("file_row", file_row_target),
    ("file_xattrs", file_xattrs_target),
    ("posix_acl", posix_acl_target),
    ("nfs4_acl_xdr", nfs4_acl_xdr_target),
];

const OBJECT: ObjectId = ObjectId(7);

fn endian_of(first: u8) -> Endian {
    if first & 1 == 1 { Endian::Big } else { Endian::Little }
}

fn file_acl_target(data: &[u8]) {
    let Some(([first, count], bytes)) = data.split_first_chunk::<2>() else { return };
    if let Ok(aces) = decode(OBJECT, bytes, endian_of(*first), u64::from(*count), first & 2 != 0) {
        assert!(aces.len() <= usize::from(*count));
        assert_eq!(aces.iter().map(Ace::of).count(), aces.len());
    }
}

fn nfs4_acl_xdr_target(data: &[u8]) {
    if let Ok(acl) = crate::acl_xdr::decode(data) {
        assert_eq!(crate::acl_xdr::decode(&crate::acl_xdr::encode(&acl)).ok(), Some(acl));
    }
}

/// An SA registry followed by a file's attributes: decoded for `stat`, and decoded, modified and encoded as in a
/// change.
fn file_row_target(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let endian = endian_of(*first);
    let (table, row) = SaTable::of_bytes(rest);
    let numbers = AttrIds::new(table);
    let mut metadata = Metadata::default();
    let whole = Bytes::copy_from_slice(row);
    if metadata.add_attributes(&numbers, &whole, endian, Some(&whole)).is_ok() {
        let _ = metadata.kind();
        if let StoredAcl::Aces(bytes, count, endian) = &metadata.acl {
            let _ = decode(OBJECT, bytes, *endian, *count, true);
        }
    }
    let _ = Metadata::of_znode(row, endian);
    for kind in [ObjectType::ZNODE, ObjectType::SA] {
        let _ = owner_of(kind, row, endian);
    }
    let Ok(pieces) = numbers.table().row(row, endian) else { return };
    let mut list = SaAttrs::default();
    if list.take(&numbers, &pieces, endian).is_err() {
        return;
    }
    let _ = list.aces(&numbers);
    for room in [0, 64, 320, 8192] {
        let Some(parts) = list.parts(&numbers, room) else { continue };
        for part in [parts.bonus, parts.spill] {
            let lengths = part.iter().filter_map(|a| numbers.length(a.number)).count();
            assert_eq!((lengths, layout(part).len()), (part.len(), part.len()));
            let _ = encode(&numbers, part, 2, endian);
        }
    }
}

fn file_xattrs_target(data: &[u8]) {
    let mut metadata = Metadata::default();
    metadata.xattrs = Some(Bytes::copy_from_slice(data));
    if let Ok(Some(list)) = list_of(OBJECT, &metadata) {
        for pair in list.pairs() {
            let _ = value_of(&pair.value);
            if let Some(name) = linux_name(&pair.name) {
                assert!(stored_names(&name).any(|stored| stored == &pair.name[..]), "a listed name is found");
            }
        }
    }
}

fn posix_acl_target(data: &[u8]) {
    if let Some(list) = List::decode(data) {
        let bytes = list.encode();
        assert_eq!(List::decode(&bytes).map(|again| again.encode()), Some(bytes), "encoding round-trips");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn nothing_panics() {
        weir_sim::fuzz::run_targets(super::TARGETS, 2000, 1500);
    }
}
