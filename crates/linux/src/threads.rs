//! Disk I/O by threads with blocking calls: works everywhere, costs two thread switches per operation, or none if it
//! runs on the submitting thread.

use super::target::{Target, errno};
use crate::thread_pool::ThreadPool;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use tokio::runtime::{Handle, RuntimeFlavor};
use weir_machine::compute::ComputePool;
use weir_machine::disk::{DiskError, Io, Op};

pub fn submit(pool: &ThreadPool, target: Arc<Target>, io: Io) {
    pool.run(Box::new(move || complete(call(target, io))));
}

/// Whether this thread may block: not if it is the only thread that runs tasks.
pub fn may_block() -> bool {
    Handle::try_current().map_or(true, |runtime| runtime.runtime_flavor() != RuntimeFlavor::CurrentThread)
}

/// Performs an operation on this thread. If the thread runs tasks of a runtime, another thread takes them over
/// meanwhile.
pub fn run_inline(target: Arc<Target>, io: Io) {
    let inside = Handle::try_current().is_ok();
    let done = if inside { tokio::task::block_in_place(|| call(target, io)) } else { call(target, io) };
    complete(done);
}

fn call(target: Arc<Target>, mut io: Io) -> (Io, Result<(), Failure>) {
    let result = match io.op {
        Op::Read | Op::Write => transfer(&target, &mut io),
        Op::Flush => target.plain().sync_data().map_err(Failure::Os),
        Op::Discard => target.discard(io.offset, io.len).map_err(Failure::Os),
    };
    // Drop the file before the completion, so that a caller that closes the disk after its last completion can open
    // it again immediately.
    drop(target);
    (io, result)
}

fn complete((io, result): (Io, Result<(), Failure>)) {
    match result {
        Ok(()) => io.succeed(),
        Err(Failure::Os(error)) => io.fail_errno(errno(&error)),
        Err(Failure::Short(done)) => {
            let Io { op, offset, len, .. } = io;
            io.fail(DiskError::Short { op, offset, len, done });
        }
    }
}

enum Failure {
    Os(io::Error),
    /// End of file after this many bytes.
    Short(u64),
}

/// Transfers the whole range, in as many calls as necessary.
fn transfer(target: &Target, io: &mut Io) -> Result<(), Failure> {
    let offset = io.offset;
    let mut done = 0;
    for buf in &mut io.bufs {
        let buf = buf.as_mut();
        done = transfer_all(target, done, buf.len(), |from| {
            let rest = buf.get_mut(from..).unwrap_or_default();
            let (file, direct) = target.file(offset + done + from as u64, std::iter::once(&*rest));
            (file.read_at(rest, offset + done + from as u64), direct)
        })?;
    }
    for part in &io.parts {
        done = transfer_all(target, done, part.len(), |from| {
            let rest = part.get(from..).unwrap_or_default();
            let (file, direct) = target.file(offset + done + from as u64, std::iter::once(rest));
            (file.write_at(rest, offset + done + from as u64), direct)
        })?;
    }
    Ok(())
}

/// Transfers `len` bytes of a part; `done` bytes were transferred before it. `step` transfers some bytes from an
/// offset in the part and tells whether it used direct I/O. Returns the total number of bytes transferred.
fn transfer_all(
    target: &Target,
    done: u64,
    len: usize,
    mut step: impl FnMut(usize) -> (io::Result<usize>, bool),
) -> Result<u64, Failure> {
    let mut transferred = 0;
    while transferred < len {
        match step(transferred) {
            (Ok(0), _) => return Err(Failure::Short(done + transferred as u64)),
            (Ok(count), _) => transferred += count,
            (Err(error), _) if error.kind() == io::ErrorKind::Interrupted => {}
            (Err(error), true) if error.raw_os_error() == Some(libc::EINVAL) => target.disable_direct(),
            (Err(error), _) => return Err(Failure::Os(error)),
        }
    }
    Ok(done + transferred as u64)
}
