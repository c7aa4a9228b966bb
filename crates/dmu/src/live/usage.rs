//! Accounting of the usage of users, groups and projects.
//!
//! For each synced file, its bytes are subtracted from its former owner and added to its present one. The sums are in
//! three ZAPs whose dnodes are in the header of the object set (`userused`, `groupused`, `projectused`). The key is an
//! id in hexadecimal for bytes, and has the prefix `obj-` for objects. Source: OpenZFS `module/zfs/dmu_objset.c`,
//! `do_userquota_cacheflush`.

use super::dirty_object::DirtyRecords;
use super::tree::Writer;
use crate::error::ObjectError;
use crate::object::Object;
use crate::object_set::ObjectSet;
use crate::txg::Tx;
use crate::zap::{self, Key, NewZap};
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_format::{Dnode, DnodeFlags, ObjectId, ObjectType, Objset, Txg};
use weir_machine::Request;

/// Bytes of a file that are accounted beyond its blocks: its dnode (`DNODE_MIN_SIZE`).
const DNODE_BYTES: i64 = 512;
/// ZAPs by kind of owner, in the order of [`super::policy::OwnerOf`].
const OBJECTS: [u64; 3] = [Objset::USERUSED_OBJECT, Objset::GROUPUSED_OBJECT, Objset::PROJECTUSED_OBJECT];
/// Index of projects in that order.
const PROJECT: usize = 2;
/// Project ID of an object without a project (`ZFS_INVALID_PROJID`).
const NO_PROJECT: u64 = u64::MAX;

/// Changes of usage: bytes and objects by kind of owner and id.
///
/// In an object set that older software made, less may be accounted, as the flags of its header say.
#[derive(Default)]
pub(super) struct Usage(BTreeMap<(usize, u64), (i64, i64)>);

impl Usage {
    /// Accounts the change of one object, and marks its dnode as accounted, also that of an object without an owner,
    /// such as the unlinked set (`dnode_sync` in OpenZFS's `module/zfs/dnode_sync.c`).
    pub async fn count(
        &mut self,
        writer: &Writer<'_>,
        base: &Option<Arc<Object>>,
        dnode: Option<Dnode>,
        changes: &DirtyRecords,
    ) -> Result<Option<Dnode>, ObjectError> {
        let flags = writer.set.root().header.flags;
        let counts = flags & Objset::USER_ACCOUNTING != 0 && writer.set.raw().is_none();
        let Some(owner_of) = writer.policy.owner_of.filter(|_| counts) else {
            return Ok(dnode);
        };
        if let Some(old) = base.as_ref().filter(|old| old.dnode.flags.has(DnodeFlags::USERUSED_ACCOUNTED)) {
            let spill = writer.spill_of(&old.dnode).await?;
            let objects = i64::from(old.dnode.flags.has(DnodeFlags::USEROBJUSED_ACCOUNTED));
            if let Some(owners) = owner_of(&old.dnode, spill.as_deref()) {
                self.add(owners, -(old.dnode.used_bytes() as i64 + DNODE_BYTES), -objects);
            }
        }
        let Some(mut dnode) = dnode else { return Ok(None) };
        let spill = match &changes.spill {
            Some(spill) => spill.clone(),
            None => writer.spill_of(&dnode).await?,
        };
        let counts_objects = flags & Objset::OBJECT_ACCOUNTING != 0;
        if let Some(owners) = owner_of(&dnode, spill.as_deref()) {
            self.add(owners, dnode.used_bytes() as i64 + DNODE_BYTES, i64::from(counts_objects));
        }
        dnode.flags.0 |= DnodeFlags::USERUSED_ACCOUNTED;
        if counts_objects {
            dnode.flags.0 |= DnodeFlags::USEROBJUSED_ACCOUNTED;
        }
        Ok(Some(dnode))
    }

    fn add(&mut self, owners: [u64; 3], bytes: i64, objects: i64) {
        for (what, owner) in owners.into_iter().enumerate().filter(|(_, owner)| *owner != NO_PROJECT) {
            let sum = self.0.entry((what, owner)).or_default();
            sum.0 += bytes;
            sum.1 += objects;
        }
    }

    /// Adds the sums to the object set, as changes of `txg`.
    pub async fn apply(self, set: &Arc<ObjectSet>, rq: &Request, txg: Txg) -> Result<(), ObjectError> {
        let tx = Tx::of_syncing(txg);
        let flags = set.root().header.flags;
        for ((what, owner), (bytes, mut objects)) in self.0 {
            if what == PROJECT && flags & Objset::PROJECT_ACCOUNTING == 0 {
                continue;
            }
            if flags & Objset::OBJECT_ACCOUNTING == 0 {
                objects = 0;
            }
            let id = ObjectId(OBJECTS[what]);
            match set.object(rq, id).await {
                Ok(_) => {}
                Err(ObjectError::NoObject { .. }) => {
                    zap::create_at(rq, set, &tx, id, &NewZap::new(ObjectType::USERGROUP_USED)).await?;
                }
                Err(error) => return Err(error),
            }
            for (name, delta) in [(format!("{owner:x}"), bytes), (format!("obj-{owner:x}"), objects)] {
                if delta != 0 {
                    zap::add(rq, set, &tx, id, &Key::Name(name.into_bytes()), delta).await?;
                }
            }
        }
        Ok(())
    }
}

impl Writer<'_> {
    async fn spill_of(&self, dnode: &Dnode) -> Result<Option<bytes::Bytes>, ObjectError> {
        let Some(pointer) = dnode.spill.filter(|p| !p.is_hole()) else { return Ok(None) };
        let place = self.set.place(ObjectId(0), 0, crate::ErrorLocation::SPILL);
        let read = self.set.cache().read(self.rq, &pointer, self.set.options()).await;
        read.map(Some).map_err(|e| ObjectError::block(place, e))
    }
}
