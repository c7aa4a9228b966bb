//! Overlay of a live object set: its objects with unsynced changes, and the settings of the next sync.

use super::dirty_object::DirtyObject;
use super::object_allocator::ObjectAllocator;
use super::policy::Policy;
use super::tx_admission::TxAdmission;
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_blocks::RawForm;
use weir_format::zil::ZilHeader;
use weir_format::{ObjectId, Txg};
use weir_machine::lock::{Mutex, MutexGuard, order};

pub(crate) struct State {
    pub nodes: BTreeMap<ObjectId, DirtyObject>,
    /// Counts the syncs. A reader that finds another number must read again.
    pub version: u64,
    /// Counts the changes of the overlay.
    pub edits: u64,
    pub allocator: ObjectAllocator,
    pub policy: Policy,
    /// Header of the intent log for the next sync.
    pub zil: Option<ZilHeader>,
    /// Whether a directory got a name that needs `feature@longname`.
    pub long_names: bool,
    /// In a set that is received raw: forms of blocks of dnodes, by unsynced txg and block.
    pub raw_dnodes: BTreeMap<(Txg, u64), RawForm>,
}

/// State of an object set that can be changed.
pub(crate) struct DirtyObjset {
    pub admission: Arc<dyn TxAdmission>,
    state: Mutex<State, { order::OVERLAY }>,
}

impl DirtyObjset {
    pub fn new(admission: Arc<dyn TxAdmission>, policy: Policy, first_block: u64) -> Self {
        let allocator = ObjectAllocator::new(first_block);
        let nodes = Default::default();
        let zil = Default::default();
        let state = State {
            nodes,
            version: 0,
            edits: 0,
            allocator,
            policy,
            zil,
            long_names: false,
            raw_dnodes: BTreeMap::new(),
        };
        DirtyObjset { admission, state: Mutex::new(state) }
    }

    /// The overlay. Locked for a lookup or a change, never across an await.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}
