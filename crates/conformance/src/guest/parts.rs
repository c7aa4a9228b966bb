//! Parts of the emulated machine: QEMU, the kernel and root file system that `fetch-guest.sh` made, and an archive of
//! the judge's own programs and scripts.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::JudgeError;
use crate::kill::failed;
use crate::suites::{all_crates, program};
use crate::zdb::output;

/// Scripts that run in the guest; each is a file of shell functions.
const SCRIPTS: [(&str, &str); 5] = [
    ("nfs.sh", include_str!("scripts/nfs.sh")),
    ("block.sh", include_str!("scripts/block.sh")),
    ("smb.sh", include_str!("scripts/smb.sh")),
    ("locks.py", include_str!("scripts/locks.py")),
    ("nbd_persistent.py", include_str!("scripts/nbd_persistent.py")),
];
/// Suites of others that run in the guest if they are installed here.
const SUITES: [(&str, &str); 2] = [("WEIR_FSX", "fsx"), ("WEIR_PJDFSTEST", "pjdfstest")];
/// Folder of C sources among those of this program's dependencies: crate and folder in it.
const SOURCES: (&str, &str) = ("lzzzz-", "vendor/liblz4");

/// Files needed to boot a guest.
pub struct Parts {
    /// Emulator.
    pub qemu: PathBuf,
    /// Folder of vmlinuz, initramfs and root.img.
    pub folder: PathBuf,
    /// Archive with the judge's programs.
    pub programs: tempfile::NamedTempFile,
    /// Suites that it holds.
    pub suites: Vec<&'static str>,
    /// Whether it holds C sources.
    pub sources: bool,
}

impl Parts {
    /// Finds them.
    ///
    /// # Errors
    /// If QEMU, the folder or the agent is absent.
    pub fn find() -> Result<Parts, JudgeError> {
        let qemu = program("WEIR_QEMU", "qemu-system-x86_64")?;
        let here = std::env::current_exe().map_err(|e| failed("the place of this program", e))?;
        // target/PROFILE/weir-judge
        let target = here.parent().and_then(Path::parent).unwrap_or(Path::new("target")).to_path_buf();
        let folder = std::env::var_os("WEIR_GUEST").map_or_else(|| target.join("judges/guest"), PathBuf::from);
        if !folder.join("root.img").is_file() {
            let what = "the guest's packages are absent (set WEIR_GUEST)".to_owned();
            return Err(JudgeError::Missing { what });
        }
        let agent = here.with_file_name("weir-guest-agent");
        if !agent.is_file() {
            return Err(JudgeError::Missing { what: "weir-guest-agent is not built".into() });
        }
        let stage = tempfile::tempdir().map_err(|e| failed("a folder", e))?;
        let mut suites = Vec::new();
        place(&agent, &stage.path().join("agent"))?;
        for (variable, name) in SUITES {
            if let Ok(found) = program(variable, name) {
                place(&found, &stage.path().join(name))?;
                suites.push(name);
            }
        }
        for (name, text) in SCRIPTS {
            std::fs::write(stage.path().join(name), text).map_err(|e| failed("a script", e))?;
        }
        let found = c_sources();
        if let Some(folder) = &found {
            let copied = output(Command::new("cp").arg("-r").arg(folder).arg(stage.path().join("sources")))?;
            if !copied.status.success() {
                return Err(failed("cp of C sources", String::from_utf8_lossy(&copied.stderr)));
            }
        }
        let programs = tempfile::NamedTempFile::new().map_err(|e| failed("a file", e))?;
        let packed = output(Command::new("tar").arg("-C").arg(stage.path()).arg("-cf").arg(programs.path()).arg("."))?;
        if !packed.status.success() {
            return Err(failed("tar", String::from_utf8_lossy(&packed.stderr)));
        }
        Ok(Parts { qemu, folder, programs, suites, sources: found.is_some() })
    }
}

/// Copies a program, without its debug information if strip(1) is here: the guest holds it in memory.
fn place(from: &Path, to: &Path) -> Result<(), JudgeError> {
    let stripped = Command::new("strip").arg("-o").arg(to).arg(from).status();
    if stripped.is_ok_and(|status| status.success()) {
        return Ok(());
    }
    std::fs::copy(from, to).map(|_| ()).map_err(|e| failed("a copy of a program", e))
}

/// C sources to build in the guest, if cargo keeps them.
fn c_sources() -> Option<PathBuf> {
    let (name, below) = SOURCES;
    let registries = std::fs::read_dir(all_crates().ok()?).ok()?;
    let crates = registries.flatten().filter_map(|folder| std::fs::read_dir(folder.path()).ok()).flatten().flatten();
    let mut found = crates.filter(|entry| entry.file_name().to_string_lossy().starts_with(name));
    found.find_map(|entry| Some(entry.path().join(below)).filter(|folder| folder.join("lz4.c").is_file()))
}
