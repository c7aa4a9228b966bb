//! The pools that this process serves, for front ends that serve all of them on one port.
//!
//! ```text
//!   FileId { pool, … } ─▶ pool by GUID ─▶ TreeFiles of the pool
//!   path or export name, "tank/home" ─▶ pool by name ─▶ TreeFiles or Volumes of the pool
//! ```
//!
//! A call on a pool that is not in the table fails as if the file did not exist any more. The table is a copy on write: a call
//! keeps the exports of its pool until it is answered, also if the pool is removed meanwhile.

use crate::exports::Exports;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use weir_front::files::{
    Attributes, BeforeAfter, Change, ChangeFuture, Condition, File, FileError, FileFuture, FileId, FileSystemInfo,
    Link, Listing, New, Permissions, ReadData, Rename, SetAttributes, Stability, Usage,
};
use weir_front::locks::{GrantCallback, Lock, LockError, LockFuture, LockHolder, LockOutcome, LockOwner, ShareModes};
use weir_front::{
    BlockDevice, BlockError, BlockExport, BlockExports, BlockFuture, Caller, FileLocks, Files, HostBlockExports,
};
use weir_machine::Request;
use weir_machine::lock::{RwLock, order};

/// The exports of all pools that are served, by the pool's GUID.
#[derive(Clone, Default)]
pub struct PoolTable(Arc<RwLock<Arc<ByGuid>, { order::POOL_TABLE }>>);

/// Exports of pools by the GUID that each had when it was added.
pub type ByGuid = BTreeMap<u64, Arc<Exports>>;

impl PoolTable {
    /// The pools that are served now.
    pub fn all(&self) -> Arc<ByGuid> {
        self.0.read().clone()
    }

    /// Adds a pool.
    pub fn add(&self, exports: &Arc<Exports>) {
        let mut table = self.0.write();
        let before = Arc::make_mut(&mut table).insert(exports.pool.guid(), exports.clone());
        debug_assert!(before.is_none(), "a pool is opened once");
    }

    /// Removes a pool, and returns its exports if it was there.
    pub fn remove(&self, guid: u64) -> Option<Arc<Exports>> {
        let mut table = self.0.write();
        Arc::make_mut(&mut table).remove(&guid)
    }

    /// The pool with this GUID.
    pub fn get(&self, guid: u64) -> Option<Arc<Exports>> {
        self.all().get(&guid).cloned()
    }

    /// The pool of a dataset's or file's name.
    pub fn named(&self, name: &str) -> Option<Arc<Exports>> {
        let pool = name.split(['/', '@']).next().unwrap_or(name);
        self.all().values().find(|exports| exports.pool.name() == pool).cloned()
    }
}

/// The future of an operation on the files of a pool; `$missing` if the pool is not served. The exports are kept until the
/// operation has ended.
macro_rules! on_pool {
    ($table:ident, $pool:expr, $missing:expr, $files:ident => $operation:expr) => {
        Box::pin(async move {
            match $table.get($pool) {
                Some(exports) => {
                    let $files = &exports.files;
                    $operation.await
                }
                None => $missing,
            }
        })
    };
}

/// Error of a file in a pool that is not served any more.
fn stale() -> weir_front::files::Failure {
    FileError::Stale.into()
}

/// Result of a change of such a file.
fn stale_change<T>() -> Change<T> {
    Change { result: Err(FileError::Stale), file: BeforeAfter::default() }
}

impl Files for PoolTable {
    fn file_systems(&self, caller: &Caller) -> Vec<String> {
        self.all().values().flat_map(|exports| exports.files.file_systems(caller)).collect()
    }

    /// The pool that the path names is asked first, then the others: a file system may have its mount point anywhere.
    fn open_path<'a>(&'a self, rq: &'a Request, caller: &'a Caller, path: &'a [u8]) -> FileFuture<'a, File> {
        Box::pin(async move {
            let relative = path.strip_prefix(b"/").unwrap_or(path);
            let name = relative.split(|byte| *byte == b'/').next().unwrap_or(relative);
            let named = std::str::from_utf8(name).ok().and_then(|name| self.named(name));
            let mut found = match &named {
                Some(exports) => exports.files.open_path(rq, caller, path).await,
                None => Err(FileError::NotFound.into()),
            };
            for exports in self.all().values() {
                if found.is_ok() || named.as_ref().is_some_and(|named| Arc::ptr_eq(named, exports)) {
                    continue;
                }
                if let Ok(file) = exports.files.open_path(rq, caller, path).await {
                    found = Ok(file);
                }
            }
            found
        })
    }

