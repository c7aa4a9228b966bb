//! Disks in object stores: a disk is cut into objects of one size, in a bucket of S3, Azure or Google, or in a folder.
//!
//! ```text
//!   StoreDisks (weir_machine::Disks) ── URL ─► Handle ─► Core ── settle, load, remove ─► Requests ─► Store
//!        │                                                │                                ├─ RemoteStore (object_store, hyper)
//!        └─ other paths ─► the disks of the machine       └─ Lease: the record             └─ FolderStore
//! ```
//!
//! *Layout.* The object `PREFIX/%016x` has the bytes of the disk from its number times the object size on; a missing object reads as
//! zeros. That is the layout of nbdkit's S3 plugin, so OpenZFS opens the pool through nbdkit. Beside them, `weir-disk.json` has
//! the size of the disk and the process that may write it ([`record`], [`lease`]).
//!
//! *Invariants.* A flush returns success only when the store has answered the PUT of every object that was dirty before. No two
//! changes of an object are in progress at the same time. Every change has a condition ([`core`] says why no old byte comes
//! back). Nothing is changed without a valid lease. Credentials are in no message ([`credentials`]).
//!
//! *Failure.* A request that may succeed later is repeated until a deadline; then the operation fails with a line that names the
//! object and the reason, and the pool's `failmode` decides.
//!
//! Rejected: log-structured objects as in ZeroFS, and a vdev kind of its own as in zoa and objbacker: OpenZFS could not open the
//! pool. Unconditional DELETE: one that arrives late deletes what was written since; at stores without conditional deletion
//! objects stay.

mod azure;
pub mod core;
pub mod counters;
pub mod credentials;
pub mod disks;
pub mod folder;
pub mod fuzz;
mod google;
mod http;
pub mod io;
pub mod lease;
pub mod object;
pub mod prices;
pub mod probe;
pub mod record;
pub mod remote;
pub mod requests;
mod s3;
pub mod store;
mod transfer;
pub mod url;

pub use core::{Bug, Core, Settings};
pub use disks::{StoreDisks, open_writer, with_stores};
pub use prices::Prices;
pub use remote::open_store;
pub use url::{DiskUrl, StoreUrl, UrlError, is_url, is_url_path};
