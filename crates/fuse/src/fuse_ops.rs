//! FUSE operations: each is one call into the tree.
//!
//! Each operation is a future. It is polled once on the thread that read the request, so operations that the cache
//! can serve complete without a change of threads. An operation that has to wait continues as a task, and the thread
//! reads the next request. The kernel bounds the number of concurrent requests.
//!
//! Read-only mounts do not track open files: `open` and `opendir` return ENOSYS and the kernel stops sending them. On
//! writable mounts an open file is pinned ([`weir_files::tree::Tree::hold`]) until the kernel releases it, so that it
//! survives the removal of its last link.

use crate::changes::Create;
use crate::inner::{Entry, Inner, reply_xattr};
use crate::locks::KernelLock;
use crate::operation::{opened_cred, reply_entry};
use crate::xattrs;
use crate::{access, convert, flags};
use bytes::Bytes;
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request as KernelRequest, TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;
use weir_files::{DirName, FilePosition};
use weir_files::{NewKind, masks};
use weir_machine::{BufPool, Operation, Request, Tasks};

/// Maximum number of the kernel's background requests (read-ahead), above its default of 16.
const BACKGROUND: u16 = 64;

/// Limit in bytes of unused memory for data of writes.
const UNUSED_BYTES: usize = 4 << 20;
/// Writes of at least this size are copied into aligned memory, if they fill a buffer.
const MIN_ALIGNED_BYTES: usize = 32 << 10;

/// The operations of one mount.
pub(crate) struct FuseOps {
    pub(crate) inner: Arc<Inner>,
    pub(crate) tasks: Tasks,
    /// Memory for the data of writes.
    buffers: BufPool,
}

impl FuseOps {
    pub fn new(inner: Arc<Inner>, tasks: Tasks) -> Self {
        FuseOps { inner, tasks, buffers: BufPool::contiguous(UNUSED_BYTES) }
    }

    /// A copy of the data of a write. If it is aligned, a device writes whole blocks from it, without another copy; contiguous
    /// memory is pinned for that in large pages.
    fn copied(&self, data: &[u8]) -> Bytes {
        if data.len() < MIN_ALIGNED_BYTES || !data.len().is_power_of_two() {
            return Bytes::copy_from_slice(data);
        }
        let mut buf = self.buffers.take(data.len());
        buf.as_mut().copy_from_slice(data);
        buf.into_bytes()
    }
}

impl Filesystem for FuseOps {
    fn init(&mut self, _: &KernelRequest, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = [
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_ASYNC_DIO,
        ];
        let more: &[InitFlags] = match self.inner.writable {
            // Drop cached pages of files changed by another front end; send the umask so that default ACLs can ignore
            // it.
            true => &[InitFlags::FUSE_BIG_WRITES, InitFlags::FUSE_AUTO_INVAL_DATA, InitFlags::FUSE_DONT_MASK],
            // Opens are checked here.
            false if self.inner.server.is_some() => &[],
            false => &[InitFlags::FUSE_NO_OPEN_SUPPORT, InitFlags::FUSE_NO_OPENDIR_SUPPORT],
        };
        let locks = [InitFlags::FUSE_POSIX_LOCKS, InitFlags::FUSE_FLOCK_LOCKS];
        let locks = locks.into_iter().filter(|_| self.inner.shares_locks());
        // The kernel takes this flag as `default_permissions`.
        let acls = self.inner.server.is_none().then_some(InitFlags::FUSE_POSIX_ACL);
        for flag in wanted.into_iter().chain(more.iter().copied()).chain(locks).chain(acls) {
            // An older kernel does not support every flag.
            let _ = config.add_capabilities(flag);
        }
        // Linux 6.6 and later offer this flag and invalidate the page cache on direct writes.
        self.inner.set_invalidates_page_cache(config.capabilities().contains(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP));
        let _ = config.set_max_background(BACKGROUND);
        Ok(())
    }

    fn lookup(&self, from: &KernelRequest, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.as_bytes().to_vec();
        let cred = self.cred(from);
        self.run(from, Operation::Lookup, move |inner, rq| async move {
            let found = inner.entry(&rq, &cred, parent, &name).await;
            reply_entry(&inner, reply, found);
        });
    }

