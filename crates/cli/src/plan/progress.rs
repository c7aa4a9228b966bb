//! Progress of a prediction on a terminal: a bar, the step, and the time that is left.

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::fmt::Write;
use std::time::Duration;
use weir_planner::plan::STEPS;

/// Time between two updates of the times.
const TICK: Duration = Duration::from_millis(500);

/// Shows how far predictions are, on standard error if it is a terminal.
pub struct Progress {
    bar: ProgressBar,
    /// Share of the work that is done before the present file.
    before: u64,
    is_quick: bool,
}

impl Progress {
    /// Progress of the plans of several files; with `is_quick` of the steps that those have.
    pub fn of_plans(files: usize, is_quick: bool) -> Self {
        Self::new(files as u64 * share(STEPS.len(), is_quick), is_quick)
    }

    /// Progress of sweeps over several files with as many values each.
    pub fn of_sweeps(files: usize, values: usize) -> Self {
        Self::new((files * values) as u64, false)
    }

    fn new(work: u64, is_quick: bool) -> Self {
        let bar = ProgressBar::with_draw_target(Some(work.max(1)), ProgressDrawTarget::stderr());
        bar.set_style(style("{bar:24} {msg} …"));
        bar.enable_steady_tick(TICK);
        Progress { bar, before: 0, is_quick }
    }

    /// A step of the plan of a file begins.
    pub fn step(&self, of: &str, what: &str) {
        let at = STEPS.iter().position(|(name, _)| *name == what).unwrap_or(0);
        self.at(self.before + share(at, self.is_quick), format!("{of}: {what}"));
    }

    /// The simulation of the next value of a file's sweep begins.
    pub fn value(&mut self, of: &str, what: &str) {
        self.at(self.before, format!("{of}: {what}"));
        self.before += 1;
    }

    /// The plan of a file is done.
    pub fn end_of_plan(&mut self) {
        self.before += share(STEPS.len(), self.is_quick);
    }

    fn at(&self, done: u64, what: String) {
        if let Some(total) = total_time(self.bar.elapsed(), done, self.bar.length().unwrap_or(1)) {
            let left = move |state: &ProgressState, out: &mut dyn Write| {
                let left = total.saturating_sub(state.elapsed());
                // What is written is a line of a terminal.
                let _written = write!(out, "{}", HumanDuration(left));
            };
            self.bar.set_style(style("{bar:24} {msg} …, {elapsed} so far, about {left} left").with_key("left", left));
        }
        self.bar.set_position(done);
        self.bar.set_message(what);
        debug_assert!(Some(done) <= self.bar.length(), "{done} of {:?}", self.bar.length());
    }

    /// Prints text while the bar is away.
    pub fn print(&self, print: impl FnOnce()) {
        self.bar.suspend(print);
    }

    /// Removes the bar.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Time of all of the work, if the rest takes as long for its share as the part that is done; `None` at the beginning.
fn total_time(elapsed: Duration, done: u64, all: u64) -> Option<Duration> {
    let ns = u128::from(all) * elapsed.as_nanos();
    Some(Duration::from_nanos(u64::try_from(ns.checked_div(u128::from(done))?).unwrap_or(u64::MAX)))
}

/// Share of the steps before this one.
fn share(step: usize, is_quick: bool) -> u64 {
    let of = |(name, percent): &(&str, u32)| if is_quick && is_left_out(name) { 0 } else { u64::from(*percent) };
    STEPS.iter().take(step).map(of).sum()
}

/// Whether `--quick` leaves a step out.
fn is_left_out(step: &str) -> bool {
    ["copies", "resilver"].contains(&step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_the_rest_follows_from_that_of_the_work_so_far() {
        let s = Duration::from_secs;
        assert_eq!(total_time(s(30), 25, 100), Some(s(120)));
        assert_eq!((total_time(s(30), 100, 100), total_time(s(1), 0, 100)), (Some(s(30)), None));
    }

    #[test]
    fn the_bar_advances_with_the_steps_of_all_files() {
        for is_quick in [false, true] {
            let mut progress = Progress::of_plans(2, is_quick);
            let mut seen = vec![0];
            for file in ["a", "b"] {
                for (step, _) in STEPS.iter().filter(|(step, _)| !is_quick || !is_left_out(step)) {
                    progress.step(file, step);
                    seen.push(progress.bar.position());
                }
                progress.end_of_plan();
            }
            assert!(seen.is_sorted() && seen[1] == 0 && seen.last() < progress.bar.length().as_ref(), "{seen:?}");
            assert_eq!(Some(progress.before), progress.bar.length());
        }
        let mut progress = Progress::of_sweeps(2, 3);
        for _ in 0..6 {
            progress.value("a", "pool.vdevs = 1");
        }
        assert_eq!((progress.bar.position(), progress.bar.length()), (5, Some(6)));
    }
}
