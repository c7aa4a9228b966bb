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

    /// Removes the bar.
    pub fn end(&self) {
        self.bar.finish_and_clear();
        if self.stopped.load(Ordering::SeqCst) {
            eprintln!("stopped; rounds that were finished are kept, 'weir bench resume DIR' measures the rest");
        }
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
