//! Repetition of changes that are impossible in the txg in which another command has just changed the same dataset.
//!
//! A second snapshot of a dataset, a clone of a new snapshot, and a rollback to one need a later txg. OpenZFS's sync tasks
//! answer EAGAIN and are repeated after the txg (`module/zfs/dsl_synctask.c`); so are these changes.

use weir_engine::Engine;
use weir_pool::PoolError;

/// Maximum number of attempts: other commands may make a snapshot in each txg in between.
const MAX_ATTEMPTS: u32 = 64;

/// Counts the attempts of a change.
#[derive(Default)]
pub(crate) struct Attempts(u32);

impl Attempts {
    /// After a failed attempt: waits for the txg if the change is possible in a later one.
    ///
    /// # Errors
    /// The error itself, if it has another cause or there were too many attempts.
    pub(crate) async fn wait(&mut self, engine: &Engine, error: PoolError) -> Result<(), PoolError> {
        self.0 += 1;
        if !is_too_early(&error) || self.0 >= MAX_ATTEMPTS {
            return Err(error);
        }
        engine.sync().await
    }
}

/// Whether the change is possible in a later txg.
fn is_too_early(error: &PoolError) -> bool {
    matches!(error, PoolError::Dsl(error) if error.is_too_early())
}
