//! FUSE front end: a whole pool as one mount, or one file system with some of its children.
//!
//! ```text
//!   kernel ─ /dev/fuse ─▶ fuser (a few threads) ─▶ FuseOps: one method per operation ─▶ Tree ─▶ file systems, snapshots
//!                                                    │ polled once on this thread; continued as a task if it waits
//!   kernel ◀──────────────────────── reply ◀─────────┘
//! ```
//!
//! **Why fuser.** It implements the kernel's protocol itself (no libfuse), its replies can be sent later from any
//! thread, and it can read the device from several threads. An implementation of our own over `/dev/fuse` would save
//! one copy of reads that span several records, but need `unsafe` mounting code and the whole protocol.
//!
//! **One mount, many file systems.** A FUSE mount has one device number, so inode numbers encode the file system: see
//! [`inodes`]. Files of the root file system keep their ZFS object numbers.
//!
//! **One file system.** `mount_file_system` has a file system as its root, and contains those of its children that are mounted
//! at their place below it; the others are hidden, and have mounts of their own.
//!
//! **Read-only mounts.** The kernel may cache attributes, names, links and pages for a long time, `open` is
//! unsupported so that the kernel stops sending it, and no state per inode is kept here. The kernel rejects writes
//! (`ro`).
//!
//! **Read-write mounts.** The kernel caches names and attributes for one second. It sees its own changes immediately, and
//! changes by another front end of the same process some milliseconds after they are done ([`invalidations`]), at the latest
//! after that second. If there is no other front end, names are cached indefinitely: see [`name_cache`]. The writeback cache is
//! off, so data acknowledged by `write` are visible to every front end; writes to files opened write-only bypass the
//! page cache. `fsync`, and writes to files opened with `O_SYNC` or `O_DSYNC`, return when the intent log is stable.
//! Open files are pinned.
//!
//! **`sync` and `syncfs`.** Linux sends SYNCFS to virtiofs and fuseblk mounts alone, so `sync(2)`, `syncfs(2)` and the
//! commands `sync` and `sync -f` return 0 without a request to this server, and make nothing stable (`fuse_sync_fs` of
//! `fs/fuse/inode.c`). `fsync` of a file makes that file stable, `fsync` of a directory all changes of names, and
//! `zpool sync POOL` all changes. A pool with a mount syncs a txg a second after its last change, which bounds
//! the loss where a program relies on `sync`.
//!
//! **Permissions.** The kernel checks modes and POSIX ACLs (`default_permissions`, `FUSE_POSIX_ACL`); the file system
//! skips these checks and enforces only the rules that apply to every user. The kernel knows nothing of NFSv4 ACLs: they are
//! the extended attribute `system.nfs4_acl_xdr` ([`weir_files::acl_xdr`]), and every change of it is checked here, because the
//! kernel allows any user to set attributes of that namespace.
//!
//! **Mounts for a file server** ([`mount_for_server`]): the kernel checks nothing and the ACL decides, see [`access`]; each
//! operation is accounted to the server's client, see [`callers`]; files stay while the kernel knows them, see [`lookups`];
//! names are found without regard to case, see [`spelling`].
//!
//! **Locks.** `fcntl` and `flock` on a writable mount use the table that NFS clients use, too: see [`locks`].
//!
//! **Errors.** [`convert::errno`] is the only mapping from file errors to errno values. A read that hits an
//! unreadable block fails; the kernel retries page by page, so only the pages of that block are lost. Reads are never
//! short, because the kernel would take a short read for the end of the file.

mod access;
mod callers;
mod changes;
mod convert;
mod device;
mod flags;
mod fuse_ops;
mod inner;
mod inodes;
mod invalidations;
mod locks;
mod lookups;
mod mount;
mod name_cache;
mod open_counts;
mod operation;
mod spelling;
mod stale;
mod xattrs;

pub use callers::Clients;
pub use mount::{
    CachedNames, ChangedOptions, FuseError, MountOptions, Mounted, Remounter, Unmounter, mount, mount_file_system,
    mount_file_system_for_server, mount_for_server,
};
pub use stale::{unmount_stale, unmount_stale_at};
pub use xattrs::DATASET_XATTR;
