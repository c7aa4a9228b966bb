//! OpenZFS's zdb as a judge of some cut pools, which are written to image files for it.

use crate::drive::Judged;
use crate::judge::{Way, judge, look};
use crate::states::When;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use weir_sim::SimWorld;

/// zdb, and how often to run it.
pub struct Zdb {
    tools: PathBuf,
    every: u64,
    seen: AtomicU64,
    judged: AtomicU64,
}

impl Zdb {
    /// Finds zdb in the folder that `WEIR_ZFS_TOOLS` names; it checks one of `every` states.
    pub fn find(every: u64) -> Option<Self> {
        let tools = std::env::var_os("WEIR_ZFS_TOOLS").map(PathBuf::from)?;
        let is_there = tools.join("sbin/zdb").is_file();
        is_there.then(|| Zdb { tools, every, seen: AtomicU64::new(0), judged: AtomicU64::new(0) })
    }

    /// Whether zdb checks the next state.
    pub fn is_due(&self) -> bool {
        self.seen.fetch_add(1, Ordering::Relaxed) % self.every == self.every / 2
    }

    /// Number of pools checked since the last call.
    pub fn take_count(&self) -> u64 {
        self.judged.swap(0, Ordering::Relaxed)
    }

    /// Checks a pool as the cut left it, and again after an import and export.
    pub fn judge(&self, world: &SimWorld, known: &Judged, cut: When) -> Result<(), String> {
        // The binary of a long run may be copied away from its build folder.
        let place = std::env::var_os("TMPDIR").unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into());
        let dir = tempfile::tempdir_in(place).map_err(|e| e.to_string())?;
        world.save(dir.path()).map_err(|e| e.to_string())?;
        self.check_with_zdb(dir.path()).map_err(|e| format!("zdb, after the cut: {e}"))?;
        judge(&look(known, world, Way::Exported)?, known, &[cut])?;
        world.save(dir.path()).map_err(|e| e.to_string())?;
        self.check_with_zdb(dir.path()).map_err(|e| format!("zdb, after import: {e}"))?;
        self.judged.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn check_with_zdb(&self, dir: &Path) -> Result<(), String> {
        let mut command = std::process::Command::new(self.tools.join("sbin/zdb"));
        command.env("LD_LIBRARY_PATH", self.tools.join("lib/x86_64-linux-gnu"));
        let output = command.args(["-e", "-p"]).arg(dir).args(["-bcc", "tank"]).output().map_err(|e| e.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout);
        if output.status.success() && text.contains("No leaks") {
            return Ok(());
        }
        Err(format!("{text}{}", String::from_utf8_lossy(&output.stderr)))
    }
}
