//! Disks driven by threads that make blocking calls: works everywhere, costs two thread switches an operation; none where
//! the thread is the submitter's own.

use super::target::{Target, errno};
use crate::compute::Cores;
use crate::crew::Crew;
use crate::disk::{DiskError, Io, Op};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use tokio::runtime::{Handle, RuntimeFlavor};

pub fn submit(crew: &Crew, target: Arc<Target>, io: Io) {
    crew.run(Box::new(move || answer(call(target, io))));
}

/// Whether this thread may wait for the kernel: not where it alone drives all tasks.
pub fn may_block() -> bool {
    Handle::try_current().map_or(true, |runtime| runtime.runtime_flavor() != RuntimeFlavor::CurrentThread)
}

/// Does it on this thread. If the thread drives tasks, another one drives the others meanwhile.
pub fn carry_out(target: Arc<Target>, io: Io) {
    let inside = Handle::try_current().is_ok();
    let done = if inside { tokio::task::block_in_place(|| call(target, io)) } else { call(target, io) };
    answer(done);
}

fn call(target: Arc<Target>, mut io: Io) -> (Io, Result<(), Failure>) {
    let result = match io.op {
        Op::Read | Op::Write => transfer(&target, &mut io),
        Op::Flush => target.plain().sync_data().map_err(Failure::Os),
        Op::Discard => target.discard(io.offset, io.len).map_err(Failure::Os),
    };
    // The file is let go before the answer: whoever closes a disk after its last answer may open it again at once.
    drop(target);
    (io, result)
}

fn answer((io, result): (Io, Result<(), Failure>)) {
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
    /// Only so many bytes.
    Short(u64),
}

/// Moves the whole range, in as many calls as the kernel takes for it.
fn transfer(target: &Target, io: &mut Io) -> Result<(), Failure> {
    let (offset, mut done) = (io.offset, 0);
    for buf in &mut io.bufs {
        let buf = buf.as_mut();
        done = whole(target, done, buf.len(), |from| {
            let rest = buf.get_mut(from..).unwrap_or_default();
            let (file, direct) = target.file(offset + done + from as u64, std::iter::once(&*rest));
            (file.read_at(rest, offset + done + from as u64), direct)
        })?;
    }
    for part in &io.parts {
        done = whole(target, done, part.len(), |from| {
            let rest = part.get(from..).unwrap_or_default();
            let (file, direct) = target.file(offset + done + from as u64, std::iter::once(rest));
            (file.write_at(rest, offset + done + from as u64), direct)
        })?;
    }
    Ok(())
}

/// Moves `len` bytes; `step` moves some of them, from those after the first so many on, and tells whether it went around
/// the page cache. Gives the bytes done with them.
fn whole(
    target: &Target,
    done: u64,
    len: usize,
    mut step: impl FnMut(usize) -> (io::Result<usize>, bool),
) -> Result<u64, Failure> {
    let mut moved = 0;
    while moved < len {
        match step(moved) {
            (Ok(0), _) => return Err(Failure::Short(done + moved as u64)),
            (Ok(count), _) => moved += count,
            (Err(error), _) if error.kind() == io::ErrorKind::Interrupted => {}
            (Err(error), true) if error.raw_os_error() == Some(libc::EINVAL) => target.give_up_direct(),
            (Err(error), _) => return Err(Failure::Os(error)),
        }
    }
    Ok(done + moved as u64)
}
