//! The server is killed while a client in the guest writes, and started again: the client goes on without an error, and
//! what fsync had returned for is in the file, read without the client's caches.

use std::time::Duration;

use super::cases::Cases;
use super::emulator::Job;
use super::units::UNITS;
use crate::JudgeError;
use crate::kill::failed;

/// Promises of the client before the server is killed, and after its restart.
const PROMISES: usize = 24;
/// Time in which a client must notice the restart and go on.
const GOES_ON: Duration = Duration::from_secs(240);
/// Limit of the writer, in seconds.
const WRITER_SECONDS: u64 = 3600;

/// Promise in a line of the writer: unit and version.
fn promise(line: &str) -> Option<(usize, u64)> {
    let (unit, version) = line.strip_prefix("STABLE ")?.split_once(' ')?;
    Some((unit.parse().ok()?, version.parse().ok()?))
}

fn promises(job: &Job) -> usize {
    job.lines.iter().filter(|line| promise(line).is_some()).count()
}

impl Cases<'_> {
    /// Number of restarts in a case.
    fn restarts(&self) -> u64 {
        if self.long { 6 } else { 1 }
    }

    /// Over NFS, on a hard mount.
    pub(super) fn nfs_restarted(&mut self, mount: &str) -> Result<(), JudgeError> {
        self.restarted("nfs", "/mnt/written", ("nfs.sh", &format!("remounted {mount}")))
    }

    /// On ext4 on a block device.
    pub(super) fn block_restarted(&mut self, protocol: &str, device: &str) -> Result<(), JudgeError> {
        let folder = format!("/mnt/{protocol}");
        if let Err(lines) = self.call("block.sh", &format!("place {device} {folder}"), 300)? {
            self.report.fail(&format!("guest {protocol} restart"), &lines);
            return Ok(());
        }
        let again = format!("again {device} {folder}");
        self.restarted(protocol, &format!("{folder}/written"), ("block.sh", &again))?;
        if let Err(lines) = self.call("block.sh", &format!("umount {folder}"), 120)? {
            self.report.fail(&format!("guest {protocol} unmount"), &lines);
        }
        Ok(())
    }

    /// Kills and restarts the server under a writer; `uncached` makes the client read from the server again.
    fn restarted(&mut self, protocol: &str, file: &str, uncached: (&str, &str)) -> Result<(), JudgeError> {
        let case = format!("guest {protocol} restart");
        let seed = 11;
        let script = format!("rm -f /tmp/stop\nexec /judge/agent write {file} {seed}\n");
        let writer = self.guest.start(&script, Duration::from_secs(WRITER_SECONDS))?;
        for _ in 0..self.restarts() {
            self.more_promises(writer)?;
            self.server.kill();
            self.server.restart()?;
            self.more_promises(writer)?;
        }
        self.guest.run("touch /tmp/stop\n", Duration::from_secs(20))?;
        let job = self.guest.end(writer, GOES_ON)?;
        if job.code != Some(0) {
            let mut lines = vec![format!("the writer ended with {}", job.code.unwrap_or_default())];
            lines.extend(job.lines.iter().rev().take(3).cloned());
            self.report.fail(&case, &lines);
            return Ok(());
        }
        let mut last = [None; UNITS];
        for (unit, version) in job.lines.iter().filter_map(|line| promise(line)) {
            if let Some(slot) = last.get_mut(unit) {
                *slot = Some(version);
            }
        }
        let words: Vec<String> =
            last.iter().enumerate().filter_map(|(unit, version)| Some(format!("{unit}:{}", (*version)?))).collect();
        debug_assert!(words.len() <= promises(&job));
        let (script, call) = uncached;
        let mut outcome = self.call(script, call, 240)?;
        if outcome.is_ok() {
            outcome = self.call(script, &format!("/judge/agent check {file} {seed} {}", words.join(" ")), 120)?;
        }
        match outcome {
            Ok(_) => {
                let about = format!("{} restarts, {} promises", self.restarts(), promises(&job));
                self.report.pass(&case, &about);
            }
            Err(lines) => self.report.fail(&case, &lines),
        }
        Ok(())
    }

    /// Waits until a writer has made more promises.
    fn more_promises(&mut self, writer: u32) -> Result<(), JudgeError> {
        let before = self.guest.job(writer).map_or(0, promises);
        self.guest.wait(writer, GOES_ON, |job| promises(job) >= before + PROMISES)?;
        let job = self.guest.job(writer).ok_or_else(|| failed("the writer", "is not known"))?;
        debug_assert!(job.code.is_some() || promises(job) >= before + PROMISES);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_are_read_from_the_output() {
        assert_eq!(promise("STABLE 12 345"), Some((12, 345)));
        assert_eq!(promise("STABLE 12"), None);
        let lines = ["STABLE 1 1", "an error", "STABLE 2 2"].map(ToString::to_string).to_vec();
        assert_eq!(promises(&Job { lines, code: None }), 2);
    }
}
