//! Nop-writes: which objects have blocks that are compared with those that replace them.

use super::policy::Policy;
use crate::object_set::ObjectSet;
use weir_format::ObjectType;

/// Whether blocks of data of an object of this type are compared with those that replace them: they are neither encrypted nor
/// deduplicated, and have a checksum that suffices.
pub(super) fn compares(set: &ObjectSet, policy: &Policy, kind: ObjectType) -> bool {
    let is_clear = set.options().keys.is_none() && set.raw().is_none();
    policy.allows_nop_writes() && !kind.is_metadata() && is_clear
}
