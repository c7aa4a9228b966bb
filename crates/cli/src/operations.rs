//! Changes of datasets that administrators request. The syncer runs each in one txg and records it in the pool's
//! history.

use weir_dsl::props::Value;
use weir_dsl::sync_tasks::{NewDataset, Setting};
use weir_dsl::{QuotaKind, QuotaPrincipal};
use weir_engine::{Encryption, Engine};
use weir_pool::PoolError;

/// A change of datasets.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Creates a file system or volume with this encryption.
    Create(NewDataset, Encryption),
    /// Creates snapshots, all in the same txg.
    Snapshot(Vec<String>, Vec<(String, Value)>),
    /// Creates a clone: origin, name, properties.
    Clone(String, String, Vec<(String, Value)>),
    /// Destroys a file system or volume.
    Destroy(String),
    /// Destroys snapshots; `true` defers the destruction of held and cloned ones.
    DestroySnapshots(Vec<String>, bool),
    /// Destroys bookmarks.
    DestroyBookmarks(Vec<String>),
    /// Rolls a dataset back to its last snapshot.
    Rollback(String, String),
    /// Promotes a clone.
    Promote(String),
    /// Renames a file system or volume.
    Rename(String, String),
    /// Renames snapshots (full names), all or none: the new names are those after the `@`.
    RenameSnapshots(Vec<(String, String)>),
    /// Holds snapshots: snapshot and tag.
    Hold(Vec<(String, String)>),
    /// Releases holds: snapshot and tag.
    Release(Vec<(String, String)>),
    /// Creates bookmarks: name and source.
    Bookmark(Vec<(String, String)>),
    /// Sets or clears properties.
    Set(String, Vec<(String, Setting)>),
    /// Sets the quota of a user, group or project in a file system, or the default quota; 0 for no limit.
    SetQuota(String, QuotaPrincipal, QuotaKind, Option<u64>, u64),
    /// Sets the size of a volume in bytes.
    Resize(String, u64),
}

impl Operation {
    /// Runs the operation and records the command line `command`, if it is not empty, of the user `uid` in the history.
    /// Returns when the change is on stable storage.
    ///
    /// # Errors
    /// Errors of the checks, which run before any change.
    pub async fn run(self, engine: &Engine, command: &str, uid: u32) -> Result<(), PoolError> {
        self.apply(engine).await?;
        match command {
            "" => Ok(()),
            command => engine.log_command(command.to_owned(), uid).await,
        }
    }

    async fn apply(self, engine: &Engine) -> Result<(), PoolError> {
        match self {
            Operation::Create(new, encryption) => engine.create_encrypted(new, encryption).await,
            Operation::Snapshot(names, properties) => engine.snapshot(names, properties).await,
            Operation::Clone(origin, name, properties) => engine.clone_snapshot(origin, name, properties).await,
            Operation::Destroy(name) => engine.destroy_dataset(name).await,
            Operation::DestroySnapshots(names, defer) => engine.destroy_snapshots(names, defer).await,
            Operation::DestroyBookmarks(names) => engine.destroy_bookmarks(names).await,
            Operation::Rollback(name, to) => engine.rollback(name, Some(to)).await,
            Operation::Promote(name) => engine.promote(name).await,
            Operation::Rename(from, to) => engine.rename(from, to).await,
            Operation::RenameSnapshots(names) => engine.rename_snapshots(names).await,
            Operation::Hold(holds) => engine.hold(holds).await,
            Operation::Release(holds) => engine.release(holds).await,
            Operation::Bookmark(bookmarks) => engine.bookmark(bookmarks).await,
            Operation::Set(name, settings) => engine.set_properties(name, settings).await,
            Operation::SetQuota(name, who, what, id, limit) => engine.set_quota(name, who, what, id, limit).await,
            Operation::Resize(name, size_bytes) => engine.set_volume_size(name, size_bytes).await,
        }
    }
}
