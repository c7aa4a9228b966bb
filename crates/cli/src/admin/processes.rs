//! Processes of this machine that use mounts, to be named where a dataset is busy.
//!
//! The kernel's links in `/proc` are read, not followed: no request goes to the mounts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Processes to name at most.
const MAX_NAMED: usize = 8;

/// Processes other than `except` with files or a working directory below one of the mounts, as `process 12 (vi) at /mount`. Only
/// those that the caller may examine: an ordinary user sees its own.
pub fn that_use(mounts: &[PathBuf], except: &[u32]) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let found: BTreeMap<u32, &PathBuf> =
        ids.filter(|id| !except.contains(id)).filter_map(|id| Some((id, used_mount(id, mounts)?))).collect();
    let name = |id: u32| std::fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
    found
        .into_iter()
        .take(MAX_NAMED)
        .map(|(id, mount)| format!("process {id} ({}) at {}", name(id).trim_end(), mount.display()))
        .collect()
}

/// The innermost mount that a process uses.
fn used_mount(id: u32, mounts: &[PathBuf]) -> Option<&PathBuf> {
    let process = Path::new("/proc").join(id.to_string());
    let descriptors = std::fs::read_dir(process.join("fd")).ok();
    let descriptors = descriptors.into_iter().flatten().flatten().map(|entry| entry.path());
    let links = [process.join("cwd"), process.join("root")].into_iter().chain(descriptors);
    let used = links.filter_map(|link| std::fs::read_link(link).ok());
    used.filter_map(|path| containing(&path, mounts)).max_by_key(|mount| mount.as_os_str().len())
}

/// The innermost mount that contains a path.
fn containing<'a>(path: &Path, mounts: &'a [PathBuf]) -> Option<&'a PathBuf> {
    mounts.iter().filter(|mount| path.starts_with(mount)).max_by_key(|mount| mount.as_os_str().len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn processes_with_a_working_directory_below_a_mount_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let inner = dir.join("inner");
        std::fs::create_dir(&inner).unwrap();
        let mounts = [dir.clone(), inner.clone()];
        let mut process =
            Command::new("cat").current_dir(&inner).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let expected = format!("process {} (cat) at {}", process.id(), inner.display());
        // The new process has the name of this one until it has started its program.
        while std::fs::read_to_string(format!("/proc/{}/comm", process.id())).unwrap() != "cat\n" {
            std::thread::yield_now();
        }
        assert_eq!(that_use(&mounts, &[std::process::id()]), [expected]);
        drop(process.stdin.take());
        process.wait().unwrap();
        assert_eq!(that_use(&mounts, &[std::process::id()]), Vec::<String>::new());
        assert_eq!(containing(&dir.join("innermost"), &mounts), Some(&dir), "names are compared as a whole");
        assert_eq!(containing(Path::new("/"), &mounts), None);
    }
}
