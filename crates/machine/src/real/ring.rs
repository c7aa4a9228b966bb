//! Disks driven by io_uring: one ring, one thread that submits and reaps.
//!
//! ```text
//!   any thread: submit ─► inbox ─(bell, only when the thread sleeps)─► weir-ring thread
//!                                                                        │ overflow queue, at most DEPTH in flight
//!                                                                        ▼
//!                                       kernel: one io_uring_enter submits the batch and waits for the first answer
//! ```
//!
//! One thread does both because the kernel finishes an operation in the context of the thread that submitted it: with
//! callers submitting, every completion would interrupt a thread that is busy checking blocks. Here the rings are
//! touched by one thread only (`SINGLE_ISSUER`, `DEFER_TASKRUN` where the kernel has them), without a lock.
//!
//! The bell is an eventfd on which the ring keeps one read. The thread says that it is about to sleep, looks into the
//! inbox once more, then sleeps; a caller fills the inbox, then asks whether the thread sleeps. Whichever comes last
//! sees the other, so no letter is left lying. While the thread is awake submitting costs no system call, and letters
//! that pile up meanwhile become one batch.
//!
//! Invariants: an operation's buffer and open file live in its slot until the kernel has answered, whatever happens to
//! those who wait. So the thread never unwinds past its slots: a panic here aborts the process.

#![allow(unsafe_code, reason = "submission entries carry raw pointers into buffers that the slots own")]

use super::target::{PUNCH_HOLE, Target};
use crate::disk::{DiskError, Io, Op};
use io_uring::{IoUring, Probe, opcode, squeue, types};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

/// The most operations that the kernel holds at once; the rest wait their turn in user space.
const DEPTH: usize = 256;
/// Marks the bell's own read among the completions.
const BELL: u64 = u64::MAX;
/// The most bytes in one submission: the kernel takes no more than 2 GiB.
const MAX_TRANSFER: usize = 1 << 30;

struct Letter {
    target: Arc<Target>,
    io: Io,
    /// Bytes transferred by earlier submissions of this operation.
    done: usize,
}

#[derive(Default)]
struct Inbox {
    letters: Vec<Letter>,
    closed: bool,
}

struct Shared {
    inbox: Mutex<Inbox>,
    sleeping: AtomicBool,
    bell: File,
}

impl Shared {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring_bell(&self) {
        // Pairs with the fence before the thread's last look: either it sees the letter or this sees it asleep.
        fence(Ordering::SeqCst);
        if self.sleeping.swap(false, Ordering::SeqCst) {
            // An eventfd refuses a write only when its count is full: then the bell has been rung already.
            let _ = (&self.bell).write(&1u64.to_ne_bytes());
        }
    }
}

/// The ring. When the last handle goes, its thread finishes what it holds and ends.
pub struct Ring(Arc<Shared>);

impl Ring {
    /// Starts the ring's thread, or says why the kernel gives no ring.
    pub fn start() -> io::Result<Ring> {
        // SAFETY: a system call; the descriptor is checked and then owned by one file.
        let bell = unsafe {
            match libc::eventfd(0, libc::EFD_CLOEXEC) {
                -1 => return Err(io::Error::last_os_error()),
                fd => File::from_raw_fd(fd),
            }
        };
        let shared = Arc::new(Shared { inbox: Mutex::default(), sleeping: AtomicBool::new(false), bell });
        let (tell, told) = mpsc::sync_channel(1);
        let theirs = shared.clone();
        std::thread::Builder::new().name("weir-ring".into()).spawn(move || match open_ring() {
            Ok(ring) => {
                let _ = tell.send(Ok(()));
                Driver::new(ring, theirs).run();
            }
            Err(error) => {
                let _ = tell.send(Err(error));
            }
        })?;
        told.recv().unwrap_or_else(|_| Err(io::Error::from_raw_os_error(libc::EIO)))?;
        Ok(Ring(shared))
    }

    /// Hands an operation over.
    pub fn submit(&self, target: Arc<Target>, io: Io) {
        let mut inbox = self.0.inbox();
        if inbox.closed {
            drop(inbox);
            let op = io.op;
            return io.fail(DiskError::Refused { op, why: "the ring has failed" });
        }
        inbox.letters.push(Letter { target, io, done: 0 });
        drop(inbox);
        self.0.ring_bell();
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.0.inbox().closed = true;
        self.0.ring_bell();
    }
}

