//! Operations that one turn of a task starts go to the kernel together.
//!
//! ```text
//!   poll of a task ─► disk.submit ─┐
//!                     disk.submit ─┼─► submission queue        the turn ends ─► one io_uring_enter for all of them
//!                     disk.submit ─┘
//! ```
//!
//! A column of RAID-Z, a block fetched ahead, the answer to a client who asked for eight things at once: a turn of a task
//! seldom starts one operation alone. Each call into the kernel costs a doorbell at the device (under a hypervisor, an exit of
//! the virtual machine), and the kernel joins doorbells only within one call. So the thread that polls a task keeps the
//! call back until the turn is over, or until the ring finds that enough waits for it: a long turn must not keep the disks
//! idle.
//!
//! Turns may nest (somebody drives a future to its end within a task): the inner one's operations are not kept back for
//! the outer one, which may be waiting for them.

use super::ring::Ring;
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

/// What the turn that runs on a thread has kept back.
#[derive(Default)]
struct Turn {
    depth: usize,
    ring: Option<Weak<Ring>>,
}

thread_local! {
    static TURN: RefCell<Turn> = RefCell::default();
}

/// Whether the turn that runs on this thread takes care that what was pushed on `ring` is submitted. Where it does not
/// (there is none, or it is busy with another ring), the caller has to.
pub(super) fn keeps(ring: &Arc<Ring>) -> bool {
    TURN.with_borrow_mut(|turn| {
        let mine = turn.depth > 0;
        mine && std::ptr::eq(turn.ring.get_or_insert_with(|| Arc::downgrade(ring)).as_ptr(), Arc::as_ptr(ring))
    })
}

/// Submits what the turn that runs on this thread has kept back: the thread is about to wait.
pub(super) fn release() {
    let ring = TURN.with_borrow_mut(|turn| turn.ring.take());
    // A ring that is gone has submitted what it held before it went.
    if let Some(ring) = ring.and_then(|ring| ring.upgrade()) {
        ring.flush();
    }
}

/// A turn of a task on this thread; its end submits.
struct Guard;

impl Guard {
    fn begin() -> Guard {
        TURN.with_borrow_mut(|turn| turn.depth += 1);
        Guard
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        TURN.with_borrow_mut(|turn| turn.depth -= 1);
        release();
    }
}

/// A task whose turns submit what they start together.
pub(crate) struct Gathered<F>(pub F);

impl<F: Future + Unpin> Future for Gathered<F> {
    type Output = F::Output;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let _turn = Guard::begin();
        Pin::new(&mut self.0).poll(cx)
    }
}
