//! A set of files of which a part exists: a thread takes a file that no other thread uses.

use crate::error::LabError;
use crate::statistics::Seeded;
use std::path::{Path, PathBuf};
use weir_machine::lock::Mutex;

/// Parameters of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSetShape {
    /// Files at most.
    pub files: u64,
    /// Percent of the files that exist at the beginning.
    pub existing_percent: u64,
    /// Files, and directories, in a directory.
    pub width: u64,
    /// Mean size in bytes; sizes have a gamma distribution of shape 1.5.
    pub mean_bytes: u64,
}

/// State of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Absent,
    Present,
    /// In use by a thread.
    Busy,
}

struct Table {
    states: Vec<State>,
    random: Seeded,
}

/// A set of files in a directory.
pub struct FileSet {
    folder: PathBuf,
    shape: FileSetShape,
    sizes: Vec<u64>,
    table: Mutex<Table>,
}

/// A number with the standard normal distribution (Box and Muller).
fn normal(random: &mut Seeded) -> f64 {
    let radius = (-2.0 * (1.0 - random.unit()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.unit()).cos()
}

/// A size with the gamma distribution of shape 1.5: half the sum of three squares of normal numbers has that shape and the mean 1.5.
fn size(mean_bytes: u64, random: &mut Seeded) -> u64 {
    let sum: f64 = (0..3).map(|_| normal(random).powi(2)).sum();
    (mean_bytes as f64 / 3.0 * sum).max(1.0) as u64
}

impl FileSetShape {
    /// Bytes of all files, if they had the mean size.
    #[must_use]
    pub fn mean_total_bytes(&self) -> u64 {
        self.files.saturating_mul(self.mean_bytes)
    }

    /// Path of a file within the set: its number in digits to the base of the width, one directory for each but the last.
    fn path(&self, number: u64) -> PathBuf {
        let mut parts = vec![format!("{number:08}")];
        let mut directory = number / self.width;
        let mut directories = self.files.div_ceil(self.width);
        while directories > 1 {
            parts.push(format!("{:06}", directory % self.width));
            directory /= self.width;
            directories = directories.div_ceil(self.width);
        }
        parts.iter().rev().collect()
    }
}

impl FileSet {
    /// The set in `folder`; nothing is made yet. Sizes follow from the seed.
    #[must_use]
    pub fn new(folder: &Path, shape: FileSetShape, seed: u64) -> Self {
        let mut random = Seeded::new(seed);
        let sizes = (0..shape.files).map(|_| size(shape.mean_bytes, &mut random)).collect();
        let existing = shape.files * shape.existing_percent / 100;
        let states = (0..shape.files).map(|number| if number < existing { State::Present } else { State::Absent });
        let states = states.collect();
        Self { folder: folder.to_path_buf(), shape, sizes, table: Mutex::new(Table { states, random }) }
    }

    /// Makes the directories and the files that are to exist, and removes the others. `go_on` is called again and again; false
    /// stops. Returns whether all were made.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn make(&self, mut go_on: impl FnMut() -> bool) -> Result<bool, LabError> {
        let mut content = vec![0; 1 << 20];
        let mut random = Seeded::new(self.shape.mean_bytes);
        let existing = self.shape.files * self.shape.existing_percent / 100;
        for number in 0..self.shape.files {
            if number % 64 == 0 && !go_on() {
                return Ok(false);
            }
            let path = self.path(number);
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent).map_err(LabError::io(parent))?;
            }
            if number < existing {
                // A content of its own, so that files do not deduplicate.
                random.fill(&mut content);
                let mut left = self.size(number);
                let mut file = std::fs::File::create(&path).map_err(LabError::io(&path))?;
                while left > 0 {
                    let part = left.min(content.len() as u64);
                    std::io::Write::write_all(&mut file, &content[..part as usize]).map_err(LabError::io(&path))?;
                    left -= part;
                }
            } else if path.exists() {
                std::fs::remove_file(&path).map_err(LabError::io(&path))?;
            }
        }
        Ok(true)
    }

    /// Path of a file.
    #[must_use]
    pub fn path(&self, number: u64) -> PathBuf {
        self.folder.join(self.shape.path(number))
    }

    /// Size that a file is written with.
    #[must_use]
    pub fn size(&self, number: u64) -> u64 {
        self.sizes.get(number as usize).copied().unwrap_or_default()
    }

    /// Takes a file at random that exists, or one that does not, and that no thread uses. `None` if there is none.
    pub fn take(&self, exists: bool) -> Option<u64> {
        let wanted = if exists { State::Present } else { State::Absent };
        let mut table = self.table.lock();
        let count = table.states.len();
        if count == 0 {
            return None;
        }
        let from = table.random.below(count);
        let found = (0..count).map(|step| (from + step) % count).find(|&place| table.states[place] == wanted)?;
        table.states[found] = State::Busy;
        Some(found as u64)
    }

    /// Gives a file back, which exists now or does not.
    pub fn give_back(&self, number: u64, exists: bool) {
        if let Some(state) = self.table.lock().states.get_mut(number as usize) {
            *state = if exists { State::Present } else { State::Absent };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: FileSetShape = FileSetShape { files: 1000, existing_percent: 80, width: 20, mean_bytes: 16_384 };

    #[test]
    fn sizes_have_the_mean_and_the_spread_of_a_gamma_distribution() {
        let mut random = Seeded::new(1);
        let sizes: Vec<f64> = (0..20_000).map(|_| size(16_384, &mut random) as f64).collect();
        let mean = crate::statistics::mean(&sizes).unwrap();
        assert!((mean / 16_384.0 - 1.0).abs() < 0.02, "{mean}");
        // The deviation of shape k is the mean divided by the root of k.
        let deviation = crate::statistics::deviation(&sizes).unwrap();
        assert!((deviation / mean * 1.5_f64.sqrt() - 1.0).abs() < 0.05, "{deviation}");
    }

    #[test]
    fn files_are_spread_over_directories_of_the_width() {
        assert_eq!(SHAPE.path(999), Path::new("000002/000009/00000999"));
        let flat = FileSetShape { width: 1_000_000, ..SHAPE };
        assert_eq!(flat.path(999), Path::new("00000999"));
        let folder = tempfile::tempdir().unwrap();
        let small = FileSetShape { files: 100, mean_bytes: 100, ..SHAPE };
        let set = FileSet::new(folder.path(), small, 1);
        assert!(set.make(|| true).unwrap());
        let there = (0..100).filter(|number| set.path(*number).exists()).count();
        assert_eq!(there, 80);
        let total: u64 = (0..80).map(|number| std::fs::metadata(set.path(number)).unwrap().len()).sum();
        assert_eq!(total, (0..80).map(|number| set.size(number)).sum::<u64>());
        // Making it again restores the same files.
        std::fs::remove_file(set.path(3)).unwrap();
        std::fs::write(set.path(90), "").unwrap();
        assert!(set.make(|| true).unwrap() && set.path(3).exists() && !set.path(90).exists());
        assert!(!set.make(|| false).unwrap());
    }

    #[test]
    fn a_file_is_used_by_one_thread_at_a_time() {
        let set = FileSet::new(Path::new("set"), FileSetShape { files: 10, ..SHAPE }, 1);
        let taken: std::collections::BTreeSet<u64> = std::iter::from_fn(|| set.take(true)).collect();
        assert_eq!(taken, (0..8).collect());
        assert!(set.take(false).is_some() && set.take(false).is_some() && set.take(false).is_none());
        set.give_back(5, false);
        assert_eq!((set.take(true), set.take(false)), (None, Some(5)));
    }
}
