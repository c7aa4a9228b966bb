//! File systems through FUSE: a whole pool as one read-only mount.
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
//! **Nothing changes.** What is mounted is immutable as long as it is mounted: attributes, names, links and pages may be
//! cached for as long as the kernel likes, `open` is a no-op that the kernel stops asking for, and the state kept here
//! per inode is none, so there is nothing to forget. Writes are refused by the kernel (`ro`).
//!
//! **Who may.** The kernel checks modes and POSIX ACLs (`default_permissions`, `FUSE_POSIX_ACL`). NFSv4 ACLs, which Linux
//! cannot carry, do not show here.
//!
//! **What fails.** [`convert::errno`] is the one table from our errors to the kernel's. A read that meets a bad block is
//! an error for the request; the kernel retries page by page, so only the bad block's pages are lost. A short answer
//! would be taken for the end of the file, so there is none.

mod convert;
mod door;
mod inodes;
mod mount;

pub use mount::{FuseError, MountOptions, Mounted, Unmounter, mount};