    fn forget(&self, _: &KernelRequest, number: INodeNo, lookups: u64) {
        let Ok(node) = self.inner.node(number) else { return };
        if self.inner.server.is_some() {
            let inner = Arc::clone(&self.inner);
            self.tasks.start(async move { inner.forget(&Request::internal("forget"), node, lookups).await });
        }
    }

    fn destroy(&mut self) {
        let held = self.inner.lookups.forget_all();
        let inner = Arc::clone(&self.inner);
        if !held.is_empty() {
            self.tasks.start(async move {
                for hold in held {
                    inner.end_lookup(&Request::internal("forget"), Some(hold)).await;
                }
            });
        }
    }

    fn getattr(&self, from: &KernelRequest, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.run(from, Operation::GetAttr, move |inner, rq| async move {
            match inner.attributes(&rq, number).await {
                Ok(attributes) => reply.attr(&inner.attr_ttl, &attributes),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn readlink(&self, from: &KernelRequest, number: INodeNo, reply: ReplyData) {
        self.run(from, Operation::ReadLink, move |inner, rq| async move {
            match inner.read_link(&rq, number).await {
                Ok(target) => reply.data(&target),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn open(&self, from: &KernelRequest, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if !self.inner.tracks_opens() {
            return reply.error(Errno::ENOSYS);
        }
        let mask = access::open_mask(flags.0);
        let cred = self.cred(from);
        self.run(from, Operation::Open, move |inner, rq| async move {
            match inner.open(&rq, &cred, number, mask).await {
                Ok(()) => reply.opened(FileHandle(0), inner.open_flags(flags.0)),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn opendir(&self, from: &KernelRequest, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if !self.inner.tracks_opens() {
            return reply.error(Errno::ENOSYS);
        }
        let cred = self.cred(from);
        self.run(from, Operation::Open, move |inner, rq| async move {
            match inner.open(&rq, &cred, number, masks::READ_DATA).await {
                Ok(()) => reply.opened(FileHandle(0), FopenFlags::empty()),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn release(
        &self,
        from: &KernelRequest,
        number: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        owner: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.run_empty(from, Operation::Release, reply, move |inner, rq, _| async move {
            inner.release_locks_and_close(&rq, number, owner).await
        });
    }

    fn releasedir(&self, from: &KernelRequest, number: INodeNo, _: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.run_empty(
            from,
            Operation::Release,
            reply,
            move |inner, rq, _| async move { inner.close(&rq, number).await },
        );
    }

    fn flush(&self, from: &KernelRequest, number: INodeNo, _: FileHandle, owner: LockOwner, reply: ReplyEmpty) {
        if !self.inner.shares_locks() {
            // The kernel does not ask again.
            return reply.error(Errno::ENOSYS);
        }
        self.run_empty(from, Operation::Release, reply, move |inner, rq, _| async move {
            inner.release_locks(&rq, number, owner).await
        });
    }

    fn getlk(
        &self,
        from: &KernelRequest,
        number: INodeNo,
        _: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        process: u32,
        reply: ReplyLock,
    ) {
        let lock = KernelLock { owner, start, end, kind, process, thread: from.pid(), waits: false };
        self.run(
            from,
            Operation::Lock,
            move |inner, rq| async move { inner.test_lock(&rq, number, lock, reply).await },
        );
    }

    fn setlk(
        &self,
        from: &KernelRequest,
        number: INodeNo,
        _: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        process: u32,
        waits: bool,
        reply: ReplyEmpty,
    ) {
        let lock = KernelLock { owner, start, end, kind, process, thread: from.pid(), waits };
        self.run_empty(from, Operation::Lock, reply, move |inner, rq, _| async move {
            inner.set_lock(&rq, number, lock).await
        });
    }

    /// Sent on mounts without `default_permissions` alone.
    fn access(&self, from: &KernelRequest, number: INodeNo, mode: AccessFlags, reply: ReplyEmpty) {
        if self.inner.server.is_none() {
            return reply.error(Errno::ENOSYS);
        }
        let mask = access::access_mask(mode.bits());
        self.run_empty(from, Operation::Access, reply, move |inner, rq, cred| async move {
            inner.permissions().require(&rq, &cred, inner.node(number)?, mask).await
        });
    }

    fn read(
        &self,
        from: &KernelRequest,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.run(from, Operation::Read, move |inner, rq| async move {
            inner.read(&rq, number, offset, size as usize, reply).await;
        });
    }

    fn readdir(&self, from: &KernelRequest, number: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        self.run(from, Operation::ReadDir, move |inner, rq| async move {
            match inner.read_dir(&rq, number, offset, &mut reply).await {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn readdirplus(
        &self,
        from: &KernelRequest,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        self.run(from, Operation::ReadDirPlus, move |inner, rq| async move {
            match inner.read_dir_plus(&rq, number, offset, &mut reply).await {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn statfs(&self, from: &KernelRequest, number: INodeNo, reply: ReplyStatfs) {
        self.run(from, Operation::StatFs, move |inner, rq| async move { inner.statfs(&rq, number, reply).await });
    }

    fn getxattr(&self, from: &KernelRequest, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let cred = self.xattr_cred(from, name);
        let name = name.as_bytes().to_vec();
        self.run(from, Operation::GetXattr, move |inner, rq| async move {
            reply_xattr(reply, size, xattrs::value(&inner, &rq, &cred, number, &name).await);
        });
    }

    fn listxattr(&self, from: &KernelRequest, number: INodeNo, size: u32, reply: ReplyXattr) {
        self.run(from, Operation::ListXattr, move |inner, rq| async move {
            reply_xattr(reply, size, xattrs::names(&inner, &rq, number).await);
        });
    }

    fn lseek(&self, from: &KernelRequest, number: INodeNo, _: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        self.run(from, Operation::Seek, move |inner, rq| async move {
            match inner.seek(&rq, number, offset, whence).await {
                Ok(offset) => reply.offset(offset),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn setattr(
        &self,
        from: &KernelRequest,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = convert::set_attributes(mode, uid, gid, size, atime, mtime);
        // ftruncate: the size of a file that was opened for writing.
        let by_handle = handle.is_some() && size.is_some() && mode.is_none() && uid.is_none() && gid.is_none();
        let cred = if by_handle { opened_cred(from) } else { self.cred(from) };
        self.run(from, Operation::SetAttr, move |inner, rq| async move {
            match inner.set_attributes(&rq, &cred, number, &set).await {
                Ok(attributes) => reply.attr(&inner.attr_ttl, &attributes),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn mknod(
        &self,
        from: &KernelRequest,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        match convert::new_kind(mode, rdev) {
            Some(kind) => self.run_create(from, Operation::MkNod, parent, name, kind, (mode, umask), reply),
            None => reply.error(Errno::EINVAL),
        }
    }

    fn mkdir(&self, from: &KernelRequest, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        self.run_create(from, Operation::MkDir, parent, name, NewKind::Directory, (mode, umask), reply);
    }

    fn symlink(&self, from: &KernelRequest, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let kind = NewKind::Symlink(target.as_os_str().as_bytes().to_vec());
        self.run_create(from, Operation::Symlink, parent, name, kind, (0o777, 0), reply);
    }

    fn create(
        &self,
        from: &KernelRequest,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let name = name.as_bytes().to_vec();
        let cred = self.cred(from);
        self.run(from, Operation::Create, move |inner, rq| async move {
            let create = Create { parent, name: &name, kind: NewKind::Regular, mode, umask };
            match inner.create_and_open(&rq, &cred, create, flags).await {
                // The reply has a single TTL for name and attributes; the kernel updates attributes on its own
                // changes.
                Ok(Entry { attributes, generation, entry_ttl }) => {
                    let opened = inner.open_flags(flags);
                    reply.created(&entry_ttl, &attributes, Generation(generation), FileHandle(0), opened);
                }
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn unlink(&self, from: &KernelRequest, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes().to_vec();
        self.run_empty(from, Operation::Remove, reply, move |inner, rq, cred| async move {
            inner.remove(&rq, &cred, parent, &name, false).await
        });
    }

    fn rmdir(&self, from: &KernelRequest, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes().to_vec();
        self.run_empty(from, Operation::RmDir, reply, move |inner, rq, cred| async move {
            inner.remove(&rq, &cred, parent, &name, true).await
        });
    }

    fn rename(
        &self,
        from: &KernelRequest,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let Some(mode) = convert::rename_mode(flags) else { return reply.error(Errno::EINVAL) };
        let name = name.as_bytes().to_vec();
        let new_name = new_name.as_bytes().to_vec();
        let tasks = self.tasks.clone();
        self.run_empty(from, Operation::Rename, reply, move |inner, rq, cred| async move {
            let from = DirName { dir: parent, name: name.as_slice() };
            let to = DirName { dir: new_parent, name: new_name.as_slice() };
            let replaced = inner.hold_replaced(&rq, to, mode).await;
            let done = inner.rename(&rq, &cred, from, to, mode).await;
            if let Some(node) = replaced {
                tasks.start(async move { inner.release_replaced(node).await });
            }
            done
        });
    }

    fn link(&self, from: &KernelRequest, number: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.as_bytes().to_vec();
        let cred = self.cred(from);
        self.run(from, Operation::Link, move |inner, rq| async move {
            let linked = inner.link(&rq, &cred, number, parent, &name).await;
            reply_entry(&inner, reply, linked);
        });
    }

    fn write(
        &self,
        from: &KernelRequest,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let data = self.copied(data);
        let cred = opened_cred(from);
        let args = convert::write_args(offset, flags.0, write_flags);
        self.run(from, Operation::Write, move |inner, rq| async move {
            let len = data.len() as u32;
            match inner.write(&rq, &cred, number, args, data).await {
                Ok(()) => reply.written(len),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn fsync(&self, from: &KernelRequest, number: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.run_empty(from, Operation::Flush, reply, move |inner, rq, _| async move { inner.sync(&rq, number).await });
    }

    fn fsyncdir(&self, from: &KernelRequest, number: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.run_empty(from, Operation::Flush, reply, move |inner, rq, _| async move { inner.sync(&rq, number).await });
    }

    fn fallocate(
        &self,
        from: &KernelRequest,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let Some(space) = convert::space(mode) else { return reply.error(Errno::EOPNOTSUPP) };
        let cred = opened_cred(from);
        self.run_empty(from, Operation::Allocate, reply, move |inner, rq, _| async move {
            inner.allocate(&rq, &cred, number, (offset, length), space).await
        });
    }

    /// Reads or sets a file's flags and project: the kernel translates `chattr(1)` into these.
    fn ioctl(
        &self,
        from: &KernelRequest,
        number: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        command: u32,
        data: &[u8],
        out_bytes: u32,
        reply: ReplyIoctl,
    ) {
        let Some(request) = flags::IoctlRequest::of(command, data) else { return reply.error(Errno::ENOTTY) };
        let cred = self.cred(from);
        self.run(from, Operation::Ioctl, move |inner, rq| async move {
            let answer = async { request.execute(&rq, &inner.tree, &cred, inner.node(number)?).await };
            match answer.await {
                Ok(mut answer) => {
                    answer.resize(out_bytes as usize, 0);
                    reply.ioctl(0, &answer);
                }
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn setxattr(
        &self,
        from: &KernelRequest,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let Some(mode) = convert::xattr_mode(flags) else { return reply.error(Errno::EINVAL) };
        let cred = self.xattr_cred(from, name);
        let name = name.as_bytes().to_vec();
        let value = value.to_vec();
        self.run_empty(from, Operation::SetXattr, reply, move |inner, rq, _| async move {
            inner.set_xattr(&rq, &cred, number, (&name, &value), mode).await
        });
    }

    fn removexattr(&self, from: &KernelRequest, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let cred = self.xattr_cred(from, name);
        let name = name.as_bytes().to_vec();
        self.run_empty(from, Operation::RemoveXattr, reply, move |inner, rq, _| async move {
            inner.remove_xattr(&rq, &cred, number, &name).await
        });
    }

    /// Clones blocks if possible. If it fails with `EXDEV`, the kernel copies through its page cache.
    fn copy_file_range(
        &self,
        from: &KernelRequest,
        source: INodeNo,
        _: FileHandle,
        source_at: u64,
        target: INodeNo,
        _: FileHandle,
        target_at: u64,
        len: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let cred = opened_cred(from);
        self.run(from, Operation::Copy, move |inner, rq| async move {
            match inner
                .copy_range(
                    &rq,
                    &cred,
                    FilePosition { file: source, offset: source_at },
                    FilePosition { file: target, offset: target_at },
                    len,
                )
                .await
            {
                Ok(copied) => reply.written(copied),
                Err(errno) => reply.error(errno),
            }
        });
    }
}
