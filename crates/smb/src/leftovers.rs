//! Servers that a killed process left behind.
//!
//! A pid file may be old, and its number may belong to another program now. So a process is ended only if it is an smbd of
//! this user that was started with this runtime directory's configuration: its children, one per connection, have the same
//! command line.

use crate::directories::Directories;
use crate::error::SmbError;
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::time::Duration;
use weir_machine::Clock;

/// Time for a server to end after SIGTERM, before SIGKILL.
const END_TIME: Duration = Duration::from_secs(5);
/// Time between two looks at a process.
const LOOK_TIME: Duration = Duration::from_millis(50);
/// Maximum size of a pid file, and of a command line that is read, in bytes.
const MAX_PID_BYTES: usize = 32;
const MAX_COMMAND_BYTES: usize = 16 << 10;

/// Process ID in a pid file; `None` if it holds none.
pub(crate) fn parse_pid(text: &str) -> Option<u32> {
    let text = text.get(..text.len().min(MAX_PID_BYTES))?.trim();
    text.parse().ok().filter(|pid| *pid > 1 && i32::try_from(*pid).is_ok())
}

/// Whether the command line (arguments that end with a zero byte) is that of an smbd with this configuration.
pub(crate) fn is_command_of(command: &[u8], configuration: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let mut words = command.get(..command.len().min(MAX_COMMAND_BYTES)).unwrap_or_default().split(|byte| *byte == 0);
    let program = words.next().and_then(|word| word.rsplit(|byte| *byte == b'/').next());
    // A process of smbd may have changed its title: `smbd: client [127.0.0.1]` (4.17 and later). The words follow.
    let is_smbd = program.is_some_and(|name| name == b"smbd" || name.starts_with(b"smbd:"));
    let wanted = [b"--configfile=", configuration.as_os_str().as_bytes()].concat();
    is_smbd && words.any(|word| word == wanted)
}

/// Real user ID in `/proc/PID/status`, which a process keeps while it acts as another user.
pub(crate) fn real_uid(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().next()?.parse().ok()
}

/// Whether a process is a server of this runtime directory, started by this user.
fn is_ours(pid: u32, directories: &Directories) -> bool {
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    if !is_command_of(&command, &directories.configuration()) {
        return false;
    }
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    real_uid(&status) == Some(rustix::process::geteuid().as_raw())
}

/// All processes of the servers of this runtime directory.
pub(crate) fn processes(directories: &Directories) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| is_ours(*pid, directories)).collect()
}

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // The process may have ended already.
        let _ = kill_process(pid, signal);
    }
}

/// Ends all servers of this runtime directory: asks them to, and kills those that remain after 5 s.
pub(crate) async fn end_all(clock: &Clock, directories: &Directories) {
    let ended_by = clock.now();
    for pid in processes(directories) {
        signal(pid, Signal::TERM);
    }
    loop {
        let left = processes(directories);
        if left.is_empty() {
            return;
        }
        if clock.now().since(ended_by) >= END_TIME {
            left.into_iter().for_each(|pid| signal(pid, Signal::KILL));
            return;
        }
        clock.sleep(LOOK_TIME).await;
    }
}

/// Ends the server that a killed process left behind, if its pid file names one.
///
/// # Errors
/// If the pid file cannot be removed.
pub(crate) async fn end_left_behind(clock: &Clock, directories: &Directories) -> Result<(), SmbError> {
    let path = directories.pid_file();
    let Ok(text) = std::fs::read_to_string(&path) else { return Ok(()) };
    match parse_pid(&text).filter(|pid| is_ours(*pid, directories)) {
        Some(pid) => {
            tracing::warn!(pid, "ending an smbd that an earlier process left behind");
            end_all(clock, directories).await;
        }
        // The number belongs to another program now, or to none; connections of the old server may still exist.
        None => end_all(clock, directories).await,
    }
    match std::fs::remove_file(&path) {
        Err(why) if why.kind() != std::io::ErrorKind::NotFound => Err(SmbError::file(&path, why)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pid_files_are_decoded_or_ignored() {
        assert_eq!(parse_pid("  4711\n"), Some(4711));
        for bad in ["", "x", "0", "1", "-5", "4711 4712", "99999999999", "é".repeat(40).as_str()] {
            assert_eq!(parse_pid(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn only_an_smbd_with_this_configuration_is_ours() {
        let conf = Path::new("/run/w/smb.conf");
        assert!(is_command_of(b"/usr/sbin/smbd\0--foreground\0--configfile=/run/w/smb.conf\0", conf));
        assert!(!is_command_of(b"/usr/sbin/smbd\0--configfile=/etc/samba/smb.conf\0", conf));
        assert!(!is_command_of(b"/usr/bin/less\0--configfile=/run/w/smb.conf\0", conf));
        assert!(!is_command_of(b"/usr/sbin/smbd\0--configfile=/run/w/smb.conf.new\0", conf));
        assert!(!is_command_of(b"", conf));
        assert_eq!(real_uid("Name:\tsmbd\nUid:\t0\t1000\t0\t1000\nGid:\t0\n"), Some(0));
        assert_eq!((real_uid(""), real_uid("Uid:\tx")), (None, None));
        let directories = Directories { state: "/nowhere".into(), runtime: "/nowhere".into() };
        assert!(!is_ours(std::process::id(), &directories) && processes(&directories).is_empty());
    }
}