    fn attributes<'a>(&'a self, rq: &'a Request, caller: &'a Caller, file: FileId) -> FileFuture<'a, Attributes> {
        on_pool!(self, file.pool, Err(stale()), files => files.attributes(rq, caller, file))
    }

    fn access<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        file: FileId,
    ) -> FileFuture<'a, (Attributes, Permissions)> {
        on_pool!(self, file.pool, Err(stale()), files => files.access(rq, caller, file))
    }

    fn lookup<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        dir: FileId,
        name: &'a [u8],
    ) -> FileFuture<'a, (File, Attributes)> {
        on_pool!(self, dir.pool, Err(stale()), files => files.lookup(rq, caller, dir, name))
    }

    fn read_link<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        file: FileId,
    ) -> FileFuture<'a, (Bytes, Attributes)> {
        on_pool!(self, file.pool, Err(stale()), files => files.read_link(rq, caller, file))
    }

    fn read<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        file: FileId,
        offset: u64,
        len: usize,
    ) -> FileFuture<'a, ReadData> {
        on_pool!(self, file.pool, Err(stale()), files => files.read(rq, caller, file, offset, len))
    }

    fn read_dir<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        dir: FileId,
        cookie: u64,
        max: usize,
        with_files: bool,
    ) -> FileFuture<'a, Listing> {
        on_pool!(self, dir.pool, Err(stale()), files => files.read_dir(rq, caller, dir, cookie, max, with_files))
    }

    fn usage<'a>(&'a self, rq: &'a Request, caller: &'a Caller, file: FileId) -> FileFuture<'a, (Usage, Attributes)> {
        on_pool!(self, file.pool, Err(stale()), files => files.usage(rq, caller, file))
    }

    fn file_system<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        file: FileId,
    ) -> FileFuture<'a, (FileSystemInfo, Attributes)> {
        on_pool!(self, file.pool, Err(stale()), files => files.file_system(rq, caller, file))
    }

    fn set_attributes<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        file: FileId,
        set: &'a SetAttributes,
        condition: Option<Condition<'a>>,
    ) -> ChangeFuture<'a, ()> {
        on_pool!(self, file.pool, stale_change(), files => files.set_attributes(rq, caller, file, set, condition))
    }

    fn write<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        file: FileId,
        offset: u64,
        data: Bytes,
        stability: Stability,
    ) -> ChangeFuture<'a, Stability> {
        on_pool!(self, file.pool, stale_change(), files => files.write(rq, caller, file, offset, data, stability))
    }

    fn commit<'a>(&'a self, rq: &'a Request, caller: &'a Caller, file: FileId) -> ChangeFuture<'a, ()> {
        on_pool!(self, file.pool, stale_change(), files => files.commit(rq, caller, file))
    }

    fn create<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        dir: FileId,
        name: &'a [u8],
        new: New,
        set: SetAttributes,
    ) -> ChangeFuture<'a, File> {
        on_pool!(self, dir.pool, stale_change(), files => files.create(rq, caller, dir, name, new, set))
    }

    fn remove<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        dir: FileId,
        name: &'a [u8],
        is_dir: bool,
    ) -> ChangeFuture<'a, ()> {
        on_pool!(self, dir.pool, stale_change(), files => files.remove(rq, caller, dir, name, is_dir))
    }

    fn rename<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        from: (FileId, &'a [u8]),
        to: (FileId, &'a [u8]),
    ) -> BoxFuture<'a, Rename> {
        let failed = |error| Rename { result: Err(error), from: BeforeAfter::default(), to: BeforeAfter::default() };
        if from.0.pool != to.0.pool {
            return ready(failed(FileError::CrossDevice)).boxed();
        }
        on_pool!(self, from.0.pool, failed(FileError::Stale), files => files.rename(rq, caller, from, to))
    }

    fn link<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        file: FileId,
        dir: FileId,
        name: &'a [u8],
    ) -> BoxFuture<'a, Link> {
        let failed = |error| Link { result: Err(error), file: None, dir: BeforeAfter::default() };
        if file.pool != dir.pool {
            return ready(failed(FileError::CrossDevice)).boxed();
        }
        on_pool!(self, file.pool, failed(FileError::Stale), files => files.link(rq, caller, file, dir, name))
    }
}

