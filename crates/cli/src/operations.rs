//! What administrators ask for: each done by the syncer in one transaction group, then noted in the pool's history.

use weir_dsl::props::Value;
use weir_dsl::sync_tasks::{NewDataset, Setting};
use weir_dsl::{QuotaKind, QuotaPrincipal};
use weir_engine::{Encryption, Engine};
use weir_pool::PoolError;

/// A change of datasets.
#[derive(Clone, Debug)]
pub enum Operation {
    /// A new file system or volume, encrypted so.
    Create(NewDataset, Encryption),
    /// Snapshots, all of the same moment.
    Snapshot(Vec<String>, Vec<(String, Value)>),
    /// A clone: origin, name, properties.
    Clone(String, String, Vec<(String, Value)>),
    /// A file system or volume goes.
    Destroy(String),
    /// Snapshots go; `true`: those that are still needed go later.
    DestroySnapshots(Vec<String>, bool),
    /// Bookmarks go.
    DestroyBookmarks(Vec<String>),
    /// Back to the last snapshot.
    Rollback(String, String),
    /// A clone and its origin change roles.
    Promote(String),
    /// Another name.
    Rename(String, String),
    /// Snapshots (full names) get another name after the `@`, all or none.
    RenameSnapshots(Vec<(String, String)>),
    /// Holds: snapshot and tag.
    Hold(Vec<(String, String)>),
    /// Holds end.
    Release(Vec<(String, String)>),
    /// Bookmarks: name and source.
    Bookmark(Vec<(String, String)>),
    /// Properties change.
    Set(String, Vec<(String, Setting)>),
    /// How much a user, group or project (or each without a limit of its own) may use in a file system; 0: no limit.
    SetQuota(String, QuotaPrincipal, QuotaKind, Option<u64>, u64),
    /// A volume gets another size, in bytes.
    Resize(String, u64),
}

impl Operation {
    /// Does it, with the command line `command` (if it is not empty) of the user `uid` in the history; returns when it is on stable storage.
    ///
    /// # Errors
    /// What its checks find, before anything was changed.
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
