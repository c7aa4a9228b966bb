//! Disk I/O by io_uring: callers submit, one thread reaps completions.
//!
//! ```text
//!   any thread: submit ─► table (lock: a slot, an entry on the submission queue) ─► io_uring_enter, outside the lock,
//!                           │ no slot free: wait in the overflow queue                if the reaping thread sleeps,
//!                           │                                                         or at the end of the task's poll
//!   weir-ring thread:  io_uring_enter (submits queued operations, sleeps until a completion) ─► slots freed,
//!                      overflow queued ─► callbacks
//! ```
//!
//! The requesting thread submits its operation itself, without waking another thread. Only while the reaping thread
//! is awake does it submit for the others, with the same call by which it waits: the busier the disks, the fewer
//! calls. Rejected: one thread that owns the ring and receives operations through a queue. That permits the kernel's
//! cheapest completion mode and larger batches, but at random reads of depth 32 the extra wake-up per operation costs
//! a fifth of the rate; busy-waiting for the next operation is slower still on two cores.
//!
//! A thread in `block_on` uses its own ring and waits there ([`thread_local_ring`]).
//!
//! Invariants: the submission queue is accessed only under the table's lock, the completion queue only by the reaping
//! thread. At most [`DEPTH`] operations are submitted to the kernel, half the size of the completion queue, so that
//! no completion is lost. A slot owns an operation's memory and open file until the kernel has completed it, even if
//! the waiting future is dropped: so the reaping thread must not unwind past the table, and a panic there aborts the
//! process.
//!
//! When a thread exits, the kernel cancels the operations that it submitted and that have not started (ECANCELED):
//! the reaping thread submits them again. A permanent failure of `io_uring_enter` violates an invariant of this file
//! and panics.

#![allow(unsafe_code, reason = "submission entries carry raw pointers into buffers that the slots own")]

pub(crate) mod thread_local_ring;
mod uring_op;

use super::submit_batch::{self, SubmissionQueue};
use super::target::Target;
use io_uring::{IoUring, Probe, opcode};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use uring_op::{DEPTH, Slots, UringOp, complete};
use weir_machine::disk::Io;

/// User data of the completion that only wakes the reaping thread.
const WAKE_USER_DATA: u64 = u64::MAX;
/// `IORING_ENTER_GETEVENTS` of `<linux/io_uring.h>`.
const GETEVENTS: u32 = 1;

/// State of the ring under its lock.
struct Table {
    slots: Slots,
    /// The reaping thread is awake and will check the submission queue before it sleeps.
    reaping: bool,
    closed: bool,
}

/// How an operation that was added to the ring will be submitted.
enum Pushed {
    /// No action: it waits for a slot, or the reaping thread is awake and submits it.
    Handled,
    /// Queued; the caller submits it now or at the end of the poll.
    Queued,
    /// The caller must submit it now.
    Due,
}

struct Shared {
    ring: IoUring,
    table: Mutex<Table>,
}

/// A shared ring. When it is dropped, its thread completes the remaining operations and exits.
pub struct Ring(Arc<Shared>);

impl Ring {
    /// Opens a ring and starts its reaping thread.
    ///
    /// # Errors
    /// If the kernel does not support or permit io_uring.
    pub fn start() -> io::Result<Ring> {
        let table = Table { slots: Slots::new(), reaping: false, closed: false };
        let shared = Arc::new(Shared { ring: open_ring()?, table: Mutex::new(table) });
        let reaper = shared.clone();
        std::thread::Builder::new().name("weir-ring".into()).spawn(move || reaper.reap_all())?;
        Ok(Ring(shared))
    }

    /// Submits an operation to the kernel, now or at the end of the current poll on this thread; or queues it until a
    /// slot is free.
    pub fn submit(self: &Arc<Self>, target: Arc<Target>, io: Io) {
        let Some(op) = thread_local_ring::submit(UringOp::new(target, io)) else { return };
        match self.0.push(op) {
            Pushed::Due => self.0.enter(),
            Pushed::Queued if !submit_batch::defers(self) => self.0.enter(),
            Pushed::Queued | Pushed::Handled => {}
        }
    }
}

