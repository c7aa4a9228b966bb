//! The jobs of the configuration, checked.

use super::schedule::Schedule;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Maximum length of a job's name: the names of its snapshots stay far below the 255 characters of OpenZFS.
const MAX_NAME: usize = 32;
/// Maximum number of snapshots that a job keeps of each dataset.
const MAX_KEPT: u32 = 10_000;
/// Maximum number of jobs.
const MAX_JOBS: usize = 256;

/// Limits in seconds of how far a target may be behind before an alert is sent: to ten years.
const LAG_SECONDS: std::ops::RangeInclusive<u64> = 1..=315_360_000;

/// A job as the configuration says it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobText {
    /// Name, which begins the names of the snapshots.
    pub name: String,
    /// Datasets of which snapshots are taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<Vec<String>>,
    /// Pools that are scrubbed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scrub: Option<Vec<String>>,
    /// Dataset that is replicated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicate: Option<String>,
    /// Target of the replication, as `weir replicate` takes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Maximum bytes per second of the replication.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// Number of snapshots that stay at the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_target: Option<u32>,
    /// Age of the target's last snapshot, in seconds, beyond which an alert is sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lag_seconds: Option<u64>,
    /// Command that reaches the target's machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub through: Option<String>,
    /// The command `zfs` on the target's machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_zfs: Option<String>,
    /// Whether the descendants take part, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recursive: Option<bool>,
    /// When: see [`Schedule`].
    pub schedule: String,
    /// Time zone of the schedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// Number of snapshots that stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep: Option<u32>,
}

/// A job.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Name.
    pub name: String,
    /// Work that is done.
    pub work: Work,
    /// When it is due.
    pub schedule: Schedule,
    /// The schedule as the configuration says it.
    pub schedule_text: String,
    /// Time zone of the schedule, if the configuration names one.
    pub time_zone: Option<String>,
    /// Whether a command added it, and not the configuration.
    pub is_added: bool,
}

impl Job {
    /// The schedule, with its time zone if the configuration names one.
    pub fn schedule_with_zone(&self) -> String {
        match &self.time_zone {
            Some(zone) => format!("{} {zone}", self.schedule_text),
            None => self.schedule_text.clone(),
        }
    }
}

/// The work of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Takes snapshots, and destroys the oldest ones that it took.
    Snapshot {
        /// Full names.
        datasets: Vec<String>,
        /// Whether the descendants take part.
        recursive: bool,
        /// Number of snapshots that stay of each dataset.
        keep: usize,
    },
    /// Runs `weir replicate`.
    Replicate {
        /// Source.
        source: String,
        /// Target.
        target: String,
        /// Arguments: options, source and target.
        arguments: Vec<String>,
        /// Whether the descendants take part.
        recursive: bool,
        /// Seconds that the target may be behind before an alert is sent; `None`: no limit.
        lag_seconds: Option<u64>,
    },
    /// Starts scrubs.
    Scrub {
        /// Names of pools.
        pools: Vec<String>,
    },
}

/// Checks the jobs of a configuration.
///
/// # Errors
/// The first job that is wrong, and why.
pub fn checked(texts: Vec<JobText>) -> Result<Vec<Job>, String> {
    if texts.len() > MAX_JOBS {
        return Err(format!("jobs: there are {}, and at most {MAX_JOBS} are possible", texts.len()));
    }
    let mut names = BTreeSet::new();
    let mut jobs = Vec::new();
    for text in texts {
        let name = text.name.clone();
        if !names.insert(name.clone()) {
            return Err(format!("job '{name}': two jobs have this name"));
        }
        jobs.push(text.checked().map_err(|why| format!("job '{name}': {why}"))?);
    }
    Ok(jobs)
}

