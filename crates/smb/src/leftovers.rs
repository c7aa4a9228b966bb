//! Servers that a killed process left behind.
//!
//! A pid file may be old, and its number may belong to another program now. So a process is ended only if it is a program of
//! Samba that this user started with this runtime directory's configuration. These are smbd, its children, one per
//! connection, which have the same command line, and since Samba 4.16 the helpers that smbd starts for named pipes:
//! samba-dcerpcd and its `rpcd_*`. The helpers have sessions of their own and outlive smbd, some of them for minutes.

use crate::directories::Directories;
use crate::error::SmbError;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
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

/// Programs of Samba.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// The server or one of its connections.
    Smbd,
    /// A program that smbd starts.
    Helper,
}

/// The program of a command line (arguments that end with a zero byte) with this configuration; `None` if it is not of Samba.
pub(crate) fn program_of(command: &[u8], configuration: &Path) -> Option<Program> {
    use std::os::unix::ffi::OsStrExt;
    let mut words = command.get(..command.len().min(MAX_COMMAND_BYTES)).unwrap_or_default().split(|byte| *byte == 0);
    let name = words.next()?.rsplit(|byte| *byte == b'/').next()?;
    // A process of smbd may have changed its title: `smbd: client [127.0.0.1]` (4.17 and later). The words follow.
    let program = match name {
        name if name == b"smbd" || name.starts_with(b"smbd:") => Program::Smbd,
        name if name.starts_with(b"samba-dcerpcd") || name.starts_with(b"rpcd_") => Program::Helper,
        _ => return None,
    };
    let wanted = [b"--configfile=", configuration.as_os_str().as_bytes()].concat();
    words.any(|word| word == wanted).then_some(program)
}

/// Real user ID in `/proc/PID/status`, which a process keeps while it acts as another user.
pub(crate) fn real_uid(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().next()?.parse().ok()
}

/// Which program of the server of this runtime directory a process is, if this user started it.
fn of_ours(pid: u32, directories: &Directories) -> Option<Program> {
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let program = program_of(&command, &directories.configuration())?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    (real_uid(&status) == Some(rustix::process::geteuid().as_raw())).then_some(program)
}

/// All processes of the servers of this runtime directory, with their helpers.
pub(crate) fn processes(directories: &Directories) -> Vec<(u32, Program)> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| Some((pid, of_ours(pid, directories)?))).collect()
}

/// Sends a signal to a process of this runtime directory. The process is held by a descriptor and looked at again, so that the
/// signal reaches no other that got its number.
fn signal(pid: u32, signal: Signal, directories: &Directories) {
    let Some(process) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
    // It may have ended already.
    let Ok(held) = pidfd_open(process, PidfdFlags::empty()) else { return };
    if of_ours(pid, directories).is_some() {
        let _ = pidfd_send_signal(held, signal);
    }
}

/// Ends all servers of this runtime directory and their helpers: asks them to, and kills those that remain after 5 s.
pub(crate) async fn end_all(clock: &Clock, directories: &Directories) {
    let ended_by = clock.now();
    let mut asked = Vec::new();
    loop {
        let left = processes(directories);
        if left.is_empty() {
            return;
        }
        if clock.now().since(ended_by) >= END_TIME {
            left.into_iter().for_each(|(pid, _)| signal(pid, Signal::KILL, directories));
            return;
        }
        // A helper may have started another one meanwhile.
        for (pid, _) in left {
            if !asked.contains(&pid) {
                signal(pid, Signal::TERM, directories);
                asked.push(pid);
            }
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
    match parse_pid(&text).filter(|pid| of_ours(*pid, directories) == Some(Program::Smbd)) {
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
    fn only_programs_of_samba_with_this_configuration_are_ours() {
        let conf = Path::new("/run/w/smb.conf");
        let of = |command: &[u8]| program_of(command, conf);
        assert_eq!(of(b"/usr/sbin/smbd\0--foreground\0--configfile=/run/w/smb.conf\0"), Some(Program::Smbd));
        let dcerpcd = b"/usr/libexec/samba/samba-dcerpcd\0--libexec-rpcds\0--configfile=/run/w/smb.conf\0--np-helper\0";
        assert_eq!(of(dcerpcd), Some(Program::Helper));
        let rpcd = b"/usr/libexec/samba/rpcd_classic\0--configfile=/run/w/smb.conf\0--worker-index=5\0";
        assert_eq!(of(rpcd), Some(Program::Helper));
        assert_eq!(of(b"/usr/libexec/samba/rpcd_classic\0--configfile=/etc/samba/smb.conf\0"), None);
        assert_eq!(of(b"/usr/sbin/smbd\0--configfile=/etc/samba/smb.conf\0"), None);
        assert_eq!(of(b"/usr/bin/less\0--configfile=/run/w/smb.conf\0"), None);
        assert_eq!(of(b"/usr/sbin/smbd\0--configfile=/run/w/smb.conf.new\0"), None);
        assert_eq!(of(b""), None);
        assert_eq!(real_uid("Name:\tsmbd\nUid:\t0\t1000\t0\t1000\nGid:\t0\n"), Some(0));
        assert_eq!((real_uid(""), real_uid("Uid:\tx")), (None, None));
        let directories = Directories { state: "/nowhere".into(), runtime: "/nowhere".into() };
        assert!(of_ours(std::process::id(), &directories).is_none() && processes(&directories).is_empty());
    }
}
