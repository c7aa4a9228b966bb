//! Operations of a ring: the submission queue entry of an operation, and the handling of its completion.
//!
//! A slot owns an operation's memory and open file until the kernel has completed it, even if the waiting future is
//! dropped.

use crate::target::{PUNCH_HOLE, Target};
use io_uring::squeue::SubmissionQueue;
use io_uring::{opcode, squeue, types};
use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use weir_machine::disk::{DiskError, Io, Op};

/// Maximum number of operations of one ring that are submitted to the kernel; further ones wait in a queue.
pub(super) const DEPTH: usize = 256;
/// Maximum number of operations whose submission is deferred.
const MAX_BATCH: usize = 16;
/// Maximum bytes of one submission; the kernel's limit is 2 GiB.
const MAX_TRANSFER: usize = 1 << 30;
/// Maximum number of buffers of one submission (`UIO_MAXIOV`).
const MAX_PARTS: usize = 1024;

/// An operation of a ring.
pub(super) struct UringOp {
    target: Arc<Target>,
    io: Io,
    /// Bytes transferred by earlier submissions of this operation.
    done: usize,
    /// The I/O vector of a submission with several buffers; the kernel reads it.
    parts: Vec<libc::iovec>,
}

// SAFETY: the pointers refer to buffers of `io`, which move with the operation.
unsafe impl Send for UringOp {}

impl UringOp {
    pub(super) fn new(target: Arc<Target>, io: Io) -> UringOp {
        UringOp { target, io, done: 0, parts: Vec::new() }
    }
}

/// A completed submission: the operation, whether it used direct I/O, and the kernel's result.
pub(super) struct Completion {
    op: UringOp,
    direct: bool,
    result: i32,
}

/// The operations of one ring: submitted and waiting ones.
pub(super) struct Slots {
    /// Submitted operations by the user data of their completion, and whether they use direct I/O.
    slots: Vec<Option<(UringOp, bool)>>,
    free: Vec<usize>,
    waiting: VecDeque<UringOp>,
}

impl Slots {
    pub(super) fn new() -> Slots {
        Slots { slots: (0..DEPTH).map(|_| None).collect(), free: (0..DEPTH).rev().collect(), waiting: VecDeque::new() }
    }

    pub(super) fn push(&mut self, op: UringOp) {
        self.waiting.push_back(op);
    }

    /// Whether no operations are submitted or waiting.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.free.len() == DEPTH
    }

    /// Moves waiting operations to the submission queue while there are free slots.
    pub(super) fn fill(&mut self, queue: &mut SubmissionQueue<'_>) {
        while let Some(slot) = self.free.pop() {
            let Some(mut op) = self.waiting.pop_front() else {
                self.free.push(slot);
                break;
            };
            let (entry, direct) = entry_for(&mut op);
            // SAFETY: the slot owns the buffers and the file of the entry until completion.
            if unsafe { queue.push(&entry.user_data(slot as u64)) }.is_err() {
                self.waiting.push_front(op);
                self.free.push(slot);
                break;
            }
            self.slots[slot] = Some((op, direct));
        }
    }

    /// Whether `queued` operations should be submitted now, before the current poll ends. Each call costs a doorbell
    /// write to the device. But a device with little work should not wait for a poll that starts many operations, so
    /// the number of operations per call doubles, up to [`MAX_BATCH`].
    pub(super) fn are_due(&self, queued: usize) -> bool {
        let held = DEPTH - self.free.len();
        queued >= MAX_BATCH || queued >= 2 && queued * 2 > held.saturating_sub(queued)
    }

    /// Frees the slot of a completion.
    pub(super) fn take(&mut self, slot: u64, result: i32) -> Completion {
        let slot = slot as usize;
        let (op, direct) = self.slots[slot].take().expect("the kernel completes each operation once");
        self.free.push(slot);
        Completion { op, direct, result }
    }
}

/// The submission queue entry for (the rest of) an operation, and whether it uses direct I/O.
fn entry_for(op: &mut UringOp) -> (squeue::Entry, bool) {
    let UringOp { target, io, done, parts } = op;
    let plain = types::Fd(target.plain_fd());
    match io.op {
        Op::Flush => return (opcode::Fsync::new(plain).flags(types::FsyncFlags::DATASYNC).build(), false),
        Op::Discard => {
            return (opcode::Fallocate::new(plain, io.len).offset(io.offset).mode(PUNCH_HOLE).build(), false);
        }
        Op::Read | Op::Write => {}
    }
    let at = io.offset + *done as u64;
    let reads = io.op == Op::Read;
    parts.clear();
    let mut skip = *done;
    let mut left = MAX_TRANSFER;
    let mut add = |start: *mut u8, len: usize| {
        let passed = skip.min(len);
        skip -= passed;
        let count = (len - passed).min(left);
        left -= count;
        if count > 0 && parts.len() < MAX_PARTS {
            // `passed` is less than `len`.
            parts.push(libc::iovec { iov_base: start.wrapping_add(passed).cast(), iov_len: count });
        }
    };
    io.bufs.iter_mut().for_each(|buf| add(buf.as_mut().as_mut_ptr(), buf.len()));
    // The kernel only reads these.
    io.parts.iter().for_each(|part| add(part.as_ptr().cast_mut(), part.len()));
    // SAFETY: made above from buffers and parts that are still borrowed.
    let slices = parts.iter().map(|p| unsafe { std::slice::from_raw_parts(p.iov_base.cast::<u8>(), p.iov_len) });
    let (file, direct) = target.file(at, slices);
    let fd = types::Fd(file.as_raw_fd());
    let entry = match (&parts[..], reads) {
        ([one], true) => opcode::Read::new(fd, one.iov_base.cast(), one.iov_len as u32).offset(at).build(),
        ([one], false) => opcode::Write::new(fd, one.iov_base.cast(), one.iov_len as u32).offset(at).build(),
        (many, true) => opcode::Readv::new(fd, many.as_ptr(), many.len() as u32).offset(at).build(),
        (many, false) => opcode::Writev::new(fd, many.as_ptr(), many.len() as u32).offset(at).build(),
    };
    // A worker of the kernel waits instead of the submitting thread.
    let flags = if target.blocks_submission { squeue::Flags::ASYNC } else { squeue::Flags::empty() };
    (entry.flags(flags), direct)
}

/// Completes an operation, or returns it if it must be submitted again. Drops the file before the callback runs, so
/// that a caller that closes the disk after its last completion can open it again immediately.
pub(super) fn complete(completion: Completion) -> Option<UringOp> {
    let Completion { op: mut uring_op, direct, result } = completion;
    let transfer = matches!(uring_op.io.op, Op::Read | Op::Write);
    let outcome = match result {
        count if count >= 0 && transfer => {
            uring_op.done += count as usize;
            let Io { op, offset, len, .. } = uring_op.io;
            if uring_op.done as u64 >= len {
                Ok(())
            } else if count == 0 {
                Err(DiskError::Short { op, offset, len, done: uring_op.done as u64 })
            } else {
                return Some(uring_op);
            }
        }
        count if count >= 0 => Ok(()),
        error => match -error {
            libc::EINTR | libc::EAGAIN | libc::ECANCELED => return Some(uring_op),
            libc::EINVAL if direct => {
                uring_op.target.disable_direct();
                return Some(uring_op);
            }
            errno => {
                let Io { op, offset, len, .. } = uring_op.io;
                Err(DiskError::Os { op, offset, len, errno })
            }
        },
    };
    let UringOp { target, io, .. } = uring_op;
    drop(target);
    match outcome {
        Ok(()) => io.succeed(),
        Err(error) => io.fail(error),
    }
    None
}
