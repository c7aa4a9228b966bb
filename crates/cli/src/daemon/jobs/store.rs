//! `jobs.json` in the state directory: jobs that `weir daemon job add` added, and the last runs of all jobs.

use super::{JobText, Run};
use crate::state_file;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// Name of the file.
pub const NAME: &str = "jobs.json";
/// Maximum size of the file that is read, in bytes.
const MAX_BYTES: u64 = 64 << 20;

/// Contents of the file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stored {
    /// Jobs that a command added.
    #[serde(default)]
    pub jobs: Vec<JobText>,
    /// Runs by name of the job, the oldest first.
    #[serde(default)]
    pub runs: BTreeMap<String, Vec<Run>>,
    /// Since when each job has its schedule, by name of the job.
    #[serde(default)]
    pub since: BTreeMap<String, Since>,
}

/// Since when a job has a schedule: times before are not times at which it should have run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Since {
    /// The schedule, with its time zone if the job names one.
    pub schedule: String,
    /// Seconds since 1970.
    pub at: i64,
}

impl Stored {
    /// Reads the file. An absent one is empty. A damaged one is kept beside as `jobs.json.damaged`, and is empty.
    pub fn load(file: &Path) -> Self {
        match state_file::load_json(file, MAX_BYTES) {
            Ok(stored) => stored.unwrap_or_default(),
            Err(error) => {
                let kept = file.with_extension("json.damaged");
                let renamed = match std::fs::rename(file, &kept) {
                    Ok(()) => format!("it is kept as {}", kept.display()),
                    Err(error) => format!("it cannot be renamed: {error}"),
                };
                tracing::error!(
                    "{}: {error}; {renamed}. Jobs that 'weir daemon job add' added are missing, and so are earlier runs",
                    file.display()
                );
                Stored::default()
            }
        }
    }

    /// Writes the file.
    ///
    /// # Errors
    /// Of writing.
    pub fn save(&self, file: &Path) -> io::Result<()> {
        state_file::replace(file, &serde_json::to_vec(self)?, 0o600)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_read_back_and_a_damaged_one_is_kept_beside() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(NAME);
        assert_eq!(Stored::load(&file), Stored::default());
        let job = r#"{"name": "a", "scrub": ["t"], "schedule": "hourly"}"#;
        let mut stored = Stored { jobs: vec![serde_json::from_str(job).unwrap()], ..Stored::default() };
        let runs = [Ok("done".to_owned()), Err("why".to_owned())].map(|result| Run { began: 7, result });
        stored.runs.insert("a".into(), runs.to_vec());
        stored.since.insert("a".into(), Since { schedule: "hourly".into(), at: 7 });
        stored.save(&file).unwrap();
        assert_eq!(Stored::load(&file), stored);
        assert!(stored.save(Path::new("/nowhere/jobs.json")).is_err());
        let bytes = std::fs::read(&file).unwrap();
        std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
        assert_eq!(Stored::load(&file), Stored::default());
        assert_eq!(std::fs::read(dir.path().join("jobs.json.damaged")).unwrap(), bytes[..bytes.len() / 2]);
    }
}
