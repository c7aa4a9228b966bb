//! Permits of the commands that the process carries out: a bounded number at the same time, and apart from them a bounded number
//! that wait for something, so that waits leave the turn to others.

use crate::failure::Failure;
use std::sync::Arc;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use weir_machine::lock::Mutex;

/// Maximum number of concurrent commands; further ones wait for one of them to end.
const MAX_COMMANDS: u32 = 64;
/// Maximum number of commands that wait; further ones are refused.
pub const MAX_WAITS: u32 = 256;

/// The permits of a process.
#[derive(Clone)]
pub struct Permits {
    commands: Arc<Semaphore>,
    waits: Arc<Semaphore>,
}

impl Default for Permits {
    fn default() -> Self {
        let of = |count: u32| Arc::new(Semaphore::new(count as usize));
        Permits { commands: of(MAX_COMMANDS), waits: of(MAX_WAITS) }
    }
}

impl Permits {
    /// The permit of a command, once it is its turn.
    ///
    /// # Errors
    /// If the process ends.
    pub async fn of_command(&self) -> Result<Arc<Permit>, AcquireError> {
        let held = self.commands.clone().acquire_owned().await?;
        Ok(Arc::new(Permit { permits: self.clone(), held: Mutex::new(PermitState { permit: held, waits: false }) }))
    }

    /// The permit of a query that goes on until its client ends it.
    ///
    /// # Errors
    /// If [`MAX_WAITS`] commands wait.
    pub fn of_wait(&self) -> Result<OwnedSemaphorePermit, Failure> {
        self.waits.clone().try_acquire_owned().map_err(|_| too_many())
    }

    /// Waits until all commands have ended. Those that wait end by themselves when their pools are closed.
    pub async fn all_ended(&self) {
        // It fails only after `close`.
        let _ended =
            futures_util::future::join(self.commands.acquire_many(MAX_COMMANDS), self.waits.acquire_many(MAX_WAITS))
                .await;
    }

    /// Allows no more commands to begin.
    pub fn close(&self) {
        self.commands.close();
        self.waits.close();
    }
}

fn too_many() -> Failure {
    Failure::failed(format!(
        "{MAX_WAITS} commands wait already, which is the maximum: try again when one of them has ended"
    ))
}

struct PermitState {
    permit: OwnedSemaphorePermit,
    waits: bool,
}

/// The permit of one command.
pub struct Permit {
    permits: Permits,
    held: Mutex<PermitState>,
}

impl Permit {
    /// From here on the command waits: its permit goes to another one.
    ///
    /// # Errors
    /// If [`MAX_WAITS`] commands wait.
    pub fn waits(&self) -> Result<(), Failure> {
        let mut held = self.held.lock();
        if !held.waits {
            *held = PermitState { permit: self.permits.of_wait()?, waits: true };
        }
        debug_assert!(held.waits && held.permit.num_permits() == 1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn waits_leave_the_permits_to_others_and_are_bounded() {
        let permits = Permits::default();
        let command = || permits.of_command().now_or_never().and_then(Result::ok);
        let mut waiting = Vec::new();
        for _ in 0..MAX_WAITS {
            let permit = command().unwrap();
            permit.waits().unwrap();
            permit.waits().unwrap();
            waiting.push(permit);
        }
        let commands: Vec<_> = (0..MAX_COMMANDS).map(|_| command().unwrap()).collect();
        assert!(command().is_none() && permits.of_wait().is_err());
        let why = commands[0].waits().unwrap_err().line;
        assert!(why.starts_with("256 commands wait already"), "{why}");
        waiting.pop();
        commands[0].waits().unwrap();
        assert!(command().is_some());
    }
}
