//! Progress of a benchmark on the terminal, and Ctrl-C.

use super::server::Server;
use crate::failure::Failure;
use crate::mount::StopSignal;
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weir_lab::session::Watcher;

/// Shows steps with the time that they take, and stops at Ctrl-C.
pub struct Terminal<'a> {
    bar: ProgressBar,
    total: usize,
    step: usize,
    seconds: Option<f64>,
    stopped: Arc<AtomicBool>,
    server: &'a mut Server,
}

impl<'a> Terminal<'a> {
    /// Progress of `rounds` of `steps` on `targets`. From now on signals stop the benchmark instead of the process.
    ///
    /// # Errors
    /// If signals cannot be caught.
    pub fn new(rounds: usize, steps: usize, targets: usize, server: &'a mut Server) -> Result<Self, Failure> {
        let bar = ProgressBar::new(1000);
        let style = ProgressStyle::with_template("{bar:24} {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let stopped = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stopped);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::failed(format!("weir bench: {error}")))?;
        let mut signal = runtime.block_on(async { StopSignal::new() })?;
        #[allow(clippy::disallowed_methods, reason = "the benchmark runs on this thread, fio in a process")]
        std::thread::spawn(move || {
            runtime.block_on(signal.wait());
            flag.store(true, Ordering::SeqCst);
        });
        Ok(Self { bar, total: rounds * steps * targets, step: 0, seconds: None, stopped, server })
    }

    /// Sets the number of measurements, if it was not known from the beginning.
    pub fn expect(&mut self, measurements: usize) {
        self.total = measurements;
    }

    /// Shows work before the measurements, with the share that is done and the seconds that are left. `false` if the user stopped it.
    pub fn shows(&mut self, what: &str, share: f64, seconds_left: Option<f64>) -> bool {
        self.bar.set_position((share * 1000.0).clamp(0.0, 1000.0) as u64);
        self.bar.set_message(format!("{what}: {}", left(share, seconds_left)));
        !self.is_cancelled()
    }

    /// Removes the bar.
    pub fn end(&self) {
        self.bar.finish_and_clear();
        if self.stopped.load(Ordering::SeqCst) && self.step == 0 {
            eprintln!("stopped before the first round: nothing was measured");
        } else if self.stopped.load(Ordering::SeqCst) {
            eprintln!("stopped; rounds that were finished are kept, 'weir bench resume DIR' measures the rest");
        }
    }
}

/// Share that is done, and time that is left.
fn left(share: f64, seconds_left: Option<f64>) -> String {
    let percent = (share * 100.0).clamp(0.0, 100.0) as u64;
    match seconds_left.map(|seconds| seconds.ceil() as u64) {
        Some(seconds) if seconds < 120 => format!("{percent} % done, {seconds} s left"),
        Some(seconds) if seconds < 7_200 => format!("{percent} % done, {} min left", seconds.div_ceil(60)),
        Some(seconds) => format!("{percent} % done, {} h left", seconds.div_ceil(3_600)),
        None => format!("{percent} % done"),
    }
}

impl Watcher for Terminal<'_> {
    fn prepares(&mut self, what: &str) {
        self.seconds = None;
        self.bar.set_message(what.to_owned());
    }

    fn begins(&mut self, step: &str, seconds: Option<f64>) {
        self.step += 1;
        self.seconds = seconds;
        let length = seconds.map(|seconds| format!(" ({seconds:.0} s)")).unwrap_or_default();
        self.bar.set_position(0);
        self.bar.set_message(format!("{} of {}: {step}{length}", self.step, self.total));
    }

    fn ticks(&mut self, seconds: f64) {
        if let Some(all) = self.seconds.filter(|all| *all > 0.0) {
            self.bar.set_position((seconds / all * 1000.0).min(1000.0) as u64);
        } else {
            self.bar.tick();
        }
    }

    fn is_cancelled(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    fn server_counters(&mut self) -> Option<BTreeMap<String, u64>> {
        self.server.counters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_that_is_left_has_a_unit() {
        assert_eq!(left(0.0, None), "0 % done");
        assert_eq!(left(0.995, Some(0.4)), "99 % done, 1 s left");
        assert_eq!(left(0.5, Some(121.0)), "50 % done, 3 min left");
        assert_eq!(left(0.01, Some(7_201.0)), "1 % done, 3 h left");
    }
}
