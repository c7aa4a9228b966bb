//! A live object set without disks, for tests.

use super::policy::Policy;
use super::tx_admission::UnlimitedTxAdmission;
use crate::object_set::ObjectSet;
use crate::txg::TxgTracker;
use std::sync::Arc;
use weir_format::ObjsetId;

/// Creates a live object set of this type without disks, for tests: its changes stay in memory.
#[doc(hidden)]
pub fn scratch(machine: &weir_machine::Machine, kind: weir_format::ObjsetKind) -> Arc<ObjectSet> {
    use weir_blocks::{Blocks, Tree};
    use weir_cache::Cache;
    let tree = Tree::new(Vec::new(), &machine.clock).expect("an empty tree has nothing wrong with it");
    let blocks = Arc::new(Blocks::new(machine, tree, weir_codec::Salt::none()));
    let cache = Cache::new(machine.clone(), blocks, 1 << 20);
    let admission = Arc::new(UnlimitedTxAdmission(TxgTracker::new(weir_format::Txg(3))));
    ObjectSet::make(cache, ObjsetId(54), kind, admission, Policy::default())
}
