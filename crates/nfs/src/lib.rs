//! NFS version 3 over TCP, with the MOUNT protocol on the same port.
//!
//! ```text
//!   TCP ─▶ record ─▶ rpc ─▶ server ─▶ mount: path to handle
//!                              └────▶ nfs3: handle to file ─▶ Tree ─▶ file systems, snapshots
//!   TCP ◀─ reply: a head of XDR and pieces of cached data, written without joining them
//! ```
//!
//! **Layers.** [`wire`], [`record`], [`rpc`], [`handle`] and [`access`] are pure; [`server`] turns a message into a reply
//! and waits for nothing but file systems; [`serve`] alone knows sockets. So the whole protocol is tested and fuzzed
//! without one.
//!
//! **One export per file system**, and all of them reachable from the pool's root: a LOOKUP of a child's name answers with
//! the child's root, whose `fsid` differs, and the client's kernel mounts it there by itself. `.zfs/snapshot/NAME` works
//! the same way and is listed only where `snapdir=visible`.
//!
//! **Nobody is trusted.** Handles carry a MAC. AUTH_SYS is the client's word, so root is nobody unless told otherwise, and
//! only clients whose addresses were named may change anything. Lengths are checked before anything is copied. Per
//! connection so many calls are under way and no more, and all connections together hold so many bytes of calls.
//!
//! **Done once, and stable.** A call that changes something and is sent again is not done again (`duplicates`); its
//! answer is sent when what it promises is on stable storage.
//!
//! **What fails.** [`nfs3::status`] is the one table from our errors to the protocol's. A bad block is NFS3ERR_IO for the
//! READ that meets it.

pub mod access;
mod duplicates;
pub mod fuzz;
pub mod handle;
mod mount;
pub mod nfs3;
pub mod record;
pub mod reply;
pub mod rpc;
pub mod serve;
pub mod server;
pub mod wire;

pub use access::Squash;
pub use serve::{Writers, serve};
pub use server::{Options, Peer, Secrets, Server};
