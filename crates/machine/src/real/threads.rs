//! Disks driven by threads that make blocking calls: works everywhere, costs two thread switches an operation.

use super::target::{Target, errno};
use crate::compute::Cores;
use crate::crew::Crew;
use crate::disk::{DiskError, Io, Op};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

pub fn submit(crew: &Crew, target: Arc<Target>, mut io: Io) {
    crew.run(Box::new(move || {
        let result = match io.op {
            Op::Read | Op::Write => transfer(&target, &mut io),
            Op::Flush => target.plain().sync_data().map_err(Failure::Os),
            Op::Discard => target.discard(io.offset, io.len).map_err(Failure::Os),
        };
        // The file is let go before the answer: whoever closes a disk after its last answer may open it again at once.
        drop(target);
        match result {
            Ok(()) => io.succeed(),
            Err(Failure::Os(error)) => io.fail_errno(errno(&error)),
            Err(Failure::Short(done)) => {
                let Io { op, offset, len, .. } = io;
                io.fail(DiskError::Short { op, offset, len, done });
            }
        }
    }));
}

enum Failure {
    Os(io::Error),
    /// Only so many bytes.
    Short(u64),
}

/// Moves the whole range, in as many calls as the kernel takes for it.
fn transfer(target: &Target, io: &mut Io) -> Result<(), Failure> {
    let (op, offset) = (io.op, io.offset);
    let mut done = 0;
    for buf in &mut io.bufs {
        let mut rest = buf.as_mut();
        while !rest.is_empty() {
            let at = offset + done;
            let (file, direct) = target.file(at, std::iter::once(&*rest));
            let result = if op == Op::Read { file.read_at(rest, at) } else { file.write_at(rest, at) };
            match result {
                Ok(0) => return Err(Failure::Short(done)),
                Ok(count) => {
                    done += count as u64;
                    rest = &mut rest[count..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if direct && error.raw_os_error() == Some(libc::EINVAL) => target.give_up_direct(),
                Err(error) => return Err(Failure::Os(error)),
            }
        }
    }
    Ok(())
}
