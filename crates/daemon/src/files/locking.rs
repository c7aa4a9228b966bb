//! Advisory locks on files.

use super::{Call, TreeFiles};
use std::sync::Arc;
use weir_files::FileKind;
use weir_files::locks::{
    Conflict, LockClient, LockError as TableError, LockKind, LockOutcome as TableOutcome, LockOwner as TableOwner,
    LockRange, LockRequest, LockedFile, Share, ShareModes as TableModes,
};
use weir_files::permission::{READ, WRITE};
use weir_front::files::{FileError, FileId};
use weir_front::locks::{GrantCallback, Lock, LockError, LockFuture, LockHolder, LockOutcome, LockOwner, ShareModes};
use weir_front::{Caller, FileLocks};
use weir_machine::Request;

fn locked(file: FileId) -> LockedFile {
    LockedFile { file_system: file.export, object: file.object, generation: file.generation }
}

fn owner(from: &LockOwner) -> TableOwner {
    TableOwner::Nlm { client: from.client.clone(), process: from.process, handle: from.handle.clone() }
}

/// The range of a lock, and what is asked for it.
fn request(from: Lock, owner: &LockOwner) -> Result<LockRequest, FileError> {
    let range =
        LockRange::new(from.start, from.end).ok_or(FileError::Invalid { why: "the lock ends before its start" })?;
    let kind = if from.is_exclusive { LockKind::Exclusive } else { LockKind::Shared };
    Ok(LockRequest { range, kind, process: owner.process })
}

fn error(from: TableError) -> LockError {
    match from {
        TableError::Deadlock => LockError::Deadlock,
        TableError::TooMany => LockError::TooMany,
    }
}

fn holder(from: Conflict) -> LockHolder {
    let Conflict { owner, lock } = from;
    let LockRequest { range, kind, process } = lock;
    let handle = match owner {
        TableOwner::Nlm { handle, .. } => handle,
        TableOwner::Fuse { .. } => Arc::from(&[][..]),
    };
    let lock = Lock { start: range.start, end: range.end, is_exclusive: kind == LockKind::Exclusive };
    LockHolder { lock, process, handle }
}

fn modes(from: ShareModes) -> TableModes {
    TableModes { read: from.read, write: from.write }
}

/// Fails unless the file exists and the caller may lock it.
async fn require_lockable(call: &Call<'_>, id: FileId, writes: bool) -> Result<(), FileError> {
    let found = call.resolve(id).await?;
    match found.attributes.kind {
        FileKind::Regular | FileKind::Other => {}
        _ => return Err(FileError::Invalid { why: "not a regular file" }),
    }
    if writes {
        call.require_writable(&found).await?;
    }
    if call.is_owner(&found) {
        return Ok(());
    }
    call.require(&found, if writes { WRITE } else { READ | WRITE }).await
}

impl FileLocks for TreeFiles {
    fn test_lock<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        file: FileId,
        by: &'a LockOwner,
        lock: Lock,
    ) -> LockFuture<'a, Option<LockHolder>> {
        Box::pin(async move {
            // To ask is no change, so it takes no permission to write.
            require_lockable(&self.call(rq, caller, file)?, file, false).await?;
            Ok(self.tree.locks().test(locked(file), &owner(by), request(lock, by)?).map(holder))
        })
    }

    fn lock<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        file: FileId,
        by: &'a LockOwner,
        lock: Lock,
        granted: Option<GrantCallback>,
    ) -> LockFuture<'a, LockOutcome> {
        Box::pin(async move {
            require_lockable(&self.call(rq, caller, file)?, file, lock.is_exclusive).await?;
            let outcome =
                self.tree.locks().lock(locked(file), &owner(by), request(lock, by)?, granted).map_err(error)?;
            Ok(match outcome {
                TableOutcome::Granted => LockOutcome::Granted,
                TableOutcome::Denied(conflict) => LockOutcome::Denied(holder(conflict)),
                TableOutcome::Waiting(_) => LockOutcome::Waiting,
            })
        })
    }

    fn unlock(&self, file: FileId, by: &LockOwner, lock: Lock) -> Result<(), LockError> {
        let range = request(lock, by)?.range;
        self.tree.locks().unlock(locked(file), &owner(by), range).map_err(error)
    }

    fn cancel_lock(&self, file: FileId, by: &LockOwner, lock: Lock) -> bool {
        request(lock, by).is_ok_and(|request| self.tree.locks().cancel_request(locked(file), &owner(by), request))
    }

    fn share<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        file: FileId,
        by: &'a LockOwner,
        access: ShareModes,
        deny: ShareModes,
    ) -> LockFuture<'a, bool> {
        Box::pin(async move {
            require_lockable(&self.call(rq, caller, file)?, file, access.write).await?;
            let share = Share { owner: owner(by), access: modes(access), deny: modes(deny) };
            self.tree.locks().share(locked(file), share).map_err(error)
        })
    }

    fn unshare(&self, file: FileId, by: &LockOwner) {
        self.tree.locks().unshare(locked(file), &owner(by));
    }

    fn release_client(&self, client: &str) {
        self.tree.locks().release_client(&LockClient::Nlm(client.into()));
    }

    fn has_client(&self, client: &str) -> bool {
        self.tree.locks().has_client(&LockClient::Nlm(client.into()))
    }
}
