//! State and runtime directories of SMB.
//!
//! ```text
//!               state                               runtime, one per port
//!   root        /var/lib/weir/smb                   /run/weir-smb/PORT
//!   others      XDG_STATE_HOME/weir/smb             XDG_RUNTIME_DIR/weir/smb-PORT
//!               else ~/.local/state/weir/smb        else /tmp/weir-UID/smb-PORT
//! ```
//!
//! In general, they are in the directories of [`crate::directories`]. Root's runtime directory is not in `/run/weir`, which is
//! for root alone, but beside it: smbd enters the mount under the identities of SMB users. `WEIR_STATE_DIR` and
//! `WEIR_RUNTIME_DIR` replace the parts before `smb`.

use crate::failure::Failure;
use std::path::PathBuf;
use weir_daemon::smb::Directories;

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
}

fn state() -> Result<PathBuf, Failure> {
    if let Some(path) = variable("WEIR_STATE_DIR") {
        return Ok(path.join("smb"));
    }
    let state = crate::directories::state().map(|state| state.join("smb"));
    state.ok_or_else(|| Failure::failed("there is no state directory: set HOME, XDG_STATE_HOME or WEIR_STATE_DIR"))
}

/// Directory of the runtime directories, and what the names in it begin with.
fn runtime() -> Result<(PathBuf, &'static str), Failure> {
    if let Some(path) = variable("WEIR_RUNTIME_DIR") {
        return Ok((path, "smb-"));
    }
    let own = crate::directories::own_runtime()?;
    if !rustix::process::geteuid().is_root() {
        return Ok((own, "smb-"));
    }
    let mut beside = own.into_os_string();
    beside.push("-smb");
    Ok((PathBuf::from(beside), ""))
}

/// The directories of the server on a port.
pub fn of_port(port: u16) -> Result<Directories, Failure> {
    let (dir, prefix) = runtime()?;
    Ok(Directories { state: state()?, runtime: dir.join(format!("{prefix}{port}")) })
}

/// The directories of all ports that were served since the machine was started, in the order of the ports.
pub fn all() -> Result<Vec<(u16, Directories)>, Failure> {
    let (dir, prefix) = runtime()?;
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut ports: Vec<u16> = names.filter_map(|name| name.strip_prefix(prefix)?.parse().ok()).collect();
    ports.sort_unstable();
    ports.into_iter().map(|port| of_port(port).map(|directories| (port, directories))).collect()
}
