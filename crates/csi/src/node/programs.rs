//! Programs of the machine, each bounded in time and output.
//!
//! | Program | For |
//! |---|---|
//! | mount(8) with mount.nfs(8) | file systems over NFS, and those on volumes over iSCSI |
//! | iscsiadm(8) | sessions of iSCSI |
//! | blkid(8), mkfs.ext4(8), mkfs.xfs(8) | the file system on a new volume over iSCSI |
//! | resize2fs(8), xfs_growfs(8) | enlarging it |

use futures_util::future::{Either, select};
use std::path::PathBuf;
use std::pin::pin;
use std::process::Stdio;
use std::time::Duration;
use thiserror::Error;
use tokio::process::Command;
use weir_machine::Machine;

/// Time in which a program has to end.
const TIME: Duration = Duration::from_secs(120);

/// Why a program did not do its work.
#[derive(Debug, Error)]
pub enum ProgramError {
    /// The program cannot be started.
    #[error("cannot run {program}: {why}")]
    Start {
        /// Name of the program.
        program: String,
        /// The reason.
        why: std::io::Error,
    },
    /// The program did not end in time.
    #[error("{program} did not end in {} s", TIME.as_secs())]
    Late {
        /// Name of the program.
        program: String,
    },
    /// The program ended with an error.
    #[error("{program} failed ({code}): {said}")]
    Failed {
        /// Name of the program.
        program: String,
        /// Exit code.
        code: i32,
        /// The last line of its standard error.
        said: String,
    },
}

/// Runs programs of the machine.
pub struct Programs {
    machine: Machine,
    host_root: Option<PathBuf>,
}

impl Programs {
    /// Runs programs of this process's root, and those that must be the machine's own in the machine's root.
    pub fn new(machine: Machine, host_root: Option<PathBuf>) -> Self {
        Programs { machine, host_root }
    }

    /// Waits.
    pub async fn sleep(&self, time: Duration) {
        self.machine.clock.sleep(time).await;
    }

    /// Runs a program of this process's root; returns its standard output.
    ///
    /// # Errors
    /// [`ProgramError`].
    pub async fn run(&self, program: &str, arguments: &[&str]) -> Result<String, ProgramError> {
        self.end_of(program, Command::new(program).args(arguments)).await
    }

    /// Runs a program of the machine's root.
    ///
    /// # Errors
    /// [`ProgramError`].
    pub async fn run_on_host(&self, program: &str, arguments: &[&str]) -> Result<String, ProgramError> {
        match &self.host_root {
            Some(root) => self.end_of(program, Command::new("chroot").arg(root).arg(program).args(arguments)).await,
            None => self.run(program, arguments).await,
        }
    }

    async fn end_of(&self, program: &str, command: &mut Command) -> Result<String, ProgramError> {
        let program = program.to_owned();
        command.env("LC_ALL", "C").kill_on_drop(true).stdin(Stdio::null());
        let output = pin!(command.output());
        let ended = match select(output, pin!(self.machine.clock.sleep(TIME))).await {
            Either::Left((ended, _)) => ended.map_err(|why| ProgramError::Start { program: program.clone(), why })?,
            Either::Right(_) => return Err(ProgramError::Late { program }),
        };
        if ended.status.success() {
            return Ok(String::from_utf8_lossy(&ended.stdout).into_owned());
        }
        let text = String::from_utf8_lossy(&ended.stderr);
        let said = text.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or("without a message");
        Err(ProgramError::Failed { program, code: ended.status.code().unwrap_or(-1), said: said.to_owned() })
    }
}
