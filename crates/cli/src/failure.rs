//! Failure of a command: one line of text and OpenZFS's exit code.

use crate::remote::RemoteProcess;
use std::fmt;

/// Exit code of a command that failed.
pub const FAILED: u8 = 1;
/// Exit code for an invalid command line.
pub const MISUSED: u8 = 2;

/// Exit code of a command that Ctrl-C ended: that of a process that SIGINT ends, as a shell shows it.
pub const INTERRUPTED: u8 = 130;

/// Why a command ended, and with which exit code.
#[derive(Debug)]
pub struct Failure {
    /// 1 failed, 2 misused, 130 interrupted.
    pub code: u8,
    /// Cause of the failure, and how to correct it.
    pub line: String,
    busy: bool,
    wait_for: Option<String>,
    remote: Option<RemoteProcess>,
}

impl Failure {
    /// Failure because the command line is invalid.
    pub fn usage(line: impl Into<String>) -> Self {
        Failure { code: MISUSED, line: line.into(), busy: false, wait_for: None, remote: None }
    }

    /// Failure of a valid command.
    pub fn failed(line: impl Into<String>) -> Self {
        Failure { code: FAILED, line: line.into(), busy: false, wait_for: None, remote: None }
    }

    /// Failure because the user canceled the command.
    pub fn interrupted(line: impl Into<String>) -> Self {
        Failure { code: INTERRUPTED, ..Failure::failed(line) }
    }

    /// Failure because another process has the devices locked.
    pub fn busy(line: impl Into<String>) -> Self {
        Failure { busy: true, ..Failure::failed(line) }
    }

    /// Failure because another command has the devices locked. The next attempt may succeed, after `holder` has ended.
    pub fn not_yet(line: impl Into<String>, holder: impl Into<String>) -> Self {
        Failure { wait_for: Some(holder.into()), ..Failure::busy(line) }
    }

    /// This failure, described by another line.
    pub fn saying(self, line: String) -> Self {
        Failure { line, ..self }
    }

    /// This failure, which calls a pool as the user did, and not by its GUID.
    pub fn naming(self, guid: &str, pool: &str) -> Self {
        let line = self.line.replace(&format!("'{guid}'"), &format!("'{pool}'"));
        Failure { line, ..self }
    }

    /// Description of the process to wait for before the next attempt, once; `None` if waiting does not help.
    pub fn take_wait_for(&mut self) -> Option<String> {
        self.wait_for.take()
    }

    /// Failure because another process has the pool open and accepts commands.
    pub fn remote(pool: &str, remote: RemoteProcess) -> Self {
        let line = format!("cannot open '{pool}': process {} has it open", remote.pid);
        Failure { remote: Some(remote), ..Failure::busy(line) }
    }

    /// The process that can run the command instead, once.
    pub fn take_remote(&mut self) -> Option<RemoteProcess> {
        self.remote.take()
    }

    /// Whether another process can run the command instead.
    pub fn is_remote(&self) -> bool {
        self.remote.is_some()
    }

    /// Whether another process has the devices locked.
    pub fn is_busy(&self) -> bool {
        self.busy
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

impl From<weir_pool::PoolError> for Failure {
    fn from(error: weir_pool::PoolError) -> Self {
        Failure::failed(error.to_string())
    }
}

impl From<weir_linux::BuildError> for Failure {
    fn from(error: weir_linux::BuildError) -> Self {
        Failure::failed(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::CommandLine;
    use crate::tree::CommandTree;
    use weir_dmu::ObjectError;
    use weir_pool::PoolError;

    #[test]
    fn an_unreadable_pool_leads_to_options_that_the_named_command_has() {
        let source = Box::new(ObjectError::Suspended { why: "EIO".into() });
        let line = Failure::from(PoolError::Mos { pool: "p".into(), what: "the directory".into(), source }).line;
        assert!(line.contains("'zpool import -F' or '-T TXG'"), "{line}");
        let words = ["zpool", "import", "-F", "-T", "7", "p"].map(Into::into);
        assert!(CommandTree::parse_line(&words).is_ok());
    }
}
