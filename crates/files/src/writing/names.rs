//! Removal of names: `unlink` and `rmdir` (OpenZFS `zfs_remove`, `zfs_rmdir`).

use super::access_checks;
use super::entries::{LockedEntry, unlink};
use super::make::NAME_BYTES;
use crate::change::Cred;
use crate::error::FileError;
use crate::file_system::FileSystem;
use weir_dmu::live::SpaceReserve;
use weir_format::ObjectId;
use weir_machine::Request;

impl FileSystem {
    /// Removes a link of a file that is not a directory. A file without links is freed, if it is open by its last
    /// release.
    ///
    /// # Errors
    /// [`FileError::IsDirectory`]; [`FileError::NotFound`]; permission errors.
    pub async fn remove(&self, rq: &Request, cred: &Cred, dir: ObjectId, name: &[u8]) -> Result<(), FileError> {
        let gone = self.remove_locked(rq, cred, dir, name, false).await?;
        self.after_removal(rq, gone).await
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`FileError::NotDirectory`]; [`FileError::NotEmpty`]; [`FileError::NotFound`]; permission errors.
    pub async fn remove_dir(&self, rq: &Request, cred: &Cred, dir: ObjectId, name: &[u8]) -> Result<(), FileError> {
        match name {
            b"." => return Err(FileError::Invalid { why: "'.' cannot be removed" }),
            b".." => return Err(FileError::NotEmpty { object: dir }),
            _ => {}
        }
        let gone = self.remove_locked(rq, cred, dir, name, true).await?;
        self.after_removal(rq, gone).await
    }

    /// Frees an unlinked file without holds, a large one asynchronously.
    pub(super) async fn after_removal(&self, rq: &Request, gone: Option<ObjectId>) -> Result<(), FileError> {
        self.commit_if_sync_always(rq, None).await?;
        match gone {
            Some(id) => self.reap_soon(rq, id).await,
            None => Ok(()),
        }
    }

    /// Returns the object if it was its last link and it must be freed.
    pub(super) async fn remove_locked(
        &self,
        rq: &Request,
        cred: &Cred,
        dir: ObjectId,
        name: &[u8],
        is_dir: bool,
    ) -> Result<Option<ObjectId>, FileError> {
        let writing = self.writing()?;
        let LockedEntry { held: _held, mut dir, mut node } = self.lock_name(rq, dir, name).await?;
        let object = node.id;
        match (is_dir, node.is_dir()) {
            (true, false) => return Err(FileError::NotDirectory { object }),
            (false, true) => return Err(FileError::IsDirectory { object }),
            _ => {}
        }
        access_checks::remove(cred, &dir, &node)?;
        if is_dir && !self.is_empty_dir(rq, &node).await? {
            return Err(FileError::NotEmpty { object });
        }
        let now = writing.now();
        let tx = self.begin(rq, NAME_BYTES, SpaceReserve::NetFree).await?;
        self.remove_name(rq, &tx, &mut dir, name, is_dir, now).await?;
        let last = unlink(&mut node, now)?;
        let at_once = last && self.can_free_in_transaction(rq, &node).await;
        if last {
            self.forget_in_log(object);
        }
        if at_once {
            self.objects().remove(rq, &tx, object).await.map_err(|e| FileError::at(e, object, 0))?;
        } else {
            self.store(rq, &tx, &node).await?;
            if last {
                self.queue_unlinked(rq, &tx, object).await?;
            }
        }
        self.store(rq, &tx, &dir).await?;
        self.log_remove(&tx, &dir, object, name, is_dir);
        Ok((last && !at_once).then_some(object))
    }
}
