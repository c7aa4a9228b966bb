//! Deadlists for the operations here ([`crate::deadlist`], [`crate::bpobj`]): each call updates the reference count of
//! the shared empty list's feature.

use super::space::Delta;
use super::{DslError, DslSyncContext};
use crate::bpobj::{self, EmptyList, Sums};
use crate::{deadlist, livelist};
use weir_dmu::error::ObjectError;
use weir_format::dsl::pool;
use weir_format::{BlockPointer, ObjectId, ObjectType, Txg};

/// The feature that counts references to the shared empty list.
const EMPTY: &str = "empty_bpobj";

impl From<Sums> for Delta {
    fn from(sums: Sums) -> Self {
        Delta::new(sums.used_bytes, sums.compressed_bytes, sums.uncompressed_bytes)
    }
}

impl DslSyncContext<'_> {
    async fn empty_list(&mut self) -> Result<EmptyList, DslError> {
        Ok(EmptyList {
            enabled: self.is_enabled(EMPTY).await?,
            counts_frees: self.is_active("livelist").await?,
            object: self.word(super::DIRECTORY, pool::EMPTY_BPOBJ).await?.map(ObjectId),
            references: 0,
        })
    }

    async fn settle(&mut self, mut empty: EmptyList) -> Result<(), DslError> {
        if empty.references != 0 {
            self.count_feature(EMPTY, empty.references).await?;
        }
        if empty.object.is_some() && self.feature_count(EMPTY).await? == Some(0) {
            empty.discard(self.rq, &self.mos, self.tx).await?;
        }
        Ok(())
    }

    /// Refuses a dataset whose deadlist has the plain form of pools before version 26: blocks can be inserted, but
    /// snapshots before it can be neither created nor destroyed.
    pub(super) async fn check_lists(&self, dataset: ObjectId) -> Result<(), DslError> {
        let list = self.dataset(dataset).await?.deadlist;
        match self.object_type(list).await? {
            ObjectType::BPOBJ => {
                Err(ObjectError::Unsupported { what: "this with a deadlist older than pool version 26" }.into())
            }
            _ => Ok(()),
        }
    }

    /// A new, unshared list of block pointers.
    pub(super) async fn list(&mut self) -> Result<ObjectId, DslError> {
        let counts_frees = self.is_active("livelist").await?;
        Ok(bpobj::create(self.rq, &self.mos, self.tx, counts_frees).await?)
    }

    /// Inserts blocks into a deadlist.
    pub(super) async fn deadlist_insert(&mut self, list: ObjectId, pointers: &[BlockPointer]) -> Result<(), DslError> {
        if pointers.is_empty() {
            return Ok(());
        }
        let mut empty = self.empty_list().await?;
        let sizes = self.pool.sizes.clone();
        deadlist::insert(self.rq, &self.mos, self.tx, list, pointers, &*sizes, &mut empty).await?;
        self.settle(empty).await
    }

    /// A new deadlist with another one's keys below `until`, all empty.
    pub(super) async fn deadlist_until(&mut self, list: ObjectId, until: Txg) -> Result<ObjectId, DslError> {
        let mut empty = self.empty_list().await?;
        let id = deadlist::clone_until(self.rq, &self.mos, self.tx, list, until, &mut empty).await?;
        self.settle(empty).await?;
        Ok(id)
    }

    /// Adds a key that is greater than all existing ones.
    pub(super) async fn deadlist_add_key(&mut self, list: ObjectId, key: Txg) -> Result<(), DslError> {
        let mut empty = self.empty_list().await?;
        deadlist::add_key(self.rq, &self.mos, self.tx, list, key, &mut empty).await?;
        self.settle(empty).await
    }

    /// Removes a key; its blocks move to the key before it.
    pub(super) async fn deadlist_remove_key(&mut self, list: ObjectId, key: Txg) -> Result<(), DslError> {
        let mut empty = self.empty_list().await?;
        deadlist::remove_key(self.rq, &self.mos, self.tx, list, key, &mut empty).await?;
        self.settle(empty).await
    }

    /// Moves all of `from` into `into`.
    pub(super) async fn deadlist_merge(&mut self, into: ObjectId, from: ObjectId) -> Result<(), DslError> {
        let mut empty = self.empty_list().await?;
        let sizes = self.pool.sizes.clone();
        deadlist::merge(self.rq, &self.mos, self.tx, into, from, &*sizes, &mut empty).await?;
        self.settle(empty).await
    }

    /// Moves the blocks born after `after` to a list of block pointers.
    pub(super) async fn deadlist_move(&mut self, list: ObjectId, to: ObjectId, after: Txg) -> Result<(), DslError> {
        let mut empty = self.empty_list().await?;
        deadlist::move_bpobj(self.rq, &self.mos, self.tx, list, to, after, &mut empty).await?;
        self.settle(empty).await
    }

    /// Removes a deadlist; its blocks stay.
    pub(super) async fn deadlist_destroy(&mut self, list: ObjectId) -> Result<(), DslError> {
        let mut empty = self.empty_list().await?;
        deadlist::destroy(self.rq, &self.mos, self.tx, list, &mut empty).await?;
        self.settle(empty).await
    }

    /// Adds the allocated blocks of the next part of a destroyed clone's livelist to the pool's list `free`; their
    /// space is accounted to `$FREE` already. False if there is no such clone.
    pub(super) async fn list_deleted_clone(&mut self, free: ObjectId) -> Result<bool, DslError> {
        let Some(clones) = self.word(super::DIRECTORY, pool::DELETED_CLONES).await?.map(ObjectId) else {
            return Ok(false);
        };
        let rq = self.rq;
        let tx = self.tx;
        let mos = self.mos.clone();
        let Some(list) = livelist::of_deleted_clones(rq, &mos).await?.first().copied() else {
            self.zap_remove(super::DIRECTORY, pool::DELETED_CLONES).await?;
            self.remove(clones).await?;
            return Ok(true);
        };
        let Some((key, part)) = deadlist::lists(rq, &mos, list).await?.into_iter().next() else {
            self.set_remove(clones, list.0).await?;
            self.deadlist_destroy(list).await?;
            self.count_feature("livelist", -1).await?;
            return Ok(true);
        };
        let pointers = livelist::allocated(rq, &mos, part).await?;
        let sizes = self.pool.sizes.clone();
        bpobj::push(rq, &mos, tx, free, &pointers, false, &*sizes).await?;
        let mut empty = self.empty_list().await?;
        deadlist::drop_key(rq, &mos, tx, list, (key, part), &mut empty).await?;
        self.settle(empty).await?;
        Ok(true)
    }

    /// The sums of a deadlist.
    pub(super) async fn deadlist_space(&self, list: ObjectId) -> Result<Delta, DslError> {
        Ok(deadlist::space(self.rq, &self.mos, list).await?.into())
    }

    /// The sums of the blocks born after `after` and not after `until`.
    pub(super) async fn deadlist_range(&self, list: ObjectId, after: Txg, until: Txg) -> Result<Delta, DslError> {
        let sizes = self.pool.sizes.clone();
        Ok(deadlist::space_range(self.rq, &self.mos, list, after, until, &*sizes).await?.into())
    }
}
