//! File systems through FUSE: a whole pool as one mount.
//!
//! ```text
//!   kernel ─ /dev/fuse ─▶ fuser (a few threads) ─▶ Door: one method per operation ─▶ Tree ─▶ file systems, snapshots
//!                                                    │ polls once on the spot; what waits goes on as a task
//!   kernel ◀──────────────────────── reply ◀─────────┘
//! ```
//!
//! **Why fuser.** It speaks the kernel's protocol itself (no libfuse), hands out replies that may be answered later from
//! any thread, and can read the device from several threads; that is all the concurrency there is to have. A door of
//! our own over `/dev/fuse` would save one copy of reads that span several records, at the price of `unsafe` mounting
//! and a protocol's worth of code.
//!
//! **One mount, many file systems.** A FUSE mount has one device number, so inode numbers carry the file system: see
//! [`inodes`]. The root's files keep their ZFS object numbers.
//!
//! **Read-only, nothing changes.** Attributes, names, links and pages may be cached for as long as the kernel likes,
//! `open` is a no-op that the kernel stops asking for, and the state kept here per inode is none. Writes are refused by
//! the kernel (`ro`).
//!
//! **Read-write, the kernel is believed for a second.** Its own changes it sees at once; what changes through another
//! door of the same process it sees after that, and drops the pages of files whose size or time changed. Where there is no
//! other door, names are believed for good: see [`names`]. Writes are not kept back by the kernel (no writeback cache), so
//! what `write` acknowledged every other door reads; those to files opened for writing alone go past its pages. `fsync`,
//! and writes to files opened with `O_SYNC` or `O_DSYNC`, return when the file system's log is stable. Open files are held.
//!
//! **Who may.** The kernel checks modes and POSIX ACLs (`default_permissions`, `FUSE_POSIX_ACL`); file systems are told so
//! and check only what no user may. NFSv4 ACLs, which Linux
//! cannot carry, do not show here.
//!
//! **What fails.** [`convert::errno`] is the one table from our errors to the kernel's. A read that meets a bad block is
//! an error for the request; the kernel retries page by page, so only the bad block's pages are lost. A short answer
//! would be taken for the end of the file, so there is none.

mod changes;
mod convert;
mod door;
mod flags;
mod inner;
mod inodes;
mod mount;
mod names;

pub use mount::{FuseError, MountOptions, Mounted, Unmounter, mount};