impl FileLocks for PoolTable {
    fn test_lock<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        file: FileId,
        owner: &'a LockOwner,
        lock: Lock,
    ) -> LockFuture<'a, Option<LockHolder>> {
        on_pool!(self, file.pool, Err(FileError::Stale.into()), files => files.test_lock(rq, caller, file, owner, lock))
    }

    fn lock<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        file: FileId,
        owner: &'a LockOwner,
        lock: Lock,
        granted: Option<GrantCallback>,
    ) -> LockFuture<'a, LockOutcome> {
        on_pool!(self, file.pool, Err(FileError::Stale.into()), files => files.lock(rq, caller, file, owner, lock, granted))
    }

    fn unlock(&self, file: FileId, owner: &LockOwner, lock: Lock) -> Result<(), LockError> {
        // The locks of a pool that was closed are gone.
        self.get(file.pool).map_or(Ok(()), |exports| exports.files.unlock(file, owner, lock))
    }

    fn cancel_lock(&self, file: FileId, owner: &LockOwner, lock: Lock) -> bool {
        self.get(file.pool).is_some_and(|exports| exports.files.cancel_lock(file, owner, lock))
    }

    fn share<'a>(
        &'a self,
        rq: &'a Request,
        caller: &'a Caller,
        file: FileId,
        owner: &'a LockOwner,
        access: ShareModes,
        deny: ShareModes,
    ) -> LockFuture<'a, bool> {
        on_pool!(self, file.pool, Err(FileError::Stale.into()), files => files.share(rq, caller, file, owner, access, deny))
    }

    fn unshare(&self, file: FileId, owner: &LockOwner) {
        if let Some(exports) = self.get(file.pool) {
            exports.files.unshare(file, owner);
        }
    }

    fn release_client(&self, client: &str) {
        self.all().values().for_each(|exports| exports.files.release_client(client));
    }

    fn has_client(&self, client: &str) -> bool {
        self.all().values().any(|exports| exports.files.has_client(client))
    }
}

impl HostBlockExports for PoolTable {
    fn seen_by(&self, host: IpAddr) -> Arc<dyn BlockExports> {
        Arc::new(HostPools { pools: self.clone(), host })
    }
}

/// The devices of all pools that a host may use. A pool that is added later is seen by connections that exist.
struct HostPools {
    pools: PoolTable,
    host: IpAddr,
}

impl HostPools {
    /// Exports of each pool for the host.
    fn exports(&self) -> Vec<Arc<dyn BlockExports>> {
        self.pools.all().values().map(|exports| exports.volumes.seen_by(self.host)).collect()
    }

    /// Name of an export and the pool that exports it; the empty name selects the only export, if there is exactly one.
    fn find_in_pools(&self, name: &str) -> Option<(Arc<dyn BlockExports>, BlockExport)> {
        let only = match name {
            "" => {
                let mut names = self.names().into_iter();
                names.next().filter(|_| names.next().is_none())?
            }
            name => name.to_owned(),
        };
        self.exports().into_iter().find_map(|exports| exports.find(&only).map(|found| (exports, found)))
    }
}

impl BlockExports for HostPools {
    fn names(&self) -> Vec<String> {
        self.exports().iter().flat_map(|exports| exports.names()).collect()
    }

    fn find(&self, name: &str) -> Option<BlockExport> {
        self.find_in_pools(name).map(|(_, found)| found)
    }

    fn open<'a>(&'a self, rq: &'a Request, name: &'a str) -> BlockFuture<'a, Arc<dyn BlockDevice>> {
        Box::pin(async move {
            let (exports, found) = self.find_in_pools(name).ok_or(BlockError::NotFound)?;
            exports.open(rq, &found.name).await
        })
    }
}
