//! The implementation of `weir-machine` on Linux: tokio runs tasks, thread pools compute, io_uring or threads drive disks.
//!
//! ```text
//!   Production ── build ─► Machine { clock, tasks, compute, entropy, disks }
//!      tokio runtime · ThreadPool · getrandom · RealDisks ─► io_uring (ring) or pread threads (threads)
//! ```
//!
//! Only this crate and the servers use tokio's runtime; the engine's crates see `weir-machine` alone, so that they also
//! run in the simulator. Everything else that asks the Linux kernel is here too: file flags, locks, memory limits.
//!
//! ```
//! use weir_machine::Buf;
//!
//! let machine = weir_linux::machine().expect("a task runtime");
//! let bytes = machine.block_on(async {
//!     let begun = machine.clock.now();
//!     let task = machine.tasks.spawn(async { Buf::copy_from(b"on another thread").into_bytes() });
//!     let bytes = task.await.expect("the task ran");
//!     assert!(machine.clock.now() >= begun);
//!     bytes
//! });
//! assert_eq!(&bytes[..], b"on another thread");
//! ```

mod descriptors;
pub mod disks;
pub mod file_flags;
mod heap_trim;
mod memory_limit;
mod monotonic;
mod net;
pub mod own_mounts;
mod part_lock;
pub mod production;
pub mod rewrite;
mod ring;
pub mod signals;
mod state_file;
mod submit_batch;
mod target;
#[cfg(test)]
mod tests;
pub mod thread_pool;
mod threads;

pub use disks::{Backend, RealDisks};
pub use memory_limit::MemoryLimit;
pub use part_lock::lock_part;
pub use production::{BuildError, Production, blocking, separate_runtime};
pub use state_file::DiskStateFile;

/// A machine on this host with default settings ([`Production::from_env`]).
///
/// # Errors
/// [`BuildError`].
pub fn machine() -> Result<weir_machine::Machine, BuildError> {
    Production::from_env().build()
}
