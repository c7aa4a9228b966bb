//! Extended attributes (OpenZFS `module/os/linux/zfs/zpl_xattr.c`).
//!
//! They are stored in two places: in a packed nvlist in a system attribute (`xattr=sa`), or as files in a hidden
//! directory (`xattr=dir`, and values that are too large). After a change of the property a name may be in both; the
//! nvlist has precedence.
//!
//! *Names.* OpenZFS on Linux stores names with their namespace (`user.x`). Other systems store a user attribute
//! without it: `x` is then listed as `user.x`, and looked up if `user.x` itself does not exist. Names of other
//! systems' namespaces (`freebsd:…`) and of illumos (`SUNWattr_ro`, `SUNWattr_rw`) are not listed.

use crate::error::FileError;
use crate::handles::Xattrs;
use crate::metadata::{Metadata, MetadataScope, corrupt};
use bytes::Bytes;
use std::collections::BTreeSet;
use weir_dmu::zap::{Match, Zap};
use weir_format::znode::DirEntry as StoredEntry;
use weir_format::{NvList, NvValue, ObjectId};
use weir_machine::Request;

const USER: &[u8] = b"user.";
/// Namespaces that are used unchanged on Linux.
const LINUX_NAMESPACES: [&[u8]; 4] = [USER, b"trusted.", b"security.", b"system."];
/// Maximum number of listed attributes per file.
const MAX_LISTED: usize = 1 << 20;
/// Maximum size of a value in bytes; Linux allows 64 KiB.
const MAX_VALUE_BYTES: u64 = 1 << 20;

/// Linux name of a stored name; `None` if it is hidden.
pub(crate) fn linux_name(stored: &[u8]) -> Option<Vec<u8>> {
    if LINUX_NAMESPACES.iter().any(|space| stored.starts_with(space)) {
        return Some(stored.to_vec());
    }
    if stored.starts_with(b"freebsd:") || stored == b"SUNWattr_ro" || stored == b"SUNWattr_rw" {
        return None;
    }
    Some([USER, stored].concat())
}

/// The stored names that a Linux name may have, the most likely first.
pub(crate) fn stored_names(name: &[u8]) -> impl Iterator<Item = &[u8]> {
    let bare = name.strip_prefix(USER).filter(|bare| linux_name(bare).as_deref() == Some(name));
    std::iter::once(name).chain(bare)
}

pub(crate) fn list_of(object: ObjectId, metadata: &Metadata) -> Result<Option<NvList>, FileError> {
    let Some(packed) = metadata.xattrs.as_ref().filter(|packed| !packed.is_empty()) else { return Ok(None) };
    NvList::decode(packed).map(Some).map_err(|e| corrupt(object, e))
}

pub(crate) fn value_of(value: &NvValue) -> Option<Bytes> {
    match value {
        NvValue::ByteArray(bytes) | NvValue::Uint8Array(bytes) => Some(Bytes::copy_from_slice(bytes)),
        _ => None,
    }
}

impl Xattrs<'_> {
    /// Names of all extended attributes as on Linux (`user.x`, `security.selinux`, …), sorted.
    pub async fn names(self, rq: &Request, object: ObjectId) -> Result<Vec<Vec<u8>>, FileError> {
        let (_, metadata) = self.files.load(rq, object, MetadataScope::All).await?;
        self.list(rq, object, &metadata).await
    }

    /// Value of an extended attribute by its Linux name; `None` if it does not exist.
    pub async fn get(self, rq: &Request, object: ObjectId, name: &[u8]) -> Result<Option<Bytes>, FileError> {
        let (_, metadata) = self.files.load(rq, object, MetadataScope::All).await?;
        self.find(rq, object, &metadata, name).await
    }

    pub(crate) async fn list(
        self,
        rq: &Request,
        object: ObjectId,
        metadata: &Metadata,
    ) -> Result<Vec<Vec<u8>>, FileError> {
        let mut names = BTreeSet::new();
        if let Some(list) = list_of(object, metadata)? {
            names.extend(list.pairs().iter().filter_map(|pair| linux_name(&pair.name)));
        }
        if metadata.xattr_dir.0 != 0 {
            let failed = |e| FileError::at(e, object, 0);
            let zap = Zap::open(rq, self.files.objects(), metadata.xattr_dir).await.map_err(failed)?;
            for entry in zap.all(rq, MAX_LISTED).await.map_err(failed)? {
                names.extend(entry.key.name().and_then(linux_name));
            }
        }
        Ok(names.into_iter().collect())
    }

    pub(crate) async fn find(
        self,
        rq: &Request,
        object: ObjectId,
        metadata: &Metadata,
        name: &[u8],
    ) -> Result<Option<Bytes>, FileError> {
        let list = list_of(object, metadata)?;
        let dir = match metadata.xattr_dir.0 {
            0 => None,
            _ => Some(
                Zap::open(rq, self.files.objects(), metadata.xattr_dir)
                    .await
                    .map_err(|e| FileError::at(e, object, 0))?,
            ),
        };
        for stored in stored_names(name) {
            if let Some(value) = list.as_ref().and_then(|list| list.get_bytes_name(stored)).and_then(value_of) {
                return Ok(Some(value));
            }
            let Some(dir) = &dir else { continue };
            let found = dir.lookup(rq, stored, Match::Exact).await.map_err(|e| FileError::at(e, object, 0))?;
            if let Some(word) = found.and_then(|v| v.first()) {
                let file = StoredEntry::from_word(word).object;
                return self.files.contents().read_whole(rq, file, MAX_VALUE_BYTES).await.map(Some);
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_names_map_to_linux_names() {
        assert_eq!(linux_name(b"user.a").as_deref(), Some(&b"user.a"[..]));
        assert_eq!(linux_name(b"a").as_deref(), Some(&b"user.a"[..]));
        assert_eq!(linux_name(b"security.selinux").as_deref(), Some(&b"security.selinux"[..]));
        assert_eq!(linux_name(b"SUNWattr_rw"), None);
        assert_eq!(linux_name(b"freebsd:system:x"), None);
    }

    #[test]
    fn names_without_namespace_are_tried_second() {
        assert_eq!(stored_names(b"user.a").collect::<Vec<_>>(), [&b"user.a"[..], b"a"]);
        assert_eq!(stored_names(b"trusted.a").collect::<Vec<_>>(), [&b"trusted.a"[..]]);
        assert_eq!(stored_names(b"user.user.a").collect::<Vec<_>>(), [&b"user.user.a"[..]], "that would be user.a");
    }
}
