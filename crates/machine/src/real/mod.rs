//! Real disks: regular files and block devices.
//!
//! ```text
//!   RealDisks::open ─► RealDisk ── submit(Io) ──┬─► ring      one io_uring, one thread that reaps; and one for each
//!                         │                     │             thread that drives a future to its end
//!                         │                     └─► threads   a crew that calls pread, pwrite, fdatasync
//!                         └─ Target: the open file (twice when it can be driven around the page cache), its geometry
//! ```
//!
//! [`Backend::Auto`] takes io_uring where the kernel permits it (containers often forbid it) and threads otherwise.
//! Both give the same answers: one body of tests runs over both, direct and buffered.
//!
//! An operation that its submitter waits for with an idle thread ([`Io::here`]) goes to neither: that thread makes the
//! blocking call itself.
//!
//! Direct transfers need aligned addresses, offsets and lengths. What is not aligned (a 512-byte label on a disk of
//! 4 KiB sectors, the tail of a file of odd size) goes through the page cache instead, quietly: the kernel keeps the
//! two coherent for one file. A file system that opens files for direct access but then refuses the transfer (some
//! FUSE servers) costs one retry, after which the target stays buffered. Only memory that is not aligned, of a write that
//! is, is copied first.

pub(crate) mod freed;
pub(crate) mod gather;
pub(crate) mod ring;
mod target;
#[cfg(test)]
mod tests;
mod threads;

use crate::buf::{Buf, BufPool};
use crate::crew::Crew;
use crate::disk::{Access, Disk, DiskError, Disks, Geometry, Io, Op};
use bytes::Bytes;
use ring::Ring;
use smallvec::smallvec;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use target::Target;

/// How real disks are driven.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// io_uring where it is permitted, threads otherwise.
    #[default]
    Auto,
    /// io_uring or nothing.
    Uring,
    /// Threads that make blocking calls.
    Threads,
}

/// The most operations that blocking threads carry at once.
const BLOCKING_THREADS: usize = 32;

/// The most devices' discards that are under way at once.
const DISCARD_THREADS: usize = 4;

#[derive(Clone)]
enum Engine {
    /// And the threads for what the ring cannot do: a device's discard, which the kernel does while the caller waits.
    Ring(Arc<Ring>, Arc<Crew>),
    Threads(Arc<Crew>),
}

/// Opens files and block devices.
pub struct RealDisks {
    engine: Engine,
    direct: bool,
    pool: BufPool,
}

impl RealDisks {
    /// Disks driven by `backend`, around the page cache when `direct`, with buffers from `pool`. Fails only when
    /// io_uring is asked for by name and is not to be had.
    pub fn new(backend: Backend, direct: bool, pool: BufPool) -> Result<Self, std::io::Error> {
        let ring = |ring| Engine::Ring(Arc::new(ring), Arc::new(Crew::new("weir-discard", DISCARD_THREADS)));
        let threads = || Engine::Threads(Arc::new(Crew::new("weir-disk", BLOCKING_THREADS)));
        let engine = match backend {
            Backend::Threads => threads(),
            Backend::Uring => ring(Ring::start()?),
            Backend::Auto => match Ring::start() {
                Ok(started) => ring(started),
                Err(error) => {
                    tracing::info!(%error, "no io_uring here: disks are driven by threads");
                    threads()
                }
            },
        };
        Ok(RealDisks { engine, direct, pool })
    }

    /// What drives the disks: never [`Backend::Auto`].
    pub fn backend(&self) -> Backend {
        match self.engine {
            Engine::Ring(..) => Backend::Uring,
            Engine::Threads(_) => Backend::Threads,
        }
    }

    /// Where buffers come from.
    pub fn pool(&self) -> &BufPool {
        &self.pool
    }
}

impl Disks for RealDisks {
    fn scan(&self, dir: &Path) -> Result<Vec<PathBuf>, DiskError> {
        let failed = |error: std::io::Error| DiskError::Open { path: dir.into(), errno: target::errno(&error) };
        let mut found = Vec::new();
        for entry in std::fs::read_dir(dir).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            // What vanished meanwhile, or a link to nowhere, is no disk.
            if std::fs::metadata(&path).is_ok_and(|m| target::is_disk(&m)) {
                found.push(path);
            }
        }
        found.sort();
        Ok(found)
    }

    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn Disk>, DiskError> {
        let target = Target::open(path, access, self.direct)
            .map_err(|error| DiskError::Open { path: path.into(), errno: target::errno(&error) })?;
        Ok(Arc::new(RealDisk { target: Arc::new(target), engine: self.engine.clone(), pool: self.pool.clone() }))
    }
}

struct RealDisk {
    target: Arc<Target>,
    engine: Engine,
    pool: BufPool,
}

impl RealDisk {
    /// A copy of all parts in one piece of aligned memory.
    fn gathered(&self, parts: &[Bytes]) -> Bytes {
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
        self.target.geometry
    }

    fn submit(&self, mut io: Io) {
        if let Err(error) = io.check(&self.target.geometry, self.target.access) {
            return io.fail(error);
        }
        let memory = io.parts.iter().map(AsRef::as_ref);
        if io.op == Op::Write && self.target.wants_aligned(io.offset, io.len, memory) {
            io.parts = smallvec![self.gathered(&io.parts)];
        }
        match &self.engine {
            _ if io.here && threads::may_block() => {
                gather::release();
                ring::own::release();
                threads::carry_out(self.target.clone(), io);
            }
            Engine::Ring(_, crew) if io.op == Op::Discard && self.target.device => {
                threads::submit(crew, self.target.clone(), io);
            }
            Engine::Ring(ring, _) => ring.submit(self.target.clone(), io),
            Engine::Threads(crew) => threads::submit(crew, self.target.clone(), io),
        }
    }

    fn buffer(&self, len: usize) -> Buf {
        self.pool.take(len)
    }
}
