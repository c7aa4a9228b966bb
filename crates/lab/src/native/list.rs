//! Listing of a directory with many entries, with the attributes of each, as file managers do.

use super::Recorder;
use crate::clock::Stopwatch;
use crate::error::LabError;
use crate::fio::Monitor;
use crate::result::{Round, Workload};
use std::path::Path;

/// Lists a directory and reads the attributes of its entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListLoad {
    /// Entries of the directory.
    pub entries: u64,
    /// Listings in a round.
    pub listings: u64,
}

impl ListLoad {
    /// The load as part of a result.
    #[must_use]
    pub fn workload(&self) -> Workload {
        Workload { pattern: "list".to_owned(), read_percent: 100, workers: 1, depth: 1, ..Workload::default() }
    }

    /// Makes the directory if it is not there, then lists it. An operation is one entry whose attributes were read. The first
    /// listing and the median of all are figures of the round. `None` if the monitor stopped it.
    ///
    /// # Errors
    /// If an entry cannot be made or read.
    pub fn run(&self, directory: &Path, monitor: &mut dyn Monitor) -> Result<Option<Round>, LabError> {
        let folder = directory.join(format!("{}.entries", crate::load::FILE_PREFIX));
        let making = Stopwatch::start();
        std::fs::create_dir_all(&folder).map_err(LabError::io(&folder))?;
        for number in 0..self.entries {
            if number % 256 == 0 && !monitor.poll(making.seconds()) {
                return Ok(None);
            }
            let path = folder.join(format!("entry with a long name {number:07}.txt"));
            if !path.exists() {
                std::fs::write(&path, b"").map_err(LabError::io(&path))?;
            }
        }
        let mut recorder = Recorder::default();
        let mut times = Vec::new();
        let watch = Stopwatch::start();
        for _ in 0..self.listings.max(1) {
            if !monitor.poll(watch.seconds()) {
                return Ok(None);
            }
            let begun = watch.seconds();
            let mut seen = 0_u64;
            for entry in std::fs::read_dir(&folder).map_err(LabError::io(&folder))? {
                let before = watch.seconds();
                let entry = entry.map_err(LabError::io(&folder))?;
                entry.metadata().map_err(LabError::io(&entry.path()))?;
                recorder.record(watch.seconds(), watch.seconds() - before, 0, 0);
                seen += 1;
            }
            times.push(watch.seconds() - begun);
            if seen < self.entries {
                let what = format!("{} entries were made, {seen} are listed", self.entries);
                return Err(LabError::Target(format!("{}: {what}", folder.display())));
            }
        }
        let mut round = recorder.round(watch.seconds());
        round.figures.insert("first_listing_seconds".to_owned(), times[0]);
        round.figures.insert("listing_seconds".to_owned(), crate::statistics::median(&times).unwrap_or_default());
        Ok(Some(round))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct StopsAt(u32);
    impl Monitor for StopsAt {
        fn poll(&mut self, _: f64) -> bool {
            self.0 = self.0.saturating_sub(1);
            self.0 > 0
        }
    }

    #[test]
    fn each_entry_is_an_operation_and_a_stop_is_obeyed() {
        let dir = tempfile::tempdir().unwrap();
        let load = ListLoad { entries: 300, listings: 3 };
        let round = load.run(dir.path(), &mut StopsAt(100)).unwrap().unwrap();
        assert_eq!(round.read.operations, 900);
        assert!(round.figures["listing_seconds"] > 0.0 && round.operations_per_s() > 0.0);
        assert!(load.run(dir.path(), &mut StopsAt(3)).unwrap().is_none());
    }
}
