//! Removal of names: `unlink` and `rmdir` (OpenZFS `zfs_remove`, `zfs_rmdir`).

use super::access_checks;
use super::entries::{LockedEntry, unlink};
use super::make::NAME_BYTES;
use crate::change::Cred;
use crate::error::FileError;
use crate::handles::Names;
use weir_dmu::live::SpaceReserve;
use weir_format::ObjectId;
use weir_machine::Request;

impl Names<'_> {
    /// Removes a link of a file that is not a directory. A file without links is freed, if it is open by its last
    /// release.
    ///
    /// # Errors
    /// [`FileError::IsDirectory`]; [`FileError::NotFound`]; permission errors.
    pub async fn remove(self, rq: &Request, cred: &Cred, dir: ObjectId, name: &[u8]) -> Result<(), FileError> {
        let gone = self.remove_locked(rq, cred, dir, name, false).await?;
        self.after_removal(rq, gone).await
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`FileError::NotDirectory`]; [`FileError::NotEmpty`]; [`FileError::NotFound`]; permission errors.
    pub async fn remove_dir(self, rq: &Request, cred: &Cred, dir: ObjectId, name: &[u8]) -> Result<(), FileError> {
        match name {
            b"." => return Err(FileError::Invalid { why: "'.' cannot be removed" }),
            b".." => return Err(FileError::NotEmpty { object: dir }),
            _ => {}
        }
        let gone = self.remove_locked(rq, cred, dir, name, true).await?;
        self.after_removal(rq, gone).await
    }

    /// Frees an unlinked file without holds, a large one asynchronously.
    pub(super) async fn after_removal(self, rq: &Request, gone: Option<ObjectId>) -> Result<(), FileError> {
        self.files.commit_if_sync_always(rq, None).await?;
        match gone {
            Some(id) => self.files.delete_queue().reap_soon(rq, id).await,
            None => Ok(()),
        }
    }

    /// Returns the object if it was its last link and it must be freed.
    pub(super) async fn remove_locked(
        self,
        rq: &Request,
        cred: &Cred,
        dir: ObjectId,
        name: &[u8],
        is_dir: bool,
    ) -> Result<Option<ObjectId>, FileError> {
        let writing = self.files.writing()?;
        let LockedEntry { held: _held, mut dir, mut node } = self.files.directories().lock_name(rq, dir, name).await?;
        let object = node.id;
        match (is_dir, node.is_dir()) {
            (true, false) => return Err(FileError::NotDirectory { object }),
            (false, true) => return Err(FileError::IsDirectory { object }),
            _ => {}
        }
        access_checks::remove(cred, &dir, &node)?;
        if is_dir && !self.files.directories().is_empty_dir(rq, &node).await? {
            return Err(FileError::NotEmpty { object });
        }
        let now = writing.now();
        let tx = self.files.begin(rq, NAME_BYTES, SpaceReserve::NetFree).await?;
        self.files.directories().remove_name(rq, &tx, &mut dir, name, is_dir, now).await?;
        let last = unlink(&mut node, now)?;
        let at_once = last && self.files.delete_queue().can_free_in_transaction(rq, &node).await;
        if last {
            self.files.log().forget(object);
        }
        if at_once {
            self.files.objects().frees().remove(rq, &tx, object).await.map_err(|e| FileError::at(e, object, 0))?;
        } else {
            self.files.nodes().store(rq, &tx, &node).await?;
            if last {
                self.files.delete_queue().add(rq, &tx, object).await?;
            }
        }
        self.files.nodes().store(rq, &tx, &dir).await?;
        self.files.log().remove(&tx, &dir, object, name, is_dir);
        Ok((last && !at_once).then_some(object))
    }
}
