//! Batched submission: operations that a task starts in one poll are submitted to the kernel together.
//!
//! ```text
//!   poll of a task ─► disk.submit ─┐
//!                     disk.submit ─┼─► submission queue        end of poll ─► one io_uring_enter for all of them
//!                     disk.submit ─┘
//! ```
//!
//! A poll of a task often starts several operations: RAID-Z columns, prefetch, several requests of a client. Each
//! io_uring_enter call costs a doorbell write to the device (in a virtual machine, a VM exit), and the kernel
//! combines doorbells only within one call. So the thread that polls a task defers the call until the poll returns,
//! or until enough operations are queued: a long poll must not leave the disks idle.
//!
//! Polls may nest (`block_on` within a task): the operations of the inner poll are not deferred to the end of the
//! outer one, which may be waiting for them.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

/// A queue of operations whose submission to the kernel can be deferred.
pub(super) trait SubmissionQueue {
    /// Submits the queued operations, unless another thread has submitted or will submit them.
    fn flush(&self);
}

/// Submissions deferred by the polls that run on a thread.
#[derive(Default)]
struct Deferred {
    depth: usize,
    queue: Option<Weak<dyn SubmissionQueue>>,
}

thread_local! {
    static DEFERRED: RefCell<Deferred> = RefCell::default();
}

/// Defers the submission of operations pushed on `queue` to the end of the current poll. Returns false if that is not
/// possible (no poll is running, or it uses another queue); then the caller must submit.
pub(super) fn defers<Q: SubmissionQueue + 'static>(queue: &Arc<Q>) -> bool {
    DEFERRED.with_borrow_mut(|deferred| {
        if deferred.depth == 0 {
            return false;
        }
        let of_poll = deferred.queue.get_or_insert_with(|| Arc::downgrade(queue) as Weak<dyn SubmissionQueue>);
        std::ptr::addr_eq(of_poll.as_ptr(), Arc::as_ptr(queue))
    })
}

/// Submits the deferred operations of this thread, before it blocks or at the end of a poll.
pub(super) fn flush_deferred() {
    let queue = DEFERRED.with_borrow_mut(|deferred| deferred.queue.take());
    // A dropped ring has submitted its operations.
    if let Some(queue) = queue.and_then(|queue| queue.upgrade()) {
        queue.flush();
    }
}

/// Guard for a poll on this thread; submits deferred operations when dropped.
struct PollGuard;

impl PollGuard {
    fn begin() -> PollGuard {
        DEFERRED.with_borrow_mut(|deferred| deferred.depth += 1);
        PollGuard
    }
}

impl Drop for PollGuard {
    fn drop(&mut self) {
        DEFERRED.with_borrow_mut(|deferred| deferred.depth -= 1);
        flush_deferred();
    }
}

/// A task whose polls batch the operations that they start.
pub(crate) struct Batched<F>(pub F);

impl<F: Future + Unpin> Future for Batched<F> {
    type Output = F::Output;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let _guard = PollGuard::begin();
        Pin::new(&mut self.0).poll(cx)
    }
}
