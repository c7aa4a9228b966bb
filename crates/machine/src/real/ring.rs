//! Disks driven by io_uring: callers submit, one thread reaps.
//!
//! ```text
//!   any thread: submit ─► table (lock: a slot, an entry on the submission queue) ─► io_uring_enter, outside the lock,
//!                           │ no slot free: wait in the overflow queue                if the reaping thread sleeps,
//!                                                                                     at the end of the task's turn
//!   weir-ring thread:  io_uring_enter (submits what came meanwhile, sleeps until a completion) ─► slots emptied,
//!                      overflow moved up ─► answers
//! ```
//!
//! An operation starts on the thread that wants it: no hand-over, no second thread to wake. Only while the reaping thread
//! is awake, it submits for the others with the same call by which it waits: the busier the disks, the fewer calls. The other way, one thread
//! that owns the ring and takes letters from an inbox, was built first: it allows the kernel's cheapest completion mode
//! and larger batches, but at random reads of depth 32 the extra wake-up of each letter cost a fifth of the rate;
//! lingering awake for the next letter made it worse on two cores, not better.
//!
//! Invariants: the submission queue is touched only under the table's lock, the completion queue only by the reaping
//! thread. At most [`DEPTH`] operations are with the kernel, half of what the completion queue holds, so that no
//! completion is ever lost. Memory and its open file live in their slot until the kernel has answered, whatever
//! happens to those who wait: so the reaping thread never unwinds past the table; a panic there aborts the process.
//!
//! When a thread ends, the kernel cancels what that thread had submitted and not begun (ECANCELED): the reaping thread
//! submits it again. An `io_uring_enter` that fails for good is a broken invariant of this file, and stops.

#![allow(unsafe_code, reason = "submission entries carry raw pointers into buffers that the slots own")]

use super::gather;
use super::target::{PUNCH_HOLE, Target};
use crate::disk::{DiskError, Io, Op};
use io_uring::{IoUring, Probe, opcode, squeue, types};
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most operations that the kernel holds at once; the rest wait their turn in user space.
const DEPTH: usize = 256;
/// Marks the completion that only wakes the reaping thread.
const BELL: u64 = u64::MAX;
/// The most bytes in one submission: the kernel takes no more than 2 GiB.
const MAX_TRANSFER: usize = 1 << 30;
/// The most buffers in one submission (`UIO_MAXIOV`).
const MAX_PARTS: usize = 1024;
/// `IORING_ENTER_GETEVENTS` of `<linux/io_uring.h>`.
const GETEVENTS: u32 = 1;

struct Letter {
    target: Arc<Target>,
    io: Io,
    /// Bytes transferred by earlier submissions of this operation.
    done: usize,
    /// What the kernel reads while it works: where the buffers are, when there are several.
    parts: Vec<libc::iovec>,
}

// SAFETY: the pointers lead into buffers of `io`, which go where the letter goes.
unsafe impl Send for Letter {}

/// What is under way and what waits.
struct Table {
    /// What the kernel holds, by the number that its completion carries, and whether it goes around the page cache.
    slots: Vec<Option<(Letter, bool)>>,
    free: Vec<usize>,
    waiting: VecDeque<Letter>,
    /// The reaping thread is awake, and will look at the submission queue before it sleeps.
    reaping: bool,
    closed: bool,
}

struct Shared {
    ring: IoUring,
    table: Mutex<Table>,
}

/// The ring. When the last handle goes, its thread finishes what it holds and ends.
pub struct Ring(Arc<Shared>);

impl Ring {
    /// Opens a ring and starts the thread that reaps it, or says why the kernel gives no ring.
    pub fn start() -> io::Result<Ring> {
        let table = Table {
            slots: (0..DEPTH).map(|_| None).collect(),
            free: (0..DEPTH).rev().collect(),
            waiting: VecDeque::new(),
            reaping: false,
            closed: false,
        };
        let shared = Arc::new(Shared { ring: open_ring()?, table: Mutex::new(table) });
        let theirs = shared.clone();
        std::thread::Builder::new().name("weir-ring".into()).spawn(move || theirs.reap_all())?;
        Ok(Ring(shared))
    }

    /// Hands an operation to the kernel, now or at the end of the task's turn that runs on this thread; or lets it wait
    /// for a slot.
    pub fn submit(self: &Arc<Self>, target: Arc<Target>, io: Io) {
        if self.0.push(Letter { target, io, done: 0, parts: Vec::new() }) && !gather::keeps(self) {
            self.0.enter();
        }
    }

