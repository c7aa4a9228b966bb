//! File systems that this process serves itself, by FUSE.
//!
//! A pool must have no device on one of them. A process ends only when its transfers have, and a transfer to such
//! a file ends only when this process answers it: killed in between, the process and its mounts would hang until the machine is
//! restarted or the connection is aborted in `/sys/fs/fuse/connections`.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use weir_machine::lock::Mutex;

/// Mounts by the number of their device (`st_dev`). The kernel may give the number of a mount that has ended to a new one before the
/// former's [`OwnMount`] is dropped, so that a number may have two. A process has one table, whatever its pools are.
static SERVED: Mutex<BTreeMap<u64, usize>> = Mutex::new(BTreeMap::new());

/// A mount that this process serves, while the value lives.
#[derive(Debug)]
pub struct OwnMount(Option<u64>);

impl OwnMount {
    /// The mount of the device with that number, in the form `MAJOR:MINOR` of `/proc/self/mountinfo`; nothing for another text.
    pub fn new(number: &str) -> Self {
        let device = device_of(number);
        device.into_iter().for_each(|device| *SERVED.lock().entry(device).or_default() += 1);
        OwnMount(device)
    }

    /// Whether its device has that number.
    pub fn has_number(&self, number: &str) -> bool {
        self.0.is_some() && device_of(number) == self.0
    }
}

fn device_of(number: &str) -> Option<u64> {
    let (major, minor) = number.split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

impl Drop for OwnMount {
    fn drop(&mut self) {
        let Some(device) = self.0 else { return };
        let mut served = SERVED.lock();
        let left = served.get(&device).and_then(|count| count.checked_sub(1));
        debug_assert!(left.is_some(), "a mount ended twice");
        match left {
            Some(left) if left > 0 => drop(served.insert(device, left)),
            _ => drop(served.remove(&device)),
        }
    }
}

/// Whether the file at a path is on a file system that this process serves. The process must not even open such a file where it
/// may be killed: the kernel sends it a request for each descriptor that it closes.
pub fn has(path: &Path) -> bool {
    !SERVED.lock().is_empty() && std::fs::metadata(path).is_ok_and(|file| SERVED.lock().contains_key(&file.dev()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of a mount that has ended is given to another one before the first value is dropped.
    #[test]
    fn a_number_that_is_used_again_stays_known_until_both_mounts_have_ended() {
        let device = rustix::fs::makedev(0, 4_000_000);
        let is_known = || SERVED.lock().contains_key(&device);
        let former = OwnMount::new("0:4000000");
        let new = OwnMount::new("0:4000000");
        drop(former);
        assert!(is_known());
        drop(new);
        assert!(!is_known());
        drop(OwnMount::new("no number"));
    }
}
