//! Nop-writes: which objects have blocks that are compared with those that replace them.

use super::policy::Policy;
use crate::object::Object;
use crate::object_set::ObjectSet;
use weir_format::{Dnode, ObjectId, ObjectType};

/// An object as of the last txg, if its blocks of data are compared with those that replace them: blocks that are neither encrypted
/// nor deduplicated, with a checksum that suffices.
pub(super) fn compared(
    set: &ObjectSet,
    policy: &Policy,
    id: ObjectId,
    kind: ObjectType,
    base: Option<&Dnode>,
) -> Option<Object> {
    let is_clear = set.options().keys.is_none() && set.raw().is_none();
    let compares = policy.allows_nop_writes() && !kind.is_metadata() && is_clear;
    base.filter(|_| compares).map(|dnode| Object::new(id, dnode.clone()))
}
