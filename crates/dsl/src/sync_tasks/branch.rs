//! Clones (OpenZFS `dmu_objset_clone`): a new file system or volume with the contents of a snapshot.

use super::{Created, DslError, DslSyncContext};
use crate::props;
use weir_format::dsl::{crypto_key, dir_field};
use weir_format::{DslDataset, ObjectId};

impl DslSyncContext<'_> {
    /// Checks that a clone may be created.
    ///
    /// # Errors
    /// Those of [`DslSyncContext::check_create`]; [`DslError::Missing`] for the snapshot; [`DslError::Busy`] for one
    /// that is marked for deferred destruction.
    pub async fn check_clone(&mut self, origin: &str, name: &str) -> Result<(), DslError> {
        let snapshot = self.find_snapshot(origin).await?;
        let parent = self.check_place(name).await?;
        self.check_count_limit(parent, dir_field::FILESYSTEM_COUNT, 1, ObjectId(0)).await?;
        if snapshot.phys.creation_txg >= self.txg() {
            return Err(DslError::busy(origin, "it was created in this txg"));
        }
        self.check_lists(snapshot.at.dir.head_dataset).await?;
        if snapshot.phys.flags & DslDataset::DEFER_DESTROY != 0 {
            return Err(DslError::busy(origin, "its destroy is deferred"));
        }
        Ok(())
    }

    /// Creates a clone. Its set begins with the snapshot's header: the caller opens it for writing and clears the
    /// intent log in it, which is the origin's, in this txg.
    ///
    /// # Errors
    /// Those of [`DslSyncContext::check_clone`], before anything was changed.
    pub async fn clone_snapshot(
        &mut self,
        origin: &str,
        name: &str,
        properties: &[(String, props::Value)],
    ) -> Result<Created, DslError> {
        self.check_clone(origin, name).await?;
        let snapshot = self.find_snapshot(origin).await?;
        let parent = self.check_place(name).await?;
        self.check_new_properties(name, parent, properties, snapshot.phys.referenced_bytes).await?;
        let last = name.rsplit_once('/').map_or(name, |(_, last)| last);
        let created = self.create_head(parent, last, Some(snapshot.id)).await?;
        if let Some(key) = self.dir_word(snapshot.at.id, dir_field::CRYPTO_KEY_OBJ).await? {
            // A clone shares its origin's key.
            self.zapify(created.dir).await?;
            self.insert_word(created.dir, dir_field::CRYPTO_KEY_OBJ, key).await?;
            let key = ObjectId(key);
            let uses = self.word(key, crypto_key::REFCOUNT).await?.unwrap_or(1);
            self.put_word(key, crypto_key::REFCOUNT, uses + 1).await?;
        }
        self.log(name, created.dataset, "clone", &format!("origin={origin} ({})", snapshot.id)).await?;
        for (property, value) in properties {
            self.store_at_creation(created, property, value).await?;
        }
        Ok(created)
    }
}
