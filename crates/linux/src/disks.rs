//! Real disks: regular files and block devices.
//!
//! ```text
//!   RealDisks::open ─► RealDisk ── submit(Io) ──┬─► ring      one shared io_uring with a reaping thread, and
//!                         │                     │             one per thread in `block_on`
//!                         │                     └─► threads   a thread pool that calls pread, pwrite, fdatasync
//!                         └─ Target: the open file (a second descriptor for direct I/O), its geometry
//! ```
//!
//! [`Backend::Auto`] uses io_uring if the kernel permits it (containers often forbid it), otherwise threads. Both
//! behave the same: one conformance test runs over both, direct and buffered.
//!
//! For an operation whose submitting thread would be idle ([`Io::here`]), that thread makes the blocking call itself.
//!
//! Direct transfers need aligned addresses, offsets and lengths. Unaligned ranges (a 512-byte label on a disk with 4
//! KiB sectors, the tail of a file of odd size) use the page cache instead; the kernel keeps the two coherent for one
//! file. A file system that opens files with O_DIRECT but rejects direct transfers (some FUSE servers) costs one
//! retry, after which the target uses only buffered I/O. Unaligned memory of a write with an aligned range is copied
//! to aligned memory first.

use crate::own_mounts;
use crate::ring::Ring;
use crate::target::Target;
use crate::thread_pool::ThreadPool;
use bytes::Bytes;
use smallvec::smallvec;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weir_machine::buf::{Buf, BufPool};
use weir_machine::disk::{Access, Disk, DiskError, Disks, Geometry, Io, Op};

/// How real disks are driven.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// io_uring if it is permitted, otherwise threads.
    #[default]
    Auto,
    /// io_uring; an error if it is not available.
    Uring,
    /// Threads that make blocking calls.
    Threads,
}

/// Maximum number of concurrent blocking operations.
const BLOCKING_THREADS: usize = 32;

/// Maximum number of concurrent discards of devices.
const DISCARD_THREADS: usize = 4;

#[derive(Clone)]
enum Engine {
    /// io_uring, and threads for discards of devices, for which io_uring has no operation.
    Ring(Arc<Ring>, Arc<ThreadPool>),
    Threads(Arc<ThreadPool>),
}

/// Opens files and block devices.
pub struct RealDisks {
    engine: Engine,
    direct: bool,
    pool: BufPool,
}

impl RealDisks {
    /// Disks driven by `backend`, with direct I/O if `direct`, with buffers from `pool`.
    ///
    /// # Errors
    /// If [`Backend::Uring`] is requested and io_uring is not available.
    pub fn new(backend: Backend, direct: bool, pool: BufPool) -> Result<Self, std::io::Error> {
        let ring = |ring| Engine::Ring(Arc::new(ring), Arc::new(ThreadPool::new("weir-discard", DISCARD_THREADS)));
        let threads = || Engine::Threads(Arc::new(ThreadPool::new("weir-disk", BLOCKING_THREADS)));
        let engine = match backend {
            Backend::Threads => threads(),
            Backend::Uring => ring(Ring::start()?),
            Backend::Auto => match Ring::start() {
                Ok(started) => ring(started),
                Err(error) => {
                    tracing::info!(%error, "io_uring is not available: using threads for disk I/O");
                    threads()
                }
            },
        };
        Ok(RealDisks { engine, direct, pool })
    }

    /// The backend in use: never [`Backend::Auto`].
    pub fn backend(&self) -> Backend {
        match self.engine {
            Engine::Ring(..) => Backend::Uring,
            Engine::Threads(_) => Backend::Threads,
        }
    }

    /// The pool of read buffers.
    pub fn pool(&self) -> &BufPool {
        &self.pool
    }
}

impl Disks for RealDisks {
    fn scan(&self, dir: &Path) -> Result<Vec<PathBuf>, DiskError> {
        let failed = |error: std::io::Error| DiskError::Open { path: dir.into(), errno: crate::target::errno(&error) };
        let mut found = Vec::new();
        for entry in std::fs::read_dir(dir).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            // Skip entries that vanished meanwhile, and broken links.
            if std::fs::metadata(&path).is_ok_and(|m| crate::target::is_disk(&m)) {
                found.push(path);
            }
        }
        found.sort();
        Ok(found)
    }

    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn Disk>, DiskError> {
        if own_mounts::has(path) {
            return Err(DiskError::OwnMount { path: path.into() });
        }
        let target = Target::open(path, access, self.direct)
            .map_err(|error| DiskError::Open { path: path.into(), errno: crate::target::errno(&error) })?;
        Ok(Arc::new(RealDisk { target: Arc::new(target), engine: self.engine.clone(), pool: self.pool.clone() }))
    }
}

struct RealDisk {
    target: Arc<Target>,
    engine: Engine,
    pool: BufPool,
}

impl RealDisk {
    /// A copy of all parts in one aligned buffer.
    fn aligned_copy(&self, parts: &[Bytes]) -> Bytes {
        let mut buf = self.pool.take(parts.iter().map(Bytes::len).sum());
        let mut rest = buf.as_mut();
        for part in parts {
            let (front, tail) = rest.split_at_mut(part.len());
            front.copy_from_slice(part);
            rest = tail;
        }
        buf.into_bytes()
    }
}

impl Disk for RealDisk {
    fn geometry(&self) -> Geometry {
        self.target.geometry()
    }

    fn look_again(&self) -> Geometry {
        self.target.look_again()
    }

    fn submit(&self, mut io: Io) {
        if let Err(error) = io.check(&self.target.geometry(), self.target.access) {
            return io.fail(error);
        }
        let memory = io.parts.iter().map(AsRef::as_ref);
        if io.op == Op::Write && self.target.wants_aligned(io.offset, io.len, memory) {
            io.parts = smallvec![self.aligned_copy(&io.parts)];
        }
        match &self.engine {
            _ if io.here && crate::threads::may_block() => {
                crate::submit_batch::flush_deferred();
                crate::ring::thread_local_ring::flush_deferred();
                crate::threads::run_inline(self.target.clone(), io);
            }
            Engine::Ring(_, pool) if io.op == Op::Discard && self.target.device => {
                crate::threads::submit(pool, self.target.clone(), io);
            }
            Engine::Ring(ring, _) => ring.submit(self.target.clone(), io),
            Engine::Threads(pool) => crate::threads::submit(pool, self.target.clone(), io),
        }
    }

    fn buffer(&self, len: usize) -> Buf {
        self.pool.take(len)
    }
}
