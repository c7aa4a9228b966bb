//! Syncing a set.
use weir_format::{Objset, ObjsetId, ObjsetKind};
/// A header.
pub(crate) fn new_header(kind: ObjsetKind, _id: ObjsetId) -> Objset {
    Objset { kind, ..crate::object_set::empty_header() }
}
