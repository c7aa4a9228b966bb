//! The operations on an object set, by concept.
//!
//! [`ObjectSet`] itself holds what they share: the cache, the root, the cached dnodes, and the overlay of unsynced
//! changes. Each handle here is one concept with its operations. A handle is a reference: it is made where it is used,
//! and copied.

use crate::object_set::ObjectSet;
use std::sync::Arc;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident = $handle:ident;)+) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy)]
            pub struct $handle<'a> {
                pub(crate) set: &'a Arc<ObjectSet>,
            }
        )+

        impl ObjectSet {
            $(
                $(#[$doc])*
                pub fn $name(self: &Arc<Self>) -> $handle<'_> {
                    $handle { set: self }
                }
            )+
        }
    };
}

handles! {
    /// Reads the contents of objects: bytes, blocks, spill blocks; seeks data and holes.
    reader = Reader;
    /// The objects in use, and the ones that changed between two object sets.
    dnodes = Dnodes;
    /// Space and objects by user, group and project, and their quotas.
    accounting = Accounting;
    /// Creates objects, and changes their dnodes.
    changes = ObjectChanges;
    /// Writes blocks of objects, and clones them.
    writes = Writes;
    /// Frees objects and ranges of them.
    frees = Frees;
    /// The sync of a txg.
    syncing = Syncing;
}

/// Follows the block pointers of an object; an object set that is not shared suffices.
#[derive(Clone, Copy)]
pub struct Pointers<'a> {
    pub(crate) set: &'a ObjectSet,
}

impl ObjectSet {
    /// Follows the block pointers of an object.
    pub fn pointers(&self) -> Pointers<'_> {
        Pointers { set: self }
    }
}
