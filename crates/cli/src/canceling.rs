//! Changes that the user can end with Ctrl-C: they consist of many sync tasks, and end between two of them, or run a program.
//!
//! ```text
//!   in this process                  Ctrl-C ─► ChangeMonitor::cancel
//!   in the process with the pool     Ctrl-C ─► Frame::Cancel ─► ChangeMonitor::cancel;  also if the client goes away
//! ```
//!
//! The first Ctrl-C cancels, and the command says how far it came. The second one ends the process at once; a pool that it has
//! open is as after a power cut.
#![allow(clippy::disallowed_methods, reason = "signals of a real process, in real time")]

use crate::call::{Call, Line, show};
use crate::failure::{Failure, INTERRUPTED};
use std::pin::pin;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use weir_admin::{Action, Change, ChangeMonitor, ChangeProgress};

/// Interval at which progress is shown, and a client that has gone away is noticed.
const LOOK: Duration = Duration::from_millis(200);

/// Whether an action checks from time to time whether it is canceled.
pub fn can_be_canceled(action: &Action) -> bool {
    let is_destroy = |change: &Change| matches!(change, Change::Destroy { .. });
    match action {
        Action::Change(change) | Action::ChangeWithoutMounts(change) => is_destroy(change),
        Action::Program(_) => true,
        _ => false,
    }
}

/// Ctrl-C of the user of this process.
pub struct Interrupts {
    signal: Signal,
    is_canceled: bool,
}

impl Interrupts {
    /// Catches the signal from now on. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// If the signal cannot be caught.
    pub fn new() -> Result<Self, Failure> {
        let caught = signal(SignalKind::interrupt());
        let signal = caught.map_err(|error| Failure::failed(format!("cannot wait for signals: {error}")))?;
        Ok(Interrupts { signal, is_canceled: false })
    }

    /// Returns at the first signal; the second one ends the process.
    pub async fn first(&mut self) {
        let _received = self.signal.recv().await;
        if std::mem::replace(&mut self.is_canceled, true) {
            std::process::exit(INTERRUPTED.into());
        }
    }
}

/// Progress of a change on the user's terminal.
pub struct ShownProgress<'a> {
    call: &'a Call,
    shown: Option<ChangeProgress>,
}

impl<'a> ShownProgress<'a> {
    /// Shows nothing yet.
    pub fn new(call: &'a Call) -> Self {
        ShownProgress { call, shown: None }
    }

    /// Shows the progress, if standard error is a terminal of this process's user.
    pub fn show(&mut self, progress: Option<ChangeProgress>) {
        let Some(progress) = progress.filter(|now| self.is_visible() && self.shown != Some(*now)) else { return };
        show(&Line::Err(format!("\r\x1b[K{} of {} destroyed", progress.done, progress.all).into_bytes()));
        self.shown = Some(progress);
    }

    /// Clears the line.
    pub fn end(&mut self) {
        if self.shown.take().is_some() {
            show(&Line::Err(b"\r\x1b[K".to_vec()));
        }
    }

    fn is_visible(&self) -> bool {
        self.call.process().is_none() && self.call.caller.terminal
    }
}

/// Carries out a change in this process until it ends. Ctrl-C, or a client that goes away, cancels it.
///
/// # Errors
/// If signals cannot be caught.
pub async fn watched<T>(call: &Call, monitor: &ChangeMonitor, work: impl Future<Output = T>) -> Result<T, Failure> {
    let mut work = pin!(work);
    // Signals of a process that serves pools are its own.
    let mut interrupts = if call.process().is_none() { Some(Interrupts::new()?) } else { None };
    let mut shown = ShownProgress::new(call);
    loop {
        let interrupted = async {
            match &mut interrupts {
                Some(interrupts) => interrupts.first().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            done = &mut work => {
                shown.end();
                return Ok(done);
            }
            () = interrupted => monitor.cancel(),
            () = tokio::time::sleep(LOOK) => {
                if call.is_gone() {
                    monitor.cancel();
                }
                shown.show(monitor.progress());
            }
        }
    }
}
