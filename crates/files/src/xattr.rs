//! Extended attributes (OpenZFS `module/os/linux/zfs/zpl_xattr.c`).
//!
//! They stand in two places: a packed nvlist among the system attributes (`xattr=sa`), and a hidden directory of files
//! (`xattr=dir`, and whatever was too big). A name may be in both after the property was changed: the list wins.
//!
//! *Names.* OpenZFS on Linux stores them as Linux shows them, with their name space (`user.x`). Other systems store a
//! user's attribute bare: `x` is then shown as `user.x`, and looked for so when `user.x` itself is not there. Names
//! with the name space of another system (`freebsd:…`) are not shown, nor are illumos' own (`SUNWattr_ro`, `SUNWattr_rw`).

use crate::error::FileError;
use crate::metadata::{Metadata, lies};
use bytes::Bytes;
use std::collections::BTreeSet;
use weir_dmu::zap::{Match, Zap};
use weir_format::znode::DirEntry as StoredEntry;
use weir_format::{NvList, NvValue, ObjectId};
use weir_machine::Request;

use crate::file_system::FileSystem;

const USER: &[u8] = b"user.";
/// Name spaces that Linux shows as they are.
const SHOWN: [&[u8]; 4] = [USER, b"trusted.", b"security.", b"system."];
/// Most attributes of one file that are listed.
const MOST: usize = 1 << 20;
/// Longest value that is read: Linux itself stops at 64 KiB.
const LONGEST: u64 = 1 << 20;

/// The name under which Linux shows a stored name; `None` if it is not shown.
pub(crate) fn shown(stored: &[u8]) -> Option<Vec<u8>> {
    if SHOWN.iter().any(|space| stored.starts_with(space)) {
        return Some(stored.to_vec());
    }
    if stored.starts_with(b"freebsd:") || stored == b"SUNWattr_ro" || stored == b"SUNWattr_rw" {
        return None;
    }
    Some([USER, stored].concat())
}

/// The stored names that a Linux name may have, the likelier first.
pub(crate) fn stored_names(name: &[u8]) -> impl Iterator<Item = &[u8]> {
    let bare = name.strip_prefix(USER).filter(|bare| shown(bare).as_deref() == Some(name));
    std::iter::once(name).chain(bare)
}

pub(crate) fn list_of(object: ObjectId, metadata: &Metadata) -> Result<Option<NvList>, FileError> {
    let Some(packed) = metadata.xattrs.as_ref().filter(|packed| !packed.is_empty()) else { return Ok(None) };
    NvList::decode(packed).map(Some).map_err(|e| lies(object, e))
}

pub(crate) fn value_of(value: &NvValue) -> Option<Bytes> {
    match value {
        NvValue::ByteArray(bytes) | NvValue::Uint8Array(bytes) => Some(Bytes::copy_from_slice(bytes)),
        _ => None,
    }
}

impl FileSystem {
    pub(crate) async fn list_xattrs(
        &self,
        rq: &Request,
        object: ObjectId,
        metadata: &Metadata,
    ) -> Result<Vec<Vec<u8>>, FileError> {
        let mut names = BTreeSet::new();
        if let Some(list) = list_of(object, metadata)? {
            names.extend(list.pairs().iter().filter_map(|pair| shown(&pair.name)));
        }
        if metadata.xattr_dir.0 != 0 {
            let failed = |e| FileError::at(e, object, 0);
            let zap = Zap::open(rq, self.objects(), metadata.xattr_dir).await.map_err(failed)?;
            for entry in zap.all(rq, MOST).await.map_err(failed)? {
                names.extend(entry.key.name().and_then(shown));
            }
        }
        Ok(names.into_iter().collect())
    }

    pub(crate) async fn find_xattr(
        &self,
        rq: &Request,
        object: ObjectId,
        metadata: &Metadata,
        name: &[u8],
    ) -> Result<Option<Bytes>, FileError> {
        let list = list_of(object, metadata)?;
        let dir = match metadata.xattr_dir.0 {
            0 => None,
            _ => {
                Some(Zap::open(rq, self.objects(), metadata.xattr_dir).await.map_err(|e| FileError::at(e, object, 0))?)
            }
        };
        for stored in stored_names(name) {
            if let Some(value) = list.as_ref().and_then(|list| list.get_bytes_name(stored)).and_then(value_of) {
                return Ok(Some(value));
            }
            let Some(dir) = &dir else { continue };
            let found = dir.lookup(rq, stored, Match::Exact).await.map_err(|e| FileError::at(e, object, 0))?;
            if let Some(word) = found.and_then(|v| v.first()) {
                let file = StoredEntry::from_word(word).object;
                return self.read_whole(rq, file, LONGEST).await.map(Some);
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_as_linux_shows_them() {
        assert_eq!(shown(b"user.a").as_deref(), Some(&b"user.a"[..]));
        assert_eq!(shown(b"a").as_deref(), Some(&b"user.a"[..]));
        assert_eq!(shown(b"security.selinux").as_deref(), Some(&b"security.selinux"[..]));
        assert_eq!(shown(b"SUNWattr_rw"), None);
        assert_eq!(shown(b"freebsd:system:x"), None);
    }

    #[test]
    fn a_bare_name_is_tried_second() {
        assert_eq!(stored_names(b"user.a").collect::<Vec<_>>(), [&b"user.a"[..], b"a"]);
        assert_eq!(stored_names(b"trusted.a").collect::<Vec<_>>(), [&b"trusted.a"[..]]);
        assert_eq!(stored_names(b"user.user.a").collect::<Vec<_>>(), [&b"user.user.a"[..]], "that would be user.a");
    }
}
