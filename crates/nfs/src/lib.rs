//! NFS version 3 over TCP, with the MOUNT protocol, the lock manager and the status monitor on the same port.
//!
//! ```text
//!   TCP ─▶ record ─▶ rpc ─▶ server ─▶ mount: path to handle
//!                              ├────▶ nfs3: handle to file ─▶ weir_front::Files: file systems, snapshots
//!                              └────▶ nlm, nsm: locks ──────▶ weir_front::FileLocks
//!   TCP ◀─ reply: a head of XDR and pieces of cached data, written without joining them
//! ```
//!
//! **Layers.** [`wire`], [`record`], [`rpc`] and [`handle`] are pure. [`server`] turns a call message
//! into a reply and awaits only file system operations. [`serve`] alone uses sockets, so the whole protocol is tested
//! and fuzzed without them.
//!
//! **Several pools.** A server serves any number of pools: `pools` is their table. A handle names its pool.
//!
//! **One export per file system.** All exports are also reachable from the pool's root: a LOOKUP of a child's name
//! returns the child's root, whose `fsid` differs, and the client's kernel mounts it there automatically.
//! `.zfs/snapshot/NAME` works the same way and is listed only if `snapdir=visible`.
//!
//! **Clients are not trusted.** Handles carry a MAC. AUTH_SYS credentials are unauthenticated, so root is squashed by
//! default, and only clients whose addresses are listed may write. Lengths are checked before anything is copied. The
//! number of concurrent calls per connection and the bytes of calls held by all connections are bounded.
//!
//! **Non-idempotent calls run once and are stable.** A retransmitted call that modifies something is answered from
//! the duplicate request cache (`drc`). Its reply is sent after the data it promises is on stable storage.
//!
//! **Errors.** [`status::status`] is the only mapping from file errors to NFS statuses. A READ that hits an unreadable
//! block fails with NFS3ERR_IO.
//!
//! ```
//! use weir_nfs::wire::{Decoder, Encoder};
//!
//! let mut call = Encoder::default();
//! call.u32(3).opaque(b"file name");
//! let bytes = call.bytes;
//!
//! let mut input = Decoder::new(&bytes);
//! assert_eq!(input.u32(), Some(3));
//! assert_eq!(input.opaque(255), Some(&b"file name"[..])); // at most 255 bytes are accepted
//! assert_eq!(input.u32(), None); // nothing is left
//! ```

mod drc;
pub mod fuzz;
pub mod handle;
pub mod mount;
pub mod nfs3;
pub mod nlm;
pub mod nsm;
mod pools;
pub mod record;
pub mod reply;
pub mod rpc;
pub mod rpc_client;
pub mod rpcbind;
pub mod serve;
pub mod server;
pub mod status;
pub mod wire;

pub use nlm::{LockManager, LockOptions};
pub use serve::{serve, serve_datagrams};
pub use server::{Peer, Secrets, Server};