/// Opens a ring with the cheapest completion mode that this kernel has, and makes sure that it knows our operations.
fn open_ring() -> io::Result<IoUring> {
    let entries = DEPTH as u32;
    let ring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_cqsize(2 * entries)
        .build(entries)
        .or_else(|_| IoUring::builder().setup_cqsize(2 * entries).build(entries))?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let needed = [opcode::Read::CODE, opcode::Write::CODE, opcode::Fsync::CODE, opcode::Fallocate::CODE];
    if needed.iter().all(|code| probe.is_supported(*code)) {
        Ok(ring)
    } else {
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }
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

struct Driver {
    ring: IoUring,
    shared: Arc<Shared>,
    /// What the kernel holds, by the number that its completion carries, and whether it goes around the page cache.
    slots: Vec<Option<(Letter, bool)>>,
    free: Vec<usize>,
    waiting: VecDeque<Letter>,
    bell_armed: bool,
    bell_count: Box<u64>,
}

impl Driver {
    fn new(ring: IoUring, shared: Arc<Shared>) -> Self {
        Driver {
            ring,
            shared,
            slots: (0..DEPTH).map(|_| None).collect(),
            free: (0..DEPTH).rev().collect(),
            waiting: VecDeque::new(),
            bell_armed: false,
            bell_count: Box::default(),
        }
    }

    fn run(mut self) {
        let guard = NeverUnwind;
        loop {
            let closed = self.collect();
            self.fill();
            let idle = self.free.len() == DEPTH && self.waiting.is_empty();
            if closed && idle {
                break;
            }
            if let Err(error) = self.enter() {
                tracing::error!(%error, "the ring failed");
                // Nothing that the kernel may still hold is ever freed.
                self.shared.inbox().closed = true;
                self.collect();
                let slots = std::mem::take(&mut self.slots);
                std::mem::forget(slots);
                self.waiting.drain(..).for_each(|letter| letter.io.fail_errno(libc::EIO));
                std::mem::forget(self);
                break;
            }
            self.reap();
        }
        drop(guard);
    }

    /// Moves the inbox into the queue; whether the ring is to end.
    fn collect(&mut self) -> bool {
        let mut inbox = self.shared.inbox();
        self.waiting.extend(inbox.letters.drain(..));
        inbox.closed
    }

    /// Puts waiting letters on the submission queue while there are slots.
    fn fill(&mut self) {
        while let Some(slot) = self.free.pop() {
            let Some(mut letter) = self.waiting.pop_front() else {
                self.free.push(slot);
                return;
            };
            let (entry, direct) = entry_for(&mut letter);
            // SAFETY: the buffer and the file that the entry names are owned by the slot until the answer.
            let pushed = unsafe { self.ring.submission().push(&entry.user_data(slot as u64)) };
            if pushed.is_err() {
                self.waiting.push_front(letter);
                self.free.push(slot);
                return;
            }
            self.slots[slot] = Some((letter, direct));
        }
    }

    /// Submits the batch and waits for the first completion, unless there is more to collect.
    fn enter(&mut self) -> io::Result<()> {
        if !self.bell_armed {
            let count: *mut u64 = &mut *self.bell_count;
            let fd = types::Fd(self.shared.bell.as_raw_fd());
            let entry = opcode::Read::new(fd, count.cast(), 8).build().user_data(BELL);
            // SAFETY: the count lives as long as the ring, and is not looked at while the read is under way.
            self.bell_armed = unsafe { self.ring.submission().push(&entry) }.is_ok();
        }
        self.shared.sleeping.store(self.bell_armed, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let more = {
            let inbox = self.shared.inbox();
            !inbox.letters.is_empty() || inbox.closed && self.free.len() == DEPTH
        };
        let wait = usize::from(self.bell_armed && !more);
        let result = self.ring.submit_and_wait(wait);
        self.shared.sleeping.store(false, Ordering::SeqCst);
        match result {
            Ok(_) => Ok(()),
            // A signal; or the kernel is short of memory or wants its completions reaped first.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn reap(&mut self) {
        // Only entries that the kernel has finished are taken out of their slots.
        let mut finished: smallvec::SmallVec<[(u64, i32); 32]> = smallvec::SmallVec::new();
        finished.extend(self.ring.completion().map(|entry| (entry.user_data(), entry.result())));
        for (tag, result) in finished {
            if tag == BELL {
                self.bell_armed = false;
                continue;
            }
            let slot = tag as usize;
            let (letter, direct) = self.slots[slot].take().expect("the kernel answers each operation once");
            self.free.push(slot);
            if let Some(rest) = settle(letter, direct, result) {
                self.waiting.push_front(rest);
            }
        }
    }
}

/// The submission for (the rest of) an operation, and whether it goes around the page cache.
fn entry_for(letter: &mut Letter) -> (squeue::Entry, bool) {
    let Letter { target, io, done } = letter;
    let plain = types::Fd(target.plain_fd());
    match io.op {
        Op::Flush => (opcode::Fsync::new(plain).flags(types::FsyncFlags::DATASYNC).build(), false),
        Op::Discard => (opcode::Fallocate::new(plain, io.len).offset(io.offset).mode(PUNCH_HOLE).build(), false),
        Op::Read | Op::Write => {
            let at = io.offset + *done as u64;
            let rest = &mut io.buf.as_mut()[*done..];
            let count = rest.len().min(MAX_TRANSFER);
            let (file, direct) = target.file(at, &rest[..count]);
            let (fd, memory) = (types::Fd(file.as_raw_fd()), rest.as_mut_ptr());
            let entry = if io.op == Op::Read {
                opcode::Read::new(fd, memory, count as u32).offset(at).build()
            } else {
                opcode::Write::new(fd, memory, count as u32).offset(at).build()
            };
            (entry, direct)
        }
    }
}

/// Answers an operation, or gives back what has to be submitted again.
fn settle(mut letter: Letter, direct: bool, result: i32) -> Option<Letter> {
    let transfer = matches!(letter.io.op, Op::Read | Op::Write);
    match result {
        count if count >= 0 && transfer => {
            letter.done += count as usize;
            let Io { op, offset, len, .. } = letter.io;
            if letter.done as u64 >= len {
                letter.io.succeed();
            } else if count == 0 {
                letter.io.fail(DiskError::Short { op, offset, len, done: letter.done as u64 });
            } else {
                return Some(letter);
            }
        }
        count if count >= 0 => letter.io.succeed(),
        error => match -error {
            libc::EINTR | libc::EAGAIN => return Some(letter),
            libc::EINVAL if direct => {
                letter.target.give_up_direct();
                return Some(letter);
            }
            errno => letter.io.fail_errno(errno),
        },
    }
    None
}
