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
//! is awake, it submits for the others with the same call by which it waits: the busier the disks, the fewer calls. The
//! other way, one thread that owns the ring and takes letters from an inbox, was built first: it allows the kernel's
//! cheapest completion mode and larger batches, but at random reads of depth 32 the extra wake-up of each letter cost a
//! fifth of the rate; lingering awake for the next letter made it worse on two cores, not better.
//!
//! A thread that drives one future to its end ([`own`]) shares nothing: it submits to a ring of its own and waits there.
//!
//! Invariants: the submission queue is touched only under the table's lock, the completion queue only by the reaping
//! thread. At most [`DEPTH`] operations are with the kernel, half of what the completion queue holds, so that no
//! completion is ever lost. Memory and its open file live in their slot until the kernel has answered, whatever
//! happens to those who wait: so the reaping thread never unwinds past the table; a panic there aborts the process.
//!
//! When a thread ends, the kernel cancels what that thread had submitted and not begun (ECANCELED): the reaping thread
//! submits it again. An `io_uring_enter` that fails for good is a broken invariant of this file, and stops.

#![allow(unsafe_code, reason = "submission entries carry raw pointers into buffers that the slots own")]

mod letter;
pub(crate) mod own;

use super::gather;
use super::target::Target;
use crate::disk::Io;
use io_uring::{IoUring, Probe, opcode};
use letter::{DEPTH, Letter, Slots, settle};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Marks the completion that only wakes whoever reaps.
const BELL: u64 = u64::MAX;
/// `IORING_ENTER_GETEVENTS` of `<linux/io_uring.h>`.
const GETEVENTS: u32 = 1;

/// What is under way and what waits.
struct Table {
    slots: Slots,
    /// The reaping thread is awake, and will look at the submission queue before it sleeps.
    reaping: bool,
    closed: bool,
}

/// What has to be done for an operation that was put before the kernel.
enum Pushed {
    /// Nothing: it waits for a slot, or the reaping thread is awake and submits it.
    Seen,
    /// It waits to be submitted.
    Queued,
    /// It has to be submitted now.
    Due,
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
        let table = Table { slots: Slots::new(), reaping: false, closed: false };
        let shared = Arc::new(Shared { ring: open_ring()?, table: Mutex::new(table) });
        let theirs = shared.clone();
        std::thread::Builder::new().name("weir-ring".into()).spawn(move || theirs.reap_all())?;
        Ok(Ring(shared))
    }

    /// Hands an operation to the kernel, now or at the end of the task's turn that runs on this thread; or lets it wait
    /// for a slot.
    pub fn submit(self: &Arc<Self>, target: Arc<Target>, io: Io) {
        let Some(letter) = own::submit(Letter::new(target, io)) else { return };
        match self.0.push(letter) {
            Pushed::Due => self.0.enter(),
            Pushed::Queued if !gather::keeps(self) => self.0.enter(),
            Pushed::Queued | Pushed::Seen => {}
        }
    }

    /// Submits what a turn kept back, unless somebody has or will.
    pub fn flush(&self) {
        let table = self.0.table();
        // SAFETY: the lock that guards the submission queue is held.
        let seen = table.reaping || unsafe { self.0.ring.submission_shared() }.is_empty();
        drop(table);
        if !seen {
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

/// Stops the process when dropped, by a panic: the kernel may still write into buffers that unwinding would free. It is
/// forgotten where all went well.
struct NeverUnwind;

impl Drop for NeverUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts an operation before the kernel.
    fn push(&self, letter: Letter) -> Pushed {
        let mut table = self.table();
        table.slots.push(letter);
        match self.fill(&mut table) {
            0 => Pushed::Seen,
            queued if table.slots.are_due(queued) => Pushed::Due,
            _ if table.reaping => Pushed::Seen,
            _ => Pushed::Queued,
        }
    }

    /// Puts waiting letters on the submission queue while there are slots. How many are to be submitted.
    fn fill(&self, table: &mut Table) -> usize {
        // SAFETY: the lock that guards the submission queue is held by whoever has the table.
        let mut queue = unsafe { self.ring.submission_shared() };
        table.slots.fill(&mut queue);
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
        let guard = NeverUnwind;
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
                    done.push(table.slots.take(entry.user_data(), entry.result()));
                }
            }
            let end = table.closed && table.slots.is_empty();
            drop(table);
            let mut again = false;
            for answer in done.drain(..) {
                if let Some(rest) = settle(answer) {
                    again = true;
                    // Submitted by this very thread, before it sleeps.
                    self.push(rest);
                }
            }
            if end && !again {
                return std::mem::forget(guard);
            }
        }
    }
}

/// A signal; or the kernel is short of memory for a moment: to be tried again.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}
