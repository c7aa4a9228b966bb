//! What the kernel is asked to do: an operation as an entry of a submission queue, and what becomes of its answer.
//!
//! Memory and its open file live in their slot until the kernel has answered, whatever happens to those who wait.

use super::super::target::{PUNCH_HOLE, Target};
use crate::disk::{DiskError, Io, Op};
use io_uring::squeue::SubmissionQueue;
use io_uring::{opcode, squeue, types};
use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// The most operations that the kernel holds at once for one ring; the rest wait their turn in user space.
pub(super) const DEPTH: usize = 256;
/// The most operations that wait to be submitted together.
const MOST: usize = 16;
/// The most bytes in one submission: the kernel takes no more than 2 GiB.
const MAX_TRANSFER: usize = 1 << 30;
/// The most buffers in one submission (`UIO_MAXIOV`).
const MAX_PARTS: usize = 1024;

pub(super) struct Letter {
    target: Arc<Target>,
    io: Io,
    /// Bytes transferred by earlier submissions of this operation.
    done: usize,
    /// What the kernel reads while it works: where the buffers are, when there are several.
    parts: Vec<libc::iovec>,
}

// SAFETY: the pointers lead into buffers of `io`, which go where the letter goes.
unsafe impl Send for Letter {}

impl Letter {
    pub(super) fn new(target: Arc<Target>, io: Io) -> Letter {
        Letter { target, io, done: 0, parts: Vec::new() }
    }
}

/// What the kernel answered: the operation, whether it went around the page cache, and the result.
pub(super) struct Answer {
    letter: Letter,
    direct: bool,
    result: i32,
}

/// What is under way through one ring, and what waits.
pub(super) struct Slots {
    /// What the kernel holds, by the number that its completion carries, and whether it goes around the page cache.
    slots: Vec<Option<(Letter, bool)>>,
    free: Vec<usize>,
    waiting: VecDeque<Letter>,
}

impl Slots {
    pub(super) fn new() -> Slots {
        Slots { slots: (0..DEPTH).map(|_| None).collect(), free: (0..DEPTH).rev().collect(), waiting: VecDeque::new() }
    }

    pub(super) fn push(&mut self, letter: Letter) {
        self.waiting.push_back(letter);
    }

    /// Whether nothing is under way and nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.free.len() == DEPTH
    }

    /// Puts waiting letters on the submission queue while there are slots.
    pub(super) fn fill(&mut self, queue: &mut SubmissionQueue<'_>) {
        while let Some(slot) = self.free.pop() {
            let Some(mut letter) = self.waiting.pop_front() else {
                self.free.push(slot);
                break;
            };
            let (entry, direct) = entry_for(&mut letter);
            // SAFETY: the buffer and the file that the entry names are owned by the slot until the answer.
            if unsafe { queue.push(&entry.user_data(slot as u64)) }.is_err() {
                self.waiting.push_front(letter);
                self.free.push(slot);
                break;
            }
            self.slots[slot] = Some((letter, direct));
        }
    }

    /// Whether `queued` operations are worth a call now, before the turn that starts them ends. Each call costs a doorbell
    /// at the device; but a device that has little to do must not wait for a turn that has much to start, nor for more than
    /// [`MOST`]. So what is submitted doubles with each call.
    pub(super) fn are_due(&self, queued: usize) -> bool {
        let held = DEPTH - self.free.len();
        queued >= MOST || queued >= 2 && queued * 2 > held.saturating_sub(queued)
    }

    /// Empties the slot that a completion names.
    pub(super) fn take(&mut self, slot: u64, result: i32) -> Answer {
        let slot = slot as usize;
        let (letter, direct) = self.slots[slot].take().expect("the kernel answers each operation once");
        self.free.push(slot);
        Answer { letter, direct, result }
    }
}

/// The submission for (the rest of) an operation, and whether it goes around the page cache.
fn entry_for(letter: &mut Letter) -> (squeue::Entry, bool) {
    let Letter { target, io, done, parts } = letter;
    let plain = types::Fd(target.plain_fd());
    match io.op {
        Op::Flush => return (opcode::Fsync::new(plain).flags(types::FsyncFlags::DATASYNC).build(), false),
        Op::Discard => {
            return (opcode::Fallocate::new(plain, io.len).offset(io.offset).mode(PUNCH_HOLE).build(), false);
        }
        Op::Read | Op::Write => {}
    }
    let (at, reads) = (io.offset + *done as u64, io.op == Op::Read);
    parts.clear();
    let (mut skip, mut room) = (*done, MAX_TRANSFER);
    let mut add = |start: *mut u8, len: usize| {
        let passed = skip.min(len);
        skip -= passed;
        let count = (len - passed).min(room);
        room -= count;
        if count > 0 && parts.len() < MAX_PARTS {
            // `passed` is less than the length.
            parts.push(libc::iovec { iov_base: start.wrapping_add(passed).cast(), iov_len: count });
        }
    };
    io.bufs.iter_mut().for_each(|buf| add(buf.as_mut().as_mut_ptr(), buf.len()));
    // The kernel only reads these.
    io.parts.iter().for_each(|part| add(part.as_ptr().cast_mut(), part.len()));
    // SAFETY: made above of buffers and parts that are still borrowed.
    let slices = parts.iter().map(|p| unsafe { std::slice::from_raw_parts(p.iov_base.cast::<u8>(), p.iov_len) });
    let (file, direct) = target.file(at, slices);
    let fd = types::Fd(file.as_raw_fd());
    let entry = match (&parts[..], reads) {
        ([one], true) => opcode::Read::new(fd, one.iov_base.cast(), one.iov_len as u32).offset(at).build(),
        ([one], false) => opcode::Write::new(fd, one.iov_base.cast(), one.iov_len as u32).offset(at).build(),
        (many, true) => opcode::Readv::new(fd, many.as_ptr(), many.len() as u32).offset(at).build(),
        (many, false) => opcode::Writev::new(fd, many.as_ptr(), many.len() as u32).offset(at).build(),
    };
    (entry, direct)
}

/// Answers an operation, or gives back what has to be submitted again. The file is let go before the answer: whoever
/// closes a disk after its last answer may open it again at once.
pub(super) fn settle(answer: Answer) -> Option<Letter> {
    let Answer { mut letter, direct, result } = answer;
    let transfer = matches!(letter.io.op, Op::Read | Op::Write);
    let outcome = match result {
        count if count >= 0 && transfer => {
            letter.done += count as usize;
            let Io { op, offset, len, .. } = letter.io;
            if letter.done as u64 >= len {
                Ok(())
            } else if count == 0 {
                Err(DiskError::Short { op, offset, len, done: letter.done as u64 })
            } else {
                return Some(letter);
            }
        }
        count if count >= 0 => Ok(()),
        error => match -error {
            libc::EINTR | libc::EAGAIN | libc::ECANCELED => return Some(letter),
            libc::EINVAL if direct => {
                letter.target.give_up_direct();
                return Some(letter);
            }
            errno => {
                let Io { op, offset, len, .. } = letter.io;
                Err(DiskError::Os { op, offset, len, errno })
            }
        },
    };
    let Letter { target, io, .. } = letter;
    drop(target);
    match outcome {
        Ok(()) => io.succeed(),
        Err(error) => io.fail(error),
    }
    None
}
