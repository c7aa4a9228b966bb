//! Suspension of a pool's writes after a failure that redundancy does not cover (`zio_suspend`).
//!
//! ```text
//!   write fails on every device ─► failmode wait, continue: suspended ── resume ─► the same write again
//!                               └► failmode panic: the error, which fails the txg
//! ```
//!
//! The syncer's writes wait here, so a txg that could not be written is completed when the device or its room is back, and
//! nothing that a client was promised is lost. New transactions wait too; with `failmode=continue` they are refused.
//!
//! A flush that fails is not simply repeated: the device may have dropped earlier writes, which a later flush would not show.
//! The writes since the last successful flush are kept in memory, at most 128 MiB ([`crate::vdev::Tree::keep_unstable`]).
//! When the pool is resumed, they are written again before the next flush ([`crate::vdev::Tree::repeat_unstable`]).
//!
//! Source: OpenZFS `module/zfs/zio.c` (`zio_suspend`, `zio_resume`).

use futures_channel::oneshot;
use std::sync::Arc;
use weir_machine::lock::{Mutex, MutexGuard, order};

/// Reaction to a failure that redundancy does not cover (pool property `failmode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailMode {
    /// Writes wait until the pool is resumed.
    Wait,
    /// Writes in progress wait; new ones are refused.
    Continue,
    /// The write fails, and with it the txg: no later txg is written. The process decides how to end.
    #[default]
    Panic,
}

impl FailMode {
    /// Decodes the value of the pool property `failmode` (`ZIO_FAILURE_MODE_*`); an unknown value is [`FailMode::Wait`].
    pub fn of_property(value: u64) -> Self {
        match value {
            1 => FailMode::Continue,
            2 => FailMode::Panic,
            _ => FailMode::Wait,
        }
    }
}

#[derive(Default)]
struct State {
    mode: FailMode,
    why: Option<Arc<str>>,
    waiting: Vec<oneshot::Sender<bool>>,
    is_closed: bool,
}

/// Whether a pool's writes are suspended, and who waits. A new one has [`FailMode::Panic`].
#[derive(Default)]
pub struct Suspension(Mutex<State, { order::SUSPENSION }>);

impl Suspension {
    /// Locks the state; the lock is held for a few instructions, never across an await.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// The mode.
    pub fn mode(&self) -> FailMode {
        self.state().mode
    }

    /// Sets the mode for later failures.
    pub fn set_mode(&self, mode: FailMode) {
        self.state().mode = mode;
    }

    /// Why writes are suspended; `None` if they are not.
    pub fn reason(&self) -> Option<Arc<str>> {
        self.state().why.clone()
    }

    /// Why new transactions are refused, if they are.
    pub fn refusal(&self) -> Option<Arc<str>> {
        let state = self.state();
        state.why.clone().filter(|_| state.mode == FailMode::Continue)
    }

    /// Suspends writes because of a failure, and waits until they are resumed. Returns whether the caller should try again.
    pub async fn wait(&self, why: &(dyn std::fmt::Display + Sync)) -> bool {
        let waiting = {
            let mut state = self.state();
            if state.mode == FailMode::Panic || state.is_closed {
                return false;
            }
            state.why.get_or_insert_with(|| why.to_string().into());
            let (sender, waiting) = oneshot::channel();
            state.waiting.push(sender);
            waiting
        };
        waiting.await.unwrap_or(false)
    }

    /// Waits until writes are not suspended, or the pool is being closed.
    pub async fn wait_for_resume(&self) {
        let waiting = {
            let mut state = self.state();
            if state.why.is_none() || state.is_closed {
                return;
            }
            let (sender, waiting) = oneshot::channel();
            state.waiting.push(sender);
            waiting
        };
        let _resumed = waiting.await;
    }

    /// Resumes writes: those that failed are repeated. Returns whether they were suspended.
    pub fn resume(&self) -> bool {
        self.wake(true)
    }

    /// Ends the suspension for good: the writes that failed return their errors, and so do all later ones. For closing a
    /// pool whose devices do not come back.
    pub fn close(&self) {
        self.state().is_closed = true;
        self.wake(false);
    }

    fn wake(&self, again: bool) -> bool {
        let (was_suspended, waiting) = {
            let mut state = self.state();
            (state.why.take().is_some(), std::mem::take(&mut state.waiting))
        };
        assert!(was_suspended || waiting.is_empty(), "a write waits although the pool is not suspended");
        for waiter in waiting {
            // The waiter may have been dropped.
            let _ = waiter.send(again);
        }
        was_suspended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn a_failed_write_waits_until_the_pool_is_resumed() {
        let suspension = Suspension::default();
        assert_eq!(suspension.wait(&"no room").now_or_never(), Some(false), "failmode=panic");
        suspension.set_mode(FailMode::Wait);
        let mut first = Box::pin(suspension.wait(&"no room"));
        let mut second = Box::pin(suspension.wait(&"another error"));
        assert!((&mut first).now_or_never().is_none() && (&mut second).now_or_never().is_none());
        assert_eq!((suspension.reason().as_deref(), suspension.refusal()), (Some("no room"), None));
        let mut transaction = Box::pin(suspension.wait_for_resume());
        assert!((&mut transaction).now_or_never().is_none());
        assert!(suspension.resume() && !suspension.resume());
        assert_eq!(
            (first.now_or_never(), second.now_or_never(), transaction.now_or_never()),
            (Some(true), Some(true), Some(()))
        );
        suspension.set_mode(FailMode::Continue);
        let mut third = Box::pin(suspension.wait(&"no room"));
        assert!((&mut third).now_or_never().is_none());
        assert_eq!(suspension.refusal().as_deref(), Some("no room"));
        suspension.close();
        assert_eq!((third.now_or_never(), suspension.wait(&"again").now_or_never()), (Some(false), Some(false)));
    }
}
