//! File systems that this process serves itself, by FUSE.
//!
//! A pool must have no device on one of them. A process ends only when its transfers have, and a transfer to such
//! a file ends only when this process answers it: killed in between, the process and its mounts would hang until the machine is
//! restarted or the connection is aborted in `/sys/fs/fuse/connections`.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use weir_machine::lock::Mutex;

/// Numbers of the mounted devices (`st_dev`). A process has one table of mounts, whatever its pools are.
static SERVED: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

/// A mount that this process serves, while the value lives.
#[derive(Debug)]
pub struct OwnMount(Option<u64>);

impl OwnMount {
    /// The mount of the device with that number, in the form `MAJOR:MINOR` of `/proc/self/mountinfo`; nothing for another text.
    pub fn new(number: &str) -> Self {
        let parts = number.split_once(':').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        let device = parts.map(|(major, minor)| rustix::fs::makedev(major, minor));
        let is_new = device.is_none_or(|device| SERVED.lock().insert(device));
        debug_assert!(is_new, "{number} is mounted twice");
        OwnMount(device)
    }
}

impl Drop for OwnMount {
    fn drop(&mut self) {
        let was_known = self.0.is_none_or(|device| SERVED.lock().remove(&device));
        debug_assert!(was_known, "a mount ended twice");
    }
}

/// Whether the file at a path is on a file system that this process serves. The process must not even open such a file where it
/// may be killed: the kernel sends it a request for each descriptor that it closes.
pub fn has(path: &Path) -> bool {
    !SERVED.lock().is_empty() && std::fs::metadata(path).is_ok_and(|file| SERVED.lock().contains(&file.dev()))
}
