//! How a command ends badly: one line, and OpenZFS's exit code.

use crate::admin::Elsewhere;
use std::fmt;

/// Exit code for something that went wrong.
pub const FAILED: u8 = 1;
/// Exit code for a command line that makes no sense.
pub const MISUSED: u8 = 2;

/// Why a command ended, and with which exit code.
#[derive(Debug)]
pub struct Failure {
    /// 1 failed, 2 misused.
    pub code: u8,
    /// What is wrong, and the way to mend it.
    pub line: String,
    busy: bool,
    elsewhere: Option<Elsewhere>,
}

impl Failure {
    /// The command line makes no sense.
    pub fn usage(line: impl Into<String>) -> Self {
        Failure { code: MISUSED, line: line.into(), busy: false, elsewhere: None }
    }

    /// It was understood, and went wrong.
    pub fn failed(line: impl Into<String>) -> Self {
        Failure { code: FAILED, line: line.into(), busy: false, elsewhere: None }
    }

    /// Another process is in the way.
    pub fn busy(line: impl Into<String>) -> Self {
        Failure { busy: true, ..Failure::failed(line) }
    }

    /// Another process has it open, and can be asked.
    pub fn elsewhere(pool: &str, elsewhere: Elsewhere) -> Self {
        let line = format!("cannot open '{pool}': process {} has it open", elsewhere.pid);
        Failure { elsewhere: Some(elsewhere), ..Failure::busy(line) }
    }

    /// The process to be asked instead.
    pub fn take_elsewhere(&mut self) -> Option<Elsewhere> {
        self.elsewhere.take()
    }

    /// Whether another process is in the way.
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
