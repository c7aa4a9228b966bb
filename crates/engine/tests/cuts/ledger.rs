//! What was cut so far, kept in a file between runs: a long run may be stopped at any time, and goes on where it was.
//!
//! `WEIR_SIM_STATE` names the file. It is written after each history; what a run that is stopped had begun is cut again.

use crate::drive::number;
use crate::tally::Tally;
use std::path::PathBuf;
use std::time::Duration;

/// The sums.
#[derive(Default)]
pub struct Ledger {
    file: Option<PathBuf>,
    first_seed: u64,
    /// Histories that were cut.
    pub histories: u64,
    /// Moments at which they were cut.
    pub cuts: u64,
    /// Different states of all disks that the cuts left.
    pub states: u64,
    /// Pools that were opened: the others read like one that was.
    pub opened: u64,
    /// Promises that the clients of the histories were given.
    pub promises: u64,
    /// Cut pools that zdb has judged.
    pub zdb: u64,
    /// What the clients did.
    pub tally: Tally,
    /// How long that took.
    pub busy: Duration,
}

impl Ledger {
    /// Of the run that the state file tells of, or of a new one from `WEIR_SIM_SEED` on.
    pub fn open() -> Self {
        let file = std::env::var_os("WEIR_SIM_STATE").map(PathBuf::from);
        let mut ledger = Ledger { file, first_seed: number("WEIR_SIM_SEED", 1), ..Ledger::default() };
        let Some(text) = ledger.file.as_ref().and_then(|file| std::fs::read_to_string(file).ok()) else {
            return ledger;
        };
        let words: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [first_seed, histories, cuts, states, opened, promises, zdb, seconds] = words[..] else {
            panic!("the state file is none: {text:?}");
        };
        (ledger.busy, ledger.tally) = (Duration::from_secs(seconds), Tally::read(&text));
        Ledger { first_seed, histories, cuts, states, opened, promises, zdb, ..ledger }
    }

    /// The seed of the next history.
    pub fn next_seed(&self) -> u64 {
        self.first_seed + self.histories
    }

    /// Writes the state file, if there is one, and a line with the time that is left until `all` cuts.
    pub fn save_and_tell(&self, all: u64) {
        let Ledger { first_seed, histories, cuts, states, opened, promises, zdb, tally, busy, .. } = self;
        let seconds = busy.as_secs();
        if let Some(file) = &self.file {
            let sums = format!("{first_seed} {histories} {cuts} {states} {opened} {promises} {zdb} {seconds}");
            let text = format!("{sums} {}\n", tally.words());
            // A run that is stopped now leaves the old file or the new one.
            let new = file.with_extension("new");
            std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, file)).unwrap();
        }
        let rate = *cuts as f64 / busy.as_secs_f64().max(1e-9);
        let left = Duration::from_secs((all.saturating_sub(*cuts) as f64 / rate.max(1e-9)) as u64);
        println!(
            "seeds {first_seed} to {}: {cuts} of {all} cuts ({rate:.0}/s, {states} different, {opened} opened), \
             {promises} promises, {zdb} by zdb, {left:?} left",
            self.next_seed() - 1
        );
    }
}
