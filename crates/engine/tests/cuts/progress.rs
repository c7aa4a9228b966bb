//! Progress of a run, kept in a file: a long run can be stopped at any time, and the next run continues it.
//!
//! `WEIR_SIM_STATE` names the file. It is written after each history. The history in progress when a run is stopped is
//! repeated by the next run.

use crate::drive::number;
use crate::op_counters::OpCounters;
use std::path::PathBuf;
use std::time::Duration;

/// Sums over all histories of a run.
#[derive(Default)]
pub struct Progress {
    file: Option<PathBuf>,
    first_seed: u64,
    /// Histories that were cut.
    pub histories: u64,
    /// Moments at which the histories were cut.
    pub cuts: u64,
    /// Distinct states of all disks after the cuts.
    pub states: u64,
    /// Pools that were opened; every other pool is equivalent to an opened one.
    pub opened: u64,
    /// Promises that the clients of the histories were given.
    pub promises: u64,
    /// Cut pools that zdb has checked.
    pub zdb: u64,
    /// Operations of the clients, by kind.
    pub counters: OpCounters,
    /// Time spent cutting.
    pub busy: Duration,
}

impl Progress {
    /// Continues the run of the state file, or starts a new run at seed `WEIR_SIM_SEED`.
    pub fn open() -> Self {
        let file = std::env::var_os("WEIR_SIM_STATE").map(PathBuf::from);
        let mut progress = Progress { file, first_seed: number("WEIR_SIM_SEED", 1), ..Progress::default() };
        let Some(text) = progress.file.as_ref().and_then(|file| std::fs::read_to_string(file).ok()) else {
            return progress;
        };
        let words: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [first_seed, histories, cuts, states, opened, promises, zdb, seconds] = words[..] else {
            panic!("malformed state file: {text:?}");
        };
        progress.busy = Duration::from_secs(seconds);
        progress.counters = OpCounters::read(&text);
        Progress { first_seed, histories, cuts, states, opened, promises, zdb, ..progress }
    }

    /// The seed of the next history.
    pub fn next_seed(&self) -> u64 {
        self.first_seed + self.histories
    }

    /// Writes the state file, if there is one, and prints a line with the estimated time until `all` cuts.
    pub fn save_and_print(&self, all: u64) {
        let Progress { first_seed, histories, cuts, states, opened, promises, zdb, counters, busy, .. } = self;
        let seconds = busy.as_secs();
        if let Some(file) = &self.file {
            let sums = format!("{first_seed} {histories} {cuts} {states} {opened} {promises} {zdb} {seconds}");
            let text = format!("{sums} {}\n", counters.words());
            // A run that is stopped during the rename leaves the old file or the new one.
            let new = file.with_extension("new");
            std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, file)).unwrap();
        }
        let rate = *cuts as f64 / busy.as_secs_f64().max(1e-9);
        let left = Duration::from_secs((all.saturating_sub(*cuts) as f64 / rate.max(1e-9)) as u64);
        println!(
            "seeds {first_seed} to {}: {cuts} of {all} cuts ({rate:.0}/s, {states} distinct, {opened} opened), \
             {promises} promises, {zdb} by zdb, {left:?} left",
            self.next_seed() - 1
        );
    }
}