impl JobText {
    fn checked(self) -> Result<Job, String> {
        let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
        if self.name.is_empty() || self.name.len() > MAX_NAME || !self.name.chars().all(is_allowed) {
            return Err(format!("name: 1 to {MAX_NAME} letters, digits, '-', '_' and '.' are possible"));
        }
        let schedule = Schedule::parse(&self.schedule, self.time_zone.as_deref())?;
        let is_replication = self.replicate.is_some();
        let of_replications = [&self.to, &self.limit, &self.through, &self.target_zfs];
        if !is_replication
            && (of_replications.iter().any(|key| key.is_some())
                || self.keep_target.is_some()
                || self.lag_seconds.is_some())
        {
            return Err("to, limit, keep_target, lag_seconds, through and target_zfs belong to replicate".to_owned());
        }
        let work = match (self.snapshot, self.scrub, self.replicate) {
            (None, None, Some(source)) => {
                check_names("replicate", std::slice::from_ref(&source), "/")?;
                let target = self.to.ok_or("to: the target is missing")?;
                let mut arguments = vec!["--name".to_owned(), self.name.clone()];
                if self.recursive == Some(true) {
                    arguments.push("-r".to_owned());
                }
                let options = [
                    ("--keep-source", self.keep.map(|keep| keep.to_string())),
                    ("--keep-target", self.keep_target.map(|keep| keep.to_string())),
                    ("--limit", self.limit),
                    ("--through", self.through),
                    ("--target-zfs", self.target_zfs),
                ];
                for (option, value) in options.into_iter().filter_map(|(option, value)| Some((option, value?))) {
                    arguments.extend([option.to_owned(), value]);
                }
                arguments.extend([source.clone(), target.clone()]);
                crate::replicate::check(&arguments)?;
                if let Some(seconds) = self.lag_seconds.filter(|seconds| !LAG_SECONDS.contains(seconds)) {
                    return Err(format!("lag_seconds: {seconds} is not from 1 to {}", LAG_SECONDS.end()));
                }
                let recursive = self.recursive.unwrap_or(false);
                Work::Replicate { source, target, arguments, recursive, lag_seconds: self.lag_seconds }
            }
            (Some(datasets), None, None) => {
                check_names("snapshot", &datasets, "/")?;
                let keep = self.keep.ok_or("keep: the number of snapshots that stay is missing")?;
                if !(1..=MAX_KEPT).contains(&keep) {
                    return Err(format!("keep: {keep} is not from 1 to {MAX_KEPT}"));
                }
                Work::Snapshot { datasets, recursive: self.recursive.unwrap_or(false), keep: keep as usize }
            }
            (None, Some(pools), None) => {
                check_names("scrub", &pools, "")?;
                if self.keep.is_some() || self.recursive.is_some() {
                    return Err("keep and recursive belong to snapshots".to_owned());
                }
                Work::Scrub { pools }
            }
            _ => return Err("one of 'snapshot', 'scrub' and 'replicate' is needed".to_owned()),
        };
        let Self { name, schedule: schedule_text, time_zone, .. } = self;
        Ok(Job { name, work, schedule, schedule_text, time_zone, is_added: false })
    }
}

/// Refuses an empty list, and names that no dataset has: letters besides OpenZFS's and those in `more`.
fn check_names(key: &str, names: &[String], more: &str) -> Result<(), String> {
    if names.is_empty() {
        return Err(format!("{key}: the list is empty"));
    }
    let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || "-_.: ".contains(letter) || more.contains(letter);
    match names.iter().find(|name| name.is_empty() || !name.chars().all(is_allowed)) {
        Some(name) => {
            Err(format!("{key}: '{name}' is no name of a {}", if more.is_empty() { "pool" } else { "dataset" }))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Texts {
        jobs: Vec<JobText>,
    }

    fn of(text: &str) -> Result<Vec<Job>, String> {
        let texts: Texts = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        checked(texts.jobs)
    }

    #[test]
    fn jobs_are_read() {
        let text = "[[jobs]]\nname = \"a\"\nsnapshot = [\"tank/home\"]\nrecursive = true\nschedule = \"hourly\"\nkeep = 24\n\
                    [[jobs]]\nname = \"b\"\nscrub = [\"tank\"]\nschedule = \"monthly 1 02:00\"\ntime_zone = \"UTC\"\n";
        let jobs = of(text).unwrap();
        let datasets = vec!["tank/home".to_owned()];
        assert_eq!(jobs[0].work, Work::Snapshot { datasets, recursive: true, keep: 24 });
        assert_eq!(jobs[1].work, Work::Scrub { pools: vec!["tank".to_owned()] });
    }

    #[test]
    fn wrong_jobs_are_named() {
        let job = |more: &str| format!("[[jobs]]\nname = \"a\"\nschedule = \"hourly\"\n{more}\n");
        let snapshot = job("snapshot = [\"t\"]\nkeep = 1");
        for (text, why) in [
            (job(""), "one of 'snapshot'"),
            (job("snapshot = [\"t\"]"), "keep: the number"),
            (job("snapshot = [\"t\"]\nkeep = 0"), "keep: 0 is not"),
            (job("snapshot = []\nkeep = 1"), "the list is empty"),
            (job("snapshot = [\"t@a\"]\nkeep = 1"), "'t@a' is no name of a dataset"),
            (job("scrub = [\"t/a\"]"), "'t/a' is no name of a pool"),
            (job("scrub = [\"t\"]\nkeep = 3"), "belong to snapshots"),
            (job("scrub = [\"t\"]\nsnapshot = [\"t\"]"), "one of 'snapshot'"),
            (job("scrubs = [\"t\"]"), "unknown field"),
            (job("scrub = [\"t\"]\nlag_seconds = 9"), "lag_seconds, through and target_zfs belong to replicate"),
            (job("replicate = \"t\"\nto = \"b/t\"\nlag_seconds = 0"), "lag_seconds: 0 is not from 1"),
            (snapshot.replace("\"a\"", "\"a b\""), "name: 1 to 32"),
            (snapshot.replace("hourly", "yearly"), "schedule: 'yearly'"),
            (format!("{snapshot}{snapshot}"), "two jobs have this name"),
        ] {
            let error = of(&text).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