    /// Submits what a turn kept back.
    pub fn flush(&self) {
        let table = self.0.table();
        let reaping = table.reaping;
        drop(table);
        if !reaping {
            self.0.enter();
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.0.table().closed = true;
        let bell = opcode::Nop::new().build().user_data(BELL);
        loop {
            let table = self.0.table();
            // SAFETY: the lock that guards the submission queue is held; the entry names no memory.
            let pushed = unsafe { self.0.ring.submission_shared().push(&bell) }.is_ok();
            drop(table);
            self.0.enter();
            if pushed {
                return;
            }
        }
    }
}

/// Opens a ring and makes sure that it knows our operations, and that it may be driven: a filter of system calls can
/// refuse each of the three calls alone.
fn open_ring() -> io::Result<IoUring> {
    let entries = DEPTH as u32;
    let mut ring = IoUring::builder().setup_cqsize(2 * entries).build(entries)?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let transfers = [opcode::Read::CODE, opcode::Write::CODE, opcode::Readv::CODE, opcode::Writev::CODE];
    let others = [opcode::Fsync::CODE, opcode::Fallocate::CODE];
    if !transfers.iter().chain(&others).all(|code| probe.is_supported(*code)) {
        return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    // SAFETY: nobody else has the ring yet; the entry names no memory.
    let pushed = unsafe { ring.submission().push(&opcode::Nop::new().build().user_data(BELL)) };
    pushed.map_err(io::Error::other)?;
    while let Err(error) = ring.submit_and_wait(1) {
        if !is_passing(&error) {
            return Err(error);
        }
    }
    ring.completion().for_each(drop);
    Ok(ring)
}

/// Stops the process when dropped by a panic: the kernel may still write into buffers that unwinding would free.
struct NeverUnwind;

impl Drop for NeverUnwind {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts an operation before the kernel. Whether the caller has to submit it: the reaping thread does, while it is
    /// awake.
    fn push(&self, letter: Letter) -> bool {
        let mut table = self.table();
        table.waiting.push_back(letter);
        self.fill(&mut table) > 0 && !table.reaping
    }

    /// Puts waiting letters on the submission queue while there are slots. How many are to be submitted.
    fn fill(&self, table: &mut Table) -> usize {
        // SAFETY: the lock that guards the submission queue is held by whoever has the table.
        let mut queue = unsafe { self.ring.submission_shared() };
        while let Some(slot) = table.free.pop() {
            let Some(mut letter) = table.waiting.pop_front() else {
                table.free.push(slot);
                break;
            };
            let (entry, direct) = entry_for(&mut letter);
            // SAFETY: the buffer and the file that the entry names are owned by the slot until the answer.
            if unsafe { queue.push(&entry.user_data(slot as u64)) }.is_err() {
                table.waiting.push_front(letter);
                table.free.push(slot);
                break;
            }
            table.slots[slot] = Some((letter, direct));
        }
        queue.len()
    }

    /// Submits all that is on the queue; somebody else may have done so already.
    fn enter(&self) {
        loop {
            // SAFETY: no argument but numbers; what the entries point to is owned by the slots.
            match unsafe { self.ring.submitter().enter::<libc::sigset_t>(DEPTH as u32, 0, 0, None) } {
                Ok(_) => return,
                Err(error) if is_passing(&error) => std::thread::yield_now(),
                Err(error) => panic!("io_uring_enter refuses to submit: {error}"),
            }
        }
    }

    /// The thread's life: sleep until something is done, empty the slots, answer.
    fn reap_all(&self) {
        let _guard = NeverUnwind;
        let mut done = Vec::new();
        loop {
            // What was pushed while this thread was awake is submitted by the very call that waits. From here on, others
            // submit for themselves.
            let pushed = {
                let mut table = self.table();
                table.reaping = false;
                self.fill(&mut table)
            };
            // The exact number: where the kernel finds fewer (somebody else was quicker), it returns without a wait.
            // SAFETY: no argument but numbers; what the entries point to is owned by the slots.
            match unsafe { self.ring.submitter().enter::<libc::sigset_t>(pushed as u32, 1, GETEVENTS, None) } {
                Ok(_) => {}
                Err(error) if is_passing(&error) => {}
                Err(error) => panic!("io_uring_enter refuses to wait: {error}"),
            }
            let mut table = self.table();
            table.reaping = true;
            // SAFETY: this thread alone touches the completion queue.
            for entry in unsafe { self.ring.completion_shared() } {
                if entry.user_data() != BELL {
                    let slot = entry.user_data() as usize;
                    let (letter, direct) = table.slots[slot].take().expect("the kernel answers each operation once");
                    table.free.push(slot);
                    done.push((letter, direct, entry.result()));
                }
            }
            let end = table.closed && table.waiting.is_empty() && table.free.len() == DEPTH;
            drop(table);
            let mut again = false;
            for (letter, direct, result) in done.drain(..) {
                if let Some(rest) = settle(letter, direct, result) {
                    again = true;
                    // Submitted by this very thread, before it sleeps.
                    self.push(rest);
                }
            }
            if end && !again {
                return;
            }
        }
    }
}

/// A signal; or the kernel is short of memory for a moment: to be tried again.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
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
fn settle(mut letter: Letter, direct: bool, result: i32) -> Option<Letter> {
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