impl SubmissionQueue for Ring {
    fn flush(&self) {
        let table = self.0.table();
        // SAFETY: the lock that guards the submission queue is held.
        let handled = table.reaping || unsafe { self.0.ring.submission_shared() }.is_empty();
        drop(table);
        if !handled {
            self.0.enter();
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.0.table().closed = true;
        let wake = opcode::Nop::new().build().user_data(WAKE_USER_DATA);
        loop {
            let table = self.0.table();
            // SAFETY: the lock that guards the submission queue is held; the entry refers to no memory.
            let pushed = unsafe { self.0.ring.submission_shared().push(&wake) }.is_ok();
            drop(table);
            self.0.enter();
            if pushed {
                return;
            }
        }
    }
}

/// Opens a ring and verifies that it supports the operations needed and that all three io_uring system calls are
/// permitted: a seccomp filter can forbid each of them separately.
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
    // SAFETY: this thread has exclusive access to the ring; the entry refers to no memory.
    let pushed = unsafe { ring.submission().push(&opcode::Nop::new().build().user_data(WAKE_USER_DATA)) };
    pushed.map_err(io::Error::other)?;
    while let Err(error) = ring.submit_and_wait(1) {
        if !is_transient(&error) {
            return Err(error);
        }
    }
    ring.completion().for_each(drop);
    Ok(ring)
}

/// Aborts the process when dropped by a panic, since the kernel may still write into buffers that unwinding would
/// free. The normal path forgets it.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an operation.
    fn push(&self, op: UringOp) -> Pushed {
        let mut table = self.table();
        table.slots.push(op);
        match self.fill(&mut table) {
            0 => Pushed::Handled,
            queued if table.slots.are_due(queued) => Pushed::Due,
            _ if table.reaping => Pushed::Handled,
            _ => Pushed::Queued,
        }
    }

    /// Moves waiting operations to the submission queue while there are free slots. Returns the number of entries to
    /// submit.
    fn fill(&self, table: &mut Table) -> usize {
        // SAFETY: the lock that guards the submission queue is held by the caller, who has the table.
        let mut queue = unsafe { self.ring.submission_shared() };
        table.slots.fill(&mut queue);
        queue.len()
    }

    /// Submits all queued entries; another thread may already have submitted them.
    fn enter(&self) {
        loop {
            // SAFETY: only integer arguments; the slots own the memory that the entries refer to.
            match unsafe { self.ring.submitter().enter::<libc::sigset_t>(DEPTH as u32, 0, 0, None) } {
                Ok(_) => return,
                Err(error) if is_transient(&error) => std::thread::yield_now(),
                Err(error) => panic!("io_uring_enter failed to submit: {error}"),
            }
        }
    }

    /// Main loop of the reaping thread: wait for completions, free their slots, run the callbacks.
    fn reap_all(&self) {
        let guard = AbortOnUnwind;
        let mut done = Vec::new();
        loop {
            // The call that waits also submits the entries pushed while this thread was awake. From here on, other
            // threads submit their own.
            let pushed = {
                let mut table = self.table();
                table.reaping = false;
                self.fill(&mut table)
            };
            // Pass the exact number: if the queue has fewer entries because another thread was faster, the call
            // returns without waiting.
            // SAFETY: only integer arguments; the slots own the memory that the entries refer to.
            match unsafe { self.ring.submitter().enter::<libc::sigset_t>(pushed as u32, 1, GETEVENTS, None) } {
                Ok(_) => {}
                Err(error) if is_transient(&error) => {}
                Err(error) => panic!("io_uring_enter failed to wait: {error}"),
            }
            let mut table = self.table();
            table.reaping = true;
            // SAFETY: only this thread accesses the completion queue.
            for entry in unsafe { self.ring.completion_shared() } {
                if entry.user_data() != WAKE_USER_DATA {
                    done.push(table.slots.take(entry.user_data(), entry.result()));
                }
            }
            let end = table.closed && table.slots.is_empty();
            drop(table);
            let mut again = false;
            for completion in done.drain(..) {
                if let Some(rest) = complete(completion) {
                    again = true;
                    // This thread submits it before it sleeps.
                    self.push(rest);
                }
            }
            if end && !again {
                return std::mem::forget(guard);
            }
        }
    }
}

/// Whether to retry after an error: a signal, or a temporary shortage of memory.
fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}
